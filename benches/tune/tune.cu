// Times variants of the kernels side by side, without Rust: the quick way to choose a shape or to try a change. 600
// variants take 5 seconds on an H200.
//
//   nvcc -arch=sm_90 -std=c++17 -O3 -cubin -o a.cubin kernels/cluster.cu       one cubin a variant of the source
//   nvcc -arch=sm_90 -std=c++17 -O2 -o tune benches/tune/tune.cu -lcuda
//   ./tune SPEC [SECONDS]          most seconds of replay a variant; default 0.01
//
// SPEC has a line for each shape, and below it one for each variant:
//
//   shape ROWS COLS f32|bf16|f64 0|1                                           1: backward
//   run LABEL CUBIN KERNEL GRID BLOCK CLUSTER SHARED_BYTES SHARE [CARVEOUT [WORKSPACE]]
//
// CARVEOUT: percent of L1, or -1 for the driver's choice. WORKSPACE: words of 8 bytes, zeroed before each launch, for the
// families gang and stream: 16 and, for each block of the grid, 1, or 2 for f64 (`workspace` in src/plan.rs). A LABEL that
// ends in "overlap" is launched as the crate does: to begin while the launch before it ends.
//
// Method as in benches/cuda.rs: K (input, output) pairs of 4 times 60 MB and more, launched back to back in one CUDA
// graph; median replay / K. Results of up to 64 rows are held against f64 on the GPU; WRONG marks those that are off.
// Backward takes any numbers for y, so that its relative error there says little.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_bf16.h>
#include <map>
#include <string>
#include <vector>

typedef long long i64;

// Ends the program: a tool, not a library.
#define CHECK(call)                                                                                                              \
  do {                                                                                                                           \
    CUresult result = (call);                                                                                                    \
    if (result != CUDA_SUCCESS) {                                                                                                \
      const char *text = "?";                                                                                                    \
      cuGetErrorString(result, &text);                                                                                           \
      fprintf(stderr, "tune: %s: %s (line %d)\n", #call, text, __LINE__);                                                        \
      exit(1);                                                                                                                   \
    }                                                                                                                            \
  } while (0)

// As kernels/rows.cuh declares them.
struct Rows {
  i64 rows, cols, dims, sizes[12];
};
struct Operand {
  i64 offset, col_stride, len, strides[12];
};

enum Type { F32, BF16, F64 };

__device__ double get(const void *p, i64 i, Type type) {
  return type == F32 ? ((const float *)p)[i] : type == BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[i]) : ((const double *)p)[i];
}

__global__ void fill(void *p, i64 n, Type type, unsigned seed, float deviation) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
    unsigned long long z = (i + 1) * 0x9E3779B97F4A7C15ull + seed; // SplitMix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float u = ((z >> 40) + 1) / 16777217.0f, angle = (z & 0xffffff) / 16777216.0f * 6.2831853f;
    float x = deviation * sqrtf(-2 * logf(u)) * cosf(angle);
    if (type == F32)
      ((float *)p)[i] = x;
    else if (type == BF16)
      ((__nv_bfloat16 *)p)[i] = __float2bfloat16(x);
    else
      ((double *)p)[i] = x;
  }
}

// worst[0]: largest absolute error; worst[1]: largest relative one, where the result is above 1e-30.
__global__ void compare(const void *x, const void *g, const void *y, i64 cols, Type type, bool backward, double *worst) {
  __shared__ double part[256];
  const i64 row = blockIdx.x * cols;
  const int t = threadIdx.x;
  double m = -INFINITY, d = 0;
  for (i64 c = t; c < cols && !backward; c += 256) m = fmax(m, get(x, row + c, type));
  part[t] = m;
  __syncthreads();
  for (int i = 0; i < 256; ++i) m = fmax(m, part[i]);
  __syncthreads();
  for (i64 c = t; c < cols; c += 256)
    d += backward ? get(x, row + c, type) * get(g, row + c, type) : exp(get(x, row + c, type) - m);
  part[t] = d;
  __syncthreads();
  d = 0;
  for (int i = 0; i < 256; ++i) d += part[i];
  double absolute = 0, relative = 0;
  for (i64 c = t; c < cols; c += 256) {
    double in = get(x, row + c, type), want = backward ? in * (get(g, row + c, type) - d) : exp(in - m) / d;
    double error = fabs(get(y, row + c, type) - want);
    if (!(error < 1e30)) error = 1e30; // NaN too
    absolute = fmax(absolute, error);
    if (fabs(want) > 1e-30) relative = fmax(relative, error / fabs(want));
  }
  atomicMax((unsigned long long *)worst, __double_as_longlong(absolute));
  atomicMax((unsigned long long *)worst + 1, __double_as_longlong(relative));
}

