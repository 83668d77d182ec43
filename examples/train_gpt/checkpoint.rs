//! One file with all that a run needs to go on as if it had not stopped.
use super::adamw::State;
use super::flat::Flat;
use super::train::{Best, Recipe};
use anyhow::{bail, Context, Result};
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::path::Path;

const WEIGHTS: &str = "weights.";
const MEAN: &str = "adamw.mean.";
const SQUARE: &str = "adamw.square.";
const BEST: &str = "best.";

pub fn save(
    path: &Path,
    flat: &Flat,
    recipe: &Recipe,
    state: &State,
    best: Option<&Best>,
) -> Result<()> {
    let mut tensors = Vec::new();
    let mut add = |prefix: &str, vector: &Tensor| -> Result<()> {
        for (name, tensor) in flat.named(&vector.to_device(&Device::Cpu)?)? {
            tensors.push((format!("{prefix}{name}"), tensor));
        }
        Ok(())
    };
    add(WEIGHTS, &state.weights)?;
    add(MEAN, &state.mean)?;
    add(SQUARE, &state.square)?;
    let mut notes = HashMap::from([
        ("recipe".to_string(), recipe.to_json()?),
        ("step".to_string(), state.step.to_string()),
    ]);
    if let Some(best) = best {
        add(BEST, &best.weights)?;
        notes.insert("best_step".into(), best.step.to_string());
        notes.insert("best_bits_per_byte".into(), best.bits_per_byte.to_string());
    }
    // Under another name first: a run killed while it writes keeps its last checkpoint.
    let unfinished = path.with_extension("unfinished");
    safetensors::serialize_to_file(tensors, Some(notes), &unfinished)
        .with_context(|| format!("cannot write {}", unfinished.display()))?;
    std::fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}

/// The state and the best weights so far. A checkpoint of another recipe is refused: the run would
/// be neither the old one nor the new.
pub fn load(
    path: &Path,
    flat: &Flat,
    recipe: &Recipe,
    device: &Device,
) -> Result<(State, Option<Best>)> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let context = || format!("{} is not a checkpoint of this model", path.display());
    let (_, header) = SafeTensors::read_metadata(&bytes).with_context(context)?;
    let notes = header.metadata().clone().unwrap_or_default();
    let note = |key: &str| {
        let found = notes.get(key).map(String::as_str);
        found.with_context(|| format!("{}: no {key}", context()))
    };
    let (made_with, wanted) = (note("recipe")?, recipe.to_json()?);
    if made_with != wanted {
        bail!(
            "{} was made with {made_with}, this run has {wanted}",
            path.display()
        )
    }
    let tensors = candle_core::safetensors::load_buffer(&bytes, device).with_context(context)?;
    let vector = |prefix| flat.gather_named(&tensors, prefix).with_context(context);
    let state = State {
        step: note("step")?.parse().with_context(context)?,
        weights: vector(WEIGHTS)?,
        mean: vector(MEAN)?,
        square: vector(SQUARE)?,
    };
    let best = match notes.contains_key("best_step") {
        false => None,
        true => Some(Best {
            step: note("best_step")?.parse().with_context(context)?,
            bits_per_byte: note("best_bits_per_byte")?.parse().with_context(context)?,
            weights: vector(BEST)?,
        }),
    };
    Ok((state, best))
}
