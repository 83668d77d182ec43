//! The CUDA kernels on the CPU: their source with `device.cuh` of this folder in place of the GPU's
//! instructions, launched by plan as on a GPU and held against the f64 reference.
//!
//! `scripts/host-kernels.sh` compiles them (g++) and names the library in `COS_HOST_KERNELS`; without it
//! these tests say that they are skipped. What a GPU alone can show stays with `tests/operators`: real
//! concurrency, the compiler for the GPU, its approximate instructions.

mod columns;
#[path = "../operators/compare.rs"]
#[allow(dead_code)]
mod compare;
mod launch;
mod packed;
#[path = "../operators/reference.rs"]
#[allow(dead_code)]
mod reference;

use candle_core::{DType, Device, Layout, Result, Shape, Tensor};
use candle_online_softmax::plan::{DeviceLimits, Family, LaunchPlan, RowOp};
use compare::{assert_gradient, assert_same_bits, assert_softmax, values};
use launch::{on_device, on_host, Output, LIMITS};

const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const INF: f64 = f64::INFINITY;

/// Both sides of every threshold of the plan, one more and one less.
const WIDTHS: [usize; 40] = [
    1, 2, 3, 4, 7, 8, 9, 31, 33, 64, 65, 100, 127, 129, 256, 257, 511, 513, 800, 1000, 1023, 1024,
    1025, 2049, 4099, 5000, 8191, 8192, 8193, 10000, 16384, 16385, 20000, 20001, 32767, 32768,
    32769, 40000, 50257, 70000,
];
const ROWS: usize = 3;

/// Where a tensor of `ROWS` rows lies in its storage: every access, and an offset.
fn layouts(cols: usize) -> Vec<(&'static str, Layout)> {
    let at = |strides: [usize; 2], offset| {
        Layout::new(Shape::from((ROWS, cols)), strides.to_vec(), offset)
    };
    let padded = cols.next_multiple_of(8);
    vec![
        ("aligned", at([padded, 1], 0)),
        ("aligned, further in", at([padded + 8, 1], 16)),
        ("odd rows", at([cols + 1, 1], 3)),
        ("side by side", at([cols, 1], 0)),
        ("columns apart", at([2, 2 * ROWS + 1], 1)),
        ("columns apart, rows side by side", at([1, ROWS + 2], 1)),
    ]
}

/// Spreads row-major values over a storage that ends with its last element.
fn storage(values: &[f64], layout: &Layout, dtype: DType) -> Result<Tensor> {
    let (cols, strides) = (layout.dims()[1], layout.stride());
    let place = |r: usize, c: usize| layout.start_offset() + r * strides[0] + c * strides[1];
    let mut spread = vec![777.0; place(ROWS - 1, cols - 1) + 1]; // a neighbour that is read in, shows
    for (i, &v) in values.iter().enumerate() {
        spread[place(i / cols, i % cols)] = v;
    }
    Tensor::from_vec(spread, (place(ROWS - 1, cols - 1) + 1,), &Device::Cpu)?.to_dtype(dtype)
}

/// A few kinds of rows: plain, wide, with -inf in many places.
fn numbers(cols: usize, seed: usize) -> Vec<f64> {
    let value = |i: usize| {
        let noise = ((i * 7919 + seed * 104_729) % 1009) as f64 / 1009.0 - 0.5;
        match i / cols {
            0 => 4.0 * noise,
            1 => 60.0 * noise - 100.0,
            _ if (i % 7) < 4 && !i.is_multiple_of(cols) => -INF,
            _ => noise,
        }
    };
    (0..ROWS * cols).map(value).collect()
}

fn rounded(values_in: &[f64], dtype: DType) -> Result<Vec<f64>> {
    values(&Tensor::new(values_in, &Device::Cpu)?.to_dtype(dtype)?)
}

/// Family, access, dtype and blocks of a cluster of a plan.
type PlanShape = (&'static str, &'static str, DType, usize);

