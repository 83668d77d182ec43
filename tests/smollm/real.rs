//! The public model itself, where scripts/smollm.sh put it. In release, on two cores about a minute:
//!
//! ```text
//! CANDLE_DEQUANTIZE_ALL=1 cargo test --release --test smollm real -- --ignored --nocapture
//! ```
//!
//! With the variable candle multiplies plain matrices, as the example does by default; without it, it rounds
//! activations to 8 bits, the limits here are wider and its Q4_1 takes minutes.
use crate::attention::Kind;
use crate::gguf::Gguf;
use crate::logits::{candle_model, compare_with_candle, greedy, load};
use crate::template::{Message, Template};
use crate::tokenizer::Text;
use crate::weights::Form;
use candle_core::DType;
use std::path::{Path, PathBuf};

const QUESTIONS: [&str; 10] = [
    "Why is the sky blue? Answer in two sentences.",
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "List five fruits that are red.",
    "What is 17 + 25?",
    "Write a Python function that reverses a string.",
    "Summarise the story of Romeo and Juliet.",
    "Give me three tips for sleeping better.",
    "Translate \"good morning\" into Spanish, French and German.",
];

/// What llama.cpp's server makes of these.
const ENCODINGS: [(&str, &[u32]); 10] = [
    ("Hello, world!", &[19556, 28, 905, 17]),
    (
        "In 2024 there were 12345 of them.",
        &[
            788, 216, 34, 32, 34, 36, 665, 592, 216, 33, 34, 35, 36, 37, 282, 601, 30,
        ],
    ),
    (
        "<|im_start|>user\nWhy?<|im_end|>\n",
        &[1, 4093, 198, 4898, 47, 2, 198],
    ),
    (
        "Ünïcödé 漢字 🙂",
        &[
            142, 246, 94, 25972, 83, 7466, 84, 2756, 17097, 137, 112, 36518, 47526,
        ],
    ),
    (
        " def f(x):\n    return x**2\n\n\n",
        &[753, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 16506],
    ),
    ("It's they'll I'm", &[1589, 506, 502, 3060, 339, 5248]),
    (
        "  two  spaces\t\ttabs \r\n crlf",
        &[
            216, 827, 216, 5600, 197, 197, 100, 7366, 216, 2738, 1650, 46610,
        ],
    ),
    (
        "½ ² ① ٣٤ Ⅷ 9",
        &[
            16738, 216, 19133, 216, 173, 235, 250, 216, 164, 113, 164, 114, 216, 173, 223, 117,
            216, 41,
        ],
    ),
    (
        "a—b…“quoted” naïve café\u{a0}nbsp",
        &[
            81, 1265, 82, 2829, 1585, 385, 5036, 573, 15486, 46494, 37366, 15442, 94, 32093,
        ],
    ),
    ("<|im_end|>x<|endoftext|>", &[2, 104, 0]),
];

fn path() -> PathBuf {
    let path = "target/smollm/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    assert!(path.exists(), "run scripts/smollm.sh first");
    path
}

fn prompts(gguf: &Gguf) -> Vec<Vec<u32>> {
    let text = Text::read(gguf).unwrap();
    let template = Template::read(gguf).unwrap().unwrap();
    let prompt = |question: &&str| {
        let content = question.to_string();
        let role = "user";
        let whole = template.render(&[Message { role, content }]).unwrap();
        text.encode(&whole).unwrap()
    };
    QUESTIONS.iter().map(prompt).collect()
}

#[test]
#[ignore = "needs scripts/smollm.sh"]
fn real_tokens_are_llama_cpps() {
    let gguf = Gguf::open(&path()).unwrap();
    let text = Text::read(&gguf).unwrap();
    for (written, ids) in ENCODINGS {
        assert_eq!(text.encode(written).unwrap(), ids, "{written:?}");
        assert_eq!(text.tokenizer.decode(ids, false).unwrap(), written);
    }
    assert_eq!(prompts(&gguf)[0].len(), 41);
}

#[test]
#[ignore = "needs scripts/smollm.sh"]
fn real_answers_are_the_same() {
    let [fused, candle] = [Kind::Fused, Kind::Candle].map(|attention| {
        let gguf = &mut Gguf::open(&path()).unwrap();
        let llama = load(gguf, Form::Plain, DType::F32, attention);
        let prompts = prompts(gguf);
        let answers = prompts.iter().map(|prompt| greedy(&llama, prompt, 64));
        answers.collect::<Vec<_>>()
    });
    for ((question, fused), candle) in QUESTIONS.iter().zip(&fused).zip(&candle) {
        assert_eq!(fused, candle, "{question}");
        assert_eq!(fused.len(), 64);
    }
}

#[test]
#[ignore = "needs scripts/smollm.sh"]
fn real_logits_are_candles() {
    let plain = std::env::var("CANDLE_DEQUANTIZE_ALL").is_ok_and(|v| !v.is_empty() && v != "0");
    let limit = if plain { 1e-4 } else { 0.1 };
    let mut candle = candle_model(&path());
    for attention in [Kind::Candle, Kind::Fused] {
        let gguf = &mut Gguf::open(&path()).unwrap();
        let llama = load(gguf, Form::Plain, DType::F32, attention);
        let prompt = &prompts(gguf)[0];
        compare_with_candle(&llama, &mut candle, prompt, limit);
    }
}
