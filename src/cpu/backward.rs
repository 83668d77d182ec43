//! The gradient of softmax.

use super::row::{At, RowOp};
use super::short::SHORT;
use super::simd::{each, load_short, map, store_short, Filled, Simd, Vectors};
use super::visitors::{Dot, Gradient, Sum, Total};
use super::{Element, Real};
use std::mem::MaybeUninit;

/// dx = scale · y·(g - Σ g·y), of y and g.
#[derive(Clone, Copy)]
pub struct SoftmaxBackward {
    scale: f32,
    masked: bool,
}

impl SoftmaxBackward {
    /// `masked`: where y is 0, g is not looked at and dx is 0; else they are numbers as all.
    pub fn new(scale: f32, masked: bool) -> Self {
        Self { scale, masked }
    }

    pub fn is_masked(self) -> bool {
        self.masked
    }

    pub fn scale<C: Real>(self) -> C {
        C::from_f64(f64::from(self.scale))
    }
}

/// What a row's g is taken for: 0 where `MASKED` and y is.
#[inline(always)]
pub fn taken<C: Real, S: Simd<C>, const MASKED: bool>(s: S, y: S::V, g: S::V) -> S::V {
    match MASKED {
        true => s.unless_zero(y, g),
        false => g,
    }
}

/// scale · y·(g - dot); 0 where `MASKED` and y is.
#[inline(always)]
pub fn gradient<C: Real, S: Simd<C>, const MASKED: bool>(
    s: S,
    [y, g]: [S::V; 2],
    dot: S::V,
    scale: S::V,
) -> S::V {
    let dx = s.mul(s.mul(y, s.sub(g, dot)), scale);
    taken::<C, S, MASKED>(s, y, dx)
}

impl RowOp<2> for SoftmaxBackward {
    /// Σ g·y.
    type Part<C: Real> = f64;
    type Row<C: Real> = C;
    const KEEPS: bool = false;

    #[inline(always)]
    fn read<'k, E: Element, S: Vectors<E>>(
        self,
        s: S,
        x: [&[E]; 2],
        _: &'k mut [MaybeUninit<E::Compute>],
    ) -> (f64, &'k mut [E::Compute]) {
        let dot = match self.masked {
            true => dot::<E, S, true>(s, x),
            false => dot::<E, S, false>(s, x),
        };
        (dot, &mut [])
    }

    #[inline(always)]
    fn merge<C: Real>(self, parts: impl Iterator<Item = f64> + Clone) -> C {
        let mut sum = Sum::default();
        for part in parts {
            sum.add(part);
        }
        C::from_f64(sum.total())
    }

    #[inline(always)]
    fn write<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        (x, _): ([&[E]; 2], &[E::Compute]),
        (_, row): At<Self, E::Compute, 2>,
        y: &'y mut [MaybeUninit<E>],
    ) -> &'y mut [E] {
        let (fill, dot, scale) = (E::Compute::ZERO, s.splat(row), s.splat(self.scale()));
        match self.masked {
            true => map(s, x, fill, y, &mut Gradient::<_, true> { dot, scale }),
            false => map(s, x, fill, y, &mut Gradient::<_, false> { dot, scale }),
        }
    }

    fn write_kept<E: Element, S: Vectors<E>>(
        self,
        _: S,
        _: &mut [E::Compute],
        _: At<Self, E::Compute, 2>,
    ) {
    }

    #[inline(always)]
    fn short<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        x: [&[E]; 2],
        cols: usize,
        dx: &'y mut [MaybeUninit<E>],
    ) -> Filled<'y> {
        match self.masked {
            true => self.short_rows::<E, S, true>(s, x, cols, dx),
            false => self.short_rows::<E, S, false>(s, x, cols, dx),
        }
    }
}

#[inline(always)]
fn dot<E: Element, S: Vectors<E>, const MASKED: bool>(s: S, x: [&[E]; 2]) -> f64 {
    let mut dot = Dot::<E::Compute, S, MASKED>(Total::new(s));
    each(s, x, E::Compute::ZERO, &mut dot);
    dot.0.sum.total()
}

impl SoftmaxBackward {
    #[inline(always)]
    fn short_rows<'y, E: Element, S: Vectors<E>, const MASKED: bool>(
        self,
        s: S,
        x: [&[E]; 2],
        cols: usize,
        dx: &'y mut [MaybeUninit<E>],
    ) -> Filled<'y> {
        let scale = self.scale();
        match cols.div_ceil(<S as Simd<E::Compute>>::N) {
            0 | 1 => short_gradients::<E, S, 1, MASKED>(s, x, scale, cols, dx),
            2 => short_gradients::<E, S, 2, MASKED>(s, x, scale, cols, dx),
            3 | 4 => short_gradients::<E, S, 4, MASKED>(s, x, scale, cols, dx),
            _ => short_gradients::<E, S, SHORT, MASKED>(s, x, scale, cols, dx),
        }
    }
}

/// The gradients of rows in `K` vectors.
#[inline(always)]
fn short_gradients<'y, E: Element, S: Vectors<E>, const K: usize, const MASKED: bool>(
    s: S,
    [y, g]: [&[E]; 2],
    scale: E::Compute,
    cols: usize,
    dx: &'y mut [MaybeUninit<E>],
) -> Filled<'y> {
    let (n, zero) = (<S as Simd<E::Compute>>::N, E::Compute::ZERO);
    let scale = s.splat(scale);
    let mut done = Filled::none(dx);
    let inputs = y.chunks_exact(cols).zip(g.chunks_exact(cols));
    for ((y, g), dx) in inputs.zip(dx.chunks_exact_mut(cols)) {
        let (mut ys, mut gs) = ([s.splat(zero); K], [s.splat(zero); K]);
        let mut sums = [s.splat(zero); 4];
        for k in 0..K {
            ys[k] = load_short(s, y, k * n, zero);
            gs[k] = load_short(s, g, k * n, zero);
            let g = taken::<_, S, MASKED>(s, ys[k], gs[k]);
            let sum = &mut sums[k % (E::Compute::SUM_LANES / n)];
            *sum = s.mul_add(ys[k], g, *sum);
        }
        let dot = s.splat(s.sum(sums));
        for k in 0..K {
            gs[k] = gradient::<_, S, MASKED>(s, [ys[k], gs[k]], dot, scale);
        }
        done = done.then(Filled::of(store_short(s, gs, dx)));
    }
    done
}
