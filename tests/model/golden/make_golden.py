#!/usr/bin/env python3
"""Writes logits.json: what Hugging Face transformers computes, in float32 on the dequantized weights, for the prompts
below. Needs: pip install torch transformers gguf.

  make_golden.py MODEL.gguf logits.json

The file has the stride of the sampled vocabulary and, per prompt: its token ids; the last position's logits at ids 0,
stride, 2 stride, ... and their standard deviation over the whole vocabulary; and a greedy continuation with, at each
step, the four best ids and their logits. The last prompt is all the others in one, without a continuation.
"""
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

STRIDE = 48
STEPS = 40
PROMPTS = [
    """The lighthouse keeper climbed the stairs every evening at dusk, lamp oil in one hand and a novel in the other. Tonight
the wind had a voice in it, low and patient, and twice he stopped on the landing to listen. When he reached the top he found
that somebody had already lit the lamp, and that""",
    """<|im_start|>system
You are a patient teacher who answers in short sentences.<|im_end|>
<|im_start|>user
Why does ice float on water although most solids sink in their own liquid?<|im_end|>
<|im_start|>assistant
""",
    """def is_prime(n):
    \"\"\"Return True when the integer n is a prime number.\"\"\"
    if n < 2:
        return False
    if n % 2 == 0:
        return n == 2
    divisor = 3
    while divisor * divisor <= n:
""",
    """Ingredients: 300 g flour, 2 eggs, 150 ml milk, a pinch of salt, 40 g butter. Method: Sift the flour into a bowl and make a
well in the middle. Break the eggs into it, add the milk little by little, and whisk until the batter is smooth. Melt the butter
in a heavy pan and""",
    """<|im_start|>user
Write a short poem about a train that is late because it stopped to look at the sea.<|im_end|>
<|im_start|>assistant
""",
    """A farmer has 17 sheep, 9 goats and 4 dogs. At noon he sells 6 of the sheep and buys 3 more goats; in the evening one of the
dogs runs away. Question: how many animals does the farmer have at night? Let us count step by step. In the morning he has
17 + 9 + 4 =""",
    """MEMORANDUM. To: all staff of the reading room. From: the head librarian. Subject: umbrellas. It has come to my attention
that wet umbrellas are being dried on the radiators beneath the portraits. From Monday on, umbrellas must be left in the stand
at the entrance. Staff are asked to""",
    """The history of the canal begins long before the first spade touched the ground. In 1764 a surveyor named Thorne drew a line
from the river to the coal fields and was laughed out of the council chamber. Thirty years later the same council""",
    """<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
<|im_start|>user
List three reasons why bees are important for farmers, one line each.<|im_end|>
<|im_start|>assistant
""",
    """"You are late," said the clockmaker without looking up. "By four minutes," said the girl. "Four minutes and eleven seconds.
In this shop that is an age." He put down the tweezers and pointed at the wall, where two hundred clocks disagreed about""",
    """{"station": "Harbour North", "readings": [{"time": "06:00", "level_m": 2.41}, {"time": "07:00", "level_m": 2.58},
{"time": "08:00", "level_m": 2.77}, {"time": "09:00", "level_m":""",
    """Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. In the first
stage, light is absorbed by chlorophyll and used to split water. In the second stage, often called the Calvin cycle,""",
    """Dear Sir or Madam, I am writing about the bicycle that I ordered from you on 3 March (order no. 88-1042). When the parcel
arrived yesterday, the front wheel was missing and the bell had been replaced by a spoon. I would be grateful if""",
    """SELECT customers.name, COUNT(orders.id) AS order_count, SUM(orders.total) AS revenue
FROM customers
LEFT JOIN orders ON orders.customer_id = customers.id
WHERE orders.created_at >= '2021-01-01'
GROUP BY customers.name
HAVING""",
]


def last_logits(logits):
    return {
        "logits": [float(f"{x:.6g}") for x in logits[::STRIDE].tolist()],
        "std": logits.std().item(),
    }


@torch.no_grad()
def run(model, tokens, steps):
    out = model(torch.tensor([tokens]), use_cache=True, logits_to_keep=1)
    golden = {"tokens": tokens, **last_logits(out.logits[0, -1])}
    best = []
    for _ in range(steps):
        values, ids = out.logits[0, -1].topk(4)
        best.append([*ids.tolist(), *(float(f"{v:.7g}") for v in values.tolist())])
        out = model(ids[:1][None], past_key_values=out.past_key_values, use_cache=True)
    golden["greedy"] = best
    return golden


def main():
    path, target = sys.argv[1:]
    where = {"pretrained_model_name_or_path": os.path.dirname(path), "gguf_file": os.path.basename(path)}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model.eval()
    ids = [tokenizer(p.replace("\n", " ") if "<|" not in p and "    " not in p and "\nFROM" not in p else p,
                     add_special_tokens=False)["input_ids"] for p in PROMPTS]
    golden = [run(model, tokens, STEPS) for tokens in ids]
    golden.append(run(model, sum(ids, []), 0))
    with open(target, "w") as f:
        f.write('{"model": %s, "stride": %d, "prompts": [\n' % (json.dumps(os.path.basename(path)), STRIDE))
        f.write(",\n".join(json.dumps(g, separators=(",", ":")) for g in golden))
        f.write("\n]}\n")
    print(*(f"{len(g['tokens'])} tokens: {tokenizer.decode([b[0] for b in g['greedy']])!r}" for g in golden), sep="\n")


if __name__ == "__main__":
    main()
