//! AVX-512: 16 lanes of f32, 8 of f64; parts of a vector by masks.

use super::{Access, Kernel, Simd};
use crate::cpu::real::powers_of_two;
use crate::cpu::Element;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Proof that the processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    pub fn available() -> bool {
        super::avx2::Avx2::available()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }
}

/// Runs `kernel`, compiled for AVX-512. Called where `level` says so.
pub fn run<E: Element, K: Kernel<E>>(kernel: K) -> K::Out
where
    Avx512: Access<E> + Access<E::Compute>,
{
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")]
    fn compiled<E: Element, K: Kernel<E>>(kernel: K) -> K::Out
    where
        Avx512: Access<E> + Access<E::Compute>,
    {
        kernel.run(Avx512(()))
    }
    debug_assert!(Avx512::available());
    // SAFETY: `level` names AVX-512 only where `available` found these features.
    unsafe { compiled(kernel) }
}

// SAFETY, here and below: an `Avx512` exists only in `compiled`, where the processor has the instructions. Each load and
// store first checks, in safe code, that the slice has the elements it touches.

/// Of 16 vectors; see `fold_each`.
macro_rules! fold_ps {
    ($v:expr, $op:ident) => {
        fold_each!(
            $v,
            16,
            $op,
            |i| i % 4 * 4 + i / 4,
            (
                |a, b| _mm512_shuffle_f32x4::<0x44>(a, b),
                |a, b| _mm512_shuffle_f32x4::<0xee>(a, b)
            ),
            (
                |a, b| _mm512_shuffle_f32x4::<0x88>(a, b),
                |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b)
            ),
            (
                |a, b| _mm512_shuffle_ps::<0x44>(a, b),
                |a, b| _mm512_shuffle_ps::<0xee>(a, b)
            ),
            (
                |a, b| _mm512_shuffle_ps::<0x88>(a, b),
                |a, b| _mm512_shuffle_ps::<0xdd>(a, b)
            )
        )
    };
}

/// Of 8 vectors.
macro_rules! fold_pd {
    ($v:expr, $op:ident) => {
        fold_each!(
            $v,
            8,
            $op,
            |i| i % 2 * 4 + i / 2,
            (
                |a, b| _mm512_shuffle_f64x2::<0x44>(a, b),
                |a, b| _mm512_shuffle_f64x2::<0xee>(a, b)
            ),
            (
                |a, b| _mm512_shuffle_f64x2::<0x88>(a, b),
                |a, b| _mm512_shuffle_f64x2::<0xdd>(a, b)
            ),
            (
                |a, b| _mm512_unpacklo_pd(a, b),
                |a, b| _mm512_unpackhi_pd(a, b)
            )
        )
    };
}

impl Simd<f32> for Avx512 {
    type Powers = __m512i;
    arithmetic! {__m512, 16,
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn where_less(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        unsafe { _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), x) }
    }
    prefetch! {}
    #[inline(always)]
    fn unless_zero(self, y: __m512, v: __m512) -> __m512 {
        unsafe {
            let zero = _mm512_setzero_ps();
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(y, zero), v)
        }
    }
    #[inline(always)]
    fn keep(self, v: __m512, mask: &[u8]) -> __m512 {
        unsafe {
            let bytes = _mm_loadu_si128(mask[..16].as_ptr().cast());
            let kept = _mm_test_epi8_mask(bytes, bytes);
            _mm512_mask_mov_ps(self.splat(f32::NEG_INFINITY), kept, v)
        }
    }
    #[inline(always)]
    fn powers(self, low: f32) -> __m512i {
        let powers = powers_of_two(low);
        unsafe { _mm512_loadu_si512(powers.as_ptr().cast()) }
    }
    #[inline(always)]
    fn power(self, k: __m512, powers: __m512i) -> __m512 {
        unsafe {
            let k = _mm512_castps_si512(k);
            let power = _mm512_permutexvar_epi32(k, powers);
            _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_slli_epi32::<19>(k)))
        }
    }
    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // (`_mm512_reduce_max_ps` looks out for NaN at each step.)
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::largest_ps(v)
        }
    }
    #[inline(always)]
    fn sum(self, parts: [__m512; 4]) -> f32 {
        unsafe {
            let v = Simd::<f32>::join(self, parts);
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::sum_ps(v)
        }
    }
    #[inline(always)]
    fn largest_each(self, v: &[__m512]) -> __m512 {
        unsafe { fold_ps!(v, _mm512_max_ps) }
    }
    #[inline(always)]
    fn join(self, [a, b, ..]: [__m512; 4]) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m512]) -> __m512 {
        unsafe { fold_ps!(v, _mm512_add_ps) }
    }
}

