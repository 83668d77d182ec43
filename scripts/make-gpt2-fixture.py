#!/usr/bin/env python3
"""Makes examples/gpt/fixture/: a tiny GPT-2 of random weights, saved by `transformers`, with what
it computes. tests/gpt.rs holds the example's loader and model to these numbers.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 \\
        safetensors==0.8.0 numpy==2.4.6
    venv/bin/python scripts/make-gpt2-fixture.py

Runs on the CPU. The folder it writes has the layout of a Hugging Face GPT-2 (config.json,
model.safetensors, tokenizer.json) and expected.safetensors: `ids` (2, 64) and their `logits`
(2, 64, vocab), `prompt` and the `greedy` ids that follow it, `text_ids` of TEXT below.
"""
import json
import math
from importlib.metadata import version
from pathlib import Path

WANTED = {
    "torch": "2.15.0",
    "transformers": "5.24.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "numpy": "2.4.6",
}
for package, wanted in WANTED.items():
    found = version(package).split("+")[0]
    if found != wanted:
        raise SystemExit(f"error: {package} {wanted} wanted, {found} found")

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "gpt" / "fixture"
# More bytes than letters: decoding piece by piece must cope with characters cut in two.
TEXT = "The naïve café owner paid 20 € — and laughed 😀."


def tokenizer() -> Tokenizer:
    """Byte-level BPE: 256 bytes, the end-of-text token, and the merges of a few sentences."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sentences = [
        "It is a truth universally acknowledged, that a single man in possession of a good",
        "fortune, must be in want of a wife. However little known the feelings or views of such",
        "a man may be on his first entering a neighbourhood, this truth is so well fixed in the",
        "minds of the surrounding families, that he is considered the rightful property of some",
        "one or other of their daughters.",
    ]
    bpe.train_from_iterator(sentences, trainer)
    return bpe


def model(vocab_size: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    gpt = GPT2LMHeadModel(config).eval()
    # Wide enough that attention is far from uniform, and nothing left at 0 or 1: a bias or a
    # LayerNorm that a loader forgets must show.
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in sorted(gpt.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(noise * 0.2 + (1.0 if "ln_" in name and "weight" in name else 0.0))
            else:
                parameter.copy_(noise * 1.5 / math.sqrt(32))
    return gpt


def greedy(gpt: GPT2LMHeadModel, prompt: torch.Tensor, steps: int) -> torch.Tensor:
    ids = prompt[None]
    for _ in range(steps):
        logits = gpt(ids).logits[0, -1]
        best = logits.topk(2).values
        if best[0] - best[1] < 1e-3:
            raise SystemExit("error: a near tie in the greedy continuation, choose another seed")
        ids = torch.cat([ids, logits.argmax()[None, None]], dim=1)
    return ids[0, len(prompt) :]


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    bpe = tokenizer()
    bpe.save(str(FOLDER / "tokenizer.json"), pretty=False)
    gpt = model(bpe.get_vocab_size())
    gpt.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(21)
    ids = torch.randint(bpe.get_vocab_size(), (2, 64), generator=generator)
    prompt = torch.tensor(bpe.encode("It is a truth").ids)
    with torch.no_grad():
        expected = {
            "ids": ids,
            "logits": gpt(ids).logits,
            "prompt": prompt,
            "greedy": greedy(gpt, prompt, 40),
            "text_ids": torch.tensor(bpe.encode(TEXT).ids),
        }
    whole = lambda t: t if t.is_floating_point() else t.to(torch.uint32)
    save_file(
        {name: whole(tensor).contiguous() for name, tensor in expected.items()},
        FOLDER / "expected.safetensors",
        metadata={"text": TEXT, "made_with": json.dumps(WANTED)},
    )
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.stat().st_size:8} {path.name}")


main()
