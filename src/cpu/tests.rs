//! The instruction sets side by side. (What the results should be: `tests/operators`, at the level that `COS_CPU` names.)

mod attention;
mod backward;

use super::columns::StripOp;
use super::row::RowOp;
use super::simd::{forced, levels, Level};
use super::{map_rows, Element, Softmax, SoftmaxBackward};
use crate::rows::RowSpace;
use candle_core::{Layout, Result};
use half::{bf16, f16};

/// (outer, cols, inner): rows in registers, in vectors and parts of one, in parts; rows side by side.
const SHAPES: [(usize, usize, usize); 16] = [
    (3, 1, 1),
    (40, 7, 1),
    (5, 33, 1),
    (9, 64, 1),
    (5, 127, 1),
    (4, 128, 1),
    (4, 129, 1),
    (3, 1000, 1),
    (2, 4099, 1),
    (2, 20_001, 1),
    (1, 65_536, 1),
    (2, 150_001, 1),
    (2, 5, 7),
    (1, 33, 70),
    (3, 2100, 65),
    (2, 3, 3),
];

/// Numbers of the size of logits, now and then far off, infinite or NaN; the same for the same seed.
fn numbers<E: Element>(seed: u64, len: usize, narrow: impl Fn(f64) -> E) -> Vec<E> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let number = |_| {
        let (x, rare) = (8.0 * next() - 4.0, next());
        narrow(match rare {
            r if r < 0.0001 => f64::NAN,
            r if r < 0.001 => f64::NEG_INFINITY,
            r if r < 0.01 => 40.0 * x,
            r if r < 0.0101 => 1e4 * x,
            _ => x,
        })
    };
    (0..len).map(number).collect()
}

/// Results of both operators at `level`, over all shapes.
fn results<E: Element>(level: Level, narrow: fn(f64) -> E) -> Result<Vec<Vec<E>>>
where
    Softmax: RowOp<1> + StripOp<1>,
{
    let all = SHAPES.iter().enumerate().map(|(i, &(outer, cols, inner))| {
        let layout = Layout::contiguous((outer, cols, inner));
        let len = outer * cols * inner;
        let (x, g) = (numbers(i as u64, len, narrow), numbers(99, len, narrow));
        let y = map_rows(
            "op",
            &RowSpace::new("op", [&layout], 1)?,
            [&x],
            inner,
            Softmax,
        )?;
        let space = RowSpace::new("op", [&layout, &layout], 1)?;
        let dx = map_rows(
            "op",
            &space,
            [&y, &g],
            inner,
            SoftmaxBackward::new(1.0, false),
        )?;
        Ok([y, dx].concat())
    });
    forced::at(level, || all.collect())
}

/// All levels against the first; `distance`: between two results, in units in the last place.
fn compare<E: Element>(narrow: fn(f64) -> E, distance: fn(E, E) -> u64, most: u64) -> Result<()> {
    let levels = levels();
    let want = results(levels[0], narrow)?;
    for &level in &levels[1..] {
        let got = results(level, narrow)?;
        for ((shape, want), got) in SHAPES.iter().zip(&want).zip(&got) {
            let off = want.iter().zip(got).map(|(&a, &b)| distance(a, b)).max();
            assert!(
                off <= Some(most),
                "{level:?}, {shape:?}: {off:?} units off {:?}",
                levels[0]
            );
        }
    }
    Ok(())
}

/// Steps from one number to another, over all NaN as one.
macro_rules! distance {
    ($real:ty, $bits:ty) => {
        |a: $real, b: $real| {
            let place = |x: $real| {
                let magnitude = (x.to_bits() & (<$bits>::MAX >> 1)) as i128;
                if x.is_sign_negative() {
                    -magnitude
                } else {
                    magnitude
                }
            };
            match (a.is_nan(), b.is_nan()) {
                (true, true) => 0,
                (false, false) => place(a).abs_diff(place(b)) as u64,
                _ => u64::MAX,
            }
        }
    };
}

#[test]
fn levels_give_the_same_f32() -> Result<()> {
    compare(|x| x as f32, distance!(f32, u32), 0)
}

#[test]
fn levels_give_the_same_halves() -> Result<()> {
    compare(f16::from_f64, distance!(f16, u16), 0)?;
    compare(bf16::from_f64, distance!(bf16, u16), 0)
}

#[test]
fn levels_give_the_same_f64() -> Result<()> {
    compare(|x| x, distance!(f64, u64), 0)
}
