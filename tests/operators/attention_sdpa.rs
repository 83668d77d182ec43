//! `sdpa` against two plain matrix products in f64: grouped heads, views, gradients, candle's signature.

use crate::attention_inputs::{boolean_mask, Feature, MOST};
use crate::attention_reference::Attention;
use crate::compare::{assert_same_bits, bits, ulp, values};
use crate::errors::assert_says;
use crate::inputs::{normal, nothing, DTYPES};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_nn::attention::AttnMask;
use candle_online_softmax::{candle_sdpa, sdpa, AttentionSoftmax};

use Feature::*;

on_devices!(
    grouped_heads,
    every_feature,
    views,
    tracked_or_not,
    gradients,
    candles_formula,
    masks_of_candle,
    empty_shapes,
    errors,
    errors_of_the_operator,
);

/// Batches, heads of q and of k and v, queries, keys, dims of q and of v.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    b: usize,
    h: usize,
    hk: usize,
    q: usize,
    k: usize,
    d: usize,
    dv: usize,
}

const SIZES: Sizes = Sizes {
    b: 2,
    h: 6,
    hk: 2,
    q: 5,
    k: 33,
    d: 16,
    dv: 7,
};

impl Sizes {
    fn made(self, dtype: DType, device: &Device) -> Result<[Tensor; 3]> {
        let Self {
            b,
            h,
            hk,
            q,
            k,
            d,
            dv,
        } = self;
        Ok([
            normal(1, &[b, h, q, d], dtype, device)?,
            normal(2, &[b, hk, k, d], dtype, device)?,
            normal(3, &[b, hk, k, dv], dtype, device)?,
        ])
    }

    fn scores(self) -> [usize; 4] {
        [self.b, self.h, self.q, self.k]
    }

    fn operator(self, features: &[Feature], dtype: DType, device: &Device) -> Result<Attention> {
        crate::attention_inputs::attention(features, &self.scores(), dtype, device)
    }

    fn of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Self> {
        let ((b, h, q, d), (_, hk, k, _)) = (q.dims4()?, k.dims4()?);
        let dv = v.dim(3)?;
        Ok(Self {
            b,
            h,
            hk,
            q,
            k,
            d,
            dv,
        })
    }
}

/// Results of loops in f64, and how far off each the operator may be.
fn reference(q: &Tensor, k: &Tensor, v: &Tensor, op: &Attention) -> Result<Vec<(f64, f64)>> {
    let s = Sizes::of(q, k, v)?;
    let dtype = q.dtype();
    // Half a unit of the dtype, relative; products of halves are sums in f32 of whatever order, rounded once or more often.
    let unit = ulp(dtype, 1.0) / 2.0;
    let [q, k, v] = [values(q)?, values(k)?, values(v)?];
    let of_row = |b: usize, h: usize, i: usize| {
        let first = ((b * s.h + h) * s.q + i) * s.d;
        &q[first..first + s.d]
    };
    let head = |b: usize, h: usize| b * s.hk + h / (s.h / s.hk);
    let (mut scores, mut sizes) = (vec![], vec![]);
    for (b, h, i) in indices(s) {
        for j in 0..s.k {
            let first = (head(b, h) * s.k + j) * s.d;
            let key = &k[first..first + s.d];
            let terms = || of_row(b, h, i).iter().zip(key).map(|(q, k)| q * k);
            scores.push(terms().sum::<f64>());
            sizes.push(terms().map(f64::abs).sum::<f64>());
        }
    }
    let scores = Tensor::from_vec(scores, &s.scores(), &Device::Cpu)?;
    let host = |t: &Option<Tensor>| t.as_ref().map(|t| t.to_device(&Device::Cpu)).transpose();
    let op = Attention {
        slopes: host(&op.slopes)?,
        sinks: host(&op.sinks)?,
        bias: host(&op.bias)?,
        mask: host(&op.mask)?,
        ..op.clone()
    };
    let mut out = vec![];
    for (r, ((b, h, _), row)) in indices(s).zip(op.rows(&scores)?).enumerate() {
        // A sum of d products and the rounding of the result, scaled; then the scores' own steps.
        let of_score =
            |j: usize| sizes[r * s.k + j] * unit * (s.d + 1) as f64 * f64::from(op.scale);
        let steps =
            16.0 * unit.min(2f64.powi(-24)) * (1.0 + (0..s.k).map(of_score).fold(30.0, f64::max));
        let off = (0..s.k).map(of_score).fold(0.0, f64::max) + steps;
        for c in 0..s.dv {
            let terms = || (0..s.k).map(|j| row.y[j] * v[(head(b, h) * s.k + j) * s.dv + c]);
            let size: f64 = terms().map(f64::abs).sum();
            // Probabilities off by twice what scores are, and rounded; a sum of k products.
            let allowed =
                (2.0 * off).exp_m1() + unit * (s.k + 3) as f64 + 4e-6_f64.min(2.0 * unit * 32.0);
            out.push((terms().sum(), size * allowed + ulp(dtype, 0.0)));
        }
    }
    Ok(out)
}

