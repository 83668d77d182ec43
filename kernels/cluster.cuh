// Merging over the blocks of a cluster that share a row. See reduce.cuh; a share is a warp.
//
// Every warp leaves its numbers in shared memory; after a barrier the first warp merges them, sends the result to
// every block, lane i to block i, merges as many as there are blocks, and leaves that; after another barrier all
// threads have it. No barrier of the cluster: that takes a fence for everything written, and cost a tenth of a
// row's time (512x131072 bf16, H200). The first warp alone: what all would do costs each 150 instructions, where a
// row of 64 columns a thread takes 600.
#pragma once
#include "reduce.cuh"

namespace online {

constexpr int MAX_CLUSTER = 16;

template <class C> struct ClusterSlots {
  Slots<C> warps;
  Pair<C> blocks[MAX_CLUSTER]; // (m, d) of each
  Pair<C> row;
  u64 inbox, loads;
};

template <class C> struct Cluster {
  ClusterSlots<C> &slots;
  Block<C> warps;
  int blocks, rank;
  u32 row;

  __device__ __forceinline__ explicit Cluster(ClusterSlots<C> &s)
      : slots(s), warps(s.warps), blocks(cluster_size()), rank(cluster_rank()), row(cluster_index()) {
    if (blocks == 1) return;
    if (threadIdx.x == 0) inbox_open(&slots.inbox, blocks * (int)sizeof(Pair<C>));
    cluster_started(); // `whole` waits for the others
  }

  // An inbox for what this block loads.
  __device__ __forceinline__ u64 *loads() { return &slots.loads; }

  template <class D> __device__ __forceinline__ State<D> merge(C m, C d) {
    warps.leave(m, group_sum(d, WARP));
    Pair<C> row = whole([&] {
      State<D> s = warps.template gather<D>();
      return Pair<C>{s.m, s.d};
    }, [](Pair<C> x) {
      State<D> s = group_merge(State<D>{x.a, x.b}, MAX_CLUSTER);
      return Pair<C>{s.m, s.d};
    }, Pair<C>{-Limits<C>::infinity(), C(0)});
    return State<D>{row.a, row.b};
  }

  __device__ __forceinline__ C sum(C x) {
    warps.leave(C(0), group_sum(x, WARP));
    return whole([&] { return Pair<C>{C(0), warps.gather_sum()}; }, [](Pair<C> x) { return Pair<C>{C(0), group_sum(x.b, MAX_CLUSTER)}; },
                 Pair<C>{C(0), C(0)})
        .b;
  }

private:
  // The row's numbers: `block` gives this block's, `merge` the row's from a block's in each lane, `none` of no block.
  template <class BlockPart, class Merge>
  __device__ __forceinline__ Pair<C> whole(BlockPart block, Merge merge, Pair<C> none) {
    if (blocks > 1) cluster_wait_started();
    if (threadIdx.x < WARP) {
      Pair<C> x = block();
      if (blocks > 1) {
        if ((int)threadIdx.x < blocks) send(&slots.blocks[rank], &slots.inbox, threadIdx.x, x);
        inbox_wait(&slots.inbox);
        int from = threadIdx.x % MAX_CLUSTER; // each twice in the warp
        x = merge(from < blocks ? slots.blocks[from] : none);
      }
      if (threadIdx.x == 0) slots.row = x;
    }
    block_barrier();
    return slots.row;
  }
};

} // namespace online
