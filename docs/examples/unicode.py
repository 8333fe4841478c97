"""unicode.py owns the tables of unicode.h: python3 docs/examples/unicode.py > docs/examples/unicode.h

What it takes from Unicode: the categories Mn (marks), P (punctuation), Cc, Cf and Co (controls), L
(letters), N (numbers); what is left of a character after canonical decomposition (NFD) without its
marks, in lower case; canonical decompositions, and the order of marks."""
import unicodedata

WIDTH = 100
ALL = [c for c in range(128, 0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORY = {c: unicodedata.category(chr(c)) for c in ALL}
# Hangul is decomposed by rule; the ideographs that stand for others one by one are left as they are.
EXCLUDED = [(0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def fold(c):
    bare = [x for x in unicodedata.normalize("NFD", chr(c)) if unicodedata.category(x) != "Mn"]
    lower = "".join(x.lower()[0] for x in bare)
    return ord(lower) if len(lower) == 1 else c


def ranges(categories):
    found = []
    for c in ALL:
        if CATEGORY[c] in categories:
            if found and found[-1][1] == c - 1:
                found[-1][1] = c
            else:
                found.append([c, c])
    return found


def runs(folds):
    """Longest runs first, last, step, moves, to: every step-th character becomes `to`, or `to` and on."""
    keys, found, i = sorted(folds), [], 0
    while i < len(keys):
        best = None
        for step in (1, 2):
            for moves in (0, 1):
                j = i
                while (j + 1 < len(keys) and keys[j + 1] == keys[j] + step
                       and folds[keys[j + 1]] - folds[keys[j]] == step * moves):
                    j += 1
                if best is None or j > best[0]:
                    best = (j, step, moves)
        j, step, moves = best
        found.append((keys[i], keys[j], step, moves, folds[keys[i]]))
        i = j + 1
    return found


def classes():
    found = []
    for c in ALL:
        rank = unicodedata.combining(chr(c))
        if rank and found and found[-1][1] == c - 1 and found[-1][2] == rank:
            found[-1][1] = c
        elif rank:
            found.append([c, c, rank])
    return found


def parts():
    """Character, first and second part or 0, 1 if the two become it again."""
    found = []
    for c in ALL:
        two = unicodedata.decomposition(chr(c))
        if two and not two.startswith("<"):
            two = [int(x, 16) for x in two.split()]
            found.append((c, two[0], *(two[1:] or [0]), int(unicodedata.normalize("NFC", chr(c)) == chr(c))))
    return found


def table(head, rows):
    print(f"\nstatic const {head} = {{")
    line = "   "
    for row in rows:
        entry = " {" + ", ".join(f"0x{x:X}" if x > 9 else str(x) for x in row) + "},"
        if len(line) + len(entry) > WIDTH:
            print(line)
            line = "   "
        line += entry
    print(line + "\n};")


skip = {c for first, last in EXCLUDED for c in range(first, last + 1)}
folds = {c: fold(c) for c in ALL if CATEGORY[c] != "Mn" and c not in skip}
folds = {c: to for c, to in folds.items() if c != to}
def plain(c):
    """Compatibility decomposition without marks of any kind, in lower case: what ALBERT reads."""
    bare = [x for x in unicodedata.normalize("NFKD", chr(c)) if unicodedata.category(x)[0] != "M"]
    return [ord(low) for x in bare for low in x.lower()]


# where that is not what `folds` makes of a character; Hangul goes by rule
differ = {c: plain(c) for c in ALL if CATEGORY[c] != "Mn" and not 0xAC00 <= c <= 0xD7A3}
differ = {c: to for c, to in differ.items() if to != [folds.get(c, c)]}
pool, many = [], []
for c, to in differ.items():
    if len(to) != 1:
        many.append((c, len(pool), len(to)))
        pool += to
print(f"""/* unicode.h owns what tokenisers know of characters beyond ASCII. Made by unicode.py from Unicode
 * {unicodedata.unidata_version}; tables are sorted. */
#ifndef EXAMPLES_UNICODE_H
#define EXAMPLES_UNICODE_H

#include <stdint.h>

/* clang-format off */

typedef struct unicode_range {{
  uint32_t first, last;
}} unicode_range;

/* Every step-th character from first to last becomes `to`, or, if it moves, `to` and those after it. */
typedef struct unicode_run {{
  uint32_t first, last, step, moves, to;
}} unicode_run;

/* Marks of one rank in the order behind a letter. */
typedef struct unicode_class {{
  uint32_t first, last, rank;
}} unicode_class;

/* A character that becomes `count` others, from `first` on in a list. */
typedef struct unicode_many {{
  uint32_t whole, first, count;
}} unicode_many;

/* A character that canonical decomposition takes apart; joins: composition makes it again. */
typedef struct unicode_part {{
  uint32_t whole, first, second, joins;
}} unicode_part;

/* Marks without width of their own: accents, vowel signs, variation selectors. */""", end="")
table("unicode_range unicode_marks[]", ranges({"Mn"}))
print("\n/* Punctuation. */", end="")
table("unicode_range unicode_punctuation[]", ranges({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"}))
print("\n/* Controls, format characters, private use. */", end="")
table("unicode_range unicode_controls[]", ranges({"Cc", "Cf", "Co"}))
print("\n/* Letters. */", end="")
table("unicode_range unicode_letters[]", ranges({"Lu", "Ll", "Lt", "Lm", "Lo"}))
print("\n/* Numbers. */", end="")
table("unicode_range unicode_numbers[]", ranges({"Nd", "Nl", "No"}))
print("\n/* What is left of a character without its accents, in lower case. */", end="")
table("unicode_run unicode_folds[]", runs(folds))
print("\n/* What is left of one by compatibility decomposition, where it is something else: one character, or many. */", end="")
table("unicode_run unicode_plain[]", runs({c: to[0] for c, to in differ.items() if len(to) == 1}))
table("unicode_many unicode_plain_many[]", many)
print("\nstatic const uint32_t unicode_plain_list[] = {")
for at in range(0, len(pool), 12):
    print("    " + ", ".join(f"0x{x:X}" for x in pool[at:at + 12]) + ",")
print("};")
print("\n/* The ranks of marks. */", end="")
table("unicode_class unicode_classes[]", classes())
print("\n/* Canonical decompositions, one step each. */", end="")
table("unicode_part unicode_parts[]", parts())
print("\n/* clang-format on */\n\n#endif")
