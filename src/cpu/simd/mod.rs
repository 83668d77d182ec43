//! Vectors of f32 and f64: one trait, an implementation for each instruction set, and the choice among them at run
//! time. All `unsafe` of the CPU path is in this folder.
//!
//! | token | lanes of f32, f64 | where |
//! |---|---|---|
//! | `Avx512` | 16, 8 | x86-64 with AVX-512 F, BW, DQ and VL |
//! | `Avx2` | 8, 4 | x86-64 with AVX2, FMA and F16C |
//! | `Portable` | 8, 4 (arrays that LLVM turns into what there is: NEON, SSE2) | anywhere |
//!
//! A token is made only where the processor has its instructions, so its methods are safe. They are all
//! `#[inline(always)]`: intrinsics become instructions in the function with `#[target_feature]` that everything is
//! inlined into.
//!
//! Sums are taken in [`SUM_LANES`] accumulators whatever the lanes, and folded by halves: every set gives the same bits.
//! (But for one f32 in 2^29, where `Portable` has no fused multiply-add and takes f64 for it.)

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod map;
mod memory;
mod portable;

use map::largest_of;
pub use map::{
    combine, each, fill, keep, load_short, map, map_in_place, put, store_short, Visitor, ADDITIONS,
};
use memory::as_room;
pub use memory::{filled, filled_strips, overwrite, uninit, Filled, FilledStrip, Strip};

use super::{Element, Real};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Arithmetic on vectors of a compute type.
pub trait Simd<C: Real>: Copy + Send + Sync {
    /// A vector of `N` lanes.
    type V: Copy;
    /// What `power` looks up, for one reference.
    type Powers: Copy;
    const N: usize;

    fn splat(self, x: C) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `x` in the lanes where `a` is less than `b`, else `y`.
    fn where_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// +0 in the lanes where `y` is 0, else those of `v`.
    fn unless_zero(self, y: Self::V, v: Self::V) -> Self::V;
    /// Asks for the cache lines of `x`, which is soon read.
    #[inline(always)]
    fn prefetch<E>(self, _x: &[E]) {}
    /// `v` in the lanes where `mask`, which has `N` bytes or more, is not 0; -inf in the others.
    fn keep(self, v: Self::V, mask: &[u8]) -> Self::V;
    /// For `power` with `low`, ROUND and the integer that stands for 0.
    fn powers(self, low: C) -> Self::Powers;
    /// 2^((k - low) / STEPS), scaled so that 1 comes of `low` + STEPS · BIAS; 0 for k = low. k: ROUND and an integer.
    fn power(self, k: Self::V, powers: Self::Powers) -> Self::V;
    /// The largest lane, none of which is NaN.
    fn largest(self, v: Self::V) -> C;
    /// The sum of SUM_LANES accumulators, by halves; those past SUM_LANES / N are not looked at.
    fn sum(self, parts: [Self::V; 4]) -> C;

    /// `largest` of each of `N` vectors, in their order: a third of the instructions.
    fn largest_each(self, v: &[Self::V]) -> Self::V;
    /// The first steps of `sum`, down to a vector.
    fn join(self, parts: [Self::V; 4]) -> Self::V;
    /// The rest of them for each of `N` vectors, in their order.
    fn sum_each(self, v: &[Self::V]) -> Self::V;
}

/// Loads and stores of elements, converted once each way.
///
/// # Safety
///
/// `store` and `store_part` write what they say: initialised memory is made of that.
pub unsafe trait Access<E: Element>: Simd<E::Compute> {
    /// The first `N` of `x`, which has as many.
    fn load(self, x: &[E]) -> Self::V;
    /// All of `x`, fewer than `N`, and `fill` in the lanes after them.
    fn load_part(self, x: &[E], fill: E::Compute) -> Self::V;
    /// To the first `N` of `y`, which has as many; rounded to nearest even.
    fn store(self, v: Self::V, y: &mut [MaybeUninit<E>]);
    /// To all of `y`, fewer than `N`.
    fn store_part(self, v: Self::V, y: &mut [MaybeUninit<E>]);
    /// The largest number of `x`, NaN left out; -inf where there is none. Where there is a NaN, it may be -inf.
    #[inline(always)]
    fn largest_of(self, x: &[E]) -> E::Compute {
        largest_of(self, x)
    }
}

/// Vectors of elements and of their compute type.
pub trait Vectors<E: Element>: Access<E> + Access<E::Compute> {}

impl<E: Element, S: Access<E> + Access<E::Compute>> Vectors<E> for S {}

/// Work on elements, compiled once for each instruction set.
pub trait Kernel<E: Element> {
    type Out;
    /// `#[inline(always)]`, and so is all that it calls.
    fn run<S: Vectors<E>>(self, s: S) -> Self::Out;
}

/// Runs a [`Kernel`] of these elements on the widest vectors that this processor has. (A macro: the bounds of a function
/// would name the sets of one architecture.)
macro_rules! dispatch {
    ($kernel:expr) => {
        match $crate::cpu::simd::level() {
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::simd::Level::Avx512 => $crate::cpu::simd::avx512::run($kernel),
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::simd::Level::Avx2 => $crate::cpu::simd::avx2::run($kernel),
            $crate::cpu::simd::Level::Portable => $kernel.run($crate::cpu::simd::Portable),
        }
    };
}

pub(super) use dispatch;
pub use portable::Portable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// The widest level, or a lower one named by the environment variable `COS_CPU` (`avx2`, `portable`): asked once.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    #[cfg(test)]
    if let Some(level) = *forced::LEVEL.read().expect("no panic under the lock") {
        return level;
    }
    *LEVEL.get_or_init(|| match std::env::var("COS_CPU").as_deref() {
        Ok("portable") => Level::Portable,
        #[cfg(target_arch = "x86_64")]
        Ok("avx2") if avx2::Avx2::available() => Level::Avx2,
        _ => *levels().last().expect("Portable is everywhere"),
    })
}

/// The levels of this processor, narrowest first.
pub fn levels() -> Vec<Level> {
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
    let mut levels = vec![Level::Portable];
    #[cfg(target_arch = "x86_64")]
    {
        levels.extend(avx2::Avx2::available().then_some(Level::Avx2));
        levels.extend(avx512::Avx512::available().then_some(Level::Avx512));
    }
    levels
}

/// One level for all threads, for tests that compare them.
#[cfg(test)]
pub mod forced {
    use super::Level;
    use std::sync::{Mutex, RwLock};

    pub(super) static LEVEL: RwLock<Option<Level>> = RwLock::new(None);
    static ALONE: Mutex<()> = Mutex::new(());

    pub fn at<R>(level: Level, run: impl FnOnce() -> R) -> R {
        let _alone = ALONE.lock();
        *LEVEL.write().expect("no panic under the lock") = Some(level);
        let result = run();
        *LEVEL.write().expect("no panic under the lock") = None;
        result
    }
}
