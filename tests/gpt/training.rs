//! The training pass: GPT-2's initialisation, and a gradient for every variable.
use crate::fixture::{max_difference, BOTH};
use crate::model::{Config, Gpt, SoftmaxKind};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

const CONFIG: Config = Config {
    vocab_size: 50,
    n_positions: 16,
    n_embd: 24,
    n_layer: 3,
    n_head: 3,
    layer_norm_epsilon: 1e-5,
};

fn new(config: &Config, dtype: DType, softmax: SoftmaxKind) -> (Gpt, VarMap) {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, dtype, &Device::Cpu);
    (Gpt::new(config, vb, softmax).unwrap(), variables)
}

fn ids() -> Tensor {
    let ids: Vec<u32> = (0..2 * 16).map(|i| (i * i * 7 + i) % 50).collect();
    Tensor::from_vec(ids, (2, 16), &Device::Cpu).unwrap()
}

/// Mean cross-entropy of each token's successor, from operators that have a gradient.
fn loss(gpt: &Gpt, dropout: f32) -> Tensor {
    let logits = gpt.forward_train(&ids(), dropout).unwrap();
    let logits = logits.narrow(1, 0, 15).unwrap().reshape((30, 50)).unwrap();
    let targets = ids().narrow(1, 1, 15).unwrap().flatten_all().unwrap();
    candle_nn::loss::cross_entropy(&logits, &targets).unwrap()
}

fn named(variables: &VarMap) -> Vec<(String, Var)> {
    let all = variables.data().lock().unwrap();
    let mut all: Vec<_> = all.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn variables_begin_as_gpt2s() {
    let config = Config {
        vocab_size: 500,
        n_embd: 96,
        ..CONFIG
    };
    let (_, variables) = new(&config, DType::F64, SoftmaxKind::Online);
    let all = named(&variables);
    assert_eq!(all.len(), 2 + 12 * 3 + 2);
    for (name, var) in all {
        let values: Vec<f64> = var.flatten_all().unwrap().to_vec1().unwrap();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        let (wanted_mean, wanted_std) = match name.as_str() {
            name if name.ends_with("bias") => (0.0, 0.0),
            name if name.contains("ln_") => (1.0, 0.0),
            name if name.ends_with("c_proj.weight") => (0.0, 0.02 / 6f64.sqrt()),
            _ => (0.0, 0.02),
        };
        assert!((mean - wanted_mean).abs() < 0.003, "{name}: mean {mean}");
        assert!(
            (std - wanted_std).abs() <= 0.1 * wanted_std,
            "{name}: std {std}"
        );
    }
}

#[test]
fn the_training_pass_computes_what_the_other_does() {
    for softmax in BOTH {
        let (gpt, _) = new(&CONFIG, DType::F32, softmax);
        let plain = gpt.forward(&ids(), None).unwrap();
        let train = gpt.forward_train(&ids(), 0.0).unwrap();
        assert!(max_difference(&plain, &train) <= 1e-6);
        let dropped = gpt.forward_train(&ids(), 0.5).unwrap();
        assert!(max_difference(&plain, &dropped) > 1e-3);
        assert!(gpt.forward_train(&ids(), 1.0).is_err());
    }
}

#[test]
fn every_variable_gets_a_gradient() {
    for softmax in BOTH {
        for dropout in [0.0, 0.2] {
            let (gpt, variables) = new(&CONFIG, DType::F32, softmax);
            let gradients = loss(&gpt, dropout).backward().unwrap();
            for (name, var) in named(&variables) {
                let gradient = gradients
                    .get(&var)
                    .unwrap_or_else(|| panic!("{name}: none"));
                assert_eq!(gradient.dims(), var.dims(), "{name}");
                let norm = gradient.sqr().unwrap().sum_all().unwrap();
                let norm = norm.to_scalar::<f32>().unwrap();
                assert!(norm.is_finite() && norm > 0.0, "{name}: {norm}");
            }
        }
    }
}

/// In f64, the slope of the loss along each variable's gradient against its central difference:
/// one by one, so that a part that is lost, as the queries' through an operator without a
/// gradient, is not hidden by larger ones.
#[test]
fn gradients_are_slopes() {
    for softmax in BOTH {
        let (gpt, variables) = new(&CONFIG, DType::F64, softmax);
        // Away from the beginning, where attention is all but uniform.
        for (_, var) in named(&variables) {
            let noise = Tensor::randn(0.0, 0.3, var.shape(), &Device::Cpu).unwrap();
            var.set(&(var.as_tensor() + noise).unwrap()).unwrap();
        }
        let gradients = loss(&gpt, 0.0).backward().unwrap();
        for (name, var) in named(&variables) {
            let gradient = gradients.get(&var).unwrap();
            let norm = gradient.sqr().unwrap().sum_all().unwrap();
            let norm = norm.to_scalar::<f64>().unwrap().sqrt();
            // Along the gradient the slope is its norm.
            let along = (gradient / norm).unwrap();
            let start = var.as_tensor().copy().unwrap();
            let at = |step: f64| {
                let moved = (&start + (&along * step).unwrap()).unwrap();
                var.set(&moved).unwrap();
                loss(&gpt, 0.0).to_scalar::<f64>().unwrap()
            };
            let h = 1e-5;
            let slope = (at(h) - at(-h)) / (2.0 * h);
            var.set(&start).unwrap();
            let error = (slope - norm).abs();
            assert!(
                error <= 1e-6 * norm.max(1e-3),
                "{softmax:?} {name}: {slope} {norm}"
            );
        }
    }
}
