//! The model that the program carries: see `assets/README.md` for what it was trained on.
use crate::weights::Files;
use std::borrow::Cow;

pub fn files() -> Files {
    Files {
        origin: "embedded".to_string(),
        config: Cow::Borrowed(include_bytes!("assets/config.json")),
        weights: Cow::Borrowed(include_bytes!("assets/model.safetensors")),
        tokenizer: Cow::Borrowed(include_bytes!("assets/tokenizer.json")),
    }
}
