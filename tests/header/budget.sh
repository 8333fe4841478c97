#!/bin/sh
# budget.sh owns limits of weight: processor seconds of compiling one call in one file and all of the
# implementation, as multiples of what four stb headers take at -O2 in the same run, and the bytes of
# both. bench/compile.py measures more; these only keep what has been reached.
. "$(dirname "$0")/lib.sh"

SDPA_RATIO=3.8
WHOLE_RATIO=14.8
WHOLE_O0_RATIO=4.6
SDPA_BYTES=474000
WHOLE_BYTES=2880000

compiled gcc-O2 || { not_run "budget: no gcc here"; exit 0; }

at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }'; }
bytes() { # BYTES LIMIT WHAT
  : >"$log"
  if at_most "$1" "$2"; then ok "$3: $1 bytes (at most $2)"; else fail "$3: $1 bytes, more than $2"; fi
}

gcc -std=c99 -O2 -s -I. -o sdpa "$here/sdpa.c" -lm
./sdpa || fail "sdpa.c does not run"
bytes "$(wc -c <sdpa)" $SDPA_BYTES "one attn_sdpa, ATTN_STATIC, gcc -O2, stripped"
bytes "$(size gcc-O2.o | awk 'NR == 2 { print $1 }')" $WHOLE_BYTES "everything, gcc -O2, text"

for part in image truetype image_resize image_write; do
  echo "#define STB_$(echo $part | tr 'a-z' 'A-Z')_IMPLEMENTATION"
  echo "#include <stb/stb_$part.h>"
done >stb.c
if ! echo '#include <stb/stb_image.h>' | gcc -E - >/dev/null 2>&1; then
  not_run "compile time: no stb headers here (Debian: libstb-dev)"
  exit 0
fi

yardstick() { # FILE: a compilation of the yardstick
  seconds "$1" gcc -O2 -w -c -o stb.o stb.c
}

# Other work on the machine slows both, not by the same: the yardstick right before and after what is judged, and where
# that is too much, again. The time of the shared object comes first, where there is one.
ratio() { # LIMIT WHAT TIME-FILE COMMAND...
  limit=$1 what=$2 shared=$3
  shift 3
  for try in 1 2 3 4 5; do
    yardstick before.time
    if [ $try = 1 ] && [ -s "$shared" ]; then
      cp "$shared" mine.time
    else
      seconds mine.time "$@"
    fi
    yardstick after.time
    mine=$(cat mine.time)
    stb=$(cat before.time after.time | awk '{ sum += $1 } END { print sum / NR }')
    times=$(awk -v a="$mine" -v b="$stb" 'BEGIN { printf "%.1f", a / b }')
    if at_most "$times" "$limit"; then break; fi
  done
  : >"$log"
  if at_most "$times" "$limit"; then
    ok "$what: $mine s, $times x four stb headers (at most $limit)"
  else
    fail "$what: $mine s, $times x four stb headers ($stb s), more than $limit"
  fi
}

ratio $SDPA_RATIO "gcc -O2 compiles one attn_sdpa with ATTN_STATIC" none \
  gcc -std=c99 -O2 -I. -c -o sdpa.o "$here/sdpa.c"
ratio $WHOLE_RATIO "gcc -O2 compiles everything" "$root/build/impl/gcc-O2.time" \
  gcc -std=c99 -O2 -I. -c -o impl.o "$here/implementation.c"
ratio $WHOLE_O0_RATIO "gcc -O0 compiles everything" "$root/build/impl/gcc-O0.time" \
  gcc -std=c99 -O0 -I. -c -o impl.o "$here/implementation.c"
