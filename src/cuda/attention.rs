//! Attention's softmax: from candle's storages to a launch.

use super::launch::{new_output, run_planned, with_bases, with_type};
use super::{modules, params};
use crate::ops::float_type;
use crate::plan::{plan, Access, FloatType, RowOp};
use crate::rows::{Operand, RowSpace};
use crate::scores::{gradient_rows, Band, ScoreOp, ScoreRows, ADDED, HEAD, MASK, QUERY, SCORES};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use candle_core::cuda_backend::CudaDType;
use candle_core::{bail, CudaDevice, CudaStorage, DType, Layout, Result};
use half::{bf16, f16};

/// What is done to scores, and the operands that broadcast to them.
pub struct Biases<'a> {
    pub op: ScoreOp,
    pub rows: &'a ScoreRows,
    /// Of the scores' dtype, or of what they are computed in.
    pub added: Option<&'a CudaStorage>,
    /// Of u8.
    pub mask: Option<&'a CudaStorage>,
    /// Contiguous, of what scores are computed in, one a head.
    pub slopes: Option<(&'a CudaStorage, &'a Layout)>,
    /// Likewise.
    pub sinks: Option<(&'a CudaStorage, &'a Layout)>,
}

/// The probabilities, contiguous, of f32 if `wide`; and a log-sum-exp a row, if asked for.
pub fn attention(
    op: &'static str,
    scores: &CudaStorage,
    biases: &Biases,
    wide: bool,
    wants_lse: bool,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let float = float_type(op, &[scores.dtype()])?;
    let device = scores.device();
    let (rows, cols) = (biases.rows.space.rows, biases.rows.space.cols);
    let mut lse = match (wants_lse, float) {
        (false, _) => None,
        // The kernel writes one a row; without columns there is none to run, and nothing is kept.
        (true, FloatType::F64) => Some(PerRow::F64(per_row(rows, cols, device)?)),
        (true, _) => Some(PerRow::F32(per_row(rows, cols, device)?)),
    };
    let stream = device.cuda_stream();
    let (lse_pointer, lse_guard) = match &mut lse {
        None => (0, None),
        Some(PerRow::F32(lse)) => some_guard(lse.device_ptr_mut(&stream)),
        Some(PerRow::F64(lse)) => some_guard(lse.device_ptr_mut(&stream)),
    };
    let y = with_type!(float, T => {
        let x = T::as_cuda_slice(scores)?;
        let (from, _read) = x.device_ptr(&stream);
        if wide && float.size() == 2 {
            // SAFETY: the kernel writes every element of every row, and the output has no others.
            let mut y = unsafe { new_output::<f32, 6>(op, &biases.rows.space, device) }?;
            let (to, written) = y.device_ptr_mut(&stream);
            // Of the output of halves only the strides are looked at.
            let operands = [(from, x.len()), (0, rows * cols)];
            biases.launch(op, float, operands, lse_pointer, to, device)?;
            drop(written);
            CudaStorage::wrap_cuda_slice(y, device.clone())
        } else {
            // SAFETY: as above.
            let mut y = unsafe { new_output::<T, 6>(op, &biases.rows.space, device) }?;
            let (to, written) = y.device_ptr_mut(&stream);
            let operands = [(from, x.len()), (to, rows * cols)];
            biases.launch(op, float, operands, lse_pointer, 0, device)?;
            drop(written);
            T::wrap_cuda_slice(y, device.clone())
        }
    });
    drop(lse_guard);
    let lse = lse.map(|lse| match lse {
        PerRow::F32(lse) => CudaStorage::wrap_cuda_slice(lse, device.clone()),
        PerRow::F64(lse) => CudaStorage::wrap_cuda_slice(lse, device.clone()),
    });
    Ok((y, lse))
}

/// A number a row, of what scores are computed in.
enum PerRow {
    F32(CudaSlice<f32>),
    F64(CudaSlice<f64>),
}

fn some_guard<'a>((pointer, guard): (u64, SyncOnDrop<'a>)) -> (u64, Option<SyncOnDrop<'a>>) {
    (pointer, Some(guard))
}

/// Memory for one a row, which is -inf where there are no columns to run over.
fn per_row<T: DeviceRepr + From<f32> + Clone + 'static>(
    rows: usize,
    cols: usize,
    device: &CudaDevice,
) -> Result<CudaSlice<T>> {
    match cols {
        0 => device.clone_htod(&vec![T::from(f32::NEG_INFINITY); rows.max(1)]),
        // SAFETY: the kernel writes one for every row.
        _ => unsafe { device.alloc::<T>(rows.max(1)) },
    }
}

