#!/usr/bin/env python3
"""bench_report.py owns the test of bench/report.py: a page made of small results has each picture, the numbers, and
nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
import tempfile

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


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with tempfile.TemporaryDirectory() as work:

        def result(name, context, entries):
            path = os.path.join(work, name)
            with open(path, "w") as f:
                json.dump({"context": context, "benchmarks": list(entries)}, f)
            return path

        def page(*paths):
            out = os.path.join(work, "report.html")
            command = [sys.executable, os.path.join(root, "bench/report.py"), out, work, *paths]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with open(out) as f:
                return f.read()

        a = result("a.json", context("avx2", "Some's <x86>"), entries("avx2", 100, naive_ratio=4.4, flops_per_byte=9.0))
        b = result("b.json", context("neon", "ARM 0x41/0xd0c"), entries("neon", 30))
        c = result("c.json", context("avx2", "Some's <x86>", torch="2.0"), entries("avx2", 90, torch_ratio=1.25))
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
        # peers join the run of their tier; a second measurement does not
        assert text.count("<h3>") == 2 and page(a, b, a).count("<h3>") == 3
    print("bench report: every picture is there")


main()
