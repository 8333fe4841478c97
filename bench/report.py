#!/usr/bin/env python3
"""report.py owns `make bench-report`: one HTML page, pictures inside, from the JSON files of any tiers and machines,
those of `make bench`, `make bench-peers` and bench-arm alike.

Usage: report.py OUT.html WORK_DIR FILE...
"""

import html
import os
import re
import sys

from draw import draw
from results import load

PALETTE = ["#0b5fa5", "#d9680f", "#2a8a3e", "#8a2a7a", "#777777", "#6aaee0", "#b8860b", "#c0392b"]
PEERS = {
    "composite": "OpenBLAS and SLEEF, the same tier",
    "naive": "the plain C loop, -O3 -ffast-math",
    "torch": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openblas": "OpenBLAS",
}
STYLE = """body { font: 15px/1.5 sans-serif; max-width: 78em; margin: 2em auto; padding: 0 1em; color: #222 }
svg { width: 100%; height: auto } h2 { margin-top: 2em }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px }
th, td { padding: .1em .7em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }"""


class Run:
    """What one tier did on one machine: its context and entries by name."""

    def __init__(self, path, context, entries):
        self.path, self.context = path, dict(context)
        self.cpu, self.tier = context.get("cpu", "unknown"), context["tier"]
        self.entries = {e["case"]: e for e in entries if not e.get("error_occurred")}
        self.label = self.colour = ""

    def join(self, other):
        """Peers of the same tier and machine: their ratios go to our entries of the same name."""
        for key, value in other.context.items():
            self.context.setdefault(key, value)
        for case, entry in other.entries.items():
            ours = self.entries.setdefault(case, entry)
            for key, value in entry.items():
                ours.setdefault(key, value)

    def limit(self, name):
        """A limit in GFLOP/s or GB/s, or None: of the context, else the largest probe of an entry."""
        if name in self.context:
            return float(self.context[name])
        peaks = [e["peak"] for e in self.entries.values() if "peak" in e]
        return max(peaks) if name == "peak_GFLOPS" and peaks else None

    def over_length(self, value, dim, causal):
        """Points (T, value) of plain f32 attention of 8 heads."""
        points = []
        for case, e in self.entries.items():
            plain = re.fullmatch(r"sdpa/f32/[^/]+/causal:\d/T:\d+/d:\d+/h:8(/b:\d+)?", case)
            f = e["fields"]
            if plain and f["d"] == dim and f["causal"] == causal and value in e:
                points.append((f["T"], e[value]))
        return sorted(points)


def read(paths):
    runs = []
    for path in paths:
        run = Run(path, *load(path))
        same = [r for r in runs if (r.cpu, r.tier) == (run.cpu, run.tier)]
        # a second measurement stays by itself; peers are no second one
        mate = next((r for r in same if ("torch" in r.context) != ("torch" in run.context)), None)
        if mate:
            mate.join(run)
        else:
            runs.append(run)
    several = len({r.cpu for r in runs}) > 1
    for n, r in enumerate(runs):
        r.label = f"{r.tier}, {r.cpu}" if several else r.tier
        if sum((o.cpu, o.tier) == (r.cpu, r.tier) for o in runs) > 1:
            r.label += f" ({os.path.basename(r.path)})"
        r.colour = PALETTE[n % len(PALETTE)]
    return runs


def style(run, title, dash=1, point=7):
    return f"lw 2 dt {dash} pt {point} lc rgb '{run.colour}' title '{quoted(title)}'"


def quoted(text):
    return text.replace("'", "''")


def by_length(runs, value, dims=(128, 64)):
    """Two panels of lines over T; [] when there is nothing to draw."""
    panels = []
    for causal, panel in ((0, "full"), (1, "causal, allowed pairs only")):
        lines = [
            (r.over_length(value, d, causal), style(r, f"{r.label}, d = {d}", 1 if d == 128 else 2))
            for r in runs
            for d in dims
        ]
        panels.append((panel, [x for x in lines if x[0]]))
    return panels if any(lines for _, lines in panels) else []


def highest(panels):
    return 1.1 * max(v for _, lines in panels for points, _ in lines for _, v in points)


