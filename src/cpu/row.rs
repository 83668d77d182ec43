//! The row core: one row, already in the compute type.

use super::Real;
use crate::state::{reference, OnlineState};

/// Independent accumulators, so that LLVM keeps a vector (or two) of them in registers.
const LANES: usize = 16;
/// Elements summed in the compute type before the sum moves on to f64: keeps the rounding of a row
/// of any length at that of `CHUNK / LANES` additions.
const CHUNK: usize = 1024;

/// softmax(x) in place.
pub fn softmax_row<T: Real>(row: &mut [T]) {
    let m = max(row);
    let at = reference(m);
    let mut d = 0f64;
    for chunk in row.chunks_mut(CHUNK) {
        for x in chunk.iter_mut() {
            *x = T::exp_diff(*x, at);
        }
        d += sum(chunk, |i| chunk[i]);
    }
    let state = OnlineState {
        m,
        d: T::from_f64(d),
    };
    let scale = state.normaliser();
    for x in row.iter_mut() {
        *x = *x * scale;
    }
}

/// dx = y·(g - Σ g·y), the gradient of softmax, into `y`.
pub fn softmax_backward_row<T: Real>(y: &mut [T], g: &[T]) {
    let mut s = 0f64;
    for (y, g) in y.chunks(CHUNK).zip(g.chunks(CHUNK)) {
        s += sum(y, |i| y[i] * g[i]);
    }
    let s = T::from_f64(s);
    for (y, &g) in y.iter_mut().zip(g) {
        *y = *y * (g - s);
    }
}

fn max<T: Real>(row: &[T]) -> T {
    let mut lanes = [T::NEG_INFINITY; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = lane.max(x);
        }
    }
    (rest.iter().chain(&lanes)).fold(T::NEG_INFINITY, |m, &x| m.max(x))
}

/// Sum of `term(i)` over the indices of `chunk`.
fn sum<T: Real>(chunk: &[T], term: impl Fn(usize) -> T) -> f64 {
    let mut lanes = [T::ZERO; LANES];
    let whole = chunk.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = *lane + term(start + i);
        }
    }
    let lanes: f64 = lanes.iter().map(|x| x.to_f64()).sum();
    let rest: f64 = (whole..chunk.len()).map(|i| term(i).to_f64()).sum();
    lanes + rest
}
