//! [`AttentionSoftmax`](super::AttentionSoftmax) as candle sees it: an operator of one to three tensors that gradients flow to
//! (scores, what is added to them, sinks), which holds the rest.

use super::attention::NAME;
use super::attention_backward;
use super::dispatch::{check_distinct, dtype_error, map_float_mut, metal_unsupported};
use crate::cpu::{self, Biases};
use crate::scores::{ScoreOp, ScoreRows};
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    bail, CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, InplaceOp1, InplaceOp2, InplaceOp3,
    Layout, MetalStorage, Result, Shape, Storage, StorageRef, Tensor,
};
use std::sync::{Arc, OnceLock};

/// Where a call leaves each row's log-sum-exp.
pub(super) type Lse = Arc<OnceLock<Tensor>>;

/// What the second tensor is, where there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    Added,
    Sinks,
}

/// One call's operator. Its tensors have been checked.
#[derive(Debug)]
pub(super) struct AttentionOp {
    pub(super) op: ScoreOp,
    /// Of u8.
    pub(super) mask: Option<Tensor>,
    /// Contiguous, of the compute dtype, one a head.
    pub(super) slopes: Option<Tensor>,
    pub(super) second: Second,
    /// Dtype of the result.
    pub(super) out: DType,
    pub(super) lse: Option<Lse>,
}

/// A storage and how its elements lie.
type At<'a, S> = (&'a S, &'a Layout);

impl AttentionOp {
    /// What the tensor that stands second is: (added, sinks).
    fn sort<T>(&self, second: T) -> (Option<T>, Option<T>) {
        match self.second {
            Second::Added => (Some(second), None),
            Second::Sinks => (None, Some(second)),
        }
    }

    /// The rows, of scores in `scores` and results in `out`.
    pub(super) fn rows(
        &self,
        [scores, out]: [&Layout; 2],
        added: Option<&Layout>,
        by_head: bool,
    ) -> Result<ScoreRows> {
        let by_query = self.op.band != crate::scores::Band::ALL || self.slopes.is_some();
        let mask = self.mask.as_ref().map(Tensor::layout);
        ScoreRows::new(NAME, [scores, out], [added, mask], by_head || self.slopes.is_some(), by_query)
    }

    /// Keeps the log-sum-exp of rows of `shape`, for whoever asked for it.
    fn keep_lse(&self, lse: Option<Storage>, shape: &Shape) {
        if let (Some(kept), Some(lse)) = (&self.lse, lse) {
            let dims = shape.dims();
            let lse = Tensor::from_storage(lse, &dims[..dims.len() - 1], BackpropOp::none(), false);
            // A second call of the same operator, which candle does not make, would leave the first's.
            let _ = kept.set(lse);
        }
    }

    fn cpu(
        &self,
        (scores, at): At<CpuStorage>,
        added: Option<At<CpuStorage>>,
        sinks: Option<At<CpuStorage>>,
    ) -> Result<(CpuStorage, Shape)> {
        use CpuStorage::{BF16, F16, F32, F64};
        let out_at = Layout::contiguous(at.shape());
        let rows = self.rows([at, &out_at], added.map(|a| a.1), sinks.is_some())?;
        let (mask, slopes) = (held(&self.mask), held(&self.slopes));
        let (mask, slopes) = (as_u8(&mask)?, cpu_storage(&slopes)?);
        let slopes = slopes.zip(self.slopes.as_ref().map(Tensor::layout));
        let wants_lse = self.lse.is_some();
        // Scores, what they are computed in, the result, and which storages those are.
        macro_rules! run {
            ($scores:expr, $compute:ident, $out:ident) => {{
                let biases = Biases::new(self.op, &rows, added, mask, slopes, sinks)?;
                let (y, lse) = cpu::attention_softmax(NAME, $scores, &biases, wants_lse)?;
                ($out(y), lse.map($compute))
            }};
        }
        let wide = self.out != scores.dtype();
        let (y, lse) = match scores {
            F16(scores) if wide => run!(scores, F32, F32),
            BF16(scores) if wide => run!(scores, F32, F32),
            F16(scores) => run!(scores, F32, F16),
            BF16(scores) => run!(scores, F32, BF16),
            F32(scores) => run!(scores, F32, F32),
            F64(scores) => run!(scores, F64, F64),
            other => return Err(dtype_error(NAME, &[other.dtype()])),
        };
        self.keep_lse(lse.map(Storage::Cpu), at.shape());
        Ok((y, at.shape().clone()))
    }

