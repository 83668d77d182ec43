// How tests/host_kernels/main.rs launches a kernel: the scheduler of threads.h, and one function for all of them.
#include "rows.cuh"

using namespace online;

namespace host {

Fiber *current;
Dim block_size, grid_size;
std::vector<Block> cluster;
std::vector<Storage> storages;
bool bulk;
unsigned started, messages;
const char *failure;

static ucontext_t scheduler;
static const std::function<void()> *body;
static unsigned launches;

void wait_for_others() { swapcontext(&current->context, &scheduler); }

static void enter() {
  (*body)();
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

// Which thread is the i-th to run: first to last, last to first, or far apart, by launch. A barrier that is missing
// shows in one of them.
static unsigned place(unsigned i, unsigned threads) {
  switch (launches % 3) {
  case 0: return i;
  case 1: return threads - 1 - i;
  default: return (i * 37 + 11) % threads; // 37 divides no block size
  }
}

// The blocks from `first` on that are a cluster.
static void run_cluster(std::vector<Fiber> &fibers, unsigned first, size_t shared_bytes) {
  started = messages = 0;
  for (unsigned i = 0; i < cluster.size(); ++i) {
    Block &b = cluster[i];
    b.index.x = first + i;
    b.warps.assign(block_size.x / 32, Warp());
    b.barrier_arrived = b.barrier_complete = 0;
    b.shared_memory.resize(shared_bytes / sizeof(std::max_align_t) + 1);
    // What is read before it is written, shows: NaN in every format.
    memset(b.shared_memory.data(), 0xff, b.shared_memory.size() * sizeof(std::max_align_t));
  }
  unsigned threads = (unsigned)fibers.size();
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &f = fibers[i];
    f.index.x = i % block_size.x;
    f.block = &cluster[i / block_size.x];
    f.exchanges = f.barriers = 0;
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    makecontext(&f.context, enter, 0);
  }
  for (unsigned left = threads; left && !failure;) {
    bool progress = false;
    for (unsigned i = 0; i < threads; ++i) {
      Fiber &f = fibers[place(i, threads)];
      if (f.done || failure) continue;
      unsigned before = f.exchanges + f.barriers + started + messages;
      current = &f;
      swapcontext(&scheduler, &f.context);
      left -= f.done;
      progress |= f.done || f.exchanges + f.barriers + started + messages != before;
    }
    if (!progress && !failure) failure = "lanes or threads wait for others that never come";
  }
}

const char *run_grid(unsigned grid, unsigned block, unsigned cluster_size, size_t shared_bytes, const std::function<void()> &kernel) {
  failure = nullptr;
  ++launches;
  body = &kernel;
  grid_size.x = grid;
  block_size.x = block;
  cluster.resize(cluster_size);
  std::vector<Fiber> fibers(block * cluster_size);
  for (Fiber &f : fibers) f.stack.resize(64 << 10);
  for (unsigned first = 0; first < grid && !failure; first += cluster_size) run_cluster(fibers, first, shared_bytes);
  return failure;
}

} // namespace host

// `at` and `data`: the operands, the output last; `bytes` of each storage; `share`, the kernel's last argument.
extern "C" const char *launch(void *kernel, const Rows *rows, const Operand *at, void **data, const size_t *bytes, int operands,
                              int share, unsigned grid, unsigned block, unsigned cluster, size_t shared_bytes, bool bulk) {
  host::bulk = bulk;
  host::storages.clear();
  for (int i = 0; i < operands; ++i) host::storages.push_back({(const char *)data[i], bytes[i], i == operands - 1});
  return host::run_grid(grid, block, cluster, shared_bytes, [&] {
    if (operands == 2)
      ((void (*)(Rows, Operand, Operand, void *, void *, int))kernel)(*rows, at[0], at[1], data[0], data[1], share);
    else
      ((void (*)(Rows, Operand, Operand, Operand, void *, void *, void *, int))kernel)(*rows, at[0], at[1], at[2], data[0], data[1],
                                                                                        data[2], share);
  });
}
