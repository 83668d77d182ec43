//! The CPU path beside candle's operators, the crate rten-vecmath and a copy of the tensor.
//!
//! ```text
//! cargo bench --bench cpu [-- FILTER]     criterion; throughput: bytes read and written, each element once
//! cargo bench --bench cpu -- --serve      cells from standard input ("softmax f32 1024 4096"), a line of "way ns" each:
//!                                         for benches/peers_cpu.py, which times PyTorch between them
//! ```
//!
//! `RAYON_NUM_THREADS` sets the threads of ours and candle's; rten-vecmath has one. Results are in fresh memory, as an
//! operator makes them, but for rten-vecmath, which writes over the last ones.

mod cells;

use anyhow::Context;
use cells::{shortest, Cell};
use criterion::{BenchmarkId, Criterion, Throughput};
use std::io::{BufRead, Write};
use std::time::Duration;

/// Shapes: short rows, rows in the caches, tensors past them.
const SHAPES: [(usize, usize); 9] = [
    (4096, 8),
    (4096, 32),
    (4096, 50),
    (2048, 128),
    (512, 1024),
    (8, 131_072),
    (1024, 4096),
    (4096, 4096),
    (1, 1 << 20),
];

fn main() -> anyhow::Result<()> {
    if std::env::args().any(|arg| arg == "--serve") {
        return serve();
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(20)
        .configure_from_args();
    for op in ["softmax", "dim0", "backward"] {
        for dtype in ["f32", "bf16", "f16", "f64"] {
            let mut group = criterion.benchmark_group(format!("{op}/{dtype}"));
            for (rows, cols) in SHAPES {
                let line = format!("{op} {dtype} {rows} {cols}");
                let cell = Cell::parse(&line).context(line)?;
                group.throughput(Throughput::Bytes(cell.bytes()));
                for way in cell.ways()? {
                    let id = BenchmarkId::new(way.name, format!("{rows}x{cols}"));
                    group.bench_function(id, |b| b.iter(|| (way.run)().expect("a result")));
                }
            }
            group.finish();
        }
    }
    criterion.final_summary();
    Ok(())
}

fn serve() -> anyhow::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let cell = Cell::parse(&line).with_context(|| format!("not a cell: {line}"))?;
        let mut out = std::io::stdout().lock();
        for way in cell.ways()? {
            let ns = shortest(&way, Duration::from_millis(150))?.as_nanos();
            write!(out, "{} {ns} ", way.name)?;
        }
        writeln!(out)?;
        out.flush()?;
    }
    Ok(())
}