/// What there was of plans.
#[derive(Default)]
struct Seen(Vec<PlanShape>);

impl Seen {
    fn add(&mut self, plan: &LaunchPlan, dtype: DType) {
        let (family, access) = (plan.kernel.family.name(), plan.kernel.access.name());
        let shape = (family, access, dtype, plan.cluster);
        if !self.0.contains(&shape) {
            self.0.push(shape);
        }
    }
    fn assert_has(&self, what: impl Fn(&PlanShape) -> bool, which: &str) {
        assert!(self.0.iter().any(what), "{which}: {:?}", self.0);
    }
    /// That the families of clusters had every access and dtype in some of these blocks, and each number of them.
    fn assert_clusters(&self, blocks: &[usize]) {
        for dtype in DTYPES {
            for (family, access) in CLUSTERS {
                let of = |s: &PlanShape| (s.0, s.1, s.2) == (family, access, dtype) && s.3 > 1;
                self.assert_has(of, &format!("{family} {access} {dtype:?}"));
            }
        }
        for family in ["cached_cluster", "cluster"] {
            for &blocks in blocks {
                self.assert_has(|s| (s.0, s.3) == (family, blocks), &format!("{blocks}"));
            }
        }
    }
}

const CLUSTERS: [(&str, &str); 3] = [
    ("cached_cluster", "aligned"),
    ("cluster", "unaligned"),
    ("cluster", "strided"),
];

/// Rows of these widths in every layout and dtype, in a new tensor and in place: close to the reference, and of the
/// same bits. None where there are no host kernels.
fn softmax_in_every_layout(limits: &DeviceLimits, widths: &[usize]) -> Result<Option<Seen>> {
    let mut seen = Seen::default();
    for dtype in DTYPES {
        for &cols in widths {
            let x = rounded(&numbers(cols, cols), dtype)?;
            let want = reference::softmax(&x, cols);
            let mut first: Option<Tensor> = None;
            for (name, layout) in layouts(cols) {
                let source = storage(&x, &layout, dtype)?;
                for output in [Output::New, Output::InPlace] {
                    let place = match output {
                        Output::New => "",
                        Output::InPlace => "in place, ",
                    };
                    let what = format!("{place}{name}, {dtype:?}, {cols} columns");
                    let input = [(&source, &layout)];
                    let Some((y, plan)) = on_device(limits, RowOp::Softmax, &input, output, &what)?
                    else {
                        return Ok(None);
                    };
                    seen.add(&plan, dtype);
                    assert_softmax(&y, &want, cols, &what)?;
                    match &first {
                        None => first = Some(y),
                        Some(first) => assert_same_bits(&y, first, &what)?,
                    }
                }
            }
        }
    }
    Ok(Some(seen))
}

/// The same of gradients, in a new tensor.
fn gradient_in_every_layout(limits: &DeviceLimits, widths: &[usize]) -> Result<Option<Seen>> {
    let mut seen = Seen::default();
    for dtype in DTYPES {
        for &cols in widths {
            let y = rounded(&reference::softmax(&numbers(cols, 1), cols), dtype)?;
            let g: Vec<f64> = numbers(cols, 2).iter().map(|v| v.max(-100.0)).collect();
            let g = rounded(&g, dtype)?;
            let mut first: Option<Tensor> = None;
            for ((name, y_at), (_, g_at)) in layouts(cols).into_iter().zip(layouts(cols)) {
                let operands = [
                    (&storage(&y, &y_at, dtype)?, &y_at),
                    (&storage(&g, &g_at, dtype)?, &g_at),
                ];
                let what = format!("{name}, {dtype:?}, {cols} columns");
                let Some((dx, plan)) = on_device(
                    limits,
                    RowOp::SoftmaxBackward,
                    &operands,
                    Output::New,
                    &what,
                )?
                else {
                    return Ok(None);
                };
                seen.add(&plan, dtype);
                assert_gradient(&dx, &y, &g, cols, &what)?;
                match &first {
                    None => first = Some(dx),
                    Some(first) => assert_same_bits(&dx, first, &what)?,
                }
            }
        }
    }
    Ok(Some(seen))
}

