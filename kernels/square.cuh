// Rows side by side, columns apart, in shared memory: a tile of neighbouring rows, of which each thread has squares.
//
//   a square    the 16 bytes of columns of a vector by 16 bytes of neighbouring rows, LEN x LEN elements
//   in memory   a column after another, its rows in 16-byte pieces side by side; after the columns of a vector one
//               piece more, so that lanes, a vector apart, do not meet in the same banks
//
//            row 0..3  4..7  8..11  12..15        f32, a tile of 16 rows: piece (column c, group g) at
//   column 0    0       1      2      3           4 c + c / 4 + g
//   column 1    4       5 ..
//
// A thread reads a square in LEN accesses of 16 bytes, has in registers the vectors of LEN rows (halves: two for
// four words; wider elements only change their names), and computes those rows as the threads of contiguous rows do:
// lane l of warp s of such a row is lane l of a share here, with all of its vectors. So a row has the bits it has there.
//
// In registers (cached_square.cu) a thread has squares alone, loaded from memory and stored there (SquareOperand).
// Here, staging is by pieces of 16 bytes where every column of the tile starts on them, else by elements, neighbouring rows
// in neighbouring lanes; an operand that has columns side by side (the result of a transposed input) is accessed
// by vectors of its rows, past shared memory.
#pragma once
#include "cached.cuh"

namespace online {

template <class D> struct Square {
  static constexpr int LEN = D::LEN;
  Words x[LEN];

  // Columns to rows, or back.
  __device__ __forceinline__ void transpose() {
    Words y[LEN];
    if constexpr (LEN == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          y[2 * j].w[i] = low_halves(x[2 * i].w[j], x[2 * i + 1].w[j]);
          y[2 * j + 1].w[i] = high_halves(x[2 * i].w[j], x[2 * i + 1].w[j]);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < LEN; ++i) {
#pragma unroll
        for (int j = 0; j < LEN; ++j) D::set_raw(y[j], i, D::raw(x[i], j));
      }
    }
#pragma unroll
    for (int i = 0; i < LEN; ++i) x[i] = y[i];
  }
};

// The larger of each two elements; NaN loses.
template <class D> __device__ __forceinline__ Words each_max(Words a, const Words &b) {
  if constexpr (sizeof(typename D::Storage) == 8) {
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) D::set(a, i, largest(D::get(a, i), D::get(b, i)));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) a.w[i] = D::word_max(a.w[i], b.w[i]);
  }
  return a;
}

// Over the lanes that differ in the bits from `least` up to below `most`, powers of two.
template <class D> __device__ __forceinline__ Words group_each_max(Words x, int least, int most) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) {
    if (step < least || step >= most) continue;
    Words other;
#pragma unroll
    for (int i = 0; i < 4; ++i) other.w[i] = shuffle_xor(x.w[i], step, WARP);
    x = each_max<D>(x, other);
  }
  return x;
}

