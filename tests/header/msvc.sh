#!/bin/sh
# msvc.sh owns MSVC's dialect, as far as clang and the headers of MinGW-w64 can stand in for Microsoft's:
# clang-cl, which is clang without __GNUC__, and MSVC itself, which is neither (msvc/). Parsed in C and
# C++ with vectors as opaque as MSVC's, then with clang's vectors run under wine.
. "$(dirname "$0")/lib.sh"

headers=/usr/x86_64-w64-mingw32/include
linker=x86_64-w64-mingw32-gcc
if ! have clang || [ ! -e "$headers/intrin.h" ]; then
  not_run "MSVC's dialect: no clang, or no headers of MinGW-w64, here"
  exit 0
fi
{ echo '#define ATTN_IMPLEMENTATION'
  echo '#include "attn.h"'
  echo '#include <intrin.h> /* as <windows.h> does, which may follow */'; } >before.c

# The three macros are for the headers alone; clang_cl.h takes them back.
x86=--target=x86_64-pc-windows-msvc
arm64=--target=aarch64-pc-windows-msvc
dialect="-fms-extensions -fms-compatibility -U_MSC_VER -D__GNUC__=4 -D__MINGW32__ -nostdinc -I."
system="-isystem $(clang -print-resource-dir)/include -isystem $headers"
cl="$dialect $system -include $here/msvc/clang_cl.h"
ms="$dialect $system -include $here/msvc/msvc.h"
opaque="$dialect -isystem $here/msvc/opaque $system -include $here/msvc/msvc.h"
# __forceinline is an extension on purpose
c="-x c -std=c99 $C_WARNINGS -Wno-language-extension-token"
cxx="-x c++ -std=c++14 $CXX_WARNINGS -Wno-language-extension-token"

parses() { # NAME FLAGS...
  name=$1
  shift
  check "$name parses" clang "$@" -fsyntax-only before.c "$here/use.c"
}
# shellcheck disable=SC2086 # flags are words
{
  parses "clang-cl, C" $x86 $cl $c
  parses "clang-cl, C++" $x86 $cl $cxx
  parses "MSVC, C" $x86 $opaque $c
  parses "MSVC, C++" $x86 $opaque $cxx
  parses "MSVC for ARM64, C" $arm64 $ms $c
}

# clang wants a flag for each intrinsic, MSVC none: so this program is for the tiers of this machine.
avx2="-mavx2 -mfma -mf16c -mxsave"
avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd"
if grep -qw avx512f /proc/cpuinfo; then
  tiers="scalar avx2 avx512" flags="$avx2 $avx512"
elif grep -qw avx2 /proc/cpuinfo; then
  tiers="scalar avx2" flags="$avx2 -DATTN_NO_AVX512"
else
  tiers=scalar flags="-DATTN_NO_AVX2 -DATTN_NO_AVX512"
fi

# shellcheck disable=SC2086 # names of tiers are words
runs() { # NAME FLAGS...
  name=$1
  shift
  have $linker || { not_run "$name runs: no $linker here"; return; }
  # unoptimised: two to five seconds
  for file in implementation use; do
    clang "$@" -O0 -DATTN_SMALL -c -o $file.o "$here/$file.c" >"$log" 2>&1 || {
      fail "$name: $file.c does not compile"
      return
    }
  done
  # gcc's function that touches the pages of a large frame does what Microsoft's does
  $linker -static -Wl,--defsym=__chkstk=___chkstk_ms -o program.exe implementation.o use.o \
    >"$log" 2>&1 || { fail "$name does not link"; return; }
  check_windows "$name runs: $tiers" ./program.exe $tiers
}
# shellcheck disable=SC2086 # flags are words
{
  runs "clang-cl, C" $x86 $cl $c
  runs "MSVC, C" $x86 $ms $c $flags
}
