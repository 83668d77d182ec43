//! What every operator needs on its way to an executor.

#[cfg(feature = "cuda")]
use crate::plan::FloatType;
use candle_core::{bail, DType, Error, Layout, Result};

/// Applies an expression to the elements of one CPU storage, or of several of one dtype, and wraps
/// the `Vec` it gives; an error for anything but f16, bf16, f32 and f64.
macro_rules! map_float {
    ($op:expr, $s:expr, $x:ident => $body:expr) => {{
        use candle_core::CpuStorage::{BF16, F16, F32, F64};
        match $s {
            F16($x) => F16($body),
            BF16($x) => BF16($body),
            F32($x) => F32($body),
            F64($x) => F64($body),
            other => return Err($crate::ops::dispatch::dtype_error($op, &[other.dtype()])),
        }
    }};
    ($op:expr, $s1:expr, $s2:expr, ($x1:ident, $x2:ident) => $body:expr) => {{
        use candle_core::CpuStorage::{BF16, F16, F32, F64};
        match ($s1, $s2) {
            (F16($x1), F16($x2)) => F16($body),
            (BF16($x1), BF16($x2)) => BF16($body),
            (F32($x1), F32($x2)) => F32($body),
            (F64($x1), F64($x2)) => F64($body),
            (a, b) => {
                let dtypes = [a.dtype(), b.dtype()];
                return Err($crate::ops::dispatch::dtype_error($op, &dtypes));
            }
        }
    }};
}

/// As `map_float`, for an expression that changes the elements where they are.
macro_rules! map_float_mut {
    ($op:expr, $s:expr, $x:ident => $body:expr) => {{
        use candle_core::CpuStorage::{BF16, F16, F32, F64};
        match $s {
            F16($x) => $body,
            BF16($x) => $body,
            F32($x) => $body,
            F64($x) => $body,
            other => Err($crate::ops::dispatch::dtype_error($op, &[other.dtype()])),
        }
    }};
}

pub(super) use {map_float, map_float_mut};

/// The error for operands that are not all of one float dtype.
pub fn dtype_error(op: &str, dtypes: &[DType]) -> Error {
    let got = dtypes.iter().map(DType::as_str).collect::<Vec<_>>();
    let got = got.join(" and ");
    match dtypes.iter().all(|&dtype| dtype == dtypes[0]) {
        true => Error::msg(format!(
            "{op}: requires a tensor of f16, bf16, f32 or f64, got {got}"
        )),
        false => Error::msg(format!("{op}: requires operands of one dtype, got {got}")),
    }
}

/// The float type that all operands share, or an error that names what came.
#[cfg(feature = "cuda")]
pub fn float_type(op: &str, dtypes: &[DType]) -> Result<FloatType> {
    match FloatType::from_dtype(dtypes[0]) {
        Some(float) if dtypes.iter().all(|&dtype| dtype == dtypes[0]) => Ok(float),
        _ => Err(dtype_error(op, dtypes)),
    }
}

/// Elements from one column to the next in a contiguous tensor: the product of the dims after `dim`.
/// Of a shape whose elements were counted before.
pub fn inner_len(layout: &Layout, dim: usize) -> usize {
    let after = layout.dims().iter().skip(dim + 1);
    after.fold(1, |product, &size| product.wrapping_mul(size))
}

/// An error for views in which two positions are one element, such as broadcasts.
pub fn check_distinct(op: &str, layout: &Layout) -> Result<()> {
    if !layout.dims().contains(&0) && layout.has_internal_overlap() {
        bail!(
            "{op}: in place requires a view whose positions are distinct elements, got shape {:?} with strides {:?}",
            layout.shape(),
            layout.stride()
        )
    }
    Ok(())
}

/// The error for Metal tensors.
pub fn metal_unsupported<T>(op: &str) -> Result<T> {
    bail!("{op}: requires a cpu or cuda tensor, got a metal tensor (move it with to_device)")
}
