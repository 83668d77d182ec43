//! The cache, the sampler, the text stream and the loop over them.
use crate::fixture::*;
use crate::generate::generate;
use crate::model::{Gpt, KvCache};
use crate::sampling::Sampler;
use crate::text::TextStream;
use candle_core::{DType, Device, Tensor};

fn ids(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec1().unwrap()
}

#[test]
fn cached_logits_are_those_of_the_whole() {
    let whole = expected("ids");
    for softmax in BOTH {
        let gpt = load(DType::F32, softmax).gpt;
        let wanted = gpt.forward(&whole, None).unwrap();
        let mut cache = KvCache::new(gpt.config());
        // Single tokens, runs after runs, a run after single tokens.
        for round in 0..2 {
            let mut from = 0;
            for t in [1, 1, 5, 1, 20, 3, 1, 32] {
                let some = whole.narrow(1, from, t).unwrap();
                let logits = gpt.forward(&some, Some(&mut cache)).unwrap();
                let wanted = wanted.narrow(1, from, t).unwrap();
                let difference = max_difference(&logits, &wanted);
                assert!(
                    difference <= 1e-5,
                    "{softmax:?} {round} {from}: {difference}"
                );
                from += t;
                assert_eq!(cache.len(), from);
            }
            cache.reset();
            assert!(cache.is_empty());
        }
    }
}

fn greedy(gpt: &Gpt, prompt: &[u32], steps: usize) -> Vec<u32> {
    let mut cache = KvCache::new(gpt.config());
    let mut sampler = Sampler::new(0.0, 1, 0).unwrap();
    let mut fed = prompt.to_vec();
    let mut chosen = Vec::new();
    for _ in 0..steps {
        let input = Tensor::new(fed.as_slice(), &Device::Cpu).unwrap();
        let input = input.unsqueeze(0).unwrap();
        let logits = gpt.forward_last(&input, Some(&mut cache)).unwrap();
        let logits = logits.squeeze(0).unwrap().to_vec1().unwrap();
        fed = vec![sampler.sample(&logits).unwrap()];
        chosen.extend(&fed);
    }
    chosen
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let (prompt, wanted) = (ids(&expected("prompt")), ids(&expected("greedy")));
    for softmax in BOTH {
        let loaded = load(DType::F32, softmax);
        let encoding = loaded.tokenizer.encode("It is a truth", false).unwrap();
        assert_eq!(encoding.get_ids(), prompt);
        assert_eq!(
            greedy(&loaded.gpt, &prompt, wanted.len()),
            wanted,
            "{softmax:?}"
        );
    }
}

#[test]
fn text_goes_on_beyond_the_context() {
    for max_tokens in [0, 1, 61, 62, 300] {
        let loaded = load(DType::F32, BOTH[0]);
        let mut sampler = Sampler::new(1.0, 100, 7).unwrap();
        let mut out = Vec::new();
        let report = generate(&loaded, "It is", max_tokens, &mut sampler, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("It is") && text.ends_with('\n'));
        let ended = report.new_tokens < max_tokens;
        println!(
            "{max_tokens}: {report}{}",
            if ended { ", ended" } else { "" }
        );
        assert!(!ended, "the seed should be one that meets no end of text");
    }
}

#[test]
fn a_prompt_may_exceed_the_context_or_be_empty() {
    let loaded = load(DType::F32, BOTH[0]);
    for (prompt, tokens) in [("It is a truth. ".repeat(30), 64), (String::new(), 1)] {
        let mut sampler = Sampler::new(0.0, 1, 0).unwrap();
        let mut out = Vec::new();
        let report = generate(&loaded, &prompt, 3, &mut sampler, &mut out).unwrap();
        assert_eq!((report.prompt_tokens, report.new_tokens), (tokens, 3));
        assert!(out.starts_with(prompt.as_bytes()));
    }
}

