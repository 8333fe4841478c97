#!/bin/sh
# run.sh owns the package that the node tests come from: it is installed under build/onnx, in the versions of
# requirements.txt and for nobody else, and asked for its cases once. Where it cannot be had, the tests
# are not run, and this says so and why. PYTHON names the Python (python3).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=build/onnx
wanted=tests/onnx/requirements.txt
log=$out/install.log
mkdir -p "$out"

not_run() {
  echo "NOT RUN: the ONNX package's node tests: $*"
  exit 0
}

if ! cmp -s "$wanted" "$out/venv/requirements.txt"; then
  rm -rf "$out/venv" "$out/cases.bin"
  "$python" -m venv "$out/venv" >"$log" 2>&1 ||
    not_run "$python makes no virtual environment (Debian: python3-venv); see $log"
  # wheels only: nothing is compiled
  "$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --retries 1 --timeout 30 -r "$wanted" >"$log" 2>&1 ||
    not_run "pip cannot fetch what $wanted names: $(grep -m1 '^ERROR' "$log" | cut -c 1-160)"
  cp "$wanted" "$out/venv/requirements.txt"
fi
if [ ! -e "$out/cases.bin" ] || [ tests/onnx/cases.py -nt "$out/cases.bin" ]; then
  "$out/venv/bin/python" tests/onnx/cases.py "$out/cases.tmp"
  mv "$out/cases.tmp" "$out/cases.bin"
fi
"$out/nodes" "$out/cases.bin"
