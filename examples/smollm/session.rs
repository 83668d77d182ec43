//! The decoding loop, and a conversation's tokens from turn to turn.
use super::memory;
use super::model::{KvCache, Llama};
use super::text::TextStream;
use super::tokenizer::Text;
use anyhow::{bail, Result};
use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use std::io::Write;
use std::time::{Duration, Instant};

/// What was done, how long it took and what memory it took.
#[derive(Default)]
pub struct Report {
    pub prompt_tokens: usize,
    pub prompt_time: Duration,
    pub new_tokens: usize,
    pub new_time: Duration,
    pub prompt_memory: Option<memory::Peak>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let line = |tokens: usize, time: Duration| {
            let seconds = time.as_secs_f64();
            let rate = tokens as f64 / seconds.max(1e-9);
            format!("{tokens} tokens in {seconds:.2} s, {rate:.1} tokens/s")
        };
        let prompt = line(self.prompt_tokens, self.prompt_time);
        let generated = line(self.new_tokens, self.new_time);
        write!(f, "prompt: {prompt}; generated: {generated}")?;
        match &self.prompt_memory {
            Some(peak) => write!(f, "; {peak}"),
            None => Ok(()),
        }
    }
}

/// A text as tokens, and how many of them the model has seen.
pub struct Session<'a> {
    llama: &'a Llama,
    cache: KvCache,
    ids: Vec<u32>,
}

impl<'a> Session<'a> {
    pub fn new(llama: &'a Llama) -> Self {
        Self {
            llama,
            cache: KvCache::new(llama.config()),
            ids: Vec::new(),
        }
    }

    pub fn push(&mut self, ids: impl IntoIterator<Item = u32>) {
        self.ids.extend(ids);
    }

    /// How many tokens the context has left.
    pub fn room(&self) -> usize {
        let context = self.llama.config().context;
        context.saturating_sub(self.ids.len())
    }

    /// The logits of the token after the last, in host memory.
    pub fn logits(&mut self) -> Result<Tensor> {
        let waiting = &self.ids[self.cache.len()..];
        let logits = self.llama.forward_last(waiting, &mut self.cache)?;
        Ok(logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?)
    }

    /// Adds up to `max_tokens` tokens, until `each` says stop; at least one of the session's must be waiting.
    pub fn generate(
        &mut self,
        max_tokens: usize,
        sampler: &mut LogitsProcessor,
        mut each: impl FnMut(u32) -> Result<Next>,
    ) -> Result<Report> {
        let mut report = Report {
            prompt_tokens: self.ids.len() - self.cache.len(),
            ..Report::default()
        };
        let before = memory::reset();
        let start = Instant::now();
        let mut logits = self.logits()?;
        report.prompt_time = start.elapsed();
        report.prompt_memory = before.and_then(memory::Peak::since);
        // One more than there is room for: the last is not fed.
        let max_tokens = max_tokens.min(self.room() + 1);
        let start = Instant::now();
        while report.new_tokens < max_tokens {
            let id = sample(sampler, &logits)?;
            report.new_tokens += 1;
            if let Next::Stop = each(id)? {
                break;
            }
            // The last waits to be seen with what follows, if anything does.
            self.ids.push(id);
            if report.new_tokens < max_tokens {
                logits = self.logits()?;
            }
        }
        report.new_time = start.elapsed();
        Ok(report)
    }

    /// [`generate`](Self::generate), written to `out` as it comes. Returns the text as well.
    pub fn write(
        &mut self,
        text: &Text,
        max_tokens: usize,
        sampler: &mut LogitsProcessor,
        out: &mut impl Write,
    ) -> Result<(String, Report)> {
        let mut stream = TextStream::new(&text.tokenizer);
        let mut said = String::new();
        let report = self.generate(max_tokens, sampler, |id| {
            if text.is_end(id) {
                return Ok(Next::Stop);
            }
            if !text.is_control(id) {
                let part = stream.push(id);
                write!(out, "{part}")?;
                out.flush()?;
                said.push_str(&part);
            }
            Ok(Next::Go)
        })?;
        let rest = stream.finish();
        writeln!(out, "{rest}")?;
        out.flush()?;
        Ok((said + &rest, report))
    }
}

pub enum Next {
    Go,
    Stop,
}

fn sample(sampler: &mut LogitsProcessor, logits: &Tensor) -> Result<u32> {
    if logits.to_vec1::<f32>()?.iter().any(|logit| logit.is_nan()) {
        bail!("the model gave NaN instead of logits; a wider --dtype may help")
    }
    Ok(sampler.sample(logits)?)
}
