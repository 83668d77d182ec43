// Exponentials taken twice, for the sum and for the result, where a thread has no registers to keep them in: 16 bytes
// of halves are 4 registers, their exponentials 8 more.
#pragma once
#include "cached.cuh"

namespace online {

template <class D> struct Twice {
  typedef typename D::Compute C;

  template <bool SHIFT> static __device__ __forceinline__ C sum(const Words &x, const Reference<D> &at) {
    C e[D::LEN];
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) e[i] = exponential<D, SHIFT>(x, i, at);
    return tree_sum(e);
  }

  // exp * scale; `scale` is the row's weight over TOP.
  template <bool SHIFT> static __device__ __forceinline__ Words result(const Words &x, const Reference<D> &at, C scale) {
    C e[D::LEN];
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) e[i] = mul(exponential<D, SHIFT>(x, i, at), scale);
    Words out;
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) D::set(out, i, e[i]);
    return out;
  }
};

} // namespace online
