//! What stands between attention's scores and their softmax, on the CPU.

use super::{Element, Real};
use crate::scores::{ScoreOp, ScoreRows, ADDED, HEAD, MASK, QUERY};
use candle_core::{bail, CpuStorage, DType, Layout, Result};
use std::ops::Range;

const NAME: &str = "attention-softmax";

/// A storage and how its elements lie.
type At<'a> = (&'a CpuStorage, &'a Layout);

/// Scale, softcap, band and the operands that are added to scores of T or mask them. All that rows index is there.
pub struct Biases<'a, T: Element> {
    pub op: ScoreOp,
    pub rows: &'a ScoreRows,
    pub added: Option<Added<'a, T>>,
    pub mask: Option<&'a [u8]>,
    slopes: Option<Slopes<'a, T::Compute>>,
    sinks: Option<&'a [T::Compute]>,
}

/// What is added, of either type.
#[derive(Clone, Copy)]
pub enum Added<'a, T: Element> {
    Narrow(&'a [T]),
    Wide(&'a [T::Compute]),
}

/// ALiBi: a slope a head, and the distances from queries to keys.
struct Slopes<'a, C> {
    slopes: &'a [C],
    /// |j - i - kv_offset|, in the order of j - i. Counted once, and exactly: the vectors that a position falls into
    /// then make no difference.
    distances: Vec<C>,
    /// The last query.
    last: usize,
}

impl<'a, T: Element> Biases<'a, T> {
    /// `slopes` and `sinks` are contiguous, one a head.
    ///
    /// # Errors
    ///
    /// Another dtype than that of the scores (`added`) or of what they are computed in (`added`, slopes, sinks); layouts past
    /// their storage.
    pub fn new(
        op: ScoreOp,
        rows: &'a ScoreRows,
        added: Option<At<'a>>,
        mask: Option<&'a [u8]>,
        slopes: Option<At<'a>>,
        sinks: Option<At<'a>>,
    ) -> Result<Self> {
        let check = |i, len| rows.space.check_within(NAME, rows.operand(i), len);
        let added = added.map(|(storage, _)| Added::of(storage)).transpose()?;
        match added {
            Some(Added::Narrow(added)) => check(ADDED, added.len())?,
            Some(Added::Wide(added)) => check(ADDED, added.len())?,
            None => {}
        }
        if let Some(mask) = mask {
            check(MASK, mask.len())?;
        }
        let one_a_head = |what: &str, at: Option<At<'a>>| -> Result<_> {
            let numbers = at.map(|at| numbers(what, at)).transpose()?;
            if let Some(numbers) = numbers {
                check(HEAD, numbers.len())?;
            }
            Ok(numbers)
        };
        let slopes = one_a_head("slopes", slopes)?;
        let sinks = one_a_head("sinks", sinks)?;
        Ok(Self {
            op,
            rows,
            added,
            mask,
            slopes: slopes
                .map(|slopes| Slopes::new(slopes, op.kv_offset, rows))
                .transpose()?,
            sinks,
        })
    }

    /// Which keys a row's query sees.
    #[inline(always)]
    pub fn keys(&self, row: usize) -> Range<usize> {
        let query = self.rows.offset(QUERY, row);
        self.op.band.keys(query, self.rows.space.cols)
    }

    /// A row's slope and how far its query is from each key.
    #[inline(always)]
    pub fn slope(&self, row: usize) -> Option<(T::Compute, &[T::Compute])> {
        let slopes = self.slopes.as_ref()?;
        let slope = slopes.slopes[self.rows.offset(HEAD, row)];
        let first = slopes.last - self.rows.offset(QUERY, row);
        Some((slope, &slopes.distances[first..][..self.rows.space.cols]))
    }

    /// A row's sink.
    #[inline(always)]
    pub fn sink(&self, row: usize) -> Option<T::Compute> {
        Some(self.sinks?[self.rows.offset(HEAD, row)])
    }
}

impl<'a, T: Element> Added<'a, T> {
    fn of(storage: &'a CpuStorage) -> Result<Self> {
        // Of f32 and f64 both are the same.
        if let Some(added) = T::Compute::of_storage(storage) {
            return Ok(Self::Wide(added));
        }
        match T::of_storage(storage) {
            Some(added) => Ok(Self::Narrow(added)),
            None => Err(dtype_error(
                "a mask or bias",
                &[T::DTYPE, T::Compute::DTYPE],
                storage,
            )),
        }
    }
}

impl<'a, C: Real> Slopes<'a, C> {
    fn new(slopes: &'a [C], kv_offset: i64, rows: &ScoreRows) -> Result<Self> {
        let (space, queries) = (&rows.space, rows.operand(QUERY));
        let steps = space.dims.iter().zip(&queries.row_strides);
        let last: usize = steps
            .map(|(&size, &stride)| size.saturating_sub(1) * stride)
            .sum();
        let mut distances = Vec::new();
        if !space.is_empty() {
            let len = last + space.cols;
            if distances.try_reserve_exact(len).is_err() {
                bail!("{NAME}: requires memory for {len} distances, got none")
            }
            let first = -(last as i64) - kv_offset;
            distances.extend((0..len as i64).map(|i| C::from_f64((first + i).abs() as f64)));
        }
        Ok(Self {
            slopes,
            distances,
            last,
        })
    }
}

/// Contiguous numbers.
fn numbers<'a, C: Element>(what: &str, (storage, layout): At<'a>) -> Result<&'a [C]> {
    let Some(numbers) = C::of_storage(storage) else {
        return Err(dtype_error(what, &[C::DTYPE], storage));
    };
    let range = layout.contiguous_offsets();
    match range.and_then(|(start, end)| numbers.get(start..end)) {
        Some(numbers) => Ok(numbers),
        None => bail!("{NAME}: requires contiguous {what} within their storage, got {layout:?}"),
    }
}

fn dtype_error(what: &str, wanted: &[DType], storage: &CpuStorage) -> candle_core::Error {
    use candle_core::backend::BackendStorage;
    let mut wanted: Vec<_> = wanted.iter().map(DType::as_str).collect();
    wanted.dedup();
    candle_core::Error::msg(format!(
        "{NAME}: requires {what} of {}, got {}",
        wanted.join(" or "),
        storage.dtype().as_str()
    ))
}
