//! The row cores, generic over elements and vectors: a first pass over a row or a part of one, what the passes over the
//! parts say together, and a second pass that writes.

use super::short::{self, SHORT};
use super::simd::{each, load_short, map, map_in_place, store_short, Filled, Simd, Vectors};
use super::visitors::{Alone, Dot, Exp, Exps, Gradient, Rescale, Scale, Sum, Total};
use super::{Element, Real};
use crate::state::{factor, normaliser, Reference};
use std::mem::MaybeUninit;

/// What a pass found out about a part of a row, and what the second one needs to know of the whole.
pub type At<O, C, const N: usize> = (<O as RowOp<N>>::Part<C>, <O as RowOp<N>>::Row<C>);

/// An operator over rows of `N` inputs. All functions are `#[inline(always)]`.
pub trait RowOp<const N: usize>: Copy + Send + Sync {
    type Part<C: Real>: Copy + Send;
    type Row<C: Real>: Copy + Send + Sync;
    /// The first pass leaves a number for each element, which the second one starts from.
    const KEEPS: bool;

    /// The first pass. `kept`: room for the numbers, or none.
    fn read<'k, E: Element, S: Vectors<E>>(
        self,
        s: S,
        x: [&[E]; N],
        kept: &'k mut [MaybeUninit<E::Compute>],
    ) -> (Self::Part<E::Compute>, &'k mut [E::Compute]);

    /// All parts of a row, in order.
    fn merge<C: Real>(self, parts: impl Iterator<Item = Self::Part<C>> + Clone) -> Self::Row<C>;

    /// The second pass, to `y`.
    fn write<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        from: ([&[E]; N], &[E::Compute]),
        at: At<Self, E::Compute, N>,
        y: &'y mut [MaybeUninit<E>],
    ) -> &'y mut [E];

    /// The second pass where the kept numbers are: of an operator that keeps them.
    fn write_kept<E: Element, S: Vectors<E>>(
        self,
        s: S,
        kept: &mut [E::Compute],
        at: At<Self, E::Compute, N>,
    );

    /// Both passes over rows of at most [`most_short`](super::short::most_short) columns, one after another; the same bits.
    fn short<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        x: [&[E]; N],
        cols: usize,
        y: &'y mut [MaybeUninit<E>],
    ) -> Filled<'y>;
}

/// y = softmax(x).
#[derive(Clone, Copy)]
pub struct Softmax;

/// The largest number `m`, and the sum of the exponentials relative to `Reference::new(m)`.
#[derive(Clone, Copy)]
pub struct SoftmaxPart<C> {
    m: C,
    d: f64,
}

/// The largest number `m`, and what exponentials relative to `Reference::new(m)` are multiplied by.
#[derive(Clone, Copy)]
pub struct SoftmaxRow<C> {
    m: C,
    scale: C,
}

impl RowOp<1> for Softmax {
    type Part<C: Real> = SoftmaxPart<C>;
    type Row<C: Real> = SoftmaxRow<C>;
    const KEEPS: bool = true;

    #[inline(always)]
    fn read<'k, E: Element, S: Vectors<E>>(
        self,
        s: S,
        x: [&[E]; 1],
        kept: &'k mut [MaybeUninit<E::Compute>],
    ) -> (SoftmaxPart<E::Compute>, &'k mut [E::Compute]) {
        let m = s.largest_of(x[0]);
        let reference = Reference::new(m);
        // The subtraction of 0 from each number costs a tenth.
        let (d, kept) = match reference.base == E::Compute::ZERO {
            true => exps::<_, _, false>(s, reference, x, kept),
            false => exps::<_, _, true>(s, reference, x, kept),
        };
        (SoftmaxPart { m, d }, kept)
    }

    #[inline(always)]
    fn merge<C: Real>(self, parts: impl Iterator<Item = SoftmaxPart<C>> + Clone) -> SoftmaxRow<C> {
        let m = parts.clone().fold(C::NEG_INFINITY, |m, part| m.max(part.m));
        let mut d = Sum::default();
        for part in parts {
            d.add(part.d * factor(m, part.m).to_f64());
        }
        SoftmaxRow {
            m,
            scale: normaliser(m, d.total()),
        }
    }

    #[inline(always)]
    fn write<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        (_, kept): ([&[E]; 1], &[E::Compute]),
        (part, row): At<Self, E::Compute, 1>,
        y: &'y mut [MaybeUninit<E>],
    ) -> &'y mut [E] {
        let (fill, factor) = (E::Compute::ZERO, factor(row.m, part.m));
        if factor != E::Compute::ONE {
            return map(
                s,
                [kept],
                fill,
                y,
                &mut Rescale(s.splat(factor), s.splat(row.scale)),
            );
        }
        let scale = &mut Scale(s.splat(row.scale));
        map(s, [kept], fill, y, scale)
    }

    #[inline(always)]
    fn write_kept<E: Element, S: Vectors<E>>(
        self,
        s: S,
        kept: &mut [E::Compute],
        (part, row): At<Self, E::Compute, 1>,
    ) {
        let (fill, factor) = (E::Compute::ZERO, factor(row.m, part.m));
        match factor == E::Compute::ONE {
            true => map_in_place(s, kept, fill, &mut Scale(s.splat(row.scale))),
            false => map_in_place(
                s,
                kept,
                fill,
                &mut Rescale(s.splat(factor), s.splat(row.scale)),
            ),
        }
    }

    #[inline(always)]
    fn short<'y, E: Element, S: Vectors<E>>(
        self,
        s: S,
        [x]: [&[E]; 1],
        cols: usize,
        y: &'y mut [MaybeUninit<E>],
    ) -> Filled<'y> {
        if cols == 1 {
            return Filled::of(map(s, [x], E::Compute::ZERO, y, &mut Alone));
        }
        match cols.div_ceil(<S as Simd<E::Compute>>::N) {
            0 | 1 => short::softmax::<E, S, 1>(s, x, cols, y),
            2 => short::softmax::<E, S, 2>(s, x, cols, y),
            3 | 4 => short::softmax::<E, S, 4>(s, x, cols, y),
            _ => short::softmax::<E, S, SHORT>(s, x, cols, y),
        }
    }
}

