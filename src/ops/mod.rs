//! The operators as candle sees them: thin dispatch from storage to an executor.

mod attention;
mod attention_backward;
mod attention_op;
mod dispatch;
mod sdpa;
mod softmax;
mod softmax_backward;

pub use attention::AttentionSoftmax;
pub use sdpa::{sdpa, candle_sdpa};
#[cfg(feature = "cuda")]
pub(crate) use dispatch::float_type;
pub use softmax::{softmax, softmax_last_dim, OnlineSoftmax};
