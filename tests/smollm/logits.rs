//! Logits against candle-transformers' `quantized_llama`, of both attentions, of the cache.
use crate::attention::Kind;
use crate::gguf::Gguf;
use crate::made_up::MadeUp;
use crate::model::{KvCache, Llama};
use crate::session::{Next, Session};
use crate::weights::Form;
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::models::quantized_llama::ModelWeights;
use std::fs::File;
use std::path::Path;

pub fn load(gguf: &mut Gguf, form: Form, dtype: DType, attention: Kind) -> Llama {
    Llama::load(gguf, form, dtype, &Device::Cpu, attention).unwrap()
}

pub fn candle_model(path: &Path) -> ModelWeights {
    let mut file = File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap()
}

/// `count` ids below `vocab`.
pub fn ids(count: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 % vocab) as u32).collect()
}

pub fn greedy(llama: &Llama, prompt: &[u32], new: usize) -> Vec<u32> {
    let mut session = Session::new(llama);
    session.push(prompt.iter().copied());
    let mut said = Vec::new();
    let mut sampler = LogitsProcessor::new(0, None, None);
    let each = |id| {
        said.push(id);
        Ok(Next::Go)
    };
    session.generate(new, &mut sampler, each).unwrap();
    said
}

/// The largest difference, as a share of the largest number.
pub fn difference(a: &Tensor, b: &Tensor) -> f32 {
    let host = |x: &Tensor| -> Vec<f32> {
        let x = x.to_dtype(DType::F32).unwrap();
        x.flatten_all().unwrap().to_vec1().unwrap()
    };
    let (a, b) = (host(a), host(b));
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(0f32, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(&b);
    pairs.fold(0f32, |m, (x, y)| m.max((x - y).abs())) / largest
}

fn step(model: &mut ModelWeights, ids: &[u32], seen: usize) -> Tensor {
    let ids = Tensor::new(ids, &Device::Cpu)
        .unwrap()
        .unsqueeze(0)
        .unwrap();
    model.forward(&ids, seen).unwrap()
}

/// A prompt, another piece of it after that, then token by token.
pub fn compare_with_candle(llama: &Llama, candle: &mut ModelWeights, ids: &[u32], limit: f32) {
    let mut cache = KvCache::new(llama.config());
    let mut seen = 0;
    let singles = ids.len().saturating_sub(12).min(4);
    let pieces = [ids.len() - singles - 5, 5];
    for piece in pieces.into_iter().chain(vec![1; singles]) {
        let new = &ids[seen..seen + piece];
        let ours = llama.forward_last(new, &mut cache).unwrap();
        let off = difference(&step(candle, new, seen), &ours);
        assert!(
            off <= limit,
            "off by {off} after {seen} tokens and {piece} more"
        );
        seen += piece;
    }
    assert_eq!(cache.len(), ids.len());
}

#[test]
fn as_candles_llama() {
    use GgmlDType::{F16, F32, Q4_1, Q8_0};
    for weights in [F32, F16, Q8_0, Q4_1] {
        for tied in [true, false] {
            let made_up = MadeUp::new(weights, tied);
            let file = made_up.write();
            let floats = made_up.dequantized().write();
            // candle rounds activations to 8 bits for a product with quantised weights.
            for (form, same) in [(Form::Quantized, &file), (Form::Plain, &floats)] {
                for attention in [Kind::Candle, Kind::Fused] {
                    let llama = load(&mut file.open(), form, DType::F32, attention);
                    let ids = ids(31, llama.config().vocab);
                    compare_with_candle(&llama, &mut candle_model(same.path()), &ids, 1e-5);
                }
            }
        }
    }
}

#[test]
fn both_attentions_say_the_same() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    let [fused, candle] = [Kind::Fused, Kind::Candle].map(|attention| {
        let llama = load(&mut file.open(), Form::Plain, DType::F32, attention);
        let vocab = llama.config().vocab;
        [1, 2, 40, 257].map(|prompt| greedy(&llama, &ids(prompt, vocab), 40))
    });
    assert_eq!(fused, candle);
}

