// Rows of any length: a block owns a row and reads it twice.
//
//   | warp 0 | warp 1 | ... | warp 15 | warp 0 | ...    thread t owns vectors t, t + threads, t + 2*threads, ..
//
// Passes over memory: two reads (the second comes from L2 while the rows in flight fit it), one write.
// The first folds the row into (m, d), N vectors at a time: they are loaded before any is used, and d is
// rescaled once for all of them. The second normalises. Barriers: one a row. Shared memory: 2 x 2 x 32
// numbers. Columns are counted in 64 bits.
#include "cached.cuh"
#include "table.cuh"

using namespace online;

template <class D> struct StreamSoftmax {
  typedef typename D::Compute C;

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &x, const Row &y, i64 vectors, int threads, Merge &merge) {
    Share share = {-Limits<C>::infinity(), {C(0), C(0)}};
    for (i64 v = threadIdx.x; v < vectors; v += (i64)N * threads) fold<N>(x, v, threads, share);
    C warp_m = merge.share_max(share.m);
    State<D> whole = merge.template merge<D>(warp_m, State<D>{share.m, share.d.total()}.rescaled(Reference<D>(warp_m)));
    const Reference<D> at(whole.m);
    C scale = mul(whole.weight(), C(1) / Reference<D>::TOP);
    Alone warp;
    // Whole turns, so that every lane of a warp calls every store.
    for (i64 turn = 0; turn < vectors; turn += (i64)N * threads) {
      i64 v = turn + threadIdx.x;
      Words raw[N];
      x.load(raw, v, threads, D::lowest());
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Words out[1];
#pragma unroll
        for (int i = 0; i < D::LEN; ++i) D::set(out[0], i, mul(exponential<D, true>(raw[k], i, at), scale));
        y.store(out, v + (i64)k * threads, threads, warp);
      }
    }
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

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &y, const Row &g, const Row &dx, i64 vectors, int threads, Merge &merge) {
    Sum<C> share = {C(0), C(0)};
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
    for (i64 turn = 0; turn < vectors; turn += (i64)N * threads) {
      i64 v = turn + threadIdx.x;
      Words ys[N], gs[N];
      y.load(ys, v, threads, 0);
      g.load(gs, v, threads, 0);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Words out[1] = {Vector::gradient(ys[k], gs[k], s)};
        dx.store(out, v + (i64)k * threads, threads, warp);
      }
    }
  }
};

// The block's row: body(row, vectors, merge).
template <class D, class Body> __device__ __forceinline__ void for_row(const Rows &rows, Body body) {
  __shared__ Slots<typename D::Compute> slots;
  Block<typename D::Compute> merge(slots);
  body((i64)blockIdx.x, (rows.cols + D::LEN - 1) / D::LEN, merge);
}

#define SOFTMAX_KERNEL(dtype, D, access, Row, N)                                                                                 \
  extern "C" __global__ void __launch_bounds__(512, 1) stream_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D)) {          \
    predecessors_done();                                                                                                        \
    for_row<D>(rows, [&](i64 r, i64 vectors, Block<D::Compute> &merge) {                                                         \
      Row<D, i64> from(x, rows, x_at, r, 0, rows.cols), to(y, rows, y_at, r, 0, rows.cols);                                \
      StreamSoftmax<D>::row<N>(from, to, vectors, share, merge);                                                                 \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N)                                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1) stream_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) { \
    predecessors_done();                                                                                                        \
    for_row<D>(rows, [&](i64 r, i64 vectors, Block<D::Compute> &merge) {                                                         \
      Row<D, i64> ys(y, rows, y_at, r, 0, rows.cols), gs(g, rows, g_at, r, 0, rows.cols);                                  \
      Row<D, i64> to(dx, rows, dx_at, r, 0, rows.cols);                                                                       \
      StreamSoftmaxBackward<D>::row<N>(ys, gs, to, vectors, share, merge);                                                       \
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