ONE = "set arrow from graph 0,first 1 to graph 1,first 1 nohead lc rgb '#999999'\n"


class Page:
    def __init__(self, work):
        self.work, self.parts = work, []

    def add(self, *lines):
        self.parts.extend(lines)

    def picture(self, name, words, title, ylabel, yrange, panels, extra=""):
        if not any(lines for _, lines in panels):
            self.add(f"<p>{html.escape(title)}: nothing measured.</p>")
            return
        out = os.path.join(self.work, f"report_{name}.svg")
        draw(out, self.work, quoted(title), ylabel, yrange, panels, extra)
        with open(out) as f:
            svg = f.read()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<(title|desc)>[^<]*</\1>", "", svg)  # they would show under the mouse
        # ids are the page's, not the picture's
        svg = re.sub(r"(\bid=['\"]|href=['\"]#|url\(#)", rf"\g<1>{name}-", svg)
        self.add(f'<figure id="{name}">{svg}<figcaption>{html.escape(words)}</figcaption></figure>')

    def table(self, heads, rows):
        self.add('<div class="wide"><table><tr>')
        self.add("".join(f"<th>{html.escape(h)}</th>" for h in heads), "</tr>")
        for row in rows:
            self.add("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>")
        self.add("</table></div>")


def show(value, form=".1f"):
    return "-" if value is None else format(value, form)


def machines(page, runs):
    limits = ["peak_GFLOPS", "L2_GB_per_second", "L3_GB_per_second", "DRAM_GB_per_second"]
    words = ["date", "compiler", "openblas_core", "torch", "onnxruntime"]
    page.table(
        ["tier", "processor", "FMA peak", "L2 GB/s", "L3 GB/s", "DRAM GB/s", "load at start", *words],
        [
            [r.tier, r.cpu]
            + [show(r.limit(name)) for name in limits]
            + [show((r.context.get("load_avg") or [None])[0], ".2f")]
            + [r.context.get(w, "-") for w in words]
            for r in runs
        ],
    )
    page.add("<p>Of one core; the peak is that of register-only fused multiply-adds, in GFLOP/s.</p>")


def percent(page, runs):
    page.add("<h2>Percent of the peak</h2>")
    page.picture(
        "peak",
        "Best turn against the largest probe of the peak among the turns of the same entry.",
        "attn_sdpa, f32, 8 heads, one core",
        "percent of the measured FMA peak",
        "[0:100]",
        by_length(runs, "percent"),
    )


def tiers(page, runs):
    page.add("<h2>Instruction set against instruction set</h2>")
    rates = [("d = 64, full", []), ("d = 64, against the slowest tier of the same processor", [])]
    for r in runs:
        points = r.over_length("GFLOPS", 64, 0)
        family = [dict(o.over_length("GFLOPS", 64, 0)) for o in runs if o.cpu == r.cpu]
        if points:
            rates[0][1].append((points, style(r, r.label)))
            ratios = [(t, v / min(f[t] for f in family if t in f)) for t, v in points]
            rates[1][1].append((ratios, style(r, r.label)))
    page.picture(
        "tiers",
        "Left: GFLOP/s. Right: times as fast.",
        "attn_sdpa, f32, 8 heads, one core",
        "GFLOP/s; times as fast",
        "[0:*]",
        rates,
    )


def peers(page, runs):
    page.add("<h2>Against others</h2>")
    for peer, words in PEERS.items():
        panels = by_length(runs, peer + "_ratio")
        if panels:
            page.picture(
                "peer-" + peer,
                f"Times as fast as {words}, in turn with it in one process; above 1 ours is faster.",
                f"attn_sdpa against {words}, f32, one core",
                "times as fast",
                f"[0:{highest(panels):.1f}]",
                panels,
                ONE,
            )