#[test]
fn halves_stay_near() {
    let file = MadeUp::new(GgmlDType::Q8_0, true).write();
    let run = |dtype, form, attention| {
        let llama = load(&mut file.open(), form, dtype, attention);
        let ids = ids(40, llama.config().vocab);
        llama
            .forward(&ids, &mut KvCache::new(llama.config()))
            .unwrap()
    };
    // Where a product rounds its operand to 8 bits, a half's last bit may be a whole step of these.
    for (form, steps) in [(Form::Plain, 0.0), (Form::Quantized, 0.1)] {
        let wanted = run(DType::F32, form, Kind::Candle);
        for (dtype, limit) in [(DType::F16, 0.02), (DType::BF16, 0.15)] {
            for attention in [Kind::Fused, Kind::Candle] {
                let logits = run(dtype, form, attention);
                assert_eq!(logits.dtype(), dtype);
                let off = difference(&wanted, &logits);
                assert!(
                    off < limit + steps,
                    "{dtype:?} {attention:?} {form:?}: off by {off}"
                );
            }
        }
    }
}

/// Through the places where the cache grows.
#[test]
fn cache_as_the_whole_prompt() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    for attention in [Kind::Fused, Kind::Candle] {
        let llama = load(&mut file.open(), Form::Plain, DType::F32, attention);
        let ids = ids(530, llama.config().vocab);
        let whole = llama
            .forward(&ids, &mut KvCache::new(llama.config()))
            .unwrap();
        let mut cache = KvCache::new(llama.config());
        let mut seen = 0;
        for piece in [1, 1, 3, 250, 1, 1, 1, 200, 60, 12] {
            let logits = llama.forward(&ids[seen..seen + piece], &mut cache).unwrap();
            let off = difference(&whole.narrow(0, seen, piece).unwrap(), &logits);
            assert!(
                off < 1e-5,
                "{attention:?}: off by {off} after {seen} tokens and {piece} more"
            );
            seen += piece;
        }
        assert_eq!(seen, ids.len());
    }
}

#[test]
fn an_error_leaves_the_cache_whole() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    let llama = load(&mut file.open(), Form::Plain, DType::F32, Kind::Fused);
    let mut cache = KvCache::new(llama.config());
    llama.forward(&ids(10, 200), &mut cache).unwrap();
    for (ids, message) in [
        (
            ids(591, 200),
            "context is 600 tokens, found 10 cached and 591 new",
        ),
        (vec![], "no tokens"),
        (vec![1, 262], "knows 262 tokens, found the id 262"),
    ] {
        let error = llama.forward(&ids, &mut cache).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(cache.len(), 10);
    }
    llama.forward(&ids(590, 200), &mut cache).unwrap();
}

/// Llama 3.1's tensor of factors, and a linear factor, turn pairs slower.
#[test]
fn slower_rotations() {
    let logits = |change: &dyn Fn(&mut MadeUp)| {
        let mut file = MadeUp::new(GgmlDType::F32, true);
        change(&mut file);
        let file = file.write();
        let llama = load(&mut file.open(), Form::Plain, DType::F32, Kind::Fused);
        llama
            .forward(&ids(30, 200), &mut KvCache::new(llama.config()))
            .unwrap()
    };
    let factors = |factor: f32| {
        let factors = Tensor::full(factor, 8, &Device::Cpu).unwrap();
        QTensor::quantize(&factors, GgmlDType::F32).unwrap()
    };
    let plain = logits(&|_| ());
    let by_one = logits(&|file| file.put("rope_freqs.weight", factors(1.0)));
    let by_four = logits(&|file| file.put("rope_freqs.weight", factors(4.0)));
    let linear = logits(&|file| {
        file.set("llama.rope.scaling.type", Value::String("linear".into()));
        file.set("llama.rope.scaling.factor", Value::F32(4.0));
    });
    assert_eq!(difference(&plain, &by_one), 0.0);
    assert!(difference(&plain, &by_four) > 1e-3);
    assert_eq!(difference(&by_four, &linear), 0.0);
}
