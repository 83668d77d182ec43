// One row, kept in registers: each element is read once and written once.
//
// Thread t of `threads` owns vectors t, t + threads, t + 2*threads, ... of the row (or of its block's slice of
// it), N at most. Register
// arrays are indexed by constants only (every loop over them is unrolled); scripts/kernel-gate.sh
// proves that no kernel built from this has a stack frame.
//
// Passes over memory: one. Barriers: those of the merge (none for a Group, one for a Block).
#pragma once
#include "access.cuh"
#include "reduce.cuh"

namespace online {

// Of a vector's elements, or of its first LEN: as if zeros stood for the others.
template <class C, int LEN> __device__ __forceinline__ C tree_sum(const C (&x)[LEN]) {
  static_assert(LEN <= 8, "no vector has more");
  C t[LEN];
#pragma unroll
  for (int i = 0; i < LEN; ++i) t[i] = x[i];
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i)
      if (i + step < LEN) t[i] = add(t[i], t[i + step]);
  }
  return t[0];
}

// That of element i, relative to `at`; without SHIFT for a reference that has no base.
template <class D, bool SHIFT> __device__ __forceinline__ typename D::Compute exponential(const Words &x, int i, const Reference<D> &at) {
  return at.exp(SHIFT ? add(D::get(x, i), -at.base) : D::get(x, i));
}

// softmax: y = exp(x - m) / d. Exponentials are taken once, relative to the maximum of the thread's share
// of the row (see reduce.cuh), kept, and scaled to the row's.
template <class D> struct CachedSoftmax {
  typedef typename D::Compute C;
  static constexpr C SMALL = C(1.0e-11); // 2^-36: over TOP still far from the smallest normal
  static constexpr C UNIT = C(1) / Reference<D>::TOP;

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &x, const Row &y, int thread, int threads, Merge &merge) {
    Words raw[N];
    x.load(raw, thread, threads, D::lowest());
    const Reference<D> at(merge.share_max(vectors_max<D>(raw, -Limits<C>::infinity())));
    C e[N][D::LEN];
    C d = exponentials(e, raw, at);
    scaled(raw, e, merge.template weight<D>(at, d));
    y.store(raw, thread, threads, merge);
  }

  // Their sum. Of each vector's first LEN elements, as for all that follow.
  template <int N, int LEN> static __device__ __forceinline__ C exponentials(C (&e)[N][LEN], const Words (&x)[N], const Reference<D> &at) {
    return at.base == C(0) ? sum<false>(x, e, at) : sum<true>(x, e, at);
  }

  // out = e * weight / TOP.
  template <int N, int LEN> static __device__ __forceinline__ void scaled(Words (&out)[N], C (&e)[N][LEN], C weight) {
    // A share far below the row's maximum: exponential and weight may each fit where weight / TOP does not.
    if (UNIT < C(1) && weight < SMALL) {
      scale_all(e, UNIT);
    } else {
      weight = mul(weight, UNIT);
    }
    scale_all(e, weight);
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) D::set(out[k], i, e[k][i]);
    }
  }

  // Exponentials and their sum; without SHIFT for a reference that has no base.
  template <bool SHIFT, int N, int LEN>
  static __device__ __forceinline__ C sum(const Words (&x)[N], C (&e)[N][LEN], const Reference<D> &at) {
    C d = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) e[k][i] = exponential<D, SHIFT>(x[k], i, at);
      d = add(d, tree_sum(e[k]));
    }
    return d;
  }

  // For results made elsewhere than scaled(): of a weight, what exponentials are multiplied by, or, where that is too small
  // for one factor, its negative; `any_small` becomes true then.
  static __device__ __forceinline__ C factor(C weight, u32 &any_small) {
    if (UNIT == C(1) || !(weight < SMALL) || weight == C(0)) return mul(weight, UNIT); // 0 has no negative: -0 would be seen
    any_small = 1;
    return -weight;
  }
  static __device__ __forceinline__ C scaled_by(C e, C factor) {
    return factor < C(0) ? mul(mul(e, UNIT), -factor) : mul(e, factor);
  }

private:
  template <int N, int LEN> static __device__ __forceinline__ void scale_all(C (&e)[N][LEN], C factor) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) e[k][i] = mul(e[k][i], factor);
    }
  }
};

// Its gradient: dx = y * (g - sum g*y). y and g stay as loaded, 16 bytes a vector.
template <class D> struct CachedSoftmaxBackward {
  typedef typename D::Compute C;

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &y, const Row &g, const Row &dx, int thread, int threads, Merge &merge) {
    Words ys[N], gs[N];
    y.load(ys, thread, threads, 0);
    g.load(gs, thread, threads, 0);
    C s = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) s = add(s, product_sum(ys[k], gs[k]));
    s = merge.sum(s);
#pragma unroll
    for (int k = 0; k < N; ++k) ys[k] = gradient(ys[k], gs[k], s);
    dx.store(ys, thread, threads, merge);
  }

  // Of the first LEN elements of two vectors.
  template <int LEN = D::LEN> static __device__ __forceinline__ C product_sum(const Words &y, const Words &g) {
    C p[LEN];
#pragma unroll
    for (int i = 0; i < LEN; ++i) p[i] = mul(D::get(y, i), D::get(g, i));
    return tree_sum(p);
  }

  template <int LEN = D::LEN> static __device__ __forceinline__ Words gradient(const Words &y, const Words &g, C s) {
    Words out = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < LEN; ++i) D::set(out, i, mul(D::get(y, i), add(D::get(g, i), -s)));
    return out;
  }
};

} // namespace online
