//! Gradients of attention's softmax: to scores, biases, additive masks and sinks, against formulas in f64 on the operator's
//! own results, and against differences.

use crate::attention_inputs::{attention, combinations, Feature, MOST};
use crate::attention_reference::{Attention, Row};
use crate::compare::{gradient_ok, ulp, values};
use crate::inputs::{normal, tensor};
use crate::reference::gradient_row;
use candle_core::{DType, Device, Result, Tensor, Var};

use Feature::*;

on_devices_by_dtype!(
    formulas_of_every_pair,
    formulas_of_many_keys,
    summed_over_what_broadcasts
);
on_devices!(
    differences_of_every_pair,
    second_derivatives,
    nothing_is_tracked_in_vain
);

/// The operator with variables in the place of its float tensors.
struct Tracked {
    op: Attention,
    scores: Var,
    sinks: Option<Var>,
    bias: Option<Var>,
    mask: Option<Var>,
}

impl Tracked {
    fn new(op: Attention, scores: &Tensor) -> Result<Self> {
        let var = |t: &Option<Tensor>| match t {
            Some(t) if t.dtype() != DType::U8 => Var::from_tensor(t).map(Some),
            _ => Ok(None),
        };
        let mut op = op;
        let [sinks, bias, mask] = [var(&op.sinks)?, var(&op.bias)?, var(&op.mask)?];
        for (of_op, var) in [
            (&mut op.sinks, &sinks),
            (&mut op.bias, &bias),
            (&mut op.mask, &mask),
        ] {
            if let Some(var) = var {
                *of_op = Some(var.as_tensor().clone());
            }
        }
        Ok(Self {
            op,
            scores: Var::from_tensor(scores)?,
            sinks,
            bias,
            mask,
        })
    }

    fn check(&self, what: &str) -> Result<()> {
        let y = self.op.op().forward(&self.scores)?;
        let g = normal(77, y.dims(), y.dtype(), y.device())?;
        // The gradient of y in this product is g itself.
        let grads = (&y * &g)?.sum_all()?.backward()?;
        let of = |var: &Var| -> Result<Tensor> {
            let grad = grads
                .get(var)
                .unwrap_or_else(|| panic!("{what}: gradient dropped"));
            assert_eq!(
                (grad.dims(), grad.dtype()),
                (var.dims(), var.dtype()),
                "{what}"
            );
            Ok(grad.clone())
        };
        let rows = Rows::new(self, &y, &g)?;
        rows.check_scores(&of(&self.scores)?, what)?;
        for added in [&self.bias, &self.mask].into_iter().flatten() {
            rows.check_added(&of(added)?, what)?;
        }
        if let Some(sinks) = &self.sinks {
            rows.check_sinks(&of(sinks)?, sinks, what)?;
        }
        Ok(())
    }
}

/// What the gradients are made of: y and g of the operator, u = y·(g - Σ g·y), the row's largest |y·g|.
struct Rows<'a> {
    of: &'a Tracked,
    y: Tensor,
    scores: Vec<f64>,
    u: Vec<Vec<f64>>,
    terms: Vec<Vec<f64>>,
    scales: Vec<f64>,
    reference: Vec<Row>,
}

impl<'a> Rows<'a> {
    fn new(of: &'a Tracked, y: &Tensor, g: &Tensor) -> Result<Self> {
        let keys = y.dims()[y.rank() - 1];
        let (of_y, of_g) = (values(y)?, values(g)?);
        let pairs = || of_y.chunks(keys).zip(of_g.chunks(keys));
        let terms = |(y, g): (&[f64], &[f64])| y.iter().zip(g).map(|(y, g)| y * g).collect();
        let terms: Vec<Vec<f64>> = pairs().map(terms).collect();
        let u: Vec<Vec<f64>> = pairs().map(|(y, g)| gradient_row(y, g)).collect();
        let largest = |(terms, u): (&Vec<f64>, &Vec<f64>)| {
            let all = terms.iter().chain(u);
            all.fold(0f64, |a, v| a.max(v.abs()))
        };
        Ok(Self {
            of,
            y: y.clone(),
            scores: values(&of.scores)?,
            scales: terms.iter().zip(&u).map(largest).collect(),
            u,
            terms,
            reference: of.op.rows(&of.scores)?,
        })
    }

