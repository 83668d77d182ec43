//! The compute types, f32 and f64, and their exponential.

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
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;
    const NAN: Self;

    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    fn ln(self) -> Self;

    /// `exp(x - reference)`, with the difference taken as if exactly; `reference` is finite.
    fn exp_diff(x: Self, reference: Self) -> Self;

    /// The larger one; the other where one is NaN.
    fn max(self, other: Self) -> Self {
        // A compare and select, which becomes one vector instruction; `self` is never NaN here.
        if other > self {
            other
        } else {
            self
        }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f32::INFINITY;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    const NAN: Self = f32::NAN;

    fn from_f64(x: f64) -> Self {
        x as f32
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }

    fn ln(self) -> Self {
        f32::ln(self)
    }

    /// Relative error below 3e-7 down to the smallest normal result, 0 below that. Branch-free, so
    /// that LLVM vectorises the loops around it.
    ///
    /// `x - reference` alone may be off by 3.8e-6 (half an ulp of 64), which the exponential would
    /// turn into a relative error of as much; the TwoSum term gives it back. Then exp(c) =
    /// 2^j · e^r with |r| <= ln2/2, ln 2 in two parts, and the polynomial of Cephes' expf for e^r.
    #[inline(always)]
    fn exp_diff(x: Self, reference: Self) -> Self {
        const LN2_HI: f32 = 0.693_359_4; // 355/512: j·LN2_HI is exact
        const LN2_LO: f32 = -2.121_944_4e-4;
        const ROUND: f32 = 12_582_912.0; // 1.5·2^23: adding it rounds to an integer
        let d = x - reference;
        let b = d - x;
        let lost = (x - (d - b)) + (-reference - b);
        let lost = if lost.abs() < 1.0 { lost } else { 0.0 }; // NaN where d is infinite
        let c = if d > -88.0 { d } else { -88.0 };
        let c = if c < 89.0 { c } else { 89.0 };
        let k = c * std::f32::consts::LOG2_E + ROUND;
        let j = k - ROUND;
        let r = ((c - j * LN2_HI) - j * LN2_LO) + lost;
        let p = 1.987_569_1e-4_f32;
        let p = p * r + 1.398_2e-3;
        let p = p * r + 8.333_452e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 0.5;
        let e = (p * r) * r + r + 1.0;
        // j in -127..=128 lands in the exponent field: 0 for -127, inf for 128.
        let scale = k.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
        let e = e * f32::from_bits(scale);
        if d.is_nan() {
            d
        } else {
            e
        }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const INFINITY: Self = f64::INFINITY;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    const NAN: Self = f64::NAN;

    fn from_f64(x: f64) -> Self {
        x
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }

    fn ln(self) -> Self {
        f64::ln(self)
    }

    /// The difference rounds to at most half an ulp of 512, 5.7e-14, where exp is not yet 0.
    fn exp_diff(x: Self, reference: Self) -> Self {
        (x - reference).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative_error(x: f32, reference: f32) -> f64 {
        let exact = (f64::from(x) - f64::from(reference)).exp();
        ((f64::from(f32::exp_diff(x, reference)) - exact) / exact).abs()
    }

    #[test]
    fn f32_exp_diff_is_accurate_down_to_the_smallest_normal() {
        let mut worst = 0f64;
        for i in 0..200_000u32 {
            // A spread of references for which x - reference is not exact in f32.
            let reference = (i % 977) as f32 * 0.173 - 84.5;
            let x = reference - i as f32 * (87.3 / 200_000.0);
            worst = worst.max(relative_error(x, reference));
        }
        assert!(worst < 3e-7, "{worst}");
    }

    #[test]
    fn f32_exp_diff_special_values() {
        assert_eq!(f32::exp_diff(1.25, 1.25), 1.0);
        assert_eq!(f32::exp_diff(f32::NEG_INFINITY, 3.0), 0.0);
        assert_eq!(f32::exp_diff(f32::INFINITY, 0.0), f32::INFINITY);
        assert_eq!(f32::exp_diff(-f32::MAX, f32::MAX), 0.0);
        assert_eq!(f32::exp_diff(-200.0, 0.0), 0.0);
        assert!(f32::exp_diff(f32::NAN, 0.0).is_nan());
    }

    #[test]
    fn max_leaves_nan_out() {
        assert_eq!(Real::max(1.0f32, f32::NAN), 1.0);
        assert_eq!(Real::max(f64::NEG_INFINITY, f64::NAN), f64::NEG_INFINITY);
    }
}
