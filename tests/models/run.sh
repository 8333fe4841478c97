#!/bin/sh
# run.sh owns the packages that the programs here compare with, transformers and torch above all: installed under
# build/models in the versions of requirements.txt, or found in MODELS_VENV. Where they cannot be had, the tests are
# not run, and this says so and why. PYTHON names the Python (python3).
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=build/models
wanted=tests/models/requirements.txt
log=$out/install.log
mkdir -p "$out"

not_run() {
  echo "NOT RUN: test-models: $*"
  exit 0
}

venv=${MODELS_VENV:-}
if [ -z "$venv" ]; then
  venv=$out/venv
  if ! cmp -s "$wanted" "$venv/requirements.txt"; then
    rm -rf "$venv"
    "$python" -m venv "$venv" >"$log" 2>&1 ||
      not_run "$python makes no virtual environment (Debian: python3-venv); see $log"
    # wheels only: nothing is compiled
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
      --retries 1 --timeout 30 -r "$wanted" >"$log" 2>&1 ||
      not_run "pip cannot fetch what $wanted names: $(grep -m1 '^ERROR' "$log" | cut -c 1-160)"
    cp "$wanted" "$venv/requirements.txt"
  fi
fi
"$venv/bin/python" -c 'import sentencepiece, torch, transformers' 2>"$log" ||
  not_run "$venv has not all of sentencepiece, torch and transformers"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
"$venv/bin/python" tests/models/models.py "$out/generate" "$out/families"
"$venv/bin/python" tests/models/encoders.py "$out/encode" "$out/encoders"
"$venv/bin/python" tests/models/encoder_texts.py "$out/encode" "$out/texts"
"$venv/bin/python" tests/models/training.py "$out/train" "$out/training"
"$venv/bin/python" tests/models/gradients.py "$out/gradients"
