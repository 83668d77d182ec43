//! A row's bits do not depend on the rows beside it, nor on the run.

use crate::attention_inputs::{attention, Feature, MOST};
use crate::attention_reference::Attention;
use crate::compare::{assert_same_bits, bits};
use crate::inputs::normal;
use candle_core::{DType, Device, Result, Tensor, Var};

use Feature::*;

on_devices_by_dtype!(row_alone_equals_row_in_batch, run_to_run);

const WIDTHS: [usize; 11] = [1, 7, 33, 64, 129, 500, 1024, 1031, 4099, 20001, 70001];

/// Batches, heads and queries; no more queries than the shortest of several keys, so that offsets are no less than 0.
fn shape(keys: usize) -> [usize; 4] {
    match keys {
        0..=6 => [5, 3, 1, keys],
        7..=500 => [2, 3, 7, keys],
        501..=4099 => [2, 2, 5, keys],
        _ => [1, 2, 3, keys],
    }
}

/// The operator on row (b, h, i) alone: the query's position is told in its place.
fn alone(op: &Attention, scores: &Tensor, [b, h, i]: [usize; 3]) -> Result<Tensor> {
    let (_, _, queries, keys) = scores.dims4()?;
    let head = |t: &Option<Tensor>| t.as_ref().map(|t| t.narrow(0, h, 1)).transpose();
    let row = |t: &Option<Tensor>| -> Result<Option<Tensor>> {
        let row = |t: &Tensor| {
            let t = t.broadcast_as(scores.shape())?;
            t.narrow(0, b, 1)?
                .narrow(1, h, 1)?
                .narrow(2, i, 1)?
                .force_contiguous()
        };
        t.as_ref().map(row).transpose()
    };
    let first = op.kv_offset.unwrap_or(keys - queries);
    let this = Attention {
        kv_offset: Some(first + i),
        slopes: head(&op.slopes)?,
        sinks: head(&op.sinks)?,
        bias: row(&op.bias)?,
        mask: row(&op.mask)?,
        ..op.clone()
    };
    let scores = row(&Some(scores.clone()))?.expect("some");
    this.op().forward(&scores)
}

fn row_alone_equals_row_in_batch(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let shape = shape(keys);
        let scores = normal(keys as u64, &shape, dtype, device)?;
        // Of causal operators alone can the position of one query be told.
        let kinds: [&[Feature]; 3] = [&[Causal], &MOST, &[CausalWithOffset, Alibi, AdditiveMask]];
        for features in kinds {
            let op = attention(features, &shape, dtype, device)?;
            let y = op.op().forward(&scores)?;
            let [batch, heads, queries, _] = shape;
            let last = [batch - 1, heads - 1, queries - 1];
            for [b, h, i] in [
                [0, 0, 0],
                last,
                last.map(|n| n / 2),
                [0, heads - 1, queries / 3],
            ] {
                let got = y.narrow(0, b, 1)?.narrow(1, h, 1)?.narrow(2, i, 1)?;
                let what = format!("row {b}, {h}, {i} of {shape:?}, {features:?}, {dtype:?}");
                assert_same_bits(&got, &alone(&op, &scores, [b, h, i])?, &what)?;
            }
        }
    }
    Ok(())
}

fn run_to_run(dtype: DType, device: &Device) -> Result<()> {
    for keys in WIDTHS {
        let shape = shape(keys);
        let scores = Var::from_tensor(&normal(1, &shape, dtype, device)?)?;
        let g = normal(2, &shape, dtype, device)?;
        let mut op = attention(&MOST, &shape, dtype, device)?;
        let sinks = Var::from_tensor(op.sinks.as_ref().expect("sinks"))?;
        op.sinks = Some(sinks.as_tensor().clone());
        let run = || -> Result<[Vec<u64>; 4]> {
            let (y, lse) = op.op().forward_with_lse(&scores)?;
            let grads = (&y * &g)?.sum_all()?.backward()?;
            let grad = |t: &Tensor| bits(grads.get(t).expect("a gradient"));
            Ok([bits(&y)?, bits(&lse)?, grad(&scores)?, grad(&sinks)?])
        };
        let first = run()?;
        for again in 1..4 {
            assert!(
                run()? == first,
                "run {again} differs: {keys} keys, {dtype:?}"
            );
        }
    }
    Ok(())
}
