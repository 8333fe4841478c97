#!/usr/bin/env python3
"""peers.py owns `make bench-peers`: attn.h against PyTorch and ONNX Runtime, one thread each, in one process,
taking turns, with a probe of the FMA peak after each.

Usage: peers.py LIBRARY TIER OUT.json [SECONDS [REGEX]]. The JSON has the form of the benchmark's (results.py).
On a tier below the best one here PyTorch is told to keep to the same instructions; ONNX Runtime has no such
word and takes part on the best tier only. Rates are those of the best turn, by the clock of the thread.
"""

import ctypes
import json
import os
import platform
import re
import sys
import time

import recurrent_peers

CAPS = {  # read when torch is loaded
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "scalar": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}
TURN_SECONDS = 3e-3
LEAST_ROUNDS = 4
HEADS = 8
PRODUCTS = [(512, 512, 64), (128, 768, 768), (512, 3072, 768), (2048, 1024, 1024)]


class Contender:
    def __init__(self, name, call):
        self.name, self.call, self.calls, self.seconds = name, call, 0, []

    def turn(self):
        """Seconds on the clock and of this thread; the first turn only finds how many calls make one."""
        clock, busy = time.perf_counter(), time.thread_time()
        for _ in range(self.calls or 1):
            self.call()
        clock, busy = time.perf_counter() - clock, time.thread_time() - busy
        if self.calls:
            self.seconds.append(busy / self.calls)
        else:
            self.calls = max(1, int(TURN_SECONDS / max(busy, 1e-8)))
        return clock, busy


def quantile(values, part):
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def contest(contenders, flops, probe, seconds):
    """The counters of one entry."""
    clock = busy = peak = 0.0
    rounds, start = 0, time.perf_counter()
    while rounds <= LEAST_ROUNDS or time.perf_counter() - start < seconds:
        for n in range(len(contenders)):
            c, b = contenders[(n + rounds) % len(contenders)].turn()
            clock, busy, peak = clock + c, busy + b, max(peak, probe())
        rounds += 1
    ours = contenders[0].seconds
    best, median = min(ours), quantile(ours, 0.5)
    counters = {
        "GFLOPS": 1e-9 * flops / best,
        "percent": 100e-9 * flops / best / peak,
        "peak": peak,
        "median_share": best / median,
        "worst_share": best / max(ours),
        "spread_share": best / quantile(ours, 0.25) - best / quantile(ours, 0.75),
        "core_share": busy / clock,
        "load": os.getloadavg()[0],
        "rounds": len(ours),
    }
    for c in contenders[1:]:
        counters[c.name + "_GFLOPS"] = 1e-9 * flops / min(c.seconds)
        counters[c.name + "_ratio"] = min(c.seconds) / best
        counters[c.name + "_ratio_median"] = quantile(c.seconds, 0.5) / median
    return counters


def onnx_session(onnxruntime, node, inputs, output, domain=""):
    """A call of one node on arrays that stay where they are."""
    from onnx import TensorProto, helper

    def info(name, array):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)

    graph = helper.make_graph(
        [node], "peer", [info(n, a) for n, a in inputs.items()], [info("out", output)]
    )
    domains = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    result = onnxruntime.OrtValue.ortvalue_from_numpy(output)
    binding.bind_ortvalue_output("out", result)
    return lambda: session.run_with_iobinding(binding), result.numpy


