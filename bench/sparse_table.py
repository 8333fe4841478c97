"""sparse_table.py owns the tables of sparse attention, of the terms of the score and of the functions
around them, which table.py prints below its own.

Ratios are between contenders that took turns: best turn, and the median beside it where both are
shown. WANTED holds what a ratio is judged by; an entry belongs to the first line whose words all
stand in its name.
"""

# Throughput per allowed pair, against plain dense attention (T = 4096) of the same tier.
WANTED_PATTERN = [
    (("pattern:band", "T:16384"), 0.85),
    (("pattern:blocks",), 0.85),
    (("pattern:bigbird",), 0.85),
    (("pattern:longformer",), 0.85),
    (("pattern:image_2d",), 0.85),
    (("pattern:dilated",), 0.75),
    (("pattern:strided",), 0.75),
    (("pattern:sparse_strided",), 0.75),
    (("pattern:sparse_fixed",), 0.75),
    (("pattern:random_blocks",), 0.75),
    (("pattern:random",), 0.3),
    (("pattern:csr",), 0.3),
]
# Against dense attention with a mask of the same pairs, below this density in percent.
WANTED_MASKED = (1.0, 20)

# Time, against the same call without the term.
WANTED_TERM = [
    (("alibi",), 1.08),
    (("toeplitz",), 1.08),
    (("gaussian",), 1.08),
    (("factor",), 1.08),
    (("softcap:50",), 1.08),
    (("span",), 1.08),
    (("relative:16",), 1.35),
    (("xl",), 1.9),
]

# Building, as a share of one head's forward pass at T = 16384; time at twice the length.
WANTED_BUILD = 0.03
WANTED_GROWTH = 2.1


def is_pattern(entry):
    return entry["kind"] in ("sdpa", "edges") and "pattern" in entry["fields"]


def is_term(entry):
    f = entry["fields"]
    return entry["kind"] in ("sdpa", "relu") and f.get("h") == 1 and "pattern" not in f


def is_function(entry):
    return entry["kind"] not in ("sdpa", "relu", "edges", "exp") and "base_ratio" in entry


def is_sparse(entry):
    kinds = ("schedule", "growth")
    return is_pattern(entry) or is_term(entry) or is_function(entry) or entry["kind"] in kinds


def wanted(entry, lines):
    for words, value in lines:
        if all(w in entry["case"].split("/") for w in words):
            return value
    return None


def label(entry):
    drop = ("sdpa", "schedule", "f32", "scalar", "avx2", "avx512", "neon", "d:64", "h:1")
    name = " ".join(p for p in entry["case"].split("/") if p not in drop)
    name = name.replace("pattern:", "")
    return name.replace("causal:0", "full  ").replace("causal:1", "causal")


def show(value, form=".2f"):
    return "-" if value is None else format(value, form)


def verdict(value, target, most=False):
    if target is None or (value <= target if most else value >= target):
        return ""
    return "  short"


def print_patterns(entries):
    print("\nSparse patterns, throughput per allowed pair against dense attention at T = 4096")
    print(
        f"{'':50}{'GFLOP/s':>8}{'% peak':>7}{'x dense':>8}{'median':>7}{'wanted':>7}"
        f"{'computed':>9}{'x masked':>9}"
    )
    for e in entries:
        target = wanted(e, WANTED_PATTERN)
        least, density = WANTED_MASKED
        missed = verdict(e["base_ratio"], target)
        if e["fields"].get("density", density) < density:
            missed = missed or verdict(e["masked_ratio"], least)
        print(
            f"{label(e):50}{e['GFLOPS']:8.1f}{e['percent']:7.1f}{e['base_ratio']:8.2f}"
            f"{e['base_ratio_median']:7.2f}{show(target):>7}{e['computed_per_allowed']:9.2f}"
            f"{show(e.get('masked_ratio')):>9}{missed}"
        )
    print("computed: scores computed for each allowed pair. x masked: speed against dense attention")
    print("with a boolean mask of the same pairs.")


def print_terms(entries):
    print("\nTerms of the score, time against the same call without; relu against softmax")
    print(f"{'':50}{'GFLOP/s':>8}{'time':>8}{'median':>7}{'wanted':>7}")
    for e in entries:
        target = wanted(e, WANTED_TERM)
        time = 1 / e["base_ratio"]
        print(
            f"{label(e):50}{e['GFLOPS']:8.1f}{time:8.3f}{1 / e['base_ratio_median']:7.3f}"
            f"{show(target, '.3f'):>7}{verdict(time, target, most=True)}"
        )


def print_schedules(entries):
    print("\nBuilding a schedule, against one forward pass of one head")
    print(
        f"{'':50}{'build ms':>9}{'forward':>9}{'share':>8}{'wanted':>8}{'bytes':>10}{'tiles':>7}"
        f"{'a tile':>7}{'a pair':>7}"
    )
    for e in entries:
        share = e["build_per_forward"]
        target = WANTED_BUILD if e["fields"]["T"] == 16384 else None
        print(
            f"{label(e):50}{e['build_ms']:9.3f}{e['forward_ms']:9.2f}{100 * share:7.2f}%"
            f"{show(target, '.0%'):>8}{e['bytes']:10.0f}{e['tiles']:7.0f}"
            f"{e['bytes_per_tile']:7.0f}{e['bytes_per_pair']:7.3f}"
            f"{verdict(share, target, most=True)}"
        )


def print_growth(entries):
    for e in entries:
        lengths = sorted(int(k[3:]) for k in e if k.startswith("ms_"))
        print(f"\nTime of {label(e)}, wanted for each doubling: {show(WANTED_GROWTH)}")
        for n in lengths:
            growth = e.get(f"growth_{n}")
            line = f"  T = {n:6}: {e[f'ms_{n}']:8.2f} ms"
            if growth is not None:
                line += f", x {growth:.2f}{verdict(growth, WANTED_GROWTH, most=True)}"
            print(line)


def print_functions(entries):
    print("\nOther functions, throughput against dense attention at T = 4096")
    print(f"{'':50}{'GFLOP/s':>8}{'% peak':>7}{'x dense':>8}{'median':>7}{'ms':>9}")
    for e in entries:
        print(
            f"{label(e):50}{e['GFLOPS']:8.1f}{e['percent']:7.1f}{e['base_ratio']:8.2f}"
            f"{e['base_ratio_median']:7.2f}{e['ms']:9.3f}"
            + (f"  {e['openblas_ratio']:.2f} x OpenBLAS" if "openblas_ratio" in e else "")
        )


def print_sparse(entries):
    for chosen, show_them in (
        (is_pattern, print_patterns),
        (is_term, print_terms),
        (is_function, print_functions),
        (lambda e: e["kind"] == "schedule", print_schedules),
        (lambda e: e["kind"] == "growth", print_growth),
    ):
        some = [e for e in entries if chosen(e)]
        if some:
            show_them(some)
