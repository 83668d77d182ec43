// One row's memory, in vectors of 16 bytes: aligned, unaligned or strided (see `Access` in src/plan.rs; packed rows and
// the block family's unaligned ones are in staged.cuh).
//
//   load(x, v, step, fill)   N vectors to registers: v, v + step, ..; `fill` stands where the row has ended
//   store(x, v, step, near)  the same back; all threads that share the row call it (`near`: how they reach
//                            the vector below their own, see neighbours in reduce.cuh)
//
// Made for columns first .. first + cols of row r (cols = 0 for none). I is the type that they are counted in:
// int for rows kept on the chip, i64 for rows of any length. Vector v holds the same columns whatever the
// access, so all three give the same bits.
//
// No load waits for another: all N are under way before the first is used, and what is special at a row's end
// is done after them, in branches that other rows and threads skip.
#pragma once
#include "dtype.cuh"
#include "rows.cuh"

namespace online {

// Where vector v of a row begins, in bytes: of 32 bits where columns are counted in an int, and so half the
// instructions of an address.
__device__ __forceinline__ u32 vector_offset(int v) { return 16u * (u32)v; }
__device__ __forceinline__ i64 vector_offset(i64 v) { return 16 * v; }

// Words w, 8 of them, moved down by `shift` bytes; indices stay constants, so w stays in registers.
template <int SIZE> __device__ __forceinline__ Words moved(u32 (&w)[8], int shift) {
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  Words x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.w[i] = SIZE < 4 ? shift_bytes(w[i], w[i + 1], shift & 3) : w[i];
  return x;
}

// The 16 bytes that begin `shift` bytes (below 16) into a, and go on in b; elements of SIZE bytes.
template <int SIZE> __device__ __forceinline__ Words funnel(const Words &a, const Words &b, int shift) {
  u32 w[8] = {a.w[0], a.w[1], a.w[2], a.w[3], b.w[0], b.w[1], b.w[2], b.w[3]};
  return moved<SIZE>(w, shift);
}

// The elements of vector v one by one, those past the row's end left out.
template <class D, class I> struct Elements {
  typedef typename D::Storage T;
  static constexpr int LEN = D::LEN;

  static __device__ __forceinline__ Words filled(T fill) {
    Words x = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < LEN; ++i) D::set_raw(x, i, fill);
    return x;
  }

  static __device__ __forceinline__ Words load(const T *row, i64 stride, I v, I cols, T fill) {
    Words x = {{0, 0, 0, 0}};
    I first = v * LEN;
    const T *at = row + first * stride;
#pragma unroll
    for (int i = 0; i < LEN; ++i, at += stride) D::set_raw(x, i, first + i < cols ? *at : fill);
    return x;
  }

  // Elements from <= i < to only.
  static __device__ __forceinline__ void store(T *row, i64 stride, I v, I cols, const Words &x, int from, int to) {
    I first = v * LEN;
    T *at = row + first * stride;
#pragma unroll
    for (int i = 0; i < LEN; ++i, at += stride)
      if (i >= from && i < to && first + i < cols) *at = D::raw(x, i);
  }

  template <int N> static __device__ __forceinline__ bool owns(I which, I v, int step) {
    bool mine = false;
#pragma unroll
    for (int k = 0; k < N; ++k) mine |= v + k * step == which;
    return mine;
  }

  // Of x, vectors v, v + step, ..: those of from .. to, a few at the end of the row.
  template <int N>
  static __device__ __forceinline__ void load_last(Words (&x)[N], I v, int step, I from, I to, const T *row, I cols, T fill) {
    for (I last = from; last < to; ++last) {
      if (!owns<N>(last, v, step)) continue;
      Words here = load(row, 1, last, cols, fill);
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (v + k * step == last) x[k] = here;
    }
  }
};

// Which vectors a load is for: all. (Of others it gives `fill`, or, of a row's last, what is there.)
struct All {
  template <class I> __device__ __forceinline__ bool operator()(I) const { return true; }
};