static CUstream stream;

// Microseconds a launch of what `launch(k)` does for k in 0 .. count, or less than 0 if it cannot be captured.
template <class Launch> double replay(int count, double seconds, Launch launch) {
  CUgraph graph = nullptr;
  CUgraphExec exec;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  bool launched = true;
  for (int k = 0; k < count && launched; ++k) launched = launch(k) == CUDA_SUCCESS;
  if (cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS || !launched) return -1;
  CHECK(cuGraphInstantiate(&exec, graph, 0));
  CUevent begin, end;
  CHECK(cuEventCreate(&begin, 0));
  CHECK(cuEventCreate(&end, 0));
  auto once = [&] {
    CHECK(cuEventRecord(begin, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuEventRecord(end, stream));
    CHECK(cuEventSynchronize(end));
    float ms;
    CHECK(cuEventElapsedTime(&ms, begin, end));
    return (double)ms * 1e3;
  };
  once();
  std::vector<double> times(std::max(5, std::min(200, (int)(seconds * 1e6 / once()))));
  for (double &time : times) time = once();
  std::sort(times.begin(), times.end());
  cuEventDestroy(begin);
  cuEventDestroy(end);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  return times[times.size() / 2] / count;
}

// The pairs of one shape, side by side in one allocation: input (y and g backward), output.
struct Shape {
  i64 rows, cols;
  Type type;
  bool backward;
  size_t tensor;
  int count;
  CUdeviceptr memory;
  double copy_us;

  CUdeviceptr at(int k, int operand) const { return memory + ((size_t)k * (backward ? 3 : 2) + operand) * padded(); }
  size_t padded() const { return (tensor + 511) / 256 * 256; }
};

static Shape make(i64 rows, i64 cols, const char *type, bool backward, CUdeviceptr pool, size_t pool_bytes, double seconds) {
  Shape s = {rows, cols, !strcmp(type, "f32") ? F32 : !strcmp(type, "bf16") ? BF16 : F64, backward};
  s.tensor = rows * cols * (s.type == F32 ? 4 : s.type == BF16 ? 2 : 8);
  s.memory = pool;
  size_t pair = s.padded() * (backward ? 3 : 2);
  s.count = std::min<size_t>(500, std::max<size_t>(2, (240000000 + pair - 1) / pair));
  if (pair * s.count > pool_bytes) {
    fprintf(stderr, "tune: %lldx%lld %s needs more than %zu bytes\n", rows, cols, type, pool_bytes);
    exit(1);
  }
  for (int k = 0; k < s.count; ++k) {
    fill<<<1024, 256>>>((void *)s.at(k, 0), rows * cols, s.type, 7 * k + 1, 3.0f);
    if (backward) fill<<<1024, 256>>>((void *)s.at(k, 1), rows * cols, s.type, 7 * k + 5, 1.0f);
  }
  CHECK(cuCtxSynchronize());
  // A copy moves two tensors where backward moves three.
  s.copy_us = replay(s.count, seconds, [&](int k) { return cuMemcpyDtoDAsync(s.at(k, backward ? 2 : 1), s.at(k, 0), s.tensor, stream); });
  s.copy_us *= backward ? 1.5 : 1.0;
  double moved = (backward ? 3.0 : 2.0) * s.tensor;
  printf("== %lldx%lld %s %s K=%d copy %.2f us %.0f GB/s\n", rows, cols, type, backward ? "backward" : "forward", s.count, s.copy_us,
         moved / s.copy_us / 1e3);
  return s;
}

static CUfunction function(const std::string &cubin, const char *kernel) {
  static std::map<std::string, CUmodule> modules;
  if (!modules.count(cubin)) CHECK(cuModuleLoad(&modules[cubin], cubin.c_str()));
  CUfunction f = nullptr;
  return cuModuleGetFunction(&f, modules[cubin], kernel) == CUDA_SUCCESS ? f : nullptr;
}

struct Variant {
  char label[128], cubin[256], kernel[128];
  int grid, block, cluster, shared, share, carveout, workspace;
};

static void run(const Shape &s, Variant v, double seconds, double *worst) {
  CUfunction f = function(v.cubin, v.kernel);
  if (!f) return (void)printf("   %-34s no kernel %s in %s\n", v.label, v.kernel, v.cubin);
  if (v.shared) cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, v.shared);
  if (v.carveout >= 0) cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, v.carveout);
  if (v.cluster > 8) cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
  int registers = 0, blocks = 0;
  cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
  cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, v.block, v.shared);

  Rows rows = {s.rows, s.cols, 1, {s.rows}};
  Operand at = {0, 1, s.rows * s.cols, {s.cols}};
  CUlaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (v.cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count++].value.clusterDim = {(unsigned)v.cluster, 1, 1};
  }
  if (std::string(v.label).rfind("overlap") + 7 == strlen(v.label)) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  CUlaunchConfig config = {(unsigned)v.grid, 1, 1, (unsigned)v.block, 1, 1, (unsigned)v.shared, stream, attributes, count};
  CUdeviceptr workspace = 0;
  size_t workspace_bytes = (size_t)v.workspace * 8;
  if (workspace_bytes) CHECK(cuMemAlloc(&workspace, workspace_bytes));
  double us = replay(s.count, seconds, [&](int k) {
    if (workspace_bytes) CHECK(cuMemsetD8Async(workspace, 0, workspace_bytes, stream));
    CUdeviceptr x = s.at(k, 0), g = s.at(k, 1), out = s.at(k, s.backward ? 2 : 1);
    void *forward[] = {&rows, &at, &at, &x, &out, &v.share, &workspace}, *backward[] = {&rows, &at, &at, &at, &x, &g, &out, &v.share, &workspace};
    return cuLaunchKernelEx(&config, f, s.backward ? backward : forward, nullptr);
  });
  if (workspace_bytes) CHECK(cuMemFree(workspace));
  if (us < 0) return (void)printf("   %-34s cannot be launched\n", v.label);

  CHECK(cuMemsetD8((CUdeviceptr)worst, 0, 16));
  int k = s.count - 1;
  compare<<<(int)std::min<i64>(s.rows, 64), 256>>>((void *)s.at(k, 0), (void *)s.at(k, 1), (void *)s.at(k, s.backward ? 2 : 1), s.cols,
                                                   s.type, s.backward, worst);
  double error[2];
  CHECK(cuMemcpyDtoH(error, (CUdeviceptr)worst, 16));
  bool wrong = s.type == BF16 ? error[1] > 8e-3 : s.type == F64 ? error[1] > 1e-12 : !s.backward ? error[1] > 3e-6 : error[0] > 1e-2;
  printf("   %-34s %8.2f us %5.3f of copy  regs %3d blocks/SM %2d err %.1e rel %.1e%s\n", v.label, us, s.copy_us / us, registers, blocks,
         error[0], error[1], wrong ? " WRONG" : "");
}

