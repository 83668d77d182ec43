// Attention scores of any number of keys: a gang of blocks owns a row, a slice each, and reads it twice. As stream.cu, with
// the scores' functor (score.cuh).
//
// Passes over memory: two reads of what the band keeps, one write. Barriers: two or three of the block; blocks of a row meet
// in global memory (see gang.cuh).
#include "gang.cuh"
#include "score.cuh"
#include "table.cuh"

using namespace online;

template <class D> struct StreamAttention {
  typedef typename D::Compute C;
  static constexpr int N = 2;

  // The slice of `vectors` vectors from `base` on.
  template <class Row, class Score, class Merge>
  static __device__ __forceinline__ void row(const Row &x, const Row &y, const Score &score, i64 base, i64 vectors, Merge &merge) {
    const int threads = unknown((int)blockDim.x);
    C m = -Limits<C>::infinity();
    Sum<C> sum = {C(0), C(0)};
#pragma unroll 1
    for (i64 v = threadIdx.x; v < vectors; v += (i64)N * threads) {
      C e[N][D::LEN];
      C larger = largest(m, load(e, x, score, base, v, threads));
      const Reference<D> at(larger);
      sum.rescale(at.factor(Reference<D>(m)));
      sum.add_term(CachedAttention<D>::template sum<true>(e, at, [&](int k) { return score.keeps(base + v + (i64)k * threads); }));
      m = larger;
    }
    C warp_m = merge.share_max(m);
    State<D> whole = merge.template merge<D>(warp_m, State<D>{m, sum.total()}.rescaled(Reference<D>(warp_m)));
    const Reference<D> at(whole.m);
    C weight = score.weight(whole, at, merge.rank == 0 && threadIdx.x == 0);
    Alone warp;
    const i64 turn = (i64)N * threads;
#pragma unroll 1
    for (i64 first = 0; first < vectors; first += turn) { // whole turns: every lane of a warp calls every store
      const i64 v = first + threadIdx.x;
      C e[N][D::LEN];
      load(e, x, score, base, v, threads);
      CachedAttention<D>::template sum<true>(e, at, [&](int k) { return score.keeps(base + v + (i64)k * threads); });
      Words out[N];
      CachedSoftmax<D>::scaled(out, e, weight);
      if (score.p.wide) {
        score.store_wide(e, base + v, threads);
      } else {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          Words one[1] = {out[k]};
          y.store(one, v + (i64)k * threads, threads, warp);
        }
      }
    }
  }

  // Numbers of vectors v, v + threads, .. of the slice; the largest.
  template <class Row, class Score>
  static __device__ __forceinline__ C load(C (&s)[N][D::LEN], const Row &x, const Score &score, i64 base, i64 v, int threads) {
    Words raw[N];
    x.load(raw, v, threads, D::lowest(), [&](i64 at) { return score.keeps(base + at); });
    return score.numbers(s, raw, base + v, threads);
  }
};

template <class D> struct StreamAttentionBackward {
  typedef typename D::Compute C;
  typedef ScoreGradient<D, i64> Vector;
  static constexpr int N = 2;

  template <class Row, class Merge>
  static __device__ __forceinline__ void row(const Row &y, const Row &g, const Row &dx, const typename Vector::Score &score, i64 base, i64 vectors,
                                             Merge &merge) {
    const int threads = unknown((int)blockDim.x);
    auto keeps = [&](i64 at) { return score.keeps(base + at); };
    Sum<C> sum = {C(0), C(0)};
#pragma unroll 1
    for (i64 v = threadIdx.x; v < vectors; v += (i64)N * threads) {
      Words ys[N], gs[N];
      y.load(ys, v, threads, 0, keeps);
      g.load(gs, v, threads, 0, keeps);
      C p = C(0);
#pragma unroll
      for (int k = 0; k < N; ++k) p = add(p, Vector::product_sum(ys[k], gs[k]));
      sum.add_term(p);
    }
    C s = merge.sum(sum.total());
    score.leave(s, merge.rank == 0 && threadIdx.x == 0);
    Alone warp;
    const i64 turn = (i64)N * threads;
#pragma unroll 1
    for (i64 first = 0; first < vectors; first += turn) {
      const i64 v = first + threadIdx.x;
      Words ys[N], gs[N];
      y.load(ys, v, threads, 0, keeps);
      g.load(gs, v, threads, 0, keeps);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        Words one[1] = {Vector::gradient(ys[k], gs[k], s, score, base + v + (i64)k * threads)};
        dx.store(one, v + (i64)k * threads, threads, warp);
      }
    }
  }
};

#define ATTENTION_KERNEL(op, EXTRAS, dtype, D, access, Row)                                                                      \
  extern "C" __global__ void __launch_bounds__(256, 2) stream_##op##_##dtype##_##access##_2(ATTENTION_PARAMETERS(D), GANG_PARAMETER) { \
    __shared__ GangSlots<D::Compute> slots;                                                                                      \
    predecessors_done();                                                                                                         \
    Gang<D::Compute> merge(slots, workspace, rows);                                                                              \
    const i64 slice = (i64)share * WARP * D::LEN, first = smallest(merge.rank * slice, rows.cols);                               \
    const i64 cols = smallest(rows.cols - first, slice);                                                                         \
    const Operand *const own[2] = {&x_at, &y_at};                                                                                \
    ScoreRow<D, i64, EXTRAS, 2> scores(rows, score, own, merge.row, rows.cols);                                                  \
    Row<D, i64> from(x, x_at, scores.at[0] + first * x_at.col_stride, cols), to(y, y_at, scores.at[1] + first * y_at.col_stride, cols); \
    StreamAttention<D>::row(from, to, scores, first / D::LEN, (cols + D::LEN - 1) / D::LEN, merge);                              \
  }

#define ATTENTION_BACKWARD_KERNEL(op, EXTRAS, dtype, D, access, Row)                                                             \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                           \
      stream_##op##_##dtype##_##access##_2(ATTENTION_BACKWARD_PARAMETERS(D), GANG_PARAMETER) {                                   \
    __shared__ GangSlots<D::Compute> slots;                                                                                      \
    predecessors_done();                                                                                                         \
    Gang<D::Compute> merge(slots, workspace, rows);                                                                              \
    const i64 slice = (i64)share * WARP * D::LEN, first = smallest(merge.rank * slice, rows.cols);                               \
    const i64 cols = smallest(rows.cols - first, slice);                                                                         \
    const Operand *const own[3] = {&y_at, &g_at, &dx_at};                                                                        \
    ScoreRow<D, i64, EXTRAS, 3> scores(rows, score, own, merge.row, rows.cols);                                                  \
    Row<D, i64> ys(y, y_at, scores.at[0] + first * y_at.col_stride, cols), gs(g, g_at, scores.at[1] + first * g_at.col_stride, cols); \
    Row<D, i64> to(dx, dx_at, scores.at[2] + first * dx_at.col_stride, cols);                                                    \
    StreamAttentionBackward<D>::row(ys, gs, to, scores, first / D::LEN, (cols + D::LEN - 1) / D::LEN, merge);                    \
  }

#define ROW_TABLE(dtype, D, KERNEL, op, EXTRAS)                                                                                  \
  KERNEL(op, EXTRAS, dtype, D, aligned, AlignedRow)                                                                              \
  KERNEL(op, EXTRAS, dtype, D, unaligned, UnalignedRow)                                                                          \
  KERNEL(op, EXTRAS, dtype, D, strided, StridedRow)

ATTENTION_TABLES(ROW_TABLE, ATTENTION_KERNEL, ATTENTION_BACKWARD_KERNEL)
