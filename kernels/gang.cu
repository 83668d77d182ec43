// Rows too long for a cluster: a gang of blocks owns a row; it stays in their shared memory.
//
//   |<------- block 0 ------->|<------- block 1 ------->| ...     `share` vectors of the row a block, its slice
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...               thread t owns vectors t, t + threads, .. of it
//
// As cluster.cu in everything but how blocks meet: through global memory (see gang.cuh), so that there may be as many
// as the GPU runs at once. Passes over memory: one read, one write. Barriers: four or five of the block. Shared memory: the
// slice, of each input.
#include "gang.cuh"
#include "shared.cuh"
#include "table.cuh"

using namespace online;

// Blocks on an SM: as in a cluster where the SM has the shared memory for so many, else those that the plan counts on.
#if __CUDA_ARCH__ == 900
#define GANG_BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 5) // 48 registers: with 40 f16 spills
#define GANG_BLOCKS_BACKWARD(D) (sizeof(D::Storage) == 8 ? 3 : 4)
#elif __CUDA_ARCH__ >= 1000
#define GANG_BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 3)
#define GANG_BLOCKS_BACKWARD(D) 2
#else
#define GANG_BLOCKS(D) (sizeof(D::Storage) == 8 ? 2 : 3)
#define GANG_BLOCKS_BACKWARD(D) 3
#endif

#define SOFTMAX_KERNEL(dtype, D, access, Slice)                                                                                  \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, GANG_BLOCKS(D))                                                    \
      gang_softmax_##dtype##_##access(SOFTMAX_PARAMETERS(D), GANG_PARAMETER) {                                                   \
    __shared__ GangSlots<D::Compute> slots;                                                                                      \
    predecessors_done();                                                                                                         \
    Gang<D::Compute> merge(slots, workspace, rows);                                                                              \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                       \
      Slice<D> from(x, rows, x_at, r, first, cols), to(y, rows, y_at, r, first, cols);                                           \
      SharedSoftmax<D>::row(from, to, shared_memory(), merge);                                                        \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Slice)                                                                         \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, GANG_BLOCKS_BACKWARD(D))                                           \
      gang_softmax_backward_##dtype##_##access(SOFTMAX_BACKWARD_PARAMETERS(D), GANG_PARAMETER) {                                 \
    __shared__ GangSlots<D::Compute> slots;                                                                                      \
    predecessors_done();                                                                                                         \
    Gang<D::Compute> merge(slots, workspace, rows);                                                                              \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                       \
      Slice<D> ys(y, rows, y_at, r, first, cols), gs(g, rows, g_at, r, first, cols), to(dx, rows, dx_at, r, first, cols);        \
      SharedSoftmaxBackward<D>::row(ys, gs, to, shared_memory(), shared_memory() + share + 1, merge);                        \
    });                                                                                                                          \
  }

#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, aligned, AlignedSlice)                                                                                \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                            \
  SOFTMAX_KERNEL(dtype, D, strided, StridedSlice)                                                                                \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, aligned, AlignedSlice)                                                                       \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                   \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedSlice)

FOR_EACH_DTYPE(TABLE)
