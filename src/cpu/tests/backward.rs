//! The gradients of the softmax where scores are masked, and of the softcap.

use super::attention::Float;
use super::{forced, levels, numbers, SHAPES};
use crate::cpu::{map_rows, softcap_backward, Element, Real, SoftmaxBackward};
use crate::rows::RowSpace;
use candle_core::{Layout, Result};
use half::{bf16, f16};

fn gradient<T: Float>(
    [y, g]: [&[T]; 2],
    (outer, cols, inner): (usize, usize, usize),
    op: SoftmaxBackward,
) -> Result<Vec<T>> {
    let layout = Layout::contiguous((outer, cols, inner));
    let space = RowSpace::new("op", [&layout, &layout], 1)?;
    map_rows("op", &space, [y, g], inner, op)
}

/// Finite numbers.
fn tame<T: Float>(seed: u64, len: usize) -> Vec<T> {
    let all = numbers(seed, len, |x| if x.is_finite() { x } else { 0.25 });
    all.into_iter().map(T::of).collect()
}

fn is_zero<T: Element>(x: T) -> bool {
    x.widen() == T::Compute::ZERO
}

#[test]
fn scale_is_a_factor() -> Result<()> {
    for shape in SHAPES {
        let len = shape.0 * shape.1 * shape.2;
        let (y, g) = (tame::<f32>(1, len), tame::<f32>(2, len));
        let once = gradient([&y, &g], shape, SoftmaxBackward::new(1.0, false))?;
        for (scale, masked) in [(0.25, false), (-4.0, false), (0.25, true), (1.0, true)] {
            let dx = gradient([&y, &g], shape, SoftmaxBackward::new(scale, masked))?;
            // A power of two: no rounding.
            let want: Vec<f32> = once.iter().map(|x| x * scale).collect();
            assert_eq!(dx, want, "{shape:?} {scale} {masked}");
        }
    }
    Ok(())
}

#[test]
fn masked_gradients_are_not_looked_at() -> Result<()> {
    fn check<T: Float>() -> Result<()> {
        for shape in SHAPES {
            let len = shape.0 * shape.1 * shape.2;
            let (mut y, mut g) = (tame::<T>(1, len), tame::<T>(2, len));
            y.iter_mut().step_by(3).for_each(|y| *y = T::of(0.0));
            g.iter_mut().step_by(3).for_each(|g| *g = T::of(0.0));
            let op = SoftmaxBackward::new(0.3, true);
            let want = gradient([&y, &g], shape, op)?;
            for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0] {
                g.iter_mut().step_by(3).for_each(|g| *g = T::of(x));
                for level in levels() {
                    let dx = forced::at(level, || gradient([&y, &g], shape, op))?;
                    let same = dx.iter().zip(&want).all(|(a, b)| a.bits() == b.bits());
                    assert!(same, "{shape:?} {x} {level:?}");
                    assert!(dx.iter().step_by(3).all(|dx| dx.bits() == 0), "+0");
                }
            }
            // What is kept still counts.
            if let Some(at) = y.iter().position(|&y| !is_zero(y)) {
                g[at] = T::of(f64::NAN);
                let dx = gradient([&y, &g], shape, op)?;
                assert!(dx[at].widen().is_nan());
                assert!(dx.iter().step_by(3).all(|dx| dx.bits() == 0), "+0");
                // Nor is a NaN among what is not masked lost, as before.
                y[at] = T::of(0.0);
                let dx = gradient([&y, &g], shape, SoftmaxBackward::new(1.0, false))?;
                assert!(dx[at].widen().is_nan());
            }
        }
        Ok(())
    }
    check::<f32>()?;
    check::<f64>()?;
    check::<f16>()?;
    check::<bf16>()
}

#[test]
fn softcap_gradients() -> Result<()> {
    fn check<T: Float>(bound: f64) -> Result<()> {
        let (scale, cap) = (0.3f32, 2.5f32);
        for len in [0, 1, 7, 1000, 200_001] {
            let (mut u, mut s) = (tame::<T>(1, len), tame::<T>(2, len));
            u.iter_mut().step_by(5).for_each(|u| *u = T::of(0.0));
            s.iter_mut().step_by(10).for_each(|s| *s = T::of(f64::NAN));
            let dx = softcap_backward("op", &u, &s, scale, cap)?;
            assert_eq!(dx.len(), len);
            for ((u, s), dx) in u.iter().zip(&s).zip(&dx) {
                let got = dx.widen().to_f64();
                if is_zero(*u) {
                    assert_eq!(dx.bits(), 0);
                    continue;
                }
                let x = s.widen().to_f64() * f64::from(scale) / f64::from(cap);
                let want = f64::from(scale) * u.widen().to_f64() / x.cosh().powi(2);
                // Below their normal range halves are off by more.
                let small = if bound > 1e-4 { 6e-8 } else { 0.0 };
                let most = bound * (1.0 + x.abs()) * want.abs() + small;
                assert!((got - want).abs() <= most, "{got} not {want}");
            }
            for level in levels() {
                let again = forced::at(level, || softcap_backward("op", &u, &s, scale, cap))?;
                assert!(again.iter().zip(&dx).all(|(a, b)| a.bits() == b.bits()));
            }
        }
        Ok(())
    }
    check::<f32>(1e-6)?;
    check::<f64>(1e-14)?;
    check::<f16>(1.0 / 1024.0)?;
    check::<bf16>(1.0 / 128.0)?;
    assert!(softcap_backward("op", &[0f32; 2], &[0f32; 3], 1.0, 1.0).is_err());
    Ok(())
}
