//! Bad input: an error that names the operator, what it requires and what came; never a panic,
//! never a write.

use crate::compare::{assert_same_bits, bits};
use crate::inputs::{normal, nothing, DTYPES};
use crate::layouts::forward_at;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CustomOp1, DType, Device, InplaceOp1, Layout};
use candle_core::{Result, Storage, Tensor, Var, D};
use candle_online_softmax::{softmax, softmax_last_dim, OnlineSoftmax};

on_devices!(
    unsupported_dtypes,
    dim_out_of_range,
    gradients_that_do_not_fit,
    layout_past_the_storage,
    shapes_past_memory
);

/// The error's text has every one of these words, whatever their case.
#[track_caller]
pub fn assert_says<T>(result: Result<T>, words: &[&str]) {
    let Err(error) = result else {
        panic!("no error; it should say {words:?}");
    };
    let text = error.to_string().to_lowercase();
    for word in words {
        assert!(
            text.contains(&word.to_lowercase()),
            "{word:?} is missing in: {text}"
        );
    }
}

/// Runs every entry point on a tensor of a dtype that none takes.
fn refuses(x: &Tensor) -> Result<()> {
    let words = [
        "online-softmax",
        "f16",
        "bf16",
        "f32",
        "f64",
        x.dtype().as_str(),
    ];
    assert_says(x.apply_op1(OnlineSoftmax), &words);
    assert_says(softmax_last_dim(x), &words);
    if x.rank() > 0 {
        assert_says(softmax(x, 0), &words);
    }
    assert_says(x.inplace_op1(&OnlineSoftmax), &words);
    assert_says(OnlineSoftmax.bwd(x, x, x), &words);
    Ok(())
}

fn unsupported_dtypes(device: &Device) -> Result<()> {
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F8E4M3,
    ] {
        refuses(&nothing(&[0], dtype, device)?)?;
        for shape in [vec![2, 3], vec![]] {
            refuses(&Tensor::zeros(shape, dtype, &Device::Cpu)?.to_device(device)?)?;
        }
    }
    let numbers = Tensor::new(&[[1u32, 2, 3]], device)?;
    refuses(&numbers)?;
    assert_eq!(numbers.to_vec2::<u32>()?, [[1, 2, 3]]);
    let bytes = Tensor::new(&[[1u8, 2, 3]], device)?;
    refuses(&bytes)?;
    assert_eq!(bytes.to_vec2::<u8>()?, [[1, 2, 3]]);
    Ok(())
}

/// Dtypes that candle can hold on the CPU and nothing else.
#[test]
fn unsupported_small_floats() -> Result<()> {
    let bytes = || vec![0u8; 4];
    let storages = [
        CpuStorage::F8E8M0(bytes()),
        CpuStorage::F6E2M3(bytes()),
        CpuStorage::F6E3M2(bytes()),
        CpuStorage::F4(bytes()),
    ];
    for storage in storages {
        let x = Tensor::from_storage(Storage::Cpu(storage), (2, 2), BackpropOp::none(), false);
        refuses(&x)?;
    }
    Ok(())
}

fn dim_out_of_range(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = normal(1, &[2, 3], dtype, device)?;
        let before = bits(&x)?;
        for dim in [2, 3, 17, usize::MAX] {
            let words = ["softmax", "out of range", "[2, 3]"];
            assert_says(softmax(&x, dim), &words);
        }
        assert_says(softmax(&x, 5), &["softmax", "dimension index 5", "[2, 3]"]);
        assert_says(softmax(&x, D::Minus(3)), &["softmax", "index -3", "[2, 3]"]);
        assert_says(
            softmax(&x, D::Minus(0)),
            &["softmax", "out of range", "[2, 3]"],
        );
        assert_eq!(bits(&x)?, before);
        // A number has one dimension at most: rank 0 takes 0 and -1 (see semantics.rs).
        let number = normal(1, &[], dtype, device)?;
        assert_says(softmax(&number, 1), &["softmax", "out of range", "[]"]);
        assert_says(
            softmax(&number, D::Minus2),
            &["softmax", "out of range", "[]"],
        );
    }
    Ok(())
}

/// Two operands that do not belong together.
fn gradients_that_do_not_fit(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let y = normal(1, &[2, 3], dtype, device)?;
        let (before, name) = (bits(&y)?, dtype.as_str());
        for shape in [&[3, 2][..], &[6], &[2, 4], &[1, 3], &[2, 3, 1], &[]] {
            let g = normal(2, shape, dtype, device)?;
            let came = format!("{:?}", g.shape());
            assert_says(
                OnlineSoftmax.bwd(&y, &y, &g),
                &["online-softmax", "shape", "[2, 3]", &came],
            );
        }
        let other = if dtype == DType::F32 {
            DType::BF16
        } else {
            DType::F32
        };
        let g = normal(2, &[2, 3], other, device)?;
        let words = ["online-softmax", "dtype", name, other.as_str()];
        assert_says(OnlineSoftmax.bwd(&y, &y, &g), &words);
        assert_eq!(bits(&y)?, before);
    }
    Ok(())
}