#[test]
fn text_comes_in_whole_characters() {
    let wanted = "The naïve café owner paid 20 € — and laughed 😀.";
    let loaded = load(DType::F32, BOTH[0]);
    let ids = ids(&expected("text_ids"));
    assert!(ids.len() > wanted.chars().count() / 2);
    let mut stream = TextStream::new(&loaded.tokenizer);
    let mut text = String::new();
    let mut held_back = 0;
    for &id in &ids {
        let more = stream.push(id);
        assert!(!more.contains('\u{FFFD}'), "{text:?} + {more:?}");
        held_back += usize::from(more.is_empty());
        text.push_str(&more);
    }
    assert_eq!(text + &stream.finish(), wanted);
    assert!(held_back >= 8, "{held_back}");

    // Cut in the middle of the last character but one, and bytes that begin none.
    let byte = |c: char| loaded.tokenizer.token_to_id(&c.to_string()).unwrap();
    // 0xF0 0x9F begin an emoji, 0xFF nothing; they are spelt ð, U+0141 and ÿ.
    let (f0, x9f, ff, a) = (byte('ð'), byte('\u{141}'), byte('ÿ'), byte('a'));
    let mut stream = TextStream::new(&loaded.tokenizer);
    let said: Vec<String> = [f0, x9f, a, ff, f0].map(|id| stream.push(id)).into();
    assert_eq!(said, ["", "", "\u{FFFD}a", "\u{FFFD}", ""]);
    assert_eq!(stream.finish(), "\u{FFFD}");
    assert_eq!(stream.finish(), "");
    // A special token is its own text; an id without a piece is none.
    assert_eq!(stream.push(0), "<|endoftext|>");
    assert_eq!(stream.push(u32::MAX), "");
}

#[test]
fn the_sampler_chooses() {
    let logits = [0.5f32, 2.0, f32::NEG_INFINITY, 2.0, 1.0];
    let mut greedy = Sampler::new(0.0, 40, 0).unwrap();
    assert_eq!(greedy.sample(&logits).unwrap(), 1, "the lower id on ties");
    let mut one = Sampler::new(1.0, 1, 0).unwrap();
    assert_eq!(one.sample(&logits).unwrap(), 1);

    let run = |temperature, top_k, seed| {
        let mut sampler = Sampler::new(temperature, top_k, seed).unwrap();
        (0..4000)
            .map(|_| sampler.sample(&logits).unwrap())
            .collect::<Vec<_>>()
    };
    let share = |run: &[u32], id| run.iter().filter(|&&i| i == id).count() as f64 / 4000.0;
    assert_eq!(run(1.0, 40, 5), run(1.0, 40, 5));
    assert_ne!(run(1.0, 40, 5), run(1.0, 40, 6));
    assert_eq!(run(1.0, 40, 5).iter().filter(|&&id| id == 2).count(), 0);
    let two = run(1.0, 2, 5);
    assert!(two.iter().all(|id| [1, 3].contains(id)));
    assert!((share(&two, 3) - 0.5).abs() < 0.05);
    // softmax([0.5, 2, 2, 1] / 0.5): 0.0212, 0.4257, 0.4257, 0.0576 + rounding.
    let four = run(0.5, 40, 5);
    for (id, wanted) in [(0, 0.0228), (1, 0.4576), (3, 0.4576), (4, 0.0619)] {
        assert!(
            (share(&four, id) - wanted).abs() < 0.03,
            "{id}: {}",
            share(&four, id)
        );
    }
    // A huge or tiny temperature is only flat or greedy.
    assert!(share(&run(1e-300, 40, 5), 1) + share(&run(1e-300, 40, 5), 3) == 1.0);
    run(1e300, 40, 5);

    assert!(greedy.sample(&[0.0, f32::NAN]).is_err());
    assert!(greedy.sample(&[]).is_err());
    assert!(Sampler::new(-1.0, 40, 0).is_err());
    assert!(Sampler::new(f64::NAN, 40, 0).is_err());
    assert!(Sampler::new(1.0, 0, 0).is_err());
}
