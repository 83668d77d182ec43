//! The corpus: its split, its tokens, and the batches drawn from them.
use anyhow::{bail, Context, Result};
use candle_core::{Device, Tensor};
use rand::{rngs::StdRng, Rng, SeedableRng};
use std::ops::Range;
use std::path::Path;
use tokenizers::Tokenizer;

/// The piece that stands before a text.
pub const START: &str = "<|endoftext|>";

/// The training part of `text` and its held-out tail: the last 5 %, from the next line on.
pub fn split(text: &str) -> (&str, &str) {
    let cut = text.len() - text.len() / 20;
    // A newline byte is never inside a character, so the split is whole characters too.
    let line = text.as_bytes()[cut..].iter().position(|&b| b == b'\n');
    text.split_at(line.map_or(text.len(), |at| cut + at + 1))
}

pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

pub fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    // Read here, since the tokenizers crate names no file in its errors.
    let json = read_text(path)?;
    json.parse::<Tokenizer>()
        .map_err(|error| anyhow::anyhow!("{} is not a tokenizer.json: {error}", path.display()))
}

pub struct Corpus {
    /// The ids of the training part.
    pub train: Vec<u32>,
    pub held_out: HeldOut,
}

/// The text to be predicted: its ids, [`START`] first, and its length in bytes.
pub struct HeldOut {
    pub ids: Vec<u32>,
    pub bytes: usize,
}

impl Corpus {
    pub fn load(path: &Path, tokenizer: &Tokenizer, vocab_size: usize) -> Result<Self> {
        let pieces = tokenizer.get_vocab_size(true);
        if pieces > vocab_size {
            bail!("the tokenizer has {pieces} pieces, the config's vocab_size is {vocab_size}")
        }
        let text = read_text(path)?;
        let (train, tail) = split(&text);
        if tail.is_empty() {
            bail!("{} is too short to hold out a tail", path.display())
        }
        Ok(Self {
            train: encode(tokenizer, train)?,
            held_out: HeldOut::new(tokenizer, tail)?,
        })
    }
}

impl HeldOut {
    pub fn new(tokenizer: &Tokenizer, text: &str) -> Result<Self> {
        let start = tokenizer
            .token_to_id(START)
            .with_context(|| format!("the tokenizer has no {START}"))?;
        let mut ids = vec![start];
        ids.extend(encode(tokenizer, text)?);
        let bytes = text.len();
        Ok(Self { ids, bytes })
    }
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode_fast(text, false);
    let encoding = encoding.map_err(|error| anyhow::anyhow!("cannot tokenize: {error}"))?;
    Ok(encoding.get_ids().to_vec())
}

/// Draws windows of the training tokens. The batch of a step is a function of the seed and the
/// step alone, so a resumed run needs no saved generator.
pub struct Batches<'a> {
    tokens: &'a [u32],
    batch: usize,
    context: usize,
    seed: u64,
}

impl<'a> Batches<'a> {
    pub fn new(tokens: &'a [u32], batch: usize, context: usize, seed: u64) -> Result<Self> {
        if tokens.len() <= context {
            bail!(
                "the training text has {} tokens, a context of {context} needs more",
                tokens.len()
            )
        }
        Ok(Self {
            tokens,
            batch,
            context,
            seed,
        })
    }

    /// `(steps, 2, batch, context)`: inputs, and the same windows one token later. Many steps at
    /// once, because a copy to the device makes the host wait for it.
    pub fn upload(&self, steps: Range<usize>, device: &Device) -> Result<Tensor> {
        let count = steps.len();
        let mut ids = Vec::with_capacity(count * 2 * self.batch * self.context);
        for step in steps {
            let starts = self.starts(step);
            for shift in [0, 1] {
                for start in &starts {
                    let start = start + shift;
                    ids.extend_from_slice(&self.tokens[start..start + self.context]);
                }
            }
        }
        let shape = (count, 2, self.batch, self.context);
        Ok(Tensor::from_vec(ids, shape, device)?)
    }

    fn starts(&self, step: usize) -> Vec<usize> {
        // The multiplier spreads the seeds of nearby runs; seed_from_u64 mixes the sum.
        let seed = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(step as u64));
        let last = self.tokens.len() - self.context - 1;
        let draw = |_| rng.random_range(0..=last);
        (0..self.batch).map(draw).collect()
    }
}
