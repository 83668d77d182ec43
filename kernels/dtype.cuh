// Element types: how a 16-byte vector of each becomes numbers of the compute type, and back.
//
// Compute type: float for f16, bf16 and f32, double for f64 (see `FloatType` in src/plan.rs).
#pragma once
#include "device.cuh"

namespace online {

// What the half types share: two elements in a word, the first in its low bits.
struct Halves {
  typedef u16 Storage;
  typedef float Compute;
  static constexpr int LEN = 8; // elements in 16 bytes
  static constexpr bool STREAMED = false; // see load_words
  static __device__ __forceinline__ u16 raw(const Words &x, int i) { return (u16)(x.w[i / 2] >> (16 * (i % 2))); }
  static __device__ __forceinline__ void set_raw(Words &x, int i, u16 v) {
    u32 at = 16 * (i % 2);
    x.w[i / 2] = (x.w[i / 2] & ~(0xffffu << at)) | (u32)v << at;
  }
  // Element i of a vector that is filled from element 0 on: needs no old bits.
  static __device__ __forceinline__ void push_raw(Words &x, int i, u16 v) {
    x.w[i / 2] = i % 2 ? (x.w[i / 2] | (u32)v << 16) : v;
  }
};

struct F16 : Halves {
  static __device__ __forceinline__ float get(const Words &x, int i) { return widen_f16(raw(x, i)); }
  static __device__ __forceinline__ void set(Words &x, int i, float v) { push_raw(x, i, narrow_f16(v)); }
  static __device__ __forceinline__ u16 lowest() { return 0xfc00u; } // -inf
  static __device__ __forceinline__ u32 word_max(u32 a, u32 b) { return largest_f16(a, b); }
};

struct BF16 : Halves {
  static __device__ __forceinline__ float get(const Words &x, int i) { return widen_bf16(raw(x, i)); }
  static __device__ __forceinline__ void set(Words &x, int i, float v) { push_raw(x, i, narrow_bf16(v)); }
  static __device__ __forceinline__ u16 lowest() { return 0xff80u; }
  static __device__ __forceinline__ u32 word_max(u32 a, u32 b) { return largest_bf16(a, b); }
};

struct F32 {
  typedef u32 Storage;
  typedef float Compute;
  static constexpr int LEN = 4;
  static constexpr bool STREAMED = true;
  static __device__ __forceinline__ float get(const Words &x, int i) { return bits_float(x.w[i]); }
  static __device__ __forceinline__ void set(Words &x, int i, float v) { x.w[i] = float_bits(v); }
  static __device__ __forceinline__ u32 raw(const Words &x, int i) { return x.w[i]; }
  static __device__ __forceinline__ void set_raw(Words &x, int i, u32 v) { x.w[i] = v; }
  static __device__ __forceinline__ void push_raw(Words &x, int i, u32 v) { x.w[i] = v; }
  static __device__ __forceinline__ u32 lowest() { return 0xff800000u; }
  static __device__ __forceinline__ u32 word_max(u32 a, u32 b) { return float_bits(largest(bits_float(a), bits_float(b))); }
};

struct F64 {
  typedef u64 Storage;
  typedef double Compute;
  static constexpr int LEN = 2;
  static constexpr bool STREAMED = true;
  static __device__ __forceinline__ double get(const Words &x, int i) { return bits_double(raw(x, i)); }
  static __device__ __forceinline__ void set(Words &x, int i, double v) { set_raw(x, i, double_bits(v)); }
  static __device__ __forceinline__ u64 raw(const Words &x, int i) { return (u64)x.w[2 * i + 1] << 32 | x.w[2 * i]; }
  static __device__ __forceinline__ void set_raw(Words &x, int i, u64 v) {
    x.w[2 * i] = (u32)v;
    x.w[2 * i + 1] = (u32)(v >> 32);
  }
  static __device__ __forceinline__ void push_raw(Words &x, int i, u64 v) { set_raw(x, i, v); }
  static __device__ __forceinline__ u64 lowest() { return 0xfff0000000000000ull; }
};

// The largest element of N vectors, -inf for no numbers at all; NaN loses. Halves two at a time.
template <class D, int N> __device__ __forceinline__ typename D::Compute vectors_max(const Words (&x)[N], typename D::Compute least) {
  if constexpr (sizeof(typename D::Storage) == 8) {
#pragma unroll
    for (int k = 0; k < N; ++k) least = largest(largest(least, D::get(x[k], 0)), D::get(x[k], 1));
  } else {
    Words m = x[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int k = 1; k < N; ++k) m.w[i] = D::word_max(m.w[i], x[k].w[i]);
    }
    m.w[0] = D::word_max(D::word_max(m.w[0], m.w[1]), D::word_max(m.w[2], m.w[3]));
    least = largest(least, D::get(m, 0));
    if (D::LEN == 8) least = largest(least, D::get(m, 1));
  }
  return least;
}

} // namespace online
