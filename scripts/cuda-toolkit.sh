#!/usr/bin/env bash
# A CUDA 13.0 build environment for a Linux x86_64 machine that has none: nvcc and the libraries candle links,
# from PyPI's NVIDIA wheels, and a stub of the driver library to link against. No root, no GPU.
#
#   eval "$(scripts/cuda-toolkit.sh [PREFIX])"     # exports on stdout, progress on stderr
#   cargo build --release --features cuda
#
# PREFIX defaults to ${XDG_CACHE_HOME:-~/.cache}/candle-online-softmax/cuda-13.0 (1.3 GB). A second call only prints.
set -euo pipefail

say() { echo "cuda-toolkit: $*" >&2; }
die() { say "error: $*"; exit 1; }

# 13.0 on purpose: a newer nvcc emits PTX that the 580 driver series refuses.
wheels='
nvidia-cuda-nvcc==13.0.88     --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-nvvm==13.0.88          --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-crt==13.0.88      --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-cuda-runtime==13.0.96  --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cccl==13.0.85     --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
nvidia-cuda-nvrtc==13.0.88    --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
nvidia-cublas==13.1.0.3       --hash=sha256:ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
nvidia-curand==10.4.0.35      --hash=sha256:1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
'

case "${1:-}" in
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "unknown option $1 (usage: cuda-toolkit.sh [PREFIX])" ;;
esac
[ $# -le 1 ] || die "too many arguments (usage: cuda-toolkit.sh [PREFIX])"
prefix=${1:-${XDG_CACHE_HOME:-${HOME:?HOME is not set: give a PREFIX}/.cache}/candle-online-softmax/cuda-13.0}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
while [[ $prefix == */ ]]; do prefix=${prefix%/}; done
case $prefix in *[\'\ :]*) die "PREFIX must be free of spaces, colons and quotes: $prefix" ;; esac

# Every function that cuda.h declares, old versions included, each answering CUDA_ERROR_STUB_LIBRARY (34): enough to
# link, and a program started on it gets an error that says what is missing. cuProfiler* live in a header not shipped.
driver_stub() { # DIR: makes DIR/libcuda.so
    local dir=$1 names
    names=$(for flag in -DPLAIN -D__CUDA_API_VERSION_INTERNAL -DCUDA_API_PER_THREAD_DEFAULT_STREAM; do
        gcc -E -P "$flag" -I"$tree/include" "$tree/include/cuda.h"
    done | grep -oE '\bcu[A-Z][A-Za-z0-9_]*[[:space:]]*\(' | tr -d ' (\t' | sort -u)
    [ "$(wc -w <<<"$names")" -gt 400 ] || die "found too few functions in cuda.h"
    mkdir -p "$dir"
    {
        for f in $names cuProfilerInitialize cuProfilerStart cuProfilerStop; do
            case $f in cuGetErrorName | cuGetErrorString) ;; *) echo "int $f(void) { return 34; }" ;; esac
        done
        echo 'static const char *name(int e) { return e == 34 ? "CUDA_ERROR_STUB_LIBRARY" : "CUDA_ERROR"; }'
        echo 'int cuGetErrorName(int e, const char **s) { *s = name(e); return 0; }'
        echo 'int cuGetErrorString(int e, const char **s) {'
        echo '  *s = e == 34 ? "this is a link-time stub of libcuda: no NVIDIA driver here" : name(e); return 0; }'
    } | gcc -x c -shared -fPIC -fno-builtin -w -Wl,-soname,libcuda.so.1 -o "$dir/libcuda.so" -
    ln -s libcuda.so "$dir/libcuda.so.1"
}

build() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "the pinned wheels are for Linux x86_64, this is $(uname -sm)"
    local tool
    for tool in gcc g++ python3 ln grep; do
        command -v $tool >/dev/null || die "$tool is needed and not on PATH"
    done
    python3 -m pip --version >/dev/null 2>&1 || die "python3 has no pip (Debian: python3-pip)"
    mkdir -p "$(dirname "$prefix")"
    # Built beside its place and moved there whole, so that an interrupted call leaves nothing half made.
    work=$(mktemp -d "$prefix.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "downloading CUDA 13.0 wheels (680 MB) for $prefix"
    echo "$wheels" >"$work/requirements.txt"
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
        --only-binary=:all: --dest "$work/wheels" -r "$work/requirements.txt" >&2 ||
        die "pip could not download the pinned wheels (see above)"
    say "unpacking"
    local wheel
    for wheel in "$work"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$work" || die "cannot unpack $(basename "$wheel")"
        rm "$wheel"
    done
    tree=$work/nvidia/cu13
    [ -f "$tree/bin/nvcc" ] || die "the wheels hold no nvidia/cu13/bin/nvcc"
    chmod -R a+rx "$tree/bin" "$tree/nvvm/bin" # zipfile drops the mode bits
    ln -s lib "$tree/lib64"
    (cd "$tree/lib" && for lib in *.so.*; do [ -e "${lib%%.so.*}.so" ] || ln -s "$lib" "${lib%%.so.*}.so"; done)
    driver_stub "$tree/lib/stubs"
    "$tree/bin/nvcc" --version | grep -q 'release 13\.0,' || die "the unpacked nvcc does not run"
    stamp >"$tree/stamp"
    rm -rf "$prefix"
    mv "$tree" "$prefix"
    say "ready"
}

# Other wheels or another way to unpack them make the prefix anew.
stamp() { { echo "$wheels"; declare -f driver_stub build; } | sha256sum; }
if ! cmp -s "$prefix/stamp" <(stamp); then
    [ -f "$prefix/stamp" ] || [ -z "$(ls -A "$prefix" 2>/dev/null)" ] ||
        die "$prefix exists, is not empty and was not made by this script"
    build
fi

libs=$prefix/lib
# The stub is for running only where no driver is: before a real libcuda.so.1 it would hide the GPU.
if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
    libs=$libs:$prefix/lib/stubs
fi
cat <<END
export CUDA_HOME='$prefix'
export CUDA_PATH='$prefix'
export PATH='$prefix/bin':"\$PATH"
export LIBRARY_PATH='$prefix/lib:$prefix/lib/stubs'"\${LIBRARY_PATH:+:\$LIBRARY_PATH}"
export LD_LIBRARY_PATH='$libs'"\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
END
if [ -z "${CUDA_COMPUTE_CAP:-}" ] && ! nvidia-smi >/dev/null 2>&1; then
    echo "export CUDA_COMPUTE_CAP=90" # nothing to ask: Hopper
fi
# candle's kernel build would use half the cores.
[ -n "${CUDAFORGE_THREADS:-}" ] || echo "export CUDAFORGE_THREADS=$(nproc)"
