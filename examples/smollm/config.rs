//! A Llama's sizes, from a GGUF's metadata.
use super::gguf::Gguf;
use anyhow::{bail, Context, Result};

#[derive(Debug, Clone)]
pub struct Config {
    pub vocab: usize,
    /// How many tokens it was trained to see at once.
    pub context: usize,
    pub width: usize,
    /// Of the feed-forward network.
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    /// Heads of keys and values, each shared by `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_base: f64,
    /// Positions are divided by it.
    pub rope_factor: f64,
    pub norm_eps: f64,
}

impl Config {
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let arch = gguf.text("general.architecture")?.unwrap_or("nothing");
        if arch != "llama" {
            bail!("general.architecture is {arch:?}, this program runs \"llama\" alone")
        }
        let number = |key: &str| -> Result<usize> {
            let key = format!("llama.{key}");
            let n = gguf.number(&key)?;
            let n = n.with_context(|| format!("missing metadata {key}"))?;
            if n == 0 {
                bail!("metadata {key}: requires 1 or more, found 0")
            }
            Ok(n)
        };
        let heads = number("attention.head_count")?;
        let width = number("embedding_length")?;
        let head_dim = match gguf.number("llama.attention.key_length")? {
            Some(n) => n,
            None if width % heads == 0 => width / heads,
            None => bail!("a width of {width} does not divide into {heads} heads"),
        };
        let config = Self {
            vocab: gguf.dims("token_embd.weight")?[0],
            context: number("context_length")?,
            width,
            hidden: number("feed_forward_length")?,
            layers: number("block_count")?,
            heads,
            kv_heads: match gguf.number("llama.attention.head_count_kv")? {
                Some(n) => n,
                None => heads,
            },
            head_dim,
            rope_base: gguf.float("llama.rope.freq_base")?.unwrap_or(10_000.0),
            rope_factor: rope_factor(gguf)?,
            norm_eps: gguf
                .float("llama.attention.layer_norm_rms_epsilon")?
                .context("missing metadata llama.attention.layer_norm_rms_epsilon")?,
        };
        config.check(gguf)?;
        Ok(config)
    }

    fn check(&self, gguf: &Gguf) -> Result<()> {
        let (heads, kv_heads, d) = (self.heads, self.kv_heads, self.head_dim);
        if kv_heads == 0 || heads % kv_heads != 0 {
            bail!("{heads} heads cannot share {kv_heads} heads of keys and values evenly")
        }
        if d == 0 || d % 2 != 0 {
            bail!("a head's width must be even for rotary positions, found {d}")
        }
        let rotated = gguf.number("llama.rope.dimension_count")?.unwrap_or(d);
        if rotated != d {
            bail!("rotary positions over {rotated} of a head's {d} numbers are not supported")
        }
        if gguf.number("llama.expert_count")?.unwrap_or(0) > 1 {
            bail!("a mixture of experts is not supported")
        }
        Ok(())
    }
}

fn rope_factor(gguf: &Gguf) -> Result<f64> {
    let factor = gguf.float("llama.rope.scaling.factor")?;
    match (gguf.text("llama.rope.scaling.type")?, factor) {
        (None | Some("none"), _) => Ok(1.0),
        (Some("linear"), Some(factor)) if factor > 0.0 => Ok(factor),
        (Some(kind), _) => bail!("rotary positions scaled by {kind:?} are not supported"),
    }
}
