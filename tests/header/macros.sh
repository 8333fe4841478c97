#!/bin/sh
# macros.sh owns what the header leaves behind in the file that includes it: macros with its own
# prefix only, and neither target options nor floating-point pragmas.
. "$(dirname "$0")/lib.sh"

# The system headers that attn.h may include, as a file of their own, for comparison.
{
  for header in $(sed -n 's/^ *# *include *<\(.*\)>.*/\1/p' attn.h | sort -u); do
    printf '#if __has_include(<%s>)\n#include <%s>\n#endif\n' "$header" "$header"
  done
} | sed -e 's/^#if.*<arm_neon.h>.*/#ifdef __ARM_NEON/' \
  -e '/<immintrin.h>/!s/^#if.*intrin.h>.*/#ifdef _MSC_VER/' >system.h

macros() { # NAME COMPILER FLAGS...
  name=$1
  shift
  cat system.h >with.c
  echo '#include "attn.h"' >>with.c
  "$@" -dM -E -x c system.h 2>"$log" | sort >before || { fail "$name"; return; }
  "$@" -dM -E with.c 2>"$log" | sort >after || { fail "$name"; return; }
  [ -s before ] && [ -s after ] || { fail "$name: no macros listed"; return; }
  comm -13 before after | awk '{ sub(/\(.*/, "", $2); print $2 }' |
    grep -Ev '^ATTN_([A-Z0-9_]*[A-Z0-9])?$' >leaked || true
  check "$name: leaves only ATTN_ macros, none of them private" diff /dev/null leaked
  comm -23 before after >lost
  check "$name: changes no macro of the system" diff /dev/null lost
}

macros "gcc, plain" gcc -std=c99
macros "gcc, implementation" gcc -std=c99 -DATTN_IMPLEMENTATION
macros "gcc, static" gcc -std=c99 -DATTN_IMPLEMENTATION -DATTN_STATIC -fopenmp
have clang && macros "clang, implementation" clang -std=c11 -DATTN_IMPLEMENTATION
have aarch64-linux-gnu-gcc &&
  macros "arm64, implementation" aarch64-linux-gnu-gcc -std=c99 -DATTN_IMPLEMENTATION

# The same two functions before and after the implementation must become the same code: a
# multiply-add shows contraction, a loop shows the target's vectors. ATTN_STATIC: regions begin and
# end as ever, but what nobody calls takes no time.
probe() { # SUFFIX
  cat <<END
#ifdef __cplusplus
extern "C" {
#endif
float fused_$1(float a, float b, float c) { float t = a * b; return t + c; }
float whole_$1(float a, float b, float c) { return a * b + c; }
void loop_$1(float *x, const float *y, int n) { for (int i = 0; i < n; i++) x[i] += 3 * y[i]; }
#ifdef __cplusplus
}
#endif
END
}
{
  probe before
  echo '#define ATTN_STATIC'
  echo '#define ATTN_IMPLEMENTATION'
  echo '#include "attn.h"'
  probe after
} >probe.c

unchanged() { # NAME OBJDUMP COMPILER FLAGS...
  name=$1 objdump=$2
  shift 2
  have "$1" || { not_run "$name: no $1 here"; return; }
  if ! "$@" -fno-ident -c -o probe.o probe.c >"$log" 2>&1; then fail "$name"; return; fi
  for f in fused whole loop; do
    body probe.o ${f}_before "$objdump" >before
    body probe.o ${f}_after "$objdump" >after
    grep -q ret before || { fail "$name: $f has no code"; continue; }
    check "$name: $f compiles as before" diff before after
  done
}

unchanged "after gcc -O3" objdump gcc -O3 -fno-ipa-icf
unchanged "after gcc -O3 -mfma" objdump gcc -O3 -fno-ipa-icf -mfma
unchanged "after clang -O2" objdump clang -O2
unchanged "after clang -O2 -mfma" objdump clang -O2 -mfma
unchanged "after clang -O2 -mfma, contraction fast" objdump clang -O2 -mfma -ffp-contract=fast
unchanged "after clang -O2 -mfma, contraction off" objdump clang -O2 -mfma -ffp-contract=off
unchanged "after g++ -O2" objdump g++ -x c++ -O2 -mfma -fno-ipa-icf -fno-exceptions
unchanged "after arm64 gcc -O2" aarch64-linux-gnu-objdump aarch64-linux-gnu-gcc -O2 -fno-ipa-icf
