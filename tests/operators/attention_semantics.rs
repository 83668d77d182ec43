//! What masks, infinities, NaN and sinks mean: the contract's table.

use crate::attention_inputs::{boolean_mask, Feature, MOST};
use crate::attention_reference::Attention;
use crate::compare::{assert_same_bits, bits, values};
use crate::inputs::{max_of, normal, nothing, tensor, DTYPES};
use candle_core::{DType, Device, Result, Tensor, Var};

on_devices_by_dtype!(
    nothing_kept_is_zero,
    masked_positions_are_never_looked_at,
    special_values_that_are_kept,
);
on_devices!(
    lowest_numbers_are_no_masks,
    low_scores_beat_nothing,
    windows,
    far_windows_and_offsets,
    special_sinks,
    sinks_of_rows_without_keys,
    f32_output,
    empty_shapes,
    operands_are_not_written,
);

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// One width or two a kernel family.
const WIDTHS: [usize; 8] = [1, 2, 5, 33, 130, 1031, 4099, 70001];

fn boolean(
    keep: impl Fn(usize, usize) -> bool,
    shape: [usize; 2],
    device: &Device,
) -> Result<Tensor> {
    let [rows, cols] = shape;
    let kept: Vec<u8> = (0..rows * cols)
        .map(|i| keep(i / cols, i % cols).into())
        .collect();
    Tensor::from_vec(kept, &shape, &Device::Cpu)?.to_device(device)
}

/// Probabilities, log-sum-exp and the gradient of the scores.
fn all_of(op: &Attention, scores: &Tensor, g: &Tensor) -> Result<[Tensor; 3]> {
    let scores = Var::from_tensor(scores)?;
    let (y, lse) = op.op().forward_with_lse(&scores)?;
    // The gradient of y in this product is g itself.
    let grads = (&y * g)?.sum_all()?.backward()?;
    let dx = grads.get(&scores).expect("a gradient").clone();
    Ok([y, lse, dx])
}

/// By a boolean mask, an additive one, scores, causality: row 1 of 3 is 0, its gradient 0 whatever comes, its lse -inf.
fn nothing_kept_is_zero(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let shape = [3, keys];
        let scores = normal(1, &shape, dtype, device)?;
        let other_rows = boolean(|row, _| row != 1, shape, device)?;
        let dropped = tensor(&[0.0, -INF, 0.0], &[3, 1], dtype, device)?;
        let none = Attention::new(1.0);
        let by_mask = |mask: &Tensor| Attention {
            mask: Some(mask.clone()),
            ..none.clone()
        };
        let in_row_1 = dropped.broadcast_as(&shape)?;
        let mut g = values(&normal(2, &shape, dtype, device)?)?;
        g[keys..2 * keys].fill(NAN);
        let g = tensor(&g, &shape, dtype, device)?;
        for (how, op, scores) in [
            ("boolean", by_mask(&other_rows), scores.clone()),
            ("additive", by_mask(&dropped), scores.clone()),
            ("scores", none.clone(), scores.broadcast_add(&dropped)?),
            ("both", by_mask(&dropped), (&scores + &in_row_1)?),
        ] {
            op.check(&scores, how)?;
            let what = format!("{how}, {dtype:?}, {keys} keys");
            let [y, lse, dx] = all_of(&op, &scores, &g)?;
            let zeros = vec![0f64.to_bits(); keys];
            assert_eq!(bits(&y.narrow(0, 1, 1)?)?, zeros, "{what}");
            assert!(
                values(&dx.narrow(0, 1, 1)?)?.iter().all(|&dx| dx == 0.0),
                "{what}"
            );
            assert!(values(&dx)?.iter().all(|dx| dx.is_finite()), "{what}");
            assert_eq!(values(&lse)?[1], -INF, "{what}");
            assert!(values(&lse)?[0].is_finite(), "{what}");
            let in_place = scores.force_contiguous()?;
            op.op().forward_inplace(&in_place, None)?;
            assert_same_bits(&in_place, &y, &what)?;
        }
    }
    Ok(())
}

