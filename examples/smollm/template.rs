//! A conversation as the text that the model was trained on: by the Jinja template of its file.
use super::gguf::Gguf;
use anyhow::{Context, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{context, Environment, Error, ErrorKind, Value};

const NAME: &str = "tokenizer.chat_template";

#[derive(Debug, Clone)]
pub struct Message {
    pub role: &'static str,
    pub content: String,
}

pub struct Template {
    jinja: Environment<'static>,
    begin: String,
    end: String,
}

impl Template {
    /// None if the file has none: of a model that is not for chat.
    pub fn read(gguf: &Gguf) -> Result<Option<Self>> {
        let Some(source) = gguf.text(NAME)? else {
            return Ok(None);
        };
        let mut jinja = Environment::new();
        // As `transformers` sets Jinja up, for which these are written.
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        jinja.set_syntax(syntax.build()?);
        jinja.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        jinja.add_function("raise_exception", |message: String| -> Result<(), Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        jinja
            .add_template_owned(NAME, source.to_string())
            .context("the file's chat template cannot be read")?;
        let pieces = gguf.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
        let piece = |key: &str| -> Result<String> {
            let piece = gguf.number(key)?.and_then(|id| pieces.get(id));
            Ok(piece.copied().unwrap_or_default().to_string())
        };
        Ok(Some(Self {
            jinja,
            begin: piece("tokenizer.ggml.bos_token_id")?,
            end: piece("tokenizer.ggml.eos_token_id")?,
        }))
    }

    /// The conversation, up to where the model is to speak.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let template = self.jinja.get_template(NAME)?;
        let messages = messages.iter().map(|message| {
            context! { role => message.role, content => message.content.as_str() }
        });
        let text = template.render(context! {
            messages => messages.collect::<Value>(),
            add_generation_prompt => true,
            bos_token => self.begin.as_str(),
            eos_token => self.end.as_str(),
        });
        text.context("the file's chat template failed")
    }
}
