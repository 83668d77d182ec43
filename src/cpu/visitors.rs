//! What the passes do with each vector.

use super::backward::{gradient, taken};
use super::simd::{Simd, Visitor};
use super::Real;
use crate::state::Reference;

/// [`Reference`] in vectors.
pub struct Exp<C: Real, S: Simd<C>> {
    pub base: S::V,
    pub floor: S::V,
    pub powers: S::Powers,
}

impl<C: Real, S: Simd<C>> Exp<C, S> {
    #[inline(always)]
    pub fn new(s: S, reference: Reference<C>) -> Self {
        Self {
            base: s.splat(reference.base),
            floor: s.splat(reference.floor),
            powers: s.powers(reference.low),
        }
    }
}

/// Exponentials, with their sum. `BASE`: the reference has one.
pub struct Exps<C: Real, S: Simd<C>, const BASE: bool> {
    pub exp: Exp<C, S>,
    pub total: Total<C, S>,
}

impl<C: Real, S: Simd<C>, const BASE: bool> Visitor<C, S, 1> for Exps<C, S, BASE> {
    #[inline(always)]
    fn vector(&mut self, s: S, at: usize, [v]: [S::V; 1]) -> S::V {
        let v = if BASE { s.sub(v, self.exp.base) } else { v };
        let e = C::exp(s, v, self.exp.floor, self.exp.powers, None);
        self.total.add(s, at, e);
        e
    }

    #[inline(always)]
    fn chunk_end(&mut self, s: S) {
        self.total.chunk_end(s);
    }
}

/// A number times `scale`.
pub struct Scale<V>(pub V);

impl<C: Real, S: Simd<C>> Visitor<C, S, 1> for Scale<S::V> {
    #[inline(always)]
    fn vector(&mut self, s: S, _: usize, [v]: [S::V; 1]) -> S::V {
        s.mul(v, self.0)
    }
}

/// A number times a power of two, about, and then `scale`: their product may be too small for the type where the results
/// are not.
pub struct Rescale<V>(pub V, pub V);

impl<C: Real, S: Simd<C>> Visitor<C, S, 1> for Rescale<S::V> {
    #[inline(always)]
    fn vector(&mut self, s: S, _: usize, [v]: [S::V; 1]) -> S::V {
        s.mul(s.mul(v, self.0), self.1)
    }
}

/// The softmax of a number alone: 1, and NaN of one that is not finite. (Its exponential times the reciprocal of that is
/// 1 less half a unit for one in seven.)
pub struct Alone;

impl<C: Real, S: Simd<C>> Visitor<C, S, 1> for Alone {
    #[inline(always)]
    fn vector(&mut self, s: S, _: usize, [v]: [S::V; 1]) -> S::V {
        s.add(s.sub(v, v), s.splat(C::ONE))
    }
}

/// The sum of y·g. `MASKED`: of those where y is not 0.
pub struct Dot<C: Real, S: Simd<C>, const MASKED: bool>(pub Total<C, S>);

impl<C: Real, S: Simd<C>, const MASKED: bool> Visitor<C, S, 2> for Dot<C, S, MASKED> {
    #[inline(always)]
    fn vector(&mut self, s: S, at: usize, [y, g]: [S::V; 2]) -> S::V {
        let g = taken::<C, S, MASKED>(s, y, g);
        self.0.lanes[at] = s.mul_add(y, g, self.0.lanes[at]);
        y
    }

    #[inline(always)]
    fn chunk_end(&mut self, s: S) {
        self.0.chunk_end(s);
    }
}

/// scale · y·(g - dot). `MASKED`: 0 where y is.
pub struct Gradient<V, const MASKED: bool> {
    pub dot: V,
    pub scale: V,
}

impl<C: Real, S: Simd<C>, const MASKED: bool> Visitor<C, S, 2> for Gradient<S::V, MASKED> {
    #[inline(always)]
    fn vector(&mut self, s: S, _: usize, x: [S::V; 2]) -> S::V {
        gradient::<C, S, MASKED>(s, x, self.dot, self.scale)
    }
}

/// A sum in accumulators of vectors, which a [`Sum`] takes in after each chunk: the rounding of a row of any length is
/// that of a few additions.
pub struct Total<C: Real, S: Simd<C>> {
    pub lanes: [S::V; 4],
    pub sum: Sum,
}

impl<C: Real, S: Simd<C>> Total<C, S> {
    #[inline(always)]
    pub fn new(s: S) -> Self {
        Self {
            lanes: [s.splat(C::ZERO); 4],
            sum: Sum::default(),
        }
    }

    #[inline(always)]
    pub fn add(&mut self, s: S, at: usize, v: S::V) {
        self.lanes[at] = s.add(self.lanes[at], v);
    }

    #[inline(always)]
    pub fn chunk_end(&mut self, s: S) {
        self.sum.add(s.sum(self.lanes).to_f64());
        self.lanes = [s.splat(C::ZERO); 4];
    }
}

/// A sum as if in twice the precision (Neumaier): one of 2^14 chunks in f64 alone was off by 3e-13.
#[derive(Default, Clone, Copy)]
pub struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    #[inline(always)]
    pub fn add(&mut self, x: f64) {
        let sum = self.high + x;
        let of_x = sum - self.high;
        self.low += (self.high - (sum - of_x)) + (x - of_x);
        self.high = sum;
    }

    /// An infinite or NaN sum has no low part.
    #[inline(always)]
    pub fn total(&self) -> f64 {
        if self.low.is_nan() {
            self.high
        } else {
            self.high + self.low
        }
    }
}
