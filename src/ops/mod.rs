//! The operators as candle sees them: thin dispatch from storage to an executor.

mod dispatch;
mod softmax;
mod softmax_backward;

#[cfg(feature = "cuda")]
pub(crate) use dispatch::float_type;
pub use softmax::{softmax, softmax_last_dim, OnlineSoftmax};