/// A layout that reaches outside its storage cannot come from a tensor, but a direct caller of the
/// operator's traits can pass one: an error on every device, and no read beyond the end.
fn layout_past_the_storage(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = normal(1, &[4, 5], dtype, device)?;
        for (dims, strides, offset) in [
            (vec![4, 5], vec![5, 1], 1),
            (vec![5, 5], vec![5, 1], 0),
            (vec![2, 5], vec![16, 1], 0),
            (vec![4, 5], vec![5, 2], 0),
            (vec![2, 2], vec![usize::MAX / 2, 1], 0),
            (vec![1], vec![1], usize::MAX),
        ] {
            let layout = Layout::new(dims.into(), strides, offset);
            assert_says(forward_at(&x, &layout), &["online-softmax"]);
        }
        let fits = Layout::new((2, 3).into(), vec![7, 2], 2);
        forward_at(&x, &fits)?;
    }
    Ok(())
}

/// candle refuses broadcast tensors by itself; the operator must also refuse the layouts that
/// only a direct caller can make, and write nothing.
#[test]
fn overlapping_layouts_in_place() -> Result<()> {
    for (strides, offset) in [
        (vec![0, 1], 0),
        (vec![1, 0], 2),
        (vec![0, 0], 3),
        (vec![1, 1], 1),
        (vec![2, 1], 0),
    ] {
        let layout = Layout::new((3, 4).into(), strides, offset);
        let values: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut storage = CpuStorage::F32(values.clone());
        let result = InplaceOp1::cpu_fwd(&OnlineSoftmax, &mut storage, &layout);
        assert_says(
            result,
            &[
                "online-softmax",
                "in place",
                &format!("{:?}", layout.stride()),
            ],
        );
        assert!(matches!(storage, CpuStorage::F32(after) if after == values));
    }
    Ok(())
}

/// No Metal device is needed: without candle's Metal backend its storage is an empty struct.
#[cfg(not(feature = "metal"))]
#[test]
fn metal_is_refused() {
    let layout = Layout::contiguous((2, 3));
    let mut storage = candle_core::MetalStorage;
    let words = ["online-softmax", "cpu", "cuda", "metal"];
    assert_says(
        CustomOp1::metal_fwd(&OnlineSoftmax, &storage, &layout),
        &words,
    );
    assert_says(
        InplaceOp1::metal_fwd(&OnlineSoftmax, &mut storage, &layout),
        &words,
    );
}

/// candle's graph hands an error of the backward pass to the caller.
#[test]
fn error_in_place_leaves_a_variable_usable() -> Result<()> {
    let x = Var::from_tensor(&normal(1, &[2, 3], DType::F32, &Device::Cpu)?)?;
    let copy = x.force_contiguous()?;
    let broadcast = x.narrow(0, 0, 1)?.broadcast_as((4, 3))?;
    assert!(broadcast.inplace_op1(&OnlineSoftmax).is_err());
    assert_same_bits(&x, &copy, "after the error")?;
    x.inplace_op1(&OnlineSoftmax)?;
    assert_same_bits(&x, &copy.apply_op1(OnlineSoftmax)?, "and then in place")
}

/// Broadcast views stand for more elements than memory, or a usize, holds.
fn shapes_past_memory(device: &Device) -> Result<()> {
    const HUGE: usize = 1 << 32;
    for dtype in DTYPES {
        let one = normal(1, &[1, 1, 1], dtype, device)?;
        for shape in [(HUGE, HUGE, 2), (2, HUGE, HUGE), (1 << 62, 1, 2)] {
            let x = one.broadcast_as(shape)?;
            for dim in 0..3 {
                assert_says(softmax(&x, dim), &["online-softmax: requires a shape of"]);
            }
        }
        // As bytes past a usize, and within one.
        for shape in [(1, 1 << 62, 1), (1 << 20, 1 << 28, 1)] {
            let x = one.broadcast_as(shape)?;
            for dim in 0..3 {
                let result = softmax(&x, dim);
                assert!(result.is_err(), "{dtype:?} {shape:?}: no error");
            }
        }
        let y = one.apply_op1(OnlineSoftmax)?; // the device still works
        assert_eq!(crate::compare::values(&y)?, [1.0]);
    }
    Ok(())
}

const LITTLE_MEMORY: &str = "errors::runs_with_little_memory";

/// Without memory for the f32 copy of a row of halves: an error instead of an abort, and nothing written.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_in_a_child() {
    let this = std::env::current_exe().expect("the test binary");
    let child = std::process::Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 2500000 && exec \"$0\" --exact \"$1\" --include-ignored --test-threads=1")
        .arg(this)
        .arg(LITTLE_MEMORY)
        .output()
        .expect("a child process");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

#[test]
#[ignore = "run by too_little_memory_in_a_child, with 2.5 GB of address space"]
fn runs_with_little_memory() -> Result<()> {
    let (words, len) = (["online-softmax: requires memory"], 500_000_000);
    let broadcast = Tensor::zeros(1, DType::F16, &Device::Cpu)?.broadcast_as(len)?;
    assert_says(softmax_last_dim(&broadcast), &words);
    let x = Tensor::ones(len, DType::F16, &Device::Cpu)?;
    assert_says(x.inplace_op1(&OnlineSoftmax), &words);
    assert_eq!(bits(&x.narrow(0, len - 1, 1)?)?, [1f64.to_bits()]);
    Ok(())
}
