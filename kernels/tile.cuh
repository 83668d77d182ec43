// Rows side by side in memory, columns apart, in registers (cached_tile.cu), or where tile.cu has not the shared memory
// that it needs (tile_stream.cu): a block takes a tile of `rows` neighbouring rows, and in each of them its threads play those of the contiguous row.
//
//            row 0   row 1  ..  row 15
//   lane 0     0       1    ..    15      thread = lane * rows + row: a warp loads an element of 16 neighbours in
//   lane 1    16      17    ..    31      32 or 64 contiguous bytes, two of these at a time
//   ..                                    lane l owns vectors l, l + lanes, .. of its row, as everywhere
//
// Invariant: a row's bits are those of the warp or block family. Its columns have the same owners, and sums are
// added in the same order; but the lanes of a row sit in several warps, so what shuffles merge there goes through
// shared memory here. All threads of a block run every merge; those past the last row have one of no columns.
#pragma once
#include "cached.cuh"

namespace online {

// A row of columns apart, or not: where an operand has them side by side (the contiguous result of a transposed
// input) a vector is one access, and the next lane's vector, in the same warp, is beside it. Vectors hold the
// columns that they hold everywhere; see access.cuh.
template <class D> struct TileRow {
  typedef typename D::Storage T;
  typedef Elements<D, int> One;
  T *base;
  const Rows &rows;
  const Operand &op;
  i64 r; // may be past the last

  __device__ __forceinline__ TileRow(T *base_, const Rows &rows_, const Operand &op_, i64 r_) : base(base_), rows(rows_), op(op_), r(r_) {}

  template <int N> __device__ __forceinline__ void load(Words (&x)[N], int v, int step, T fill) const {
    const T *row = start();
    int cols = columns();
    if (has_vectors(row)) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        int at = v + k * step;
        x[k] = (at + 1) * D::LEN <= cols ? load_words<false>((const u8 *)row + vector_offset(at)) : One::load(row, 1, at, cols, fill);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] = settled(One::load(row, op.col_stride, v + k * step, cols, fill)); // else all addresses at once
    }
  }

  template <int N> __device__ __forceinline__ void store(const Words (&x)[N], int v, int step) const {
    T *row = start();
    int cols = columns();
    if (has_vectors(row)) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        int at = v + k * step;
        if ((at + 1) * D::LEN <= cols)
          store_words<false>((u8 *)row + vector_offset(at), x[k]);
        else
          One::store(row, 1, at, cols, x[k], 0, D::LEN);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) One::store(row, op.col_stride, v + k * step, cols, settled(x[k]), 0, D::LEN);
    }
  }
  template <int N, class Near> __device__ __forceinline__ void store(const Words (&x)[N], int v, int step, Near &) const {
    store(x, v, step);
  }

private:
  // Found when it is used: an output's would take registers while its row is computed.
  __device__ __forceinline__ T *start() const { return r < rows.rows ? base + row_offset(rows, op, r) : base; }
  __device__ __forceinline__ int columns() const { return r < rows.rows ? (int)rows.cols : 0; }
  __device__ __forceinline__ bool has_vectors(const T *row) const { return op.col_stride == 1 && ((u64)row & 15u) == 0; }
};

// Numbers of COUNT lanes merged in the order of the butterfly in reduce.cuh:
// what it leaves in lane 0. (Every lane gets these bits: a + b is b + a.) `at(i)` is the number of lane i.
template <int COUNT, int STEP = 1, class At, class Merge> __device__ __forceinline__ auto butterfly(At at, Merge merge, int first = 0) {
  if constexpr (STEP == COUNT)
    return at(first);
  else
    return merge(butterfly<COUNT, 2 * STEP>(at, merge, first), butterfly<COUNT, 2 * STEP>(at, merge, first + STEP));
}
// The same in two rounds of two, a quarter of the lanes each: beside 32 exponentials there are no registers for more.
// `none` is what a merge leaves alone (a sum that began with 0 is never -0).
template <int COUNT, class C, class At, class Merge> __device__ __forceinline__ C butterfly_in_rounds(C none, At at, Merge merge) {
  C all = none;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    C half = none;
#pragma unroll 1
    for (int j = i; j < 4; j += 2) half = merge(half, butterfly<COUNT, 4>(at, merge, j));
    all = merge(all, half);
  }
  return all;
}

