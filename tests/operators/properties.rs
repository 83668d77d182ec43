//! Random shapes, strides, dims and values: what every softmax must hold.

use crate::compare::{assert_gradient, assert_same_bits, assert_softmax, bits, values};
use crate::gradients::backward;
use crate::inputs::{max_of, tensor, tiny_of, DTYPES};
use crate::layouts::through_transpose;
use crate::reference;
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::{softmax, OnlineSoftmax};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

on_devices!(forward, gradient);

/// One step from a tensor to a view of it; numbers are reduced to what the shape allows.
#[derive(Debug, Clone)]
enum Step {
    Swap(usize, usize),
    Narrow {
        dim: usize,
        start: usize,
        len: usize,
    },
    EverySecond {
        dim: usize,
    },
    Broadcast {
        times: usize,
    },
    Widen {
        dim: usize,
        to: usize,
    },
    Single {
        dim: usize,
    },
}

/// A value by its kind, so that it fits every dtype.
#[derive(Debug, Clone, Copy)]
enum Value {
    Near(f64),
    Far(f64),
    PlusInf,
    MinusInf,
    Nan,
    Max,
    Lowest,
    Huge(f64),
    Subnormal(i32),
    Zero,
}

#[derive(Debug, Clone)]
struct Input {
    dtype: DType,
    shape: Vec<usize>,
    steps: Vec<Step>,
    dim: usize,
    /// Repeated over the elements, so that a failing input stays short to read.
    values: Vec<Value>,
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0..8usize;
    prop_oneof![
        3 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Swap(a, b)),
        3 => (any.clone(), 0..5usize, 0..400usize)
            .prop_map(|(dim, start, len)| Step::Narrow { dim, start, len }),
        1 => any.clone().prop_map(|dim| Step::EverySecond { dim }),
        1 => (1..4usize).prop_map(|times| Step::Broadcast { times }),
        1 => (any.clone(), 1..40usize).prop_map(|(dim, to)| Step::Widen { dim, to }),
        1 => any.prop_map(|dim| Step::Single { dim }),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        60 => (-4.0..4.0).prop_map(Value::Near),
        10 => (-80.0..80.0).prop_map(Value::Far),
        4 => Just(Value::MinusInf),
        1 => Just(Value::PlusInf),
        1 => Just(Value::Nan),
        1 => Just(Value::Max),
        1 => Just(Value::Lowest),
        2 => (-1.0..1.0).prop_map(Value::Huge),
        2 => (-9..9i32).prop_map(Value::Subnormal),
        2 => Just(Value::Zero),
    ]
}

/// Rank 0 to 5, a zero dimension now and then, one dimension long enough for a block.
fn input() -> impl Strategy<Value = Input> {
    let small = prop_oneof![1 => Just(0usize), 20 => 1..6usize];
    let long = prop_oneof![3 => 1..40usize, 2 => 40..400usize, 1 => 400..5000usize];
    let shape = (
        prop::collection::vec(small, 0..5),
        proptest::option::weighted(0.8, (long, 0..5usize)),
    );
    let shape = shape.prop_map(|(mut shape, long)| {
        if let Some((long, at)) = long {
            shape.insert(at.min(shape.len()), long);
        }
        shape
    });
    (
        prop::sample::select(&DTYPES[..]),
        shape,
        prop::collection::vec(step(), 0..4),
        0..8usize,
        prop::collection::vec(value(), 1..80),
    )
        .prop_map(|(dtype, shape, steps, dim, values)| Input {
            dtype,
            shape,
            steps,
            dim,
            values,
        })
}

impl Input {
    fn element(&self, i: usize) -> f64 {
        let max = max_of(self.dtype);
        // A long row repeats its values with a drift, so that lanes differ.
        let drift = (i / self.values.len() % 7) as f64 / 8.0;
        match self.values[i % self.values.len()] {
            Value::Near(v) => v + drift,
            Value::Far(v) => v,
            Value::PlusInf => f64::INFINITY,
            Value::MinusInf => f64::NEG_INFINITY,
            Value::Nan => f64::NAN,
            Value::Max => max,
            Value::Lowest => -max,
            Value::Huge(v) => v * max,
            Value::Subnormal(k) => tiny_of(self.dtype) * k as f64,
            Value::Zero => 0.0,
        }
    }

    fn view(&self, device: &Device) -> Result<Tensor> {
        let count: usize = self.shape.iter().product();
        let elements: Vec<f64> = (0..count).map(|i| self.element(i)).collect();
        let mut x = tensor(&elements, &self.shape, self.dtype, device)?;
        for step in &self.steps {
            x = step.apply(&x)?;
        }
        Ok(x)
    }
}

