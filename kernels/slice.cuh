// A block's slice of a row, in shared memory: `cols` columns in vectors, as in access.cuh, of which thread t of the
// block owns t, t + threads, ..
//
//   vector(cache, v)        vector v of it, with what stands beside the row where it is cut
//   put(make, x, cache)     writes make(w) to this slice for each 16 bytes w of its columns, which are in `cache` and
//                           of slice x
//   put(make, x, cache, z, another)
//                           the same of two, at once
//   send(cache)             writes the cache as it is, once all threads have written to it
//
// and for bring(), which fills the caches:
//
//   start(), whole()        where 16-byte pieces begin, aligned in memory, and how many may be copied to the cache
//   rest(cache)             brings the others
//   SHARED                  whether a vector is of pieces that two threads copied
//
// Where the GPU has bulk copies, one thread starts one for an aligned slice: with one back too, 4 to 9 % of a row's time less
// than with a copy and a store a thread and vector (2048x32768 to 512x131072, H200). Not with two inputs (9 % more) nor
// for unaligned slices (2 % more). None back any more: where it still was a gain, of 3 %, initcheck did not see what
// it wrote.
#pragma once
#include "access.cuh"

namespace online {

// Threads of a block of the cluster family. A constant, so that what a thread has in flight differs by immediate
// offsets only.
constexpr int SLICE_THREADS = 256;

// Calls body(row, first column, columns) for this block's slice of `slice` vectors, of the row that `merge` merges.
template <class D, class Merge, class Body>
__device__ __forceinline__ void for_slice(const Merge &merge, const Rows &rows, int slice, Body body) {
  i64 first = (i64)merge.rank * slice * D::LEN, left = largest(rows.cols - first, (i64)0);
  body((i64)merge.row, left ? first : (i64)0, (int)smallest(left, (i64)slice * D::LEN));
}

// Calls body(v) for this thread's of `count` vectors.
template <class Body> __device__ __forceinline__ void for_own(int count, Body body, int threads = SLICE_THREADS) {
  int v = threadIdx.x;
#pragma unroll 1
  for (; v + 3 * threads < count; v += 4 * threads) {
#pragma unroll
    for (int k = 0; k < 4; ++k) body(v + k * threads);
  }
#pragma unroll 1
  for (; v < count; v += threads) body(v);
}

// Whether the last vector of `cols` columns, which they do not fill, is this thread's: its last then.
template <class D> __device__ __forceinline__ bool owns_cut(int cols, int threads = SLICE_THREADS) {
  return cols % D::LEN && cols / D::LEN % (u32)threads == threadIdx.x;
}

template <class Slice> __device__ __forceinline__ void copy(const Slice &x, Words *cache) {
  for_own(x.whole(), [&](int c) { copy_words(cache + c, x.start() + vector_offset(c)); }, x.threads);
  x.rest(cache);
}

template <class Slice> __device__ __forceinline__ void copies_settled() {
  copies_done();
  if (Slice::SHARED) block_barrier();
}

// Fills the cache with the slice, or two with two; all threads.
template <class Slice> __device__ __forceinline__ void bring(const Slice &x, Words *cache, u64 *inbox, bool in_bulk = true) {
  if (!(BULK && Slice::IN_BULK && in_bulk)) {
    copy(x, cache);
    return copies_settled<Slice>();
  }
  if (threadIdx.x == 0) {
    inbox_open(inbox);
    inbox_expect(inbox, 16 * x.whole());
    if (x.whole()) bulk_load(cache, x.start(), x.whole(), inbox);
  }
  x.rest(cache);
  block_barrier(); // the inbox is open
  inbox_wait(inbox);
}

template <class Slice> __device__ __forceinline__ void bring(const Slice &x, Words *cache, const Slice &z, Words *another) {
  copy(x, cache);
  copy(z, another);
  copies_settled<Slice>();
}
template <class Slice>
__device__ __forceinline__ void bring(const Slice &x, Words *cache, const Slice &z, Words *another, u64 *inbox, bool in_bulk) {
  if (!(BULK && Slice::IN_BULK && in_bulk)) return bring(x, cache, z, another);
  if (threadIdx.x == 0) {
    inbox_open(inbox);
    inbox_expect(inbox, 16 * (x.whole() + z.whole()));
    if (x.whole()) bulk_load(cache, x.start(), x.whole(), inbox);
    if (z.whole()) bulk_load(another, z.start(), z.whole(), inbox);
  }
  x.rest(cache);
  z.rest(another);
  block_barrier(); // the inbox is open
  inbox_wait(inbox);
}

// Columns side by side, the row on a 16-byte boundary.
template <class D> struct AlignedSlice {
  typedef typename D::Storage T;
  static constexpr bool SHARED = false, IN_BULK = true;
  T *row;
  int cols, threads;

  __device__ __forceinline__ AlignedSlice(T *base, const Rows &rows, const Operand &op, i64 r, i64 first, int cols_)
      : AlignedSlice(base + row_offset(rows, op, r) + first, cols_, SLICE_THREADS) {}
  __device__ __forceinline__ AlignedSlice(T *row_, int cols_, int threads_) : row(row_), cols(cols_), threads(threads_) {}

  __device__ __forceinline__ const u8 *start() const { return (const u8 *)row; }
  __device__ __forceinline__ int whole() const { return cols / D::LEN; }

  __device__ __forceinline__ void rest(Words *cache) const {
    if (owns_cut<D>(cols, threads)) cache[whole()] = Elements<D, int>::load(row, 1, whole(), cols, 0);
  }

  __device__ __forceinline__ Words vector(const Words *cache, int v) const { return cache[v]; }

  template <class Make>
  __device__ __forceinline__ void put(Make make, const AlignedSlice &, const Words *cache) const {
    put_vectors([&](int v) { return make(cache[v]); });
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const AlignedSlice &, const Words *cache, const AlignedSlice &, const Words *another) const {
    put_vectors([&](int v) { return make(cache[v], another[v]); });
  }
  __device__ __forceinline__ void send(const Words *cache) const {
    block_barrier();
    put_vectors([&](int v) { return cache[v]; });
  }

private:
  template <class Vector> __device__ __forceinline__ void put_vectors(Vector vector) const {
    for_own(whole(), [&](int v) { store_words<D::STREAMED>((u8 *)row + vector_offset(v), vector(v)); }, threads);
    put_cut(vector);
  }
  template <class Vector> __device__ __forceinline__ void put_cut(Vector vector) const {
    if (owns_cut<D>(cols, threads)) Elements<D, int>::store(row, 1, whole(), cols, vector(whole()), 0, D::LEN);
  }
};

// Columns side by side, the row anywhere. The cache holds aligned pieces of memory, the first of which begins
// `shift` bytes before the slice: piece c holds the end of vector c - 1 and the beginning of vector c.
template <class D> struct UnalignedSlice {
  typedef typename D::Storage T;
  static constexpr int SIZE = (int)sizeof(T);
  static constexpr bool SHARED = true, IN_BULK = false;
  u8 *first_piece;
  const u8 *end; // of the storage
  int cols, threads;
  int shift, pieces;

  __device__ __forceinline__ UnalignedSlice(T *base, const Rows &rows, const Operand &op, i64 r, i64 first, int cols_,
                                            int threads_ = SLICE_THREADS)
      : first_piece((u8 *)(base + row_offset(rows, op, r) + first)), end((const u8 *)(base + op.len)), cols(cols_), threads(threads_) {
    shift = (int)((u64)first_piece & 15u);
    first_piece -= shift;
    pieces = cols ? (int)((u32)(cols * SIZE + shift + 15) / 16) : 0;
  }

  __device__ __forceinline__ const u8 *start() const { return first_piece; }
  // Bytes beside the slice are other columns': readable, and dropped. Past the storage's end they are not.
  __device__ __forceinline__ int whole() const { return (int)smallest((i64)pieces, (end - first_piece) >> 4); }

  // One piece at most, that of the last columns of the storage.
  __device__ __forceinline__ void rest(Words *cache) const {
    if (whole() < pieces && threadIdx.x == 0) cache[whole()] = edge(whole());
  }

  __device__ __forceinline__ Words vector(const Words *cache, int v) const {
    return funnel<SIZE>(cache[v], cache[v + 1], shift);
  }

  template <class Make>
  __device__ __forceinline__ void put(Make make, const UnalignedSlice &x, const Words *cache) const {
    if (x.shift == shift)
      put_pieces([&](int c) { return make(cache[c]); });
    else
      put_pieces([&](int c) { return make(x.beside(cache, c, shift)); });
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const UnalignedSlice &x, const Words *cache, const UnalignedSlice &z,
                                      const Words *another) const {
    if (x.shift == shift && z.shift == shift)
      put_pieces([&](int c) { return make(cache[c], another[c]); });
    else
      put_pieces([&](int c) { return make(x.beside(cache, c, shift), z.beside(another, c, shift)); });
  }
  __device__ __forceinline__ void send(const Words *cache) const {
    block_barrier();
    int first = first_whole(), last = last_whole();
    for_own(last, [&](int c) {
      if (c >= first) store_words<false>(first_piece + vector_offset(c), cache[c]);
    }, threads);
    // The first piece and the one after the last whole one, an element a thread; a block has threads for both.
    if (threadIdx.x < 2 * D::LEN) {
      int c = threadIdx.x < D::LEN ? 0 : last, i = threadIdx.x % D::LEN, to = column(c) + i;
      if (to >= 0 && to < cols) ((T *)(first_piece + shift))[to] = ((const T *)cache)[c * D::LEN + i];
    }
  }

private:
  // The columns of piece c of a slice with another shift. Bytes of pieces that are not there are of no column.
  __device__ __forceinline__ Words beside(const Words *cache, int c, int other_shift) const {
    int by = shift - other_shift, low = by < 0 ? c - 1 : c, last = pieces - 1;
    return funnel<SIZE>(cache[low < 0 ? 0 : low], cache[low < last ? low + 1 : last], by & 15);
  }

  // Pieces that are whole of the slice.
  __device__ __forceinline__ int first_whole() const { return shift ? 1 : 0; }
  __device__ __forceinline__ int last_whole() const { return (int)((u32)(cols * SIZE + shift) / 16); }

  template <class Piece> __device__ __forceinline__ void put_pieces(Piece piece) const {
    int first = first_whole(), last = last_whole();
    for_own(last, [&](int c) {
      if (c >= first) store_words<false>(first_piece + vector_offset(c), piece(c));
    }, threads);
    if (threadIdx.x == 0 && first && cols) store_edge(0, piece(0));
    if (threadIdx.x == WARP && last >= first && last < pieces) store_edge(last, piece(last));
  }

  __device__ __forceinline__ int column(int c) const { return c * D::LEN - shift / SIZE; } // the first of piece c
  __device__ __forceinline__ void store_edge(int c, const Words &x) const {
    T *row = (T *)(first_piece + shift);
#pragma unroll
    for (int i = 0; i < D::LEN; ++i)
      if (column(c) + i >= 0 && column(c) + i < cols) row[column(c) + i] = D::raw(x, i);
  }
  __device__ __forceinline__ Words edge(int c) const {
    const T *row = (const T *)(first_piece + shift);
    Words x = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < D::LEN; ++i) D::set_raw(x, i, column(c) + i >= 0 && column(c) + i < cols ? row[column(c) + i] : T(0));
    return x;
  }
};

