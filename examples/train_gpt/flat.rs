//! All variables as one vector, so that the optimiser launches a few kernels and not a few for
//! each of fifty variables.
use anyhow::{bail, Context, Result};
use candle_core::{backprop::GradStore, DType, Device, Tensor, Var};
use std::collections::{BTreeMap, HashMap};

/// The vector is padded with zeros to whole rows of this length: a sum over it is then taken row
/// by row, where candle would give a sum over one long vector to a single block.
const ROW: usize = 1024;

/// Where each variable lies in the vector.
pub struct Flat {
    entries: Vec<Entry>,
    padding: usize,
    device: Device,
}

struct Entry {
    name: String,
    var: Var,
    start: usize,
}

impl Entry {
    fn len(&self) -> usize {
        self.var.elem_count()
    }
}

impl Flat {
    pub fn new(variables: BTreeMap<String, Var>, device: &Device) -> Self {
        let mut start = 0;
        let mut entries = Vec::new();
        for (name, var) in variables {
            let len = var.elem_count();
            entries.push(Entry { name, var, start });
            start += len;
        }
        Self {
            entries,
            padding: start.next_multiple_of(ROW) - start,
            device: device.clone(),
        }
    }

    pub fn zeros(&self) -> Result<Tensor> {
        let len = self.entries.iter().map(Entry::len).sum::<usize>() + self.padding;
        Ok(Tensor::zeros(len, DType::F32, &self.device)?)
    }

    /// The values of the variables.
    pub fn values(&self) -> Result<Tensor> {
        let pieces = self
            .entries
            .iter()
            .map(|entry| Ok(entry.var.flatten_all()?));
        self.concat(pieces.collect::<Result<_>>()?)
    }

    pub fn gradients(&self, grads: &GradStore) -> Result<Tensor> {
        let piece = |entry: &Entry| match grads.get(&entry.var) {
            Some(grad) => Ok(grad.flatten_all()?),
            None => bail!("no gradient for {}", entry.name),
        };
        self.concat(self.entries.iter().map(piece).collect::<Result<_>>()?)
    }

    /// 1 where a matrix lies and 0 elsewhere.
    pub fn matrices(&self) -> Result<Tensor> {
        let piece = |entry: &Entry| {
            let value = f32::from(u8::from(entry.var.rank() >= 2));
            Ok(Tensor::full(value, entry.len(), &self.device)?)
        };
        self.concat(self.entries.iter().map(piece).collect::<Result<_>>()?)
    }

    fn concat(&self, mut pieces: Vec<Tensor>) -> Result<Tensor> {
        if self.padding > 0 {
            pieces.push(Tensor::zeros(self.padding, DType::F32, &self.device)?);
        }
        // Detached: variables and their gradients hold the graph that they come from, and vectors
        // computed from them, step after step, would hold that of every step there was.
        Ok(Tensor::cat(&pieces, 0)?.detach())
    }

    /// Sets the variables from the vector.
    pub fn write(&self, flat: &Tensor) -> Result<()> {
        for entry in &self.entries {
            let piece = flat.narrow(0, entry.start, entry.len())?;
            entry.var.set(&piece.reshape(entry.var.shape())?)?;
        }
        Ok(())
    }

    /// The vector in pieces of the variables' names and shapes.
    pub fn named(&self, flat: &Tensor) -> Result<Vec<(String, Tensor)>> {
        let piece = |entry: &Entry| {
            let piece = flat.narrow(0, entry.start, entry.len())?;
            Ok((entry.name.clone(), piece.reshape(entry.var.shape())?))
        };
        self.entries.iter().map(piece).collect()
    }

    /// The vector of such pieces, their names preceded by `prefix`.
    pub fn gather_named(&self, tensors: &HashMap<String, Tensor>, prefix: &str) -> Result<Tensor> {
        let piece = |entry: &Entry| {
            let name = format!("{prefix}{}", entry.name);
            let tensor = tensors
                .get(&name)
                .with_context(|| format!("tensor {name} is missing"))?;
            if tensor.dims() != entry.var.dims() || tensor.dtype() != DType::F32 {
                bail!(
                    "tensor {name}: wanted f32 of {:?}, found {:?} of {:?}",
                    entry.var.dims(),
                    tensor.dtype(),
                    tensor.dims()
                )
            }
            Ok(tensor.flatten_all()?)
        };
        self.concat(self.entries.iter().map(piece).collect::<Result<_>>()?)
    }

    /// Euclidean length of such a vector, a scalar on the device.
    pub fn norm(flat: &Tensor) -> Result<Tensor> {
        let rows = flat.sqr()?.reshape(((), ROW))?.sum(1)?;
        Ok(rows.sum_all()?.sqrt()?)
    }

    /// Errors unless every variable has a gradient with something in it. candle drops gradients
    /// without a word at operators that have none (`LayerNorm::forward`, `softmax_last_dim`); what
    /// lies behind them would keep its initial values.
    pub fn check_gradients(&self, grads: &GradStore) -> Result<()> {
        let mut missing = Vec::new();
        for entry in &self.entries {
            let reached = match grads.get(&entry.var) {
                Some(grad) => grad.abs()?.sum_all()?.to_scalar::<f32>()? != 0.0,
                None => false,
            };
            if !reached {
                missing.push(entry.name.as_str());
            }
        }
        if !missing.is_empty() {
            bail!("no gradient reaches {}", missing.join(", "))
        }
        Ok(())
    }
}