// Of numbers x[0], x[apart], ...
template <int COUNT, class C, class Merge> __device__ __forceinline__ C butterfly_of(const C *x, int apart, C none, Merge merge) {
  auto at = [&](int i) { return x[i * apart]; };
  if constexpr (COUNT < WARP)
    return butterfly<COUNT>(at, merge);
  else
    return butterfly_in_rounds<COUNT>(none, at, merge);
}
template <int COUNT, class C> __device__ __forceinline__ C butterfly_max(const C *x, int apart) {
  return butterfly_of<COUNT>(x, apart, -Limits<C>::infinity(), [](C a, C b) { return largest(a, b); });
}
template <int COUNT, class C> __device__ __forceinline__ C butterfly_sum(const C *x, int apart) {
  return butterfly_of<COUNT>(x, apart, C(0), [](C a, C b) { return add(a, b); });
}

// Shared slots of a tile: a number of each thread for its maximum, another for its sum, so that a merge has one
// barrier: who writes one of them again has passed that of the other. A lane's begin APART after those of the lane
// below, a constant, since an address of each would take registers.
template <class C, int LEN> struct TileSlots {
  C m[LEN], d[LEN];
};

// As Group: LANES lanes share a row. Barriers: one a merge, none for a lane that is alone.
template <class C, int LANES, int APART> struct TileGroup {
  C *m, *d;       // the slots
  int own, first; // this thread's; that of its share's lane 0

  template <int LEN>
  __device__ __forceinline__ TileGroup(TileSlots<C, LEN> &slots, int row, int lane)
      : m(slots.m), d(slots.d), own(lane * APART + row), first(lane / LANES * LANES * APART + row) {}

  __device__ __forceinline__ C share_max(C x) const {
    if (LANES == 1) return x;
    m[own] = x;
    block_barrier();
    return butterfly_max<LANES>(m + first, APART);
  }
  __device__ __forceinline__ C sum(C x, bool in_other_slots = false) const {
    if (LANES == 1) return x;
    C *slots = in_other_slots ? m : d;
    slots[own] = x;
    block_barrier();
    return butterfly_sum<LANES>(slots + first, APART);
  }
  template <class D> __device__ __forceinline__ C weight(const Reference<D> &at, C x) const { return State<D>{at.m, sum(x)}.weight(); }
};

// What the warps of a contiguous row leave each other, SHARES at most: here, its lanes 0 .. 31, 32 .. 63, ...
template <class C, int SHARES, int APART> struct ShareSlots {
  C *m, *d; // of share s in this thread's row at [s * APART]
  int shares;

  __device__ __forceinline__ ShareSlots(TileSlots<C, SHARES * APART> &slots, int row, int lanes)
      : m(slots.m + row), d(slots.d + row), shares(lanes / WARP) {}

  __device__ __forceinline__ void leave(int share, C m_, C d_) const {
    m[share * APART] = m_;
    d[share * APART] = d_;
  }
  // As in Block. The shares that a row does not have are empty there, and add nothing.
  template <class D> __device__ __forceinline__ State<D> gather() const {
    C most = -Limits<C>::infinity();
#pragma unroll 1
    for (int i = 0; i < shares; ++i) most = largest(most, m[i * APART]);
    const Reference<D> at(most);
    return State<D>{most, total([&](int i) { return State<D>{m[i * APART], d[i * APART]}.rescaled(at); })};
  }
  __device__ __forceinline__ C gather_sum() const {
    return total([&](int i) { return d[i * APART]; });
  }

private:
  template <class Term> __device__ __forceinline__ C total(Term term) const {
    return butterfly_in_rounds<SHARES>(C(0), [&](int i) { return i < shares ? term(i) : C(0); }, [](C a, C b) { return add(a, b); });
  }
};

} // namespace online
