#!/usr/bin/env python3
"""Writes how Hugging Face's tokenizers library cuts awkward texts into words, for
tests/model/tokenizer_pretokenizer_test.cc.

    pip install tokenizers
    make_pretoken_golden.py OUT.json

Each line is ["name","hex of the text",[end of each word, in bytes]]. The patterns are those of the
models' tokenizer.json.
"""

import json
import random
import sys

from tokenizers import Regex, pre_tokenizers

from make_token_golden import PLAIN, SEED, TEMPLATES, random_texts, random_words

TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


RULES = {
    "gpt-2": byte_level(),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
    "llama-bpe": split(HEAD + r"\p{N}{1,3}" + TAIL),
    "qwen2": split(HEAD + r"\p{N}" + TAIL),
}


def word_ends(rule: pre_tokenizers.PreTokenizer, text: str) -> list[int]:
    ends = [end for _, (_, end) in rule.pre_tokenize_str(text)]
    return [len(text[:end].encode("utf-8")) for end in ends]


def main() -> None:
    rng = random.Random(SEED)
    texts = [t for t in PLAIN if len(t) <= 300] + TEMPLATES + random_texts(rng, 40) + random_words(rng, 40)
    lines = [
        json.dumps([name, text.encode("utf-8").hex(), word_ends(rule, text)], separators=(",", ":"))
        for name, rule in RULES.items()
        for text in texts
        if text
    ]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
