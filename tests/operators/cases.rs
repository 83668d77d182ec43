//! The table of public bug reports, `tests/data/cases.json`: cases with numbers run through a small
//! interpreter, in every dtype they can occur in; the others name the function that generates them.

use crate::accuracy::check;
use crate::compare::{assert_same_bits, assert_softmax, bits, values};
use crate::gradients::check_backward;
use crate::inputs::{normal, tensor, DTYPES, LONG};
use crate::layouts::through_transpose;
use crate::reference;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_online_softmax::{softmax, OnlineSoftmax};
use serde::Deserialize;

on_devices!(given_numbers, generated);

#[derive(Deserialize)]
struct Case {
    id: String,
    op: String,
    dtype: String,
    shape: Vec<usize>,
    dim: Option<usize>,
    input: Option<Vec<Number>>,
    generate: Option<String>,
    expect: Option<Vec<Number>>,
    #[serde(default)]
    params: Params,
    tol: Option<f64>,
}

#[derive(Deserialize, Default)]
struct Params {
    op: Option<String>,
    loss: Option<String>,
}

/// A number, or "inf", "-inf", "nan".
#[derive(Deserialize, Clone)]
#[serde(untagged)]
pub enum Number {
    Value(f64),
    Word(String),
}

impl Number {
    pub fn value(&self) -> f64 {
        match self {
            Self::Value(v) => *v,
            Self::Word(word) => word.parse().expect("inf, -inf or nan"),
        }
    }
}

/// Cases of the operators that this crate has: softmax and its gradient.
fn cases() -> Vec<Case> {
    let all: Vec<Case> = serde_json::from_str(include_str!("../data/cases.json")).expect("cases");
    let ours = |c: &Case| matches!(c.op.as_str(), "softmax" | "backward") && c.params.op.is_none();
    let ours: Vec<Case> = all.into_iter().filter(ours).collect();
    assert_eq!(ours.len(), 17, "a case came or went: cover it here");
    ours
}

fn dtype_of(case: &Case) -> DType {
    case.dtype.parse().expect("a dtype")
}

type Generated = fn(&Case, &Device) -> Result<()>;

/// The function of a case that gives no numbers. Giants run in `giant`, on the GPU only.
fn generated_by(id: &str) -> Option<Generated> {
    Some(match id {
        "half-sum-saturates-f16" | "half-sum-saturates-bf16" => half_sum_saturates,
        "grid-limit-65535" => grid_limit,
        "f64-odd-widths" => odd_widths,
        "strided-inputs" => strided_inputs,
        "length-caps" => length_caps,
        "gradient-output-not-written" => gradient_output_not_written,
        "fewer-columns-than-threads" => fewer_columns_than_threads,
        "half-gradient-other-dim" => half_gradient_other_dim,
        "many-elements" | "very-many-tiny-rows" => runs_as_a_giant,
        _ => return None,
    })
}

/// No case is left out: each has numbers that the interpreter knows, or a function.
#[test]
fn every_case_is_covered() {
    for case in cases() {
        match (&case.generate, &case.input) {
            (Some(_), None) => assert!(generated_by(&case.id).is_some(), "{} is new", case.id),
            (None, Some(_)) if case.id == "empty-shapes" => (),
            (None, Some(_)) => assert!(case.expect.is_some(), "{} expects nothing", case.id),
            _ => panic!("{}: either numbers or how to generate them", case.id),
        }
    }
}

fn generated(device: &Device) -> Result<()> {
    for case in cases().iter().filter(|c| c.generate.is_some()) {
        let run = generated_by(&case.id).unwrap_or_else(|| panic!("{} is new", case.id));
        run(case, device)?;
    }
    Ok(())
}

/// Each kind of fault in every dtype; the numbers' own tolerance holds for the case's dtype, and
/// for the coarser ones their unit.
fn given_numbers(device: &Device) -> Result<()> {
    for case in cases().iter().filter(|c| c.input.is_some()) {
        for dtype in DTYPES {
            let input = case.input.as_deref().expect("an input");
            let input: Vec<f64> = input.iter().map(Number::value).collect();
            let x = tensor(&input, &case.shape, dtype, device)?;
            let got = match case.op.as_str() {
                "softmax" => last_or_dim(&x, case.dim)?,
                _ => gradient_of_loss(&Var::from_tensor(&x)?, case)?,
            };
            assert_eq!(
                (got.dims(), got.dtype()),
                (&case.shape[..], dtype),
                "{}",
                case.id
            );
            let tol = case.tol.unwrap_or(0.0).max(match dtype {
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                _ => 1e-7,
            });
            assert_numbers(&values(&got)?, case, tol, dtype);
        }
    }
    Ok(())
}

