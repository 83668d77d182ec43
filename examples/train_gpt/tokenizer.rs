//! Trains the tokenizer: byte-level BPE as in GPT-2.
use super::args::TokenizerArgs;
use super::data::{read_text, split, START};
use anyhow::{bail, Result};
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BpeTrainerBuilder, BPE};
use tokenizers::models::TrainerWrapper;
use tokenizers::{AddedToken, Tokenizer};

/// Room for [`START`] and every byte.
const SMALLEST_VOCAB: usize = 257;

pub fn run(args: &TokenizerArgs) -> Result<()> {
    let text = read_text(&args.corpus)?;
    // The held-out tail stays unseen here too.
    let tokenizer = train(split(&text).0, args.vocab)?;
    let out = args.out.display();
    tokenizer
        .save(&args.out, false)
        .map_err(|error| anyhow::anyhow!("cannot write {out}: {error}"))?;
    println!("{out}: {} pieces", args.vocab);
    Ok(())
}

/// Ids: 0 is [`START`], then the bytes, then the merges in the order learnt. The same text gives
/// the same pieces: the trainer settles ties by id.
pub fn train(text: &str, vocab: usize) -> Result<Tokenizer> {
    if vocab < SMALLEST_VOCAB {
        bail!("--vocab must be at least {SMALLEST_VOCAB}, found {vocab}")
    }
    let byte_level = ByteLevel::new(false, false, true);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(byte_level))
        .with_decoder(Some(byte_level));
    let trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(vocab)
        .special_tokens(vec![AddedToken::from(START, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let error = |error| anyhow::anyhow!("cannot train the tokenizer: {error}");
    tokenizer
        .train(&mut TrainerWrapper::from(trainer), std::iter::once(text))
        .map_err(error)?;
    let pieces = tokenizer.get_vocab_size(true);
    if pieces != vocab {
        bail!("the text only gives {pieces} pieces of the {vocab} asked for")
    }
    Ok(tokenizer)
}
