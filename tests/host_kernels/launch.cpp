// How tests/host_kernels/main.rs launches a kernel: the scheduler of threads.h, and one function for all of them.
#include "rows.cuh"
#include <condition_variable>
#include <mutex>
#include <thread>

using namespace online;

namespace host {

Fiber *current;
Block *block;
Dim block_size, grid_size;
unsigned cluster_blocks;
std::vector<Storage> storages;
bool bulk;
unsigned events;
const char *failure;

static thread_local char variables; // among the __shared__ ones, as all thread_local ones of a library are
static const std::function<void()> *body;
static unsigned launches;
static constexpr size_t STACK_BYTES = 64 << 10; // of a fiber

void wait_for_others() { swapcontext(&current->context, &block->scheduler); }

static void enter() {
  (*body)();
  current->done = true;
  ++events;
  wait_for_others();
}

// Which thread is the i-th to run: first to last, last to first, or far apart, by launch. A barrier that is missing
// shows in one of them.
static unsigned place(unsigned i) {
  switch (launches % 3) {
  case 0: return i;
  case 1: return block_size.x - 1 - i;
  default: return (i * 37 + 11) % block_size.x; // 37 divides no block size
  }
}

// Which cluster, or block without one, is the i-th to start: in order, or every other one first, by launch. A GPU does
// not say, and blocks that wait for their neighbours by number would wait for ever.
static unsigned cluster_place(unsigned i) {
  unsigned even = (grid_size.x / cluster_blocks + 1) / 2;
  return launches % 2 ? i : i < even ? 2 * i : 2 * (i - even) + 1;
}

static void start(Block &b, unsigned index, Block *cluster) {
  b.index.x = index;
  b.cluster = cluster;
  b.warps.assign(block_size.x / 32, Warp());
  b.barrier_arrived = b.barrier_complete = b.started = 0;
  b.left = block_size.x;
  // What is read before it is written, shows: NaN in every format.
  memset(b.shared_memory.data(), 0xff, b.shared_memory.size() * sizeof(std::max_align_t));
  for (unsigned i = 0; i < block_size.x; ++i) {
    Fiber &f = b.fibers[i];
    f.index.x = i;
    f.exchanges = f.barriers = 0;
    f.may_access = f.others_started = f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f.context, enter, 0);
  }
}

// Runs every thread of the block once, as far as it gets. Returns whether one got anywhere.
static bool run_round(Block &b) {
  unsigned before = events;
  block = &b;
  for (unsigned i = 0; i < block_size.x; ++i) {
    Fiber &f = b.fibers[place(i)];
    if (f.done || failure) continue;
    current = &f;
    swapcontext(&b.scheduler, &f.context);
    b.left -= f.done;
  }
  return events != before;
}

// Whose turn it is of CPU threads that take them one after another, until each has left.
class Turns {
public:
  explicit Turns(unsigned count) : changed(count), leaves(count) {}

  void wait(unsigned which) {
    std::unique_lock<std::mutex> lock(mutex);
    changed[which].wait(lock, [&] { return now == which; });
  }
  void pass(bool leave = false) {
    std::unique_lock<std::mutex> lock(mutex);
    leaves[now] = leave;
    for (size_t i = 0; i < leaves.size(); ++i) {
      now = (now + 1) % leaves.size();
      if (!leaves[now]) break;
    }
    changed[now].notify_one();
  }

private:
  std::mutex mutex;
  std::vector<std::condition_variable> changed; // to be each one's
  std::vector<bool> leaves;
  size_t now = 0;
};

const char *run_grid(unsigned grid, unsigned threads, unsigned at_once, unsigned cluster, size_t shared_bytes,
                     const std::function<void()> &kernel) {
  failure = nullptr;
  ++launches;
  body = &kernel;
  grid_size.x = grid;
  block_size.x = threads;
  cluster_blocks = cluster;
  at_once = at_once < grid ? at_once : grid;
  Turns turns(at_once);
  std::vector<Block> blocks(at_once);
  unsigned next = 0, idle = 0; // the next cluster to start; rounds since one got anywhere
  auto run_blocks = [&](unsigned slot) {
    Block &own = blocks[slot], *first = &blocks[slot / cluster * cluster];
    own.fibers = std::vector<Fiber>(threads);
    for (Fiber &f : own.fibers) f.stack.reset(new char[STACK_BYTES]); // not touched before it is used
    own.shared_memory.resize(shared_bytes / sizeof(std::max_align_t) + 1);
    own.variables = &variables;
    // First all, so that whoever is the first may start the others.
    turns.wait(slot);
    turns.pass();
    turns.wait(slot);
    while (!failure) {
      bool ended = true;
      for (unsigned i = 0; i < cluster; ++i) ended &= !first[i].left;
      if (ended) {
        if (next == grid / cluster) break;
        unsigned index = cluster_place(next++) * cluster;
        for (unsigned i = 0; i < cluster; ++i) start(first[i], index + i, first);
      }
      idle = run_round(own) ? 0 : idle + 1;
      if (idle > at_once && !failure) failure = "lanes, threads or blocks wait for others that never come";
      turns.pass();
      turns.wait(slot);
    }
    turns.pass(true);
  };
  std::vector<std::thread> slots;
  for (unsigned slot = 1; slot < at_once; ++slot) slots.emplace_back(run_blocks, slot);
  run_blocks(0);
  for (std::thread &slot : slots) slot.join();
  return failure;
}

} // namespace host

// `at` and `data`: the operands, the output last; `bytes` of each storage; `share` and `workspace`, the kernel's last arguments;
// `at_once`: how many blocks run at once, of which each `cluster` are one.
extern "C" const char *launch(void *kernel, const Rows *rows, const Operand *at, void **data, const size_t *bytes, int operands,
                              int share, u64 *workspace, unsigned grid, unsigned block, unsigned at_once, unsigned cluster,
                              size_t shared_bytes, bool bulk) {
  host::bulk = bulk;
  host::storages.clear();
  for (int i = 0; i < operands; ++i) host::storages.push_back({(const char *)data[i], bytes[i], i == operands - 1});
  // A kernel that declares no workspace leaves it where it is.
  return host::run_grid(grid, block, at_once, cluster, shared_bytes, [&] {
    if (operands == 2)
      ((void (*)(Rows, Operand, Operand, void *, void *, int, u64 *))kernel)(*rows, at[0], at[1], data[0], data[1], share, workspace);
    else
      ((void (*)(Rows, Operand, Operand, Operand, void *, void *, void *, int, u64 *))kernel)(*rows, at[0], at[1], at[2], data[0],
                                                                                               data[1], data[2], share, workspace);
  });
}
