// Short rows side by side, few of them: a block owns a chunk of whole slabs, (cols, inner) elements each that are
// contiguous, as is the tensor.
//
//   | slab 0 | slab 1 | .. | slab n |   one chunk: copied to shared memory and back in 16-byte pieces
//     row r of a slab: its elements r, r + inner, r + 2 inner, ..
//
// Rows are computed as in warp.cu, `share` lanes each, with shared memory in place of memory; elements one by one,
// since neither rows nor columns need begin on any boundary.
//
// Passes over memory: one read, one write. Barriers: two. Shared memory: a chunk, of each input.
#include "cached.cuh"
#include "table.cuh"

using namespace online;

constexpr int SLAB_BLOCK = 256;

// The chunk of this block; `share` has the lanes of a row, and from bit 8 on the slabs of a chunk.
template <class D> struct SlabChunk {
  typedef typename D::Storage T;
  i64 first; // element
  int lanes, len, rows, cols, inner;

  __device__ __forceinline__ SlabChunk(const Rows &sizes, int share) {
    lanes = share & 255;
    cols = (int)sizes.cols;
    inner = (int)sizes.sizes[sizes.dims - 1];
    i64 slabs = share >> 8, slab = (i64)blockIdx.x * slabs, outer = sizes.rows / inner;
    int here = (int)smallest(slabs, outer - slab);
    first = slab * cols * inner;
    len = here * cols * inner;
    rows = here * inner;
  }

  __device__ __forceinline__ int whole(const T *from) const { return ((u64)from & 15u) == 0 ? len / D::LEN : 0; }

  __device__ __forceinline__ void bring(T *chunk, const T *base, const Operand &op) const {
    const T *from = base + op.offset + first;
    int pieces = whole(from);
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += SLAB_BLOCK) copy_words((Words *)chunk + i, (const Words *)from + i);
    for (int i = pieces * D::LEN + (int)threadIdx.x; i < len; i += SLAB_BLOCK) copy_element(chunk + i, from + i);
  }
  __device__ __forceinline__ void take(const T *chunk, T *base, const Operand &op) const {
    T *to = base + op.offset + first;
    int pieces = whole(to);
#pragma unroll 4
    for (int i = threadIdx.x; i < pieces; i += SLAB_BLOCK) store_words<D::STREAMED>((Words *)to + i, ((const Words *)chunk)[i]);
    for (int i = pieces * D::LEN + (int)threadIdx.x; i < len; i += SLAB_BLOCK) to[i] = chunk[i];
  }

  // Calls body(where it begins in the chunk, columns, lane) for the rows of this thread, all lanes together; past
  // the last one with no columns.
  template <class Body> __device__ __forceinline__ void for_rows(Body body) const {
    int at_once = SLAB_BLOCK / (u32)lanes, lane = (int)(threadIdx.x % (u32)lanes);
#pragma unroll 1
    for (int i = 0; i < rows; i += at_once) {
      u32 r = (u32)i + threadIdx.x / (u32)lanes, slab = r / (u32)inner;
      bool there = (int)r < rows;
      body(there ? (int)(slab * (u32)(cols * inner) + (r - slab * (u32)inner)) : 0, there ? cols : 0, lane);
    }
  }
};

// A row of a slab in shared memory.
template <class D> struct SlabRow {
  typedef typename D::Storage T;
  T *row;
  int cols, inner;

  template <int N> __device__ __forceinline__ void load(Words (&x)[N], int v, int step, T fill) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int first = (v + k * step) * D::LEN;
      const T *at = row + first * inner;
      x[k] = Words{{0, 0, 0, 0}};
#pragma unroll
      for (int i = 0; i < D::LEN; ++i) D::set_raw(x[k], i, first + i < cols ? at[i * inner] : fill);
    }
  }
  template <int N, class Near> __device__ __forceinline__ void store(const Words (&x)[N], int v, int step, Near &) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int first = (v + k * step) * D::LEN;
      T *at = row + first * inner;
#pragma unroll
      for (int i = 0; i < D::LEN; ++i)
        if (first + i < cols) at[i * inner] = D::raw(x[k], i);
    }
  }
};

#define SOFTMAX_KERNEL(dtype, D, N)                                                                                              \
  extern "C" __global__ void __launch_bounds__(SLAB_BLOCK, 1) slab_softmax_##dtype##_columns_##N(SOFTMAX_PARAMETERS(D)) {          \
    const SlabChunk<D> chunk(rows, share);                                                                                       \
    predecessors_done();                                                                                                         \
    D::Storage *here = (D::Storage *)shared_memory();                                                                            \
    chunk.bring(here, x, x_at);                                                                                                  \
    copies_done();                                                                                                               \
    block_barrier();                                                                                                             \
    Group merge = {chunk.lanes};                                                                                                 \
    chunk.for_rows([&](int first, int cols, int lane) {                                                                          \
      const SlabRow<D> row = {here + first, cols, chunk.inner};                                                                  \
      CachedSoftmax<D>::row<N>(row, row, lane, chunk.lanes, merge);                                                              \
    });                                                                                                                          \
    block_barrier();                                                                                                             \
    chunk.take(here, y, y_at);                                                                                                   \
  }

#define SOFTMAX_BACKWARD_KERNEL(dtype, D, N)                                                                                     \
  extern "C" __global__ void __launch_bounds__(SLAB_BLOCK, 1)                                                                    \
      slab_softmax_backward_##dtype##_columns_##N(SOFTMAX_BACKWARD_PARAMETERS(D)) {                                                \
    const SlabChunk<D> chunk(rows, share);                                                                                       \
    predecessors_done();                                                                                                         \
    D::Storage *ys = (D::Storage *)shared_memory(), *gs = ys + (share >> 8) * chunk.cols * chunk.inner;                          \
    chunk.bring(ys, y, y_at);                                                                                                    \
    chunk.bring(gs, g, g_at);                                                                                                    \
    copies_done();                                                                                                               \
    block_barrier();                                                                                                             \
    Group merge = {chunk.lanes};                                                                                                 \
    chunk.for_rows([&](int first, int cols, int lane) {                                                                          \
      const SlabRow<D> of_y = {ys + first, cols, chunk.inner}, of_g = {gs + first, cols, chunk.inner};                           \
      CachedSoftmaxBackward<D>::row<N>(of_y, of_g, of_y, lane, chunk.lanes, merge);                                              \
    });                                                                                                                          \
    block_barrier();                                                                                                             \
    chunk.take(ys, dx, dx_at);                                                                                                   \
  }

// See `WARP_SHAPES` in src/plan/choose.rs.
#define TABLE(dtype, D)                                                                                                          \
  SOFTMAX_KERNEL(dtype, D, 1)                                                                                                    \
  SOFTMAX_KERNEL(dtype, D, 2)                                                                                                    \
  SOFTMAX_KERNEL(dtype, D, 4)                                                                                                    \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 1)                                                                                           \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 2)                                                                                           \
  SOFTMAX_BACKWARD_KERNEL(dtype, D, 4)

FOR_EACH_DTYPE(TABLE)
