//! AVX2: 8 lanes of f32, 4 of f64; parts of a vector through the stack.

use super::{Access, Kernel, Simd};
use crate::cpu::real::powers_of_two;
use crate::cpu::Element;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    pub fn available() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi2")
    }
}

/// Runs `kernel`, compiled for AVX2. Called where `level` says so.
pub fn run<E: Element, K: Kernel<E>>(kernel: K) -> K::Out
where
    Avx2: Access<E> + Access<E::Compute>,
{
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn compiled<E: Element, K: Kernel<E>>(kernel: K) -> K::Out
    where
        Avx2: Access<E> + Access<E::Compute>,
    {
        kernel.run(Avx2(()))
    }
    debug_assert!(Avx2::available());
    // SAFETY: `level` names AVX2 only where `available` found these features.
    unsafe { compiled(kernel) }
}

/// The sum of the lanes, by halves.
#[inline(always)]
pub unsafe fn sum_ps(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

/// The sum of the lanes, by halves.
#[inline(always)]
pub unsafe fn sum_pd(v: __m256d) -> f64 {
    let v = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
    _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v)))
}

#[inline(always)]
pub unsafe fn largest_ps(v: __m256) -> f32 {
    let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
}

#[inline(always)]
pub unsafe fn largest_pd(v: __m256d) -> f64 {
    let v = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
    _mm_cvtsd_f64(_mm_max_sd(v, _mm_unpackhi_pd(v, v)))
}

// SAFETY, here and below: an `Avx2` exists only in `compiled`, where the processor has the instructions. Each load and
// store first checks, in safe code, that the slice has the elements it touches.

/// Of 8 vectors; see `fold_each`.
macro_rules! fold_ps {
    ($v:expr, $op:ident) => {
        fold_each!(
            $v,
            8,
            $op,
            |i| i % 4 * 2 + i / 4,
            (
                |a, b| _mm256_permute2f128_ps::<0x20>(a, b),
                |a, b| _mm256_permute2f128_ps::<0x31>(a, b)
            ),
            (
                |a, b| _mm256_shuffle_ps::<0x44>(a, b),
                |a, b| _mm256_shuffle_ps::<0xee>(a, b)
            ),
            (
                |a, b| _mm256_shuffle_ps::<0x88>(a, b),
                |a, b| _mm256_shuffle_ps::<0xdd>(a, b)
            )
        )
    };
}

/// Of 4 vectors.
macro_rules! fold_pd {
    ($v:expr, $op:ident) => {
        fold_each!(
            $v,
            4,
            $op,
            |i| i % 2 * 2 + i / 2,
            (
                |a, b| _mm256_permute2f128_pd::<0x20>(a, b),
                |a, b| _mm256_permute2f128_pd::<0x31>(a, b)
            ),
            (
                |a, b| _mm256_unpacklo_pd(a, b),
                |a, b| _mm256_unpackhi_pd(a, b)
            )
        )
    };
}

