//! Softmax of short rows, all in registers: one, or as many together as a vector has lanes.

use super::simd::{load_short, put, store_short, Filled, Simd, Vectors};
use super::visitors::{Exp, Total};
use super::{Element, Real};
use crate::state::{normaliser, Reference};
use std::mem::MaybeUninit;

/// Vectors of a row that is all in registers. (16, of f64 or on AVX2, spilled: 2.5 and 9 times slower.)
pub const SHORT: usize = 8;

/// Columns of such a row, in vectors of `n` lanes.
pub const fn most_short(n: usize) -> usize {
    SHORT * n
}

/// Columns of a row that is short whatever the vectors.
pub const fn surely_short<C: Real>() -> usize {
    most_short(C::SUM_LANES / 4) // SUM_LANES are four of the narrowest
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
pub fn softmax<'y, E: Element, S: Vectors<E>, const K: usize>(
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
        *sum = s.join(exps(s, kept, reference, based)); // a base of 0 changes no bits
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
    let sums = exps(s, &mut v, reference, reference.base != E::Compute::ZERO);
    let scale = s.splat(normaliser(m, s.sum(sums).to_f64()));
    store_short(s, v.map(|v| s.mul(v, scale)), y)
}

/// Exponentials of a row, in place, and their sums in SUM_LANES accumulators. `based`: the reference may have a base.
#[inline(always)]
fn exps<C: Real, S: Simd<C>, const K: usize>(
    s: S,
    v: &mut [S::V; K],
    reference: Reference<C>,
    based: bool,
) -> [S::V; 4] {
    let exp = Exp::<C, S>::new(s, reference);
    if based {
        *v = v.map(|v| s.sub(v, exp.base));
    }
    let mut total = Total::<C, S>::new(s);
    for (k, v) in v.iter_mut().enumerate() {
        *v = C::exp(s, *v, exp.floor, exp.powers, None);
        total.add(s, k % (C::SUM_LANES / S::N), *v);
    }
    total.lanes
}
