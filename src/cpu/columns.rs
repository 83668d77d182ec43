//! Rows side by side, as of a dim that is not the innermost: vectors along the rows, a column at a time, with no
//! transposed copy. The sums have the accumulators of the row core, each a vector of rows: the same bits.

use super::backward::{gradient, taken, SoftmaxBackward};
use super::row::Softmax;
use super::rows::task_count;
use super::simd::{
    filled_strips, load_short, put, Access, Filled, FilledStrip, Kernel, Simd, Strip, Vectors,
    ADDITIONS,
};
use super::task::Source;
use super::visitors::Sum;
use super::{Element, Real};
use crate::rows::RowSpace;
use crate::state::{normaliser, Reference};
use rayon::prelude::*;
use std::collections::TryReserveError;
use std::mem::MaybeUninit;

/// Rows of a strip: 256 bytes of f32, four cache lines of each column.
const WIDTH: usize = 64;
/// Numbers in a strip that its sums are worth: fewer take longer than to gather the rows.
const FEWEST: usize = 512;
/// Numbers of scratch, 2 MiB of f32: more come out of the L2.
const MOST: usize = 1 << 19;
/// Accumulators of a sum of a row; those of f64 are fewer.
const MOST_LANES: usize = 32;

/// An operator over strips. `#[inline(always)]`, as that of rows.
pub trait StripOp<const N: usize>: Copy + Send + Sync {
    /// Writes all columns of `out`. `column(input, c)`: the strip's elements of a column.
    fn strip<'a, E: Element + 'a, S: Vectors<E>>(
        self,
        s: S,
        cols: usize,
        column: impl Fn(usize, usize) -> &'a [E],
        scratch: &mut StripScratch<E::Compute>,
        out: &mut Strip<'_, E>,
    );
}

/// Memory for a strip.
pub struct StripScratch<C> {
    /// `pitch` numbers a column.
    kept: Vec<C>,
    /// `pitch` sums for each accumulator.
    sums: Vec<C>,
    pitch: usize,
}

/// Whether these rows are side by side, the innermost row dim having `inner` of them next to each other in each operand,
/// and strips of them pay.
pub fn fit<const N: usize>(space: &RowSpace<N>, inner: usize) -> bool {
    let beside = |strides: &[usize]| strides.last() == Some(&1);
    space.cols.saturating_mul(inner.min(WIDTH)) >= FEWEST
        && space.cols.saturating_mul(pitch(inner)) <= MOST
        && space.dims.last() == Some(&inner)
        && space
            .operands
            .iter()
            .all(|operand| beside(&operand.row_strides))
}

/// Rows that there is room for in scratch, where dims are `inner` apart: a whole number of vectors.
fn pitch(inner: usize) -> usize {
    inner.min(WIDTH).next_multiple_of(16)
}

/// The results as (outer, cols, inner).
pub fn map_columns<O: StripOp<N>, T: Element, const N: usize>(
    source: Source<T, N>,
    inner: usize,
    threads: usize,
    op: O,
) -> Result<Vec<T>, TryReserveError> {
    let (rows, cols) = (source.space.rows, source.space.cols);
    filled_strips([rows / inner, cols, inner], WIDTH, |strips| {
        let tasks = task_count(rows * cols, threads).min(strips.len());
        let share = strips.len().div_ceil(tasks);
        let mut shares = Vec::with_capacity(tasks);
        let mut strips = strips.into_iter();
        for _ in 0..strips.len().div_ceil(share) {
            let scratch = StripScratch::<T::Compute>::reserve(cols, pitch(inner))?;
            shares.push((strips.by_ref().take(share).collect::<Vec<_>>(), scratch));
        }
        Ok(match tasks {
            1 => shares
                .into_iter()
                .flat_map(|share| run(op, source, share))
                .collect(),
            _ => shares
                .into_par_iter()
                .flat_map_iter(|share| run(op, source, share))
                .collect(),
        })
    })
}

/// Some strips, one after another.
fn run<'y, O: StripOp<N>, T: Element, const N: usize>(
    op: O,
    source: Source<T, N>,
    (strips, mut scratch): (Vec<Strip<'y, T>>, StripScratch<T::Compute>),
) -> Vec<FilledStrip<'y>> {
    let strip = |out| {
        T::dispatch(One {
            op,
            source,
            scratch: &mut scratch,
            out,
        })
    };
    strips.into_iter().map(strip).collect()
}

