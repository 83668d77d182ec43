//! The CPU's cells: an operator on a shape and dtype, by each implementation there is of it.

use candle_core::{CustomOp1, DType, Device, Result, Tensor};
use candle_online_softmax::OnlineSoftmax;
use rten_simd::SimdOp;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// An operator on a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub op: Op,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    /// Over the last dim of (rows, cols).
    Softmax,
    /// Over dim 0 of (cols, rows).
    SoftmaxDim0,
    /// The gradient of the former.
    Backward,
}

/// A way to do a cell, ready to be timed.
pub struct Way {
    pub name: &'static str,
    pub run: Box<dyn Fn() -> Result<()>>,
}

impl Cell {
    /// "softmax f32 1024 4096".
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let op = match words.next()? {
            "softmax" => Op::Softmax,
            "dim0" => Op::SoftmaxDim0,
            "backward" => Op::Backward,
            _ => return None,
        };
        Some(Self {
            op,
            dtype: words.next()?.parse().ok()?,
            rows: words.next()?.parse().ok()?,
            cols: words.next()?.parse().ok()?,
        })
    }

    /// Bytes read and written, each element once.
    pub fn bytes(&self) -> u64 {
        let tensors = if self.op == Op::Backward { 3 } else { 2 };
        (tensors * self.rows * self.cols * self.dtype.size_in_bytes()) as u64
    }

    /// Ours first; a copy of the tensor as the others make their results, in fresh memory, last.
    pub fn ways(&self) -> Result<Vec<Way>> {
        let shape = match self.op {
            Op::SoftmaxDim0 => (self.cols, self.rows),
            _ => (self.rows, self.cols),
        };
        let normal = || Tensor::randn(0f32, 1f32, shape, &Device::Cpu)?.to_dtype(self.dtype);
        let (x, g) = (normal()?, normal()?);
        let y = x.apply_op1(OnlineSoftmax)?;
        let mut ways = Vec::new();
        let mut way = |name, run: Box<dyn Fn() -> Result<()>>| ways.push(Way { name, run });
        let (a, b) = (x.clone(), x.clone());
        match self.op {
            Op::Softmax => {
                way(
                    "ours",
                    Box::new(move || a.apply_op1(OnlineSoftmax).map(drop)),
                );
                way(
                    "candle",
                    Box::new(move || candle_nn::ops::softmax_last_dim(&b).map(drop)),
                );
                let c = x.clone();
                way(
                    "candle_ops",
                    Box::new(move || candle_nn::ops::softmax(&c, 1).map(drop)),
                );
                if self.dtype == DType::F32 {
                    way("rten", rten(&x)?);
                }
            }
            Op::SoftmaxDim0 => {
                way(
                    "ours",
                    Box::new(move || candle_online_softmax::softmax(&a, 0).map(drop)),
                );
                way(
                    "candle_ops",
                    Box::new(move || candle_nn::ops::softmax(&b, 0).map(drop)),
                );
            }
            Op::Backward => {
                let ours = move || CustomOp1::bwd(&OnlineSoftmax, &a, &y, &g).map(drop);
                way("ours", Box::new(ours));
            }
        }
        way("copy", Box::new(move || x.force_contiguous().map(drop)));
        Ok(ways)
    }
}

/// The crate rten-vecmath, row after row on this thread, into memory there is.
fn rten(x: &Tensor) -> Result<Box<dyn Fn() -> Result<()>>> {
    let cols = x.dim(1)?;
    let x = x.flatten_all()?.to_vec1::<f32>()?;
    let y = std::cell::RefCell::new(vec![MaybeUninit::uninit(); x.len()]);
    Ok(Box::new(move || {
        for (x, y) in x.chunks(cols).zip(y.borrow_mut().chunks_mut(cols)) {
            rten_vecmath::Softmax::new(x, y).dispatch();
        }
        Ok(())
    }))
}

/// Shortest time of `way` in `span`, after a first call.
pub fn shortest(way: &Way, span: Duration) -> Result<Duration> {
    (way.run)()?;
    let (began, mut shortest) = (Instant::now(), Duration::MAX);
    while began.elapsed() < span {
        let start = Instant::now();
        (way.run)()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}