#[test]
fn softmax_in_every_family_access_and_dtype() -> Result<()> {
    let Some(seen) = softmax_in_every_layout(&LIMITS, &WIDTHS)? else {
        return Ok(());
    };
    let mut families = CLUSTERS.to_vec();
    for family in ["warp", "block", "gang", "stream"] {
        families.extend(["aligned", "unaligned", "strided"].map(|access| (family, access)));
    }
    families.extend([("cached_tile", "columns"), ("chunk", "packed")]);
    for dtype in DTYPES {
        for &(family, access) in &families {
            let of = |s: &PlanShape| (s.0, s.1, s.2) == (family, access, dtype);
            seen.assert_has(of, &format!("{family} {access} {dtype:?}"));
        }
    }
    seen.assert_has(|s| s.0 == "tile", "what does not stay in registers");
    seen.assert_has(|s| s.0 == "tile_stream", "what does not fit a tile");
    Ok(())
}

#[test]
fn gradient_in_every_family_access_and_dtype() -> Result<()> {
    gradient_in_every_layout(&LIMITS, &WIDTHS).map(|_| ())
}

/// Clusters of up to 4 blocks with large slices, and of up to 16.
const OF_CLUSTERS: [(DeviceLimits, &[usize]); 2] = [
    (
        DeviceLimits {
            max_cluster: 4,
            ..LIMITS
        },
        &[9001, 16384, 40000, 64000],
    ),
    (
        DeviceLimits {
            max_cluster: 16,
            max_shared_bytes: 227 << 10,
            multiprocessors: 132,
            ..LIMITS
        },
        &[8200, 16385, 33000, 50257, 70000, 128_256],
    ),
];

#[test]
fn softmax_in_clusters_of_blocks() -> Result<()> {
    for (limits, widths) in &OF_CLUSTERS {
        let Some(seen) = softmax_in_every_layout(limits, widths)? else {
            return Ok(());
        };
        let blocks = [2, 4, 8, 16];
        seen.assert_clusters(if limits.max_cluster == 4 {
            &blocks[..2]
        } else {
            &blocks
        });
    }
    Ok(())
}

#[test]
fn gradient_in_clusters_of_blocks() -> Result<()> {
    for (limits, widths) in &OF_CLUSTERS {
        let Some(seen) = gradient_in_every_layout(limits, widths)? else {
            return Ok(());
        };
        let blocks = [4, 8, 16];
        seen.assert_clusters(if limits.max_cluster == 4 {
            &blocks[..1]
        } else {
            &blocks
        });
    }
    Ok(())
}

