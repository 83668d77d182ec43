//! Random features, shapes, layouts and values: what every softmax of attention scores must hold.

use crate::attention_inputs::{additive_mask, attention, boolean_mask, Feature, FEATURES};
use crate::attention_reference::Attention;
use crate::compare::{assert_same_bits, bits, values};
use crate::inputs::{max_of, tensor, Rng, DTYPES};
use candle_core::{DType, Device, Result, Tensor};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

on_devices!(random_operators);

/// How the scores lie in memory.
#[derive(Debug, Clone, Copy)]
enum Lying {
    Contiguous,
    HeadsInside,
    KeysOutside,
    Narrowed(usize),
    EverySecond,
    OneBatch,
}

#[derive(Debug, Clone)]
struct Input {
    dtype: DType,
    shape: [usize; 4],
    /// Leading dims left away.
    rank: usize,
    features: Vec<Feature>,
    /// Dims that bias and mask broadcast over, by bit.
    ones: usize,
    lying: Lying,
    /// One score in so many is special.
    special: Option<u64>,
    spread: f64,
    seed: u64,
}

fn input() -> impl Strategy<Value = Input> {
    let shape = (1..4usize, 1..5usize, 1..12usize, 1..300usize);
    let lying = prop_oneof![
        2 => Just(Lying::Contiguous),
        2 => Just(Lying::HeadsInside),
        1 => Just(Lying::KeysOutside),
        2 => (0..9usize).prop_map(Lying::Narrowed),
        1 => Just(Lying::EverySecond),
        1 => Just(Lying::OneBatch),
    ];
    (
        prop::sample::select(&DTYPES[..]),
        shape,
        2..5usize,
        prop::sample::subsequence(&FEATURES[..], 0..=FEATURES.len()),
        0..16usize,
        lying,
        prop::option::weighted(0.3, 2..200u64),
        prop_oneof![Just(1.0), Just(30.0)],
        any::<u64>(),
    )
        .prop_map(
            |(dtype, shape, rank, features, ones, lying, special, spread, seed)| Input {
                dtype,
                shape: shape.into(),
                rank,
                features,
                ones,
                lying,
                special,
                spread,
                seed,
            },
        )
}

impl Input {
    fn elements(&self, count: usize) -> Vec<f64> {
        let mut rng = Rng::new(self.seed);
        let specials = [
            f64::NEG_INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            f64::INFINITY,
        ];
        let each = |rng: &mut Rng| match self.special.map(|one_in| rng.next() % one_in) {
            Some(0) => match rng.next() as usize % 6 {
                4 => max_of(self.dtype) / 64.0,
                5 => -max_of(self.dtype),
                k => specials[k],
            },
            _ => self.spread * rng.normal(),
        };
        (0..count).map(|_| each(&mut rng)).collect()
    }

    fn scores(&self, device: &Device) -> Result<Tensor> {
        let [b, h, q, k] = self.shape;
        let made = |dims: [usize; 4]| {
            let count = dims.iter().product();
            tensor(&self.elements(count), &dims, self.dtype, device)
        };
        let mut scores = match self.lying {
            Lying::Contiguous => made([b, h, q, k]),
            Lying::HeadsInside => made([b, q, h, k])?.transpose(1, 2),
            Lying::KeysOutside => made([b, h, k, q])?.transpose(2, 3),
            Lying::Narrowed(by) => made([b, h, q, k + 9])?.narrow(3, by, k),
            Lying::EverySecond => made([b, h, 2 * q, k])?
                .reshape((b, h, q, 2, k))?
                .narrow(3, 1, 1)?
                .squeeze(3),
            Lying::OneBatch => made([1, h, q, k])?.broadcast_as((b, h, q, k)),
        }?;
        for _ in self.rank..4 {
            scores = scores.narrow(0, 0, 1)?.squeeze(0)?;
        }
        Ok(scores)
    }

    fn operator(&self, shape: &[usize], device: &Device) -> Result<Attention> {
        let mut op = attention(&self.features, shape, self.dtype, device)?;
        let dim = |d: usize| if self.ones >> d & 1 == 1 { 1 } else { shape[d] };
        let dims: Vec<usize> = (0..shape.len()).map(dim).collect();
        if op.bias.is_some() {
            op.bias = Some(additive_mask(&dims, self.dtype, device)?);
        }
        if op.mask.as_ref().is_some_and(|m| m.dtype() == DType::U8) {
            op.mask = Some(boolean_mask(&dims, device)?);
        }
        Ok(op)
    }
}

fn check(input: &Input, device: &Device) -> Result<()> {
    let scores = input.scores(device)?;
    let op = input.operator(scores.dims(), device)?;
    let before = bits(&scores)?;
    let y = op.check(&scores, "random")?;
    assert_eq!(bits(&scores)?, before, "an operand was written");
    let copy = scores.force_contiguous()?;
    assert_same_bits(&op.op().forward(&copy)?, &y, "strided and contiguous")?;
    let (with_lse, lse) = op.op().forward_with_lse(&scores)?;
    assert_same_bits(&with_lse, &y, "with the log-sum-exp")?;
    for (row, (got, want)) in values(&lse)?.into_iter().zip(op.rows(&scores)?).enumerate() {
        let same = got == want.lse || (got.is_nan() && want.lse.is_nan());
        let close = same || (got - want.lse).abs() <= want.lse_slack;
        assert!(close, "row {row}: {got}, should be {}", want.lse);
    }
    if y.dtype() == scores.dtype() {
        op.op().forward_inplace(&copy, None)?;
        assert_same_bits(&copy, &y, "in place")?;
    }
    Ok(())
}

/// 256, or `PROPTEST_CASES`.
fn random_operators(device: &Device) -> Result<()> {
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&input(), |input| {
        check(&input, device).map_err(|error| TestCaseError::fail(error.to_string()))
    });
    outcome.map_err(|failure| candle_core::Error::Msg(failure.to_string()))
}
