//! Loading: the fixture's numbers, names with and without prefix, what is refused.
use crate::fixture::*;
use crate::model::{Config, KvCache};
use candle_core::{DType, Device, Tensor};
use std::collections::HashMap;

/// `transformers`' own f32 logits, the largest of them 7, are 7e-6 from what it computes in f64.
const F32_ERROR: f64 = 2e-5;

#[test]
fn logits_are_those_of_transformers() {
    let (ids, wanted) = (expected("ids"), expected("logits"));
    for softmax in BOTH {
        let loaded = load(DType::F32, softmax);
        let difference = max_difference(&loaded.gpt.forward(&ids, None).unwrap(), &wanted);
        println!("{softmax:?}: largest difference {difference:.2e}");
        assert!(difference <= F32_ERROR, "{softmax:?}: {difference}");

        // Without our own rounding.
        let loaded = load(DType::F64, softmax);
        let logits = loaded.gpt.forward_train(&ids, 0.0).unwrap();
        let difference = max_difference(&logits, &wanted);
        println!("{softmax:?}, f64: largest difference {difference:.2e}");
        assert!(difference <= 1e-5, "{softmax:?}, f64: {difference}");
    }
}

#[test]
fn half_types_stay_near() {
    let (ids, wanted) = (expected("ids"), expected("logits"));
    for (dtype, most) in [(DType::F16, 0.03), (DType::BF16, 0.3)] {
        for softmax in BOTH {
            let logits = load(dtype, softmax).gpt.forward(&ids, None).unwrap();
            assert_eq!(logits.dtype(), dtype);
            let difference = max_difference(&logits, &wanted);
            println!("{dtype:?} {softmax:?}: largest difference {difference:.2e}");
            assert!(difference <= most, "{dtype:?} {softmax:?}: {difference}");
        }
    }
}

#[test]
fn last_logits_are_the_last_of_all() {
    let gpt = load(DType::F32, BOTH[0]).gpt;
    let ids = expected("ids");
    let all = gpt.forward(&ids, None).unwrap();
    let last = all.narrow(1, 63, 1).unwrap().squeeze(1).unwrap();
    assert!(max_difference(&gpt.forward_last(&ids, None).unwrap(), &last) <= 1e-6);
}

#[test]
fn names_may_lack_the_prefix() {
    let bare = |(name, tensor): (String, Tensor)| {
        (name.trim_start_matches("transformer.").to_string(), tensor)
    };
    let bare: HashMap<_, _> = tensors().into_iter().map(bare).collect();
    assert!(bare.contains_key("wte.weight"));
    let ids = expected("ids");
    let logits = build(bare, &config()).unwrap().forward(&ids, None).unwrap();
    assert!(max_difference(&logits, &expected("logits")) <= F32_ERROR);
}

fn refusal(tensors: HashMap<String, Tensor>, config: &Config) -> String {
    first_line(build(tensors, config).err().expect("an error"))
}

#[test]
fn a_missing_tensor_is_named() {
    let mut tensors = tensors();
    tensors.remove("transformer.h.1.mlp.c_fc.bias").unwrap();
    assert_eq!(
        refusal(tensors, &config()),
        "missing tensor transformer.h.1.mlp.c_fc.bias, wanted shape [128]"
    );
    assert_eq!(
        refusal(HashMap::new(), &config()),
        "missing tensor wte.weight, wanted shape [320, 32]"
    );
}

#[test]
fn a_wrong_shape_is_named() {
    let mut tensors = tensors();
    // As a usual linear layer would store it.
    let name = "transformer.h.0.attn.c_attn.weight";
    let transposed = tensors[name].t().unwrap().contiguous().unwrap();
    tensors.insert(name.to_string(), transposed);
    assert_eq!(
        refusal(tensors, &config()),
        format!("wrong shape of tensor {name}: wanted [32, 96], found [96, 32]")
    );
}

#[test]
fn layers_beyond_the_config_are_not_dropped() {
    let config = Config {
        n_layer: 1,
        ..config()
    };
    assert_eq!(
        refusal(tensors(), &config),
        "config: n_layer is 1 but the weights hold h.1.ln_1.weight"
    );
}

#[test]
fn configs_are_checked() {
    let parse = |json: &str| serde_json::from_str::<Config>(json).map_err(first_line);
    let with = |change: &str| {
        parse(&format!(
            r#"{{"vocab_size": 8, "n_embd": 8, "n_layer": 1, "n_head": 2{change}}}"#
        ))
    };
    let right = with(r#", "n_positions": 4, "n_ctx": 4, "layer_norm_epsilon": 1e-5"#).unwrap();
    assert_eq!(right, with(r#", "n_ctx": 4, "resid_pdrop": 0.1"#).unwrap());
    // What we write is what we read.
    assert_eq!(parse(&serde_json::to_string(&right).unwrap()), Ok(right));
    for (change, wanted) in [
        ("", "missing field `n_positions`"),
        (r#", "n_positions": 0"#, "n_positions must be between 1 and"),
        (
            r#", "n_positions": 18446744073709551615"#,
            "n_positions must be between 1 and",
        ),
        (
            r#", "n_ctx": 4, "layer_norm_epsilon": 0"#,
            "layer_norm_epsilon must lie",
        ),
        (
            r#", "n_ctx": 4, "activation_function": "relu""#,
            "activation_function gelu_new",
        ),
        (r#", "n_ctx": 4, "n_inner": 16"#, "n_inner = 4 * n_embd"),
        (
            r#", "n_ctx": 4, "tie_word_embeddings": false"#,
            "tie_word_embeddings true",
        ),
        (r#", "n_ctx": 4, "model_type": "llama""#, "model_type gpt2"),
    ] {
        let error = with(change).unwrap_err();
        assert!(error.contains(wanted), "{change}: {error}");
    }
    let odd = Config {
        n_head: 3,
        ..right_sized()
    };
    assert_eq!(
        first_line(odd.validate().unwrap_err()),
        "config: n_embd must be a multiple of n_head, found 8 and 3"
    );
}

fn right_sized() -> Config {
    Config {
        vocab_size: 8,
        n_positions: 4,
        n_embd: 8,
        n_layer: 1,
        n_head: 2,
        layer_norm_epsilon: 1e-5,
    }
}

#[test]
fn bad_ids_are_refused_before_the_cache_is_touched() {
    let gpt = load(DType::F32, BOTH[0]).gpt;
    let mut cache = KvCache::new(gpt.config());
    let zeros = |t: usize, dtype| Tensor::zeros((1, t), dtype, &Device::Cpu).unwrap();
    gpt.forward(&zeros(60, DType::U32), Some(&mut cache))
        .unwrap();
    for (ids, wanted) in [
        (
            zeros(5, DType::U32),
            "gpt: the context holds 64 tokens, found 60 cached and 5 new",
        ),
        (zeros(1, DType::I64), "gpt: ids must be u32, found I64"),
        (
            zeros(0, DType::U32),
            "gpt: no tokens given, ids have the shape [1, 0]",
        ),
    ] {
        let error = gpt.forward(&ids, Some(&mut cache)).unwrap_err();
        assert_eq!(first_line(error), wanted);
        assert_eq!(cache.len(), 60);
    }
    gpt.forward(&zeros(4, DType::U32), Some(&mut cache))
        .unwrap();
    assert_eq!(cache.len(), 64);
}
