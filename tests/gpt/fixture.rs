//! The fixture and small helpers around it.
use crate::model::{Config, Gpt, SoftmaxKind};
use crate::weights::{Files, Loaded};
use candle_core::{safetensors, DType, Device, Tensor};
use candle_nn::VarBuilder;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub const BOTH: [SoftmaxKind; 2] = [SoftmaxKind::Online, SoftmaxKind::Candle];

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gpt/fixture")
}

/// As the program loads it.
pub fn load(dtype: DType, softmax: SoftmaxKind) -> Loaded {
    let files = Files::from_folder(&folder()).unwrap();
    files.load(dtype, &Device::Cpu, softmax).unwrap()
}

pub fn config() -> Config {
    serde_json::from_slice(&std::fs::read(folder().join("config.json")).unwrap()).unwrap()
}

pub fn tensors() -> HashMap<String, Tensor> {
    safetensors::load(folder().join("model.safetensors"), &Device::Cpu).unwrap()
}

/// A tensor of what `transformers` gave.
pub fn expected(name: &str) -> Tensor {
    let path = folder().join("expected.safetensors");
    safetensors::load(path, &Device::Cpu).unwrap()[name].clone()
}

pub fn build(tensors: HashMap<String, Tensor>, config: &Config) -> candle_core::Result<Gpt> {
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    Gpt::new(config, vb, SoftmaxKind::Online)
}

pub fn max_difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let f64s = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
    let difference = (f64s(a) - f64s(b)).unwrap().abs().unwrap();
    let all = difference.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    // `f64::max` would pass over a NaN.
    all.into_iter()
        .fold(0.0, |most, d| if d <= most { most } else { d })
}

/// The line of an error that a user is shown.
pub fn first_line(error: impl std::fmt::Display) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}
