// Short rows that lie one after another in memory, on any element: a block owns a chunk of them, which it copies to
// shared memory as a whole, and back.
//
//   | row 0 | row 1 | row 2 | row 3 | row 4 | ...                      shared memory: the chunk, as in memory
//      g0      g2      g1      g3      g4                              in which group of lanes (here 2 groups a warp)
//
// A group of lanes owns a row at a time, of vectors as in warp.cu, and writes its results over it (ShortRows: a thread
// several rows). Only the chunk's own bytes are copied: its rows are so many that it begins on 16 bytes, and the
// tensor's last chunk may end inside of a vector.
//
// Passes over memory: one read, in bulk where that pays, one write. Barriers: two or three. Shared memory: the chunk,
// of each input. `share` is the chunk's rows.
// In bulk but for rows below a vector (8388608x2 f32, H200: 37.1 us, 37.4 in bulk). Not back (258111x65 f32 39.8 us, 39.0 so;
// rows of a warp each would gain: 130055x129 f32 38.5, 39.8 so; see slice.cuh).
// Invariant: all groups take part in every pass in which one has a row; past the last row they compute with whatever
// is in the chunk's memory, and nobody copies that.
#include "short.cuh"
#include "slice.cuh"
#include "staged.cuh"
#include "table.cuh"

using namespace online;

// As in src/plan/choose.rs.
constexpr int CHUNK_THREADS = 128;

// What a block copies: one long slice of a row of all.
template <class D> struct Chunk : AlignedSlice<D> {
  static constexpr bool SHARED = true; // rows are of pieces that other threads copied
  __device__ __forceinline__ Chunk(typename D::Storage *base, const Rows &rows, const Operand &op, i64 r, int count)
      : AlignedSlice<D>(base + op.offset + r * rows.cols, count * (int)rows.cols, CHUNK_THREADS) {}
};

// Which chunk a block has: rows first .. first + count.
struct Place {
  i64 first;
  int count, rows; // in the chunk; in every chunk but the last

  __device__ __forceinline__ Place(const Rows &all, int share) : rows(share) {
    first = (i64)blockIdx.x * rows;
    count = (int)smallest(all.rows - first, (i64)rows);
  }
  // 16-byte words of a chunk in shared memory.
  __device__ __forceinline__ int words(int row_bytes) const { return rows * row_bytes / 16; }
};

// Rows of which a group of LANES lanes has each, in N vectors a lane.
template <class D, int LANES, int N> struct GroupRows {
  static constexpr int GROUPS = CHUNK_THREADS / LANES, IN_WARP = WARP / LANES;
  typedef StagedRow<D, N> Row;

  // Calls body(row, lane, group) for each row of this thread's group, of those at a (and at b).
  template <class Body> static __device__ __forceinline__ void for_rows(int cols, int count, Body body) {
    // Every other row, so that in a warp all begin inside a word, or none; in all passes, as GROUPS is even.
    int warp = threadIdx.x / WARP, row = warp / 2 * (2 * IN_WARP) + threadIdx.x % WARP / LANES * 2 + warp % 2;
    if (sizeof(typename D::Storage) == 2 && (cols & warp & 1))
      passes<true>(cols, row, count, body);
    else
      passes<false>(cols, row, count, body);
  }

  static __device__ __forceinline__ void softmax(Words *x, int cols, int count) {
    Group merge = {LANES};
    for_rows(cols, count, [&](int at, bool odd) {
      Row row(x, at, cols, odd);
      CachedSoftmax<D>::template row<N>(row, row, threadIdx.x % LANES, LANES, merge);
    });
  }
  static __device__ __forceinline__ void backward(Words *y, Words *g, int cols, int count) {
    Group merge = {LANES};
    for_rows(cols, count, [&](int at, bool odd) {
      Row ys(y, at, cols, odd), gs(g, at, cols, odd);
      CachedSoftmaxBackward<D>::template row<N>(ys, gs, ys, threadIdx.x % LANES, LANES, merge);
    });
  }

private:
  template <bool ODD, class Body> static __device__ __forceinline__ void passes(int cols, int row, int count, Body body) {
    int bytes = cols * (int)sizeof(typename D::Storage), at = row * bytes;
#pragma unroll 1
    for (int first = 0; first < count; first += GROUPS, at += GROUPS * bytes) body(at, ODD);
  }
};

// Rows of COLS columns, less than a vector.
template <class D, int COLS> struct ThreadRows {
  template <class Body> static __device__ __forceinline__ void for_rows(int count, Body body) {
#pragma unroll 1
    for (int r = threadIdx.x * D::LEN; r < count; r += CHUNK_THREADS * D::LEN) body(r / D::LEN * COLS);
  }
  static __device__ __forceinline__ void softmax(Words *x, int, int count) {
    for_rows(count, [&](int at) {
      Words own[COLS];
#pragma unroll
      for (int k = 0; k < COLS; ++k) own[k] = x[at + k];
      ShortRows<D, COLS>::softmax(own);
#pragma unroll
      for (int k = 0; k < COLS; ++k) x[at + k] = own[k];
    });
  }
  static __device__ __forceinline__ void backward(Words *y, Words *g, int, int count) {
    for_rows(count, [&](int at) {
      Words ys[COLS], gs[COLS];
#pragma unroll
      for (int k = 0; k < COLS; ++k) {
        ys[k] = y[at + k];
        gs[k] = g[at + k];
      }
      ShortRows<D, COLS>::backward(ys, gs);
#pragma unroll
      for (int k = 0; k < COLS; ++k) y[at + k] = ys[k];
    });
  }
};

