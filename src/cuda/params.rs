//! Kernel parameters: the structs of `kernels/rows.cuh`, field by field.

use crate::rows::{self, RowSpace, MAX_ROW_DIMS};
use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{bail, Result};

/// Sizes of a row space.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    rows: i64,
    cols: i64,
    dims: i64,
    sizes: [i64; MAX_ROW_DIMS],
}

/// Where one operand's rows lie.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    offset: i64,
    col_stride: i64,
    len: i64,
    strides: [i64; MAX_ROW_DIMS],
}

/// What is done to attention scores: `Score` of kernels/score.cuh. Pointers are device addresses, 0 for none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Score {
    pub first: i64,
    pub last: i64,
    pub kv_offset: i64,
    pub added_at: Operand,
    pub mask_at: Operand,
    pub head_at: Operand,
    pub query_at: Operand,
    pub added: u64,
    pub mask: u64,
    pub slopes: u64,
    pub sinks: u64,
    pub lse: u64,
    pub wide: u64,
    pub scale: f32,
    pub cap: f32,
    pub added_wide: i32,
    pub rest: i32,
}

// SAFETY: as below.
unsafe impl DeviceRepr for Score {}
// SAFETY: plain structs of i64, laid out (repr(C)) as the kernels declare them.
unsafe impl DeviceRepr for Rows {}
// SAFETY: as above.
unsafe impl DeviceRepr for Operand {}

impl Rows {
    /// The parameters of `space`, or an error where it has more row dims than a kernel takes.
    pub fn new<const N: usize>(op: &str, space: &RowSpace<N>) -> Result<Self> {
        if space.dims.len() > MAX_ROW_DIMS {
            bail!(
                "{op}: requires at most {MAX_ROW_DIMS} row dims that cannot be merged, got {} (make the tensor contiguous first)",
                space.dims.len()
            )
        }
        Ok(Self {
            rows: space.rows as i64,
            cols: space.cols as i64,
            dims: space.dims.len() as i64,
            sizes: padded(&space.dims),
        })
    }
}

impl Operand {
    /// The parameters of `operand`, in a storage of `len` elements.
    pub fn new(operand: &rows::Operand, len: usize) -> Self {
        Self {
            offset: operand.offset as i64,
            col_stride: operand.col_stride as i64,
            len: len as i64,
            strides: padded(&operand.row_strides),
        }
    }
}

fn padded(values: &[usize]) -> [i64; MAX_ROW_DIMS] {
    let mut out = [0; MAX_ROW_DIMS];
    for (out, &value) in out.iter_mut().zip(values) {
        *out = value as i64;
    }
    out
}