// Columns apart: nothing can be copied, each thread loads its own.
template <class D> struct StridedSlice {
  typedef typename D::Storage T;
  static constexpr bool SHARED = false, IN_BULK = false;
  static constexpr int threads = SLICE_THREADS;
  T *row;
  int cols;
  i64 stride;

  __device__ __forceinline__ StridedSlice(T *base, const Rows &rows, const Operand &op, i64 r, i64 first, int cols_)
      : row(base + row_offset(rows, op, r) + first * op.col_stride), cols(cols_), stride(op.col_stride) {}

  __device__ __forceinline__ const u8 *start() const { return (const u8 *)row; }
  __device__ __forceinline__ int whole() const { return 0; }
  __device__ __forceinline__ int vectors() const { return (cols + D::LEN - 1) / D::LEN; }
  __device__ __forceinline__ void rest(Words *cache) const {
    for_own(vectors(), [&](int v) { cache[v] = Elements<D, int>::load(row, stride, v, cols, 0); });
  }
  __device__ __forceinline__ Words vector(const Words *cache, int v) const { return cache[v]; }
  template <class Make> __device__ __forceinline__ void put(Make make, const StridedSlice &, const Words *cache) const {
    for_own(vectors(), [&](int v) { Elements<D, int>::store(row, stride, v, cols, make(cache[v]), 0, D::LEN); });
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const StridedSlice &, const Words *cache, const StridedSlice &, const Words *another) const {
    for_own(vectors(), [&](int v) { Elements<D, int>::store(row, stride, v, cols, make(cache[v], another[v]), 0, D::LEN); });
  }
};

} // namespace online
