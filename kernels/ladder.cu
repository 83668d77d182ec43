// The ladder: the classic steps of a softmax kernel, f32 and contiguous, each with one idea more than the step before.
// For `cargo bench --features cuda --bench ladder`, which compiles this file with NVRTC, checks every step and times it.
// It is no part of the library: build.rs leaves it out.
//
//   naive           a block a row: maximum, sum, result, as the definition says
//                   three reads and one write of the row: what the others save
//   V0 thread       a thread a row, online: (m, d) holds maximum and sum at once
//                   two reads; but neighbouring threads read addresses a row apart, few rows are few threads, and one
//                   float takes the sum of a whole row (2e-4 off at 151936 numbers)
//   warp            a warp a row: lane i takes numbers i, i + 32, ..; five shuffles merge the lanes' (m, d)
//                   neighbours read neighbours; no shared memory, no barrier; a long row still has 32 threads
//   V1 block        a block a row: merged over each warp, then over the warps through shared memory
//                   long rows get threads enough, at two barriers a row
//   V2 16-byte      V1, four numbers an access where every row starts on 16 bytes, one by one where not
//                   a quarter of the load instructions, and one rescaling of d for four numbers
//   V3 registers    V2, the thread's share of the row kept in registers between the two uses
//                   one read and one write, one exponential a number; rows of up to 32768 numbers
//   V4 persistent   V3, in as many blocks as the GPU holds at once; each loads its next row while it stores this one
//                   no block is started a second time, and loads are in flight across the barrier. A row too long for
//                   V3's registers goes through V2's kernel in V4's grid
//
// Right for every input: a row with a NaN or +inf, or of nothing but -inf, is NaN throughout; -inf gives 0. Rows and
// columns are counted in 64 bits; every kernel loops over rows, so that no grid limit bounds them.

typedef long long i64;

constexpr int WARP = 32;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ---------------------------------------------------------------- (m, d): maximum, and sum of exp(x - m)

struct State {
  float m, d;
};

__device__ __forceinline__ State identity() { return State{-infinity(), 0.0f}; }

// Where NaN hides: x - m is inf - inf while nothing but -inf was seen (an idle lane, a masked share) and after a +inf.
// Such numbers are taken relative to 0. A NaN never becomes m (fmaxf drops it) and stays in d.
__device__ __forceinline__ float reference(float m) { return m == infinity() || m == -infinity() ? 0.0f : m; }

__device__ __forceinline__ void push(State &s, float x) {
  float m = fmaxf(s.m, x), ref = reference(m);
  s.d = s.d * expf(s.m - ref) + expf(x - ref);
  s.m = m;
}

__device__ __forceinline__ float max_of(float4 q) { return fmaxf(fmaxf(q.x, q.y), fmaxf(q.z, q.w)); }
__device__ __forceinline__ float sum_of(float4 q) { return (q.x + q.y) + (q.z + q.w); }
__device__ __forceinline__ float4 exp_of(float4 q, float ref) {
  return make_float4(expf(q.x - ref), expf(q.y - ref), expf(q.z - ref), expf(q.w - ref));
}
__device__ __forceinline__ float4 times(float4 q, float f) { return make_float4(q.x * f, q.y * f, q.z * f, q.w * f); }

__device__ __forceinline__ void push(State &s, float4 q) {
  float m = fmaxf(s.m, max_of(q)), ref = reference(m);
  s.d = s.d * expf(s.m - ref) + sum_of(exp_of(q, ref));
  s.m = m;
}

// No fma: both lanes of a pair must get the same bits, whichever of them is `a`.
__device__ __forceinline__ State merge(State a, State b) {
  float m = fmaxf(a.m, b.m), ref = reference(m);
  return State{m, __fadd_rn(__fmul_rn(a.d, expf(a.m - ref)), __fmul_rn(b.d, expf(b.m - ref)))};
}

// What exp(x - reference(m)) is multiplied by. A row with a +inf is NaN as a whole: 1/inf would leave zeros in it.
__device__ __forceinline__ float scale(State s) { return s.m == infinity() ? __int_as_float(0x7fffffff) : 1.0f / s.d; }

// ---------------------------------------------------------------- merging over the threads that share a row