/// With anything there: the bits of zeros there, in results and in gradients.
fn masked_positions_are_never_looked_at(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let shape = [4, keys];
        let mask = boolean_mask(&shape, device)?;
        let of_mask = values(&mask)?;
        let masked = Attention {
            mask: Some(mask),
            ..Attention::new(0.5)
        };
        let causal = Attention {
            causal: true,
            ..Attention::new(0.5)
        };
        let window = Attention {
            window: [Some(2), Some(1)],
            softcap: Some(2.0),
            ..Attention::new(0.5)
        };
        let (queries, at) = (4i64, |i: usize| ((i / keys) as i64, (i % keys) as i64));
        let seen = |i: usize, left: i64, right: i64| {
            let (query, key) = at(i);
            let at = query + keys as i64 - queries;
            (at - left..=at + right).contains(&key)
        };
        let kept_by: [(&Attention, &dyn Fn(usize) -> bool); 3] = [
            (&masked, &|i| of_mask[i] != 0.0),
            (&causal, &|i| seen(i, i64::from(u32::MAX), 0)),
            (&window, &|i| seen(i, 2, 1)),
        ];
        for (op, kept) in kept_by {
            let of = |seed, garbage: &dyn Fn(usize) -> f64| -> Result<Tensor> {
                let finite = values(&normal(seed, &shape, dtype, device)?)?.into_iter();
                let each = finite
                    .enumerate()
                    .map(|(i, v)| if kept(i) { v } else { garbage(i) });
                tensor(&each.collect::<Vec<f64>>(), &shape, dtype, device)
            };
            let garbage = |i: usize| [NAN, INF, -INF, max_of(dtype), -max_of(dtype)][i % 5];
            let run = |garbage: &dyn Fn(usize) -> f64| {
                let mut op = op.clone();
                op.bias = Some(of(2, garbage)?);
                all_of(&op, &of(1, garbage)?, &of(3, garbage)?)
            };
            let (got, want) = (run(&garbage)?, run(&|_| 0.0)?);
            for (got, want) in got.iter().zip(&want) {
                assert_same_bits(got, want, &format!("{op:?}, {dtype:?}, {keys} keys"))?;
            }
        }
    }
    Ok(())
}

/// A NaN or +inf that is kept makes its row NaN, and its row alone; -inf is 0.
fn special_values_that_are_kept(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let places = [0, keys / 3, keys / 2, keys - 1];
        let specials = [NAN, INF, -INF];
        let shape = [2 * places.len() * specials.len() + 1, keys];
        let plain = values(&normal(4, &shape, dtype, device)?)?;
        let (mut scores, mut bias) = (plain.clone(), plain);
        for (r, place) in places.into_iter().enumerate() {
            for (k, special) in specials.into_iter().enumerate() {
                // Every second row is finite.
                let i = (2 * (r * specials.len() + k) + 1) * keys + place;
                scores[i] = special;
                bias[i] = special;
            }
        }
        let (scores, bias) = [scores, bias]
            .map(|v| tensor(&v, &shape, dtype, device))
            .into();
        let finite = normal(5, &shape, dtype, device)?;
        let mut op = Attention::new(0.5);
        op.check(&scores?, "special scores")?;
        op.bias = Some(bias?);
        op.check(&finite, "special biases")?;
        let mask = boolean(|row, _| row % 4 != 1, shape, device)?;
        op.mask = Some(mask); // a third of those rows is masked
        op.check(&finite, "special biases under a mask")?;
    }
    Ok(())
}

/// MIN of any dtype is added as it is, in f32: rows of nothing else have probabilities.
fn lowest_numbers_are_no_masks(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for keys in [2, 5, 130, 1031] {
            let low = tensor(&vec![-max_of(dtype); keys], &[1, keys], dtype, device)?;
            let mut op = Attention::new(1.0);
            op.mask = Some(low.clone());
            if dtype == DType::F16 {
                // Twice MIN is a number in f32.
                let y = op.check(&low, "MIN + MIN")?;
                let want = crate::compare::round(dtype, 1.0 / keys as f64);
                assert!(values(&y)?.iter().all(|&y| y == want), "{dtype:?}");
            }
            op.check(&normal(3, &[1, keys], dtype, device)?, "MIN everywhere")?;
            let mut some = vec![0.0; keys];
            some[keys / 2] = -max_of(dtype);
            op.mask = Some(tensor(&some, &[1, keys], dtype, device)?);
            let y = op.check(&normal(3, &[1, keys], dtype, device)?, "MIN at one key")?;
            assert_eq!(values(&y)?[keys / 2], 0.0);
        }
    }
    Ok(())
}

