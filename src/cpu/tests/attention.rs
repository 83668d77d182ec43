//! The softmax of attention scores against its definition in f64, each feature alone and in company.

use super::{forced, levels, numbers};
use crate::cpu::element::ResultOf;
use crate::cpu::{attention_softmax, attention_softmax_in_place, Biases, Element, Real};
use crate::scores::{Band, ScoreOp, ScoreRows};
use candle_core::{CpuStorage, Layout, Result, Shape};
use half::{bf16, f16};

/// What a test needs of an element type.
pub trait Float: Element + ResultOf<Self> {
    fn of(x: f64) -> Self;
    fn storage(elements: Vec<Self>) -> CpuStorage;
    /// The same for all NaN.
    fn bits(self) -> u64;
}

macro_rules! float {
    ($($float:ty, $dtype:ident, $of:expr);+) => {$(
        impl Float for $float {
            fn of(x: f64) -> Self {
                $of(x)
            }
            fn storage(elements: Vec<Self>) -> CpuStorage {
                CpuStorage::$dtype(elements)
            }
            fn bits(self) -> u64 {
                match self.widen().is_nan() {
                    true => u64::MAX,
                    false => self.to_bits().into(),
                }
            }
        }
    )+};
}

float!(f16, F16, f16::from_f64; bf16, BF16, bf16::from_f64; f32, F32, |x| x as f32; f64, F64, |x| x);

fn bits<T: Float>(x: &[T]) -> Vec<u64> {
    x.iter().map(|x| x.bits()).collect()
}

/// One call: the operator and the shapes of what broadcasts to (batch, heads, queries, keys).
#[derive(Clone, Debug)]
struct Case {
    shape: [usize; 4],
    op: ScoreOp,
    added: Option<[usize; 4]>,
    /// Whether what is added is of the compute type.
    wide: bool,
    mask: Option<[usize; 4]>,
    slopes: bool,
    sinks: bool,
}

const PLAIN: ScoreOp = ScoreOp {
    scale: 1.0,
    softcap: None,
    band: Band::ALL,
    kv_offset: 0,
};

fn case(shape: [usize; 4]) -> Case {
    Case {
        shape,
        op: PLAIN,
        added: None,
        wide: false,
        mask: None,
        slopes: false,
        sinks: false,
    }
}

fn causal(offset: i64) -> Band {
    Band {
        first: -Band::FAR,
        last: offset,
    }
}

/// Each feature by itself, all pairs of them, all together.
fn cases(shape: [usize; 4]) -> Vec<Case> {
    let [b, h, q, k] = shape;
    let kv_offset = k as i64 - q as i64;
    let features: [fn(&mut Case); 10] = [
        |c| c.op.scale = 0.37,
        |c| c.op.softcap = Some(2.5),
        |c| c.op.band = causal(c.op.kv_offset),
        |c| {
            c.op.band = Band {
                first: c.op.kv_offset - 3,
                last: c.op.kv_offset + 1,
            }
        },
        |c| c.added = Some(c.shape),
        |c| (c.added, c.wide) = (Some([1, c.shape[1], 1, c.shape[3]]), true),
        |c| c.mask = Some(c.shape),
        |c| c.mask = Some([c.shape[0], 1, c.shape[2], 1]),
        |c| c.slopes = true,
        |c| c.sinks = true,
    ];
    let mut plain = case([b, h, q, k]);
    plain.op.kv_offset = kv_offset;
    let mut cases = vec![plain.clone()];
    for (i, first) in features.iter().enumerate() {
        for second in &features[i..] {
            let mut case = plain.clone();
            first(&mut case);
            second(&mut case);
            cases.push(case);
        }
    }
    let mut all = plain;
    features.iter().for_each(|feature| feature(&mut all));
    cases.push(all);
    cases
}

