//! A conversation: each turn feeds the model what the cache has not seen.
use super::model::Llama;
use super::session::{Report, Session};
use super::template::{Message, Template};
use super::tokenizer::Text;
use anyhow::{bail, Result};
use candle_transformers::generation::LogitsProcessor;
use std::io::{BufRead, Write};

pub struct Chat<'a> {
    llama: &'a Llama,
    text: &'a Text,
    template: &'a Template,
    system: Option<String>,
    max_tokens: usize,
    messages: Vec<Message>,
    session: Session<'a>,
    /// What the session holds, as text.
    seen: String,
}

impl<'a> Chat<'a> {
    pub fn new(
        llama: &'a Llama,
        text: &'a Text,
        template: &'a Template,
        system: Option<String>,
        max_tokens: usize,
    ) -> Self {
        let mut chat = Self {
            llama,
            text,
            template,
            system,
            max_tokens,
            messages: Vec::new(),
            session: Session::new(llama),
            seen: String::new(),
        };
        chat.restart();
        chat
    }

    fn restart(&mut self) {
        let system = self.system.iter().map(|content| Message {
            role: "system",
            content: content.clone(),
        });
        self.messages = system.collect();
        self.forget();
    }

    /// The messages stay; the model has seen none of them.
    fn forget(&mut self) {
        self.session = Session::new(self.llama);
        self.seen.clear();
    }

    /// Writes the answer to `message` to `out` as it comes.
    pub fn say(
        &mut self,
        message: &str,
        sampler: &mut LogitsProcessor,
        out: &mut impl Write,
    ) -> Result<Report> {
        self.messages.push(Message {
            role: "user",
            content: message.to_string(),
        });
        let whole = self.template.render(&self.messages)?;
        // A template may write an answer otherwise than the model did: with its ends trimmed, say.
        if !whole.starts_with(&self.seen) {
            self.forget();
        }
        let ids = self.text.encode(&whole[self.seen.len()..])?;
        if ids.len() > self.session.room() {
            self.messages.pop();
            bail!(
                "the model's context of {} tokens has no room for this message",
                self.llama.config().context
            )
        }
        self.session.push(ids);
        let session = &mut self.session;
        let written = session.write(self.text, self.max_tokens, sampler, out);
        let (answer, report) = written.inspect_err(|_| {
            self.messages.pop();
            self.forget();
        })?;
        self.seen = whole + &answer;
        self.messages.push(Message {
            role: "assistant",
            content: answer,
        });
        Ok(report)
    }

    /// A turn for each line of `lines`, until `/quit`; `/new` begins another conversation.
    pub fn talk(
        &mut self,
        lines: impl BufRead,
        sampler: &mut LogitsProcessor,
        out: &mut impl Write,
        status: &mut impl Write,
    ) -> Result<()> {
        let prompt = |status: &mut dyn Write| -> Result<()> {
            write!(status, "> ")?;
            Ok(status.flush()?)
        };
        prompt(status)?;
        for line in lines.lines() {
            match line?.trim() {
                "" => (),
                "/quit" => break,
                "/new" => self.restart(),
                message => match self.say(message, sampler, out) {
                    Ok(report) => writeln!(status, "[{report}]")?,
                    Err(error) if error.is::<std::io::Error>() => return Err(error),
                    Err(error) => {
                        writeln!(status, "error: {error:#}; /new begins another conversation")?
                    }
                },
            }
            prompt(status)?;
        }
        Ok(())
    }
}
