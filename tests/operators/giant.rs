//! Tensors past 2^31 and 2^32 elements, more than a billion rows, and a row past 2^31 columns:
//! on the GPU only, one at a time, skipped loudly where memory lacks.
#![cfg(feature = "cuda")]

use crate::compare::{assert_same_bits, assert_softmax, values};
use crate::devices::{on_cuda, skip};
use crate::inputs::tensor;
use crate::reference;
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::{softmax, OnlineSoftmax};
use std::sync::{Mutex, PoisonError};

const GB: usize = 1 << 30;

/// Runs `test` alone among the giants, if the GPU has `bytes` free.
fn with_memory(name: &str, bytes: usize, test: impl FnOnce(&Device) -> Result<()>) -> Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut short_of = None;
    on_cuda(name, |device| {
        let stream = device.as_cuda_device()?.cuda_stream();
        let free = stream.context().mem_get_info();
        let (free, _) = free.map_err(|e| candle_core::Error::Msg(e.to_string()))?;
        if free < bytes {
            short_of = Some(free);
            return Err(candle_core::Error::Msg("short of memory".into()));
        }
        test(device)
    })
    .or_else(|error| match short_of {
        Some(free) => {
            skip(
                name,
                &format!("needs {} GB, {} free", bytes / GB, free / GB),
            );
            Ok(())
        }
        None => Err(error),
    })
}

/// A (rows, cols) tensor that repeats `period` from its first row on, made on the device.
fn repeat(period: &Tensor, rows: usize) -> Result<Tensor> {
    let (step, cols) = period.dims2()?;
    let x = Tensor::zeros((rows, cols), period.dtype(), period.device())?;
    for first in (0..rows).step_by(step) {
        let len = step.min(rows - first);
        let part = period.narrow(0, 0, len)?;
        x.slice_set(&part, 0, first)?;
    }
    Ok(x)
}

/// Rows of a tensor too large to read back whole.
fn rows(x: &Tensor, first: usize, len: usize) -> Result<Tensor> {
    x.narrow(0, first, len)?.force_contiguous()
}

/// Rows at both ends and around each 32-bit limit meet the reference, and in place agrees.
fn check_sampled(x: &Tensor, host_row: impl Fn(usize) -> Vec<f64>) -> Result<()> {
    let (count, cols) = x.dims2()?;
    let around = [
        0,
        (1usize << 31) / cols,
        (1usize << 32) / cols,
        count / 2,
        count,
    ];
    let y = x.apply_op1(OnlineSoftmax)?;
    let spans: Vec<usize> = around
        .iter()
        .map(|&at| at.saturating_sub(4).min(count - 8))
        .collect();
    for &first in &spans {
        let want: Vec<f64> = (first..first + 8)
            .flat_map(|r| reference::softmax_row(&host_row(r)))
            .collect();
        let got = rows(&y, first, 8)?;
        assert_softmax(&got, &want, cols, &format!("8 rows from {first}"))?;
    }
    x.inplace_op1(&OnlineSoftmax)?;
    for &first in &spans {
        let what = format!("in place, 8 rows from {first}");
        assert_same_bits(&rows(x, first, 8)?, &rows(&y, first, 8)?, &what)?;
    }
    // Not only the samples: every row sums to 1, added up in f32 by candle a slab at a time.
    let slab = (1 << 28) / cols;
    for first in (0..count).step_by(slab) {
        let part = y.narrow(0, first, slab.min(count - first))?;
        let sums = part.to_dtype(DType::F32)?.sum(1)?;
        let off = (sums - 1.0)?.abs()?.max(0)?.to_scalar::<f32>()?;
        assert!(off < 2e-3, "a row from {first} on sums to 1 +- {off}");
    }
    Ok(())
}

/// Case many-elements: past 2^32 elements.
#[test]
fn many_elements() -> Result<()> {
    with_memory("giant::many_elements", 22 * GB, |device| {
        let (count, cols) = (4_194_305, 1024);
        let host_row = |r: usize| -> Vec<f64> {
            let mut row = vec![0.0; cols];
            row[r % cols] = (r % 7) as f64 * 0.25;
            row
        };
        let period: Vec<f64> = (0..7 * cols).flat_map(host_row).collect();
        let period = tensor(&period, &[7 * cols, cols], DType::F16, device)?;
        check_sampled(&repeat(&period, count)?, host_row)
    })
}

/// Case very-many-tiny-rows: past 2^30 rows and 2^31 elements.
#[test]
fn very_many_tiny_rows() -> Result<()> {
    with_memory("giant::very_many_tiny_rows", 14 * GB, |device| {
        let host_row = |_: usize| vec![0.0, half::f16::from_f64(3f64.ln()).to_f64()];
        let period: Vec<f64> = (0..2_000_000).flat_map(host_row).collect();
        let period = tensor(&period, &[2_000_000, 2], DType::F16, device)?;
        let x = repeat(&period, 1_100_000_000)?;
        check_sampled(&x, host_row)
    })
}

/// The same number of rows down the first dimension: strided, and past 2^31 elements apart.
#[test]
fn very_many_tiny_columns() -> Result<()> {
    with_memory("giant::very_many_tiny_columns", 14 * GB, |device| {
        let count = 1_100_000_000;
        let x = Tensor::zeros((2, count), DType::F16, device)?;
        let ones = Tensor::ones((1, count / 11), DType::F16, device)?;
        let part = Tensor::cat(&[ones.zeros_like()?, ones], 0)?;
        for first in (0..count).step_by(count / 11) {
            x.slice_set(&part, 1, first)?;
        }
        let y = softmax(&x, 0)?;
        let want = reference::softmax_row(&[0.0, 1.0]);
        for first in [0, 1 << 30, count / 2, count - 5] {
            let part = y.narrow(1, first, 5)?.t()?.force_contiguous()?;
            assert_softmax(&part, &want.repeat(5), 2, &format!("columns from {first}"))?;
        }
        Ok(())
    })
}

/// One row past 2^31 columns: right, or a clear error before anything is launched.
#[test]
fn row_past_2_31_columns() -> Result<()> {
    with_memory("giant::row_past_2_31_columns", 14 * GB, |device| {
        let cols = (1usize << 31) + 9;
        let x = Tensor::zeros((1, cols), DType::F16, device)?;
        let high = Tensor::full(half::f16::from_f64(22.0), 1, device)?.reshape((1, 1))?;
        x.slice_set(&high, 1, cols - 1)?;
        let y = match x.apply_op1(OnlineSoftmax) {
            Ok(y) => y,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("online-softmax"), "{text}");
                return Ok(());
            }
        };
        let total = 22f64.exp() + (cols - 1) as f64;
        let last = values(&y.narrow(1, cols - 4, 4)?.force_contiguous()?)?;
        assert!((last[3] - 22f64.exp() / total).abs() < 1e-3, "{last:?}");
        assert!(last[..3].iter().all(|&v| v == 0.0), "{last:?}");
        Ok(())
    })
}
