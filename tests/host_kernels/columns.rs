//! Rows side by side in memory, columns apart: the tile families give the bits of the contiguous rows.

use crate::compare::{assert_gradient, assert_same_bits, assert_softmax};
use crate::launch::{on_device, places, Output, LIMITS};
use crate::{reference, rounded, DTYPES, INF};
use candle_core::{DType, Device, Layout, Result, Shape, Tensor};
use candle_online_softmax::plan::{Access, DeviceLimits, LaunchPlan, RowOp};
use std::collections::BTreeSet;

/// Both sides of every threshold of the tile families, for every dtype.
const COLS: [usize; 22] = [
    2, 3, 7, 8, 9, 17, 33, 65, 130, 256, 257, 512, 513, 1000, 1025, 1537, 2049, 3000, 4096, 4097,
    8192, 12288,
];

const LARGE: DeviceLimits = DeviceLimits {
    max_shared_bytes: 256 << 10,
    multiprocessors: 1,
    ..LIMITS
};
/// Tiles of one block each, in much memory and in little, and of clusters, which these few rows always get.
const DEVICES: [DeviceLimits; 3] = [
    LARGE,
    DeviceLimits {
        max_shared_bytes: 64 << 10,
        ..LARGE
    },
    DeviceLimits {
        max_shared_bytes: 227 << 10,
        max_cluster: 16,
        multiprocessors: 132,
        ..LIMITS
    },
];

/// The columns to try: of the other devices those that take other plans there.
fn cols_of(device: &DeviceLimits) -> Vec<usize> {
    match *device == LARGE {
        true => COLS.to_vec(),
        false => vec![9, 130, 512, 1000, 2049, 4096, 8192],
    }
}

fn devices() -> impl Iterator<Item = (&'static DeviceLimits, DType)> {
    let of = |device| DTYPES.into_iter().map(move |dtype| (device, dtype));
    DEVICES.iter().flat_map(of)
}