/// A score far below those masked out is all that its row has.
fn low_scores_beat_nothing(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for keys in [2, 5, 130, 1031, 4099] {
            for low in [-20_000.0, -60_000.0, -max_of(dtype)] {
                let mut scores = vec![0.0; keys];
                scores[keys - 1] = low;
                let mut op = Attention::new(1.0);
                op.mask = Some(boolean(|_, key| key == keys - 1, [1, keys], device)?);
                let scores = tensor(&scores, &[1, keys], dtype, device)?;
                let y = values(&op.check(&scores, "a low score")?)?;
                // On CUDA a quotient of a number by itself may be off by its last bits.
                assert!(
                    (y[keys - 1] - 1.0).abs() <= 2e-6,
                    "{dtype:?}: {}",
                    y[keys - 1]
                );
                assert!(y[..keys - 1].iter().all(|&y| y == 0.0));
            }
        }
    }
    Ok(())
}

fn windows(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (queries, keys) in [(1, 1), (5, 5), (3, 40), (9, 4), (33, 300)] {
            let scores = normal(1, &[2, queries, keys], dtype, device)?;
            for left in [None, Some(0), Some(1), Some(7)] {
                for right in [None, Some(0), Some(2)] {
                    for (causal, kv_offset) in [(false, None), (true, None), (true, Some(2))] {
                        let op = Attention {
                            window: [left, right],
                            causal,
                            kv_offset,
                            ..Attention::new(1.0)
                        };
                        op.check(
                            &scores,
                            &format!("window {left:?}, {right:?}, {kv_offset:?}"),
                        )?;
                    }
                }
            }
        }
        // A window of the token alone is the identity.
        let mut op = Attention::new(3.0);
        op.window = [Some(0), Some(0)];
        let y = values(&op.op().forward(&normal(2, &[3, 3], dtype, device)?)?)?;
        for (i, y) in y.into_iter().enumerate() {
            let want = if i % 4 == 0 { 1.0 } else { 0.0 };
            assert!((y - want).abs() <= 2e-6, "{dtype:?}, {i}: {y}");
        }
    }
    Ok(())
}

/// Distances beyond every index are no limit, and overflow nowhere.
fn far_windows_and_offsets(device: &Device) -> Result<()> {
    let scores = normal(1, &[2, 3, 33], DType::F32, device)?;
    let all = Attention::new(1.0).op().forward(&scores)?;
    for far in [40, 1 << 33, usize::MAX / 2, usize::MAX] {
        let mut op = Attention::new(1.0);
        op.window = [Some(far), Some(far)];
        assert_same_bits(&op.op().forward(&scores)?, &all, "a far window")?;
        (op.window, op.causal, op.kv_offset) = ([None, None], true, Some(far));
        assert_same_bits(&op.op().forward(&scores)?, &all, "a far offset")?;
        op.window = [Some(3), None]; // that far off, no key is in it
        let none = values(&op.op().forward(&scores)?)?;
        assert!(none.iter().all(|&y| y == 0.0), "{far}");
    }
    Ok(())
}

/// One of three heads has the sink; the others have one of 0.
fn special_sinks(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for keys in [1, 5, 130, 1031, 4099] {
            let scores = normal(keys as u64, &[2, 3, 4, keys], dtype, device)?;
            for sink in [
                -INF,
                NAN,
                30_000.0,
                -30_000.0,
                88.0,
                -max_of(dtype),
                max_of(dtype),
            ] {
                let mut op = Attention::new(1.0);
                op.sinks = Some(tensor(&[0.0, sink, 0.0], &[3], dtype, device)?);
                let y = op.check(&scores, &format!("sink {sink}"))?;
                let (y, lse) = (
                    values(&y.narrow(1, 1, 1)?)?,
                    op.op().forward_with_lse(&scores)?.1,
                );
                let lse = values(&lse.narrow(1, 1, 1)?)?;
                match sink {
                    _ if sink.is_nan() => assert!(y.iter().chain(&lse).all(|v| v.is_nan())),
                    _ if sink >= 30_000.0 => {
                        assert!(y.iter().all(|&y| y == 0.0), "sink {sink}");
                        let rounded = values(&tensor(&[sink], &[1], dtype, device)?)?[0];
                        assert!(lse.iter().all(|&l| l == rounded), "sink {sink}: {lse:?}");
                    }
                    _ => assert!(lse.iter().all(|l| l.is_finite())),
                }
            }
        }
    }
    Ok(())
}

