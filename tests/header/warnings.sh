#!/bin/sh
# warnings.sh owns silence: every warning below is an error, in the implementation and in a file
# that only includes the header, in C and in C++.
. "$(dirname "$0")/lib.sh"

printf '#include "attn.h"\nint user(void);\nint user(void) { return (int)ATTN_OK; }\n' >file.c
cp file.c file.cpp

# shellcheck disable=SC2086 # flags are words
for mode in "" -DATTN_IMPLEMENTATION "-DATTN_IMPLEMENTATION -DATTN_STATIC"; do
  for compiler in gcc clang; do
    have $compiler || { not_run "warnings of $compiler: none here"; continue; }
    check "no warnings: $compiler -std=c99 $mode" \
      $compiler -std=c99 $C_WARNINGS -O0 $mode -c -o file.o file.c
  done
  for compiler in g++ clang++; do
    have $compiler || { not_run "warnings of $compiler: none here"; continue; }
    check "no warnings: $compiler -std=c++11 $mode" \
      $compiler -std=c++11 $CXX_WARNINGS -O0 $mode -c -o file.o file.cpp
  done
done
# other optimisation levels see other code paths
check "no warnings: gcc -O3" gcc -std=c11 $C_WARNINGS -O3 -DATTN_IMPLEMENTATION -c -o file.o file.c
check "no warnings: gcc -O2" gcc -std=c17 $C_WARNINGS -O2 -DATTN_IMPLEMENTATION -c -o file.o file.c
check "no warnings: g++ -O3" \
  g++ -std=c++17 $CXX_WARNINGS -O3 -DATTN_IMPLEMENTATION -c -o file.o file.cpp
for arm in "aarch64-linux-gnu-gcc" "arm-linux-gnueabihf-gcc -march=armv7-a -mfpu=neon-vfpv4"; do
  have ${arm%% *} || { not_run "warnings of ${arm%% *}: none here"; continue; }
  check "no warnings: ${arm%% *}" $arm -std=c99 $C_WARNINGS -O2 -DATTN_IMPLEMENTATION -c -o file.o file.c
done
