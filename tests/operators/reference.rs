//! The plain f64 reference: maximum, exponentials, sum, quotient. Written to be read.

/// Softmax of one row, by the contract's table: a NaN, a +inf, or nothing but -inf gives NaN.
pub fn softmax_row(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, nan_max);
    if !max.is_finite() {
        return vec![f64::NAN; x.len()];
    }
    let e: Vec<f64> = x.iter().map(|&v| exp_of_difference(v, max)).collect();
    let total = exact_sum(e.iter().copied());
    e.iter().map(|v| v / total).collect()
}

/// Softmax of every row of `cols` numbers.
pub fn softmax(x: &[f64], cols: usize) -> Vec<f64> {
    per_row(x, cols, softmax_row)
}

/// `y * (g - sum(g * y))`: the gradient of one row, given its softmax and the incoming gradient.
pub fn gradient_row(y: &[f64], g: &[f64]) -> Vec<f64> {
    let dot = exact_sum(y.iter().zip(g).map(|(y, g)| y * g));
    y.iter().zip(g).map(|(y, g)| y * (g - dot)).collect()
}

/// The gradient of every row of `cols` numbers.
pub fn gradient(y: &[f64], g: &[f64], cols: usize) -> Vec<f64> {
    if cols == 0 {
        return vec![];
    }
    let rows = y.chunks(cols).zip(g.chunks(cols));
    rows.flat_map(|(y, g)| gradient_row(y, g)).collect()
}

/// Applies `f` to the rows along dimension `dim` of a row-major tensor.
pub fn along_dim(
    x: &[f64],
    shape: &[usize],
    dim: usize,
    f: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<f64> {
    let len = shape[dim];
    let inner: usize = shape[dim + 1..].iter().product();
    let mut out = vec![0.0; x.len()];
    let outer = if x.is_empty() {
        0
    } else {
        x.len() / (len * inner)
    };
    for first in (0..outer).flat_map(|o| (0..inner).map(move |i| o * len * inner + i)) {
        let row: Vec<f64> = (0..len).map(|k| x[first + k * inner]).collect();
        for (k, v) in f(&row).into_iter().enumerate() {
            out[first + k * inner] = v;
        }
    }
    out
}

fn per_row(x: &[f64], cols: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    if cols == 0 {
        return vec![];
    }
    x.chunks(cols).flat_map(f).collect()
}

fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// `exp(x - max)`, with what the subtraction rounds away put back: at a difference of 700 that
/// is 6e-14 of the result, as much as the f64 bound.
fn exp_of_difference(x: f64, max: f64) -> f64 {
    let d = x - max;
    if d < -800.0 {
        return 0.0; // also -inf, whose lost part would be NaN
    }
    let b = d - x; // Knuth's two-sum of x and -max
    let lost = (x - (d - b)) + (-max - b);
    d.exp() * (1.0 + lost)
}

/// Neumaier's sum: right to the last bits for a quarter of a million terms.
fn exact_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0f64);
    for v in terms {
        let t = sum + v;
        lost += if sum.abs() >= v.abs() {
            (sum - t) + v
        } else {
            (v - t) + sum
        };
        sum = t;
    }
    if sum.is_finite() {
        sum + lost
    } else {
        sum
    }
}

#[test]
fn reference_by_hand() {
    let y = softmax_row(&[0.0, 3f64.ln()]);
    assert!((y[0] - 0.25).abs() < 1e-16 && (y[1] - 0.75).abs() < 1e-15);
    assert!(softmax_row(&[f64::NEG_INFINITY; 3])
        .iter()
        .all(|v| v.is_nan()));
    assert!(softmax_row(&[0.0, f64::INFINITY])
        .iter()
        .all(|v| v.is_nan()));
    assert!(softmax_row(&[0.0, f64::NAN]).iter().all(|v| v.is_nan()));
    assert_eq!(softmax_row(&[f64::NEG_INFINITY, 2.0]), [0.0, 1.0]);
    assert_eq!(gradient_row(&[0.5, 0.5], &[1.0, 3.0]), [-0.5, 0.5]);
    let x = [0.0, 1.0, 0.0, 2.0];
    let by_columns = along_dim(&x, &[2, 2], 0, softmax_row);
    assert_eq!(by_columns[0], 0.5);
    assert_eq!(by_columns[3], softmax_row(&[1.0, 2.0])[1]);
}

/// What a difference rounds away is put back with the right sign.
#[test]
fn reference_keeps_lost_bits() {
    let (x, max) = (0.1f64, 700.0f64);
    // 0.1 - 700 in f64 is off by the bits of 0.1 below 2^-43.
    let d = x - max;
    let exact_lost = 0.1 - (d + 700.0); // both exact: 700 + d is 0.1 rounded to 2^-43
    let want = d.exp() * (1.0 + exact_lost);
    assert!(exact_lost != 0.0);
    assert_eq!(exp_of_difference(x, max), want);
}
