//! The online normaliser, the one idea of this crate (Milakov & Gimelshein 2018, arXiv 1805.02867).
//!
//! A state `(m, d)` sums up any set of numbers: `m` is their maximum and `d = Σ exp(x)` relative to it. `merge`
//! is associative and commutative with identity `(-inf, 0)`, so lanes, warps, blocks and threads may
//! each take a share of a row and merge in any fixed order. `kernels/state.cuh` is the device's form.
//!
//! What infinities and NaN do:
//! - all -inf (or nothing): `m = -inf`, `d` counts nothing: softmax NaN (0 · 1/0), log-sum-exp -inf;
//! - a NaN: never becomes `m` (max ignores it) but makes `d` NaN, which every merge keeps;
//! - +inf: `m = +inf` and `d = +inf`: softmax NaN by rule, log-sum-exp +inf.

pub use crate::cpu::Real;

/// What the exponentials of a set are taken relative to: a power of two, 2^k, about `HEADROOM` powers
/// below e^m for the maximum `m`.
///
/// Not e^m: x - m rounds, to half an ulp of 64 in f32 and so a relative error of 3.8e-6 in the result.
/// Here e^x splits exactly into an integer power of two and the exponential of a small rest, and 2^k
/// instead of e^m is one factor for all numbers, gone from e^x / d. The headroom keeps e^x normal down to
/// where e^x / d is no longer: results below the normal range are rounded once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reference<T> {
    /// Subtracted first: `m` where it is large (see [`Real::LARGE`]), else 0.
    pub(crate) base: T,
    /// Smallest x - base told apart from -inf.
    pub(crate) floor: T,
    /// ROUND + the integer that stands for 0.
    pub(crate) low: T,
}

impl<T: Real> Reference<T> {
    /// For sets with the maximum `m`; where it is infinite, as for 0, since inf - inf is NaN and would
    /// poison rows that merely contain an empty share or nothing but -inf.
    #[inline(always)]
    pub fn new(m: T) -> Self {
        let m = if m.is_finite() { m } else { T::ZERO };
        let base = if m > T::LARGE || -m > T::LARGE {
            m
        } else {
            T::ZERO
        };
        let exponent = ((m - base) * T::LOG2_E + T::ROUND) - T::ROUND;
        let zero = exponent - (T::BIAS + T::HEADROOM);
        Self {
            base,
            floor: zero * T::LN_2,
            low: zero * T::STEPS + T::ROUND,
        }
    }

    /// exp(x) for x no larger than the maximum, relative to this; see [`Real::exp`].
    pub fn exp(&self, x: T) -> T {
        T::exp_one(x - self.base, self.floor, self.low)
    }
}

/// What takes exponentials relative to `Reference::new(part)`, and their sum, to those relative to `Reference::new(m)`, m no
/// less than `part`.
#[inline(always)]
pub(crate) fn factor<T: Real>(m: T, part: T) -> T {
    // A sum of no number, or one that is inf or NaN; numbers beside +inf are out of reach of any reference, and d is inf
    // or NaN then, whatever it is multiplied by.
    if m == part || m == T::INFINITY || !part.is_finite() {
        T::ONE
    } else {
        Reference::new(m).exp(part) / Reference::new(part).exp(part)
    }
}

/// What exponentials relative to `Reference::new(m)` are multiplied by to become probabilities, d being their sum.
#[inline(always)]
pub(crate) fn normaliser<T: Real>(m: T, d: f64) -> T {
    // +inf rows are NaN as a whole; 1/inf would leave zeros beside the NaN.
    if m == T::INFINITY {
        T::NAN
    } else {
        T::from_f64(1.0 / d)
    }
}

/// Maximum `m` and normaliser `d` of the numbers pushed so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineState<T> {
    /// Largest number seen, NaN left out; -inf when there was none.
    pub m: T,
    /// Sum of exp(x) over the numbers seen, relative to `Reference::new(m)`.
    pub d: T,
}

impl<T: Real> OnlineState<T> {
    /// The state of no numbers at all.
    pub const IDENTITY: Self = Self {
        m: T::NEG_INFINITY,
        d: T::ZERO,
    };

    /// The state with `x` added.
    pub fn push(self, x: T) -> Self {
        let m = T::NEG_INFINITY.max(x);
        let d = if x == T::INFINITY {
            x
        } else {
            Reference::new(m).exp(x)
        };
        self.merge(Self { m, d })
    }

    /// The state of both sets of numbers together.
    pub fn merge(self, other: Self) -> Self {
        let m = self.m.max(other.m);
        Self {
            m,
            d: self.d * factor(m, self.m) + other.d * factor(m, other.m),
        }
    }

    /// Factor that turns the exponentials of this state's numbers, relative to the same reference, into
    /// probabilities.
    pub fn normaliser(self) -> T {
        normaliser(self.m, self.d.to_f64())
    }

