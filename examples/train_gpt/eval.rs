//! Bits per byte of the held-out text.
use super::data::HeldOut;
use super::model::Gpt;
use candle_core::{Result, Tensor, D};

/// Windows in one forward pass.
const BATCH: usize = 64;

/// How many bits the model needs for each byte of the text, every token counted.
///
/// Windows of `context` tokens overlap by half; of each window only the part that the one before
/// did not reach is counted. So a token is predicted from at least half a context, but for those
/// at the start of the text, the first of which is predicted from `<|endoftext|>` alone.
pub fn bits_per_byte(gpt: &Gpt, text: &HeldOut, context: usize) -> Result<f64> {
    let predicted = text.ids.len() - 1;
    let len = context.min(predicted);
    let mut nats = 0.0;
    for windows in windows(predicted, len).chunks(BATCH) {
        for (nll, window) in nll(gpt, &text.ids, len, windows)?.iter().zip(windows) {
            nats += nll[window.counted..]
                .iter()
                .map(|&x| f64::from(x))
                .sum::<f64>();
        }
    }
    Ok(nats / std::f64::consts::LN_2 / text.bytes as f64)
}

#[derive(Debug, PartialEq)]
struct Window {
    start: usize,
    /// The first of its predictions that no earlier window made.
    counted: usize,
}

/// Windows of `len` that cover `total` predictions; the last ends with the text.
fn windows(total: usize, len: usize) -> Vec<Window> {
    let mut windows = vec![Window {
        start: 0,
        counted: 0,
    }];
    let mut start = 0;
    while start + len < total {
        let covered = start + len;
        start = (start + (len / 2).max(1)).min(total - len);
        windows.push(Window {
            start,
            counted: covered - start,
        });
    }
    windows
}

/// Of every prediction in every window.
fn nll(gpt: &Gpt, ids: &[u32], len: usize, windows: &[Window]) -> Result<Vec<Vec<f32>>> {
    let gather = |shift: usize| {
        let ids: Vec<u32> = windows
            .iter()
            .flat_map(|window| &ids[window.start + shift..][..len])
            .copied()
            .collect();
        Tensor::from_vec(ids, (windows.len(), len), gpt.device())
    };
    // candle's own log-softmax: the measure does not rest on the operator that it measures.
    let logits = gpt.forward(&gather(0)?, None)?;
    let log_p = candle_nn::ops::log_softmax(&logits, D::Minus1)?;
    let right = log_p.gather(&gather(1)?.unsqueeze(2)?, 2)?;
    right.squeeze(2)?.neg()?.to_vec2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_count_every_prediction_once() {
        for (total, context) in [(1, 8), (8, 8), (9, 8), (12, 8), (13, 8), (100, 8), (7, 1)] {
            let len = total.min(context);
            let mut next = 0;
            for window in windows(total, len) {
                assert_eq!(window.start + window.counted, next);
                assert!(window.start == 0 || window.counted >= len / 2);
                next = window.start + len;
            }
            assert_eq!(next, total);
        }
    }
}