def roofline(page, runs):
    page.add("<h2>Roofline</h2>")
    lines, edge = [], [2.0**n for n in range(-3, 12)]
    for r in runs:
        peak, memory = r.limit("peak_GFLOPS"), r.limit("DRAM_GB_per_second")
        points = sorted(
            (e["flops_per_byte"], e["GFLOPS"])
            for e in r.entries.values()
            if "flops_per_byte" in e and "GFLOPS" in e and "threads" not in e["fields"]
        )
        if not peak or not points:
            continue
        if memory:
            roof = sorted({*edge, peak / memory})
            lines.append(([(x, min(peak, memory * x)) for x in roof], style(r, r.label, 1, 0)))
        lines.append((points, f"with points ps 0.7 pt 7 lc rgb '{r.colour}' title ''"))
    page.picture(
        "roofline",
        "Lines: the lower of the FMA peak and the read bandwidth of memory, one core. Points: entries, by flops a byte of "
        "operands and result, each touched once; what lies above the slope came from a cache.",
        "attention and dense products, f32, one core",
        "GFLOP/s",
        "[*:*]",
        [("", lines)],
        "set logscale xy\nset xlabel 'flops a byte'\nset xtics autofreq\nset xrange [*:*]\n",
    )


def noise(page, runs):
    page.add("<h2>Noise</h2>")
    panels = []
    for key, words in (
        ("median_share", "median turn over best"),
        ("worst_share", "slowest turn over best"),
        ("core_share", "share of the core that the turns had"),
    ):
        lines = []
        for r in runs:
            values = [e[key] for e in r.entries.values() if key in e]
            lines.append((list(enumerate(sorted(values))), style(r, r.label, 1, 0)))
        panels.append((words, [x for x in lines if x[0]]))
    page.picture(
        "noise",
        "Entries in order of the figure: how far the turns of one entry lie apart, and what others took of the core.",
        "all entries",
        "share",
        "[0:1.05]",
        panels,
        "unset logscale\nset xlabel 'entries'\nset xtics autofreq\nset xrange [*:*]\nset key bottom left\n",
    )
    rows = []
    for r in runs:
        some = [e for e in r.entries.values() if "median_share" in e]
        if some:
            loads = [e["load"] for e in some if "load" in e]
            middle = sorted(e["median_share"] for e in some)[len(some) // 2]
            rows.append(
                [r.label, len(some), f"{middle:.3f}"]
                + [f"{min(e[k] for e in some):.3f}" for k in ("median_share", "worst_share", "core_share")]
                + [f"{max(e['spread_share'] for e in some):.3f}"]
                + [f"{min(loads):.2f} to {max(loads):.2f}" if loads else "-"]
            )
    heads = ["", "entries", "median over best, middle", "least", "slowest over best, least"]
    page.table(heads + ["core share, least", "middle half of the turns, widest", "load"], rows)


def entries(page, runs):
    page.add("<h2>All entries</h2>")
    for r in runs:
        found = [p for p in PEERS if any(p + "_ratio" in e for e in r.entries.values())]
        page.add(f"<h3>{html.escape(r.label)}</h3>")
        page.table(
            ["entry", "GFLOP/s", "GB/s", "% peak", "median", "slowest", "middle half", "core", "load", "turns"]
            + ["x " + p for p in found],
            [
                [e["case"], show(e.get("GFLOPS")), show(e.get("GB_per_second")), show(e.get("percent"))]
                + [show(e.get(k), ".2f") for k in ("median_share", "worst_share", "spread_share")]
                + [show(e.get(k), ".2f") for k in ("core_share", "load")]
                + [show(e.get("rounds"), ".0f")]
                + [show(e.get(p + "_ratio"), ".2f") for p in found]
                for e in r.entries.values()
            ],
        )


def main():
    out, work, *paths = sys.argv[1:]
    os.makedirs(work, exist_ok=True)
    os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
    runs = read(paths)
    page = Page(work)
    title = "attn.h: " + ", ".join(dict.fromkeys(f"{r.tier} on {r.cpu}" for r in runs))
    page.add("<!doctype html>", '<html lang="en"><meta charset="utf-8">')
    page.add(f"<title>{html.escape(title)}</title>", f"<style>{STYLE}</style>")
    page.add(f"<h1>{html.escape(title)}</h1>")
    for part in (machines, percent, tiers, peers, roofline, noise, entries):
        part(page, runs)
    page.add("</html>")
    with open(out, "w") as f:
        f.write("\n".join(page.parts) + "\n")
    print(out)


if __name__ == "__main__":
    main()
