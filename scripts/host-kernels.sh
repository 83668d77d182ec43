#!/usr/bin/env bash
# Compiles kernels/*.cu for the CPU, with tests/host_kernels/device.cuh in place of the GPU's instructions, and runs the
# tests that launch them there: their arithmetic, indices, merges and barriers, without a GPU. Needs g++ 12 or newer.
#
#   scripts/host-kernels.sh [CARGO_TEST_ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/target/host-kernels
rm -rf "$out"
mkdir -p "$out"
cp kernels/*.cu kernels/*.cuh "$out"
rm "$out/ladder.cu" # a benchmark's, over no device.cuh
cp tests/host_kernels/* "$out" # device.cuh among them
# No contraction: the device's add and mul are never fused.
flags=(-std=c++17 -O1 -g -ffp-contract=off -Wall -Wno-unknown-pragmas -Werror -fPIC -pthread)
jobs=()
for source in "$out"/*.cu "$out/launch.cpp"; do
    g++ "${flags[@]}" -x c++ -c -o "$source.o" "$source" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
g++ -shared -pthread -o "$out/kernels.so" "$out"/*.o
COS_HOST_KERNELS=$out/kernels.so cargo test --test host_kernels "$@"
