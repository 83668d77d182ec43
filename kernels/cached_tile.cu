// Rows side by side, columns apart, short and mid, forward: a block owns a tile of neighbouring rows (see tile.cuh); they
// stay in registers. Of the rows that tile.cu would take these are the ones that need no more: 64x1000x256 f32 takes
// 45.6 us, 59.9 there, 8x4096x64 f32 13.2 and 16.7 (H200).
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

// As Block: lanes in shares of a warp's. Barriers: one for the maximum, two for the sum.
template <class C, int SHARES, int APART> struct TileBlock {
  TileGroup<C, WARP, APART> group;
  ShareSlots<C, SHARES, APART> shares;
  int lane;

  __device__ __forceinline__ C share_max(C x) const { return group.share_max(x); }
  __device__ __forceinline__ C sum(C x) const {
    leave(C(0), group.sum(x));
    return shares.gather_sum();
  }
  template <class D> __device__ __forceinline__ C weight(const Reference<D> &at, C x) const {
    leave(at.m, group.sum(x));
    return shares.template gather<D>().weight(at);
  }

private:
  __device__ __forceinline__ void leave(C m, C d) const {
    if (lane % WARP == 0) shares.leave(lane / WARP, m, d);
    block_barrier();
  }
};

// See `cached_tile_plan` in src/plan/tiles.rs: rows of a tile where the lanes are a constant; else threads and rows at most, and rows
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
      cached_tile_softmax_##dtype##_columns_##LANES##x##N(SOFTMAX_PARAMETERS(D)) {                                                      \
    predecessors_done();                                                                                                        \
    for_row<D::Compute, LANES>(share, [&](i64 r, int lane, int lanes, auto &merge) {                                           \
      TileRow<D> from(x, rows, x_at, r), to(y, rows, y_at, r);                                                                   \
      CachedSoftmax<D>::row<N>(from, to, lane, lanes, merge);                                                                    \
    });                                                                                                                          \
  }

// See `WARP_SHAPES` in src/plan/choose.rs.
#define WARP_TABLE(dtype, D)                                                                                                     \
  SOFTMAX_KERNEL(dtype, D, 1, 1)                                                                                                 \
  SOFTMAX_KERNEL(dtype, D, 2, 1)                                                                                                 \
  SOFTMAX_KERNEL(dtype, D, 2, 2)                                                                                                 \
  SOFTMAX_KERNEL(dtype, D, 4, 2)                                                                                                 \
  SOFTMAX_KERNEL(dtype, D, 8, 2)                                                                                                 \
  SOFTMAX_KERNEL(dtype, D, 16, 2)                                                                                                \
  SOFTMAX_KERNEL(dtype, D, 32, 2)                                                                                                \
  SOFTMAX_KERNEL(dtype, D, 32, 4)

// See `block_shapes` in src/plan/choose.rs.
#define FULL_TABLE(dtype, D)                                                                                                     \
  WARP_TABLE(dtype, D)                                                                                                           \
  SOFTMAX_KERNEL(dtype, D, 0, 8)

WARP_TABLE(f16, F16)
WARP_TABLE(bf16, BF16)
FULL_TABLE(f32, F32)
FULL_TABLE(f64, F64)