impl<C: Real + Element> StripScratch<C> {
    fn reserve(cols: usize, pitch: usize) -> Result<Self, TryReserveError> {
        let zeros = |len| -> Result<Vec<C>, TryReserveError> {
            let mut zeros = Vec::new();
            zeros.try_reserve_exact(len)?;
            zeros.resize(len, C::default());
            Ok(zeros)
        };
        Ok(Self {
            kept: zeros(cols * pitch)?,
            sums: zeros(MOST_LANES * pitch)?,
            pitch,
        })
    }
}

struct One<'a, 's, 'y, O, T: Element, const N: usize> {
    op: O,
    source: Source<'a, T, N>,
    scratch: &'s mut StripScratch<T::Compute>,
    out: Strip<'y, T>,
}

impl<'y, O: StripOp<N>, T: Element, const N: usize> Kernel<T> for One<'_, '_, 'y, O, T, N> {
    type Out = FilledStrip<'y>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> FilledStrip<'y> {
        let Self {
            op,
            source,
            scratch,
            mut out,
        } = self;
        let (space, width) = (source.space, out.width());
        let mut starts = [0; N];
        for (start, operand) in starts.iter_mut().zip(&space.operands) {
            *start = operand.row_offset(&space.dims, out.row);
        }
        op.strip(
            s,
            space.cols,
            #[inline(always)]
            |i, c| &source.inputs[i][starts[i] + c * space.operands[i].col_stride..][..width],
            scratch,
            &mut out,
        );
        out.done()
    }
}

/// Numbers of a strip, one a row.
type Lanes<C> = [C; WIDTH];

#[inline(always)]
fn at<C: Real + Element<Compute = C>, S: Simd<C> + Access<C>>(
    s: S,
    lanes: &[C],
    o: usize,
) -> <S as Simd<C>>::V {
    s.load(&lanes[o..o + <S as Simd<C>>::N])
}

/// The sums of `term(c, o)`, the vector of column `c` at row `o` of the strip added to what there is, in the order of the
/// row core.
#[inline(always)]
fn sums<C: Real + Element<Compute = C>, S: Simd<C> + Access<C>>(
    s: S,
    cols: usize,
    width: usize,
    pitch: usize,
    lanes: &mut [C],
    mut term: impl FnMut(usize, usize, <S as Simd<C>>::V) -> <S as Simd<C>>::V,
) -> [f64; WIDTH] {
    let (group, mut sums) = (C::SUM_LANES, [Sum::default(); WIDTH]);
    for first in (0..cols).step_by(ADDITIONS * group) {
        let end = cols.min(first + ADDITIONS * group);
        // Those that no column comes to would be 0.
        let used = group.min(end - first);
        lanes[..used * pitch].fill(C::ZERO);
        for o in (0..width).step_by(<S as Simd<C>>::N) {
            for c in first..end {
                let lane = &mut lanes[(c - first) % group * pitch..][..pitch];
                let sum = term(c, o, at(s, lane, o));
                put(s, sum, &mut lane[o..]);
            }
            let mut half = group / 2;
            while half > 0 {
                for i in 0..half.min(used.saturating_sub(half)) {
                    let (sum, other) = (i * pitch + o, (i + half) * pitch + o);
                    let both = s.add(at(s, lanes, sum), at(s, lanes, other));
                    put(s, both, &mut lanes[sum..]);
                }
                half /= 2;
            }
        }
        for (sum, lane) in sums[..width].iter_mut().zip(&lanes[..width]) {
            sum.add(lane.to_f64());
        }
    }
    sums.map(|sum| sum.total())
}