// Which rows and columns a block has, and which of them a thread. `share`, the kernel's last argument, says it in
// bits (see `share` in src/plan.rs):
//
//   0 .. 9     threads of the contiguous row
//   10         whether it is one of the block family
//   12 .. 15   log2 of the rows of a tile
//   16 .. 19   runs: how many threads share what one thread of the contiguous row has, every so many vectors each
//   20 .. 22   log2 of the lanes of a share
//   23 .. 27   shares of a block
//   28 .. 31   vectors of a thread of the contiguous row, at most
//
// Blocks of a cluster have the same rows, and a few of the row's shares each (warps of the contiguous row).
template <class D> struct TileShape {
  static constexpr int LEN = D::LEN, LOG2_LEN = LEN == 8 ? 3 : LEN == 4 ? 2 : 1;
  // A row: its columns and vectors, threads and their vectors; lanes and shares
  int cols, vectors, threads, turns, lanes, log2_lanes, shares;
  bool of_block;
  // The tile: rows (some of which may not be there), pieces of 16 bytes a column; the first row, of an outer index
  int log2_rows, log2_groups, runs, beside;
  i64 first;
  u32 outer;
  // This block, and how many play the row
  int parts, rank, first_share, own_shares;
  // This thread: of `own_shares` and of the groups of rows; its lane and run
  int share, group, lane, run;

  // Neighbouring threads have neighbouring lanes of a row, or neighbouring groups of rows.
  __device__ __forceinline__ TileShape(const Rows &sizes, int bits, bool groups_first = false) {
    cols = (int)sizes.cols;
    vectors = (cols + LEN - 1) >> LOG2_LEN;
    threads = bits & 1023;
    of_block = bits >> 10 & 1;
    log2_rows = bits >> 12 & 15;
    log2_groups = log2_rows - LOG2_LEN;
    runs = bits >> 16 & 15;
    log2_lanes = bits >> 20 & 7;
    lanes = 1 << log2_lanes;
    own_shares = bits >> 23 & 31;
    turns = (int)((u32)bits >> 28);
    shares = (threads + WARP - 1) / WARP;

    parts = cluster_size();
    rank = cluster_rank();
    first_share = rank * own_shares;

    // Of fewer than 2^31 tiles, so many an outer index.
    i64 inner = sizes.dims > 0 ? sizes.sizes[sizes.dims - 1] : 1;
    u32 tile = cluster_index(), tiles = (u32)((inner + rows() - 1) >> log2_rows);
    outer = tile / tiles;
    first = (i64)(tile - outer * tiles) << log2_rows;
    beside = (int)smallest(inner - first, (i64)rows());

    int unit = (int)threadIdx.x;
    if (groups_first) {
      group = unit & (groups() - 1);
      unit >>= log2_groups;
      lane = unit & (lanes - 1);
      unit >>= log2_lanes;
    } else {
      lane = unit & (lanes - 1);
      unit >>= log2_lanes;
      group = unit & (groups() - 1);
      unit >>= log2_groups;
    }
    run = own_shares == 1 ? unit : (int)((u32)unit / (u32)own_shares);
    share = unit - run * own_shares;
  }

  __device__ __forceinline__ int rows() const { return 1 << log2_rows; }
  __device__ __forceinline__ int groups() const { return 1 << log2_groups; }
  __device__ __forceinline__ int width() const { return own_shares * lanes; } // vectors a turn, at most
  __device__ __forceinline__ int left() const { return smallest(width(), threads - first_share * WARP); } // those there are

  // Pieces of the tile: `plan` counts them too. No block has more than the first of its cluster.
  __device__ __forceinline__ int pieces() const {
    int last = (turns - 1) * threads;
    return ((turns - 1) * width() + smallest(width(), vectors - last)) * ((LEN << log2_groups) + 1);
  }

  __device__ __forceinline__ Words *column(Words *tile, int c) const { return tile + (c << log2_groups) + (c >> LOG2_LEN); }

  // Calls body(turn, vector, its square in the tile: a piece a column, groups() apart) for those of this thread.
  template <class Body> __device__ __forceinline__ void for_squares(Words *tile, Body body) const {
    if (first_share + share >= shares) return;
    int v = run * threads + (first_share + share) * WARP + lane, at = (run * own_shares + share) * lanes + lane;
#pragma unroll 1
    for (int k = run; k < turns; k += runs, v += runs * threads, at += runs * width())
      if (v < vectors) body(k, v, column(tile, at << LOG2_LEN) + group);
  }

  __device__ __forceinline__ Square<D> square(const Words *at) const {
    Square<D> s;
#pragma unroll
    for (int i = 0; i < LEN; ++i) s.x[i] = at[i << log2_groups];
    return s;
  }
  __device__ __forceinline__ void put_square(Words *at, const Square<D> &s) const {
#pragma unroll
    for (int i = 0; i < LEN; ++i) at[i << log2_groups] = s.x[i];
  }

  // Calls body(piece of the tile, where its elements are from the operand's first) for this thread's pieces of the
  // columns, and none(piece) for those past the row's end. They are of one group of rows, a constant number of
  // columns apart (a block has as many threads as groups, or a multiple), so that an address is an addition.
  template <class Body, class None> __device__ __forceinline__ void for_pieces(Words *tile, i64 apart, Body body, None none) const {
    int g = threadIdx.x & (groups() - 1), step = (int)(blockDim.x >> log2_groups), first = (int)(threadIdx.x >> log2_groups);
    if (g * LEN >= beside) return;
    int here = left();
    i64 jump = step * apart;
#pragma unroll 1
    for (int k = 0; k < turns; ++k) {
      int v = k * threads + first_share * WARP, count = smallest(here, vectors - v) << LOG2_LEN;
      int to = (k * width()) << LOG2_LEN, from = v << LOG2_LEN, real = smallest(count, cols - from), c = first;
      i64 at = (from + first) * apart + g * LEN;
#pragma unroll 4
      for (; c < real; c += step, at += jump) body(column(tile, to + c) + g, at);
#pragma unroll 1
      for (; c < count; c += step) none(column(tile, to + c) + g);
    }
  }

  // Calls body(the tile's column, the row's column, i) for each of 2^log2_each things of every column that the
  // vectors of this block have, in the order of memory.
  template <class Body> __device__ __forceinline__ void for_columns(int log2_each, Body body) const {
    int here = left();
#pragma unroll 1
    for (int k = 0; k < turns; ++k) {
      int v = k * threads + first_share * WARP, count = smallest(here, vectors - v) << LOG2_LEN;
      int to = (k * width()) << LOG2_LEN, from = v << LOG2_LEN;
#pragma unroll 4
      for (int i = threadIdx.x; i < count << log2_each; i += blockDim.x) {
        int c = i >> log2_each;
        body(to + c, from + c, i & ((1 << log2_each) - 1));
      }
    }
  }
};

