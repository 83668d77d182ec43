//! The training run.
use super::adamw::AdamW;
use super::args::RunArgs;
use super::data::{Batches, Corpus};
use super::eval::bits_per_byte;
use super::flat::Flat;
use super::init::Variables;
use super::model::{Config, Gpt, SoftmaxKind};
use super::progress::Progress;
use super::{checkpoint, loss, schedule};
use anyhow::{bail, Result};
use candle_core::{Device, Tensor};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Steps whose batches go to the device in one copy.
const UPLOAD: usize = 50;

/// All that decides where a run ends, beside corpus, config and tokenizer.
#[derive(Debug, Clone, Args, Serialize)]
pub struct Recipe {
    #[arg(long, default_value_t = 4000)]
    pub steps: usize,
    /// Windows a step
    #[arg(long, default_value_t = 128)]
    pub batch: usize,
    /// Tokens a window
    #[arg(long, default_value_t = 256)]
    pub context: usize,
    /// The highest learning rate, reached after the warm-up
    #[arg(long, default_value_t = 1e-3)]
    pub lr: f64,
    /// Steps over which the learning rate rises; it falls along a cosine after them
    #[arg(long, value_name = "STEPS", default_value_t = 200)]
    pub warmup: usize,
    /// AdamW's, on matrices only
    #[arg(long, default_value_t = 0.1)]
    pub weight_decay: f64,
    #[arg(long, default_value_t = 0.2)]
    pub dropout: f32,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The softmax of attention and loss: ours, or candle's for comparison
    #[arg(long, value_enum, default_value_t = Softmax::Online)]
    pub softmax: Softmax,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Softmax {
    Online,
    Candle,
}

impl Softmax {
    pub fn kind(self) -> SoftmaxKind {
        match self {
            Self::Online => SoftmaxKind::Online,
            Self::Candle => SoftmaxKind::Candle,
        }
    }
}

impl Recipe {
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub fn validate(&self, config: &Config) -> Result<()> {
        if self.steps == 0 || self.batch == 0 {
            bail!("--steps and --batch must be at least 1")
        }
        if !(1..=config.n_positions).contains(&self.context) {
            bail!(
                "--context must be between 1 and the config's n_positions {}, found {}",
                config.n_positions,
                self.context
            )
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            bail!("--lr must be positive, found {}", self.lr)
        }
        if self.warmup > self.steps {
            bail!(
                "--warmup {} is longer than --steps {}",
                self.warmup,
                self.steps
            )
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            bail!(
                "--weight-decay must not be negative, found {}",
                self.weight_decay
            )
        }
        if !(0.0..1.0).contains(&self.dropout) {
            bail!("--dropout must lie in [0, 1), found {}", self.dropout)
        }
        Ok(())
    }
}

/// The weights with the best validation figure so far.
pub struct Best {
    pub step: usize,
    pub bits_per_byte: f64,
    /// In the order of [`Flat`].
    pub weights: Tensor,
}

pub struct Run<'a> {
    args: &'a RunArgs,
    corpus: &'a Corpus,
    device: &'a Device,
    gpt: Gpt,
    optimizer: AdamW,
    best: Option<Best>,
}

impl<'a> Run<'a> {
    pub fn new(
        args: &'a RunArgs,
        config: &Config,
        corpus: &'a Corpus,
        device: &'a Device,
    ) -> Result<Self> {
        let recipe = &args.recipe;
        let variables = Variables::new(recipe.seed);
        let gpt = Gpt::new(config, variables.builder(device), recipe.softmax.kind())?;
        let flat = Flat::new(variables.all(), device);
        let mut run = Self {
            optimizer: AdamW::new(flat, recipe.weight_decay)?,
            args,
            corpus,
            device,
            gpt,
            best: None,
        };
        if args.resume {
            let (path, flat) = (run.checkpoint_path(), &run.optimizer.flat);
            let (state, best) = checkpoint::load(&path, flat, recipe, device)?;
            run.optimizer.set_state(state)?;
            run.best = best;
        }
        Ok(run)
    }

