//! A model as a Hugging Face style folder: config.json, tokenizer.json, model.safetensors.
use super::data::{load_tokenizer, read_text};
use super::model::{Config, Gpt, SoftmaxKind};
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use std::collections::HashMap;
use std::path::Path;
use tokenizers::Tokenizer;

pub fn load_config(path: &Path) -> Result<Config> {
    let json = read_text(path)?;
    serde_json::from_str(&json)
        .with_context(|| format!("{} is not a config of a GPT-2", path.display()))
}

pub fn create(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

/// Writes the folder, weights in f16. Config and tokenizer are copied as they are.
pub fn save(
    dir: &Path,
    weights: Vec<(String, Tensor)>,
    config: &Path,
    tokenizer: &Path,
) -> Result<()> {
    create(dir)?;
    for (from, name) in [(config, "config.json"), (tokenizer, "tokenizer.json")] {
        // Read whole before written, so that a file may be copied onto itself.
        let text = read_text(from)?;
        let to = dir.join(name);
        std::fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let half = |(name, tensor): (String, Tensor)| {
        let tensor = tensor.to_dtype(DType::F16)?.to_device(&Device::Cpu)?;
        Ok((name, tensor))
    };
    let weights = weights.into_iter().map(half).collect::<Result<Vec<_>>>()?;
    // `transformers` refuses a file that does not say this.
    let notes = HashMap::from([("format".to_string(), "pt".to_string())]);
    let path = dir.join("model.safetensors");
    safetensors::serialize_to_file(weights, Some(notes), &path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The model computes in f32, from weights of whatever type the file has.
pub fn load(dir: &Path, softmax: SoftmaxKind, device: &Device) -> Result<(Gpt, Tokenizer)> {
    let config = load_config(&dir.join("config.json"))?;
    let tokenizer = load_tokenizer(&dir.join("tokenizer.json"))?;
    let path = dir.join("model.safetensors");
    let context = || format!("cannot load {}", path.display());
    let bytes = std::fs::read(&path).with_context(context)?;
    let builder = VarBuilder::from_buffered_safetensors(bytes, DType::F32, device);
    let gpt = builder.and_then(|builder| Gpt::new(&config, builder, softmax));
    Ok((gpt.with_context(context)?, tokenizer))
}
