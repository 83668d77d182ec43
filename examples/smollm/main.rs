//! A chat with SmolLM2-135M-Instruct, or another Llama in GGUF, its attention going through
//! `candle_online_softmax::sdpa`.
//!
//! ```text
//! scripts/smollm.sh                                           # fetches the model, 98 MB
//! cargo run --release --example smollm                        # a conversation; /quit ends it
//! cargo run --release --example smollm -- --prompt "Why is the sky blue?" --temperature 0
//! cargo run --release --example smollm -- --prompt-tokens 1000 --max-tokens 100 --attention candle
//! cargo run --release --features cuda --example smollm -- --device cuda --dtype bf16
//! ```
mod attention;
mod chat;
mod cli;
mod config;
mod gguf;
mod memory;
mod model;
mod rope;
mod session;
mod template;
#[path = "../gpt/text.rs"]
mod text;
mod tokenizer;
mod weights;

use anyhow::{bail, Context, Result};
use clap::Parser;
use std::io::{stderr, stdin, stdout, ErrorKind, Write};
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
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("error: {}", one_line(&error))),
    }
}

fn run(cli: &cli::Cli) -> Result<()> {
    // What can be wrong with the flags themselves comes before the slow work.
    let mut sampler = cli.sampler()?;
    let device = cli.device.open()?;
    let mut gguf = open(cli)?;
    let (form, dtype) = (cli.weights.form(), cli.dtype.dtype());
    let llama = model::Llama::load(&mut gguf, form, dtype, &device, cli.attention.kind())
        .with_context(|| format!("cannot run {}", cli.gguf.display()))?;
    let (mut out, mut status) = (stdout().lock(), stderr().lock());

    if let Some(tokens) = cli.prompt_tokens {
        let report = bench(&llama, tokens, cli.max_tokens)?;
        return Ok(writeln!(status, "{report}")?);
    }
    let text = tokenizer::Text::read(&gguf)?;
    if let (Some(prompt), true) = (&cli.prompt, cli.raw) {
        let mut session = session::Session::new(&llama);
        session.push(text.encode_beginning(prompt)?);
        write!(out, "{prompt}")?;
        let written = session.write(&text, cli.max_tokens, &mut sampler, &mut out)?;
        return Ok(writeln!(status, "{}", written.1)?);
    }
    let Some(template) = template::Template::read(&gguf)? else {
        bail!("the model has no chat template: give --prompt TEXT --raw")
    };
    let system = cli.system.clone();
    let mut chat = chat::Chat::new(&llama, &text, &template, system, cli.max_tokens);
    match &cli.prompt {
        Some(prompt) => {
            let report = chat.say(prompt, &mut sampler, &mut out)?;
            writeln!(status, "{report}")?;
        }
        None => chat.talk(stdin().lock(), &mut sampler, &mut out, &mut status)?,
    }
    Ok(())
}

fn open(cli: &cli::Cli) -> Result<gguf::Gguf> {
    if cli.gguf.as_os_str() == cli::DEFAULT_GGUF && !cli.gguf.exists() {
        bail!(
            "{} is not there: scripts/smollm.sh fetches it, or give --gguf PATH",
            cli::DEFAULT_GGUF
        )
    }
    gguf::Gguf::open(&cli.gguf)
}

/// A made-up prompt of `tokens` tokens and `new` more, timed the second time: the first one also
/// starts threads and loads kernels.
fn bench(llama: &model::Llama, tokens: usize, new: usize) -> Result<session::Report> {
    if tokens == 0 {
        bail!("--prompt-tokens must be 1 or more, found 0")
    }
    let vocab = llama.config().vocab as u32;
    let once = || {
        let mut session = session::Session::new(llama);
        // Steps of a prime: no token twice in a row.
        session.push((0..tokens as u32).map(|i| i.wrapping_mul(7919) % vocab));
        let mut greedy = candle_transformers::generation::LogitsProcessor::new(1, None, None);
        session.generate(new, &mut greedy, |_| Ok(session::Next::Go))
    };
    once()?;
    once()
}

fn fail(line: &str) -> ExitCode {
    let _ = writeln!(stderr(), "{line}");
    ExitCode::from(2)
}

/// The reader of our output has what it wanted (`smollm | head -1`).
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
