//! The CSV of a run.

use super::cell::Figure;
use anyhow::{Context, Result};
use candle_core::DType;
use std::fs::File;
use std::io::{self, Write};

const COLUMNS: &str = "peer,rows,cols,dtype,us,GBps,frac_of_copy,max_abs_err,method,note";

/// A CSV, or nothing where no path is given; written through line by line, so that a run cut short leaves what it has.
pub struct Report(Box<dyn Write>);

impl Report {
    /// `more` are columns after the usual ones, each with a comma before it.
    pub fn create(path: Option<&String>, more: &str) -> Result<Self> {
        let mut out: Box<dyn Write> = match path {
            Some(path) => Box::new(File::create(path).context(path.clone())?),
            None => Box::new(io::sink()),
        };
        writeln!(out, "{COLUMNS}{more}")?;
        Ok(Self(out))
    }

    /// An empty kernel's time.
    pub fn null(&mut self, us: f64, more: &str) -> Result<()> {
        Ok(writeln!(self.0, "null,0,0,,{us:.3},,,,graph,{more}")?)
    }

    /// `of_copy` is the fraction of the copy's bandwidth, where it is known.
    pub fn row(
        &mut self,
        peer: &str,
        (rows, cols, dtype): (usize, usize, DType),
        figure: &Figure,
        of_copy: Option<f64>,
        more: &str,
    ) -> Result<()> {
        let Figure {
            us,
            gbps,
            error,
            method,
            note,
            ..
        } = figure;
        let of_copy = of_copy.map_or(String::new(), |f| format!("{f:.4}"));
        let dtype = dtype.as_str();
        writeln!(
            self.0,
            "{peer},{rows},{cols},{dtype},{us:.3},{gbps:.1},{of_copy},{error:.2e},{method},{note}{more}"
        )?;
        Ok(self.0.flush()?)
    }
}
