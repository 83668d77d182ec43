//! Reading tensors back, comparing bits, and the accuracy bounds of the contract.

use candle_core::{DType, Device, Result, Tensor};
use half::{bf16, f16};

/// The elements in row-major order of the tensor's own (perhaps strided) layout.
pub fn values(t: &Tensor) -> Result<Vec<f64>> {
    if t.elem_count() == 0 {
        return Ok(vec![]); // candle panics where such a view starts past its storage
    }
    let t = t.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(match t.dtype() {
        DType::F16 => t.to_vec1::<f16>()?.iter().map(|v| v.to_f64()).collect(),
        DType::BF16 => t.to_vec1::<bf16>()?.iter().map(|v| v.to_f64()).collect(),
        DType::F32 => t.to_vec1::<f32>()?.iter().map(|&v| v as f64).collect(),
        DType::U8 => t.to_vec1::<u8>()?.into_iter().map(f64::from).collect(),
        _ => t.to_vec1::<f64>()?,
    })
}

/// The elements' bits; all NaNs are one, since a payload is no result. Zeros keep their sign.
pub fn bits(t: &Tensor) -> Result<Vec<u64>> {
    let bits = |v: f64| if v.is_nan() { u64::MAX } else { v.to_bits() };
    Ok(values(t)?.into_iter().map(bits).collect())
}

/// Every dtype, shape and bit alike.
#[track_caller]
pub fn assert_same_bits(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_eq!(got.dtype(), want.dtype(), "{what}: dtype");
    assert_eq!(got.dims(), want.dims(), "{what}: shape");
    let (g, w) = (bits(got)?, bits(want)?);
    if let Some(i) = (0..g.len()).find(|&i| g[i] != w[i]) {
        let (g, w) = (f64::from_bits(g[i]), f64::from_bits(w[i]));
        panic!(
            "{what}: element {i} of {:?} is {g:e}, not {w:e}",
            got.dims()
        );
    }
    Ok(())
}

/// The rows of a softmax meet the contract's bounds against the reference.
#[track_caller]
pub fn assert_softmax(got: &Tensor, want: &[f64], cols: usize, what: &str) -> Result<()> {
    let g = values(got)?;
    assert_eq!(g.len(), want.len(), "{what}: element count");
    for (r, (g, w)) in g
        .chunks(cols.max(1))
        .zip(want.chunks(cols.max(1)))
        .enumerate()
    {
        if let Err(fault) = check_row(got.dtype(), g, w) {
            panic!(
                "{what}, {:?}, {cols} columns, row {r}: {fault}",
                got.dtype()
            );
        }
    }
    Ok(())
}

/// One row of softmax against its reference: each element, and (f32) the row's sum.
pub fn check_row(dtype: DType, got: &[f64], want: &[f64]) -> std::result::Result<(), String> {
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        if w.is_nan() != g.is_nan() || (!w.is_nan() && !probability_ok(dtype, g, w, 0.0)) {
            return Err(format!("element {i} is {g:e}, should be {w:e}"));
        }
    }
    if dtype == DType::F32 && !want.iter().any(|v| v.is_nan()) {
        let sum: f64 = got.iter().sum();
        let bound = 1e-6 * (got.len() as f64).sqrt() / 32.0 + 2f64.powi(-22);
        if (sum - 1.0).abs() > bound {
            return Err(format!("row sums to {sum}, more than {bound:e} off 1"));
        }
    }
    Ok(())
}

/// The contract: f32 within 2e-6 where p >= 1e-30 and 1e-5 down to the smallest normal number,
/// f64 within 1e-13, halves within one unit in the last place of the rounded value. Below the
/// smallest normal number a result may be flushed, but is never negative or larger than it.
///
/// `slack` is the relative error that comes to that by what the softmax is taken of.
pub fn probability_ok(dtype: DType, got: f64, want: f64, slack: f64) -> bool {
    let off = (got - want).abs();
    let below = |smallest: f64| (0.0..=smallest * (1.0 + 1e-5 + 2.0 * slack)).contains(&got);
    let normal = |smallest: f64| want * (1.0 - slack) >= smallest;
    let half = |rounded: f64| (got - rounded).abs() <= ulp(dtype, rounded) + slack * want;
    let ok = match dtype {
        DType::F16 => half(round(dtype, want)),
        DType::BF16 if !normal(f32::MIN_POSITIVE as f64) => below(f32::MIN_POSITIVE as f64),
        DType::BF16 => half(round(dtype, want)),
        DType::F32 if want >= 1e-30 => off <= (2e-6 + slack) * want,
        DType::F32 if normal(f32::MIN_POSITIVE as f64) => off <= (1e-5 + slack) * want,
        DType::F32 => below(f32::MIN_POSITIVE as f64),
        _ if normal(f64::MIN_POSITIVE) => off <= (1e-13 + slack) * want,
        _ => below(f64::MIN_POSITIVE),
    };
    ok && got.is_sign_positive()
}

