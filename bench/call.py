#!/usr/bin/env python3
"""call.py owns `make bench-call`: what a call costs besides its arithmetic, where that is most of it.

Usage: call.py PROGRAM WORK_DIR TIER.. CALL_FILTER=part of a line's name selects, e.g. "gemm".

A line is a call with a workspace, one after another on the same memory: the nanoseconds of the best turn; those that
more heads do not take again (checks, plans, memory, the report), from calls of one head and of five; the instructions
of a call, and how many of them are not in kernels, counted by valgrind's cachegrind, which knows no AVX-512. The
counts are those of a machine at rest, the times of this one.
"""

import os
import re
import subprocess
import sys

from cache import FIRST, LAST, counts

CALLS = [
    ("sdpa", 16, 16, 64), ("sdpa", 64, 64, 64), ("sdpa", 1, 16, 64), ("sdpa", 1, 128, 64), ("cache", 1, 16, 64),
    ("gemm", 16, 16, 16), ("gemm", 32, 32, 32), ("gemm", 64, 16, 16), ("gemm", 64, 64, 64),
    ("linear", 1, 64, 64), ("recurrent", 1, 64, 64), ("norm", 1, 64, 0), ("rope", 1, 64, 0),
]
MORE = 5
KERNEL = r"attn_\w+_(scalar|avx2|neon)_"


def time(program, tier, call, heads):
    command = [program, tier] + [str(a) for a in call] + ["0", str(heads)]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3))


def instructions(program, tier, call, work):
    """(all, outside of kernels) of one call: what 200 take beyond 100."""
    out = os.path.join(work, f"call-{os.getpid()}")
    few, many = (counts(program, tier, call + (n,), FIRST[0], LAST[0], out) for n in (100, 200))
    every = {f: (many[f]["Ir"] - few.get(f, {"Ir": 0})["Ir"]) / 100 for f in many}
    return sum(every.values()), sum(n for f, n in every.items() if not re.match(KERNEL, f))


def main():
    program, work, tiers = sys.argv[1], sys.argv[2], sys.argv[3:]
    os.makedirs(work, exist_ok=True)
    wanted = os.environ.get("CALL_FILTER", "")
    print(f"{'':8}{'':26}{'ns':>8}{'once':>8}{'instructions':>14}{'besides kernels':>17}")
    for tier in tiers:
        for call in CALLS:
            name = call[0] + " " + "x".join(str(a) for a in call[1:] if a)
            if wanted not in name:
                continue
            one, more = time(program, tier, call, 1), time(program, tier, call, MORE)
            once = one - (more - one) / (MORE - 1)
            line = f"{tier:8}{name:26}{one:8.0f}{once:8.0f}"
            if tier != "avx512":
                line += "{:14.0f}{:17.0f}".format(*instructions(program, tier, call, work))
            print(line, flush=True)


if __name__ == "__main__":
    main()
