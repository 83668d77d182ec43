//! The CPU executor: rows in parallel, each through a row core in the compute type.

mod attention;
mod backward;
mod biases;
mod columns;
mod element;
mod logits;
mod real;
mod row;
mod rows;
mod short;
mod simd;
mod softcap;
mod task;
mod visitors;

pub use attention::{attention_softmax, attention_softmax_in_place};
pub use backward::SoftmaxBackward;
pub use biases::Biases;
pub use element::Element;
pub use real::Real;
pub use row::Softmax;
pub use rows::{map_rows, map_rows_in_place};
pub use softcap::softcap_backward;

#[cfg(test)]
mod tests;
