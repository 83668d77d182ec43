// Long rows: a cluster of blocks owns a row; it stays in their shared memory.
//
//   |<------- block 0 ------->|<------- block 1 ------->| ...     `slice` vectors of the row a block
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...               thread t owns vectors t, t + threads, .. of it
//
// Passes over memory: one read, one write, in bulk where that pays (see slice.cuh). Barriers: two to four of the
// block, none of the cluster (see cluster.cuh). Shared memory: the slice, of each input. Before sm_90 a cluster is
// one block. `share` is twice the slice, and one more if results go back in bulk.
// A cluster takes one row and ends: while one waits for its copies, others on the same SM compute and store. (To go
// on to a next row, and copy it as this one is written: 512x131072 f32 184 us, 155 without, H200.)
#include "cached.cuh"
#include "cluster.cuh"
#include "slice.cuh"
#include "table.cuh"
#include "twice.cuh"

using namespace online;

// The row's last vector: its first `len` elements, then `fill`.
template <class D> static __device__ __forceinline__ Words cut(Words x, int len, typename D::Storage fill) {
#pragma unroll
  for (int i = 0; i < D::LEN; ++i)
    if (i >= len) D::set_raw(x, i, fill);
  return x;
}

// Exponentials are taken twice: to keep them would need more memory (halves), or write it once more.
template <class D> struct SharedSoftmax {
  typedef typename D::Compute C;

  template <class Slice>
  static __device__ __forceinline__ void row(const Slice &x, const Slice &y, Words *cache, bool in_bulk, Cluster<C> &merge) {
    bring(x, cache, merge.loads());
    const Reference<D> share(group_max(thread_max(x, cache), WARP));
    C d = share.base == C(0) ? thread_sum<false>(x, cache, share) : thread_sum<true>(x, cache, share);
    State<D> whole = merge.template merge<D>(share.m, d);
    const Reference<D> at(whole.m);
    C scale = mul(whole.weight(), C(1) / Reference<D>::TOP);
    if (at.base == C(0))
      y.put([&](const Words &w) { return Twice<D>::template result<false>(w, at, scale); }, x, cache, in_bulk);
    else
      y.put([&](const Words &w) { return Twice<D>::template result<true>(w, at, scale); }, x, cache, in_bulk);
  }

private:
  template <class Slice> static __device__ __forceinline__ C thread_max(const Slice &x, const Words *cache) {
    C m = -Limits<C>::infinity();
    int whole = x.cols / D::LEN;
    for_own(whole, [&](int v) {
      Words one[1] = {x.vector(cache, v)};
      m = vectors_max<D>(one, m);
    });
    if (owns_cut<D>(x.cols)) {
      Words one[1] = {cut<D>(x.vector(cache, whole), x.cols % D::LEN, D::lowest())};
      m = vectors_max<D>(one, m);
    }
    return m;
  }

  template <bool SHIFT, class Slice>
  static __device__ __forceinline__ C thread_sum(const Slice &x, const Words *cache, const Reference<D> &at) {
    C d = C(0);
    int whole = x.cols / D::LEN;
    for_own(whole, [&](int v) { d = add(d, Twice<D>::template sum<SHIFT>(x.vector(cache, v), at)); });
    if (owns_cut<D>(x.cols)) d = add(d, Twice<D>::template sum<SHIFT>(cut<D>(x.vector(cache, whole), x.cols % D::LEN, D::lowest()), at));
    return d;
  }
};

// dx = y * (g - sum g*y).
template <class D> struct SharedSoftmaxBackward {
  typedef typename D::Compute C;
  typedef CachedSoftmaxBackward<D> Vector;

  template <class Slice>
  static __device__ __forceinline__ void row(const Slice &y, const Slice &g, const Slice &dx, Words *ys, Words *gs, Cluster<C> &merge) {
    bring(y, ys, g, gs);
    C s = C(0);
    int whole = y.cols / D::LEN, len = y.cols % D::LEN;
    for_own(whole, [&](int v) { s = add(s, Vector::product_sum(y.vector(ys, v), g.vector(gs, v))); });
    if (owns_cut<D>(y.cols)) s = add(s, Vector::product_sum(cut<D>(y.vector(ys, whole), len, 0), cut<D>(g.vector(gs, whole), len, 0)));
    s = merge.sum(s);
    dx.put([&](const Words &a, const Words &b) { return Vector::gradient(a, b, s); }, y, ys, g, gs);
  }
};

// Calls body(row, first column, columns, merge) for this block's slice.
template <class D, class Body> __device__ __forceinline__ void for_slice(const Rows &rows, int slice, Body body) {
  __shared__ ClusterSlots<typename D::Compute> slots;
  Cluster<typename D::Compute> merge(slots);
  predecessors_done();
  i64 first = (i64)merge.rank * slice * D::LEN, left = largest(rows.cols - first, (i64)0);
  body((i64)cluster_index(), left ? first : (i64)0, (int)smallest(left, (i64)slice * D::LEN), merge);
}

// Blocks on an SM: 40 registers each; exponentials of doubles need more.
#define BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 6)

#define SOFTMAX_KERNEL(dtype, D, access, Slice)                                                                                  \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, BLOCKS(D)) cluster_softmax_##dtype##_##access(SOFTMAX_PARAMETERS(D)) {     \
    for_slice<D>(rows, share / 2, [&](i64 r, i64 first, int cols, Cluster<D::Compute> &merge) {                                    \
      Slice<D> from(x, rows, x_at, r, first, cols), to(y, rows, y_at, r, first, cols);                                           \
      SharedSoftmax<D>::row(from, to, shared_memory(), share % 2, merge);                                                                                                                               \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Slice)                                                                         \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, 4) cluster_softmax_backward_##dtype##_##access(SOFTMAX_BACKWARD_PARAMETERS(D)) { \
    for_slice<D>(rows, share / 2, [&](i64 r, i64 first, int cols, Cluster<D::Compute> &merge) {                                    \
      Slice<D> ys(y, rows, y_at, r, first, cols), gs(g, rows, g_at, r, first, cols), to(dx, rows, dx_at, r, first, cols);        \
      SharedSoftmaxBackward<D>::row(ys, gs, to, shared_memory(), shared_memory() + share / 2 + 1, merge);                                  \
    });                                                                                                                          \
  }

#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedSlice)                                                                                \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                            \
  SOFTMAX_KERNEL(dtype, D, strided, StridedSlice)                                                                                \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedSlice)                                                                       \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                   \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedSlice)

FOR_EACH_DTYPE(TABLE)
