#!/usr/bin/env bash
# Makes examples/gpt/assets anew: corpus, tokenizer, and the weights, trained on a CUDA device.
#
#   scripts/train-shipped-weights.sh [ASSETS_DIR]      (default: examples/gpt/assets)
#
# The text and the tokenizer come out the same byte for byte anywhere. The weights depend on the
# device's matrix products: another GPU gives other bits and about the same bits per byte.
set -euo pipefail
cd "$(dirname "$0")/.."

assets=${1:-examples/gpt/assets}
config=examples/gpt/assets/config.json
corpus=target/corpus/corpus.txt
out=target/train_gpt
build=target/cuda

[ $# -le 1 ] || {
  echo "usage: scripts/train-shipped-weights.sh [ASSETS_DIR]" >&2
  exit 1
}

scripts/corpus.sh target/corpus
cargo build --release --features cuda --target-dir "$build" --example train_gpt
train_gpt=$build/release/examples/train_gpt

mkdir -p "$out"
"$train_gpt" tokenizer --corpus "$corpus" --vocab 2048 --out "$out/pieces.json"
"$train_gpt" --corpus "$corpus" --tokenizer "$out/pieces.json" --config "$config" --out "$out" \
  --device cuda --tf32 \
  --steps 4000 --batch 128 --context 256 --lr 1e-3 --warmup 200 \
  --weight-decay 0.1 --dropout 0.2 --seed 1

mkdir -p "$assets"
for file in config.json tokenizer.json model.safetensors; do
  cmp -s "$out/$file" "$assets/$file" || cp "$out/$file" "$assets/$file"
done
"$train_gpt" --eval-only --weights "$assets" --corpus "$corpus" --device cuda
