//! Where a model comes from: the one embedded in the program, a local folder in Hugging Face's
//! layout, or the hub. Each ends as the same three files.
use crate::model::{Config, Gpt, SoftmaxKind};
use anyhow::{anyhow, bail, Context, Result};
use candle_core::{DType, Device};
use candle_nn::VarBuilder;
use std::borrow::Cow;
use std::path::Path;
use tokenizers::Tokenizer;

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";

/// The contents of the three files, and what to call them in an error.
pub struct Files {
    pub origin: String,
    pub config: Cow<'static, [u8]>,
    pub weights: Cow<'static, [u8]>,
    pub tokenizer: Cow<'static, [u8]>,
}

impl Files {
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let read = |name: &str| read(&folder.join(name));
        Ok(Self {
            origin: folder.display().to_string(),
            config: read(CONFIG)?,
            weights: read(WEIGHTS)?,
            tokenizer: read(TOKENIZER)?,
        })
    }

    /// Downloads into the hub's usual cache (`HF_HOME`) from `HF_ENDPOINT` or the public hub.
    #[cfg(feature = "hub")]
    pub fn from_hub(id: &str) -> Result<Self> {
        // The id becomes part of an address and of paths in the cache.
        let well_formed = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(allowed)
        };
        if !id.split('/').all(well_formed) || id.split('/').count() > 2 {
            bail!("--hub wants an id such as owner/name, found {id:?}")
        }
        let hub = hf_hub::api::sync::ApiBuilder::from_env().build()?;
        let model = hub.model(id.to_string());
        let get = |name: &str| {
            let path = model
                .get(name)
                .with_context(|| format!("cannot get {name} of {id} from the hub"))?;
            read(&path)
        };
        Ok(Self {
            origin: id.to_string(),
            config: get(CONFIG)?,
            weights: get(WEIGHTS)?,
            tokenizer: get(TOKENIZER)?,
        })
    }

    #[cfg(not(feature = "hub"))]
    pub fn from_hub(_: &str) -> Result<Self> {
        bail!("--hub needs a build with `--features hub`")
    }

    pub fn load(&self, dtype: DType, device: &Device, softmax: SoftmaxKind) -> Result<Loaded> {
        let in_file = |name: &str| format!("{}/{name}", self.origin);
        let config: Config =
            serde_json::from_slice(&self.config).with_context(|| in_file(CONFIG))?;
        let mut tokenizer = Tokenizer::from_bytes(&self.tokenizer)
            .map_err(|error| anyhow!("{}: {error}", in_file(TOKENIZER)))?;
        // Made for training batches: a prompt is neither cut nor filled up (and `tokenizers` panics
        // where the file's truncation has a stride of its length or more).
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| anyhow!("{}: {error}", in_file(TOKENIZER)))?;
        let pieces = tokenizer.get_vocab(true).into_values().max();
        let pieces = pieces.map_or(0, |id| id as usize + 1);
        if !(1..=config.vocab_size).contains(&pieces) {
            bail!(
                "{}: wanted between 1 and vocab_size = {} pieces, found {pieces}",
                in_file(TOKENIZER),
                config.vocab_size
            )
        }
        let gpt = VarBuilder::from_slice_safetensors(&self.weights, dtype, device)
            .and_then(|vb| Gpt::new(&config, vb, softmax))
            .with_context(|| in_file(WEIGHTS))?;
        Ok(Loaded {
            gpt,
            tokenizer,
            pieces,
        })
    }
}

/// A model ready to run.
pub struct Loaded {
    pub gpt: Gpt,
    pub tokenizer: Tokenizer,
    /// How many ids the tokenizer can spell. A model's vocabulary may be padded beyond it.
    pub pieces: usize,
}

/// Read whole rather than mapped: a mapped file that another program changes is undefined
/// behaviour.
fn read(path: &Path) -> Result<Cow<'static, [u8]>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Cow::Owned(bytes))
}