impl Simd<f64> for Avx512 {
    type Powers = __m512i;
    arithmetic! {__m512d, 8,
        add(a, b) = _mm512_add_pd(a, b);
        sub(a, b) = _mm512_sub_pd(a, b);
        mul(a, b) = _mm512_mul_pd(a, b);
        div(a, b) = _mm512_div_pd(a, b);
        mul_add(a, b, c) = _mm512_fmadd_pd(a, b, c);
        max(a, b) = _mm512_max_pd(a, b);
    }

    #[inline(always)]
    fn splat(self, x: f64) -> __m512d {
        unsafe { _mm512_set1_pd(x) }
    }
    #[inline(always)]
    fn where_less(self, a: __m512d, b: __m512d, x: __m512d, y: __m512d) -> __m512d {
        unsafe { _mm512_mask_mov_pd(y, _mm512_cmp_pd_mask::<_CMP_LT_OQ>(a, b), x) }
    }
    prefetch! {}
    #[inline(always)]
    fn unless_zero(self, y: __m512d, v: __m512d) -> __m512d {
        unsafe {
            let zero = _mm512_setzero_pd();
            _mm512_maskz_mov_pd(_mm512_cmp_pd_mask::<_CMP_NEQ_UQ>(y, zero), v)
        }
    }
    #[inline(always)]
    fn keep(self, v: __m512d, mask: &[u8]) -> __m512d {
        unsafe {
            let bytes = _mm_loadl_epi64(mask[..8].as_ptr().cast());
            let kept = _mm_test_epi8_mask(bytes, bytes) as u8;
            _mm512_mask_mov_pd(self.splat(f64::NEG_INFINITY), kept, v)
        }
    }
    #[inline(always)]
    fn powers(self, low: f64) -> __m512i {
        unsafe { _mm512_set1_epi64(low.to_bits() as i64) }
    }
    #[inline(always)]
    fn power(self, k: __m512d, low: __m512i) -> __m512d {
        unsafe {
            let k = _mm512_castpd_si512(k);
            _mm512_castsi512_pd(_mm512_slli_epi64::<52>(_mm512_sub_epi64(k, low)))
        }
    }
    #[inline(always)]
    fn largest(self, v: __m512d) -> f64 {
        unsafe {
            let v = _mm256_max_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v));
            super::avx2::largest_pd(v)
        }
    }
    #[inline(always)]
    fn sum(self, parts: [__m512d; 4]) -> f64 {
        unsafe {
            let v = Simd::<f64>::join(self, parts);
            let v = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd::<1>(v));
            super::avx2::sum_pd(v)
        }
    }
    #[inline(always)]
    fn largest_each(self, v: &[__m512d]) -> __m512d {
        unsafe { fold_pd!(v, _mm512_max_pd) }
    }
    #[inline(always)]
    fn join(self, [a, b, ..]: [__m512d; 4]) -> __m512d {
        unsafe { _mm512_add_pd(a, b) }
    }
    #[inline(always)]
    fn sum_each(self, v: &[__m512d]) -> __m512d {
        unsafe { fold_pd!(v, _mm512_add_pd) }
    }
}

/// The low `len` bits.
#[inline(always)]
fn mask(len: usize) -> u16 {
    ((1u32 << len) - 1) as u16
}

