// Mid rows: a block owns a row; it stays in registers.
//
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...    vectors of one row: thread t owns t, t + threads, ..
//   |<---- threads ---->|<---- threads ---->|          (each lane of a warp the vector after the lane below)
//
// Passes over memory: one read, one write. Barriers: one a row. Shared memory: 2 x 2 x 32 numbers.
// Launch bound: 512 threads, so 128 registers each (with 1024, and 64, the long variants spill); all of a block's threads run every merge.
#include "cached.cuh"
#include "table.cuh"

using namespace online;

#define SOFTMAX_KERNEL(dtype, D, access, Row, N)                                                                                 \
  extern "C" __global__ void __launch_bounds__(512, 1) block_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D)) {           \
    for_each_block_row<D>(rows, [&](i64 r, Block<D::Compute> &merge) {                                                           \
      Row<D, int> from(x, rows, x_at, r, (int)rows.cols, WARP), to(y, rows, y_at, r, (int)rows.cols, WARP);                      \
      CachedSoftmax<D>::row<N>(from, to, threadIdx.x, threads, merge);                                                           \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N)                                                                        \
  extern "C" __global__ void __launch_bounds__(512, 1) block_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) { \
    for_each_block_row<D>(rows, [&](i64 r, Block<D::Compute> &merge) {                                                           \
      Row<D, int> ys(y, rows, y_at, r, (int)rows.cols, WARP), gs(g, rows, g_at, r, (int)rows.cols, WARP);                        \
      Row<D, int> to(dx, rows, dx_at, r, (int)rows.cols, WARP);                                                                  \
      CachedSoftmaxBackward<D>::row<N>(ys, gs, to, threadIdx.x, threads, merge);                                                 \
    });                                                                                                                          \
  }

// The most vectors of a thread: see `variants` in src/plan.rs.
#define TABLE(dtype, D, KERNEL, N)                                                                                               \
  KERNEL(dtype, D, aligned, AlignedRow, N)                                                                                       \
  KERNEL(dtype, D, unaligned, UnalignedRow, N)

#define HALF_TABLE(dtype, D)                                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 2)                                                                                             \
  TABLE(dtype, D, SOFTMAX_KERNEL, 4)                                                                                             \
  TABLE(dtype, D, SOFTMAX_KERNEL, 8)                                                                                             \
  SOFTMAX_KERNEL(dtype, D, strided, StridedRow, 8)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 2)                                                                                    \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 4)                                                                                    \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedRow, 4)

HALF_TABLE(f16, F16)
HALF_TABLE(bf16, BF16)
TABLE(f32, F32, SOFTMAX_KERNEL, 4)
TABLE(f32, F32, SOFTMAX_KERNEL, 8)
TABLE(f32, F32, SOFTMAX_KERNEL, 16)
SOFTMAX_KERNEL(f32, F32, strided, StridedRow, 16)
TABLE(f64, F64, SOFTMAX_KERNEL, 4)
TABLE(f64, F64, SOFTMAX_KERNEL, 8)
SOFTMAX_KERNEL(f64, F64, strided, StridedRow, 8)
FOR_EACH_DTYPE(BACKWARD_TABLE)
