//! Walks over slices, a vector at a time: of one input or of several of the same length.

use super::{Access, Simd};
use crate::cpu::{Element, Real};
use std::mem::MaybeUninit;

/// Additions to each accumulator of a sum before `chunk_end`: with the five that fold them, 12 roundings, 7e-7 in f32.
pub const ADDITIONS: usize = 8;

/// Lanes of a vector, at most.
const MOST_LANES: usize = 16;

/// What is done with the vectors of `M` inputs. All `#[inline(always)]`.
pub trait Visitor<C: Real, S: Simd<C>, const M: usize> {
    /// The vector that comes of these. `at`: the accumulator that the lanes belong to.
    fn vector(&mut self, s: S, at: usize, v: [S::V; M]) -> S::V;
    /// Each accumulator has had `ADDITIONS` vectors, or the input ends.
    fn chunk_end(&mut self, _s: S) {}
}

#[inline(always)]
fn load<E: Element, S: Access<E>, const M: usize>(s: S, x: [&[E]; M], o: usize) -> [S::V; M] {
    let mut v = [s.splat(E::Compute::ZERO); M];
    for (v, x) in v.iter_mut().zip(x) {
        *v = s.load(&x[o..o + S::N]);
    }
    v
}

#[inline(always)]
fn load_part<E: Element, S: Access<E>, const M: usize>(
    s: S,
    x: [&[E]; M],
    o: usize,
    fill: E::Compute,
) -> [S::V; M] {
    let mut v = [s.splat(fill); M];
    for (v, x) in v.iter_mut().zip(x) {
        *v = s.load_part(&x[o..], fill);
    }
    v
}

/// Calls `whole(o, at)` for each vector of `len` elements, its first element and its accumulator, and `part(o, at)` for
/// what is left after them.
macro_rules! walk {
    ($s:ident, $c:ty, $n:expr, $len:expr, $f:ident, |$o:ident, $at:ident| $whole:expr, $part:expr) => {{
        let (len, n) = ($len, $n);
        let accumulators = <$c>::SUM_LANES / n;
        let mut $o = 0;
        while $o < len {
            let end = len.min($o + ADDITIONS * <$c>::SUM_LANES);
            while $o + <$c>::SUM_LANES <= end {
                for $at in 0..accumulators {
                    $whole;
                    $o += n;
                }
            }
            // As many steps as there are accumulators, so that all are in registers.
            for $at in 0..accumulators {
                if $o + n <= end {
                    $whole;
                    $o += n;
                } else if $o < end {
                    $part;
                    $o = end;
                }
            }
            $f.chunk_end($s);
        }
    }};
}

/// Visits the vectors of `x`, with `fill` in the lanes past their ends.
#[inline(always)]
pub fn each<E, S, const M: usize>(
    s: S,
    x: [&[E]; M],
    fill: E::Compute,
    f: &mut impl Visitor<E::Compute, S, M>,
) where
    E: Element,
    S: Access<E>,
{
    walk!(
        s,
        E::Compute,
        S::N,
        x[0].len(),
        f,
        |o, at| f.vector(s, at, load(s, x, o)),
        f.vector(s, at, load_part(s, x, o, fill))
    );
}

/// The largest number of `x`, NaN left out.
#[inline(always)]
pub fn largest_of<E: Element, S: Access<E>>(s: S, x: &[E]) -> E::Compute {
    let fill = E::Compute::NEG_INFINITY;
    let mut m = [s.splat(fill); 4];
    let mut o = 0;
    while o + 4 * S::N <= x.len() {
        for m in &mut m {
            *m = s.max(s.load(&x[o..o + S::N]), *m);
            o += S::N;
        }
    }
    for m in &mut m {
        *m = s.max(load_short(s, x, o, fill), *m);
        o += S::N;
    }
    let [a, b, c, d] = m;
    s.largest(s.max(s.max(a, b), s.max(c, d)))
}

/// Visits the vectors of `x` and writes what comes to `y`, of the same length: all of it.
#[inline(always)]
pub fn map<'a, A, B, S, const M: usize>(
    s: S,
    x: [&[A]; M],
    fill: A::Compute,
    y: &'a mut [MaybeUninit<B>],
    f: &mut impl Visitor<A::Compute, S, M>,
) -> &'a mut [B]
where
    A: Element,
    B: Element<Compute = A::Compute>,
    S: Access<A> + Access<B>,
{
    assert!(x.iter().all(|x| x.len() == y.len()));
    walk!(
        s,
        A::Compute,
        <S as Simd<A::Compute>>::N,
        y.len(),
        f,
        |o, at| s.store(
            f.vector(s, at, load(s, x, o)),
            &mut y[o..o + <S as Simd<A::Compute>>::N]
        ),
        s.store_part(f.vector(s, at, load_part(s, x, o, fill)), &mut y[o..])
    );
    // SAFETY: the walk wrote each element of `y`, in vectors and a part of one.
    unsafe { y.assume_init_mut() }
}

/// Writes a vector over lanes there are.
#[inline(always)]
pub fn put<C: Real + Element<Compute = C>, S: Simd<C> + Access<C>>(
    s: S,
    v: <S as Simd<C>>::V,
    lanes: &mut [C],
) {
    // SAFETY: `store` writes numbers.
    s.store(v, unsafe { super::as_room(lanes) });
}

