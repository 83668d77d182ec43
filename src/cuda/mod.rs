//! The CUDA executor: row space, plan, launch. The only place that launches a kernel.
//!
//! Nothing here copies to or from the host or waits for the device, so a CUDA graph can capture it.

mod attention;
mod launch;
mod modules;
mod params;

pub use attention::{attention, attention_backward, attention_in_place, Biases};
pub use launch::{softmax, softmax_backward, softmax_in_place};
