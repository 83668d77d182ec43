//! The usual mode: every peer on chosen shapes, one table.

use super::cell::{Cell, PEERS};
use super::report::Report;
use crate::args::{list, Shape};
use crate::records::{self, Record, NOT_SOFTMAX};
use crate::replay::{Edges, Gpu, Replay};
use anyhow::{Context, Result};
use candle_core::{DType, Tensor};
use cudarc::driver::LaunchConfig;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

const SHAPES: &str =
    "32768x128,32768x256,16384x512,4096x1000,16384x1024,8192x2048,2048x4096,4096x8192,2048x32768,\
                      4096x50257,1024x65536,1x128256,64x128256,512x131072,8x151936,128x262144";
const NULL: &str =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry null_kernel() { ret; }";
/// The columns a peers' file adds; empty beside what is no softmax forward.
const BEST: &str = ",best_peer,best_peer_us,best_peer_GBps,frac_of_best_peer";
const NO_BEST: &str = ",,,,";

/// Whether all outputs were right.
pub fn run(out: Option<&String>) -> Result<bool> {
    let shapes: Vec<Shape> = list("BENCH_SHAPES", SHAPES)?;
    let dtypes: Vec<DType> = list("BENCH_DTYPES", "f32,bf16,f16")?;
    let peers: Vec<String> = list("BENCH_PEERS", PEERS)?;
    let elsewhere = match std::env::var("BENCH_PEERS_CSV") {
        Ok(path) => Some(records::read(Path::new(&path)).context("BENCH_PEERS_CSV")?),
        Err(_) => None,
    };
    let more = |columns: &str| match elsewhere {
        Some(_) => columns.to_string(),
        None => String::new(),
    };
    let mut report = Report::create(out, &more(BEST))?;
    let gpu = Gpu::open()?;
    if peers.iter().any(|p| p == "null") {
        let us = null(&gpu)?;
        println!("null kernel in a graph: {us:.2} us a launch");
        report.null(us, &more(NO_BEST))?;
    }

    let (mut wrong, mut cells, mut slower) = (0, 0, Vec::new());
    let mut table = String::new();
    for &Shape(rows, cols) in &shapes {
        for &dtype in &dtypes {
            let cell = Cell::new(&gpu, rows, cols, dtype, &peers)
                .with_context(|| format!("{rows}x{cols} {}", dtype.as_str()))?;
            let name = cell.name();
            let best = best(elsewhere.as_deref().unwrap_or(&[]), rows, cols, dtype);
            let mut us = HashMap::new();
            let mut line = format!("{name:<20} K={:<4}", cell.pairs());
            wrong += cell.measure_each(&gpu, &peers, |peer, f, of_copy| {
                us.insert(peer.to_string(), f.us);
                let beside = match best.filter(|_| peer != "memcpy" && peer != "ours_backward") {
                    Some(b) => format!(",{},{},{},{:.4}", b.peer, b.us, b.gbps, b.us / f.us),
                    None => more(NO_BEST),
                };
                report.row(peer, (rows, cols, dtype), f, of_copy, &beside)?;
                let note = if f.note.is_empty() { "" } else { ", " };
                write!(
                    line,
                    " {peer} {:.0} GB/s ({:.1} us{note}{})",
                    f.gbps, f.us, f.note
                )?;
                Ok(())
            })?;
            println!("{line}");

            let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
            let of = |peer: &str| us.get(peer).copied();
            let candle = ratio(of("ours"), of("candle"));
            if let Some(r) = candle {
                cells += 1;
                if r > 1. {
                    slower.push(format!("{name} ({r:.3})"));
                }
            }
            write!(table, "{name:<20}")?;
            for p in PEERS.split(',').skip(1) {
                write!(table, "{:>14}", shown(of(p), 1))?;
            }
            let copied = ratio(of("ours"), of("memcpy"));
            write!(table, "{:>13}{:>13}", shown(candle, 3), shown(copied, 3))?;
            if let Some(b) = best {
                let ratio = shown(ratio(of("ours"), Some(b.us)), 3);
                write!(table, "{ratio:>11} {} ({:.1})", b.peer, b.us)?;
            }
            writeln!(table)?;
        }
    }
    print!("\n{:<20}", "us a launch");
    for p in PEERS.split(',').skip(1) {
        print!("{p:>14}");
    }
    print!("{:>13}{:>13}", "ours/candle", "ours/memcpy");
    println!("{}", more("  ours/best peer elsewhere (us)"));
    println!("{table}");
    println!(
        "ours is slower than candle in {} of {cells} cells{}{}",
        slower.len(),
        if slower.is_empty() { "" } else { ": " },
        slower.join(", ")
    );
    println!("{wrong} wrong outputs");
    Ok(wrong == 0)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.digits$}"))
}

/// The fastest softmax of another file on this cell; candle is measured here.
fn best(elsewhere: &[Record], rows: usize, cols: usize, dtype: DType) -> Option<&Record> {
    let same = |r: &&Record| r.rows == rows && r.cols == cols && r.dtype == dtype.as_str();
    let a_peer = |r: &&Record| r.peer != "candle" && !NOT_SOFTMAX.contains(&r.peer.as_str());
    let cell = elsewhere.iter().filter(same).filter(a_peer);
    cell.min_by(|a, b| a.us.total_cmp(&b.us))
}

/// The floor of the method: microseconds of an empty kernel.
fn null(gpu: &Gpu) -> Result<f64> {
    let kernel = (gpu.cuda).get_or_load_custom_func("null_kernel", "bench_null", NULL)?;
    let one = Tensor::zeros(1, DType::F32, &gpu.device)?;
    let config = LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (32, 1, 1),
        shared_mem_bytes: 0,
    };
    let launch = |_| {
        unsafe { kernel.builder().launch(config) }?;
        Ok(one.clone())
    };
    Replay::capture(&gpu.cuda, 512, Edges::Apart, &launch)?.us()
}