/// The same where the scores lie.
pub fn attention_in_place(
    op: &'static str,
    scores: &mut CudaStorage,
    biases: &Biases,
) -> Result<()> {
    let float = float_type(op, &[scores.dtype()])?;
    let device = scores.device().clone();
    with_type!(float, T => {
        let x = T::as_cuda_slice_mut(scores)?;
        let len = x.len();
        let stream = device.cuda_stream();
        let (pointer, _written) = x.device_ptr_mut(&stream);
        biases.launch(op, float, [(pointer, len); 2], 0, 0, &device)
    })
}

/// scale · y·(g - Σ g·y) over the last dim, contiguous, and times what a softcap makes of it: then with the scores,
/// contiguous and of y's dtype.
pub fn attention_backward(
    op: &'static str,
    (y, y_at): (&CudaStorage, &Layout),
    (g, g_at): (&CudaStorage, &Layout),
    scores: Option<(&CudaStorage, &Layout)>,
    score_op: ScoreOp,
) -> Result<CudaStorage> {
    let float = float_type(op, &[y.dtype(), g.dtype()])?;
    let device = y.device();
    let dx_at = Layout::contiguous(y_at.shape());
    let by_query = score_op.band != Band::ALL;
    let space = gradient_rows(op, [y_at, g_at, &dx_at], scores.map(|s| s.1), by_query)?;
    with_type!(float, T => {
        let (y, g) = (T::as_cuda_slice(y)?, T::as_cuda_slice(g)?);
        let scores = scores.map(|(scores, _)| T::as_cuda_slice(scores)).transpose()?;
        space.check_within(op, &space.operands[0], y.len())?;
        space.check_within(op, &space.operands[1], g.len())?;
        if let Some(scores) = scores {
            space.check_within(op, &space.operands[3], scores.len())?;
        }
        // SAFETY: the kernel writes every element of every row, and the output has no others.
        let mut dx = unsafe { new_output::<T, 5>(op, &space, device) }?;
        let stream = device.cuda_stream();
        {
            let (to, _written) = dx.device_ptr_mut(&stream);
            let (y_pointer, _y) = y.device_ptr(&stream);
            let (g_pointer, _g) = g.device_ptr(&stream);
            let held = scores.map(|scores| (scores.device_ptr(&stream), scores.len()));
            let (added, added_len) = held.as_ref().map_or((0, 0), |((pointer, _), len)| (*pointer, *len));
            let score = params::Score {
                added_at: params::Operand::new(&space.operands[3], added_len),
                query_at: params::Operand::new(&space.operands[4], 0),
                added,
                ..score_params(score_op)
            };
            let operands = [
                (y_pointer, y.len()),
                (g_pointer, g.len()),
                (to, space.rows * space.cols),
            ];
            launch(op, RowOp::AttentionBackward, float, &space, &operands, score, device)?;
        }
        Ok(T::wrap_cuda_slice(dx, device.clone()))
    })
}

impl Biases<'_> {
    /// Scores to probabilities, each as (device pointer, elements); to f32 at `wide` of halves, if that is not 0.
    fn launch(
        &self,
        op: &'static str,
        float: FloatType,
        operands: [(u64, usize); 2],
        lse: u64,
        wide: u64,
        device: &CudaDevice,
    ) -> Result<()> {
        let space = &self.rows.space;
        let stream = device.cuda_stream();
        space.check_within(op, self.rows.operand(SCORES), operands[0].1)?;
        let compute = match float {
            FloatType::F64 => DType::F64,
            _ => DType::F32,
        };
        // Guards of what is read: dropped behind the launch, they record it.
        let mut guards = Vec::new();
        let mut added_wide = false;
        let (added, added_len) = match self.added {
            None => (0, 0),
            Some(added) => {
                added_wide = added.dtype() == compute;
                let float = float_type(op, &[added.dtype()])?;
                let (pointer, len) = with_type!(float, T => device_pointer(T::as_cuda_slice(added)?, &stream, &mut guards));
                space.check_within(op, self.rows.operand(ADDED), len)?;
                (pointer, len)
            }
        };
        let (mask, mask_len) = match self.mask {
            None => (0, 0),
            Some(mask) => {
                let (pointer, len) = device_pointer(u8::as_cuda_slice(mask)?, &stream, &mut guards);
                space.check_within(op, self.rows.operand(MASK), len)?;
                (pointer, len)
            }
        };
        let heads = self.rows.heads;
        let slopes = a_head_each(op, self.slopes, compute, heads, &stream, &mut guards)?;
        let sinks = a_head_each(op, self.sinks, compute, heads, &stream, &mut guards)?;
        let score = params::Score {
            added_at: params::Operand::new(self.rows.operand(ADDED), added_len),
            mask_at: params::Operand::new(self.rows.operand(MASK), mask_len),
            head_at: params::Operand::new(self.rows.operand(HEAD), 0),
            query_at: params::Operand::new(self.rows.operand(QUERY), 0),
            added,
            mask,
            slopes,
            sinks,
            lse,
            wide,
            added_wide: i32::from(added_wide),
            ..score_params(self.op)
        };
        let extras = self.op.softcap.is_some() || [added, mask, slopes].iter().any(|&at| at != 0);
        let row_op = match extras {
            true => RowOp::AttentionBiased,
            false => RowOp::Attention,
        };
        launch(op, row_op, float, space, &operands, score, device)
    }
}

