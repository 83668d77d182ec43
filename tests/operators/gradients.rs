//! The backward pass: against the formula in f64, against finite differences, through candle's
//! graph to the variable, for every dtype and dimension.

use crate::compare::{assert_gradient, assert_rounded_once, assert_same_bits, values};
use crate::inputs::{finite_rows, normal, stack, tensor, Rng, DTYPES, LONG, SAMPLE, SHORT};
use crate::reference;
use candle_core::{CustomOp1, DType, Device, Result, Tensor, Var};
use candle_online_softmax::{softmax, softmax_last_dim, OnlineSoftmax};

on_devices!(
    formula_short_widths,
    formula_plan_widths,
    formula_on_any_y_and_g,
    finite_differences,
    halves_are_rounded_once,
    reaches_the_variable,
    through_every_dim,
    special_values,
    infinite_gradients,
);

/// The operator's gradient for its result `y` and the incoming gradient `g`.
pub fn backward(y: &Tensor, g: &Tensor) -> Result<Tensor> {
    // The argument only names a shape: its values are wrong on purpose.
    Ok(OnlineSoftmax.bwd(g, y, g)?.expect("a gradient"))
}

/// Softmax of all distributions, and a normal gradient, against the formula.
fn check_formula(cols: usize, dtype: DType, device: &Device) -> Result<()> {
    let rows: Vec<Vec<f64>> = finite_rows(dtype, cols, cols as u64 + 1)
        .into_iter()
        .map(|(_, row)| row)
        .collect();
    let shape = [rows.len(), cols];
    let y = tensor(&stack(&rows), &shape, dtype, device)?.apply_op1(OnlineSoftmax)?;
    let g = normal(cols as u64, &shape, dtype, device)?;
    check_backward(&y, &g, "distributions")
}

pub fn check_backward(y: &Tensor, g: &Tensor, what: &str) -> Result<()> {
    let dx = backward(y, g)?;
    assert_eq!((dx.dims(), dx.dtype()), (y.dims(), y.dtype()), "{what}");
    assert!(dx.is_contiguous(), "{what}");
    let cols = y.dims()[y.rank() - 1];
    assert_gradient(&dx, &values(y)?, &values(g)?, cols, what)
}

fn formula_short_widths(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SHORT {
            check_formula(cols, dtype, device)?;
        }
    }
    Ok(())
}

fn formula_plan_widths(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in LONG {
            check_formula(cols, dtype, device)?;
        }
    }
    Ok(())
}

/// The fused backward is a function of y and g alone, whatever they are.
fn formula_on_any_y_and_g(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SAMPLE {
            for rows in [1, 3, 33] {
                let shape = [rows, cols];
                let y = normal(1, &shape, dtype, device)?;
                let g = normal(2, &shape, dtype, device)?;
                let y = y.affine((cols as f64).recip(), 0.0)?;
                check_backward(&y, &g, "normal y and g")?;
            }
        }
    }
    Ok(())
}

/// As in the forward pass: what is rounded on the way to a result shows in many results.
fn halves_are_rounded_once(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for cols in [5, 33, 130, 1031, 4099, 20001] {
            let shape = [1 + 20_000 / cols, cols];
            let y = normal(1, &shape, dtype, device)?.apply_op1(OnlineSoftmax)?;
            // Far from 0 on average, so that the dot product matters.
            let g = normal(2, &shape, dtype, device)?.affine(1.0, 3.0)?;
            let got = values(&backward(&y, &g)?)?;
            let want = reference::gradient(&values(&y)?, &values(&g)?, cols);
            assert_rounded_once(dtype, &got, &want, &format!("{cols} columns"));
        }
    }
    Ok(())
}