int main(int argc, char **argv) {
  FILE *spec = argc > 1 ? fopen(argv[1], "r") : nullptr;
  if (!spec) return fprintf(stderr, "usage: tune SPEC [SECONDS]\n"), 2;
  double seconds = argc > 2 ? atof(argv[2]) : 0.01;
  CUdevice device;
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const size_t pool_bytes = 12ull << 30;
  CUdeviceptr pool, worst;
  CHECK(cuMemAlloc(&pool, pool_bytes));
  CHECK(cuMemAlloc(&worst, 16));

  Shape shape = {};
  char line[1024], type[16];
  while (fgets(line, sizeof line, spec)) {
    long long rows, cols;
    int backward;
    Variant v = {};
    v.carveout = -1;
    if (sscanf(line, "shape %lld %lld %15s %d", &rows, &cols, type, &backward) == 4)
      shape = make(rows, cols, type, backward, pool, pool_bytes, seconds);
    else if (shape.count && sscanf(line, "run %127s %255s %127s %d %d %d %d %d %d %d", v.label, v.cubin, v.kernel, &v.grid, &v.block,
                                   &v.cluster, &v.shared, &v.share, &v.carveout, &v.workspace) >= 8)
      run(shape, v, seconds, (double *)worst);
    else if (line[0] != '#' && line[0] != '\n')
      fprintf(stderr, "tune: not a line of a spec: %s", line);
    fflush(stdout);
  }
}
