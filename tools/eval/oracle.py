#!/usr/bin/env python3
"""Fidelity of KV formats on a real model, simulated in fp32: the independent oracle for `strata-eval perplexity`, sharing no code with it.

K and V are quantized and dequantized ("fake quantization"), each query reading every block at the precision its
position demands, so the result is what a server with those tiers would compute but for float rounding.
Needs: pip install torch gguf numpy transformers.   Llama-type GGUF models only (SmolLM2 was used).

  oracle.py MODEL.gguf TEXT.txt --context 2048 --pieces 4 f16 i4 i2 ladder:1,4,8 kivi2

A configuration is FORMAT[:sink,hot,warm][+basis][+even]; sink, hot and warm are in blocks of 64 tokens.
  f16 | i4 | i2          every sealed block before the query's own block at that format (default sink: 1 block of F16 for i2)
  ladder:S,H,W           S sink and H recent blocks F16, then W blocks I4, the rest I2
  kivi4 | kivi2          KIVI's end-point grid, G = 32, for comparison
  basis: plain | vrot (V rotated) | full (V rotated, K equalized + rotated; the default)
  even: all layers alike; else I2 keeps K at I4 in the --k-layers layers whose attention 2-bit K moves most
"""

import argparse, math, os, time
import numpy as np, torch
from gguf import GGUFReader, dequantize

T = 64  # tokens a block
torch.set_grad_enabled(False)


def f16(x):
    return x.to(torch.float16).float()


def round_f16(x, up):
    """fp16 rounded towards +inf (up) or -inf, as page_format.md's fp16_up and fp16_down."""
    h = x.to(torch.float16).numpy()
    wrong = (h.astype(np.float32) < x.numpy()) if up else (h.astype(np.float32) > x.numpy())
    return torch.from_numpy(
        np.where(wrong, np.nextafter(h, np.float16(np.inf if up else -np.inf)), h).astype(
            np.float32
        )
    )


