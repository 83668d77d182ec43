//! The CPU executor: rows in parallel, each through a row core in the compute type.

mod columns;
mod element;
mod real;
mod row;
mod rows;
mod short;
mod simd;
mod task;
mod visitors;

pub use element::Element;
pub use real::Real;
pub use row::{Softmax, SoftmaxBackward};
pub use rows::{map_rows, map_rows_in_place};

#[cfg(test)]
mod tests;
