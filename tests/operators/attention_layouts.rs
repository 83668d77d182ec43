//! Scores, masks and biases of any strides give the bits of contiguous copies; masks broadcast over any dims.

use crate::attention_inputs::{additive_mask, attention, boolean_mask, Feature};
use crate::attention_reference::Attention;
use crate::compare::{assert_same_bits, bits};
use crate::inplace::seen;
use crate::inputs::{normal, DTYPES};
use crate::views;
use candle_core::{DType, Device, Result, Tensor};

use Feature::*;

on_devices_by_dtype!(
    any_layout_of_scores,
    any_layout_of_masks,
    any_layout_in_place,
    masks_broadcast_over_any_dims,
);
on_devices!(masks_of_any_dtype, strided_slopes_and_sinks);

const WIDTHS: [usize; 7] = [1, 2, 7, 33, 130, 1031, 4099];

const KINDS: [&[Feature]; 2] = [&[Softcap], &[Causal, Alibi, Sinks, BooleanMask]];

fn any_layout_of_scores(dtype: DType, device: &Device) -> Result<()> {
    for n in WIDTHS {
        for view in views::table(n) {
            let scores = (view.make)(&normal(n as u64, &view.base, dtype, device)?)?;
            let copy = scores.force_contiguous()?;
            for features in KINDS {
                let op = attention(features, scores.dims(), dtype, device)?.op();
                let (got, want) = (op.forward(&scores)?, op.forward(&copy)?);
                let what = format!("{}, {features:?}, {dtype:?}, n = {n}", view.name);
                assert!(got.is_contiguous(), "{what}");
                assert_same_bits(&got, &want, &what)?;
            }
        }
    }
    Ok(())
}

fn any_layout_of_masks(dtype: DType, device: &Device) -> Result<()> {
    for n in WIDTHS {
        for view in views::table(n) {
            let bias = (view.make)(&normal(n as u64, &view.base, dtype, device)?)?;
            let mask = (view.make)(&boolean_mask(&view.base, device)?)?;
            let scores = normal(3, bias.dims(), dtype, device)?;
            let with = |bias, mask| Attention {
                bias: Some(bias),
                mask: Some(mask),
                ..Attention::new(1.0)
            };
            let want = with(bias.force_contiguous()?, mask.force_contiguous()?);
            let want = want.op().forward(&scores)?;
            let got = with(bias, mask).op().forward(&scores)?;
            assert_same_bits(&got, &want, &format!("{}, {dtype:?}, n = {n}", view.name))?;
        }
    }
    Ok(())
}

/// The same bits where that makes sense, and nothing written beside the view; else an error, and nothing written.
fn any_layout_in_place(dtype: DType, device: &Device) -> Result<()> {
    for n in WIDTHS {
        for view in views::table(n) {
            let base = normal(n as u64, &view.base, dtype, device)?;
            let scores = (view.make)(&base)?;
            let op = attention(KINDS[1], scores.dims(), dtype, device)?.op();
            let (before, want) = (bits(&base)?, op.forward(&scores)?);
            let result = op.forward_inplace(&scores, None);
            let what = format!("{}, {dtype:?}, n = {n}", view.name);
            assert_eq!(result.is_err(), view.overlaps, "{what}: {result:?}");
            if view.overlaps {
                assert_eq!(bits(&base)?, before, "{what}");
                continue;
            }
            assert_same_bits(&scores, &want, &what)?;
            let (after, seen) = (bits(&base)?, seen(&view)?);
            let beside = |i: &usize| !seen.contains(i) && after[*i] != before[*i];
            assert_eq!((0..after.len()).find(beside), None, "{what}");
        }
    }
    Ok(())
}

/// The shapes that broadcast to this one: each dim 1 or not, leading ones there or not.
fn broadcast_shapes(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![];
    for ones in 0..1 << shape.len() {
        let dim = |d: usize| if ones >> d & 1 == 1 { 1 } else { shape[d] };
        let dims: Vec<usize> = (0..shape.len()).map(dim).collect();
        let leading = dims.iter().take_while(|&&d| d == 1).count();
        all.extend((0..=leading).map(|first| dims[first..].to_vec()));
    }
    all
}

fn masks_broadcast_over_any_dims(dtype: DType, device: &Device) -> Result<()> {
    for keys in [5, 130, 1031] {
        let shape = [2, 3, 4, keys];
        let scores = normal(1, &shape, dtype, device)?;
        let whole = |t: &Option<Tensor>| -> Result<Option<Tensor>> {
            let t = t
                .as_ref()
                .map(|t| t.broadcast_as(&shape)?.force_contiguous());
            t.transpose()
        };
        for dims in broadcast_shapes(&shape) {
            let bias = Some(normal(2, &dims, dtype, device)?);
            let mask = Some(boolean_mask(&dims, device)?);
            let added = Some(additive_mask(&dims, dtype, device)?);
            for (bias, mask) in [
                (bias.clone(), None),
                (None, mask.clone()),
                (bias.clone(), mask),
                (None, added.clone()),
                (bias, added),
            ] {
                let mut op = Attention::new(0.5);
                (op.bias, op.mask) = (bias, mask);
                let what = format!("mask of {dims:?}");
                let got = op.check(&scores, &what)?;
                (op.bias, op.mask) = (whole(&op.bias)?, whole(&op.mask)?);
                assert_same_bits(&got, &op.op().forward(&scores)?, &what)?;
            }
        }
    }
    Ok(())
}

/// What is added need not be of the scores' dtype, nor sinks and slopes.
fn masks_of_any_dtype(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for other in DTYPES {
            for keys in [5, 130, 1031] {
                let shape = [2, 3, 4, keys];
                let mut op = attention(&[Bias, AdditiveMask, Sinks], &shape, other, device)?;
                op.slopes = Some(normal(5, &[3], other, device)?.abs()?);
                let scores = normal(1, &shape, dtype, device)?;
                op.check(&scores, &format!("bias and mask of {other:?}"))?;
                op.mask = None;
                op.check(&scores, &format!("bias of {other:?}"))?;
            }
        }
    }
    Ok(())
}

/// One a head in any shape and layout.
fn strided_slopes_and_sinks(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let shape = [2, 3, 4, 33];
        let scores = normal(1, &shape, dtype, device)?;
        let base = normal(2, &[3, 4], dtype, device)?;
        let column = base.narrow(1, 2, 1)?;
        for numbers in [column.clone(), column.t()?, column.unsqueeze(0)?] {
            let mut op = Attention::new(0.5);
            (op.slopes, op.sinks) = (Some(numbers.clone()), Some(numbers.clone()));
            let got = op.check(&scores, "strided slopes and sinks")?;
            let copy = Some(numbers.flatten_all()?.force_contiguous()?);
            (op.slopes, op.sinks) = (copy.clone(), copy);
            assert_same_bits(&got, &op.op().forward(&scores)?, "strided slopes and sinks")?;
        }
    }
    Ok(())
}
