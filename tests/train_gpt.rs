//! The trainer of `examples/train_gpt`, on a tiny model and a made-up text.
#[path = "../examples/train_gpt/main.rs"]
#[allow(dead_code)]
mod train_gpt;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, VarBuilder};
use clap::Parser;
use rand::{rngs::StdRng, Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use train_gpt::adamw::AdamW;
use train_gpt::args::{Cli, RunArgs};
use train_gpt::data::{split, Corpus, HeldOut};
use train_gpt::eval::bits_per_byte;
use train_gpt::flat::Flat;
use train_gpt::init::Variables;
use train_gpt::model::{Config, Gpt, SoftmaxKind};
use train_gpt::train::{Run, Softmax};
use train_gpt::{checkpoint, loss, schedule};

const CPU: &Device = &Device::Cpu;
const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 300, "n_positions": 32,
    "n_embd": 32, "n_layer": 2, "n_head": 2, "layer_norm_epsilon": 1e-5}"#;

/// A folder with a text, a tokenizer of it and a config; removed at the end of the test.
struct Bench(PathBuf);

impl Bench {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("train-gpt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("config.json"), CONFIG).unwrap();
        std::fs::write(dir.join("text.txt"), text()).unwrap();
        let bench = Self(dir);
        let (corpus, out) = (bench.path("text.txt"), bench.path("tokenizer.json"));
        let args = [
            "train_gpt",
            "tokenizer",
            "--vocab=300",
            "--corpus",
            &corpus,
            "--out",
            &out,
        ];
        assert_eq!(train_gpt::run(args), 0);
        bench
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }

    /// A command line that trains in this folder.
    fn line(&self, more: &[&str]) -> Vec<String> {
        let mut line = vec!["train_gpt".to_string()];
        for (flag, name) in [
            ("--corpus", "text.txt"),
            ("--tokenizer", "tokenizer.json"),
            ("--config", "config.json"),
            ("--out", "out"),
        ] {
            line.extend([flag.to_string(), self.path(name)]);
        }
        line.extend(["--batch=4", "--context=32", "--dropout=0", "--lr=1e-2"].map(String::from));
        line.extend(more.iter().map(|arg| arg.to_string()));
        line
    }

    fn args(&self, more: &[&str]) -> RunArgs {
        Cli::try_parse_from(self.line(more)).unwrap().run
    }

    fn config(&self) -> Config {
        serde_json::from_str(CONFIG).unwrap()
    }

