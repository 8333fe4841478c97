#!/bin/sh
# only.sh owns ATTN_ONLY: every family alone compiles, exports what it then declares, and needs
# nothing of another; a call of one that is left out is an error that names it.
. "$(dirname "$0")/lib.sh"

# clang where it is: three times as fast, and which names there are does not depend on the compiler
cc=gcc
if have clang; then cc=clang; fi
cc="$cc -std=c99 -Wall -Wextra -Wpedantic -Wmissing-prototypes -Werror"
some="-DATTN_NO_AVX512 -DATTN_NO_AVX2 -O0" # the tiers are the same for all families

# only NAME FAMILIES...: the implementation with these alone.
only() {
  name=$1
  shift
  bits=$(printf 'ATTN_FAMILY_%s|' "$@")
  bits="-DATTN_ONLY=(${bits%|})"
  gcc -E -P "$bits" -DATTN_DEF=ATTN_DEF -x c attn.h 2>"$log" | tr '\n' ' ' | tr ';{}' '\n\n\n' |
    sed -n 's/^.*ATTN_DEF [^(]*[ *]\(attn_[a-z0-9_]*\) *(.*/\1/p' | sort -u >declared
  # shellcheck disable=SC2086 # flags are words
  check "$name alone compiles" $cc $some "$bits" -DATTN_IMPLEMENTATION -x c -c -o only.o attn.h
  nm -g --defined-only only.o | awk '{ print $3 }' | sort >exported
  check "$name exports what it declares" diff declared exported
  nm -u only.o | awk '$2 ~ /^attn_/' >needed
  check "$name needs no other" diff /dev/null needed
}

compiled gcc-O2 || { not_run "ATTN_ONLY: no gcc here"; exit 0; }
families=$(sed -n 's/^#define ATTN_FAMILY_\([A-Z]*\) 0x.*/\1/p' attn.h | grep -v ALL)
for family in $families; do only "$family" "$family"; done
# shellcheck disable=SC2086 # names are words
only "all of them" $families
mv declared all_declared
awk '/^ATTN_DEF / { sub(/\(.*/, ""); print $NF }' attn.h | sed 's/^\*//' | sort |
  grep -v attn_parallel_openmp >everything
check "all of them are everything" diff everything all_declared
only "SDPA and CACHE" SDPA CACHE
only "LINEAR and MEMORY" LINEAR MEMORY
only "PATTERN and RELU" PATTERN RELU

printf '#define ATTN_ONLY ATTN_FAMILY_SDPA\n#define ATTN_STATIC\n#define ATTN_IMPLEMENTATION\n' >one.c
printf '#include "attn.h"\nint main(void) { return attn_isa_best() == 0; }\n' >>one.c
cp one.c one.cpp
check "a private one" gcc -std=c99 -Wall -Wextra -Werror -fsyntax-only one.c
check "a private one in C++" g++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only one.cpp

# Plain attention by itself has the bits of the whole, and refuses what it has not.
check "the whole" gcc -std=c99 -Wall -Wextra -Werror -O1 -I. -DWHOLE -o whole "$here/only.c" gcc-O2.o -lm
check "plain alone" gcc -std=c99 -Wall -Wextra -Werror -O1 -I. -DATTN_ONLY=ATTN_FAMILY_SDPA -o plain \
  "$here/only.c" -lm
check "the whole runs" ./whole
cp "$log" whole.bits
check "plain alone refuses what it has not" ./plain
cp "$log" plain.bits
check "plain alone has the same bits" cmp whole.bits plain.bits

# Schedules, key lists and rectified weights without the terms that the engine has beside them.
check "without terms" gcc -std=c99 -Wall -Wextra -Werror -O1 -DATTN_SMALL -DATTN_IMPLEMENTATION \
  "-DATTN_ONLY=(ATTN_FAMILY_PATTERN|ATTN_FAMILY_EDGES|ATTN_FAMILY_RELU)" -I. -o use "$here/use.c" -lm
check "without terms runs" ./use

left() { # FUNCTION FAMILY
  printf '#define ATTN_ONLY ATTN_FAMILY_%s\n#include "attn.h"\n' "$3" >left.c
  printf 'int main(void) { attn_tensor t = {0}; return %s; }\n' "$2" >>left.c
  refuse "$1 without its family" "ATTN_ONLY_leaves_out_ATTN_FAMILY_$4" gcc -std=c99 -c -o left.o left.c
}
left "a primary call" "attn_gemm(t, t, t, NULL, NULL)" SDPA DENSE
left "a mechanism" "attn_mixer(t, t, NULL, NULL)" SDPA MIXERS
left "a query" "(int)attn_sdpa_workspace(t, t, t, t, NULL, NULL)" DENSE SDPA