    /// u times scale · (1 - tanh²(scale · s / cap)).
    fn check_scores(&self, got: &Tensor, what: &str) -> Result<()> {
        let scale = f64::from(self.of.op.scale);
        let slope = |s: f64| match self.of.op.softcap.map(f64::from) {
            None => scale,
            Some(cap) => scale / (scale * s / cap).cosh().powi(2),
        };
        let (dtype, keys) = (got.dtype(), got.dims()[got.rank() - 1]);
        for (i, got) in values(got)?.into_iter().enumerate() {
            let (row, key) = (i / keys, i % keys);
            let want = self.u[row][key] * slope(self.scores[i]);
            let ok = gradient_ok(dtype, got, want, self.scales[row] * scale.abs());
            let at = format!("row {row}, key {key} of {:?}", self.y.dims());
            assert!(
                ok,
                "scores of {what}, {dtype:?}, {at}: {got:e}, should be {want:e}"
            );
        }
        Ok(())
    }

    /// How far off u may be in the operator, at every element of the row.
    fn off_u(&self, row: usize) -> f64 {
        match self.y.dtype() {
            // u is rounded to a half before it is summed.
            dtype @ (DType::F16 | DType::BF16) => ulp(dtype, self.scales[row]),
            DType::F32 => 2e-6 * self.scales[row],
            _ => 1e-13 * self.scales[row],
        }
    }

    /// u summed over the dims that `got` broadcasts over: as exact as its terms, and as a sum of so many in f32.
    fn check_added(&self, got: &Tensor, what: &str) -> Result<()> {
        let keys = self.y.dims()[self.y.rank() - 1];
        let count = got.elem_count();
        // Which element of `got` each element of y was given.
        let index = Tensor::arange(0, count as u32, &Device::Cpu)?.reshape(got.shape())?;
        let index = index
            .broadcast_as(self.y.shape())?
            .flatten_all()?
            .to_vec1::<u32>()?;
        let terms = index.len() / count;
        let (mut want, mut off, mut sizes) = (vec![0.0; count], vec![0.0; count], vec![0.0; count]);
        for (i, at) in index.into_iter().enumerate() {
            let (row, key, at) = (i / keys, i % keys, at as usize);
            let u = self.u[row][key];
            want[at] += u;
            off[at] += self.off_u(row);
            sizes[at] += u.abs();
        }
        for (at, got_at) in values(got)?.into_iter().enumerate() {
            let of_sum = terms as f64 * unit(self.y.dtype()) * sizes[at];
            let of_result = ulp(got.dtype(), want[at]);
            let close = (got_at - want[at]).abs() <= off[at] + of_sum + of_result;
            assert!(
                close,
                "added of {what}, {:?}, {at} of {:?}: {got_at:e}, should be {:e}",
                got.dtype(),
                got.dims(),
                want[at]
            );
        }
        Ok(())
    }

    /// -Σ p·Σ g·y over the rows of a head, p the sink's share of the denominator.
    fn check_sinks(&self, got: &Tensor, sinks: &Var, what: &str) -> Result<()> {
        let (sinks, dims) = (values(sinks)?, self.y.dims());
        let (queries, keys) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        let (heads, unit) = (sinks.len(), unit(self.y.dtype()));
        let (mut want, mut off) = (vec![0.0; heads], vec![0.0; heads]);
        for (row, terms) in self.terms.iter().enumerate() {
            let (head, of_row) = (row / queries % heads, &self.reference[row]);
            let p = (sinks[head] - of_row.lse).exp();
            let sum: f64 = terms.iter().sum();
            let sizes: f64 = terms.iter().map(|t| t.abs()).sum();
            want[head] -= p * sum;
            // exp of a difference that is as exact as the log-sum-exp, and rounded; the sum of the row's terms; the sum of
            // all rows.
            let of_p = of_row.lse_slack + unit * (sinks[head] - of_row.lse).abs() + 4.0 * unit;
            off[head] += p * (sum.abs() * of_p + sizes * unit * (keys + self.terms.len()) as f64);
        }
        for (head, got_at) in values(got)?.into_iter().enumerate() {
            let close = (got_at - want[head]).abs() <= off[head] + ulp(got.dtype(), want[head]);
            assert!(
                close,
                "sink {head} of {what}, {:?}, {dims:?}: {got_at:e}, should be {:e}",
                got.dtype(),
                want[head]
            );
        }
        Ok(())
    }
}

/// Half a unit in the last place of what results of this dtype are computed in.
fn unit(dtype: DType) -> f64 {
    2f64.powi(if dtype == DType::F64 { -53 } else { -24 })
}

