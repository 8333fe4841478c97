#!/usr/bin/env python3
"""entries.py owns the list of every public call, read from attn.h's own declarations, so that none is forgotten:
for each its arguments as a table of fields, and a function of its name that lets spoil.c see the call before the
implementation, whose symbols carry the prefix impl_, gets it.

    entries.py HEADER.i > entries.c       HEADER.i: attn.h after cc -E -P
    entries.py --symbols HEADER.i         lines for objcopy --redefine-syms
"""
import re
import sys

# A const pointer to one structure, which may be copied; others point to arrays, and stay as they are.
ONE = {'params', 'dropout', 'routing', 'map', 'structure', 'ff', 'memory', 'compressed', 'cache', 'schedule', 'pattern',
       'parent', 'rope', 'gradients'}
SCALARS = {'int64_t': 'I64', 'int': 'INT', 'float': 'F32', 'double': 'F64', 'size_t': 'SIZE',
           'uint64_t': 'U64', 'int32_t': 'I32', 'uint32_t': 'I32', 'uint8_t': 'U8', 'char': 'U8'}


def parse(text):
    """Structures, enumerations, function types, functions, in the order of the header."""
    structs, names = {}, set()
    for name, body in re.findall(r'struct (attn_\w+) \{(.*?)\n\}', text, re.S):
        structs[name] = [f for part in body.split(';') for f in fields(' '.join(part.split()))]
    enums = set(re.findall(r'typedef enum (attn_\w+)', text))
    callbacks = set(re.findall(r'\(\*(attn_\w+)\)\(', text))
    functions = []
    for result, star, name, args in re.findall(r'^extern ([\w ]+?) (\**)(attn_\w+)\((.*?)\);', text, re.S | re.M):
        args = [] if args.strip() == 'void' else [argument(' '.join(a.split())) for a in args.split(',')]
        functions.append((result + ' ' + star, name, args))
        names.add(name)
    return structs, enums, callbacks, functions, names


def fields(text):
    """(type, is const, stars, name, count) of each declarator."""
    if not text or '(' in text:
        return []
    const = 'const ' in text
    text = re.sub(r'\b(const|struct|enum)\b', '', text.replace('unsigned char', 'uint8_t')).strip()
    kind, rest = re.match(r'(\w+)\s*(.*)$', ' '.join(text.split())).groups()
    out = []
    for one in rest.split(','):
        stars, name, count = re.match(r'([* ]*)(\w+)\s*((?:\[.*\])?)$', one.strip()).groups()
        stars = stars.replace(' ', '')
        out.append((kind, const, len(stars), name, count))
    return out


def argument(text):
    """As a field; an array is a pointer."""
    kind, const, stars, name, count = fields(text)[0]
    return (kind, const, stars + 1, name, '') if count else (kind, const, stars, name, '')


