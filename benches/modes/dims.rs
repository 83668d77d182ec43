//! `BENCH_DIMS=1`: rows whose columns lie apart: a dim other than the last, and the last dim of a transposed tensor.
//!
//! candle's `softmax` is several kernels with tensors between them, which a replay would have to keep: it is timed by
//! back-to-back calls (`candle_calls`), and this crate both so (`ours_calls`) and replayed (`ours`).

use super::cell::{error, inputs, too_far, Figure};
use super::report::Report;
use crate::args::list;
use crate::replay::{us_a_call, Edges, Gpu, Replay};
use anyhow::{bail, Context, Result};
use candle_core::{DType, Tensor};
use std::collections::HashMap;

const PEERS: &str = "memcpy,ours,ours_calls,candle_calls";

/// Calls a round at least: the host's lead over the device, which the first calls of a round lack, must not show.
const CALLS: usize = 32;

/// softmax(x, dim), of a contiguous tensor or of its transpose.
struct Case {
    shape: &'static [usize],
    transposed: bool,
    dim: usize,
}

const CASES: [Case; 4] = [
    of(&[64, 1000, 256], false, 1),
    of(&[8, 4096, 64], false, 1),
    of(&[65536, 7, 7], false, 1),
    of(&[8192, 4096], true, 1),
];

const fn of(shape: &'static [usize], transposed: bool, dim: usize) -> Case {
    Case {
        shape,
        transposed,
        dim,
    }
}

impl Case {
    fn name(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let transposed = if self.transposed { " transposed" } else { "" };
        format!("dim {} of {}{transposed}", self.dim, sizes.join("x"))
    }

    fn view(&self, x: &Tensor) -> Result<Tensor> {
        Ok(if self.transposed { x.t()? } else { x.clone() })
    }

    /// The rows along `dim`, as a contiguous 2-D tensor.
    fn rows(&self, t: &Tensor) -> Result<Tensor> {
        let last = t.transpose(self.dim, t.rank() - 1)?.contiguous()?;
        let cols = last.dim(last.rank() - 1)?;
        Ok(last.reshape(((), cols))?)
    }

    fn measure(&self, gpu: &Gpu, peer: &str, x: &[Tensor]) -> Result<Figure> {
        let views = x.iter().map(|x| self.view(x)).collect::<Result<Vec<_>>>()?;
        let launch = |i: usize| -> Result<Tensor> {
            let (x, view) = (&x[i % x.len()], &views[i % x.len()]);
            Ok(match peer {
                "memcpy" => x.copy()?,
                "ours" | "ours_calls" => candle_online_softmax::softmax(view, self.dim)?,
                "candle_calls" => candle_nn::ops::softmax(view, self.dim)?,
                _ => bail!("BENCH_PEERS: no peer {peer:?} (there are {PEERS})"),
            })
        };
        let (us, last, out, method);
        if peer.ends_with("_calls") {
            us = us_a_call(&gpu.cuda, x.len().max(CALLS), &launch)?;
            last = 0;
            out = launch(last)?;
            method = "calls";
        } else {
            let replay = Replay::fitting(&gpu.cuda, x.len(), Edges::of(peer), &launch)?;
            us = replay.us()?;
            last = (replay.launches() - 1) % x.len();
            replay.last().zero_set()?;
            replay.seconds()?;
            out = replay.last().copy()?;
            method = replay.method();
        }
        let error = match peer {
            "memcpy" => error(peer, &self.rows(&x[last])?, None, &self.rows(&out)?)?,
            _ => error(peer, &self.rows(&views[last])?, None, &self.rows(&out)?)?,
        };
        let (dtype, bytes) = (
            x[0].dtype(),
            x[0].elem_count() * x[0].dtype().size_in_bytes(),
        );
        // candle rounds to the dtype between its kernels.
        let allowed = if peer == "candle_calls" { 4. } else { 1. };
        let wrong = too_far(error / allowed, dtype);
        let note = format!("{}{}", self.name(), if wrong { " WRONG" } else { "" });
        Ok(Figure {
            us,
            gbps: (2 * bytes) as f64 / us * 1e-3,
            error,
            wrong,
            method,
            note,
        })
    }
}

/// Whether all outputs were right.
pub fn run(out: Option<&String>) -> Result<bool> {
    let dtypes: Vec<DType> = list("BENCH_DTYPES", "f32,bf16")?;
    let peers: Vec<String> = list("BENCH_PEERS", PEERS)?;
    let mut report = Report::create(out, "")?;
    let gpu = Gpu::open()?;
    print!("{:<36}", "us a launch");
    for peer in &peers {
        print!("{peer:>14}");
    }
    println!("{:>14}{:>14}", "ours/memcpy", "ours/candle");
    let mut wrong = 0;
    for case in &CASES {
        for &dtype in &dtypes {
            let count: usize = case.shape.iter().product();
            let k = gpu.pairs(count * dtype.size_in_bytes());
            let x = inputs(&gpu, case.shape, dtype, k)?;
            let cols = case.view(&x[0])?.dim(case.dim)?;
            let name = format!("{} {}", case.name(), dtype.as_str());
            print!("{name:<36}");
            let (mut us, mut copy) = (HashMap::new(), None);
            for peer in &peers {
                let f = case
                    .measure(&gpu, peer, &x)
                    .with_context(|| format!("{peer}, {name}"))?;
                if peer == "memcpy" {
                    copy = Some(f.gbps);
                }
                let of_copy = copy.map(|c| f.gbps / c);
                report.row(peer, (count / cols, cols, dtype), &f, of_copy, "")?;
                print!(
                    "{:>14}",
                    format!("{:.1}{}", f.us, if f.wrong { "!" } else { "" })
                );
                us.insert(peer.as_str(), f.us);
                wrong += usize::from(f.wrong);
            }
            let ratio = |a, b| match (us.get(a), us.get(b)) {
                (Some(a), Some(b)) => format!("{:.3}", a / b),
                _ => "-".into(),
            };
            let candle = ratio("ours_calls", "candle_calls");
            println!("{:>14}{candle:>14}", ratio("ours", "memcpy"));
        }
    }
    println!("\nours/candle compares back-to-back calls of both; {wrong} wrong outputs");
    Ok(wrong == 0)
}
