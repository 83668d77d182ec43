//! Scaled dot product attention: two matrix products around one softmax kernel.

use super::attention::AttentionSoftmax;
use super::dispatch::dtype_error;
use candle_core::{bail, DType, Device, Result, Tensor};

const NAME: &str = "sdpa";

/// `op(q·kᵀ)·v`: attention by the operator `op`, with grouped-query heads.
///
/// The scores, (batch, heads, q_len, k_len) in the dtype of `q`, are the only memory beside the result: where no gradient is
/// tracked the softmax is taken where they lie. (With gradients: scores and probabilities.) k and v are not repeated for
/// the heads that share them.
///
/// # Arguments
///
/// * `q` - (batch, heads, q_len, head_dim), of f16, bf16, f32 or f64.
/// * `k` - (batch, kv_heads, k_len, head_dim); `kv_heads` divides `heads`, and head i has k and v of head
///   i / (heads / kv_heads).
/// * `v` - (batch, kv_heads, k_len, v_dim).
/// * `op` - What is done to the scores; its scale is usually 1/√head_dim.
/// * `mask` - As [`AttentionSoftmax::mask`], broadcast to the scores; beside what `op` has.
///
/// Returns (batch, heads, q_len, v_dim).
///
/// # Errors
///
/// Shapes other than these, and the errors of [`AttentionSoftmax::forward`]; half scores with f32 output.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_online_softmax::{sdpa, AttentionSoftmax};
///
/// let q = Tensor::randn(0f32, 1., (2, 8, 5, 16), &Device::Cpu)?;
/// let kv = Tensor::randn(0f32, 1., (2, 2, 9, 16), &Device::Cpu)?; // 4 heads of q share one
/// let out = sdpa(&q, &kv, &kv, &AttentionSoftmax::new(0.25).causal(), None)?;
/// assert_eq!(out.dims(), [2, 8, 5, 16]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    op: &AttentionSoftmax,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let Sizes {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        head_dim,
        v_dim,
    } = Sizes::of(q, k, v)?;
    let op = op.masked(mask)?;
    if op.has_f32_output() && matches!(q.dtype(), DType::F16 | DType::BF16) {
        bail!(
            "{NAME}: requires an operator with results of the scores' dtype {}, got one with f32 output",
            q.dtype().as_str()
        )
    }
    let shape = (batch, heads, queries, keys);
    let nothing = |shape: [usize; 4]| zeros(shape, q.dtype(), q.device());
    if [batch, heads, queries, keys, v_dim].contains(&0) {
        op.forward(&nothing(shape.into())?)?; // for its errors
        return nothing([batch, heads, queries, v_dim]);
    }
    // The queries of all heads that share k and v are the rows of one matrix.
    let rows = heads / kv_heads * queries;
    let scores = match head_dim {
        0 => nothing(shape.into())?,
        _ => q
            .reshape((batch, kv_heads, rows, head_dim))?
            .matmul(&multiplied(k)?.t()?)?
            .reshape(shape)?,
    };
    let y = if scores.track_op() || op.is_tracked() {
        op.forward(&scores)?
    } else {
        op.forward_inplace(&scores, None)?;
        scores
    };
    y.reshape((batch, kv_heads, rows, keys))?
        .matmul(&multiplied(v)?)?
        .reshape((batch, heads, queries, v_dim))
}

/// The sizes of q, k and v that belong together.
struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
    v_dim: usize,
}

