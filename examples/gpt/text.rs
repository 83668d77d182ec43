//! Text out of tokens, one at a time. A byte-level piece may end in the middle of a character:
//! the bytes wait here until the rest has come.
use std::collections::HashMap;
use tokenizers::Tokenizer;

pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    bytes: HashMap<char, u8>,
    pending: Vec<u8>,
}

impl<'a> TextStream<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self {
            tokenizer,
            bytes: byte_alphabet().map(|(byte, c)| (c, byte)).collect(),
            pending: Vec::new(),
        }
    }

    /// The characters that `id` completes; bytes that can be none become U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        let piece = self.tokenizer.id_to_token(id).unwrap_or_default();
        let bytes: Option<Vec<u8>> = piece.chars().map(|c| self.bytes.get(&c).copied()).collect();
        match bytes {
            Some(bytes) => self.pending.extend(bytes),
            // Not spelt in the byte alphabet: a token added as plain text.
            None => self.pending.extend(piece.bytes()),
        }
        let whole = self.pending.len() - unfinished(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..whole]).into_owned();
        self.pending.drain(..whole);
        text
    }

    /// What still waits when no more tokens come.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// How many bytes at the end begin a character without ending it.
fn unfinished(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last();
    let tail = last.map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(tail) {
        Err(error) if error.error_len().is_none() => tail.len(),
        _ => 0,
    }
}

/// GPT-2 spells each byte as a printable character: itself where it is one, and the next unused
/// character from U+0100 on where it is not.
fn byte_alphabet() -> impl Iterator<Item = (u8, char)> {
    let mut spare = '\u{100}'..;
    (0..=255u8).filter_map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => Some((byte, char::from(byte))),
        _ => spare.next().map(|c| (byte, c)),
    })
}
