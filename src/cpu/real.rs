//! The compute types, f32 and f64, and what the exponential needs of each.

use super::simd::{Portable, Simd};

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
    /// e^x is 2^(n / STEPS) · e^r for an integer n: 16 powers from a table leave r a fourth power less to go (f32);
    /// f64 has no room in a register for a table.
    const STEPS: Self;
    /// Accumulators of a sum: two 512-bit vectors, so that additions do not wait for one another.
    const SUM_LANES: usize;

    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    fn is_nan(self) -> bool;
    fn ln(self) -> Self;

    /// `self * a + b`, rounded once.
    fn fused(self, a: Self, b: Self) -> Self;

    /// exp(x) for each lane, relative to the [`Reference`](crate::state::Reference) of `floor` and `powers`: its `base`
    /// subtracted already. 0 for -inf, NaN for NaN. f32: within one unit in the last place (see
    /// `exp_is_within_a_unit`); f64: a relative 3e-16.
    ///
    /// `lanes`: where each lane has a reference of its own, how far its `low` is from that of `powers`; the same bits.
    fn exp<S: Simd<Self>>(
        s: S,
        x: S::V,
        floor: S::V,
        powers: S::Powers,
        lanes: Option<S::V>,
    ) -> S::V;

    /// tanh(x) for |x| < 5/8: within an ulp or so, relative to the result. (S. Moshier's polynomials, Cephes.)
    fn tanh_small<S: Simd<Self>>(s: S, x: S::V) -> S::V;

    /// The same of one number.
    fn exp_one(x: Self, floor: Self, low: Self) -> Self;

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

/// 2^((k - low) / STEPS); `lanes`: see [`Real::exp`].
#[inline(always)]
fn power_of<C: Real, S: Simd<C>>(s: S, k: S::V, powers: S::Powers, lanes: Option<S::V>) -> S::V {
    match lanes {
        Some(further) => s.power(s.sub(k, further), powers),
        None => s.power(k, powers),
    }
}

/// Highest power first.
#[inline(always)]
fn polynomial<C: Real, S: Simd<C>>(s: S, x: S::V, coefficients: &[C]) -> S::V {
    let mut p = s.splat(coefficients[0]);
    for &c in &coefficients[1..] {
        p = s.mul_add(p, x, s.splat(c));
    }
    p
}

/// Whether the crate is compiled for processors that all have a fused multiply-add.
const FMA: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

macro_rules! real {
    ($real:ident, $($items:tt)*) => {
        impl Real for $real {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = $real::INFINITY;
            const NEG_INFINITY: Self = $real::NEG_INFINITY;
            const NAN: Self = $real::NAN;
            const LOG2_E: Self = std::$real::consts::LOG2_E;
            const LN_2: Self = std::$real::consts::LN_2;
            const LN_2_HI: Self = 355.0 / 512.0;
            $($items)*

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

            fn exp_one(x: Self, floor: Self, low: Self) -> Self {
                let s = Portable;
                let floor = s.splat(floor);
                <Self as Real>::exp(s, s.splat(x), floor, Simd::<Self>::powers(s, low), None)[0]
            }
        }
    };
}

