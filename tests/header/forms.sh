#!/bin/sh
# forms.sh owns the ways to include the header: several files, private, twice, from another
# folder, renamed, pasted, without some tiers, beside an older copy.
. "$(dirname "$0")/lib.sh"

# One tier, and the families that use.c calls: how a file is included does not depend on their number.
# Whole where names matter, and once the flat form.
printf '#define ATTN_ONLY (ATTN_FAMILY_PATTERN | ATTN_FAMILY_EDGES | ATTN_FAMILY_RELU)\n' >some.h
some="-DATTN_SMALL -include $work/some.h"
# By clang where it is, which is three times as fast: what a form is, the preprocessor makes.
cc=gcc
if have clang; then cc=clang; fi
plain="$cc -std=c99 -Wall -Wextra -Werror -O0 $some -DATTN_NO_AVX512 -DATTN_NO_AVX2"
whole="$cc -std=c99 -Wall -Wextra -Werror -fsyntax-only"
read="$whole $some"
all="$cc -std=c99 -Wall -Wextra -Werror -O0 $some"
both="gcc -std=c99 -Wall -Wextra -Werror -fsyntax-only $some"
printf '#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' >impl.c

# shellcheck disable=SC2086 # flags are words
check "two files: one with the implementation" $plain -I. -o two impl.c "$here/use.c" -lm
check "two files run" ./two

printf '#define ATTN_STATIC\n#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' >static.h
printf '#include "static.h"\nint other(void);\nint other(void) { return attn_isa_best() == 0; }\n' \
  >other.c
check "two files with private implementations" \
  $plain -include static.h -I. -o private other.c "$here/use.c" -lm
check "private implementations run" ./private
check "a private implementation exports nothing" sh -c \
  "$plain -c -o other.o other.c && ! nm -g --defined-only other.o | grep attn_"

printf '#include "attn.h"\n#include "attn.h"\n#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' \
  >twice.c
printf '#include "attn.h"\n#include "attn.h"\n' >>twice.c
check "included many times in one file" $read twice.c
cp twice.c twice.cpp
check "included many times in C++" g++ -std=c++11 -Wall -Wextra -Werror -fsyntax-only twice.cpp

mkdir -p deep/down lib
cp attn.h lib/
printf '#define ATTN_IMPLEMENTATION\n#include "../../lib/attn.h"\n' >deep/down/impl.c
check "a relative path in the include" $read deep/down/impl.c
(cd deep/down && check "a relative -I" $read -I../../lib -DATTN_IMPLEMENTATION \
  "$here/use.c")
check "-include on the command line" $plain -DATTN_IMPLEMENTATION -include lib/attn.h -I. -o include \
  "$here/use.c" -lm
printf '#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max min\n#include <complex.h>\n' >rude.c
cat impl.c >>rude.c
check "beside <complex.h> and macros named min and max" $whole rude.c

mkdir renamed
cp attn.h renamed/attention.h
printf '#define ATTN_IMPLEMENTATION\n#include "attention.h"\n' >renamed/impl.c
mv attn.h hidden.h
refuse "renamed without ATTN_SELF" "define ATTN_SELF" gcc -c -o r.o renamed/impl.c
check "renamed with ATTN_SELF" $read "-DATTN_SELF=\"attention.h\"" renamed/impl.c
mv hidden.h attn.h

# An older copy that would be found first: it knows another version of the pass.
mkdir older
sed 's/\(ATTN_PASS_ != \)[0-9]*/\199/' attn.h >older/attn.h
cmp -s attn.h older/attn.h && echo "no version check in the pass" >"$log" && fail "version check"
cp renamed/attention.h newer.h
printf '#define ATTN_IMPLEMENTATION\n#include "../newer.h"\n' >older/impl.c
mkdir newer
mv newer.h newer/
printf '#define ATTN_IMPLEMENTATION\n#include "newer.h"\n' >older.c
mv attn.h hidden.h
refuse "an older attn.h found in place of this one" "another version" \
  gcc -Iolder -Inewer -c -o older.o older.c
mv hidden.h attn.h

for switch in AVX2 AVX512 NEON; do
  check "ATTN_NO_$switch" $all -DATTN_NO_$switch -DATTN_IMPLEMENTATION -I. -o switch "$here/use.c" \
    -lm
  tier=$(echo $switch | tr 'A-Z' 'a-z')
  check "ATTN_NO_$switch runs without $tier" sh -c "./switch | grep '^$tier: [a-z]' |
    grep -v 'runs'"
done
check "all switches" $all -DATTN_NO_AVX2 -DATTN_NO_AVX512 -DATTN_NO_NEON -DATTN_IMPLEMENTATION -I. \
  -o switch "$here/use.c" -lm
check "all switches leave scalar" ./switch scalar
check "ATTN_NO_GETENV" $read -DATTN_NO_GETENV -DATTN_IMPLEMENTATION -I. "$here/use.c"
check "ATTN_MALLOC and ATTN_FREE" sh -c "$plain '-DATTN_MALLOC(n)=NULL' '-DATTN_FREE(p)=((void)(p))' \
  -c -o hooks.o impl.c -DATTN_NO_GETENV && ! nm -u hooks.o | grep -E 'malloc|free'"
refuse "ATTN_MALLOC alone" "ATTN_FREE together" gcc "-DATTN_MALLOC(n)=NULL" -c -o hooks.o impl.c

# Infinities and the order of sums are part of the results. gcc can be told so inside the header
# (matrix.txt has that build), clang cannot and refuses; a file of calls may have fast-math.
if have clang; then
  refuse "clang -ffast-math is refused" "without -ffast-math" clang -ffast-math -c -o fast.o impl.c
  check "clang -ffast-math in a caller" clang -ffast-math -I. -c -o fast.o "$here/use.c"
else
  not_run "clang -ffast-math: no clang here"
fi

# A sleef.h included earlier has declared some functions already, which ones depends on the flags.
if echo '#include <sleef.h>' | gcc -E - >/dev/null 2>&1; then
  printf '#include <sleef.h>\n#define ATTN_USE_SLEEF\n#include "impl.c"\n' >sleef.c
  for flag in -O0 -mavx -march=native; do
    check "ATTN_USE_SLEEF after sleef.h, $flag" $both $flag sleef.c
    check "ATTN_USE_SLEEF after sleef.h, C++, $flag" g++ -w $flag -x c++ -fsyntax-only sleef.c
  done
else
  not_run "ATTN_USE_SLEEF after sleef.h: no sleef.h here"
fi

check "flat form is made" "$root/attn/amalgamate" --flat "$work/attn_flat.h"
mkdir flat
{
  echo '#define ATTN_IMPLEMENTATION'
  cat attn_flat.h
  sed '/#include "attn.h"/d' "$here/use.c"
} >flat/pasted.c
check "flat form, pasted into a file" $plain -o flat/pasted flat/pasted.c -lm
check "flat form runs" flat/pasted
cp attn_flat.h flat/any_name.h
printf '#define ATTN_IMPLEMENTATION\n#include "any_name.h"\n' >flat/impl.c
check "flat form, renamed" $whole flat/impl.c
check "flat form has no self-include" sh -c "! grep 'include *ATTN_SELF' attn_flat.h"

cat >empty.c <<'END'
#include "attn.h"
int main(void) { return attn_isa_best() == 0; }
END
refuse "without the implementation the linker says so" "attn_isa_best" gcc -o empty empty.c
