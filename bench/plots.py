#!/usr/bin/env python3
"""plots.py owns the pictures of `make bench-plots`: JSON files in, PNG files out, by gnuplot.

Usage: plots.py OUT_DIR WORK_DIR JSON...
"""

import os
import subprocess
import sys

from results import dense, load

HEAD = """set terminal pngcairo noenhanced size 1200,540 font 'DejaVu Sans,12' background '#ffffff'
set output '{out}'
set multiplot layout 1,2 title '{title}'
set logscale x 2
set xlabel 'sequence length T'
set ylabel '{ylabel}'
set xtics (64,128,256,512,1024,2048,4096)
set xrange [56:4700]
set grid ytics lt 1 lw 1 lc rgb '#dddddd'
set border 3
set tics nomirror
set key bottom right
set yrange {yrange}
"""

COLOURS = {"avx512": "#0b5fa5", "avx2": "#d9680f", "neon": "#2a8a3e", "scalar": "#777777"}


def series(entries, d, causal, value):
    """Points (T, value) of one line, in order of T."""
    points = [
        (e["fields"]["T"], e[value])
        for e in entries
        if dense(e) and e["fields"]["d"] == d and e["fields"]["causal"] == causal and value in e
    ]
    return sorted(points)


def draw(out, work, title, ylabel, yrange, panels, extra=""):
    """panels: [(title, [(points, style)])]; writes the data and the script, then runs gnuplot."""
    name = os.path.splitext(os.path.basename(out))[0]
    script = HEAD.format(out=out, title=title, ylabel=ylabel, yrange=yrange) + extra
    for number, (panel, lines) in enumerate(panels):
        plots = []
        for index, (points, style) in enumerate(lines):
            if not points:
                continue
            data = os.path.join(work, f"{name}_{number}_{index}.dat")
            with open(data, "w") as f:
                f.writelines(f"{t} {v}\n" for t, v in points)
            plots.append(f"'{data}' with linespoints {style}")
        if plots:
            script += f"set title '{panel}'\nplot " + ", \\\n  ".join(plots) + "\n"
    path = os.path.join(work, name + ".gp")
    with open(path, "w") as f:
        f.write(script + "unset multiplot\n")
    subprocess.run(["gnuplot", path], check=True)
    print(out)


def line(tier, d, label):
    dash = "dt 1 pt 7" if d == 128 else "dt 2 pt 6"
    return f"lw 2 {dash} lc rgb '{COLOURS[tier]}' title '{label}'"


def top(panels):
    """One scale for both panels: a little above the highest point."""
    return 1.1 * max(v for _, lines in panels for points, _ in lines for _, v in points)


def main():
    out, work = sys.argv[1:3]
    os.makedirs(out, exist_ok=True)
    tiers = {}
    for path in sys.argv[3:]:
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


main()