/// As `map`, each vector of `y` onto itself.
#[inline(always)]
pub fn map_in_place<E, S>(
    s: S,
    y: &mut [E],
    fill: E::Compute,
    f: &mut impl Visitor<E::Compute, S, 1>,
) where
    E: Element,
    S: Access<E>,
{
    let len = y.len();
    // SAFETY: what is written below are elements.
    let room = unsafe { super::as_room(y) };
    walk!(
        s,
        E::Compute,
        S::N,
        len,
        f,
        |o, at| {
            // SAFETY: elements, of before or written below.
            let x: &[E] = unsafe { room[o..o + S::N].assume_init_ref() };
            s.store(f.vector(s, at, load(s, [x], 0)), &mut room[o..o + S::N]);
        },
        {
            // SAFETY: as above.
            let x: &[E] = unsafe { room[o..].assume_init_ref() };
            s.store_part(f.vector(s, at, load_part(s, [x], 0, fill)), &mut room[o..]);
        }
    );
}

/// Writes `f(y, x)` over each vector of `y`, x being that of `x`, of the same length. (No accumulators, and so two copies of
/// `f` where a walk has a dozen.)
#[inline(always)]
pub fn combine<E, S>(
    s: S,
    x: &[E],
    y: &mut [E::Compute],
    f: impl Fn(<S as Simd<E::Compute>>::V, <S as Simd<E::Compute>>::V) -> <S as Simd<E::Compute>>::V,
) where
    E: Element,
    S: Access<E> + Access<E::Compute>,
{
    assert_eq!(x.len(), y.len());
    let (n, fill, mut o) = (<S as Simd<E::Compute>>::N, E::Compute::ZERO, 0);
    while o + n <= x.len() {
        let v = f(s.load(&y[o..o + n]), s.load(&x[o..o + n]));
        put(s, v, &mut y[o..o + n]);
        o += n;
    }
    if o < x.len() {
        let v = f(s.load_part(&y[o..], fill), s.load_part(&x[o..], fill));
        put_part(s, v, &mut y[o..]);
    }
}

/// -inf over the numbers where `mask`, of the same length, is 0.
#[inline(always)]
pub fn keep<C: Real + Element<Compute = C>, S: Simd<C> + Access<C>>(
    s: S,
    y: &mut [C],
    mask: &[u8],
) {
    assert_eq!(mask.len(), y.len());
    let n = <S as Simd<C>>::N;
    let mut o = 0;
    while o + n <= y.len() {
        let v = s.keep(s.load(&y[o..o + n]), &mask[o..o + n]);
        put(s, v, &mut y[o..o + n]);
        o += n;
    }
    if o < y.len() {
        let mut bytes = [0; MOST_LANES];
        bytes[..mask.len() - o].copy_from_slice(&mask[o..]);
        let v = s.keep(s.load_part(&y[o..], C::ZERO), &bytes);
        put_part(s, v, &mut y[o..]);
    }
}

/// Writes the first lanes over numbers there are, fewer than a vector has.
#[inline(always)]
fn put_part<C: Real + Element<Compute = C>, S: Simd<C> + Access<C>>(
    s: S,
    v: <S as Simd<C>>::V,
    lanes: &mut [C],
) {
    // SAFETY: `store_part` writes numbers.
    s.store_part(v, unsafe { super::as_room(lanes) });
}

/// Writes `x` to all of `y`.
#[inline(always)]
pub fn fill<E: Element, S: Access<E>>(s: S, y: &mut [MaybeUninit<E>], x: E::Compute) -> &mut [E] {
    let v = s.splat(x);
    let (whole, part) = y.split_at_mut(y.len() / S::N * S::N);
    for y in whole.chunks_exact_mut(S::N) {
        s.store(v, y);
    }
    if !part.is_empty() {
        s.store_part(v, part);
    }
    // SAFETY: each element of both was written.
    unsafe { y.assume_init_mut() }
}

/// The vector at `o` of a slice that may end before it does, or begins.
#[inline(always)]
pub fn load_short<E: Element, S: Access<E>>(s: S, x: &[E], o: usize, fill: E::Compute) -> S::V {
    if o + S::N <= x.len() {
        s.load(&x[o..])
    } else if o < x.len() {
        s.load_part(&x[o..], fill)
    } else {
        s.splat(fill)
    }
}

/// Writes as much of these vectors as fits `y`: all of it.
#[inline(always)]
pub fn store_short<E: Element, S: Access<E>, const K: usize>(
    s: S,
    v: [S::V; K],
    y: &mut [MaybeUninit<E>],
) -> &mut [E] {
    assert!(y.len() <= K * S::N);
    for (k, v) in v.into_iter().enumerate() {
        if (k + 1) * S::N <= y.len() {
            s.store(v, &mut y[k * S::N..]);
        } else if k * S::N < y.len() {
            s.store_part(v, &mut y[k * S::N..]);
        }
    }
    // SAFETY: `y` is no longer than the vectors, and so all of it was written.
    unsafe { y.assume_init_mut() }
}
