// Merging over the blocks of a cluster that share a row. See reduce.cuh; a share is a warp.
//
// Every warp leaves its numbers in shared memory; after a barrier the first warp merges them, sends the result to
// every block, lane i to block i, merges as many as there are blocks, and leaves that; after another barrier all
// threads have it. (Each warp's numbers to each block, with no barrier before: 1x128256 bf16 3.46 us, 3.05 so.) No barrier of the cluster: that takes a fence for everything written, and cost a tenth of a
// row's time (512x131072 bf16, H200). The first warp alone: what all would do costs each 150 instructions, where a
// row of 64 columns a thread takes 600.
#pragma once
#include "reduce.cuh"

namespace online {

constexpr int MAX_CLUSTER = 16;

// Of a block that shares a row with others; a constant, see slice.cuh.
constexpr int CLUSTER_WARPS = 8;

template <class C> struct ClusterSlots {
  Pair<C> warps[CLUSTER_WARPS]; // (m, d) of each
  Pair<C> blocks[MAX_CLUSTER];
  Pair<C> row;
  u64 inbox, loads;
};

template <class C> struct Cluster {
  ClusterSlots<C> &slots;
  int blocks, rank;
  u32 row;

  __device__ __forceinline__ explicit Cluster(ClusterSlots<C> &s)
      : slots(s), blocks(cluster_size()), rank(cluster_rank()), row(cluster_index()) {
    if (blocks == 1) return;
    if (threadIdx.x == 0) inbox_open(&slots.inbox);
    cluster_started(); // `whole` waits for the others
  }

  // An inbox for what this block loads.
  __device__ __forceinline__ u64 *loads() { return &slots.loads; }

  template <class D> __device__ __forceinline__ State<D> merge(C m, C d) {
    auto merged = [](Pair<C> x, int lanes) {
      State<D> s = group_merge(State<D>{x.a, x.b}, lanes);
      return Pair<C>{s.m, s.d};
    };
    Pair<C> row = whole(Pair<C>{m, group_sum(d, WARP)}, merged, Pair<C>{-Limits<C>::infinity(), C(0)});
    return State<D>{row.a, row.b};
  }

  __device__ __forceinline__ C sum(C x) {
    return whole(Pair<C>{C(0), group_sum(x, WARP)}, [](Pair<C> x, int lanes) { return Pair<C>{C(0), group_sum(x.b, lanes)}; },
                 Pair<C>{C(0), C(0)})
        .b;
  }

private:
  // The row's numbers, of a warp's: `merged` merges those of so many lanes, `none` is of no block.
  template <class Merged> __device__ __forceinline__ Pair<C> whole(Pair<C> warp, Merged merged, Pair<C> none) {
    if (threadIdx.x % WARP == 0) slots.warps[threadIdx.x / WARP] = warp;
    block_barrier();
    if (blocks > 1) cluster_wait_started();
    if (threadIdx.x < WARP) {
      Pair<C> x = merged(slots.warps[threadIdx.x % CLUSTER_WARPS], CLUSTER_WARPS); // each more than once in the warp
      if (blocks > 1) {
        // Not when it is opened, without a barrier between: racecheck warns of that.
        if (threadIdx.x == 0) inbox_expect(&slots.inbox, blocks * (int)sizeof(Pair<C>));
        if ((int)threadIdx.x < blocks) send(&slots.blocks[rank], &slots.inbox, threadIdx.x, x);
        inbox_wait(&slots.inbox);
        int from = threadIdx.x % MAX_CLUSTER;
        x = merged(from < blocks ? slots.blocks[from] : none, MAX_CLUSTER);
      }
      if (threadIdx.x == 0) slots.row = x;
    }
    block_barrier();
    return slots.row;
  }
};

} // namespace online
