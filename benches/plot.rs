//! Draws a benchmark's CSV: bandwidth over columns, a panel a dtype. Needs no GPU:
//!
//! ```text
//! cargo bench --bench plot -- IN.csv [PEERS.csv] OUT.svg
//! ```
//!
//! IN.csv is what `--bench cuda` or `--bench ladder` wrote; PEERS.csv has the same columns, measured elsewhere. Of several
//! cells with the same columns a line takes the one with most rows. Cells of fewer than 10 rows, which cannot fill a GPU
//! with a block a row, are circles beside the line.

#[allow(dead_code)]
mod args;
mod records;

use anyhow::{bail, ensure, Context, Result};
use plotters::prelude::*;
use records::{Record, NOT_SOFTMAX};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo bench --bench plot -- IN.csv [PEERS.csv] OUT.svg";
const FEW_ROWS: usize = 10;
const PANEL: (u32, u32) = (1000, 420);
const LEGEND: u32 = 150;
/// Its curve is that of `ours`.
const LEFT_OUT: [&str; 2] = ["ours_inplace", "ours_apart"];
/// Drawn first where they are there, in these colours; the others take theirs by turns.
const KNOWN: [(&str, RGBColor); 4] = [
    ("memcpy", RGBColor(130, 130, 130)),
    ("ours", RGBColor(200, 30, 30)),
    ("ours_backward", RGBColor(240, 150, 150)),
    ("candle", RGBColor(230, 150, 0)),
];
const OTHERS: [RGBColor; 8] = [
    RGBColor(30, 90, 180),
    RGBColor(40, 150, 80),
    RGBColor(130, 70, 170),
    RGBColor(20, 160, 170),
    RGBColor(120, 85, 60),
    RGBColor(220, 110, 170),
    RGBColor(110, 130, 30),
    RGBColor(60, 60, 60),
];

fn main() -> ExitCode {
    let paths = args::paths();
    if paths.is_empty() {
        println!("{USAGE}"); // as in a plain `cargo bench`
        return ExitCode::SUCCESS;
    }
    match run(&paths) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench plot: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(paths: &[String]) -> Result<()> {
    let (input, peers, out) = match paths {
        [input, out] => (input, None, out),
        [input, peers, out] => (input, Some(peers), out),
        _ => bail!("requires 2 or 3 paths, got {}; {USAGE}", paths.len()),
    };
    // So that no measurement given in the wrong place is written over.
    ensure!(
        out.ends_with(".svg"),
        "requires OUT.svg, got {out:?}; {USAGE}"
    );
    let mut cells = records::read(Path::new(input))?;
    cells.retain(|r| !LEFT_OUT.contains(&r.peer.as_str()));
    let (mut dtypes, mut here) = (Vec::new(), Vec::new());
    for r in &cells {
        if !dtypes.contains(&r.dtype) {
            dtypes.push(r.dtype.clone());
        }
        here.push(r.peer.clone());
    }
    if let Some(peers) = peers {
        let mut more = records::read(Path::new(peers))?;
        more.retain(|r| !here.contains(&r.peer) && !NOT_SOFTMAX.contains(&r.peer.as_str()));
        more.retain(|r| dtypes.contains(&r.dtype));
        cells.extend(more);
    }
    draw(Path::new(out), &cells, &dtypes).with_context(|| out.clone())?;
    println!("{out}: {} cells", cells.len());
    Ok(())
}

/// Each peer and its colour: the known ones, then the others as they come.
fn peers_and_colors(cells: &[Record]) -> Vec<(String, RGBColor)> {
    let is_there = |name: &str| cells.iter().any(|r| r.peer == name);
    let known = KNOWN.iter().filter(|(name, _)| is_there(name));
    let mut peers: Vec<_> = known.map(|&(name, c)| (name.to_string(), c)).collect();
    let mut others = OTHERS.iter().cycle();
    for r in cells {
        if !peers.iter().any(|(name, _)| *name == r.peer) {
            peers.extend(others.next().map(|&c| (r.peer.clone(), c)));
        }
    }
    peers
}

/// As (columns, GB/s): the line, and the cells of few rows.
type Points = Vec<(f64, f64)>;

fn line_and_few(cells: &[Record], peer: &str, dtype: &str) -> (Points, Points) {
    let mut of_peer: Vec<&Record> = cells.iter().collect();
    of_peer.retain(|r| r.peer == peer && r.dtype == dtype);
    // The most rows first among those of equal columns, where dedup keeps the first.
    of_peer.sort_by_key(|r| (r.cols, std::cmp::Reverse(r.rows)));
    let point = |r: &&Record| (r.cols as f64, r.gbps);
    let few = of_peer.iter().filter(|r| r.rows < FEW_ROWS).map(point);
    let few = few.collect();
    of_peer.retain(|r| r.rows >= FEW_ROWS);
    of_peer.dedup_by_key(|r| r.cols);
    (of_peer.iter().map(point).collect(), few)
}

fn draw(out: &Path, cells: &[Record], dtypes: &[String]) -> Result<()> {
    let size = (PANEL.0, PANEL.1 * dtypes.len() as u32);
    let root = SVGBackend::new(out, size).into_drawing_area();
    root.fill(&WHITE)?;
    let peers = peers_and_colors(cells);
    let (mut least, mut most, mut top) = (f64::INFINITY, 1f64, 0f64);
    for r in cells {
        least = least.min(r.cols as f64);
        most = most.max(r.cols as f64);
        top = top.max(r.gbps);
    }
    for (panel, dtype) in root.split_evenly((dtypes.len(), 1)).iter().zip(dtypes) {
        let (left, legend) = panel.split_horizontally(PANEL.0 - LEGEND);
        let mut chart = ChartBuilder::on(&left)
            .caption(format!("softmax, {dtype}"), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(
                (least / 1.2..most * 1.2).log_scale().base(2.),
                0f64..top * 1.05,
            )?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_labels(24)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .x_desc("columns")
            .y_desc("GB/s")
            .draw()?;
        let mut y = 50;
        let entry = |y| ((8, y), (26, y), (34, y - 6));
        for (peer, color) in &peers {
            let (line, few) = line_and_few(cells, peer, dtype);
            if line.is_empty() && few.is_empty() {
                continue;
            }
            let style = color.stroke_width(if peer == "ours" { 3 } else { 1 });
            let dot = |&at: &(f64, f64)| Circle::new(at, 2, color.filled());
            chart.draw_series(line.iter().map(dot))?;
            chart.draw_series(LineSeries::new(line, style))?;
            let circle = |at| Circle::new(at, 4, color.stroke_width(1));
            chart.draw_series(few.into_iter().map(circle))?;
            let (from, to, text) = entry(y);
            legend.draw(&PathElement::new([from, to], style))?;
            legend.draw(&Text::new(peer.as_str(), text, ("sans-serif", 12)))?;
            y += 18;
        }
        let (_, at, text) = entry(y);
        legend.draw(&Circle::new((at.0 - 9, at.1), 4, BLACK.stroke_width(1)))?;
        let few = format!("under {FEW_ROWS} rows");
        legend.draw(&Text::new(few, text, ("sans-serif", 12)))?;
    }
    Ok(root.present()?)
}
