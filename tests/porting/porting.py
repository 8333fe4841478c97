#!/usr/bin/env python3
"""porting.py owns docs/porting.md as a promise: it writes each row of its tables as a C function, the block of
its section with the row's lines in the place of the comment "row". porting.c says what each must give.

    python3 tests/porting/porting.py build/porting/rows.h
"""

import re
import sys

PAGE = "docs/porting.md"


def fail(text):
    sys.exit("FAIL     %s: %s" % (PAGE, text))


def main(path):
    page = open(PAGE).read()
    functions, table = [], []
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        title = section.split("\n")[0].strip()
        blocks = re.findall(r"^```c\n(.*?)^```", section, re.M | re.S)
        functions += re.findall(r"^```c-function\n(.*?)^```", section, re.M | re.S)
        rows = [re.split(r" \| ?", line.strip("| ")) for line in section.split("\n") if line.startswith("| `")]
        if not rows:
            continue
        if len(blocks) != 1 or blocks[0].count("/* row */") != 1:
            fail("%s has not one block with one place for a row" % title)
        for row in rows:
            name = row[0].replace("`", "").strip()
            cell = row[1].strip()
            lines = re.findall(r"`([^`]*)`", cell)
            if cell == "-":
                continue
            if re.sub(r"`[^`]*`", "", cell).strip() or not lines:
                fail("%s, %s: neither lines of C nor -" % (title, name))
            n = len(table)
            body = blocks[0].replace("/* row */", "\n".join(lines))
            functions.append("static attn_status row_%d(world *w) {\nWORLD(w)\n%s\nreturn status;\n}\n" % (n, body))
            table.append('{"%s", "%s", row_%d},\n' % (title.replace('"', '\\"'), name.replace('"', '\\"'), n))
    with open(path, "w") as out:
        out.write("/* made of %s */\n" % PAGE + "\n".join(functions))
        out.write("static const row rows[] = {\n%s};\n" % "".join(table))


main(sys.argv[1])
