#!/usr/bin/env python3
"""floors.py owns the proof that the sources keep to their floors.

    families      one room each; no room knows another
    compose       calls made of calls
    calls         primary operations
    engine        machinery without a tier
    kernels, isa  the primitives and their vocabulary

A function, type, enumerator or macro of attn/ may be named on its own floor and above it, and inside
its own room. It is names that count, not the order of inclusion. Declarations in attn/api/ lie on
the floor of the folder they are in, but the types of the primary calls are below all floors: the
engine is told what to do in the callers' own words.
"""

import collections
import os
import re
import sys

FLOORS = ["isa", "kernels", "engine", "calls", "compose", "families"]
SPINE = {  # hold no code: lists of parts and of names
    "attn/all.h",
    "attn/manual.h",
    "attn/undef.h",
    "attn/api/left_out.h",
}
NAME = re.compile(r"\b(?:attn|ATTN)_\w+")


def place(path):
    """The floor and room of a source file."""
    parts = path.split("/")[1:]
    if parts[0] == "api":
        parts = parts[1:]
        if len(parts) == 1:
            return FLOORS[0], ""
    return parts[0], parts[1] if parts[0] == "families" else ""


def plain(text):
    """The text without comments, strings and the braces of extern "C"."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r'extern "C" \{', "", text)
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


def outer(text):
    """What stands outside of braces."""
    out, depth = [], 0
    for c in text:
        if c == "{":
            depth += 1
            if depth == 1:
                out.append(c)
        elif c == "}":
            depth -= 1
            if depth == 0:
                out.append(c)
        elif depth == 0:
            out.append(c)
    return "".join(out)


def defined(text):
    """The names a file defines: {name: is it a function}."""
    names = {}
    for m in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M):
        names[m[1]] = False
    code = re.sub(r"^[ \t]*#(?:.*\\\n)*.*", "", text, flags=re.M)
    top = outer(code)
    for m in re.finditer(r"\b(attn_\w+)\s*\(", top):
        names.setdefault(m[1], True)
    for pattern in (
        r"\b(?:struct|union|enum)\s+(\w+)\s*\{",
        r"\}\s*(\w+)\s*;",
        r"typedef[^;{]*?(\w+)\s*;",
        r"typedef[^;{]*?\(\*(\w+)\)",
        r"^(?:static )?(?:const )?\w+ (?:const )?\**(attn_\w+)(?:\[[^\]]*\])*\s*=",
    ):
        for m in re.finditer(pattern, code if "struct|union" in pattern else top, re.M):
            if NAME.fullmatch(m[1]):
                names[m[1]] = False
    for m in re.finditer(r"\benum\s*\w*\s*\{([^}]*)\}", code):
        for part in m[1].split(","):
            n = NAME.match(part.strip())
            if n:
                names[n[0]] = False
    return names


def order(root):
    """All sources, in the order of all.h, then the rest."""
    spine = re.findall(r'#include "(.*?)"', open(os.path.join(root, "attn/all.h")).read())
    found = ["attn/" + f for f in spine]
    for folder, _, names in os.walk(os.path.join(root, "attn")):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith(".h") and path not in found:
                found.append(path)
    return [f for f in found if f not in SPINE]


def wrong(sources):
    """What is named where it must not be: (file, name, where it is defined)."""
    home = {}
    for path, text in sources.items():
        for name, is_function in defined(text).items():
            home.setdefault(name, (path, is_function))
    bad = []
    for path, text in sources.items():
        floor, room = place(path)
        if floor not in FLOORS:
            sys.exit("floors: %s is on no floor" % path)
        for name in sorted(set(NAME.findall(text))):
            if name not in home or home[name][0] == path:
                continue
            there, is_function = home[name]
            its_floor, its_room = place(there)
            if there.startswith("attn/api/calls/") and not is_function:
                continue
            if FLOORS.index(its_floor) > FLOORS.index(floor) or (room and its_room and room != its_room):
                bad.append((path, name, there))
    return bad


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    sources = collections.OrderedDict(
        (path, plain(open(os.path.join(root, path)).read())) for path in order(root)
    )
    bad = wrong(sources)
    for path, name, there in bad:
        print("%s names %s of %s" % (path, name, there))
    # What must be caught is caught: a floor that looks up, and a room that looks beside it.
    for path, name in (
        ("attn/engine/check.h", "attn_sdpa_plan_"),
        ("attn/kernels/norm.h", "attn_reject_"),
        ("attn/calls/sdpa.h", "attn_stage_gemm_"),
        ("attn/compose/lift.h", "ATTN_LSH_DIGIT_"),
        ("attn/families/sparse/etc.h", "attn_lsh_job_"),
        ("attn/families/heads/span.h", "attn_gtrxl_gate"),
    ):
        broken = dict(sources)
        broken[path] += "\nint probe(void) { return (int)sizeof(%s); }\n" % name
        if (path, name) not in [b[:2] for b in wrong(broken)]:
            print("floors: %s in %s would not be noticed" % (name, path))
            bad.append((path, name, ""))
    print("floors: %d files, %d names out of place" % (len(sources), len(bad)))
    return 1 if bad else 0


sys.exit(main())
