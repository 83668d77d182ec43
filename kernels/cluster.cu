// Long rows that are not on 16-byte boundaries: a cluster of blocks owns a row; it stays in their shared memory.
//
//   |<------- block 0 ------->|<------- block 1 ------->| ...     `share` vectors of the row a block, its slice
//   | warp 0 | warp 1 | ... | warp 0 | warp 1 | ...               thread t owns vectors t, t + threads, .. of it
//
// Passes over memory: one read, one write. Barriers: three of the block, none of the cluster (see cluster.cuh). Shared
// memory: the slice, of each input. Before sm_90 a cluster is one block.
// A cluster takes one row and ends: while one waits for its copies, others on the same SM compute and store. (To go
// on to a next row, and copy it as this one is written: 512x131072 f32 184 us, 155 without, H200.)
#include "cluster.cuh"
#include "shared.cuh"
#include "table.cuh"

using namespace online;

#define SOFTMAX_KERNEL(dtype, D, access, Slice)                                                                                  \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, SHARED_BLOCKS(D))                                                  \
      cluster_softmax_##dtype##_##access(SOFTMAX_PARAMETERS(D)) {                                                                \
    __shared__ ClusterSlots<D::Compute> slots;                                                                                   \
    Cluster<D::Compute> merge(slots);                                                                                            \
    predecessors_done();                                                                                                         \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                       \
      Slice<D> from(x, rows, x_at, r, first, cols), to(y, rows, y_at, r, first, cols);                                           \
      SharedSoftmax<D>::row(from, to, shared_memory(), merge);                                                            \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, access, Slice)                                                                         \
  extern "C" __global__ void __launch_bounds__(SLICE_THREADS, SHARED_BLOCKS_BACKWARD)                                            \
      cluster_softmax_backward_##dtype##_##access(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                              \
    __shared__ ClusterSlots<D::Compute> slots;                                                                                   \
    Cluster<D::Compute> merge(slots);                                                                                            \
    predecessors_done();                                                                                                         \
    for_slice<D>(merge, rows, share, [&](i64 r, i64 first, int cols) {                                                       \
      Slice<D> ys(y, rows, y_at, r, first, cols), gs(g, rows, g_at, r, first, cols), to(dx, rows, dx_at, r, first, cols);        \
      SharedSoftmaxBackward<D>::row(ys, gs, to, shared_memory(), shared_memory() + share + 1, merge);                            \
    });                                                                                                                          \
  }

#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                            \
  SOFTMAX_KERNEL(dtype, D, strided, StridedSlice)                                                                                \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, unaligned, UnalignedSlice)                                                                   \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, strided, StridedSlice)

FOR_EACH_DTYPE(TABLE)
