#!/usr/bin/env python3
"""cache.py owns `make bench-cache`: how often the dense kernels miss the first cache, for caches that
this machine need not have, counted by valgrind's cachegrind.

Usage: cache.py PROGRAM WORK_DIR [JOBS]. CACHE_FILTER=part of a line's name selects, e.g. "value" or "d=128".

A figure is misses of the functions of one kernel over the vector multiply-adds that its product needs.
Beside them its instructions, and the misses of all that the call runs of attn.h, over the multiply-adds
of all its products: packing and softmax are in these.
cachegrind knows no prefetcher, so that these are the misses that a prefetcher may hide.
"""

import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

GOAL = 0.02
FIRST = [("32K/8", 32768, 8), ("32K/2", 32768, 2), ("48K/12", 49152, 12), ("64K/4", 65536, 4)]
LAST = [("512K", 524288, 8), ("1M", 1048576, 16)]
LINE = 64

# kernel, arguments of the program, vector multiply-adds of one product times the lanes
T = 512
CALLS = [(("score", "value"), f"d={d}", ["sdpa", T, T, d], T * T * d) for d in (64, 128, 256)]
CALLS += [(("gemm",), f"512x512x{k}", ["gemm", 512, 512, k], 512 * 512 * k) for k in (64, 128, 256)]
CALLS += [(("gemm",), "512x3072x768", ["gemm", 512, 3072, 768], 512 * 3072 * 768)]


def counts(program, tier, arguments, first, last, out):
    """{function: {event: count}} of one run."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={out}"]
    command += [f"--D1={first[1]},{first[2]},{LINE}", f"--LL={last[1]},{last[2]},{LINE}"]
    command += ["--log-file=" + out + ".log", program, tier] + [str(a) for a in arguments]
    subprocess.run(command, check=True)
    found, events, function = {}, [], None
    with open(out) as f:
        for line in f:
            key, _, rest = line.partition("=")
            if line.startswith("events:"):
                events = line.split()[1:]
            elif key == "fn":
                function = found.setdefault(rest.strip(), dict.fromkeys(events, 0))
            elif function is not None and line[0].isdigit():
                for event, n in zip(events, line.split()[1:]):
                    function[event] += int(n)
    os.remove(out)
    return found


def total(found, pattern, *events):
    return sum(f[e] for name, f in found.items() if re.match(pattern, name) for e in events)


def main():
    program, work = sys.argv[1:3]
    jobs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    wanted = os.environ.get("CACHE_FILTER", "")
    arm = platform.machine() in ("aarch64", "arm64")
    tier, lanes = ("neon", 4) if arm else ("avx2", 8)
    os.makedirs(work, exist_ok=True)
    version = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True)
    print(f"{tier} under {version.stdout.strip()} --tool=cachegrind: misses a vector multiply-add of {lanes}")
    print("Not here: avx512, which valgrind does not know" + ("." if arm else ", and neon, for which this must"))
    if not arm:
        print("run on an ARM machine (valgrind does not cross, and qemu comes without its cache plugin).")

    selected = [c for c in CALLS if any(wanted in f"{kernel} {c[1]}" for kernel in c[0])]
    # each first level with the smaller second one, then the larger one
    caches = [(first, LAST[0]) for first in FIRST] + [(FIRST[0], LAST[1])]
    runs = [(c[2], first, last) for c in selected for first, last in caches]

    def run(n):
        return counts(program, tier, *runs[n], os.path.join(work, f"cache.{n}.out"))

    heads = "".join(f"{f[0]:>7} " for f in FIRST)
    print(f"\n{'':27}{'kernel, first level':32}{'':9}{'whole call, first level':35}kernel, second level")
    print(f"{'':27}{heads}{'instr.':>9}{'':3}{heads}" + "".join(f"{last[0]:>8}" for last in LAST))
    missed = 0
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(run, range(len(runs)))
        for kernels, shape, _, product in selected:
            of = [next(results) for _ in caches]
            adds = product / lanes
            call = [total(r, r"attn_", "D1mr", "D1mw") / adds / len(kernels) for r in of[: len(FIRST)]]
            for kernel in kernels:
                if wanted not in f"{kernel} {shape}":
                    continue
                name = rf"attn_{kernel}[a-z0-9_]*_{tier}_"
                instructions = total(of[0], name, "Ir") / adds
                if not instructions:
                    sys.exit(f"no function is called {name}")
                ours = [total(r, name, "D1mr", "D1mw") / adds for r in of[: len(FIRST)]]
                second = [total(r, name, "DLmr", "DLmw") / adds for r in (of[0], of[-1])]
                missed += sum(o > GOAL for o in ours)
                print(
                    f"{kernel:6} {shape:20}"
                    + "".join(f"{o:7.3f}{'*' if o > GOAL else ' '}" for o in ours)
                    + f"{instructions:9.2f}   "
                    + "".join(f"{c:7.3f} " for c in call)
                    + "".join(f"{x:8.4f}" for x in second),
                    flush=True,
                )
    print(f"* above the goal of {GOAL}: {missed}. Caches are bytes/ways with lines of {LINE} bytes; the second")
    print(f"level (8 and 16 ways) stands behind a first one of {FIRST[0][0]}.")


if __name__ == "__main__":
    main()
