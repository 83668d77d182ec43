//! The backward pass reads y and g of any layout with the bits of contiguous ones, and writes
//! neither them nor x.

use crate::compare::{assert_same_bits, bits};
use crate::gradients::backward;
use crate::inputs::{normal, DTYPES, SAMPLE};
use crate::views;
use candle_core::{CustomOp1, DType, Device, Result, Tensor, Var};
use candle_online_softmax::OnlineSoftmax;

on_devices_by_dtype!(any_layout_of_g, any_layout_of_y, any_layout_of_both);
on_devices!(
    columns_apart,
    operands_are_not_written,
    forward_view_gets_its_gradient
);

fn any_layout_of_g(dtype: DType, device: &Device) -> Result<()> {
    each_view(dtype, device, |view, other, what| {
        let y = other.apply_op1(OnlineSoftmax)?;
        let want = backward(&y, &view.force_contiguous()?)?;
        assert_same_bits(&backward(&y, view)?, &want, what)
    })
}

fn any_layout_of_y(dtype: DType, device: &Device) -> Result<()> {
    each_view(dtype, device, |view, other, what| {
        let want = backward(&view.force_contiguous()?, other)?;
        assert_same_bits(&backward(view, other)?, &want, what)
    })
}

/// Both strided, and not alike.
fn any_layout_of_both(dtype: DType, device: &Device) -> Result<()> {
    each_view(dtype, device, |view, other, what| {
        let rank = other.rank();
        let y = if rank > 1 {
            other
                .transpose(0, rank - 1)?
                .force_contiguous()?
                .transpose(0, rank - 1)?
        } else {
            other.clone()
        };
        let want = backward(other, &view.force_contiguous()?)?;
        assert_same_bits(&backward(&y, view)?, &want, what)
    })
}

/// Rows side by side: tiles of every kind, on the GPU.
fn columns_apart(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (cols, rows) in [(7, 40), (300, 33), (1000, 19), (4096, 8), (8192, 17)] {
            let y = normal(1, &[cols, rows], dtype, device)?.t()?;
            let g = normal(2, &[cols, rows], dtype, device)?.t()?;
            let want = backward(&y.force_contiguous()?, &g.force_contiguous()?)?;
            let what = format!("{rows} rows of {cols}, {dtype:?}");
            assert_same_bits(&backward(&y, &g)?, &want, &what)?;
        }
    }
    Ok(())
}

/// Calls `check` with each view of the table and a contiguous tensor of its shape.
fn each_view(
    dtype: DType,
    device: &Device,
    check: impl Fn(&Tensor, &Tensor, &str) -> Result<()>,
) -> Result<()> {
    for n in SAMPLE {
        for view in views::table(n) {
            let x = (view.make)(&normal(1, &view.base, dtype, device)?)?;
            let other = normal(2, x.dims(), dtype, device)?;
            check(&x, &other, &format!("{}, {dtype:?}, n = {n}", view.name))?;
        }
    }
    Ok(())
}

fn operands_are_not_written(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for n in SAMPLE {
            let base_x = normal(3, &[6, n + 3], dtype, device)?;
            let base_g = normal(4, &[6, n + 3], dtype, device)?;
            let (x, g) = (base_x.narrow(1, 1, n)?, base_g.narrow(1, 2, n)?);
            let y = x.apply_op1(OnlineSoftmax)?;
            let before = [bits(&base_x)?, bits(&y)?, bits(&base_g)?];
            OnlineSoftmax.bwd(&x, &y, &g)?;
            let after = [bits(&base_x)?, bits(&y)?, bits(&base_g)?];
            assert!(before == after, "{dtype:?}, n = {n}");
        }
    }
    Ok(())
}

/// A variable seen through a view: its gradient is that of the contiguous copy, put back.
fn forward_view_gets_its_gradient(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = Var::from_tensor(&normal(5, &[33, 4, 3], dtype, device)?)?;
        let w = normal(6, &[4, 3, 33], dtype, device)?;
        let view = x.permute((1, 2, 0))?;
        let grads = (view.apply_op1(OnlineSoftmax)? * &w)?
            .sum_all()?
            .backward()?;
        let got = grads.get(&x).expect("a gradient").force_contiguous()?;
        let y = view.force_contiguous()?.apply_op1(OnlineSoftmax)?;
        let want = backward(&y, &w)?.permute((2, 0, 1))?.force_contiguous()?;
        assert_same_bits(&got, &want, &format!("{dtype:?}"))?;
    }
    Ok(())
}
