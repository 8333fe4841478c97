#!/usr/bin/env python3
"""porting.py owns docs/porting.md as a promise: it writes each row of its tables as a C function, the block of
its section with the row's lines in the place of the comment "row". A block without that comment is a row by itself;
functions that rows use stand in a block that begins with "```c functions". porting.c says what each must give. The
blocks of other pages become functions that a compiler must take; pages.h declares the names that they do not.

    python3 tests/porting/porting.py build/porting/rows.h build/porting/pages.c
"""

import re
import sys

PAGE = "docs/porting.md"
PLACE = "/* row */"
OTHERS = ("README.md", "docs/content.md", "docs/heads.md", "docs/maps.md")


def fail(text):
    sys.exit("FAIL     %s: %s" % (PAGE, text))


def rows_of(title, section, block):
    """Names and lines of C of a section; a block without a place for a row is the only one."""
    if PLACE not in block:
        return [("the block", block)]
    rows = []
    for line in section[section.index("\n|---") :].split("\n")[2:]:
        if not line.startswith("| "):
            break
        name, cell = re.split(r" \| ?", line.strip("| "))[:2]
        name, cell = name.replace("`", "").strip(), cell.strip()
        lines = re.findall(r"`([^`]*)`", cell)
        if cell == "-":
            continue
        if re.sub(r"`[^`]*`", "", cell).strip() or not lines:
            fail("%s, %s: neither lines of C nor -" % (title, name))
        rows.append((name, block.replace(PLACE, "\n".join(lines))))
    return rows


def quoted(text):
    return '"%s"' % text.replace('"', '\\"')


def write_pages(path):
    with open(path, "w") as out:
        out.write('#include "tests/porting/pages.h"\n')
        for page in OTHERS:
            text = open(page).read()
            for n, block in enumerate(re.finditer(r"^```c\n(.*?)^```", text, re.M | re.S)):
                name = re.sub(r"\W", "_", page) + "_%d" % n
                line = text.count("\n", 0, block.start()) + 2
                body = re.sub(r"^#.*$", "", block[1], flags=re.M)  # a header is not included in a function
                out.write('void %s(void);\nvoid %s(void) {\n#line %d "%s"\n%s}\n' % (name, name, line, page, body))


def main(path):
    functions, table = [], []
    for section in re.split(r"^## ", open(PAGE).read(), flags=re.M)[1:]:
        title = section.split("\n")[0].strip()
        blocks = re.findall(r"^```c\n(.*?)^```", section, re.M | re.S)
        functions += re.findall(r"^```c functions\n(.*?)^```", section, re.M | re.S)
        if len(blocks) > 1:
            fail("%s has more than one block" % title)
        for name, body in rows_of(title, section, blocks[0]) if blocks else []:
            number = len(table)
            functions.append("static attn_status row_%d(world *w) {\nWORLD(w)\n%s\nreturn status;\n}\n" % (number, body))
            table.append("{%s, %s, row_%d},\n" % (quoted(title), quoted(name), number))
    with open(path, "w") as out:
        out.write("/* made of %s */\n" % PAGE + "\n".join(functions))
        out.write("static const row rows[] = {\n%s};\n" % "".join(table))


main(sys.argv[1])
write_pages(sys.argv[2])
