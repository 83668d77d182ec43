//! The built program: what it writes, and that every mistake costs one line and exit code 2.
use crate::fixture::folder;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

/// `cargo test` builds the examples beside the tests: target/<profile>/{deps/gpt-*,examples/gpt}.
/// `cargo test --test gpt` does not, and must not pass on an old program.
pub fn gpt() -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().unwrap().parent().unwrap();
    let name = format!("gpt{}", std::env::consts::EXE_SUFFIX);
    let program = profile.join("examples").join(name);
    let built = program.metadata().and_then(|file| file.modified()).ok();
    assert!(
        built > newest_source(),
        "{} is missing or old: run `cargo build --example gpt` with the same flags first, or all \
         of `cargo test`",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_remove("RUST_BACKTRACE").stdin(Stdio::null());
    command
}

fn newest_source() -> Option<SystemTime> {
    let sources = std::fs::read_dir(folder().parent().unwrap()).unwrap();
    let sources = sources.map(|file| file.unwrap().path());
    let sources = sources.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    sources
        .map(|path| path.metadata().unwrap().modified().unwrap())
        .max()
}

pub fn run(args: &[&str]) -> Output {
    gpt().args(args).output().unwrap()
}

pub fn with_fixture(args: &[&str]) -> Output {
    let folder = folder();
    gpt()
        .arg("--weights")
        .arg(folder)
        .args(args)
        .output()
        .unwrap()
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line of a failed run.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(
        error.starts_with("error: ") && error.ends_with('\n'),
        "{error}"
    );
    error
}

/// A copy of the fixture for a test to damage.
fn copy(name: &str) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpt-{name}"));
    std::fs::create_dir_all(&copy).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(folder().join(file), copy.join(file)).unwrap();
    }
    copy
}

#[test]
fn it_writes_and_reports() {
    let output = with_fixture(&["--prompt", "It is", "--max-tokens", "100"]);
    assert!(stdout(&output).starts_with("It is"));
    let report = String::from_utf8(output.stderr).unwrap();
    assert!(
        report.starts_with("prompt: ") && report.contains("; generated: "),
        "{report}"
    );
    assert_eq!(report.matches("tokens/s").count(), 2, "{report}");
    assert_eq!(report.lines().count(), 1, "{report}");
}

#[test]
fn both_softmaxes_write_the_same() {
    for model in [with_fixture, run] {
        let write = |softmax| {
            stdout(&model(&[
                "--temperature",
                "0",
                "--max-tokens",
                "60",
                "--softmax",
                softmax,
            ]))
        };
        assert_eq!(write("online"), write("candle"));
    }
}

#[test]
fn a_seed_writes_the_same_again() {
    let write = |seed| stdout(&with_fixture(&["--max-tokens", "40", "--seed", seed]));
    assert_eq!(write("3"), write("3"));
    assert_ne!(write("3"), write("4"));
}

#[test]
fn every_dtype_writes() {
    for dtype in ["f32", "f16", "bf16"] {
        stdout(&with_fixture(&["--max-tokens", "10", "--dtype", dtype]));
    }
}

#[test]
fn unusual_prompts_write() {
    stdout(&with_fixture(&["--prompt", "", "--max-tokens", "10"]));
    for prompt in ["é", "-- he said", "a\nb"] {
        let text = stdout(&with_fixture(&["--prompt", prompt, "--max-tokens", "0"]));
        assert_eq!(text, format!("{prompt}\n"));
    }
}

