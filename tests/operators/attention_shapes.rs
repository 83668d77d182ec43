//! Attention's softmax at every width that a kernel may take otherwise, of every rank, of many rows.

use crate::attention_inputs::{attention, Feature, MOST};
use crate::inputs::{normal, DTYPES, SHORT};
use candle_core::{DType, Device, Result};

use Feature::*;

on_devices_by_dtype!(every_short_width, every_threshold);
on_devices!(every_rank, row_counts, many_rows, more_queries_than_keys);

/// Both sides of the widths where a plan or a loop may change.
const THRESHOLDS: [usize; 21] = [
    255, 256, 257, 1000, 1001, 1023, 1024, 1025, 2047, 2048, 2049, 4099, 8191, 8192, 8193, 16384,
    16385, 20001, 65536, 65537, 70001,
];

/// Rows read whole, up to the diagonal, and between diagonals.
const KINDS: [&[Feature]; 4] = [&[], &[Bias, BooleanMask, Sinks], &[Causal], &MOST];

fn check(shape: &[usize], features: &[Feature], dtype: DType, device: &Device) -> Result<()> {
    let scores = normal(shape.iter().sum::<usize>() as u64, shape, dtype, device)?;
    let attention = attention(features, shape, dtype, device)?;
    attention
        .check(&scores, &format!("{features:?}"))
        .map(|_| ())
}

fn every_short_width(dtype: DType, device: &Device) -> Result<()> {
    for keys in SHORT {
        for features in KINDS {
            check(&[2, 2, 3, keys], features, dtype, device)?;
        }
    }
    Ok(())
}

fn every_threshold(dtype: DType, device: &Device) -> Result<()> {
    for keys in THRESHOLDS {
        for features in KINDS {
            check(&[1, 2, 2, keys], features, dtype, device)?;
        }
    }
    Ok(())
}

/// The heads are the dim before the queries, if there is one.
fn every_rank(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 10] = [
        &[5, 9],
        &[1, 1],
        &[7, 1],
        &[3, 5, 130],
        &[4, 1, 7],
        &[2, 3, 5, 9],
        &[1, 1, 1, 1],
        &[2, 2, 3, 5, 9],
        &[2, 1, 3, 1, 2, 33],
        &[1, 3, 2, 1, 2, 4, 7],
    ];
    for dtype in DTYPES {
        for shape in shapes {
            for features in KINDS {
                check(shape, features, dtype, device)?;
            }
        }
    }
    Ok(())
}

/// Full and partly filled blocks of rows, and tasks of the CPU.
fn row_counts(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (batch, heads, queries) in [(1, 1, 1), (1, 3, 1), (2, 1, 33), (3, 4, 17)] {
            for keys in [3, 33, 130, 513, 1031] {
                for features in KINDS {
                    check(&[batch, heads, queries, keys], features, dtype, device)?;
                }
            }
        }
    }
    Ok(())
}

/// More than a grid's y and z count.
fn many_rows(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for shape in [
            [2, 2, 20_000, 3],
            [70_001, 1, 1, 2],
            [1, 66_000, 1, 4],
            [2, 3, 90, 129],
        ] {
            check(&shape, &MOST, dtype, device)?;
        }
    }
    Ok(())
}

/// The last query sees all keys; the first ones see none, and are 0.
fn more_queries_than_keys(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (queries, keys) in [(2, 1), (9, 4), (40, 33), (300, 129), (262, 257)] {
            let shape = [1, 2, queries, keys];
            let op = attention(&[Causal], &shape, dtype, device)?;
            let y = op.check(&normal(1, &shape, dtype, device)?, "more queries than keys")?;
            let unseeing = crate::compare::values(&y.narrow(2, 0, queries - keys)?)?;
            assert!(
                unseeing.iter().all(|&y| y == 0.0),
                "{dtype:?}, {queries} x {keys}"
            );
            check(&shape, &MOST, dtype, device)?;
            check(&shape, &[Window], dtype, device)?;
        }
    }
    Ok(())
}
