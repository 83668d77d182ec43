//! The variables of a model, drawn from a seed.
use candle_core::{bail, DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use rand::{rngs::StdRng, Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a `VarBuilder` over candle's `VarMap` makes, with one difference: the initial values come
/// from a generator of ours. candle's CPU generator takes no seed, and CPU and CUDA differ.
#[derive(Clone)]
pub struct Variables(Arc<Mutex<State>>);

struct State {
    rng: StdRng,
    variables: BTreeMap<String, Var>,
}

impl Variables {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng: StdRng::seed_from_u64(seed),
            variables: BTreeMap::new(),
        })))
    }

    pub fn builder(&self, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, device.clone())
    }

    /// By name, in its order.
    pub fn all(&self) -> BTreeMap<String, Var> {
        self.lock().variables.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimpleBackend for Variables {
    fn get(&self, s: Shape, name: &str, h: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let mut state = self.lock();
        if let Some(variable) = state.variables.get(name) {
            return Ok(variable.as_tensor().clone());
        }
        let values: Vec<f32> = match h {
            Init::Const(value) => vec![value as f32; s.elem_count()],
            Init::Randn { mean, stdev } => (0..s.elem_count())
                .map(|_| (mean + stdev * standard_normal(&mut state.rng)) as f32)
                .collect(),
            other => bail!("variable {name}: no seeded form of {other:?}"),
        };
        let values = Tensor::from_vec(values, s, dev)?.to_dtype(dtype)?;
        let variable = Var::from_tensor(&values)?;
        let tensor = variable.as_tensor().clone();
        state.variables.insert(name.to_string(), variable);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _dtype: DType, _dev: &Device) -> Result<Tensor> {
        match self.lock().variables.get(name) {
            Some(variable) => Ok(variable.as_tensor().clone()),
            None => bail!("no variable {name}"),
        }
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.lock().variables.contains_key(name)
    }
}

/// Box and Muller's.
fn standard_normal(rng: &mut StdRng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}
