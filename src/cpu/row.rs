//! The row core: one row, in the compute type.

use super::simd::{dispatch, Kernel};
use super::Real;
use crate::state::{OnlineState, Reference};

/// Independent accumulators: one 512-bit vector of f32, so that LLVM keeps them in registers.
const LANES: usize = 16;
/// Elements summed in the compute type before the sum moves on to a [`Sum`]: keeps the rounding of a row
/// of any length at that of `CHUNK / LANES` additions.
const CHUNK: usize = 1024;

/// y = softmax(x).
pub fn softmax_row<T: Real>(x: &[T], y: &mut [T]) {
    dispatch(Softmax { x: Some(x), y })
}

/// softmax(x) where x lies; the same bits.
pub fn softmax_row_in_place<T: Real>(x: &mut [T]) {
    dispatch(Softmax { x: None, y: x })
}

/// dx = y·(g - Σ g·y), the gradient of softmax.
pub fn softmax_backward_row<T: Real>(y: &[T], g: &[T], dx: &mut [T]) {
    dispatch(SoftmaxBackward { y, g, dx })
}

/// `x`: none where `y` holds it.
struct Softmax<'a, T> {
    x: Option<&'a [T]>,
    y: &'a mut [T],
}

impl<T: Real> Kernel for Softmax<'_, T> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let m = max(self.x.unwrap_or(self.y));
        let at = Reference::new(m);
        let mut d = Sum::default();
        for (i, y) in self.y.chunks_mut(CHUNK).enumerate() {
            match self.x {
                Some(x) => {
                    for (y, &x) in y.iter_mut().zip(&x[i * CHUNK..]) {
                        *y = at.exp::<FMA>(x);
                    }
                }
                None => {
                    for y in y.iter_mut() {
                        *y = at.exp::<FMA>(*y);
                    }
                }
            }
            d.add(sum(y));
        }
        let d = T::from_f64(d.total());
        let scale = OnlineState { m, d }.normaliser();
        for y in self.y.iter_mut() {
            *y = *y * scale;
        }
    }
}

struct SoftmaxBackward<'a, T> {
    y: &'a [T],
    g: &'a [T],
    dx: &'a mut [T],
}

impl<T: Real> Kernel for SoftmaxBackward<'_, T> {
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let mut s = Sum::default();
        for (y, g) in self.y.chunks(CHUNK).zip(self.g.chunks(CHUNK)) {
            s.add(dot::<T, FMA>(y, g));
        }
        let s = T::from_f64(s.total());
        for ((dx, &y), &g) in self.dx.iter_mut().zip(self.y).zip(self.g) {
            *dx = y * (g - s);
        }
    }
}

/// The sum of chunks, as if in twice the precision (Neumaier): a sum of 2^14 chunks in f64 alone was off
/// by 3e-13.
#[derive(Default)]
struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    #[inline(always)]
    fn add(&mut self, x: f64) {
        let sum = self.high + x;
        let of_x = sum - self.high;
        self.low += (self.high - (sum - of_x)) + (x - of_x);
        self.high = sum;
    }

    /// An infinite or NaN sum has no low part.
    #[inline(always)]
    fn total(&self) -> f64 {
        if self.low.is_nan() {
            self.high
        } else {
            self.high + self.low
        }
    }
}

#[inline(always)]
fn max<T: Real>(row: &[T]) -> T {
    let mut lanes = [T::NEG_INFINITY; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.max(x);
        }
    }
    let rest = rest.iter().fold(T::NEG_INFINITY, |m, &x| m.max(x));
    fold(lanes, T::max).max(rest)
}

#[inline(always)]
fn sum<T: Real>(chunk: &[T]) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    let (whole, rest) = chunk.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = *lane + x;
        }
    }
    let rest: f64 = rest.iter().map(|x| x.to_f64()).sum();
    fold(lanes.map(T::to_f64), |a, b| a + b) + rest
}

#[inline(always)]
fn dot<T: Real, const FMA: bool>(a: &[T], b: &[T]) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add::<FMA>(b, *lane);
        }
    }
    let rest = rest_a.iter().zip(rest_b);
    let rest: f64 = rest.map(|(a, b)| a.to_f64() * b.to_f64()).sum();
    fold(lanes.map(T::to_f64), |a, b| a + b) + rest
}

/// All lanes by halves: log2 steps, where one after the other would cost a short row more than its
/// exponentials.
#[inline(always)]
fn fold<T: Copy>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}
