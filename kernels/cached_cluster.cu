// Long rows on 16-byte boundaries: a cluster of blocks owns a row; it stays in their registers.
//
//   |<------- block 0 ------->|<------- block 1 ------->| ...     `share` vectors of the row a block, its slice
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...               thread t owns vectors t, t + 256, .. of it, N at most
//
// Passes over memory: one read, one write. Barriers: two of the block, none of the cluster (see cluster.cuh). Shared
// memory: the merge's slots.
// Invariant: owners, sums and references are those of cluster.cu, which has the same rows in other layouts, and so
// are the bits.
// Registers decide: 40, 6 blocks on an SM, for 4 vectors; 64, 4 blocks, for 8 (512x131072 f32, H200: 132.3 us, with 48
// 132.9, with 115 and 2 blocks 182). In shared memory instead, by bulk copies: 133.3; and with few rows the way
// through it is time to wait for: 64x128256 bf16 11.6 us for 13.1, 1x128256 f32 3.8 for 4.4.
#include "cluster.cuh"
#include "slice.cuh"
#include "table.cuh"
#include "twice.cuh"

using namespace online;

// Plain loads and stores: streamed ones are slower here, for f32 too (1x128256 3.7 us, 3.6 without).
template <class D> using Slice = AlignedRow<D, int, false>;

template <class D, int N> struct ClusterSoftmax {
  typedef typename D::Compute C;

  // `turns`: how many of its N vectors a thread has, most threads at least.
  static __device__ __forceinline__ void row(const Slice<D> &x, const Slice<D> &y, int turns, Cluster<C> &merge) {
    Words raw[N];
    x.load(raw, (int)threadIdx.x, SLICE_THREADS, D::lowest());
    const Reference<D> share(group_max(vectors_max<D>(raw, -Limits<C>::infinity()), WARP));
    State<D> whole = merge.template merge<D>(share.m, share.base == C(0) ? sum<false>(raw, turns, share) : sum<true>(raw, turns, share));
    const Reference<D> at(whole.m);
    C scale = mul(whole.weight(), C(1) / Reference<D>::TOP);
    y.put(raw, (int)threadIdx.x, SLICE_THREADS, [&](const Words &w) {
      return at.base == C(0) ? Twice<D>::template result<false>(w, at, scale) : Twice<D>::template result<true>(w, at, scale);
    });
  }

private:
  template <bool SHIFT> static __device__ __forceinline__ C sum(const Words (&x)[N], int turns, const Reference<D> &at) {
    C d = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < turns) d = add(d, Twice<D>::template sum<SHIFT>(x[k], at));
    return d;
  }
};

// dx = y * (g - sum g*y).
template <class D, int N> struct ClusterSoftmaxBackward {
  typedef typename D::Compute C;
  typedef CachedSoftmaxBackward<D> Vector;

  static __device__ __forceinline__ void row(const Slice<D> &y, const Slice<D> &g, const Slice<D> &dx, Cluster<C> &merge) {
    Words ys[N], gs[N];
    y.load(ys, (int)threadIdx.x, SLICE_THREADS, 0);
    g.load(gs, (int)threadIdx.x, SLICE_THREADS, 0);
    C s = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) s = add(s, Vector::product_sum(ys[k], gs[k]));
    s = merge.sum(s);
    // Settled, or the compiler keeps halves widened from above: 16 registers a vector, not 8.
#pragma unroll
    for (int k = 0; k < N; ++k) ys[k] = Vector::gradient(settled(ys[k]), settled(gs[k]), s);
    dx.store(ys, (int)threadIdx.x, SLICE_THREADS, merge);
  }
};

// Blocks on an SM. Elsewhere than on sm_90 some would spill: before sm_80 halves are widened to be compared.
#if __CUDA_ARCH__ < 800
#define BLOCKS(D, N) 1
#define BACKWARD_BLOCKS(N) 1
#elif __CUDA_ARCH__ == 900
#define BLOCKS(D, N) (sizeof(D::Storage) == 8 ? (N < 16 ? 2 : 1) : N == 4 ? 6 : N == 8 ? 4 : 2)
#define BACKWARD_BLOCKS(N) (N == 4 ? 4 : 2)
#else
#define BLOCKS(D, N) (sizeof(D::Storage) == 8 ? 1 : N == 4 ? 4 : N == 8 ? 3 : 2)
#define BACKWARD_BLOCKS(N) (N == 4 ? 3 : 1)
#endif

#define SOFTMAX_KERNEL(dtype, D, N)                                                                                              \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, BLOCKS(D, N))                                                      \
      cached_cluster_softmax_##dtype##_aligned_##N(SOFTMAX_PARAMETERS(D)) {                                                      \
    __shared__ ClusterSlots<D::Compute> slots;                                                                                   \
    Cluster<D::Compute> merge(slots);                                                                                            \
    predecessors_done();                                                                                                         \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                           \
      Slice<D> from(x, rows, x_at, r, first, cols), to(y, rows, y_at, r, first, cols);                                           \
      ClusterSoftmax<D, N>::row(from, to, (share + SLICE_THREADS - 1) / SLICE_THREADS, merge);                                   \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, N)                                                                                     \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, BACKWARD_BLOCKS(N))                                                \
      cached_cluster_softmax_backward_##dtype##_aligned_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                    \
    __shared__ ClusterSlots<D::Compute> slots;                                                                                   \
    Cluster<D::Compute> merge(slots);                                                                                            \
    predecessors_done();                                                                                                         \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                           \
      Slice<D> ys(y, rows, y_at, r, first, cols), gs(g, rows, g_at, r, first, cols), to(dx, rows, dx_at, r, first, cols);        \
      ClusterSoftmaxBackward<D, N>::row(ys, gs, to, merge);                                                                      \
    });                                                                                                                          \
  }
// See `cluster_plan` in src/plan/choose.rs.
#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, 4)                                                                                                    \
  SOFTMAX_KERNEL(dtype, D, 8)                                                                                                    \
  SOFTMAX_KERNEL(dtype, D, 12)                                                                                                   \
  SOFTMAX_KERNEL(dtype, D, 16)                                                                                                   \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 4)                                                                                           \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 8)

FOR_EACH_DTYPE(TABLE)
