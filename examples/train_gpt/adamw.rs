//! AdamW on one flat vector, its moments open to a checkpoint. candle_nn's keeps them private.
use super::flat::Flat;
use anyhow::Result;
use candle_core::{backprop::GradStore, Tensor};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.99;
const EPSILON: f64 = 1e-8;
/// Longer gradients are scaled down to this length.
const CLIP: f64 = 1.0;

pub struct AdamW {
    pub flat: Flat,
    pub state: State,
    /// 1 where weight decay applies: on matrices, not on biases and gains.
    decayed: Tensor,
    weight_decay: f64,
}

/// What the next step depends on.
pub struct State {
    pub step: usize,
    /// The weights themselves: the variables are copies of it.
    pub weights: Tensor,
    pub mean: Tensor,
    pub square: Tensor,
}

impl AdamW {
    pub fn new(flat: Flat, weight_decay: f64) -> Result<Self> {
        let state = State {
            step: 0,
            weights: flat.values()?,
            mean: flat.zeros()?,
            square: flat.zeros()?,
        };
        Ok(Self {
            decayed: flat.matrices()?,
            flat,
            state,
            weight_decay,
        })
    }

    pub fn set_state(&mut self, state: State) -> Result<()> {
        self.flat.write(&state.weights)?;
        self.state = state;
        Ok(())
    }

    /// Nothing here waits for the device: the clipping factor stays on it.
    pub fn step(&mut self, grads: &GradStore, lr: f64) -> Result<()> {
        let State {
            step,
            weights,
            mean,
            square,
        } = &mut self.state;
        *step += 1;
        let grad = self.flat.gradients(grads)?;
        let grad = grad.broadcast_mul(&clip_factor(&grad)?)?;
        *mean = ((&*mean * BETA1)? + (&grad * (1.0 - BETA1))?)?;
        *square = ((&*square * BETA2)? + (grad.sqr()? * (1.0 - BETA2))?)?;
        let t = *step as f64;
        let mean_scale = lr / (1.0 - BETA1.powf(t));
        let square_scale = 1.0 / (1.0 - BETA2.powf(t));
        let spread = ((&*square * square_scale)?.sqrt()? + EPSILON)?;
        let adapted = ((&*mean * mean_scale)? / spread)?;
        let decay = ((&*weights * &self.decayed)? * (lr * self.weight_decay))?;
        *weights = ((&*weights - adapted)? - decay)?;
        self.flat.write(weights)
    }
}

/// min(1, CLIP / norm).
fn clip_factor(grad: &Tensor) -> Result<Tensor> {
    let factor = ((Flat::norm(grad)? + 1e-6)?.recip()? * CLIP)?;
    Ok(factor.minimum(1.0)?)
}
