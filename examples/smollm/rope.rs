//! Rotary positions: pairs of neighbours in a head's vector, each turned by an angle that grows
//! with the position. Su et al., "RoFormer", arXiv 2104.09864.
use super::config::Config;
use super::weights::Loader;
use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::rotary_emb::rope_i;

const FACTORS: &str = "rope_freqs.weight";

pub struct Rope {
    /// Angle a position, for each pair.
    frequencies: Tensor,
    dtype: DType,
}

impl Rope {
    pub fn load(config: &Config, from: &mut Loader) -> Result<Self> {
        let pairs = config.head_dim / 2;
        // Llama 3.1 and later turn slow pairs still slower, by factors that the file has.
        let factors = match from.gguf.has_tensor(FACTORS) {
            true => {
                let factors = from.gguf.tensor(FACTORS, &[pairs], &Device::Cpu)?;
                factors.dequantize(&Device::Cpu)?.to_vec1::<f32>()?
            }
            false => vec![1.0; pairs],
        };
        let base = config.rope_base as f32;
        let frequency = |(i, factor): (usize, &f32)| {
            let power = (2 * i) as f32 / config.head_dim as f32;
            1.0 / base.powf(power) / factor / config.rope_factor as f32
        };
        let frequencies: Vec<f32> = factors.iter().enumerate().map(frequency).collect();
        Ok(Self {
            frequencies: Tensor::from_vec(frequencies, (1, pairs), from.device)?,
            dtype: from.dtype,
        })
    }

    /// For `tokens` tokens that follow `seen` others.
    pub fn at(&self, seen: usize, tokens: usize) -> candle_core::Result<Angles> {
        let device = self.frequencies.device();
        let positions = Tensor::arange(seen as u32, (seen + tokens) as u32, device)?;
        let positions = positions.to_dtype(DType::F32)?.unsqueeze(1)?;
        // In f32: a half cannot count positions.
        let angles = positions.matmul(&self.frequencies)?;
        Ok(Angles {
            cos: angles.cos()?.to_dtype(self.dtype)?,
            sin: angles.sin()?.to_dtype(self.dtype)?,
        })
    }
}

/// (tokens, d / 2)
pub struct Angles {
    cos: Tensor,
    sin: Tensor,
}

impl Angles {
    /// `x` (1, heads, tokens, d)
    pub fn turn(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        rope_i(&x.contiguous()?, &self.cos, &self.sin)
    }
}