def grouped(x, dim, g, quantize):
    x = f16(x).movedim(dim, -1)
    y = quantize(x.reshape(*x.shape[:-1], x.shape[-1] // g, g))
    return y.reshape(x.shape).movedim(-1, dim)


def nested(bits):
    """Mid-rise codes; the 2-bit code is the top half of the 4-bit code, same parameters."""

    def quantize(y):
        mn = round_f16(y.amin(-1, keepdim=True), up=False)
        s = round_f16((y.amax(-1, keepdim=True) - mn) / 16, up=True)
        code = torch.clamp(torch.floor((y - mn) / torch.where(s > 0, s, torch.ones_like(s))), 0, 15)
        level = code + 0.5 if bits == 4 else 4 * torch.floor(code / 4) + 2
        return torch.where(s > 0, mn + s * level, mn)

    return quantize


def end_point(bits):
    def quantize(y):
        mn, n = y.amin(-1, keepdim=True), 2**bits - 1
        s = f16((y.amax(-1, keepdim=True) - mn) / n)
        mn = f16(mn)
        return mn + s * torch.clamp(
            torch.round((y - mn) / torch.where(s > 0, s, torch.ones_like(s))), 0, n
        )

    return quantize


def hadamard(n):
    h = np.array([[1.0]])
    while h.shape[0] < n:
        h = np.block([[h, h], [h, -h]])
    return torch.from_numpy(h / math.sqrt(n)).float()


class Model:
    def __init__(self, path):
        r = GGUFReader(path)
        f = lambda k: r.fields["llama." + k].contents()
        self.layers, self.width, self.heads = (
            f("block_count"),
            f("embedding_length"),
            f("attention.head_count"),
        )
        self.kv_heads, self.eps, self.theta = (
            f("attention.head_count_kv"),
            f("attention.layer_norm_rms_epsilon"),
            f("rope.freq_base"),
        )
        self.dim = self.width // self.heads
        self.w = {
            t.name: torch.from_numpy(
                np.ascontiguousarray(dequantize(t.data, t.tensor_type)).astype(np.float32)
            ).reshape(tuple(int(x) for x in reversed(t.shape)))
            for t in r.tensors
        }

    def norm(self, x, w):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * w

    def rope(self, x):  # GGUF llama: interleaved pairs
        a = (
            torch.arange(x.shape[0], dtype=torch.float64)[:, None]
            * self.theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)[None]
        )
        c, s = a.cos().float()[:, None], a.sin().float()[:, None]
        o = torch.empty_like(x)
        e, d = x[..., 0::2], x[..., 1::2]
        o[..., 0::2], o[..., 1::2] = e * c - d * s, e * s + d * c
        return o

    def hidden(self, ids, cache):
        w, n, g = self.w, len(ids), self.heads // self.kv_heads
        x = w["token_embd.weight"][ids]
        for l in range(self.layers):
            p = f"blk.{l}."
            h = self.norm(x, w[p + "attn_norm.weight"])
            q = self.rope((h @ w[p + "attn_q.weight"].T).view(n, self.heads, self.dim))
            k = self.rope((h @ w[p + "attn_k.weight"].T).view(n, self.kv_heads, self.dim))
            v = (h @ w[p + "attn_v.weight"].T).view(n, self.kv_heads, self.dim)
            cache.store(l, q, k, v)
            o = torch.empty(n, self.heads, self.dim)
            for b in range((n + T - 1) // T):
                a, e = b * T, min(n, b * T + T)
                keys, values = cache.read(b, e)
                s = (
                    q[a:e]
                    .view(e - a, self.kv_heads, g, self.dim)
                    .permute(1, 2, 0, 3)
                    .reshape(self.kv_heads, -1, self.dim)
                )
                s = (s @ keys.permute(1, 2, 0)) / math.sqrt(self.dim)
                s.view(self.kv_heads, g, e - a, -1)[..., a:e] += torch.full(
                    (e - a, e - a), -1e30
                ).triu(1)
                y = torch.softmax(s, -1) @ values.permute(1, 0, 2)
                o[a:e] = (
                    y.view(self.kv_heads, g, e - a, self.dim)
                    .permute(2, 0, 1, 3)
                    .reshape(e - a, self.heads, self.dim)
                )
            x = x + o.reshape(n, -1) @ w[p + "attn_output.weight"].T
            h = self.norm(x, w[p + "ffn_norm.weight"])
            x = (
                x
                + (
                    torch.nn.functional.silu(h @ w[p + "ffn_gate.weight"].T)
                    * (h @ w[p + "ffn_up.weight"].T)
                )
                @ w[p + "ffn_down.weight"].T
            )
        return self.norm(x, w["output_norm.weight"])

    def loss(self, ids, cache):
        h, out = self.hidden(ids, cache), self.w.get("output.weight", self.w["token_embd.weight"])
        return torch.cat(
            [
                torch.nn.functional.cross_entropy(
                    h[i : i + 512][: len(ids) - 1 - i] @ out.T,
                    ids[i + 1 : i + 513],
                    reduction="none",
                )
                for i in range(0, len(ids) - 1, 512)
            ]
        )


class Calibration:
    """Second moments of q and of K within a block, per layer and KV head: d = (E q^2 / Var k)^(1/4);
    and how far 2-bit K moves a layer's attention: |o~ - o|^2 / |o|^2, sink and own block exact."""

    def __init__(self, model):
        self.model, self.d, self.errors = model, [], []

    def store(self, l, q, k, v):
        m = self.model
        n = len(k) // T * T
        within = k[:n].view(-1, T, m.kv_heads, m.dim)
        within = within - within.mean(1, keepdim=True)
        var_k = (within**2)[1:].mean((0, 1))
        q2 = (q[T:] ** 2).view(-1, m.kv_heads, m.heads // m.kv_heads, m.dim).mean((0, 2))
        self.d.append((q2 / var_k).pow(0.25))
        self.errors.append(self.error(q[:n], k[:n], v[:n], self.d[-1]))
        self.k, self.v = k, v

    def error(self, q, k, v, d):
        h, g, t = hadamard(self.model.dim), q.shape[1] // k.shape[1], torch.arange(len(k))
        read = grouped((k * d) @ h, 0, T, nested(2)) @ h.T / d
        exact = (t[None] // T == t[:, None] // T) | (t[None] < T)
        moved, size = 0.0, 0.0
        for i in range(q.shape[1]):
            s, s2 = (q[:, i] @ x[:, i // g].T / math.sqrt(self.model.dim) for x in (k, read))
            s2 = torch.where(exact, s, s2)
            o, o2 = (
                torch.softmax(x.masked_fill(t[None] > t[:, None], -1e30), -1)[len(t) // 2 :]
                @ v[:, i // g]
                for x in (s, s2)
            )
            moved, size = moved + float(((o2 - o) ** 2).sum()), size + float((o**2).sum())
        return moved / size

    def read(self, b, e):
        return self.k[:e], self.v[:e]


class Tiers:
    def __init__(self, model, config, d, k_layers):
        head, *flags = config.split("+")
        name, _, windows = head.partition(":")
        s, h, w = (
            (int(x) for x in windows.split(","))
            if windows
            else (1 if name.endswith("2") else 0, 0, 0)
        )
        self.far = {"f16": "F16", "i4": "I4", "kivi4": "I4"}.get(name, "I2")
        self.tier = lambda b, i: (
            "F16" if i >= b or i < s or b - i <= h else "I4" if b - i <= h + w else self.far
        )
        self.kivi = name.startswith("kivi")
        self.k_layers = [] if self.kivi or "even" in flags else k_layers
        self.basis = (
            "plain" if self.kivi or "plain" in flags else "vrot" if "vrot" in flags else "full"
        )
        self.model, self.d, self.h = model, d, hadamard(model.dim)

    def formats(self, l, k, v):
        if self.kivi:
            return {
                f"I{b}": (grouped(k, 0, 32, end_point(b)), grouped(v, 2, 32, end_point(b)))
                for b in (4, 2)
            }
        d = self.d[l] if self.basis == "full" else torch.ones(1)
        rk = self.h if self.basis == "full" else torch.eye(self.model.dim)
        rv = self.h if self.basis != "plain" else torch.eye(self.model.dim)
        return {
            f"I{b}": (
                (grouped((k * d) @ rk, 0, T, nested(b)) @ rk.T) / d,
                grouped(v @ rv, 2, 64, nested(b)) @ rv.T,
            )
            for b in (4, 2)
        }

    def store(self, l, q, k, v):
        n = len(k) // T * T
        self.data = {"F16": (f16(k), f16(v))}
        for f, (a, b) in self.formats(l, k[:n], v[:n]).items():
            self.data[f] = (torch.cat([a, f16(k[n:])]), torch.cat([b, f16(v[n:])]))
        if l in self.k_layers:
            self.data["I2"] = (self.data["I4"][0], self.data["I2"][1])

    def read(self, b, e):
        at = [self.tier(b, i) for i in range(b + 1)]
        cut = [0] + [i for i in range(1, b + 1) if at[i] != at[i - 1]] + [b + 1]
        part = [(at[i], i * T, min(e, j * T)) for i, j in zip(cut, cut[1:])]
        return tuple(torch.cat([self.data[f][x][i:j] for f, i, j in part]) for x in (0, 1))


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("model")
    p.add_argument("text", nargs="+")
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--pieces", type=int, default=4)
    p.add_argument(
        "--calibrate", help="text for the K equalizer (default: the end of the first text)"
    )
    p.add_argument(
        "--configs",
        default="f16 i4 i2 kivi4 kivi2 ladder:1,4,8",
        help="configurations, separated by spaces",
    )
    p.add_argument("--k-layers", type=int, default=8, help="layers whose K stays at I4 in I2")
    o = p.parse_args()
    from transformers import AutoTokenizer

    tok = AutoTokenizer.from_pretrained(
        os.path.dirname(o.model) or ".", gguf_file=os.path.basename(o.model)
    )
    model, texts = Model(o.model), [open(t).read() for t in o.text]
    calibration = Calibration(model)
    model.hidden(
        torch.tensor(
            tok(open(o.calibrate).read() if o.calibrate else texts[0][-8000:])["input_ids"][:1024]
        ),
        calibration,
    )
    k_layers = sorted(range(model.layers), key=lambda l: -calibration.errors[l])[: o.k_layers]
    print("K stays at I4 in layers", sorted(k_layers), flush=True)
    pieces = []
    for i in range(o.pieces):
        t = texts[i % len(texts)]
        start = 30000 + 60000 * (i // len(texts))
        pieces.append(torch.tensor(tok(t[start : start + 6 * o.context])["input_ids"][: o.context]))
        assert len(pieces[-1]) == o.context
    base = None
    for config in o.configs.split():
        t0 = time.time()
        loss = torch.stack(
            [model.loss(ids, Tiers(model, config, calibration.d, k_layers)) for ids in pieces]
        )
        base = loss if base is None else base
        se = (
            (loss - base).mean(1).std() / math.sqrt(len(pieces))
            if len(pieces) > 1
            else torch.tensor(float("nan"))
        )
        print(
            f"{config:24s} perplexity {loss.mean().exp():8.3f}  against the first {100 * ((loss - base).mean().exp() - 1):+7.2f} %  (s.e. {100 * se:.2f})  {time.time() - t0:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
