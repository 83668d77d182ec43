// Mid rows: a block owns a row; it stays in registers.
//
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...    vectors of one row: thread t owns t, t + threads, ..
//   |<---- threads ---->|<---- threads ---->|          (each lane of a warp the vector after the lane below)
//
// Rows that are not on 16 bytes go through shared memory, with what stands beside them in their first and last 16: so
// each thread has its vectors from any byte on, and memory is accessed 16 aligned bytes at a time.
//
// Passes over memory: one read, one write. Barriers: one, and two more for those rows. Shared memory: 2 x 16 numbers,
// and those rows.
// Launch bounds (most threads, blocks on an SM): 64 registers each for rows of which several should be on an SM at a
// time, 128 where the variant needs them.
#include "cached.cuh"
#include "slice.cuh"
#include "staged.cuh"
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

// All threads have read the row before the merge's barrier, and write after it. N is no more than
// the row needs.
#define STAGED_SOFTMAX_KERNEL(dtype, D, N, THREADS, BLOCKS)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) block_softmax_##dtype##_unaligned_##N(SOFTMAX_PARAMETERS(D)) {   \
    predecessors_done();                                                                                                        \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    i64 r = blockIdx.x;                                                                                                          \
    int cols = (int)rows.cols;                                                                                                   \
    UnalignedSlice<D> from(x, rows, x_at, r, 0, cols, share), to(y, rows, y_at, r, 0, cols, share);                              \
    Words *cache = shared_memory();                                                                                              \
    bring(from, cache, nullptr);                                                                                                 \
    StagedRow<D, N> xs(cache, from.shift, cols), ys(cache, to.shift, cols);                                                      \
    CachedSoftmax<D>::row<N>(xs, ys, threadIdx.x, share, merge);                                                                 \
    to.send(cache);                                                                                                              \
  }

#define STAGED_SOFTMAX_BACKWARD_KERNEL(dtype, D, N, THREADS, BLOCKS)                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                                  \
      block_softmax_backward_##dtype##_unaligned_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                           \
    predecessors_done();                                                                                                        \
    __shared__ Slots<D::Compute> slots;                                                                                          \
    Block<D::Compute> merge(slots);                                                                                              \
    i64 r = blockIdx.x;                                                                                                          \
    int cols = (int)rows.cols;                                                                                                   \
    UnalignedSlice<D> ys(y, rows, y_at, r, 0, cols, share), gs(g, rows, g_at, r, 0, cols, share);                                \
    UnalignedSlice<D> to(dx, rows, dx_at, r, 0, cols, share);                                                                    \
    Words *cache = shared_memory(), *another = cache + (cols + D::LEN - 1) / D::LEN + 1;                                         \
    bring(ys, cache, gs, another);                                                                                               \
    StagedRow<D, N> staged_y(cache, ys.shift, cols), staged_g(another, gs.shift, cols), out(cache, to.shift, cols);              \
    CachedSoftmaxBackward<D>::row<N>(staged_y, staged_g, out, threadIdx.x, share, merge);                                        \
    to.send(cache);                                                                                                              \
  }

// See `block_shapes` in src/plan/choose.rs: how many vectors a thread has, and threads a block.
#define TABLE(dtype, D, KERNEL, N, THREADS, BLOCKS, STAGED_BLOCKS)                                                               \
  KERNEL(dtype, D, aligned, AlignedRow, N, THREADS, BLOCKS)                                                                      \
  KERNEL(dtype, D, strided, StridedRow, N, THREADS, 1)                                                                           \
  STAGED_##KERNEL(dtype, D, N, THREADS, STAGED_BLOCKS)

// Of unaligned rows also those that need fewer (past 128 vectors, with threads in whole warps).
#define HALF_TABLE(dtype, D)                                                                                                     \
  TABLE(dtype, D, SOFTMAX_KERNEL, 2, 128, 8, 8)                                                                                  \
  TABLE(dtype, D, SOFTMAX_KERNEL, 4, 512, 2, 2)                                                                                  \
  STAGED_SOFTMAX_KERNEL(dtype, D, 3, 512, 2)

// 8 blocks, 64 registers, for f32: 4097x4095 takes 38.4 us, 40.5 with 80.
#define FULL_TABLE(dtype, D, STAGED_BLOCKS)                                                                                      \
  TABLE(dtype, D, SOFTMAX_KERNEL, 8, 128, 6, STAGED_BLOCKS)                                                                      \
  TABLE(dtype, D, SOFTMAX_KERNEL, 4, 512, 2, 2)                                                                                  \
  STAGED_SOFTMAX_KERNEL(dtype, D, 5, 128, 8)                                                                                     \
  STAGED_SOFTMAX_KERNEL(dtype, D, 6, 128, 8)                                                                                     \
  STAGED_SOFTMAX_KERNEL(dtype, D, 7, 128, STAGED_BLOCKS)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 2, 512, 2, 2)                                                                            \
  TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL, 4, 384, 1, 1)                                                                         \
  STAGED_SOFTMAX_BACKWARD_KERNEL(dtype, D, 3, 384, 1)

HALF_TABLE(f16, F16)
HALF_TABLE(bf16, BF16)
FULL_TABLE(f32, F32, 8)
FULL_TABLE(f64, F64, 6)
FOR_EACH_DTYPE(BACKWARD_TABLE)
