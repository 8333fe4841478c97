#!/usr/bin/env python3
"""plots.py owns the pictures of `make bench-plots`: results in, PNG files out, by gnuplot.

Usage: plots.py OUT_DIR WORK_DIR FILE...; a file is JSON of `make bench` or CSV of `make bench-linear`.
"""

import csv
import os
import sys

from draw import draw
from results import dense, load

COLOURS = {"avx512": "#0b5fa5", "avx2": "#d9680f", "neon": "#2a8a3e", "scalar": "#777777"}


def series(entries, d, causal, value):
    """Points (T, value) of one line, in order of T."""
    points = [
        (e["fields"]["T"], e[value])
        for e in entries
        if dense(e) and e["fields"]["d"] == d and e["fields"]["causal"] == causal and value in e
    ]
    return sorted(points)


def line(tier, d, label):
    dash = "dt 1 pt 7" if d == 128 else "dt 2 pt 6"
    return f"lw 2 {dash} lc rgb '{COLOURS[tier]}' title '{label}'"


def top(panels):
    """One scale for both panels: a little above the highest point."""
    return 1.1 * max(v for _, lines in panels for points, _ in lines for _, v in points)


# Methods of `make bench-linear`: panel, colour.
METHODS = {
    "linear": (0, "#0b5fa5"),
    "linear causal": (0, "#6aaee0"),
    "Performer 256": (0, "#d9680f"),
    "Performer 256 causal": (0, "#f0b070"),
    "RFA 128": (0, "#777777"),
    "Nystrom 64": (0, "#2a8a3e"),
    "Linformer 256": (0, "#8a2a7a"),
    "Linformer 256 mean": (0, "#c98ac0"),
    "memory compressed 3": (1, "#0b5fa5"),
    "Poolingformer": (1, "#d9680f"),
    "clustered 256/32": (1, "#2a8a3e"),
    "ProbSparse 5": (1, "#777777"),
    "Luna 64": (1, "#8a2a7a"),
    "ISAB 64": (1, "#c98ac0"),
}

LONG = """set xtics ('512' 512,'1k' 1024,'2k' 2048,'4k' 4096,'8k' 8192,'16k' 16384,'32k' 32768,'64k' 65536)
set xrange [430:78000]
set logscale y
"""


def approximations(path, out, work):
    """Speed against dense attention, and distance from it, of what costs less than it does."""
    with open(path) as f:
        rows = list(csv.DictReader(f))
    tier = rows[0]["tier"]

    def lines(panel, value):
        """Of the first tier: value(row) over T, None where there is none."""
        found = []
        for name, (where, colour) in METHODS.items():
            points = [
                (int(r["T"]), value(r))
                for r in rows
                if r["method"] == name and r["tier"] == tier and value(r) is not None
            ]
            if panel in (where, None) and points:
                dash = "dt 1 pt 7" if where == 0 else "dt 2 pt 6"
                found.append((points, f"lw 2 {dash} lc rgb '{colour}' title '{name}'"))
        return found

    def faster(r):
        return float(r["dense_seconds"]) / float(r["seconds"])

    draw(
        os.path.join(out, "approximations_speed.png"),
        work,
        f"Against dense attention with the same mask, one head, d = 64, f32, one core, {tier}",
        "times as fast",
        "[0.1:2000]",
        [
            ("states, random features, low rank", lines(0, faster)),
            ("fewer keys, fewer queries, layers", lines(1, faster)),
        ],
        LONG
        + "set key top left\n"
        + "set arrow from graph 0,first 1 to graph 1,first 1 nohead lc rgb '#999999'\n",
    )
    panels = []
    for name, words in (("image", "a picture, random projections"), ("peaked", "a picture, q = k")):
        key = "error_" + name
        panels.append((words, lines(None, lambda r: float(r[key]) if r[key] else None)))
    draw(
        os.path.join(out, "approximations_error.png"),
        work,
        "Norm of the difference to exact attention over that of exact attention, nothing trained",
        "relative error",
        "[0.005:5]",
        panels,
        LONG.replace("78000", "40000") + "set key bottom right font ',9'\n",
    )


def dense_plots(paths, out, work):
    """Percent of the peak, and against the peers."""
    tiers = {}
    for path in paths:
        context, entries = load(path)
        tiers[context["tier"]] = (context, entries)
    wide = [t for t in ("avx512", "avx2", "neon") if t in tiers]
    if not wide:
        sys.exit("no results of a vector tier: run make bench first")
    cpu = tiers[wide[0]][0]["cpu"]

    panels = []
    for causal, panel in ((0, "full"), (1, "causal, allowed pairs only")):
        lines = [
            (series(tiers[t][1], d, causal, "percent"), line(t, d, f"{t}, d = {d}"))
            for t in wide
            for d in (128, 64)
        ]
        panels.append((panel, lines))
    draw(
        os.path.join(out, "bench_peak.png"),
        work,
        f"attn_sdpa, f32, 8 heads, one core of {cpu}",
        "percent of the measured FMA peak",
        "[0:100]",
        panels,
    )

    peers = (
        ("composite", "OpenBLAS and SLEEF on the same tier"),
        ("naive", "the plain C loop, -O3 -march=native -ffast-math"),
    )
    for peer, words in peers:
        panels = []
        for causal, panel in ((0, "full"), (1, "causal")):
            lines = [
                (series(tiers[t][1], d, causal, peer + "_ratio"), line(t, d, f"{t}, d = {d}"))
                for t in wide
                for d in (128, 64)
            ]
            panels.append((panel, lines))
        draw(
            os.path.join(out, f"bench_{peer}.png"),
            work,
            f"attn_sdpa against {words}, f32, one core of {cpu}",
            "times as fast",
            f"[0:{top(panels):.1f}]",
            panels,
            "set arrow from graph 0,first 1 to graph 1,first 1 nohead lc rgb '#999999'\n",
        )


def main():
    out, work, *files = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    tables = [f for f in files if f.endswith(".csv")]
    for path in tables:
        approximations(path, out, work)
    if len(files) > len(tables):
        dense_plots([f for f in files if f not in tables], out, work)


if __name__ == "__main__":
    main()
