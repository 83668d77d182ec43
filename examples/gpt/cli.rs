//! The command line.
use crate::model::SoftmaxKind;
use anyhow::{bail, Context, Result};
use candle_core::{DType, Device};
use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Writes text with a GPT-2 whose attention goes through candle-online-softmax.
#[derive(Parser)]
#[command(name = "gpt", version, allow_negative_numbers = true)]
pub struct Cli {
    /// What the text begins with.
    #[arg(
        long,
        default_value = "It is a truth universally acknowledged, that",
        allow_hyphen_values = true
    )]
    pub prompt: String,
    /// How many tokens to write; may go beyond the model's context.
    #[arg(long, default_value_t = 200)]
    pub max_tokens: usize,
    /// 0 always takes the likeliest token; higher is more varied.
    #[arg(long, default_value_t = 0.8)]
    pub temperature: f64,
    /// Choose among the K likeliest tokens.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// The same seed writes the same text.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where to run; cuda needs a build with `--features cuda`.
    #[arg(long, value_enum, default_value = "cpu")]
    pub device: DeviceArg,
    /// Type of weights and activations.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: DTypeArg,
    /// Whose softmax the attention goes through.
    #[arg(long, value_enum, default_value = "online")]
    pub softmax: SoftmaxArg,
    /// A GPT-2 folder in Hugging Face's layout: config.json, model.safetensors, tokenizer.json.
    #[arg(long, value_name = "DIR", conflicts_with = "hub")]
    pub weights: Option<PathBuf>,
    /// A GPT-2 of the Hugging Face hub, such as openai-community/gpt2 (feature `hub`).
    #[arg(long, value_name = "ID")]
    pub hub: Option<String>,
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
pub enum SoftmaxArg {
    Online,
    Candle,
}

impl SoftmaxArg {
    pub fn kind(self) -> SoftmaxKind {
        match self {
            Self::Online => SoftmaxKind::Online,
            Self::Candle => SoftmaxKind::Candle,
        }
    }
}
