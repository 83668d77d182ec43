//! The row cores, generic over elements and vectors: a first pass over a row or a part of one, what the passes over the
//! parts say together, and a second pass that writes.

use super::short::{self, SHORT};
use super::simd::{map, map_in_place, Filled, Simd, Vectors};
use super::visitors::{Alone, Exp, Exps, Rescale, Scale, Sum, Total};
use super::{Element, Real};
use crate::state::{factor, normaliser, OnlineState, Reference};
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

impl<C: Real> SoftmaxPart<C> {
    /// Of one number, which need not be a column.
    pub fn of(x: C) -> Self {
        let OnlineState { m, d } = OnlineState::IDENTITY.push(x);
        Self { m, d: d.to_f64() }
    }
}

/// The largest number `m`, the sum of the exponentials relative to `Reference::new(m)`, and what these are multiplied by.
#[derive(Clone, Copy)]
pub struct SoftmaxRow<C> {
    m: C,
    d: f64,
    scale: C,
}

impl<C: Real> SoftmaxRow<C> {
    /// Whether there was nothing but -inf, if anything.
    #[inline(always)]
    pub fn is_nothing(&self) -> bool {
        self.d == 0.0
    }

    /// Whether all results are NaN.
    #[inline(always)]
    pub fn is_nan(&self) -> bool {
        self.scale.is_nan()
    }

    /// ln Σ exp(x); where that is +inf, `has_nan` is asked.
    pub fn log_sum_exp(&self, has_nan: impl FnOnce() -> bool) -> C {
        // The exponential of +inf is NaN in vectors, as results are then; d tells them apart no longer.
        let d = match self.m == C::INFINITY && !has_nan() {
            true => C::INFINITY,
            false => C::from_f64(self.d),
        };
        OnlineState { m: self.m, d }.log_sum_exp()
    }
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
        let d = d.total();
        SoftmaxRow {
            m,
            d,
            scale: normaliser(m, d),
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
