// Attention scores on their way to a softmax: softcap(scale · s) + ALiBi + what is added, where the band and the mask keep it,
// else -inf (design: src/scores.rs). A functor on the rows of access.cuh: it takes vectors as loaded and gives numbers.
//
//   keeps(v)                whether any column of vector v is within the band: others need not be loaded
//   numbers(s, x, v, step)  of N vectors v, v + step, ..; returns the largest
//   weight(whole, at, ..)   what makes probabilities of exponentials relative to `at`, with the sink in the denominator; 0
//                           where nothing is kept. Leaves the log-sum-exp, if asked for
//
// What is added and the mask are read in whole vectors where they lie so, else one element an access.
#pragma once
#include "cached.cuh"

namespace online {

// Kernel parameter: the device form of `ScoreOp` and of the operands that broadcast. Its layout matches src/cuda/params.rs.
struct Score {
  i64 first, last, kv_offset; // the band's diagonals; the position of query 0
  Operand added_at, mask_at, head_at, query_at;
  const void *added; // or none, as all below
  const u8 *mask;
  const void *slopes, *sinks; // of the compute type
  void *lse;                  // likewise
  float *wide;                // results of halves in f32, contiguous
  float scale, cap;           // no cap: 0
  int added_wide;             // what is added is of the compute type
  int rest;
};

// Where a row of each operand begins, in one walk over the row dims (see row_offset).
template <int N> __device__ __forceinline__ void row_offsets(const Rows &rows, const Operand *const (&ops)[N], i64 row, i64 (&out)[N]) {
#pragma unroll
  for (int o = 0; o < N; ++o) out[o] = ops[o]->offset;
#pragma unroll 1
  for (int i = (int)rows.dims - 1; i > 0; --i) {
    i64 size = rows.sizes[i], next;
    if (((u64)row | (u64)size) >> 32)
      next = row / size;
    else
      next = (u32)row / (u32)size;
#pragma unroll
    for (int o = 0; o < N; ++o) out[o] += (row - next * size) * ops[o]->strides[i];
    row = next;
  }
#pragma unroll
  for (int o = 0; o < N; ++o) out[o] += row * ops[o]->strides[0];
}

// Elements that are computed in what they are: f32 and f64.
template <class C> struct WideOf;
template <> struct WideOf<float> { typedef F32 Type; };
template <> struct WideOf<double> { typedef F64 Type; };

// What a row of scores is given besides scale, band and sink: nothing, or anything. One kernel for both would spend more
// on what is not there than on a row of a thousand (1x16x2048x2048 bf16 92 us with it).
enum Extras { NO_EXTRAS, ANY_EXTRAS };

// One row; N operands of the kernel's own begin at element at[0], at[1], ..
template <class D, class I, Extras EXTRAS, int N> struct ScoreRow {
  typedef typename D::Compute C;
  typedef typename WideOf<C>::Type Wide;
  static constexpr int LEN = D::LEN;

  const Score &p;
  I cols, lo, hi; // columns lo .. hi are within the band
  i64 r;
  i64 at[N + 2 + 2 * EXTRAS]; // and the query, the head, what is added, the mask

  // Row r, of cols = 0 for none.
  __device__ __forceinline__ ScoreRow(const Rows &rows, const Score &score, const Operand *const (&own)[N], i64 row, I cols_)
      : p(score), cols(cols_), r(row) {
    const Operand *ops[N + 2 + 2 * EXTRAS];
#pragma unroll
    for (int i = 0; i < N; ++i) ops[i] = own[i];
    ops[N] = &p.query_at;
    ops[N + 1] = &p.head_at;
    if (EXTRAS) {
      ops[N + 2 * EXTRAS] = &p.added_at;
      ops[N + 1 + 2 * EXTRAS] = &p.mask_at;
    }
    row_offsets(rows, ops, row, at);
    lo = (I)largest((i64)0, smallest((i64)cols, at[N] + p.first));
    hi = (I)largest((i64)lo, smallest((i64)cols, at[N] + p.last + 1));
  }

  __device__ __forceinline__ bool keeps(I v) const { return v * LEN < hi && (v + 1) * LEN > lo; }

  // Of vectors v, v + step, ..; the largest number.
  template <int K> __device__ __forceinline__ C numbers(C (&s)[K][LEN], const Words (&x)[K], I v, int step) const {
    C most = -Limits<C>::infinity();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      vector(s[k], x[k], v + k * step);
#pragma unroll
      for (int i = 0; i < LEN; ++i) most = largest(most, s[k][i]);
    }
    return most;
  }

