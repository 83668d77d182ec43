// Rows side by side in memory, columns apart: a block, or a cluster of them, owns a tile of neighbouring rows.
//
//   row of 4 shares,      | share 0 | share 1 | share 2 | share 3 | share 0 | ..     vectors; a share is a warp of the
//   a cluster of 2:       |<--- block 0 ----->|<--- block 1 ----->|                   contiguous row
//
// A thread has LEN rows at once (see square.cuh). They stay in shared memory, from where each step reads them again:
// registers hold one square at a time, whatever the row's length.
//
//   1 bring       the tile to shared memory
//   2 maximum     of each share and row
//   3 sums        of each lane's exponentials, relative to the share's maximum; of f32 and f64 they stay in the tile
//   4 reduce      each lane's to a share's (m, d), a warp a row; to all blocks of the cluster
//   5 weights     of each share and row, from all shares
//   6 results     to the tile, and from there to memory; or straight to rows of columns side by side
//
// Passes over memory: one read, one write. Barriers: one after each of these steps, but where a share is a row, in
// place of the fourth and fifth one. Shared memory: the tile, of each input; a number a row and lane, or with runs a
// row and vector; three a row and share.
// Invariant: a row's bits are those of the warp or block family; all sums are added in the same order.
#include "square.cuh"
#include "table.cuh"

using namespace online;

constexpr int GATHERED = MAX_WARPS;
// Threads of a block at most, of halves 384 (see src/plan/tiles.rs); a bound of 512 limits registers to 128, with which
// squares of halves spill on sm_75 and sm_80.
#if __CUDA_ARCH__ <= 800
template <class D> constexpr int TILE_THREADS = D::LEN == 8 ? 384 : 512;
#else
template <class D> constexpr int TILE_THREADS = 512;
#endif

// The rows of a tile as numbers in shared memory.
template <class D, int INPUTS> struct TileMemory {
  typedef typename D::Compute C;
  Words *tile, *another, *maxima; // maxima of a run, share and row
  Pair<C> *left;                  // (m, d) of a share and row, of all the shares
  C *sums, *weights;              // of a run or turn, share, row and lane; of a share and row
  u64 *inbox;

  __device__ __forceinline__ explicit TileMemory(const TileShape<D> &shape) {
    int own = shape.own_shares << shape.log2_rows;
    tile = shared_memory();
    another = tile + shape.pieces();
    maxima = INPUTS == 2 ? another + shape.pieces() : another;
    left = (Pair<C> *)(maxima + shape.runs * (shape.own_shares << shape.log2_groups));
    inbox = (u64 *)(left + (shape.shares << shape.log2_rows));
    weights = (C *)(inbox + 2);
    sums = weights + own;
  }
};

