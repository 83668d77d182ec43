//! Bad operands of attention's softmax: an error that says what is required and what came, and nothing written.

use crate::compare::bits;
use crate::errors::assert_says;
use crate::inputs::{normal, DTYPES};
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::AttentionSoftmax;

on_devices!(
    scores,
    numbers,
    masks_and_biases,
    one_a_head,
    two_masks,
    f32_output_in_place,
    overlapping_positions,
);

/// Every entry point refuses, and the scores stay as they were.
#[track_caller]
fn refuses(op: &AttentionSoftmax, scores: &Tensor, words: &[&str]) -> Result<()> {
    let before = bits_of_any(scores)?;
    let words = [&["attention-softmax", "requires", "got"], words].concat();
    assert_says(op.forward(scores), &words);
    assert_says(op.forward_with_lse(scores), &words);
    assert_says(op.forward_inplace(scores, None), &words);
    assert_eq!(bits_of_any(scores)?, before, "written");
    Ok(())
}

fn bits_of_any(t: &Tensor) -> Result<Vec<u64>> {
    bits(&t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?)
}

fn scores(device: &Device) -> Result<()> {
    let op = AttentionSoftmax::new(1.0);
    for dtype in DTYPES {
        let number = normal(1, &[], dtype, device)?;
        refuses(&op, &number, &["(.., queries, keys)", "[]"])?;
        refuses(
            &op,
            &normal(1, &[5], dtype, device)?,
            &["(.., queries, keys)", "[5]"],
        )?;
    }
    for dtype in [DType::U8, DType::U32, DType::I64] {
        let scores = Tensor::ones((2, 3), dtype, &Device::Cpu)?.to_device(device)?;
        refuses(&op, &scores, &["f16", "bf16", "f32", "f64", dtype.as_str()])?;
    }
    Ok(())
}

fn numbers(device: &Device) -> Result<()> {
    let scores = normal(1, &[2, 3], DType::F32, device)?;
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let word = scale.to_string();
        refuses(
            &AttentionSoftmax::new(scale),
            &scores,
            &["finite scale", &word],
        )?;
    }
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let op = AttentionSoftmax::new(1.0).softcap(cap);
        refuses(&op, &scores, &["softcap above 0", &cap.to_string()])?;
    }
    Ok(())
}

fn masks_and_biases(device: &Device) -> Result<()> {
    let op = AttentionSoftmax::new(1.0);
    for dtype in DTYPES {
        let scores = normal(1, &[2, 3, 4, 5], dtype, device)?;
        for shape in [
            &[4][..],
            &[4, 4],
            &[5, 4],
            &[2, 3, 4, 6],
            &[2, 2, 4, 5],
            &[1, 2, 3, 4, 5],
            &[2, 1, 1, 4],
            &[0, 5],
        ] {
            let t = match shape.contains(&0) {
                true => normal(2, &[1, 5], dtype, device)?.narrow(0, 0, 0)?,
                false => normal(2, shape, dtype, device)?,
            };
            let got = format!("{shape:?}");
            let words = ["broadcasts", "[2, 3, 4, 5]", &got];
            refuses(
                &op.clone().bias(&t),
                &scores,
                &[&["bias"], &words[..]].concat(),
            )?;
            refuses(
                &op.clone().mask(&t),
                &scores,
                &[&["mask"], &words[..]].concat(),
            )?;
            if !shape.contains(&0) {
                let mask = Tensor::ones(shape, DType::U8, &Device::Cpu)?.to_device(device)?;
                refuses(
                    &op.clone().mask(&mask),
                    &scores,
                    &[&["mask"], &words[..]].concat(),
                )?;
                assert_says(op.forward_with_mask(&scores, &mask), &words);
            }
        }
        for other in [DType::U32, DType::I64] {
            let t = Tensor::ones((4, 5), other, &Device::Cpu)?.to_device(device)?;
            let words = ["f16", "f64", other.as_str()];
            refuses(
                &op.clone().mask(&t),
                &scores,
                &[&words[..], &["mask", "u8"]].concat(),
            )?;
            refuses(
                &op.clone().bias(&t),
                &scores,
                &[&words[..], &["bias"]].concat(),
            )?;
        }
        let mask = Tensor::ones((4, 5), DType::U8, &Device::Cpu)?.to_device(device)?;
        refuses(&op.clone().bias(&mask), &scores, &["bias", "u8"])?;
    }
    Ok(())
}