impl StripOp<1> for Softmax {
    #[inline(always)]
    fn strip<'a, E: Element + 'a, S: Vectors<E>>(
        self,
        s: S,
        cols: usize,
        column: impl Fn(usize, usize) -> &'a [E],
        scratch: &mut StripScratch<E::Compute>,
        out: &mut Strip<'_, E>,
    ) {
        let (n, width, fill) = (
            <S as Simd<E::Compute>>::N,
            out.width(),
            E::Compute::NEG_INFINITY,
        );
        let (pitch, kept) = (scratch.pitch, &mut scratch.kept[..]);
        let mut m: Lanes<E::Compute> = [fill; WIDTH];
        for (c, kept) in kept.chunks_exact_mut(pitch).enumerate() {
            let x = column(0, c);
            for o in (0..width).step_by(n) {
                let v = load_short(s, x, o, fill);
                put(s, v, &mut kept[o..]);
                put(s, s.max(v, at(s, &m, o)), &mut m[o..]);
            }
        }
        let mut base: Lanes<E::Compute> = [E::Compute::ZERO; WIDTH];
        let (mut floor, mut further) = (base, base);
        for i in 0..width {
            let reference = Reference::new(m[i]);
            (base[i], floor[i]) = (reference.base, reference.floor);
            further[i] = reference.low - E::Compute::ROUND;
        }
        let powers = s.powers(E::Compute::ROUND);
        let d = sums(
            s,
            cols,
            width,
            pitch,
            &mut scratch.sums,
            #[inline(always)]
            |c, o, sum| {
                let kept = &mut kept[c * pitch..][..pitch];
                let x = s.sub(at(s, kept, o), at(s, &base, o));
                let e = E::Compute::exp(s, x, at(s, &floor, o), powers, Some(at(s, &further, o)));
                put(s, e, &mut kept[o..]);
                s.add(sum, e)
            },
        );
        let mut scale: Lanes<E::Compute> = [E::Compute::ZERO; WIDTH];
        for i in 0..width {
            scale[i] = normaliser(m[i], d[i]);
        }
        for kept in kept.chunks_exact(pitch) {
            out.column(
                #[inline(always)]
                |y| {
                    store(
                        s,
                        y,
                        #[inline(always)]
                        |o| s.mul(at(s, kept, o), at(s, &scale, o)),
                    )
                },
            );
        }
    }
}

impl StripOp<2> for SoftmaxBackward {
    #[inline(always)]
    fn strip<'a, E: Element + 'a, S: Vectors<E>>(
        self,
        s: S,
        cols: usize,
        column: impl Fn(usize, usize) -> &'a [E],
        scratch: &mut StripScratch<E::Compute>,
        out: &mut Strip<'_, E>,
    ) {
        match self.is_masked() {
            true => self.gradients::<E, S, true>(s, cols, column, scratch, out),
            false => self.gradients::<E, S, false>(s, cols, column, scratch, out),
        }
    }
}

impl SoftmaxBackward {
    #[inline(always)]
    fn gradients<'a, E: Element + 'a, S: Vectors<E>, const MASKED: bool>(
        self,
        s: S,
        cols: usize,
        column: impl Fn(usize, usize) -> &'a [E],
        scratch: &mut StripScratch<E::Compute>,
        out: &mut Strip<'_, E>,
    ) {
        let (zero, scale) = (E::Compute::ZERO, s.splat(self.scale()));
        let dots = sums(
            s,
            cols,
            out.width(),
            scratch.pitch,
            &mut scratch.sums,
            #[inline(always)]
            |c, o, sum| {
                let [y, g] = [0, 1].map(|i| load_short(s, column(i, c), o, zero));
                s.mul_add(y, taken::<_, S, MASKED>(s, y, g), sum)
            },
        );
        let dots = dots.map(E::Compute::from_f64);
        for c in 0..cols {
            let (y, g) = (column(0, c), column(1, c));
            out.column(
                #[inline(always)]
                |dx| {
                    store(
                        s,
                        dx,
                        #[inline(always)]
                        |o| {
                            let x = [y, g].map(|x| load_short(s, x, o, zero));
                            gradient::<_, S, MASKED>(s, x, at(s, &dots, o), scale)
                        },
                    )
                },
            );
        }
    }
}

/// Writes the vectors of a column.
#[inline(always)]
fn store<'y, E: Element, S: Vectors<E>>(
    s: S,
    y: &'y mut [MaybeUninit<E>],
    vector: impl Fn(usize) -> <S as Simd<E::Compute>>::V,
) -> Filled<'y> {
    let (n, mut done) = (<S as Simd<E::Compute>>::N, Filled::none(y));
    for (i, y) in y.chunks_mut(n).enumerate() {
        done = done.then(Filled::of(super::simd::store_short(s, [vector(i * n)], y)));
    }
    done
}
