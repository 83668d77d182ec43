// Rows side by side, columns apart, too long for the shared memory that tile.cu needs: a block owns a tile of 16 neighbouring rows, 32 lanes each,
// that play the warps of the contiguous row (see tile.cuh) one after another.
//
//   contiguous row:   | warp 0 | warp 1 | .. | warp 0 | warp 1 | ..      vectors; thread t owns t, t + threads, ..
//   here, turn s:     the vectors of warp s, to registers; lane l those of its lane l
//
// Passes over memory: two reads (the second comes from L2 while the tiles in flight fit it), one write. The first
// leaves (m, d) of each warp in shared memory, the second takes its exponentials again, relative to the same m.
// Barriers: two a turn forward, one backward, and one. Shared memory: two numbers a thread, and two a row and turn.
#include "table.cuh"
#include "tile.cuh"

using namespace online;

constexpr int ROWS = 16, THREADS = ROWS * WARP;

template <class C> struct Turns {
  TileGroup<C, WARP, ROWS> group;
  ShareSlots<C, MAX_WARPS, ROWS> shares;
  int lane;

  __device__ __forceinline__ void leave(int turn, C m, C d) const {
    if (lane == 0) shares.leave(turn, m, d);
  }
};

template <class D> struct TileStreamSoftmax {
  typedef typename D::Compute C;
  typedef CachedSoftmax<D> Cached;

  template <int N> static __device__ __forceinline__ void rows(const TileRow<D> &x, const TileRow<D> &y, int threads, const Turns<C> &turns) {
    Words raw[N];
    C e[N][D::LEN];
#pragma unroll 1
    for (int turn = 0; turn < turns.shares.shares; ++turn) {
      x.load(raw, turn * WARP + turns.lane, threads, D::lowest());
      const Reference<D> at(turns.group.share_max(vectors_max<D>(raw, -Limits<C>::infinity())));
      turns.leave(turn, at.m, turns.group.sum(Cached::exponentials(e, raw, at)));
    }
    block_barrier();
    const State<D> whole = turns.shares.template gather<D>();
#pragma unroll 1
    for (int turn = 0; turn < turns.shares.shares; ++turn) {
      int first = turn * WARP + turns.lane;
      x.load(raw, first, threads, D::lowest());
      const Reference<D> at(turns.shares.m[turn * ROWS]);
      Cached::exponentials(e, raw, at);
      Cached::scaled(raw, e, whole.weight(at));
      y.store(raw, first, threads);
    }
  }
};

template <class D> struct TileStreamSoftmaxBackward {
  typedef typename D::Compute C;
  typedef CachedSoftmaxBackward<D> Vector;

  template <int N>
  static __device__ __forceinline__ void rows(const TileRow<D> &y, const TileRow<D> &g, const TileRow<D> &dx, int threads, const Turns<C> &turns) {
    Words ys[N], gs[N];
#pragma unroll 1
    for (int turn = 0; turn < turns.shares.shares; ++turn) {
      y.load(ys, turn * WARP + turns.lane, threads, 0);
      g.load(gs, turn * WARP + turns.lane, threads, 0);
      C p = C(0);
#pragma unroll
      for (int k = 0; k < N; ++k) p = add(p, Vector::product_sum(ys[k], gs[k]));
      // The slots of the maxima, of which there are none, serve every other turn: one barrier each.
      turns.leave(turn, C(0), turns.group.sum(p, turn % 2));
    }
    block_barrier();
    C s = turns.shares.gather_sum();
#pragma unroll 1
    for (int turn = 0; turn < turns.shares.shares; ++turn) {
      int first = turn * WARP + turns.lane;
      y.load(ys, first, threads, 0);
      g.load(gs, first, threads, 0);
#pragma unroll
      for (int k = 0; k < N; ++k) ys[k] = Vector::gradient(ys[k], gs[k], s);
      dx.store(ys, first, threads);
    }
  }
};

// Calls body(row, turns) for the row and lane of this thread.
template <class C, class Body> __device__ __forceinline__ void for_row(int threads, Body body) {
  __shared__ TileSlots<C, THREADS> slots;
  __shared__ TileSlots<C, MAX_WARPS * ROWS> left;
  int row = threadIdx.x % ROWS, lane = threadIdx.x / ROWS;
  body((i64)blockIdx.x * ROWS + row, Turns<C>{{slots, row, lane}, {left, row, threads}, lane});
}

#define SOFTMAX_KERNEL(dtype, D, N)                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) tile_stream_softmax_##dtype##_columns_##N(SOFTMAX_PARAMETERS(D)) {    \
    predecessors_done();                                                                                                        \
    for_row<D::Compute>(share, [&](i64 r, const Turns<D::Compute> &turns) {                                                    \
      TileRow<D> from(x, rows, x_at, r), to(y, rows, y_at, r);                                                                   \
      TileStreamSoftmax<D>::rows<N>(from, to, share, turns);                                                                   \
    });                                                                                                                          \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, N)                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                                       \
      tile_stream_softmax_backward_##dtype##_columns_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                       \
    predecessors_done();                                                                                                        \
    for_row<D::Compute>(share, [&](i64 r, const Turns<D::Compute> &turns) {                                                    \
      TileRow<D> ys(y, rows, y_at, r), gs(g, rows, g_at, r), to(dx, rows, dx_at, r);                                             \
      TileStreamSoftmaxBackward<D>::rows<N>(ys, gs, to, share, turns);                                                         \
    });                                                                                                                          \
  }

// See `block_shapes` in src/plan/choose.rs.
SOFTMAX_KERNEL(f16, F16, 4)
SOFTMAX_KERNEL(bf16, BF16, 4)
SOFTMAX_KERNEL(f32, F32, 4)
SOFTMAX_KERNEL(f64, F64, 4)
SOFTMAX_KERNEL(f32, F32, 8)
SOFTMAX_KERNEL(f64, F64, 8)

#define BACKWARD_TABLE(dtype, D)                                                                                                 \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 2)                                                                                           \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 4)

FOR_EACH_DTYPE(BACKWARD_TABLE)
