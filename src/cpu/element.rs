//! Element types and their compute types.

use super::simd::{dispatch, Kernel};
use super::Real;
use candle_core::{CpuStorage, DType};
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// Room for results of elements of T: of these themselves, or of the numbers they are computed in.
pub enum Room<'y, T: Element> {
    Narrow(&'y mut [MaybeUninit<T>]),
    Wide(&'y mut [MaybeUninit<T::Compute>]),
}

impl<T: Element> Room<'_, T> {
    /// Those that come first, and the rest.
    #[inline(always)]
    pub fn split_at(self, len: usize) -> (Self, Self) {
        match self {
            Self::Narrow(room) => {
                let (first, rest) = room.split_at_mut(len);
                (Self::Narrow(first), Self::Narrow(rest))
            }
            Self::Wide(room) => {
                let (first, rest) = room.split_at_mut(len);
                (Self::Wide(first), Self::Wide(rest))
            }
        }
    }
}

/// Elements that results for a tensor of T are made of.
pub trait ResultOf<T: Element<Compute = Self::Compute>>: Element {
    fn room(room: &mut [MaybeUninit<Self>]) -> Room<'_, T>;
}

/// A tensor element: widened once into its compute type, narrowed once out of it.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// The type all arithmetic is done in.
    type Compute: Real + Element<Compute = Self::Compute>;
    const DTYPE: DType;

    /// The elements of a storage, if it is of these.
    fn of_storage(storage: &CpuStorage) -> Option<&[Self]>;

    fn widen(self) -> Self::Compute;
    /// Rounded to nearest even.
    fn narrow(x: Self::Compute) -> Self;

    /// The same room for numbers of the compute type, or as it was where elements are not.
    fn as_compute(
        room: &mut [MaybeUninit<Self>],
    ) -> Result<&mut [MaybeUninit<Self::Compute>], &mut [MaybeUninit<Self>]>;

    /// Runs `kernel` on the widest vectors that this processor has.
    fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out;
}

macro_rules! half_element {
    ($half:ty, $dtype:ident) => {
        impl Element for $half {
            type Compute = f32;
            const DTYPE: DType = DType::$dtype;

            fn of_storage(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$dtype(elements) => Some(elements),
                    _ => None,
                }
            }

            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn narrow(x: f32) -> Self {
                Self::from_f32(x)
            }

            fn as_compute(
                room: &mut [MaybeUninit<Self>],
            ) -> Result<&mut [MaybeUninit<f32>], &mut [MaybeUninit<Self>]> {
                Err(room)
            }

            fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out {
                dispatch!(kernel)
            }
        }

        impl ResultOf<$half> for $half {
            #[inline(always)]
            fn room(room: &mut [MaybeUninit<Self>]) -> Room<'_, $half> {
                Room::Narrow(room)
            }
        }

        impl ResultOf<$half> for f32 {
            #[inline(always)]
            fn room(room: &mut [MaybeUninit<Self>]) -> Room<'_, $half> {
                Room::Wide(room)
            }
        }
    };
}

macro_rules! real_element {
    ($real:ty, $dtype:ident) => {
        impl Element for $real {
            type Compute = $real;
            const DTYPE: DType = DType::$dtype;

            fn of_storage(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$dtype(elements) => Some(elements),
                    _ => None,
                }
            }

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(x: Self) -> Self {
                x
            }

            fn as_compute(
                room: &mut [MaybeUninit<Self>],
            ) -> Result<&mut [MaybeUninit<Self>], &mut [MaybeUninit<Self>]> {
                Ok(room)
            }

            fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out {
                dispatch!(kernel)
            }
        }

        impl ResultOf<$real> for $real {
            #[inline(always)]
            fn room(room: &mut [MaybeUninit<Self>]) -> Room<'_, $real> {
                Room::Wide(room)
            }
        }
    };
}

half_element!(f16, F16);
half_element!(bf16, BF16);
real_element!(f32, F32);
real_element!(f64, F64);
