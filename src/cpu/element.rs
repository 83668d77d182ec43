//! Element types and their compute types.

use super::simd::{dispatch, Kernel};
use super::Real;
use half::{bf16, f16};
use std::mem::MaybeUninit;

/// A tensor element: widened once into its compute type, narrowed once out of it.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// The type all arithmetic is done in.
    type Compute: Real + Element<Compute = Self::Compute>;

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
    ($half:ty) => {
        impl Element for $half {
            type Compute = f32;

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
    };
}

macro_rules! real_element {
    ($real:ty) => {
        impl Element for $real {
            type Compute = $real;

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
    };
}

half_element!(f16);
half_element!(bf16);
real_element!(f32);
real_element!(f64);
