//! The tables of widths, dtypes and values, and how a tensor is made of them.

use candle_core::{DType, Device, Result, Tensor};

/// Every dtype the operators take.
pub const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Every width a warp or a small block can meet.
pub const SHORT: std::ops::RangeInclusive<usize> = 1..=130;

/// Widths on both sides of every threshold of the plan, and some in between.
pub const LONG: [usize; 39] = [
    255, 256, 257, 511, 512, 513, 1000, 1001, 1023, 1024, 1025, 1536, 2047, 2048, 2049, 3000, 4095,
    4096, 4097, 5000, 8191, 8192, 8193, 12288, 16383, 16384, 16385, 20000, 32767, 32768, 32769,
    50257, 65536, 65537, 100003, 131072, 131073, 262144, 262145,
];

/// One width or two a kernel family: for tests whose cost is in something else.
pub const SAMPLE: [usize; 14] = [
    1, 2, 3, 7, 33, 100, 128, 257, 1000, 1031, 4099, 8200, 20001, 70001,
];

/// A tensor of these values, rounded to `dtype` on the host.
pub fn tensor(values: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    if values.is_empty() && !device.is_cpu() {
        return nothing(shape, dtype, device);
    }
    Tensor::from_slice(values, shape, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

/// An empty tensor. The CUDA driver refuses allocations of no bytes, so there it is a view, as it
/// is where programs meet one.
pub fn nothing(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    if device.is_cpu() {
        return Tensor::zeros(shape, dtype, device);
    }
    let dims: Vec<usize> = shape.iter().map(|&d| d.max(1)).collect();
    let mut x = Tensor::zeros(dims, dtype, &Device::Cpu)?.to_device(device)?;
    for dim in (0..shape.len()).filter(|&dim| shape[dim] == 0) {
        x = x.narrow(dim, 0, 0)?;
    }
    Ok(x)
}

/// Standard normal values in the given shape; the same for the same seed everywhere.
pub fn normal(seed: u64, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let mut rng = Rng::new(seed);
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.normal()).collect();
    tensor(&values, shape, dtype, device)
}

/// The largest finite number of a dtype.
pub fn max_of(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::MAX.to_f64(),
        DType::BF16 => half::bf16::MAX.to_f64(),
        DType::F32 => f32::MAX as f64,
        _ => f64::MAX,
    }
}

/// The smallest subnormal number of a dtype.
pub fn tiny_of(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_bits(1).to_f64(),
        DType::BF16 => half::bf16::from_bits(1).to_f64(),
        DType::F32 => f32::from_bits(1) as f64,
        _ => f64::from_bits(1),
    }
}

/// One finite row a distribution of values that has broken a softmax somewhere.
pub fn finite_rows(dtype: DType, cols: usize, seed: u64) -> Vec<(&'static str, Vec<f64>)> {
    let mut rng = Rng::new(seed);
    let (max, tiny, last) = (max_of(dtype), tiny_of(dtype), cols - 1);
    let mut rows = vec![];
    let mut add = |name, value: &mut dyn FnMut(usize) -> f64| {
        let row = (0..cols).map(|i| value(i).clamp(-max, max)).collect();
        rows.push((name, row));
    };
    add("normal", &mut |_| rng.normal());
    add("normal x 30", &mut |_| 30.0 * rng.normal());
    add("uniform below -20", &mut |_| -20.0 - 80.0 * rng.uniform());
    add("constant", &mut |_| -2.5);
    add("zeros", &mut |_| 0.0);
    add("ascending", &mut |i| i as f64 / 64.0);
    add("descending", &mut |i| i as f64 / -64.0);
    add("ascending by one", &mut |i| i as f64);
    add("one high, first", &mut |i| if i == 0 { 50.0 } else { 0.0 });
    add("one high, last", &mut |i| {
        if i == last {
            50.0
        } else {
            0.0
        }
    });
    add("far below the last", &mut |i| {
        if i == last {
            0.0
        } else {
            -60.0 - 20.0 * rng.uniform()
        }
    });
    add("large, far apart", &mut |i| {
        if i % 100 == 3 {
            2e6
        } else {
            -3e6
        }
    });
    add("around a million", &mut |i| 999_990.0 + (i % 21) as f64);
    add("one huge", &mut |i| if i == cols / 2 { 1e30 } else { 1.0 });
    add("one hugely low", &mut |i| {
        if i == cols / 2 {
            -1e30
        } else {
            1.0
        }
    });
    add("all 1e30", &mut |_| 1e30);
    add("all -1e30", &mut |_| -1e30);
    add("largest and lowest", &mut |i| {
        if i % 3 == 1 {
            max
        } else {
            -max
        }
    });
    add("all lowest", &mut |_| -max);
    add("subnormal", &mut |i| {
        tiny * (i % 5) as f64 * if i % 2 == 0 { 1.0 } else { -1.0 }
    });
    rows
}

/// A row-major matrix of equally long rows.
pub fn stack(rows: &[Vec<f64>]) -> Vec<f64> {
    rows.concat()
}

/// SplitMix64: small, seeded, the same numbers on every machine and crate version.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 2f64.powi(-53)
    }

    /// Box-Muller; 1 - u keeps the logarithm finite.
    pub fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}
