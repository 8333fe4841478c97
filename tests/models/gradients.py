"""gradients.py owns the check of gradients of attention against PyTorch's in float64: gradients.py GRADIENTS runs that
program (gradients.c) and makes forward again from the formulas of attn.h's documentation, for autograd to go back through."""

import subprocess
import sys

import numpy as np
import torch
from transformers.models.t5.modeling_t5 import T5Attention

FORWARD, BACK = 2e-6, 1e-5  # of an array's largest number
LABELS = 5
failures = 0


def check(good, *what):
    global failures
    if not good:
        failures += 1
        print("FAILED:", *what, flush=True)


def cases(data):
    """(name, arrays) of all cases."""
    at, found = 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        words = data[at:end].decode().split()
        at = end + 1
        if words[0] == "case":
            found.append((" ".join(words[1:]), {}))
            continue
        shape = [int(n) for n in words[2:]]
        size = 4 * int(np.prod(shape))
        numbers = np.frombuffer(data[at:at + size], np.float32).reshape(shape)
        found[-1][1][words[1]] = torch.tensor(numbers, dtype=torch.float64)
        at += size
    return found


def philox(counter, key):
    """Philox4x32-10 of arrays of four words."""
    c = [x.astype(np.uint64) for x in counter]
    low = np.uint64(0xFFFFFFFF)
    for n in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        k = [np.uint64((key[0] + n * 0x9E3779B9) % 2**32), np.uint64((key[1] + n * 0xBB67AE85) % 2**32)]
        c = [b >> np.uint64(32) ^ c[1] ^ k[0], b & low, a >> np.uint64(32) ^ c[3] ^ k[1], a & low]
    return c


