//! c · tanh(s / c), and its gradient.

use super::rows::each_task;
use super::simd::{filled, map, Filled, Kernel, Simd, Vectors, Visitor};
use super::{Element, Real};
use candle_core::{Error, Result};
use std::mem::MaybeUninit;

/// exp(-2|x|), of which tanh is made: never more than 1, and accurate where tanh is not small.
struct Decay<C: Real, S: Simd<C>> {
    floor: S::V,
    powers: S::Powers,
}

impl<C: Real, S: Simd<C>> Decay<C, S> {
    #[inline(always)]
    fn new(s: S) -> Self {
        Self {
            floor: s.splat(-C::BIAS * C::LN_2),
            powers: s.powers(C::ROUND - C::BIAS * C::STEPS), // 1 comes of 0
        }
    }

    #[inline(always)]
    fn of(&self, s: S, x: S::V) -> S::V {
        let twice = s.add(x, x);
        let negative = s.where_less(
            s.splat(C::ZERO),
            twice,
            s.sub(s.splat(C::ZERO), twice),
            twice,
        );
        C::exp(s, negative, self.floor, self.powers, None)
    }
}

/// c · tanh(s / c).
pub struct Softcap<C: Real, S: Simd<C>> {
    cap: S::V,
    decay: Decay<C, S>,
}

impl<C: Real, S: Simd<C>> Softcap<C, S> {
    #[inline(always)]
    pub fn new(s: S, cap: f32) -> Self {
        Self {
            cap: s.splat(C::from_f64(f64::from(cap))),
            decay: Decay::new(s),
        }
    }

    #[inline(always)]
    pub fn of(&self, s: S, t: S::V) -> S::V {
        let (zero, one) = (s.splat(C::ZERO), s.splat(C::ONE));
        let x = s.div(t, self.cap);
        let e = self.decay.of(s, x);
        let size = s.sub(one, s.div(s.add(e, e), s.add(one, e)));
        let signed = s.where_less(x, zero, s.sub(zero, size), size);
        // Where it is small, the difference has lost digits.
        let limit = C::from_f64(0.625);
        let inner = s.where_less(x, s.splat(limit), C::tanh_small(s, x), signed);
        let tanh = s.where_less(x, s.splat(-limit), signed, inner);
        s.mul(self.cap, tanh)
    }
}

/// scale · u · (1 - tanh²(scale · s / cap)), of u and s.
struct Gradient<C: Real, S: Simd<C>> {
    scale: S::V,
    cap: S::V,
    decay: Decay<C, S>,
}

impl<C: Real, S: Simd<C>> Visitor<C, S, 2> for Gradient<C, S> {
    /// 1 - tanh² is 4e / (1 + e)² with e = exp(-2|x|), no digits lost.
    #[inline(always)]
    fn vector(&mut self, s: S, _: usize, [u, x]: [S::V; 2]) -> S::V {
        let e = self.decay.of(s, s.div(s.mul(x, self.scale), self.cap));
        let sum = s.add(s.splat(C::ONE), e);
        let twice = s.div(s.add(e, e), sum);
        let slope = s.div(s.add(twice, twice), sum);
        s.unless_zero(u, s.mul(s.mul(self.scale, u), slope))
    }
}

/// scale · u · (1 - tanh²(scale · s / cap)) for each u and s; 0 where u is, whatever s.
pub fn softcap_backward<T: Element>(
    name: &str,
    u: &[T],
    s: &[T],
    scale: f32,
    cap: f32,
) -> Result<Vec<T>> {
    if u.len() != s.len() {
        candle_core::bail!(
            "{name}: requires operands of one length, got {} and {}",
            u.len(),
            s.len()
        )
    }
    if u.is_empty() {
        return Ok(Vec::new());
    }
    let threads = rayon::current_num_threads();
    filled(u.len(), |room| {
        let tasks = each_task(
            room,
            1,
            threads,
            |_| Ok(()),
            |first, room, ()| {
                let x = [u, s].map(|x| &x[first..][..room.len()]);
                T::dispatch(Gradients {
                    x,
                    scale,
                    cap,
                    room,
                })
            },
        )?;
        Ok(tasks.into_iter().reduce(Filled::then).expect("a task"))
    })
    .map_err(|_| {
        Error::msg(format!(
            "{name}: requires memory for {} elements, got none",
            u.len()
        ))
    })
}

struct Gradients<'a, 'y, T> {
    x: [&'a [T]; 2],
    scale: f32,
    cap: f32,
    room: &'y mut [MaybeUninit<T>],
}

impl<'y, T: Element> Kernel<T> for Gradients<'_, 'y, T> {
    type Out = Filled<'y>;

    #[inline(always)]
    fn run<S: Vectors<T>>(self, s: S) -> Filled<'y> {
        let [scale, cap] =
            [self.scale, self.cap].map(|x| s.splat(T::Compute::from_f64(f64::from(x))));
        let mut gradient = Gradient::<T::Compute, S> {
            scale,
            cap,
            decay: Decay::new(s),
        };
        Filled::of(map(s, self.x, T::Compute::ZERO, self.room, &mut gradient))
    }
}