// Columns side by side, the row on a 16-byte boundary.
template <class D, class I, bool STREAMED = D::STREAMED> struct AlignedRow {
  typedef typename D::Storage T;
  typedef Elements<D, I> One;
  T *row;
  I cols;

  __device__ __forceinline__ AlignedRow(T *base, const Rows &rows, const Operand &op, i64 r, I first, I cols_)
      : row(base + row_offset(rows, op, r) + first), cols(cols_) {}
  // Of a row that is at element `at`; likewise below.
  __device__ __forceinline__ AlignedRow(T *base, const Operand &, i64 at, I cols_) : row(base + at), cols(cols_) {}

  template <int N, class Wanted = All>
  __device__ __forceinline__ void load(Words (&x)[N], I v, int step, T fill, Wanted wanted = Wanted()) const {
    I whole = cols / D::LEN;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] = One::filled(fill);
      if (v + k * step < whole && wanted(v + k * step)) x[k] = load_words<STREAMED>((const u8 *)row + vector_offset(v + k * step));
    }
    if (cols % D::LEN) One::load_last(x, v, step, whole, whole + 1, row, cols, fill);
  }

  template <int N, class Near> __device__ __forceinline__ void store(const Words (&x)[N], I v, int step, Near &) const {
    I whole = cols / D::LEN;
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (v + k * step < whole) store_words<STREAMED>((u8 *)row + vector_offset(v + k * step), x[k]);
    if (cols % D::LEN) put_last(x, v, step, [](const Words &w) { return w; });
  }

  // make(x[k]) in place of x[k], each stored as soon as it is made.
  template <int N, class Make> __device__ __forceinline__ void put(const Words (&x)[N], I v, int step, Make make) const {
    I whole = cols / D::LEN;
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (v + k * step < whole) store_words<STREAMED>((u8 *)row + vector_offset(v + k * step), make(x[k]));
    if (cols % D::LEN) put_last(x, v, step, make);
  }

private:
  template <int N, class Make> __device__ __forceinline__ void put_last(const Words (&x)[N], I v, int step, Make make) const {
    I whole = cols / D::LEN;
    Words last = x[0];
#pragma unroll
    for (int k = 1; k < N; ++k)
      if (v + k * step <= whole) last = x[k];
    if (One::template owns<N>(whole, v, step)) One::store(row, 1, whole, cols, make(last), 0, D::LEN);
  }
};

