#!/bin/sh
# header_cost.sh owns what the header costs: compile time of the implementation and of a plain
# inclusion (best of three, processor time), and the text size of the object.
#
# Usage: bench/header_cost.sh [all.h | attn.h]; CC names the compiler.
set -eu

header=${1:-all.h}
cc=${CC:-gcc}
out=build/bench/cost
mkdir -p "$out"
echo '#include "header.h"' > "$out/plain.c"

best() { # source object
  for i in 1 2 3; do
    { bash -c 'TIMEFORMAT="%U %S"; time "$@"' time "$cc" -std=c99 -O2 -Ibench -Iattn -I. \
      "-DBENCH_ATTN_H=\"$header\"" -c "$1" -o "$2"; } 2>&1
  done | awk '{ t = $1 + $2; if (!n++ || t < m) m = t } END { print m }'
}

echo "$("$cc" --version | head -n 1), -O2, $header:"
echo "implementation  $(best bench/impl.c "$out/impl.o") s"
echo "inclusion       $(best "$out/plain.c" "$out/plain.o") s"
size "$out/impl.o" | awk 'NR == 2 {
  printf "object text     %d bytes, %.0f KB\n", $1, $1 / 1000 }'
size -A "$out/impl.o" | awk '/^\.(text|rodata)/ { printf "  %-14s %d\n", $1, $2 }'
