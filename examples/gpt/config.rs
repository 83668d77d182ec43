//! What a GPT-2 `config.json` says, and what of it this model can honour.
use candle_core::{bail, Result};
use serde::{Deserialize, Serialize};

/// The sizes of a GPT-2, under the names of Hugging Face's `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub layer_norm_epsilon: f64,
}

impl Config {
    /// Width of one head. Whole, once [`Config::validate`] has passed.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_head
    }

    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
        ];
        // The upper limit keeps every product of sizes below (3 * n_embd, 4 * n_embd) from
        // overflowing on a corrupt file; ids are u32.
        const MOST: usize = 1 << 31;
        for (name, size) in sizes {
            if !(1..=MOST).contains(&size) {
                bail!("config: {name} must be between 1 and {MOST}, found {size}")
            }
        }
        if !self.n_embd.is_multiple_of(self.n_head) {
            bail!(
                "config: n_embd must be a multiple of n_head, found {} and {}",
                self.n_embd,
                self.n_head
            )
        }
        if !(self.layer_norm_epsilon > 0.0 && self.layer_norm_epsilon < 1.0) {
            bail!(
                "config: layer_norm_epsilon must lie between 0 and 1, found {}",
                self.layer_norm_epsilon
            )
        }
        Ok(())
    }
}

/// The file as written. Real files carry `n_ctx` beside `n_positions` (so a serde alias would be
/// a duplicate field), and options that change the arithmetic: each is read, to be refused.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    vocab_size: usize,
    n_positions: Option<usize>,
    n_ctx: Option<usize>,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_inner: Option<usize>,
    layer_norm_epsilon: Option<f64>,
    activation_function: Option<String>,
    tie_word_embeddings: Option<bool>,
    scale_attn_weights: Option<bool>,
    scale_attn_by_inverse_layer_idx: Option<bool>,
}

impl TryFrom<Raw> for Config {
    type Error = String;

    fn try_from(raw: Raw) -> std::result::Result<Self, String> {
        let expect = |right: bool, what: &str| {
            if right {
                Ok(())
            } else {
                Err(format!("only {what} is supported"))
            }
        };
        let is = |value: &Option<String>, names: &[&str]| {
            value.as_deref().is_none_or(|value| names.contains(&value))
        };
        expect(is(&raw.model_type, &["gpt2"]), "model_type gpt2")?;
        expect(
            is(&raw.activation_function, &["gelu_new", "gelu_pytorch_tanh"]),
            "activation_function gelu_new",
        )?;
        expect(
            raw.n_inner
                .is_none_or(|n| Some(n) == raw.n_embd.checked_mul(4)),
            "n_inner = 4 * n_embd",
        )?;
        expect(
            raw.tie_word_embeddings != Some(false),
            "tie_word_embeddings true",
        )?;
        expect(
            raw.scale_attn_weights != Some(false),
            "scale_attn_weights true",
        )?;
        expect(
            raw.scale_attn_by_inverse_layer_idx != Some(true),
            "scale_attn_by_inverse_layer_idx false",
        )?;
        let config = Self {
            vocab_size: raw.vocab_size,
            n_positions: raw
                .n_positions
                .or(raw.n_ctx)
                .ok_or("missing field `n_positions`")?,
            n_embd: raw.n_embd,
            n_layer: raw.n_layer,
            n_head: raw.n_head,
            layer_norm_epsilon: raw.layer_norm_epsilon.unwrap_or(1e-5),
        };
        config.validate().map_err(|error| error.to_string())?;
        Ok(config)
    }
}
