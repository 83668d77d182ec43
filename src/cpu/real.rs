//! The compute types, f32 and f64, and what the exponential needs of each.

/// A compute type: f32 for f16, bf16 and f32 tensors, f64 for f64 tensors.
#[allow(missing_docs)]
pub trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + std::fmt::Debug
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;
    const NAN: Self;

    /// 1.5 · 2^(mantissa bits): adding it rounds to an integer, which the low bits then hold.
    const ROUND: Self;
    const LOG2_E: Self;
    const LN_2: Self;
    /// 355/512, and what ln 2 is more than that: an integer of 15 bits times the former is exact.
    const LN_2_HI: Self;
    const LN_2_LO: Self;
    /// Where |m| is larger, x - m is exact for every x whose exponential counts beside that of m
    /// (Sterbenz: they are within a factor of two of each other).
    const LARGE: Self;
    /// The exponent bias, and how far above 1 the exponential of the maximum is put.
    const BIAS: Self;
    const HEADROOM: Self;
    /// (e^r - 1 - r) / r^2 for |r| <= ln2/2, highest power first: Chebyshev fits.
    const TAIL: &'static [Self];

    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    fn is_nan(self) -> bool;
    fn ln(self) -> Self;

    /// `self * a + b`, rounded once where `FMA`.
    fn mul_add<const FMA: bool>(self, a: Self, b: Self) -> Self;

    /// 2^(k - low - bias) for `self` = ROUND + k: 0 for k = low.
    fn power_of_two(self, low: Self) -> Self;

    /// The larger one; the other where one is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // A compare and select, which becomes one vector instruction; `self` is never NaN here.
        if other > self {
            other
        } else {
            self
        }
    }
}

macro_rules! real {
    ($real:ident, $bits:ident, mantissa: $mantissa:literal, $($constants:tt)*) => {
        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $real::INFINITY;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;
            const NAN: Self = $real::NAN;
            const ROUND: Self = 1.5 * (1u64 << $mantissa) as $real;
            const LOG2_E: Self = std::$real::consts::LOG2_E;
            const LN_2: Self = std::$real::consts::LN_2;
            const LN_2_HI: Self = 355.0 / 512.0;
            $($constants)*

            fn from_f64(x: f64) -> Self {
                x as $real
            }

            fn to_f64(self) -> f64 {
                f64::from(self)
            }

            fn is_finite(self) -> bool {
                $real::is_finite(self)
            }

            fn is_nan(self) -> bool {
                $real::is_nan(self)
            }

            fn ln(self) -> Self {
                $real::ln(self)
            }

            #[inline(always)]
            fn mul_add<const FMA: bool>(self, a: Self, b: Self) -> Self {
                if FMA {
                    $real::mul_add(self, a, b)
                } else {
                    self * a + b
                }
            }

            #[inline(always)]
            fn power_of_two(self, low: Self) -> Self {
                $real::from_bits(self.to_bits().wrapping_sub(low.to_bits()) << $mantissa)
            }
        }
    };
}

real! {
    f32, u32, mantissa: 23,
    const LN_2_LO: Self = -2.121_944_4e-4;
    const LARGE: Self = 256.0; // exp(-104) is the smallest that counts
    const BIAS: Self = 127.0;
    const HEADROOM: Self = 64.0;
    const TAIL: &'static [Self] = &[ // relative error 8.4e-9
        0.001_392_692_7,
        0.008_363_774,
        0.041_666_55,
        0.166_665_73,
        0.5,
    ];
}

real! {
    f64, u64, mantissa: 52,
    const LN_2_LO: Self = -2.121_944_400_546_905_8e-4;
    const LARGE: Self = 2048.0; // exp(-746)
    const BIAS: Self = 1023.0;
    const HEADROOM: Self = 512.0;
    const TAIL: &'static [Self] = &[ // relative error 1.4e-17
        2.510_134_692_835_034e-8,
        2.762_133_866_914_292_4e-7,
        2.755_726_641_861_23e-6,
        2.480_151_864_139_599_4e-5,
        1.984_126_986_438_047e-4,
        1.388_888_891_893_916_8e-3,
        8.333_333_333_329_793e-3,
        4.166_666_666_662_064e-2,
        1.666_666_666_666_666_7e-1,
        0.5,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_leaves_nan_out() {
        assert_eq!(Real::max(1.0f32, f32::NAN), 1.0);
        assert_eq!(Real::max(f64::NEG_INFINITY, f64::NAN), f64::NEG_INFINITY);
    }

    #[test]
    fn ln_2_is_the_sum_of_its_parts() {
        assert_eq!((f64::LN_2_HI + f64::LN_2_LO), f64::LN_2);
        let sum = f64::from(f32::LN_2_HI) + f64::from(f32::LN_2_LO);
        assert!((sum - f64::LN_2).abs() < 1e-11);
    }
}