    fn corpus(&self) -> Corpus {
        let tokenizer = train_gpt::data::load_tokenizer(&self.0.join("tokenizer.json")).unwrap();
        Corpus::load(&self.0.join("text.txt"), &tokenizer, 300).unwrap()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A folder that stays behind is no failure of the test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lines of a few words in random order, which leaves something to learn.
fn text() -> String {
    let words = "the cat dog sat ran on under a big small mat tree and then saw café";
    let words: Vec<&str> = words.split(' ').collect();
    let mut rng = StdRng::seed_from_u64(7);
    let mut word = || words[rng.random_range(0..words.len())];
    let line = |_| format!("{} {} {} {}.\n", word(), word(), word(), word());
    (0..600).map(line).collect()
}

fn untrained(config: &Config) -> (Gpt, BTreeMap<String, Var>) {
    let variables = Variables::new(1);
    let gpt = Gpt::new(config, variables.builder(CPU), SoftmaxKind::Online).unwrap();
    (gpt, variables.all())
}

#[test]
fn training_lowers_the_validation_figure() {
    let bench = Bench::new("learns");
    let (config, corpus) = (bench.config(), bench.corpus());
    let before = bits_per_byte(&untrained(&config).0, &corpus.held_out, 32).unwrap();
    let args = bench.args(&["--steps=40", "--warmup=5", "--eval-every=20"]);
    let run = Run::new(&args, &config, &corpus, CPU).unwrap();
    let (weights, best) = run.finish().unwrap();
    assert!(
        best.bits_per_byte < 0.6 * before,
        "{before} -> {}",
        best.bits_per_byte
    );

    // What comes back are the weights of that figure.
    let builder = VarBuilder::from_tensors(weights.into_iter().collect(), DType::F32, CPU);
    let gpt = Gpt::new(&config, builder, SoftmaxKind::Online).unwrap();
    let again = bits_per_byte(&gpt, &corpus.held_out, 32).unwrap();
    assert_eq!(again, best.bits_per_byte);
}

#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_never_stopped() {
    let bench = Bench::new("resume");
    let more = [
        "--steps=6",
        "--warmup=2",
        "--eval-every=3",
        "--checkpoint-every=4",
    ];
    assert_eq!(train_gpt::run(bench.line(&more)), 0);
    let whole = bench.read("out/model.safetensors");

    // The checkpoint on the disk is the one of step 4: steps 5 and 6 are done again from it.
    let path = bench.0.join("out/checkpoint.safetensors");
    let flat = Flat::new(untrained(&bench.config()).1, CPU);
    let (state, best) = checkpoint::load(&path, &flat, &bench.args(&more).recipe, CPU).unwrap();
    assert_eq!((state.step, best.unwrap().step), (4, 3));

    std::fs::remove_file(bench.path("out/model.safetensors")).unwrap();
    let resumed = [&more[..], &["--resume"]].concat();
    assert_eq!(train_gpt::run(bench.line(&resumed)), 0);
    assert!(
        bench.read("out/model.safetensors") == whole,
        "other weights"
    );

    // Another recipe would be another run.
    let other = [&resumed[..], &["--seed=2"]].concat();
    assert_eq!(train_gpt::run(bench.line(&other)), 2);
    // A checkpoint cut short is an error too.
    let cut = std::fs::read(&path).unwrap();
    std::fs::write(&path, &cut[..cut.len() / 2]).unwrap();
    assert_eq!(train_gpt::run(bench.line(&resumed)), 2);
}

#[test]
fn our_softmax_trains_as_candles_does() {
    let bench = Bench::new("kinds");
    let (config, corpus) = (bench.config(), bench.corpus());
    let bits = |kind: &str| {
        let args = bench.args(&["--steps=8", "--warmup=2", "--softmax", kind]);
        let run = Run::new(&args, &config, &corpus, CPU).unwrap();
        run.finish().unwrap().1.bits_per_byte
    };
    let (online, candle) = (bits("online"), bits("candle"));
    assert!((online - candle).abs() < 1e-3, "{online} and {candle}");
}

#[test]
fn uniform_logits_cost_the_logarithm_of_the_vocabulary() {
    let bench = Bench::new("uniform");
    let (gpt, variables) = untrained(&bench.config());
    for var in variables.values() {
        var.set(&var.zeros_like().unwrap()).unwrap();
    }
    let held_out = bench.corpus().held_out;
    let tokens = (held_out.ids.len() - 1) as f64;
    let wanted = tokens * 300f64.log2() / held_out.bytes as f64;
    // Whatever the windows: fewer tokens than the text, or more.
    for context in [1, 5, 32] {
        let bits = bits_per_byte(&gpt, &held_out, context).unwrap();
        assert!(
            (bits - wanted).abs() < 1e-5 * wanted,
            "{bits}, not {wanted}"
        );
    }
}

#[test]
fn a_short_text_is_measured_too() {
    let bench = Bench::new("short");
    let gpt = untrained(&bench.config()).0;
    let tokenizer = train_gpt::data::load_tokenizer(&bench.0.join("tokenizer.json")).unwrap();
    let held_out = HeldOut::new(&tokenizer, "a").unwrap();
    assert_eq!((held_out.ids.len(), held_out.bytes), (2, 1));
    // An untrained model is about uniform over 300 pieces.
    let bits = bits_per_byte(&gpt, &held_out, 32).unwrap();
    assert!((bits - 300f64.log2()).abs() < 1.0, "{bits}");
}

#[test]
fn a_dropped_gradient_is_named() {
    let var = || Var::ones((2, 3), DType::F32, CPU).unwrap();
    let names = ["dropped", "kept", "unused"];
    let variables: BTreeMap<String, Var> = names.map(|name| (name.to_string(), var())).into();
    let flat = Flat::new(variables.clone(), CPU);
    // The trap: candle's fused softmax has no gradient and says nothing.
    let softmax = candle_nn::ops::softmax_last_dim(&variables["dropped"]).unwrap();
    let loss = softmax.mul(&variables["kept"]).unwrap().sum_all().unwrap();
    let error = flat.check_gradients(&loss.backward().unwrap());
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "no gradient reaches dropped, unused");
}

