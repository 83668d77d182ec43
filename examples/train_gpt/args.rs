//! The command line.
use super::train::Recipe;
use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};

/// Train a small GPT whose attention goes through candle-online-softmax
///
/// The corpus is one UTF-8 text file (scripts/corpus.sh makes the default one). Its last 5 % are
/// held out: the validation figure is in bits per byte of that tail. The best weights seen are
/// written to OUT as a Hugging Face style folder in f16, which `--example gpt -- --weights OUT`
/// loads.
#[derive(Debug, Parser)]
#[command(name = "train_gpt", args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a byte-level BPE tokenizer on all but the held-out tail of a corpus
    Tokenizer(TokenizerArgs),
}

#[derive(Debug, Args)]
pub struct TokenizerArgs {
    /// The text to learn from
    #[arg(long, value_name = "FILE")]
    pub corpus: PathBuf,
    /// Where to write it, in Hugging Face's tokenizer.json form
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Number of pieces, <|endoftext|> and the 256 bytes among them
    #[arg(long, default_value_t = 2048)]
    pub vocab: usize,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// The text to learn from
    // An Option only because a subcommand leaves it out.
    #[arg(long, value_name = "FILE", required = true)]
    corpus: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        default_value = "examples/gpt/assets/tokenizer.json"
    )]
    pub tokenizer: PathBuf,
    /// The sizes of the model, as Hugging Face's config.json for GPT-2
    #[arg(
        long,
        value_name = "FILE",
        default_value = "examples/gpt/assets/config.json"
    )]
    pub config: PathBuf,
    /// Folder for the weights and the checkpoint
    #[arg(long, value_name = "DIR", default_value = "target/train_gpt")]
    pub out: PathBuf,
    #[command(flatten)]
    pub recipe: Recipe,
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu)]
    pub device: DeviceKind,
    /// Let CUDA round the factors of matrix products to TF32: much faster, close enough to train
    #[arg(long)]
    pub tf32: bool,
    /// Measure the held-out text every so many steps, and at the end
    #[arg(long, value_name = "STEPS", default_value_t = 250)]
    pub eval_every: usize,
    /// Save all that a later `--resume` needs every so many steps (0: never)
    #[arg(long, value_name = "STEPS", default_value_t = 500)]
    pub checkpoint_every: usize,
    /// Report loss and speed every so many steps; each report waits for the device
    #[arg(long, value_name = "STEPS", default_value_t = 50)]
    pub log_every: usize,
    /// Go on from the checkpoint in OUT
    #[arg(long)]
    pub resume: bool,
    /// Train nothing: print the bits per byte of the weights in `--weights`
    #[arg(long, requires = "weights")]
    pub eval_only: bool,
    /// A folder with config.json, tokenizer.json and model.safetensors, for `--eval-only`
    #[arg(long, value_name = "DIR", requires = "eval_only")]
    pub weights: Option<PathBuf>,
}

impl RunArgs {
    pub fn corpus(&self) -> Result<&Path> {
        self.corpus.as_deref().context("--corpus is needed")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    Cpu,
    Cuda,
}