fn last_or_dim(x: &Tensor, dim: Option<usize>) -> Result<Tensor> {
    match dim {
        Some(dim) => softmax(x, dim),
        None => x.apply_op1(OnlineSoftmax),
    }
}

fn gradient_of_loss(x: &Var, case: &Case) -> Result<Tensor> {
    let y = last_or_dim(x, case.dim)?;
    let loss = match case.params.loss.as_deref() {
        Some("sum(y^2)") => y.sqr()?.sum_all()?,
        other => panic!("{}: unknown loss {other:?}", case.id),
    };
    let grads = loss.backward()?;
    let dx = grads
        .get(x)
        .unwrap_or_else(|| panic!("{}: dropped", case.id));
    Ok(dx.clone())
}

fn assert_numbers(got: &[f64], case: &Case, tol: f64, dtype: DType) {
    // Only the case of empty shapes has no numbers to expect: its shape is all.
    let expect = case.expect.as_deref().unwrap_or(&[]);
    assert_eq!(got.len(), expect.len(), "{}", case.id);
    for (&got, want) in got.iter().zip(expect.iter().map(Number::value)) {
        let same = (got.is_nan() && want.is_nan()) || (got - want).abs() <= tol;
        assert!(same, "{}, {dtype:?}: {got}, should be {want}", case.id);
    }
}

/// A sum kept in a half dtype stops growing at 2048 (f16) and 256 (bf16).
fn half_sum_saturates(case: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let y = Tensor::zeros(&case.shape[..], dtype, device)?.apply_op1(OnlineSoftmax)?;
        let cols = case.shape[1];
        let got = values(&y)?;
        let want = 1.0 / cols as f64;
        assert_softmax(&y, &vec![want; cols], cols, &case.id)?;
        assert!(got.iter().all(|v| *v == got[0]));
        if dtype == dtype_of(case) {
            // One unit off is within the contract, but these the report gives exactly.
            assert_eq!(got[0], crate::compare::round(dtype, want), "{}", case.id);
        }
    }
    Ok(())
}

/// More slices than a grid's y and z can count, and more than that of outer ones.
fn grid_limit(_: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (shape, dim) in [
            ([1, 65536, 6], 1),
            ([70000, 5, 3], 1),
            ([2, 3, 70000], 1),
            ([70000, 3, 2], 2),
        ] {
            let [_, b, c] = shape;
            let value = |i: usize| ((i / c % b) % 13) as f64 * 0.1 + (i % c) as f64;
            let x: Vec<f64> = (0..shape.iter().product()).map(value).collect();
            let x = tensor(&x, &shape, dtype, device)?;
            let what = format!("{shape:?}, dim {dim}, {dtype:?}");
            let y = softmax(&x, dim)?;
            assert_same_bits(&y, &through_transpose(&x, dim)?, &what)?;
            let want = reference::along_dim(&values(&x)?, &shape, dim, reference::softmax_row);
            let want = tensor(&want, &shape, DType::F64, &Device::Cpu)?.transpose(dim, 2)?;
            let rows = y.transpose(dim, 2)?.force_contiguous()?;
            assert_softmax(&rows, &values(&want)?, shape[dim], &what)?;
        }
    }
    Ok(())
}

/// Widths that a vectorised loop's remainder gets wrong.
fn odd_widths(_: &Case, device: &Device) -> Result<()> {
    let widths = (2..=300)
        .chain((301..4096).step_by(61))
        .chain([781, 4095, 4096]);
    for cols in widths {
        let y = Tensor::zeros((2, cols), DType::F64, device)?.apply_op1(OnlineSoftmax)?;
        let got = values(&y)?;
        let want = 1.0 / cols as f64;
        assert!(
            got.iter().all(|v| (v - want).abs() <= 1e-15 * want),
            "{cols}"
        );
        assert!(
            got.chunks(cols)
                .all(|r| (r.iter().sum::<f64>() - 1.0).abs() <= 1e-12),
            "{cols}"
        );
        for dtype in DTYPES {
            check(&Tensor::zeros((2, cols), dtype, device)?, "zeros")?;
        }
    }
    Ok(())
}