#[inline(always)]
fn exps<'k, E: Element, S: Vectors<E>, const BASE: bool>(
    s: S,
    reference: Reference<E::Compute>,
    x: [&[E]; 1],
    kept: &'k mut [MaybeUninit<E::Compute>],
) -> (f64, &'k mut [E::Compute]) {
    let mut exps = Exps::<E::Compute, S, BASE> {
        exp: Exp::new(s, reference),
        total: Total::new(s),
    };
    let kept = map(s, x, E::Compute::NEG_INFINITY, kept, &mut exps);
    (exps.total.sum.total(), kept)
}

/// dx = y·(g - Σ g·y), of y and g: the gradient of softmax.
#[derive(Clone, Copy)]
pub struct SoftmaxBackward;

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
        let mut dot = Dot::<E::Compute, S>(Total::new(s));
        each(s, x, E::Compute::ZERO, &mut dot);
        (dot.0.sum.total(), &mut [])
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
        let (fill, gradient) = (E::Compute::ZERO, &mut Gradient(s.splat(row)));
        map(s, x, fill, y, gradient)
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
        [y, g]: [&[E]; 2],
        cols: usize,
        dx: &'y mut [MaybeUninit<E>],
    ) -> Filled<'y> {
        match cols.div_ceil(<S as Simd<E::Compute>>::N) {
            0 | 1 => short_gradients::<E, S, 1>(s, y, g, cols, dx),
            2 => short_gradients::<E, S, 2>(s, y, g, cols, dx),
            3 | 4 => short_gradients::<E, S, 4>(s, y, g, cols, dx),
            _ => short_gradients::<E, S, SHORT>(s, y, g, cols, dx),
        }
    }
}

/// The gradients of rows in `K` vectors.
#[inline(always)]
fn short_gradients<'y, E: Element, S: Vectors<E>, const K: usize>(
    s: S,
    y: &[E],
    g: &[E],
    cols: usize,
    dx: &'y mut [MaybeUninit<E>],
) -> Filled<'y> {
    let (n, zero) = (<S as Simd<E::Compute>>::N, E::Compute::ZERO);
    let mut done = Filled::none(dx);
    let inputs = y.chunks_exact(cols).zip(g.chunks_exact(cols));
    for ((y, g), dx) in inputs.zip(dx.chunks_exact_mut(cols)) {
        let (mut ys, mut gs) = ([s.splat(zero); K], [s.splat(zero); K]);
        let mut sums = [s.splat(zero); 4];
        for k in 0..K {
            ys[k] = load_short(s, y, k * n, zero);
            gs[k] = load_short(s, g, k * n, zero);
            let sum = &mut sums[k % (E::Compute::SUM_LANES / n)];
            *sum = s.mul_add(ys[k], gs[k], *sum);
        }
        let dot = s.splat(s.sum(sums));
        for k in 0..K {
            gs[k] = s.mul(ys[k], s.sub(gs[k], dot));
        }
        done = done.then(Filled::of(store_short(s, gs, dx)));
    }
    done
}
