#!/bin/sh
# impl.sh owns the compilation of the implementation by one row of matrix.txt:
#
#   impl.sh NAME    build/impl/NAME.o, every warning an error; NAME.time, the processor seconds
#
# Where the compiler, or its C library, is absent the object is empty. Run from anywhere; header.mk knows when.
. "$(dirname "$0")/lib.sh"

name=$1
row "$name"
object=$root/build/impl/$name.o
mkdir -p "$root/build/impl"
# shellcheck disable=SC2086 # flags are words
if ! have "$compiler" || ! echo '#include <math.h>' | "$compiler" $language $flags -E - >/dev/null 2>&1; then
  : >"$object"
  exit 0
fi
# shellcheck disable=SC2086 # flags are words
if ! seconds impl.time "$compiler" $language $warnings $flags -I. -c -o impl.o \
  "$here/implementation.c" 2>"$log"; then
  fail "$name does not compile"
  exit 1
fi
echo "ok     build/impl/$name.o, $(cat impl.time) s of compiling"
mv impl.time "$root/build/impl/$name.time"
mv impl.o "$object"
