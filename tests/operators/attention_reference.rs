//! The plain f64 reference of attention's softmax: one score, one row, all rows. Written to be read.

use crate::compare::{probability_ok, values};
use crate::reference::softmax_row;
use candle_core::{DType, Device, Result, Tensor};
use candle_online_softmax::AttentionSoftmax;

/// What the operator is told.
#[derive(Debug, Clone, Default)]
pub struct Attention {
    pub scale: f32,
    pub softcap: Option<f32>,
    pub causal: bool,
    pub kv_offset: Option<usize>,
    pub window: [Option<usize>; 2],
    pub slopes: Option<Tensor>,
    pub sinks: Option<Tensor>,
    pub bias: Option<Tensor>,
    pub mask: Option<Tensor>,
    pub f32_output: bool,
}

/// What one row should be.
#[derive(Debug, Clone)]
pub struct Row {
    pub y: Vec<f64>,
    pub lse: f64,
    /// The relative error of each y that the roundings of the scores allow.
    pub slack: Vec<f64>,
    /// The absolute one of the log-sum-exp.
    pub lse_slack: f64,
}

/// What the softmax is taken of.
#[derive(Debug, Clone, Copy)]
struct Logit {
    value: f64,
    /// How far the operator's roundings may be off it.
    off: f64,
}

const DROPPED: Logit = Logit {
    value: f64::NEG_INFINITY,
    off: 0.0,
};

/// One query's view of its keys.
struct Query<'a> {
    /// Index of the row's query, and of all.
    query: usize,
    queries: usize,
    keys: usize,
    slope: Option<f64>,
    sink: Option<f64>,
    bias: Option<&'a [f64]>,
    additive: Option<&'a [f64]>,
    boolean: Option<&'a [f64]>,
}

