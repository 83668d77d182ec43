//! The backward pass is an operator with a gradient of its own: second derivatives are right.

use crate::compare::values;
use crate::inputs::{normal, tensor, SAMPLE};
use candle_core::{CustomOp1, DType, Device, Result, Tensor, Var};
use candle_online_softmax::OnlineSoftmax;

on_devices!(
    second_derivative,
    second_derivative_of_strided_operands,
    second_derivative_of_halves
);

/// sum(v * dx(x, g)), where dx is the operator's gradient.
fn loss(x: &Tensor, g: &Tensor, v: &Tensor) -> Result<Tensor> {
    let y = x.apply_op1(OnlineSoftmax)?;
    let dx = OnlineSoftmax.bwd(x, &y, g)?.expect("a gradient");
    (dx * v)?.sum_all()
}

/// d loss / d operand by central differences, at some columns of the first row.
fn differences(
    operand: &[f64],
    shape: &[usize],
    columns: &[usize],
    device: &Device,
    loss: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<f64>> {
    const H: f64 = 1e-3;
    let at = |c: usize, by: f64| -> Result<f64> {
        let mut moved = operand.to_vec();
        moved[c] += by;
        loss(&tensor(&moved, shape, DType::F64, device)?)?.to_scalar::<f64>()
    };
    let slope = |&c: &usize| Ok((at(c, H)? - at(c, -H)?) / (2.0 * H));
    columns.iter().map(slope).collect()
}

fn assert_close(got: &[f64], want: &[f64], columns: &[usize], what: &str) {
    let scale = got.iter().fold(0f64, |a, v| a.max(v.abs()));
    for (&c, want) in columns.iter().zip(want) {
        let off = (got[c] - want).abs();
        assert!(
            off <= 1e-5 * scale,
            "{what}, column {c}: {}, by differences {want}",
            got[c]
        );
    }
}

fn second_derivative(device: &Device) -> Result<()> {
    for cols in SAMPLE.into_iter().filter(|&c| c > 1) {
        let shape = [2, cols];
        let x = Var::from_tensor(&normal(1, &shape, DType::F64, device)?)?;
        let g = Var::from_tensor(&normal(2, &shape, DType::F64, device)?)?;
        let v = normal(3, &shape, DType::F64, device)?;
        let grads = loss(&x, &g, &v)?.backward()?;
        let columns = [0, 1, cols / 2, cols - 1];

        let got = values(grads.get(&x).expect("a second derivative by x"))?;
        let at_x = |moved: &Tensor| loss(moved, &g, &v);
        let want = differences(&values(&x)?, &shape, &columns, device, at_x)?;
        assert_close(&got, &want, &columns, &format!("by x, {cols} columns"));

        let got = values(grads.get(&g).expect("a second derivative by g"))?;
        let at_g = |moved: &Tensor| loss(&x, moved, &v);
        let want = differences(&values(&g)?, &shape, &columns, device, at_g)?;
        assert_close(&got, &want, &columns, &format!("by g, {cols} columns"));
    }
    Ok(())
}

/// Rows along the first dimension: every tensor of the second backward pass is a view.
fn second_derivative_of_strided_operands(device: &Device) -> Result<()> {
    let shape = [17, 3];
    let x = Var::from_tensor(&normal(4, &shape, DType::F64, device)?)?;
    let g = normal(5, &shape, DType::F64, device)?;
    let v = normal(6, &shape, DType::F64, device)?;
    let by_columns = |x: &Tensor| loss(&x.t()?, &g.t()?, &v.t()?);
    let grads = by_columns(&x)?.backward()?;
    let got = values(grads.get(&x).expect("a second derivative"))?;
    let elements = [0, 1, 25, 50];
    let want = differences(&values(&x)?, &shape, &elements, device, by_columns)?;
    assert_close(&got, &want, &elements, "transposed");
    Ok(())
}

/// Halves give what f64 gives on the same numbers, to a half's rounding: they are not summed as halves.
fn second_derivative_of_halves(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for cols in [3, 1000, 20001] {
            let shape = [2, cols];
            let operand = |seed, mean: f64| -> Result<Tensor> {
                (normal(seed, &shape, DType::F64, device)? + mean)?.to_dtype(dtype)
            };
            let (x, g, v) = (operand(1, 0.0)?, operand(2, 3.0)?, operand(3, 2.0)?);
            // y, which the forward pass rounds to a half, is an operand here.
            let y = Var::from_tensor(&x.apply_op1(OnlineSoftmax)?)?;
            let by_y = |y: &Var, g: &Tensor, v: &Tensor| -> Result<Vec<f64>> {
                let dx = OnlineSoftmax.bwd(y, y, g)?.expect("a gradient");
                let grads = (dx * v)?.sum_all()?.backward()?;
                values(grads.get(y).expect("a second derivative by y"))
            };
            let got = by_y(&y, &g, &v)?;
            let f64s = |t: &Tensor| t.to_dtype(DType::F64);
            let want = by_y(&Var::from_tensor(&f64s(&y)?)?, &f64s(&g)?, &f64s(&v)?)?;
            let scale = want.iter().fold(0f64, |a, v| a.max(v.abs()));
            let bound = scale / if dtype == DType::F16 { 2048.0 } else { 256.0 };
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let off = (got - want).abs();
                assert!(
                    off <= bound,
                    "{dtype:?}, {cols} columns, {i}: {got} for {want}"
                );
            }
        }
    }
    Ok(())
}

const KEEP_GRAPH: &str = "CANDLE_GRAD_DO_NOT_DETACH";

/// candle keeps the graph of the backward pass only under an environment variable that it reads
/// once; so this runs `through_candles_graph` in a process of its own.
#[test]
fn through_candles_graph_in_a_child() {
    let this = std::env::current_exe().expect("the test binary");
    let child = std::process::Command::new(this)
        .args([
            "--exact",
            "second_order::through_candles_graph",
            "--include-ignored",
        ])
        .env(KEEP_GRAPH, "1")
        .output()
        .expect("a child process");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// sum((softmax(x) * w)^2), differentiated twice by candle alone.
#[test]
#[ignore = "run by through_candles_graph_in_a_child with CANDLE_GRAD_DO_NOT_DETACH=1"]
fn through_candles_graph() -> Result<()> {
    assert_eq!(std::env::var(KEEP_GRAPH).as_deref(), Ok("1"));
    let device = &Device::Cpu;
    let shape = [2, 7];
    let w = normal(8, &shape, DType::F64, device)?;
    let v = normal(9, &shape, DType::F64, device)?;
    let first = |x: &Var| -> Result<Tensor> {
        let y = (x.apply_op1(OnlineSoftmax)? * &w)?.sqr()?.sum_all()?;
        let grads = y.backward()?;
        (grads.get(x).expect("a gradient") * &v)?.sum_all()
    };
    let x = Var::from_tensor(&normal(7, &shape, DType::F64, device)?)?;
    let grads = first(&x)?.backward()?;
    let got = values(grads.get(&x).expect("a second derivative"))?;
    let columns = [0, 3, 6];
    let by_x = |moved: &Tensor| first(&Var::from_tensor(moved)?);
    let want = differences(&values(&x)?, &shape, &columns, device, by_x)?;
    assert_close(&got, &want, &columns, "candle's graph");
    Ok(())
}