// Steps 4 and 5: merges of what threads have left in `sums`.
template <class D, int INPUTS> struct TileMerge {
  typedef typename D::Compute C;
  const TileShape<D> &shape;
  const TileMemory<D, INPUTS> &memory;

  __device__ __forceinline__ TileMerge(const TileShape<D> &shape_, const TileMemory<D, INPUTS> &memory_) : shape(shape_), memory(memory_) {
    if (shape.parts == 1) return;
    if (threadIdx.x == 0) inbox_open(memory.inbox);
    cluster_started(); // reduce() waits for the others
  }

  // Where this thread leaves the sum of row j of its own: of all its vectors, or with runs of turn k.
  __device__ __forceinline__ C &sum(int k, int j) const {
    int turn = shape.runs == 1 ? 0 : k;
    return memory.sums[(((turn * shape.own_shares + shape.share) << shape.log2_rows) + shape.group * D::LEN + j) * shape.lanes + shape.lane];
  }

  // To (max(s, row), sum) of every share of this block, in all blocks; after a barrier, and before what they do.
  template <class Max> __device__ __forceinline__ void reduce(Max max) const {
    if (shape.parts > 1) {
      cluster_wait_started();
      if (threadIdx.x == 0) inbox_expect(memory.inbox, (shape.shares << shape.log2_rows) * (int)sizeof(Pair<C>));
    }
    int own = shape.own_shares << shape.log2_rows, units = (int)(blockDim.x / (u32)shape.lanes);
#pragma unroll 1
    for (int at = (int)(threadIdx.x / (u32)shape.lanes); at < own; at += units) {
      int share = shape.first_share + (at >> shape.log2_rows);
      if (share >= shape.shares) break; // all lanes: shares are of whole warps where there are several
      C d = group_sum(total(at, share), shape.lanes);
      Pair<C> x = {max(at), d};
      int to = (shape.first_share << shape.log2_rows) + at;
      if (shape.parts > 1) {
        if (shape.lane < shape.parts) send(&memory.left[to], memory.inbox, shape.lane, x);
      } else if (shape.lane == 0) {
        memory.left[to] = x;
      }
    }
    if (shape.parts > 1)
      inbox_wait(memory.inbox);
    else
      block_barrier();
  }

  // Calls body(row, share, its numbers) with 16 lanes a row, a share each, of none where the row has fewer.
  template <class Body> __device__ __forceinline__ void for_shares(Pair<C> none, Body body) const {
    int share = threadIdx.x % GATHERED;
#pragma unroll 1
    for (int row = threadIdx.x / GATHERED; row < shape.rows(); row += (int)(blockDim.x / GATHERED))
      body(row, share, share < shape.shares ? memory.left[(share << shape.log2_rows) + row] : none);
  }

  __device__ __forceinline__ void leave_weight(int row, int share, C weight) const {
    share -= shape.first_share;
    if (share >= 0 && share < shape.own_shares) memory.weights[(share << shape.log2_rows) + row] = weight;
  }
  // That of row j of this thread's.
  __device__ __forceinline__ C weight(int j) const {
    return memory.weights[(shape.share << shape.log2_rows) + shape.group * D::LEN + j];
  }

private:
  // A lane's sum, in the order of its vectors.
  __device__ __forceinline__ C total(int at, int share) const {
    const C *from = memory.sums + at * shape.lanes + shape.lane;
    if (shape.runs == 1) return *from;
    C d = C(0);
    int step = (shape.own_shares << shape.log2_rows) * shape.lanes, v = share * WARP + shape.lane;
#pragma unroll 1
    for (int k = 0; k < shape.turns; ++k, v += shape.threads)
      if (v < shape.vectors) d = add(d, from[k * step]);
    return d;
  }
};

template <class D> struct TileSoftmax {
  typedef typename D::Compute C;
  static constexpr int LEN = D::LEN;
  static constexpr bool KEPT = sizeof(C) == sizeof(typename D::Storage); // exponentials, in the tile

  static __device__ __forceinline__ void rows(const TileOperand<D> &x, const TileOperand<D> &y, const TileShape<D> &shape) {
    TileMemory<D, 1> memory(shape);
    TileMerge<D, 1> merge(shape, memory);
    predecessors_done();
    x.bring(memory.tile, shape, D::lowest());
    copies_done();
    block_barrier();

    Words m = Elements<D, int>::filled(D::lowest());
    shape.for_squares(memory.tile, [&](int, int, Words *at) {
      Square<D> s = shape.square(at);
#pragma unroll
      for (int i = 0; i < LEN; ++i) m = each_max<D>(m, s.x[i]);
    });
    m = group_each_max<D>(m, shape.lanes);
    Words *left = memory.maxima + (shape.share << shape.log2_groups) + shape.group;
    int run_apart = shape.own_shares << shape.log2_groups;
    if (shape.lane == 0) left[shape.run * run_apart] = m;
    if (shape.runs > 1) {
      block_barrier();
#pragma unroll 1
      for (int i = 0; i < shape.runs; ++i) m = each_max<D>(m, left[i * run_apart]);
    }

    bool shift = false;
    {
      const References at = references(m);
#pragma unroll
      for (int j = 0; j < LEN; ++j) shift |= at.row[j].base != C(0);
    }
    if (shift)
      sums<true>(memory, merge, shape, m);
    else
      sums<false>(memory, merge, shape, m);
    block_barrier();

    merge.reduce([&](int row) { return share_max(memory, shape, row); });
    C weights[LEN];
    if (shape.shares == 1) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        Pair<C> left = memory.left[shape.group * LEN + j];
        State<D> s = {left.a, left.b};
        if (shape.of_block) {
          const Reference<D> there(s.m);
          weights[j] = State<D>{s.m, s.rescaled(there)}.weight(there); // as of several shares
        } else {
          weights[j] = s.weight();
        }
      }
    } else {
      merge.for_shares(Pair<C>{-Limits<C>::infinity(), C(0)}, [&](int row, int share, Pair<C> x) {
        merge.leave_weight(row, share, group_merge(State<D>{x.a, x.b}, GATHERED).weight(Reference<D>(x.a)));
      });
      block_barrier();
#pragma unroll
      for (int j = 0; j < LEN; ++j) weights[j] = merge.weight(j);
    }

    if (shift && !KEPT)
      results<true>(memory, y, shape, m, weights);
    else
      results<false>(memory, y, shape, m, weights);
    block_barrier();
    y.take(memory.tile, shape);
  }

