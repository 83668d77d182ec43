//! The attention cases of the table of public bug reports, `tests/data/cases.json`.

use crate::attention_reference::Attention;
use crate::cases::Number;
use crate::compare::{assert_same_bits, values};
use crate::inputs::{max_of, normal, tensor, Rng, DTYPES};
use candle_core::{DType, Device, Result, Tensor, Var};
use serde::Deserialize;

on_devices!(given_numbers, generated);

#[derive(Deserialize)]
struct Case {
    id: String,
    op: String,
    dtype: String,
    shape: Vec<usize>,
    input: Option<Vec<Number>>,
    #[serde(default)]
    params: Params,
    expect: Option<Vec<Number>>,
    tol: Option<f64>,
}

#[derive(Deserialize, Default)]
struct Params {
    scale: Option<f32>,
    boolean_mask: Option<serde_json::Value>,
    additive_mask: Option<serde_json::Value>,
}

fn cases() -> Vec<Case> {
    let all: Vec<Case> = serde_json::from_str(include_str!("../data/cases.json")).expect("cases");
    let ours: Vec<Case> = all.into_iter().filter(|c| c.op == "attention").collect();
    assert_eq!(ours.len(), 7, "a case came or went: cover it here");
    ours
}

/// A mask's numbers, of however many dims, broadcast to the case's shape from the last dim on.
fn mask(case: &Case, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
    fn numbers(of: &serde_json::Value, to: &mut Vec<f64>) {
        match of.as_array() {
            Some(all) => all.iter().for_each(|v| numbers(v, to)),
            None => to.push(of.as_f64().expect("a number")),
        }
    }
    let (given, dtype) = match (&case.params.boolean_mask, &case.params.additive_mask) {
        (Some(mask), None) => (mask, DType::U8),
        (None, Some(mask)) => (mask, dtype),
        _ => return Ok(None),
    };
    let mut values = vec![];
    numbers(given, &mut values);
    let keys = case.shape[case.shape.len() - 1];
    let shape = [values.len() / keys, keys];
    tensor(&values, &shape, dtype, device).map(Some)
}

/// In every dtype that holds the numbers; with gradients, which are numbers too.
fn given_numbers(device: &Device) -> Result<()> {
    for case in cases().iter().filter(|c| c.input.is_some()) {
        let input: Vec<f64> = case.input.iter().flatten().map(Number::value).collect();
        let expect: Vec<f64> = case.expect.iter().flatten().map(Number::value).collect();
        for dtype in DTYPES {
            let op = Attention {
                mask: mask(case, dtype, device)?,
                ..Attention::new(case.params.scale.unwrap_or(1.0))
            };
            let scores = Var::from_tensor(&tensor(&input, &case.shape, dtype, device)?)?;
            let y = op.check(&scores, &case.id)?;
            let tol = case.tol.unwrap_or(0.0).max(match dtype {
                DType::F16 => 1e-3,
                DType::BF16 => 8e-3,
                _ => 1e-6,
            });
            for (got, want) in values(&y)?.into_iter().zip(&expect) {
                assert!(
                    (got - want).abs() <= tol,
                    "{}, {dtype:?}: {got}, should be {want}",
                    case.id
                );
            }
            let grads = y.sqr()?.sum_all()?.backward()?;
            let dx = values(grads.get(&scores).expect("a gradient"))?;
            assert!(dx.iter().all(|dx| dx.is_finite()), "{}: {dx:?}", case.id);
            let kept = expect.iter().zip(&dx).filter(|(&y, _)| y == 0.0);
            assert!(
                kept.into_iter().all(|(_, &dx)| dx == 0.0),
                "{}: {dx:?}",
                case.id
            );
        }
    }
    Ok(())
}

fn generated(device: &Device) -> Result<()> {
    for case in cases().iter().filter(|c| c.input.is_none()) {
        let dtype: DType = case.dtype.parse().expect("a dtype");
        match case.id.as_str() {
            "two-finite-masks" => two_finite_masks(dtype, device)?,
            "short-keys" => short_keys(device)?,
            "scaled-half-random-mask" => scaled_half_random_mask(case, device)?,
            "large-positive-bias" => large_positive_bias(case, device)?,
            other => panic!("{other} is new"),
        }
    }
    Ok(())
}

/// MIN + MIN is -inf in f32, which drops the key.
fn two_finite_masks(dtype: DType, device: &Device) -> Result<()> {
    let low = tensor(&[-max_of(dtype), 0.0, 0.0], &[1, 3], dtype, device)?;
    let scores = tensor(&[0.0, 1.0, 2.0], &[1, 1, 1, 3], dtype, device)?;
    let summed = Attention {
        mask: Some((&low + &low)?),
        ..Attention::new(1.0)
    };
    let both = Attention {
        bias: Some(low.clone()),
        mask: Some(low),
        ..Attention::new(1.0)
    };
    let y = summed.check(&scores, "two finite masks, summed")?;
    assert_same_bits(
        &both.check(&scores, "two finite masks")?,
        &y,
        "summed, or by the operator",
    )?;
    for (got, want) in values(&y)?.into_iter().zip([0.0, 0.268_941, 0.731_059]) {
        assert!((got - want).abs() <= 1e-6, "{got}, should be {want}");
    }
    Ok(())
}

fn short_keys(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for keys in 1..=128 {
            let scores = normal(keys as u64, &[1, 2, 4, keys], dtype, device)?;
            let op = Attention {
                causal: true,
                ..Attention::new(1.0)
            };
            op.check(&scores, "short keys")?;
        }
    }
    Ok(())
}

fn scaled_half_random_mask(case: &Case, device: &Device) -> Result<()> {
    let keys = case.shape[3];
    let mut rng = Rng::new(3);
    let count = case.shape.iter().product();
    // At least one a row: the key of the query's own index.
    let own = |i: usize| i / keys % keys == i % keys;
    let kept: Vec<f64> = (0..count)
        .map(|i| f64::from(own(i) || rng.uniform() < 0.5))
        .collect();
    for dtype in DTYPES {
        let op = Attention {
            mask: Some(tensor(&kept, &case.shape, DType::U8, device)?),
            ..Attention::new((1.0 / 32f64.sqrt()) as f32)
        };
        let y = op.check(&normal(4, &case.shape, dtype, device)?, &case.id)?;
        let tol = if dtype == DType::BF16 { 1.6e-2 } else { 2e-3 };
        for row in values(&y)?.chunks(keys) {
            let sum: f64 = row.iter().sum();
            assert!((sum - 1.0).abs() <= tol, "{dtype:?}: a row sums to {sum}");
        }
    }
    Ok(())
}

fn large_positive_bias(case: &Case, device: &Device) -> Result<()> {
    let mut bias = vec![0.0; 33];
    bias[32] = 2000.0;
    for dtype in DTYPES {
        let op = Attention {
            mask: Some(tensor(&bias, &[1, 33], dtype, device)?),
            ..Attention::new(1.0)
        };
        let scores = tensor(&[0.0; 33], &case.shape, dtype, device)?;
        let y = values(&op.check(&scores, &case.id)?)?;
        assert!(
            (y[32] - 1.0).abs() <= 2e-6 && y[..32].iter().all(|&y| y == 0.0),
            "{y:?}"
        );
    }
    Ok(())
}
