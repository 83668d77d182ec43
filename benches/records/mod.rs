//! Measurements read back from CSV: this crate's (`benches/cuda.rs`, `benches/ladder.rs`) and those of peers in other
//! languages, which have the same columns and may have more.

use anyhow::{anyhow, ensure, Context, Result};
use std::path::Path;

/// One measured cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub peer: String,
    pub rows: usize,
    pub cols: usize,
    /// As candle writes it: f32, bf16, f16.
    pub dtype: String,
    pub us: f64,
    pub gbps: f64,
}

/// Copies and other operations that such a file holds beside softmax kernels.
pub const NOT_SOFTMAX: [&str; 4] = ["null", "memcpy", "triton_copy", "torch_log"];

/// The measured cells of a CSV with a header; cells that failed, gave wrong numbers or have no shape are left out.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name}"))?;
    let mut lines = text.lines().enumerate();
    let header: Vec<&str> = match lines.next() {
        Some((_, line)) => line.split(',').map(str::trim).collect(),
        None => Vec::new(),
    };
    let column = |wanted: &str| {
        let found = header.iter().position(|&h| h == wanted);
        found.ok_or_else(|| anyhow!("{name}: requires a column {wanted:?}, got {header:?}"))
    };
    let at = [
        column("peer")?,
        column("rows")?,
        column("cols")?,
        column("dtype")?,
        column("us")?,
        column("GBps")?,
    ];
    let note = header.iter().position(|&h| h == "note");
    let mut records = Vec::new();
    for (i, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |column: usize| fields.get(column).copied().unwrap_or("");
        let wrong = note.is_some_and(|n| field(n).contains("WRONG"));
        if wrong || at.iter().any(|&a| field(a).is_empty()) {
            continue;
        }
        let number = |column: usize| {
            let parsed = field(column).parse::<f64>().ok().filter(|v| *v > 0.0);
            parsed.ok_or_else(|| anyhow!("{name}:{}: not a number: {line:?}", i + 1))
        };
        records.push(Record {
            peer: field(at[0]).into(),
            rows: number(at[1])? as usize,
            cols: number(at[2])? as usize,
            dtype: short(field(at[3])).into(),
            us: number(at[4])?,
            gbps: number(at[5])?,
        });
    }
    ensure!(!records.is_empty(), "{name}: no measured cell");
    Ok(records)
}

fn short(dtype: &str) -> &str {
    match dtype {
        "float32" => "f32",
        "bfloat16" => "bf16",
        "float16" => "f16",
        other => other,
    }
}
