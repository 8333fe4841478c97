#!/bin/sh
# row.sh owns one row of the build matrix: use.c, linked to the row's object, must run.
. "$(dirname "$0")/lib.sh"

name=$1
row "$name"
if ! compiled "$name"; then
  not_run "$name: no $compiler here"
  exit 0
fi
# static, so that an emulator needs no libraries of the other machine
case $runner in
  none) ok "$name (compiled only)"; exit 0 ;;
  native) link=-lm ;;
  wasm) link=-lm runner=node ;;
  *) link="-static -lm" ;;
esac

# shellcheck disable=SC2086 # flags are words
if ! { "$compiler" $language $warnings $flags -I. -c -o use.o "$here/use.c" &&
  "$compiler" -o use use.o "$name.o" $flags $link; } >"$log" 2>&1; then
  fail "$name: use.c does not build"
elif [ "$runner" = native ]; then
  check "$name" ./use
elif [ "$runner" = node ] && have node; then
  check "$name" node --no-warnings --experimental-wasi-unstable-preview1 "$here/wasm.mjs" use
elif [ "$runner" = wine ]; then
  check_windows "$name" ./use.exe
elif have "$runner"; then
  check "$name" "$runner" ./use
else
  not_run "$name: no $runner"
fi
