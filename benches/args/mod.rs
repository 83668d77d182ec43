//! What benchmarks are told: environment variables and the paths among the arguments.

use anyhow::{anyhow, Result};
use std::str::FromStr;

/// The comma-separated values of `var`, or of `default` where it is not set.
pub fn list<T: FromStr>(var: &str, default: &str) -> Result<Vec<T>>
where
    T::Err: std::fmt::Display,
{
    let text = std::env::var(var).unwrap_or_else(|_| default.into());
    text.split(',')
        .map(|w| T::from_str(w).map_err(|e| anyhow!("{var}: {w:?}: {e}")))
        .collect()
}

/// Whether `var` is set to anything but nothing and 0.
pub fn flag(var: &str) -> bool {
    std::env::var(var).is_ok_and(|v| !v.is_empty() && v != "0")
}

/// The arguments that are no options: cargo adds `--bench`.
pub fn paths() -> Vec<String> {
    let args = std::env::args().skip(1);
    args.filter(|a| !a.starts_with('-')).collect()
}

/// Rows and columns, written 4096x8192.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape(pub usize, pub usize);

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
