//! The command line.
use crate::attention::Kind;
use crate::weights::Form;
use anyhow::{bail, Context, Result};
use candle_core::{DType, Device};
use candle_transformers::generation::LogitsProcessor;
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Where scripts/smollm.sh puts the model.
pub const DEFAULT_GGUF: &str = "target/smollm/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Chats with a Llama whose attention goes through candle-online-softmax.
#[derive(Parser)]
#[command(name = "smollm", version, allow_negative_numbers = true)]
pub struct Cli {
    /// What to ask, once; without it, a conversation is read from the standard input, a message a line.
    #[arg(long, allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// What the model is told to be; default: what its template says.
    #[arg(long, allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Go on from --prompt as it is, without the model's chat template.
    #[arg(long, requires = "prompt", conflicts_with = "system")]
    pub raw: bool,
    /// How many tokens an answer has at most.
    #[arg(long, default_value_t = 512)]
    pub max_tokens: usize,
    /// 0 always takes the likeliest token; higher is more varied.
    #[arg(long, default_value_t = 0.2)]
    pub temperature: f64,
    /// Choose among the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 0.9)]
    pub top_p: f64,
    /// The same seed writes the same text.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Whose attention: `sdpa` of this crate, or candle's chain of operators.
    #[arg(long, value_enum, default_value = "fused")]
    pub attention: AttentionArg,
    /// A Llama in GGUF.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_GGUF)]
    pub gguf: PathBuf,
    /// Where to run; cuda needs a build with `--features cuda`.
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceArg,
    /// Type of activations.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: DTypeArg,
    /// Weights as matrices of --dtype, or quantised as the file has them: a fourth of the memory, but
    /// for Q4_1 on the CPU many times slower.
    #[arg(long, value_enum, default_value = "plain")]
    pub weights: WeightsArg,
    /// Time a made-up prompt of N tokens and --max-tokens new ones, and write no text.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt", "system"])]
    pub prompt_tokens: Option<usize>,
}

impl Cli {
    pub fn sampler(&self) -> Result<LogitsProcessor> {
        let (t, p) = (self.temperature, self.top_p);
        if !(t.is_finite() && t >= 0.0) {
            bail!("--temperature must be 0 or more, found {t}")
        }
        if !(p > 0.0 && p <= 1.0) {
            bail!("--top-p must be above 0 and at most 1, found {p}")
        }
        Ok(LogitsProcessor::new(self.seed, Some(t), Some(p)))
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DeviceArg {
    Cpu,
    Cuda,
}

impl DeviceArg {
    pub fn open(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda if !candle_core::utils::cuda_is_available() => {
                bail!("--device cuda needs a build with `--features cuda`")
            }
            Self::Cuda => Device::new_cuda(0).context("cannot open CUDA device 0"),
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DTypeArg {
    F32,
    F16,
    Bf16,
}

impl DTypeArg {
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum AttentionArg {
    Fused,
    Candle,
}

impl AttentionArg {
    pub fn kind(self) -> Kind {
        match self {
            Self::Fused => Kind::Fused,
            Self::Candle => Kind::Candle,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum WeightsArg {
    Plain,
    Quantized,
}

impl WeightsArg {
    pub fn form(self) -> Form {
        match self {
            Self::Plain => Form::Plain,
            Self::Quantized => Form::Quantized,
        }
    }
}
