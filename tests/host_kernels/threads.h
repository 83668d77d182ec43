// A block of GPU threads on one CPU thread: each is a fiber that runs until it must wait for others. Several blocks
// run at once where they wait for each other: each on a CPU thread of its own, one after another in turns, so that its
// __shared__ variables are thread_local ones.
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
  std::vector<Warp> warps;
  std::vector<std::max_align_t> shared_memory;
  unsigned barrier_arrived, barrier_complete;
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
extern std::vector<Storage> storages;
extern bool bulk;
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
  if (++block->barrier_arrived == block_size.x) {
    block->barrier_arrived = 0;
    block->barrier_complete++;
  }
  while (block->barrier_complete <= turn) wait_for_others();
}

inline void check_access(const void *p, bool write) {
  const char *at = (const char *)p;
  require((size_t)at % 16 == 0, "a 16-byte access that is not on 16 bytes");
  for (const Storage &s : storages)
    if (at >= s.base && at + 16 <= s.base + s.bytes && (s.written || !write)) return;
  require(false, write ? "a 16-byte store outside the output" : "a 16-byte load outside every storage");
}

// Null, or what went wrong. `at_once`: how many blocks run at once.
const char *run_grid(unsigned grid, unsigned block, unsigned at_once, size_t shared_bytes, const std::function<void()> &kernel);

} // namespace host
