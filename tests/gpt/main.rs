//! The gpt example: its model against what `transformers` computes for `examples/gpt/fixture`
//! (scripts/make-gpt2-fixture.py), its parts, and the built program as a user runs it.
#[path = "../../examples/gpt/generate.rs"]
mod generate;
#[path = "../../examples/gpt/model.rs"]
mod model;
#[path = "../../examples/gpt/sampling.rs"]
mod sampling;
#[path = "../../examples/gpt/text.rs"]
mod text;
#[allow(dead_code)] // `Files::from_hub` is tried through the program
#[path = "../../examples/gpt/weights.rs"]
mod weights;

mod cli;
mod decoding;
mod fixture;
#[cfg(feature = "hub")]
mod hub;
mod loader;
mod training;