    /// `ln Σ exp(x)`.
    pub fn log_sum_exp(self) -> T {
        if self.m.is_finite() {
            self.m + (self.d / Reference::new(self.m).exp(self.m)).ln()
        } else if self.d.is_nan() {
            self.d
        } else {
            self.m
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [f64; 9] = [
        f64::NEG_INFINITY,
        -1e300,
        -700.0,
        -1.5,
        0.0,
        1e-310,
        3.0,
        700.0,
        1e300,
    ];

    fn state(numbers: &[f64]) -> OnlineState<f64> {
        numbers
            .iter()
            .fold(OnlineState::IDENTITY, |s, &x| s.push(x))
    }

    fn close(a: OnlineState<f64>, b: OnlineState<f64>) -> bool {
        a.m == b.m && (a.d == b.d || ((a.d - b.d) / b.d).abs() < 1e-14)
    }

    /// Worst relative error of exp(x) / exp(m) over x from `m` down to `m - span`.
    fn worst<T: Real>(m: f64, span: f64) -> f64 {
        let m = T::from_f64(m);
        let at = Reference::new(m);
        let one = at.exp(m).to_f64();
        (0..20_000).fold(0.0, |worst: f64, i| {
            let x = m - T::from_f64(span * f64::from(i) / 20_000.0);
            let got = at.exp(x).to_f64() / one;
            let exact = (x.to_f64() - m.to_f64()).exp();
            worst.max(((got - exact) / exact).abs())
        })
    }

    #[test]
    fn exp_is_accurate_past_the_smallest_normal_result() {
        for m in [0.0, 0.3, -84.7, 255.9, -256.1, 300.0, -7e3, 1e5, 3e37] {
            let f32s = worst::<f32>(m, 104.0);
            assert!(f32s < 2.5e-7, "{m}: {f32s:e}");
            // Down to the smallest normal number, which is as far as this test's own exp is accurate.
            let f64s = worst::<f64>(m, 708.0);
            // The rounding of the difference, again this test's own, is exp's too where m is not 0.
            let bound = if m == 0.0 { 5e-16 } else { 1.2e-13 };
            assert!(f64s < bound, "{m}: {f64s:e}");
        }
    }

    #[test]
    fn exp_of_special_values() {
        for m in [-1e30f32, -3.0, 0.0, 5.5, 1e30, f32::NEG_INFINITY] {
            let at = Reference::new(m);
            assert_eq!(at.exp(f32::NEG_INFINITY), 0.0, "{m}");
            assert_eq!(at.exp(-f32::MAX), 0.0, "{m}");
            assert!(at.exp(f32::NAN).is_nan(), "{m}");
            assert!(at.exp(f32::NAN).is_nan(), "{m}");
        }
        let zero = Reference::new(0f64);
        assert_eq!(zero.exp(0.0), 2f64.powi(512));
        assert_eq!(Reference::new(0f32).exp(0.0), 2f32.powi(64));
    }

    #[test]
    fn identity_is_neutral_on_both_sides() {
        for x in SAMPLES {
            let s = state(&[x]);
            assert_eq!(s.merge(OnlineState::IDENTITY), s, "{x}");
            assert_eq!(OnlineState::IDENTITY.merge(s), s, "{x}");
        }
        let empty = OnlineState::<f32>::IDENTITY.merge(OnlineState::IDENTITY);
        assert_eq!(empty, OnlineState::IDENTITY);
    }

    #[test]
    fn merge_commutes_and_associates() {
        for a in SAMPLES {
            for b in SAMPLES {
                assert_eq!(
                    state(&[a]).merge(state(&[b])),
                    state(&[b]).merge(state(&[a]))
                );
                for c in SAMPLES {
                    let left = state(&[a]).merge(state(&[b])).merge(state(&[c]));
                    let right = state(&[a]).merge(state(&[b]).merge(state(&[c])));
                    assert!(close(left, right), "{a} {b} {c}: {left:?} {right:?}");
                }
            }
        }
    }

    #[test]
    fn matches_the_definition() {
        let numbers = [-3.0, 2.5, 2.5, f64::NEG_INFINITY, 1.0];
        let s = state(&numbers);
        let d: f64 = numbers.iter().map(|x| (x - 2.5).exp()).sum();
        assert!((s.log_sum_exp() - (2.5 + d.ln())).abs() < 1e-15);
        for x in numbers {
            let p = Reference::new(s.m).exp(x) * s.normaliser();
            assert!((p - (x - 2.5).exp() / d).abs() < 1e-15, "{x}: {p}");
        }
    }

    #[test]
    fn no_merge_loses_a_nan() {
        let nan = state(&[f64::NAN]);
        assert!(nan.d.is_nan() && nan.m == f64::NEG_INFINITY);
        for x in SAMPLES.into_iter().chain([f64::INFINITY]) {
            assert!(state(&[x]).merge(nan).d.is_nan(), "{x}");
            assert!(nan.merge(state(&[x])).d.is_nan(), "{x}");
            assert!(state(&[x]).push(f64::NAN).normaliser().is_nan(), "{x}");
            assert!(state(&[f64::NAN, x]).log_sum_exp().is_nan(), "{x}");
        }
    }

    #[test]
    fn infinite_rows() {
        let none = state(&[f64::NEG_INFINITY; 3]);
        assert_eq!(none, OnlineState::IDENTITY);
        assert_eq!(none.log_sum_exp(), f64::NEG_INFINITY);
        assert!((0.0 * none.normaliser()).is_nan());
        let plus = state(&[1.0, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(plus.log_sum_exp(), f64::INFINITY);
        assert!(plus.normaliser().is_nan());
        for x in SAMPLES.into_iter().chain([44.350_002, 1774.5, 4613.5]) {
            for s in [state(&[x, f64::INFINITY]), state(&[f64::INFINITY, x])] {
                assert_eq!(s.log_sum_exp(), f64::INFINITY, "{x}");
            }
            let s = OnlineState::IDENTITY.push(x as f32).push(f32::INFINITY);
            assert_eq!(s.log_sum_exp(), f32::INFINITY, "{x}");
        }
    }
}
