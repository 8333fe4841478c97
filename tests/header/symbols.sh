#!/bin/sh
# symbols.sh owns what the compiled implementation may contain: which names it exports, which it
# needs, and which instructions each of its functions may use.
. "$(dirname "$0")/lib.sh"

# The functions the API declares, one a line.
awk '/^ATTN_DEF / { sub(/\(.*/, ""); print $NF }' attn.h | sed 's/^\*//' | sort >declared
grep -v '^attn_parallel_openmp$' declared >without_openmp

# Everything libc and libm offer that the implementation may call; nothing else.
libc='malloc|free|getenv|strcmp|strlen|mem(cpy|set|move|cmp|chr)|bcmp|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_'
libm='(sin|cos|sincos|exp|exp2|log|log2|pow|ldexp|tanh|expm1|floor|ceil|sqrt|fma|fmax|fmin|fabs'
libm="$libm|fmod|rint|nearbyint|round|trunc|lrint|log1p|frexp)f?"

exports() { # NAME OBJECT EXPECTED
  nm -g --defined-only "$2" | awk '{ print $3 }' | sort >exported
  check "$1 exports the declared functions and nothing else" diff "$3" exported
  nm -u "$2" | awk '{ print $2 }' | grep -Evx "$libc|$libm|GOMP_.*|omp_.*" >needed || true
  check "$1 needs nothing but libc and libm" diff /dev/null needed
}

# No function may use an instruction that its tier does not promise: outside the tiers nothing of
# AVX at all, in avx2 nothing of AVX-512.
instructions() { # NAME OBJECT
  objdump -d --no-show-raw-insn "$2" | awk '
    /^[0-9a-f]+ <.*>:$/ { name = $2; wide = name ~ /avx512/ ? 2 : name ~ /avx2|avxvnni/ ? 1 : 0; next }
    {
      n = split($0, part, "\t")
      code = part[2]
      if (n < 2) next
      if (wide) inside[wide]++
      if (wide < 2 && code ~ /%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])/) print name, code
      else if (wide == 0 && (code ~ /%ymm/ || code ~ /^v[a-z]/ && code !~ /^ver/)) print name, code
    }
    END { if (!inside[1] || !inside[2]) print "no function of avx2 or avx512 found" }' >stray
  check "$1 keeps wide instructions in their tiers" diff /dev/null stray
}

# symbols.sh [ROW...]: all, or these rows alone.
for name in ${*:-gcc-O2 gcc-O0 gcc-O3 clang-O2 clang-O0 clang-O3}; do
  row $name
  compiled $name || { not_run "$name symbols: no $compiler here"; continue; }
  case $name in *-O2) exports $name $name.o without_openmp ;; esac
  case $($compiler -dumpmachine) in x86_64*) instructions $name $name.o ;; esac
done
[ $# -gt 0 ] || { compiled gcc-openmp && exports gcc-openmp gcc-openmp.o declared; }

echo 'int nothing; 
#include "attn.h"' >plain.c
check "plain inclusion compiles" gcc -std=c99 -O0 -c -o plain.o plain.c
echo nothing >only
check "plain inclusion defines nothing" sh -c \
  "nm plain.o | awk '{ print \$NF }' | diff only -"
