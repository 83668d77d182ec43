//! GPT-2 on candle, its attention weights from `candle_online_softmax::OnlineSoftmax`.
//!
//! Pre-LayerNorm blocks, learned positions, the output head tied to the token embedding, a cache
//! of keys and values. Activations travel as `(batch * time, width)`: every product with a weight
//! is then one plain matrix product. Shapes: b batch, t time (new tokens), s all tokens seen,
//! c width, h heads, d width of a head.
#![allow(dead_code)] // the example, the trainer and the tests each use a part

use candle_core::{bail, DType, Device, Error, Result, Tensor, D};
use candle_nn::{ops, Init, VarBuilder};
use candle_online_softmax::OnlineSoftmax;
use std::sync::{Mutex, PoisonError};

#[path = "config.rs"]
mod config;
pub use config::Config;

/// Which softmax the attention goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftmaxKind {
    Online,
    Candle,
}

/// How a forward pass is to be run.
#[derive(Clone, Copy)]
enum Pass {
    /// Fused operators, which have no gradient.
    Inference,
    /// Operators that all have a gradient.
    Training { dropout: f32 },
}

impl Pass {
    fn dropout(self, x: Tensor) -> Result<Tensor> {
        match self {
            Self::Training { dropout } if dropout > 0.0 => ops::dropout(&x, dropout),
            _ => Ok(x),
        }
    }
}

/// Keys and values of the tokens seen so far, for one batch.
pub struct KvCache {
    layers: Vec<candle_nn::kv_cache::KvCache>,
}

impl KvCache {
    pub fn new(config: &Config) -> Self {
        // Dimension 2 of (b, h, s, d); room for the whole context from the start, so that a step
        // writes one row and copies nothing.
        let layer = || candle_nn::kv_cache::KvCache::new(2, config.n_positions);
        Self {
            layers: (0..config.n_layer).map(|_| layer()).collect(),
        }
    }

