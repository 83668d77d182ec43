// Rows shorter than a vector, one after another: a thread owns as many as a vector has elements, which are COLS whole
// vectors in all, and so nothing beside them is computed. Row r is elements r * COLS .. of those vectors.
//
// Each row has the bits of a lane with one vector of it: what would fill that up adds zeros to its sum.
#pragma once
#include "cached.cuh"

namespace online {

template <class D, int COLS> struct ShortRows {
  typedef typename D::Compute C;
  typedef typename D::Storage T;
  typedef CachedSoftmax<D> Cached;
  typedef CachedSoftmaxBackward<D> Backward;
  static constexpr int ROWS = D::LEN;
  static_assert(COLS < D::LEN, "less than a vector");

  static __device__ __forceinline__ void softmax(Words (&x)[COLS]) {
    // One branch for all rows: in one each, they would wait for each other. (A base of 0 may be subtracted.)
    C most = -Limits<C>::infinity(), least = most;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      C m = largest_of(x, r);
      most = largest(most, m);
      least = largest(least, -m);
    }
    if (most <= Reference<D>::LARGE && least <= Reference<D>::LARGE)
      softmax_of<false>(x);
    else
      softmax_of<true>(x);
  }

  static __device__ __forceinline__ void backward(Words (&y)[COLS], const Words (&g)[COLS]) {
    Words out[COLS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      Words ys = row(y, r), gs = row(g, r);
      // 0 + s, as a lane adds its vectors up: -0 becomes 0.
      put(out, r, Backward::template gradient<COLS>(ys, gs, add(C(0), Backward::template product_sum<COLS>(ys, gs))));
    }
    copy(y, out);
  }

private:
  template <bool SHIFT> static __device__ __forceinline__ void softmax_of(Words (&x)[COLS]) {
    Words out[COLS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const Reference<D> at(largest_of(x, r));
      Words one[1] = {row(x, r)};
      C e[1][COLS];
      C d = Cached::template sum<SHIFT>(one, e, at);
      Cached::scaled(one, e, State<D>{at.m, d}.weight());
      put(out, r, one[0]);
    }
    copy(x, out);
  }

  static __device__ __forceinline__ T element(const Words (&x)[COLS], int i) { return D::raw(x[i / D::LEN], i % D::LEN); }

  static __device__ __forceinline__ C largest_of(const Words (&x)[COLS], int r) {
    C m = -Limits<C>::infinity();
#pragma unroll
    for (int i = 0; i < COLS; ++i) m = largest(m, D::get(x[(r * COLS + i) / D::LEN], (r * COLS + i) % D::LEN));
    return m;
  }

  static __device__ __forceinline__ Words row(const Words (&x)[COLS], int r) {
    Words one = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < COLS; ++i) D::push_raw(one, i, element(x, r * COLS + i));
    return one;
  }

  // Rows in their order.
  static __device__ __forceinline__ void put(Words (&x)[COLS], int r, const Words &one) {
#pragma unroll
    for (int i = 0; i < COLS; ++i) D::push_raw(x[(r * COLS + i) / D::LEN], (r * COLS + i) % D::LEN, D::raw(one, i));
  }

  static __device__ __forceinline__ void copy(Words (&to)[COLS], const Words (&from)[COLS]) {
#pragma unroll
    for (int k = 0; k < COLS; ++k) to[k] = from[k];
  }
};

} // namespace online