impl Attention {
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            ..Self::default()
        }
    }

    /// The operator under test.
    pub fn op(&self) -> AttentionSoftmax {
        let mut op = AttentionSoftmax::new(self.scale).window(self.window[0], self.window[1]);
        if let Some(cap) = self.softcap {
            op = op.softcap(cap);
        }
        op = match (self.causal, self.kv_offset) {
            (true, Some(offset)) => op.causal_with_offset(offset),
            (true, None) => op.causal(),
            (false, _) => op,
        };
        for (t, add) in [
            (&self.slopes, AttentionSoftmax::alibi as fn(_, &_) -> _),
            (&self.sinks, AttentionSoftmax::sinks),
            (&self.bias, AttentionSoftmax::bias),
            (&self.mask, AttentionSoftmax::mask),
        ] {
            if let Some(t) = t {
                op = add(op, t);
            }
        }
        match self.f32_output {
            true => op.f32_output(),
            false => op,
        }
    }

    /// All rows, of scores of any dtype and layout.
    pub fn rows(&self, scores: &Tensor) -> Result<Vec<Row>> {
        let dims = scores.dims();
        let (keys, queries) = (dims[dims.len() - 1], dims[dims.len() - 2]);
        let heads = dims.len().checked_sub(3).map_or(1, |dim| dims[dim]);
        let to = Computed(scores.dtype());
        let whole = |t: &Option<Tensor>| -> Result<Option<Vec<f64>>> {
            let t = t.as_ref().map(|t| t.broadcast_as(scores.shape()));
            let t = t.transpose()?.map(|t| values(&t)).transpose()?;
            Ok(t.map(|t| t.into_iter().map(|v| to.round(v)).collect()))
        };
        let numbers = |t: &Option<Tensor>| -> Result<Option<Vec<f64>>> {
            let t = t.as_ref().map(values).transpose()?;
            Ok(t.map(|t| t.into_iter().map(|v| to.round(v)).collect()))
        };
        let (slopes, sinks) = (numbers(&self.slopes)?, numbers(&self.sinks)?);
        let (bias, mask) = (whole(&self.bias)?, whole(&self.mask)?);
        let is_boolean = self.mask.as_ref().is_some_and(|m| m.dtype() == DType::U8);
        let (boolean, additive) = match is_boolean {
            true => (mask, None),
            false => (None, mask),
        };
        let scores = values(scores)?;
        let row = |(r, scores): (usize, &[f64])| {
            let head = r / queries % heads;
            let of_row = |t: &'_ Option<Vec<f64>>| t.as_ref().map(|_| r * keys..(r + 1) * keys);
            let slice = |t| of_row(t).map(|range| &t.as_ref().expect("some")[range]);
            self.row(
                scores,
                to,
                Query {
                    query: r % queries,
                    queries,
                    keys,
                    slope: slopes.as_ref().map(|s| s[head]),
                    sink: sinks.as_ref().map(|s| s[head]),
                    bias: slice(&bias),
                    additive: slice(&additive),
                    boolean: slice(&boolean),
                },
            )
        };
        Ok(scores.chunks(keys.max(1)).enumerate().map(row).collect())
    }

    fn row(&self, scores: &[f64], to: Computed, query: Query) -> Row {
        let logits = scores.iter().enumerate();
        let logits: Vec<Logit> = logits
            .map(|(key, &s)| match self.keeps(key, &query) {
                true => self.logit(s, key, to, &query),
                false => DROPPED,
            })
            .collect();
        let with_sink = logits.iter().map(|l| l.value).chain(query.sink);
        let with_sink: Vec<f64> = with_sink.collect();
        if with_sink.iter().all(|&v| v == f64::NEG_INFINITY) {
            return Row {
                y: vec![0.0; scores.len()],
                lse: f64::NEG_INFINITY,
                slack: vec![0.0; scores.len()],
                lse_slack: 0.0,
            };
        }
        let mut y = softmax_row(&with_sink);
        let top = with_sink.iter().copied().fold(f64::NAN, f64::max);
        let lse = match with_sink.iter().any(|v| v.is_nan()) {
            true => f64::NAN,
            false if top == f64::INFINITY => top,
            false => top + with_sink.iter().map(|v| (v - top).exp()).sum::<f64>().ln(),
        };
        y.truncate(scores.len());
        // y_j = exp(t_j) / Σ exp(t_i): its own error, and that of the sum; none where it is 0 all the same.
        let of_sum: f64 = y.iter().zip(&logits).map(|(y, t)| y * t.off).sum();
        let slack = |t: &Logit| match t.off + of_sum {
            off if t.value + off - lse < -760.0 => 0.0,
            off => off.exp_m1(),
        };
        Row {
            slack: logits.iter().map(slack).collect(),
            // ln(Σ) as exact as Σ, then added to the maximum: two roundings of what is no larger than both.
            lse_slack: of_sum + to.bound() + 2.0 * to.unit() * lse.abs().max(top.abs()),
            y,
            lse,
        }
    }

    fn keeps(&self, key: usize, query: &Query) -> bool {
        let offset = match self.kv_offset {
            Some(offset) if self.causal => offset as i64,
            _ => query.keys as i64 - query.queries as i64,
        };
        let (key_at, at) = (key as i64, query.query as i64 + offset);
        let left = self.window[0].is_none_or(|left| at - left as i64 <= key_at);
        let right = self.window[1].is_none_or(|right| key_at <= at + right as i64);
        let masked = query.boolean.is_some_and(|mask| mask[key] == 0.0);
        left && right && !masked && (!self.causal || key_at <= at)
    }

    /// The product is rounded, as the contract says; all else is exact here, and may be off in the operator by half a unit
    /// of each number on the way.
    fn logit(&self, s: f64, key: usize, to: Computed, query: &Query) -> Logit {
        let unit = to.unit();
        let mut off = 0.0;
        let mut t = to.round(s * f64::from(self.scale));
        if let Some(cap) = self.softcap.map(f64::from) {
            t = cap * (t / cap).tanh();
            // The quotient, tanh to two whole units, the product.
            off += 6.0 * unit * t.abs();
        }
        if let Some(slope) = query.slope {
            let offset = match self.kv_offset {
                Some(offset) if self.causal => offset as f64,
                _ => query.keys as f64 - query.queries as f64,
            };
            let away = slope * (query.query as f64 + offset - key as f64).abs();
            t -= away;
            off += unit * (away.abs() + t.abs());
        }
        let added = match (query.bias, query.additive) {
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => Some(one[key]),
            (Some(bias), Some(mask)) => {
                let sum = to.overflow(bias[key] + mask[key]);
                off += unit * sum.abs();
                Some(sum)
            }
        };
        if let Some(added) = added {
            t += added;
            off += unit * t.abs();
        }
        Logit {
            value: to.overflow(t),
            off: if off.is_finite() { off } else { 0.0 },
        }
    }

    /// The operator's probabilities are those of the reference.
    #[track_caller]
    pub fn check(&self, scores: &Tensor, what: &str) -> Result<Tensor> {
        let y = self.op().forward(scores)?;
        let wide = self.f32_output && scores.dtype() != DType::F64;
        let dtype = if wide { DType::F32 } else { scores.dtype() };
        assert_eq!((y.dims(), y.dtype()), (scores.dims(), dtype), "{what}");
        assert!(y.is_contiguous(), "{what}");
        assert_rows(&y, &self.rows(scores)?, what)?;
        Ok(y)
    }
}