def main():
    symbols = sys.argv[1] == '--symbols'
    structs, enums, callbacks, functions, _ = parse(open(sys.argv[-1]).read())
    if symbols:
        for _, name, _ in functions:
            print(name, 'impl_' + name)
        return

    def row(owner, f):
        kind, const, stars, name, count = f
        times = '(sizeof ((%s *)0)->%s / sizeof ((%s *)0)->%s%s)' % (
            owner, name, owner, name, '[0]' * count.count('[') if count else '')
        times = times if count else '1'
        at = 'offsetof(%s, %s)' % (owner, name)
        if stars == 0 and kind in SCALARS:
            return '{"%s", SPOIL_%s, %s, %s, 0, NULL, 0}' % (name, SCALARS[kind], at, times)
        if stars == 0 and kind in enums:
            return '{"%s", SPOIL_INT, %s, %s, 0, NULL, 0}' % (name, at, times)
        if stars == 0 and kind in structs:
            return '{"%s", SPOIL_STRUCT, %s, %s, 0, &type_%s, 0}' % (name, at, times, kind)
        if stars == 0 and kind in callbacks:
            return '{"%s", SPOIL_CALLBACK, %s, %s, 0, NULL, 0}' % (name, at, times)
        if stars >= 1 and kind in structs and stars == 1 and (name in ONE or not const):
            return '{"%s", SPOIL_ONE, %s, %s, 1, &type_%s, %d}' % (name, at, times, kind, const)
        if stars >= 1:
            size = 'sizeof(void *)' if stars > 1 else '1' if kind in ('void', 'char') else 'sizeof(%s)' % kind
            if kind in structs:
                size = '0'  # what a structure is aligned to is no element of the call's
            return '{"%s", SPOIL_DATA, %s, %s, %s, NULL, 0}' % (name, at, times, size)
        raise SystemExit('%s: no rule for %s %s' % (owner, kind, name))

    done = set()

    def struct(name):
        if name in done:
            return
        done.add(name)
        for f in structs[name]:
            if f[0] in structs:
                if f[2] == 0:
                    struct(f[0])
                else:
                    print('static const spoil_type type_%s;' % f[0])
        print('static const spoil_field of_%s[] = {\n  %s};' %
              (name, ',\n  '.join(row(name, f) for f in structs[name])))
        print('static const spoil_type type_%s = {"%s", sizeof(%s), of_%s, %d};' %
              (name, name, name, name, len(structs[name])))

    print('/* Made by tests/spoil/entries.py from attn.h. */\n#include "spoil.h"\n')
    for name in structs:
        struct(name)

    known = {f[1]: f for f in functions}
    entries = []
    for result, name, args in functions:
        declared = ', '.join('%s%s %s%s' % ('const ' if c else '', k, '*' * s, n) for k, c, s, n, d in args)
        given = ', '.join(a[3] for a in args)
        print('%s impl_%s(%s);' % (result, name, declared or 'void'))
        called = args and args[-1][0] == 'attn_ctx' and not name.endswith('_workspace')
        if result.strip() != 'attn_status' or not called:
            print('%s %s(%s) { return impl_%s(%s); }' % (result, name, declared or 'void', name, given)
                  if result.strip() != 'void' else
                  'void %s(%s) { impl_%s(%s); }' % (name, declared or 'void', name, given))
            continue
        ask = known.get(name + '_workspace')
        mine = args[:-1]
        print('typedef struct args_%s { %s; } args_%s;' %
              (name, '; '.join('%s%s %s%s' % ('const ' if c else '', k, '*' * s, n) for k, c, s, n, d in mine),
               name))
        print('static const spoil_field of_args_%s[] = {\n  %s};' %
              (name, ',\n  '.join(row('args_' + name, f) for f in mine)))
        print('static const spoil_type type_args_%s = {"%s", sizeof(args_%s), of_args_%s, %d};' %
              (name, name, name, name, len(mine)))
        values = ', '.join('a->' + a[3] for a in mine)
        print('static attn_status call_%s(const void *x, attn_ctx *ctx) {\n  const args_%s *a = x;\n'
              '  return impl_%s(%s, ctx);\n}' % (name, name, name, values))
        if ask:
            print('size_t impl_%s_workspace(%s);' % (name, ', '.join(
                '%s%s %s%s' % ('const ' if c else '', k, '*' * s, n) for k, c, s, n, d in ask[2])))
            print('static size_t ask_%s(const void *x, const attn_ctx *ctx) {\n  const args_%s *a = x;\n'
                  '  return impl_%s_workspace(%s, ctx);\n}' % (name, name, name, values))
        print('static spoil_entry entry_%s = {"%s", &type_args_%s, call_%s, %s, 0, 0};' %
              (name, name, name, name, 'ask_' + name if ask else 'NULL'))
        entries.append(name)
        print('attn_status %s(%s) {\n  if (spoil_wants(&entry_%s)) {\n    const args_%s spoiled = {%s};\n'
              '    spoil_call(&entry_%s, &spoiled, ctx);\n  }\n  return impl_%s(%s);\n}' %
              (name, declared, name, name, ', '.join(a[3] for a in mine), name, name, given))
    print('spoil_entry *const spoil_entries[] = {%s, NULL};' % ', '.join('&entry_' + e for e in entries))


main()