// No launch bounds but the threads: with 8 blocks an SM asked for, 40 registers of two vectors a lane become 47, and
// the short rows of 7 halves spill.
#define SOFTMAX_KERNEL(dtype, D, OwnRows, LANES, N, ...)                                                                         \
  extern "C" __global__ void __launch_bounds__(CHUNK_THREADS) chunk_softmax_##dtype##_packed_##LANES##x##N(SOFTMAX_PARAMETERS(D)) { \
    predecessors_done();                                                                                                        \
    __shared__ u64 inbox;                                                                                                        \
    Place place(rows, share);                                                                                                    \
    int cols = (int)rows.cols;                                                                                                   \
    Words *xs = shared_memory();                                                                                                 \
    bring(Chunk<D>(x, rows, x_at, place.first, place.count), xs, &inbox, LANES > 1);                                         \
    OwnRows<D, __VA_ARGS__>::softmax(xs, cols, place.count);                                                                     \
    Chunk<D>(y, rows, y_at, place.first, place.count).send(xs);                                                                    \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, OwnRows, LANES, N, ...)                                                                \
  extern "C" __global__ void __launch_bounds__(CHUNK_THREADS)                                                                    \
      chunk_softmax_backward_##dtype##_packed_##LANES##x##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                    \
    predecessors_done();                                                                                                        \
    __shared__ u64 inbox;                                                                                                        \
    Place place(rows, share);                                                                                                    \
    int cols = (int)rows.cols;                                                                                                   \
    Words *ys = shared_memory(), *gs = ys + place.words(cols * (int)sizeof(D::Storage));                                         \
    bring(Chunk<D>(y, rows, y_at, place.first, place.count), ys, Chunk<D>(g, rows, g_at, place.first, place.count), gs, &inbox,  \
          LANES > 1);                                                                                                        \
    OwnRows<D, __VA_ARGS__>::backward(ys, gs, cols, place.count);                                                                \
    Chunk<D>(dx, rows, dx_at, place.first, place.count).send(ys);                                                                  \
  }

// See `WARP_SHAPES` and `chunk_plan` in src/plan/choose.rs: no more vectors a lane than the row needs; of what a single
// lane takes, each number of columns.
#define GROUP_KERNEL(dtype, D, KERNEL, LANES, N) KERNEL(dtype, D, GroupRows, LANES, N, LANES, N)
#define THREAD_KERNEL(dtype, D, KERNEL, COLS) KERNEL(dtype, D, ThreadRows, 1, COLS, COLS)

#define GROUP_TABLE(dtype, D, KERNEL)                                                                                            \
  GROUP_KERNEL(dtype, D, KERNEL, 2, 1)                                                                                           \
  GROUP_KERNEL(dtype, D, KERNEL, 2, 2)                                                                                           \
  GROUP_KERNEL(dtype, D, KERNEL, 4, 2)                                                                                           \
  GROUP_KERNEL(dtype, D, KERNEL, 8, 2)                                                                                           \
  GROUP_KERNEL(dtype, D, KERNEL, 16, 2)                                                                                          \
  GROUP_KERNEL(dtype, D, KERNEL, 32, 2)                                                                                          \
  GROUP_KERNEL(dtype, D, KERNEL, 32, 3)                                                                                          \
  GROUP_KERNEL(dtype, D, KERNEL, 32, 4)

#define F64_TABLE(dtype, D, KERNEL)                                                                                              \
  THREAD_KERNEL(dtype, D, KERNEL, 1)                                                                                             \
  GROUP_TABLE(dtype, D, KERNEL)

#define F32_TABLE(dtype, D, KERNEL)                                                                                              \
  THREAD_KERNEL(dtype, D, KERNEL, 2)                                                                                             \
  THREAD_KERNEL(dtype, D, KERNEL, 3)                                                                                             \
  F64_TABLE(dtype, D, KERNEL)

#define HALF_TABLE(dtype, D, KERNEL)                                                                                             \
  THREAD_KERNEL(dtype, D, KERNEL, 4)                                                                                             \
  THREAD_KERNEL(dtype, D, KERNEL, 5)                                                                                             \
  THREAD_KERNEL(dtype, D, KERNEL, 6)                                                                                             \
  THREAD_KERNEL(dtype, D, KERNEL, 7)                                                                                             \
  F32_TABLE(dtype, D, KERNEL)

#define TABLE(KERNEL)                                                                                                            \
  HALF_TABLE(f16, F16, KERNEL)                                                                                                   \
  HALF_TABLE(bf16, BF16, KERNEL)                                                                                                 \
  F32_TABLE(f32, F32, KERNEL)                                                                                                    \
  F64_TABLE(f64, F64, KERNEL)

TABLE(SOFTMAX_KERNEL)
TABLE(SOFTMAX_BACKWARD_KERNEL)
