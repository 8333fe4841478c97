#!/bin/sh
# row.sh owns one row of the build matrix: NAME RUNNER COMPILER FLAGS... builds use.c with the
# implementation and runs it. RUNNER is "native", "none" (compile only) or an emulator.
. "$(dirname "$0")/lib.sh"

name=$1 runner=$2 compiler=$3
shift 3
if ! have "$compiler"; then
  not_run "$name: no $compiler here"
  exit 0
fi
language= warnings=$C_WARNINGS
case $compiler in *++*) language="-x c++" warnings=$CXX_WARNINGS ;; esac
# static, so that an emulator needs no libraries of the other machine
case $runner in
  none) link=-c ;;
  native) link=-lm ;;
  *) link="-static -lm" ;;
esac

# shellcheck disable=SC2086 # flags are words
if ! "$compiler" $language $warnings "$@" -DATTN_IMPLEMENTATION -I. -o use "$here/use.c" $link \
  >"$log" 2>&1; then
  fail "$name does not compile"
  exit 0
fi
case $runner in
  none) ok "$name (compiled only)" ;;
  native) check "$name" ./use ;;
  *) if have "$runner"; then check "$name" "$runner" ./use; else not_run "$name: no $runner"; fi ;;
esac
