// One row, kept in registers: each element is read once and written once.
//
// Thread t of `threads` owns vectors t, t + threads, t + 2*threads, ... of the row, N at most. Register
// arrays are indexed by constants only (every loop over them is unrolled); scripts/kernel-gate.sh
// proves that no kernel built from this has a stack frame.
//
// Passes over memory: one. Barriers: those of the merge (none for a Group, one for a Block).
#pragma once
#include "access.cuh"
#include "reduce.cuh"

namespace online {

template <class C, int LEN> __device__ __forceinline__ C tree_sum(const C (&x)[LEN]) {
  C t[LEN];
#pragma unroll
  for (int i = 0; i < LEN; ++i) t[i] = x[i];
#pragma unroll
  for (int step = LEN / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < step; ++i) t[i] = add(t[i], t[i + step]);
  }
  return t[0];
}

// softmax: y = exp(x - m) / d. Exponentials are taken once, relative to the thread's own maximum, kept,
// and scaled to the row's.
template <class D> struct CachedSoftmax {
  typedef typename D::Compute C;

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &x, const Row &y, int thread, int threads, Merge &merge) {
    Words raw[N];
#pragma unroll
    for (int k = 0; k < N; ++k) raw[k] = x.load(thread + k * threads, D::lowest());
    C e[N][D::LEN];
    C m = -Limits<C>::infinity();
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) {
        e[k][i] = D::get(raw[k], i);
        m = largest(m, e[k][i]);
      }
    }
    C ref = reference(m), d = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) {
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) e[k][i] = exp_diff<D>(e[k][i], ref);
      d = add(d, tree_sum(e[k]));
    }
    C scale = merge.template merge<D>(State<D>{m, d}).scale(m);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      Words out;
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) D::set(out, i, mul(e[k][i], scale));
      y.store(thread + k * threads, out);
    }
  }
};

// Its gradient: dx = y * (g - sum g*y). y and g stay as loaded, 16 bytes a vector.
template <class D> struct CachedSoftmaxBackward {
  typedef typename D::Compute C;

  template <int N, class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &y, const Row &g, const Row &dx, int thread, int threads, Merge &merge) {
    Words ys[N], gs[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      ys[k] = y.load(thread + k * threads, 0);
      gs[k] = g.load(thread + k * threads, 0);
    }
    C s = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) s = add(s, product_sum(ys[k], gs[k]));
    s = merge.sum(s);
#pragma unroll
    for (int k = 0; k < N; ++k) dx.store(thread + k * threads, gradient(ys[k], gs[k], s));
  }

  static __device__ __forceinline__ C product_sum(const Words &y, const Words &g) {
    C p[D::LEN];
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) p[i] = mul(D::get(y, i), D::get(g, i));
    return tree_sum(p);
  }

  static __device__ __forceinline__ Words gradient(const Words &y, const Words &g, C s) {
    Words out;
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) D::set(out, i, mul(D::get(y, i), add(D::get(g, i), -s)));
    return out;
  }
};

} // namespace online
