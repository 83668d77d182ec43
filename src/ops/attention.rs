//! Softmax of attention scores: scale, softcap, biases, masks and sinks in the same kernel.

use super::attention_op::{AttentionOp, Lse, Second};
use crate::scores::{heads, Band, ScoreOp};
use candle_core::{bail, DType, Result, Tensor};
use candle_nn::attention::AttnMask;

pub(super) const NAME: &str = "attention-softmax";

/// Softmax over the keys of attention scores, with all that stands between the two matrix products of attention:
/// `softmax(softcap(scale · s) + ALiBi + bias, where mask)`, in one kernel.
///
/// - **Shapes**: scores (.., queries, keys) of rank 2 or more; the dim before the queries is the heads. The result has the
///   same shape.
/// - **Order**: the product `s · scale` is rounded first; then `c · tanh(s / c)`; then ALiBi, then the bias or additive mask
///   are added; then the boolean mask, causality and the window say which keys are kept. All in f32 (f64 for f64), so that
///   a mask of a half type's MIN cannot overflow.
/// - **Masked positions** are never looked at: a NaN or an infinity there changes nothing. They get 0. A row of which
///   nothing is kept, or nothing but -inf, is 0 everywhere, and so is its gradient. No finite number stands for -inf.
/// - **Values** else as [`OnlineSoftmax`](crate::OnlineSoftmax): a NaN or +inf that is kept makes its row NaN.
/// - **Dtypes**: scores of f16, bf16, f32 or f64, biases and sinks of any of these; the result has the scores'.
/// - **Strides**: any, of all operands. Masks and biases broadcast without a copy, where they are of the scores' dtype or f32
///   (f64 with f64); others are converted first, as small as they are.
/// - **Gradients** reach the scores, the bias or additive mask (summed over what it broadcasts over) and the sinks.
/// - **Causal and windowed rows** are read no further than they are kept, to 16 bytes.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_online_softmax::AttentionSoftmax;
///
/// let scores = Tensor::new(&[[[[1f32, 9.], [2., 2.]]]], &Device::Cpu)?;
/// let y = AttentionSoftmax::new(0.5).causal().forward(&scores)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 0., 0.5, 0.5]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AttentionSoftmax {
    scale: f32,
    softcap: Option<f32>,
    causal: bool,
    /// Keys before query 0; `keys - queries` where none is given.
    kv_offset: Option<usize>,
    window: [Option<usize>; 2],
    slopes: Option<Tensor>,
    sinks: Option<Tensor>,
    bias: Option<Tensor>,
    mask: Option<Tensor>,
    f32_output: bool,
}