/// Every element within the contract's bounds and what the scores' roundings allow; so are the sums of f32.
#[track_caller]
pub fn assert_rows(y: &Tensor, rows: &[Row], what: &str) -> Result<()> {
    let (dtype, got) = (y.dtype(), values(y)?);
    let keys = y.dims()[y.rank() - 1];
    assert_eq!(got.len(), rows.len() * keys, "{what}: element count");
    for (r, (got, want)) in got.chunks(keys.max(1)).zip(rows).enumerate() {
        for (j, (&g, (&w, &slack))) in got.iter().zip(want.y.iter().zip(&want.slack)).enumerate() {
            let ok = match w.is_nan() {
                true => g.is_nan(),
                false => probability_ok(dtype, g, w, slack),
            };
            let dims = y.dims();
            assert!(
                ok,
                "{what}, {dtype:?} {dims:?}, row {r}, key {j}: {g:e}, should be {w:e} within {slack:e}"
            );
        }
        if dtype == DType::F32 && !want.y.iter().any(|y| y.is_nan()) {
            let sum: f64 = got.iter().sum();
            let whole: f64 = want.y.iter().sum();
            let slack = want.y.iter().zip(&want.slack).filter(|(&y, _)| y > 0.0);
            let slack: f64 = slack.map(|(y, s)| y * s).sum();
            let bound = 1e-6 * (keys as f64).sqrt() / 32.0 + 2f64.powi(-22) + slack;
            assert!(
                (sum - whole).abs() <= bound,
                "{what}, row {r} sums to {sum}, not {whole}"
            );
        }
    }
    Ok(())
}

/// The dtype of the scores, as what it computes in.
#[derive(Debug, Clone, Copy)]
struct Computed(DType);

impl Computed {
    /// Half a unit in the last place, relative; in f64 this reference rounds as often as the operator.
    fn unit(self) -> f64 {
        match self.0 {
            DType::F64 => 2.0 * 2f64.powi(-53),
            _ => 2f64.powi(-24),
        }
    }

    /// The contract's relative error of a softmax.
    fn bound(self) -> f64 {
        match self.0 {
            DType::F64 => 1e-13,
            _ => 2e-6,
        }
    }

    fn round(self, v: f64) -> f64 {
        match self.0 {
            DType::F64 => v,
            _ => f64::from(v as f32),
        }
    }

    /// `v`, but for what is beyond every number of the type.
    fn overflow(self, v: f64) -> f64 {
        let rounded = self.round(v);
        if rounded.is_infinite() {
            rounded
        } else {
            v
        }
    }
}

#[test]
fn attention_by_hand() -> Result<()> {
    let ln3 = 3f64.ln();
    let scores = Tensor::new(&[[[0.0, ln3, 5.0], [0.0, 0.0, ln3]]], &Device::Cpu)?;
    let close = |got: &[f64], want: &[f64]| {
        let close = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12);
        assert!(close, "{got:?}, should be {want:?}");
    };
    let mut attention = Attention::new(1.0);
    attention.causal = true; // two queries of three keys: the first sees two
    let rows = attention.rows(&scores)?;
    close(&rows[0].y, &[0.25, 0.75, 0.0]);
    close(&rows[1].y, &[0.2, 0.2, 0.6]);
    close(&[rows[0].lse, rows[1].lse], &[4f64.ln(), 5f64.ln()]);
    attention.window[0] = Some(0);
    close(&attention.rows(&scores)?[0].y, &[0.0, 1.0, 0.0]);
    attention.window[0] = None;
    attention.kv_offset = Some(0);
    close(&attention.rows(&scores)?[0].y, &[1.0, 0.0, 0.0]);
    attention.sinks = Some(Tensor::new(&[ln3], &Device::Cpu)?);
    close(&attention.rows(&scores)?[0].y, &[0.25, 0.0, 0.0]);
    attention = Attention::new(1.0);
    attention.slopes = Some(Tensor::new(&[ln3], &Device::Cpu)?);
    // Query 1 is at position 2.
    let flat = scores.zeros_like()?;
    close(
        &attention.rows(&flat)?[1].y,
        &[1.0 / 13.0, 3.0 / 13.0, 9.0 / 13.0],
    );
    attention = Attention::new(2.0);
    attention.softcap = Some(1.5);
    let capped = |s: f64| (1.5 * (2.0 * s / 1.5).tanh()).exp();
    let all = [capped(0.0), capped(ln3), capped(5.0)];
    let sum: f64 = all.iter().sum();
    close(&attention.rows(&scores)?[0].y, &all.map(|e| e / sum));
    Ok(())
}
