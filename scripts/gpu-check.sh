#!/usr/bin/env bash
# All GPU tests of tests/operators on the GPU of this machine, then the same under compute-sanitizer's memcheck,
# racecheck and initcheck. Fails if a test fails, none ran on CUDA, or a sanitizer reports anything.
#
#   scripts/gpu-check.sh [OUT_DIR]      logs go to OUT_DIR (default: target/gpu-check)
#
# Needs compute-sanitizer (in CUDA toolkits; scripts/cuda-toolkit.sh does not bring it), and cargo, python3 and nvcc or
# OPERATORS=FILE: the test binary, built elsewhere. Under the sanitizers, which slow a launch
# 50 times or more, the tests of every length and of tensors past 2^32 elements are left out (the other tests hold
# every kernel family, dtype and layout), and each test is a process of its own: with stream captures beside other
# tests' launches in one process racecheck stopped for good (H200, driver 580.159.04). With two GPUs racecheck has one.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/target/gpu-check}"
out=$(cd "${1:-$root/target/gpu-check}" && pwd)
[ -z "${OPERATORS:-}" ] || OPERATORS=$(realpath "$OPERATORS")
cd "$root"

if [ -z "${OPERATORS:-}" ]; then
    OPERATORS=$(cargo test --release --features cuda --test operators --no-run --message-format json |
        python3 -c 'import json, sys
for line in sys.stdin:
    m = json.loads(line)
    if m.get("executable") and m["target"]["name"] == "operators": print(m["executable"])')
fi
export COS_REQUIRE_CUDA=1
failed=0

check() { # NAME COMMAND...: runs it, keeps its output in OUT_DIR/NAME.log, says what came of it
    local name=$1 rc=0 began=$SECONDS
    shift
    "$@" >"$out/$name.log" 2>&1 || rc=$?
    local ran
    ran=$(grep -c 'RAN ON CUDA' "$out/$name.log" || true)
    echo "$name: exit $rc, $ran tests ran on CUDA, $((SECONDS - began)) s; $(grep -hE '^test result|SUMMARY' "$out/$name.log" | sort | uniq -c | tr -s ' \n' ' ')"
    [ "$rc" = 0 ] && [ "$ran" -gt 0 ]
}

# What takes longest, first.
long='gradient_layouts|views_|generated|invariance|properties'
each() { # TOOL GPU: one test a process, six at a time; fails if one fails or takes more than 500 s
    local tool=$1
    export CUDA_VISIBLE_DEVICES=$2
    "$OPERATORS" --list "${short[@]}" | sed -n 's/: test$//p' >"$out/$tool.list"
    { grep -E "$long" "$out/$tool.list" || true; grep -vE "$long" "$out/$tool.list"; } |
        xargs -P 6 -I{} sh -c 'timeout 500 compute-sanitizer --tool "$0" --require-cuda-init no --error-exitcode 9 "$1" --exact "$2" || exit 1' \
            "$tool" "$OPERATORS" {}
}
second=$(($(nvidia-smi -L | wc -l) > 1))

check tests "$OPERATORS" cuda graph giant || failed=1
# shapes_past_memory asks for more memory than there is, which memcheck reports as an error of the call.
short=(cuda graph --skip giant --skip every_plan --skip formula_plan --skip shapes_past_memory)
checks=()
check racecheck each racecheck 0 & checks+=($!)
check memcheck each memcheck $second & checks+=($!)
check initcheck each initcheck $second & checks+=($!)
for pid in "${checks[@]}"; do wait "$pid" || failed=1; done
exit $failed