// Columns side by side, the row anywhere: `shift` bytes past a 16-byte boundary, the same for all of its
// vectors. Memory is still accessed 16 aligned bytes (a chunk) at a time:
//
//   chunks      |<----- lo ----->|<----- hi ----->|
//   vector v            |<- head ->|<-- tail -->|          head = 16 - shift bytes
//
// A load funnels v out of two chunks (the second is the next lane's first: it comes from L1). A store
// writes the chunk with v's head; the tail of v - 1, which shares it, comes from the thread below. Where
// there is none, or the row ends, elements are stored one by one instead.
template <class D, class I> struct UnalignedRow {
  typedef typename D::Storage T;
  typedef Elements<D, I> One;
  static constexpr int SIZE = (int)sizeof(T);
  T *row;
  const T *end; // of the storage
  I cols;
  int shift;

  __device__ __forceinline__ UnalignedRow(T *base, const Rows &rows, const Operand &op, i64 r, I first, I cols_)
      : row(base + row_offset(rows, op, r) + first), end(base + op.len), cols(cols_), shift((int)((u64)row & 15u)) {}
  __device__ __forceinline__ UnalignedRow(T *base, const Operand &op, i64 at, I cols_)
      : row(base + at), end(base + op.len), cols(cols_), shift((int)((u64)row & 15u)) {}

  template <int N, class Wanted = All>
  __device__ __forceinline__ void load(Words (&x)[N], I v, int step, T fill, Wanted wanted = Wanted()) const {
    const u8 *lo = (const u8 *)row - shift, *hi = lo + (shift ? 16 : 0);
    // Bytes beside the row are some other row's: readable, and dropped; past the storage's end they are not.
    I whole = cols / D::LEN, vectors = (cols + D::LEN - 1) / D::LEN;
    if (shift && whole && (u64)lo + 16 * (u64)(whole + 1) > (u64)end) --whole;
    constexpr int BATCH = N < 4 ? N : 4; // 8 words a vector until they are funnelled
#pragma unroll
    for (int first = 0; first < N; first += BATCH) {
      Words a[BATCH], b[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        I at = v + (first + k) * step;
        a[k] = b[k] = One::filled(fill);
        if (at < whole && wanted(at)) {
          a[k] = load_words<false>(lo + vector_offset(at));
          b[k] = load_words<false>(hi + vector_offset(at));
        }
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        x[first + k] = funnel<SIZE>(a[k], b[k], shift);
        if (v + (first + k) * step >= whole) x[first + k] = One::filled(fill);
      }
    }
    if (whole < vectors) One::load_last(x, v, step, whole, vectors, row, cols, fill);
  }

  template <int N, class Near> __device__ __forceinline__ void store(const Words (&x)[N], I v, int step, Near &near) const {
    int split = shift / SIZE; // elements of v - 1 in the chunk of v
    Words rest = x[0], rest_below = x[0];
    I rest_at = -1;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      I at = v + k * step;
      Words below = near.below(x, k);
      bool full = (at + 1) * D::LEN - split <= cols && (!split || near.has_below(k));
      if (full) store_words<D::STREAMED>((u8 *)row - shift + vector_offset(at), split ? funnel<SIZE>(below, x[k], 16 - shift) : x[k]);
      bool last = (at + 1) * D::LEN >= cols || !near.has_above();
      bool special = at * D::LEN < cols && (!full || (split && last));
      if (k == 0) {
        if (special) store_special(x[0], below, at, split, full, near.has_below(0), last);
      } else if (special) {
        rest = x[k];
        rest_below = below;
        rest_at = at;
      }
    }
    if (N > 1 && rest_at >= 0) {
      bool full = (rest_at + 1) * D::LEN - split <= cols;
      store_special(rest, rest_below, rest_at, split, full, true, true);
    }
  }

private:
  // What is left of vector v: its head and the tail below it unless their chunk is written; its tail if it
  // is the last that is not written by a thread above.
  __device__ __forceinline__ void store_special(const Words &x, const Words &below, I v, int split, bool written, bool has_below,
                                                bool last) const {
    if (!written) {
      if (has_below) One::store(row, 1, v - 1, cols, below, D::LEN - split, D::LEN);
      One::store(row, 1, v, cols, x, 0, D::LEN - split);
    }
    if (last) One::store(row, 1, v, cols, x, D::LEN - split, D::LEN);
  }
};

// Columns apart.
template <class D, class I> struct StridedRow {
  typedef typename D::Storage T;
  typedef Elements<D, I> One;
  T *row;
  I cols;
  i64 stride;

  __device__ __forceinline__ StridedRow(T *base, const Rows &rows, const Operand &op, i64 r, I first, I cols_)
      : row(base + row_offset(rows, op, r) + first * op.col_stride), cols(cols_), stride(op.col_stride) {}
  __device__ __forceinline__ StridedRow(T *base, const Operand &op, i64 at, I cols_) : row(base + at), cols(cols_), stride(op.col_stride) {}

  template <int N, class Wanted = All>
  __device__ __forceinline__ void load(Words (&x)[N], I v, int step, T fill, Wanted wanted = Wanted()) const {
#pragma unroll
    for (int k = 0; k < N; ++k) // settled: else all addresses at once
      x[k] = settled(wanted(v + k * step) ? One::load(row, stride, v + k * step, cols, fill) : One::filled(fill));
  }

  template <int N, class Near> __device__ __forceinline__ void store(const Words (&x)[N], I v, int step, Near &) const {
#pragma unroll
    for (int k = 0; k < N; ++k) One::store(row, stride, v + k * step, cols, settled(x[k]), 0, D::LEN);
  }
};

} // namespace online
