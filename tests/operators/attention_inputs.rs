//! The table of features, each with the tensors it needs, alone and in pairs.

use crate::attention_reference::Attention;
use crate::inputs::{normal, tensor, Rng};
use candle_core::{DType, Device, Result, Tensor};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    Softcap,
    Causal,
    CausalWithOffset,
    Window,
    Alibi,
    Sinks,
    Bias,
    AdditiveMask,
    BooleanMask,
    F32Output,
}

use Feature::*;

pub const FEATURES: [Feature; 10] = [
    Softcap,
    Causal,
    CausalWithOffset,
    Window,
    Alibi,
    Sinks,
    Bias,
    AdditiveMask,
    BooleanMask,
    F32Output,
];

/// Those that go together in one operator.
pub const MOST: [Feature; 7] = [Softcap, Causal, Window, Alibi, Sinks, Bias, BooleanMask];

/// None, each, and each pair of which neither takes the other's place.
pub fn combinations() -> Vec<Vec<Feature>> {
    let mut all = vec![vec![]];
    for (i, &a) in FEATURES.iter().enumerate() {
        all.push(vec![a]);
        for &b in &FEATURES[i + 1..] {
            if !matches!(
                (a, b),
                (Causal, CausalWithOffset) | (AdditiveMask, BooleanMask)
            ) {
                all.push(vec![a, b]);
            }
        }
    }
    all
}

/// An operator with these features, for scores of `shape`.
pub fn attention(
    features: &[Feature],
    shape: &[usize],
    dtype: DType,
    device: &Device,
) -> Result<Attention> {
    let mut attention = Attention::new(0.7);
    for &feature in features {
        feature.add(&mut attention, shape, dtype, device)?;
    }
    Ok(attention)
}

impl Feature {
    fn add(self, to: &mut Attention, shape: &[usize], dtype: DType, device: &Device) -> Result<()> {
        let rank = shape.len();
        let [queries, keys] = [shape[rank - 2], shape[rank - 1]];
        let heads = if rank > 2 { shape[rank - 3] } else { 1 };
        match self {
            Softcap => to.softcap = Some(1.75),
            Causal => to.causal = true,
            CausalWithOffset => {
                to.causal = true;
                to.kv_offset = Some(keys / 3);
            }
            Window => to.window = [Some(keys / 3), Some(1)],
            Alibi => {
                let slopes: Vec<f64> = (0..heads).map(|h| 2f64.powi(-(h as i32 % 8) - 2)).collect();
                to.slopes = Some(tensor(&slopes, &[heads], DType::F32, device)?);
            }
            Sinks => to.sinks = Some(normal(11, &[heads], dtype, device)?),
            // One for all batches.
            Bias => to.bias = Some(normal(12, &shape[rank.saturating_sub(3)..], dtype, device)?),
            AdditiveMask => to.mask = Some(additive_mask(&[queries, keys], dtype, device)?),
            BooleanMask => to.mask = Some(boolean_mask(&[queries, keys], device)?),
            F32Output => to.f32_output = true,
        }
        Ok(())
    }
}

/// Drops a quarter of the keys, moves others.
pub fn additive_mask(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let mut rng = Rng::new(13);
    let value = |rng: &mut Rng| match rng.next() % 4 {
        0 => f64::NEG_INFINITY,
        1 => rng.normal(),
        _ => 0.0,
    };
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| value(&mut rng))
        .collect();
    tensor(&values, shape, dtype, device)
}

/// Keeps three quarters of the keys, by any number but 0.
pub fn boolean_mask(shape: &[usize], device: &Device) -> Result<Tensor> {
    let mut rng = Rng::new(14);
    let value = |kind: u64| [0u8, 1, 2, 255][kind as usize % 4];
    let count = shape.iter().product();
    let values: Vec<u8> = (0..count).map(|_| value(rng.next())).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_device(device)
}
