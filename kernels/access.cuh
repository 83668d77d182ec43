// One row's memory, a 16-byte vector of columns at a time: the three `Access` of src/plan.rs.
//
//   load(v, fill)   columns v*LEN .. (v+1)*LEN; `fill` stands where the row has ended
//   store(v, x)     the same columns; every lane of the warp must call it (lanes past the end too)
//
// Made for row r of `cols` columns (0 for none); `group` lanes of a warp hold consecutive vectors of it.
// I is the type that columns are counted in: int for rows kept in registers, i64 for rows of any length.
// Vector v holds the same columns whatever the access, so all three give the same bits.
#pragma once
#include "dtype.cuh"
#include "rows.cuh"

namespace online {

// What is common: the elements of vector v one by one, those past the row's end left out.
template <class D, class I> struct Elements {
  typedef typename D::Storage T;
  static constexpr int LEN = D::LEN;

  static __device__ __forceinline__ Words load(const T *row, i64 stride, I first, I cols, T fill) {
    Words x = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < LEN; ++i) D::set_raw(x, i, first + i < cols ? row[(first + i) * stride] : fill);
    return x;
  }

  // Elements from <= i < to only.
  static __device__ __forceinline__ void store(T *row, i64 stride, I first, I cols, const Words &x, int from, int to) {
#pragma unroll
    for (int i = 0; i < LEN; ++i)
      if (i >= from && i < to && first + i < cols) row[(first + i) * stride] = D::raw(x, i);
  }
};

// Columns side by side, the row on a 16-byte boundary.
template <class D, class I> struct AlignedRow {
  typedef typename D::Storage T;
  T *row;
  I cols;

  __device__ __forceinline__ AlignedRow(T *base, const Rows &rows, const Operand &op, i64 r, I cols_, int)
      : row(base + row_offset(rows, op, r)), cols(cols_) {}

  __device__ __forceinline__ Words load(I v, T fill) const {
    I first = v * D::LEN;
    return first + D::LEN <= cols ? load_words(row + first) : Elements<D, I>::load(row, 1, first, cols, fill);
  }

  __device__ __forceinline__ void store(I v, const Words &x) const {
    I first = v * D::LEN;
    if (first + D::LEN <= cols)
      store_words(row + first, x);
    else
      Elements<D, I>::store(row, 1, first, cols, x, 0, D::LEN);
  }
};

// Columns side by side, the row anywhere: `shift` bytes past a 16-byte boundary, the same for all of its
// vectors. Memory is still accessed 16 aligned bytes (a chunk) at a time:
//
//   chunks      |<----- lo ----->|<----- hi ----->|
//   vector v            |<- head ->|<-- tail -->|          head = 16 - shift bytes
//
// A load funnels v out of two chunks (the second is the next lane's first: it comes from L1). A store
// writes the chunk with v's head; the tail of v - 1, which shares it, comes from the lane below. Where
// the lane below is not in the group, or the row ends, elements are stored one by one instead.
template <class D, class I> struct UnalignedRow {
  typedef typename D::Storage T;
  T *row;
  const T *end; // of the storage
  I cols;
  int shift;
  int group; // lanes that hold consecutive vectors of this row

  __device__ __forceinline__ UnalignedRow(T *base, const Rows &rows, const Operand &op, i64 r, I cols_, int group_)
      : row(base + row_offset(rows, op, r)), end(base + op.len), cols(cols_), shift((int)((u64)row & 15u)), group(group_) {}

  __device__ __forceinline__ Words load(I v, T fill) const {
    I first = v * D::LEN;
    const u8 *lo = (const u8 *)(row + first) - shift;
    int chunks = shift ? 2 : 1;
    // Bytes beside the row are some other row's: readable, and dropped below.
    if (first >= cols || (u64)lo + 16 * chunks > (u64)end) return Elements<D, I>::load(row, 1, first, cols, fill);
    Words a = load_words(lo), b = shift ? load_words(lo + 16) : a;
    Words x = funnel(a, b);
    if (first + D::LEN > cols) {
#pragma unroll
      for (int i = 0; i < D::LEN; ++i)
        if (first + i >= cols) D::set_raw(x, i, fill);
    }
    return x;
  }

  __device__ __forceinline__ void store(I v, const Words &x) const {
    I first = v * D::LEN;
    Words below;
#pragma unroll
    for (int i = 0; i < 4; ++i) below.w[i] = shuffle_up(x.w[i], group);
    if (first >= cols) return;
    if (!shift && first + D::LEN <= cols) return store_words(row + first, x);
    int lane = (int)(threadIdx.x % (u32)group);
    int head = (16 - shift) / (int)sizeof(T);
    bool whole = lane > 0 && first + head <= cols;
    if (whole) store_words((u8 *)(row + first) - shift, backward(below, x));
    // The head, and the tail below it, of a chunk that the row's end cuts; or a head with no lane below.
    if (!whole) {
      if (lane > 0) Elements<D, I>::store(row, 1, first - D::LEN, cols, below, head, D::LEN);
      Elements<D, I>::store(row, 1, first, cols, x, 0, head);
    }
    // The tail goes with the next lane's head, if there is one.
    if (lane == group - 1 || first + D::LEN >= cols) Elements<D, I>::store(row, 1, first, cols, x, head, D::LEN);
  }

private:
  // Words w, 8 of them, moved down by `shift` bytes; indices stay constants, so w stays in registers.
  static __device__ __forceinline__ Words moved(u32 (&w)[8], int shift) {
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
    for (int i = 0; i < 4; ++i) x.w[i] = shift_bytes(w[i], w[i + 1], shift & 3);
    return x;
  }

  __device__ __forceinline__ Words funnel(const Words &a, const Words &b) const {
    u32 w[8] = {a.w[0], a.w[1], a.w[2], a.w[3], b.w[0], b.w[1], b.w[2], b.w[3]};
    return moved(w, shift);
  }

  // The chunk that ends with the head of x: the last `shift` bytes of `below`, then x.
  __device__ __forceinline__ Words backward(const Words &below, const Words &x) const {
    u32 w[8] = {below.w[0], below.w[1], below.w[2], below.w[3], x.w[0], x.w[1], x.w[2], x.w[3]};
    return shift ? moved(w, 16 - shift) : x;
  }
};

// Columns apart.
template <class D, class I> struct StridedRow {
  typedef typename D::Storage T;
  T *row;
  I cols;
  i64 stride;

  __device__ __forceinline__ StridedRow(T *base, const Rows &rows, const Operand &op, i64 r, I cols_, int)
      : row(base + row_offset(rows, op, r)), cols(cols_), stride(op.col_stride) {}

  __device__ __forceinline__ Words load(I v, T fill) const { return Elements<D, I>::load(row, stride, v * D::LEN, cols, fill); }

  __device__ __forceinline__ void store(I v, const Words &x) const {
    Elements<D, I>::store(row, stride, v * D::LEN, cols, x, 0, D::LEN);
  }
};

} // namespace online
