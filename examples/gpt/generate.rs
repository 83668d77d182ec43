//! The decoding loop.
use crate::model::{Gpt, KvCache};
use crate::sampling::Sampler;
use crate::text::TextStream;
use crate::weights::Loaded;
use anyhow::{anyhow, bail, Result};
use candle_core::{DType, Tensor};
use std::io::Write;
use std::time::{Duration, Instant};

const END_OF_TEXT: &str = "<|endoftext|>";

/// What was done and how long it took.
#[derive(Default)]
pub struct Report {
    pub prompt_tokens: usize,
    pub prompt_time: Duration,
    pub new_tokens: usize,
    pub new_time: Duration,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let line = |tokens: usize, time: Duration| {
            let seconds = time.as_secs_f64();
            let rate = tokens as f64 / seconds.max(1e-9);
            format!("{tokens} tokens in {seconds:.2} s, {rate:.1} tokens/s")
        };
        write!(
            f,
            "prompt: {}; generated: {}",
            line(self.prompt_tokens, self.prompt_time),
            line(self.new_tokens, self.new_time)
        )
    }
}

/// Writes `prompt` and up to `max_tokens` tokens of what may follow it to `out`, as they come.
pub fn generate(
    loaded: &Loaded,
    prompt: &str,
    max_tokens: usize,
    sampler: &mut Sampler,
    out: &mut impl Write,
) -> Result<Report> {
    let end = loaded.tokenizer.token_to_id(END_OF_TEXT);
    let mut decoder = Decoder::new(loaded, encode(loaded, prompt)?);
    let mut text = TextStream::new(&loaded.tokenizer);
    let mut report = Report::default();

    write!(out, "{prompt}")?;
    out.flush()?;
    if max_tokens > 0 {
        report.prompt_tokens = decoder.waiting();
        let start = Instant::now();
        let mut logits = decoder.logits()?;
        report.prompt_time = start.elapsed();
        let start = Instant::now();
        loop {
            let id = sampler.sample(&logits[..loaded.pieces])?;
            report.new_tokens += 1;
            if Some(id) == end {
                break;
            }
            write!(out, "{}", text.push(id))?;
            out.flush()?;
            if report.new_tokens == max_tokens {
                break;
            }
            decoder.ids.push(id);
            logits = decoder.logits()?;
        }
        report.new_time = start.elapsed();
    }
    writeln!(out, "{}", text.finish())?;
    out.flush()?;
    Ok(report)
}

/// The text so far as tokens, and how much of it the model has seen.
struct Decoder<'a> {
    gpt: &'a Gpt,
    cache: KvCache,
    ids: Vec<u32>,
    seen: usize,
}

impl<'a> Decoder<'a> {
    fn new(loaded: &'a Loaded, ids: Vec<u32>) -> Self {
        let gpt = &loaded.gpt;
        Self {
            gpt,
            cache: KvCache::new(gpt.config()),
            // Of a prompt longer than the context, the end.
            seen: ids.len().saturating_sub(gpt.config().n_positions),
            ids,
        }
    }

    /// How many tokens the model has yet to see.
    fn waiting(&self) -> usize {
        self.ids.len() - self.seen
    }

    /// The logits of the token after the last.
    fn logits(&mut self) -> Result<Vec<f32>> {
        let context = self.gpt.config().n_positions;
        if self.cache.len() + self.waiting() > context {
            // Full: go on from the last half, so that this happens once in half a context.
            self.cache.reset();
            self.seen = self.ids.len() - (context / 2).max(1);
        }
        let fed = Tensor::new(&self.ids[self.seen..], self.gpt.device())?.unsqueeze(0)?;
        let logits = self.gpt.forward_last(&fed, Some(&mut self.cache))?;
        self.seen = self.ids.len();
        Ok(logits.squeeze(0)?.to_dtype(DType::F32)?.to_vec1()?)
    }
}

/// The prompt's tokens. An empty prompt begins where GPT-2's training texts do, or on a new line.
fn encode(loaded: &Loaded, prompt: &str) -> Result<Vec<u32>> {
    let encode = |text: &str| match loaded.tokenizer.encode(text, false) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => Err(anyhow!("cannot tokenize the prompt: {error}")),
    };
    let mut ids = encode(prompt)?;
    if ids.is_empty() {
        ids = match loaded.tokenizer.token_to_id(END_OF_TEXT) {
            Some(id) => vec![id],
            None => encode("\n")?,
        };
    }
    if ids.is_empty() {
        bail!("the tokenizer makes no token of this prompt")
    }
    Ok(ids)
}
