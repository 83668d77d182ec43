//! Attention's softmax against the f64 reference: every feature alone, every pair, most at once.

use crate::attention_inputs::{attention, combinations, MOST};
use crate::attention_reference::Attention;
use crate::compare::{assert_rounded_once, assert_same_bits, values};
use crate::inputs::{finite_rows, normal, stack, tensor};
use candle_core::{DType, Device, Result};

on_devices_by_dtype!(
    every_pair_of_features,
    in_place_has_the_same_bits,
    most_at_once,
    lse_of_every_pair,
    distributions,
);
on_devices!(halves_are_rounded_once);

/// A warp's rows, a block's, and both sides of a vector.
const WIDTHS: [usize; 6] = [1, 7, 33, 257, 1031, 4099];

/// Batches, heads and queries; fewer of the longest.
fn shape(keys: usize) -> [usize; 4] {
    match keys {
        0..=300 => [2, 3, 5, keys],
        _ => [1, 2, 3, keys],
    }
}

fn every_pair_of_features(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let scores = normal(keys as u64, &shape(keys), dtype, device)?;
        for features in combinations() {
            let attention = attention(&features, &shape(keys), dtype, device)?;
            attention.check(&scores, &format!("{features:?}"))?;
        }
    }
    Ok(())
}

fn in_place_has_the_same_bits(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let scores = normal(keys as u64, &shape(keys), dtype, device)?;
        for features in combinations() {
            let op = attention(&features, &shape(keys), dtype, device)?;
            let in_place = scores.force_contiguous()?;
            if op.f32_output && scores.dtype() != DType::F64 && scores.dtype() != DType::F32 {
                assert!(op.op().forward_inplace(&in_place, None).is_err());
                assert_same_bits(&in_place, &scores, "after the error")?;
                continue;
            }
            op.op().forward_inplace(&in_place, None)?;
            let want = op.op().forward(&scores)?;
            assert_same_bits(&in_place, &want, &format!("{features:?}, {keys} keys"))?;
        }
    }
    Ok(())
}

/// Those of a contiguous result beside them, and of f32 or f64.
fn lse_of_every_pair(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let scores = normal(keys as u64, &shape(keys), dtype, device)?;
        for features in combinations() {
            let attention = attention(&features, &shape(keys), dtype, device)?;
            let (y, lse) = attention.op().forward_with_lse(&scores)?;
            let what = format!("{features:?}, {dtype:?}, {keys} keys");
            assert_same_bits(&y, &attention.op().forward(&scores)?, &what)?;
            let compute = if dtype == DType::F64 {
                dtype
            } else {
                DType::F32
            };
            assert_eq!(
                (lse.dims(), lse.dtype()),
                (&shape(keys)[..3], compute),
                "{what}"
            );
            let want = attention.rows(&scores)?;
            for (r, (got, want)) in values(&lse)?.into_iter().zip(want).enumerate() {
                let close = got == want.lse || (got - want.lse).abs() <= want.lse_slack;
                assert!(close, "{what}, row {r}: {got}, should be {}", want.lse);
            }
        }
    }
    Ok(())
}

fn most_at_once(dtype: DType, device: &Device) -> Result<()> {
    for (shape, seed) in [([2, 3, 7, 5], 1), ([3, 2, 5, 130], 2), ([2, 1, 3, 2049], 3)] {
        let mut op = attention(&MOST, &shape, dtype, device)?;
        let scores = normal(seed, &shape, dtype, device)?;
        op.check(&scores, "most features")?;
        op.softcap = Some(30.0);
        op.check(
            &scores.affine(20.0, 0.0)?,
            "most features, scores far apart",
        )?;
    }
    Ok(())
}

/// All kinds of rows that have broken a softmax, under a scale alone and a cap.
fn distributions(dtype: DType, device: &Device) -> Result<()> {
    for keys in [1, 5, 64, 100, 1000, 4099] {
        let (names, rows): (Vec<_>, Vec<_>) = finite_rows(dtype, keys, 3).into_iter().unzip();
        let scores = tensor(&stack(&rows), &[rows.len(), keys], dtype, device)?;
        for (scale, softcap) in [(1.0, None), (0.125, None), (-0.3, None), (0.5, Some(20.0))] {
            let mut attention = Attention::new(scale);
            attention.softcap = softcap;
            attention.check(&scores, &format!("scale {scale}, {softcap:?}, {names:?}"))?;
        }
    }
    Ok(())
}

/// What is rounded on the way, be it a score, shows in many results.
fn halves_are_rounded_once(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        for keys in [33, 130, 1031, 4099] {
            let shape = [1, 2, 1 + 10_000 / keys, keys];
            let scores = normal(keys as u64, &shape, dtype, device)?;
            let attention = attention(&MOST[3..6], &shape, dtype, device)?;
            let got = values(&attention.op().forward(&scores)?)?;
            let want = attention.rows(&scores)?.into_iter();
            let want: Vec<f64> = want.flat_map(|row| row.y).collect();
            assert_rounded_once(dtype, &got, &want, &format!("{keys} keys"));
        }
    }
    Ok(())
}
