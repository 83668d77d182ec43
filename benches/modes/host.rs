//! `BENCH_HOST=1`: what a call costs the host. Rows so small that the device is done before the next launch comes; calls
//! back to back, synchronised once a round. And what the first call costs more, which loads the kernels.

use anyhow::{ensure, Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_online_softmax::OnlineSoftmax;
use std::time::Instant;

/// Calls a round: launches and frees that fit the launch queue (1024), else the host would wait for the device.
const CALLS: usize = 400;
const ROUNDS: usize = 31;

type Call = (&'static str, fn(&Tensor) -> Result<Tensor>);
const PEERS: [Call; 3] = [
    ("ours", |x| Ok(x.apply_op1(OnlineSoftmax)?)),
    ("ours_inplace", |x| {
        x.inplace_op1(&OnlineSoftmax)?;
        Ok(x.clone())
    }),
    ("candle", |x| Ok(candle_nn::ops::softmax_last_dim(x)?)),
];

/// Whether all outputs were right.
pub fn run() -> Result<bool> {
    // As candle opens it: its events are tracked, as in any program.
    let device = Device::new_cuda(0).context("no CUDA device")?;
    let name = device.as_cuda_device()?.cuda_stream().context().name()?;
    println!("{name}\n\nfirst and second call, ms, synchronised:");
    // Rows of a warp, of a block, and too long for registers: one module each. candle's last: it has one module.
    for (peer, cols) in [(0, 128), (0, 4096), (0, 131072), (2, 128)] {
        let (peer, call) = PEERS[peer];
        let x = Tensor::ones((1, cols), DType::F32, &device)?;
        let [first, second] = [timed(&device, call, &x)?, timed(&device, call, &x)?];
        println!("  {peer:<8} 1x{cols:<8} {first:>9.3} {second:>9.3}");
    }

    println!("\nus a call, {CALLS} calls of 1x128 back to back, median of {ROUNDS} rounds:");
    println!("{:<16}{:>10}{:>14}", "", "returned", "synchronised");
    for dtype in [DType::F32, DType::BF16] {
        let x = Tensor::ones((1, 128), dtype, &device)?;
        let mut times = [const { (Vec::new(), Vec::new()) }; PEERS.len()];
        // Peers by turns, so that a drift of the machine meets all of them; the first round warms up.
        for round in 0..=ROUNDS {
            for ((_, call), (returned, synchronised)) in PEERS.iter().zip(&mut times) {
                device.synchronize()?;
                let start = Instant::now();
                for _ in 0..CALLS {
                    call(&x)?;
                }
                let host = start.elapsed().as_secs_f64();
                device.synchronize()?;
                if round > 0 {
                    returned.push(host);
                    synchronised.push(start.elapsed().as_secs_f64());
                }
            }
        }
        for ((peer, _), (returned, synchronised)) in PEERS.iter().zip(&mut times) {
            let name = format!("{peer} {}", dtype.as_str());
            let (returned, synchronised) = (us_a_call(returned), us_a_call(synchronised));
            println!("{name:<16}{returned:>10.2}{synchronised:>14.2}");
        }
    }
    Ok(true)
}

/// Milliseconds of one call, checked: a row of equal numbers is uniform.
fn timed(device: &Device, call: fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    let y = call(x)?;
    device.synchronize()?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let (y, want) = (
        y.flatten_all()?.to_vec1::<f32>()?,
        1. / x.elem_count() as f32,
    );
    let right = y.iter().all(|y| (y - want).abs() <= 1e-5 * want);
    ensure!(right, "wrong softmax of {} ones", x.elem_count());
    Ok(ms)
}

fn us_a_call(rounds: &mut [f64]) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2] / CALLS as f64 * 1e6
}
