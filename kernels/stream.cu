// Rows of any length: a gang of blocks owns a row, a slice each, and reads it twice.
//
//   |<------- block 0 ------->|<------- block 1 ------->| ...     `slice` vectors of the row a block
//   | warp 0 | ... | warp 7 | warp 0 | ...                         thread t owns vectors t, t + threads, .. of it
//
// Passes over memory: two reads (the second, last vectors first, comes from L2 as far as it holds the rows in flight), one write.
// The first folds the slice into (m, d), N vectors at a time: they are loaded before any is used, and d is
// rescaled once for all of them. The second normalises. Barriers: two or three of the block; blocks of a row meet in
// global memory (see gang.cuh). Shared memory: a few numbers a warp; what the launch asks for beside keeps blocks from an
// SM. Columns are counted in 64 bits. `share` is the slice in turns of 32 vectors.
#include "cached.cuh"
#include "gang.cuh"
#include "table.cuh"

using namespace online;

// D for rows that are read, or written, to be used again (KEPT) or not: inputs again, in the second pass, for which the L2 is to
// keep them; the rest is not to take their place.
template <class D, bool KEPT> struct Passing : D { static constexpr bool STREAMED = !KEPT; };

// Calls body(v), v the first of N vectors of this thread's, last turn first: what was read last is likeliest to be in the
// L2 still. Whole turns, so that every lane of a warp calls every store.
template <int N, class Body> __device__ __forceinline__ void for_turns_down(i64 vectors, int threads, Body body) {
  const i64 turn = (i64)N * threads;
#pragma unroll 1
  for (i64 at = (vectors + turn - 1) / turn * turn - turn; at >= 0; at -= turn) body(at + threadIdx.x);
}

template <class D> struct StreamSoftmax {
  typedef typename D::Compute C;

  template <int N, class First, class Second, class Merge>
  static __device__ __forceinline__ void row(const First &x, const Second &again, const Second &y, i64 vectors, Merge &merge) {
    const int threads = unknown((int)blockDim.x);
    Share share = {-Limits<C>::infinity(), {C(0), C(0)}};
#pragma unroll 1
    for (i64 v = threadIdx.x; v < vectors; v += (i64)N * threads) fold<N>(x, v, threads, share);
    C warp_m = merge.share_max(share.m);
    State<D> whole = merge.template merge<D>(warp_m, State<D>{share.m, share.d.total()}.rescaled(Reference<D>(warp_m)));
    const Reference<D> at(whole.m);
    C scale = mul(whole.weight(), C(1) / Reference<D>::TOP);
    Alone warp;
    for_turns_down<N>(vectors, threads, [&](i64 v) {
      Words raw[N];
      again.load(raw, v, threads, D::lowest());
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Words out[1];
#pragma unroll
        for (int i = 0; i < D::LEN; ++i) D::set(out[0], i, mul(exponential<D, true>(raw[k], i, at), scale));
        y.store(out, v + (i64)k * threads, threads, warp);
      }
    });
  }

  // A thread's (m, d) so far.
  struct Share {
    C m;
    Sum<C> d;
  };

  template <int N, class Row> static __device__ __forceinline__ void fold(const Row &x, i64 v, int threads, Share &share) {
    Words raw[N];
    x.load(raw, v, threads, D::lowest());
    C m = vectors_max<D>(raw, share.m);
    const Reference<D> at(m);
    C d = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      C e[D::LEN];
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) e[i] = exponential<D, true>(raw[k], i, at);
      d = add(d, tree_sum(e));
    }
    share.d.rescale(at.factor(Reference<D>(share.m)));
    share.d.add_term(d);
    share.m = m;
  }
};

template <class D> struct StreamSoftmaxBackward {
  typedef typename D::Compute C;
  typedef CachedSoftmaxBackward<D> Vector;

  template <int N, class First, class Second, class Merge>
  static __device__ __forceinline__ void row(const First &y, const First &g, const Second &y_again, const Second &g_again,
                                             const Second &dx, i64 vectors, Merge &merge) {
    const int threads = unknown((int)blockDim.x);
    Sum<C> share = {C(0), C(0)};
#pragma unroll 1
    for (i64 v = threadIdx.x; v < vectors; v += (i64)N * threads) {
      Words ys[N], gs[N];
      y.load(ys, v, threads, 0);
      g.load(gs, v, threads, 0);
      C p = C(0);
#pragma unroll
      for (int k = 0; k < N; ++k) p = add(p, Vector::product_sum(ys[k], gs[k]));
      share.add_term(p);
    }
    C s = merge.sum(share.total());
    Alone warp;
    for_turns_down<N>(vectors, threads, [&](i64 v) {
      Words ys[N], gs[N];
      y_again.load(ys, v, threads, 0);
      g_again.load(gs, v, threads, 0);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Words out[1] = {Vector::gradient(ys[k], gs[k], s)};
        dx.store(out, v + (i64)k * threads, threads, warp);
      }
    });
  }
};

// This block's slice: body(row, first column, columns, vectors, merge).
template <class D, class Body> __device__ __forceinline__ void for_slice(const Rows &rows, int share, u64 *workspace, Body body) {
  __shared__ GangSlots<typename D::Compute> slots;
  predecessors_done();
  Gang<typename D::Compute> merge(slots, workspace, rows);
  const i64 slice = (i64)share * WARP * D::LEN, first = smallest(merge.rank * slice, rows.cols);
  const i64 cols = smallest(rows.cols - first, slice);
  body((i64)merge.row, first, cols, (cols + D::LEN - 1) / D::LEN, merge);
}

// Two blocks on an SM: 128 registers each.
#define SOFTMAX_KERNEL(dtype, D, access, Row, N)                                                                                 \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                           \
      stream_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D), GANG_PARAMETER) {                                           \
    typedef Row<Passing<D, true>, i64> First;                                                                                    \
    typedef Row<Passing<D, false>, i64> Second;                                                                                  \
    for_slice<D>(rows, share, workspace, [&](i64 r, i64 first, i64 cols, i64 vectors, Gang<D::Compute> &merge) {                 \
      First from(x, rows, x_at, r, first, cols);                                                                                 \
      Second again(x, rows, x_at, r, first, cols), to(y, rows, y_at, r, first, cols);                                            \
      StreamSoftmax<D>::row<N>(from, again, to, vectors, merge);                                                                 \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N)                                                                        \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                           \
      stream_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D), GANG_PARAMETER) {                         \
    typedef Row<Passing<D, true>, i64> First;                                                                                    \
    typedef Row<Passing<D, false>, i64> Second;                                                                                  \
    for_slice<D>(rows, share, workspace, [&](i64 r, i64 first, i64 cols, i64 vectors, Gang<D::Compute> &merge) {                 \
      First ys(y, rows, y_at, r, first, cols), gs(g, rows, g_at, r, first, cols);                                                \
      Second y_again(y, rows, y_at, r, first, cols), g_again(g, rows, g_at, r, first, cols), to(dx, rows, dx_at, r, first, cols);\
      StreamSoftmaxBackward<D>::row<N>(ys, gs, y_again, g_again, to, vectors, merge);                                            \
    });                                                                                                                          \
  }

#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedRow, 4)                                                                               \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedRow, 4)                                                                           \
  SOFTMAX_KERNEL(dtype, D, strided, StridedRow, 4)                                                                               \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedRow, 4)                                                                      \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedRow, 4)                                                                  \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedRow, 4)

FOR_EACH_DTYPE(TABLE)
