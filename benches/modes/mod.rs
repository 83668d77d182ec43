//! What `benches/cuda.rs` can measure, one file a mode, and what they share: tensors and figures (`cell`), CSV (`report`).

pub mod attention;
pub mod cell;
pub mod dims;
pub mod grid;
pub mod host;
pub mod report;
pub mod sweep;