  // `whole` sums up what is kept of the row.
  __device__ __forceinline__ C weight(State<D> whole, const Reference<D> &there, bool first_thread) const {
    if (p.sinks && cols) {
      C sink = ((const C *)p.sinks)[at[N + 1]];
      const Reference<D> both(largest(whole.m, sink));
      whole = State<D>{both.m, add(whole.rescaled(both), both.exp(add(sink, -both.base)))};
    }
    leave(log_sum_exp(whole), first_thread);
    return whole.d == C(0) ? C(0) : whole.weight(there);
  }

  // N vectors of results in f32, of halves.
  template <int K> __device__ __forceinline__ void store_wide(const C (&e)[K][LEN], I v, int step) const {
    float *row = p.wide + r * cols;
    bool vectors = ((u64)row & 15u) == 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      I first = (v + k * step) * LEN;
      if (vectors && first + LEN <= cols) {
#pragma unroll
        for (int part = 0; part < LEN; part += 4) {
          Words w = {{0, 0, 0, 0}};
#pragma unroll
          for (int i = 0; i < 4; ++i) w.w[i] = float_bits((float)e[k][(part + i) % LEN]);
          store_words<true>(row + first + part, w);
        }
      } else {
#pragma unroll
        for (int i = 0; i < LEN; ++i)
          if (first + i < cols) row[first + i] = (float)e[k][i];
      }
    }
  }

  // A number of the row.
  __device__ __forceinline__ void leave(C x, bool first_thread) const {
    if (p.lse && first_thread && cols) ((C *)p.lse)[r] = x;
  }

  // Vector v of what is added, of the scores' type; zeros for columns that the band does not keep.
  __device__ __forceinline__ Words added_vector(I v) const {
    typedef typename D::Storage T;
    const i64 stride = p.added_at.col_stride;
    const I first = v * LEN;
    const T *from = (const T *)p.added + at[N + 2 * EXTRAS] + first * stride;
    if (stride == 1 && ((u64)from & 15u) == 0 && first + LEN <= cols) return load_words<false>(from);
    Words x = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < LEN; ++i) D::set_raw(x, i, first + i >= lo && first + i < hi ? from[i * stride] : T(0));
    return x;
  }

private:

  static __device__ __forceinline__ C log_sum_exp(const State<D> &s) {
    if (s.m == Limits<C>::infinity()) return s.d == s.d ? s.m : s.d;
    if (s.m == -Limits<C>::infinity() && s.d == C(0)) return s.m;
    const Reference<D> at(s.m);
    return add(s.m, natural_log(mul(s.d, reciprocal(at.exp(add(s.m, -at.base))))));
  }

  __device__ __forceinline__ void vector(C (&s)[LEN], const Words &x, I v) const {
    const I first = v * LEN;
    if (!keeps(v)) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) s[i] = -Limits<C>::infinity();
      return;
    }