#[test]
fn the_optimiser_is_candles_adamw() {
    // Of the two variables only the matrix decays; gradients short enough not to be clipped.
    let start = [("bias", vec![0.5f32, -1.0]), ("matrix", vec![1.0, 2.0])];
    let build = || -> BTreeMap<String, Var> {
        let var = |(name, values): &(&str, Vec<f32>)| {
            let shape = if *name == "bias" { vec![2] } else { vec![1, 2] };
            let tensor = Tensor::from_slice(values, shape, CPU).unwrap();
            (name.to_string(), Var::from_tensor(&tensor).unwrap())
        };
        start.iter().map(var).collect()
    };
    let loss = |vars: &BTreeMap<String, Var>| {
        let sum = vars["matrix"].broadcast_add(&vars["bias"]).unwrap();
        (sum.sqr().unwrap().sum_all().unwrap() * 0.05).unwrap()
    };
    let (ours, theirs) = (build(), build());
    let mut optimizer = AdamW::new(Flat::new(ours.clone(), CPU), 0.1).unwrap();
    let candle = |name: &str, weight_decay| {
        let params = candle_nn::ParamsAdamW {
            lr: 0.01,
            beta2: 0.99,
            weight_decay,
            ..Default::default()
        };
        candle_nn::AdamW::new(vec![theirs[name].clone()], params).unwrap()
    };
    let mut references = [candle("bias", 0.0), candle("matrix", 0.1)];
    for _ in 0..5 {
        optimizer
            .step(&loss(&ours).backward().unwrap(), 0.01)
            .unwrap();
        let grads = loss(&theirs).backward().unwrap();
        for reference in &mut references {
            reference.step(&grads).unwrap();
        }
    }
    // A state that tracked would keep the graphs of all steps alive.
    let state = &optimizer.state;
    for vector in [&state.weights, &state.mean, &state.square] {
        assert!(!vector.track_op());
    }
    for name in ["bias", "matrix"] {
        let values = |vars: &BTreeMap<String, Var>| {
            let values = vars[name].flatten_all().unwrap();
            values.to_vec1::<f32>().unwrap()
        };
        for (ours, theirs) in values(&ours).iter().zip(values(&theirs)) {
            assert!((ours - theirs).abs() < 1e-6, "{name}: {ours}, not {theirs}");
        }
    }
}

#[test]
fn long_gradients_are_clipped_and_lengths_are_right() {
    let vector = Tensor::full(3f32, 4096, CPU).unwrap();
    let norm = Flat::norm(&vector).unwrap().to_scalar::<f32>().unwrap();
    assert!((norm - 192.0).abs() < 1e-3, "{norm}");
}

#[test]
fn both_losses_agree_with_their_gradients() {
    let mut rng = StdRng::seed_from_u64(3);
    let values: Vec<f32> = (0..5 * 40).map(|_| rng.random_range(-8.0..8.0)).collect();
    let logits = Var::from_vec(values, (5, 40), CPU).unwrap();
    let targets = Tensor::new(&[0u32, 39, 7, 7, 20], CPU).unwrap();
    let both = [Softmax::Online, Softmax::Candle].map(|softmax| {
        let loss = loss::mean_nll(&logits, &targets, softmax).unwrap();
        let grads = loss.backward().unwrap();
        let grad = grads.get(&logits).unwrap().flatten_all().unwrap();
        let loss = loss.to_scalar::<f32>().unwrap();
        (loss, grad.to_vec1::<f32>().unwrap())
    });
    let [(ours, our_grad), (theirs, their_grad)] = both;
    assert!(
        (ours - theirs).abs() < 1e-5 * theirs,
        "{ours}, not {theirs}"
    );
    for (ours, theirs) in our_grad.iter().zip(&their_grad) {
        assert!((ours - theirs).abs() < 1e-6, "{ours}, not {theirs}");
    }
}

#[test]
fn the_learning_rate_rises_and_falls() {
    let lr = |step| schedule::learning_rate(step, 100, 10, 2.0);
    assert_eq!((lr(0), lr(9), lr(10)), (0.2, 2.0, 2.0));
    assert!((10..99).all(|step| lr(step + 1) < lr(step)));
    assert!((0.1..0.11).contains(&lr(99)));
    // All warm-up, or none.
    assert_eq!(schedule::learning_rate(9, 10, 10, 2.0), 2.0);
    assert_eq!(schedule::learning_rate(0, 1, 0, 2.0), 2.0);
}