fn check(features: &[Feature], shape: &[usize], dtype: DType, device: &Device) -> Result<()> {
    let op = attention(features, shape, dtype, device)?;
    let scores = normal(shape.iter().sum::<usize>() as u64, shape, dtype, device)?;
    Tracked::new(op, &scores)?.check(&format!("{features:?}"))
}

fn formulas_of_every_pair(dtype: DType, device: &Device) -> Result<()> {
    for shape in [[2, 3, 4, 7], [1, 2, 3, 300]] {
        for features in combinations() {
            check(&features, &shape, dtype, device)?;
        }
    }
    Ok(())
}

fn formulas_of_many_keys(dtype: DType, device: &Device) -> Result<()> {
    for keys in [1, 2, 33, 64, 129, 1000, 1031, 4099, 8193, 20001, 70001] {
        for features in [
            &[Softcap][..],
            &[Causal, Sinks],
            &[Bias, BooleanMask],
            &MOST,
        ] {
            check(features, &[1, 2, 2, keys], dtype, device)?;
        }
    }
    check(&MOST, &[5, 9], dtype, device)?;
    check(&MOST, &[3, 5, 9], dtype, device)?;
    check(&MOST, &[2, 2, 3, 5, 9], dtype, device)
}

fn summed_over_what_broadcasts(dtype: DType, device: &Device) -> Result<()> {
    let shape = [2, 3, 4, 33];
    for ones in 0..16 {
        let dim = |d: usize| if ones >> d & 1 == 1 { 1 } else { shape[d] };
        let dims: Vec<usize> = (0..4).map(dim).collect();
        let leading = dims.iter().take_while(|&&d| d == 1).count();
        for dims in [&dims[..], &dims[leading..]] {
            let scores = normal(1, &shape, dtype, device)?;
            let mut op = attention(&[Causal], &shape, dtype, device)?;
            op.bias = Some(normal(2, dims, dtype, device)?);
            let what = format!("a bias of {dims:?}");
            Tracked::new(op.clone(), &scores)?.check(&what)?;
            // Of f32 beside halves, and a mask with the bias.
            op.mask = op.bias.take();
            op.bias = Some(normal(3, &[4, 1], DType::F32, device)?);
            Tracked::new(op, &scores)?.check(&format!("{what} and a mask"))?;
        }
    }
    Ok(())
}

/// d loss / d element by central differences.
fn difference(x: &[f64], at: usize, loss: impl Fn(&[f64]) -> Result<f64>) -> Result<f64> {
    const H: f64 = 1e-4;
    let moved = |by: f64| {
        let mut x = x.to_vec();
        x[at] += by;
        loss(&x)
    };
    Ok((moved(H)? - moved(-H)?) / (2.0 * H))
}

fn differences_of_every_pair(device: &Device) -> Result<()> {
    let (dtype, shape) = (DType::F64, [2, 2, 3, 7]);
    let g = normal(5, &shape, dtype, device)?;
    let scores = normal(6, &shape, dtype, device)?;
    for features in combinations() {
        let op = attention(&features, &shape, dtype, device)?;
        let loss = |op: &Attention, scores: &Tensor| -> Result<Tensor> {
            (op.op().forward(scores)? * &g)?.sum_all()
        };
        let tracked = Tracked::new(op.clone(), &scores)?;
        let grads = loss(&tracked.op, &tracked.scores)?.backward()?;
        type Moved = fn(&mut Attention, Tensor);
        let moves: [(&Option<Var>, Moved); 3] = [
            (&tracked.sinks, |op, t| op.sinks = Some(t)),
            (&tracked.bias, |op, t| op.bias = Some(t)),
            (&tracked.mask, |op, t| op.mask = Some(t)),
        ];
        let close = |got: f64, want: f64, what: &str| {
            assert!(
                (got - want).abs() <= 1e-7,
                "{features:?}, {what}: {got}, by differences {want}"
            );
        };
        let dx = values(grads.get(&tracked.scores).expect("a gradient"))?;
        let x = values(&scores)?;
        for at in [0, 9, 20, 41, 60, 83] {
            let loss = |x: &[f64]| loss(&op, &tensor(x, &shape, dtype, device)?)?.to_scalar();
            close(dx[at], difference(&x, at, loss)?, &format!("score {at}"));
        }
        for (k, (var, put)) in moves.into_iter().enumerate() {
            let Some(var) = var else { continue };
            let (dx, x) = (values(grads.get(var).expect("a gradient"))?, values(var)?);
            for at in [0, x.len() / 2, x.len() - 1] {
                let loss = |x: &[f64]| {
                    let mut op = op.clone();
                    put(&mut op, tensor(x, var.dims(), dtype, device)?);
                    loss(&op, &scores)?.to_scalar()
                };
                close(
                    dx[at],
                    difference(&x, at, loss)?,
                    &format!("operand {k}, {at}"),
                );
            }
        }
    }
    Ok(())
}

