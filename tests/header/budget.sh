#!/bin/sh
# budget.sh owns two limits: the processor time of compiling the implementation, as a multiple of
# what four stb headers take in the same run, and the bytes of machine code with every tier in it.
. "$(dirname "$0")/lib.sh"

RATIO_MAX=20
TEXT_MAX=2097152

compiled gcc-O2 || { not_run "budget: no gcc here"; exit 0; }
text=$(size gcc-O2.o | awk 'NR == 2 { print $1 }')
: >"$log"
if [ "$text" -le $TEXT_MAX ]; then
  ok "gcc -O2 makes $text bytes of code (at most $TEXT_MAX)"
else
  fail "gcc -O2 makes $text bytes of code, more than $TEXT_MAX"
fi

for part in image truetype image_resize image_write; do
  echo "#define STB_$(echo $part | tr 'a-z' 'A-Z')_IMPLEMENTATION"
  echo "#include <stb/stb_$part.h>"
done >stb.c
if ! echo '#include <stb/stb_image.h>' | gcc -E - >/dev/null 2>&1; then
  not_run "compile time: no stb headers here (Debian: libstb-dev)"
  exit 0
fi
# Other work on the machine slows both: the time of the shared object first, and where that is too
# much, one compilation next to the yardstick.
mine=$(cat "$root/build/impl/gcc-O2.time")
within() { awk -v a="$ratio" -v b=$RATIO_MAX 'BEGIN { exit !(a <= b) }'; }
for try in 1 2; do
  for i in 1 2 3; do
    seconds stb.time gcc -O2 -w -c -o stb.o stb.c
    cat stb.time
  done | sort -n >stb.times
  stb=$(sed -n 2p stb.times)
  ratio=$(awk -v a="$mine" -v b="$stb" 'BEGIN { printf "%.1f", a / b }')
  if within || [ $try = 2 ]; then break; fi
  seconds mine.time gcc -O2 -I. -c -o impl.o "$here/implementation.c"
  mine=$(cat mine.time)
done
: >"$log"
if within; then
  ok "gcc -O2 compiles the implementation in $mine s, $ratio x four stb headers (at most $RATIO_MAX)"
else
  fail "gcc -O2 takes $mine s, $ratio x four stb headers ($stb s), more than $RATIO_MAX"
fi
