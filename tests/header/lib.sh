# lib.sh owns what the header's checks share: a private folder that holds nothing but a copy of
# attn.h, and the three words of a report: ok, FAIL, "not run". Sourced, never run.

set -eu
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$root/build/header"
work=$(mktemp -d "$root/build/header/XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$root/attn.h" "$work/"
cd "$work"
log=$work/log
failed=0

C_WARNINGS="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual \
  -Wdouble-promotion -Wstrict-prototypes -Wmissing-prototypes -Werror"
CXX_WARNINGS="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual \
  -Wdouble-promotion -Werror"

have() { command -v "$1" >/dev/null 2>&1; }

ok() { echo "ok       $*"; }

fail() {
  echo "FAIL     $*"
  [ ! -s "$log" ] || head -n 8 "$log" | cut -c 1-200 | sed 's/^/         | /'
  failed=1
}

not_run() { echo "NOT RUN  $*"; }

# check NAME COMMAND...: the command must succeed.
check() {
  check_name=$1
  shift
  if "$@" >"$log" 2>&1; then ok "$check_name"; else fail "$check_name"; fi
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
