//! Element types and their compute types.

use super::Real;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A tensor element: widened once into its compute type, narrowed once out of it.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type all arithmetic is done in.
    type Compute: Real;

    /// Converts a slice; both have the same length.
    fn widen(from: &[Self], to: &mut [Self::Compute]);
    /// Rounds a slice to nearest even; both have the same length.
    fn narrow(from: &[Self::Compute], to: &mut [Self]);
    /// Converts one element.
    fn widen_one(self) -> Self::Compute;
    /// Rounds one element to nearest even.
    fn narrow_one(x: Self::Compute) -> Self;
}

macro_rules! half_element {
    ($half:ty) => {
        impl Element for $half {
            type Compute = f32;

            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to)
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from)
            }

            fn widen_one(self) -> f32 {
                self.to_f32()
            }

            fn narrow_one(x: f32) -> Self {
                <$half>::from_f32(x)
            }
        }
    };
}

macro_rules! real_element {
    ($real:ty) => {
        impl Element for $real {
            type Compute = $real;

            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from)
            }

            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from)
            }

            fn widen_one(self) -> Self {
                self
            }

            fn narrow_one(x: Self) -> Self {
                x
            }
        }
    };
}

half_element!(f16);
half_element!(bf16);
real_element!(f32);
real_element!(f64);
