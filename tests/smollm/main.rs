//! The smollm example: its model against candle-transformers' `quantized_llama` on a made-up file,
//! its parts, and the built program as a user runs it. `real.rs` runs the public model.
#[path = "../../examples/smollm/attention.rs"]
mod attention;
#[path = "../../examples/smollm/chat.rs"]
mod chat;
#[path = "../../examples/smollm/config.rs"]
mod config;
#[path = "../../examples/smollm/gguf.rs"]
mod gguf;
#[path = "../../examples/smollm/memory.rs"]
mod memory;
#[path = "../../examples/smollm/model.rs"]
mod model;
#[path = "../../examples/smollm/rope.rs"]
mod rope;
#[path = "../../examples/smollm/session.rs"]
mod session;
#[path = "../../examples/smollm/template.rs"]
mod template;
#[path = "../../examples/gpt/text.rs"]
mod text;
#[path = "../../examples/smollm/tokenizer.rs"]
mod tokenizer;
#[path = "../../examples/smollm/weights.rs"]
mod weights;

mod cli;
mod conversation;
mod logits;
mod made_up;
mod real;
