//! Tensor layouts as rows: which element of which operand belongs to row `r`, column `c`.
//!
//! A softmax reduces one dim, the *columns*; every combination of the other indices is a *row*.
//! [`RowSpace`] describes the rows of one op over all of its operands (x and y, or y, g and dx) at
//! once, with adjacent row dims merged wherever every operand allows it. A contiguous tensor of any
//! rank comes out with at most one row dim for its last dim, two for any other.

use candle_core::{bail, Layout, Result};

/// Row dims that a kernel takes after merging. Merged dims have at least two elements each, so only
/// a tensor of rank 14 or more can exceed it.
pub const MAX_ROW_DIMS: usize = 12;

/// Where one operand's rows lie in its storage, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Element of the storage at row 0, column 0.
    pub offset: usize,
    /// Stride of each row dim of the [`RowSpace`].
    pub row_strides: Vec<usize>,
    /// Stride from a column to the next.
    pub col_stride: usize,
}

impl Operand {
    /// Element of the storage at column 0 of row `row`.
    pub fn row_offset(&self, dims: &[usize], row: usize) -> usize {
        let (mut offset, mut rest) = (self.offset, row);
        let mut places = dims.iter().zip(&self.row_strides);
        let Some((_, &outermost)) = places.next() else {
            return offset;
        };
        for (&size, &stride) in places.rev() {
            let size = size.max(1); // no rows at all
            offset += (rest % size) * stride;
            rest /= size;
        }
        // No division where there is one dim, as in most tensors.
        offset + rest * outermost
    }

    /// Rows of `elem_size`-byte elements that all start on a 16-byte boundary of the storage and
    /// have neighbouring columns side by side.
    pub fn is_vector_aligned(&self, elem_size: usize) -> bool {
        let aligned = |elements: usize| (elements * elem_size).is_multiple_of(16);
        self.col_stride == 1 && aligned(self.offset) && self.row_strides.iter().all(|&s| aligned(s))
    }

    /// Rows of `cols` elements of `elem_size` bytes, one after another with nothing between them, the first on a
    /// 16-byte boundary of the storage.
    pub fn is_packed(&self, cols: usize, elem_size: usize) -> bool {
        self.is_contiguous(cols) && (self.offset * elem_size).is_multiple_of(16)
    }

    /// Rows of `cols` elements, one after another with nothing between them.
    pub fn is_contiguous(&self, cols: usize) -> bool {
        let one_after_another = match self.row_strides[..] {
            [] => true,
            [stride] => stride == cols,
            _ => false,
        };
        self.col_stride == 1 && one_after_another
    }
}

/// The rows of an op over `N` operands of the same shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowSpace<const N: usize> {
    /// Number of rows: product of `dims`.
    pub rows: usize,
    /// Number of columns: length of the reduced dim.
    pub cols: usize,
    /// Sizes of the merged row dims, outermost first; none of size 1.
    pub dims: Vec<usize>,
    /// One entry an operand, in the order given.
    pub operands: [Operand; N],
}

impl<const N: usize> RowSpace<N> {
    /// Rows of `layouts` along `dim`. All layouts must have the same shape; rank 0 is one row of one
    /// column.
    ///
    /// # Errors
    ///
    /// Shapes that differ, a `dim` not below the rank, more elements than an isize counts.
    pub fn new(op: &'static str, layouts: [&Layout; N], dim: usize) -> Result<Self> {
        const { assert!(N > 0, "an op has an operand") };
        let shape = layouts[0].shape();
        if let Some(other) = layouts.iter().find(|l| l.shape() != shape) {
            bail!(
                "{op}: requires operands of one shape, got {shape:?} and {:?}",
                other.shape()
            )
        }
        let sizes = shape.dims();
        if dim >= sizes.len().max(1) {
            bail!(
                "{op}: requires a dim below the rank, got dim {dim} for shape {shape:?} of rank {}",
                sizes.len()
            )
        }
        // Broadcast views can stand for more elements than a usize counts.
        if checked_product(sizes).is_none_or(|len| len > isize::MAX as usize) {
            bail!(
                "{op}: requires a shape of at most {} elements, got {shape:?}",
                isize::MAX
            )
        }
        let is_row_dim = |&i: &usize| i != dim && sizes[i] != 1;
        let row_dims: Vec<usize> = (0..sizes.len()).filter(is_row_dim).collect();
        let mut space = Self {
            rows: checked_product(row_dims.iter().map(|&i| &sizes[i])).unwrap_or(0),
            cols: sizes.get(dim).copied().unwrap_or(1),
            dims: Vec::with_capacity(row_dims.len()),
            operands: layouts.map(|l| Operand {
                offset: l.start_offset(),
                row_strides: Vec::with_capacity(row_dims.len()),
                // A single column may carry any stride (candle leaves odd ones on size-1 dims).
                col_stride: match sizes.get(dim) {
                    Some(&cols) if cols > 1 => l.stride()[dim],
                    _ => 1,
                },
            }),
        };
        for &i in &row_dims {
            space.push_dim(sizes[i], layouts.map(|l| l.stride()[i]));
        }
        Ok(space)
    }