/// d/dx_k of sum(w * softmax(x)) by central differences, all sampled columns in one batch.
fn central_differences(
    x: &[f64],
    w: &[f64],
    columns: &[usize],
    device: &Device,
) -> Result<Vec<f64>> {
    const H: f64 = 1e-3;
    let n = x.len();
    let mut moved = x.repeat(2 * columns.len());
    for (k, &c) in columns.iter().enumerate() {
        moved[2 * k * n + c] += H;
        moved[(2 * k + 1) * n + c] -= H;
    }
    let moved = tensor(&moved, &[2 * columns.len(), n], DType::F64, device)?;
    let y = values(&moved.apply_op1(OnlineSoftmax)?)?;
    let loss: Vec<f64> = y
        .chunks(n)
        .map(|y| y.iter().zip(w).map(|(y, w)| y * w).sum())
        .collect();
    Ok(loss.chunks(2).map(|l| (l[0] - l[1]) / (2.0 * H)).collect())
}

fn finite_differences(device: &Device) -> Result<()> {
    for cols in [2, 3, 5, 31, 64, 100].into_iter().chain(LONG) {
        let x = Var::from_tensor(&normal(3, &[1, cols], DType::F64, device)?)?;
        let w = normal(4, &[1, cols], DType::F64, device)?;
        let y = x.apply_op1(OnlineSoftmax)?;
        let grads = (&y * &w)?.sum_all()?.backward()?;
        let dx = values(grads.get(&x).expect("a gradient for x"))?;
        let (x, w, y) = (values(&x)?, values(&w)?, values(&y)?);
        let columns = [0, 1, cols / 3, cols / 2, cols - 1];
        let differences = central_differences(&x, &w, &columns, device)?;
        let scale = y
            .iter()
            .zip(&w)
            .fold(0f64, |a, (y, w)| a.max((y * w).abs()));
        for (&c, want) in columns.iter().zip(differences) {
            let off = (dx[c] - want).abs();
            let got = dx[c];
            assert!(
                off <= 2e-6 * scale,
                "{cols} columns, {c}: {got:e}, by differences {want:e}"
            );
        }
    }
    Ok(())
}

/// candle's own graph hands the gradient through, for every dtype and entry point.
fn reaches_the_variable(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SAMPLE {
            let x = Var::from_tensor(&normal(5, &[3, cols], dtype, device)?)?;
            let w = normal(6, &[3, cols], dtype, device)?;
            let results = [
                x.apply_op1(OnlineSoftmax)?,
                softmax_last_dim(&x)?,
                softmax(x.as_tensor(), 1)?,
            ];
            for (k, y) in results.iter().enumerate() {
                let grads = (y * &w)?.sum_all()?.backward()?;
                let what = format!("entry point {k}, {dtype:?}, {cols} columns");
                let dx = grads
                    .get(&x)
                    .unwrap_or_else(|| panic!("{what}: gradient dropped"));
                assert_eq!((dx.dims(), dx.dtype()), (x.dims(), dtype), "{what}");
                assert_gradient(dx, &values(y)?, &values(&w)?, cols, &what)?;
            }
        }
    }
    Ok(())
}

fn through_every_dim(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 7] = [
        &[9],
        &[4, 7],
        &[3, 33, 2],
        &[2, 3, 5, 4],
        &[2, 3, 2, 4, 5],
        &[1, 1031, 3],
        &[5, 1, 8],
    ];
    for dtype in DTYPES {
        for shape in shapes {
            for dim in 0..shape.len() {
                let x = Var::from_tensor(&normal(7, shape, dtype, device)?)?;
                let w = normal(8, shape, dtype, device)?;
                let y = softmax(x.as_tensor(), dim)?;
                let grads = (&y * &w)?.sum_all()?.backward()?;
                let what = format!("dim {dim} of {shape:?}, {dtype:?}");
                let dx = grads
                    .get(&x)
                    .unwrap_or_else(|| panic!("{what}: gradient dropped"));
                assert_eq!((dx.dims(), dx.dtype()), (shape, dtype), "{what}");
                let last = shape.len() - 1;
                let rows = |t: &Tensor| t.transpose(dim, last)?.force_contiguous();
                let (y, w, dx) = (rows(&y)?, rows(&w)?, rows(dx)?);
                assert_gradient(&dx, &values(&y)?, &values(&w)?, shape[dim], &what)?;
            }
        }
    }
    Ok(())
}

