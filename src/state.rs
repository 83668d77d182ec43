//! The online normaliser, the one idea of this crate (Milakov & Gimelshein 2018, arXiv 1805.02867).
//!
//! A state `(m, d)` sums up any set of numbers: `m` is their maximum and `d = Σ exp(x - m)`. `merge`
//! is associative and commutative with identity `(-inf, 0)`, so lanes, warps, blocks and threads may
//! each take a share of a row and merge in any fixed order. `kernels/state.cuh` is the device mirror.
//!
//! What infinities and NaN do:
//! - all -inf (or nothing): `m = -inf`, `d` counts nothing: softmax NaN (0 · 1/0), log-sum-exp -inf;
//! - a NaN: never becomes `m` (max ignores it) but makes `d` NaN, which every merge keeps;
//! - +inf: `m = +inf` and `d = +inf`: softmax NaN by rule, log-sum-exp +inf.

pub use crate::cpu::Real;

/// Maximum `m` and normaliser `d` of the numbers pushed so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineState<T> {
    /// Largest number seen, NaN left out; -inf when there was none.
    pub m: T,
    /// Sum of `exp(x - reference(m))` over the numbers seen.
    pub d: T,
}

/// What exponents are taken relative to: `m`, or 0 where `m` is infinite, since `inf - inf` is NaN
/// and would poison rows that merely contain an empty share or nothing but -inf.
pub fn reference<T: Real>(m: T) -> T {
    if m.is_finite() {
        m
    } else {
        T::ZERO
    }
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
        let d = T::exp_diff(x, reference(m));
        self.merge(Self { m, d })
    }

    /// The state of both sets of numbers together.
    pub fn merge(self, other: Self) -> Self {
        let m = self.m.max(other.m);
        Self {
            m,
            d: self.d * T::exp_diff(self.m, reference(m))
                + other.d * T::exp_diff(other.m, reference(m)),
        }
    }

    /// Factor that turns `exp(x - reference(m))` of this state's numbers into probabilities.
    pub fn normaliser(self) -> T {
        // +inf rows are NaN as a whole; 1/inf would leave zeros beside the NaN.
        if self.m == T::INFINITY {
            T::NAN
        } else {
            T::ONE / self.d
        }
    }

    /// `ln Σ exp(x)`.
    pub fn log_sum_exp(self) -> T {
        reference(self.m) + self.d.ln()
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
        assert!(close(s, OnlineState { m: 2.5, d }), "{s:?}");
        assert!((s.log_sum_exp() - (2.5 + d.ln())).abs() < 1e-15);
        assert!((s.normaliser() - 1.0 / d).abs() < 1e-15);
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
    }
}
