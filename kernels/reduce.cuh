// Merging over the threads that share a row. The order is fixed, so the bits are; every thread gets
// them.
//
//   Group    `lanes` lanes of a warp (a power of two): butterfly shuffles, no memory, no barrier
//   Block    every warp of a block: a Group each, one number (or two) a warp through shared memory,
//            one barrier, then each warp merges all of them for itself
//
// (m, d) states are merged n at a time: m = max m_i, d = sum d_i * exp(m_i - m), which costs one
// exponential a thread where merging two by two costs one a level.
#pragma once
#include "rows.cuh"
#include "state.cuh"

namespace online {

// A sum of many terms by one thread, as if in twice the precision (Neumaier). A plain sum of 2^13 terms in
// f32, one thread's of a row of 16 million, drifts by up to 7e-5.
template <class C> struct Sum {
  C high, low;

  __device__ __forceinline__ void add_term(C x) {
    C sum = add(high, x), of_x = add(sum, -high);
    low = add(low, add(add(high, -add(sum, -of_x)), add(x, -of_x)));
    high = sum;
  }
  __device__ __forceinline__ void rescale(C factor) {
    high = mul(high, factor);
    low = mul(low, factor);
  }
  __device__ __forceinline__ C total() const { return add(high, low); }
};

template <class C> __device__ __forceinline__ C group_max(C x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x = largest(x, shuffle_xor(x, step, WARP));
  return x;
}

template <class C> __device__ __forceinline__ C group_sum(C x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x = add(x, shuffle_xor(x, step, WARP));
  return x;
}

template <class D> __device__ __forceinline__ State<D> group_merge(State<D> s, int lanes) {
  typename D::Compute m = group_max(s.m, lanes);
  return State<D>{m, group_sum(s.rescaled(m), lanes)};
}

struct Group {
  int lanes;

  template <class D> __device__ __forceinline__ State<D> merge(State<D> s) { return group_merge(s, lanes); }
  template <class C> __device__ __forceinline__ C sum(C x) { return group_sum(x, lanes); }
};

// Shared slots of the block merges. Two sets, used in turn: a warp may be reading the row before while
// another writes this one; the barrier between keeps them one row apart at most.
template <class C> struct Slots {
  C m[2][WARP];
  C d[2][WARP];
};

template <class C> struct Block {
  Slots<C> &slots;
  int turn;

  __device__ __forceinline__ explicit Block(Slots<C> &s) : slots(s), turn(0) {}

  template <class D> __device__ __forceinline__ State<D> merge(State<D> s) {
    s = group_merge(s, WARP);
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if (lane == 0) {
      slots.m[turn][threadIdx.x / WARP] = s.m;
      slots.d[turn][threadIdx.x / WARP] = s.d;
    }
    block_barrier();
    s = lane < warps ? State<D>{slots.m[turn][lane], slots.d[turn][lane]} : State<D>::identity();
    turn ^= 1;
    return group_merge(s, WARP);
  }

  __device__ __forceinline__ C sum(C x) {
    x = group_sum(x, WARP);
    int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if (lane == 0) slots.d[turn][threadIdx.x / WARP] = x;
    block_barrier();
    x = lane < warps ? slots.d[turn][lane] : C(0);
    turn ^= 1;
    return group_sum(x, WARP);
  }
};

// Calls body(row, merge) for each row of this block, which owns it whole.
template <class D, class Body> __device__ __forceinline__ void for_each_block_row(const Rows &rows, Body body) {
  __shared__ Slots<typename D::Compute> slots;
  Block<typename D::Compute> merge(slots);
  for (i64 r = blockIdx.x; r < rows.rows; r += gridDim.x) body(r, merge);
}

} // namespace online