impl Simd<f32> for Avx2 {
    /// The first and the second half.
    type Powers = [__m256i; 2];
    arithmetic! {__m256, 8,
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn where_less(self, a: __m256, b: __m256, x: __m256, y: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    prefetch! {}
    #[inline(always)]
    fn unless_zero(self, y: __m256, v: __m256) -> __m256 {
        unsafe {
            let zero = _mm256_setzero_ps();
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_NEQ_UQ>(y, zero), v)
        }
    }
    #[inline(always)]
    fn keep(self, v: __m256, mask: &[u8]) -> __m256 {
        unsafe {
            let bytes = _mm_loadl_epi64(mask[..8].as_ptr().cast());
            let lanes = _mm256_cvtepu8_epi32(bytes);
            let masked = _mm256_cmpeq_epi32(lanes, _mm256_setzero_si256());
            let fill = self.splat(f32::NEG_INFINITY);
            _mm256_blendv_ps(v, fill, _mm256_castsi256_ps(masked))
        }
    }
    #[inline(always)]
    fn powers(self, low: f32) -> [__m256i; 2] {
        let powers = powers_of_two(low);
        let (halves, _) = powers.as_chunks::<8>();
        unsafe {
            [
                _mm256_loadu_si256(halves[0].as_ptr().cast()),
                _mm256_loadu_si256(halves[1].as_ptr().cast()),
            ]
        }
    }
    #[inline(always)]
    fn power(self, k: __m256, powers: [__m256i; 2]) -> __m256 {
        unsafe {
            let k = _mm256_castps_si256(k);
            // The permutation looks at the low three bits, the blend at the fourth, moved to the sign.
            let [a, b] = powers.map(|p| _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(p, k)));
            let second = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(k));
            let power = _mm256_castps_si256(_mm256_blendv_ps(a, b, second));
            _mm256_castsi256_ps(_mm256_add_epi32(power, _mm256_slli_epi32::<19>(k)))
        }
    }
    #[inline(always)]
    fn largest(self, v: __m256) -> f32 {
        unsafe { largest_ps(v) }
    }
    #[inline(always)]
    fn sum(self, parts: [__m256; 4]) -> f32 {
        unsafe { sum_ps(Simd::<f32>::join(self, parts)) }
    }
    #[inline(always)]
    fn largest_each(self, v: &[__m256]) -> __m256 {
        unsafe { fold_ps!(v, _mm256_max_ps) }
    }
    #[inline(always)]
    fn join(self, [a, b, c, d]: [__m256; 4]) -> __m256 {
        unsafe { _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d)) }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m256]) -> __m256 {
        unsafe { fold_ps!(v, _mm256_add_ps) }
    }
}

impl Simd<f64> for Avx2 {
    type Powers = __m256i;
    arithmetic! {__m256d, 4,
        add(a, b) = _mm256_add_pd(a, b);
        sub(a, b) = _mm256_sub_pd(a, b);
        mul(a, b) = _mm256_mul_pd(a, b);
        div(a, b) = _mm256_div_pd(a, b);
        mul_add(a, b, c) = _mm256_fmadd_pd(a, b, c);
        max(a, b) = _mm256_max_pd(a, b);
    }

    #[inline(always)]
    fn splat(self, x: f64) -> __m256d {
        unsafe { _mm256_set1_pd(x) }
    }
    #[inline(always)]
    fn where_less(self, a: __m256d, b: __m256d, x: __m256d, y: __m256d) -> __m256d {
        unsafe { _mm256_blendv_pd(y, x, _mm256_cmp_pd::<_CMP_LT_OQ>(a, b)) }
    }
    prefetch! {}
    #[inline(always)]
    fn unless_zero(self, y: __m256d, v: __m256d) -> __m256d {
        unsafe {
            let zero = _mm256_setzero_pd();
            _mm256_and_pd(_mm256_cmp_pd::<_CMP_NEQ_UQ>(y, zero), v)
        }
    }
    #[inline(always)]
    fn keep(self, v: __m256d, mask: &[u8]) -> __m256d {
        unsafe {
            let bytes = _mm_cvtsi32_si128(i32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]));
            let lanes = _mm256_cvtepu8_epi64(bytes);
            let masked = _mm256_cmpeq_epi64(lanes, _mm256_setzero_si256());
            let fill = self.splat(f64::NEG_INFINITY);
            _mm256_blendv_pd(v, fill, _mm256_castsi256_pd(masked))
        }
    }
    #[inline(always)]
    fn powers(self, low: f64) -> __m256i {
        unsafe { _mm256_set1_epi64x(low.to_bits() as i64) }
    }
    #[inline(always)]
    fn power(self, k: __m256d, low: __m256i) -> __m256d {
        unsafe {
            let k = _mm256_castpd_si256(k);
            _mm256_castsi256_pd(_mm256_slli_epi64::<52>(_mm256_sub_epi64(k, low)))
        }
    }
    #[inline(always)]
    fn largest(self, v: __m256d) -> f64 {
        unsafe { largest_pd(v) }
    }
    #[inline(always)]
    fn sum(self, parts: [__m256d; 4]) -> f64 {
        unsafe { sum_pd(Simd::<f64>::join(self, parts)) }
    }
    #[inline(always)]
    fn largest_each(self, v: &[__m256d]) -> __m256d {
        unsafe { fold_pd!(v, _mm256_max_pd) }
    }
    #[inline(always)]
    fn join(self, [a, b, c, d]: [__m256d; 4]) -> __m256d {
        unsafe { _mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d)) }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m256d]) -> __m256d {
        unsafe { fold_pd!(v, _mm256_add_pd) }
    }
}

