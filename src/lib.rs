//! Softmax for [candle](https://github.com/huggingface/candle) by the online normaliser: on CUDA one kernel, and one
//! pass over memory for rows of up to 2.4 million columns (f32 on an H200; halves twice, f64 half as many).
//!
//! [`OnlineSoftmax`] normalises the last dim of a tensor of any strides, in f16, bf16, f32 or f64, on
//! the CPU and (feature `cuda`) on CUDA, and gradients flow through it:
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use candle_online_softmax::OnlineSoftmax;
//!
//! let x = Var::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
//! let y = x.apply_op1(OnlineSoftmax)?;
//! let grads = y.sqr()?.sum_all()?.backward()?;
//! assert!(grads.get(&x).is_some());
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! [`softmax`] takes any dim and [`softmax_last_dim`] the last one, with the signatures of
//! `candle_nn::ops`. What infinities and NaN give, and how accurate results are, is written at
//! [`OnlineSoftmax`]. How the crate works: `ARCHITECTURE.md` in its repository.
#![deny(missing_docs)]

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod ops;
pub mod plan;
pub mod rows;
pub mod scores;
pub mod state;

pub use ops::{sdpa, candle_sdpa, softmax, softmax_last_dim, AttentionSoftmax, OnlineSoftmax};
