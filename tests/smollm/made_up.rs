//! A small Llama in GGUF, as candle writes one: random weights, a tokenizer of single bytes and a
//! few merges.
use crate::gguf::Gguf;
use candle_core::quantized::gguf_file::{write, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

pub const TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const MERGES: [(&str, &str); 3] = [("h", "e"), ("he", "l"), ("Ġ", "w")];

/// What a file is to hold.
pub struct MadeUp {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, QTensor)>,
}

/// Removed with its end.
pub struct TempFile(PathBuf);

impl TempFile {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn open(&self) -> Gguf {
        Gguf::open(&self.0).unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl MadeUp {
    /// 2 layers, 4 heads of 16 that share 2 of keys and values, a context of 600.
    pub fn new(weights: GgmlDType, tied: bool) -> Self {
        let mut this = Self {
            metadata: Vec::new(),
            tensors: Vec::new(),
        };
        this.set("general.architecture", Value::String("llama".into()));
        for (key, n) in [
            ("block_count", 2),
            ("context_length", 600),
            ("embedding_length", 64),
            ("feed_forward_length", 128),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 16),
        ] {
            this.set(&format!("llama.{key}"), Value::U32(n));
        }
        this.set("llama.rope.freq_base", Value::F32(5000.0));
        this.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        let vocab = this.tokenizer();
        let mut rng = StdRng::seed_from_u64(7);
        let mut matrix = |to: usize, from: usize, scale: f32| {
            let cells = (0..to * from).map(|_| (rng.random::<f32>() - 0.5) * scale);
            let tensor = Tensor::from_iter(cells, &Device::Cpu).unwrap();
            let tensor = tensor.reshape((to, from)).unwrap();
            QTensor::quantize(&tensor, weights).unwrap()
        };
        this.put("token_embd.weight", matrix(vocab, 64, 2.0));
        for i in 0..2 {
            for (name, to, from) in [
                ("attn_q", 64, 64),
                ("attn_k", 32, 64),
                ("attn_v", 32, 64),
                ("attn_output", 64, 64),
                ("ffn_gate", 128, 64),
                ("ffn_up", 128, 64),
                ("ffn_down", 64, 128),
            ] {
                this.put(&format!("blk.{i}.{name}.weight"), matrix(to, from, 0.7));
            }
            this.put(&format!("blk.{i}.attn_norm.weight"), norm(0.9));
            this.put(&format!("blk.{i}.ffn_norm.weight"), norm(1.1));
        }
        this.put("output_norm.weight", norm(1.2));
        if !tied {
            this.put("output.weight", matrix(vocab, 64, 1.0));
        }
        this
    }

    fn tokenizer(&mut self) -> usize {
        let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        bytes.sort_unstable();
        let mut pieces: Vec<String> = CONTROL.map(str::to_string).to_vec();
        pieces.extend(bytes.iter().map(char::to_string));
        pieces.extend(MERGES.map(|(a, b)| format!("{a}{b}")));
        let types = (0..pieces.len()).map(|i| Value::I32(if i < CONTROL.len() { 3 } else { 1 }));
        let text = |text: &str| Value::String(text.to_string());
        let merges = MERGES.map(|(a, b)| Value::String(format!("{a} {b}")));
        let types = Value::Array(types.collect());
        self.set("tokenizer.ggml.model", text("gpt2"));
        self.set("tokenizer.ggml.pre", text("smollm"));
        self.set("tokenizer.ggml.token_type", types);
        self.set("tokenizer.ggml.merges", Value::Array(merges.to_vec()));
        self.set("tokenizer.ggml.bos_token_id", Value::U32(1));
        self.set("tokenizer.ggml.eos_token_id", Value::U32(2));
        self.set("tokenizer.chat_template", text(TEMPLATE));
        let count = pieces.len();
        let pieces = pieces.into_iter().map(Value::String).collect();
        self.set("tokenizer.ggml.tokens", Value::Array(pieces));
        count
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.unset(key);
        self.metadata.push((key.to_string(), value));
    }

    pub fn unset(&mut self, key: &str) {
        self.metadata.retain(|(found, _)| found != key);
    }

    pub fn put(&mut self, name: &str, tensor: QTensor) {
        self.remove(name);
        self.tensors.push((name.to_string(), tensor));
    }

    pub fn remove(&mut self, name: &str) {
        self.tensors.retain(|(found, _)| found != name);
    }

    /// The same weights as floats.
    pub fn dequantized(mut self) -> Self {
        for (_, tensor) in &mut self.tensors {
            let floats = tensor.dequantize(&Device::Cpu).unwrap();
            *tensor = QTensor::quantize(&floats, GgmlDType::F32).unwrap();
        }
        self
    }

    pub fn write(&self) -> TempFile {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("smollm-test-{}-{count}.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(k, v)| (k.as_str(), v)).collect();
        write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
        TempFile(path)
    }
}

/// A vector of 64 numbers, all above 0 and none the same.
pub fn norm(about: f32) -> QTensor {
    let cells = (0..64).map(|i| about + i as f32 / 500.0);
    let tensor = Tensor::from_iter(cells, &Device::Cpu).unwrap();
    QTensor::quantize(&tensor, GgmlDType::F32).unwrap()
}
