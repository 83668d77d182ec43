//! From logits to the next token.
use anyhow::{bail, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cmp::Ordering;

pub struct Sampler {
    temperature: f64,
    top_k: usize,
    rng: StdRng,
}

impl Sampler {
    /// Temperature 0 takes the likeliest token. `top_k` limits the choice to the k likeliest.
    pub fn new(temperature: f64, top_k: usize, seed: u64) -> Result<Self> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            bail!("--temperature must be 0 or more, found {temperature}")
        }
        if top_k == 0 {
            bail!("--top-k must be 1 or more, found 0")
        }
        Ok(Self {
            temperature,
            top_k,
            rng: StdRng::seed_from_u64(seed),
        })
    }

    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
            bail!("the model gave NaN instead of logits; a wider --dtype may help")
        }
        // Likeliest first, the lower id on ties.
        let order = |a: &u32, b: &u32| -> Ordering {
            let (x, y) = (logits[*a as usize], logits[*b as usize]);
            y.total_cmp(&x).then(a.cmp(b))
        };
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let k = match self.temperature {
            0.0 => 1,
            _ => self.top_k.min(ids.len()),
        };
        if k < ids.len() {
            ids.select_nth_unstable_by(k - 1, order);
            ids.truncate(k);
        }
        ids.sort_unstable_by(order);
        if k == 1 {
            return Ok(ids[0]);
        }
        // Relative to the likeliest, so that the largest exponential is 1.
        let best = f64::from(logits[ids[0] as usize]);
        let weight = |id: &u32| ((f64::from(logits[*id as usize]) - best) / self.temperature).exp();
        let weights: Vec<f64> = ids.iter().map(weight).collect();
        let mut left = self.rng.random::<f64>() * weights.iter().sum::<f64>();
        for (id, weight) in ids.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(*id);
            }
        }
        // Rounding used up the whole sum.
        Ok(ids[0])
    }
}
