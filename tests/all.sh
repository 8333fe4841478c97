#!/bin/sh
# all.sh owns the whole test run: its steps, their logs (build/log) and the last page. Each step is
# a make target that keeps about one processor busy; make runs JOBS of them at once, after what they
# need, so that each object is compiled once. TEST_SECONDS (5400) bounds the whole: a hang becomes a
# failure that says so.
set -eu
cd "$(dirname "$0")/.."
logs=build/log

now() { date +%s; }

# The second part of this file: one step, called by make.
if [ "${1-}" = step ]; then
  target=$2 start=$(now) result=ok
  # what this step needs is there: without jobs of its own it waits for nobody
  timeout "$((TEST_END > start ? TEST_END - start : 1))" "${MAKE:-make}" --no-print-directory -j1 \
    "$target" >"$logs/$target" 2>&1 </dev/null || {
    [ $? = 124 ] && echo "FAILED: timed out after $(($(now) - start)) s" >>"$logs/$target"
    result=FAILED
  }
  printf '%-6s %-26s %4d s, done at %d s\n' $result "$target" $(($(now) - start)) \
    $(($(now) - TEST_BEGIN)) | tee "$logs/$target.result"
  if [ $result = FAILED ]; then
    { grep -E 'FAIL|ERROR|[Ee]rror[: ]|timed out' "$logs/$target" | head -n 20
      echo "... the end of $logs/$target:"
      tail -n 15 "$logs/$target"; } | cut -c 1-200 | sed 's/^/       | /'
  fi
  exit 0
fi

rm -rf "$logs"
mkdir -p "$logs"
make="${MAKE:-make} --no-print-directory"
TEST_BEGIN=$(now)
TEST_END=$((TEST_BEGIN + ${TEST_SECONDS:-5400}))
export TEST_BEGIN TEST_END
# First and alone: afterwards a stale attn.h would be made anew.
sh "$0" step check-amalgam
$make attn.h

# All that is compiled, then the steps: make begins them in order only if nothing is left to wait for.
steps=$($make -s test-steps)
for goal in test-needs "$(for step in $steps; do echo "step-$step"; done)"; do
  # shellcheck disable=SC2086 # words
  timeout "$((TEST_END > $(now) ? TEST_END - $(now) + 5 : 1))" $make -s -k -j "${JOBS:-2}" $goal || :
done

# The last page: what the runners counted, then which tier ran where.
echo
for target in test-native test-clang test-sleef test-emulated test-arm64 test-arm32 sanitize-gcc sanitize-clang; do
  [ -f "$logs/$target" ] || continue
  grep -E '^\[ +(PASSED|FAILED|SKIPPED) +\] [0-9]+ test' "$logs/$target" | sed "s/^/$target: /" || :
done
cat "$logs"/header-* 2>/dev/null | grep -v 's, done at' >"$logs/header" || :
echo "header: $(grep -c '^ok ' "$logs/header") passed, $(grep -c '^FAIL ' "$logs/header") failed," \
  "$(grep -c '^NOT RUN ' "$logs/header") not run"
grep -hE '^Done [0-9]+ runs|^stat::number_of_executed_units|^replay: |^ring attention: |^onnx |^porting: |^models: ' \
  "$logs/fuzz-once" "$logs/fuzz-replay" "$logs/test-ring" "$logs/test-onnx" "$logs/test-porting" "$logs/test-models" 2>/dev/null || :
echo
for target in test-native test-clang test-sleef test-emulated test-arm64 test-arm32; do
  [ -f "$logs/$target" ] || continue
  where=native as=
  case $target in *arm*) where=qemu ;; *emulated) as=' (emulated)' ;; esac
  grep -hE '^tier ' "$logs/$target" | grep -v 'another processor family' |
    sed "s/^tier \([a-z0-9]*\)/$target ($where): \1$as/" || :
done
# a tier of another family is no gap here as long as some step ran it
for tier in scalar avx2 avx512 neon; do
  grep -qhE "^tier $tier +ran" "$logs"/test-* || echo "tier $tier: NOT RUN ANYWHERE"
done
for step in $steps; do
  grep -E 'NOT RUN' "$logs/$step" 2>/dev/null | grep -v '^tier ' | sort -u | sed "s|^ *|$step: |" || :
done
echo
missing=0
for step in $steps; do
  [ -f "$logs/$step.result" ] && continue
  if [ "$(now)" -ge "$TEST_END" ]; then why="timed out after $(($(now) - TEST_BEGIN)) s"
  else why="something it needs is missing (see above)"; fi
  echo "FAILED $step: not run, $why"
  missing=$((missing + 1))
done
failed=$(($(cat "$logs"/*.result | grep -c '^FAILED' || :) + missing))
echo "all tests: $(cat "$logs"/*.result | grep -c '^ok') steps passed, $failed failed," \
  "$(($(now) - TEST_BEGIN)) s"
[ "$failed" -eq 0 ]
