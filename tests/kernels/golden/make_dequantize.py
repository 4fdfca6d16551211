#!/usr/bin/env python3
"""Writes TYPE.bin for every weight type: blocks as a GGUF file stores them, then the float32 values
that the gguf package reads from them. Half of the blocks of the types it can quantize are real
quantizations, the others random codes with scales of either sign.

  make_dequantize.py [DIRECTORY]        needs numpy and gguf
"""
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES

# Offsets of the half-precision parameters in a block.
PARAMETERS = {
    Type.F32: [], Type.F16: [], Type.BF16: [],
    Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}


def random_blocks(rng, kind, count, block_bytes):
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for offset in PARAMETERS[kind]:
        halves = rng.normal(0, 0.05, count).astype(np.float16)
        blocks[:, offset:offset + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks


def blocks_of(rng, kind):
    values, block_bytes = GGML_QUANT_SIZES[kind]
    if values == 1:
        plain = rng.normal(0, 1, 64).astype(np.float32)
        return quants.quantize(plain, kind).view(np.uint8).reshape(-1)
    count = 4 if values == 32 else 2
    blocks = random_blocks(rng, kind, count, block_bytes)
    try:
        real = quants.quantize(rng.normal(0, 1, (count, values)).astype(np.float32), kind)
        blocks = np.concatenate([blocks, real.reshape(count, block_bytes)])
    except NotImplementedError:
        pass  # the K types have no quantizer there
    return blocks.reshape(-1)


def main():
    target = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    rng = np.random.default_rng(20240607)
    for kind in PARAMETERS:
        data = blocks_of(rng, kind)
        typed = data.view(np.float32) if kind == Type.F32 else data
        if kind == Type.F16:
            typed = data.view(np.float16)
        values = quants.dequantize(typed, kind).astype(np.float32).reshape(-1)
        (target / f"{kind.name}.bin").write_bytes(data.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