def kept(p, seed, batch, heads, rows, keys):
    """What dropout makes of ones."""
    b, h, i, j = np.indices((batch, heads, rows, keys))
    words = np.stack(philox((j // 4, i, h, b), (seed, 0)))
    word = np.take_along_axis(words, (j % 4)[None], 0)[0]
    return torch.tensor((word >> np.uint64(8)) >= np.ceil(p * 2**24)).double() / (1 - p)


def per_head(x):
    return x.reshape(-1)[:, None, None]


def scores(a, q, k, scale):
    """What enters the softmax, [B, H, T, T], forbidden pairs apart."""
    T = q.shape[2]
    i = torch.arange(T)[:, None]
    j = torch.arange(T)[None, :]
    far = (j - i).abs().double()
    r = torch.einsum("bhid,bhjd->bhij", q, k)
    if "relative_keys" in a:
        c = (a["relative_keys"].shape[2] - 1) // 2
        e = (j - i).clamp(-c, c) + c
        r = r + torch.einsum("bhid,hijd->bhij", q, a["relative_keys"][0][:, e])
        r = r + torch.einsum("bhjd,ijd->bhij", k, a["relative_queries"][0, 0][e])
    if "label_table" in a:
        label = (i + 2 * j) % (LABELS + 1) - 1
        there = (label >= 0).double()
        at = label.clamp(min=0)
        r = r + there * torch.einsum("bhid,hijd->bhij", q, a["label_table"][0][:, at])
        r = r + there * a["label_bias"][0, 0].T[:, at]
    if "xl_table" in a:
        table = a["xl_table"][0, 0][j - i + T - 1]
        r = r + torch.einsum("hd,bhjd->bhj", a["xl_u"][0, 0], k)[:, :, None, :]
        r = r + torch.einsum("bhid,ijd->bhij", q + a["xl_v"][0, 0][:, None, :], table)
    x = scale * r
    if "alpha" in a:
        al, be = per_head(a["alpha"]), per_head(a["beta"])
        x = torch.relu(x) * (1 + be.exp()) / (1 + (be - al * far).exp())
    if "cap_first" in a:
        cap = float(a["cap_first"])
        x = cap * torch.tanh(x / cap)
    if "toeplitz" in a:
        table = a["toeplitz"][0, 0][:, (j - i + 70).clamp(0, 89)]
        x = x + (table * scale if float(a["inside"]) else table)
    if "t5" in a:
        bucket = T5Attention._relative_position_bucket(j - i, True, 32, 128)
        x = x + a["t5"][0, 0].T[:, bucket]
    if "parabola_w" in a:
        x = x - (per_head(a["parabola_w"]) * far * far + per_head(a["parabola_bias"])).abs()
    if "alibi" in a:
        x = x - per_head(a["alibi"]) * far
    if "center" in a:
        x = x - a["precision"][0][..., None] * (j.double() - a["center"][0][..., None]) ** 2
    if "bias" in a:
        x = x + a["bias"]
    if "cap_last" in a:
        cap = float(a["cap_last"])
        x = cap * torch.tanh(x / cap)
    if "modify" in a:
        x = x / (1 + x.abs() / 4)
    return x


def spans(a, T):
    """Weights' factor by distance."""
    back = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).double()
    z = a["spans"][0][..., None] if "spans" in a else per_head(a["span"])
    return ((20 + z - back) / 20).clamp(0, 1) * (back >= 0)


def attend(a, q, k, v, allowed):
    """Softmax: the loss, o and the LSE."""
    B, H, T, _ = q.shape
    x = scores(a, q, k, per_head(a["scale"])).masked_fill(~allowed, -torch.inf)
    w = torch.exp(x)
    if "span" in a or "spans" in a:
        w = w * spans(a, T)
    below = w.sum(-1, keepdim=True)
    if "sinks" in a:
        below = below + per_head(a["sinks"]).exp()
    if "one" in a:
        below = below + 1
    p = w / below
    m = kept(float(a["dropout"]), 11, B, H, T, T) if "dropout" in a else 1.0
    o = torch.einsum("bhij,bhjd->bhid", p * m, v)
    if "relative_values" in a:
        c = (a["relative_values"].shape[2] - 1) // 2
        i = torch.arange(T)
        e = (i[None, :] - i[:, None]).clamp(-c, c) + c
        o = o + torch.einsum("bhij,ijd->bhid", p * m, a["relative_values"][0, 0][e])
    lse = below.log()
    loss = (o * a["given_o"]).sum()
    if "given_lse" in a:
        loss = loss + (lse * a["given_lse"]).sum()
    if "given_map" in a:
        seen = x.masked_fill(~allowed, 0) if "of_scores" in a else p
        loss = loss + (seen * a["given_map"]).sum()
    return loss, {"o": o, "lse": lse}


def rectify(a, q, k, v, allowed):
    """Rectified weights: the loss, o and sums."""
    kind, power, eps = int(a["kind"]), int(a["power"]), float(a["eps"])
    n = allowed.sum(-1, keepdim=True).double()
    RAW, LEN, VAR, GAU, NORM, RELA = range(6)
    x = scores(a, q, k, per_head(a["scale"]) if "scale" in a else 1 / n)
    r = torch.relu(x) ** power * allowed
    c = {LEN: 1 / n, VAR: (n / 2) ** -0.5}.get(kind, torch.ones_like(n))
    if kind == NORM:
        c = 1 / (eps + r.sum(-1, keepdim=True))
    w = c * r
    o, sums = torch.einsum("bhij,bhjd->bhid", w, v), w.sum(-1, keepdim=True)
    if kind == RELA:
        gain, gate = a["gain"][0, 0][:, None, :], a["gate"][0, 0][:, None, :]
        mean = (o * o).mean((1, 3), keepdim=True)
        o = gain * o / torch.sqrt(mean + 1e-8) * torch.sigmoid(gate * o)
    return (o * a["given_o"]).sum() + (sums * a["given_sum"]).sum(), {"o": o, "sum": sums}


def near(name, what, got, want, most):
    got, want = got.detach(), want.detach()
    size = max(float(want.abs().max()), 1e-12)
    worst = float((got - want).abs().max()) / size
    check(worst <= most, f"{name}: {what} is off by {worst:.2g} of its largest number")
    return worst


def judge(name, a):
    """A case: what forward and back made against what PyTorch makes."""
    learns = {n: x.requires_grad_() for n, x in a.items() if "d_" + n in a}
    B, H, T, _ = a["q"].shape
    group = H // a["k"].shape[1]
    k, v = a["k"].repeat_interleave(group, 1), a["v"].repeat_interleave(group, 1)
    allowed = torch.ones(T, T, dtype=torch.bool)
    if float(a["causal"]):
        allowed = allowed.tril()
    loss, outputs = (rectify if "kind" in a else attend)(a, a["q"], k, v, allowed)
    for n, x in outputs.items():
        near(name, n, a[n], x, FORWARD if n != "o" else 4 * FORWARD)
    gradients = torch.autograd.grad(loss, list(learns.values()))
    return max(near(name, "d_" + n, a["d_" + n], g, BACK) for n, g in zip(learns, gradients)), len(learns)


def main():
    data = subprocess.run(sys.argv[1:2], check=True, stdout=subprocess.PIPE).stdout
    worst = count = 0
    all_cases = cases(data)
    for name, arrays in all_cases:
        most, n = judge(name, arrays)
        worst, count = max(worst, most), count + n
    print(f"gradients: {len(all_cases)} calls, {count} arrays against PyTorch {torch.__version__}: "
          f"off by {worst:.2g} of an array's largest number at most, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