    /// How many tokens it holds.
    pub fn len(&self) -> usize {
        self.layers
            .first()
            .map_or(0, |layer| layer.current_seq_len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn reset(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.reset());
    }
}

pub struct Gpt {
    config: Config,
    wte: Tensor,
    wpe: Tensor,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
    mask: CausalMask,
}

impl Gpt {
    /// GPT-2's tensor names, with or without the `transformer.` prefix. Over a `VarMap` the same
    /// call creates the variables as GPT-2 initialises them.
    pub fn new(config: &Config, vb: VarBuilder, softmax: SoftmaxKind) -> Result<Self> {
        config.validate()?;
        let vb = if vb.contains_tensor("transformer.wte.weight") {
            vb.pp("transformer")
        } else {
            vb
        };
        let c = config.n_embd;
        let wte = get(&vb, "wte.weight", &[config.vocab_size, c], normal(0.02))?;
        let wpe = get(&vb, "wpe.weight", &[config.n_positions, c], normal(0.02))?;
        let blocks = (0..config.n_layer)
            .map(|i| Block::new(config, &vb.pp("h").pp(i), softmax))
            .collect::<Result<Vec<_>>>()?;
        let beyond = format!("h.{}.ln_1.weight", config.n_layer);
        if vb.contains_tensor(&beyond) {
            bail!(
                "config: n_layer is {} but the weights hold {beyond}",
                config.n_layer
            )
        }
        Ok(Self {
            config: config.clone(),
            wte,
            wpe,
            blocks,
            ln_f: LayerNorm::new(config, &vb, "ln_f")?,
            mask: CausalMask::default(),
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn device(&self) -> &Device {
        self.wte.device()
    }

    /// Logits `(batch, time, vocab)` of ids `(batch, time)`, u32. With a cache, `ids` follow the
    /// tokens it holds and are added to it.
    pub fn forward(&self, ids: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        let x = self.trunk(ids, cache, Pass::Inference)?;
        self.head(&x)?.reshape((b, t, ()))
    }

    /// Logits `(batch, vocab)` after the last of `ids`: all that a sampler needs, and for a long
    /// prompt most of the head's work saved.
    pub fn forward_last(&self, ids: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        let x = self.trunk(ids, cache, Pass::Inference)?;
        let last = x.reshape((b, t, ()))?.narrow(1, t - 1, 1)?.squeeze(1)?;
        self.head(&last.contiguous()?)
    }

    /// Logits `(batch, time, vocab)`, differentiable in every variable, with dropout of
    /// probability `dropout` on embeddings, attention weights and residual branches.
    pub fn forward_train(&self, ids: &Tensor, dropout: f32) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        let x = self.trunk(ids, None, Pass::Training { dropout })?;
        self.head(&x)?.reshape((b, t, ()))
    }

    fn head(&self, x: &Tensor) -> Result<Tensor> {
        matmul(x, &self.wte.t()?)
    }

    fn trunk(&self, ids: &Tensor, mut cache: Option<&mut KvCache>, pass: Pass) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        let seen = cache.as_ref().map_or(0, |cache| cache.len());
        // Before anything is written to the cache, so that an error leaves it whole.
        if ids.dtype() != DType::U32 {
            bail!("gpt: ids must be u32, found {:?}", ids.dtype())
        }
        if b == 0 || t == 0 {
            bail!("gpt: no tokens given, ids have the shape {:?}", ids.shape())
        }
        if seen + t > self.config.n_positions {
            bail!(
                "gpt: the context holds {} tokens, found {seen} cached and {t} new",
                self.config.n_positions
            )
        }
        let tokens = self.embed(ids, pass)?.reshape((b, t, ()))?;
        let positions = self.wpe.narrow(0, seen, t)?;
        let x = tokens.broadcast_add(&positions)?;
        let mut x = pass.dropout(x.reshape((b * t, ()))?)?;
        // A single token sees all that came before it.
        let mask = match t {
            1 => None,
            _ => Some(self.mask.get(seen, t, x.dtype(), x.device())?),
        };
        for (i, block) in self.blocks.iter().enumerate() {
            let cache = cache.as_mut().map(|cache| &mut cache.layers[i]);
            x = block.forward(&x, (b, t), mask.as_ref(), cache, pass)?;
        }
        self.ln_f.forward(&x, pass)
    }

    /// Rows of the token embedding, `(batch * time, width)`.
    fn embed(&self, ids: &Tensor, pass: Pass) -> Result<Tensor> {
        let ids = ids.flatten_all()?;
        if matches!(pass, Pass::Training { .. }) && ids.device().is_cuda() {
            // The gradient of a gather is a scatter-add, which candle's CUDA kernel walks id by
            // id; as a product with one-hot rows it is one fast matrix product.
            let pieces = Tensor::arange(0u32, self.config.vocab_size as u32, ids.device())?;
            let one_hot = ids.unsqueeze(1)?.broadcast_eq(&pieces.unsqueeze(0)?)?;
            one_hot.to_dtype(self.wte.dtype())?.matmul(&self.wte)
        } else {
            self.wte.index_select(&ids, 0)
        }
    }
}

struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    c_fc: Conv1d,
    c_proj: Conv1d,
}

impl Block {
    fn new(config: &Config, vb: &VarBuilder, softmax: SoftmaxKind) -> Result<Self> {
        let c = config.n_embd;
        Ok(Self {
            ln_1: LayerNorm::new(config, vb, "ln_1")?,
            attn: Attention::new(config, &vb.pp("attn"), softmax)?,
            ln_2: LayerNorm::new(config, vb, "ln_2")?,
            c_fc: Conv1d::new(vb, "mlp.c_fc", c, 4 * c, 0.02)?,
            c_proj: Conv1d::new(vb, "mlp.c_proj", 4 * c, c, residual_std(config))?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        shape: (usize, usize),
        mask: Option<&Tensor>,
        cache: Option<&mut candle_nn::kv_cache::KvCache>,
        pass: Pass,
    ) -> Result<Tensor> {
        let normed = self.ln_1.forward(x, pass)?;
        let branch = self.attn.forward(&normed, shape, mask, cache, pass)?;
        let x = (x + pass.dropout(branch)?)?;
        let normed = self.ln_2.forward(&x, pass)?;
        // candle's `gelu` is the tanh form, GPT-2's `gelu_new`.
        let branch = self.c_proj.forward(&self.c_fc.forward(&normed)?.gelu()?)?;
        x + pass.dropout(branch)?
    }
}

struct Attention {
    c_attn: Conv1d,
    c_proj: Conv1d,
    heads: usize,
    head_dim: usize,
    softmax: SoftmaxKind,
}

impl Attention {
    fn new(config: &Config, vb: &VarBuilder, softmax: SoftmaxKind) -> Result<Self> {
        let c = config.n_embd;
        Ok(Self {
            c_attn: Conv1d::new(vb, "c_attn", c, 3 * c, 0.02)?,
            c_proj: Conv1d::new(vb, "c_proj", c, c, residual_std(config))?,
            heads: config.n_head,
            head_dim: config.head_dim(),
            softmax,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        (b, t): (usize, usize),
        mask: Option<&Tensor>,
        cache: Option<&mut candle_nn::kv_cache::KvCache>,
        pass: Pass,
    ) -> Result<Tensor> {
        let (h, d) = (self.heads, self.head_dim);
        // (b, t, [q k v], h, d) -> ([q k v], b, h, t, d): one copy leaves all three contiguous.
        let qkv = self.c_attn.forward(x)?.reshape((b, t, 3, h, d))?;
        let qkv = qkv.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let (q, k, v) = (qkv.get(0)?, qkv.get(1)?, qkv.get(2)?);
        let (k, v) = match cache {
            Some(cache) => cache.append(&k, &v)?,
            None => (k, v),
        };
        // Scaled before the product: in f16 the unscaled scores could overflow.
        let q = (q * (1.0 / (d as f64).sqrt()))?;
        let scores = matmul(&q, &k.transpose(2, 3)?)?;
        let scores = match mask {
            Some(mask) => scores.broadcast_add(mask)?,
            None => scores,
        };
        let weights = pass.dropout(self.weights(&scores, pass)?)?;
        let y = matmul(&weights, &v)?.transpose(1, 2)?;
        self.c_proj.forward(&y.reshape((b * t, h * d))?)
    }

    fn weights(&self, scores: &Tensor, pass: Pass) -> Result<Tensor> {
        match (self.softmax, pass) {
            (SoftmaxKind::Online, _) => scores.apply_op1(OnlineSoftmax),
            (SoftmaxKind::Candle, Pass::Inference) => ops::softmax_last_dim(scores),
            // candle's fused operator drops the gradient without a word.
            (SoftmaxKind::Candle, Pass::Training { .. }) => ops::softmax(scores, D::Minus1),
        }
    }
}

/// 0 where a query may look, -inf at keys after it. Kept from call to call: a trainer asks for
/// the same one every step and a decoder for parts of one.
#[derive(Default)]
struct CausalMask(Mutex<Option<Tensor>>);

impl CausalMask {
    /// For `t` queries after `seen` tokens: `(t, seen + t)`.
    fn get(&self, seen: usize, t: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let s = seen + t;
        let mut square = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let long_enough = |mask: &Tensor| mask.dim(0).is_ok_and(|n| n >= s);
        if !square.as_ref().is_some_and(long_enough) {
            let cell = |i: usize| {
                if i % s > i / s {
                    f32::NEG_INFINITY
                } else {
                    0.0
                }
            };
            let cells = (0..s * s).map(cell).collect();
            *square = Some(Tensor::from_vec(cells, (s, s), device)?.to_dtype(dtype)?);
        }
        match square.as_ref() {
            Some(square) => square.narrow(0, seen, t)?.narrow(1, 0, s),
            None => bail!("gpt: the causal mask was not built"),
        }
    }
}

/// GPT-2's linear layer, whose weight is stored `(in, out)`: the transpose of a usual one.
struct Conv1d {
    weight: Tensor,
    bias: Tensor,
}

impl Conv1d {
    fn new(vb: &VarBuilder, name: &str, from: usize, to: usize, std: f64) -> Result<Self> {
        Ok(Self {
            weight: get(vb, &format!("{name}.weight"), &[from, to], normal(std))?,
            bias: get(vb, &format!("{name}.bias"), &[to], Init::Const(0.0))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        matmul(x, &self.weight)?.broadcast_add(&self.bias)
    }
}

struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    fn new(config: &Config, vb: &VarBuilder, name: &str) -> Result<Self> {
        let c = config.n_embd;
        Ok(Self {
            weight: get(vb, &format!("{name}.weight"), &[c], Init::Const(1.0))?,
            bias: get(vb, &format!("{name}.bias"), &[c], Init::Const(0.0))?,
            eps: config.layer_norm_epsilon as f32,
        })
    }

    /// Both forms compute in f32 when `x` is of a half type.
    fn forward(&self, x: &Tensor, pass: Pass) -> Result<Tensor> {
        match pass {
            Pass::Inference => ops::layer_norm(x, &self.weight, &self.bias, self.eps),
            // The fused operator drops the gradient without a word.
            Pass::Training { .. } => ops::layer_norm_slow(x, &self.weight, &self.bias, self.eps),
        }
    }
}

/// A matrix product; bf16 on the CPU, where candle has none, goes by way of f32.
fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dtype() == DType::BF16 && a.device().is_cpu() {
        let product = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
        return product.to_dtype(DType::BF16);
    }
    a.matmul(b)
}

fn normal(stdev: f64) -> Init {
    Init::Randn { mean: 0.0, stdev }
}

/// 2 * n_layer branches add up on the residual path; this keeps its variance at theirs.
fn residual_std(config: &Config) -> f64 {
    0.02 / (2.0 * config.n_layer as f64).sqrt()
}

/// A tensor of the builder, or an error that says which one and what is wrong with it.
fn get(vb: &VarBuilder, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
    let full_name = || match vb.prefix() {
        prefix if prefix.is_empty() => name.to_string(),
        prefix => format!("{prefix}.{name}"),
    };
    let explain = |error: Error| {
        if !vb.contains_tensor(name) {
            return Error::Msg(format!(
                "missing tensor {}, wanted shape {shape:?}",
                full_name()
            ));
        }
        match vb.get_unchecked(name) {
            Ok(found) if found.dims() != shape => Error::Msg(format!(
                "wrong shape of tensor {}: wanted {shape:?}, found {:?}",
                full_name(),
                found.dims()
            )),
            _ => Error::Msg(format!("tensor {}: {error}", full_name())),
        }
    };
    vb.get_with_hints(shape, name, init).map_err(explain)
}