impl AttentionSoftmax {
    /// `softmax(scale · s)`; `scale` is usually 1/√head_dim.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            softcap: None,
            causal: false,
            kv_offset: None,
            window: [None, None],
            slopes: None,
            sinks: None,
            bias: None,
            mask: None,
            f32_output: false,
        }
    }

    /// Query i sees keys j ≤ i + keys - queries: aligned at the last query and key, as a KV cache needs and
    /// FlashAttention does from 2.1 on. With more queries than keys the first rows see nothing, and are 0.
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Query i sees keys j ≤ i + `kv_offset`, as `candle_nn::attention::AttnMask::Causal`.
    pub fn causal_with_offset(mut self, kv_offset: usize) -> Self {
        self.kv_offset = Some(kv_offset);
        self.causal()
    }

    /// Query i, at position p = i + keys - queries (or i + the offset of [`causal_with_offset`](Self::causal_with_offset)),
    /// sees keys p - `left` ≤ j ≤ p + `right`; `None` is no limit.
    ///
    /// A model's "sliding window of w tokens" counts the token itself: `left` is w - 1.
    pub fn window(
        mut self,
        left: impl Into<Option<usize>>,
        right: impl Into<Option<usize>>,
    ) -> Self {
        self.window = [left.into(), right.into()];
        self
    }

    /// `cap · tanh(scale · s / cap)` in place of `scale · s`; `cap` is above 0 (Gemma 2: 50).
    pub fn softcap(mut self, cap: f32) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Adds -slope · |p - j| at key j to the query of position p (see [`window`](Self::window)); `slopes` has a number a
    /// head. Press, Smith & Lewis, "Train Short, Test Long", arXiv 2108.12409.
    pub fn alibi(mut self, slopes: &Tensor) -> Self {
        self.slopes = Some(slopes.clone());
        self
    }

    /// A logit a head that takes part in the denominator alone, so that a row's probabilities sum to less than 1
    /// (gpt-oss). It is not scaled. Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453.
    pub fn sinks(mut self, sinks: &Tensor) -> Self {
        self.sinks = Some(sinks.clone());
        self
    }

    /// Adds `bias`, of any float dtype, which broadcasts to the scores.
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// A mask that broadcasts to the scores: of u8, **non-zero keeps** (as PyTorch's `scaled_dot_product_attention`); of a
    /// float dtype, it is added. Beside a [`bias`](Self::bias) a float mask is added to that first, in f32, which takes
    /// memory for the shape that the two have together.
    pub fn mask(mut self, mask: &Tensor) -> Self {
        self.mask = Some(mask.clone());
        self
    }

    /// What candle's models say of masks. Its `Causal` counts from the first key, not from the last.
    pub fn attn_mask(self, mask: &AttnMask) -> Self {
        match mask {
            AttnMask::None => self,
            AttnMask::Causal { kv_offset } => self.causal_with_offset(*kv_offset),
            AttnMask::Mask(mask) => self.mask(mask),
        }
    }

    /// Results of f32, of half scores too.
    pub fn f32_output(mut self) -> Self {
        self.f32_output = true;
        self
    }

    /// The probabilities.
    ///
    /// # Arguments
    ///
    /// * `scores` - (.., heads, queries, keys), (heads, queries, keys) or (queries, keys).
    ///
    /// # Errors
    ///
    /// Before anything is launched: scores of rank below 2 or of another dtype; a mask or bias that does not broadcast or is
    /// of an integer dtype other than u8; slopes or sinks that are not one a head; a scale that is not finite, a cap that is
    /// not above 0; operands on different devices; Metal tensors.
    pub fn forward(&self, scores: &Tensor) -> Result<Tensor> {
        Ok(self.apply(scores, false)?.0)
    }

    /// The same under a [`mask`](Self::mask) beside what this has.
    pub fn forward_with_mask(&self, scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
        self.masked(Some(mask))?.forward(scores)
    }

    /// The probabilities and each row's log-sum-exp over what is kept and the sink: (.., heads, queries), of f32 (f64
    /// with f64), -inf where nothing is kept. No gradient flows through the latter.
    pub fn forward_with_lse(&self, scores: &Tensor) -> Result<(Tensor, Tensor)> {
        let (y, lse) = self.apply(scores, true)?;
        Ok((y, lse.expect("asked for")))
    }

    /// The probabilities where the scores were, of which `mask` may say more. The same bits, and no second buffer (on
    /// the CPU: of contiguous rows); no gradient is recorded.
    ///
    /// # Errors
    ///
    /// Those of [`forward`](Self::forward); a view with overlapping positions; f32 output of half scores. The scores are
    /// untouched then.
    pub fn forward_inplace(&self, scores: &Tensor, mask: Option<&Tensor>) -> Result<()> {
        let this = self.masked(mask)?;
        if this.f32_output && scores.dtype() != DType::F32 {
            bail!(
                "{NAME}: in place requires an output of the scores' dtype {}, got f32 output",
                scores.dtype().as_str()
            )
        }
        let Operands { op, added, sinks } = this.prepare(scores, None)?;
        match (added, sinks) {
            (None, None) => scores.inplace_op1(&op),
            (Some(added), None) => scores.inplace_op2(&added, &op),
            (None, Some(sinks)) => scores.inplace_op2(&sinks, &op),
            (Some(added), Some(sinks)) => scores.inplace_op3(&added, &sinks, &op),
        }
    }

    /// Whether a gradient flows to a tensor that this holds.
    pub(super) fn is_tracked(&self) -> bool {
        let tensors = [&self.sinks, &self.bias, &self.mask];
        tensors.into_iter().flatten().any(Tensor::track_op)
    }

    pub(super) fn has_f32_output(&self) -> bool {
        self.f32_output
    }

    pub(super) fn masked(&self, mask: Option<&Tensor>) -> Result<Self> {
        let mut this = self.clone();
        if let Some(mask) = mask {
            if this.mask.is_some() {
                bail!("{NAME}: requires one mask, got one with the operator and one with the call")
            }
            this.mask = Some(mask.clone());
        }
        Ok(this)
    }

    fn apply(&self, scores: &Tensor, wants_lse: bool) -> Result<(Tensor, Option<Tensor>)> {
        // The gradient of sinks needs it.
        let needs_lse = wants_lse || self.sinks.as_ref().is_some_and(Tensor::track_op);
        let lse = needs_lse.then(Lse::default);
        let Operands { op, added, sinks } = self.prepare(scores, lse.clone())?;
        let y = match (&added, &sinks) {
            (None, None) => scores.apply_op1(op),
            (Some(added), None) => scores.apply_op2(added, op),
            (None, Some(sinks)) => scores.apply_op2(sinks, op),
            (Some(added), Some(sinks)) => scores.apply_op3(added, sinks, op),
        }?;
        Ok((y, lse.and_then(|lse| lse.get().cloned())))
    }

    /// Checks everything, and converts what kernels do not take as it is.
    fn prepare(&self, scores: &Tensor, lse: Option<Lse>) -> Result<Operands> {
        let shape = scores.shape();
        let compute = compute_dtype(scores)?;
        if shape.rank() < 2 {
            bail!("{NAME}: requires scores of shape (.., queries, keys), got {shape:?}")
        }
        if !self.scale.is_finite() {
            bail!("{NAME}: requires a finite scale, got {}", self.scale)
        }
        if let Some(cap) = self.softcap.filter(|c| !(c.is_finite() && *c > 0.0)) {
            bail!("{NAME}: requires a finite softcap above 0, got {cap}")
        }
        let others = [&self.slopes, &self.sinks, &self.bias, &self.mask];
        for other in others.into_iter().flatten() {
            if !other.device().same_device(scores.device()) {
                bail!(
                    "{NAME}: requires operands on one device, got {:?} and {:?}",
                    scores.device().location(),
                    other.device().location()
                )
            }
        }
        let (added, mask) = self.added_and_mask(scores, compute)?;
        let slopes = one_a_head("ALiBi slopes", &self.slopes, scores, compute)?;
        let sinks = one_a_head("sinks", &self.sinks, scores, compute)?;
        let out = match self.f32_output {
            true => compute,
            false => scores.dtype(),
        };
        let op = AttentionOp {
            op: self.score_op(scores),
            mask,
            slopes,
            second: match added {
                Some(_) => Second::Added,
                None => Second::Sinks,
            },
            out,
            lse,
        };
        Ok(Operands { op, added, sinks })
    }

    fn score_op(&self, scores: &Tensor) -> ScoreOp {
        let dims = scores.dims();
        let far = |n: usize| n.min(Band::FAR as usize / 2) as i64;
        let kv_offset = match self.kv_offset {
            Some(offset) => far(offset),
            None => far(dims[dims.len() - 1]) - far(dims[dims.len() - 2]),
        };
        let [left, right] = self.window;
        let right = if self.causal { Some(0) } else { right };
        ScoreOp {
            scale: self.scale,
            softcap: self.softcap,
            band: Band {
                first: left.map_or(-Band::FAR, |left| kv_offset - far(left)),
                last: right.map_or(Band::FAR, |right| kv_offset + far(right)),
            },
            kv_offset,
        }
    }

    /// What is added to scores, and the boolean mask.
    fn added_and_mask(
        &self,
        scores: &Tensor,
        compute: DType,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let fits = |what: &str, t: &Tensor| match t.broadcast_as(scores.shape()) {
            Ok(_) => Ok(()),
            Err(_) => bail!(
                "{NAME}: requires a {what} that broadcasts to the scores' shape {:?}, got {:?}",
                scores.shape(),
                t.shape()
            ),
        };
        let float = |what: &str, t: &Tensor| match t.dtype() {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Ok(()),
            other => bail!(
                "{NAME}: requires a {what} of f16, bf16, f32 or f64{}, got {}",
                if what == "mask" { ", or of u8" } else { "" },
                other.as_str()
            ),
        };
        let mut added = None;
        if let Some(bias) = &self.bias {
            fits("bias", bias)?;
            float("bias", bias)?;
            added = Some(bias.clone());
        }
        let Some(mask) = &self.mask else {
            return Ok((taken(added, scores, compute)?, None));
        };
        fits("mask", mask)?;
        if mask.dtype() == DType::U8 {
            return Ok((taken(added, scores, compute)?, Some(mask.clone())));
        }
        float("mask", mask)?;
        let added = match added {
            None => mask.clone(),
            Some(bias) => bias
                .to_dtype(compute)?
                .broadcast_add(&mask.to_dtype(compute)?)?,
        };
        Ok((taken(Some(added), scores, compute)?, None))
    }
}