__device__ __forceinline__ float shuffle(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
__device__ __forceinline__ State shuffle(State s, int lanes) { return State{shuffle(s.m, lanes), shuffle(s.d, lanes)}; }

template <class T, class Merge> __device__ __forceinline__ T over_warp(T x, Merge merge) {
  for (int lanes = WARP / 2; lanes > 0; lanes /= 2) x = merge(x, shuffle(x, lanes));
  return x;
}

// Each warp, then the warps' results, which every warp merges for itself.
template <class T, class Merge> __device__ __forceinline__ T over_block(T x, T nothing, Merge merge) {
  __shared__ T slots[WARP];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  x = over_warp(x, merge);
  if (lane == 0) slots[warp] = x;
  __syncthreads();
  x = lane < warps ? slots[lane] : nothing;
  __syncthreads(); // the next row may write the slots
  return over_warp(x, merge);
}

struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct MergeStates {
  __device__ __forceinline__ State operator()(State a, State b) const { return merge(a, b); }
};

// ---------------------------------------------------------------- a share of a row: numbers first, first + step, ..

template <class T> __device__ __forceinline__ State fold(const T *row, i64 len, i64 first, i64 step) {
  State s = identity();
  for (i64 i = first; i < len; i += step) push(s, row[i]);
  return s;
}

__device__ __forceinline__ float result(float x, float ref, float scale) { return expf(x - ref) * scale; }
__device__ __forceinline__ float4 result(float4 x, float ref, float scale) { return times(exp_of(x, ref), scale); }

template <class T> __device__ __forceinline__ void write(const T *x, T *y, i64 len, i64 first, i64 step, State whole) {
  float ref = reference(whole.m), by = scale(whole);
  for (i64 i = first; i < len; i += step) y[i] = result(x[i], ref, by);
}

// Whether every row starts on 16 bytes, in x and in y.
__device__ __forceinline__ bool rows_on_16_bytes(const float *x, const float *y, i64 cols) {
  return cols % 4 == 0 && ((unsigned long long)x | (unsigned long long)y) % 16 == 0;
}
__device__ __forceinline__ const float4 *fours(const float *row) { return reinterpret_cast<const float4 *>(row); }
__device__ __forceinline__ float4 *fours(float *row) { return reinterpret_cast<float4 *>(row); }

#define PARAMETERS const float *__restrict__ x, float *__restrict__ y, i64 rows, i64 cols

// ---------------------------------------------------------------- naive

extern "C" __global__ void __launch_bounds__(1024) naive(PARAMETERS) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *in = x + row * cols;
    float m = -infinity(), d = 0.0f;
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) m = fmaxf(m, in[i]);
    m = over_block(m, -infinity(), Max());
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) d += expf(in[i] - reference(m));
    d = over_block(d, 0.0f, Sum());
    write(in, y + row * cols, cols, threadIdx.x, blockDim.x, State{m, d});
  }
}

// ---------------------------------------------------------------- V0: a thread a row

extern "C" __global__ void thread_row(PARAMETERS) {
  i64 threads = (i64)gridDim.x * blockDim.x;
  for (i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
    State whole = fold(x + row * cols, cols, 0, 1);
    write(x + row * cols, y + row * cols, cols, 0, 1, whole);
  }
}

// ---------------------------------------------------------------- a warp a row
// All lanes of a warp have the same rows, so that all take part in every shuffle.

extern "C" __global__ void warp_row(PARAMETERS) {
  int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  for (i64 row = (i64)blockIdx.x * warps + threadIdx.x / WARP; row < rows; row += (i64)gridDim.x * warps) {
    State whole = over_warp(fold(x + row * cols, cols, lane, WARP), MergeStates());
    write(x + row * cols, y + row * cols, cols, lane, WARP, whole);
  }
}

// ---------------------------------------------------------------- V1: a block a row

extern "C" __global__ void __launch_bounds__(1024) block_row(PARAMETERS) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    State share = fold(x + row * cols, cols, threadIdx.x, blockDim.x);
    State whole = over_block(share, identity(), MergeStates());
    write(x + row * cols, y + row * cols, cols, threadIdx.x, blockDim.x, whole);
  }
}

// ---------------------------------------------------------------- V2: 16 bytes an access

extern "C" __global__ void __launch_bounds__(1024) block_row_wide(PARAMETERS) {
  bool wide = rows_on_16_bytes(x, y, cols);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const float *in = x + row * cols;
    float *out = y + row * cols;
    State share = wide ? fold(fours(in), cols / 4, threadIdx.x, blockDim.x) : fold(in, cols, threadIdx.x, blockDim.x);
    State whole = over_block(share, identity(), MergeStates());
    if (wide)
      write(fours(in), fours(out), cols / 4, threadIdx.x, blockDim.x, whole);
    else
      write(in, out, cols, threadIdx.x, blockDim.x, whole);
  }
}

