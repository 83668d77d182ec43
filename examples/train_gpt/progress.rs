//! What a run tells while it runs: a bar on a terminal, plain lines elsewhere; both on stderr.
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

pub struct Progress {
    /// None where stderr is not a terminal.
    bar: Option<ProgressBar>,
    steps: usize,
    tokens_per_step: usize,
    last_report: (Instant, usize),
}

impl Progress {
    pub fn new(first_step: usize, steps: usize, tokens_per_step: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64).with_position(first_step as u64);
            let template = "{elapsed_precise} [{bar:30}] {pos}/{len} {msg} (left: {eta})";
            // The template is ours; were it wrong, the plain bar would do.
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self {
            bar,
            steps,
            tokens_per_step,
            last_report: (Instant::now(), first_step),
        }
    }

    /// `done` steps are done.
    pub fn advance(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    pub fn report(&mut self, done: usize, loss: f32, lr: f64) {
        let (since, at) = self.last_report;
        let tokens = ((done - at) * self.tokens_per_step) as f64;
        let speed = tokens / since.elapsed().as_secs_f64();
        self.last_report = (Instant::now(), done);
        let figures = format!("loss {loss:.4}, {speed:.0} tokens/s");
        match &self.bar {
            Some(bar) => bar.set_message(figures),
            None => eprintln!("step {done}/{}: {figures}, lr {lr:.2e}", self.steps),
        }
    }

    /// Leaves the time since the last report out of the next one's speed.
    pub fn pause(&mut self, done: usize) {
        self.last_report = (Instant::now(), done);
    }

    /// A line to keep.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }
}
