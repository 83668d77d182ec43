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
    State<D> whole = merge.template merge<D>(State<D>{share.m, share.d.total()});
    C ref = reference(whole.m), scale = whole.scale(whole.m);
    // Whole turns, so that every lane of a warp calls every store.
    for (i64 turn = 0; turn < vectors; turn += threads) {
      i64 v = turn + threadIdx.x;
      Words raw = x.load(v, D::lowest()), out;
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) D::set(out, i, mul(exp_diff<D>(D::get(raw, i), ref), scale));
      y.store(v, out);
    }
  }

  // A thread's (m, d) so far.
  struct Share {
    C m;
    Sum<C> d;
  };

  template <int N, class Row> static __device__ __forceinline__ void fold(const Row &x, i64 v, int threads, Share &share) {
    Words raw[N];
#pragma unroll
    for (int k = 0; k < N; ++k) raw[k] = x.load(v + (i64)k * threads, D::lowest());
    C m = share.m;
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) m = largest(m, D::get(raw[k], i));
    }
    C ref = reference(m), d = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      C e[D::LEN];
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) e[i] = exp_diff<D>(D::get(raw[k], i), ref);
      d = add(d, tree_sum(e));
    }
    share.d.rescale(exp_diff<D>(share.m, ref));
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
#pragma unroll
      for (int k = 0; k < N; ++k) {
        ys[k] = y.load(v + (i64)k * threads, 0);
        gs[k] = g.load(v + (i64)k * threads, 0);
      }
      C p = C(0);
#pragma unroll
      for (int k = 0; k < N; ++k) p = add(p, Vector::product_sum(ys[k], gs[k]));
      share.add_term(p);
    }
    C s = merge.sum(share.total());
    for (i64 turn = 0; turn < vectors; turn += threads) {
      i64 v = turn + threadIdx.x;
      dx.store(v, Vector::gradient(y.load(v, 0), g.load(v, 0), s));
    }
  }
};

#define SOFTMAX_KERNEL(dtype, D, access, Row, N)                                                                                 \
  extern "C" __global__ void __launch_bounds__(512, 1) stream_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D)) {          \
    i64 vectors = (rows.cols + D::LEN - 1) / D::LEN;                                                                             \
    for_each_block_row<D>(rows, [&](i64 r, Block<D::Compute> &merge) {                                                           \
      Row<D, i64> from(x, rows, x_at, r, rows.cols, WARP), to(y, rows, y_at, r, rows.cols, WARP);                                \
      StreamSoftmax<D>::row<N>(from, to, vectors, threads, merge);                                                               \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N)                                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1) stream_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) { \
    i64 vectors = (rows.cols + D::LEN - 1) / D::LEN;                                                                             \
    for_each_block_row<D>(rows, [&](i64 r, Block<D::Compute> &merge) {                                                           \
      Row<D, i64> ys(y, rows, y_at, r, rows.cols, WARP), gs(g, rows, g_at, r, rows.cols, WARP);                                  \
      Row<D, i64> to(dx, rows, dx_at, r, rows.cols, WARP);                                                                       \
      StreamSoftmaxBackward<D>::row<N>(ys, gs, to, vectors, threads, merge);                                                     \
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
