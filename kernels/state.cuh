// The online normaliser (m, d): m the maximum, d = sum of exp(x - reference(m)); identity (-inf, 0).
// Mirror of src/state.rs, which tests the laws. Milakov & Gimelshein 2018, arXiv 1805.02867.
#pragma once
#include "dtype.cuh"

namespace online {

template <class C> struct Limits;
template <> struct Limits<float> {
  static __device__ __forceinline__ float infinity() { return bits_float(0x7f800000u); }
  static __device__ __forceinline__ float nan() { return bits_float(0x7fffffffu); }
};
template <> struct Limits<double> {
  static __device__ __forceinline__ double infinity() { return bits_double(0x7ff0000000000000ull); }
  static __device__ __forceinline__ double nan() { return bits_double(0x7fffffffffffffffull); }
};

// Where NaN hides: with m infinite, x - m is inf - inf. An empty share (-inf), a share of nothing but
// -inf, and a +inf are all taken relative to 0 instead. NaN is never m (max drops it); it stays in d.
template <class C> __device__ __forceinline__ C reference(C m) {
  return (m == Limits<C>::infinity() || m == -Limits<C>::infinity()) ? C(0) : m;
}

// exp(x - ref) for half types: x is a half, so the difference and its product with log2(e) are off by
// 5e-6 at most where the result is not 0, far below a half's rounding of 4.9e-4.
__device__ __forceinline__ float exp_diff_fast(float x, float ref) {
  return ex2(mul(add(x, -ref), 1.44269504f));
}

// exp(x - ref), relative error below 5e-7 down to the smallest normal result, 0 below that.
// x - ref alone can be off by half an ulp of 64 (3.8e-6, and so would the result): TwoSum gives the
// lost part back. The exponent is split into an integer, which scales exactly, and |f| <= 1/2.
__device__ __forceinline__ float exp_diff_exact(float x, float ref) {
  constexpr float LOG2E_HI = 1.44269502f, LOG2E_LO = 1.92596299e-8f;
  constexpr float ROUND = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
  float d = add(x, -ref);
  float b = add(d, -x);
  float lost = add(add(x, -add(d, -b)), add(-ref, -b));
  lost = lost < 1.0f && lost > -1.0f ? lost : 0.0f; // NaN where d is infinite
  float c = smallest(largest(d, -88.0f), 89.0f);
  float hi = mul(c, LOG2E_HI);
  float lo = fused_mul_add(c, LOG2E_HI, -hi);
  lo = fused_mul_add(c, LOG2E_LO, lo);
  lo = fused_mul_add(lost, LOG2E_HI, lo);
  float k = add(hi, ROUND);
  float f = add(add(hi, -add(k, -ROUND)), lo);
  // The integer, -127..128, goes to the exponent field: 0 for -127, inf for 128.
  float scale = bits_float((float_bits(k) - float_bits(ROUND) + 127u) << 23);
  float e = mul(ex2(f), scale);
  return d == d ? e : d;
}

template <class D> __device__ __forceinline__ float exp_diff(float x, float ref) {
  return D::EXACT_EXP ? exp_diff_exact(x, ref) : exp_diff_fast(x, ref);
}

// Half an ulp of 512 in the difference, 5.7e-14, where the result is not yet 0.
template <class D> __device__ __forceinline__ double exp_diff(double x, double ref) { return exp(add(x, -ref)); }

template <class D> struct State {
  typedef typename D::Compute C;
  C m, d;

  static __device__ __forceinline__ State identity() { return State{-Limits<C>::infinity(), C(0)}; }

  // This state's share of d in a set whose maximum is `max`.
  __device__ __forceinline__ C rescaled(C max) const { return mul(d, exp_diff<D>(m, reference(max))); }

  // What turns exp(x - reference(own_m)) into probabilities of the row that this state sums up. A row
  // with +inf is NaN as a whole (1/inf would leave zeros beside the NaN).
  __device__ __forceinline__ C scale(C own_m) const {
    C weight = divide(exp_diff<D>(own_m, reference(m)), d);
    return m == Limits<C>::infinity() ? Limits<C>::nan() : weight;
  }
};

} // namespace online
