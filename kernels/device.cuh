// Device-only instructions, and nothing else: shuffles, ex2, 16-byte accesses and copies, conversions,
// barriers, launches, clusters, gangs.
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

// From the lane below; to the lowest of its `width` lanes from the highest.
__device__ __forceinline__ u32 rotate_up(u32 x, int width) { return __shfl_sync(ALL_LANES, x, (int)threadIdx.x - 1, width); }

__device__ __forceinline__ void block_barrier() { __syncthreads(); }

// ---------------------------------------------------------------- launches
// Until the launches before this one in its stream have ended and what they wrote is there: before any access to
// memory. What stands above it, and the way of the blocks to their SMs, overlaps with the end of those launches if this
// one asked for it (src/cuda/launch.rs) and they are kernels that have let it, as these do for the next: all of them at
// their beginning, or, where blocks are many and small, at their end. (To let it at the beginning costs each a little: 4194304x4
// f32, blocks of 2 KiB, 41.4 us, and 34.4 without, H200.)
template <bool AT_ONCE = true> __device__ __forceinline__ void predecessors_done() {
#if __CUDA_ARCH__ >= 900
  if (AT_ONCE) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---------------------------------------------------------------- clusters
// Blocks that run at once and write to each other's shared memory, up to 16 of them. Before sm_90 a cluster is
// one block, and sends nothing.

// Of two numbers, sent as one.
template <class C> struct alignas(2 * sizeof(C)) Pair {
  C a, b;
};

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cluster_size() {
  u32 x;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return (int)x;
}
__device__ __forceinline__ int cluster_rank() {
  u32 x;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return (int)x;
}
// Which cluster this is: its row.
__device__ __forceinline__ u32 cluster_index() {
  u32 x;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(x));
  return x;
}
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Makes `inbox` ready for messages: one thread, before its block's cluster_started().
__device__ __forceinline__ void inbox_open(u64 *inbox) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(inbox)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Of `bytes` in all: one thread, before or after the first has come.
__device__ __forceinline__ void inbox_expect(u64 *inbox, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(inbox)), "r"(bytes) : "memory");
}
// Says that this block's inbox is open; waits until all are. All threads.
__device__ __forceinline__ void cluster_started() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait_started() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ u32 remote_address(const void *p, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}
// *to = x in block `rank`, announced to its inbox; both are named by where this block has its own.
__device__ __forceinline__ void send(Pair<float> *to, u64 *inbox, int rank, Pair<float> x) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(remote_address(to, rank)),
               "f"(x.a), "f"(x.b), "r"(remote_address(inbox, rank))
               : "memory");
}
__device__ __forceinline__ void send(Pair<double> *to, u64 *inbox, int rank, Pair<double> x) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];" ::"r"(remote_address(to, rank)),
               "d"(x.a), "d"(x.b), "r"(remote_address(inbox, rank))
               : "memory");
}
// Until every message is there. Messages need no more than the default order, of one block: to acquire of the
// cluster would empty the L1, a fifth of a row's time (512x131072 f32, H200).
__device__ __forceinline__ void inbox_wait(u64 *inbox) {
  u32 done = 0;
  while (!done)
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(inbox))
                 : "memory");
}
#else
__device__ __forceinline__ int cluster_size() { return 1; }
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ u32 cluster_index() { return blockIdx.x; }
__device__ __forceinline__ void inbox_open(u64 *) {}
__device__ __forceinline__ void inbox_expect(u64 *, int) {}
__device__ __forceinline__ void cluster_started() {}
__device__ __forceinline__ void cluster_wait_started() {}
template <class C> __device__ __forceinline__ void send(Pair<C> *, u64 *, int, Pair<C>) {}
__device__ __forceinline__ void inbox_wait(u64 *) {}
#endif

// ---------------------------------------------------------------- maxima in shared memory
// Numbers that compare as the floats they are of, which atomics do not know. NaN has none.
typedef int Key;
typedef long long WideKey;
__device__ __forceinline__ Key key_of(float x) {
  int b = __float_as_int(x);
  return b ^ (b >> 31 & 0x7fffffff);
}
__device__ __forceinline__ float key_value(Key k) { return __int_as_float(k ^ (k >> 31 & 0x7fffffff)); }
__device__ __forceinline__ WideKey key_of(double x) {
  i64 b = __double_as_longlong(x);
  return b ^ (b >> 63 & 0x7fffffffffffffffll);
}
__device__ __forceinline__ double key_value(WideKey k) { return __longlong_as_double(k ^ (k >> 63 & 0x7fffffffffffffffll)); }
__device__ __forceinline__ void raise(Key *at, Key k) { atomicMax(at, k); }
__device__ __forceinline__ void raise(WideKey *at, WideKey k) { atomicMax(at, k); }

// ---------------------------------------------------------------- gangs
// Blocks that meet in global memory, past the L1, which is not kept up to date.

// Each ticket once, from 0 on.
__device__ __forceinline__ u32 take_ticket(u32 *counter) { return atomicAdd(counter, 1u); }
// 8 bytes that are seen whole, some time later, and say nothing of what else this thread has written.
__device__ __forceinline__ void post(u64 *at, u64 x) { asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(at), "l"(x) : "memory"); }
// What was posted there, or what was there before.
__device__ __forceinline__ u64 look(const u64 *at) {
  u64 x;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
  return x;
}