/// All that is left of a row of which nothing is kept.
fn sinks_of_rows_without_keys(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for keys in [1, 33, 1031] {
            let shape = [1, 2, 3, keys];
            let sinks = Var::from_tensor(&tensor(&[0.5, -INF], &[2], dtype, device)?)?;
            let mut op = Attention::new(1.0);
            op.sinks = Some(sinks.as_tensor().clone());
            op.mask = Some(Tensor::zeros(&shape, DType::U8, &Device::Cpu)?.to_device(device)?);
            let scores = normal(1, &shape, dtype, device)?;
            let (y, lse) = op.op().forward_with_lse(&scores)?;
            assert!(bits(&y)?.iter().all(|&y| y == 0), "{dtype:?}");
            assert_eq!(values(&lse)?, [0.5, 0.5, 0.5, -INF, -INF, -INF]);
            let grads = y.sum_all()?.backward()?;
            assert_eq!(values(grads.get(&sinks).expect("a gradient"))?, [0.0; 2]);
        }
    }
    Ok(())
}

/// Halves are not rounded, and nothing changes for the others.
fn f32_output(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let shape = [2, 3, 4, 130];
        let mut op = crate::attention_inputs::attention(&MOST, &shape, dtype, device)?;
        let scores = normal(1, &shape, dtype, device)?;
        let narrow = op.check(&scores, "as the scores")?;
        op.f32_output = true;
        let wide = op.check(&scores, "f32")?;
        assert_same_bits(&wide.to_dtype(dtype)?, &narrow, "rounded once")?;
        // Scores of f32 hold the same numbers.
        if matches!(dtype, DType::F16 | DType::BF16) {
            assert_same_bits(
                &wide,
                &op.op().forward(&scores.to_dtype(DType::F32)?)?,
                "of f32",
            )?;
        }
    }
    Ok(())
}

/// No keys, no queries, no heads: results and gradients of the same shape.
fn empty_shapes(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 7] = [
        &[2, 3, 4, 0],
        &[2, 3, 0, 5],
        &[2, 0, 4, 5],
        &[0, 3, 4, 5],
        &[0, 0],
        &[4, 0],
        &[0, 4],
    ];
    for dtype in DTYPES {
        for shape in shapes {
            let heads = if shape.len() > 2 {
                shape[shape.len() - 3]
            } else {
                1
            };
            let scores = nothing(shape, dtype, device)?;
            let mut op = Attention::new(1.0);
            op.causal = true;
            for with_sinks in [false, true] {
                op.sinks = match with_sinks && heads > 0 {
                    true => Some(normal(1, &[heads], dtype, device)?),
                    false => None,
                };
                let (y, lse) = op.op().forward_with_lse(&scores)?;
                assert_eq!((y.dims(), y.dtype()), (shape, dtype));
                assert_eq!(lse.dims(), &shape[..shape.len() - 1]);
                let keyless = values(&lse)?;
                let sinks = op.sinks.as_ref().map(values).transpose()?;
                let queries = shape[shape.len() - 2];
                for (r, lse) in keyless.into_iter().enumerate() {
                    let sink = sinks.as_ref().map(|s| s[r / queries % heads]);
                    assert_eq!(lse, sink.unwrap_or(-INF), "{shape:?}, row {r}");
                }
            }
        }
    }
    Ok(())
}

fn operands_are_not_written(device: &Device) -> Result<()> {
    use Feature::*;
    for dtype in DTYPES {
        for keys in [7, 130, 1031, 4099] {
            let shape = [2, 3, 4, keys];
            let features = [Softcap, Causal, Alibi, Sinks, Bias, BooleanMask];
            let op = crate::attention_inputs::attention(&features, &shape, dtype, device)?;
            let (scores, g) = (
                normal(1, &shape, dtype, device)?,
                normal(2, &shape, dtype, device)?,
            );
            let operands = || -> Result<Vec<Vec<u64>>> {
                let held = [&op.slopes, &op.sinks, &op.bias, &op.mask];
                let all = held.into_iter().flatten().chain([&scores, &g]);
                all.map(bits).collect()
            };
            let before = operands()?;
            all_of(&op, &scores, &g)?;
            op.op().forward_inplace(&scores.force_contiguous()?, None)?;
            assert!(operands()? == before, "{dtype:?}, {keys} keys");
        }
    }
    Ok(())
}
