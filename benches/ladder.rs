//! The classic steps of a softmax kernel (`kernels/ladder.cu`), then this crate's operator and a copy. Needs a GPU:
//!
//! ```text
//! cargo bench --features cuda --bench ladder [-- OUT.csv | OUT.md]
//! ```
//!
//! NVRTC compiles the steps for the GPU at hand. Every step is checked against f64 on rows of all kinds, aligned or not,
//! with grids that cover the rows and grids that must loop; then timed as `benches/cuda.rs` times: launches on tensors of
//! 4 times the L2, replayed from one CUDA graph. GB/s counts one read and one write, whatever the step reads.
//!
//! `BENCH_SHAPES=2048x4096,..` for other shapes. It exits with 1 if an output is wrong.

#[cfg(feature = "cuda")]
#[allow(dead_code)]
mod args;
#[cfg(feature = "cuda")]
#[path = "../tests/operators/reference.rs"]
#[allow(dead_code)]
mod reference;
#[cfg(feature = "cuda")]
#[allow(dead_code)]
mod replay;
#[cfg(feature = "cuda")]
mod steps;

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("bench ladder: needs a GPU and `--features cuda`; nothing was measured");
}

#[cfg(feature = "cuda")]
fn main() -> std::process::ExitCode {
    match ladder::run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench ladder: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "cuda")]
mod ladder {
    use super::args::{list, paths, Shape};
    use super::reference::softmax_row;
    use super::replay::{Edges, Gpu, Replay};
    use super::steps::check::{check_rows, check_step};
    use super::steps::table::{Figure, Table};
    use super::steps::{Grid, Kernels, STEPS};
    use anyhow::{ensure, Context, Result};
    use candle_core::Tensor;
    use candle_online_softmax::OnlineSoftmax;

    /// The classic; short rows; rows too long for registers; few rows.
    const SHAPES: &str = "2048x4096,32768x128,512x131072,8x151936";

    /// Whether all outputs were right.
    pub fn run() -> Result<bool> {
        let paths = paths();
        let shapes: Vec<Shape> = list("BENCH_SHAPES", SHAPES)?;
        ensure!(
            paths
                .iter()
                .all(|p| p.ends_with(".csv") || p.ends_with(".md")),
            "requires OUT.csv or OUT.md, got {paths:?}"
        );
        let gpu = Gpu::open()?;
        let kernels = Kernels::compile(&gpu.cuda)?;
        let mut wrong = 0;
        for step in &STEPS {
            let worst = check_step(&gpu.device, &kernels, step)?;
            wrong += usize::from(worst.is_none());
            match worst {
                Some(error) => println!("{:<16}right, relative error to {error:.1e}", step.name),
                None => println!("{:<16}WRONG", step.name),
            }
        }
        let mut table = Table::new(&shapes);
        for (column, &shape) in shapes.iter().enumerate() {
            println!("timing {}x{}", shape.0, shape.1);
            wrong += time(&gpu, &kernels, shape, &mut table, column)?;
        }
        println!("\n{}", table.text());
        for path in &paths {
            let text = if path.ends_with(".md") {
                table.markdown()
            } else {
                table.csv()
            };
            std::fs::write(path, text).context(path.clone())?;
        }
        println!("{wrong} wrong outputs");
        Ok(wrong == 0)
    }

    /// Times every row of the table on one shape; how many were wrong.
    fn time(
        gpu: &Gpu,
        kernels: &Kernels,
        Shape(rows, cols): Shape,
        table: &mut Table,
        column: usize,
    ) -> Result<usize> {
        let bytes = rows * cols * size_of::<f32>();
        let mut x: Vec<Tensor> = Vec::new();
        for i in 0..gpu.pairs(bytes) {
            // Eight different tensors and copies of them.
            x.push(match i {
                0..8 => Tensor::randn(0f32, 3f32, (rows, cols), &gpu.device)?,
                _ => x[i % 8].copy()?,
            });
        }
        let mut wrong = 0;
        let mut peer = |name: &str, slack: f64, launch: &dyn Fn(&Tensor) -> Result<Tensor>| {
            let replay = Replay::fitting(&gpu.cuda, x.len(), Edges::of(name), &|i| {
                launch(&x[i % x.len()])
            })
            .with_context(|| format!("{name}, {rows}x{cols}"))?;
            let us = replay.us()?;
            // Zeroed before a last replay: a graph that writes nothing must not pass for a fast one.
            let last = &x[(replay.launches() - 1) % x.len()];
            replay.last().zero_set()?;
            replay.seconds()?;
            let some = [0, rows / 2, rows - 1];
            let want = match name {
                "memcpy" => |x: &[f64]| x.to_vec(),
                _ => softmax_row,
            };
            let fault = check_rows(last, replay.last(), &some, slack, want)?.err();
            if let Some(fault) = &fault {
                println!("WRONG: {name}, {rows}x{cols}: {fault}");
            }
            wrong += usize::from(fault.is_some());
            let figure = Figure::new(us, 2 * bytes, fault.is_some());
            table.set(name, column, figure);
            anyhow::Ok(())
        };
        peer("memcpy", 0., &|x| Ok(x.copy()?))?;
        for step in &STEPS {
            if let Some(op) = kernels.op(step, cols, Grid::Covering)? {
                let slack = step.rounding(cols);
                peer(step.name, slack, &|x| Ok(x.apply_op1_no_bwd(&op)?))?;
            }
        }
        peer("ours", 0., &|x| Ok(x.apply_op1(OnlineSoftmax)?))?;
        Ok(wrong)
    }
}