real! {
    f32,
    const ROUND: Self = 12_582_912.0;
    const LN_2_LO: Self = -2.121_944_4e-4;
    const LARGE: Self = 256.0; // exp(-104) is the smallest that counts
    const BIAS: Self = 127.0;
    const HEADROOM: Self = 64.0;
    const STEPS: Self = 16.0;
    const SUM_LANES: usize = 32;

    #[inline(always)]
    fn fused(self, a: Self, b: Self) -> Self {
        if FMA {
            self.mul_add(a, b)
        } else {
            // The product is exact in f64; the sum is rounded there, and again here: the same but for ties that
            // only the former makes, one in 2^29.
            (f64::from(self) * f64::from(a) + f64::from(b)) as f32
        }
    }

    #[inline(always)]
    fn exp<S: Simd<f32>>(s: S, x: S::V, floor: S::V, powers: S::Powers, lanes: Option<S::V>) -> S::V {
        let x = s.max(floor, x); // keeps NaN
        let k = s.mul_add(x, s.splat(16.0 * Self::LOG2_E), s.splat(Self::ROUND));
        let j = s.sub(s.splat(Self::ROUND), k);
        let r = s.mul_add(j, s.splat(Self::LN_2_HI / 16.0), x);
        let r = s.mul_add(j, s.splat(Self::LN_2_LO / 16.0), r);
        let power = power_of(s, k, powers, lanes);
        // (e^r - 1 - r) / r^2 for |r| <= ln2/32, least squares: a relative 1.6e-9.
        let p = s.mul_add(s.splat(0.166_670_09), r, s.splat(0.500_016_3));
        let p = s.mul_add(p, r, s.splat(1.0));
        s.mul_add(s.mul(power, r), p, power)
    }

    #[inline(always)]
    fn tanh_small<S: Simd<f32>>(s: S, x: S::V) -> S::V {
        let z = s.mul(x, x);
        let p = [
            -5.704_988_7e-3,
            2.063_909e-2,
            -5.373_971_6e-2,
            1.333_144_2e-1,
            -3.333_328e-1,
        ];
        let p = polynomial(s, z, &p);
        s.mul_add(s.mul(x, z), p, x)
    }
}

/// 2^(i/16), rounded to nearest.
const POWERS: [u32; 16] = [
    0x3f80_0000,
    0x3f85_aac3,
    0x3f8b_95c2,
    0x3f91_c3d3,
    0x3f98_37f0,
    0x3f9e_f532,
    0x3fa5_fed7,
    0x3fad_583f,
    0x3fb5_04f3,
    0x3fbd_08a4,
    0x3fc5_672a,
    0x3fce_248c,
    0x3fd7_44fd,
    0x3fe0_ccdf,
    0x3fea_c0c7,
    0x3ff5_257d,
];

/// The powers 2^(i/16) with the bits of ROUND + n, moved up by 19 places, to come on top: n's low four bits, which
/// chose the power, are taken off beforehand, and what `low` stands for becomes the exponent field 0.
pub fn powers_of_two(low: f32) -> [u32; 16] {
    let low = low.to_bits().wrapping_sub(f32::ROUND.to_bits()) as i32; // a multiple of 16
    let exponent = ((low >> 4) + 127) << 23;
    std::array::from_fn(|i| {
        POWERS[i]
            .wrapping_sub((i as u32) << 19)
            .wrapping_sub(exponent as u32)
    })
}

real! {
    f64,
    const ROUND: Self = 6_755_399_441_055_744.0;
    const LN_2_LO: Self = -2.121_944_400_546_905_8e-4;
    const LARGE: Self = 2048.0; // exp(-746)
    const BIAS: Self = 1023.0;
    const HEADROOM: Self = 512.0;
    const STEPS: Self = 1.0;
    const SUM_LANES: usize = 16;

    /// A call where the processor has no such instruction: slow, but the same bits.
    #[inline(always)]
    fn fused(self, a: Self, b: Self) -> Self {
        self.mul_add(a, b)
    }

    #[inline(always)]
    fn exp<S: Simd<f64>>(s: S, x: S::V, floor: S::V, powers: S::Powers, lanes: Option<S::V>) -> S::V {
        let x = s.max(floor, x); // keeps NaN
        let k = s.mul_add(x, s.splat(Self::LOG2_E), s.splat(Self::ROUND));
        let j = s.sub(s.splat(Self::ROUND), k);
        let r = s.mul_add(j, s.splat(Self::LN_2_HI), x);
        let r = s.mul_add(j, s.splat(Self::LN_2_LO), r);
        let mut p = s.splat(TAIL[0]);
        for &c in &TAIL[1..] {
            p = s.mul_add(p, r, s.splat(c));
        }
        let p = s.mul_add(p, r, s.splat(1.0));
        s.mul(s.mul_add(p, r, s.splat(1.0)), power_of(s, k, powers, lanes))
    }

    #[inline(always)]
    fn tanh_small<S: Simd<f64>>(s: S, x: S::V) -> S::V {
        let z = s.mul(x, x);
        let p = [-9.643_991_794_250_523e-1, -9.928_772_310_019_185e1, -1.614_687_684_417_084_5e3];
        let q = [
            1.0,
            1.128_116_784_916_329_3e2,
            2.235_488_390_601_004_5e3,
            4.844_063_053_251_255e3,
        ];
        let (p, q) = (polynomial(s, z, &p), polynomial(s, z, &q));
        s.mul_add(s.mul(x, z), s.div(p, q), x)
    }
}