fn one_a_head(device: &Device) -> Result<()> {
    let op = AttentionSoftmax::new(1.0);
    for dtype in DTYPES {
        let scores = normal(1, &[2, 3, 4, 5], dtype, device)?;
        for shape in [&[2][..], &[4], &[], &[3, 3], &[6]] {
            let t = normal(2, shape, dtype, device)?;
            let got = format!("{shape:?}");
            let words = ["each of 3 heads", "[2, 3, 4, 5]", &got];
            refuses(
                &op.clone().sinks(&t),
                &scores,
                &[&["sinks"], &words[..]].concat(),
            )?;
            refuses(
                &op.clone().alibi(&t),
                &scores,
                &[&["slopes"], &words[..]].concat(),
            )?;
        }
        let whole = Tensor::ones(3, DType::U32, &Device::Cpu)?.to_device(device)?;
        refuses(&op.clone().sinks(&whole), &scores, &["sinks", "f16", "u32"])?;
        refuses(
            &op.clone().alibi(&whole),
            &scores,
            &["slopes", "f16", "u32"],
        )?;
        // Without a dim of heads there is one.
        let flat = normal(3, &[4, 5], dtype, device)?;
        let three = normal(2, &[3], dtype, device)?;
        refuses(&op.clone().sinks(&three), &flat, &["each of 1 heads"])?;
    }
    Ok(())
}

fn two_masks(device: &Device) -> Result<()> {
    let scores = normal(1, &[4, 5], DType::F32, device)?;
    let before = bits(&scores)?;
    let mask = scores.zeros_like()?;
    let op = AttentionSoftmax::new(1.0).mask(&mask);
    let words = ["attention-softmax", "requires one mask"];
    assert_says(op.forward_with_mask(&scores, &mask), &words);
    assert_says(op.forward_inplace(&scores, Some(&mask)), &words);
    assert_eq!(bits(&scores)?, before);
    Ok(())
}

fn f32_output_in_place(device: &Device) -> Result<()> {
    let op = AttentionSoftmax::new(1.0).f32_output();
    for dtype in [DType::F16, DType::BF16] {
        let scores = normal(1, &[4, 5], dtype, device)?;
        let before = bits(&scores)?;
        let words = ["attention-softmax", "in place", dtype.as_str(), "f32"];
        assert_says(op.forward_inplace(&scores, None), &words);
        assert_eq!(bits(&scores)?, before);
    }
    // f32 and f64 have results of their own dtype anyway.
    for dtype in [DType::F32, DType::F64] {
        let scores = normal(1, &[4, 5], dtype, device)?;
        let want = op.forward(&scores)?;
        assert_eq!(want.dtype(), dtype);
        op.forward_inplace(&scores, None)?;
        crate::compare::assert_same_bits(&scores, &want, "f32 output in place")?;
    }
    Ok(())
}

fn overlapping_positions(device: &Device) -> Result<()> {
    let row = normal(1, &[1, 5], DType::F32, device)?;
    let before = bits(&row)?;
    let result = AttentionSoftmax::new(1.0).forward_inplace(&row.broadcast_as((4, 5))?, None);
    assert!(result.is_err());
    assert_eq!(bits(&row)?, before);
    Ok(())
}

/// No CUDA tensor without the feature; with it, operands of two devices.
#[cfg(feature = "cuda")]
#[test]
fn operands_of_two_devices() -> Result<()> {
    crate::devices::on_cuda("attention_errors::operands_of_two_devices", |device| {
        let scores = normal(1, &[1, 3, 4, 5], DType::F32, device)?;
        let mask = normal(2, &[4, 5], DType::F32, &Device::Cpu)?;
        let three = normal(3, &[3], DType::F32, &Device::Cpu)?;
        let op = AttentionSoftmax::new(1.0);
        for op in [
            op.clone().mask(&mask),
            op.clone().bias(&mask),
            op.clone().sinks(&three),
            op.clone().alibi(&three),
        ] {
            refuses(&op, &scores, &["one device"])?;
        }
        Ok(())
    })
}
