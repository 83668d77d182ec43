// Mid rows: a block owns a row; it stays in registers.
//
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...    vectors of one row: thread t owns t, t + threads, ..
//   |<---- threads ---->|<---- threads ---->|          (each lane of a warp the vector after the lane below)
//
// Passes over memory: one read, one write. Barriers: one, and one more to store rows that are not on 16 bytes.
// Shared memory: 2 x 16 numbers, and for those rows a vector or more a warp.
// Launch bounds (most threads, blocks on an SM): 64 registers each for rows of which several should be on an SM at a
// time, 128 where the variant needs them.
#include "cached.cuh"
#include "table.cuh"

using namespace online;

#define SOFTMAX_KERNEL(dtype, D, access, Row, N, THREADS, BLOCKS)                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) block_softmax_##dtype##_##access##_##N(SOFTMAX_PARAMETERS(D)) {  \
    predecessors_done();                                                                                                        \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    i64 r = blockIdx.x;                                                                                                          \
    Row<D, int> from(x, rows, x_at, r, 0, (int)rows.cols), to(y, rows, y_at, r, 0, (int)rows.cols);                              \
    CachedSoftmax<D>::row<N>(from, to, threadIdx.x, share, merge);                                                               \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Row, N, THREADS, BLOCKS)                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                                  \
      block_softmax_backward_##dtype##_##access##_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                          \
    predecessors_done();                                                                                                        \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    i64 r = blockIdx.x;                                                                                                          \
    Row<D, int> ys(y, rows, y_at, r, 0, (int)rows.cols), gs(g, rows, g_at, r, 0, (int)rows.cols);                                \
    Row<D, int> to(dx, rows, dx_at, r, 0, (int)rows.cols);                                                                       \
    CachedSoftmaxBackward<D>::row<N>(ys, gs, to, threadIdx.x, share, merge);                                                     \
  }

// See `block_shapes` in src/plan/choose.rs: how many vectors a thread has, and threads a block.
#define TABLE(dtype, D, KERNEL, N, THREADS, BLOCKS)                                                                              \
  KERNEL(dtype, D, aligned, AlignedRow, N, THREADS, BLOCKS)                                                                      \
  KERNEL(dtype, D, unaligned, UnalignedRow, N, THREADS, BLOCKS)                                                                  \
  KERNEL(dtype, D, strided, StridedRow, N, THREADS, 1)

#define HALF_TABLE(dtype, D)                                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 2, 128, 8)                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 4, 512, 2)

#define FULL_TABLE(dtype, D)                                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 8, 128, 6)                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 4, 512, 2)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 2, 512, 2)                                                                            \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 4, 384, 1)

HALF_TABLE(f16, F16)
HALF_TABLE(bf16, BF16)
FULL_TABLE(f32, F32)
FULL_TABLE(f64, F64)
FOR_EACH_DTYPE(BACKWARD_TABLE)