    fn cpu_in_place(
        &self,
        scores: &mut CpuStorage,
        at: &Layout,
        added: Option<At<CpuStorage>>,
        sinks: Option<At<CpuStorage>>,
    ) -> Result<()> {
        check_distinct(NAME, at)?;
        let rows = self.rows([at, at], added.map(|a| a.1), sinks.is_some())?;
        let (mask, slopes) = (held(&self.mask), held(&self.slopes));
        let (mask, slopes) = (as_u8(&mask)?, cpu_storage(&slopes)?);
        let slopes = slopes.zip(self.slopes.as_ref().map(Tensor::layout));
        map_float_mut!(NAME, scores, scores => {
            let biases = Biases::new(self.op, &rows, added, mask, slopes, sinks)?;
            cpu::attention_softmax_in_place(NAME, scores, &biases)
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        (scores, at): At<CudaStorage>,
        added: Option<At<CudaStorage>>,
        sinks: Option<At<CudaStorage>>,
    ) -> Result<(CudaStorage, Shape)> {
        let out_at = Layout::contiguous(at.shape());
        let rows = self.rows([at, &out_at], added.map(|a| a.1), sinks.is_some())?;
        let (mask, slopes) = (held(&self.mask), held(&self.slopes));
        let biases = crate::cuda::Biases {
            op: self.op,
            rows: &rows,
            added: added.map(|a| a.0),
            mask: cuda_storage(&mask)?,
            slopes: cuda_storage(&slopes)?.zip(self.slopes.as_ref().map(Tensor::layout)),
            sinks,
        };
        let wide = self.out != scores.dtype();
        let (y, lse) = crate::cuda::attention(NAME, scores, &biases, wide, self.lse.is_some())?;
        self.keep_lse(lse.map(Storage::Cuda), at.shape());
        Ok((y, at.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_in_place(
        &self,
        scores: &mut CudaStorage,
        at: &Layout,
        added: Option<At<CudaStorage>>,
        sinks: Option<At<CudaStorage>>,
    ) -> Result<()> {
        check_distinct(NAME, at)?;
        let rows = self.rows([at, at], added.map(|a| a.1), sinks.is_some())?;
        let (mask, slopes) = (held(&self.mask), held(&self.slopes));
        let biases = crate::cuda::Biases {
            op: self.op,
            rows: &rows,
            added: added.map(|a| a.0),
            mask: cuda_storage(&mask)?,
            slopes: cuda_storage(&slopes)?.zip(self.slopes.as_ref().map(Tensor::layout)),
            sinks,
        };
        crate::cuda::attention_in_place(NAME, scores, &biases)
    }
}

/// A tensor's storage for the time of a call.
fn held(t: &Option<Tensor>) -> Option<StorageRef<'_>> {
    t.as_ref().map(|t| t.storage_and_layout().0)
}

fn cpu_storage<'a>(held: &'a Option<StorageRef<'_>>) -> Result<Option<&'a CpuStorage>> {
    match held.as_deref() {
        None => Ok(None),
        Some(Storage::Cpu(storage)) => Ok(Some(storage)),
        Some(other) => bail!("{NAME}: requires operands on one device, got cpu and {:?}", other.device().location()),
    }
}

fn as_u8<'a>(held: &'a Option<StorageRef<'_>>) -> Result<Option<&'a [u8]>> {
    match cpu_storage(held)? {
        None => Ok(None),
        Some(CpuStorage::U8(mask)) => Ok(Some(mask)),
        Some(other) => bail!("{NAME}: requires a boolean mask of u8, got {}", other.dtype().as_str()),
    }
}

#[cfg(feature = "cuda")]
fn cuda_storage<'a>(held: &'a Option<StorageRef<'_>>) -> Result<Option<&'a CudaStorage>> {
    match held.as_deref() {
        None => Ok(None),
        Some(Storage::Cuda(storage)) => Ok(Some(storage)),
        Some(other) => bail!("{NAME}: requires operands on one device, got cuda and {:?}", other.device().location()),
    }
}

impl CustomOp1 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu((s, l), None, None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, s: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.cuda((s, l), None, None)
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        metal_unsupported(NAME)
    }

    fn bwd(&self, scores: &Tensor, y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        Ok(attention_backward::gradients(self, scores, None, None, y, g)?.scores)
    }
}

impl CustomOp2 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        s: &CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (added, sinks) = self.sort((s2, l2));
        self.cpu((s, l), added, sinks)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s: &CudaStorage,
        l: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (added, sinks) = self.sort((s2, l2));
        self.cuda((s, l), added, sinks)
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal_unsupported(NAME)
    }

    fn bwd(
        &self,
        scores: &Tensor,
        second: &Tensor,
        y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (added, sinks) = self.sort(second);
        let all = attention_backward::gradients(self, scores, added, sinks, y, g)?;
        Ok((all.scores, all.added.or(all.sinks)))
    }
}

impl CustomOp3 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        s: &CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.cpu((s, l), Some((s2, l2)), Some((s3, l3)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s: &CudaStorage,
        l: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda((s, l), Some((s2, l2)), Some((s3, l3)))
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        metal_unsupported(NAME)
    }

    fn bwd(
        &self,
        scores: &Tensor,
        added: &Tensor,
        sinks: &Tensor,
        y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let all = attention_backward::gradients(self, scores, Some(added), Some(sinks), y, g)?;
        Ok((all.scores, all.added, all.sinks))
    }
}

impl InplaceOp1 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, s: &mut CpuStorage, l: &Layout) -> Result<()> {
        self.cpu_in_place(s, l, None, None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, s: &mut CudaStorage, l: &Layout) -> Result<()> {
        self.cuda_in_place(s, l, None, None)
    }

    fn metal_fwd(&self, _: &mut MetalStorage, _: &Layout) -> Result<()> {
        metal_unsupported(NAME)
    }
}

impl InplaceOp2 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        s: &mut CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<()> {
        let (added, sinks) = self.sort((s2, l2));
        self.cpu_in_place(s, l, added, sinks)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s: &mut CudaStorage,
        l: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<()> {
        let (added, sinks) = self.sort((s2, l2));
        self.cuda_in_place(s, l, added, sinks)
    }

    fn metal_fwd(
        &self,
        _: &mut MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<()> {
        metal_unsupported(NAME)
    }
}

impl InplaceOp3 for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        s: &mut CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<()> {
        self.cpu_in_place(s, l, Some((s2, l2)), Some((s3, l3)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s: &mut CudaStorage,
        l: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<()> {
        self.cuda_in_place(s, l, Some((s2, l2)), Some((s3, l3)))
    }

    fn metal_fwd(
        &self,
        _: &mut MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
        _: &MetalStorage,
        _: &Layout,
    ) -> Result<()> {
        metal_unsupported(NAME)
    }
}