fn indices(s: Sizes) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..s.b * s.h * s.q).map(move |r| (r / s.q / s.h, r / s.q % s.h, r % s.q))
}

fn check(q: &Tensor, k: &Tensor, v: &Tensor, op: &Attention, what: &str) -> Result<Tensor> {
    let before = [bits(q)?, bits(k)?, bits(v)?];
    let got = sdpa(q, k, v, &op.op(), None)?;
    let s = Sizes::of(q, k, v)?;
    assert_eq!(
        (got.dims(), got.dtype()),
        (&[s.b, s.h, s.q, s.dv][..], q.dtype()),
        "{what}"
    );
    for (i, (got, (want, off))) in values(&got)?
        .into_iter()
        .zip(reference(q, k, v, op)?)
        .enumerate()
    {
        let close = (got - want).abs() <= off;
        assert!(
            close,
            "{what}, {s:?}, {:?}, {i}: {got}, should be {want} within {off:e}",
            q.dtype()
        );
    }
    assert!(
        before == [bits(q)?, bits(k)?, bits(v)?],
        "{what}: an operand was written"
    );
    Ok(got)
}

fn grouped_heads(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for hk in [1, 2, 3, 6] {
            for (q, k) in [(5, 33), (1, 40), (7, 7), (1, 1), (9, 4)] {
                let sizes = Sizes { hk, q, k, ..SIZES };
                let [q, k, v] = sizes.made(dtype, device)?;
                let op = sizes.operator(&[Causal], dtype, device)?;
                check(&q, &k, &v, &op, "grouped heads")?;
            }
        }
        // Dims of one element, where any stride is as good.
        for sizes in [
            Sizes {
                d: 1,
                dv: 1,
                ..SIZES
            },
            Sizes {
                b: 1,
                h: 1,
                hk: 1,
                ..SIZES
            },
            Sizes {
                b: 1,
                hk: 1,
                q: 1,
                ..SIZES
            },
            Sizes {
                d: 1,
                k: 1,
                q: 1,
                ..SIZES
            },
        ] {
            let [q, k, v] = sizes.made(dtype, device)?;
            check(&q, &k, &v, &Attention::new(0.5), "single dims")?;
        }
    }
    Ok(())
}

