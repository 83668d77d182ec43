//! The tokenizer, the template, and turns of a conversation over one cache.
use crate::attention::Kind;
use crate::chat::Chat;
use crate::logits::load;
use crate::made_up::MadeUp;
use crate::session::Session;
use crate::template::{Message, Template};
use crate::tokenizer::Text;
use crate::weights::Form;
use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::GgmlDType;
use candle_core::DType;
use candle_transformers::generation::LogitsProcessor;

fn sampler() -> LogitsProcessor {
    LogitsProcessor::new(0, None, None)
}

fn message(role: &'static str, content: &str) -> Message {
    let content = content.to_string();
    Message { role, content }
}

#[test]
fn encodes_and_decodes() {
    let gguf = MadeUp::new(GgmlDType::F32, true).write().open();
    let text = Text::read(&gguf).unwrap();
    let pieces = |s: &str| -> Vec<String> {
        let ids = text.encode(s).unwrap();
        let piece = |id| text.tokenizer.id_to_token(id).unwrap();
        ids.into_iter().map(piece).collect()
    };
    assert_eq!(pieces("hello w"), ["hel", "l", "o", "Ġw"]);
    // Digits by themselves: the space too.
    assert_eq!(pieces(" 12"), ["Ġ", "1", "2"]);
    assert_eq!(
        pieces("<|im_start|>he<|im_end|>"),
        ["<|im_start|>", "he", "<|im_end|>"]
    );
    assert_eq!(pieces("é"), ["Ã", "©"]);
    assert_eq!(text.encode("").unwrap(), [0u32; 0]);
    // A text that begins with nothing begins with the beginning.
    assert_eq!(text.encode_beginning("").unwrap(), [1]);
    let back = text
        .tokenizer
        .decode(&text.encode("hé 1 🙂").unwrap(), false);
    assert_eq!(back.unwrap(), "hé 1 🙂");
    assert!(text.is_control(2) && text.is_end(2) && text.is_end(0) && !text.is_end(1));
}

#[test]
fn begins_where_the_file_says_so() {
    let mut file = MadeUp::new(GgmlDType::F32, true);
    file.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let text = Text::read(&file.write().open()).unwrap();
    assert_eq!(text.encode_beginning("1").unwrap()[0], 1);
    assert_eq!(text.encode("1").unwrap().len(), 1);
}

#[test]
fn renders_the_template() {
    let gguf = MadeUp::new(GgmlDType::F32, true).write().open();
    let template = Template::read(&gguf).unwrap().unwrap();
    let talk = [
        message("user", "Hi"),
        message("assistant", "Ho"),
        message("user", "So"),
    ];
    assert_eq!(
        template.render(&talk).unwrap(),
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo\
         <|im_end|>\n<|im_start|>user\nSo<|im_end|>\n<|im_start|>assistant\n"
    );
    let told = [message("system", "Sing"), message("user", "Hi")];
    assert_eq!(
        template.render(&told).unwrap(),
        "<|im_start|>system\nSing<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// What Llama 3's templates use: methods of Python's strings, tokens by name, errors of their own.
#[test]
fn templates_of_other_models() {
    let render = |source: &str| {
        let mut file = MadeUp::new(GgmlDType::F32, true);
        file.set("tokenizer.chat_template", Value::String(source.into()));
        let template = Template::read(&file.write().open()).unwrap().unwrap();
        template.render(&[message("user", " Hi ")])
    };
    let text = render("{{ bos_token }}{{ messages[0].content.strip() }}{{ eos_token }}").unwrap();
    assert_eq!(text, "<|im_start|>Hi<|im_end|>");
    assert_eq!(
        render("{% if true %}\n  a\n{% endif %}\nb").unwrap(),
        "  a\nb"
    );
    let error = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
    assert!(
        format!("{error:#}").contains("roles must alternate"),
        "{error:#}"
    );
}

/// The second turn feeds only what is new, and is answered as if all had been fed at once.
#[test]
fn turns_share_the_cache() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    let gguf = &mut file.open();
    let llama = load(gguf, Form::Plain, DType::F32, Kind::Fused);
    let text = Text::read(gguf).unwrap();
    let template = Template::read(gguf).unwrap().unwrap();
    let mut chat = Chat::new(&llama, &text, &template, None, 9);
    let mut say = |message: &str| {
        let mut out = Vec::new();
        let report = chat.say(message, &mut sampler(), &mut out).unwrap();
        (report, String::from_utf8(out).unwrap())
    };
    let (first, first_text) = say("hello");
    let (second, second_text) = say("who 12");

    let begin = "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
    let begin = text.encode(begin).unwrap();
    let turn = "<|im_end|>\n<|im_start|>user\nwho 12<|im_end|>\n<|im_start|>assistant\n";
    let turn = text.encode(turn).unwrap();
    assert_eq!(first.prompt_tokens, begin.len());
    let mut fresh = Session::new(&llama);
    fresh.push(begin.iter().copied());
    let mut out = Vec::new();
    fresh.write(&text, 9, &mut sampler(), &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), first_text);
    // Of an answer cut short the last token has not been fed.
    let ended = crate::logits::greedy(&llama, &begin, 9);
    let end = ended.iter().position(|id| text.is_end(*id));
    let said = &ended[..end.unwrap_or(9)];
    let waiting = usize::from(end.is_none());
    assert_eq!(second.prompt_tokens, turn.len() + waiting);

    let mut whole = Session::new(&llama);
    whole.push(begin.iter().chain(said).chain(&turn).copied());
    let mut out = Vec::new();
    whole.write(&text, 9, &mut sampler(), &mut out).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), second_text);
}

#[test]
fn a_full_context_says_so_and_goes_on() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    let gguf = &mut file.open();
    let llama = load(gguf, Form::Plain, DType::F32, Kind::Fused);
    let text = Text::read(gguf).unwrap();
    let template = Template::read(gguf).unwrap().unwrap();
    let mut chat = Chat::new(&llama, &text, &template, None, 5);
    let long = "x".repeat(600);
    let lines = format!("hi\n{long}\n\n/new\nhi\n/quit\nnever\n");
    let (mut out, mut status) = (Vec::new(), Vec::new());
    chat.talk(lines.as_bytes(), &mut sampler(), &mut out, &mut status)
        .unwrap();
    let status = String::from_utf8(status).unwrap();
    assert!(status.contains("600 tokens has no room"), "{status}");
    assert_eq!(status.matches("tokens/s").count(), 4, "{status}");
    let out = String::from_utf8(out).unwrap();
    // The same answer twice: the second conversation knows nothing of the first.
    assert_eq!(out.len() % 2, 0);
    let (first, second) = out.split_at(out.len() / 2);
    assert_eq!(first, second);
}

/// An answer ends where the context does.
#[test]
fn fills_the_context() {
    let file = MadeUp::new(GgmlDType::F32, true).write();
    let llama = load(&mut file.open(), Form::Plain, DType::F32, Kind::Fused);
    let prompt = crate::logits::ids(590, 200);
    assert_eq!(crate::logits::greedy(&llama, &prompt, 100).len(), 11);
}
