//! The row cores, generic over elements and vectors: a first pass over a row or a part of one, what the passes over the
//! parts say together, and a second pass that writes.

use super::simd::{each, load_short, map, map_in_place, put, store_short, Filled, Simd, Vectors};
use super::visitors::{Alone, Dot, Exp, Exps, Gradient, Rescale, Scale, Sum, Total};
use super::{Element, Real};
use crate::state::{factor, normaliser, Reference};
use std::mem::MaybeUninit;

/// Vectors of a row that is all in registers. (16, of f64 or on AVX2, spilled: 2.5 and 9 times slower.)
const SHORT: usize = 8;

/// Columns of such a row, in vectors of `n` lanes.
pub const fn most_short(n: usize) -> usize {
    SHORT * n
}

/// Columns of a row that is short whatever the vectors.
pub const fn surely_short<C: Real>() -> usize {
    most_short(C::SUM_LANES / 4) // SUM_LANES are four of the narrowest
}

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

    /// Both passes over rows of at most [`most_short`] columns, one after another; the same bits.
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
            0 | 1 => short::<E, S, 1>(s, x, cols, y),
            2 => short::<E, S, 2>(s, x, cols, y),
            3 | 4 => short::<E, S, 4>(s, x, cols, y),
            _ => short::<E, S, SHORT>(s, x, cols, y),
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

/// Lanes of a vector, at most, and so rows computed together.
const MOST_LANES: usize = 16;

/// Most vectors of rows that are computed together: of f64 fewer lanes are folded at once, for as many moves.
const fn most_together<C: Real>() -> usize {
    match size_of::<C>() {
        4 => SHORT,
        _ => 2,
    }
}

/// Rows in `K` vectors: as many together as a vector has lanes, while there are.
#[inline(always)]
fn short<'y, E: Element, S: Vectors<E>, const K: usize>(
    s: S,
    x: &[E],
    cols: usize,
    y: &'y mut [MaybeUninit<E>],
) -> Filled<'y> {
    let together = cols * <S as Simd<E::Compute>>::N;
    let whole = match K <= most_together::<E::Compute>() {
        true => x.len() / together * together,
        false => 0,
    };
    let ((x, x_left), (y, y_left)) = (x.split_at(whole), y.split_at_mut(whole));
    let mut done = Filled::none(y);
    if whole > 0 {
        let mut kept = [[s.splat(E::Compute::ZERO); K]; MOST_LANES];
        for (x, y) in x.chunks_exact(together).zip(y.chunks_exact_mut(together)) {
            done = done.then(short_rows(s, x, cols, y, &mut kept));
        }
    }
    for (x, y) in x_left.chunks_exact(cols).zip(y_left.chunks_exact_mut(cols)) {
        done = done.then(Filled::of(short_row::<E, S, K>(s, x, y)));
    }
    done
}

/// `short_row` of N rows, the same bits: what is one number a row is a vector of them here, and the folds of their lanes, half
/// the instructions of rows of two vectors, are done at once.
#[inline(always)]
fn short_rows<'y, E: Element, S: Vectors<E>, const K: usize>(
    s: S,
    x: &[E],
    cols: usize,
    y: &'y mut [MaybeUninit<E>],
    kept: &mut [[<S as Simd<E::Compute>>::V; K]; MOST_LANES],
) -> Filled<'y> {
    let (n, fill) = (<S as Simd<E::Compute>>::N, E::Compute::NEG_INFINITY);
    let mut of_rows = [s.splat(fill); MOST_LANES];
    for ((m, kept), x) in (of_rows.iter_mut().zip(&mut *kept)).zip(x.chunks_exact(cols)) {
        for (k, kept) in kept.iter_mut().enumerate() {
            *kept = load_short(s, x, k * n, fill);
            *m = s.max(*kept, *m);
        }
    }
    let mut m = [fill; MOST_LANES];
    put(s, s.largest_each(&of_rows[..n]), &mut m);
    let mut references = [Reference::new(E::Compute::ZERO); MOST_LANES];
    let mut based = false;
    for (reference, &m) in references.iter_mut().zip(&m[..n]) {
        *reference = Reference::new(m);
        based |= reference.base != E::Compute::ZERO;
    }
    for ((sum, kept), &reference) in of_rows.iter_mut().zip(&mut *kept).zip(&references[..n]) {
        let exp = Exp::<E::Compute, S>::new(s, reference);
        if based {
            *kept = kept.map(|v| s.sub(v, exp.base)); // a base of 0 changes no bits
        }
        let mut total = Total::<E::Compute, S>::new(s);
        for (k, v) in kept.iter_mut().enumerate() {
            *v = E::Compute::exp(s, *v, exp.floor, exp.powers, None);
            total.add(s, k % (E::Compute::SUM_LANES / n), *v);
        }
        *sum = s.join(total.lanes);
    }
    let mut d = [E::Compute::ONE; MOST_LANES];
    put(s, s.sum_each(&of_rows[..n]), &mut d);
    let scale: [_; MOST_LANES] = std::array::from_fn(|i| normaliser(m[i], d[i].to_f64()));
    let mut done = Filled::none(y);
    for ((kept, &scale), y) in kept.iter().zip(&scale).zip(y.chunks_exact_mut(cols)) {
        let scale = s.splat(scale);
        done = done.then(Filled::of(store_short(s, kept.map(|v| s.mul(v, scale)), y)));
    }
    done
}

#[inline(always)]
fn short_row<'y, E: Element, S: Vectors<E>, const K: usize>(
    s: S,
    x: &[E],
    y: &'y mut [MaybeUninit<E>],
) -> &'y mut [E] {
    let (n, fill) = (<S as Simd<E::Compute>>::N, E::Compute::NEG_INFINITY);
    let mut v = [s.splat(fill); K];
    for (k, v) in v.iter_mut().enumerate() {
        *v = load_short(s, x, k * n, fill);
    }
    let m = s.largest(v.iter().fold(s.splat(fill), |m, &v| s.max(v, m)));
    let reference = Reference::new(m);
    let exp = Exp::<E::Compute, S>::new(s, reference);
    if reference.base != E::Compute::ZERO {
        v = v.map(|v| s.sub(v, exp.base));
    }
    let mut total = Total::<E::Compute, S>::new(s);
    for (k, v) in v.iter_mut().enumerate() {
        *v = E::Compute::exp(s, *v, exp.floor, exp.powers, None);
        total.add(s, k % (E::Compute::SUM_LANES / n), *v);
    }
    let d = s.sum(total.lanes).to_f64();
    let scale = s.splat(normaliser(m, d));
    store_short(s, v.map(|v| s.mul(v, scale)), y)
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