/// With what the operator has, and with the same mask beside it.
fn every_feature(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let [q, k, v] = SIZES.made(dtype, device)?;
        let of_op = [
            Softcap,
            Causal,
            CausalWithOffset,
            Window,
            Alibi,
            Sinks,
            Bias,
        ];
        let all = of_op
            .iter()
            .chain(&[AdditiveMask, BooleanMask])
            .map(|f| vec![*f]);
        for features in all.chain([MOST.to_vec()]) {
            let op = SIZES.operator(&features, dtype, device)?;
            let want = check(&q, &k, &v, &op, &format!("{features:?}"))?;
            if let Some(mask) = &op.mask {
                let without = Attention {
                    mask: None,
                    ..op.clone()
                };
                let got = sdpa(&q, &k, &v, &without.op(), Some(mask))?;
                assert_same_bits(&got, &want, "a mask beside the operator")?;
            }
        }
    }
    Ok(())
}

/// Views give what their copies give, to the rounding of sums in another order.
fn views(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let mut all = vec![];
        for hk in [1, 2, 6] {
            for (b, q) in [(1, 1), (1, 5), (2, 1), (2, 5)] {
                all.push(Sizes { b, hk, q, ..SIZES });
            }
        }
        for s in all {
            let [q, k, v] = s.made(dtype, device)?;
            let heads_inside = |t: &Tensor| t.transpose(1, 2)?.force_contiguous()?.transpose(1, 2);
            let transposed = |t: &Tensor| t.t()?.force_contiguous()?.t();
            // A cache of 40 keys, of which the middle is there.
            let cached = |t: &Tensor| {
                let room = normal(9, &[s.b, s.hk, 4, t.dim(3)?], dtype, device)?;
                Tensor::cat(&[&room, t, &room], 2)?.narrow(2, 4, s.k)
            };
            let narrowed = |t: &Tensor| Tensor::cat(&[t, t], 3)?.narrow(3, 1, t.dim(3)?);
            let one_batch = |t: &Tensor| t.narrow(0, 0, 1)?.broadcast_as(t.shape());
            let one_head = |t: &Tensor| t.narrow(1, 0, 1)?.broadcast_as(t.shape());
            type View<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
            let same: View = &|t| Ok(t.clone());
            let views: [(&str, View); 8] = [
                ("contiguous", same),
                ("heads inside", &heads_inside),
                ("transposed", &transposed),
                ("out of a cache", &cached),
                ("out of a cache, heads inside", &|t| {
                    heads_inside(&cached(t)?)
                }),
                ("narrowed dims", &narrowed),
                ("one batch", &one_batch),
                ("one head", &one_head),
            ];
            let op = s.operator(&[Causal], dtype, device)?;
            for (name, view) in views {
                if !name.contains("cache") {
                    check(&view(&q)?, &k, &v, &op, &format!("q {name}"))?;
                }
                check(&q, &view(&k)?, &view(&v)?, &op, &format!("k and v {name}"))?;
                if !name.contains("cache") {
                    check(
                        &view(&q)?,
                        &view(&k)?,
                        &view(&v)?,
                        &op,
                        &format!("all {name}"),
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// The softmax in place or not: the same bits.
fn tracked_or_not(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let [q, k, v] = SIZES.made(dtype, device)?;
        let op = SIZES.operator(&[Sinks, Bias, Causal], dtype, device)?;
        let mask = boolean_mask(&[5, 33], device)?;
        let want = sdpa(&q, &k, &v, &op.op(), Some(&mask))?;
        assert!(!want.track_op());
        for tracked in 0..5 {
            let var = |i: usize, t: &Tensor| -> Result<Tensor> {
                match i == tracked {
                    true => Ok(Var::from_tensor(t)?.as_tensor().clone()),
                    false => Ok(t.clone()),
                }
            };
            let [q, k, v] = [var(0, &q)?, var(1, &k)?, var(2, &v)?];
            let this = Attention {
                sinks: op.sinks.as_ref().map(|t| var(3, t)).transpose()?,
                bias: op.bias.as_ref().map(|t| var(4, t)).transpose()?,
                ..op.clone()
            };
            let got = sdpa(&q, &k, &v, &this.op(), Some(&mask))?;
            assert!(got.track_op(), "operand {tracked}");
            assert_same_bits(&got, &want, &format!("operand {tracked}, {dtype:?}"))?;
            let grads = got.sum_all()?.backward()?;
            let all = [&q, &k, &v]
                .into_iter()
                .chain(&this.sinks)
                .chain(&this.bias);
            // candle's matrix product leaves gradients of both operands, of variables or not.
            let gradient = all.filter(|t| t.is_variable()).map(|t| grads.get(t));
            assert_eq!(gradient.flatten().count(), 1, "operand {tracked}");
        }
    }
    Ok(())
}

/// The formula by candle's own operators, k and v repeated: for its results and its gradients.
fn by_candle(
    [q, k, v]: [&Tensor; 3],
    scale: f64,
    cap: Option<f64>,
    added: &Tensor,
) -> Result<Tensor> {
    let groups = q.dim(1)? / k.dim(1)?;
    let repeated = |t: &Tensor| {
        let (b, h, len, d) = t.dims4()?;
        let t = t.unsqueeze(2)?.broadcast_as((b, h, groups, len, d))?;
        t.contiguous()?.reshape((b, h * groups, len, d))
    };
    let (k, v) = (repeated(k)?, repeated(v)?);
    let mut scores = (q.contiguous()?.matmul(&k.t()?.contiguous()?)? * scale)?;
    if let Some(cap) = cap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    let scores = scores.broadcast_add(added)?;
    let e = scores
        .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
        .exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?.matmul(&v)
}

/// -inf where query i of q does not see key j of k, counted from the last.
fn causal_mask(q: usize, k: usize, device: &Device) -> Result<Tensor> {
    let value = |i: usize| {
        if i % k + q <= i / k + k {
            0.0
        } else {
            f64::NEG_INFINITY
        }
    };
    let values: Vec<f64> = (0..q * k).map(value).collect();
    Tensor::from_vec(values, (q, k), device)
}

fn assert_close(got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (values(got)?, values(want)?);
    let scale = want.iter().fold(0f64, |a, v| a.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!(
            (got - want).abs() <= 1e-12 * scale,
            "{what}, {i}: {got}, should be {want}"
        );
    }
    Ok(())
}

fn gradients(device: &Device) -> Result<()> {
    for hk in [1, 2, 6] {
        for cap in [None, Some(2.0)] {
            let s = Sizes { hk, ..SIZES };
            let operands = s.made(DType::F64, device)?;
            let causal = causal_mask(s.q, s.k, device)?;
            let g = normal(9, &[s.b, s.h, s.q, s.dv], DType::F64, device)?;
            let heads_inside = |t: &Tensor| t.transpose(1, 2)?.force_contiguous()?.transpose(1, 2);
            for strided in [false, true] {
                let run = |ours: bool| -> Result<Vec<Tensor>> {
                    let vars = operands.iter().map(Var::from_tensor);
                    let vars = vars.collect::<Result<Vec<_>>>()?;
                    let view = |var: &Var| match strided {
                        true => heads_inside(var),
                        false => Ok(var.as_tensor().clone()),
                    };
                    let [q, k, v] = [view(&vars[0])?, view(&vars[1])?, view(&vars[2])?];
                    let out = if ours {
                        let mut op = AttentionSoftmax::new(0.25).causal();
                        if let Some(cap) = cap {
                            op = op.softcap(cap as f32);
                        }
                        sdpa(&q, &k, &v, &op, None)?
                    } else {
                        by_candle([&q, &k, &v], 0.25, cap, &causal)?
                    };
                    let grads = (&out * &g)?.sum_all()?.backward()?;
                    let of = |var: &Var| grads.get(var).expect("a gradient").clone();
                    Ok([out].into_iter().chain(vars.iter().map(of)).collect())
                };
                for (k, (got, want)) in run(true)?.iter().zip(run(false)?).enumerate() {
                    let what = format!("operand {k}, {hk} heads, {cap:?}, strided: {strided}");
                    assert_close(got, &want, &what)?;
                }
            }
        }
    }
    Ok(())
}

/// softmax(tanh(q·kᵀ·scale / cap) · cap + mask)·v, with and without each.
fn candles_formula(device: &Device) -> Result<()> {
    let s = SIZES;
    let [q, k, v] = s.made(DType::F64, device)?;
    let (all, causal) = (
        Tensor::zeros((s.q, s.k), DType::F64, &Device::Cpu)?.to_device(device)?,
        causal_mask(s.q, s.k, device)?,
    );
    let mask = normal(7, &[s.b, 1, s.q, s.k], DType::F64, device)?;
    for cap in [1.0, 2.0, 50.0] {
        for do_causal in [false, true] {
            for mask in [None, Some(&mask)] {
                let seen = if do_causal { &causal } else { &all };
                let added = match mask {
                    Some(mask) => mask.broadcast_add(seen)?,
                    None => seen.clone(),
                };
                let of_cap = (cap != 1.0).then_some(f64::from(cap));
                let got = candle_sdpa(&q, &k, &v, mask, do_causal, 0.25, cap)?;
                let want = by_candle([&q, &k, &v], 0.25, of_cap, &added)?;
                assert_close(&got, &want, &format!("cap {cap}, causal {do_causal}"))?;
            }
        }
    }
    Ok(())
}

fn masks_of_candle(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let scores = normal(1, &[2, 3, 4, 9], dtype, device)?;
        let op = || AttentionSoftmax::new(0.5);
        let bytes = boolean_mask(&[4, 9], device)?;
        let floats = normal(2, &[2, 1, 4, 9], dtype, device)?;
        for (mask, same) in [
            (AttnMask::None, op()),
            (AttnMask::causal(), op().causal_with_offset(0)),
            (AttnMask::causal_with_offset(5), op().causal()),
            (AttnMask::Mask(bytes.clone()), op().mask(&bytes)),
            (AttnMask::Mask(floats.clone()), op().mask(&floats)),
        ] {
            let got = op().attn_mask(&mask).forward(&scores)?;
            assert_same_bits(&got, &same.forward(&scores)?, &format!("{mask:?}"))?;
        }
    }
    Ok(())
}

/// No keys give zeros; nothing else gives nothing.
fn empty_shapes(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let none = [
            Sizes { b: 0, ..SIZES },
            Sizes { h: 0, ..SIZES },
            Sizes {
                h: 0,
                hk: 0,
                ..SIZES
            },
            Sizes { q: 0, ..SIZES },
            Sizes { k: 0, ..SIZES },
            Sizes { dv: 0, ..SIZES },
            Sizes {
                q: 0,
                k: 0,
                ..SIZES
            },
            Sizes { d: 0, ..SIZES },
        ];
        for s in none {
            let t = |shape: [usize; 4]| match shape.contains(&0) {
                true => nothing(&shape, dtype, device),
                false => normal(1, &shape, dtype, device),
            };
            let q = t([s.b, s.h, s.q, s.d])?;
            let (k, v) = (t([s.b, s.hk, s.k, s.d])?, t([s.b, s.hk, s.k, s.dv])?);
            let mut op = Attention::new(0.5);
            let out = sdpa(&q, &k, &v, &op.op(), None)?;
            assert_eq!(
                (out.dims(), out.dtype()),
                (&[s.b, s.h, s.q, s.dv][..], dtype),
                "{s:?}"
            );
            if s.d == 0 {
                op.causal = true; // scores of 0: means of v
                check(&q, &k, &v, &op, "no head dim")?;
            } else {
                assert!(values(&out)?.iter().all(|&v| v == 0.0), "{s:?}");
            }
        }
    }
    Ok(())
}

fn errors(device: &Device) -> Result<()> {
    let op = AttentionSoftmax::new(1.0);
    let t = |shape: &[usize]| normal(1, shape, DType::F32, device);
    let good = [&[2, 6, 5, 4][..], &[2, 3, 7, 4], &[2, 3, 7, 8]];
    for (which, shape, words) in [
        (
            0,
            &[6, 5, 4][..],
            &["q of shape (batch, heads, length, dim)", "[6, 5, 4]"][..],
        ),
        (1, &[1, 2, 3, 7, 4], &["k of shape", "[1, 2, 3, 7, 4]"]),
        (2, &[7, 8], &["v of shape", "[7, 8]"]),
        (0, &[1, 6, 5, 4], &["one batch size", "[1, 6, 5, 4]"]),
        (1, &[1, 3, 7, 4], &["one batch size"]),
        (2, &[3, 3, 7, 8], &["one batch size"]),
        (0, &[2, 5, 5, 4], &["kv heads that divides"]),
        (0, &[2, 2, 5, 4], &["kv heads that divides"]),
        (1, &[2, 6, 7, 4], &["as many heads of v as of k"]),
        (1, &[2, 3, 7, 5], &["one head dim"]),
        (1, &[2, 3, 6, 4], &["k and v of one length"]),
    ] {
        let mut shapes = good;
        shapes[which] = shape;
        let [q, k, v] = [t(shapes[0])?, t(shapes[1])?, t(shapes[2])?];
        assert_says(
            sdpa(&q, &k, &v, &op, None),
            &[&["sdpa: requires", "got"], words].concat(),
        );
        let candles = candle_sdpa(&q, &k, &v, None, false, 1.0, 1.0);
        assert_says(candles, &[&["sdpa: requires"], words].concat());
    }
    let [q, k, v] = [t(good[0])?, t(good[1])?, t(good[2])?];
    let no_heads = nothing(&[2, 0, 7, 4], DType::F32, device)?;
    let no_values = nothing(&[2, 0, 7, 8], DType::F32, device)?;
    assert_says(
        sdpa(&q, &no_heads, &no_values, &op, None),
        &["kv heads that divides"],
    );
    let half = |t: &Tensor| t.to_dtype(DType::F16);
    for [q, k, v] in [
        [half(&q)?, k.clone(), v.clone()],
        [q.clone(), half(&k)?, v.clone()],
        [q.clone(), k.clone(), half(&v)?],
    ] {
        let words = ["sdpa: requires q, k and v of one dtype, got", "f16", "f32"];
        assert_says(sdpa(&q, &k, &v, &op, None), &words);
    }
    let whole = |t: &Tensor| t.to_dtype(DType::U32);
    let words = ["sdpa: requires a tensor of f16, bf16, f32 or f64, got u32"];
    assert_says(
        sdpa(&whole(&q)?, &whole(&k)?, &whole(&v)?, &op, None),
        &words,
    );
    Ok(())
}

fn errors_of_the_operator(device: &Device) -> Result<()> {
    let [q, k, v] = SIZES.made(DType::F16, device)?;
    let operands = [bits(&q)?, bits(&k)?, bits(&v)?];
    let op = AttentionSoftmax::new(1.0);
    let wide = op.clone().f32_output();
    assert_says(
        sdpa(&q, &k, &v, &wide, None),
        &["sdpa: requires", "f16", "f32 output"],
    );
    let mask = boolean_mask(&[5, 32], device)?;
    assert_says(
        sdpa(&q, &k, &v, &op, Some(&mask)),
        &["requires a mask that broadcasts"],
    );
    let mask = boolean_mask(&[5, 33], device)?;
    assert_says(
        sdpa(&q, &k, &v, &op.mask(&mask), Some(&mask)),
        &["requires one mask"],
    );
    assert!(
        operands == [bits(&q)?, bits(&k)?, bits(&v)?],
        "an operand was written"
    );
    let [q, k, v] = SIZES.made(DType::F32, device)?;
    sdpa(&q, &k, &v, &wide, None).map(|_| ())
}
