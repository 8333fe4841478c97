# lib.sh owns what the header's checks share: a private folder that holds nothing but a copy of
# attn.h, and the three words of a report: ok, FAIL, "NOT RUN". A FAIL makes the exit status 1.
# Sourced, never run.

set -eu
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$root/build/header"
work=$(mktemp -d "$root/build/header/XXXXXX")
trap 'status=$?; [ ! -e "$work/failed" ] || status=1; rm -rf "$work"; exit $status' EXIT
cp "$root/attn.h" "$work/"
cd "$work"
log=$work/log

C_WARNINGS="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual \
  -Wdouble-promotion -Wstrict-prototypes -Wmissing-prototypes -Werror"
CXX_WARNINGS="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual \
  -Wdouble-promotion -Werror"

have() { command -v "$1" >/dev/null 2>&1; }

ok() { echo "ok       $*"; }

fail() {
  echo "FAIL     $*"
  [ ! -s "$log" ] || head -n 8 "$log" | cut -c 1-200 | sed 's/^/         | /'
  : >"$work/failed"
}

not_run() { echo "NOT RUN  $*"; }

# windows PROGRAM ARGUMENTS...: runs it under wine, which Debian keeps off the path, with a home that
# goes with the folder: three seconds and 0.7 GB. Nothing asks for a screen, menus, Mono or Gecko.
windows() (
  PATH=$PATH:/usr/lib/wine HOME=$work WINEPREFIX=$work/wine WINEDEBUG=-all DISPLAY=
  WINEDLLOVERRIDES="mscoree,mshtml,winemenubuilder.exe="
  export PATH HOME WINEPREFIX WINEDEBUG DISPLAY WINEDLLOVERRIDES
  status=0
  "$wine" "$@" </dev/null || status=$?
  wineserver -k || : # what is left running would still write to the folder
  exit $status
)

# row NAME: runner, compiler and flags of a row of matrix.txt, language and warnings for its compiler;
# COMPILER-LEVEL needs no row.
# shellcheck disable=SC2034 # for those who source this
row() {
  read -r runner compiler flags <<END
$(awk -v name="$1" '$1 == name { $1 = ""; print }' "$here/matrix.txt")
END
  [ -n "$compiler" ] || { runner=native compiler=${1%-*} flags="-std=c99 -${1##*-}"; }
  case $compiler in
    *++*) language="-x c++" warnings=$CXX_WARNINGS ;;
    *) language="-x c" warnings=$C_WARNINGS ;;
  esac
}

# compiled NAME: the object that header.mk has made of a row; empty without its compiler.
compiled() {
  [ -e "$root/build/impl/$1.o" ] || { fail "build/impl/$1.o is absent: use make"; exit 1; }
  [ -s "$root/build/impl/$1.o" ] && cp "$root/build/impl/$1.o" "$1.o"
}

# seconds FILE COMMAND...: runs the command and writes the processor seconds it took.
seconds() {
  (
    file=$1
    shift
    "$@" || exit 1
    times >"$file.raw"
    awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } }
      END { printf "%.2f\n", s }' "$file.raw" >"$file"
  )
}

# check NAME COMMAND...: the command must succeed.
check() {
  check_name=$1
  shift
  if "$@" >"$log" 2>&1; then ok "$check_name"; else fail "$check_name"; fi
}

# check_windows NAME PROGRAM ARGUMENTS...: the same of a program for Windows.
check_windows() {
  check_name=$1
  shift
  wine=$(PATH=$PATH:/usr/lib/wine && { command -v wine64 || command -v wine; }) || wine=
  if [ -n "$wine" ] && [ "$(uname -m)" = x86_64 ]; then
    check "$check_name" windows "$@"
  else
    not_run "$check_name: no wine here"
  fi
}

# refuse NAME TEXT COMMAND...: the command must fail and say TEXT.
refuse() {
  check_name=$1 text=$2
  shift 2
  if "$@" >"$log" 2>&1; then
    fail "$check_name: was accepted"
  elif grep -q "$text" "$log"; then
    ok "$check_name"
  else
    fail "$check_name: the message lacks '$text'"
  fi
}

# body OBJECT FUNCTION OBJDUMP: its instructions, without addresses and padding.
body() {
  "$3" -d --no-show-raw-insn "$1" | awk -v name="<$2>:" '
    $2 == name { on = 1; next }
    /^$/ { on = 0 }
    on && /\t(nop|data16|cs nop|xchg +%ax,%ax)/ { next }
    on { sub(/^[^\t]*\t/, ""); gsub(/[0-9a-f]+ <[^>]*>/, "ADDRESS"); print }'
}
