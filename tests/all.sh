#!/bin/sh
# all.sh owns the whole test run: the order of its steps, their logs (build/log) and the last page.
# Each step is a make target that keeps about one processor busy, so JOBS of them run at once.
set -eu
cd "$(dirname "$0")/.."
make="${MAKE:-make} --no-print-directory"
logs=build/log

now() { date +%s; }

# A hang becomes a failure after this many seconds.
LIMIT=2400

if [ "${1-}" = step ]; then
  begin=$2 target=$3 start=$(now) result=ok
  timeout $LIMIT $make "$target" >"$logs/$target" 2>&1 </dev/null || result=FAILED
  printf '%-6s %-16s %4d s, done at %d s\n' $result "$target" $(($(now) - start)) \
    $(($(now) - begin)) | tee "$logs/$target.result"
  if [ $result = FAILED ]; then
    { grep -E 'FAIL|ERROR|[Ee]rror[: ]' "$logs/$target" | head -n 20
      echo "... the end of $logs/$target:"
      tail -n 15 "$logs/$target"; } | cut -c 1-200 | sed 's/^/       | /'
  fi
  exit 0
fi

rm -rf "$logs"
mkdir -p "$logs"
begin=$(now)
# First and alone: afterwards a stale attn.h would be made anew.
sh "$0" step "$begin" check-amalgam
$make attn.h

# Longest first, so that the end is not one long step. No two steps build the same file.
printf '%s\n' test-arm64 test-header test-arm32 sanitize fuzz test-native test-clang \
  test-sleef fuzz-replay examples test-ring test-gallery |
  xargs -P "${JOBS:-2}" -I STEP sh "$0" step "$begin" STEP

# The last page: what the runners counted, then which tier ran where.
echo
for target in test-native test-clang test-sleef test-arm64 test-arm32 sanitize; do
  [ -f "$logs/$target" ] || continue
  grep -E '^\[ +(PASSED|FAILED|SKIPPED) +\] [0-9]+ test' "$logs/$target" | sed "s/^/$target: /" || :
done
grep -hE '^header: |^Done [0-9]+ runs|^stat::number_of_executed_units|^replay: |^ring attention: ' \
  "$logs/test-header" "$logs/fuzz" "$logs/fuzz-replay" "$logs/test-ring" 2>/dev/null || :
echo
for target in test-native test-clang test-sleef test-arm64 test-arm32; do
  [ -f "$logs/$target" ] || continue
  where=native
  case $target in *arm*) where=qemu ;; esac
  grep -hE '^tier ' "$logs/$target" | grep -v 'another processor family' |
    sed "s/^tier/$target ($where):/" || :
done
# a tier of another family is no gap here as long as some step ran it
for tier in scalar avx2 avx512 neon; do
  grep -qhE "^tier $tier +ran" "$logs"/test-* || echo "tier $tier: NOT RUN ANYWHERE"
done
for target in "$logs"/*; do
  grep -E 'NOT RUN' "$target" | grep -v '^tier ' | sort -u | sed "s|^ *|${target##*/}: |" || :
done
echo
failed=$(grep -lE '^FAILED' "$logs"/*.result | wc -l)
echo "all tests: $(grep -lE '^ok' "$logs"/*.result | wc -l) steps passed, $failed failed," \
  "$(($(now) - begin)) s"
[ "$failed" -eq 0 ]
