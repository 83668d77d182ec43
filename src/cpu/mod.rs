//! The CPU executor: rows in parallel, each through the row core in the compute type.

mod element;
mod real;
mod row;
mod rows;

pub use element::Element;
pub use real::Real;
pub use row::{softmax_backward_row, softmax_row};
pub use rows::{map_rows, map_rows_in_place};
