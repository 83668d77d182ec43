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
//! `BENCH_SHAPES=4096x8192,8x151936`, `BENCH_DTYPES=f32,bf16`, `BENCH_PEERS=memcpy,ours` narrow it down.
//! `BENCH_PEERS_CSV=FILE`, measurements of other libraries with the same columns, puts the best of them beside each cell.
//! Other modes:
//!
//! - `BENCH_SWEEP=1`: bandwidth over 1 to 1048577 columns (`BENCH_COLS=..` for others), and where it falls behind;
//! - `BENCH_DIMS=1`: dims other than the last, and a transposed tensor;
//! - `BENCH_ATTENTION=1`: attention scores (printed only);
//! - `BENCH_HOST=1`: what a call costs the host, and the first call (printed only).
//!
//! It exits with 1 if an output is wrong.

#[cfg(feature = "cuda")]
#[allow(dead_code)]
mod args;
#[cfg(feature = "cuda")]
mod modes;
#[cfg(feature = "cuda")]
mod records;
#[cfg(feature = "cuda")]
mod replay;

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("bench cuda: needs a GPU and `--features cuda`; nothing was measured");
}

#[cfg(feature = "cuda")]
fn main() -> std::process::ExitCode {
    match run() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench cuda: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Whether all outputs were right.
#[cfg(feature = "cuda")]
fn run() -> anyhow::Result<bool> {
    let started = std::time::Instant::now();
    let paths = args::paths();
    let out = paths.first();
    let right = if args::flag("BENCH_HOST") {
        modes::host::run()?
    } else if args::flag("BENCH_ATTENTION") {
        modes::attention::run()?
    } else if args::flag("BENCH_DIMS") {
        modes::dims::run(out)?
    } else if args::flag("BENCH_SWEEP") {
        modes::sweep::run(out)?
    } else {
        modes::grid::run(out)?
    };
    println!("{:.0} s", started.elapsed().as_secs_f64());
    Ok(right)
}
