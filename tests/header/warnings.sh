#!/bin/sh
# warnings.sh owns silence: every warning below is an error, in the implementation and in a file
# that only includes the header, in C and in C++.
. "$(dirname "$0")/lib.sh"

printf '#include "attn.h"\nint user(void);\nint user(void) { return (int)ATTN_OK; }\n' >file.c
cp file.c file.cpp

# shellcheck disable=SC2086 # flags are words
# The implementation with external names: the rows of matrix.txt have these warnings, too.
for mode in "" "-DATTN_IMPLEMENTATION -DATTN_STATIC"; do
  for compiler in gcc clang; do
    have $compiler || { not_run "warnings of $compiler: none here"; continue; }
    check "no warnings: $compiler -std=c99 $mode" \
      $compiler -std=c99 $C_WARNINGS -fsyntax-only $mode file.c
  done
  for compiler in g++ clang++; do
    have $compiler || { not_run "warnings of $compiler: none here"; continue; }
    check "no warnings: $compiler -std=c++11 $mode" \
      $compiler -std=c++11 $CXX_WARNINGS -fsyntax-only $mode file.cpp
  done
done
# other optimisation levels see other code paths
