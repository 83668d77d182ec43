//! Softmax on one GPU beside a copy of the tensor and candle's own kernel. Needs a GPU:
//!
//! ```text
//! cargo bench --features cuda --bench cuda [-- OUT.csv]
//! ```
//!
//! K (input, output) pairs whose bytes come to 4 times the L2 or more are launched back to back in one CUDA graph, each
//! launch on its own pair, so that no launch finds its input in the cache; us = median replay / K. GB/s counts one read
//! and one write of the tensor (backward: two reads, one write). Peers:
//!
//! - `null`: an empty kernel, the floor of the method; `memcpy`: a device-to-device copy, the ceiling;
//! - `ours`, `ours_inplace`, `ours_backward`: this crate's [`OnlineSoftmax`](candle_online_softmax::OnlineSoftmax);
//! - `candle`: `candle_nn::ops::softmax_last_dim`.
//!
//! `BENCH_SHAPES=4096x8192,8x151936`, `BENCH_DTYPES=f32,bf16`, `BENCH_PEERS=memcpy,ours` narrow it down. It exits with 1
//! if an output is wrong.

#[cfg(feature = "cuda")]
mod replay;

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("bench cuda: needs a GPU and `--features cuda`; nothing was measured");
}

#[cfg(feature = "cuda")]
fn main() -> std::process::ExitCode {
    match gpu::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench cuda: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use super::replay::Replay;
    use anyhow::{Context, Result};
    use candle_core::{CustomOp1, DType, Device, Tensor};
    use candle_online_softmax::OnlineSoftmax;
    use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
    use cudarc::driver::LaunchConfig;
    use std::{collections::HashMap, fmt::Write as _, io::Write as _, str::FromStr, time::Instant};

    const SHAPES: &str = "32768x128,32768x256,16384x512,4096x1000,16384x1024,8192x2048,2048x4096,4096x8192,2048x32768,\
                          4096x50257,1024x65536,1x128256,64x128256,512x131072,8x151936,128x262144";
    const PEERS: &str = "null,memcpy,ours,ours_inplace,ours_backward,candle";
    /// Seconds of replay for one figure, and the longest that one replay may take: a launch so slow that fewer than K
    /// of them fill it is far from any cache effect, and gets fewer.
    const BUDGET: f64 = 0.025;
    const LONGEST: f64 = 0.060;
    const NULL: &str =
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry null_kernel() { ret; }";

    fn list<T: FromStr>(var: &str, default: &str) -> Result<Vec<T>>
    where
        T::Err: std::fmt::Display,
    {
        let text = std::env::var(var).unwrap_or_else(|_| default.into());
        text.split(',')
            .map(|w| T::from_str(w).map_err(|e| anyhow::anyhow!("{var}: {w:?}: {e}")))
            .collect()
    }

    struct Shape(usize, usize);

    impl FromStr for Shape {
        type Err = String;
        fn from_str(s: &str) -> Result<Self, String> {
            let (r, c) = s.split_once('x').ok_or("expected ROWSxCOLS")?;
            let size = |n: &str| n.parse::<usize>().ok().filter(|&n| n > 0);
            Ok(Self(
                size(r).ok_or("bad row count")?,
                size(c).ok_or("bad column count")?,
            ))
        }
    }

    /// The tensors of one cell: inputs, their softmax for backward, and twice as many to overwrite in place: there is no
    /// second tensor then, and the bytes must come to as much.
    struct Cell {
        x: Vec<Tensor>,
        y: Vec<Tensor>,
        z: Vec<Tensor>,
    }

    impl Cell {
        fn new(rows: usize, cols: usize, dtype: DType, k: usize, dev: &Device) -> Result<Self> {
            // Eight different inputs, and copies of them: drawing them all takes longer than the measurement.
            let mut x: Vec<Tensor> = Vec::with_capacity(k);
            for i in 0..k {
                x.push(if i < 8 {
                    Tensor::randn(0f32, 3f32, (rows, cols), dev)?.to_dtype(dtype)?
                } else {
                    x[i % 8].copy()?
                });
            }
            let y = x.iter().map(|x| Ok(x.apply_op1(OnlineSoftmax)?));
            let y = y.collect::<Result<_>>()?;
            let z = x.iter().chain(&x).map(|x| Ok(x.copy()?));
            let z = z.collect::<Result<_>>()?;
            Ok(Self { x, y, z })
        }

        /// How many launches there are tensors for.
        fn launches(&self, peer: &str) -> usize {
            match peer {
                "ours_inplace" => self.z.len(),
                _ => self.x.len(),
            }
        }

        fn launch(&self, peer: &str, i: usize) -> Result<Tensor> {
            let (x, y) = (&self.x[i % self.x.len()], &self.y[i % self.x.len()]);
            Ok(match peer {
                "memcpy" => x.copy()?,
                "ours" => x.apply_op1(OnlineSoftmax)?,
                "ours_inplace" => {
                    self.z[i].inplace_op1(&OnlineSoftmax)?;
                    self.z[i].clone()
                }
                // The gradient is the input's tensor: any numbers do, and `bwd` does not read its first argument.
                "ours_backward" => OnlineSoftmax
                    .bwd(x, y, x)?
                    .context("bwd gave no gradient")?,
                "candle" => candle_nn::ops::softmax_last_dim(x)?,
                _ => anyhow::bail!("BENCH_PEERS: no peer {peer:?} (there are {PEERS})"),
            })
        }
    }

    /// The largest absolute error over the first, a middle and the last row, against f64 on the host.
    fn error(peer: &str, x: &Tensor, y: &Tensor, out: &Tensor) -> Result<f64> {
        let rows = x.dim(0)?;
        let mut worst = 0f64;
        for row in [0, rows / 2, rows - 1] {
            let host = |t: &Tensor| -> Result<Vec<f64>> {
                let row = t.narrow(0, row, 1)?.flatten_all()?;
                Ok(row
                    .to_device(&Device::Cpu)?
                    .to_dtype(DType::F64)?
                    .to_vec1()?)
            };
            let (x, got) = (host(x)?, host(out)?);
            let want = match peer {
                "memcpy" => x,
                "ours_backward" => {
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

    struct Figure {
        us: f64,
        error: f64,
        launches: usize,
        method: &'static str,
    }

    fn measure(dev: &Device, cell: &Cell, peer: &str) -> Result<Figure> {
        let cuda = dev.as_cuda_device()?;
        cell.launch(peer, 0)?;
        dev.synchronize()?;
        let start = Instant::now();
        cell.launch(peer, 0)?;
        dev.synchronize()?;
        let fit = (LONGEST / start.elapsed().as_secs_f64()) as usize;
        let launches = fit.clamp(2, cell.launches(peer));
        let replay = Replay::capture(cuda, launches, &|i| cell.launch(peer, i))?;
        let us = replay.seconds_a_launch(BUDGET)? * 1e6;
        // Overwritten before a last replay: a graph that writes nothing must not pass for a fast one. In place this is
        // also the input.
        let last = (launches - 1) % cell.x.len();
        let (x, y) = (&cell.x[last], &cell.y[last]);
        replay.last().zero_set()?;
        if peer == "ours_inplace" {
            replay.last().slice_set(x, 0, 0)?;
        }
        replay.seconds()?;
        let error = error(peer, x, y, replay.last())?;
        Ok(Figure {
            us,
            error,
            launches,
            method: replay.method(),
        })
    }

    fn null(dev: &Device) -> Result<f64> {
        let cuda = dev.as_cuda_device()?;
        let kernel = cuda.get_or_load_custom_func("null_kernel", "bench_null", NULL)?;
        let one = Tensor::zeros(1, DType::F32, dev)?;
        let config = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (32, 1, 1),
            shared_mem_bytes: 0,
        };
        let launch = |_| {
            unsafe { kernel.builder().launch(config) }?;
            Ok(one.clone())
        };
        Ok(Replay::capture(cuda, 512, &launch)?.seconds_a_launch(BUDGET)? * 1e6)
    }

    /// Runs everything; whether all outputs were right.
    pub fn run() -> Result<bool> {
        let started = Instant::now();
        let out = std::env::args().skip(1).find(|a| !a.starts_with('-'));
        let shapes: Vec<Shape> = list("BENCH_SHAPES", SHAPES)?;
        let dtypes: Vec<DType> = list("BENCH_DTYPES", "f32,bf16,f16")?;
        let peers: Vec<String> = list("BENCH_PEERS", PEERS)?;
        let mut csv: Box<dyn std::io::Write> = match &out {
            Some(path) => Box::new(std::fs::File::create(path).context(path.clone())?),
            None => Box::new(std::io::sink()),
        };
        writeln!(
            csv,
            "peer,rows,cols,dtype,us,GBps,frac_of_copy,max_abs_err,method,note"
        )?;
        let dev = Device::new_cuda(0).context("no CUDA device")?;
        let cuda = dev.as_cuda_device()?;
        // One stream, and no event may be recorded inside a capture and waited for outside.
        unsafe { cuda.disable_event_tracking() };
        let context = cuda.cuda_stream().context().clone();
        let l2 = context.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize;
        println!("{}, L2 {} MiB", context.name()?, l2 >> 20);
        if peers.iter().any(|p| p == "null") {
            let us = null(&dev)?;
            println!("null kernel in a graph: {us:.2} us a launch");
            writeln!(csv, "null,0,0,,{us:.3},,,,graph,")?;
        }

        let mut wrong = 0;
        let mut table = String::new();
        let (mut cells, mut slower) = (0, Vec::new());
        for &Shape(rows, cols) in &shapes {
            for &dtype in &dtypes {
                let name = format!("{rows}x{cols} {}", dtype.as_str());
                let bytes = rows * cols * dtype.size_in_bytes();
                let k = (4 * l2).div_ceil(2 * bytes).clamp(2, 512);
                let cell = Cell::new(rows, cols, dtype, k, &dev).with_context(|| name.clone())?;
                let mut us = HashMap::new();
                let mut line = format!("{name:<20} K={k:<4}");
                for peer in peers.iter().filter(|p| *p != "null") {
                    let f = measure(&dev, &cell, peer).with_context(|| format!("{peer} {name}"))?;
                    let moved = if peer == "ours_backward" { 3 } else { 2 } * bytes;
                    let gbps = moved as f64 / f.us * 1e-3;
                    us.insert(peer.as_str(), f.us);
                    let copy = us
                        .get("memcpy")
                        .map(|us| gbps * us / (2 * bytes) as f64 * 1e3);
                    let tolerance = if dtype == DType::F32 { 1e-5 } else { 8e-3 };
                    let bad = f.error.is_nan() || f.error > tolerance;
                    wrong += usize::from(bad);
                    let mut note = if bad { "WRONG" } else { "" }.to_string();
                    if f.launches < cell.launches(peer) {
                        write!(note, " K={}", f.launches)?;
                    }
                    writeln!(
                        csv,
                        "{peer},{rows},{cols},{},{:.3},{gbps:.1},{},{:.2e},{},{}",
                        dtype.as_str(),
                        f.us,
                        copy.map_or(String::new(), |c| format!("{c:.4}")),
                        f.error,
                        f.method,
                        note.trim()
                    )?;
                    csv.flush()?;
                    write!(
                        line,
                        " {peer} {gbps:.0} GB/s ({:.1} us{}{note})",
                        f.us,
                        if bad { " " } else { "" }
                    )?;
                }
                println!("{line}");
                let column = |p| us.get(p).map_or("-".into(), |t| format!("{t:.1}"));
                let ratio = |a, b| match (us.get(a), us.get(b)) {
                    (Some(a), Some(b)) => Some(a / b),
                    _ => None,
                };
                let shown = |r: Option<f64>| r.map_or("-".into(), |r| format!("{r:.3}"));
                let (candle, copy) = (ratio("ours", "candle"), ratio("ours", "memcpy"));
                if let Some(r) = candle {
                    cells += 1;
                    if r > 1. {
                        slower.push(format!("{name} ({r:.3})"));
                    }
                }
                write!(table, "{name:<20}")?;
                for p in PEERS.split(',').skip(1) {
                    write!(table, "{:>14}", column(p))?;
                }
                writeln!(table, "{:>13}{:>13}", shown(candle), shown(copy))?;
            }
        }
        print!("\n{:<20}", "us a launch");
        for p in PEERS.split(',').skip(1) {
            print!("{p:>14}");
        }
        println!("{:>13}{:>13}\n{table}", "ours/candle", "ours/memcpy");
        println!(
            "ours is slower than candle in {} of {cells} cells{}{}",
            slower.len(),
            if slower.is_empty() { "" } else { ": " },
            slower.join(", ")
        );
        println!(
            "{wrong} wrong outputs; {:.0} s",
            started.elapsed().as_secs_f64()
        );
        Ok(wrong == 0)
    }
}