    /// Trains to the end. The best weights, by name, with their step and figure.
    pub fn finish(mut self) -> Result<(Vec<(String, Tensor)>, Best)> {
        let recipe = &self.args.recipe;
        let first = self.optimizer.state.step;
        let tokens = &self.corpus.train;
        let batches = Batches::new(tokens, recipe.batch, recipe.context, recipe.seed)?;
        let mut progress = Progress::new(first, recipe.steps, recipe.batch * recipe.context);
        if recipe.dropout > 0.0 && self.device.is_cpu() {
            progress.say("note: candle's CPU generator takes no seed, so dropout will differ from run to run");
        }
        self.seed_dropout()?;
        let mut uploaded = None;
        let mut losses = Losses::default();
        for step in first..recipe.steps {
            let offset = (step - first) % UPLOAD;
            if offset == 0 {
                let end = recipe.steps.min(step + UPLOAD);
                uploaded = Some(batches.upload(step..end, self.device)?);
            }
            let Some(windows) = &uploaded else {
                bail!("no batch for step {step}")
            };
            let windows = windows.get(offset)?;
            let lr = schedule::learning_rate(step, recipe.steps, recipe.warmup, recipe.lr);
            losses.add(self.step(&windows, lr, step == first)?)?;
            let done = step + 1;
            let last = done == recipe.steps;
            progress.advance(done);
            if last || every(done, self.args.log_every) {
                let loss = losses.mean()?;
                if !loss.is_finite() {
                    bail!("the loss is {loss} after step {done}; a lower --lr may help")
                }
                progress.report(done, loss, lr);
            }
            if last || every(done, self.args.eval_every) {
                progress.say(&self.evaluate()?);
                progress.pause(done);
            }
            if every(done, self.args.checkpoint_every) {
                self.save_checkpoint()?;
                self.seed_dropout()?;
                progress.pause(done);
            }
        }
        match self.best {
            Some(best) => Ok((self.optimizer.flat.named(&best.weights)?, best)),
            None => bail!("the checkpoint is at the last step and holds no weights to keep"),
        }
    }

    /// One step on `(2, batch, context)` windows; its loss, still on the device.
    fn step(&mut self, windows: &Tensor, lr: f64, check: bool) -> Result<Tensor> {
        let recipe = &self.args.recipe;
        let logits = self.gpt.forward_train(&windows.get(0)?, recipe.dropout)?;
        let targets = windows.get(1)?.flatten_all()?;
        let loss = loss::mean_nll(&logits.flatten_to(1)?, &targets, recipe.softmax)?;
        let grads = loss.backward()?;
        if check {
            self.optimizer.flat.check_gradients(&grads)?;
        }
        self.optimizer.step(&grads, lr)?;
        Ok(loss.detach())
    }

    /// Measures the held-out text and keeps the weights if they are the best yet.
    fn evaluate(&mut self) -> Result<String> {
        let state = &self.optimizer.state;
        let context = self.args.recipe.context;
        let bits = bits_per_byte(&self.gpt, &self.corpus.held_out, context)?;
        let better = self
            .best
            .as_ref()
            .is_none_or(|best| bits < best.bits_per_byte);
        if better {
            self.best = Some(Best {
                step: state.step,
                bits_per_byte: bits,
                // No copy: a step makes new weights and leaves the old ones as they are.
                weights: state.weights.clone(),
            });
        }
        let mark = if better { ", the best yet" } else { "" };
        Ok(format!(
            "step {}: validation {bits:.4} bits per byte{mark}",
            state.step
        ))
    }

    /// Seeds the generator of the dropout masks from the step: done at every checkpoint, it gives
    /// a resumed run the masks of one that never stopped.
    fn seed_dropout(&self) -> Result<()> {
        if !self.device.is_cpu() {
            let seed = self.args.recipe.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let step = self.optimizer.state.step as u64;
            self.device.set_seed(seed.wrapping_add(step))?;
        }
        Ok(())
    }

    fn save_checkpoint(&self) -> Result<()> {
        checkpoint::save(
            &self.checkpoint_path(),
            &self.optimizer.flat,
            &self.args.recipe,
            &self.optimizer.state,
            self.best.as_ref(),
        )
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.args.out.join("checkpoint.safetensors")
    }
}

/// The mean loss since the last look at it, summed on the device so that a step waits for nothing.
#[derive(Default)]
struct Losses {
    sum: Option<Tensor>,
    count: usize,
}

impl Losses {
    fn add(&mut self, loss: Tensor) -> Result<()> {
        self.count += 1;
        self.sum = Some(match self.sum.take() {
            Some(sum) => (sum + loss)?,
            None => loss,
        });
        Ok(())
    }

    fn mean(&mut self) -> Result<f32> {
        let count = std::mem::take(&mut self.count);
        match self.sum.take() {
            Some(sum) => Ok(sum.to_scalar::<f32>()? / count as f32),
            None => bail!("no loss since the last report"),
        }
    }
}

/// Never, if `steps` is 0.
fn every(done: usize, steps: usize) -> bool {
    done > 0 && done.is_multiple_of(steps)
}
