//! The training loss.
use super::train::Softmax;
use candle_core::{Result, Tensor};
use candle_online_softmax::OnlineSoftmax;

/// The mean negative log-likelihood of `targets` (n) under `logits` (n, vocab).
///
/// The logits are the widest tensor of the model. Our operator goes over them once forward and
/// once backward, where the parts of candle's `cross_entropy` do so a dozen times.
pub fn mean_nll(logits: &Tensor, targets: &Tensor, softmax: Softmax) -> Result<Tensor> {
    match softmax {
        Softmax::Candle => candle_nn::loss::cross_entropy(logits, targets),
        Softmax::Online => {
            let all = logits.apply_op1(OnlineSoftmax)?;
            let right = all.gather(&targets.unsqueeze(1)?, 1)?;
            // A probability too small for f32 is 0, which has no logarithm.
            let right = (right + f64::from(f32::MIN_POSITIVE))?;
            right.log()?.mean_all()?.neg()
        }
    }
}
