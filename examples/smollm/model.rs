//! Llama on candle: RMSNorm, rotary positions, grouped-query attention, SwiGLU, a cache of keys
//! and values. Activations travel as `(tokens, width)`: every product with a weight is then one
//! plain matrix product.
use super::attention::{Attention, Kind};
use super::config::Config;
use super::gguf::Gguf;
use super::rope::{Angles, Rope};
use super::weights::{Form, Loader, Matrix};
use anyhow::{bail, Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::ops::{rms_norm, silu};

/// Tokens that the cache makes room for at a time.
const ROOM: usize = 256;

/// Keys and values of the tokens seen so far.
pub struct KvCache {
    layers: Vec<candle_nn::kv_cache::KvCache>,
}

impl KvCache {
    pub fn new(config: &Config) -> Self {
        // Dimension 2 of (1, kv heads, tokens, d).
        let layer = || candle_nn::kv_cache::KvCache::new(2, ROOM);
        Self {
            layers: (0..config.layers).map(|_| layer()).collect(),
        }
    }

    /// How many tokens it holds.
    pub fn len(&self) -> usize {
        self.layers
            .first()
            .map_or(0, |layer| layer.current_seq_len())
    }
}

pub struct Llama {
    config: Config,
    embedding: Matrix,
    blocks: Vec<Block>,
    norm: Norm,
    output: Matrix,
    rope: Rope,
    attention: Kind,
    dtype: DType,
    device: Device,
}

impl Llama {
    pub fn load(
        gguf: &mut Gguf,
        form: Form,
        dtype: DType,
        device: &Device,
        attention: Kind,
    ) -> Result<Self> {
        let config = Config::read(gguf)?;
        let mut from = Loader {
            gguf,
            form,
            dtype,
            device,
        };
        let embedding = from.matrix("token_embd.weight", config.vocab, config.width)?;
        let output = match from.gguf.has_tensor("output.weight") {
            true => from.matrix("output.weight", config.vocab, config.width)?,
            // Tied.
            false => embedding.clone(),
        };
        let blocks = (0..config.layers).map(|i| Block::load(&config, i, &mut from));
        let blocks = blocks.collect::<Result<_>>()?;
        let norm = Norm::load(&config, "output_norm.weight", &mut from)?;
        let rope = Rope::load(&config, &mut from)?;
        gguf.all_read()?;
        Ok(Self {
            embedding,
            blocks,
            norm,
            output,
            rope,
            config,
            attention,
            dtype,
            device: device.clone(),
        })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Logits (tokens, vocab) after each of `ids`, which follow the tokens of the cache and are added to it.
    #[allow(dead_code)] // the tests'
    pub fn forward(&self, ids: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        Ok(self.output.forward(&self.trunk(ids, cache)?)?)
    }

    /// Logits (vocab) after the last of `ids`: all that a sampler needs, and for a long prompt most of the
    /// last product saved.
    pub fn forward_last(&self, ids: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        let x = self.trunk(ids, cache)?;
        let last = x.narrow(0, ids.len() - 1, 1)?.contiguous()?;
        Ok(self.output.forward(&last)?.squeeze(0)?)
    }

    fn trunk(&self, ids: &[u32], cache: &mut KvCache) -> Result<Tensor> {
        let (seen, tokens) = (cache.len(), ids.len());
        if tokens == 0 {
            bail!("no tokens given")
        }
        if seen + tokens > self.config.context {
            bail!(
                "the model's context is {} tokens, found {seen} cached and {tokens} new",
                self.config.context
            )
        }
        let vocab = self.config.vocab;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!("the model knows {vocab} tokens, found the id {id}")
        }
        let ids = Tensor::new(ids, &self.device)?;
        let mut x = self.embedding.rows(&ids, self.dtype)?;
        let attention = Attention::new(self.attention, self.config.head_dim, seen, &x)?;
        let angles = self.rope.at(seen, tokens)?;
        for (block, cache) in self.blocks.iter().zip(&mut cache.layers) {
            x = block.forward(&x, &attention, &angles, cache)?;
        }
        Ok(self.norm.forward(&x)?)
    }
}

struct Block {
    attn_norm: Norm,
    heads: Heads,
    ffn_norm: Norm,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Block {
    fn load(config: &Config, i: usize, from: &mut Loader) -> Result<Self> {
        let name = |end: &str| format!("blk.{i}.{end}.weight");
        let (c, hidden) = (config.width, config.hidden);
        Ok(Self {
            attn_norm: Norm::load(config, &name("attn_norm"), from)?,
            heads: Heads::load(config, i, from)?,
            ffn_norm: Norm::load(config, &name("ffn_norm"), from)?,
            gate: from.matrix(&name("ffn_gate"), hidden, c)?,
            up: from.matrix(&name("ffn_up"), hidden, c)?,
            down: from.matrix(&name("ffn_down"), c, hidden)?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        attention: &Attention,
        angles: &Angles,
        cache: &mut candle_nn::kv_cache::KvCache,
    ) -> Result<Tensor> {
        let normed = self.attn_norm.forward(x)?;
        let x = (self.heads.forward(&normed, attention, angles, cache)? + x)?;
        let normed = self.ffn_norm.forward(&x)?;
        let gated = (silu(&self.gate.forward(&normed)?)? * self.up.forward(&normed)?)?;
        Ok((self.down.forward(&gated)? + x)?)
    }
}

/// What attention reads and writes of a block.
struct Heads {
    q: Matrix,
    k: Matrix,
    v: Matrix,
    output: Matrix,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Heads {
    fn load(config: &Config, i: usize, from: &mut Loader) -> Result<Self> {
        let name = |end: &str| format!("blk.{i}.attn_{end}.weight");
        let c = config.width;
        let q = config.heads * config.head_dim;
        let kv = config.kv_heads * config.head_dim;
        Ok(Self {
            q: from.matrix(&name("q"), q, c)?,
            k: from.matrix(&name("k"), kv, c)?,
            v: from.matrix(&name("v"), kv, c)?,
            output: from.matrix(&name("output"), c, q)?,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        attention: &Attention,
        angles: &Angles,
        cache: &mut candle_nn::kv_cache::KvCache,
    ) -> Result<Tensor> {
        // (tokens, heads * d) -> (1, heads, tokens, d)
        let (tokens, d) = (x.dim(0)?, self.head_dim);
        let split = |x: Tensor, heads: usize| x.reshape((1, tokens, heads, d))?.transpose(1, 2);
        let q = angles.turn(&split(self.q.forward(x)?, self.heads)?)?;
        let k = angles.turn(&split(self.k.forward(x)?, self.kv_heads)?)?;
        let v = split(self.v.forward(x)?, self.kv_heads)?.contiguous()?;
        let (k, v) = cache.append(&k, &v).context("no room in the cache")?;
        let y = attention.forward(&q, &k, &v).context("attention")?;
        let y = y.transpose(1, 2)?.reshape((tokens, self.heads * d))?;
        Ok(self.output.forward(&y)?)
    }
}

struct Norm {
    weight: Tensor,
    eps: f32,
}

impl Norm {
    fn load(config: &Config, name: &str, from: &mut Loader) -> Result<Self> {
        Ok(Self {
            weight: from.vector(name, config.width)?,
            eps: config.norm_eps as f32,
        })
    }

    /// In f32 when `x` is of a half type.
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        rms_norm(x, &self.weight, self.eps)
    }
}