// An operand's elements of a tile.
template <class D> struct TileOperand {
  typedef typename D::Storage T;
  typedef Elements<D, int> One;
  static constexpr int LEN = D::LEN, SIZE = (int)sizeof(T);
  T *first; // row and column
  i64 apart, row_apart;
  bool in_pieces;

  __device__ __forceinline__ TileOperand(T *base, const Rows &rows, const Operand &op, const TileShape<D> &shape)
      : apart(op.col_stride), row_apart(rows.dims > 0 ? op.strides[rows.dims - 1] : 1) {
    first = base + op.offset + shape.first * row_apart + outer_offset(rows, op, shape.outer);
    in_pieces = (((u64)first | (u64)(apart * SIZE)) & 15u) == 0 && shape.beside % LEN == 0;
  }

  __device__ __forceinline__ bool side_by_side() const { return row_apart == 1; }

  // To the tile, with `fill` where a vector goes on past the row's end. There after copies_done() and a barrier.
  __device__ __forceinline__ void bring(Words *tile, const TileShape<D> &shape, T fill) const {
    if (!side_by_side()) {
      shape.for_squares(tile, [&](int, int v, Words *at) {
        Square<D> s;
#pragma unroll
        for (int j = 0; j < LEN; ++j) s.x[j] = settled(vector(shape, j, v, fill)); // else all addresses at once
        s.transpose();
        shape.put_square(at, s);
      });
    } else if (in_pieces) {
      const T *from = first;
      shape.for_pieces(
          tile, apart, [&](Words *to, i64 at) { copy_words(to, from + at); }, [&](Words *to) { *to = One::filled(fill); });
    } else {
      shape.for_columns(shape.log2_rows, [&](int to, int c, int r) {
        T *at = (T *)shape.column(tile, to) + r;
        if (c >= shape.cols)
          *at = fill;
        else if (r < shape.beside)
          copy_element(at, first + c * apart + r);
      });
    }
  }

  // Back from the tile, where put() has left it, after a barrier.
  __device__ __forceinline__ void take(Words *tile, const TileShape<D> &shape) const {
    if (!side_by_side()) return;
    if (in_pieces) {
      T *to = first;
      shape.for_pieces(
          tile, apart, [&](Words *from, i64 at) { store_words<D::STREAMED>(to + at, *from); }, [](Words *) {});
    } else {
      shape.for_columns(shape.log2_rows, [&](int from, int c, int r) {
        if (c < shape.cols && r < shape.beside) first[c * apart + r] = ((const T *)shape.column(tile, from))[r];
      });
    }
  }

  // Vector v of the thread's rows: to the square, or, with the columns side by side, to memory.
  __device__ __forceinline__ void put(Words *at, const TileShape<D> &shape, int v, Square<D> &rows) const {
    if (side_by_side()) {
      rows.transpose();
      return shape.put_square(at, rows);
    }
#pragma unroll
    for (int j = 0; j < LEN; ++j) {
      if (shape.group * LEN + j >= shape.beside) continue;
      T *row = this->row(shape, j);
      if (whole(row, shape, v))
        store_words<D::STREAMED>((u8 *)row + vector_offset(v), rows.x[j]);
      else
        One::store(row, apart, v, shape.cols, rows.x[j], 0, LEN);
    }
  }

private:
  __device__ __forceinline__ T *row(const TileShape<D> &shape, int j) const { return first + (shape.group * LEN + j) * row_apart; }
  __device__ __forceinline__ bool whole(const T *row, const TileShape<D> &shape, int v) const {
    return apart == 1 && ((u64)row & 15u) == 0 && (v + 1) * LEN <= shape.cols;
  }
  __device__ __forceinline__ Words vector(const TileShape<D> &shape, int j, int v, T fill) const {
    if (shape.group * LEN + j >= shape.beside) return One::filled(fill);
    const T *row = this->row(shape, j);
    return whole(row, shape, v) ? load_words<false>((const u8 *)row + vector_offset(v)) : One::load(row, apart, v, shape.cols, fill);
  }
};