private:
  struct References {
    Reference<D> row[LEN];
  };
  // Of maxima m: in each square again, since 8 of them would take as many registers as it has.
  static __device__ __forceinline__ References references(Words m) {
    if (LEN == 8) m = settled(m);
    auto at = [&](int j) { return Reference<D>(largest(-Limits<C>::infinity(), D::get(m, j))); };
    if constexpr (LEN == 8)
      return References{{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)}};
    else if constexpr (LEN == 4)
      return References{{at(0), at(1), at(2), at(3)}};
    else
      return References{{at(0), at(1)}};
  }

  // SHIFT for any of the rows: to subtract a base of 0 changes no bits.
  template <bool SHIFT>
  static __device__ __forceinline__ void exponentials(C (&e)[LEN], const Words &x, const Reference<D> &at) {
#pragma unroll
    for (int i = 0; i < LEN; ++i) e[i] = exponential<D, SHIFT>(x, i, at);
  }

  template <bool SHIFT>
  static __device__ __forceinline__ void sums(const TileMemory<D, 1> &memory, const TileMerge<D, 1> &merge, const TileShape<D> &shape,
                                              const Words &m) {
    C d[LEN];
#pragma unroll
    for (int j = 0; j < LEN; ++j) d[j] = C(0);
    shape.for_squares(memory.tile, [&](int k, int, Words *place) {
      Square<D> s = shape.square(place);
      s.transpose();
      const References at = references(m);
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        C e[LEN];
        exponentials<SHIFT>(e, s.x[j], at.row[j]);
        C sum = tree_sum(e);
        if (shape.runs == 1)
          d[j] = add(d[j], sum);
        else
          merge.sum(k, j) = sum;
        if (KEPT) {
#pragma unroll
          for (int i = 0; i < LEN; ++i) D::set(s.x[j], i, e[i]);
        }
      }
      if (KEPT) {
        s.transpose();
        shape.put_square(place, s);
      }
    });
    if (shape.runs == 1) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) merge.sum(0, j) = d[j];
    }
  }

  // Of a share and row of this block.
  static __device__ __forceinline__ C share_max(const TileMemory<D, 1> &memory, const TileShape<D> &shape, int row) {
    const typename D::Storage *maxima = (const typename D::Storage *)memory.maxima + row;
    C m = -Limits<C>::infinity();
#pragma unroll 1
    for (int i = 0; i < shape.runs; ++i) {
      Words x = {{0, 0, 0, 0}};
      D::set_raw(x, 0, maxima[(i * shape.own_shares) << shape.log2_rows]);
      m = largest(m, D::get(x, 0));
    }
    return m;
  }

  template <bool SHIFT>
  static __device__ __forceinline__ void results(const TileMemory<D, 1> &memory, const TileOperand<D> &y, const TileShape<D> &shape,
                                                 const Words &m, const C (&weights)[LEN]) {
    shape.for_squares(memory.tile, [&](int, int v, Words *place) {
      Square<D> s = shape.square(place);
      s.transpose();
      const References at = references(m);
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        C e[1][LEN];
        if (KEPT) {
#pragma unroll
          for (int i = 0; i < LEN; ++i) e[0][i] = D::get(s.x[j], i);
        } else {
          exponentials<SHIFT>(e[0], s.x[j], at.row[j]);
        }
        Words out[1];
        CachedSoftmax<D>::scaled(out, e, weights[j]);
        s.x[j] = settled(out[0]); // before the next row is begun: it would take more registers than there are
      }
      y.put(place, shape, v, s);
    });
  }
};

