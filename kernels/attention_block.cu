// Attention scores of some thousand keys: a block owns a row; it stays in registers. As block.cu, with the scores' functor
// (score.cuh); rows that are not on 16 bytes are put together from aligned accesses, within each warp.
//
// Passes over memory: one read of what the band keeps, one write. Barriers: one. Shared memory: 2 x 16 numbers.
#include "score.cuh"
#include "table.cuh"

using namespace online;

// See src/plan/attention.rs.
constexpr int BLOCK_THREADS = 512;

// 64 registers where they are enough.
#define LEAST_BLOCKS_aligned(D, EXTRAS) (EXTRAS == NO_EXTRAS && sizeof(D::Storage) < 8 ? 2 : 1)
#define LEAST_BLOCKS_unaligned(D, EXTRAS) 1
#define LEAST_BLOCKS_strided(D, EXTRAS) 1

#define ATTENTION_KERNEL(op, EXTRAS, dtype, D, access, Row, N)                                                                   \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, LEAST_BLOCKS_##access(D, EXTRAS)) block_##op##_##dtype##_##access##_##N(ATTENTION_PARAMETERS(D)) { \
    predecessors_done();                                                                                                         \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    Alone warp;                                                                                                                  \
    int cols = (int)rows.cols;                                                                                                   \
    const Operand *const own[2] = {&x_at, &y_at};                                                                                \
    ScoreRow<D, int, EXTRAS, 2> scores(rows, score, own, blockIdx.x, cols);                                                      \
    Row<D, int> from(x, x_at, scores.at[0], cols), to(y, y_at, scores.at[1], cols);                                              \
    CachedAttention<D>::row<N>(from, to, scores, (int)threadIdx.x, share, merge, warp);                                          \
  }

#define ATTENTION_BACKWARD_KERNEL(op, EXTRAS, dtype, D, access, Row, N)                                                          \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                                                                 \
      block_##op##_##dtype##_##access##_##N(ATTENTION_BACKWARD_PARAMETERS(D)) {                                                  \
    predecessors_done();                                                                                                         \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    Alone warp;                                                                                                                  \
    int cols = (int)rows.cols;                                                                                                   \
    const Operand *const own[3] = {&y_at, &g_at, &dx_at};                                                                        \
    ScoreRow<D, int, EXTRAS, 3> scores(rows, score, own, blockIdx.x, cols);                                                      \
    Row<D, int> ys(y, y_at, scores.at[0], cols), gs(g, g_at, scores.at[1], cols), to(dx, dx_at, scores.at[2], cols);             \
    CachedAttentionBackward<D>::row<N>(ys, gs, to, scores, (int)threadIdx.x, share, merge, warp);                                \
  }

#define ROW_TABLE(dtype, D, KERNEL, op, EXTRAS)                                                                                  \
  KERNEL(op, EXTRAS, dtype, D, aligned, AlignedRow, 4)                                                                           \
  KERNEL(op, EXTRAS, dtype, D, unaligned, UnalignedRow, 4)                                                                       \
  KERNEL(op, EXTRAS, dtype, D, strided, StridedRow, 4)

ATTENTION_TABLES(ROW_TABLE, ATTENTION_KERNEL, ATTENTION_BACKWARD_KERNEL)
