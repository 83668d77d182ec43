//! Element types and their compute types.

use super::Real;
use half::slice::HalfFloatSliceExt;
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};

/// A tensor element: widened once into its compute type, narrowed once out of it.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type all arithmetic is done in.
    type Compute: Real + Element;

    /// `len` zeros, in memory that the system hands out zeroed where it is fresh: nothing is written.
    fn zeros(len: usize) -> Vec<Self>;

    /// The elements themselves, where they are of the compute type already.
    fn as_compute(elements: &[Self]) -> Option<&[Self::Compute]>;
    /// As `as_compute`, to write to.
    fn as_compute_mut(elements: &mut [Self]) -> Option<&mut [Self::Compute]>;

    /// Converts a slice; both have the same length.
    fn widen(from: &[Self], to: &mut [Self::Compute]);
    /// Rounds a slice to nearest even; both have the same length.
    fn narrow(from: &[Self::Compute], to: &mut [Self]);
    /// Converts one element.
    fn widen_one(self) -> Self::Compute;
}

macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            type Compute = f32;

            fn zeros(len: usize) -> Vec<Self> {
                vec![0u16; len].reinterpret_into()
            }

            fn as_compute(_: &[Self]) -> Option<&[f32]> {
                None
            }

            fn as_compute_mut(_: &mut [Self]) -> Option<&mut [f32]> {
                None
            }

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to)
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from)
            }

            fn widen_one(self) -> f32 {
                self.to_f32()
            }
        }
    };
}

macro_rules! real_element {
    ($real:ty) => {
        impl Element for $real {
            type Compute = $real;

            fn zeros(len: usize) -> Vec<Self> {
                vec![0.0; len]
            }

            fn as_compute(elements: &[Self]) -> Option<&[Self]> {
                Some(elements)
            }

            fn as_compute_mut(elements: &mut [Self]) -> Option<&mut [Self]> {
                Some(elements)
            }

            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from)
            }

            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from)
            }

            fn widen_one(self) -> Self {
                self
            }
        }
    };
}

half_element!(f16);
half_element!(bf16);
real_element!(f32);
real_element!(f64);
