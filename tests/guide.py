#!/usr/bin/env python3
"""guide.py owns docs/adding-a-mechanism.md as a promise: its blocks are applied to a copy of the tree,
which then keeps its floors, builds and passes the checks that the page gives.

    **In** `FILE`, before|after `LINE`:    the block is put there; LINE is how a line begins, once
    **New file** `FILE`:                   the block is the file
    **Check** `NAME`:                      the block is a program, which must end with 0
"""

import os
import re
import shutil
import subprocess
import sys

PAGE = "docs/adding-a-mechanism.md"
TREE = "build/guide"
FLAGS = "-std=c99 -Wall -Wextra -Wpedantic -Werror -O0 -DATTN_SMALL -I.".split()
BLOCK = re.compile(
    r"^\*\*(In|New file|Check)\*\* `([^`]*)`(?:, (before|after) `([^`]*)`)?:\n\n```c\n(.*?)^```", re.M | re.S
)


def fail(text):
    print("FAIL     " + text)
    sys.exit(1)


def run(what, *command):
    done = subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        fail("%s\n%s" % (what, "\n".join(done.stdout.split("\n")[:12])))


def insert(path, where, line, block):
    text = open(path).read().split("\n")
    at = [n for n, x in enumerate(text) if x.startswith(line)]
    if len(at) != 1:
        fail("%s has %d lines that begin with '%s'" % (path, len(at), line))
    text[at[0] + (where == "after") : at[0] + (where == "after")] = block.rstrip("\n").split("\n")
    open(path, "w").write("\n".join(text))


def main():
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree("attn", TREE + "/attn")
    page = open(PAGE).read()
    steps = BLOCK.findall(page)
    if len(steps) != len(re.findall(r"^\*\*(?:In|New file|Check)\*\*", page, re.M)):
        fail("a block of %s is not understood" % PAGE)
    touched, checks, files = set(), [], {}
    for kind, name, where, line, block in steps:
        path = os.path.join(TREE, name)
        if kind == "In":
            insert(path, where, line, block)
            touched.add(name)
        elif kind == "New file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").write(block)
            touched.add(name)
        else:
            open(os.path.join(TREE, name + ".c"), "w").write(block)
            checks.append(name)
            files[name], touched = touched, set()
    if "clip" not in checks or "sigmoid" not in checks:
        fail("the two examples are not there")
    if len(files["clip"]) > 3:
        fail("a score term touches %d files" % len(files["clip"]))
    run("its names are made", "attn/left_out")
    run("it becomes one header", "attn/amalgamate")
    run("it keeps to the floors", sys.executable, os.path.abspath("tests/floors.py"), ".")
    for name in checks:
        run(name + " compiles", os.environ.get("CC", "cc"), *FLAGS, "-o", name, name + ".c", "-lm")
        run(name + " passes", "./" + name)
        print("ok       %s: %d files, %s" % (name, len(files[name]), ", ".join(sorted(files[name]))))


main()
