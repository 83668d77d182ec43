//! The learning rate over a run.

/// Of the peak, where the cosine ends.
const FLOOR: f64 = 0.05;

/// Rises evenly to `peak` over `warmup` steps, then falls along half a cosine to a twentieth of it
/// at the last of `steps`. `step` counts from 0.
pub fn learning_rate(step: usize, steps: usize, warmup: usize, peak: f64) -> f64 {
    if step < warmup {
        return peak * (step + 1) as f64 / warmup as f64;
    }
    let past = (step - warmup) as f64 / (steps - warmup).max(1) as f64;
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * past.min(1.0)).cos());
    peak * (FLOOR + (1.0 - FLOOR) * cosine)
}