template <class D> struct TileSoftmaxBackward {
  typedef typename D::Compute C;
  typedef CachedSoftmaxBackward<D> Vector;
  static constexpr int LEN = D::LEN;

  static __device__ __forceinline__ void rows(const TileOperand<D> &y, const TileOperand<D> &g, const TileOperand<D> &dx,
                                              const TileShape<D> &shape) {
    TileMemory<D, 2> memory(shape);
    TileMerge<D, 2> merge(shape, memory);
    predecessors_done();
    y.bring(memory.tile, shape, 0);
    g.bring(memory.another, shape, 0);
    copies_done();
    block_barrier();

    i64 between = memory.another - memory.tile;
    C d[LEN];
#pragma unroll
    for (int j = 0; j < LEN; ++j) d[j] = C(0);
    shape.for_squares(memory.tile, [&](int k, int, Words *place) {
      Square<D> ys = shape.square(place), gs = shape.square(place + between);
      ys.transpose();
      gs.transpose();
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        C sum = Vector::product_sum(ys.x[j], gs.x[j]);
        if (shape.runs == 1)
          d[j] = add(d[j], sum);
        else
          merge.sum(k, j) = sum;
      }
    });
    if (shape.runs == 1) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) merge.sum(0, j) = d[j];
    }
    block_barrier();

    merge.reduce([](int) { return C(0); });
    if (shape.shares == 1) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) d[j] = memory.left[shape.group * LEN + j].b;
    } else {
      merge.for_shares(Pair<C>{C(0), C(0)}, [&](int row, int share, Pair<C> x) { merge.leave_weight(row, share, group_sum(x.b, GATHERED)); });
      block_barrier();
#pragma unroll
      for (int j = 0; j < LEN; ++j) d[j] = merge.weight(j);
    }

    shape.for_squares(memory.tile, [&](int, int v, Words *place) {
      Square<D> ys = shape.square(place), gs = shape.square(place + between);
      ys.transpose();
      gs.transpose();
#pragma unroll
      for (int j = 0; j < LEN; ++j) ys.x[j] = Vector::gradient(ys.x[j], gs.x[j], d[j]);
      dx.put(place, shape, v, ys);
    });
    block_barrier();
    dx.take(memory.tile, shape);
  }
};

#define SOFTMAX_KERNEL(dtype, D)                                                                                                 \
  extern "C" __global__ void __launch_bounds__(TILE_THREADS<D>, 1) tile_softmax_##dtype##_columns(SOFTMAX_PARAMETERS(D)) {          \
    const TileShape<D> shape(rows, share);                                                                                       \
    const TileOperand<D> from(x, rows, x_at, shape), to(y, rows, y_at, shape);                                                   \
    TileSoftmax<D>::rows(from, to, shape);                                                                                       \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D)                                                                                        \
  extern "C" __global__ void __launch_bounds__(TILE_THREADS<D>, 1)                                                                  \
      tile_softmax_backward_##dtype##_columns(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                                  \
    const TileShape<D> shape(rows, share);                                                                                       \
    const TileOperand<D> ys(y, rows, y_at, shape), gs(g, rows, g_at, shape), to(dx, rows, dx_at, shape);                         \
    TileSoftmaxBackward<D>::rows(ys, gs, to, shape);                                                                             \
  }

FOR_EACH_DTYPE(SOFTMAX_KERNEL)
FOR_EACH_DTYPE(SOFTMAX_BACKWARD_KERNEL)
