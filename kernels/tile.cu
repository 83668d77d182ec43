// Rows side by side, columns apart, short and mid: a block owns a tile of neighbouring rows (see tile.cuh); they stay
// in registers.
//
//   of `share` lanes a row, as many as its warp or block has in those families:
//
//     LANES x N    the warp family's rows, LANES a constant. Barriers: two, none for one lane
//     0 x N        the block family's, where a block has room for 8 or more. Barriers: three
//
// Passes over memory: one read, one write. Shared memory: two numbers a thread, and two a row and share.
#include "table.cuh"
#include "tile.cuh"

using namespace online;

// See `tile_plan` in src/plan/choose.rs: rows of a tile where the lanes are a constant; else threads and rows at most, and rows
// at least.
template <int LANES> constexpr int TILE_ROWS = LANES < 8 ? 128 / LANES : 16;
template <> constexpr int TILE_ROWS<0> = 16;
constexpr int TILE_THREADS = 1024, LEAST_ROWS = 8, MOST_LANES = TILE_THREADS / LEAST_ROWS;

// Calls body(row, lane, lanes, merge) for the row and lane of this thread.
template <class C, int LANES, class Body> __device__ __forceinline__ void for_row(int threads, Body body) {
  constexpr int APART = TILE_ROWS<LANES>;
  __shared__ TileSlots<C, LANES == 1 ? 1 : (LANES ? LANES : MOST_LANES) * APART> slots;
  if constexpr (LANES > 0) {
    int row = threadIdx.x % APART, lane = threadIdx.x / APART;
    TileGroup<C, LANES, APART> merge(slots, row, lane);
    body((i64)blockIdx.x * APART + row, lane, LANES, merge);
  } else {
    constexpr int SHARES = MOST_LANES / WARP;
    __shared__ TileSlots<C, SHARES * APART> left;
    u32 rows = blockDim.x / (u32)threads;
    int row = (int)(threadIdx.x % rows), lane = (int)(threadIdx.x / rows);
    TileBlock<C, SHARES, APART> merge = {{slots, row, lane}, {left, row, threads}, lane};
    body((i64)blockIdx.x * rows + row, lane, threads, merge);
  }
}

#define SOFTMAX_KERNEL(dtype, D, LANES, N)                                                                                       \
  extern "C" __global__ void __launch_bounds__(LANES ? LANES * TILE_ROWS<LANES> : TILE_THREADS, 1)                               \
      tile_softmax_##dtype##_columns_##LANES##x##N(SOFTMAX_PARAMETERS(D)) {                                                      \
    predecessors_done();                                                                                                        \
    for_row<D::Compute, LANES>(share, [&](i64 r, int lane, int lanes, auto &merge) {                                           \
      TileRow<D> from(x, rows, x_at, r), to(y, rows, y_at, r);                                                                   \
      CachedSoftmax<D>::row<N>(from, to, lane, lanes, merge);                                                                    \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, LANES, N)                                                                              \
  extern "C" __global__ void __launch_bounds__(LANES ? LANES * TILE_ROWS<LANES> : TILE_THREADS, 1)                               \
      tile_softmax_backward_##dtype##_columns_##LANES##x##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                    \
    predecessors_done();                                                                                                        \
    for_row<D::Compute, LANES>(share, [&](i64 r, int lane, int lanes, auto &merge) {                                           \
      TileRow<D> ys(y, rows, y_at, r), gs(g, rows, g_at, r), to(dx, rows, dx_at, r);                                             \
      CachedSoftmaxBackward<D>::row<N>(ys, gs, to, lane, lanes, merge);                                                          \
    });                                                                                                                          \
  }

// See `WARP_SHAPES` in src/plan/choose.rs.
#define WARP_TABLE(dtype, D, KERNEL)                                                                                             \
  KERNEL(dtype, D, 1, 1)                                                                                                         \
  KERNEL(dtype, D, 2, 1)                                                                                                         \
  KERNEL(dtype, D, 2, 2)                                                                                                         \
  KERNEL(dtype, D, 4, 2)                                                                                                         \
  KERNEL(dtype, D, 8, 2)                                                                                                         \
  KERNEL(dtype, D, 16, 2)                                                                                                        \
  KERNEL(dtype, D, 32, 2)                                                                                                        \
  KERNEL(dtype, D, 32, 4)

// See `block_shapes` in src/plan/choose.rs.
#define HALF_TABLE(dtype, D)                                                                                                     \
  WARP_TABLE(dtype, D, SOFTMAX_KERNEL)                                                                                           \
  SOFTMAX_KERNEL(dtype, D, 0, 2)

#define FULL_TABLE(dtype, D)                                                                                                     \
  WARP_TABLE(dtype, D, SOFTMAX_KERNEL)                                                                                           \
  SOFTMAX_KERNEL(dtype, D, 0, 8)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  WARP_TABLE(dtype, D, SOFTMAX_BACKWARD_KERNEL)                                                                                  \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 0, 2)

HALF_TABLE(f16, F16)
HALF_TABLE(bf16, BF16)
FULL_TABLE(f32, F32)
FULL_TABLE(f64, F64)
FOR_EACH_DTYPE(BACKWARD_TABLE)