#pragma unroll
    for (int i = 0; i < LEN; ++i) s[i] = mul(D::get(x, i), C(p.scale));
    if (EXTRAS) {
      if (p.cap != 0.0f) {
#pragma unroll
        for (int i = 0; i < LEN; ++i) s[i] = mul(C(p.cap), hyperbolic_tangent(quotient(s[i], C(p.cap))));
      }
      if (p.slopes) {
        const C slope = ((const C *)p.slopes)[at[N + 1]];
        const i64 position = at[N] + p.kv_offset;
#pragma unroll
        for (int i = 0; i < LEN; ++i) {
          i64 away = position - (first + i);
          s[i] = add(s[i], -mul(slope, C(away < 0 ? -away : away)));
        }
      }
      if (p.added) {
        if (p.added_wide)
          add_to<Wide>(s, first);
        else
          add_to<D>(s, first);
      }
    }
    if (first < lo || first + LEN > hi) {
#pragma unroll
      for (int i = 0; i < LEN; ++i)
        if (first + i < lo || first + i >= hi) s[i] = -Limits<C>::infinity();
    }
    if (EXTRAS && p.mask) drop_masked(s, first);
  }

  template <class E> __device__ __forceinline__ void add_to(C (&s)[LEN], I first) const {
    typedef typename E::Storage T;
    const i64 stride = p.added_at.col_stride;
    const T *from = (const T *)p.added + at[N + 2 * EXTRAS] + first * stride;
    if (stride == 1 && ((u64)from & 15u) == 0 && first + LEN <= cols) {
#pragma unroll
      for (int part = 0; part < LEN; part += E::LEN) {
        Words w = load_words<false>(from + part);
#pragma unroll
        for (int i = 0; i < E::LEN; ++i) s[(part + i) % LEN] = add(s[(part + i) % LEN], E::get(w, i));
      }
    } else {
#pragma unroll
      for (int i = 0; i < LEN; ++i) {
        if (first + i < lo || first + i >= hi) continue;
        Words w = {{0, 0, 0, 0}};
        E::set_raw(w, 0, from[i * stride]);
        s[i] = add(s[i], E::get(w, 0));
      }
    }
  }

  __device__ __forceinline__ void drop_masked(C (&s)[LEN], I first) const {
    const i64 stride = p.mask_at.col_stride;
    const u8 *from = p.mask + at[N + 1 + 2 * EXTRAS] + first * stride;
    u64 kept = 0;
    if (stride == 1 && ((u64)from & (LEN - 1)) == 0 && first + LEN <= cols) {
      kept = LEN == 8 ? *(const u64 *)from : LEN == 4 ? (u64) * (const u32 *)from : (u64) * (const u16 *)from;
    } else {
#pragma unroll
      for (int i = 0; i < LEN; ++i)
        if (first + i >= lo && first + i < hi) kept |= (u64)from[i * stride] << (8 * i);
    }
#pragma unroll
    for (int i = 0; i < LEN; ++i)
      if (!(kept >> (8 * i) & 0xff)) s[i] = -Limits<C>::infinity();
  }
};

// Stores that know of more than one warp's vectors reach the one below each; between warps of a block, each vector is
// stored for itself.
template <class Row, int N, class Near>
__device__ __forceinline__ void store_vectors(const Row &y, const Words (&x)[N], int thread, int threads, Near &near) {
  y.store(x, thread, threads, near);
}
template <class Row, int N>
__device__ __forceinline__ void store_vectors(const Row &y, const Words (&x)[N], int thread, int threads, Alone &near) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    Words one[1] = {x[k]};
    y.store(one, thread + k * threads, threads, near);
  }
}

