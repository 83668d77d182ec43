//! The gradients of attention's softmax.
//!
//! With y the probabilities, g their gradient and s = Σ g·y over a row: that of what the softmax was taken of is
//! u = y·(g - s), and of the scores u times what scale and softcap make of a score. Where y is 0, so is u, whatever g is
//! there: masked positions are not looked at. The sink's is -p·s, with p its share of the denominator.

use super::attention_op::AttentionOp;
use super::dispatch::{map_float, metal_unsupported};
use super::softmax_backward::gradient_of_y;
use crate::cpu;
use crate::rows::RowSpace;
use crate::scores::ScoreOp;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{
    bail, CpuStorage, CustomOp2, DType, Layout, MetalStorage, Result, Shape, Storage, Tensor, D,
};

const NAME: &str = "attention-softmax-backward";

/// Those that are asked for.
pub(super) struct Gradients {
    pub(super) scores: Option<Tensor>,
    pub(super) added: Option<Tensor>,
    pub(super) sinks: Option<Tensor>,
}

pub(super) fn gradients(
    op: &AttentionOp,
    scores: &Tensor,
    added: Option<&Tensor>,
    sinks: Option<&Tensor>,
    y: &Tensor,
    g: &Tensor,
) -> Result<Gradients> {
    let of_scores = match (scores.track_op(), op.op.softcap) {
        (false, _) => None,
        (true, cap) => {
            // In y's dtype, which is f32 where half scores have results of f32.
            let scores = cap.map(|_| scores.detach().to_dtype(y.dtype())?.contiguous());
            let backward = AttentionBackward {
                op: op.op,
                scores: scores.transpose()?,
            };
            Some(y.apply_op2(g, backward)?)
        }
    };
    let of_scores = of_scores.map(|t| t.to_dtype(scores.dtype())).transpose()?;
    let of_added = match added.filter(|t| t.track_op()) {
        None => None,
        Some(added) => {
            let op = ScoreOp {
                scale: 1.0,
                softcap: None,
                ..op.op
            };
            let u = y.apply_op2(g, AttentionBackward { op, scores: None })?;
            Some(summed_to(&u, added)?)
        }
    };
    let lse = op.lse.as_ref().and_then(|lse| lse.get());
    let of_sinks = match (sinks.filter(|t| t.track_op()), lse) {
        (Some(sinks), Some(lse)) => Some(of_sinks(sinks, lse, y, g)?),
        _ => None,
    };
    Ok(Gradients {
        scores: of_scores,
        added: of_added,
        sinks: of_sinks,
    })
}

/// `u` summed over the dims that `t` broadcasts over, in f32 for half types.
fn summed_to(u: &Tensor, t: &Tensor) -> Result<Tensor> {
    let new_dims = u.rank() - t.rank();
    let summed =
        |&dim: &usize| dim < new_dims || (t.dims()[dim - new_dims] == 1 && u.dims()[dim] != 1);
    let dims: Vec<usize> = (0..u.rank()).filter(summed).collect();
    let mut sum = u.clone();
    if !dims.is_empty() {
        if matches!(u.dtype(), DType::F16 | DType::BF16) {
            sum = sum.to_dtype(DType::F32)?;
        }
        sum = sum.sum_keepdim(dims)?;
    }
    sum.reshape(t.shape())?.to_dtype(t.dtype())
}

/// -Σ p·s over the rows of each head, p = exp(sink - lse).
fn of_sinks(sinks: &Tensor, lse: &Tensor, y: &Tensor, g: &Tensor) -> Result<Tensor> {
    let compute = lse.dtype();
    let (y, g) = (y.to_dtype(compute)?, g.to_dtype(compute)?);
    let products = y.eq(0.0)?.where_cond(&y, &(&y * &g)?)?;
    let s = products.sum(D::Minus1)?;
    // (heads, 1), beside (.., heads, queries); one number for scores without heads.
    let by_head = match lse.rank() {
        1 => sinks.clone(),
        _ => sinks.unsqueeze(1)?,
    };
    // Of a row of nothing at all, -inf - -inf would be NaN.
    let least = match compute {
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    };
    let p = by_head.broadcast_sub(&lse.maximum(least)?)?.exp()?;
    let terms = (p * s)?.neg()?;
    let head_dim = lse.rank().checked_sub(2);
    let others: Vec<usize> = (0..lse.rank())
        .filter(|&dim| Some(dim) != head_dim)
        .collect();
    terms.sum(others)?.reshape(sinks.shape())
}

/// dx = f · y·(g - Σ g·y) over the last dim, f = scale · (1 - tanh²(scale · s / cap)); 0 where y is.
pub(super) struct AttentionBackward {
    pub(super) op: ScoreOp,
    /// Contiguous, of y's dtype; only where there is a cap.
    pub(super) scores: Option<Tensor>,
}

impl CustomOp2 for AttentionBackward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        y_at: &Layout,
        g: &CpuStorage,
        g_at: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let space = RowSpace::new(NAME, [y_at, g_at], y_at.dims().len().saturating_sub(1))?;
        let scale = match self.op.softcap {
            None => self.op.scale,
            Some(_) => 1.0,
        };
        let dx = map_float!(NAME, y, g, (y, g) => {
            cpu::map_rows(NAME, &space, [y, g], 1, cpu::SoftmaxBackward::new(scale, true))?
        });
        let dx = match (self.op.softcap, &self.scores) {
            (Some(cap), Some(scores)) => {
                let (held, at) = scores.storage_and_layout();
                let range = at.contiguous_offsets();
                match (&*held, range) {
                    (Storage::Cpu(scores), Some((start, end))) => {
                        map_float!(NAME, &dx, scores, (u, s) => {
                            cpu::softcap_backward(NAME, u, &s[start..end], self.op.scale, cap)?
                        })
                    }
                    _ => bail!("{NAME}: requires contiguous scores on the cpu, got {at:?}"),
                }
            }
            _ => dx,
        };
        Ok((dx, y_at.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        y: &CudaStorage,
        y_at: &Layout,
        g: &CudaStorage,
        g_at: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let held = self.scores.as_ref().map(Tensor::storage_and_layout);
        let scores = match held.as_ref().map(|(storage, at)| (&**storage, *at)) {
            None => None,
            Some((Storage::Cuda(scores), at)) => Some((scores, at)),
            Some((_, at)) => bail!("{NAME}: requires scores on the device of y, got {at:?}"),
        };
        let dx = crate::cuda::attention_backward(NAME, (y, y_at), (g, g_at), scores, self.op)?;
        Ok((dx, y_at.shape().clone()))
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
        if self.op.softcap.is_some() {
            // It depends on the scores, to which no gradient would flow from here.
            bail!("{NAME}: requires an operator without softcap for second derivatives, got one with")
        }
        let op = AttentionBackward {
            op: self.op,
            scores: None,
        };
        let grad_g = y.apply_op2(h, op)?;
        let grad_y = gradient_of_y(y, g, h, y.rank() - 1, self.op.scale)?;
        Ok((Some(grad_y), Some(grad_g)))
    }
}
