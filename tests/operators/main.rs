//! Tests of the operators against a plain f64 reference, on the CPU and, with feature `cuda`, on a GPU.
//!
//! Lean dispatch, a naive reference beside it, one table of cases run over every device and dtype:
//!
//! | module | what it holds |
//! |---|---|
//! | `devices` | runs one test function on every device; says loudly what was skipped |
//! | `inputs`, `views` | the tables: widths, values, layouts |
//! | `reference`, `compare` | the f64 reference, and the bounds of the contract |
//! | `accuracy`, `semantics`, `layouts`, `inplace`, `invariance` | the forward pass |
//! | `gradients`, `gradient_layouts`, `second_order` | the backward pass and the backward of the backward |
//! | `cases`, `errors`, `properties` | public bug reports, bad input, random input |
//! | `attention_*` | the same of attention's softmax, and `sdpa`: features, shapes, layouts, invariance, ... |
//! | `graph`, `giant`, `threads` | CUDA graphs, tensors past 2^32 elements, concurrent callers |
//!
//! `cargo test --test operators` runs the CPU half. On a machine with a GPU:
//! `COS_REQUIRE_CUDA=1 cargo test --release --features cuda --test operators`, or `scripts/gpu-check.sh`; each then
//! writes a numbered line `RAN ON CUDA`, and a missing device is a failure instead of a skip.

#[macro_use]
mod devices;

mod attention_inputs;
mod attention_reference;
mod compare;
mod inputs;
mod reference;
mod views;

mod accuracy;
mod attention_cases;
mod attention_errors;
mod attention_features;
mod attention_gradients;
mod attention_invariance;
mod attention_layouts;
mod attention_properties;
mod attention_sdpa;
mod attention_semantics;
mod attention_shapes;
mod cases;
mod errors;
mod giant;
mod gradient_layouts;
mod gradients;
mod graph;
mod inplace;
mod invariance;
mod layouts;
mod properties;
mod second_order;
mod semantics;
mod threads;
