// kernels/device.cuh for a host compiler: the same functions over threads.h, so that every other header and
// every kernel runs on the CPU as written. Wide accesses are checked: on 16 bytes, and within a registered storage.
#pragma once
#include "threads.h"
#include <cmath>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static // one block runs at a time
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (host::current->index)
#define blockIdx (host::block_index)
#define blockDim (host::block_size)
#define gridDim (host::grid_size)

namespace online {

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;

template <class T> T shuffle_xor(T x, int lanes, int width) {
  int lane = host::lane();
  int from = lane ^ lanes;
  host::require(from / width == lane / width, "a shuffle crosses its group");
  return host::exchange(x, from);
}

inline u32 shuffle_up(u32 x, int width) {
  int lane = host::lane();
  return host::exchange(x, lane % width ? lane - 1 : lane);
}

inline void block_barrier() { host::barrier(); }

inline float add(float a, float b) { return a + b; }
inline float mul(float a, float b) { return a * b; }
inline float fused_mul_add(float a, float b, float c) { return fmaf(a, b, c); }
inline float divide(float a, float b) { return a / b; }
inline float largest(float a, float b) { return fmaxf(a, b); }
inline float smallest(float a, float b) { return fminf(a, b); }
inline double add(double a, double b) { return a + b; }
inline double mul(double a, double b) { return a * b; }
inline double divide(double a, double b) { return a / b; }
inline double largest(double a, double b) { return fmax(a, b); }

inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
inline float ex2(float x) { return flushed(exp2f(flushed(x))); }

template <class To, class From> To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
inline u32 float_bits(float x) { return bits_as<u32>(x); }
inline float bits_float(u32 x) { return bits_as<float>(x); }
inline double bits_double(u64 x) { return bits_as<double>(x); }
inline u64 double_bits(double x) { return bits_as<u64>(x); }

inline u32 shift_bytes(u32 low, u32 high, int bytes) { return (u32)((((u64)high << 32) | low) >> (8 * bytes)); }

inline float widen_bf16(u16 x) { return bits_float((u32)x << 16); }
inline float widen_f16(u16 x) { return (float)bits_as<_Float16>(x); }
inline u16 narrow_f16(float x) { return bits_as<u16>((_Float16)x); }
inline u16 narrow_bf16(float x) {
  u32 bits = float_bits(x);
  return x == x ? (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : (u16)0x7fffu;
}

struct alignas(16) Words {
  u32 w[4];
};

inline Words load_words(const void *p) {
  host::check_access(p, false);
  Words x;
  memcpy(&x, p, 16);
  return x;
}

inline void store_words(void *p, const Words &x) {
  host::check_access(p, true);
  memcpy(p, &x, 16);
}

} // namespace online
