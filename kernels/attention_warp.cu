// Attention scores of few keys: a warp, or an even part of one, owns a row; it stays in registers. As warp.cu, with the
// scores' functor (score.cuh).
//
// Passes over memory: one read of what the band keeps, one write. Barriers, shared memory: none.
#include "score.cuh"
#include "table.cuh"

using namespace online;

constexpr int WARP_BLOCK = 128;

// 64 registers where they are enough.
#define LEAST_BLOCKS(D, EXTRAS) (EXTRAS == NO_EXTRAS && sizeof(D::Storage) < 8 ? 6 : 1)

// Calls body(row, columns, lane): of no row past the last, but of element 0.
template <class Body> __device__ __forceinline__ void for_row(const Rows &rows, int lanes, Body body) {
  i64 r = (i64)blockIdx.x * (WARP_BLOCK / lanes) + threadIdx.x / (u32)lanes;
  bool there = r < rows.rows;
  body(there ? r : 0, there ? (int)rows.cols : 0, (int)(threadIdx.x % (u32)lanes));
}

#define ATTENTION_KERNEL(op, EXTRAS, dtype, D, access, Row, N)                                                                   \
  extern "C" __global__ void __launch_bounds__(WARP_BLOCK, LEAST_BLOCKS(D, EXTRAS)) warp_##op##_##dtype##_##access##_0x##N(ATTENTION_PARAMETERS(D)) {  \
    predecessors_done();                                                                                                         \
    Group merge = {share};                                                                                                       \
    for_row(rows, share, [&](i64 r, int cols, int lane) {                                                                        \
      const Operand *const own[2] = {&x_at, &y_at};                                                                              \
      ScoreRow<D, int, EXTRAS, 2> scores(rows, score, own, r, cols);                                                             \
      Row<D, int> from(x, x_at, scores.at[0], cols), to(y, y_at, scores.at[1], cols);                                            \
      CachedAttention<D>::row<N>(from, to, scores, lane, share, merge, merge);                                                   \
    });                                                                                                                          \
  }

#define ATTENTION_BACKWARD_KERNEL(op, EXTRAS, dtype, D, access, Row, N)                                                          \
  extern "C" __global__ void __launch_bounds__(WARP_BLOCK, 1)                                                                    \
      warp_##op##_##dtype##_##access##_0x##N(ATTENTION_BACKWARD_PARAMETERS(D)) {                                                 \
    predecessors_done();                                                                                                         \
    Group merge = {share};                                                                                                       \
    for_row(rows, share, [&](i64 r, int cols, int lane) {                                                                        \
      const Operand *const own[3] = {&y_at, &g_at, &dx_at};                                                                      \
      ScoreRow<D, int, EXTRAS, 3> scores(rows, score, own, r, cols);                                                             \
      Row<D, int> ys(y, y_at, scores.at[0], cols), gs(g, g_at, scores.at[1], cols), to(dx, dx_at, scores.at[2], cols);           \
      CachedAttentionBackward<D>::row<N>(ys, gs, to, scores, lane, share, merge, merge);                                         \
    });                                                                                                                          \
  }

#define ROW_TABLE(dtype, D, KERNEL, op, EXTRAS)                                                                                  \
  KERNEL(op, EXTRAS, dtype, D, aligned, AlignedRow, 1)                                                                           \
  KERNEL(op, EXTRAS, dtype, D, aligned, AlignedRow, 2)                                                                           \
  KERNEL(op, EXTRAS, dtype, D, aligned, AlignedRow, 4)                                                                           \
  KERNEL(op, EXTRAS, dtype, D, unaligned, UnalignedRow, 1)                                                                       \
  KERNEL(op, EXTRAS, dtype, D, unaligned, UnalignedRow, 2)                                                                       \
  KERNEL(op, EXTRAS, dtype, D, unaligned, UnalignedRow, 4)                                                                       \
  KERNEL(op, EXTRAS, dtype, D, strided, StridedRow, 4)

ATTENTION_TABLES(ROW_TABLE, ATTENTION_KERNEL, ATTENTION_BACKWARD_KERNEL)