/// Gradients: as accurate, relative to the largest |y*g| of the row (or to the largest result,
/// where the dot product is larger than any of its terms).
#[track_caller]
pub fn assert_gradient(got: &Tensor, y: &[f64], g: &[f64], cols: usize, what: &str) -> Result<()> {
    let dtype = got.dtype();
    let (got, want) = (values(got)?, crate::reference::gradient(y, g, cols));
    assert_eq!(got.len(), want.len(), "{what}: element count");
    for first in (0..got.len()).step_by(cols.max(1)) {
        let row = first..first + cols;
        let terms = y[row.clone()]
            .iter()
            .zip(&g[row.clone()])
            .map(|(y, g)| y * g);
        let scale = terms
            .chain(want[row.clone()].iter().copied())
            .fold(0f64, |a, v| a.max(v.abs()));
        for i in row {
            let ok = want[i].is_nan() == got[i].is_nan()
                && (want[i].is_nan() || gradient_ok(dtype, got[i], want[i], scale));
            let (got, want, col) = (got[i], want[i], i - first);
            assert!(
                ok,
                "{what}, {dtype:?}, {cols} columns, row {}, column {col}: {got:e}, should be \
                 {want:e} at scale {scale:e}",
                first / cols
            );
        }
    }
    Ok(())
}

/// `scale` is the row's largest |y*g|.
pub fn gradient_ok(dtype: DType, got: f64, want: f64, scale: f64) -> bool {
    match dtype {
        DType::F16 | DType::BF16 => (got - round(dtype, want)).abs() <= ulp(dtype, scale),
        DType::F32 => (got - want).abs() <= 2e-6 * scale + f32::MIN_POSITIVE as f64,
        _ => (got - want).abs() <= 1e-13 * scale + f64::MIN_POSITIVE,
    }
}

/// All but a hundredth of these numbers of a half dtype are the correctly rounded ones. The f32
/// arithmetic before the one rounding leaves fewer than that on the wrong side of a tie.
#[track_caller]
pub fn assert_rounded_once(dtype: DType, got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: element count");
    let pairs = got.iter().zip(want);
    let off = pairs.filter(|(g, w)| **g != round(dtype, **w)).count();
    let count = got.len();
    assert!(
        off * 100 <= count,
        "{what}, {dtype:?}: {off} of {count} are not correctly rounded"
    );
}

/// The unit in the last place of a dtype at `v`; below the normal range, the smallest subnormal.
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let (fraction, smallest) = match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F32 => (23, -126),
        _ => (52, -1022),
    };
    let exponent = ((v.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(smallest) - fraction)
}

/// `v` rounded to the nearest number of a half dtype in one step. (The `half` crate may go
/// through f32 and round twice.)
pub fn round(dtype: DType, v: f64) -> f64 {
    let unit = ulp(dtype, v);
    (v / unit).round_ties_even() * unit
}

#[test]
fn rounding_by_hand() {
    assert_eq!(ulp(DType::F16, 1.0), 2f64.powi(-10));
    assert_eq!(ulp(DType::F16, 1e-7), 2f64.powi(-24));
    assert_eq!(ulp(DType::BF16, 0.75), 2f64.powi(-8));
    for v in [1.0, 1.0 / 3.0, 1e-3, 3.1e-5, 6.1e-5, 1.9e-7, 0.999_999] {
        assert_eq!(round(DType::F16, v), f16::from_f64(v).to_f64(), "{v}");
        assert_eq!(round(DType::BF16, v), bf16::from_f64(v).to_f64(), "{v}");
    }
    // Just above a tie: two steps through f32 would round it down to even.
    assert_eq!(
        round(DType::F16, 1.0 + 2f64.powi(-11) + 2f64.powi(-40)),
        1.0 + 2f64.powi(-10)
    );
}

/// The bounds refuse what they should.
#[test]
fn bounds_refuse() {
    let refused = |dtype, got: &[f64], want: &[f64]| check_row(dtype, got, want).is_err();
    assert!(refused(DType::F32, &[0.5, 0.5 + 2e-6], &[0.5, 0.5]));
    assert!(!refused(DType::F32, &[0.5, 0.5 + 2e-7], &[0.5, 0.5]));
    assert!(refused(DType::F32, &[1.0, 0.0], &[1.0, 2e-38]));
    assert!(refused(DType::F64, &[0.5 + 1e-13, 0.5], &[0.5, 0.5]));
    assert!(refused(
        DType::F16,
        &[0.5 + 2f64.powi(-10), 0.5],
        &[0.5, 0.5]
    ));
    assert!(!refused(
        DType::F16,
        &[0.5 + 2f64.powi(-11), 0.5],
        &[0.5, 0.5]
    ));
    assert!(refused(DType::F32, &[0.0, 1.0], &[f64::NAN, 1.0]));
    assert!(refused(DType::F32, &[f64::NAN, 1.0], &[0.0, 1.0]));
    assert!(refused(DType::F32, &[-0.0, 1.0], &[0.0, 1.0]));
}
