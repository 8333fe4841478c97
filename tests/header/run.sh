#!/bin/sh
# run.sh owns the run of all checks of the header as a file: every row of matrix.txt and every
# check script, JOBS at a time, then the counts. It works on attn.h at the top of the tree.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
jobs=${JOBS:-2}
report=$root/build/header/report
mkdir -p "$root/build/header"

{
  for script in symbols budget forms warnings macros cpus; do echo "$here/$script.sh"; done
  sed -e '/^#/d' -e '/^$/d' -e "s|^|$here/row.sh |" "$here/matrix.txt"
} | { xargs -P "$jobs" -L 1 sh 2>&1 || echo "FAIL     a check ended before its time"; } | tee "$report"

passed=$(grep -c '^ok ' "$report" || true)
failed=$(grep -c '^FAIL ' "$report" || true)
not_run=$(grep -c '^NOT RUN ' "$report" || true)
echo "header: $passed passed, $failed failed, $not_run not run"
grep '^FAIL ' "$report" || true
[ "$failed" -eq 0 ]
