//! A CUDA graph captured around the operator replays with right results on new inputs.
#![cfg(feature = "cuda")]

use crate::compare::assert_same_bits;
use crate::devices::on_cuda;
use crate::inputs::{normal, DTYPES};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::{CustomOp1, DType, Device, Result, Tensor};
use candle_online_softmax::OnlineSoftmax;

/// Short, middle and long rows, with starts on and off 16 bytes.
const SHAPES: [(usize, usize, usize); 12] = [
    (5, 7, 0),
    (33, 64, 0),
    (33, 64, 1),
    (7, 1000, 3),
    (4, 1024, 0),
    (3, 4099, 1),
    (3, 8192, 0),
    (2, 20001, 5),
    (2, 131_072, 0),
    (3, 300_001, 1),
    (3, 524_288, 0),
    (1, 4_000_001, 0),
];

/// A device with a stream of its own, whose tensors carry no events: waiting in a capture on an
/// event recorded before it is an error.
fn device_for_capture() -> Result<Device> {
    let device = Device::new_cuda_with_stream(0)?;
    // SAFETY: every tensor of this device is used on its one stream only.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(device)
}

fn cases() -> impl Iterator<Item = (DType, (usize, usize, usize))> {
    DTYPES.into_iter().flat_map(|d| SHAPES.map(|s| (d, s)))
}

fn message(error: impl std::fmt::Debug) -> candle_core::Error {
    candle_core::Error::Msg(format!("{error:?}"))
}

/// Captures what `work` does. It must drop what it allocates, so that the graph frees it too.
fn capture(device: &Device, work: impl Fn() -> Result<()>) -> Result<CudaGraph> {
    work()?; // loads the modules, which no capture allows
    device.synchronize()?;
    let stream = device.as_cuda_device()?.cuda_stream();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(message)?;
    let result = work();
    let graph = stream
        .end_capture(CUgraphInstantiate_flags(0))
        .map_err(message);
    result?;
    graph?.ok_or_else(|| message("an empty graph"))
}

/// A buffer of `rows * cols` elements, `offset` elements into its allocation.
fn buffer(
    (rows, cols, offset): (usize, usize, usize),
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let base = Tensor::zeros(rows * cols + offset, dtype, device)?;
    let view = base.narrow(0, offset, rows * cols)?.reshape((rows, cols))?;
    Ok((base, view))
}

/// Writes new values into the buffer behind a view.
fn refill(base: &Tensor, seed: u64) -> Result<()> {
    base.slice_set(
        &normal(seed, base.dims(), base.dtype(), base.device())?,
        0,
        0,
    )
}

#[test]
fn forward_replays() -> Result<()> {
    on_cuda("graph::forward_replays", |_| {
        let _alone = crate::devices::alone();
        let device = device_for_capture()?;
        for (dtype, shape) in cases() {
            let (base, x) = buffer(shape, dtype, &device)?;
            let out = x.zeros_like()?;
            let graph = capture(&device, || {
                out.slice_set(&x.apply_op1(OnlineSoftmax)?, 0, 0)
            })?;
            for seed in 1..4 {
                refill(&base, seed)?;
                graph.launch().map_err(message)?;
                device.synchronize()?;
                let what = format!("replay {seed} of {shape:?}, {dtype:?}");
                crate::accuracy::check(&x, &what)?;
                assert_same_bits(&out, &x.apply_op1(OnlineSoftmax)?, &what)?;
            }
        }
        Ok(())
    })
}

#[test]
fn in_place_replays() -> Result<()> {
    on_cuda("graph::in_place_replays", |_| {
        let _alone = crate::devices::alone();
        let device = device_for_capture()?;
        for (dtype, shape) in cases() {
            let (base, x) = buffer(shape, dtype, &device)?;
            let graph = capture(&device, || x.inplace_op1(&OnlineSoftmax))?;
            for seed in 1..4 {
                refill(&base, seed)?;
                let want = x.apply_op1(OnlineSoftmax)?;
                graph.launch().map_err(message)?;
                device.synchronize()?;
                assert_same_bits(&x, &want, &format!("replay {seed} of {shape:?}, {dtype:?}"))?;
            }
        }
        Ok(())
    })
}

#[test]
fn backward_replays() -> Result<()> {
    on_cuda("graph::backward_replays", |_| {
        let _alone = crate::devices::alone();
        let device = device_for_capture()?;
        for (dtype, shape) in cases() {
            let (base_y, y) = buffer(shape, dtype, &device)?;
            let (base_g, g) = buffer(shape, dtype, &device)?;
            let out = y.zeros_like()?;
            let gradient = || Ok(OnlineSoftmax.bwd(&y, &y, &g)?.expect("a gradient"));
            let graph = capture(&device, || out.slice_set(&gradient()?, 0, 0))?;
            for seed in 1..4 {
                refill(&base_y, seed)?;
                refill(&base_g, seed + 100)?;
                graph.launch().map_err(message)?;
                device.synchronize()?;
                let want: Result<Tensor> = gradient();
                assert_same_bits(
                    &out,
                    &want?,
                    &format!("replay {seed} of {shape:?}, {dtype:?}"),
                )?;
            }
        }
        Ok(())
    })
}