/// The operands of a case, and where they lie.
struct Operands<T: Float> {
    scores: (Vec<T>, Layout),
    added: Option<(CpuStorage, Vec<f64>, Layout)>,
    mask: Option<(Vec<u8>, Layout)>,
    slopes: Option<(CpuStorage, Vec<f64>, Layout)>,
    sinks: Option<(CpuStorage, Vec<f64>, Layout)>,
}

fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

fn contiguous(shape: [usize; 4]) -> Layout {
    Layout::contiguous(&shape[..])
}

/// `numbers` as elements, and what these are.
fn stored<T: Float>(numbers: Vec<f64>) -> (CpuStorage, Vec<f64>) {
    let elements: Vec<T> = numbers.into_iter().map(T::of).collect();
    let numbers = elements.iter().map(|x| x.widen().to_f64()).collect();
    (T::storage(elements), numbers)
}

fn operands<T: Float>(case: &Case, seed: u64) -> Operands<T>
where
    T::Compute: Float,
{
    // No NaN or infinity of its own accord.
    let tame = |seed, len, size: f64| -> Vec<f64> {
        let number = |x: f64| if x.abs() < 8.0 { x * size } else { 0.5 };
        numbers(seed, len, number_of)
            .into_iter()
            .map(number)
            .collect()
    };
    let heads = case.shape[1];
    let one_a_head = |seed, size| {
        // They may begin anywhere.
        let (storage, numbers) = stored::<T::Compute>(tame(seed, heads + 3, size));
        (
            storage,
            numbers[2..].to_vec(),
            Layout::new(Shape::from(heads), vec![1], 2),
        )
    };
    let scores = tame(seed, len(case.shape), 1.0)
        .into_iter()
        .map(T::of)
        .collect();
    Operands {
        scores: (scores, contiguous(case.shape)),
        added: case.added.map(|shape| {
            let added = tame(seed + 1, len(shape), 1.0);
            let (storage, numbers) = match case.wide {
                true => stored::<T::Compute>(added),
                false => stored::<T>(added),
            };
            (storage, numbers, contiguous(shape))
        }),
        mask: case.mask.map(|shape| {
            let mask = tame(seed + 2, len(shape), 1.0);
            // Any number that is not 0 keeps.
            let mask = mask.iter().map(|&x| {
                if x > 1.0 {
                    0
                } else {
                    1 + (x > 0.0) as u8 * 200
                }
            });
            (mask.collect(), contiguous(shape))
        }),
        slopes: case.slopes.then(|| one_a_head(seed + 3, 0.2)),
        sinks: case.sinks.then(|| one_a_head(seed + 4, 1.0)),
    }
}

fn number_of(x: f64) -> f64 {
    x
}

impl<T: Float> Operands<T> {
    fn rows(&self, case: &Case, out: &Layout) -> Result<ScoreRows> {
        let by_query = case.op.band != Band::ALL || case.slopes;
        let broadcast = [
            self.added.as_ref().map(|added| &added.2),
            self.mask.as_ref().map(|mask| &mask.1),
        ];
        let by_head = case.slopes || case.sinks;
        ScoreRows::new("op", [&self.scores.1, out], broadcast, by_head, by_query)
    }

    fn biases<'a>(&'a self, case: &Case, rows: &'a ScoreRows) -> Result<Biases<'a, T>> {
        let at = |x: &'a Option<(CpuStorage, Vec<f64>, Layout)>| x.as_ref().map(|x| (&x.0, &x.2));
        let mask = self.mask.as_ref().map(|mask| &mask.0[..]);
        Biases::new(
            case.op,
            rows,
            at(&self.added),
            mask,
            at(&self.slopes),
            at(&self.sinks),
        )
    }

    fn softmax<O: ResultOf<T> + Element<Compute = T::Compute>>(
        &self,
        case: &Case,
    ) -> Result<(Vec<O>, Vec<T::Compute>)> {
        let rows = self.rows(case, &contiguous(case.shape))?;
        let (y, lse) = attention_softmax("op", &self.scores.0, &self.biases(case, &rows)?, true)?;
        Ok((y, lse.expect("asked for")))
    }
}