/// What one call needs: the operator, and the tensors that gradients flow to.
struct Operands {
    op: AttentionOp,
    added: Option<Tensor>,
    sinks: Option<Tensor>,
}

/// The dtype that scores are computed in.
fn compute_dtype(scores: &Tensor) -> Result<DType> {
    match scores.dtype() {
        DType::F16 | DType::BF16 | DType::F32 => Ok(DType::F32),
        DType::F64 => Ok(DType::F64),
        other => Err(super::dispatch::dtype_error(NAME, &[other])),
    }
}

/// Kernels take what is added as the scores are, or as they are computed.
fn taken(added: Option<Tensor>, scores: &Tensor, compute: DType) -> Result<Option<Tensor>> {
    match added {
        Some(t) if t.dtype() != scores.dtype() => Ok(Some(t.to_dtype(compute)?)),
        other => Ok(other),
    }
}

/// `t` as contiguous numbers of the compute dtype, one a head.
fn one_a_head(
    what: &str,
    t: &Option<Tensor>,
    scores: &Tensor,
    compute: DType,
) -> Result<Option<Tensor>> {
    let Some(t) = t else { return Ok(None) };
    let heads = heads(scores.shape());
    if t.elem_count() != heads {
        bail!(
            "{NAME}: requires one of the {what} for each of {heads} heads, got shape {:?} for scores of shape {:?}",
            t.shape(),
            scores.shape()
        )
    }
    if !matches!(
        t.dtype(),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64
    ) {
        bail!(
            "{NAME}: requires {what} of f16, bf16, f32 or f64, got {}",
            t.dtype().as_str()
        )
    }
    let t = t.flatten_all()?.to_dtype(compute)?;
    Ok(Some(t.contiguous()?))
}