/// Settings for batches, which `tokenizers` cuts and fills up prompts by, or panics at (stride 5 of 2).
#[test]
fn a_tokenizers_truncation_and_padding_are_not_for_prompts() {
    let folder = copy("truncation");
    let path = folder.join("tokenizer.json");
    let plain = std::fs::read_to_string(&path).unwrap();
    let settings = r#""truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":5},"padding":{"strategy":{"Fixed":64},"direction":"Left","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"<|endoftext|>"}"#;
    let changed = plain.replacen(r#""truncation":null,"padding":null"#, settings, 1);
    assert_ne!(changed, plain);
    std::fs::write(&path, changed).unwrap();
    let args = [
        "--prompt",
        "It is a truth",
        "--temperature",
        "0",
        "--max-tokens",
        "20",
    ];
    let output = gpt().arg("--weights").arg(folder).args(args).output();
    assert_eq!(stdout(&output.unwrap()), stdout(&with_fixture(&args)));
}

#[test]
fn weights_of_an_unknown_dtype_are_refused_with_the_cause() {
    use safetensors::{serialize_to_file, tensor::TensorView, Dtype, SafeTensors};
    let folder = copy("u64");
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let zeros = vec![0; 8 << 20];
    let changed = tensors.tensors().into_iter().map(|(name, view)| {
        if !name.ends_with("wte.weight") {
            return (name, view);
        }
        let len = 8 * view.shape().iter().product::<usize>();
        let view = TensorView::new(Dtype::U64, view.shape().to_vec(), &zeros[..len]);
        (name, view.unwrap())
    });
    let changed: Vec<_> = changed.collect();
    serialize_to_file(changed, None, &folder.join("model.safetensors")).unwrap();
    let output = gpt().arg("--weights").arg(&folder).output().unwrap();
    let error = refusal(&output);
    assert!(
        error.contains("wte.weight") && error.contains("U64"),
        "{error}"
    );
}

#[test]
fn help_is_no_error() {
    assert!(stdout(&run(&["--help"])).contains("--max-tokens"));
    assert!(stdout(&run(&["--version"])).starts_with("gpt "));
}

#[test]
fn bad_flags_are_refused() {
    for (args, wanted) in [
        (
            &["--dtype", "f8"][..],
            "invalid value 'f8' for '--dtype <DTYPE>' [possible values: f32, f16, bf16]",
        ),
        (&["--device", "tpu"], "[possible values: cpu, cuda]"),
        (&["--softmax", "x"], "[possible values: online, candle]"),
        (&["--frobnicate"], "unexpected argument '--frobnicate'"),
        (&["stray"], "unexpected argument 'stray'"),
        (&["--prompt"], "a value is required for '--prompt <PROMPT>'"),
        (
            &["--max-tokens", "-1"],
            "invalid value '-1' for '--max-tokens <MAX_TOKENS>'",
        ),
        (
            &["--max-tokens", "many"],
            "invalid value 'many' for '--max-tokens <MAX_TOKENS>'",
        ),
        (
            &["--temperature", "-0.5"],
            "--temperature must be 0 or more, found -0.5",
        ),
        (
            &["--temperature", "nan"],
            "--temperature must be 0 or more, found NaN",
        ),
        (&["--top-k", "0"], "--top-k must be 1 or more, found 0"),
        (&["--seed", "x"], "invalid value 'x' for '--seed <SEED>'"),
        (&["--hub", "a/b", "--weights", "c"], "cannot be used with"),
    ] {
        let error = refusal(&run(args));
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn cuda_needs_its_feature() {
    let error = refusal(&run(&["--device", "cuda"]));
    assert_eq!(
        error,
        "error: --device cuda needs a build with `--features cuda`\n"
    );
}

#[cfg(not(feature = "hub"))]
#[test]
fn the_hub_needs_its_feature() {
    let error = refusal(&run(&["--hub", "openai-community/gpt2"]));
    assert_eq!(error, "error: --hub needs a build with `--features hub`\n");
}

#[test]
fn bad_folders_are_refused() {
    let load = |folder: &Path| refusal(&gpt().arg("--weights").arg(folder).output().unwrap());
    let missing = load(Path::new("no/such/folder"));
    assert!(
        missing.contains("cannot read no/such/folder/config.json: "),
        "{missing}"
    );

    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let folder = copy(&format!("without-{file}"));
        std::fs::remove_file(folder.join(file)).unwrap();
        let error = load(&folder);
        assert!(
            error.contains("cannot read ") && error.contains(file),
            "{error}"
        );
    }
    for (name, file, contents, wanted) in [
        (
            "no-json",
            "config.json",
            "{",
            "config.json: EOF while parsing",
        ),
        (
            "no-sizes",
            "config.json",
            "{}",
            "config.json: missing field `vocab_size`",
        ),
        ("no-weights", "model.safetensors", "", "model.safetensors: "),
        ("no-tokenizer", "tokenizer.json", "[]", "tokenizer.json: "),
    ] {
        let folder = copy(name);
        std::fs::write(folder.join(file), contents).unwrap();
        let error = load(&folder);
        assert!(error.contains(wanted), "{name}: {error}");
    }
    for (name, from, to, wanted) in [
        (
            "wide",
            "\"n_embd\": 32",
            "\"n_embd\": 64",
            "wrong shape of tensor transformer.wte.weight: wanted [320, 64], found [320, 32]",
        ),
        (
            "deep",
            "\"n_layer\": 2",
            "\"n_layer\": 3",
            "missing tensor transformer.h.2.ln_1.weight, wanted shape [32]",
        ),
        (
            "few",
            "\"vocab_size\": 320",
            "\"vocab_size\": 300",
            "wanted between 1 and vocab_size = 300 pieces, found 320",
        ),
        (
            "heads",
            "\"n_head\": 4",
            "\"n_head\": 5",
            "n_embd must be a multiple of n_head, found 32 and 5",
        ),
    ] {
        let folder = copy(name);
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        assert!(config.contains(from));
        std::fs::write(folder.join("config.json"), config.replace(from, to)).unwrap();
        let error = load(&folder);
        assert!(error.contains(wanted), "{name}: {error}");
    }
}

/// A user who asks for backtraces still gets the line.
#[test]
fn backtraces_stay_out() {
    let folder = copy("backtrace");
    std::fs::write(folder.join("model.safetensors"), "short").unwrap();
    let mut command = gpt();
    command
        .env("RUST_BACKTRACE", "1")
        .arg("--weights")
        .arg(folder);
    refusal(&command.output().unwrap());
}

#[test]
fn a_reader_may_leave() {
    let mut child = gpt()
        .arg("--weights")
        .arg(folder())
        .args([
            "--max-tokens",
            "20000",
            "--temperature",
            "5",
            "--top-k",
            "300",
            "--seed",
            "5",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 4]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("panicked"),
        "{output:?}"
    );
}
