"""Where a kernel's instructions and stalls are: reads what ncu wrote.

    ncu --section SourceCounters --section WarpStateStats --page source --csv -k regex:softmax -c 1 ./tune SPEC > out.csv
    python3 benches/tune/profile.py out.csv

Prints the stretches of machine code that run equally often (how often a warp, their instructions, their share of the
samples), then the instructions with most samples.
"""

import csv
import io
import sys


def number(text):
    text = str(text).replace(",", "")
    return int(text) if text.isdigit() else 0


def main(path):
    lines = open(path).read().split("\n")
    header = next(i for i, line in enumerate(lines) if "Address" in line and "Source" in line)
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[header:]))))
    executed = [number(r["Instructions Executed"]) for r in rows]
    samples = [number(r["# Samples"]) for r in rows]
    source = [r["Source"].strip() for r in rows]
    warps, all_samples = executed[0], max(sum(samples), 1)
    print(f"{sum(executed)} instructions, {warps} warps, {sum(executed) / warps:.1f} a warp, {all_samples} samples")
    first = 0
    for i in range(1, len(rows) + 1):
        if i < len(rows) and executed[i] == executed[first]:
            continue
        if executed[first]:
            times, share = executed[first] / warps, 100 * sum(samples[first:i]) / all_samples
            print(f"{first:5}-{i - 1:5} x {times:6.2f} = {(i - first) * times:7.1f} a warp {share:5.1f} %  {source[first][:50]}")
        first = i
    for i in sorted(range(len(rows)), key=lambda i: -samples[i])[:14]:
        print(f"{i:5} {100 * samples[i] / all_samples:5.1f} %  {source[i][:70]}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
