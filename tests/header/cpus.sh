#!/bin/sh
# cpus.sh owns the agreement between what the compiler was told, what CPUID is asked, and what
# really runs: every feature of a target list is tested by its own bit, and on an emulated
# processor that lacks any of them the tier is off and nothing faults.
. "$(dirname "$0")/lib.sh"

case $(gcc -dumpmachine) in
  x86_64*) ;;
  *) not_run "x86 features: this machine is no x86-64"; exit 0 ;;
esac

# The manuals' bits: feature, leaf (0x10007: 7, subleaf 1), register, bit.
cat >manual <<'END'
avx 1 ECX 28
avx2 7 EBX 5
avx512bf16 0x10007 EAX 5
avx512bw 7 EBX 30
avx512cd 7 EBX 28
avx512dq 7 EBX 17
avx512f 7 EBX 16
avx512vl 7 EBX 31
avx512vnni 7 ECX 11
avxvnni 0x10007 EAX 4
f16c 1 ECX 29
fma 1 ECX 12
END
grep -o '[FR]("[a-z0-9]*", *[0-9a-fx]*, *E[A-D]X, *[0-9]*)' attn.h |
  sed -e 's/^[FR](//' -e 's/[",)]/ /g' | awk '{ print $1, $2, $3, $4 }' | sort >rows
check "each feature row has the processor manual's CPUID bit" diff manual rows

echo '#include "attn.h"' >impl.c
gcc -E -DATTN_IMPLEMENTATION impl.c |
  awk '/^# [0-9]+ "/ { ours = $3 == "\"attn.h\"" } ours' >expanded
grep -o 'pragma GCC target *(.*)' expanded | grep -o '"[a-z0-9,]*"' | tr -d '" ' | tr ',' '\n' |
  sort -u | awk 'NF' >targets
awk '{ print $1 }' manual >features
check "the target lists name those features and no other" diff features targets

# Emulated processors: what must run, and the flag string.
if ! have qemu-x86_64; then
  not_run "emulated processors: no qemu-x86_64"
  exit 0
fi
compiled gcc-O2
if ! gcc -O1 -I. -o use "$here/use.c" gcc-O2.o -static -lm >"$log" 2>&1; then
  fail "use.c does not build"
  exit 0
fi
# qemu warns about features it does not emulate; that is not ours to judge
on() { qemu-x86_64 -cpu "$@" 2>&1; }
check "Nehalem runs scalar only" on Nehalem ./use scalar
if on max ./use scalar avx2 >/dev/null; then
  check "a processor with all of AVX2 runs avx2" on max ./use scalar avx2
  for feature in avx avx2 fma f16c xsave; do
    check "without $feature it runs scalar only" on max,-$feature ./use scalar
  done
else
  not_run "processors that lack one feature: this qemu does not emulate AVX2"
fi
