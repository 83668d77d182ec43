//! `softmax`, forward.

use super::dispatch::{check_distinct, inner_len, map_float, map_float_mut, metal_unsupported};
use super::softmax_backward::SoftmaxBackward;
use crate::cpu::{map_rows, map_rows_in_place, Softmax};
use crate::rows::RowSpace;
use candle_core::backend::BackendStorage;
use candle_core::shape::Dim;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, InplaceOp1, Layout, MetalStorage, Result, Shape, Tensor};

const NAME: &str = "online-softmax";

/// Softmax over the last dim: `exp(x - max) / Σ exp(x - max)`.
///
/// - **Shapes**: any rank, any strides, offset or broadcast; the result is contiguous, of the
///   input's shape. Rank 0 gives 1, as a row of one number does (on CUDA within the accuracy below). Empty tensors give empty tensors.
/// - **Dtypes**: f16, bf16, f32 (computed in f32) and f64 (computed in f64); the result has the
///   input's.
/// - **Values**: a row with a NaN or +inf is all NaN; -inf gives 0; a row of nothing but -inf is all
///   NaN (as PyTorch).
/// - **Accuracy** against an f64 reference: f32 to a relative 2e-6 where the result is above 1e-30, and 1e-5 down to the
///   smallest normal number; f16 and bf16 to one unit in the last place; f64 to 1e-13.
/// - **Determinism**: same input, same bits, whatever the strides and whatever other rows there are.
/// - **Gradient**: reaches the input, by one fused operator.
///
/// In place ([`InplaceOp1`]) gives the same bits without a second buffer (on the CPU: of contiguous rows); candle
/// records no gradient for in-place ops, and has an error of its own for some empty tensors. Called from a rayon worker it stays on that thread.
///
/// # Errors
///
/// Other dtypes; Metal tensors; in place on a view with overlapping positions; no memory for the result; on CUDA, more
/// than 12 row dims that strides keep from being merged (rank 14 and up). The tensor is untouched then.
///
/// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_online_softmax::OnlineSoftmax;
///
/// let x = Tensor::new(&[[0f32, 0.], [1., f32::NEG_INFINITY]], &Device::Cpu)?;
/// let y = x.apply_op1(OnlineSoftmax)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [1., 0.]]);
/// x.inplace_op1(&OnlineSoftmax)?;
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnlineSoftmax;

/// Softmax over `dim`, with the signature of `candle_nn::ops::softmax`.
///
/// See [`OnlineSoftmax`] for dtypes and values. No transposed copy is made on CUDA.
///
/// # Arguments
///
/// * `xs` - Tensor of any shape and strides.
/// * `dim` - The dim to normalise over; an index or `candle_core::D`. 0 or -1 for rank 0.
///
/// # Errors
///
/// A dim out of range, and those of [`OnlineSoftmax`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
///
/// let x = Tensor::zeros((2, 4, 3), DType::F32, &Device::Cpu)?;
/// let y = candle_online_softmax::softmax(&x, 1)?;
/// assert_eq!(y.dims(), [2, 4, 3]);
/// assert_eq!(y.sum(1)?.flatten_all()?.to_vec1::<f32>()?, [1f32; 6]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    let in_shape = |shape: &Shape| dim.to_index(shape, NAME);
    let dim = match xs.rank() {
        // A scalar is one row of one column.
        0 => in_shape(&Shape::from(1)).or_else(|_| in_shape(xs.shape()))?,
        _ => in_shape(xs.shape())?,
    };
    xs.apply_op1(SoftmaxDim { dim })
}

/// Softmax over the last dim, with the signature of `candle_nn::ops::softmax_last_dim`; unlike it,
/// takes any strides and keeps gradients. The same as `xs.apply_op1(OnlineSoftmax)`.
///
/// # Arguments
///
/// * `xs` - Tensor of any shape and strides.
///
/// # Errors
///
/// Those of [`OnlineSoftmax`].
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[[0f32, 2.], [0., 2.]], &Device::Cpu)?.t()?;
/// let y = candle_online_softmax::softmax_last_dim(&x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    xs.apply_op1(OnlineSoftmax)
}

/// Softmax over any dim; the whole of the operator.
struct SoftmaxDim {
    dim: usize,
}

impl SoftmaxDim {
    /// Over the last dim of `layout`; rank 0 is one row of one column.
    fn last(layout: &Layout) -> Self {
        Self {
            dim: layout.dims().len().saturating_sub(1),
        }
    }
}

impl CustomOp1 for SoftmaxDim {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let space = RowSpace::new(NAME, [layout], self.dim)?;
        let inner = inner_len(layout, self.dim);
        let y = map_float!(NAME, x, x => map_rows(NAME, &space, [x], inner, Softmax)?);
        Ok((y, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let y = crate::cuda::softmax(NAME, x, layout, self.dim)?;
        Ok((y, layout.shape().clone()))
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        metal_unsupported(NAME)
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let op = SoftmaxBackward { dim: self.dim };
        Ok(Some(y.apply_op2(grad, op)?))
    }
}

impl CustomOp1 for OnlineSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        SoftmaxDim::last(layout).cpu_fwd(x, layout)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        SoftmaxDim::last(layout).cuda_fwd(x, layout)
    }

    fn metal_fwd(&self, x: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        SoftmaxDim::last(layout).metal_fwd(x, layout)
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        SoftmaxDim::last(y.layout()).bwd(x, y, grad)
    }
}

impl InplaceOp1 for OnlineSoftmax {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, x: &mut CpuStorage, layout: &Layout) -> Result<()> {
        check_distinct(NAME, layout)?;
        let space = RowSpace::new(NAME, [layout], SoftmaxDim::last(layout).dim)?;
        map_float_mut!(NAME, x, x => map_rows_in_place(NAME, &space, x, Softmax))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &mut CudaStorage, layout: &Layout) -> Result<()> {
        check_distinct(NAME, layout)?;
        crate::cuda::softmax_in_place(NAME, x, layout, SoftmaxDim::last(layout).dim)
    }

    fn metal_fwd(&self, _: &mut MetalStorage, _: &Layout) -> Result<()> {
        metal_unsupported(NAME)
    }
}
