#!/usr/bin/env python3
"""table.py owns the tables of `make bench`: one per tier, from the JSON files named as arguments.

Rates are those of the best turn; percentages are of the largest FMA probe among the turns of the
same entry; ratios are between best turns of contenders that took turns in one process.
"""

import os
import sys

from results import load, versus_peers
from sparse_table import is_sparse, print_sparse

COMPOSITE_TARGET = 1.15  # ours against the composite, every entry
WORKER_TARGET = 1.9  # two workers against one
HALF_TARGET = 0.93  # f16 and bf16 storage against f32


def percent_target(entry):
    """The percentage of the FMA peak that a dense entry is held to, or None."""
    f = entry["fields"]
    if "scalar" in entry["words"]:
        return None
    shape = (f["T"], f["d"])
    if shape in ((1000, 80), (777, 72)):
        return 75
    if f["causal"]:
        return {(2048, 128): 84, (2048, 64): 80}.get(shape)
    return {
        (2048, 128): 90,
        (2048, 64): 86,
        (512, 128): 88,
        (512, 64): 84,
        (128, 64): 78,
        (64, 64): 74,
    }.get(shape)


def ratio_target(entry):
    if "f16" in entry["words"] or "bf16" in entry["words"]:
        return HALF_TARGET
    return WORKER_TARGET if "threads" in entry["fields"] else None


def short(entry):
    """The name without what the table's title says already."""
    drop = {"sdpa", "f32", "scalar", "avx2", "avx512", "neon", "h:8"}
    name = " ".join(p for p in entry["case"].split("/") if p not in drop)
    return name.replace("causal:0", "full  ").replace("causal:1", "causal")


def show(value, form):
    return "-" if value is None else format(value, form)


def mark(value, target):
    return "" if target is None or value >= target else "  below target"


def print_peers(entries):
    print(f"{'':32}{'GFLOP/s':>8} {'% peak':>7} {'target':>7} {'x OpenBLAS':>11} {'x naive':>8}")
    for e in entries:
        target, composite = percent_target(e), e.get("composite_ratio")
        missed = mark(e["percent"], target)
        if composite is not None:
            missed = missed or mark(composite, COMPOSITE_TARGET)
        print(
            f"{short(e):32}{e['GFLOPS']:8.1f} {e['percent']:7.1f} {show(target, 'd'):>7}"
            f" {show(composite, '.2f'):>11} {e['naive_ratio']:8.2f}{missed}"
        )
    print(f"x OpenBLAS: against sgemm, SLEEF softmax, sgemm, same tier; target {COMPOSITE_TARGET}")
    print("x naive: against the plain loop, -O3 -ffast-math, for this very processor on the vector")
    print("tiers and for the baseline processor on the scalar tier.")


def print_variants(entries):
    print(f"\n{'':46}{'GFLOP/s':>8} {'% peak':>7} {'x plain':>8} {'target':>7}")
    for e in entries:
        target = ratio_target(e)
        ratio = e.get("base_ratio")
        print(
            f"{short(e):46}{e['GFLOPS']:8.1f} {e['percent']:7.1f} {show(ratio, '.2f'):>8}"
            f" {show(target, '.2f'):>7}{mark(ratio, target)}"
            + (f"  {e['GB_per_second']:.1f} GB/s of K and V" if "GB_per_second" in e else "")
        )
    print("x plain: against one worker, f32, no modifiers, same T, d and heads (of 2048 x 2048")
    print("where the lengths differ); GFLOP/s count allowed pairs only.")


def print_passes(entries):
    if entries:
        print()
    for e in entries:
        if "GB_per_second" in e:
            line = f"{short(e):32}{e['GB_per_second']:8.1f} GB/s"
        else:  # work that is counted in multiply-adds
            line = f"{short(e):32}{e['GFLOPS']:8.1f} GFLOP/s, {e['percent']:.1f} % of the peak"
        if e["kind"] == "exp":
            line += (
                f", {e['elements_per_second'] * 1e-9:.2f} G/s,"
                f" {e['base_ratio']:.2f} x {e['label']};"
                f" worst error {e['ulp']:.3f} ULP at {e['ulp_at']:.9g}"
                f" (theirs {e['base_ulp']:.3f} at {e['base_ulp_at']:.9g}),"
                f" {e['ulp_points'] * 1e-6:.1f} M arguments"
            )
        print(line)


def print_tier(path):
    context, all_entries = load(path)
    entries = [e for e in all_entries if not e.get("error_occurred")]
    cpu, blas = context["cpu"], context["openblas_core"]
    print(f"\n=== {context['tier']} on {cpu}, OpenBLAS kernels {blas}")
    probed = [e for e in entries if "peak_mean" in e]
    if probed:
        print(
            f"FMA peak of one core: {max(e['peak'] for e in probed):.1f} GFLOP/s; by entry, the"
            f" largest probe {min(e['peak'] for e in probed):.1f} or more,"
            f" the mean {min(e['peak_mean'] for e in probed):.1f} to"
            f" {max(e['peak_mean'] for e in probed):.1f},"
            f" the smallest from {min(e['peak_min'] for e in probed):.1f}"
        )
    for key in sorted(k for k in context if k.startswith("workspace")):
        print(f"{key}: {context[key]} bytes")
    print()
    sdpa = [e for e in entries if e["kind"] == "sdpa" and not is_sparse(e)]
    peers = [e for e in sdpa if versus_peers(e)]
    if peers:
        print_peers(peers)
    variants = [e for e in sdpa if not versus_peers(e)]
    if variants:
        print_variants(variants)
    print_passes([e for e in entries if e["kind"] != "sdpa" and not is_sparse(e)])
    print_sparse(entries)
    for e in all_entries:
        if e.get("error_occurred"):
            print(f"FAILED {e['case']}: {e['error_message']}")


def main():
    for path in sys.argv[1:]:
        if os.path.exists(path) and os.path.getsize(path):
            print_tier(path)
        else:
            print(f"\n=== no results in {path}: the tier does not run here, or nothing ran")


main()
