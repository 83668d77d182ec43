//! Causal attention with grouped-query heads: this crate's `sdpa`, or the chain of operators that
//! candle's models have.
use super::weights::matmul;
use candle_core::{Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_online_softmax::{sdpa, AttentionSoftmax};
use candle_transformers::utils::{build_additive_causal_mask, repeat_kv};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fused,
    Candle,
}

/// One forward pass's attention, the same in each of its layers.
pub enum Attention {
    Fused(AttentionSoftmax),
    Candle { scale: f64, mask: Option<Tensor> },
}

impl Attention {
    /// For the activations `x` of tokens that follow `seen` others.
    pub fn new(kind: Kind, head_dim: usize, seen: usize, x: &Tensor) -> Result<Self> {
        let scale = 1.0 / (head_dim as f64).sqrt();
        let tokens = x.dim(0)?;
        Ok(match kind {
            Kind::Fused => Self::Fused(AttentionSoftmax::new(scale as f32).causal()),
            Kind::Candle => Self::Candle {
                scale,
                // A single token sees all that came before it.
                mask: match tokens {
                    1 => None,
                    _ => Some(build_additive_causal_mask(
                        tokens,
                        seen,
                        None,
                        x.device(),
                        x.dtype(),
                    )?),
                },
            },
        })
    }

    /// `q` (1, heads, new tokens, d); `k` and `v` (1, kv heads, all tokens, d), views of a cache.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        match self {
            Self::Fused(op) => sdpa(q, k, v, op, None),
            Self::Candle { scale, mask } => {
                let groups = q.dim(1)? / k.dim(1)?;
                let k = repeat_kv(k.clone(), groups)?;
                let v = repeat_kv(v.clone(), groups)?;
                let scores = (matmul(q, &k.t()?)? * *scale)?;
                let scores = match mask {
                    Some(mask) => scores.broadcast_add(mask)?,
                    None => scores,
                };
                matmul(&softmax_last_dim(&scores)?, &v.contiguous()?)
            }
        }
    }
}
