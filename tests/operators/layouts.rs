//! Any strides give the bits of the contiguous copy; any dimension gives those of the transposed.

use crate::compare::{assert_same_bits, assert_softmax, values};
use crate::inputs::{normal, DTYPES, SAMPLE};
use crate::{reference, views};
use candle_core::{CustomOp1, DType, Device, Layout, Result, Storage, Tensor, D};
use candle_online_softmax::{softmax, softmax_last_dim, OnlineSoftmax};

on_devices_by_dtype!(views_equal_contiguous_copies);
on_devices!(
    every_dim_of_every_rank,
    long_dims,
    negative_dims,
    sliding_windows,
);

fn views_equal_contiguous_copies(dtype: DType, device: &Device) -> Result<()> {
    for n in SAMPLE {
        for view in views::table(n) {
            let x = (view.make)(&normal(n as u64, &view.base, dtype, device)?)?;
            let got = x.apply_op1(OnlineSoftmax)?;
            let want = x.force_contiguous()?.apply_op1(OnlineSoftmax)?;
            let what = format!("{}, {dtype:?}, n = {n}", view.name);
            assert!(got.is_contiguous(), "{what}");
            assert_same_bits(&got, &want, &what)?;
        }
    }
    Ok(())
}

/// `softmax(x, dim)` as a softmax of the last dimension of a contiguous copy.
pub fn through_transpose(x: &Tensor, dim: usize) -> Result<Tensor> {
    let last = x.rank() - 1;
    let moved = x.transpose(dim, last)?.force_contiguous()?;
    let y = moved.apply_op1(OnlineSoftmax)?;
    y.transpose(dim, last)?.force_contiguous()
}

fn check_dim(x: &Tensor, dim: usize) -> Result<()> {
    let what = format!("{:?} of {:?}, dim {dim}", x.dtype(), x.dims());
    let got = softmax(x, dim)?;
    assert!(got.is_contiguous(), "{what}");
    assert_same_bits(&got, &through_transpose(x, dim)?, &what)?;
    let want = reference::along_dim(&values(x)?, x.dims(), dim, reference::softmax_row);
    // As rows, so that the bounds of a row's sum apply.
    let rows = got.transpose(dim, x.rank() - 1)?.force_contiguous()?;
    let want = crate::inputs::tensor(&want, x.dims(), DType::F64, &Device::Cpu)?;
    let want = want.transpose(dim, x.rank() - 1)?;
    assert_softmax(&rows, &values(&want)?, x.dims()[dim], &what)
}

fn every_dim_of_every_rank(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 10] = [
        &[7],
        &[1],
        &[5, 33],
        &[130, 3],
        &[4, 6, 17],
        &[1, 9, 1],
        &[3, 2, 5, 9],
        &[2, 67, 2, 3],
        &[2, 3, 2, 4, 5],
        &[3, 1, 2, 1, 40],
    ];
    for dtype in DTYPES {
        for shape in shapes {
            let x = normal(shape.len() as u64, shape, dtype, device)?;
            for dim in 0..shape.len() {
                check_dim(&x, dim)?;
                // And of a view that is not contiguous to begin with.
                check_dim(&x.transpose(0, shape.len() - 1)?, dim)?;
            }
        }
    }
    Ok(())
}

/// Long strided rows, few and many.
fn long_dims(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for shape in [
            [1, 1000, 3],
            [2, 1031, 70],
            [1, 4099, 5],
            [1, 20001, 2],
            [1, 70001, 3],
            // Rows side by side: tiles of every kind, on the GPU.
            [9, 7, 7],
            [3, 300, 33],
            [2, 2000, 19],
            [1, 4096, 8],
            [1, 8192, 17],
        ] {
            check_dim(&normal(3, &shape, dtype, device)?, 1)?;
        }
    }
    Ok(())
}

fn negative_dims(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = normal(2, &[3, 4, 5], dtype, device)?;
        assert_same_bits(&softmax(&x, D::Minus1)?, &softmax(&x, 2)?, "minus 1")?;
        assert_same_bits(&softmax(&x, D::Minus2)?, &softmax(&x, 1)?, "minus 2")?;
        assert_same_bits(&softmax(&x, D::Minus(3))?, &softmax(&x, 0)?, "minus 3")?;
        assert_same_bits(&softmax_last_dim(&x)?, &softmax(&x, 2)?, "last")?;
        assert_same_bits(
            &softmax_last_dim(&x)?,
            &x.apply_op1(OnlineSoftmax)?,
            "operator",
        )?;
    }
    Ok(())
}

/// Runs the operator's forward pass on a layout that no tensor method makes.
pub fn forward_at(x: &Tensor, layout: &Layout) -> Result<Tensor> {
    let (storage, _) = x.storage_and_layout();
    let (storage, shape) = match &*storage {
        Storage::Cpu(s) => {
            let (s, shape) = OnlineSoftmax.cpu_fwd(s, layout)?;
            (Storage::Cpu(s), shape)
        }
        Storage::Cuda(s) => {
            let (s, shape) = OnlineSoftmax.cuda_fwd(s, layout)?;
            (Storage::Cuda(s), shape)
        }
        Storage::Metal(_) => candle_core::bail!("no Metal here"),
    };
    let none = candle_core::op::BackpropOp::none();
    Ok(Tensor::from_storage(storage, shape, none, false))
}

/// Rows that overlap without a stride of 0: each is its neighbour shifted.
fn sliding_windows(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (rows, n, row_stride, step) in [(9, 5, 1, 1), (20, 130, 3, 2), (7, 1031, 4, 1)] {
            let len = 2 + (rows - 1) * row_stride + (n - 1) * step + 1;
            let x = normal(len as u64, &[len], dtype, device)?;
            let layout = Layout::new((rows, n).into(), vec![row_stride, step], 2);
            let got = forward_at(&x, &layout)?;
            let host = values(&x)?;
            let window = |r: usize| (0..n).map(move |c| 2 + r * row_stride + c * step);
            let copy: Vec<f64> = (0..rows).flat_map(window).map(|i| host[i]).collect();
            let copy = crate::inputs::tensor(&copy, &[rows, n], dtype, device)?;
            let want = copy.apply_op1(OnlineSoftmax)?;
            assert_same_bits(&got, &want, &format!("windows of {n}, {dtype:?}"))?;
        }
    }
    Ok(())
}
