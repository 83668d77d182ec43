//! `BENCH_SWEEP=1`: bandwidth over the columns, at 64 MB a tensor: each power of two to 1048576, one more and one less,
//! and a prime between. Where a kernel gives way to the next, a step shows; odd columns show what unaligned rows cost.
//! The copy to compare with is the fastest of the sweep: the driver copies some sizes, of no obvious kind, at two thirds
//! of the speed of others (67108800 bytes at 2.61 TB/s, 67108860 at 3.88).

use super::cell::Cell;
use super::report::Report;
use crate::args::list;
use crate::replay::Gpu;
use anyhow::{Context, Result};
use candle_core::DType;
use std::fmt::Write as _;

const BYTES: usize = 64 << 20;
const LONGEST: u32 = 20; // log2

/// Slower than this fraction of the copy, or of the mean of the two neighbours, and a cell is named at the end.
const OF_COPY: f64 = 0.85;
const OF_NEIGHBOURS: f64 = 0.9;

struct Point {
    peer: String,
    dtype: DType,
    cols: usize,
    gbps: f64,
}

/// Whether all outputs were right.
pub fn run(out: Option<&String>) -> Result<bool> {
    let columns = columns().iter().map(usize::to_string).collect::<Vec<_>>();
    let columns: Vec<usize> = list("BENCH_COLS", &columns.join(","))?;
    let dtypes: Vec<DType> = list("BENCH_DTYPES", "f32,bf16")?;
    let peers: Vec<String> = list("BENCH_PEERS", "memcpy,ours,ours_backward")?;
    anyhow::ensure!(
        !columns.contains(&0),
        "BENCH_COLS: requires 1 or more, got 0"
    );
    let mut report = Report::create(out, "")?;
    let gpu = Gpu::open()?;
    let (mut points, mut wrong, mut done) = (Vec::new(), 0, 0);
    for &dtype in &dtypes {
        for &cols in &columns {
            let rows = (BYTES / dtype.size_in_bytes() / cols).max(1);
            let cell = Cell::new(&gpu, rows, cols, dtype, &peers)
                .with_context(|| format!("{rows}x{cols} {}", dtype.as_str()))?;
            let name = cell.name();
            done += 1;
            let of = dtypes.len() * columns.len();
            let mut line = format!("{done:>3}/{of} {name:<20} K={:<3}", cell.pairs());
            wrong += cell.measure_each(&gpu, &peers, |peer, f, of_copy| {
                report.row(peer, (rows, cols, dtype), f, of_copy, "")?;
                write!(line, "  {peer} {:.0} GB/s", f.gbps)?;
                if !f.note.is_empty() {
                    write!(line, " {}", f.note)?;
                }
                points.push(Point {
                    peer: peer.to_string(),
                    dtype,
                    cols,
                    gbps: f.gbps,
                });
                Ok(())
            })?;
            println!("{line}");
        }
    }
    let copies = points.iter().filter(|p| p.peer == "memcpy");
    let copy = copies.map(|p| p.gbps).fold(f64::NAN, f64::max);
    println!("\nfastest copy: {copy:.0} GB/s");
    for peer in peers.iter().filter(|p| *p != "memcpy" && *p != "null") {
        for &dtype in &dtypes {
            let mut curve: Vec<&Point> = points.iter().collect();
            curve.retain(|p| p.peer == *peer && p.dtype == dtype);
            curve.sort_by_key(|p| p.cols);
            summarise(peer, dtype, &curve, copy);
        }
    }
    println!("\n{wrong} wrong outputs");
    Ok(wrong == 0)
}

/// Prints the cells of one curve that fall behind.
fn summarise(peer: &str, dtype: DType, curve: &[&Point], copy: f64) {
    let slow = curve.iter().filter_map(|p| {
        let fraction = p.gbps / copy;
        (fraction < OF_COPY).then(|| format!("{} ({fraction:.2})", p.cols))
    });
    let dips = curve.windows(3).filter_map(|w| {
        let fraction = w[1].gbps / ((w[0].gbps + w[2].gbps) / 2.);
        (fraction < OF_NEIGHBOURS).then(|| format!("{} ({fraction:.2})", w[1].cols))
    });
    let (slow, dips): (Vec<_>, Vec<_>) = (slow.collect(), dips.collect());
    println!("\n{peer} {}, {} columns", dtype.as_str(), curve.len());
    for (what, cells) in [
        (format!("under {OF_COPY} of memcpy"), slow),
        (
            format!("under {OF_NEIGHBOURS} of the neighbours' mean"),
            dips,
        ),
    ] {
        let (count, cells) = (cells.len(), cells.join(" "));
        println!(
            "  {count} {what}{}{cells}",
            if count > 0 { ": " } else { "" }
        );
    }
}

fn columns() -> Vec<usize> {
    let mut columns = Vec::new();
    for power in (0..=LONGEST).map(|log| 1usize << log) {
        columns.extend([power - 1, power, power + 1]);
        let between = (power + power / 2..2 * power).find(|&n| is_prime(n));
        columns.extend(between.filter(|_| power < 1 << LONGEST));
    }
    columns.retain(|&c| c > 0);
    columns.sort_unstable();
    columns.dedup();
    columns
}

fn is_prime(n: usize) -> bool {
    n > 1
        && (2..)
            .take_while(|d| d * d <= n)
            .all(|d| !n.is_multiple_of(d))
}
