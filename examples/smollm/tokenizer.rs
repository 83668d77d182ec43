//! The tokenizer that a GGUF holds: byte-level BPE, its pieces and merges.
use super::gguf::Gguf;
use anyhow::{anyhow, bail, Context, Result};
use std::collections::BTreeSet;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

/// GGUF's token types: control tokens are written by no text, user-defined ones are cut out of it
/// before anything else.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// What Llama 3 cuts a text into before the merges.
const LLAMA_3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

pub struct Text {
    pub tokenizer: Tokenizer,
    /// Pieces that are no text.
    control: BTreeSet<u32>,
    /// Pieces after which a model has said all.
    end: BTreeSet<u32>,
    /// The piece that begins a text.
    begin: Option<u32>,
    begins: bool,
}

impl Text {
    pub fn read(gguf: &Gguf) -> Result<Self> {
        let model = gguf.text("tokenizer.ggml.model")?;
        match model.context("the file has no tokenizer: missing metadata tokenizer.ggml.model")? {
            "gpt2" => (),
            other => bail!("the tokenizer is a {other:?}, this program knows \"gpt2\" alone"),
        }
        let key = "tokenizer.ggml.tokens";
        let pieces = gguf.texts(key)?.with_context(|| missing(key))?;
        let key = "tokenizer.ggml.merges";
        let merges = gguf.texts(key)?.with_context(|| missing(key))?;
        let pre = gguf.text("tokenizer.ggml.pre")?.unwrap_or("default");
        let mut tokenizer = bpe(&pieces, &merges, pre)?;

        let types = gguf.numbers("tokenizer.ggml.token_type")?;
        let types = types.unwrap_or_default();
        let of_type = |wanted: i64| -> BTreeSet<u32> {
            let ids = (0u32..).zip(&types).filter(|(_, t)| **t == wanted);
            ids.map(|(id, _)| id).collect()
        };
        let control = of_type(CONTROL);
        let added = |ids: &BTreeSet<u32>, special: bool| -> Vec<AddedToken> {
            let pieces = ids.iter().filter_map(|id| pieces.get(*id as usize));
            pieces
                .map(|piece| AddedToken::from(*piece, special).normalized(false))
                .collect()
        };
        tokenizer
            .add_special_tokens(added(&control, true))
            .and_then(|_| tokenizer.add_tokens(added(&of_type(USER_DEFINED), false)))
            .map_err(|error| anyhow!("cannot add the special tokens: {error}"))?;

        let id = |name: &str| -> Result<Option<u32>> {
            let id = gguf.number(&format!("tokenizer.ggml.{name}_token_id"))?;
            Ok(id.and_then(|id| u32::try_from(id).ok()))
        };
        let mut end = BTreeSet::new();
        for name in ["eos", "eot", "eom"] {
            end.extend(id(name)?);
        }
        for name in ["<|im_end|>", "<|eot_id|>", "<|endoftext|>"] {
            end.extend(tokenizer.token_to_id(name));
        }
        Ok(Self {
            tokenizer,
            control,
            end,
            begin: id("bos")?,
            begins: gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
        })
    }

    /// The tokens of `text`, of which some may be written in it: `<|im_start|>`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, false);
        let encoding = encoding.map_err(|error| anyhow!("cannot tokenize: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The same for the beginning of a text that no template made.
    pub fn encode_beginning(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        if let (Some(begin), true) = (self.begin, self.begins || ids.is_empty()) {
            ids.insert(0, begin);
        }
        if ids.is_empty() {
            bail!("the tokenizer makes no token of an empty prompt")
        }
        Ok(ids)
    }

    pub fn is_end(&self, id: u32) -> bool {
        self.end.contains(&id)
    }

    pub fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }
}

fn missing(key: &str) -> String {
    format!("missing metadata {key}")
}

fn bpe(pieces: &[&str], merges: &[&str], pre: &str) -> Result<Tokenizer> {
    let vocab = pieces.iter().map(|piece| piece.to_string()).zip(0u32..);
    let pair = |merge: &&str| {
        let (left, right) = merge.split_once(' ')?;
        Some((left.to_string(), right.to_string()))
    };
    let merges: Option<Vec<_>> = merges.iter().map(pair).collect();
    let merges = merges.context("tokenizer.ggml.merges: a merge is not two pieces")?;
    let (pre_tokenizer, whole_first) = pre_tokenizer(pre)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab.collect::<Vocab>(), merges)
        .ignore_merges(whole_first)
        .build()
        .map_err(|error| anyhow!("cannot make a tokenizer of the file's pieces: {error}"))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    Ok(tokenizer)
}

/// How the text is cut up before the merges, and whether a part that is a piece as a whole is
/// taken as that. llama.cpp's names.
fn pre_tokenizer(name: &str) -> Result<(PreTokenizerWrapper, bool)> {
    let gpt_2 = || ByteLevel::new(false, true, true);
    match name {
        "default" | "gpt-2" => Ok((gpt_2().into(), false)),
        // Each digit is a part of its own.
        "smollm" | "starcoder" | "refact" | "codeshell" => {
            let parts = vec![Digits::new(true).into(), gpt_2().into()];
            Ok((Sequence::new(parts).into(), false))
        }
        "llama-bpe" | "llama3" | "llama-v3" => {
            let pattern = SplitPattern::Regex(LLAMA_3.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| anyhow!("pre-tokenizer {name}: {error}"))?;
            let bytes = ByteLevel::new(false, true, false);
            let parts = vec![split.into(), bytes.into()];
            Ok((Sequence::new(parts).into(), true))
        }
        other => bail!("tokenizer.ggml.pre is {other:?}, which this program does not know"),
    }
}
