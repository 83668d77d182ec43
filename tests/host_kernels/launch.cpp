// How tests/host_kernels/main.rs launches a kernel: the scheduler of threads.h, and one function for all of them.
#include "rows.cuh"

using namespace online;

namespace host {

Fiber *current;
Dim block_index, block_size, grid_size;
std::vector<Warp> warps;
std::vector<Storage> storages;
std::vector<std::max_align_t> shared_memory;
bool bulk;
unsigned barrier_arrived, barrier_complete;
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
static unsigned place(unsigned i) {
  switch (launches % 3) {
  case 0: return i;
  case 1: return block_size.x - 1 - i;
  default: return (i * 37 + 11) % block_size.x; // 37 divides no block size
  }
}

static void run_block(std::vector<Fiber> &fibers) {
  warps.assign(block_size.x / 32, Warp());
  barrier_arrived = barrier_complete = 0;
  for (unsigned i = 0; i < block_size.x; ++i) {
    Fiber &f = fibers[i];
    f.index.x = i;
    f.exchanges = f.barriers = 0;
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    makecontext(&f.context, enter, 0);
  }
  for (unsigned left = block_size.x; left && !failure;) {
    bool progress = false;
    for (unsigned i = 0; i < block_size.x; ++i) {
      Fiber &f = fibers[place(i)];
      if (f.done || failure) continue;
      unsigned before = f.exchanges + f.barriers;
      current = &f;
      swapcontext(&scheduler, &f.context);
      left -= f.done;
      progress |= f.done || f.exchanges + f.barriers != before;
    }
    if (!progress && !failure) failure = "lanes or threads wait for others that never come";
  }
}

const char *run_grid(unsigned grid, unsigned block, const std::function<void()> &kernel) {
  failure = nullptr;
  ++launches;
  body = &kernel;
  grid_size.x = grid;
  block_size.x = block;
  std::vector<Fiber> fibers(block);
  for (Fiber &f : fibers) f.stack.resize(64 << 10);
  for (block_index.x = 0; block_index.x < grid && !failure; ++block_index.x) run_block(fibers);
  return failure;
}

} // namespace host

// `at` and `data`: the operands, the output last; `bytes` of each storage; `share`, the kernel's last argument.
extern "C" const char *launch(void *kernel, const Rows *rows, const Operand *at, void **data, const size_t *bytes, int operands,
                              int share, unsigned grid, unsigned block, size_t shared_bytes, bool bulk) {
  host::bulk = bulk;
  host::shared_memory.assign(shared_bytes / sizeof(std::max_align_t) + 1, std::max_align_t());
  host::storages.clear();
  for (int i = 0; i < operands; ++i) host::storages.push_back({(const char *)data[i], bytes[i], i == operands - 1});
  return host::run_grid(grid, block, [&] {
    if (operands == 2)
      ((void (*)(Rows, Operand, Operand, void *, void *, int))kernel)(*rows, at[0], at[1], data[0], data[1], share);
    else
      ((void (*)(Rows, Operand, Operand, Operand, void *, void *, void *, int))kernel)(*rows, at[0], at[1], at[2], data[0], data[1],
                                                                                        data[2], share);
  });
}
