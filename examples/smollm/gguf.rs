//! A GGUF file: its metadata by key, its tensors by name.
use anyhow::{anyhow, bail, Context, Result};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::QTensor;
use candle_core::Device;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

pub struct Gguf {
    content: Content,
    file: BufReader<File>,
    unread: BTreeSet<String>,
}

impl Gguf {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file)
            .with_context(|| format!("{} cannot be read as GGUF", path.display()))?;
        let unread = content.tensor_infos.keys().cloned().collect();
        Ok(Self {
            content,
            file,
            unread,
        })
    }

    /// An integer of any type, if the file has the key.
    pub fn number(&self, key: &str) -> Result<Option<usize>> {
        self.get(key, "a number", |value| match value {
            Value::I32(n) => usize::try_from(*n).ok(),
            Value::I64(n) => usize::try_from(*n).ok(),
            Value::Bool(_) => None,
            n => usize::try_from(n.to_u64().ok()?).ok(),
        })
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.get(key, "a float", |value| match value {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "a bool", |value| value.to_bool().ok())
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a string", |value| {
            value.to_string().ok().map(String::as_str)
        })
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.get(key, "a list of strings", |value| {
            let list = value.to_vec().ok()?.iter();
            list.map(|item| item.to_string().ok().map(String::as_str))
                .collect()
        })
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.get(key, "a list of numbers", |value| {
            let list = value.to_vec().ok()?.iter();
            list.map(|item| match item {
                Value::I32(n) => Some(i64::from(*n)),
                n => i64::try_from(n.to_u64().ok()?).ok(),
            })
            .collect()
        })
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.content.metadata.get(key) else {
            return Ok(None);
        };
        let kind = value.value_type();
        let read = read(value);
        let wrong = || anyhow!("metadata {key}: expected {what}, found a value of type {kind:?}");
        Ok(Some(read.ok_or_else(wrong)?))
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// Dims as of a row-major tensor, the outermost first.
    pub fn dims(&self, name: &str) -> Result<&[usize]> {
        let info = self.content.tensor_infos.get(name);
        let info = info.with_context(|| format!("missing tensor {name}"))?;
        Ok(info.shape.dims())
    }

    /// The tensor as the file has it, quantised or not.
    pub fn tensor(&mut self, name: &str, shape: &[usize], device: &Device) -> Result<QTensor> {
        let found = self.dims(name)?;
        if found != shape {
            bail!("wrong shape of tensor {name}: wanted {shape:?}, found {found:?}")
        }
        let tensor = self.content.tensor(&mut self.file, name, device);
        self.unread.remove(name);
        tensor.with_context(|| format!("cannot read tensor {name}"))
    }

    /// An error if the file has a tensor that nobody asked for: a model with more to it than was
    /// computed (biases, experts) would answer nonsense.
    pub fn all_read(&self) -> Result<()> {
        match self.unread.first() {
            None => Ok(()),
            Some(name) => bail!(
                "{} tensors of the file have no place in this model, such as {name}",
                self.unread.len()
            ),
        }
    }
}