// ---------------------------------------------------------------- arithmetic
// The _rn forms are never contracted into an fma, so every kernel rounds alike.

__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float fused_mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float largest(float a, float b) { return fmaxf(a, b); } // NaN loses

__device__ __forceinline__ float smallest(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ int smallest(int a, int b) { return min(a, b); }
__device__ __forceinline__ i64 smallest(i64 a, i64 b) { return min(a, b); }
__device__ __forceinline__ i64 largest(i64 a, i64 b) { return max(a, b); }

__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double largest(double a, double b) { return fmax(a, b); }
__device__ __forceinline__ double e_to_the(double x) { return exp(x); }

__device__ __forceinline__ float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double quotient(double a, double b) { return __ddiv_rn(a, b); }
__device__ __forceinline__ float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ __forceinline__ double hyperbolic_tangent(double x) { return tanh(x); }
__device__ __forceinline__ float natural_log(float x) { return logf(x); }
__device__ __forceinline__ double natural_log(double x) { return log(x); }

// 1/x, within one ulp; 0 for a result below the normal range.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double reciprocal(double x) { return __drcp_rn(x); }

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

// The larger of each half, two at a time; NaN loses.
__device__ __forceinline__ u32 largest_f16(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
#else
  return (u32)narrow_f16(fmaxf(widen_f16((u16)a), widen_f16((u16)b))) |
         (u32)narrow_f16(fmaxf(widen_f16((u16)(a >> 16)), widen_f16((u16)(b >> 16)))) << 16;
#endif
}

__device__ __forceinline__ u32 largest_bf16(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
#else
  return (u32)narrow_bf16(fmaxf(widen_bf16((u16)a), widen_bf16((u16)b))) |
         (u32)narrow_bf16(fmaxf(widen_bf16((u16)(a >> 16)), widen_bf16((u16)(b >> 16)))) << 16;
#endif
}

// Of two words, their low halves, and their high ones.
__device__ __forceinline__ u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
__device__ __forceinline__ u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

// ---------------------------------------------------------------- 16-byte accesses

struct alignas(16) Words {
  u32 w[4];
};

// x, not to be put off: what needs many registers does not wait for the next of its kind.
__device__ __forceinline__ Words settled(Words x) {
  asm volatile("" : "+r"(x.w[0]), "+r"(x.w[1]), "+r"(x.w[2]), "+r"(x.w[3])::"memory");
  return x;
}

// x, of which the compiler is to know nothing: what follows from a constant step, it computes before a loop and keeps in
// registers, of which a loop over elements far apart has too few (sm_120).
__device__ __forceinline__ int unknown(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Streamed, memory that is not used again leaves the caches first: a gain of 1 to 3 % for rows of f32, a loss of 2 %
// for halves (block family, H200).
template <bool STREAMED> __device__ __forceinline__ Words load_words(const void *p) {
  const uint4 *from = reinterpret_cast<const uint4 *>(p);
  uint4 v = STREAMED ? __ldcs(from) : *from;
  return Words{{v.x, v.y, v.z, v.w}};
}

template <bool STREAMED> __device__ __forceinline__ void store_words(void *p, const Words &x) {
  uint4 *to = reinterpret_cast<uint4 *>(p), v = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
  if (STREAMED)
    __stcs(to, v);
  else
    *to = v;
}

// The same in one access, come what may: of vectors that are put together from others nvcc makes four, of 4 bytes, to save
// moves (64x1000x256 bf16 59.5 us, 32.1 so).
template <bool STREAMED> __device__ __forceinline__ void store_whole(void *p, const Words &x) {
  if (STREAMED)
    store_words<true>(p, x);
  else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.w[0]), "r"(x.w[1]), "r"(x.w[2]), "r"(x.w[3]) : "memory");
}

// 16 bytes from global to shared memory, past the registers; there after copies_done() of the same thread.
__device__ __forceinline__ void copy_words(Words *to, const void *from) {
#if __CUDA_ARCH__ >= 800
  u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
  *to = load_words<false>(from);
#endif
}
// The same of one element.
template <class T> __device__ __forceinline__ void copy_element(T *to, const T *from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) >= 4) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(sizeof(T)) : "memory");
    return;
  }
#endif
  *to = *from;
}
__device__ __forceinline__ void copies_done() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Bulk copies, sm_90 and later: `words` of 16 bytes, by one thread for all.
#if __CUDA_ARCH__ >= 900
constexpr bool BULK = true;

// Global to shared memory, announced to this block's inbox.
__device__ __forceinline__ void bulk_load(Words *to, const void *from, int words, u64 *inbox) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(16 * words), "r"(shared_address(inbox))
               : "memory");
}
#else
constexpr bool BULK = false;
__device__ __forceinline__ void bulk_load(Words *, const void *, int, u64 *) {}
#endif

// The shared memory that the launch asked for.
extern __shared__ Words launch_memory[];
__device__ __forceinline__ Words *shared_memory() { return launch_memory; }

} // namespace online
