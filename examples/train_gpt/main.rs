//! Trains the small GPT of `examples/gpt` with the gradient of `OnlineSoftmax`.
//!
//! ```text
//! scripts/corpus.sh
//! cargo run --release --example train_gpt -- --corpus target/corpus/corpus.txt
//! ```
//!
//! `scripts/train-shipped-weights.sh` is how the weights in `examples/gpt/assets` were made.
use anyhow::{Context, Result};
use candle_core::Device;
use clap::Parser;

// Public for tests/train_gpt.rs, which takes this file in as a module.
pub mod adamw;
pub mod args;
pub mod checkpoint;
pub mod data;
pub mod eval;
pub mod flat;
mod folder;
pub mod init;
pub mod loss;
#[path = "../gpt/model.rs"]
pub mod model;
mod progress;
pub mod schedule;
pub mod tokenizer;
pub mod train;

use args::{Cli, Command, DeviceKind, RunArgs};

fn main() {
    std::process::exit(run(std::env::args_os()));
}

/// The exit code: 0, or 2 after one line on stderr that says what is wrong.
pub fn run<S: Into<std::ffi::OsString> + Clone>(args: impl IntoIterator<Item = S>) -> i32 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        // Help and version are no errors.
        Err(answer) if !answer.use_stderr() => {
            print!("{answer}");
            return 0;
        }
        Err(error) => {
            eprintln!("{}", first_paragraph(&error.to_string()));
            return 2;
        }
    };
    let done = match &cli.command {
        Some(Command::Tokenizer(args)) => tokenizer::run(args),
        None if cli.run.eval_only => evaluate(&cli.run),
        None => train(&cli.run),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {}", first_paragraph(&format!("{error:#}")));
            2
        }
    }
}

/// In one line: clap lists missing flags below its message, candle appends a backtrace.
fn first_paragraph(message: &str) -> String {
    let lines = message.lines().take_while(|line| !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

fn train(args: &RunArgs) -> Result<()> {
    let device = open_device(args)?;
    let config = folder::load_config(&args.config)?;
    args.recipe.validate(&config)?;
    let tokenizer = data::load_tokenizer(&args.tokenizer)?;
    let corpus = data::Corpus::load(args.corpus()?, &tokenizer, config.vocab_size)?;
    folder::create(&args.out)?;
    println!(
        "{} training tokens, {} held-out tokens of {} bytes",
        corpus.train.len(),
        corpus.held_out.ids.len() - 1,
        corpus.held_out.bytes
    );
    let (weights, best) = train::Run::new(args, &config, &corpus, &device)?.finish()?;
    println!(
        "best validation: {:.4} bits per byte at step {}",
        best.bits_per_byte, best.step
    );
    folder::save(&args.out, weights, &args.config, &args.tokenizer)?;
    // What ships is rounded to f16: read back from the files, and measured again with full products.
    candle_core::cuda::set_gemm_reduced_precision_f32(false);
    report(&args.out, args, &device)
}

fn evaluate(args: &RunArgs) -> Result<()> {
    let device = open_device(args)?;
    let dir = args.weights.as_deref().context("--weights is needed")?;
    report(dir, args, &device)
}

fn report(dir: &std::path::Path, args: &RunArgs, device: &Device) -> Result<()> {
    let (gpt, tokenizer) = folder::load(dir, args.recipe.softmax.kind(), device)?;
    args.recipe.validate(gpt.config())?;
    let text = data::read_text(args.corpus()?)?;
    let held_out = data::HeldOut::new(&tokenizer, data::split(&text).1)?;
    let bits = eval::bits_per_byte(&gpt, &held_out, args.recipe.context)?;
    println!(
        "{}: {bits:.4} bits per byte on the last {} bytes of {}",
        dir.display(),
        held_out.bytes,
        args.corpus()?.display()
    );
    Ok(())
}

fn open_device(args: &RunArgs) -> Result<Device> {
    candle_core::cuda::set_gemm_reduced_precision_f32(args.tf32);
    match args.device {
        DeviceKind::Cpu => Ok(Device::Cpu),
        DeviceKind::Cuda => Device::new_cuda(0).context("cannot open the CUDA device"),
    }
}
