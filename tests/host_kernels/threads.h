// A block of GPU threads on one CPU thread: each is a fiber that runs until it must wait for others. The blocks of a
// cluster run together; one by one all others, so that their static shared memory is one block's at a time.
//
// Warps exchange values all 32 lanes together, as __shfl_*_sync with a full mask does; if some lanes wait for
// ever, because others have ended or wait elsewhere, the launch fails and says so.
#pragma once
#include <cstddef>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <ucontext.h>
#include <vector>

namespace host {

struct Dim {
  unsigned x;
};

struct Block;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Dim index;
  Block *block;
  unsigned exchanges = 0, barriers = 0; // how many it has entered
  bool done = false;
};

// Values of one exchange: two sets, since a lane may enter the next while others read this.
struct Warp {
  unsigned char values[2][32][8];
  unsigned arrived = 0, complete = 0; // lanes in the exchange that forms; exchanges that are whole
};

struct Block {
  Dim index;
  std::vector<Warp> warps;
  std::vector<std::max_align_t> shared_memory;
  unsigned barrier_arrived = 0, barrier_complete = 0;
};

struct Storage {
  const char *base;
  size_t bytes;
  bool written; // may be
};

extern Fiber *current;
extern Dim block_size, grid_size;
extern std::vector<Block> cluster; // that runs
extern std::vector<Storage> storages;
extern bool bulk;
extern unsigned started;  // threads of the cluster that have passed cluster_started()
extern unsigned messages; // sent in it
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
  Warp &warp = current->block->warps[current->index.x / 32];
  unsigned turn = current->exchanges++;
  memcpy(warp.values[turn % 2][lane()], &x, sizeof x);
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    warp.complete++;
  }
  while (warp.complete <= turn) wait_for_others();
  memcpy(&x, warp.values[turn % 2][from], sizeof x);
  return x;
}

inline void barrier() {
  Block &block = *current->block;
  unsigned turn = current->barriers++;
  if (++block.barrier_arrived == block_size.x) {
    block.barrier_arrived = 0;
    block.barrier_complete++;
  }
  while (block.barrier_complete <= turn) wait_for_others();
}

// Where block `rank` of the cluster has what this one has at p.
template <class T> T *there(T *p, int rank) {
  size_t at = (char *)p - (char *)current->block->shared_memory.data();
  require(at < current->block->shared_memory.size() * sizeof(std::max_align_t), "a message to what is no shared memory");
  return (T *)((char *)cluster[rank].shared_memory.data() + at);
}

inline void check_access(const void *p, bool write) {
  const char *at = (const char *)p;
  require((size_t)at % 16 == 0, "a 16-byte access that is not on 16 bytes");
  for (const Storage &s : storages)
    if (at >= s.base && at + 16 <= s.base + s.bytes && (s.written || !write)) return;
  require(false, write ? "a 16-byte store outside the output" : "a 16-byte load outside every storage");
}

// Null, or what went wrong.
const char *run_grid(unsigned grid, unsigned block, unsigned cluster_size, size_t shared_bytes, const std::function<void()> &kernel);

} // namespace host
