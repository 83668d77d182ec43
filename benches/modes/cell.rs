//! The tensors of one cell, what each peer launches on them, and the figure that comes of it.

use crate::replay::{Edges, Gpu, Replay};
use anyhow::{Context, Result};
use candle_core::{CustomOp1, DType, Device, Tensor};
use candle_online_softmax::OnlineSoftmax;
use std::fmt::Write as _;

/// `ours_apart`: as `ours`, each launch after the end of the one before.
pub const PEERS: &str = "null,memcpy,ours,ours_apart,ours_inplace,ours_backward,candle";

/// Inputs; their softmax, for backward; and twice as many tensors to overwrite in place: there is no second tensor then,
/// and the bytes must come to as much.
pub struct Cell {
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
    x: Vec<Tensor>,
    y: Vec<Tensor>,
    z: Vec<Tensor>,
}

/// One measured cell of one peer.
pub struct Figure {
    pub us: f64,
    pub gbps: f64,
    pub error: f64,
    pub wrong: bool,
    pub method: &'static str,
    pub note: String,
}

impl Cell {
    pub fn new(
        gpu: &Gpu,
        rows: usize,
        cols: usize,
        dtype: DType,
        peers: &[String],
    ) -> Result<Self> {
        let bytes = rows * cols * dtype.size_in_bytes();
        let x = inputs(gpu, &[rows, cols], dtype, gpu.pairs(bytes))?;
        let has = |peer: &str| peers.iter().any(|p| p == peer);
        let mut cell = Self {
            rows,
            cols,
            dtype,
            x,
            y: Vec::new(),
            z: Vec::new(),
        };
        if has("ours_backward") {
            let y = cell.x.iter().map(|x| Ok(x.apply_op1(OnlineSoftmax)?));
            cell.y = y.collect::<Result<_>>()?;
        }
        if has("ours_inplace") {
            let z = cell.x.iter().chain(&cell.x).map(|x| Ok(x.copy()?));
            cell.z = z.collect::<Result<_>>()?;
        }
        Ok(cell)
    }

    pub fn name(&self) -> String {
        format!("{}x{} {}", self.rows, self.cols, self.dtype.as_str())
    }

    /// K, the pairs of tensors.
    pub fn pairs(&self) -> usize {
        self.x.len()
    }

    /// Bytes that a launch must move: the tensor read and written; backward reads two.
    fn moved(&self, peer: &str) -> usize {
        let tensors = if peer == "ours_backward" { 3 } else { 2 };
        tensors * self.rows * self.cols * self.dtype.size_in_bytes()
    }

    fn launch(&self, peer: &str, i: usize) -> Result<Tensor> {
        let x = &self.x[i % self.x.len()];
        Ok(match peer {
            "memcpy" => x.copy()?,
            "ours" | "ours_apart" => x.apply_op1(OnlineSoftmax)?,
            "ours_inplace" => {
                self.z[i].inplace_op1(&OnlineSoftmax)?;
                self.z[i].clone()
            }
            // The gradient is the input's tensor: any numbers do, and `bwd` does not read its first argument.
            "ours_backward" => OnlineSoftmax
                .bwd(x, &self.y[i % self.y.len()], x)?
                .context("bwd gave no gradient")?,
            "candle" => candle_nn::ops::softmax_last_dim(x)?,
            _ => anyhow::bail!("BENCH_PEERS: no peer {peer:?} (there are {PEERS})"),
        })
    }

    /// Measures the peers one after another and hands each figure on, with its bandwidth over that of the copy if
    /// that came before; how many outputs were wrong.
    pub fn measure_each(
        &self,
        gpu: &Gpu,
        peers: &[String],
        mut take: impl FnMut(&str, &Figure, Option<f64>) -> Result<()>,
    ) -> Result<usize> {
        let (mut copy, mut wrong) = (None, 0);
        for peer in peers.iter().filter(|p| *p != "null") {
            let f = self
                .measure(gpu, peer)
                .with_context(|| format!("{peer} {}", self.name()))?;
            if peer == "memcpy" {
                copy = Some(f.gbps);
            }
            wrong += usize::from(f.wrong);
            take(peer, &f, copy.map(|c| f.gbps / c))?;
        }
        Ok(wrong)
    }

    fn measure(&self, gpu: &Gpu, peer: &str) -> Result<Figure> {
        let most = match peer {
            "ours_inplace" => self.z.len(),
            _ => self.x.len(),
        };
        let edges = Edges::of(peer);
        let replay = Replay::fitting(&gpu.cuda, most, edges, &|i| self.launch(peer, i))?;
        let us = replay.us()?;
        // Overwritten before a last replay: a graph that writes nothing must not pass for a fast one. In place this is
        // also the input.
        let last = (replay.launches() - 1) % self.x.len();
        replay.last().zero_set()?;
        if peer == "ours_inplace" {
            replay.last().slice_set(&self.x[last], 0, 0)?;
        }
        replay.seconds()?;
        let error = error(peer, &self.x[last], self.y.get(last), replay.last())?;
        let wrong = too_far(error, self.dtype);
        let mut note = if wrong { "WRONG" } else { "" }.to_string();
        if replay.launches() < most {
            write!(note, " K={}", replay.launches())?;
        }
        Ok(Figure {
            us,
            gbps: self.moved(peer) as f64 / us * 1e-3,
            error,
            wrong,
            method: replay.method(),
            note: note.trim().into(),
        })
    }
}

/// `k` normal tensors. Eight different ones and copies of them: drawing them all takes longer than the measurement.
pub fn inputs(gpu: &Gpu, shape: &[usize], dtype: DType, k: usize) -> Result<Vec<Tensor>> {
    let mut x: Vec<Tensor> = Vec::with_capacity(k);
    for i in 0..k {
        x.push(if i < 8 {
            Tensor::randn(0f32, 3f32, shape, &gpu.device)?.to_dtype(dtype)?
        } else {
            x[i % 8].copy()?
        });
    }
    Ok(x)
}

/// The largest absolute error of 2-D tensors over the first, a middle and the last row, against f64 on the host.
pub fn error(peer: &str, x: &Tensor, y: Option<&Tensor>, out: &Tensor) -> Result<f64> {
    let rows = x.dim(0)?;
    let mut worst = 0f64;
    for row in [0, rows / 2, rows - 1] {
        let host = |t: &Tensor| -> Result<Vec<f64>> {
            // The row alone: a view would take its whole storage to the host.
            let row = t.narrow(0, row, 1)?.force_contiguous()?;
            Ok(row
                .flatten_all()?
                .to_device(&Device::Cpu)?
                .to_dtype(DType::F64)?
                .to_vec1()?)
        };
        let (x, got) = (host(x)?, host(out)?);
        let want = match (peer, y) {
            ("memcpy", _) => x,
            ("ours_backward", Some(y)) => {
                let y = host(y)?;
                let dot: f64 = x.iter().zip(&y).map(|(g, y)| g * y).sum();
                x.iter().zip(&y).map(|(g, y)| y * (g - dot)).collect()
            }
            _ => {
                let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
                x.iter().map(|x| (x - max).exp() / sum).collect()
            }
        };
        for (got, want) in got.iter().zip(&want) {
            let e = (got - want).abs();
            worst = if e <= worst { worst } else { e }; // a NaN stays
        }
    }
    Ok(worst)
}

/// Whether an absolute error is no rounding error: halves round results up to 1 by 2e-3 (bf16).
pub fn too_far(error: f64, dtype: DType) -> bool {
    let tolerance = if dtype == DType::F32 { 1e-5 } else { 8e-3 };
    error.is_nan() || error > tolerance
}
