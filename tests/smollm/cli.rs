//! The built program: what it writes, and that every mistake costs one line and exit code 2.
use crate::made_up::{norm, MadeUp};
use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::GgmlDType;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

/// `cargo test` builds the examples beside the tests; `cargo test --test smollm` does not, and must not pass on an
/// old program.
fn smollm() -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let name = format!("smollm{}", std::env::consts::EXE_SUFFIX);
    let program = profile.join("examples").join(name);
    let built = program.metadata().and_then(|file| file.modified()).ok();
    assert!(
        built > newest_source(),
        "{} is missing or old: run `cargo build --example smollm` with the same flags first, or all of `cargo test`",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

fn newest_source() -> Option<SystemTime> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/smollm");
    let sources = std::fs::read_dir(folder).unwrap();
    let modified = |path: &Path| path.metadata().unwrap().modified().unwrap();
    sources.map(|file| modified(&file.unwrap().path())).max()
}

fn with(file: &MadeUp, args: &[&str]) -> Output {
    let file = file.write();
    let mut command = smollm();
    command.arg("--gguf").arg(file.path()).args(args);
    command.output().unwrap()
}

fn made_up() -> MadeUp {
    MadeUp::new(GgmlDType::F32, true)
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line of a failed run.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[track_caller]
fn refused(output: &Output, why: &str) {
    let error = refusal(output);
    assert!(error.contains(why), "{error}");
}

#[test]
fn answers_the_same_with_both_attentions() {
    let ask = |attention| {
        let args = [
            "--prompt",
            "hello",
            "--temperature",
            "0",
            "--max-tokens",
            "20",
        ];
        let args = [&args[..], &["--attention", attention]].concat();
        let output = with(&made_up(), &args);
        let report = String::from_utf8(output.stderr.clone()).unwrap();
        assert!(
            report.starts_with("prompt: ") && report.contains("; generated: "),
            "{report}"
        );
        stdout(&output)
    };
    assert_eq!(ask("fused"), ask("candle"));
}

#[test]
fn the_seed_decides() {
    let say = |seed| {
        let args = [
            "--prompt",
            "he",
            "--raw",
            "--temperature",
            "2",
            "--top-p",
            "1",
        ];
        let args = [&args[..], &["--max-tokens", "20", "--seed", seed]].concat();
        stdout(&with(&made_up(), &args))
    };
    assert_eq!(say("1"), say("1"));
    assert_ne!(say("1"), say("2"));
    assert!(say("1").starts_with("he"));
}

#[test]
fn talks_over_the_standard_input() {
    let file = made_up().write();
    let mut command = smollm();
    command.arg("--gguf").arg(file.path());
    command.args(["--temperature", "0", "--max-tokens", "5"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hello\nwho\n/quit\nnever\n").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    stdout(&output);
    let status = String::from_utf8(output.stderr).unwrap();
    assert_eq!(status.matches("tokens/s").count(), 4, "{status}");
}

#[test]
fn times_a_made_up_prompt() {
    let output = with(&made_up(), &["--prompt-tokens", "300", "--max-tokens", "3"]);
    assert_eq!(stdout(&output), "");
    let report = String::from_utf8(output.stderr).unwrap();
    assert!(report.starts_with("prompt: 300 tokens"), "{report}");
    assert!(report.contains("generated: 3 tokens"), "{report}");
    if cfg!(target_os = "linux") {
        assert!(report.contains("peak memory of the prompt"), "{report}");
    }
    let output = with(&made_up(), &["--prompt-tokens", "601"]);
    refused(&output, "context is 600 tokens");
}

#[test]
fn a_missing_model_names_the_script() {
    let empty = std::env::temp_dir().join(format!("smollm-empty-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let output = smollm().current_dir(&empty).output().unwrap();
    std::fs::remove_dir(&empty).unwrap();
    refused(&output, "scripts/smollm.sh fetches it");
    let output = smollm().args(["--gguf", "no/such.gguf"]).output().unwrap();
    refused(&output, "cannot open no/such.gguf");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let output = smollm().arg("--gguf").arg(source).output().unwrap();
    refused(&output, "cannot be read as GGUF");
}

#[test]
fn wrong_flags() {
    for (args, why) in [
        (
            &["--temperature", "-1"][..],
            "--temperature must be 0 or more, found -1",
        ),
        (
            &["--temperature", "NaN"],
            "--temperature must be 0 or more, found NaN",
        ),
        (
            &["--top-p", "0"],
            "--top-p must be above 0 and at most 1, found 0",
        ),
        (
            &["--prompt-tokens", "0"],
            "--prompt-tokens must be 1 or more",
        ),
        (&["--attention", "flash"], "invalid value 'flash'"),
        (&["--raw"], "--prompt"),
        (
            &["--prompt", "a", "--prompt-tokens", "5"],
            "cannot be used with",
        ),
    ] {
        refused(&with(&made_up(), args), why);
    }
    if !cfg!(feature = "cuda") {
        refused(&with(&made_up(), &["--device", "cuda"]), "--features cuda");
    }
}

type Change = fn(&mut MadeUp);

#[test]
fn wrong_files() {
    let cases: [(Change, &str); 11] = [
        (
            |f| f.set("general.architecture", Value::String("qwen2".into())),
            "general.architecture is \"qwen2\"",
        ),
        (
            |f| f.unset("llama.block_count"),
            "missing metadata llama.block_count",
        ),
        (
            |f| f.set("llama.block_count", Value::F32(2.0)),
            "metadata llama.block_count: expected a number",
        ),
        (
            |f| f.set("llama.attention.head_count_kv", Value::U32(3)),
            "4 heads cannot share 3",
        ),
        (
            |f| f.set("llama.rope.dimension_count", Value::U32(8)),
            "over 8 of a head's 16",
        ),
        (
            |f| f.set("llama.expert_count", Value::U32(8)),
            "mixture of experts",
        ),
        (
            |f| f.set("llama.rope.scaling.type", Value::String("yarn".into())),
            "scaled by \"yarn\"",
        ),
        (
            |f| f.remove("blk.1.attn_k.weight"),
            "missing tensor blk.1.attn_k.weight",
        ),
        (
            |f| f.put("blk.1.attn_k.weight", norm(1.0)),
            "wrong shape of tensor blk.1.attn_k.weight: wanted [32, 64], found [64]",
        ),
        (
            |f| f.put("blk.0.attn_q.bias", norm(1.0)),
            "1 tensors of the file have no place in this model, such as blk.0.attn_q.bias",
        ),
        (
            |f| f.set("llama.feed_forward_length", Value::U32(64)),
            "wrong shape of tensor blk.0.ffn_gate.weight",
        ),
    ];
    for (change, why) in cases {
        let mut file = made_up();
        change(&mut file);
        refused(&with(&file, &["--prompt", "a"]), why);
    }
    let cases: [(Change, &str); 5] = [
        (
            |f| f.set("tokenizer.ggml.model", Value::String("llama".into())),
            "the tokenizer is a \"llama\"",
        ),
        (
            |f| f.set("tokenizer.ggml.pre", Value::String("else".into())),
            "tokenizer.ggml.pre is \"else\"",
        ),
        (
            |f| f.unset("tokenizer.ggml.merges"),
            "missing metadata tokenizer.ggml.merges",
        ),
        (
            |f| f.unset("tokenizer.chat_template"),
            "no chat template: give --prompt TEXT --raw",
        ),
        (
            |f| f.set("tokenizer.chat_template", Value::String("{% if".into())),
            "chat template cannot be read",
        ),
    ];
    for (change, why) in cases {
        let mut file = made_up();
        change(&mut file);
        refused(&with(&file, &["--prompt", "a"]), why);
    }
}
