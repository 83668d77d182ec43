// Device-only instructions, and nothing else: shuffles, ex2, 16-byte accesses, conversions, barriers.
//
// Every other header is plain C++ over these functions, so that a host compiler can take the kernels'
// arithmetic with another version of this file.
#pragma once

namespace online {

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;

// ---------------------------------------------------------------- lanes
// `width`, a power of two, splits a warp into groups that exchange only among themselves.

template <class T> __device__ __forceinline__ T shuffle_xor(T x, int lanes, int width) {
  return __shfl_xor_sync(ALL_LANES, x, lanes, width);
}

__device__ __forceinline__ u32 shuffle_up(u32 x, int width) { return __shfl_up_sync(ALL_LANES, x, 1, width); }

__device__ __forceinline__ void block_barrier() { __syncthreads(); }

// ---------------------------------------------------------------- arithmetic
// The _rn forms are never contracted into an fma, so every kernel rounds alike.

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused_mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float largest(float a, float b) { return fmaxf(a, b); } // NaN loses
__device__ __forceinline__ float smallest(float a, float b) { return fminf(a, b); }

__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double divide(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ double largest(double a, double b) { return fmax(a, b); }

// 2^x, relative error below 2^-22; 0 for -inf, inf for inf, NaN for NaN.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ u32 float_bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float bits_float(u32 x) { return __uint_as_float(x); }
__device__ __forceinline__ double bits_double(u64 x) { return __longlong_as_double((i64)x); }
__device__ __forceinline__ u64 double_bits(double x) { return (u64)__double_as_longlong(x); }

// The low 32 bits of (high:low) >> (8 * bytes), bytes in 0..3.
__device__ __forceinline__ u32 shift_bytes(u32 low, u32 high, int bytes) {
  return __funnelshift_r(low, high, 8 * bytes);
}

// ---------------------------------------------------------------- half types, two in a word
// bf16 is widened, and below sm_80 narrowed too, in integer arithmetic: cards before Ampere have no
// bf16 conversions.

__device__ __forceinline__ float widen_bf16(u16 x) { return bits_float((u32)x << 16); }

__device__ __forceinline__ float widen_f16(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

__device__ __forceinline__ u16 narrow_f16(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ u16 narrow_bf16(float x) {
#if __CUDA_ARCH__ >= 800
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
#else
  u32 bits = float_bits(x);
  u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; // to nearest even
  return x == x ? (u16)rounded : (u16)0x7fffu;                // rounding could carry a NaN into inf
#endif
}

// ---------------------------------------------------------------- 16-byte accesses

struct alignas(16) Words {
  u32 w[4];
};

__device__ __forceinline__ Words load_words(const void *p) {
  uint4 v = *reinterpret_cast<const uint4 *>(p);
  return Words{{v.x, v.y, v.z, v.w}};
}

__device__ __forceinline__ void store_words(void *p, const Words &x) {
  *reinterpret_cast<uint4 *>(p) = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}

} // namespace online
