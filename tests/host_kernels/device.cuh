// kernels/device.cuh for a host compiler: the same functions over threads.h, so that every other header and
// every kernel runs on the CPU as written. Wide accesses are checked: on 16 bytes, and within a registered storage.
#pragma once
#include "threads.h"
#include <cmath>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static thread_local // a CPU thread for each block that runs
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (host::current->index)
#define blockIdx (host::block->index)
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

inline u32 rotate_up(u32 x, int width) {
  int lane = host::lane();
  return host::exchange(x, lane - lane % width + (lane + width - 1) % width);
}

inline void block_barrier() { host::barrier(); }

inline float add(float a, float b) { return a + b; }
inline float mul(float a, float b) { return a * b; }
inline float fused_mul_add(float a, float b, float c) { return fmaf(a, b, c); }
inline float reciprocal(float x);
inline float largest(float a, float b) { return fmaxf(a, b); }
inline float smallest(float a, float b) { return fminf(a, b); }
inline int smallest(int a, int b) { return a < b ? a : b; }
inline i64 smallest(i64 a, i64 b) { return a < b ? a : b; }
inline i64 largest(i64 a, i64 b) { return a > b ? a : b; }
inline double add(double a, double b) { return a + b; }
inline double mul(double a, double b) { return a * b; }
inline double reciprocal(double x) { return 1.0 / x; }
inline double e_to_the(double x) { return exp(x); }
inline double largest(double a, double b) { return fmax(a, b); }

inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
inline float reciprocal(float x) { return flushed(1.0f / x); }
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

inline u32 largest_f16(u32 a, u32 b) {
  u16 low = narrow_f16(fmaxf(widen_f16((u16)a), widen_f16((u16)b)));
  return low | (u32)narrow_f16(fmaxf(widen_f16((u16)(a >> 16)), widen_f16((u16)(b >> 16)))) << 16;
}
inline u32 largest_bf16(u32 a, u32 b) {
  u16 low = narrow_bf16(fmaxf(widen_bf16((u16)a), widen_bf16((u16)b)));
  return low | (u32)narrow_bf16(fmaxf(widen_bf16((u16)(a >> 16)), widen_bf16((u16)(b >> 16)))) << 16;
}

inline u32 low_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
inline u32 high_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

struct alignas(16) Words {
  u32 w[4];
};

inline Words settled(Words x) { return x; }
inline int unknown(int x) { return x; }

template <bool STREAMED> Words load_words(const void *p) {
  host::check_access(p, false);
  Words x;
  memcpy(&x, p, 16);
  return x;
}

template <bool STREAMED> void store_words(void *p, const Words &x) {
  host::check_access(p, true);
  memcpy(p, &x, 16);
}

template <bool STREAMED> void store_whole(void *p, const Words &x) { store_words<STREAMED>(p, x); }

inline Words *shared_memory() { return (Words *)host::block->shared_memory.data(); }

// Copies to and from shared memory take effect at once.
inline void copy_words(Words *to, const void *from) { *to = load_words<false>(from); }
template <class T> void copy_element(T *to, const T *from) { *to = *from; }
inline void copies_done() {}
#define BULK host::bulk // both ways of the device, one a launch
inline void bulk_load(Words *to, const void *from, int words, u64 *inbox) {
  for (int i = 0; i < words; ++i) to[i] = load_words<false>((const u8 *)from + 16ll * i);
  *inbox -= 16ull * (u64)words;
}

template <bool AT_ONCE = true> void predecessors_done() { host::current->may_access = true; }

// Messages take effect at once; an inbox counts the bytes that it waits for.
template <class C> struct alignas(2 * sizeof(C)) Pair {
  C a, b;
};
inline int cluster_size() { return (int)host::cluster_blocks; }
inline int cluster_rank() { return (int)(host::block - host::block->cluster); }
inline u32 cluster_index() { return blockIdx.x / (u32)cluster_size(); }
constexpr u64 UNEXPECTED = 1ull << 40; // bytes that nobody sends, until it is known how many are
inline void inbox_open(u64 *inbox) { *inbox = UNEXPECTED; }
inline void inbox_expect(u64 *inbox, int bytes) { *inbox += (u64)bytes - UNEXPECTED; }
inline void inbox_wait(u64 *inbox) {
  while (*inbox) host::wait_for_others();
}
inline void cluster_started() { host::cluster_started(); }
inline void cluster_wait_started() { host::cluster_wait_started(); }
template <class C> void send(Pair<C> *to, u64 *inbox, int rank, Pair<C> x) {
  *host::there(to, rank) = x;
  u64 *there = host::there(inbox, rank);
  host::require(*there >= sizeof x, "a message to an inbox that waits for none");
  *there -= sizeof x;
  ++host::events;
}

typedef int Key;
typedef long long WideKey;
inline Key key_of(float x) {
  int b = bits_as<int>(x);
  return b ^ (b >> 31 & 0x7fffffff);
}
inline float key_value(Key k) { return bits_as<float>(k ^ (k >> 31 & 0x7fffffff)); }
inline WideKey key_of(double x) {
  i64 b = bits_as<i64>(x);
  return b ^ (b >> 63 & 0x7fffffffffffffffll);
}
inline double key_value(WideKey k) { return bits_as<double>(k ^ (k >> 63 & 0x7fffffffffffffffll)); }
template <class K> void raise(K *at, K k) {
  if (*at < k) *at = k;
}

// Gangs: blocks take turns, so that a plain access is whole.
inline u32 take_ticket(u32 *counter) { return (*counter)++; }
inline void post(u64 *at, u64 x) {
  *at = x;
  ++host::events;
}
inline u64 look(const u64 *at) {
  if (!*at) host::wait_for_others();
  return *at;
}

} // namespace online
