#!/bin/sh
# test_ring.sh owns the check of ring attention: 1 to 4 MPI ranks on this machine against one
# attn_sdpa, in every layout, with tokens that do not divide evenly. Run from the root of the project; IMPL names an object of the implementation.
set -eu
out=build/ring
failures=0 runs=0

for tool in mpicc mpirun; do
  command -v $tool >/dev/null 2>&1 || {
    echo "NOT RUN: ring attention: no $tool here (Debian: openmpi-bin libopenmpi-dev)"
    exit 0
  }
done
mkdir -p "$out"
mpicc -std=c99 -O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I. -DATTN_IMPLEMENTED \
  -o "$out/ring_attention" docs/examples/ring_attention.c "${IMPL:?an object of the implementation}" -lm

# More ranks than cores, and root in a container, which Open MPI wants to be told.
flags=
if mpirun --version 2>&1 | grep -q 'Open MPI'; then
  flags="--oversubscribe --bind-to none"
  [ "$(id -u)" != 0 ] || flags="$flags --allow-run-as-root"
  # within one machine; a container may forbid one process to read another's memory
  export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,vader \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
fi

fail() {
  failures=$((failures + 1))
  echo "FAILED: $*" >&2
  cat "$out/log" >&2
}

# expected exit status, ranks, arguments
ring() {
  want=$1 ranks=$2 got=0
  shift 2
  runs=$((runs + 1))
  # shellcheck disable=SC2086 # words
  timeout 100 mpirun $flags -n "$ranks" "$out/ring_attention" "$@" >"$out/log" 2>&1 || got=$?
  [ $got = "$want" ] || fail "$ranks ranks, $*: exit status $got, not $want"
}

# a word of the last output's summary must be at most this
at_most() { # words after the number, bound
  x=$(sed -n "s/.* \([0-9.]*\) $1.*/\1/p" "$out/log")
  awk -v x="$x" -v most="$2" 'BEGIN { exit !(x != "" && x <= most) }' || fail "$1: $x, not <= $2"
}

for ranks in 2 3 4; do
  for mode in "" --full; do
    # shellcheck disable=SC2086
    ring 0 $ranks --check $mode 997 4 2 40
    grep -q ': agrees$' "$out/log" || fail "$ranks ranks $mode: nothing was compared"
    at_most 'x the mean' 1.03
    at_most 'x the allowed' 1.05
  done
done
ring 0 4 --check 2048 8 1 16    # divides evenly, one head of keys
ring 0 3 --check 301 3 3 33     # a head of keys for each
ring 0 3 --check --striped 301 2 1 8
ring 0 4 --check --striped --full 67 2 1 8
ring 0 3 --check --plain 100
ring 0 4 --check 5 2 1 3        # ranks without tokens
ring 0 3 --check --striped 6 2 1 3 # where a last query sees one key of a block
ring 0 4 --check 1
ring 0 1 --check 50

# what is wrong must be found, on every rank's way out
ring 1 3 --check --spoil 301 4 2 16
grep -q ': DIFFERS$' "$out/log" || fail "a spoilt number went unnoticed"
ring 2 2 64 3 2
grep -q '^usage' "$out/log" || fail "3 heads over 2 were accepted"
ring 2 2 0
ring 2 2 12x

[ $failures = 0 ] || exit 1
echo "ring attention: $runs runs of 1 to 4 ranks, all as they should be"
