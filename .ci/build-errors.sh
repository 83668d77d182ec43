#!/usr/bin/env bash
# What build.rs says where it cannot build, and that another compute capability gives other PTX. Runs the build script
# that cargo compiled (TARGET_DIR, default target/cuda) by itself: through cargo, candle's own would fail beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:-target/cuda}
script=$PWD/$(ls -t "$target"/release/build/candle-online-softmax-*/build-script-build | head -1)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# A PATH with the compiler's tools but neither nvcc nor nvidia-smi.
mkdir "$tmp/bin"
for tool in sh bash env uname; do ln -s "$(command -v $tool)" "$tmp/bin/"; done
nvcc_only=$tmp/nvcc_only
mkdir "$nvcc_only"
ln -s "$(readlink -f "$(command -v nvcc)")" "$nvcc_only/nvcc"

fails() { # EXPECTED VAR=VALUE...: the script ends with an error that has EXPECTED, and does not panic
    local expected=$1 said
    shift
    if said=$(env "$@" OUT_DIR="$tmp" "$script" 2>&1); then
        echo "FAIL: $* built, but must say: $expected"
        exit 1
    fi
    if [[ $said == *panicked* || $said != *"$expected"* ]]; then
        printf 'FAIL: %s must say: %s\ngot: %s\n' "$*" "$expected" "$said"
        exit 1
    fi
    echo "ok: $expected"
}
fails 'requires nvcc on PATH' PATH="$tmp/bin"
fails 'nvidia-smi does not start; set CUDA_COMPUTE_CAP' -u CUDA_COMPUTE_CAP PATH="$nvcc_only:$tmp/bin"
fails 'CUDA_COMPUTE_CAP must be a number such as 75, 80, 86 or 90, got "90a"' CUDA_COMPUTE_CAP=90a
fails 'requires compute capability 70 or newer, got 61' CUDA_COMPUTE_CAP=61
fails 'got 99' CUDA_COMPUTE_CAP=99

for cap in 75 86; do
    CUDA_COMPUTE_CAP=$cap OUT_DIR=$tmp "$script" >"$tmp/said"
    [ "$(grep -h '^\.target' "$tmp"/*.ptx | sort -u)" = ".target sm_$cap" ] || { echo "FAIL: the PTX is not for sm_$cap"; exit 1; }
    for ptx in "$tmp"/*.ptx; do [ "${ptx%.ptx}.fatbin" -nt "$ptx" ] || { echo "FAIL: no fat binary of $ptx"; exit 1; }; done
    echo "ok: sm_$cap"
done
for line in cargo:rerun-if-changed=kernels cargo:rerun-if-env-changed=CUDA_COMPUTE_CAP; do
    grep -qx "$line" "$tmp/said" || { echo "FAIL: build.rs does not print $line"; exit 1; }
done