const KEEP_GRAPH: &str = "CANDLE_GRAD_DO_NOT_DETACH";

/// Right without a softcap, an error with one. candle keeps the graph only in a process that asks for it from the start.
fn second_derivatives(_: &Device) -> Result<()> {
    let this = std::env::current_exe().expect("the test binary");
    let name = "attention_gradients::second_derivatives_in_a_child";
    let child = std::process::Command::new(this)
        .args(["--exact", name, "--include-ignored"])
        .env(KEEP_GRAPH, "1")
        .output()
        .expect("a child process");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
    Ok(())
}

#[test]
#[ignore = "run by second_derivatives with CANDLE_GRAD_DO_NOT_DETACH=1"]
fn second_derivatives_in_a_child() -> Result<()> {
    let (dtype, device, shape) = (DType::F64, &Device::Cpu, [1, 2, 3, 7]);
    let [w, v] = [
        normal(8, &shape, dtype, device)?,
        normal(9, &shape, dtype, device)?,
    ];
    let op = attention(&[Causal, Alibi, BooleanMask], &shape, dtype, device)?;
    let first = |op: &Attention, x: &Tensor| -> Result<Tensor> {
        let x = Var::from_tensor(x)?;
        let grads = (op.op().forward(&x)? * &w)?.sqr()?.sum_all()?.backward()?;
        (grads.get(&x).expect("a gradient") * &v)?.sum_all()
    };
    let second = |op: &Attention, x: &Var| -> Result<Tensor> {
        let grads = (op.op().forward(x)? * &w)?.sqr()?.sum_all()?.backward()?;
        let loss = (grads.get(x).expect("a gradient") * &v)?.sum_all()?;
        Ok(loss
            .backward()?
            .get(x)
            .expect("a second derivative")
            .clone())
    };
    let x = Var::from_tensor(&normal(7, &shape, dtype, device)?)?;
    let (got, host) = (values(&second(&op, &x)?)?, values(&x)?);
    for at in [0, 8, 20, 30, 41] {
        let loss = |x: &[f64]| first(&op, &tensor(x, &shape, dtype, device)?)?.to_scalar();
        let want = difference(&host, at, loss)?;
        assert!(
            (got[at] - want).abs() <= 1e-6,
            "{at}: {}, by differences {want}",
            got[at]
        );
    }
    let capped = attention(&[Softcap], &shape, dtype, device)?;
    let text = second(&capped, &x).expect_err("an error").to_string();
    assert!(
        text.contains("requires an operator without softcap"),
        "{text}"
    );
    Ok(())
}

/// Gradients of one operand alone, whichever; those that nobody asks for are not there.
fn nothing_is_tracked_in_vain(device: &Device) -> Result<()> {
    let (dtype, shape) = (DType::F32, [2, 2, 3, 7]);
    let scores = normal(1, &shape, dtype, device)?;
    let op = attention(&[Sinks, Bias, Softcap], &shape, dtype, device)?;
    let all = Tracked::new(op.clone(), &scores)?;
    let g = normal(2, &shape, dtype, device)?;
    let gradients = |op: &Attention, scores: &Tensor, of: &Tensor| -> Result<Vec<f64>> {
        let grads = (op.op().forward(scores)? * &g)?.sum_all()?.backward()?;
        values(grads.get(of).expect("a gradient"))
    };
    let of_op = |sinks: bool, bias: bool| Attention {
        sinks: if sinks {
            all.op.sinks.clone()
        } else {
            op.sinks.clone()
        },
        bias: if bias {
            all.op.bias.clone()
        } else {
            op.bias.clone()
        },
        ..op.clone()
    };
    let (sinks, bias) = (
        all.sinks.as_ref().expect("sinks"),
        all.bias.as_ref().expect("a bias"),
    );
    for (alone, var) in [(of_op(true, false), sinks), (of_op(false, true), bias)] {
        let want = gradients(&all.op, &all.scores, var)?;
        assert_eq!(gradients(&alone, &scores, var)?, want);
    }
    let want = gradients(&all.op, &all.scores, &all.scores)?;
    assert_eq!(gradients(&op, &all.scores, &all.scores)?, want);
    let y = op.op().forward(&scores)?;
    assert!(!y.track_op());
    Ok(())
}
