//! In place gives the bits of out of place, and touches nothing else.

use crate::compare::{assert_same_bits, bits};
use crate::inputs::{finite_rows, normal, stack, tensor, DTYPES, SAMPLE};
use crate::views::{self, View};
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::OnlineSoftmax;
use std::collections::HashSet;

on_devices_by_dtype!(views_in_place);
on_devices!(special_values_in_place, broadcast_in_place_is_an_error);

/// Which elements of the base a view sees.
pub fn seen(view: &View) -> Result<HashSet<usize>> {
    let count: usize = view.base.iter().product();
    let index = Tensor::arange(0, count as u32, &Device::Cpu)?.reshape(view.base.clone())?;
    let index = (view.make)(&index)?.flatten_all()?.to_vec1::<u32>()?;
    Ok(index.into_iter().map(|i| i as usize).collect())
}

fn check(view: &View, n: usize, dtype: DType, device: &Device) -> Result<()> {
    let what = format!("{}, {dtype:?}, n = {n}", view.name);
    let base = normal(n as u64, &view.base, dtype, device)?;
    let (before, x) = (bits(&base)?, (view.make)(&base)?);
    let want = x.apply_op1(OnlineSoftmax)?;
    x.inplace_op1(&OnlineSoftmax)?;
    assert_same_bits(&x, &want, &what)?;
    let (after, seen) = (bits(&base)?, seen(view)?);
    for i in (0..after.len()).filter(|i| !seen.contains(i)) {
        assert_eq!(
            after[i], before[i],
            "{what}: element {i} is outside the view"
        );
    }
    Ok(())
}

fn views_in_place(dtype: DType, device: &Device) -> Result<()> {
    for n in SAMPLE {
        for view in views::table(n).iter().filter(|v| !v.overlaps) {
            check(view, n, dtype, device)?;
        }
    }
    Ok(())
}

fn special_values_in_place(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for cols in SAMPLE {
            let mut rows: Vec<Vec<f64>> = finite_rows(dtype, cols, 5)
                .into_iter()
                .map(|(_, row)| row)
                .collect();
            rows.push(vec![f64::NEG_INFINITY; cols]);
            for special in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                rows.push(rows[0].clone());
                let last = rows.len() - 1;
                rows[last][cols / 2] = special;
            }
            let x = tensor(&stack(&rows), &[rows.len(), cols], dtype, device)?;
            let want = x.apply_op1(OnlineSoftmax)?;
            x.inplace_op1(&OnlineSoftmax)?;
            assert_same_bits(&x, &want, &format!("special values, {cols} columns"))?;
        }
    }
    Ok(())
}

fn broadcast_in_place_is_an_error(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for n in [2, 7, 130, 4099] {
            for view in views::table(n).iter().filter(|v| v.overlaps) {
                let base = normal(1, &view.base, dtype, device)?;
                let before = bits(&base)?;
                let Err(error) = (view.make)(&base)?.inplace_op1(&OnlineSoftmax) else {
                    panic!("{}, n = {n}: no error", view.name);
                };
                let text = error.to_string();
                assert!(text.contains("online-softmax"), "{text}");
                assert_eq!(
                    bits(&base)?,
                    before,
                    "{}: written in spite of {text}",
                    view.name
                );
            }
        }
    }
    Ok(())
}
