#!/usr/bin/env python3
"""arm_loops.py owns `make bench-arm`: the look at the NEON kernels where no ARM machine can be timed. It cuts the inner
loop with the most arithmetic out of each kernel, counts its instructions, lets llvm-mca estimate its cycles on
several processors, and counts what whole calls execute, under qemu.

Usage: arm_loops.py FOLDER, with impl.o and one_call for aarch64; LLVM_MCA names another tool. LLVM 19 or later is
wanted: older ones know no Neoverse.
"""

import os
import re
import shutil
import subprocess
import sys

# what LLVM 19 schedules by a model of another processor is said beside it
MODELS = [
    ("cortex-a53", ""),
    ("cortex-a72", "A57's model"),
    ("cortex-a76", "A57's model"),
    ("neoverse-n1", ""),
    ("neoverse-n2", ""),
    ("neoverse-v1", ""),
    ("apple-m1", "Cyclone's model"),
    ("apple-m2", "Cyclone's model"),
]
KERNELS = [
    ("score", r"attn_score_\d+x\d+_neon_"),
    ("value", r"attn_value_\d+x\d+_neon_"),
    ("gemm", r"attn_gemm_neon_"),
    ("decode, scores", r"attn_score_rows_f32_neon_"),
    ("decode, values", r"attn_value_rows_f32_neon_"),
    ("exp of a tile", r"attn_softmax_block_neon_"),
    ("products of bf16", r"attn_pair_dots_6x4_neonbf16_"),
    ("products of i8", r"attn_code_dots_6x4_neondotprod_"),
]
# what runs under qemu, and the functions whose instructions are set against how much vector work
CALLS = [
    (["sdpa", 128, 128, 64], [("score", 128 * 128 * 16), ("value", 128 * 128 * 16), ("exp of a tile", 128 * 32)]),
    (["gemm", 60, 256, 128], [("gemm", 60 * 64 * 128)]),
    (["sdpa", 4, 1024, 128], [("decode, scores", 4 * 1024 * 32), ("decode, values", 4 * 1024 * 32)]),
]
BRANCH = re.compile(r"(b|b\.\w+|cbn?z|tbn?z)\b")
ARITHMETIC = re.compile(r"(f(ml[as]|mul|add|sub|max(nm)?|min(nm)?|div|sqrt)|bfdot|sdot)\s+v\d+\.")
MULTIPLY_ADD = ("fmla", "bfdot", "sdot")


