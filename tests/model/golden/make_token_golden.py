#!/usr/bin/env python3
"""Writes what llama.cpp makes of awkward texts, for tests/model/golden_tokens_test.cc.

    pip install llama-cpp-python==0.3.36
    make_token_golden.py MODEL.gguf OUT.json

Each case is [hex of the text, ids with control tokens as plain text, ids with control tokens parsed].
"""

import json
import random
import sys

SEED = 20240607

PLAIN = [
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\t\t\t", " \t \n \r\n ", "a", " a", "  a", "a ",
    "a  ", " a b  c   d    e ", "Hello", "Hello world", " Hello world", "Hello, World!", "Hello  World",
    "The quick brown fox jumps over the lazy dog.", "\n\n  123", "\n\n\n\n  \n x", "x\n\n\ny", "a\tb\t\tc",
    "    indented\n        twice\n", "trailing   \n", "line one\r\nline two\r\n", "\u000b\u000c",
    "I'm you're he's she'll we've they'd it's don't", "I'M YOU'RE HE'S SHE'LL WE'VE THEY'D", "'s 't 're", "''s '", "o'clock'S",
    "rock'n'roll \u2019s don\u2019t", "camelCaseWords AndPascalCase SCREAMING_SNAKE_CASE kebab-case", "iPhone eBay McDonald NASA",
    "0", "1", "12", "123", "1234", "12345678901234567890", " 1", "  12", "3.14159", "-42", "1,000,000", "2024-02-29T12:34:56Z",
    "0x1F 0b1010 1e-9", "\u0661\u0662\u0663 \u096a\u096b", "x\u00b2 + y\u00b3 = \u00bd", "\u2160\u2161\u2162", "\u2460\u2461", "1st 2nd 3rd",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.5f; }", "def f(x: int) -> str:\n    return f\"{x!r}\"\n",
    "#include <vector>\nint main() { return 0; }\n", "if (a && b || !c) { x ^= ~y; }", "SELECT * FROM t WHERE a >= 10;",
    "<div class=\"a\"><p>text &amp; more</p></div>", "{\"key\": [1, 2.0, null, true], \"s\": \"\\u00e9\\n\"}",
    "https://example.com/a/b?c=d&e=%20f#g", "user@example.org", "C:\\Windows\\System32", "/usr/local/bin/x.sh --flag=1",
    "$x^2 + \\frac{1}{2}$", "```python\nprint(1)\n```", "| a | b |\n|---|---|\n", "!!!???...", "---===+++", "(((())))", "\"quoted\" 'single'",
    "@#$%^&*()_+-=[]{}|;':\",./<>?`~", "\u00e9t\u00e9 na\u00efve caf\u00e9", "e\u0301te\u0301 cafe\u0301", "\u00c5ngstr\u00f6m \u212b A\u030angstro\u0308m",
    "stra\u00dfe STRASSE \u1e9e", "\u0130stanbul \u0131", "\ufb01 \ufb02 ligatures", "z\u0351\u036b\u0343a\u0329l\u0348g\u0334o\u0321",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002", "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "Xin ch\u00e0o th\u1ebf gi\u1edbi", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0", "\u12a0\u121b\u122d\u129b", "\u13e3\u13b3\u13a9", "\u0b95\u0bcd\u0bb7",
    "\U0001F600", "\U0001F600\U0001F601 \U0001F602", "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F44D\U0001F3FD", "\U0001F1E9\U0001F1EA\U0001F1EB\U0001F1F7",
    "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001F3F4\U000E0067\U000E0062\U000E0073\U000E0063\U000E0074\U000E007F", "a\U0001F600b 1\U0001F6002", "\u00a9\u00ae\u2122", "\u2200x\u2208\u211d: \u221ax\u22650",
    "\U0001D49C\U0001D4B7\U0001D4B8", "\U00020000\U0002A6D6", "\U00010348\U00010330", "\ufeffBOM", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\ue000\U000f0000",
    "a\u00a0b", "\u00a0", "\u2003em\u2003space", "\u3000ideographic\u3000", "a\u1680b", "a\u180eb", "zero\u200bwidth", "a\u2028b\u2029c", "a\u0085b", "\u202fnarrow", "soft\u00adhyphen",
    " \u00a0 \u2003x", "\u0000", "a\u0000b", "\u0001\u0002\u0003", "\u0004", "\u0006x\u0013", "x\u001b[31mred\u001b[0m", "\u007f", "\u0080\u009f",
    "\u2581", "\u2581\u2581a", "a\u2581b", " \u2581 ", "\u0120a", "\u010a", "<0x41>", "<0x0A><0xFF>", "&lt;",
    "a" * 50, "a" * 3000, " " * 50, " " * 1000 + "x", "\n" * 40, "\n" * 40 + "x", "\t" * 33, "ab" * 700, "\u4f60" * 300, "\U0001F600" * 60, "=" * 200, "1" * 130, "-" * 81 + "\n",
    "Donaudampfschifffahrtsgesellschaftskapit\u00e4nsm\u00fctze", "pneumonoultramicroscopicsilicovolcanoconiosis", "x" * 17 + " " + "y" * 31,
    "Zm9vYmFyYmF6cXV4" * 12, "deadBEEF0123456789abcdef" * 10, "the " * 100, "Wort." * 77,
]

SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>",
    "<file_sep>", "<empty_output>", "<unused0>", "<unused99>", "[multimodal]", "<h1>", "</h1>", "<table>", "<b>", "</code>", "<start_of_image>", "<|eot_id|>",
]

TEMPLATES = [
    "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
    "<bos><start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n",
    "<|im_start|><|im_start|>", "<|im_end|", "|im_end|>", "<<|im_end|>>", "<|im_<|im_end|>end|>", " <|im_end|> ", "\n<|im_end|>\n\n", "a<|im_end|>b<eos>c",
    "<start_of_turn><end_of_turn", "< eos >", "<EOS>", "1<|im_end|>2", "  <bos>  x", "<h1>Title</h1>\n\n\n<p>x  y</p>", "<unused0><unused1>", "'<|im_end|>'s",
    "<reponame><repo_name>", "<file_sep><filename>a.py<gh_stars>7",
]

POOLS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "     \t\n\r", "'’`\"", ".,;:!?-_/\\()[]{}<>|&*^%$#@~+=",
    "éèêëàâäöüßñçøåæœ", "абвгдеёжзийклмнопрстуфхцчшщ", "αβγδεζηθικλμνξοπρστυφχψω", "你好世界中文字符测试", "ひらがなカタカナ", "한국어테스트",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "\u0301\u0308\u0323\u064e\u0652\u200d\ufe0f", "😀😁👍❤🌍🚀🇩🇪", "\u00a0\u2003\u3000\u2028\u1680", "½²³①Ⅷ٣४", "ĠĊ▁\u0100\u0143",
]


def random_texts(rng: random.Random, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        pieces = []
        for _ in range(rng.randint(1, 12)):
            pool = rng.choice(POOLS)
            pieces.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 6))))
        texts.append("".join(pieces))
    return texts


def random_words(rng: random.Random, count: int) -> list[str]:
    words = "The of and'll to I'm in \n\n  \t a Is for != -> == 7 42 1999 you? (that) it's \"was\" on, são über naïve // ## ** 😀 日本 x1y2 don't".split(" ")
    return [rng.choice(["", " "]).join(rng.choice(words) + rng.choice(["", " ", "  "]) for _ in range(rng.randint(2, 14))) for _ in range(count)]


def main() -> None:
    import llama_cpp  # here, so that the texts can be had without it

    model_path, out_path = sys.argv[1:3]
    model = llama_cpp.Llama(model_path, vocab_only=True, verbose=False)
    rng = random.Random(SEED)
    texts = PLAIN + SPECIALS + TEMPLATES + random_texts(rng, 150) + random_words(rng, 60)
    # Bytes of broken characters. Only for SentencePiece: for byte-level BPE llama.cpp puts U+FFFD in their place.
    encoded = [text.encode("utf-8") for text in texts]
    if model.metadata["tokenizer.ggml.model"] == "llama":
        encoded += [b"a\x80b", b"\x80", b"\xbf\xbf", b"\xe4\xbd", b"ok \xf0\x9f\x98", b"\xe4", b"x\xc3", b"\x80\x81 \x82"]
    lines = []
    for text in encoded:
        plain = model.tokenize(text, add_bos=False, special=False)
        parsed = model.tokenize(text, add_bos=False, special=True)
        lines.append(json.dumps([text.hex(), plain, parsed], separators=(",", ":")))
    with open(out_path, "w", encoding="ascii") as out:
        out.write("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