impl Sizes {
    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let dims = |name: &str, t: &Tensor| -> Result<[usize; 4]> {
            match t.dims() {
                &[batch, heads, len, dim] => Ok([batch, heads, len, dim]),
                got => bail!(
                    "{NAME}: requires {name} of shape (batch, heads, length, dim), got {got:?}"
                ),
            }
        };
        let [batch, heads, queries, head_dim] = dims("q", q)?;
        let [k_batch, kv_heads, keys, k_dim] = dims("k", k)?;
        let [v_batch, v_heads, values, v_dim] = dims("v", v)?;
        let got = format!("q {:?}, k {:?}, v {:?}", q.dims(), k.dims(), v.dims());
        if [k_batch, v_batch] != [batch; 2] {
            bail!("{NAME}: requires q, k and v of one batch size, got {got}")
        }
        if v_heads != kv_heads {
            bail!("{NAME}: requires as many heads of v as of k, got {got}")
        }
        // With no heads of either there is nothing to divide.
        if heads != 0 && heads.checked_rem(kv_heads) != Some(0) {
            bail!("{NAME}: requires a number of kv heads that divides that of q, got {got}")
        }
        if k_dim != head_dim {
            bail!("{NAME}: requires q and k of one head dim, got {got}")
        }
        if values != keys {
            bail!("{NAME}: requires k and v of one length, got {got}")
        }
        let dtype = q.dtype();
        if [k.dtype(), v.dtype()] != [dtype; 2] {
            let [q, k, v] = [q, k, v].map(|t| t.dtype().as_str());
            bail!("{NAME}: requires q, k and v of one dtype, got {q}, {k} and {v}")
        }
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(dtype_error(NAME, &[dtype]));
        }
        if let Some(other) = [k, v]
            .into_iter()
            .find(|t| !t.device().same_device(q.device()))
        {
            bail!(
                "{NAME}: requires q, k and v on one device, got {:?} and {:?}",
                q.device().location(),
                other.device().location()
            )
        }
        Ok(Self {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            v_dim,
        })
    }
}

/// `t`, or a contiguous copy where candle's matrix product refuses its strides: batch dims must be one step apart from each
/// other, and (but in candle's own product on the CPU) each matrix, or its transpose, without gaps. So keys narrowed out of
/// a cache of (batch, heads, length, dim) are taken as they are.
fn multiplied(t: &Tensor) -> Result<Tensor> {
    let any_matrix = t.device().is_cpu() && !cfg!(any(feature = "mkl", feature = "accelerate"));
    let (dims, strides) = (t.dims(), t.stride());
    let batches = dims[0] == 1 || dims[1] == 1 || strides[0] == strides[1] * dims[1];
    // Along a dim of one element any stride will do.
    let steps = |dim: usize, step: usize| dims[dim] == 1 || strides[dim] == step;
    let matrix = (steps(3, 1) && steps(2, dims[3])) || (steps(2, 1) && steps(3, dims[2]));
    match batches && (any_matrix || matrix) {
        true => Ok(t.clone()),
        false => t.contiguous(),
    }
}

/// Zeros; where there are none, a view, since the CUDA driver refuses allocations of no bytes.
fn zeros(shape: [usize; 4], dtype: DType, device: &Device) -> Result<Tensor> {
    let mut t = Tensor::zeros(&shape.map(|size| size.max(1)), dtype, device)?;
    for dim in (0..4).filter(|&dim| shape[dim] == 0) {
        t = t.narrow(dim, 0, 0)?;
    }
    Ok(t)
}

/// [`sdpa`] with the signature of `candle_nn::ops::sdpa`, on the CPU and on CUDA, with gradients.
///
/// # Arguments
///
/// * `q`, `k`, `v` - As for [`sdpa`].
/// * `mask` - Added to the scores, or of u8, non-zero keeps.
/// * `do_causal` - Each query sees the keys up to its own position, counted from the last.
/// * `scale` - Factor of the scores.
/// * `softcapping` - `c` of c · tanh(s / c); 1 is none, as in candle.
///
/// # Errors
///
/// Those of [`sdpa`].
pub fn candle_sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    do_causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let mut op = AttentionSoftmax::new(scale);
    if do_causal {
        op = op.causal();
    }
    if softcapping != 1.0 {
        op = op.softcap(softcapping);
    }
    sdpa(q, k, v, &op, mask)
}
