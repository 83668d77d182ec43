//! Attention scores as rows: what is done to a score before the softmax, and which keys a query sees.
//!
//! A row is the scores of one query; its columns are the keys. [`ScoreRows`] says, for every operand of the operator, where
//! a row's elements lie: masks are views that step nowhere along a broadcast dim, and the indices of the query and of the
//! head are operands too, of which the "element" is the index itself. So one walk over the row dims finds them all.

use crate::rows::{Operand, RowSpace};
use candle_core::{bail, Layout, Result, Shape};
use std::ops::Range;

/// Keys that a query sees, as diagonals: query i sees keys i + `first` ..= i + `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// The first diagonal.
    pub first: i64,
    /// The last one.
    pub last: i64,
}

impl Band {
    /// Beyond every diagonal, with room for an index to be added.
    pub const FAR: i64 = 1 << 62;
    /// Every key.
    pub const ALL: Self = Self {
        first: -Self::FAR,
        last: Self::FAR,
    };

    /// The keys of `query`, of `keys` in all.
    pub fn keys(&self, query: usize, keys: usize) -> Range<usize> {
        let at = |diagonal: i64| {
            (query as i64).saturating_add(diagonal).clamp(0, keys as i64) as usize
        };
        let (first, end) = (at(self.first), at(self.last.saturating_add(1)));
        first..end.max(first)
    }
}

/// What is done to a score s of query i and key j: min(cap)(s · scale), to which biases are added, where the band keeps it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreOp {
    /// Factor of every score.
    pub scale: f32,
    /// c of c · tanh(s / c), or none.
    pub softcap: Option<f32>,
    /// Which keys a query sees.
    pub band: Band,
    /// The position of query 0 among the keys. ALiBi adds -slope · |i + kv_offset - j|.
    pub kv_offset: i64,
}

/// Operands of attention's softmax, in their order.
pub const SCORES: usize = 0;
/// The probabilities.
pub const OUT: usize = 1;
/// What is added to the scores.
pub const ADDED: usize = 2;
/// The boolean mask.
pub const MASK: usize = 3;
/// The index of the head, of which slopes and sinks have a number each.
pub const HEAD: usize = 4;
/// The index of the query.
pub const QUERY: usize = 5;

/// The rows of attention's softmax. An operand that is not there is element 0 everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreRows {
    /// Over (.., queries, keys).
    pub space: RowSpace<6>,
    /// Heads: the size of the dim before the queries.
    pub heads: usize,
}

impl ScoreRows {
    /// Rows of `scores` and `out`, of shape (.., heads, queries, keys), with what broadcasts to it. `by_head` and `by_query`:
    /// whether those indices are looked at; rows of fewer dims are found faster.
    ///
    /// # Errors
    ///
    /// A rank below 2, shapes that do not broadcast.
    pub fn new(
        op: &'static str,
        [scores, out]: [&Layout; 2],
        [added, mask]: [Option<&Layout>; 2],
        by_head: bool,
        by_query: bool,
    ) -> Result<Self> {
        let shape = scores.shape();
        let rank = shape.rank();
        if rank < 2 {
            bail!("{op}: requires scores of shape (.., queries, keys), got {shape:?}")
        }
        let broadcast = |what: &str, layout: Option<&Layout>| match layout {
            None => Ok(stepping(shape, None)),
            Some(layout) => layout.broadcast_as(shape.clone()).map_err(|_| {
                candle_core::Error::msg(format!(
                    "{op}: requires a {what} that broadcasts to the scores' shape {shape:?}, got {:?}",
                    layout.shape()
                ))
            }),
        };
        let added = broadcast("mask or bias", added)?;
        let mask = broadcast("mask", mask)?;
        let head = stepping(shape, (by_head && rank > 2).then(|| rank - 3));
        let query = stepping(shape, by_query.then(|| rank - 2));
        let layouts = [scores, out, &added, &mask, &head, &query];
        Ok(Self {
            space: RowSpace::new(op, layouts, rank - 1)?,
            heads: heads(shape),
        })
    }

    /// Where row `row` of operand `i` begins.
    pub fn offset(&self, i: usize, row: usize) -> usize {
        self.operand(i).row_offset(&self.space.dims, row)
    }

