//! The CPU executor: rows in parallel, each through the row core in the compute type.

mod element;
mod real;
mod row;
mod rows;
mod simd;

pub use element::Element;
pub use real::Real;
pub use row::{softmax_backward_row, softmax_row, softmax_row_in_place};
pub use rows::{map_rows, map_rows_in_place};