macro_rules! access {
    ($element:ty, $real:ident, $v:ident, $n:literal, load: $load:expr, store: $store:expr $(, largest_of: $largest_of:ident)?) => {
        // SAFETY: the stores write as many lanes as they say.
        unsafe impl Access<$element> for Avx2 {
            #[inline(always)]
            fn load(self, x: &[$element]) -> $v {
                let x = &x[..$n];
                unsafe { $load(x.as_ptr()) }
            }
            #[inline(always)]
            fn load_part(self, x: &[$element], fill: $real) -> $v {
                let mut lanes = [fill; $n];
                for (lane, x) in lanes.iter_mut().zip(x) {
                    *lane = x.widen();
                }
                <Self as Access<$real>>::load(self, &lanes)
            }
            #[inline(always)]
            fn store(self, v: $v, y: &mut [MaybeUninit<$element>]) {
                let y = &mut y[..$n];
                unsafe { $store(y.as_mut_ptr(), v) }
            }
            #[inline(always)]
            fn store_part(self, v: $v, y: &mut [MaybeUninit<$element>]) {
                let mut lanes = [MaybeUninit::<$element>::uninit(); $n];
                <Self as Access<$element>>::store(self, v, &mut lanes);
                y.copy_from_slice(&lanes[..y.len()]);
            }
            $(largest_of_halves! {$element, $largest_of})?
        }
    };
}

access! {f32, f32, __m256, 8,
    load: |x: *const f32| _mm256_loadu_ps(x),
    store: |y: *mut MaybeUninit<f32>, v| _mm256_storeu_ps(y.cast(), v)
}

access! {f64, f64, __m256d, 4,
    load: |x: *const f64| _mm256_loadu_pd(x),
    store: |y: *mut MaybeUninit<f64>, v| _mm256_storeu_pd(y.cast(), v)
}

macro_rules! half_access {
    ($half:ty, $widen:ident, $narrow:ident) => {
        access! {$half, f32, __m256, 8,
            load: |x: *const $half| $widen(_mm_loadu_si128(x.cast())),
            store: |y: *mut MaybeUninit<$half>, v| _mm_storeu_si128(y.cast(), $narrow(v)),
            largest_of: largest_bits
        }
    };
}

half_access!(f16, widen_f16, narrow_f16);
half_access!(bf16, widen_bf16, narrow_bf16);

/// The largest of each of 16 lanes, as integers in the order of the halves' values. A NaN is the largest or the smallest
/// of its lane, by its sign.
#[inline(always)]
unsafe fn largest_bits<T>(x: &[[T; 16]], lanes: &mut [T; 16]) {
    let ordered = |x| {
        let negative = _mm256_srai_epi16::<15>(x);
        _mm256_xor_si256(x, _mm256_and_si256(negative, _mm256_set1_epi16(0x7fff)))
    };
    let load = |x: &[T; 16]| ordered(_mm256_loadu_si256(x.as_ptr().cast()));
    let smallest = _mm256_set1_epi16(i16::MIN);
    let m = ordered(largest_vector!(x, load, _mm256_max_epi16, smallest));
    _mm256_storeu_si256(lanes.as_mut_ptr().cast(), m);
}

#[inline(always)]
unsafe fn widen_f16(x: __m128i) -> __m256 {
    _mm256_cvtph_ps(x)
}

#[inline(always)]
unsafe fn narrow_f16(v: __m256) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
}

#[inline(always)]
unsafe fn widen_bf16(x: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x)))
}

/// To nearest even in integer arithmetic. A NaN stays one: its low 16 bits are 0, as it comes of the processor or of a
/// bf16.
#[inline(always)]
unsafe fn narrow_bf16(v: __m256) -> __m128i {
    let bits = _mm256_castps_si256(v);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let high = _mm256_srli_epi32::<16>(rounded);
    _mm_packus_epi32(
        _mm256_castsi256_si128(high),
        _mm256_extracti128_si256::<1>(high),
    )
}
