#!/usr/bin/env python3
"""mutate.py owns the question what the tests miss: it changes one line of attn/ at a time and sees whether a
test fails.

    tests/mutate.py --count 20 --seed 7            20 mutants, the same ones for the same sources and seed
    tests/mutate.py --only 'engine/*' --filter 'A*'
    tests/mutate.py --change attn/engine/decode.h 'key1 > lo' 'key1 > lo + 1'
    tests/mutate.py --list                         what would be changed, without a run

A mutant is compiled small, at -O1, for the scalar tier and avx2, linked with the objects of the tests
(make build/tests/native/runner makes them) and run on one tier. It is killed by a test that fails or does
not end; one that does not compile is no mutant and is not counted. Everything lands in build/mutate; nothing
here is part of make test.
"""

import argparse
import fnmatch
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

ROOMS = ["kernels", "engine", "calls", "compose", "families"]
SMALL = ["-std=c99", "-O1", "-DATTN_SMALL", "-DATTN_NO_AVX512", "-w"]

# What is looked for, and what stands there instead.
CHANGES = [
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" / ", " * "), (r" % ", " / "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" & ", " | "), (r" \| ", " & "),
    (r" << ", " >> "), (r" >> ", " << "),
    (r"\+\+", "--"), (r" \+= ", " -= "), (r" -= ", " += "), (r" \|= ", " &= "),
    (r"\b0\b(?![.x])", "1"), (r"\b1\b(?!\.)", "0"), (r"\b1\b(?!\.)", "2"),
    (r"\b([2-9]|[1-9][0-9]+)\b(?!\.)", lambda m: str(int(m.group(1)) + 1)),
    (r"\bmin64_\(", "max64_("), (r"\bmax64_\(", "min64_("),
    (r"([(,] ?)(\w+), (\w+)\)", r"\1\3, \2)"),  # swapped operands
    (r"^( +)[^ {}].*;$", r"\1;"),  # a statement less
]


def code(line):
    """The line up to its comment; empty for lines that hold no code of a function."""
    text = line.split("/*")[0].rstrip()
    if not text.startswith(" ") or text.lstrip().startswith(("*", "#", '"', "case ", "const ")):
        return "" if not text.lstrip().startswith("const ") else text
    return text if text.rstrip().endswith((";", "{", ")", ",", "&&", "||")) else ""


def candidates(only):
    for room in ROOMS:
        for path in sorted(pathlib.Path("attn", room).rglob("*.h")):
            if not fnmatch.fnmatch(str(path)[len("attn/"):], only):
                continue
            comment, begins = False, True  # a line that begins a statement
            for number, line in enumerate(path.read_text().splitlines()):
                inside, comment = comment, "/*" in line and "*/" not in line or (
                    comment and "*/" not in line)
                text = "" if inside else code(line)
                whole, begins = begins, line.split("/*")[0].rstrip().endswith((";", "{", "}", ":"))
                for pattern, to in CHANGES:
                    if pattern.startswith("^") and not (whole and text.endswith(";")):
                        continue
                    for found in re.finditer(pattern, text) if text else ():
                        after = text[:found.start()] + found.expand(to) + text[found.end():] \
                            if isinstance(to, str) else \
                            text[:found.start()] + to(found) + text[found.end():]
                        if text[:found.start()].count('"') % 2:
                            continue  # the text of a message
                        if after != text and after.strip() != text.strip():
                            yield path, number, line, after + line[len(text):]


def run(command, seconds, **more):
    """The exit status; None when it did not end."""
    try:
        return subprocess.run(command, timeout=seconds, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, **more).returncode
    except subprocess.TimeoutExpired:
        return None


def tested(command, seconds, env):
    """What a run of the tests says: the first test that fails, 'did not end', or ''."""
    runner = subprocess.Popen(["timeout", str(seconds), *command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", env=env)
    for line in runner.stdout:
        if line.startswith("[  FAILED  ]"):
            runner.kill()  # one is enough
            runner.wait()
            return line.split()[3]
    status = runner.wait()
    return {0: "", 124: "did not end"}.get(status, f"exit {status}")


def verdict(work, path, text, wanted):
    """How a mutant ends, whose file `path` reads `text`: 'survives' or what killed it."""
    shutil.rmtree(work / "attn", ignore_errors=True)
    shutil.copytree("attn", work / "attn")
    (work / path).write_text(text)
    if run(["attn/amalgamate", "attn.h"], 60, cwd=work) != 0:
        sys.exit("attn/amalgamate failed")
    (work / "attn.c").write_text('#define ATTN_IMPLEMENTATION\n#include "attn.h"\n')
    if run([wanted.cc, *SMALL, "-I.", "-c", "-o", "attn0.o", "attn.c"], 600, cwd=work) != 0:
        return "no mutant"
    hooks = ["--redefine-sym", "malloc=hook_malloc", "--redefine-sym", "free=hook_free"]
    objects = [str(o) for o in sorted(pathlib.Path(wanted.objects).rglob("*.o"))
               if o.name != "attn.o"]
    if run(["objcopy", *hooks, "attn0.o", "attn.o"], 60, cwd=work) != 0 or \
            run([wanted.cc, "-o", work / "runner", *objects, work / "attn.o", *wanted.libs.split()],
                120) != 0:
        sys.exit("linking failed: make build/tests/native/runner first")
    for tests in wanted.filter.split(","):
        env = dict({"ATTN_TEST_SCALE": "small"}, **os.environ)
        why = tested([str(work / "runner"), "--isa", wanted.isa, "--filter", tests], wanted.seconds, env)
        if why:
            return why
    return "survives"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--only", default="*", help="files, as in attn/")
    parser.add_argument("--filter", default="*", help="names of tests, one run after the other")
    parser.add_argument("--isa", default="avx2")
    parser.add_argument("--seconds", type=int, default=300, help="limit of a run of tests")
    parser.add_argument("--objects", default="build/tests/native")
    parser.add_argument("--part", default="1/1", help="2/3: of three runs at once the second")
    parser.add_argument("--libs", default="-lcmocka -lsleef -lpthread -lm")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("--change", nargs=3, action="append", metavar=("FILE", "OLD", "NEW"))
    parser.add_argument("--list", action="store_true")
    wanted = parser.parse_args()
    if wanted.change:
        mutants = []
        for name, old, new in wanted.change:
            text = pathlib.Path(name).read_text()
            if text.count(old) != 1:
                sys.exit(f"{name}: {old!r} is there {text.count(old)} times")
            mutants.append((pathlib.Path(name), text.replace(old, new), f"{old} -> {new}"))
    else:
        every = list(candidates(wanted.only))
        chosen = random.Random(wanted.seed).sample(every, min(wanted.count, len(every)))
        print(f"{len(every)} mutants are possible, {len(chosen)} are tried (seed {wanted.seed})")
        mutants = []
        for path, number, line, after in chosen:
            lines = path.read_text().splitlines(keepends=True)
            lines[number] = after + "\n"
            mutants.append((path, "".join(lines), f"{number + 1}: {line.strip()} -> {after.strip()}"))
    part, parts = map(int, wanted.part.split("/"))
    work = pathlib.Path("build/mutate") / str(part)
    work.mkdir(parents=True, exist_ok=True)
    killed = tried = 0
    for path, text, what in mutants[part - 1::parts]:
        end = "" if wanted.list else verdict(work, path, text, wanted)
        tried += end != "no mutant"
        killed += end not in ("survives", "no mutant")
        print(f"{end:12} {path}:{what}", flush=True)
    if not wanted.list:
        print(f"{killed} of {tried} killed")


main()
