// Rows side by side in memory, columns apart, every column of a tile on 16 bytes: a block, or a cluster of them, owns a
// tile of neighbouring rows. They stay in registers, as squares of LEN columns by LEN rows (see square.cuh).
//
//   f32, 16 rows:         | rows 0..3 | 4..7 | 8..11 | 12..15 |
//   columns 0..3          | thread 0  |  1   |   2   |   3    |    a thread loads 4 pieces of 16 bytes, a column each;
//   columns 4..7          | thread 4  |  5   |   6   |   7    |    neighbouring threads the pieces of the same column
//   ..
//
// The square of vector v is of the thread that has lane and warp of the one that v belongs to in a contiguous row. What
// that one has several of is shared by `runs` threads, N squares each at most: thread `run` has its turns run, run + runs, ..
//
//   1 squares     from memory to registers, all loads before the first use
//   2 maximum     of each share and row, by atomics in shared memory
//   3 sums        of the exponentials of each vector, relative to the share's maximum; those of f32 and f64 are kept
//   4 weights     of each share and row (see tile_merge.cuh)
//   5 results     straight to memory: pieces of columns, or vectors of rows whose columns are side by side
//
// Passes over memory: one read, one write. Barriers: before and after 2, after 3, one or two in 4; backward after 3 and in 4.
// Shared memory: a number a row and vector, four a row and share.
// Instructions are what costs: a thread has few columns of many rows (16 elements of 4, f32), so what a row needs is computed
// once, left in shared memory, and in the usual case without a branch (64x1000x256 f32 42.3 us, 49.3 before that).
// Invariant: a row's bits are those of the warp or block family; all sums are added in the same order.
#include "table.cuh"
#include "tile_merge.cuh"

using namespace online;

// The squares of a thread, N at most.
template <class D, int N> struct OwnSquares {
  Square<D> of[N];

  // The turn and vector of square i; no vector (-1) where there is none.
  static __device__ __forceinline__ int turn(const TileShape<D> &shape, int i) { return shape.run + i * shape.runs; }
  static __device__ __forceinline__ int vector(const TileShape<D> &shape, int i) {
    int share = shape.first_share + shape.share, v = turn(shape, i) * shape.threads + share * WARP + shape.lane;
    return share < shape.shares && v < shape.vectors ? v : -1;
  }

  __device__ __forceinline__ OwnSquares(const SquareOperand<D> &x, const TileShape<D> &shape, typename D::Storage fill) {
#pragma unroll
    for (int i = 0; i < N; ++i) x.load(of[i], vector(shape, i), fill);
  }
  // Calls body(i, vector) for those that there are.
  template <class Body> static __device__ __forceinline__ void each(const TileShape<D> &shape, Body body) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      int v = vector(shape, i);
      if (v >= 0) body(i, v);
    }
  }
};

// From a row's sums in shared memory to the next one's: so that those of a warp meet in few banks.
template <class D> __device__ __forceinline__ int sums_apart(const TileShape<D> &shape) { return shape.lanes + 2; }