#[test]
fn the_split_is_at_a_line_and_loses_nothing() {
    let text = text();
    let (head, tail) = split(&text);
    assert_eq!(format!("{head}{tail}"), text);
    assert!(head.ends_with('\n') && tail.len() * 20 <= text.len());
    assert!(tail.len() * 20 > text.len() - 20 * 40);
    // No line to split at: nothing is held out, whatever the characters.
    assert_eq!(split("ééééééééééééé"), ("ééééééééééééé", ""));
    assert_eq!(split(""), ("", ""));
}

#[test]
fn the_tokenizer_is_the_same_each_time_and_never_saw_the_tail() {
    let text = text();
    let train = |text: &str| {
        let tokenizer = train_gpt::tokenizer::train(text, 280).unwrap();
        tokenizer.to_string(false).unwrap()
    };
    assert_eq!(train(&text), train(&text));

    let bench = Bench::new("tokenizer");
    let (head, tail) = split(&text);
    // The tail of this text is another language; the pieces are the same.
    std::fs::write(
        bench.path("text.txt"),
        format!("{head}{}", tail.to_uppercase()),
    )
    .unwrap();
    let (corpus, out) = (bench.path("text.txt"), bench.path("other.json"));
    let args = [
        "train_gpt",
        "tokenizer",
        "--vocab=300",
        "--corpus",
        &corpus,
        "--out",
        &out,
    ];
    assert_eq!(train_gpt::run(args), 0);
    assert_eq!(bench.read("other.json"), bench.read("tokenizer.json"));
}

#[test]
fn bad_input_ends_with_code_2() {
    let bench = Bench::new("bad");
    let empty = bench.path("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let not_text = bench.path("not-text.txt");
    std::fs::write(&not_text, [0xff; 100]).unwrap();
    let small = bench.path("small.json");
    std::fs::write(&small, CONFIG.replace("300", "299")).unwrap();
    let steps: &[&str] = &["--steps=1", "--warmup=0"];
    let cases: &[&[&str]] = &[
        &["--no-such-flag"],
        &["--steps", "many"],
        &["--steps=0"],
        &["--batch=0"],
        &["--context=33"],
        &["--lr=0"],
        &["--lr=nan"],
        &["--dropout=1"],
        &["--weight-decay=-1"],
        &["--warmup=9", "--steps=8"],
        &["--softmax", "other"],
        &["--resume"],
        &["--corpus", "no/such/file"],
        &["--corpus", &empty],
        &["--corpus", &not_text],
        &["--config", &empty],
        &["--config", &small],
        &["--tokenizer", &small],
        &["--eval-only"],
        &["--weights", "somewhere"],
        &["--eval-only", "--weights", "no/such/folder"],
    ];
    for case in cases {
        let line = overridden(bench.line(steps), case);
        assert_eq!(train_gpt::run(line), 2, "{case:?}");
    }
    assert_eq!(train_gpt::run(["train_gpt"]), 2);
    assert_eq!(train_gpt::run(["train_gpt", "--help"]), 0);
    for vocab in ["--vocab=256", "--vocab=100000"] {
        let corpus = bench.path("text.txt");
        let args = [
            "train_gpt",
            "tokenizer",
            vocab,
            "--out",
            &empty,
            "--corpus",
            &corpus,
        ];
        assert_eq!(train_gpt::run(args), 2, "{vocab}");
    }
    assert!(!Path::new(&bench.path("out/model.safetensors")).exists());
}

/// `line` with the flags of `case` in place of its own of the same name.
fn overridden(mut line: Vec<String>, case: &[&str]) -> Vec<String> {
    let name = |arg: &str| arg.split('=').next().map(str::to_string);
    for arg in case.iter().filter(|arg| arg.starts_with("--")) {
        if let Some(at) = line.iter().position(|old| name(old) == name(arg)) {
            let both = if line[at].contains('=') { 1 } else { 2 };
            line.drain(at..at + both);
        }
    }
    line.extend(case.iter().map(|arg| arg.to_string()));
    line
}