#[test]
fn rows_of_special_values() -> Result<()> {
    for dtype in DTYPES {
        for cols in [1, 5, 32, 257, 1031, 33000, 40001] {
            for special in [f64::NAN, INF, -INF] {
                for at in [0, cols / 2, cols - 1] {
                    // One special value; a row of nothing but it; nothing but -inf beside it.
                    let value = |i: usize| match i / cols {
                        0 if i % cols == at => special,
                        0 => 0.5,
                        1 => special,
                        _ if i % cols == at => special,
                        _ => -INF,
                    };
                    let x: Vec<f64> = (0..ROWS * cols).map(value).collect();
                    let layout = Layout::contiguous((ROWS, cols));
                    let source = storage(&x, &layout, dtype)?;
                    let what = format!("{special} at {at}");
                    let Some((y, _)) =
                        on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?
                    else {
                        return Ok(());
                    };
                    assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Threads and warps whose own maxima lie far below the row's, and large numbers, of which exponentials are
/// taken after a subtraction: some shares of a row are large and others are not.
#[test]
fn shares_far_apart() -> Result<()> {
    for dtype in DTYPES {
        for cols in [40, 130, 700, 3000, 9001, 20001] {
            for (near, far) in [
                (0.0, -45.0),
                (0.0, -66.0),
                (3.0, -80.0),
                (2e6, -3e6),
                (-1.5e4, -2e4),
                (1e6, 999_990.0),
            ] {
                let value = |i: usize| {
                    let noise = ((i * 7919) % 1009) as f64 / 1009.0;
                    // The row's maximum at its end, at its beginning, in every hundredth place.
                    let at_top = match i / cols {
                        0 => i % cols >= cols - 3,
                        1 => i % cols < 3,
                        _ => i.is_multiple_of(100),
                    };
                    noise + if at_top { near } else { far }
                };
                let x: Vec<f64> = (0..ROWS * cols).map(value).collect();
                let x = rounded(&x, dtype)?;
                if x.iter().any(|v| v.is_infinite()) {
                    continue; // past f16
                }
                for (name, layout) in layouts(cols) {
                    let source = storage(&x, &layout, dtype)?;
                    let what = format!("{near} and {far}, {name}, {dtype:?}, {cols} columns");
                    let run = on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?;
                    let Some((y, _)) = run else { return Ok(()) };
                    assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// Gangs of more blocks than a warp looks for at a time, on many multiprocessors with little memory.
#[test]
fn large_gangs() -> Result<()> {
    let limits = DeviceLimits {
        max_shared_bytes: 12 << 10,
        multiprocessors: 200,
        ..LIMITS
    };
    for (op, dtype, slice) in [
        (RowOp::Softmax, DType::F32, 128),
        (RowOp::Softmax, DType::F64, 256),
        (RowOp::SoftmaxBackward, DType::F32, 64),
        (RowOp::SoftmaxBackward, DType::F64, 64),
    ] {
        let cols = 133 * slice * 16 / dtype.size_in_bytes() - 5;
        let numbers = |seed| rounded(&numbers(cols, seed)[..cols], dtype);
        let tensor =
            |values: &[f64]| Tensor::from_slice(values, cols, &Device::Cpu)?.to_dtype(dtype);
        let (x, g) = (numbers(3)?, numbers(4)?);
        let y = reference::softmax(&x, cols);
        let rounded_y = rounded(&y, dtype)?;
        let layout = Layout::contiguous((1, cols));
        let inputs = match op {
            RowOp::Softmax => vec![tensor(&x)?],
            RowOp::SoftmaxBackward => vec![tensor(&y)?, tensor(&g)?],
        };
        let inputs: Vec<_> = inputs.iter().map(|t| (t, &layout)).collect();
        let what = format!("{op:?}, {dtype:?}, {cols} columns");
        let Some((got, plan)) = on_device(&limits, op, &inputs, Output::New, &what)? else {
            return Ok(());
        };
        let shape = (plan.kernel.family, plan.gang, plan.slice);
        assert_eq!(shape, (Family::Gang, 133, slice), "{what}");
        match op {
            RowOp::Softmax => assert_softmax(&got, &y, cols, &what)?,
            RowOp::SoftmaxBackward => assert_gradient(&got, &rounded_y, &g, cols, &what)?,
        }
    }
    Ok(())
}

/// A plain sum of this many terms in f32 is off by more than the bound.
#[test]
fn sums_of_a_million_do_not_drift() -> Result<()> {
    for v in [-0.3, -1.0] {
        let cols = 1 << 20;
        let x: Vec<f64> = (0..cols)
            .map(|i| if i % 4 == 0 { 0.0 } else { v })
            .collect();
        let x = rounded(&x, DType::F32)?;
        let source = Tensor::from_slice(&x, cols, &Device::Cpu)?.to_dtype(DType::F32)?;
        let layout = Layout::contiguous((1, cols));
        let what = format!("period of four, {v}");
        let Some((y, plan)) = on_host(RowOp::Softmax, &[(&source, &layout)], Output::New, &what)?
        else {
            return Ok(());
        };
        assert_eq!(plan.kernel.family, Family::Stream);
        assert_softmax(&y, &reference::softmax(&x, cols), cols, &what)?;
    }
    Ok(())
}