/// NaN rows give NaN gradients, and only theirs; -inf inputs get 0, not NaN.
fn special_values(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SAMPLE.into_iter().filter(|&c| c > 1) {
            let mut rng = Rng::new(cols as u64);
            let finite: Vec<f64> = (0..cols).map(|_| rng.normal()).collect();
            let with = |p: usize, v: f64| {
                let mut row = finite.clone();
                row[p] = v;
                row
            };
            let rows = [
                finite.clone(),
                with(cols / 2, f64::NAN),
                finite.clone(),
                with(cols - 1, f64::NEG_INFINITY),
                with(0, f64::INFINITY),
                vec![f64::NEG_INFINITY; cols],
                finite.clone(),
            ];
            let shape = [rows.len(), cols];
            let x = Var::from_tensor(&tensor(&stack(&rows), &shape, dtype, device)?)?;
            let mut g = values(&normal(10, &shape, dtype, &Device::Cpu)?)?;
            g[6 * cols + cols / 3] = f64::NAN; // a NaN in g spoils its own row only
            let g = tensor(&g, &shape, dtype, device)?;
            let y = x.apply_op1(OnlineSoftmax)?;
            check_backward(&y, &g, "special values")?;
            let dx = values(&backward(&y, &g)?)?;
            let is_nan: Vec<bool> = dx
                .chunks(cols)
                .map(|r| r.iter().any(|v| v.is_nan()))
                .collect();
            assert_eq!(is_nan, [false, true, false, false, true, true, true]);
            assert_eq!(dx[3 * cols + cols - 1], 0.0, "gradient at -inf");
        }
    }
    Ok(())
}

/// Σ g·y is infinite, in every family: dx is -inf, and NaN where g is.
fn infinite_gradients(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for cols in [5, 300, 4097, 20_000, 300_000, 5_000_001] {
            let y = tensor(&vec![1.0 / cols as f64; cols], &[1, cols], dtype, device)?;
            let mut g = vec![1.0; cols];
            g[cols / 2] = f64::INFINITY;
            let dx = values(&backward(&y, &tensor(&g, &[1, cols], dtype, device)?)?)?;
            for (c, dx) in dx.into_iter().enumerate() {
                let right = match c == cols / 2 {
                    true => dx.is_nan(),
                    false => dx == f64::NEG_INFINITY,
                };
                assert!(right, "{dtype:?}, column {c} of {cols}: {dx}");
            }
        }
    }
    Ok(())
}

/// The reference's formula is the derivative of the reference's softmax.
#[test]
fn reference_gradient_by_differences() {
    let (x, w) = ([0.3, -1.2, 2.0, 0.7], [1.5, -0.5, 0.25, 2.0]);
    let loss = |x: &[f64]| -> f64 {
        let y = reference::softmax_row(x);
        y.iter().zip(&w).map(|(y, w)| y * w).sum()
    };
    let dx = reference::gradient_row(&reference::softmax_row(&x), &w);
    for k in 0..4 {
        let (mut up, mut down) = (x, x);
        up[k] += 1e-5;
        down[k] -= 1e-5;
        assert!((dx[k] - (loss(&up) - loss(&down)) / 2e-5).abs() < 1e-9);
    }
}

/// An upstream gradient of ones gives 0 up to rounding: rows sum to 1 whatever x is.
#[test]
fn gradient_of_a_sum_vanishes() -> Result<()> {
    let x = Var::from_tensor(&normal(1, &[4, 50], DType::F64, &Device::Cpu)?)?;
    let grads = x.apply_op1(OnlineSoftmax)?.sum_all()?.backward()?;
    let dx = values(grads.get(&x).expect("a gradient"))?;
    assert!(dx.iter().all(|v| v.abs() < 1e-15));
    let twice = values(&backward(&x.apply_op1(OnlineSoftmax)?, &x.ones_like()?)?)?;
    assert_same_bits(
        &tensor(&dx, &[4, 50], DType::F64, &Device::Cpu)?,
        &tensor(&twice, &[4, 50], DType::F64, &Device::Cpu)?,
        "through candle and direct",
    )
}
