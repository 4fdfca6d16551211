#!/usr/bin/env python3
"""Writes the novels in an R lazy-load database (Debian's r-cran-janeaustenr) as text files.

  novels.py Rdata.rdb OUTPUT_DIRECTORY

The database is a sequence of objects, each a 4-byte length and a zlib stream; an object is a
character vector in R's XDR serialization (R Internals, section 1.8).
"""

import re
import struct
import sys
import zlib
from pathlib import Path

STRSXP, CHARSXP = 16, 9


def objects(data: bytes):
    at = 0
    while at < len(data):
        stream = zlib.decompressobj()
        yield stream.decompress(data[at + 4 :])
        at = len(data) - len(stream.unused_data)


def lines(serialized: bytes):
    if serialized[:2] != b"X\n":
        raise ValueError("not an XDR serialization")
    _, _, _, encoding_length = struct.unpack(">iiii", serialized[2:18])
    at = 18 + encoding_length
    kind, count = struct.unpack(">ii", serialized[at : at + 8])
    if kind & 0xFF != STRSXP:
        raise ValueError(f"not a character vector: type {kind & 0xFF}")
    at += 8
    for _ in range(count):
        flags, length = struct.unpack(">ii", serialized[at : at + 8])
        if flags & 0xFF != CHARSXP:
            raise ValueError(f"not a string: type {flags & 0xFF}")
        at += 8
        length = max(length, 0)  # -1 marks a missing value
        yield serialized[at : at + length].decode("utf-8")
        at += length


def main():
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    for serialized in objects(source.read_bytes()):
        text = list(lines(serialized))
        name = re.sub(r"[^a-z]+", "_", text[0].strip().lower()).strip("_")
        (target / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
        print(f"{name}.txt: {len(text)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
