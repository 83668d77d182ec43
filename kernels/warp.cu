// Short rows: a warp, or an even part of one, owns a row; it stays in registers.
//
//   8 lanes a row:  | row r | row r+1 | row r+2 | row r+3 |   one warp
//                    0 .. 7   8 .. 15   16 .. 23  24 .. 31     lane; lane l of a row owns its vectors l, l+8, ..
//
// Passes over memory: one read, one write. Barriers, shared memory: none.
// Invariant: all 32 lanes run every merge and store together; those past the last row have a row of no
// columns (they load fill and store nothing).
// The lanes are a constant, and with them every shuffle, for aligned rows; others take them from `share`.
#include "cached.cuh"
#include "table.cuh"

using namespace online;

constexpr int WARP_BLOCK = 128;

// Blocks on an SM: 32 registers for two vectors a lane, 48 for four. Without it they are 36 and 56, and 32768x128
// bf16 takes 6.2 us on an H200, not 5.9: 12 blocks an SM leave a second, small wave. (Elsewhere some would spill.)
#if __CUDA_ARCH__ == 900
#define BLOCKS_aligned(D, N) (sizeof(D::Storage) == 8 ? 1 : N <= 2 ? 16 : 10)
#else
#define BLOCKS_aligned(D, N) 1
#endif
#define BLOCKS_unaligned(D, N) 1
#define BLOCKS_strided(D, N) 1

// Calls body(row, columns, lane) for the row of this thread, `lanes` lanes a row.
template <class Body> __device__ __forceinline__ void for_row(const Rows &rows, int lanes, Body body) {
  i64 r = (i64)blockIdx.x * (WARP_BLOCK / lanes) + threadIdx.x / (u32)lanes;
  body(r, r < rows.rows ? (int)rows.cols : 0, (int)(threadIdx.x % (u32)lanes));
}

#define SOFTMAX_KERNEL(dtype, D, access, Row, LANES, N)                                                                          \
  extern "C" __global__ void __launch_bounds__(WARP_BLOCK, BLOCKS_##access(D, N)) warp_softmax_##dtype##_##access##_##LANES##x##N(SOFTMAX_PARAMETERS(D)) { \
    predecessors_done<(LANES * N > 2)>();                                                                                       \
    int lanes = LANES ? LANES : share;                                                                                           \
    Group merge = {lanes};                                                                                                       \
    for_row(rows, lanes, [&](i64 r, int cols, int lane) {                                                                        \
      Row<D, int> from(x, rows, x_at, r, 0, cols), to(y, rows, y_at, r, 0, cols);                                                \
      CachedSoftmax<D>::row<N>(from, to, lane, lanes, merge);                                                                    \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, LANES, N)                                                                 \
  extern "C" __global__ void __launch_bounds__(WARP_BLOCK, 1)                                                                    \
      warp_softmax_backward_##dtype##_##access##_##LANES##x##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                 \
    predecessors_done<(LANES * N > 2)>();                                                                                       \
    int lanes = LANES ? LANES : share;                                                                                           \
    Group merge = {lanes};                                                                                                       \
    for_row(rows, lanes, [&](i64 r, int cols, int lane) {                                                                        \
      Row<D, int> ys(y, rows, y_at, r, 0, cols), gs(g, rows, g_at, r, 0, cols), to(dx, rows, dx_at, r, 0, cols);                 \
      CachedSoftmaxBackward<D>::row<N>(ys, gs, to, lane, lanes, merge);                                                          \
    });                                                                                                                          \
  }

// See `WARP_SHAPES` in src/plan/choose.rs.
#define ACCESS_TABLE(dtype, D, KERNEL, access, Row)                                                                              \
  KERNEL(dtype, D, access, Row, 1, 1)                                                                                            \
  KERNEL(dtype, D, access, Row, 2, 1)                                                                                            \
  KERNEL(dtype, D, access, Row, 2, 2)                                                                                            \
  KERNEL(dtype, D, access, Row, 4, 2)                                                                                            \
  KERNEL(dtype, D, access, Row, 8, 2)                                                                                            \
  KERNEL(dtype, D, access, Row, 16, 2)                                                                                           \
  KERNEL(dtype, D, access, Row, 32, 2)                                                                                           \
  KERNEL(dtype, D, access, Row, 32, 4)

#define TABLE(dtype, D, KERNEL)                                                                                                  \
  ACCESS_TABLE(dtype, D, KERNEL, aligned, AlignedRow)                                                                            \
  KERNEL(dtype, D, unaligned, UnalignedRow, 0, 1)                                                                                \
  KERNEL(dtype, D, unaligned, UnalignedRow, 0, 2)                                                                                \
  KERNEL(dtype, D, unaligned, UnalignedRow, 0, 4)                                                                                \
  KERNEL(dtype, D, strided, StridedRow, 0, 4)

TABLE(f16, F16, SOFTMAX_KERNEL)
TABLE(bf16, BF16, SOFTMAX_KERNEL)
TABLE(f32, F32, SOFTMAX_KERNEL)
TABLE(f64, F64, SOFTMAX_KERNEL)
TABLE(f16, F16, SOFTMAX_BACKWARD_KERNEL)
TABLE(bf16, BF16, SOFTMAX_BACKWARD_KERNEL)
TABLE(f32, F32, SOFTMAX_BACKWARD_KERNEL)
TABLE(f64, F64, SOFTMAX_BACKWARD_KERNEL)
