//! Plain arrays: what LLVM makes vectors of for any processor.

use super::{Access, Simd};
use crate::cpu::real::powers_of_two;
use crate::cpu::{Element, Real};
use std::mem::MaybeUninit;

#[derive(Clone, Copy)]
pub struct Portable;

macro_rules! simd {
    ($real:ident, $n:literal, $powers:ty, $power:expr, $powers_of:expr) => {
        impl Simd<$real> for Portable {
            type V = [$real; $n];
            type Powers = $powers;
            const N: usize = $n;

            #[inline(always)]
            fn splat(self, x: $real) -> Self::V {
                [x; $n]
            }
            #[inline(always)]
            fn add(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] + b[i])
            }
            #[inline(always)]
            fn sub(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] - b[i])
            }
            #[inline(always)]
            fn mul(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] * b[i])
            }
            #[inline(always)]
            fn div(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i] / b[i])
            }
            #[inline(always)]
            fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
                std::array::from_fn(|i| a[i].fused(b[i], c[i]))
            }
            #[inline(always)]
            fn max(self, a: Self::V, b: Self::V) -> Self::V {
                std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
            }
            #[inline(always)]
            fn where_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
                std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
            }
            #[inline(always)]
            fn unless_zero(self, y: Self::V, v: Self::V) -> Self::V {
                std::array::from_fn(|i| if y[i] == 0.0 { 0.0 } else { v[i] })
            }
            #[inline(always)]
            fn keep(self, v: Self::V, mask: &[u8]) -> Self::V {
                let mask = &mask[..$n];
                std::array::from_fn(|i| {
                    if mask[i] != 0 {
                        v[i]
                    } else {
                        $real::NEG_INFINITY
                    }
                })
            }
            #[inline(always)]
            fn powers(self, low: $real) -> Self::Powers {
                $powers_of(low)
            }
            #[inline(always)]
            fn power(self, k: Self::V, powers: Self::Powers) -> Self::V {
                std::array::from_fn(|i| $power(k[i], powers))
            }
            #[inline(always)]
            fn largest(self, v: Self::V) -> $real {
                v.into_iter()
                    .fold($real::NEG_INFINITY, |m, x| if x > m { x } else { m })
            }
            #[inline(always)]
            fn sum(self, parts: [Self::V; 4]) -> $real {
                let mut v: [$real; $n] = Simd::<$real>::join(self, parts);
                let mut half = $n / 2;
                while half > 0 {
                    for i in 0..half {
                        v[i] += v[i + half];
                    }
                    half /= 2;
                }
                v[0]
            }
            #[inline(always)]
            fn largest_each(self, v: &[Self::V]) -> Self::V {
                std::array::from_fn(|i| Simd::<$real>::largest(self, v[i]))
            }
            #[inline(always)]
            fn join(self, [a, b, c, d]: [Self::V; 4]) -> Self::V {
                std::array::from_fn(|i| (a[i] + c[i]) + (b[i] + d[i]))
            }
            #[inline(always)]
            fn sum_each(self, v: &[Self::V]) -> Self::V {
                let zero = [0.0; $n];
                std::array::from_fn(|i| Simd::<$real>::sum(self, [v[i], zero, zero, zero]))
            }
        }
    };
}

simd!(
    f32,
    8,
    [u32; 16],
    |k: f32, powers: [u32; 16]| {
        let bits = k.to_bits();
        f32::from_bits(powers[bits as usize % 16].wrapping_add(bits << 19))
    },
    powers_of_two
);
simd!(
    f64,
    4,
    u64,
    |k: f64, low: u64| f64::from_bits(k.to_bits().wrapping_sub(low) << 52),
    f64::to_bits
);

macro_rules! access {
    ($($element:ty),+) => {$(
        // SAFETY: the stores write as many lanes as they say.
        unsafe impl Access<$element> for Portable {
            #[inline(always)]
            fn load(self, x: &[$element]) -> <Self as Simd<<$element as Element>::Compute>>::V {
                std::array::from_fn(|i| x[i].widen())
            }
            #[inline(always)]
            fn load_part(self, x: &[$element], fill: <$element as Element>::Compute)
                -> <Self as Simd<<$element as Element>::Compute>>::V
            {
                std::array::from_fn(|i| x.get(i).map_or(fill, |x| x.widen()))
            }
            #[inline(always)]
            fn store(self, v: <Self as Simd<<$element as Element>::Compute>>::V, y: &mut [MaybeUninit<$element>]) {
                for (y, x) in y[..v.len()].iter_mut().zip(v) {
                    y.write(<$element>::narrow(x));
                }
            }
            #[inline(always)]
            fn store_part(self, v: <Self as Simd<<$element as Element>::Compute>>::V, y: &mut [MaybeUninit<$element>]) {
                for (y, x) in y.iter_mut().zip(v) {
                    y.write(<$element>::narrow(x));
                }
            }
        }
    )+};
}

access!(half::f16, half::bf16, f32, f64);