    /// Operand `i`.
    pub fn operand(&self, i: usize) -> &Operand {
        &self.space.operands[i]
    }
}

/// The rows of its gradient: operands y, g, dx, the scores, and the index of the query (the last two as far as they are
/// looked at).
pub fn gradient_rows(
    op: &'static str,
    [y, g, dx]: [&Layout; 3],
    scores: Option<&Layout>,
    by_query: bool,
) -> Result<RowSpace<5>> {
    let shape = y.shape();
    let rank = shape.rank();
    if rank < 2 {
        bail!("{op}: requires probabilities of shape (.., queries, keys), got {shape:?}")
    }
    let nothing = stepping(shape, None);
    let query = stepping(shape, by_query.then(|| rank - 2));
    let layouts = [y, g, dx, scores.unwrap_or(&nothing), &query];
    RowSpace::new(op, layouts, rank - 1)
}

/// Heads of scores of this shape: 1 where there is no such dim.
pub fn heads(shape: &Shape) -> usize {
    let dims = shape.dims();
    dims.len().checked_sub(3).map_or(1, |dim| dims[dim])
}

/// A layout of this shape that steps by one along `dim` and nowhere else: its elements are indices.
fn stepping(shape: &Shape, dim: Option<usize>) -> Layout {
    let mut strides = vec![0; shape.rank()];
    if let Some(dim) = dim {
        strides[dim] = 1;
    }
    Layout::new(shape.clone(), strides, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_is_clamped_to_the_keys() {
        let causal = Band {
            first: -Band::FAR,
            last: 2,
        };
        assert_eq!(causal.keys(0, 5), 0..3);
        assert_eq!(causal.keys(9, 5), 0..5);
        let before_all = Band {
            first: -Band::FAR,
            last: -3,
        };
        assert_eq!(before_all.keys(1, 5), 0..0);
        assert_eq!(before_all.keys(4, 5), 0..2);
        let window = Band { first: -1, last: 1 };
        assert_eq!(window.keys(0, 5), 0..2);
        assert_eq!(window.keys(7, 5), 5..5);
        assert_eq!(Band::ALL.keys(3, 5), 0..5);
        assert!(Band { first: 2, last: 1 }.keys(0, 5).is_empty());
    }

    #[test]
    fn indices_and_broadcast_masks_are_found_by_row() -> Result<()> {
        let scores = Layout::contiguous((2, 3, 4, 5));
        let added = Layout::contiguous((3, 1, 5));
        let rows = ScoreRows::new("op", [&scores, &scores], [Some(&added), None], true, true)?;
        assert_eq!((rows.space.rows, rows.space.cols, rows.heads), (24, 5, 3));
        for row in 0..24 {
            let (head, query) = (row / 4 % 3, row % 4);
            assert_eq!(rows.offset(HEAD, row), head);
            assert_eq!(rows.offset(QUERY, row), query);
            assert_eq!(rows.offset(ADDED, row), 5 * head);
            assert_eq!(rows.offset(MASK, row), 0);
            assert_eq!(rows.offset(OUT, row), 5 * row);
        }
        assert_eq!(rows.operand(MASK).col_stride, 0);
        Ok(())
    }

    #[test]
    fn what_is_not_looked_at_does_not_split_rows() -> Result<()> {
        let scores = Layout::contiguous((2, 3, 4, 5));
        let rows = ScoreRows::new("op", [&scores, &scores], [None, None], false, false)?;
        assert_eq!(rows.space.dims, [24]);
        Ok(())
    }

    #[test]
    fn errors_say_what_broadcasts() {
        let scores = Layout::contiguous((2, 3, 4, 5));
        let mask = Layout::contiguous((4, 4));
        let err = ScoreRows::new("op", [&scores, &scores], [None, Some(&mask)], false, false)
            .unwrap_err()
            .to_string();
        assert!(
            err.starts_with("op: requires a mask that broadcasts to the scores' shape [2, 3, 4, 5], got [4, 4]"),
            "{err}"
        );
        let one = Layout::contiguous(4);
        assert!(ScoreRows::new("op", [&one, &one], [None, None], false, false).is_err());
    }
}