// The gradient of a row of scores: dx = f · y · (g - s), s = Σ g·y, f what scale and softcap make of a score. Where y is 0
// nothing else is looked at. Of `score`: the band, scale and cap, as `added` the scores if there is a cap, as `lse` where s
// is to be left.
template <class D, class I> struct ScoreGradient {
  typedef typename D::Compute C;
  typedef ScoreRow<D, I, ANY_EXTRAS, 3> Score;

  static __device__ __forceinline__ C product_sum(const Words &y, const Words &g) {
    C p[D::LEN];
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) p[i] = D::get(y, i) == C(0) ? C(0) : mul(D::get(y, i), D::get(g, i));
    return tree_sum(p);
  }

  static __device__ __forceinline__ Words gradient(const Words &y, const Words &g, C s, const Score &score, I v) {
    Words out = {{0, 0, 0, 0}}, x = out;
    if (score.p.cap != 0.0f) x = score.added_vector(v);
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) {
      C f = C(score.p.scale), yi = D::get(y, i);
      if (score.p.cap != 0.0f) {
        C t = hyperbolic_tangent(quotient(mul(D::get(x, i), f), C(score.p.cap)));
        f = mul(f, add(C(1), -mul(t, t)));
      }
      D::set(out, i, yi == C(0) ? C(0) : mul(mul(yi, add(D::get(g, i), -s)), f));
    }
    return out;
  }
};

// A row of it in registers; as CachedSoftmaxBackward.
template <class D> struct CachedAttentionBackward {
  typedef typename D::Compute C;
  typedef ScoreGradient<D, int> Vector;

  template <int N, class Row, class Merge, class Near>
  static __device__ __forceinline__ void row(const Row &y, const Row &g, const Row &dx, const typename Vector::Score &score, int thread, int threads,
                                             Merge &merge, Near &near) {
    Words ys[N], gs[N];
    auto keeps = [&](int v) { return score.keeps(v); };
    y.load(ys, thread, threads, 0, keeps);
    g.load(gs, thread, threads, 0, keeps);
    C s = C(0);
#pragma unroll
    for (int k = 0; k < N; ++k) s = add(s, Vector::product_sum(ys[k], gs[k]));
    s = merge.sum(s);
    score.leave(s, thread == 0);
#pragma unroll
    for (int k = 0; k < N; ++k) ys[k] = Vector::gradient(ys[k], gs[k], s, score, thread + k * threads);
    store_vectors(dx, ys, thread, threads, near);
  }
};

// Softmax of scores, a row in registers; as CachedSoftmax.
template <class D> struct CachedAttention {
  typedef typename D::Compute C;

  template <int N, class Row, class Score, class Merge, class Near>
  static __device__ __forceinline__ void row(const Row &x, const Row &y, const Score &score, int thread, int threads, Merge &merge, Near &near) {
    Words raw[N];
    x.load(raw, thread, threads, D::lowest(), [&](int v) { return score.keeps(v); });
    C e[N][D::LEN];
    const Reference<D> at(merge.share_max(score.numbers(e, raw, thread, threads)));
    auto keeps = [&](int k) { return score.keeps(thread + k * threads); };
    C d = at.base == C(0) ? sum<false>(e, at, keeps) : sum<true>(e, at, keeps);
    C weight = score.weight(merge.template whole<D>(at, d), at, thread == 0);
    CachedSoftmax<D>::scaled(raw, e, weight);
    if (score.p.wide)
      score.store_wide(e, thread, threads);
    else
      store_vectors(y, raw, thread, threads, near);
  }

  // Numbers become exponentials; their sum. Of vectors that are beyond the band, which a warp's mostly are or are not
  // together, none is taken.
  template <bool SHIFT, int N, class Keeps>
  static __device__ __forceinline__ C sum(C (&e)[N][D::LEN], const Reference<D> &at, Keeps keeps) {
    C d = C(0);
    if (at.m == Limits<C>::infinity()) { // a NaN beside it is to show in the sum, which exponentials would not
#pragma unroll
      for (int k = 0; k < N; ++k) {
#pragma unroll
        for (int i = 0; i < D::LEN; ++i) d = add(d, e[k][i] == -Limits<C>::infinity() ? C(0) : e[k][i]);
      }
      return d;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (!keeps(k)) {
#pragma unroll
        for (int i = 0; i < D::LEN; ++i) e[k][i] = C(0);
        continue;
      }
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) e[k][i] = at.exp(SHIFT ? add(e[k][i], -at.base) : e[k][i]);
      d = add(d, tree_sum(e[k]));
    }
    return d;
  }
};

} // namespace online
