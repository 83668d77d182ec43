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
//   4 weights     of each share and row (see tile_merge.cuh)
//   5 results     to the tile, and from there to memory; or straight to rows of columns side by side
//
// Passes over memory: one read, one write. Barriers: one after each of these steps, two after the fourth where a row has
// several shares. Shared memory: the tile, of each input; a number a row and lane, or with runs a
// row and vector; three a row and share.
// Invariant: a row's bits are those of the warp or block family; all sums are added in the same order.
#include "table.cuh"
#include "tile_merge.cuh"

using namespace online;

// Threads of a block at most, of halves 384 (see src/plan/tiles.rs); a bound of 512 limits registers to 128, with which
// squares of halves spill elsewhere than on sm_86 to sm_90.
#if __CUDA_ARCH__ <= 800 || __CUDA_ARCH__ >= 1000
template <class D> constexpr int TILE_THREADS = D::LEN == 8 ? 384 : 512;
#else
template <class D> constexpr int TILE_THREADS = 512;
#endif

template <class D> struct TileSoftmax {
  typedef typename D::Compute C;
  static constexpr int LEN = D::LEN;
  static constexpr bool KEPT = sizeof(C) == sizeof(typename D::Storage); // exponentials, in the tile

  static __device__ __forceinline__ void rows(const TileOperand<D> &x, const TileOperand<D> &y, const TileShape<D> &shape) {
    Words *tile = shared_memory(), *maxima = tile + shape.pieces(); // of a run, share and row
    const TileMerge<D> merge(shape, maxima + shape.runs * (shape.own_shares << shape.log2_groups), shape.runs > 1, shape.lanes);
    predecessors_done();
    x.bring(tile, shape, D::lowest());
    copies_done();
    block_barrier();

    Words m = Elements<D, int>::filled(D::lowest());
    shape.for_squares(tile, [&](int, int, Words *at) {
      Square<D> s = shape.square(at);
#pragma unroll
      for (int i = 0; i < LEN; ++i) m = each_max<D>(m, s.x[i]);
    });
    m = group_each_max<D>(m, 1, shape.lanes);
    Words *left = maxima + (shape.share << shape.log2_groups) + shape.group;
    int apart = shape.own_shares << shape.log2_groups;
    if (shape.lane == 0) left[shape.run * apart] = m;
    if (shape.runs > 1) {
      block_barrier();
#pragma unroll 1
      for (int i = 0; i < shape.runs; ++i) m = each_max<D>(m, left[i * apart]);
    }

    bool shift = false;
    {
      const References at = references(m);
#pragma unroll
      for (int j = 0; j < LEN; ++j) shift |= at.row[j].base != C(0);
    }
    if (shift)
      sums<true>(tile, merge, shape, m);
    else
      sums<false>(tile, merge, shape, m);
    auto maximum = [&](int at, int lane) { return group_max(share_max(maxima, shape, at, lane), shape.lanes); };
    TileWeights<D>::of_softmax(merge, maximum, [](C weight) { return weight; });
    if (shift && !KEPT)
      results<true>(tile, merge, y, shape, m);
    else
      results<false>(tile, merge, y, shape, m);
    block_barrier();
    y.take(tile, shape);
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
  static __device__ __forceinline__ void sums(Words *tile, const TileMerge<D> &merge, const TileShape<D> &shape,
                                              const Words &m) {
    C d[LEN];
#pragma unroll
    for (int j = 0; j < LEN; ++j) d[j] = C(0);
    shape.for_squares(tile, [&](int k, int, Words *place) {
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

  // Of the maxima of a share and row of this block, those of a lane.
  static __device__ __forceinline__ C share_max(const Words *maxima, const TileShape<D> &shape, int at, int lane) {
    const typename D::Storage *of_row = (const typename D::Storage *)maxima + at;
    C m = -Limits<C>::infinity();
#pragma unroll 1
    for (int i = lane; i < shape.runs; i += shape.lanes) {
      Words x = {{0, 0, 0, 0}};
      D::set_raw(x, 0, of_row[(i * shape.own_shares) << shape.log2_rows]);
      m = largest(m, D::get(x, 0));
    }
    return m;
  }

  template <bool SHIFT>
  static __device__ __forceinline__ void results(Words *tile, const TileMerge<D> &merge, const TileOperand<D> &y,
                                                 const TileShape<D> &shape, const Words &m) {
    shape.for_squares(tile, [&](int, int v, Words *place) {
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
        CachedSoftmax<D>::scaled(out, e, merge.own_weights()[j]);
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
    Words *tile = shared_memory(), *another = tile + shape.pieces();
    const TileMerge<D> merge(shape, another + shape.pieces(), shape.runs > 1, shape.lanes);
    predecessors_done();
    y.bring(tile, shape, 0);
    g.bring(another, shape, 0);
    copies_done();
    block_barrier();

    i64 between = another - tile;
    C d[LEN];
#pragma unroll
    for (int j = 0; j < LEN; ++j) d[j] = C(0);
    shape.for_squares(tile, [&](int k, int, Words *place) {
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
    TileWeights<D>::of_gradient(merge);
#pragma unroll
    for (int j = 0; j < LEN; ++j) d[j] = merge.own_weights()[j];

    shape.for_squares(tile, [&](int, int v, Words *place) {
      Square<D> ys = shape.square(place), gs = shape.square(place + between);
      ys.transpose();
      gs.transpose();
#pragma unroll
      for (int j = 0; j < LEN; ++j) ys.x[j] = Vector::gradient(ys.x[j], gs.x[j], d[j]);
      dx.put(place, shape, v, ys);
    });
    block_barrier();
    dx.take(tile, shape);
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