    /// Nothing to compute and nothing to write.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// An error where `operand` reaches past a storage of `len` elements. No tensor does; a layout made by
    /// hand can.
    pub fn check_within(&self, op: &str, operand: &Operand, len: usize) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let steps = (self.dims.iter().zip(&operand.row_strides)).map(|(&n, &s)| (n, s));
        let last = steps
            .chain([(self.cols, operand.col_stride)])
            .try_fold(operand.offset, |last, (size, stride)| {
                last.checked_add((size - 1).checked_mul(stride)?)
            });
        if last.is_none_or(|last| last >= len) {
            bail!("{op}: requires a layout within its storage of {len} elements, got offset {} with row strides {:?} and column stride {}",
                operand.offset, operand.row_strides, operand.col_stride)
        }
        Ok(())
    }

    /// Appends a row dim, or widens the last one when each operand steps through both evenly.
    fn push_dim(&mut self, size: usize, strides: [usize; N]) {
        let merges = !self.dims.is_empty()
            && (self.operands.iter().zip(strides))
                .all(|(op, stride)| op.row_strides.last().copied() == stride.checked_mul(size));
        for (op, stride) in self.operands.iter_mut().zip(strides) {
            if merges {
                op.row_strides.pop();
            }
            op.row_strides.push(stride);
        }
        match self.dims.last_mut() {
            // Wraps only beside a dim of size 0, where no row is ever looked at.
            Some(last) if merges => *last = last.wrapping_mul(size),
            _ => self.dims.push(size),
        }
    }
}