// An operand's squares of a thread, past shared memory: in pieces of columns, or, of an output, in whole vectors of rows
// of columns side by side.
template <class D> struct SquareOperand {
  typedef typename D::Storage T;
  static constexpr int LEN = D::LEN;
  T *first; // of the thread's rows, and column
  i64 step, of_vector;
  int cols; // 0 for rows that are not there
  bool by_columns;

  __device__ __forceinline__ SquareOperand(T *base, const Rows &rows, const Operand &op, const TileShape<D> &shape) {
    i64 row_apart = rows.dims > 0 ? op.strides[rows.dims - 1] : 1, row = shape.first + shape.group * LEN;
    by_columns = row_apart == 1;
    first = base + op.offset + row * row_apart + outer_offset(rows, op, shape.outer);
    step = by_columns ? op.col_stride : row_apart;
    of_vector = by_columns ? LEN * op.col_stride : LEN;
    cols = shape.group * LEN < shape.beside ? shape.cols : 0;
  }

  // Vector v of each row, columns first, with `fill` past their end; of no vector (-1), and of rows that are not there.
  __device__ __forceinline__ void load(Square<D> &s, int v, T fill) const {
    int real = v < 0 ? 0 : cols - v * LEN;
    const T *at = first + v * of_vector;
    if (real >= LEN) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) s.x[i] = load_words<false>(at + i * step);
    } else {
#pragma unroll
      for (int i = 0; i < LEN; ++i) s.x[i] = i < real ? load_words<false>(at + i * step) : Elements<D, int>::filled(fill);
    }
  }
  // Of rows first.
  __device__ __forceinline__ void store(Square<D> &rows, int v) const {
    int real = cols - v * LEN;
    T *at = first + v * of_vector;
    if (by_columns) rows.transpose();
    if (real >= LEN) {
#pragma unroll
      for (int i = 0; i < LEN; ++i) store_whole<D::STREAMED>(at + i * step, rows.x[i]);
    } else if (by_columns) { // rows of vectors are whole
#pragma unroll
      for (int i = 0; i < LEN; ++i)
        if (i < real) store_whole<D::STREAMED>(at + i * step, rows.x[i]);
    }
  }
};

} // namespace online
