//! What AVX2 and AVX-512 share, but for the names of their instructions.

/// N vectors to one, lane i of which is the fold of all lanes of `$v[i]` by halves: each step takes pairs of vectors, and of
/// both the lower halves of what is left, `$lower(a, b)`, and the upper ones, `$upper(a, b)`. `$index(i)`: where vector i is
/// put in, to come out in lane i.
macro_rules! fold_each {
    ($v:expr, $n:literal, $op:ident, $index:expr, $(($lower:expr, $upper:expr)),+) => {{
        let index: fn(usize) -> usize = $index;
        let mut v = [$v[0]; $n];
        for i in 0..$n {
            v[index(i)] = $v[i];
        }
        let mut left = $n;
        $(
            left /= 2;
            for i in 0..left {
                let (a, b) = (v[2 * i], v[2 * i + 1]);
                v[i] = $op($lower(a, b), $upper(a, b));
            }
        )+
        debug_assert!(left == 1);
        v[0]
    }};
}

/// The functions of `Simd` that are one intrinsic each.
macro_rules! arithmetic {
    ($v:ident, $n:literal, $($name:ident($($arg:ident),+) = $intrinsic:ident($($given:ident),+);)+) => {
        type V = $v;
        const N: usize = $n;
        $(#[inline(always)]
        fn $name(self, $($arg: $v),+) -> $v {
            unsafe { $intrinsic($($given),+) }
        })+
    };
}

/// `Simd::prefetch`.
macro_rules! prefetch {
    () => {
        #[inline(always)]
        fn prefetch<E>(self, x: &[E]) {
            const LINE: usize = 64;
            for x in x.chunks((LINE / size_of::<E>()).max(1)) {
                // SAFETY: an address of an element; nothing is read.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().cast()) };
            }
        }
    };
}

/// `Access::largest_of` of halves by `$bits`, which takes the largest of each lane as integers.
macro_rules! largest_of_halves {
    ($half:ty, $bits:ident) => {
        #[inline(always)]
        fn largest_of(self, x: &[$half]) -> f32 {
            let (whole, rest) = x.as_chunks();
            let mut halves = [<$half>::NEG_INFINITY; _];
            // SAFETY: as for all of this set's instructions.
            unsafe { $bits(whole, &mut halves) };
            let rest = super::largest_of(self, rest);
            super::largest_of(self, &halves).max(rest)
        }
    };
}

/// The largest of vectors of integers, in two accumulators.
macro_rules! largest_vector {
    ($x:ident, $load:ident, $max:ident, $smallest:ident) => {{
        let (pairs, rest) = $x.as_chunks::<2>();
        let mut m = [$smallest; 2];
        for [a, b] in pairs {
            m = [$max(m[0], $load(a)), $max(m[1], $load(b))];
        }
        for x in rest {
            m[0] = $max(m[0], $load(x));
        }
        $max(m[0], m[1])
    }};
}