/// Family, blocks of a cluster, runs and rows of a plan.
type PlanShape = (&'static str, usize, usize, usize);

/// What there was of plans.
#[derive(Default)]
struct Seen(BTreeSet<PlanShape>);

impl Seen {
    fn add(&mut self, plan: &LaunchPlan) {
        if matches!(plan.kernel.access, Access::Columns | Access::Pieces) {
            let family = plan.kernel.family.name();
            (self.0).insert((family, plan.cluster, plan.runs, plan.rows_per_block));
        }
    }
    fn assert_all(&self) {
        let has =
            |what: &dyn Fn(&PlanShape) -> bool| assert!(self.0.iter().any(what), "{:?}", self.0);
        has(&|s| s.0 == "tile_stream");
        has(&|s| s.0 == "slab");
        for parts in [1, 4, 8] {
            has(&|s| s.0 == "cached_square" && s.1 == parts);
        }
        for runs in [1, 2, 4] {
            has(&|s| s.0 == "cached_square" && s.2 == runs);
        }
        for runs in [1, 2, 4] {
            has(&|s| s.0 == "tile" && s.2 == runs);
        }
        for parts in [4, 8] {
            has(&|s| s.1 == parts && s.2 > 1);
        }
        for rows in [8, 16, 32, 64, 128] {
            has(&|s| s.3 == rows);
        }
    }
}

/// Layouts of (outer, cols, inner), the rows `inner` side by side or in some other way.
fn layouts(outer: usize, cols: usize, inner: usize) -> Vec<(&'static str, Layout)> {
    let at = |strides: [usize; 3], offset| {
        Layout::new(Shape::from((outer, cols, inner)), strides.to_vec(), offset)
    };
    let (wide, even) = (inner + 5, inner + 8);
    vec![
        ("contiguous", at([cols * inner, inner, 1], 0)),
        ("a part of each", at([cols * wide + 3, wide, 1], 2)),
        ("a part of each, even", at([cols * even + 16, even, 1], 8)),
        ("backwards dims", at([inner, outer * inner, 1], 1)),
    ]
}

/// Spreads values over a storage that ends with its last element, so that a load past it shows.
fn storage(values: &[f64], layout: &Layout, dtype: DType) -> Result<Tensor> {
    let places = places(layout);
    let len = places.iter().max().map_or(0, |last| last + 1);
    let mut spread = vec![777.0; len];
    for (&place, &v) in places.iter().zip(values) {
        spread[place] = v;
    }
    Tensor::from_vec(spread, len, &Device::Cpu)?.to_dtype(dtype)
}

/// Values by (row, column), as rows one after another and as (outer, cols, inner).
struct Values {
    shape: (usize, usize, usize),
    rows: Vec<f64>,
}

impl Values {
    fn new(
        shape: (usize, usize, usize),
        dtype: DType,
        value: impl Fn(usize, usize) -> f64,
    ) -> Result<Self> {
        let (outer, cols, inner) = shape;
        let rows: Vec<f64> = (0..outer * inner)
            .flat_map(|r| (0..cols).map(move |c| (r, c)))
            .map(|(r, c)| value(r, c))
            .collect();
        Ok(Self {
            shape,
            rows: rounded(&rows, dtype)?,
        })
    }

    fn as_columns(&self) -> Vec<f64> {
        let (outer, cols, inner) = self.shape;
        let at = |o: usize, c: usize, i: usize| self.rows[(o * inner + i) * cols + c];
        (0..outer)
            .flat_map(|o| (0..cols).flat_map(move |c| (0..inner).map(move |i| (o, c, i))))
            .map(|(o, c, i)| at(o, c, i))
            .collect()
    }

    fn contiguous(&self) -> Layout {
        Layout::contiguous((self.shape.0 * self.shape.2, self.shape.1))
    }
}

/// (outer, cols, inner) as rows.
fn as_rows(t: &Tensor) -> Result<Tensor> {
    let cols = t.dims()[1];
    t.transpose(1, 2)?.force_contiguous()?.reshape(((), cols))
}

/// Few rows or many beside each other, tiles that end inside of the inner dim or go over several outer ones.
fn shapes(cols: usize) -> Vec<(usize, usize, usize)> {
    match cols {
        0..=40 => vec![
            (3, cols, 7),
            (40, cols, 4),
            (2, cols, 130),
            (3, cols, 64),
            (1, cols, 520),
        ],
        41..=600 => vec![(3, cols, 7), (1, cols, 33), (2, cols, 48)],
        _ => vec![(2, cols, 9), (1, cols, 24)],
    }
}

/// Rows of all kinds: plain, wide, -inf in many places, nothing but -inf, a NaN, a +inf, shares far apart, large.
fn kinds(cols: usize, dtype: DType) -> impl Fn(usize, usize) -> f64 {
    let large = if dtype == DType::F16 { 3e4 } else { 3e6 };
    move |r, c| {
        let noise = ((r * 31 + c * 7919) % 1009) as f64 / 1009.0 - 0.5;
        match r % 12 {
            1 => 60.0 * noise - 100.0,
            2 if c % 7 < 4 => -INF,
            3 => -INF,
            4 if c == cols / 2 => f64::NAN,
            5 if c == cols - 1 => INF,
            6 if c > cols / 2 => noise - 70.0,
            7 if c % 100 != 5 => noise - 85.0,
            8 => large + 3.0 * noise,
            9 if c % 64 < 40 => -large,
            10 if c == 0 => -INF,
            11 if c / 128 % 2 == 1 => noise - 300.0, // whole shares, of weight 0
            _ => 4.0 * noise,
        }
    }
}

#[test]
fn softmax_of_columns_has_the_bits_of_rows() -> Result<()> {
    let mut seen = Seen::default();
    for (device, dtype) in devices() {
        for shape in cols_of(device).into_iter().flat_map(shapes) {
            let (outer, cols, inner) = shape;
            let x = Values::new(shape, dtype, kinds(cols, dtype))?;
            let what = format!("{shape:?} {dtype:?}");
            let at = x.contiguous();
            let rows = storage(&x.rows, &at, dtype)?;
            let Some((want, _)) =
                on_device(device, RowOp::Softmax, &[(&rows, &at)], Output::New, &what)?
            else {
                return Ok(());
            };
            assert_softmax(&want, &reference::softmax(&x.rows, cols), cols, &what)?;
            for (name, layout) in layouts(outer, cols, inner) {
                let source = storage(&x.as_columns(), &layout, dtype)?;
                for output in [Output::New, Output::InPlace] {
                    let what = format!("{name}, {what}");
                    let input = [(&source, &layout)];
                    let Some((y, plan)) = on_device(device, RowOp::Softmax, &input, output, &what)?
                    else {
                        return Ok(());
                    };
                    assert_same_bits(&as_rows(&y)?, &want, &what)?;
                    seen.add(&plan);
                }
            }
        }
    }
    seen.assert_all();
    assert!(seen.0.iter().any(|s| s.0 == "cached_tile"));
    Ok(())
}

/// A transposed matrix: its result is contiguous, so columns are read apart and written side by side.
#[test]
fn softmax_of_a_transposed_matrix() -> Result<()> {
    for (device, dtype) in devices() {
        for cols in cols_of(device) {
            for (rows, wide, offset) in [(19, 19, 3), (19, 32, 3), (24, 32, 8)] {
                let x = Values::new((1, cols, rows), dtype, kinds(cols, dtype))?;
                let what = format!("{rows} of {cols}, {wide} apart, {dtype:?}");
                let at = x.contiguous();
                let source = storage(&x.rows, &at, dtype)?;
                let input = [(&source, &at)];
                let Some((want, _)) =
                    on_device(device, RowOp::Softmax, &input, Output::New, &what)?
                else {
                    return Ok(());
                };
                let at = Layout::new(Shape::from((rows, cols)), vec![1, wide], offset);
                let source = storage(&x.rows, &at, dtype)?;
                let input = [(&source, &at)];
                let Some((y, plan)) =
                    on_device(device, RowOp::Softmax, &input, Output::New, &what)?
                else {
                    return Ok(());
                };
                assert_same_bits(&y, &want, &format!("{what}, {}", plan.kernel.name()))?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradient_of_columns_has_the_bits_of_rows() -> Result<()> {
    let mut seen = Seen::default();
    for (device, dtype) in devices() {
        for shape in cols_of(device).into_iter().flat_map(shapes) {
            let (outer, cols, inner) = shape;
            let noise = |r: usize, c: usize| ((r * 31 + c * 7919) % 1009) as f64 / 1009.0 - 0.5;
            let x = Values::new(shape, dtype, |r, c| noise(r, c) * (1 + r % 30) as f64)?;
            let y = Values {
                rows: rounded(&reference::softmax(&x.rows, cols), dtype)?,
                ..x
            };
            let g = Values::new(shape, dtype, |r, c| noise(r + 5, c + 3))?;
            let what = format!("{shape:?} {dtype:?}");
            let at = y.contiguous();
            let rows = [storage(&y.rows, &at, dtype)?, storage(&g.rows, &at, dtype)?];
            let input = [(&rows[0], &at), (&rows[1], &at)];
            let Some((want, _)) =
                on_device(device, RowOp::SoftmaxBackward, &input, Output::New, &what)?
            else {
                return Ok(());
            };
            assert_gradient(&want, &y.rows, &g.rows, cols, &what)?;
            let layouts = layouts(outer, cols, inner);
            // Each with another layout of g; and both contiguous.
            for (i, j) in [(0, 1), (1, 3), (2, 0), (0, 2), (3, 0), (0, 0)] {
                let ((name, y_at), (_, g_at)) = (&layouts[i], &layouts[j]);
                let what = format!("{name}, {what}");
                let columns = [
                    storage(&y.as_columns(), y_at, dtype)?,
                    storage(&g.as_columns(), g_at, dtype)?,
                ];
                let input = [(&columns[0], y_at), (&columns[1], g_at)];
                let Some((dx, plan)) =
                    on_device(device, RowOp::SoftmaxBackward, &input, Output::New, &what)?
                else {
                    return Ok(());
                };
                assert_same_bits(&as_rows(&dx)?, &want, &what)?;
                seen.add(&plan);
            }
        }
    }
    seen.assert_all();
    Ok(())
}
