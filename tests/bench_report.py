#!/usr/bin/env python3
"""bench_report.py owns the test of bench/report.py and peers.py: a page made of small results has each picture, the
numbers, and nothing from elsewhere; what peers.py counts and names is what the page draws."""

import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import peers

NOISE = {"median_share": 0.98, "worst_share": 0.7, "spread_share": 0.04, "core_share": 0.9, "load": 1.5}


def entries(tier, speed, **more):
    for causal in (0, 1):
        for dim in (64, 128):
            for length in (64, 512, 2048):
                rate = speed * length / (length + 64)
                name = f"sdpa/f32/{tier}/causal:{causal}/T:{length}/d:{dim}/h:8/manual_time"
                yield {"name": name, "GFLOPS": rate, "percent": 100 * rate / (1.1 * speed)} | NOISE | more
    yield {"name": "read/DRAM/threads:1", "GB_per_second": 20.0}
    yield {"name": f"gemm/f32/{tier}/broken", "error_occurred": True, "error_message": "no"}


def context(tier, cpu, **more):
    limits = {"peak_GFLOPS": "100.5", "DRAM_GB_per_second": "20.25"}
    return {"tier": tier, "cpu": cpu, "load_avg": [1.5, 1, 1]} | limits | more


class Fixed(peers.Contender):
    """Turns of known seconds, on a core that is had four fifths of the time."""

    def __init__(self, name, turns):
        super().__init__(name, None)
        self.turns = turns

    def turn(self):
        self.seconds.append(self.turns[len(self.seconds) % len(self.turns)])
        return 1.25, 1.0


def check_contest():
    ours, theirs = Fixed("ours", [2.0, 4.0, 2.5, 3.0]), Fixed("torch", [5.0, 9.0, 6.0, 7.0])
    c = peers.contest([ours, theirs], 8e9, lambda: 16.0, 0)
    want = {"GFLOPS": 4, "percent": 25, "worst_share": 0.5, "core_share": 0.8, "torch_GFLOPS": 1.6, "torch_ratio": 2.5}
    for key, value in want.items():
        assert abs(c[key] - value) < 1e-9, f"{key} is {c[key]}, not {value}"
    assert c["worst_share"] <= c["median_share"] <= 1 and c["spread_share"] >= 0


def peers_entries(tier):
    for name, kind, _ in peers.entries(tier):
        yield {"name": name, "GFLOPS": 50.0, "torch_ratio": 1.25, "flops_per_byte": 30.0} | NOISE


def main():
    check_contest()
    with tempfile.TemporaryDirectory() as work:

        def result(name, context, entries):
            path = os.path.join(work, name)
            with open(path, "w") as f:
                json.dump({"context": context, "benchmarks": list(entries)}, f)
            return path

        def page(*paths):
            out = os.path.join(work, "report.html")
            command = [sys.executable, os.path.join(ROOT, "bench/report.py"), out, work, *paths]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with open(out) as f:
                return f.read()

        a = result("a.json", context("avx2", "Some's <x86>"), entries("avx2", 100, naive_ratio=4.4, flops_per_byte=9.0))
        b = result("b.json", context("neon", "ARM 0x41/0xd0c"), entries("neon", 30))
        c = result("c.json", context("avx2", "Some's <x86>", torch="2.0"), peers_entries("avx2"))
        text = page(a, b, c)
        for name in ("peak", "tiers", "peer-naive", "peer-torch", "roofline", "noise"):
            assert f'<figure id="{name}"><svg' in text, f"no picture {name}"
        assert 'id="peer-onnxruntime"' not in text
        ids = re.findall(r"\bid=['\"]([^'\"]+)", text)
        for used in re.findall(r"(?:href=['\"]#|url\(#)([^'\")]+)", text):
            assert used in ids, f"{used} is not on the page"
        assert not re.search(r"<(script|link|img|iframe|!DOCTYPE svg)|\bsrc=|href=['\"][^#]|@import", text), "not alone"
        for words in ("Some&#x27;s &lt;x86&gt;", "1.25", "4.40", "100.5", "20.2", "96.9", "0.700", "1.50 to 1.50", "2.0"):
            assert words in text, f"{words} is missing"
        assert "broken" not in text
        with open(os.path.join(work, "report_peer-torch_0_0.dat")) as f:
            assert len(f.readlines()) == 7, "the lengths of peers.py"
        # peers join the run of their tier; a second measurement does not
        assert text.count("<h3>") == 2 and page(a, b, a).count("<h3>") == 3
    print("bench report: every picture is there")


main()
