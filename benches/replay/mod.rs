//! Times launches by replaying them from one CUDA graph, with candle's allocations taken out.
//!
//! Back to back inside a graph no host call sits between the launches: what is left is the device's time. A candle
//! operator allocates its output, so a capture of it holds an allocation node before every kernel. [`Replay::capture`]
//! runs that graph once (which makes the outputs exist), then builds a second graph of the kernels, copies and fills
//! alone, on the same addresses. An operator that frees scratch memory cannot be replayed so: it is timed with its
//! allocations, and [`Replay::method`] says it.
//!
//! This crate's kernels overlap the end of the launch before them (programmatic dependent launch): on a stream by an
//! attribute of the launch, in the second graph by edges that say the same, [`Edges::Overlap`]. Needs CUDA 12.3.

use anyhow::{bail, ensure, Context, Result};
use candle_core::{CudaDevice, Device, Tensor};
use cudarc::driver::{result, sys, CudaGraph, CudaStream};
use std::{mem::MaybeUninit, ptr, sync::Arc, time::Instant};

/// Seconds of replay for one figure, and the longest that one replay may take: a launch so slow that fewer than K of
/// them fill it is far from any cache effect, and gets fewer.
const BUDGET: f64 = 0.025;
const LONGEST: f64 = 0.060;

/// The first GPU, for captures: events are not tracked, since none may be recorded inside a capture and waited for
/// outside. Everything runs on the device's one stream.
pub struct Gpu {
    pub device: Device,
    pub cuda: CudaDevice,
    l2: usize,
}

impl Gpu {
    /// Opens it, and prints what it is.
    pub fn open() -> Result<Self> {
        let device = Device::new_cuda(0).context("no CUDA device")?;
        let cuda = device.as_cuda_device()?.clone();
        unsafe { cuda.disable_event_tracking() };
        let context = cuda.cuda_stream().context().clone();
        let l2 = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        let l2 = context.attribute(l2)? as usize;
        println!("{}, L2 {} MiB", context.name()?, l2 >> 20);
        Ok(Self { device, cuda, l2 })
    }

    /// K: how many pairs of tensors of `bytes` each come to 4 times the L2; 2 to 512.
    pub fn pairs(&self, bytes: usize) -> usize {
        (4 * self.l2).div_ceil(2 * bytes).clamp(2, 512)
    }
}

/// What a launch waits for.
#[derive(Clone, Copy, PartialEq)]
pub enum Edges {
    /// Of a kernel before it, only where it says so: as this crate launches its own.
    Overlap,
    /// For all of the launch before it.
    Apart,
}

impl Edges {
    /// Those of a peer of that name.
    pub fn of(peer: &str) -> Self {
        match peer {
            "ours" | "ours_inplace" | "ours_backward" => Self::Overlap,
            _ => Self::Apart,
        }
    }
}

/// A graph of the launches, and the outputs it writes.
pub struct Replay {
    stream: Arc<CudaStream>,
    /// Owns the kernels' argument blocks and the memory behind `outputs`.
    captured: CudaGraph,
    bare: Option<(sys::CUgraph, sys::CUgraphExec)>,
    outputs: Vec<Tensor>,
}