class Bench:
    def __init__(self, library, tier):
        import numpy
        import torch

        self.numpy, self.torch, self.ours = numpy, torch, ctypes.CDLL(library)
        for name in ("ours_peak", "ours_bandwidth"):
            getattr(self.ours, name).restype = ctypes.c_double
        torch.set_num_threads(1)
        self.isa = self.ours.ours_isa(tier.encode())
        best = self.ours.ours_best()
        self.onnxruntime = None
        if not self.isa or self.isa > best:
            sys.exit(f"{tier}: does not run here")
        if self.isa == best:
            import onnxruntime

            self.onnxruntime = onnxruntime
        self.random = numpy.random.default_rng(1)

    def torch_words(self):
        parts = re.findall(r"MKL-DNN v\S+|Math Kernel Library Version \S+", self.torch.__config__.show())
        level = self.torch.backends.cpu.get_cpu_capability()
        return f"{self.torch.__version__} ({', '.join([level, *parts])})"

    def draw(self, *shape):
        return self.random.standard_normal(shape, dtype=self.numpy.float32)

    def agree(self, name, got, want):
        difference = float(self.numpy.abs(got - want).max())
        if not difference < 1e-3 * max(1.0, float(self.numpy.abs(want).max())):
            sys.exit(f"{name} computes something else: {difference}")

    def ask(self, function, arrays, sizes, *more):
        call = getattr(self.ours, function)
        arguments = [ctypes.c_void_p(a.ctypes.data) for a in arrays] + [ctypes.c_int64(n) for n in sizes]

        def run(keep=arrays):
            if not call(self.isa, *arguments, *more):
                raise RuntimeError(f"{function} failed")

        return Contender("ours", run)

    def sdpa(self, length, dim, causal):
        from onnx import helper

        batch = max(1, 512 // length)
        q, k, v = (self.draw(batch, HEADS, length, dim) for _ in range(3))
        o = self.numpy.empty_like(q)
        ours = self.ask("ours_sdpa", (o, q, k, v), (batch, HEADS, length, dim), int(causal))
        ours.call()

        t = [self.torch.from_numpy(x) for x in (q, k, v)]
        attend = self.torch.nn.functional.scaled_dot_product_attention
        theirs = Contender("torch", lambda: attend(*t, is_causal=causal))
        self.agree("torch", theirs.call().numpy(), o)
        contenders = [ours, theirs]
        if self.onnxruntime:
            rows = {  # [B, T, H d]
                n: self.numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, length, -1)
                for n, x in (("q", q), ("k", k), ("v", v))
            }
            node = helper.make_node(
                "MultiHeadAttention",
                list(rows),
                ["out"],
                domain="com.microsoft",
                num_heads=HEADS,
                unidirectional=int(causal),
            )
            out = self.numpy.empty_like(rows["q"])
            call, result = onnx_session(self.onnxruntime, node, rows, out, "com.microsoft")
            call()
            got = result().reshape(batch, length, HEADS, dim).transpose(0, 2, 1, 3)
            self.agree("onnxruntime", got, o)
            contenders.append(Contender("onnxruntime", call))
        pairs = length * (length + 1) // 2 if causal else length * length
        flops = 4 * batch * HEADS * pairs * dim
        traffic = 4 * 4 * batch * HEADS * length * dim
        return contenders, flops, flops / traffic

    def sdpa_backward(self, length, dim, causal, kind):
        """Gradients by q, k and v, forward done beforehand; counted as 2 (3 dk + 2 dv) a pair."""
        torch, numpy, batch = self.torch, self.numpy, max(1, 512 // length)
        shape, bf16 = (batch, HEADS, length, dim), kind == "bf16"
        q, k, v, d_o = (torch.from_numpy(self.draw(*shape)) for _ in range(4))
        if bf16:
            q, k, v, d_o = (t.to(torch.bfloat16) for t in (q, k, v, d_o))
        words = lambda t: t.view(torch.int16).numpy() if bf16 else t.numpy()
        grads, o = [torch.empty_like(q) for _ in range(3)], torch.empty_like(q)
        arrays = [words(t) for t in (*grads, d_o, q, k, v, o)]
        arrays.append(numpy.empty(shape[:3], numpy.float32))
        ask = lambda forward: self.ask("ours_sdpa_backward", arrays, shape, int(causal), int(bf16), forward)
        ask(1).call()
        ours = ask(0)
        ours.call()

        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        theirs = Contender("torch", lambda: torch.autograd.grad(out, leaves, d_o, retain_graph=True))
        if not bf16:
            for got, want in zip(theirs.call(), grads):
                self.agree("torch", got.numpy(), want.numpy())
        pairs = length * (length + 1) // 2 if causal else length * length
        flops = 10 * batch * HEADS * pairs * dim
        return [ours, theirs], flops, flops / ((2 if bf16 else 4) * 8 * batch * HEADS * length * dim)

    def gemm(self, m, n, k):
        from onnx import helper

        x, w, y = self.draw(m, k), self.draw(k, n), self.numpy.empty((m, n), self.numpy.float32)
        ours = self.ask("ours_gemm", (y, x, w), (m, n, k))
        ours.call()
        tx, tw = self.torch.from_numpy(x), self.torch.from_numpy(w)
        ty = self.torch.empty(m, n)
        theirs = Contender("torch", lambda: self.torch.mm(tx, tw, out=ty))
        self.agree("torch", theirs.call().numpy(), y)
        contenders = [ours, theirs]
        if self.onnxruntime:
            node = helper.make_node("MatMul", ["x", "w"], ["out"])
            call, result = onnx_session(
                self.onnxruntime, node, {"x": x, "w": w}, self.numpy.empty_like(y)
            )
            call()
            self.agree("onnxruntime", result(), y)
            contenders.append(Contender("onnxruntime", call))
        return contenders, 2 * m * n * k, m * n * k / 2 / (m * k + k * n + m * n)


    def encoder(self, length, dim, heads, hidden):
        """A Transformer's layer, post-norm with ReLU; theirs in inference mode, where it is one fused call."""
        layer = self.torch.nn.TransformerEncoderLayer(
            dim, heads, hidden, dropout=0.0, batch_first=True
        ).eval()
        for bias in (layer.self_attn.in_proj_bias, layer.self_attn.out_proj.bias):
            self.torch.nn.init.normal_(bias, std=0.1)
        own = lambda t: self.numpy.ascontiguousarray(t.detach().numpy())
        attention, first, second = layer.self_attn, layer.linear1, layer.linear2
        w = [own(p.T) for p in attention.in_proj_weight.chunk(3)]
        w += [own(m.weight.T) for m in (attention.out_proj, first, second)]
        b = [own(p) for p in attention.in_proj_bias.chunk(3)]
        b += [own(m.bias) for m in (attention.out_proj, first, second)]
        x = self.draw(length, dim)
        y = self.numpy.empty_like(x)
        pointers = lambda arrays: (ctypes.c_void_p * 6)(*(a.ctypes.data for a in arrays))
        sizes = [ctypes.c_int64(n) for n in (length, dim, heads, hidden)]

        def run(keep=(w, b), pw=pointers(w), pb=pointers(b)):
            rows = (ctypes.c_void_p(a.ctypes.data) for a in (y, x))
            if not self.ours.ours_encoder(self.isa, *rows, pw, pb, *sizes):
                raise RuntimeError("ours_encoder failed")

        ours = Contender("ours", run)
        ours.call()
        tx = self.torch.from_numpy(x)[None]

        def attend():
            with self.torch.inference_mode():
                return layer(tx)

        theirs = Contender("torch", attend)
        self.agree("torch", theirs.call()[0].numpy(), y)
        products = 4 * dim * dim + 2 * dim * hidden
        flops = 2 * length * products + 4 * length * length * dim
        return [ours, theirs], flops, flops / 4 / (products + 2 * length * dim)


    def recurrent(self, rule, length, dim):
        """Each rule's recurrence in eager PyTorch, by tokens and by chunks, and chunks with torch.compile."""
        heads, torch, numpy = 2, self.torch, self.numpy
        q, k, v = (self.draw(heads, length, dim) for _ in range(3))
        k /= numpy.sqrt((k * k).sum(2, keepdims=True))
        wide = dim if rule in ("gla", "kda") else 1
        g = -0.1 * self.random.random((heads, length, wide), dtype=numpy.float32)
        beta = self.random.random((heads, length, 1), dtype=numpy.float32)
        delta = rule in ("gated_delta", "kda")
        o = numpy.empty_like(v)
        ours = self.ask(
            "ours_recurrent", (o, q, k, v, g, beta), (heads, length, dim, wide), int(delta)
        )
        ours.call()
        t = [torch.from_numpy(x) for x in (q, k, v, g)] + [torch.from_numpy(beta) if delta else None]
        contenders = [ours]
        theirs = {
            "torch": lambda: recurrent_peers.chunks(torch, *t),
            "tokens": lambda: recurrent_peers.tokens(torch, *t),
        }
        compiled = torch.compile(recurrent_peers.chunk)
        theirs["compiled"] = lambda: recurrent_peers.chunks(torch, *t, one=compiled)
        for name, call in theirs.items():
            self.agree(name, call().numpy(), o)
            contenders.append(Contender(name, call))
        states, triangles = (3, 2) if delta else (2, 1)
        flops = 2 * heads * length * (states * dim * dim + triangles * 65 * dim)
        return contenders, flops, flops / (4 * heads * length * (4 * dim + wide))


def entries(tier):
    for causal in (False, True):
        for dim in (64, 128):
            for length in (64, 128, 256, 512, 1024, 2048, 4096):
                name = f"sdpa/f32/{tier}/causal:{int(causal)}/T:{length}/d:{dim}/h:{HEADS}"
                if length < 512:
                    name += f"/b:{512 // length}"
                yield name, "sdpa", (length, dim, causal)
    for kind in ("f32", "bf16"):
        for causal in (False, True):
            for dim in (64, 128):
                for length in (128, 512, 2048, 8192):
                    name = f"sdpa_backward/{kind}/{tier}/causal:{int(causal)}/T:{length}/d:{dim}/h:{HEADS}"
                    yield name, "sdpa_backward", (length, dim, causal, kind)
    for m, n, k in PRODUCTS:
        yield f"gemm/f32/{tier}/m:{m}/n:{n}/k:{k}", "gemm", (m, n, k)
    for length, dim, heads in ((128, 384, 12), (512, 768, 12)):
        yield f"encoder/f32/{tier}/T:{length}/d:{dim}/h:{heads}", "encoder", (length, dim, heads, 4 * dim)
    for rule in ("ssd", "gla", "gated_delta", "kda"):
        for length in (4096, 16384):
            yield f"recurrent/f32/{tier}/{rule}/T:{length}/d:128/h:2", "recurrent", (rule, length, 128)


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            found = re.search(r"model name\s*: (.*)", f.read())
        return found[1] if found else platform.machine()
    except OSError:
        return platform.machine()


def main():
    library, tier, path = sys.argv[1:4]
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 0.2
    wanted = re.compile(sys.argv[5] if len(sys.argv) > 5 else "")
    os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    bench = Bench(library, tier)
    probe = lambda: bench.ours.ours_peak(bench.isa)
    for _ in range(100):
        peak = probe()
    context = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "tier": tier,
        "cpu": processor(),
        "num_cpus": os.cpu_count(),
        "load_avg": list(os.getloadavg()),
        "peak_GFLOPS": str(peak),
        "torch": bench.torch_words(),
        "onnxruntime": getattr(bench.onnxruntime, "__version__", "not on this tier: it cannot be capped"),
    }
    for level, name in ((2, "L2"), (3, "L3"), (4, "DRAM")):
        context[name + "_GB_per_second"] = str(bench.ours.ours_bandwidth(level))
    for key in ("tier", "cpu", "torch", "onnxruntime", "load_avg"):
        print(f"{key}: {context[key]}")
    print(f"{'':52}{'GFLOP/s':>8} {'% peak':>7}  times as fast as theirs, best (median)")

    done = []
    for name, kind, arguments in entries(tier):
        if not wanted.search(name):
            continue
        contenders, flops, intensity = getattr(bench, kind)(*arguments)
        c = contest(contenders, flops, probe, seconds)
        c["flops_per_byte"] = intensity
        done.append({"name": name, "run_name": name, "run_type": "iteration", **c})
        ratios = "  ".join(
            f"{p.name} {c[p.name + '_ratio']:.2f} ({c[p.name + '_ratio_median']:.2f})"
            for p in contenders[1:]
        )
        print(f"{name:52}{c['GFLOPS']:8.1f} {c['percent']:7.1f}  {ratios}", flush=True)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as f:
        json.dump({"context": context, "benchmarks": done}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    for variable, word in CAPS.get(sys.argv[2], {}).items():
        os.environ.setdefault(variable, word)
    main()
