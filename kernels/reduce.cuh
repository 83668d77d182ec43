// Merging over the threads that share a row. The order is fixed, so the bits are; every thread gets
// them.
//
//   Group    `lanes` lanes of a warp (a power of two): butterfly shuffles, no memory, no barrier
//   Block    every warp of a block: a Group each, one number (or two) a warp through shared memory,
//            one barrier, then each warp merges all of them for itself
//   Cluster  every warp of every block of a cluster: the same, but each warp writes to all the blocks
//
// A share is what merges without a barrier: the Group, or the warp. Its maximum is found before its
// exponentials are taken, which then need no rescaling within it:
//
//   share_max(m)     the maximum of the share, given that of each thread
//   whole<D>(at, d)  the row's state, given this thread's sum d relative to `at`, the Reference of the share's maximum
//   weight<D>(at, d) what makes probabilities of exponentials relative to `at`, over its TOP: the Reference of
//                    the share's maximum, of which d is this thread's sum
//   sum(x)           the sum over the row
//
// Neighbours: how a thread reaches the vector below each of its own, x[k], in a store of unaligned rows.
// Vector v of a row is vector v / threads of thread v % threads.
//
//   below(x, k)      the vector below x[k]; all lanes of the warp
//   has_below(k)     or not: there is none, or it is out of reach
//   has_above()      whether the vectors above this thread's, too, reach theirs
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
  // Of an infinite sum `low` is NaN, from inf - inf.
  __device__ __forceinline__ C total() const { return low == low ? add(high, low) : high; }
};

// Each step is a branch that all lanes take alike; none at all where `lanes` is a constant.
template <class C> __device__ __forceinline__ C group_max(C x, int lanes) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2)
    if (step < lanes) x = largest(x, shuffle_xor(x, step, WARP));
  return x;
}

template <class C> __device__ __forceinline__ C group_sum(C x, int lanes) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2)
    if (step < lanes) x = add(x, shuffle_xor(x, step, WARP));
  return x;
}

// n states at a time: m = max m_i, d = sum of the rescaled d_i, one factor a thread.
template <class D> __device__ __forceinline__ State<D> group_merge(State<D> s, int lanes) {
  typename D::Compute m = group_max(s.m, lanes);
  return State<D>{m, group_sum(s.rescaled(Reference<D>(m)), lanes)};
}

__device__ __forceinline__ Words rotate_up(const Words &x, int width) {
  Words y;
#pragma unroll
  for (int i = 0; i < 4; ++i) y.w[i] = rotate_up(x.w[i], width);
  return y;
}

// A warp that knows of no other.
struct Alone {
  template <int N> __device__ __forceinline__ Words below(const Words (&x)[N], int k) const { return rotate_up(x[k], WARP); }
  __device__ __forceinline__ bool has_below(int) const { return threadIdx.x % WARP > 0; }
  __device__ __forceinline__ bool has_above() const { return threadIdx.x % WARP < WARP - 1; }
};

struct Group {
  int lanes;

  template <int N> __device__ __forceinline__ Words below(const Words (&x)[N], int k) const {
    // To the lane above its own vector; the last lane to the first what that has below its next one.
    bool turn_before = k > 0 && threadIdx.x % (u32)lanes == (u32)lanes - 1;
    const Words &before = x[k > 0 ? k - 1 : 0];
    Words sent;
#pragma unroll
    for (int i = 0; i < 4; ++i) sent.w[i] = turn_before ? before.w[i] : x[k].w[i];
    return rotate_up(sent, lanes);
  }
  __device__ __forceinline__ bool has_below(int k) const { return k > 0 || threadIdx.x % (u32)lanes > 0; }
  __device__ __forceinline__ bool has_above() const { return true; }

  template <class C> __device__ __forceinline__ C share_max(C m) const { return group_max(m, lanes); }
  template <class D> __device__ __forceinline__ State<D> whole(const Reference<D> &at, typename D::Compute d) {
    return State<D>{at.m, group_sum(d, lanes)};
  }
  template <class D> __device__ __forceinline__ typename D::Compute weight(const Reference<D> &at, typename D::Compute d) {
    return whole<D>(at, d).weight();
  }
  template <class C> __device__ __forceinline__ C sum(C x) { return group_sum(x, lanes); }
};

// Shared slots of the block merge, of which a block does one.
constexpr int MAX_WARPS = 16; // of a block that shares a row

template <class C> struct Slots {
  C m[MAX_WARPS];
  C d[MAX_WARPS];
};

template <class C> struct Block {
  Slots<C> &slots;

  __device__ __forceinline__ explicit Block(Slots<C> &s) : slots(s) {}

  __device__ __forceinline__ C share_max(C m) const { return group_max(m, WARP); }

  // Two halves of a merge: every warp leaves its numbers, then any may gather them.
  __device__ __forceinline__ void leave(C m, C d) {
    if (threadIdx.x % WARP == 0) {
      slots.m[threadIdx.x / WARP] = m;
      slots.d[threadIdx.x / WARP] = d;
    }
    block_barrier();
  }
  template <class D> __device__ __forceinline__ State<D> gather() const {
    int from = threadIdx.x % MAX_WARPS; // each state twice in the warp
    return group_merge(from < (int)(blockDim.x / WARP) ? State<D>{slots.m[from], slots.d[from]} : State<D>::identity(), MAX_WARPS);
  }
  __device__ __forceinline__ C gather_sum() const {
    int from = threadIdx.x % MAX_WARPS;
    return group_sum(from < (int)(blockDim.x / WARP) ? slots.d[from] : C(0), MAX_WARPS);
  }

  template <class D> __device__ __forceinline__ State<D> merge(C m, C d) {
    leave(m, group_sum(d, WARP));
    return gather<D>();
  }

  template <class D> __device__ __forceinline__ State<D> whole(const Reference<D> &at, C d) { return merge<D>(at.m, d); }
  template <class D> __device__ __forceinline__ C weight(const Reference<D> &at, C d) { return whole<D>(at, d).weight(at); }

  __device__ __forceinline__ C sum(C x) {
    leave(C(0), group_sum(x, WARP));
    return gather_sum();
  }
};

} // namespace online
