// A block of GPU threads on one CPU thread: each is a fiber that runs until it must wait for others. Several blocks
// run at once where they wait for each other, those of a gang or of a cluster: each on a CPU thread of its own, one after
// another in turns, so that its __shared__ variables are thread_local ones.
//
// Warps exchange values all 32 lanes together, as __shfl_*_sync with a full mask does; if some lanes wait for
// ever, because others have ended or wait elsewhere, the launch fails and says so.
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace host {

struct Dim {
  unsigned x;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Dim index;
  unsigned exchanges = 0, barriers = 0; // how many it has entered
  bool may_access = false;     // memory: the launches before have ended
  bool others_started = false; // in the cluster, as it knows
  bool done = false;
};

// Values of one exchange: two sets, since a lane may enter the next while others read this.
struct Warp {
  unsigned char values[2][32][8];
  unsigned arrived = 0, complete = 0; // lanes in the exchange that forms; exchanges that are whole
};

// A block that runs.
struct Block {
  ucontext_t scheduler;
  std::vector<Fiber> fibers;
  unsigned left = 0; // that have not ended
  std::vector<Warp> warps;
  std::vector<std::max_align_t> shared_memory;
  const char *variables; // the __shared__ ones of its CPU thread: a place among them, the same in every block
  unsigned barrier_arrived, barrier_complete;
  unsigned started; // threads that have passed cluster_started()
  Block *cluster;   // its cluster's first; the others follow
  Dim index;
};

struct Storage {
  const char *base;
  size_t bytes;
  bool written; // may be
};

extern Fiber *current;
extern Block *block; // the one whose turn it is
extern Dim block_size, grid_size;
extern unsigned cluster_blocks; // of a cluster
extern std::vector<Storage> storages;
extern bool bulk;
extern unsigned events; // of those that others may wait for
extern const char *failure;

void wait_for_others();

[[noreturn]] inline void stop() {
  for (;;) wait_for_others();
}
inline void require(bool ok, const char *what) {
  if (ok) return;
  if (!failure) failure = what;
  stop();
}

inline int lane() { return current->index.x % 32; }

template <class T> T exchange(T x, int from) {
  static_assert(sizeof(T) <= 8, "");
  Warp &warp = block->warps[current->index.x / 32];
  unsigned turn = current->exchanges++;
  memcpy(warp.values[turn % 2][lane()], &x, sizeof x);
  ++events;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    warp.complete++;
  }
  while (warp.complete <= turn) wait_for_others();
  memcpy(&x, warp.values[turn % 2][from], sizeof x);
  return x;
}

inline void barrier() {
  unsigned turn = current->barriers++;
  ++events;
  if (++block->barrier_arrived == block_size.x) {
    block->barrier_arrived = 0;
    block->barrier_complete++;
  }
  while (block->barrier_complete <= turn) wait_for_others();
}

inline void cluster_started() {
  ++events;
  ++block->started;
}
inline void cluster_wait_started() {
  for (unsigned i = 0; i < cluster_blocks; ++i)
    while (block->cluster[i].started < block_size.x) wait_for_others();
  current->others_started = true;
}

// Where block `rank` of the cluster has what this one has at p: in the memory of the launch, or a __shared__ variable.
template <class T> T *there(T *p, int rank) {
  Block &other = block->cluster[rank];
  require(current->others_started, "a message to a block that may not have started");
  require(other.left, "a message to a block that has ended");
  const char *at = (const char *)p, *own = (const char *)block->shared_memory.data();
  bool of_launch = at >= own && at < own + block->shared_memory.size() * sizeof(std::max_align_t);
  return (T *)(of_launch ? (const char *)other.shared_memory.data() + (at - own) : other.variables + (at - block->variables));
}

inline void check_access(const void *p, bool write) {
  const char *at = (const char *)p;
  require(current->may_access, "an access before the launches before this one have ended");
  require((size_t)at % 16 == 0, "a 16-byte access that is not on 16 bytes");
  for (const Storage &s : storages)
    if (at >= s.base && at + 16 <= s.base + s.bytes && (s.written || !write)) return;
  require(false, write ? "a 16-byte store outside the output" : "a 16-byte load outside every storage");
}

// Null, or what went wrong. `at_once`: how many blocks run at once, whole clusters.
const char *run_grid(unsigned grid, unsigned threads, unsigned at_once, unsigned cluster, size_t shared_bytes,
                     const std::function<void()> &kernel);

} // namespace host