/// The product, 0 where a factor is, or none where it overflows.
fn checked_product<'a>(sizes: impl IntoIterator<Item = &'a usize> + Clone) -> Option<usize> {
    if sizes.clone().into_iter().any(|&size| size == 0) {
        return Some(0);
    }
    let mut sizes = sizes.into_iter();
    sizes.try_fold(1usize, |product, &size| product.checked_mul(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Shape;

    fn layout(dims: &[usize], strides: &[usize], offset: usize) -> Layout {
        Layout::new(Shape::from(dims), strides.to_vec(), offset)
    }

    #[test]
    fn contiguous_last_dim_is_one_row_dim() -> Result<()> {
        let l = Layout::contiguous((2, 3, 4, 5));
        let space = RowSpace::new("op", [&l, &l], 3)?;
        assert_eq!((space.rows, space.cols), (24, 5));
        assert_eq!(space.dims, [24]);
        assert_eq!(space.operands[1].row_strides, [5]);
        assert_eq!(space.operands[1].col_stride, 1);
        Ok(())
    }

    #[test]
    fn contiguous_inner_dim_is_outer_and_inner() -> Result<()> {
        let l = Layout::contiguous((2, 3, 4, 5));
        let space = RowSpace::new("op", [&l], 1)?;
        assert_eq!((space.rows, space.cols), (40, 3));
        assert_eq!(space.dims, [2, 20]);
        assert_eq!(space.operands[0].row_strides, [60, 1]);
        assert_eq!(space.operands[0].col_stride, 20);
        Ok(())
    }

    #[test]
    fn merging_needs_every_operand() -> Result<()> {
        let (a, b) = (
            layout(&[2, 3, 4], &[12, 4, 1], 0),
            layout(&[2, 3, 4], &[4, 8, 1], 0),
        );
        let space = RowSpace::new("op", [&a, &b], 2)?;
        assert_eq!(space.dims, [2, 3]);
        Ok(())
    }

    #[test]
    fn every_row_offset_matches_the_layout() -> Result<()> {
        let l = layout(&[3, 1, 2, 5, 4], &[1, 999, 60, 3, 15], 7);
        for dim in 0..5 {
            let space = RowSpace::new("op", [&l], dim)?;
            let mut expected = vec![7usize];
            for (&size, &stride) in l.dims().iter().zip(l.stride()) {
                let step = |&start: &usize| (0..size).map(move |i| start + i * stride);
                expected = expected.iter().flat_map(step).collect();
            }
            let mut got = Vec::new();
            for row in 0..space.rows {
                let start = space.operands[0].row_offset(&space.dims, row);
                got.extend((0..space.cols).map(|c| start + c * space.operands[0].col_stride));
            }
            expected.sort_unstable();
            got.sort_unstable();
            assert_eq!(got, expected, "dim {dim}");
        }
        Ok(())
    }

    #[test]
    fn rank_zero_and_empty() -> Result<()> {
        let scalar = RowSpace::new("op", [&Layout::contiguous(())], 0)?;
        assert_eq!((scalar.rows, scalar.cols), (1, 1));
        assert!(!scalar.is_empty());
        let no_cols = RowSpace::new("op", [&Layout::contiguous((4, 0))], 1)?;
        assert_eq!((no_cols.rows, no_cols.cols), (4, 0));
        assert!(no_cols.is_empty());
        assert!(RowSpace::new("op", [&Layout::contiguous((0, 2))], 1)?.is_empty());
        Ok(())
    }

    #[test]
    fn shapes_past_counting_are_an_error_or_empty() -> Result<()> {
        let huge = 1usize << 32;
        for dims in [[huge, huge, 2], [2, huge, huge]] {
            for dim in 0..3 {
                let err = RowSpace::new("op", [&layout(&dims, &[0, 0, 0], 0)], dim).unwrap_err();
                assert!(
                    err.to_string().contains("op: requires a shape of at most"),
                    "{err}"
                );
            }
        }
        for dim in 0..3 {
            let space = RowSpace::new("op", [&layout(&[huge, huge, 0], &[0, 0, 1], 0)], dim)?;
            assert!(space.is_empty());
            assert_eq!(space.operands[0].row_offset(&space.dims, 0), 0);
        }
        Ok(())
    }

    #[test]
    fn odd_strides_of_single_columns_do_not_count() -> Result<()> {
        let space = RowSpace::new("op", [&layout(&[4, 1], &[1, 77], 0)], 1)?;
        assert_eq!(space.operands[0].col_stride, 1);
        Ok(())
    }

    #[test]
    fn alignment_looks_at_offset_and_strides() -> Result<()> {
        let aligned = |strides: &[usize], offset| -> Result<bool> {
            let space = RowSpace::new("op", [&layout(&[2, 8], strides, offset)], 1)?;
            Ok(space.operands[0].is_vector_aligned(4))
        };
        assert!(aligned(&[8, 1], 0)?);
        assert!(aligned(&[12, 1], 4)?);
        assert!(!aligned(&[8, 1], 1)?);
        assert!(!aligned(&[9, 1], 0)?);
        assert!(!aligned(&[16, 2], 0)?);
        Ok(())
    }

    #[test]
    fn errors_name_op_requirement_and_input() {
        let l = Layout::contiguous((2, 3));
        let err = RowSpace::new("online-softmax", [&l], 2).unwrap_err();
        assert!(err.to_string().contains("online-softmax: requires a dim"));
        let err = RowSpace::new("online-softmax", [&l, &Layout::contiguous(6)], 1).unwrap_err();
        assert!(err.to_string().contains("one shape, got [2, 3] and [6]"));
    }
}
