#!/usr/bin/env bash
# All GPU tests of tests/operators on the GPU of this machine, then the same under compute-sanitizer's memcheck,
# racecheck and initcheck. Fails if a test fails, none ran on CUDA, or a sanitizer reports anything.
#
#   scripts/gpu-check.sh [OUT_DIR [CHECK...]]      logs go to OUT_DIR (default: target/gpu-check);
#                                                  CHECK: tests, racecheck, memcheck, initcheck (default: all four)
#
# Needs compute-sanitizer (in CUDA toolkits; scripts/cuda-toolkit.sh does not bring it), and cargo, python3 and nvcc or
# OPERATORS=FILE: the test binary, built elsewhere. Under the sanitizers, which slow a launch
# 50 times or more, the tests of every length and of tensors past 2^32 elements are left out (the other tests hold
# every kernel family, dtype and layout), and each test is a process of its own: with stream captures beside other
# tests' launches in one process racecheck stopped for good (H200, driver 580.159.04). Racecheck keeps memory of every
# launch, so tests over all layouts are four processes, each of a fourth of the table. Its time is a fixed cost of each
# launch: 318 s on two H200 with 32 cores did the 31 longest of its 145 runs. FIRST=REGEX: tests to begin with. RUNS=FILE: these
# runs alone, as OUT_DIR/runs has them, to go on after a time limit.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/target/gpu-check}"
export OUT_DIR
OUT_DIR=$(cd "${1:-$root/target/gpu-check}" && pwd)
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- tests racecheck memcheck initcheck
[ -z "${OPERATORS:-}" ] || OPERATORS=$(realpath "$OPERATORS")
cd "$root"

if [ -z "${OPERATORS:-}" ]; then
    OPERATORS=$(cargo test --release --features cuda --test operators --no-run --message-format json |
        python3 -c 'import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["target"]["name"] == "operators": print(m["executable"])')
fi
export OPERATORS COS_REQUIRE_CUDA=1

# TOOL NAME SHARD: one test, or one of four parts of it, on each GPU in turn; quiet if nothing is found.
one() {
    local log="$OUT_DIR/$1/${2//:/_}.${3%/*}" began=$SECONDS rc=0
    [ "$3" = 0/1 ] || export COS_SHARD=$3
    CUDA_VISIBLE_DEVICES=$((RANDOM % $(nvidia-smi -L | wc -l))) timeout 900 compute-sanitizer --tool "$1" \
        --require-cuda-init no --error-exitcode 9 "$OPERATORS" --exact "$2" >"$log" 2>&1 || rc=$?
    echo "$1 $2 $3 exit $rc $((SECONDS - began)) s" >>"$OUT_DIR/$1.txt"
    [ $rc = 0 ] || { echo "$1 $2 $3: exit $rc"; grep -vE '^running|^test ' "$log" | head -40; exit 1; }
}
export -f one

each() { # TOOL: all tests, as many at a time as there are cores, and 8 GiB of memory for each
    mkdir -p "$OUT_DIR/$1"
    : >"$OUT_DIR/$1.txt"
    # shapes_past_memory asks for more memory than there is, which memcheck reports as an error of the call.
    "$OPERATORS" --list cuda graph --skip giant --skip every_plan --skip formula_plan --skip shapes_past_memory |
        sed -n 's/: test$//p' >"$OUT_DIR/list"
    local gib first=${FIRST:-any_layout|views_|generated|invariance}
    gib=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
    { grep -E "$first" "$OUT_DIR/list" || true; grep -vE "$first" "$OUT_DIR/list"; } |
        while read -r name; do
            case $name in
            *any_layout*cuda | *views_*cuda) printf "%s\n" "$name "{0..3}/4 ;;
            *) echo "$name 0/1" ;;
            esac
        done >"$OUT_DIR/runs"
    [ -z "${RUNS:-}" ] || cp "$RUNS" "$OUT_DIR/runs"
    xargs -a "$OUT_DIR/runs" -P "$(($(nproc) < gib / 8 ? $(nproc) : gib / 8))" -L 1 bash -c 'one "$@" || exit 1' _ "$1"
}

failed=0
for check in "$@"; do
    began=$SECONDS
    if [ "$check" = tests ]; then
        "$OPERATORS" cuda graph giant >"$OUT_DIR/tests.log" 2>&1 || failed=1
        ran=$(grep -c 'RAN ON CUDA' "$OUT_DIR/tests.log" || true)
        grep -E '^test result|FAILED|panicked' "$OUT_DIR/tests.log" || true
    else
        each "$check" || failed=1
        ran=$(cat "$OUT_DIR/$check"/* | grep -c 'RAN ON CUDA' || true)
    fi
    echo "$check: $ran tests or parts of tests ran on CUDA, $((SECONDS - began)) s"
    [ "$ran" -gt 0 ] || failed=1
done
[ $failed = 0 ] || echo "FAILED"
exit $failed