def run(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def functions(objdump, path):
    """{name: [(address, instruction, target of a branch)]}"""
    found, name = {}, None
    for line in run(objdump, "-d", "--no-show-raw-insn", path).splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        if head:
            name = found.setdefault(head[1], [])
            continue
        code = re.match(r"\s*([0-9a-f]+):\s+(.*)", line)
        if not code or name is None:
            continue
        text, target = re.sub(r"\s*//.*", "", code[2]).strip(), None
        to = re.search(r"([0-9a-f]+) <.*>$", text)
        if BRANCH.match(text) and to:
            target, text = int(to[1], 16), text[: to.start()] + ".Lloop"
        name.append((int(code[1], 16), text, target))
    return found


def arithmetic(loop):
    return sum(bool(ARITHMETIC.match(line)) for line in loop)


def loops(code):
    """The innermost loops: from the target of a backward branch to it, no other backward branch between."""
    at = {address: n for n, (address, _, _) in enumerate(code)}
    for end, (address, _, target) in enumerate(code):
        if target is None or target > address or target not in at:
            continue
        span = code[at[target] : end + 1]
        if not any(t is not None and t <= a for a, _, t in span[:-1]):
            yield [text for _, text, _ in span]


def estimate(mca, cpu, loop):
    """Cycles an iteration, and the fewest that the units for its instructions allow; None where this LLVM does not
    know the processor, or it has not the instructions."""
    done = subprocess.run(
        [mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={cpu}", "-iterations=500"],
        input=".Lloop:\n" + "\n".join(loop) + "\n",
        capture_output=True,
        text=True,
    )
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    least = re.search(r"Block RThroughput:\s+([\d.]+)", done.stdout)
    if not total or re.search("not a recognized|unable to find|instruction requires", done.stderr):
        return None
    return int(total[1]) / 500, float(least[1])


def executed(program, arguments):
    """{function: instructions} of one call: qemu names the function of each instruction that it runs."""
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-singlestep", "-d", "exec,nochain", program, "neon"]
    counts = {}
    with subprocess.Popen(command + [str(a) for a in arguments], stderr=subprocess.PIPE, text=True) as log:
        for line in log.stderr:
            name = line.rpartition("] ")[2].strip()
            counts[name] = counts.get(name, 0) + 1
    if log.returncode:
        sys.exit(f"{program} {arguments} failed")
    return counts


def print_executed(program):
    if not shutil.which("qemu-aarch64"):
        print("\nInstructions executed: not counted, no qemu-aarch64 here")
        return
    print("\nInstructions executed under qemu, edges of the loops too: a vector multiply-add of the kernel's product (exp: a")
    print("vector of 4 weights, with their sums and maxima); beside it those of the whole call")
    patterns = dict(KERNELS)
    for arguments, kernels in CALLS:
        counts = executed(program, arguments)
        call = sum(n for name, n in counts.items() if name.startswith("attn_"))
        adds = sum(work for kernel, work in kernels if not kernel.startswith("exp"))
        for kernel, work in kernels:
            ours = sum(n for name, n in counts.items() if re.fullmatch(patterns[kernel], name))
            shape = " x ".join(str(a) for a in arguments[1:])
            print(f"{kernel:16}{ours / work:7.2f}{call / adds:7.2f}   {arguments[0]} {shape}")


def main():
    folder = sys.argv[1]
    tools = [f"llvm-mca-{n}" for n in (22, 21, 20, 19)] + ["llvm-mca"]
    mca = os.environ.get("LLVM_MCA") or next(filter(shutil.which, tools), "llvm-mca-19")
    objdump = "aarch64-linux-gnu-objdump"
    for tool in (objdump, mca):
        if not shutil.which(tool):
            sys.exit(f"bench-arm needs {tool} (gcc-aarch64-linux-gnu, llvm-19)")
    compiled = os.path.join(folder, "impl.o")
    compiler = re.search(r"GCC: (.*)", run("readelf", "-p", ".comment", compiled))
    version = re.search(r".*LLVM version.*", run(mca, "--version"))[0].strip()
    print(f"gcc {compiler[1]}, -O2; llvm-mca: {version}")

    known = []
    print("\nvector multiply-adds a cycle")
    for cpu, words in MODELS:
        each = estimate(mca, cpu, [f"fmla v{n}.4s, v30.4s, v31.s[0]" for n in range(30)])
        print(f"  {cpu:12} {30 / each[1]:.0f} {words}" if each else f"  {cpu:12} unknown to this LLVM")
        known += [cpu] if each else []

    heads = "".join(f"{cpu:>16}" for cpu in known)
    print("\nInner loops: instructions, vector arithmetic, of it multiply-adds, stack accesses (spills); cycles an")
    print("iteration, and the share of them that the arithmetic alone needs")
    print(f"{'':16}{'instr.':>7}{'arith.':>7}{'fma':>5}{'stack':>6}{heads}")
    code = functions(objdump, compiled)
    for kernel, pattern in KERNELS:
        found = [loop for name in code if re.fullmatch(pattern, name) for loop in loops(code[name])]
        loop = max(found, key=arithmetic, default=[])
        if not arithmetic(loop):
            sys.exit(f"{kernel}: no loop with arithmetic in {pattern}")
        with open(os.path.join(folder, re.sub(r"\W+", "_", kernel) + ".s"), "w") as f:
            f.write(".Lloop:\n" + "\n".join(loop) + "\n")
        fma = sum(line.startswith(MULTIPLY_ADD) for line in loop)
        stack = sum(bool(re.match(r"(ld|st).*\[sp", line)) for line in loop)
        row = f"{kernel:16}{len(loop):7}{arithmetic(loop):7}{fma:5}{stack:6}"
        for cpu in known:
            whole = estimate(mca, cpu, loop)
            if not whole:
                row += f"{'-':>16}"
                continue
            took = whole[0]
            least = estimate(mca, cpu, [line for line in loop if ARITHMETIC.match(line)])[1]
            row += f"{took:9.1f} {100 * least / took:4.0f} %"
        print(row)
    print_executed(os.path.join(folder, "one_call"))


main()
