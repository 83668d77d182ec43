"""Reads the character vectors of an R lazy-load database and writes them as one text.

usage: corpus.py STEM OUT      (STEM.rdx is the index, STEM.rdb the data)

The novels come in the order of the index (alphabetical), each line ends with a newline.
"""

import sys
import warnings
import zlib
from pathlib import Path

import rdata

# The database holds bare serialised objects; rdata tells so for each one.
warnings.filterwarnings("ignore", message="Unknown file type: assumed RDS")


def read_object(data):
    return rdata.conversion.convert(rdata.parser.parse_data(data))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    stem, out = sys.argv[1:]
    index = read_object(Path(stem + ".rdx").read_bytes())
    database = Path(stem + ".rdb").read_bytes()
    text = bytearray()
    for name, (offset, length) in sorted(index["variables"].items()):
        # Each object: its unpacked size (4 bytes, big endian), then a zlib stream.
        packed = database[offset : offset + length]
        unpacked = zlib.decompress(packed[4:])
        if len(unpacked) != int.from_bytes(packed[:4], "big"):
            sys.exit(f"corpus.py: {name}: wrong unpacked size")
        for line in read_object(unpacked):
            text += line.encode("utf-8") + b"\n"
    Path(out).write_bytes(text)


main()
