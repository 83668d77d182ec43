// A block's slice of a row, in shared memory: `cols` columns in vectors, as in access.cuh, of which thread t of the
// block owns t, t + SLICE_THREADS, ..
//
//   vector(x, cache, v)     vector v of slice x, with what stands beside the row where it is cut
//   put(make, x, cache)     writes make(w) to this slice for each 16 bytes w of its columns, which are in `cache` and
//                           of slice x; put(make, x, cache, z, another) the same of two. The (first) cache is lost.
//
// and for bring(), which fills the caches:
//
//   pieces()                16-byte pieces to copy, aligned in memory, to cache[0], cache[1], ..
//   start(), whole()        where the first is, and how many may be copied
//   rest(cache)             the others
//   SHARED                  whether a vector is of pieces that two threads copied
//
// Where the GPU has bulk copies, one thread starts one for the slice, each way: 4 to 9 % of a row's time less than
// with a copy and a store a thread and vector (2048x32768 to 512x131072, H200).
#pragma once
#include "access.cuh"

namespace online {

// A constant, so that what a thread has in flight differs by immediate offsets only.
constexpr int SLICE_THREADS = 256;

// Calls body(v) for this thread's of `count` vectors.
template <class Body> __device__ __forceinline__ void for_own(int count, Body body) {
  int v = threadIdx.x;
#pragma unroll 1
  for (; v + 3 * SLICE_THREADS < count; v += 4 * SLICE_THREADS) {
#pragma unroll
    for (int k = 0; k < 4; ++k) body(v + k * SLICE_THREADS);
  }
#pragma unroll 1
  for (; v < count; v += SLICE_THREADS) body(v);
}

// Begins, for one slice.
template <class Slice> __device__ __forceinline__ void begin(const Slice &x, Words *cache, u64 *inbox) {
  if (!BULK) {
    for_own(x.whole(), [&](int c) { copy_words(cache + c, x.start() + vector_offset(c)); });
  } else if (threadIdx.x == 0 && x.whole()) {
    bulk_load(cache, x.start(), x.whole(), inbox);
  }
  x.rest(cache);
}

template <class Slice> __device__ __forceinline__ void finish(u64 *inbox) {
  copies_done();
  if (BULK || Slice::SHARED) block_barrier(); // also: the inbox is open
  if (BULK) inbox_wait(inbox);
}

// Fills the caches with the slices; all threads.
template <class Slice> __device__ __forceinline__ void bring(const Slice &x, Words *cache, u64 *inbox) {
  if (BULK && threadIdx.x == 0) inbox_open(inbox, 16 * x.whole());
  begin(x, cache, inbox);
  finish<Slice>(inbox);
}

template <class Slice>
__device__ __forceinline__ void bring(const Slice &x, Words *cache, const Slice &z, Words *another, u64 *inbox) {
  if (BULK && threadIdx.x == 0) inbox_open(inbox, 16 * (x.whole() + z.whole()));
  begin(x, cache, inbox);
  begin(z, another, inbox);
  finish<Slice>(inbox);
}

// Writes piece(c), of `cache` and perhaps others, to the pieces from .. to of memory.
template <bool STREAMED, class Piece>
__device__ __forceinline__ void put_pieces(u8 *start, int from, int to, Words *cache, Piece piece) {
  for_own(to, [&](int c) {
    if (c < from) return;
    if (BULK)
      cache[c] = piece(c);
    else
      store_words<STREAMED>(start + vector_offset(c), piece(c));
  });
  if (!BULK) return;
  bulk_fence();
  block_barrier();
  if (threadIdx.x == 0 && from < to) bulk_store(start + vector_offset(from), cache + from, to - from);
}

// Columns side by side, the row on a 16-byte boundary.
template <class D> struct AlignedSlice {
  typedef typename D::Storage T;
  static constexpr bool SHARED = false;
  T *row;
  int cols;

  __device__ __forceinline__ AlignedSlice(T *base, const Rows &rows, const Operand &op, i64 r, i64 first, int cols_)
      : row(base + row_offset(rows, op, r) + first), cols(cols_) {}

  __device__ __forceinline__ const u8 *start() const { return (const u8 *)row; }
  __device__ __forceinline__ int whole() const { return cols / D::LEN; }

  // The row's last vector, where it is cut: its owner's.
  __device__ __forceinline__ bool owns_cut() const { return cols % D::LEN && whole() % SLICE_THREADS == (int)threadIdx.x; }
  __device__ __forceinline__ void rest(Words *cache) const {
    if (owns_cut()) cache[whole()] = Elements<D, int>::load(row, 1, whole(), cols, 0);
  }

  static __device__ __forceinline__ Words vector(const AlignedSlice &, const Words *cache, int v) { return cache[v]; }

  template <class Make> __device__ __forceinline__ void put(Make make, const AlignedSlice &, Words *cache) const {
    put_vectors([&](int v) { return make(cache[v]); }, cache);
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const AlignedSlice &, Words *cache, const AlignedSlice &, const Words *another) const {
    put_vectors([&](int v) { return make(cache[v], another[v]); }, cache);
  }

private:
  template <class Vector> __device__ __forceinline__ void put_vectors(Vector vector, Words *cache) const {
    if (owns_cut()) Elements<D, int>::store(row, 1, whole(), cols, vector(whole()), 0, D::LEN);
    put_pieces<D::STREAMED>((u8 *)row, 0, whole(), cache, vector);
  }
};

// Columns side by side, the row anywhere. The cache holds aligned pieces of memory, the first of which begins
// `shift` bytes before the slice: piece c holds the end of vector c - 1 and the beginning of vector c.
template <class D> struct UnalignedSlice {
  typedef typename D::Storage T;
  static constexpr int SIZE = (int)sizeof(T);
  static constexpr bool SHARED = true;
  u8 *first_piece;
  const u8 *end; // of the storage
  int cols, shift;

  __device__ __forceinline__ UnalignedSlice(T *base, const Rows &rows, const Operand &op, i64 r, i64 first, int cols_)
      : first_piece((u8 *)(base + row_offset(rows, op, r) + first)), end((const u8 *)(base + op.len)), cols(cols_) {
    shift = (int)((u64)first_piece & 15u);
    first_piece -= shift;
  }

  __device__ __forceinline__ const u8 *start() const { return first_piece; }
  __device__ __forceinline__ int pieces() const { return cols ? (cols * SIZE + shift + 15) / 16 : 0; }
  // Bytes beside the slice are other columns': readable, and dropped. Past the storage's end they are not.
  __device__ __forceinline__ int whole() const { return (int)smallest((i64)pieces(), (end - first_piece) / 16); }

  // One piece at most, that of the last columns of the storage.
  __device__ __forceinline__ void rest(Words *cache) const {
    if (whole() < pieces() && threadIdx.x == 0) cache[whole()] = edge(whole());
  }

  static __device__ __forceinline__ Words vector(const UnalignedSlice &x, const Words *cache, int v) {
    return funnel<SIZE>(cache[v], cache[v + 1], x.shift);
  }

  template <class Make> __device__ __forceinline__ void put(Make make, const UnalignedSlice &x, Words *cache) const {
    if (x.shift == shift)
      put_same([&](int c) { return make(cache[c]); }, cache);
    else
      put_other([&](int c) { return make(x.beside(cache, c, shift)); });
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const UnalignedSlice &x, Words *cache, const UnalignedSlice &z,
                                      const Words *another) const {
    if (x.shift == shift && z.shift == shift)
      put_same([&](int c) { return make(cache[c], another[c]); }, cache);
    else
      put_other([&](int c) { return make(x.beside(cache, c, shift), z.beside(another, c, shift)); });
  }

private:
  // The columns of piece c of a slice with another shift. Bytes of pieces that are not there are of no column.
  __device__ __forceinline__ Words beside(const Words *cache, int c, int other_shift) const {
    int by = shift - other_shift, low = by < 0 ? c - 1 : c, last = pieces() - 1;
    return funnel<SIZE>(cache[low < 0 ? 0 : low], cache[low < last ? low + 1 : last], by & 15);
  }

  // Pieces that are whole of the slice.
  __device__ __forceinline__ int first_whole() const { return shift ? 1 : 0; }
  __device__ __forceinline__ int last_whole() const { return (cols * SIZE + shift) / 16; }

  // Where each piece needs no other of the cache.
  template <class Piece> __device__ __forceinline__ void put_same(Piece piece, Words *cache) const {
    put_edges(piece);
    put_pieces<false>(first_piece, first_whole(), last_whole(), cache, piece);
  }
  template <class Piece> __device__ __forceinline__ void put_other(Piece piece) const {
    put_edges(piece);
    for_own(last_whole(), [&](int c) {
      if (c >= first_whole()) store_words<false>(first_piece + vector_offset(c), piece(c));
    });
  }
  // By threads that do not change the cache where these pieces are.
  template <class Piece> __device__ __forceinline__ void put_edges(Piece piece) const {
    int last = last_whole();
    if (threadIdx.x == 0 && first_whole() && cols) store_edge(0, piece(0));
    if (threadIdx.x == WARP && last >= first_whole() && last < pieces()) store_edge(last, piece(last));
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
  static constexpr bool SHARED = false;
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
  static __device__ __forceinline__ Words vector(const StridedSlice &, const Words *cache, int v) { return cache[v]; }
  template <class Make> __device__ __forceinline__ void put(Make make, const StridedSlice &, Words *cache) const {
    for_own(vectors(), [&](int v) { Elements<D, int>::store(row, stride, v, cols, make(cache[v]), 0, D::LEN); });
  }
  template <class Make>
  __device__ __forceinline__ void put(Make make, const StridedSlice &, Words *cache, const StridedSlice &, const Words *another) const {
    for_own(vectors(), [&](int v) { Elements<D, int>::store(row, stride, v, cols, make(cache[v], another[v]), 0, D::LEN); });
  }
};

} // namespace online
