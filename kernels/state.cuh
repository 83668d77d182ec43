// The online normaliser (m, d): m the maximum, d = sum of exp(x) relative to Reference(m); identity (-inf, 0).
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

// What exponentials of a row, or of a share of it, are taken relative to:
//   Reference(m)      for the maximum m
//   .base             what to subtract from numbers first: m where it is large, else 0, which may be skipped
//   .exp(x)           exp(x + base) relative to it, for x <= m - base; 0 for -inf
//   .factor(there)    takes sums that were made relative to `there`, of a maximum no larger, to this one
//   ::TOP             about exp(m) relative to it, a power of two
//   ::LARGE           up to it, and down to -LARGE, a maximum has no base
//   Reference(m, OfSmall())   the same for an m that is known to be within LARGE: fewer instructions
//
// Where NaN hides: with m infinite, x - m is inf - inf. An empty share (-inf), a share of nothing but
// -inf, and a +inf are all taken relative to 0 instead. NaN is never m (max drops it); it stays in d.

struct OfSmall {};

// f32 and halves, what they have in common: relative to a power of two, of which `origin` is the negative
// logarithm (and a constant). Not to e^m: x - m would round, and m log2(e) too; but a power of two is one factor
// for the row, gone from e^x / d.
template <class Exp> struct PowerReference {
  static constexpr float TOP = Exp::TOP, LARGE = Exp::LARGE;
  float m, base, origin;

  explicit __device__ __forceinline__ PowerReference(float m_) : m(m_) {
    bool small = m <= Exp::LARGE && m >= -Exp::LARGE;
    bool infinite = m == Limits<float>::infinity() || m == -Limits<float>::infinity();
    base = small || infinite ? 0.0f : m;
    origin = Exp::origin(small ? m : 0.0f);
  }

  __device__ __forceinline__ PowerReference(float m_, OfSmall) : m(m_), base(0.0f), origin(Exp::origin(m_)) {}

  __device__ __forceinline__ float exp(float x) const { return Exp::exp(x, origin); }

  __device__ __forceinline__ float factor(const PowerReference &there) const {
    // Almost every row. The origin of an empty share may be above this one; its sum is 0, or NaN, anyhow.
    if (base == 0.0f && there.base == 0.0f) return ex2(smallest(add(origin, -there.origin), 0.0f));
    if (there.m == -Limits<float>::infinity()) return 1.0f;
    return mul(exp(add(there.m, -base)), reciprocal(there.exp(add(there.m, -there.base)))); // e^m here over e^m there
  }
};

// Half types: an fma and an ex2. The fma rounds a result of at most 140, to 8e-6, far below a half's rounding
// of 4.9e-4; log2(e) is off by 1.3e-8 of x, of which e^x / d keeps what x - m has.
struct ExpOfHalf {
  static constexpr float LARGE = 16384.0f; // where x log2(e) of neighbours still differs in the sum
  static constexpr float TOP = 1.0f;
  static __device__ __forceinline__ float origin(float m) { return mul(m, -1.44269504f); }
  static __device__ __forceinline__ float exp(float x, float origin) { return ex2(fused_mul_add(x, 1.44269504f, origin)); }
};

// f32: the exponent of e^x splits exactly into an integer and a fraction of its own, x log2(e) = k(x) + f(x).
// Seven instructions: k(x), counted from SPAN below that of m, comes out of an fma that rounds to an integer,
// in the low bits of its result; added to the exponent field of 2^f it scales exactly. Below that span f takes
// the rest. Relative error below 4e-7 down to 2^-SPAN of the largest, below 2e-6 down to the smallest normal.
// LARGE is where f32 cannot count integers any more. The largest is about 2^SPAN: 2^31 of them still add up.
struct ExpOfF32 {
  static constexpr float LARGE = 1.0e6f, SPAN = 80.0f, TOP = 1.2089258196146292e24f; // 2^80
  static constexpr float ROUND = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer; its low 9 bits are 0
  static constexpr float LOG2E_HI = 1.44269502f, LOG2E_LO = 1.92596299e-8f;

  // ROUND less the integer that k(x) is counted from.
  static __device__ __forceinline__ float origin(float m) {
    return add(ROUND + SPAN, -add(fused_mul_add(m, LOG2E_HI, ROUND), -ROUND));
  }
  static __device__ __forceinline__ float exp(float x, float origin) {
    float kx = largest(fused_mul_add(x, LOG2E_HI, origin), ROUND);
    float f = fused_mul_add(x, LOG2E_LO, fused_mul_add(x, LOG2E_HI, add(origin, -kx)));
    return bits_float(float_bits(ex2(f)) + (float_bits(kx) << 23)); // only f carries a NaN
  }
};

// f64: relative to e^m; half an ulp of 512 in the difference, 5.7e-14, where the result is not yet 0.
struct DoubleReference {
  static constexpr double base = 0.0, TOP = 1.0, LARGE = 1.0e300; // nothing needs a base
  double m, at;

  explicit __device__ __forceinline__ DoubleReference(double m_) : m(m_) {
    at = m == Limits<double>::infinity() || m == -Limits<double>::infinity() ? 0.0 : m;
  }
  __device__ __forceinline__ DoubleReference(double m_, OfSmall) : m(m_), at(m_) {}
  __device__ __forceinline__ double exp(double x) const { return e_to_the(add(x, -at)); }
  __device__ __forceinline__ double factor(const DoubleReference &there) const { return exp(there.m); }
};

template <class D> struct ReferenceOf { typedef PowerReference<ExpOfHalf> Type; };
template <> struct ReferenceOf<F32> { typedef PowerReference<ExpOfF32> Type; };
template <> struct ReferenceOf<F64> { typedef DoubleReference Type; };
template <class D> using Reference = typename ReferenceOf<D>::Type;

template <class D> struct State {
  typedef typename D::Compute C;
  C m, d;

  static __device__ __forceinline__ State identity() { return State{-Limits<C>::infinity(), C(0)}; }

  // This state's share of d relative to `at`.
  __device__ __forceinline__ C rescaled(const Reference<D> &at) const { return mul(d, at.factor(Reference<D>(m))); }

  // What turns exponentials relative to Reference(m), over TOP, into probabilities of the row that this state
  // sums up. A row with +inf is NaN as a whole (1/inf would leave zeros beside the NaN).
  __device__ __forceinline__ C weight() const {
    return m == Limits<C>::infinity() ? Limits<C>::nan() : mul(reciprocal(d), Reference<D>::TOP);
  }

  // The same for exponentials relative to `there`.
  __device__ __forceinline__ C weight(const Reference<D> &there) const { return mul(Reference<D>(m).factor(there), weight()); }
};

} // namespace online
