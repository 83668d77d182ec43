// Short rows: a warp, or an even part of one, owns a row; it stays in registers.
//
//   threads = 8:  | row r | row r+1 | row r+2 | row r+3 |   one warp
//                  0 .. 7   8 .. 15   16 .. 23  24 .. 31     lane; lane l of a row owns its vectors l, l+8, ..
//
// Passes over memory: one read, one write. Barriers, shared memory: none.
// Invariant: all 32 lanes run every merge and store together; those past the last row have a row of no
// columns (they load fill and store nothing).
#include "cached.cuh"
#include "table.cuh"

using namespace online;

// Calls body(row, columns) for each row of this group of `threads` lanes.
template <class Body> __device__ __forceinline__ void for_each_row(const Rows &rows, int threads, Body body) {
  i64 per_block = blockDim.x / (u32)threads;
  for (i64 first = blockIdx.x * per_block; first < rows.rows; first += gridDim.x * per_block) {
    i64 r = first + threadIdx.x / (u32)threads;
    body(r, r < rows.rows ? (int)rows.cols : 0);
  }
}

#define SOFTMAX_KERNEL(dtype, D, access, Row, N)                                                                                 \
  extern "C" __global__ void __launch_bounds__(128, 1) warp_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D)) {               \
    Group merge = {threads};                                                                                                     \
    for_each_row(rows, threads, [&](i64 r, int cols) {                                                                           \
      Row<D, int> from(x, rows, x_at, r, cols, threads), to(y, rows, y_at, r, cols, threads);                                    \
      CachedSoftmax<D>::row<N>(from, to, threadIdx.x % (u32)threads, threads, merge);                                            \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N)                                                                        \
  extern "C" __global__ void __launch_bounds__(128, 1) warp_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) { \
    Group merge = {threads};                                                                                                     \
    for_each_row(rows, threads, [&](i64 r, int cols) {                                                                           \
      Row<D, int> ys(y, rows, y_at, r, cols, threads), gs(g, rows, g_at, r, cols, threads), to(dx, rows, dx_at, r, cols, threads); \
      CachedSoftmaxBackward<D>::row<N>(ys, gs, to, threadIdx.x % (u32)threads, threads, merge);                                  \
    });                                                                                                                          \
  }

// The most vectors of a lane: see `variants` in src/plan.rs.
#define HALF_TABLE(dtype, D)                                                                                                     \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedRow, 1)                                                                               \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedRow, 2)                                                                               \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedRow, 4)                                                                               \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedRow, 1)                                                                           \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedRow, 2)                                                                           \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedRow, 4)

#define FULL_TABLE(dtype, D)                                                                                                     \
  HALF_TABLE(dtype, D)                                                                                                           \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedRow, 8)                                                                               \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedRow, 8)                                                                           \
  SOFTMAX_KERNEL(dtype, D, strided, StridedRow, 8)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedRow, 1)                                                                      \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedRow, 2)                                                                      \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedRow, 4)                                                                      \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedRow, 1)                                                                  \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedRow, 2)                                                                  \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedRow, 4)                                                                  \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedRow, 4)

HALF_TABLE(f16, F16)
SOFTMAX_KERNEL(f16, F16, strided, StridedRow, 4)
HALF_TABLE(bf16, BF16)
SOFTMAX_KERNEL(bf16, BF16, strided, StridedRow, 4)
FULL_TABLE(f32, F32)
FULL_TABLE(f64, F64)
FOR_EACH_DTYPE(BACKWARD_TABLE)