fn strided_inputs(_: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let range = |n: usize, shape: &[usize]| {
            let values: Vec<f64> = (0..n).map(|v| v as f64).collect();
            tensor(&values, shape, dtype, device)
        };
        let x = range(12, &[4, 3])?;
        let column = range(3, &[3, 1])?;
        let row = range(4, &[1, 4])?;
        let rank_5 = range(48, &[4, 2, 3, 1, 2])?;
        let views = [
            x.t()?,
            x.narrow(1, 1, 2)?,
            x.reshape((3, 2, 2))?.narrow(2, 1, 1)?.squeeze(2)?,
            column.broadcast_as((3, 4))?,
            row.broadcast_as((3, 4))?,
            rank_5.permute((4, 3, 2, 1, 0))?,
        ];
        for (k, view) in views.iter().enumerate() {
            let got = view.apply_op1(OnlineSoftmax)?;
            let want = view.force_contiguous()?.apply_op1(OnlineSoftmax)?;
            assert_same_bits(&got, &want, &format!("view {k}, {dtype:?}"))?;
            check(view, &format!("view {k}"))?;
        }
    }
    Ok(())
}

fn length_caps(case: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in LONG.into_iter().filter(|&c| c >= 1023) {
            check(
                &normal(cols as u64, &[case.shape[0], cols], dtype, device)?,
                &case.id,
            )?;
        }
    }
    Ok(())
}

fn gradient_output_not_written(case: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = Var::from_tensor(&normal(1, &case.shape, dtype, device)?)?;
        let g = normal(2, &case.shape, dtype, device)?;
        let y = x.apply_op1(OnlineSoftmax)?;
        let before = [bits(&x)?, bits(&y)?, bits(&g)?];
        // The gradient of y in this product is g itself.
        let grads = (&y * &g)?.sum_all()?.backward()?;
        check_backward(&y, &g, &case.id)?;
        assert!(grads.get(&x).is_some());
        assert!(
            before == [bits(&x)?, bits(&y)?, bits(&g)?],
            "{}, {dtype:?}",
            case.id
        );
    }
    Ok(())
}

fn fewer_columns_than_threads(case: &Case, device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in 1..=64 {
            for rows in 1..=5 {
                check(
                    &normal(cols as u64, &[rows, cols], dtype, device)?,
                    &case.id,
                )?;
            }
        }
    }
    Ok(())
}

fn half_gradient_other_dim(case: &Case, device: &Device) -> Result<()> {
    let dim = case.dim.expect("a dim");
    for dtype in DTYPES {
        let x = Var::from_tensor(&normal(3, &case.shape, dtype, device)?)?;
        let w = normal(4, &case.shape, dtype, device)?;
        let y = softmax(x.as_tensor(), dim)?;
        let grads = (&y * &w)?.sum_all()?.backward()?;
        let dx = grads.get(&x).expect("a gradient");
        assert_eq!(dx.dtype(), dtype);
        let last = case.shape.len() - 1;
        let rows = |t: &Tensor| t.transpose(dim, last)?.force_contiguous();
        let (dx, y, w) = (rows(dx)?, values(&rows(&y)?)?, values(&rows(&w)?)?);
        crate::compare::assert_gradient(&dx, &y, &w, case.shape[dim], &case.id)?;
    }
    Ok(())
}

/// Says so on the CPU; on the GPU `giant` runs them, and this checks that it knows their names.
fn runs_as_a_giant(case: &Case, device: &Device) -> Result<()> {
    let name = case.id.replace('-', "_");
    let giants = include_str!("giant.rs");
    assert!(
        giants.contains(&format!("fn {name}()")),
        "no giant test named {name}"
    );
    if device.is_cpu() {
        crate::devices::announce(&format!("SKIPPED case {} on the CPU: GPU only", case.id));
    }
    Ok(())
}
