#!/bin/sh
# budget.sh owns two limits: seconds of processor time to compile the implementation with gcc -O2,
# and bytes of machine code with every tier in it.
. "$(dirname "$0")/lib.sh"

SECONDS_MAX=75
TEXT_MAX=2097152

echo '#include "attn.h"' >impl.c
under() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }

# Again only where the first time is too long: the machine may have been busy.
best=1000
for try in 1 2; do
  under "$best" $SECONDS_MAX && break
  { time -p gcc -O2 -DATTN_IMPLEMENTATION -c -o impl.o impl.c; } 2>times
  best=$(awk -v best=$best '/^(user|sys) / { t += $2 } END { print t < best ? t : best }' times)
done
text=$(size impl.o | awk 'NR == 2 { print $1 }')

: >"$log"
if under "$best" $SECONDS_MAX; then
  ok "gcc -O2 compiles the implementation in $best s (at most $SECONDS_MAX)"
else
  fail "gcc -O2 takes $best s, more than $SECONDS_MAX"
fi
if under "$text" $TEXT_MAX; then
  ok "gcc -O2 makes $text bytes of code (at most $TEXT_MAX)"
else
  fail "gcc -O2 makes $text bytes of code, more than $TEXT_MAX"
fi