template <class D, int N> struct SquareSoftmax {
  typedef typename D::Compute C;
  typedef decltype(key_of(C(0))) K;
  typedef OwnSquares<D, N> Squares;
  static constexpr int LEN = D::LEN;
  static constexpr bool KEPT = sizeof(C) == sizeof(typename D::Storage); // exponentials, in place of the elements

  // `x` and `y` make the operands, when they are needed: registers are for squares.
  template <class X, class Y> static __device__ __forceinline__ void rows(X x, Y y, const TileShape<D> &shape) {
    int own = shape.own_shares << shape.log2_rows;
    K *maxima = (K *)shared_memory(); // of each share and row
    const TileMerge<D> merge(shape, (Words *)(maxima + own), true, sums_apart(shape));
    for (int i = threadIdx.x; i < own; i += blockDim.x) maxima[i] = key_of(-Limits<C>::infinity());
    if (threadIdx.x == 0) *merge.flag = 0;
    predecessors_done();
    Squares squares(x(), shape, D::lowest());
    block_barrier(); // behind the loads, which are on their way

    K *own_maxima = maxima + (shape.share << shape.log2_rows) + shape.group * LEN;
    leave_maxima(squares, own_maxima, shape);
    block_barrier();
    C m[LEN];
    bool small = true;
#pragma unroll
    for (int j = 0; j < LEN; ++j) {
      m[j] = key_value(own_maxima[j]);
      small = small && m[j] <= Reference<D>::LARGE && m[j] >= -Reference<D>::LARGE;
    }
    if (small)
      sums(squares, merge, shape, [&](int j) { return Reference<D>(m[j], OfSmall()); });
    else
      sums(squares, merge, shape, [&](int j) { return Reference<D>(m[j]); });

    auto maximum = [&](int at, int) { return key_value(maxima[at]); };
    TileWeights<D>::of_softmax(merge, maximum, [&](C weight) { return CachedSoftmax<D>::factor(weight, *merge.flag); });
    auto once = [](C e, C factor) { return mul(e, factor); };
    if constexpr (KEPT) {
      auto kept = [](const Words &x, int, int c) { return D::get(x, c); };
      if (*merge.flag)
        results(squares, merge, y(), shape, kept, [](C e, C factor) { return CachedSoftmax<D>::scaled_by(e, factor); });
      else
        results(squares, merge, y(), shape, kept, once);
    } else if (small) {
      auto again = [&](const Words &x, int j, int c) { return exponential<D, true>(x, c, Reference<D>(key_value(own_maxima[j]), OfSmall())); };
      results(squares, merge, y(), shape, again, once);
    } else {
      auto again = [&](const Words &x, int j, int c) { return exponential<D, true>(x, c, Reference<D>(key_value(own_maxima[j]))); };
      results(squares, merge, y(), shape, again, once);
    }
  }

private:
  static __device__ __forceinline__ void leave_maxima(const Squares &squares, K *own_maxima, const TileShape<D> &shape) {
    Words m = squares.of[0].x[0];
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int c = 0; c < LEN; ++c) m = each_max<D>(m, squares.of[i].x[c]);
    }
    m = group_each_max<D>(m, shape.groups(), WARP);
    if ((int)(threadIdx.x % WARP) < shape.groups()) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) raise(&own_maxima[j], key_of(largest(-Limits<C>::infinity(), D::get(m, j))));
    }
  }

  // at(row): to subtract a base of 0 from its elements changes no bits.
  template <class At>
  static __device__ __forceinline__ void sums(Squares &squares, const TileMerge<D> &merge, const TileShape<D> &shape, At at) {
    squares.each(shape, [&](int i, int) {
      Square<D> &s = squares.of[i];
      s.transpose();
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        C e[LEN];
        const Reference<D> reference = at(j);
#pragma unroll
        for (int c = 0; c < LEN; ++c) e[c] = exponential<D, true>(s.x[j], c, reference);
        merge.sum(squares.turn(shape, i), j) = tree_sum(e);
        if (KEPT) {
#pragma unroll
          for (int c = 0; c < LEN; ++c) D::set(s.x[j], c, e[c]);
        }
      }
    });
  }

  // exp(vector, row, column), of a vector of `squares`.
  template <class Exp, class Scaled>
  static __device__ __forceinline__ void results(Squares &squares, const TileMerge<D> &merge, const SquareOperand<D> &y,
                                                 const TileShape<D> &shape, Exp exp, Scaled scaled) {
    const C *factors = merge.own_weights();
    squares.each(shape, [&](int i, int v) {
      Square<D> &s = squares.of[i];
#pragma unroll
      for (int j = 0; j < LEN; ++j) {
        C factor = factors[j];
        Words out;
#pragma unroll
        for (int c = 0; c < LEN; ++c) D::set(out, c, scaled(exp(s.x[j], j, c), factor));
        s.x[j] = settled(out); // before the next row is begun: it would take more registers than there are
      }
      y.store(s, v);
    });
  }
};

