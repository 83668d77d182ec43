#!/usr/bin/env bash
# Compiles every kernels/*.cu for every supported architecture, prints the registers ptxas reports, and fails if a
# kernel that caches rows (warp_*, block_*, cluster_*, cached_*, gang_*, tile_*, slab_*, chunk_*) spills or has a stack frame: its cache would live in memory. Needs nvcc
# (scripts/cuda-toolkit.sh), no GPU.
#
#   scripts/kernel-gate.sh [ARCH...]       all kernels; default architectures 75 80 86 90 100 120
#   scripts/kernel-gate.sh --self-test     proves on made-up kernels that the gate can fail
set -euo pipefail

die() { echo "kernel-gate: $*" >&2; exit 1; }
command -v nvcc >/dev/null || die 'nvcc is not on PATH (eval "$(scripts/cuda-toolkit.sh)" makes one)'
root=$(cd "$(dirname "$0")/.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# gate DIR ARCH...: the verdict on DIR/*.cu, compiled with the flags that build.rs uses.
gate() {
    local dir=$1 out job
    shift
    out=$(mktemp -d "$tmp/XXXXXX")
    compgen -G "$dir/*.cu" >/dev/null || { echo "FAIL: no .cu file in $dir"; return 1; }
    for cu in "$dir"/*.cu; do for arch in "$@"; do echo "$arch $cu"; done; done |
        FLAGS=$(<"$root/kernels/nvcc-flags.txt") OUT=$out xargs -P "$(nproc)" -d "\n" -n 1 bash -c '
            arch=${1%% *} cu=${1#* }
            log=$OUT/$arch.$(basename "$cu" .cu)
            nvcc $FLAGS -cubin -arch=sm_$arch -Xptxas -v -o "$log.cubin" "$cu" >"$log.log" 2>&1 || touch "$log.failed"' gate
    for job in "$out"/*.failed; do
        [ -e "$job" ] || continue
        job=${job%.failed}
        echo "FAIL: $(basename "$job" | sed 's/\([0-9]*\)\.\(.*\)/\2.cu does not compile for sm_\1/'):"
        cat "$job.log"
        return 1
    done
    python3 - "$out" <<'PY'
import pathlib, re, sys

CACHED = "warp_", "block_", "cluster_", "cached_", "gang_", "tile_", "slab_", "chunk_"
rows, bad, total = [], [], 0
for log in pathlib.Path(sys.argv[1]).glob("*.log"):
    arch, file = log.stem.split(".", 1)
    entry = name = None
    kernels, cached = {}, 0
    for line in log.read_text().splitlines():
        if m := re.search(r"Compiling entry function '(\S+)'", line):
            entry = m[1]
            cached += entry.startswith(CACHED)
        elif m := re.search(r"Function properties for (\S+)", line):
            name = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            # A device function that was not inlined counts as the register-cached kernel that may call it.
            if any(map(int, m.groups())) and (name != entry or entry.startswith(CACHED)):
                bad.append(f"sm_{arch} {file}.cu {name}: {m[0]}")
        elif m := re.search(r"Used (\d+) registers", line):
            kernels[entry] = int(m[1])
    total += len(kernels)
    top = max(kernels, key=kernels.get, default="none")
    rows.append((file, int(arch), len(kernels), cached, kernels.get(top, 0), top))
print(f"{'file':<20}{'arch':>6}{'kernels':>9}{'cached':>8}{'max regs':>10}  in")
for file, arch, n, cached, regs, top in sorted(rows):
    print(f"{file:<20}{arch:>6}{n:>9}{cached:>8}{regs:>10}  {top}")
if any(r[2] == 0 for r in rows):
    sys.exit("FAIL: a .cu file holds no kernel")
if not any(r[3] for r in rows):
    sys.exit("FAIL: no kernel that caches rows (warp_*, block_*, cluster_*, cached_*, gang_*, tile_*, slab_*, chunk_*) found")
if bad:
    sys.exit("FAIL: stack frame or spills in register-cached kernels:\n  " + "\n  ".join(sorted(bad)))
print(f"PASS: {total} kernels compiled, no stack frame and no spill in {sum(r[3] for r in rows)} register-cached ones")
PY
}

# expect pass|fail NAME: runs the gate on the source given on stdin.
expect() {
    local got=pass
    mkdir "$tmp/$2"
    cat >"$tmp/$2/$2.cu"
    gate "$tmp/$2" 90 >"$tmp/$2.out" 2>&1 || got=fail
    [ $got = "$1" ] || { cat "$tmp/$2.out"; die "self-test: $2 should $1"; }
    echo "self-test: $2 is seen to $1: $(grep -E '^(PASS|FAIL)' "$tmp/$2.out")"
}

case "${1:-}" in
    --self-test)
        expect pass constant-index <<<'extern "C" __global__ void warp_a(float *p) {
            float c[8]; for (int i = 0; i < 8; ++i) c[i] = p[i * 32 + threadIdx.x];
            for (int i = 0; i < 8; ++i) p[i * 32 + threadIdx.x] = c[7 - i]; }'
        expect fail runtime-index <<<'extern "C" __global__ void warp_a(float *p, int n) {
            float c[64] = {}; for (int i = 0; i < n; ++i) c[int(p[i]) & 63] += 1;
            for (int i = 0; i < 64; ++i) p[i * 32 + threadIdx.x] = c[i]; }'
        expect fail spill <<<'extern "C" __global__ void __launch_bounds__(1024, 2) block_a(float *p) {
            float c[96]; for (int i = 0; i < 96; ++i) c[i] = p[i * 32 + threadIdx.x];
            __syncthreads();
            for (int i = 0; i < 96; ++i) p[i * 32 + threadIdx.x] = c[95 - i]; }'
        expect pass not-register-cached <<<'extern "C" __global__ void warp_a(float *p) { *p = 1; }
            extern "C" __global__ void grid_a(float *p, int n) {
            float c[64] = {}; for (int i = 0; i < n; ++i) c[int(p[i]) & 63] += 1;
            for (int i = 0; i < 64; ++i) p[i * 32 + threadIdx.x] = c[i]; }'
        expect fail no-kernel <<<'__device__ int x;'
        expect fail no-cached-kernel <<<'extern "C" __global__ void grid_a(float *p) { *p = 1; }'
        expect fail syntax-error <<<'extern "C" __global__ void warp_a(float *p) { p = ; }'
        ;;
    -*) die "unknown option $1" ;;
    *)
        [ $# -gt 0 ] || set -- 75 80 86 90 100 120
        gate "$root/kernels" "$@"
        ;;
esac
