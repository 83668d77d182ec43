//! The gradient of softmax: one fused operator over y and its incoming gradient.

use super::dispatch::{inner_len, map_float, metal_unsupported};
use crate::cpu;
use crate::rows::RowSpace;
use candle_core::backend::BackendStorage;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, MetalStorage, Result, Shape, Tensor};

const NAME: &str = "online-softmax-backward";

/// dx = y·(g - Σ g·y) over `dim`, from y = softmax(x) and g, the gradient of y.
///
/// Reads both in any layout, writes a contiguous dx. Being an operator of its own it has a gradient
/// too, so second derivatives are right where candle asks for them.
pub(super) struct SoftmaxBackward {
    pub(super) dim: usize,
}

impl CustomOp2 for SoftmaxBackward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        y_layout: &Layout,
        g: &CpuStorage,
        g_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let space = RowSpace::new(NAME, [y_layout, g_layout], self.dim)?;
        let inner = inner_len(y_layout, self.dim);
        let dx = map_float!(NAME, y, g, (y, g) => {
            cpu::map_rows(NAME, &space, [y, g], inner, cpu::SoftmaxBackward::new(1.0, false))?
        });
        Ok((dx, y_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        y: &CudaStorage,
        y_layout: &Layout,
        g: &CudaStorage,
        g_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let dx = crate::cuda::softmax_backward(NAME, y, y_layout, g, g_layout, self.dim)?;
        Ok((dx, y_layout.shape().clone()))
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal_unsupported(NAME)
    }

    fn bwd(
        &self,
        y: &Tensor,
        g: &Tensor,
        _dx: &Tensor,
        h: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad_g = y.apply_op2(h, SoftmaxBackward { dim: self.dim })?;
        let grad_y = gradient_of_y(y, g, h, self.dim, 1.0)?;
        Ok((Some(grad_y), Some(grad_g)))
    }
}

/// With dx = scale · y·(g - s), s = Σ g·y, h the gradient of dx and t = Σ h·y: the gradient of g is scale · y·(h - t), the
/// same operator; that of y is this, scale · (h·(g - s) - g·t), in f32 for half types: a half cannot sum a row.
pub(super) fn gradient_of_y(
    y: &Tensor,
    g: &Tensor,
    h: &Tensor,
    dim: usize,
    scale: f32,
) -> Result<Tensor> {
    let dtype = y.dtype();
    let compute = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let (y, g, h) = (
        y.to_dtype(compute)?,
        g.to_dtype(compute)?,
        h.to_dtype(compute)?,
    );
    let over = |a: &Tensor| -> Result<Tensor> {
        match a.rank() {
            0 => Ok(a.clone()),
            _ => a.sum_keepdim(dim),
        }
    };
    let (s, t) = (over(&(&g * &y)?)?, over(&(&h * &y)?)?);
    let mut grad = ((&h * g.broadcast_sub(&s)?)? - g.broadcast_mul(&t)?)?;
    if scale != 1.0 {
        grad = (grad * f64::from(scale))?;
    }
    grad.to_dtype(dtype)
}