impl Replay {
    /// Captures `launch(0) .. launch(n - 1)`, which must have run before (modules load at a first call).
    pub fn capture(
        device: &CudaDevice,
        n: usize,
        edges: Edges,
        launch: &dyn Fn(usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        stream.synchronize()?;
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let outputs = (0..n).map(launch).collect::<Result<Vec<_>>>();
        // Ended before the error is looked at: a stream left in capture takes every later cell down with it.
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let captured = stream.end_capture(flags);
        let outputs = outputs.context("while capturing")?;
        let captured = captured?.context("nothing was captured")?;
        captured.launch()?;
        stream.synchronize()?;
        let bare = unsafe { without_allocations(&captured, edges, &stream) }?;
        let replay = Self {
            stream,
            captured,
            bare,
            outputs,
        };
        replay.seconds()?;
        Ok(replay)
    }

    /// Captures as many launches as `LONGEST` allows, 2 to `most`, each of which gets its number.
    pub fn fitting(
        device: &CudaDevice,
        most: usize,
        edges: Edges,
        launch: &dyn Fn(usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let stream = device.cuda_stream();
        launch(0)?;
        stream.synchronize()?;
        let start = Instant::now();
        launch(0)?;
        stream.synchronize()?;
        let fit = (LONGEST / start.elapsed().as_secs_f64()) as usize;
        Self::capture(device, fit.clamp(2, most.max(2)), edges, launch)
    }

    /// Microseconds a launch: the median of as many replays as fit `BUDGET`, but 5 to 60, over the number of launches.
    pub fn us(&self) -> Result<f64> {
        let first = self.seconds()?;
        Ok(median_within_budget(first, || self.seconds())? / self.outputs.len() as f64 * 1e6)
    }

    /// Seconds that one replay takes, by events around it.
    pub fn seconds(&self) -> Result<f64> {
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let exec = self.bare.map_or(self.captured.cu_graph_exec(), |b| b.1);
        let start = self.stream.record_event(timed)?;
        unsafe { result::graph::launch(exec, self.stream.cu_stream()) }?;
        let end = self.stream.record_event(timed)?;
        Ok(start.elapsed_ms(&end)? as f64 * 1e-3)
    }

    /// What was timed, for the report.
    pub fn method(&self) -> &'static str {
        match self.bare {
            Some(_) => "graph",
            None => "graph with allocations",
        }
    }

    /// How many launches there are.
    pub fn launches(&self) -> usize {
        self.outputs.len()
    }

    /// The output of the last launch.
    pub fn last(&self) -> &Tensor {
        &self.outputs[self.outputs.len() - 1]
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        // An error here has no one to go to, and the process is a benchmark.
        unsafe {
            if let Some((graph, exec)) = self.bare.take() {
                let _ = result::graph::exec_destroy(exec);
                let _ = result::graph::destroy(graph);
            }
            self.outputs.clear();
            let _ = self.stream.synchronize();
            let _ = sys::cuDeviceGraphMemTrim(self.stream.context().cu_device());
        }
    }
}

/// Microseconds a call of `call(0) .. call(n - 1)`, made back to back and each output dropped at once: median of rounds.
/// Where the host is slower than the device, this is the host's time. For operators of several kernels, whose
/// intermediate tensors a replay would have to keep.
pub fn us_a_call(
    device: &CudaDevice,
    n: usize,
    call: &dyn Fn(usize) -> Result<Tensor>,
) -> Result<f64> {
    let stream = device.cuda_stream();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let round = || -> Result<f64> {
        stream.synchronize()?;
        let start = stream.record_event(timed)?;
        for i in 0..n {
            call(i)?;
        }
        let end = stream.record_event(timed)?;
        Ok(start.elapsed_ms(&end)? as f64 * 1e-3)
    };
    round()?; // modules load at a first call
    Ok(median_within_budget(round()?, round)? / n as f64 * 1e6)
}

fn median_within_budget(first: f64, mut again: impl FnMut() -> Result<f64>) -> Result<f64> {
    let reps = (BUDGET / first.max(1e-6)).clamp(5., 60.) as usize;
    let mut times = (0..reps).map(|_| again()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[reps / 2])
}

/// A copy of `captured`, which has been launched once, less its allocation nodes, as one chain; none if it frees memory.
unsafe fn without_allocations(
    captured: &CudaGraph,
    edges: Edges,
    stream: &CudaStream,
) -> Result<Option<(sys::CUgraph, sys::CUgraphExec)>> {
    use sys::CUgraphNodeType::*;
    let ctx = stream.context().cu_ctx();
    let mut count = 0;
    sys::cuGraphGetNodes(captured.cu_graph(), ptr::null_mut(), &mut count).result()?;
    let mut nodes = vec![ptr::null_mut(); count];
    sys::cuGraphGetNodes(captured.cu_graph(), nodes.as_mut_ptr(), &mut count).result()?;
    let mut kinds = Vec::with_capacity(count);
    for &node in &nodes {
        let mut kind = MaybeUninit::uninit();
        sys::cuGraphNodeGetType(node, kind.as_mut_ptr()).result()?;
        kinds.push(kind.assume_init());
    }
    if kinds.contains(&CU_GRAPH_NODE_TYPE_MEM_FREE) {
        return Ok(None);
    }
    let mut graph = ptr::null_mut();
    sys::cuGraphCreate(&mut graph, 0).result()?;
    // Nodes come in the order of their capture, which is the stream's.
    let mut previous: Option<(sys::CUgraphNode, sys::CUgraphNodeType)> = None;
    for (node, kind) in nodes.into_iter().zip(kinds) {
        let (after, count) = previous
            .as_ref()
            .map_or((ptr::null(), 0), |(p, _)| (p as *const _, 1));
        let mut new = ptr::null_mut();
        match kind {
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => continue,
            CU_GRAPH_NODE_TYPE_KERNEL => {
                let mut p = MaybeUninit::uninit();
                sys::cuGraphKernelNodeGetParams_v2(node, p.as_mut_ptr()).result()?;
                let after_kernel =
                    previous.is_some_and(|(_, kind)| kind == CU_GRAPH_NODE_TYPE_KERNEL);
                let overlaps = edges == Edges::Overlap && after_kernel;
                let count = if overlaps { 0 } else { count };
                sys::cuGraphAddKernelNode_v2(&mut new, graph, after, count, p.as_ptr()).result()?;
                sys::cuGraphKernelNodeCopyAttributes(new, node).result()?;
                if overlaps {
                    // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
                    let edge = sys::CUgraphEdgeData {
                        from_port: 1,
                        to_port: 0,
                        type_: 1,
                        reserved: [0; 5],
                    };
                    sys::cuGraphAddDependencies_v2(graph, after, &new, &edge, 1).result()?;
                }
            }
            CU_GRAPH_NODE_TYPE_MEMCPY => {
                let mut p = MaybeUninit::uninit();
                sys::cuGraphMemcpyNodeGetParams(node, p.as_mut_ptr()).result()?;
                sys::cuGraphAddMemcpyNode(&mut new, graph, after, count, p.as_ptr(), ctx)
                    .result()?;
            }
            CU_GRAPH_NODE_TYPE_MEMSET => {
                let mut p = MaybeUninit::uninit();
                sys::cuGraphMemsetNodeGetParams(node, p.as_mut_ptr()).result()?;
                sys::cuGraphAddMemsetNode(&mut new, graph, after, count, p.as_ptr(), ctx)
                    .result()?;
            }
            other => bail!("unexpected node in the capture: {other:?}"),
        }
        previous = Some((new, kind));
    }
    ensure!(
        previous.is_some(),
        "the capture holds no kernel, copy or fill"
    );
    let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags_enum(0))?;
    Ok(Some((graph, exec)))
}
