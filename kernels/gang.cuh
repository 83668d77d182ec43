// Merging over a gang: blocks of the grid, any number of them, that share a row and meet in global memory. See
// reduce.cuh; a share is a warp.
//
//   workspace   | ticket .. 128 bytes | row 0: numbers of block 0, 1, .. | row 1: .. |      zeros when the kernel starts
//
// Every block posts its numbers there, looks until those of all are there, and merges them, each block in the same
// order. Nothing says that they are there but themselves: a word is posted as its complement, which is not 0 (one NaN's
// would be; it is posted as another). So no fence, and no more than the time of one store and one load.
//
// A block waits for others, which must run. It takes a ticket when it starts, and the ticket names its row and slice:
// a row's blocks that have not started are the next to start. The plan keeps a gang to half of the blocks that the GPU
// runs at once, so that there is room for them, and would be beside one more launch of such a kernel.
#pragma once
#include "reduce.cuh"

namespace online {

constexpr int TICKET_WORDS = 16; // a cache line's: the ticket is written while numbers are looked at
constexpr int LOOKS = 4;         // blocks of which a lane has loads under way at a time

template <class C> struct GangSlots {
  Slots<C> warps;
  Pair<C> row;
  u64 loads;
  u64 *numbers, *own; // the row's; this block's. Here, with `blocks`, since the slices need all registers
  int blocks;
  u32 ticket;
};

// A pair as it is posted.
__device__ __forceinline__ u64 posted(u64 bits) { return ~bits ? ~bits : 1; }
__device__ __forceinline__ void post(u64 *at, Pair<float> x) {
  post(at, posted((u64)float_bits(x.b) << 32 | float_bits(x.a)));
}
__device__ __forceinline__ void post(u64 *at, Pair<double> x) {
  post(at, posted(double_bits(x.a)));
  post(at + 1, posted(double_bits(x.b)));
}
__device__ __forceinline__ Pair<float> received(const u64 (&w)[1]) {
  return Pair<float>{bits_float((u32)~w[0]), bits_float((u32)(~w[0] >> 32))};
}
__device__ __forceinline__ Pair<double> received(const u64 (&w)[2]) { return Pair<double>{bits_double(~w[0]), bits_double(~w[1])}; }

template <class C> struct Gang {
  static constexpr int WORDS = (int)sizeof(Pair<C>) / 8;

  GangSlots<C> &slots;
  Block<C> warps;
  int rank;
  u32 row;

  __device__ __forceinline__ Gang(GangSlots<C> &s, u64 *workspace, const Rows &rows) : slots(s), warps(s.warps), rank(0), row(blockIdx.x) {
    const u32 blocks = gridDim.x / (u32)rows.rows;
    if (threadIdx.x == 0) slots.blocks = (int)blocks; // read after the barrier of a merge
    if (blocks == 1) return;                          // and no workspace
    if (threadIdx.x == 0) {
      u32 ticket = take_ticket((u32 *)workspace);
      slots.ticket = ticket;
      slots.numbers = workspace + TICKET_WORDS + (i64)(ticket / blocks * blocks) * WORDS;
      slots.own = workspace + TICKET_WORDS + (i64)ticket * WORDS;
    }
    block_barrier();
    row = slots.ticket / blocks;
    rank = (int)(slots.ticket % blocks);
  }

  // An inbox for what this block loads.
  __device__ __forceinline__ u64 *loads() { return &slots.loads; }

  __device__ __forceinline__ C share_max(C m) const { return group_max(m, WARP); }

  template <class D> __device__ __forceinline__ State<D> merge(C m, C d) {
    warps.leave(m, group_sum(d, WARP));
    Pair<C> all = whole([&] {
      State<D> s = warps.template gather<D>();
      return Pair<C>{s.m, s.d};
    }, [](Pair<C> sum, const Pair<C> (&x)[LOOKS]) {
      C m = sum.a, d = C(0);
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) m = largest(m, x[k].a);
      const Reference<D> at(group_max(m, WARP));
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) d = add(d, State<D>{x[k].a, x[k].b}.rescaled(at));
      return Pair<C>{at.m, add(State<D>{sum.a, sum.b}.rescaled(at), group_sum(d, WARP))};
    }, Pair<C>{-Limits<C>::infinity(), C(0)});
    return State<D>{all.a, all.b};
  }

  __device__ __forceinline__ C sum(C x) {
    warps.leave(C(0), group_sum(x, WARP));
    return whole([&] { return Pair<C>{C(0), warps.gather_sum()}; }, [](Pair<C> sum, const Pair<C> (&x)[LOOKS]) {
      C d = C(0);
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) d = add(d, x[k].b);
      return Pair<C>{C(0), add(sum.b, group_sum(d, WARP))};
    }, Pair<C>{C(0), C(0)}).b;
  }

private:
  // The row's numbers: `block` gives this block's, `merge` adds some blocks' to a sum of others, `none` is that of none.
  template <class BlockPart, class Merge>
  __device__ __forceinline__ Pair<C> whole(BlockPart block, Merge merge, Pair<C> none) {
    if (threadIdx.x < WARP) {
      Pair<C> x = block();
      const int blocks = slots.blocks;
      if (blocks > 1) {
        if (threadIdx.x == 0) post(slots.own, x);
        x = none;
#pragma unroll 1
        for (int first = 0; first < blocks; first += LOOKS * WARP) {
          Pair<C> some[LOOKS];
          look_for(some, first + (int)threadIdx.x, blocks, none);
          x = merge(x, some);
        }
      }
      if (threadIdx.x == 0) slots.row = x;
    }
    block_barrier();
    return slots.row;
  }

  // Numbers of blocks first, first + WARP, .., when they are there; `none` past the last.
  __device__ __forceinline__ void look_for(Pair<C> (&x)[LOOKS], int first, int blocks, Pair<C> none) const {
    u64 w[LOOKS][WORDS] = {};
    for (bool missing = true; missing;) {
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i)
          if (first + k * WARP < blocks && !w[k][i]) w[k][i] = look(slots.numbers + (first + k * WARP) * WORDS + i);
      }
      missing = false;
#pragma unroll
      for (int k = 0; k < LOOKS; ++k) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) missing |= first + k * WARP < blocks && !w[k][i];
      }
    }
#pragma unroll
    for (int k = 0; k < LOOKS; ++k) x[k] = first + k * WARP < blocks ? received(w[k]) : none;
  }
};

} // namespace online
