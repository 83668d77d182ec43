// Merging over the threads that share the rows of a tile (see square.cuh), and the blocks of a cluster that do. A row's
// bits are those that reduce.cuh gives it as one of the warp or block family: all sums are added in the same order.
//
//   1 sums        of each lane's exponentials, relative to the share's maximum: the caller leaves them
//   2 reduce      each lane's to a share's (m, d), `lanes` lanes a row; to all blocks of the cluster
//   3 weights     of each share and row, from all shares
#pragma once
#include "square.cuh"

namespace online {

constexpr int GATHERED = MAX_WARPS;

// What a tile's threads leave each other in shared memory, as `plan` counts it.
template <class D> struct TileMerge {
  typedef typename D::Compute C;
  const TileShape<D> &shape;
  bool by_turn; // whether there is a sum of each turn, since they are of several threads; else of a lane
  int row_step; // from a row's sums to the next one's
  Pair<C> *left;     // (m, d) of a share and row, of all the shares
  u64 *inbox;
  u32 *flag;         // the caller's
  C *weights, *sums; // of a share and row; of a turn, share, row and lane

  __device__ __forceinline__ TileMerge(const TileShape<D> &shape_, Words *memory, bool by_turn_, int row_step_)
      : shape(shape_), by_turn(by_turn_), row_step(row_step_) {
    left = (Pair<C> *)memory;
    inbox = (u64 *)(left + (shape.shares << shape.log2_rows));
    flag = (u32 *)(inbox + 1);
    weights = (C *)(inbox + 2);
    sums = weights + (shape.own_shares << shape.log2_rows);
    if (shape.parts == 1) return;
    if (threadIdx.x == 0) inbox_open(inbox);
    cluster_started(); // reduce() waits for the others
  }

  // Where this thread leaves its sum of row j of its own, in turn k.
  __device__ __forceinline__ C &sum(int k, int j) const {
    int turn = by_turn ? k * shape.own_shares : 0;
    return sums[(((turn + shape.share) << shape.log2_rows) + shape.group * D::LEN) * row_step + shape.lane + j * row_step];
  }

  // Those of row j of this thread's, once there are weights.
  __device__ __forceinline__ const C *own_weights() const { return weights + (shape.share << shape.log2_rows) + shape.group * D::LEN; }

  // Makes weights of what all threads have left: alone((m, d)) of a row that is one share, in one lane; merged((m, d)) else,
  // with GATHERED lanes a row, a share each, of `none` where the row has fewer. maximum(row of a share of this block, lane).
  template <class Max, class Alone, class Merged>
  __device__ __forceinline__ void weigh(Pair<C> none, Max maximum, Alone alone, Merged merged) const {
    block_barrier();
    reduce(maximum, alone);
    if (shape.shares > 1) {
      int share = threadIdx.x % GATHERED;
#pragma unroll 1
      for (int row = threadIdx.x / GATHERED; row < shape.rows(); row += (int)(blockDim.x / GATHERED)) {
        C weight = merged(share < shape.shares ? left[(share << shape.log2_rows) + row] : none);
        int own = share - shape.first_share;
        if (own >= 0 && own < shape.own_shares) weights[(own << shape.log2_rows) + row] = weight;
      }
      block_barrier();
    }
  }

private:
  // To (maximum, sum) of every share of this block, in all blocks; after a barrier, and before what they do.
  template <class Max, class Alone> __device__ __forceinline__ void reduce(Max maximum, Alone alone) const {
    if (shape.parts > 1) {
      cluster_wait_started();
      if (threadIdx.x == 0) inbox_expect(inbox, (shape.shares << shape.log2_rows) * (int)sizeof(Pair<C>));
    }
    int own = shape.own_shares << shape.log2_rows, units = (int)(blockDim.x >> shape.log2_lanes);
    int lane = (int)threadIdx.x & (shape.lanes - 1);
#pragma unroll 1
    for (int at = (int)(threadIdx.x >> shape.log2_lanes); at < own; at += units) {
      int share = shape.first_share + (at >> shape.log2_rows);
      if (share >= shape.shares) break; // all lanes: shares are of whole warps where there are several
      Pair<C> x = {maximum(at, lane), group_sum(total(at, share, lane), shape.lanes)};
      int to = (shape.first_share << shape.log2_rows) + at;
      if (shape.shares == 1) {
        if (lane == 0) weights[at] = alone(x);
      } else if (shape.parts > 1) {
        if (lane < shape.parts) send(&left[to], inbox, lane, x);
      } else if (lane == 0) {
        left[to] = x;
      }
    }
    if (shape.parts > 1)
      inbox_wait(inbox);
    else
      block_barrier();
  }

  // A lane's sum, in the order of its vectors.
  __device__ __forceinline__ C total(int at, int share, int lane) const {
    const C *from = sums + at * row_step + lane;
    if (!by_turn) return *from;
    C d = C(0);
    int step = (shape.own_shares << shape.log2_rows) * row_step, v = share * WARP + lane;
#pragma unroll 1
    for (int k = 0; k < shape.turns; ++k, v += shape.threads)
      if (v < shape.vectors) d = add(d, from[k * step]);
    return d;
  }
};

// What tiles do with them: `finished` makes of a weight what the caller will read.
template <class D> struct TileWeights {
  typedef typename D::Compute C;

  template <class Merge, class Max, class Finished>
  static __device__ __forceinline__ void of_softmax(const Merge &merge, Max maximum, Finished finished) {
    merge.weigh(
        Pair<C>{-Limits<C>::infinity(), C(0)}, maximum,
        [&](Pair<C> x) {
          State<D> s = {x.a, x.b};
          if (!merge.shape.of_block) return finished(s.weight());
          const Reference<D> there(s.m); // as of several shares
          return finished(State<D>{s.m, s.rescaled(there)}.weight(there));
        },
        [&](Pair<C> x) { return finished(group_merge(State<D>{x.a, x.b}, GATHERED).weight(Reference<D>(x.a))); });
  }

  template <class Merge> static __device__ __forceinline__ void of_gradient(const Merge &merge) {
    merge.weigh(
        Pair<C>{C(0), C(0)}, [](int, int) { return C(0); }, [](Pair<C> x) { return x.b; },
        [](Pair<C> x) { return group_sum(x.b, GATHERED); });
  }
};

} // namespace online
