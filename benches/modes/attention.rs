//! `BENCH_ATTENTION=1`: attention scores to probabilities, one kernel, beside a copy of the scores and candle's chain.
//!
//! The chain (scale, mask, softmax) is several kernels with tensors between them, which a replay would have to keep: it is
//! timed by back-to-back calls, as is this crate's operator in `ours_calls`.

use super::cell::inputs;
use crate::args::list;
use crate::replay::{us_a_call, Edges, Gpu, Replay};
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor, D};
use candle_online_softmax::AttentionSoftmax;

const CALLS: usize = 32;
const SCALE: f32 = 0.125;

/// (batch, heads, queries, keys) and what is done to the scores.
const SHAPES: [[usize; 4]; 7] = [
    [1, 16, 2048, 2048],
    [4, 16, 1024, 1024],
    [1, 32, 4096, 4096],
    [32, 32, 1, 8192],
    [32, 32, 1, 8191],
    [8, 12, 128, 128],
    [1, 12, 64, 64],
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Causal,
    Mask,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "scale",
            Self::Causal => "causal",
            Self::Mask => "additive mask",
        }
    }

    fn op(self) -> AttentionSoftmax {
        let op = AttentionSoftmax::new(SCALE);
        match self {
            Self::Causal => op.causal(),
            _ => op,
        }
    }
}

/// 0 where query i sees key j, else -inf; (queries, keys).
fn mask(q: usize, k: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let value = |i: usize, j: usize| if j + q > i + k { f32::NEG_INFINITY } else { 0. };
    let values: Vec<f32> = (0..q * k).map(|at| value(at / k, at % k)).collect();
    Ok(Tensor::from_vec(values, (q, k), device)?.to_dtype(dtype)?)
}

/// What candle's models do today.
fn chain(x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let mut s = (x * f64::from(SCALE))?;
    if let Some(mask) = mask {
        s = s.broadcast_add(mask)?;
    }
    Ok(candle_nn::ops::softmax_last_dim(&s)?)
}

/// The largest difference to the chain in f32, of the first rows.
fn error(x: &Tensor, y: &Tensor, mask: Option<&Tensor>) -> Result<f64> {
    let (x, y) = (x.narrow(0, 0, 1)?.narrow(1, 0, 1)?, y.narrow(0, 0, 1)?.narrow(1, 0, 1)?);
    let mask = mask.map(|m| m.to_dtype(DType::F32)).transpose()?;
    let want = chain(&x.to_dtype(DType::F32)?, mask.as_ref())?;
    let off = (y.to_dtype(DType::F32)? - want)?.abs()?;
    Ok(f64::from(off.flatten_all()?.max(D::Minus1)?.to_scalar::<f32>()?))
}

/// Whether all outputs were right.
pub fn run() -> Result<bool> {
    let dtypes: Vec<DType> = list("BENCH_DTYPES", "bf16,f32")?;
    let gpu = Gpu::open()?;
    println!(
        "{:<40}{:>10}{:>10}{:>10}{:>12}{:>12}{:>12}",
        "us a launch", "memcpy", "ours", "/memcpy", "ours_calls", "candle", "max error"
    );
    let mut wrong = 0;
    for shape in SHAPES {
        for &dtype in &dtypes {
            let count: usize = shape.iter().product();
            let pairs = gpu.pairs(count * dtype.size_in_bytes());
            let x = inputs(&gpu, &shape, dtype, pairs)?;
            let [_, _, q, k] = shape;
            let replay = |peer: &str, launch: &dyn Fn(usize) -> Result<Tensor>| -> Result<(f64, Tensor, usize)> {
                let replay = Replay::fitting(&gpu.cuda, x.len(), Edges::of(peer), launch)?;
                let us = replay.us()?;
                let last = (replay.launches() - 1) % x.len();
                Ok((us, replay.last().copy()?, last))
            };
            let copy = replay("memcpy", &|i| Ok(x[i % x.len()].copy()?))?.0;
            for kind in [Kind::Plain, Kind::Causal, Kind::Mask] {
                if kind == Kind::Causal && q == 1 {
                    continue;
                }
                let mask = match kind {
                    Kind::Plain => None,
                    _ => Some(mask(q, k, dtype, &gpu.device)?),
                };
                let op = match (kind, &mask) {
                    (Kind::Mask, Some(mask)) => kind.op().mask(mask),
                    _ => kind.op(),
                };
                let what = || format!("{} {shape:?} {}", kind.name(), dtype.as_str());
                let forward = |i: usize| -> Result<Tensor> { Ok(op.forward(&x[i % x.len()])?) };
                let (us, y, last) = replay("ours", &forward).with_context(what)?;
                let off = error(&x[last], &y, mask.as_ref())?;
                let calls = us_a_call(&gpu.cuda, x.len().max(CALLS), &forward)?;
                let candle = us_a_call(&gpu.cuda, x.len().max(CALLS), &|i| {
                    chain(&x[i % x.len()], mask.as_ref())
                })?;
                let bad = off.is_nan() || off > if dtype == DType::F32 { 1e-5 } else { 4e-3 };
                wrong += usize::from(bad);
                println!(
                    "{:<40}{copy:>10.2}{us:>10.2}{:>10.3}{calls:>12.2}{candle:>12.2}{off:>12.1e}{}",
                    what(),
                    us / copy,
                    if bad { " WRONG" } else { "" }
                );
            }
        }
    }
    println!("\n{wrong} wrong outputs");
    Ok(wrong == 0)
}