/// By the definition, in f64: the probabilities (none where masked), each row's log-sum-exp, and the size of a row's terms, of which rounding
/// loses a share.
fn reference<T: Float>(case: &Case, given: &Operands<T>) -> (Vec<Option<f64>>, Vec<f64>, Vec<f64>) {
    let [batch, heads, queries, keys] = case.shape;
    let of = |shape: Option<[usize; 4]>, at: [usize; 4]| {
        let shape = shape.expect("there");
        (0..4).fold(0, |o, i| {
            o * shape[i] + if shape[i] == 1 { 0 } else { at[i] }
        })
    };
    let (mut y, mut lse, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for (b, h, i) in (0..batch * heads * queries)
        .map(|row| (row / heads / queries, row / queries % heads, row % queries))
    {
        let sink = given.sinks.as_ref().map(|sinks| sinks.1[h]);
        let mut size = sink.unwrap_or(0.0).abs();
        let logits: Vec<Option<f64>> = (0..keys)
            .map(|j| {
                let at = [b, h, i, j];
                let seen = case.op.band.keys(i, keys).contains(&j);
                let kept = given
                    .mask
                    .as_ref()
                    .is_none_or(|mask| mask.0[of(case.mask, at)] != 0);
                if !seen || !kept {
                    return None;
                }
                let x = given.scores.0[of(Some(case.shape), at)].widen().to_f64();
                let mut t = x * f64::from(case.op.scale);
                let mut terms = t.abs();
                if let Some(cap) = case.op.softcap {
                    t = f64::from(cap) * (t / f64::from(cap)).tanh();
                    terms += f64::from(cap);
                }
                if let Some(slopes) = &given.slopes {
                    let away = slopes.1[h] * (i as i64 + case.op.kv_offset - j as i64).abs() as f64;
                    t -= away;
                    terms += away.abs();
                }
                if let Some(added) = &given.added {
                    t += added.1[of(case.added, at)];
                    terms += added.1[of(case.added, at)].abs();
                }
                size = size.max(terms);
                Some(t)
            })
            .collect();
        let all = || logits.iter().flatten().copied().chain(sink);
        let m = all().fold(f64::NEG_INFINITY, f64::max);
        let d: f64 = all().map(|t| (t - m).exp()).sum();
        let p = |t: &Option<f64>| t.map(|t| (t - m).exp() / d);
        y.extend(logits.iter().map(p));
        lse.push(if m.is_finite() { m + d.ln() } else { m });
        sizes.push(size);
    }
    (y, lse, sizes)
}

/// `unit`: how much rounding loses, relative; `widest`: of results in the compute type.
fn check<T: Float>(seed: u64, case: &Case, narrow: f64, wide: f64, unit: f64) -> Result<()>
where
    T::Compute: Float + ResultOf<T>,
{
    let given = operands::<T>(case, seed);
    let (want, want_lse, sizes) = reference(case, &given);
    let (y, lse) = given.softmax::<T>(case)?;
    let (y_wide, lse_wide) = given.softmax::<T::Compute>(case)?;
    assert_eq!(bits(&lse), bits(&lse_wide));
    let keys = case.shape[3];
    for (i, &want) in want.iter().enumerate() {
        let Some(want) = want else {
            assert_eq!((y[i].bits(), y_wide[i].bits()), (0, 0), "{case:?} at {i}");
            continue;
        };
        let size = sizes[i / keys];
        let off = |got: f64| (got - want).abs() / want.max(1e-30);
        let (narrow, wide) = (narrow + 4.0 * unit * size, wide + 4.0 * unit * size);
        let (got, got_wide) = (y[i].widen().to_f64(), y_wide[i].to_f64());
        // Halves below their normal range are off by more.
        let small = want < 7e-5 && (got - want).abs() < 6e-8;
        assert!(
            off(got) <= narrow || small,
            "{case:?} at {i}: {got:e}, not {want:e}"
        );
        assert!(
            off(got_wide) <= wide,
            "{case:?} at {i}: {got_wide:e}, not {want:e}"
        );
    }
    for (row, (&got, &want)) in lse.iter().zip(&want_lse).enumerate() {
        let bound = unit * (8.0 + 16.0 * want.abs() + 4.0 * sizes[row]);
        let got = got.to_f64();
        assert!(
            got == want || (got - want).abs() <= bound,
            "{case:?} row {row}: {got}, not {want}"
        );
    }
    Ok(())
}

const SMALL: [[usize; 4]; 4] = [[2, 3, 5, 7], [1, 2, 9, 33], [2, 2, 3, 130], [1, 1, 2, 1300]];

#[test]
fn features_and_their_pairs() -> Result<()> {
    for (seed, shape) in SMALL.into_iter().enumerate() {
        for case in cases(shape) {
            let seed = 10 * seed as u64;
            check::<f32>(seed, &case, 2e-6, 2e-6, 1.2e-7)?;
            check::<f64>(seed, &case, 1e-13, 1e-13, 2.3e-16)?;
            check::<f16>(seed, &case, 1.0 / 1024.0, 2e-6, 1.2e-7)?;
            check::<bf16>(seed, &case, 1.0 / 128.0, 2e-6, 1.2e-7)?;
        }
    }
    Ok(())
}

#[test]
fn long_rows() -> Result<()> {
    for case in cases([1, 1, 2, 150_001]).into_iter().step_by(7) {
        check::<f32>(5, &case, 2e-6, 2e-6, 1.2e-7)?;
        check::<bf16>(5, &case, 1.0 / 128.0, 2e-6, 1.2e-7)?;
    }
    Ok(())
}

#[test]
fn levels_and_threads_give_the_same() -> Result<()> {
    fn same<T: Float>() -> Result<()>
    where
        T::Compute: Float + ResultOf<T>,
    {
        for shape in [[2, 3, 5, 7], [1, 2, 300, 301], [1, 1, 2, 70_001]] {
            for case in cases(shape).into_iter().step_by(3) {
                let given = operands::<T>(&case, 3);
                let all = || -> Result<_> {
                    let (y, lse) = given.softmax::<T>(&case)?;
                    Ok((
                        bits(&y),
                        bits(&lse),
                        bits(&given.softmax::<T::Compute>(&case)?.0),
                    ))
                };
                let want = all()?;
                for level in levels() {
                    assert!(forced::at(level, all)? == want, "{case:?} at {level:?}");
                }
                for threads in [1, 3] {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    let got = pool.expect("a pool").install(all)?;
                    assert!(got == want, "{case:?} on {threads} threads");
                }
            }
        }
        Ok(())
    }
    same::<f16>()?;
    same::<bf16>()?;
    same::<f32>()?;
    same::<f64>()
}

/// The same numbers, `step` apart and transposed where `by_key`: (storage, layout).
fn spread<X: Copy + Default>(
    x: &[X],
    shape: [usize; 4],
    by_key: bool,
    step: usize,
) -> (Vec<X>, Layout) {
    let [b, h, q, k] = shape;
    let strides = match by_key {
        true => [h * q * k, q * k, 1, q],
        false => [h * q * k, q * k, k, 1],
    };
    let strides = strides.map(|stride| stride * step);
    let mut spread = vec![X::default(); 5 + step * x.len()];
    for (i, &x) in x.iter().enumerate() {
        let at = [i / (h * q * k), i / (q * k) % h, i / k % q, i % k];
        spread[5 + (0..4).map(|d| at[d] * strides[d]).sum::<usize>()] = x;
    }
    let layout = Layout::new(Shape::from(&[b, h, q, k][..]), strides.to_vec(), 5);
    (spread, layout)
}

#[test]
fn strides_and_in_place_give_the_same() -> Result<()> {
    fn same<T: Float>() -> Result<()>
    where
        T::Compute: Float + ResultOf<T>,
    {
        for shape in [[2, 3, 5, 7], [1, 2, 40, 300]] {
            for case in cases(shape).into_iter().step_by(2) {
                let mut given = operands::<T>(&case, 3);
                let want = bits(&given.softmax::<T>(&case)?.0);
                let scores = given.scores.0.clone();
                for (by_key, step) in [(false, 1), (false, 2), (true, 1), (true, 3)] {
                    given.scores = spread(&scores, shape, by_key, step);
                    if let (Some((mask, at)), Some(of)) = (&mut given.mask, case.mask) {
                        (*mask, *at) = spread(
                            &operands::<T>(&case, 3).mask.expect("there").0,
                            of,
                            by_key,
                            step,
                        );
                    }
                    assert_eq!(
                        bits(&given.softmax::<T>(&case)?.0),
                        want,
                        "{case:?} {by_key} {step}"
                    );
                    let rows = given.rows(&case, &given.scores.1)?;
                    let mut y = given.scores.0.clone();
                    attention_softmax_in_place("op", &mut y, &given.biases(&case, &rows)?)?;
                    let places =
                        spread(&(0..scores.len()).collect::<Vec<_>>(), shape, by_key, step).0;
                    let mut got = vec![0; scores.len()];
                    for (&place, y) in places.iter().zip(&y) {
                        if place != 0 {
                            got[place] = y.bits();
                        }
                    }
                    got[0] = y[5].bits();
                    assert_eq!(got, want, "in place {case:?} {by_key} {step}");
                }
            }
        }
        Ok(())
    }
    same::<f16>()?;
    same::<bf16>()?;
    same::<f32>()?;
    same::<f64>()
}

#[test]
fn scores_may_broadcast() -> Result<()> {
    let case = case([2, 3, 4, 5]);
    let mut given = operands::<f32>(&case, 3);
    given.scores.1 = Layout::new(Shape::from(&[2, 3, 4, 5][..]), vec![0, 0, 5, 1], 20);
    let (y, _) = given.softmax::<f32>(&case)?;
    let (want, _) = {
        let case = self::case([1, 1, 4, 5]);
        let scores = (given.scores.0[20..40].to_vec(), contiguous([1, 1, 4, 5]));
        Operands {
            scores,
            ..operands::<f32>(&case, 3)
        }
        .softmax::<f32>(&case)?
    };
    assert_eq!(bits(&y), bits(&want).repeat(6));
    Ok(())
}

/// Scores of one row.
fn row(scores: &[f32], mask: Option<&[u8]>, sink: Option<f32>) -> Result<(Vec<f32>, f32)> {
    let shape = [1, 1, 1, scores.len()];
    let mut case = case(shape);
    (case.mask, case.sinks) = (mask.map(|_| shape), sink.is_some());
    let given = Operands {
        scores: (scores.to_vec(), contiguous(shape)),
        added: None,
        mask: mask.map(|mask| (mask.to_vec(), contiguous(shape))),
        slopes: None,
        sinks: sink.map(|sink| (CpuStorage::F32(vec![sink]), vec![], Layout::contiguous(1))),
    };
    let (y, lse) = given.softmax::<f32>(&case)?;
    Ok((y, lse[0]))
}

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn what_is_masked_is_not_looked_at() -> Result<()> {
    for len in [2, 40, 1500, 70_000] {
        let (mut scores, mut mask) = (vec![1.0; len], vec![1; len]);
        let (y, lse) = row(&scores, None, None)?;
        assert!(
            (y[0] * len as f32 - 1.0).abs() < 1e-6 && (lse - 1.0 - (len as f32).ln()).abs() < 2e-6
        );
        for x in [NAN, INF, -INF] {
            (scores[1], mask[1]) = (x, 0);
            let (y, lse) = row(&scores, Some(&mask), None)?;
            assert!((y[0] * (len - 1) as f32 - 1.0).abs() < 1e-6 && y[1].to_bits() == 0);
            assert!((lse - 1.0 - (len as f32 - 1.0).ln()).abs() < 2e-6);
        }
    }
    // Of what is added, too, and where the band ends.
    let mut case = case([1, 1, 2, 3]);
    (case.op.band, case.added, case.mask) = (causal(1), Some(case.shape), Some(case.shape));
    let mut given = operands::<f32>(&case, 1);
    given.scores.0 = vec![0., 0., NAN, 0., NAN, 0.];
    given.added = Some((
        CpuStorage::F32(vec![0., 0., INF, 0., NAN, 0.]),
        vec![],
        contiguous(case.shape),
    ));
    given.mask = Some((vec![1, 1, 1, 1, 0, 1], contiguous(case.shape)));
    let (y, lse) = given.softmax::<f32>(&case)?;
    assert_eq!(y, [0.5, 0.5, 0., 0.5, 0., 0.5]);
    assert_eq!(lse, [2f32.ln(); 2]);
    Ok(())
}

#[test]
fn rows_of_nothing_and_of_too_much() -> Result<()> {
    for len in [1, 5, 200, 66_000] {
        let of = |x: f32| [vec![x], vec![-INF; len - 1]].concat();
        // Nothing is kept, or nothing but -inf.
        for (x, mask) in [
            (3.0, Some(vec![0; len])),
            (NAN, Some(vec![0; len])),
            (-INF, None),
        ] {
            for sink in [None, Some(-INF), Some(2.5)] {
                let (y, lse) = row(&of(x), mask.as_deref(), sink)?;
                assert!(y.iter().all(|y| y.to_bits() == 0), "{len} {x} {sink:?}");
                assert_eq!(lse, sink.unwrap_or(-INF), "{len} {x} {sink:?}");
            }
        }
        for (x, sink, want) in [
            (NAN, None, NAN),
            (NAN, Some(1.0), NAN),
            (INF, None, INF),
            (INF, Some(1.0), INF),
            (1.0, Some(NAN), NAN),
            (1.0, Some(INF), INF),
            (NAN, Some(INF), NAN),
            (INF, Some(NAN), NAN),
        ] {
            // Masked positions are NaN then too.
            let mut mask = vec![0; len];
            mask[0] = 1;
            for mask in [None, Some(&mask[..])] {
                let (y, lse) = row(&of(x), mask, sink)?;
                assert!(y.iter().all(|y| y.is_nan()), "{len} {x} {sink:?}");
                assert_eq!(lse.bits(), want.bits(), "{len} {x} {sink:?}");
            }
        }
        // As if of one score more.
        let (y, lse) = row(&of(1.0), None, Some(1.0))?;
        assert!((y[0] - 0.5).abs() < 1e-7 && (lse - 1.0 - 2f32.ln()).abs() < 1e-6);
        let (y, lse) = row(&of(1.0), None, Some(-INF))?;
        assert!((y[0] - 1.0).abs() < 1e-7 && (lse - 1.0).abs() < 1e-6);
    }
    let mut case = case([1, 1, 2, 3]);
    case.op.band = causal(0);
    let mut given = operands::<f32>(&case, 1);
    given.scores.0 = vec![NAN, 0., 0., 0., 0., INF];
    let (y, _) = given.softmax::<f32>(&case)?;
    assert!(y[..3].iter().all(|y| y.is_nan()), "beyond the band too");
    assert_eq!(y[3..], [0.5, 0.5, 0.]);
    Ok(())
}

#[test]
fn empty_shapes() -> Result<()> {
    for shape in [[0, 2, 3, 4], [2, 0, 3, 4], [2, 3, 0, 4], [2, 3, 4, 0]] {
        for case in cases(shape) {
            let given = operands::<f32>(&case, 3);
            let (y, lse) = given.softmax::<f32>(&case)?;
            assert!(y.is_empty());
            assert_eq!(lse.len(), shape[0] * shape[1] * shape[2]);
            for (row, lse) in lse.into_iter().enumerate() {
                let sink = given
                    .sinks
                    .as_ref()
                    .map(|sinks| sinks.1[row / shape[2] % shape[1]]);
                assert_eq!(f64::from(lse), sink.unwrap_or(f64::NEG_INFINITY));
            }
            let rows = given.rows(&case, &given.scores.1)?;
            attention_softmax_in_place("op", &mut [0f32; 0], &given.biases(&case, &rows)?)?;
        }
    }
    Ok(())
}

#[test]
fn softcap_is_accurate_near_0_and_far_off() -> Result<()> {
    // Logits to 1e-30 of one another: only a tanh that is right relative to itself tells them apart.
    let mut case = case([1, 1, 1, 2]);
    case.op.softcap = Some(50.0);
    for x in [1e-3f32, 0.7, 20.0, 31.2, 31.3, 80.0, 1e4, INF] {
        for x in [x, -x] {
            let mut given = operands::<f32>(&case, 1);
            given.scores.0 = vec![x, 0.0];
            let (_, lse) = given.softmax::<f32>(&case)?;
            let t = 50.0 * (f64::from(x) / 50.0).tanh();
            let want = (1.0 + t.exp()).ln();
            assert!(
                (f64::from(lse[0]) - want).abs() <= 2e-7 * t.abs() + 2e-7,
                "{x}"
            );
        }
    }
    Ok(())
}

#[test]
fn errors_say_what_was_wanted() -> Result<()> {
    let mut case = case([1, 2, 3, 4]);
    (case.added, case.slopes, case.sinks) = (Some(case.shape), true, true);
    let error = |given: &Operands<f16>| -> Result<String> {
        let rows = given.rows(&case, &contiguous(case.shape))?;
        Ok(given
            .biases(&case, &rows)
            .err()
            .expect("an error")
            .to_string())
    };
    let mut given = operands::<f16>(&case, 1);
    given.added = Some((
        CpuStorage::F64(vec![0.0; 24]),
        vec![],
        contiguous(case.shape),
    ));
    assert!(error(&given)?
        .starts_with("attention-softmax: requires a mask or bias of f16 or f32, got f64"));
    given.added = Some((
        CpuStorage::F16(vec![f16::ZERO; 23]),
        vec![],
        contiguous(case.shape),
    ));
    assert!(error(&given)?.contains("requires a layout within its storage of 23"));
    let mut given = operands::<f16>(&case, 1);
    given.sinks = Some((
        CpuStorage::F16(vec![f16::ZERO; 2]),
        vec![],
        Layout::contiguous(2),
    ));
    assert!(error(&given)?.starts_with("attention-softmax: requires sinks of f32, got f16"));
    let mut given = operands::<f16>(&case, 1);
    given.slopes = Some((CpuStorage::F32(vec![0.0; 1]), vec![], Layout::contiguous(1)));
    assert!(error(&given)?.contains("within its storage of 1"));
    given.slopes = Some((CpuStorage::F32(vec![0.0; 2]), vec![], Layout::contiguous(3)));
    assert!(error(&given)?.contains("requires contiguous slopes within their storage"));
    let given = operands::<f16>(&case, 1);
    let rows = given.rows(&case, &contiguous(case.shape))?;
    let biases = given.biases(&case, &rows)?;
    let short = &given.scores.0[1..];
    assert!(attention_softmax::<f16, f16>("op", short, &biases, false).is_err());
    assert!(attention_softmax_in_place("op", &mut short.to_vec(), &biases).is_err());
    Ok(())
}
