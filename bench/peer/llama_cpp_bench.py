#!/usr/bin/env python3
"""llama.cpp's decode and prefill speed on a GGUF file, for comparison with strata-bench.

Run in a virtual environment with llama-cpp-python (bench/compare.py makes one). Flash attention is on;
the KV cache is F16 or Q4_0. Prints one JSON object: for each KV type, tokens a second of prompts of
each depth and of single-token decoding at each depth.
"""

import argparse
import json
import statistics
import time

import llama_cpp

KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q4_0": llama_cpp.GGML_TYPE_Q4_0}


def decode(llm, tokens):
    """One llama_decode call; the position continues where the context stands."""
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    batch = llama_cpp.llama_batch_get_one(array, len(tokens))
    code = llama_cpp.llama_decode(llm.ctx, batch)
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code}")


def prefill(llm, tokens, batch):
    for at in range(0, len(tokens), batch):
        decode(llm, tokens[at : at + batch])


def clear(llm):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm.ctx), True)


def check(llm, tokens):
    """The model predicts: the next token of plain prose is far likelier than by chance."""
    clear(llm)
    prefill(llm, tokens[:64], 64)
    logits = llama_cpp.llama_get_logits(llm.ctx)
    row = [logits[i] for i in range(llm.n_vocab())]
    if sum(value > row[tokens[64]] for value in row) > llm.n_vocab() // 10:
        raise RuntimeError("the model's prediction of plain prose is no better than chance")


def measure(options, kv):
    llm = llama_cpp.Llama(
        options.model,
        n_ctx=8192,
        n_batch=options.batch,
        n_ubatch=options.batch,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        flash_attn=True,
        type_k=KV_TYPES[kv],
        type_v=KV_TYPES[kv],
        verbose=False,
    )
    text = open(options.text, "rb").read()[: 8 * 8192]
    tokens = llm.tokenize(text, add_bos=False)[:8192]
    check(llm, tokens)
    rows = []
    for depth in options.depth:
        speeds = []
        if depth > 0:
            for _ in range(max(1, options.runs // 2)):
                clear(llm)
                start = time.perf_counter()
                prefill(llm, tokens[:depth], options.batch)
                llama_cpp.llama_synchronize(llm.ctx)
                speeds.append(depth / (time.perf_counter() - start))
            rows.append(
                {
                    "benchmark": "prefill",
                    "kv": kv,
                    "depth": depth,
                    "tokens_per_s": statistics.median(speeds),
                }
            )
        else:
            clear(llm)
        position = depth
        decode(llm, [tokens[position]])
        position += 1
        speeds = []
        for _ in range(options.runs):
            start = time.perf_counter()
            for _ in range(options.decode_tokens):
                decode(llm, [tokens[position]])
                llama_cpp.llama_get_logits(llm.ctx)  # waits for the result, as a sampler would
                position += 1
            speeds.append(options.decode_tokens / (time.perf_counter() - start))
        rows.append(
            {
                "benchmark": "decode",
                "kv": kv,
                "depth": depth,
                "tokens_per_s": statistics.median(speeds),
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--depth", type=int, action="append")
    parser.add_argument("--kv", action="append", choices=sorted(KV_TYPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--decode-tokens", type=int, default=16)
    options = parser.parse_args()
    options.depth = sorted(options.depth or [0, 1024, 4096, 8000])
    rows = [row for kv in options.kv or ["f16", "q4_0"] for row in measure(options, kv)]
    print(json.dumps({"version": llama_cpp.__version__, "threads": options.threads, "rows": rows}))


if __name__ == "__main__":
    main()