macro_rules! access {
    ($element:ty, $real:ident, $v:ident, $n:literal,
     load: $load:expr, load_part: $load_part:expr, store: $store:expr, store_part: $store_part:expr
     $(, largest_of: $largest_of:ident)?) => {
        // SAFETY: the stores write as many lanes as they say.
        unsafe impl Access<$element> for Avx512 {
            #[inline(always)]
            fn load(self, x: &[$element]) -> $v {
                let x = &x[..$n];
                unsafe { $load(x.as_ptr()) }
            }
            #[inline(always)]
            fn load_part(self, x: &[$element], fill: $real) -> $v {
                assert!(x.len() < $n);
                unsafe { $load_part(mask(x.len()), x.as_ptr(), self.splat(fill)) }
            }
            #[inline(always)]
            fn store(self, v: $v, y: &mut [MaybeUninit<$element>]) {
                let y = &mut y[..$n];
                unsafe { $store(y.as_mut_ptr(), v) }
            }
            #[inline(always)]
            fn store_part(self, v: $v, y: &mut [MaybeUninit<$element>]) {
                assert!(y.len() < $n);
                unsafe { $store_part(mask(y.len()), y.as_mut_ptr(), v) }
            }
            $(largest_of_halves! {$element, $largest_of})?
        }
    };
}

access! {f32, f32, __m512, 16,
    load: |x: *const f32| _mm512_loadu_ps(x),
    load_part: |m, x: *const f32, fill| _mm512_mask_loadu_ps(fill, m, x),
    store: |y: *mut MaybeUninit<f32>, v| _mm512_storeu_ps(y.cast(), v),
    store_part: |m, y: *mut MaybeUninit<f32>, v| _mm512_mask_storeu_ps(y.cast(), m, v)
}

access! {f64, f64, __m512d, 8,
    load: |x: *const f64| _mm512_loadu_pd(x),
    load_part: |m: u16, x: *const f64, fill| _mm512_mask_loadu_pd(fill, m as u8, x),
    store: |y: *mut MaybeUninit<f64>, v| _mm512_storeu_pd(y.cast(), v),
    store_part: |m: u16, y: *mut MaybeUninit<f64>, v| _mm512_mask_storeu_pd(y.cast(), m as u8, v)
}

macro_rules! half_access {
    ($half:ty, $widen:ident, $narrow:ident) => {
        access! {$half, f32, __m512, 16,
            load: |x: *const $half| $widen(_mm256_loadu_si256(x.cast())),
            load_part: |m, x: *const $half, fill| {
                let x = $widen(_mm256_maskz_loadu_epi16(m, x.cast()));
                _mm512_mask_mov_ps(fill, m, x)
            },
            store: |y: *mut MaybeUninit<$half>, v| _mm256_storeu_si256(y.cast(), $narrow(v)),
            store_part: |m, y: *mut MaybeUninit<$half>, v| _mm256_mask_storeu_epi16(y.cast(), m, $narrow(v)),
            largest_of: largest_bits
        }
    };
}

half_access!(f16, widen_f16, narrow_f16);
half_access!(bf16, widen_bf16, narrow_bf16);

/// The largest of each of 32 lanes, as integers in the order of the halves' values: three instructions for 32 numbers,
/// where they take six to widen them first. A NaN is the largest or the smallest of its lane, by its sign.
#[inline(always)]
unsafe fn largest_bits<T>(x: &[[T; 32]], lanes: &mut [T; 32]) {
    let ordered = |x| {
        let negative = _mm512_srai_epi16::<15>(x);
        _mm512_ternarylogic_epi32::<0x78>(x, negative, _mm512_set1_epi16(0x7fff))
        // x ^ (negative & 0x7fff)
    };
    let load = |x: &[T; 32]| ordered(_mm512_loadu_si512(x.as_ptr().cast()));
    let smallest = _mm512_set1_epi16(i16::MIN);
    let m = ordered(largest_vector!(x, load, _mm512_max_epi16, smallest));
    _mm512_storeu_si512(lanes.as_mut_ptr().cast(), m);
}

#[inline(always)]
unsafe fn widen_f16(x: __m256i) -> __m512 {
    _mm512_cvtph_ps(x)
}

#[inline(always)]
unsafe fn narrow_f16(v: __m512) -> __m256i {
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
}

#[inline(always)]
unsafe fn widen_bf16(x: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
}

/// To nearest even in integer arithmetic: the instruction of AVX512_BF16 takes subnormal numbers for 0. A NaN stays one:
/// its low 16 bits are 0, as it comes of the processor or of a bf16.
#[inline(always)]
unsafe fn narrow_bf16(v: __m512) -> __m256i {
    let bits = _mm512_castps_si512(v);
    let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
    let rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_mask_add_epi32(rounded, odd, rounded, _mm512_set1_epi32(1));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded))
}
