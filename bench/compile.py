#!/usr/bin/env python3
"""compile.py owns what the header costs to carry: processor seconds and memory of the compiler, and
the size of the stripped program, for what people build with it. Seconds are also given as multiples of
what four stb headers (Debian: libstb-dev) take in the same run, at the same level and at -O2: machines
differ, and other work slows both.

Usage: bench/compile.py [HEADER [COMPILER ...]]; the default is attn.h with gcc and clang."""
import os
import resource
import shutil
import subprocess
import sys
import tempfile

ROUNDS = 3
LEVELS = ("-O0", "-O1", "-O2")
STB = "".join("#define STB_%s_IMPLEMENTATION\n#include <stb/stb_%s.h>\n" % (part.upper(), part)
              for part in ("image", "truetype", "image_resize", "image_write"))
HEAD = "#define ATTN_IMPLEMENTATION\n#include \"attn.h\"\n"
TENSORS = "static float x[256];\nint main(void) {\n" \
          "  attn_tensor t = attn_bhtd(x, ATTN_F32, 1, 1, 4, 16);\n"
SDPA = TENSORS + "  return (int)attn_sdpa(t, t, t, t, NULL, NULL);\n}\n"
CACHE = TENSORS + "  static attn_cache c;\n  static attn_sequence one;\n" \
    "  attn_status s = attn_cache_append(&c, &one, 1, t, t, NULL, NULL);\n" \
    "  return (int)s + (int)attn_cache_sdpa(t, t, &c, &one, 1, NULL, NULL);\n}\n"
LINEAR = TENSORS + "  return (int)attn_linear(t, t, t, t, NULL, NULL);\n}\n"
STATIC = "#define ATTN_STATIC\n"
PROGRAMS = (  # name, text, links to a program
    ("inclusion", "#include \"attn.h\"\n", False),
    ("one sdpa", STATIC + HEAD + SDPA, True),
    ("plain sdpa", STATIC + "#define ATTN_ONLY ATTN_FAMILY_SDPA\n" + HEAD + SDPA, True),
    ("sdpa, no avx512", STATIC + "#define ATTN_NO_AVX512\n" + HEAD + SDPA, True),
    ("sdpa, small", STATIC + "#define ATTN_SMALL\n" + HEAD + SDPA, True),
    ("sdpa and cache", STATIC + HEAD + CACHE, True),
    ("linear", STATIC + HEAD + LINEAR, True),
    ("everything", HEAD, False),
)


def compile_once(command, source, target):
    """Processor seconds and MB of one compilation."""
    child = os.fork()
    if child == 0:
        done = subprocess.run(command + ["-w", "-c", source, "-o", target])
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(target + ".cost", "w") as cost:
            print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=cost)
        os._exit(0)
    os.waitpid(child, 0)
    with open(target + ".cost") as cost:
        status, seconds, memory = cost.read().split()
    if status != "0":
        sys.exit("compile.py: %s does not compile" % source)
    return float(seconds), float(memory)


def size_of(path):
    text = subprocess.run(["size", path], check=True, capture_output=True, text=True).stdout
    return int(text.splitlines()[1].split()[0])


def measure(compiler, header, folder):
    sources = [("stb", STB, False)] if has_stb(compiler) else []
    sources += list(PROGRAMS)
    for name, text, _ in sources:
        with open(os.path.join(folder, name + ".c"), "w") as file:
            file.write(text)
    at = [compiler, "-I", os.path.dirname(os.path.abspath(header))]
    cost = {}
    for _ in range(ROUNDS):  # in turn, so that a slow spell hits all
        for level in LEVELS:
            for name, _, _ in sources:
                path = os.path.join(folder, name + level)
                seconds, memory = compile_once(at + [level], os.path.join(folder, name + ".c"), path + ".o")
                best = cost.get((name, level), (1e9, 0))
                cost[name, level] = min(seconds, best[0]), memory
    print(subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[0])
    print("%-18s %-4s %8s %8s %8s %9s %9s" %
          ("", "", "s", "x stb", "x -O2", "MB memory", "KB"))
    for name, _, links in sources:
        for level in LEVELS:
            seconds, memory = cost[name, level]
            path = os.path.join(folder, name + level)
            kb = size_of(path + ".o") / 1000
            if links:
                subprocess.run([compiler, "-s", "-o", path, path + ".o", "-lm"], check=True)
                kb = os.path.getsize(path) / 1000
            ratios = ["%.2f" % (seconds / cost["stb", yard][0]) if ("stb", yard) in cost else "-"
                      for yard in (level, "-O2")]
            print("%-18s %-4s %8.2f %8s %8s %9.0f %9.0f" %
                  (name, level, seconds, ratios[0], ratios[1], memory, kb))
    print()


def has_stb(compiler):
    probe = subprocess.run([compiler, "-E", "-x", "c", "-"], input="#include <stb/stb_image.h>\n",
                           text=True, capture_output=True)
    if probe.returncode:
        print("no stb headers here (Debian: libstb-dev): no ratios")
    return probe.returncode == 0


def main():
    header = sys.argv[1] if len(sys.argv) > 1 else "attn.h"
    for compiler in sys.argv[2:] or ["gcc", "clang"]:
        if shutil.which(compiler) is None:
            print(compiler, "is not here\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            measure(compiler, header, folder)
    print("KB: the stripped program, or the object's text where there is none")


main()
