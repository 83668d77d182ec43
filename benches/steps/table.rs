//! The ladder's table: a line a step, a column a shape; as text, Markdown and CSV.

use super::STEPS;
use crate::args::Shape;
use std::fmt::Write as _;

#[derive(Clone, Copy)]
pub struct Figure {
    us: f64,
    gbps: f64,
    wrong: bool,
}

impl Figure {
    pub fn new(us: f64, bytes: usize, wrong: bool) -> Self {
        let gbps = bytes as f64 / us * 1e-3;
        Self { us, gbps, wrong }
    }
}

pub struct Table {
    shapes: Vec<Shape>,
    lines: Vec<(&'static str, Vec<Option<Figure>>)>,
}

impl Table {
    pub fn new(shapes: &[Shape]) -> Self {
        let names = STEPS.iter().map(|s| s.name).chain(["ours", "memcpy"]);
        Self {
            shapes: shapes.to_vec(),
            lines: names.map(|name| (name, vec![None; shapes.len()])).collect(),
        }
    }

    pub fn set(&mut self, name: &str, column: usize, figure: Figure) {
        if let Some((_, line)) = self.lines.iter_mut().find(|(n, _)| *n == name) {
            line[column] = Some(figure);
        }
    }

    /// Each cell with its fraction of memcpy's bandwidth; none where the step refuses the row.
    fn cells<'a>(
        &'a self,
        line: &'a [Option<Figure>],
    ) -> impl Iterator<Item = Option<(Figure, Option<f64>)>> + 'a {
        let copies = self.lines.iter().find(|(name, _)| *name == "memcpy");
        line.iter().enumerate().map(move |(column, figure)| {
            let figure = (*figure)?;
            let copy = copies.and_then(|(_, line)| line[column]);
            Some((figure, copy.map(|c| figure.gbps / c.gbps)))
        })
    }

    fn refuses(&self) -> bool {
        self.lines
            .iter()
            .any(|(_, line)| line.iter().any(Option::is_none))
    }

    /// Three columns a shape.
    pub fn text(&self) -> String {
        let mut text = format!("{:<16}", "f32");
        for Shape(rows, cols) in &self.shapes {
            text += &format!("{:>26}", format!("{rows}x{cols}"));
        }
        text += &format!("\n{:<16}", "");
        text += &format!("{:>10}{:>8}{:>8}", "us", "GB/s", "copy").repeat(self.shapes.len());
        for (name, line) in &self.lines {
            text += &format!("\n{name:<16}");
            for cell in self.cells(line) {
                text += &match cell {
                    None => format!("{:>10}{:>8}{:>8}", "-", "-", "-"),
                    Some((f, of_copy)) => {
                        let (us, gbps) = (format!("{:.1}", f.us), format!("{:.0}", f.gbps));
                        let wrong = if f.wrong {
                            "WRONG".into()
                        } else {
                            shown(of_copy, 2)
                        };
                        format!("{us:>10}{gbps:>8}{wrong:>8}")
                    }
                };
            }
        }
        if self.refuses() {
            text += "\n-: ";
            text += WHY;
        }
        text + "\n"
    }

    pub fn markdown(&self) -> String {
        let mut text = String::from("| f32; µs, GB/s, fraction of memcpy |");
        for Shape(rows, cols) in &self.shapes {
            text += &format!(" {rows} × {cols} |");
        }
        text += "\n|---|";
        text += &"---|".repeat(self.shapes.len());
        for (name, line) in &self.lines {
            text += &format!("\n| {name} |");
            for cell in self.cells(line) {
                text += &match cell {
                    None => " - |".into(),
                    Some((f, _)) if f.wrong => " wrong |".into(),
                    Some((f, c)) => format!(" {:.1}, {:.0}, {} |", f.us, f.gbps, shown(c, 2)),
                };
            }
        }
        if self.refuses() {
            text += "\n\n-: ";
            text += WHY;
        }
        text + "\n"
    }

    /// The columns of `benches/cuda.rs`.
    pub fn csv(&self) -> String {
        let columns = "peer,rows,cols,dtype,us,GBps,frac_of_copy,max_abs_err,method,note\n";
        let mut text = String::from(columns);
        for (name, line) in &self.lines {
            for (Shape(rows, cols), cell) in self.shapes.iter().zip(self.cells(line)) {
                let _ = match cell {
                    None => writeln!(text, "{name},{rows},{cols},f32,,,,,,{WHY}"),
                    Some((f, of_copy)) => {
                        let of_copy = of_copy.map_or(String::new(), |v| format!("{v:.4}"));
                        let note = if f.wrong { "WRONG" } else { "" };
                        let (us, gbps) = (f.us, f.gbps);
                        writeln!(
                            text,
                            "{name},{rows},{cols},f32,{us:.3},{gbps:.1},{of_copy},,graph,{note}"
                        )
                    }
                };
            }
        }
        text
    }
}

const WHY: &str = "the row does not fit a block's registers (32768 columns)";

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.digits$}"))
}
