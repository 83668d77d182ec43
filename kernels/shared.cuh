// One block's slice of a row, kept in shared memory: each element is read once and written once. What merges the
// slices of a row is the caller's (Cluster, Gang).
#pragma once
#include "cached.cuh"
#include "slice.cuh"
#include "twice.cuh"

namespace online {

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

  template <class Slice, class Merge>
  static __device__ __forceinline__ void row(const Slice &x, const Slice &y, Words *cache, Merge &merge) {
    bring(x, cache, merge.loads());
    const Reference<D> share(group_max(thread_max(x, cache), WARP));
    C d = share.base == C(0) ? thread_sum<false>(x, cache, share) : thread_sum<true>(x, cache, share);
    State<D> whole = merge.template merge<D>(share.m, d);
    const Reference<D> at(whole.m);
    C scale = mul(whole.weight(), C(1) / Reference<D>::TOP);
    if (at.base == C(0))
      y.put([&](const Words &w) { return Twice<D>::template result<false>(w, at, scale); }, x, cache);
    else
      y.put([&](const Words &w) { return Twice<D>::template result<true>(w, at, scale); }, x, cache);
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

  template <class Slice, class Merge>
  static __device__ __forceinline__ void row(const Slice &y, const Slice &g, const Slice &dx, Words *ys, Words *gs, Merge &merge) {
    bring(y, ys, g, gs);
    C s = C(0);
    int whole = y.cols / D::LEN, len = y.cols % D::LEN;
    for_own(whole, [&](int v) { s = add(s, Vector::product_sum(y.vector(ys, v), g.vector(gs, v))); });
    if (owns_cut<D>(y.cols)) s = add(s, Vector::product_sum(cut<D>(y.vector(ys, whole), len, 0), cut<D>(g.vector(gs, whole), len, 0)));
    s = merge.sum(s);
    dx.put([&](const Words &a, const Words &b) { return Vector::gradient(a, b, s); }, y, ys, g, gs);
  }
};

// Blocks on an SM: 40 registers a thread; exponentials of doubles need more. From sm_100 on some would spill.
#if __CUDA_ARCH__ >= 1000
#define SHARED_BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 4)
#define SHARED_BLOCKS_BACKWARD 3
#else
#define SHARED_BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 6)
#define SHARED_BLOCKS_BACKWARD 4
#endif

} // namespace online
