#!/usr/bin/env python3
"""PyTorch's softmax on the CPU, each cell between two of ours in one run.

    pip install torch==2.15.0
    cargo bench --bench cpu --no-run          # names the executable
    benches/peers_cpu.py EXECUTABLE [THREADS] [FILTER]

Writes CSV: the cell, ns (shortest of 150 ms, of both turns), and how many times as fast ours is as each other way.
PyTorch's result is in fresh memory, as ours is.
"""
import os
import subprocess
import sys
import time

import torch

VERSION = "2.15.0"
SHAPES = [(4096, 8), (4096, 16), (4096, 32), (4096, 50), (2048, 128), (512, 1024), (8, 131072),
          (1024, 4096), (2048, 4096), (4096, 4096), (256, 131072), (1, 1 << 20), (8192, 1000)]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}


def shortest(run, span=0.15):
    run()
    best, began = 1 << 62, time.perf_counter()
    while time.perf_counter() - began < span:
        start = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - start)
    return best


def torch_way(op, dtype, rows, cols):
    if op == "dim0":
        x = torch.randn(cols, rows).to(DTYPES[dtype])
        return lambda: torch.softmax(x, 0)
    x = torch.randn(rows, cols).to(DTYPES[dtype])
    if op == "softmax":
        return lambda: torch.softmax(x, -1)
    y, g = torch.softmax(x, -1), torch.randn(rows, cols).to(DTYPES[dtype])
    return lambda: torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype)


def main():
    executable, threads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    if not torch.__version__.startswith(VERSION):
        print(f"note: torch {torch.__version__}, not {VERSION}", file=sys.stderr)
    torch.set_num_threads(threads)
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
    ours = subprocess.Popen([executable, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=environment)

    def ask(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        words = ours.stdout.readline().split()
        return dict(zip(words[::2], map(int, words[1::2])))

    ways = ["ours", "torch", "candle", "candle_ops", "rten", "copy"]
    print("op,dtype,rows,cols,threads," + ",".join(ways) + "," + ",".join("x_" + w for w in ways[1:]), flush=True)
    for op in ("softmax", "dim0", "backward"):
        for dtype in DTYPES:
            for rows, cols in SHAPES:
                line = f"{op} {dtype} {rows} {cols}"
                if only not in line or (op == "dim0" and cols > 8192):
                    continue
                first = ask(line)
                between = shortest(torch_way(op, dtype, rows, cols))
                second = ask(line)
                ns = {way: min(first[way], second[way]) for way in first} | {"torch": between}
                if op == "backward":
                    ns["copy"] = ns["copy"] * 3 // 2  # three tensors, not two
                times = [f"{ns[w] / ns['ours']:.2f}" if w in ns else "" for w in ways[1:]]
                print(f"{line},{threads},".replace(" ", ",") + ",".join(str(ns.get(w, "")) for w in ways) + ","
                      + ",".join(times), flush=True)


main()
