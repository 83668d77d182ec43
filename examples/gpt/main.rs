//! A GPT-2 that writes text, its attention going through `candle_online_softmax::OnlineSoftmax`.
//!
//! ```text
//! cargo run --release --example gpt
//! cargo run --release --example gpt -- --prompt "She was" --temperature 0 --softmax candle
//! cargo run --release --features cuda --example gpt -- --device cuda --dtype bf16
//! cargo run --release --example gpt -- --weights path/to/gpt2
//! ```
mod cli;
mod embedded;
mod generate;
mod model;
mod sampling;
mod text;
mod weights;

use anyhow::Result;
use clap::Parser;
use std::io::{stderr, stdout, ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        // --help and --version arrive as errors too.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&first_paragraph(&error.to_string())),
    };
    match run(&cli) {
        Ok(report) => {
            let _ = writeln!(stderr(), "{report}");
            ExitCode::SUCCESS
        }
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("error: {}", one_line(&error))),
    }
}

fn run(cli: &cli::Cli) -> Result<generate::Report> {
    // What can be wrong with the flags themselves comes before the slow work.
    let mut sampler = sampling::Sampler::new(cli.temperature, cli.top_k, cli.seed)?;
    let device = cli.device.open()?;
    let files = match (&cli.weights, &cli.hub) {
        (Some(folder), _) => weights::Files::from_folder(folder)?,
        (None, Some(id)) => weights::Files::from_hub(id)?,
        (None, None) => embedded::files(),
    };
    let loaded = files.load(cli.dtype.dtype(), &device, cli.softmax.kind())?;
    let mut out = stdout().lock();
    generate::generate(&loaded, &cli.prompt, cli.max_tokens, &mut sampler, &mut out)
}

fn fail(line: &str) -> ExitCode {
    let _ = writeln!(stderr(), "{line}");
    ExitCode::from(2)
}

/// The reader of our output has what it wanted (`gpt | head -1`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
}

/// The causes, each by its first line: candle appends a backtrace where one is asked for.
fn one_line(error: &anyhow::Error) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let line = cause.lines().next().unwrap_or_default().trim();
        // A wrapper that shows its inner error would say it twice.
        if !causes.last().is_some_and(|last| last.ends_with(line)) {
            causes.push(line.to_string());
        }
    }
    causes.join(": ")
}

/// clap's message without its usage and hints.
fn first_paragraph(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}