// ---------------------------------------------------------------- V3: the row in registers
// A thread keeps 4 * N numbers in c[N]. Every index of c is a constant once the loops are unrolled: a run-time index would
// put the array into local memory, which is DRAM. (scripts/kernel-gate.sh reads ptxas's report of it.) The host chooses
// N and the block with 4 * N * threads >= cols, so a column fits 32 bits.

// blockDim.x, unknown anew at each call. Known, it let the compiler compute the address of every part ahead of the loop
// over rows and keep them all: 820 bytes of spills at N = 16, sm_90.
__device__ __forceinline__ int block_threads() {
  int n;
  asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(n));
  return n;
}

// Part k of the thread's share; past the row's end -inf, which adds nothing.
template <bool WIDE> __device__ __forceinline__ float4 load(const float *row, int cols, int n, int k) {
  int i = threadIdx.x + (WIDE ? k : 4 * k) * n;
  if (WIDE) return i < cols / 4 ? fours(row)[i] : make_float4(-infinity(), -infinity(), -infinity(), -infinity());
  return make_float4(i < cols ? row[i] : -infinity(), i + n < cols ? row[i + n] : -infinity(),
                     i + 2 * n < cols ? row[i + 2 * n] : -infinity(), i + 3 * n < cols ? row[i + 3 * n] : -infinity());
}

template <bool WIDE> __device__ __forceinline__ void store(float *row, int cols, int n, int k, float4 q) {
  int i = threadIdx.x + (WIDE ? k : 4 * k) * n;
  if (WIDE) {
    if (i < cols / 4) fours(row)[i] = q;
    return;
  }
  if (i < cols) row[i] = q.x;
  if (i + n < cols) row[i + n] = q.y;
  if (i + 2 * n < cols) row[i + 2 * n] = q.z;
  if (i + 3 * n < cols) row[i + 3 * n] = q.w;
}

// Turns the share into exp(c - its maximum), and gives the factor that makes probabilities of that.
template <int N> __device__ __forceinline__ float exp_and_factor(float4 (&c)[N]) {
  State share = identity();
#pragma unroll
  for (int k = 0; k < N; ++k) share.m = fmaxf(share.m, max_of(c[k]));
#pragma unroll
  for (int k = 0; k < N; ++k) {
    c[k] = exp_of(c[k], reference(share.m));
    share.d += sum_of(c[k]);
  }
  State whole = over_block(share, identity(), MergeStates());
  return expf(share.m - reference(whole.m)) * scale(whole);
}

template <int N, bool WIDE> __device__ __forceinline__ void cached_rows(PARAMETERS) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    float4 c[N];
    int n = block_threads();
#pragma unroll
    for (int k = 0; k < N; ++k) c[k] = load<WIDE>(x + row * cols, (int)cols, n, k);
    float factor = exp_and_factor(c);
    n = block_threads();
#pragma unroll
    for (int k = 0; k < N; ++k) store<WIDE>(y + row * cols, (int)cols, n, k, times(c[k], factor));
  }
}

// ---------------------------------------------------------------- V4: V3, persistent

template <int N, bool WIDE> __device__ __forceinline__ void persistent_rows(PARAMETERS) {
  i64 row = blockIdx.x;
  if (row >= rows) return;
  int n = block_threads();
  float4 c[N];
#pragma unroll
  for (int k = 0; k < N; ++k) c[k] = load<WIDE>(x + row * cols, (int)cols, n, k);
  for (;;) {
    float factor = exp_and_factor(c);
    n = block_threads();
    float *out = y + row * cols;
    row += gridDim.x;
    bool more = row < rows;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      store<WIDE>(out, (int)cols, n, k, times(c[k], factor));
      if (more) c[k] = load<WIDE>(x + row * cols, (int)cols, n, k); // into the registers just stored
    }
    if (!more) return;
  }
}

#define CACHED_KERNELS(N)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1) block_row_cached_##N(PARAMETERS) {                                        \
    if (rows_on_16_bytes(x, y, cols))                                                                                            \
      cached_rows<N, true>(x, y, rows, cols);                                                                                    \
    else                                                                                                                         \
      cached_rows<N, false>(x, y, rows, cols);                                                                                   \
  }                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(512, 1) block_row_persistent_##N(PARAMETERS) {                                    \
    if (rows_on_16_bytes(x, y, cols))                                                                                            \
      persistent_rows<N, true>(x, y, rows, cols);                                                                                \
    else                                                                                                                         \
      persistent_rows<N, false>(x, y, rows, cols);                                                                               \
  }

CACHED_KERNELS(1)
CACHED_KERNELS(2)
CACHED_KERNELS(4)
CACHED_KERNELS(8)
CACHED_KERNELS(16)