template <class D, int N> struct SquareSoftmaxBackward {
  typedef CachedSoftmaxBackward<D> Vector;
  typedef OwnSquares<D, N> Squares;
  static constexpr int LEN = D::LEN;

  template <class Y, class G, class DX> static __device__ __forceinline__ void rows(Y y, G g, DX dx, const TileShape<D> &shape) {
    const TileMerge<D> merge(shape, shared_memory(), true, sums_apart(shape));
    predecessors_done();
    Squares ys(y(), shape, 0), gs(g(), shape, 0);
    ys.each(shape, [&](int i, int) {
      ys.of[i].transpose();
      gs.of[i].transpose();
#pragma unroll
      for (int j = 0; j < LEN; ++j) merge.sum(ys.turn(shape, i), j) = Vector::product_sum(ys.of[i].x[j], gs.of[i].x[j]);
    });
    TileWeights<D>::of_gradient(merge);
    const SquareOperand<D> to = dx();
    ys.each(shape, [&](int i, int v) {
#pragma unroll
      for (int j = 0; j < LEN; ++j) ys.of[i].x[j] = settled(Vector::gradient(ys.of[i].x[j], gs.of[i].x[j], merge.own_weights()[j]));
      to.store(ys.of[i], v);
    });
  }
};

// See `square_plan` in src/plan/tiles.rs.
template <class D> constexpr int SQUARE_THREADS = D::LEN == 8 ? 384 : 512;
constexpr int SQUARE_THREADS_BACKWARD = 512;
// Blocks on an SM, forward: of 64 registers a thread, of halves 80. Doubles' exponentials need more; on other architectures
// some would spill.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
template <class D> constexpr int SQUARE_BLOCKS = D::LEN == 2 ? 1 : 2;
#else
template <class D> constexpr int SQUARE_BLOCKS = 1;
#endif

#define SOFTMAX_KERNEL(dtype, D, N)                                                                                              \
  extern "C" __global__ void __launch_bounds__(SQUARE_THREADS<D>, SQUARE_BLOCKS<D>)                                              \
      cached_square_softmax_##dtype##_pieces_##N(SOFTMAX_PARAMETERS(D)) {                                                        \
    const TileShape<D> shape(rows, share, true);                                                                                 \
    SquareSoftmax<D, N>::rows([&] { return SquareOperand<D>(x, rows, x_at, shape); },                                              \
                              [&] { return SquareOperand<D>(y, rows, y_at, shape); }, shape);                                      \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, N)                                                                                     \
  extern "C" __global__ void __launch_bounds__(SQUARE_THREADS_BACKWARD, 1)                                                       \
      cached_square_softmax_backward_##dtype##_pieces_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                      \
    const TileShape<D> shape(rows, share, true);                                                                                 \
    SquareSoftmaxBackward<D, N>::rows([&] { return SquareOperand<D>(y, rows, y_at, shape); },                                      \
                                      [&] { return SquareOperand<D>(g, rows, g_at, shape); },                                      \
                                      [&] { return SquareOperand<D>(dx, rows, dx_at, shape); }, shape);                            \
  }

SOFTMAX_KERNEL(f16, F16, 1)
SOFTMAX_KERNEL(bf16, BF16, 1)
SOFTMAX_KERNEL(f32, F32, 2)
SOFTMAX_KERNEL(f64, F64, 2)

SOFTMAX_BACKWARD_KERNEL(f16, F16, 1)
SOFTMAX_BACKWARD_KERNEL(bf16, BF16, 1)
SOFTMAX_BACKWARD_KERNEL(f32, F32, 1)
SOFTMAX_BACKWARD_KERNEL(f64, F64, 2)