/// (e^r - 1 - r) / r^2 for |r| <= ln2/2, highest power first: a Chebyshev fit, a relative 1.4e-17.
const TAIL: [f64; 10] = [
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{map, Kernel, Vectors};
    use crate::cpu::visitors::{Exp, Exps, Total};
    use crate::cpu::Element;
    use crate::state::Reference;
    use rayon::prelude::*;
    use std::mem::MaybeUninit;

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

    /// e^x for each x of a slice, relative to 0, at the level of the processor or of `COS_CPU`.
    struct ExpOf<'a>(&'a [f32], &'a mut [MaybeUninit<f32>]);

    impl<'a> Kernel<f32> for ExpOf<'a> {
        type Out = &'a mut [f32];

        #[inline(always)]
        fn run<S: Vectors<f32>>(self, s: S) -> &'a mut [f32] {
            let mut exps = Exps::<f32, S, false> {
                exp: Exp::new(s, Reference::new(0.0)),
                total: Total::new(s),
            };
            map(s, [self.0], 0.0, self.1, &mut exps)
        }
    }

    /// The worst error of these numbers' exponentials, in units in the last place.
    fn worst(numbers: impl Iterator<Item = f32>) -> f64 {
        let x: Vec<f32> = numbers.collect();
        let mut room = vec![MaybeUninit::uninit(); x.len()];
        let got = f32::dispatch(ExpOf(&x, &mut room));
        let errors = x.iter().zip(got).map(|(&x, &mut got)| {
            let exact = f64::from(x).exp() * 2f64.powi(64);
            let exponent = (exact.to_bits() >> 52) as i32 - 1023;
            (f64::from(got) - exact).abs() / 2f64.powi(exponent - 23)
        });
        errors.fold(0.0, f64::max)
    }

    /// The bits of -0 and of -104, and so of all numbers between.
    const FIRST: u32 = 0x8000_0000;
    const LAST: u32 = 0xc2d0_0000;

    #[test]
    fn exp_is_within_a_unit() {
        assert_eq!(f32::from_bits(LAST), -104.0);
        let numbers = (FIRST..=LAST).step_by(4097).map(f32::from_bits);
        assert!(worst(numbers) <= 1.0);
        let one = Reference::new(0f32).exp(-0.0);
        assert_eq!(one, 2f32.powi(64));
    }

    #[test]
    #[ignore = "every f32 of [-104, 0], 1.1e9 of them: half a minute; see benches/NOTES.md for what came of it"]
    fn exp_is_within_a_unit_everywhere() {
        let chunks = (FIRST >> 16..=LAST >> 16).into_par_iter();
        let worst = chunks.map(|chunk| {
            let first = chunk << 16;
            let last = LAST.min(first + 0xffff);
            worst((first..=last).map(f32::from_bits))
        });
        let worst = worst.reduce(|| 0.0, f64::max);
        println!("worst error of exp over [-104, 0]: {worst} units in the last place");
        assert!(worst <= 1.0, "{worst}");
    }
}