/// The address of `x`, and its elements.
fn device_pointer<'a, T: DeviceRepr>(
    x: &'a CudaSlice<T>,
    stream: &'a CudaStream,
    guards: &mut Vec<SyncOnDrop<'a>>,
) -> (u64, usize) {
    let (pointer, guard) = x.device_ptr(stream);
    guards.push(guard);
    (pointer, x.len())
}

/// The address of `numbers`, contiguous ones of the dtype `compute` for each of `heads`; 0 for none.
fn a_head_each<'a>(
    op: &'static str,
    numbers: Option<(&'a CudaStorage, &'a Layout)>,
    compute: DType,
    heads: usize,
    stream: &'a CudaStream,
    guards: &mut Vec<SyncOnDrop<'a>>,
) -> Result<u64> {
    let Some((numbers, at)) = numbers else {
        return Ok(0);
    };
    let (pointer, len) = match compute {
        DType::F64 => device_pointer(f64::as_cuda_slice(numbers)?, stream, guards),
        _ => device_pointer(f32::as_cuda_slice(numbers)?, stream, guards),
    };
    match at.contiguous_offsets() {
        Some((start, end)) if end <= len && end - start >= heads => {
            Ok(pointer + (start * compute.size_in_bytes()) as u64)
        }
        _ => bail!("{op}: requires a contiguous number for each of {heads} heads, got {at:?}"),
    }
}

/// Without operands: all of them nowhere.
fn score_params(op: ScoreOp) -> params::Score {
    let nowhere = params::Operand::new(
        &Operand {
            offset: 0,
            row_strides: Vec::new(),
            col_stride: 0,
        },
        0,
    );
    params::Score {
        first: op.band.first,
        last: op.band.last,
        kv_offset: op.kv_offset,
        added_at: nowhere,
        mask_at: nowhere,
        head_at: nowhere,
        query_at: nowhere,
        added: 0,
        mask: 0,
        slopes: 0,
        sinks: 0,
        lse: 0,
        wide: 0,
        scale: op.scale,
        cap: op.softcap.unwrap_or(0.0),
        added_wide: 0,
        rest: 0,
    }
}

/// Rows of scores or of their gradient: the first operands of `space` are the kernel's own, the others in `score`.
fn launch<const N: usize>(
    op: &'static str,
    row_op: RowOp,
    float: FloatType,
    space: &RowSpace<N>,
    operands: &[(u64, usize)],
    score: params::Score,
    device: &CudaDevice,
) -> Result<()> {
    if space.is_empty() {
        return Ok(());
    }
    let limits = modules::limits(device)?;
    let own = &space.operands[..operands.len()];
    let access = if own.iter().any(|o| o.col_stride != 1) {
        Access::Strided
    } else if own.iter().all(|o| o.is_vector_aligned(float.size())) {
        with_bases(Access::Aligned, operands)
    } else {
        Access::Unaligned
    };
    let plan = plan(row_op, float, space.cols, access, &limits);
    let at: Vec<_> = (own.iter().zip(operands))
        .map(|(operand, &(_, len))| params::Operand::new(operand, len))
        .collect();
    let pointers: Vec<u64> = operands.iter().map(|(pointer, _)| *pointer).collect();
    // SAFETY: the arguments are those of kernels/table.cuh for this op and element type, in their order. Every row of every
    // operand lies in its storage (checked above, or it is the new output); those of `score` are read within the columns
    // only, at row offsets of the same space. The plan's threads cover the columns (tested in src/plan/tests.rs).
    unsafe {
        run_planned(
            op,
            &plan,
            space,
            &limits,
            &at,
            Some(&score),
            &pointers,
            device,
        )
    }
}