impl Step {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let rank = x.rank();
        if rank == 0 {
            return Ok(x.clone());
        }
        let size = |dim: usize| x.dims()[dim % rank];
        match *self {
            Self::Swap(a, b) => x.transpose(a % rank, b % rank),
            Self::Narrow { dim, start, len } => {
                let start = start.min(size(dim));
                x.narrow(dim % rank, start, len.min(size(dim) - start))
            }
            Self::EverySecond { dim } if size(dim) >= 2 && x.is_contiguous() && rank < 6 => {
                let (dim, half) = (dim % rank, size(dim) / 2);
                let mut dims = x.dims().to_vec();
                dims[dim] = half;
                dims.insert(dim + 1, 2);
                let even = x.narrow(dim, 0, 2 * half)?;
                let even = if even.is_contiguous() {
                    even
                } else {
                    even.force_contiguous()?
                };
                even.reshape(dims)?.narrow(dim + 1, 1, 1)?.squeeze(dim + 1)
            }
            Self::Broadcast { times } if rank < 6 => x.broadcast_as([&[times], x.dims()].concat()),
            Self::Widen { dim, to } if size(dim) == 1 => {
                let mut dims = x.dims().to_vec();
                dims[dim % rank] = to;
                x.broadcast_as(dims)
            }
            Self::Single { dim } if size(dim) > 0 => x.narrow(dim % rank, size(dim) - 1, 1),
            _ => Ok(x.clone()),
        }
    }
}

/// Runs `check` on random inputs: 256, or `PROPTEST_CASES`.
fn run(check: impl Fn(&Input) -> Result<()>) -> Result<()> {
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&input(), |input| {
        check(&input).map_err(|error| TestCaseError::fail(error.to_string()))
    });
    outcome.map_err(|failure| candle_core::Error::Msg(failure.to_string()))
}

/// Rows along `dim` as the last dimension, contiguous.
fn as_rows(x: &Tensor, dim: usize) -> Result<Tensor> {
    if x.rank() == 0 {
        return Ok(x.clone());
    }
    x.transpose(dim, x.rank() - 1)?.force_contiguous()
}

fn forward(device: &Device) -> Result<()> {
    run(|input| {
        let x = input.view(device)?;
        let dim = input.dim % x.rank().max(1);
        let y = match x.rank() {
            0 => x.apply_op1(OnlineSoftmax)?,
            _ => softmax(&x, dim)?,
        };
        assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()));
        assert!(y.is_contiguous());
        if x.elem_count() == 0 {
            return Ok(()); // no device works on a copy of nothing
        }
        let cols = x.dims().get(dim).copied().unwrap_or(1);
        let host = values(&as_rows(&x, dim)?)?;
        let rows = as_rows(&y, dim)?;
        assert_softmax(&rows, &reference::softmax(&host, cols), cols, "forward")?;
        if x.rank() > 0 {
            assert_same_bits(&y, &through_transpose(&x, dim)?, "strided and contiguous")?;
        }
        let in_place = x.force_contiguous()?;
        in_place.inplace_op1(&OnlineSoftmax)?;
        assert_same_bits(&in_place, &x.apply_op1(OnlineSoftmax)?, "in place")
    })
}

fn gradient(device: &Device) -> Result<()> {
    run(|input| {
        let x = input.view(device)?;
        let y = x.apply_op1(OnlineSoftmax)?;
        // Any finite numbers of the shape: the input itself, shifted by an element and tamed.
        let host = values(&x)?;
        let tamed = |i: usize| host[(i + 1) % host.len()];
        let g: Vec<f64> = (0..host.len())
            .map(|i| if tamed(i).abs() < 1e3 { tamed(i) } else { 1.0 })
            .collect();
        let g = tensor(&g, x.dims(), input.dtype, device)?;
        let before = (bits(&y)?, bits(&g)?);
        let dx = backward(&y, &g)?;
        assert_eq!((dx.dims(), dx.dtype()), (x.dims(), x.dtype()));
        let cols = x.dims().last().copied().unwrap_or(1);
        assert_gradient(&dx, &values(&y)?, &values(&g)?, cols, "gradient")?;
        assert!(before == (bits(&y)?, bits(&g)?), "an operand was written");
        if x.elem_count() == 0 {
            return Ok(());
        }
        let last = x.rank().saturating_sub(1);
        let strided = |t: &Tensor| match t.rank() {
            0 | 1 => Ok(t.clone()),
            _ => t.transpose(0, last)?.force_contiguous()?.transpose(0, last),
        };
        assert_same_bits(
            &backward(&strided(&y)?, &strided(&g)?)?,
            &dx,
            "strided operands",
        )
    })
}
