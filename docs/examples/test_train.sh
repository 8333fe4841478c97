#!/bin/sh
# test_train.sh owns the check of train.c: its gradients against differences, that it learns, that threads,
# interruptions and instruction sets change no bit, that generate.c reads what it makes, and that what cannot be trained is
# refused with a message and exit status 1.
# test_examples.sh runs it: test_train.sh PROGRAM GENERATE FOLDER, the built test_train.c and test_generate.c.
set -eu
test=$1
generate=$2
out=$3
failures=0

fail() {
  echo "FAILED: train: $*" >&2
  failures=$((failures + 1))
}
train() { "$test" run "$@"; }

mkdir -p "$out"
"$test" "$out" || fail "gradients"

# ---- it learns, and the bits are the same however it runs
text=$out/text
i=0
while test $i -lt 500; do
  echo "the cat number $((i * 7 % 10)) sat on the mat $((i % 10)), and the dog saw it; " && i=$((i + 1))
done > "$text"
sizes="--width 24 --layers 2 --heads 2 --kv-heads 1 --hidden 40 --batch 4 --length 48 --steps 150 --every 50 --rate 0.01"
run() { # folder, options
  folder=$1
  shift
  # shellcheck disable=SC2086
  train $sizes "$@" "$out/$folder" "$text" > "$out/$folder.log" 2> "$out/$folder.message" ||
    fail "$folder: $(cat "$out/$folder.message")"
}
same() {
  for file in model checkpoint; do
    cmp "$out/$1/$file.safetensors" "$out/$2/$file.safetensors" || fail "$2 is not $1, bit for bit"
  done
  cmp "$out/$1/loss.svg" "$out/$2/loss.svg" || fail "$2's picture is not $1's"
}
run one --workers 1 --prompt "the cat "
awk '/held out [0-9]/ { n++; last = $0; sub(/.*held out /, "", last); split(last, x, " "); if (n == 1) first = x[1] }
  END { exit !(n == 4 && first > 5 && x[1] < 1.5) }' "$out/one.log" || fail "it learned nothing: $(cat "$out/one.log")"
grep -q '^the cat ' "$out/one.log" || fail "it wrote nothing"
for workers in 2 3; do
  run "workers$workers" --workers $workers --write 0
  same one "workers$workers"
done
for isa in avx2 avx512 neon; do
  if ATTN_ISA=$isa train --write 0 --steps 1 --batch 1 --length 8 --width 2 --heads 1 --kv-heads 1 "$out/isa" "$text" \
    > "$out/log" 2>&1; then
    ATTN_ISA=$isa run "$isa" --write 0
    same one "$isa"
  fi
done
run halves --workers 2 --stop 17
test -s "$out/halves/checkpoint.safetensors" || fail "there is no checkpoint"
grep -q '^stopped after step 17; --resume goes on$' "$out/halves.log" || fail "it did not stop: $(cat "$out/halves.log")"
run halves --resume --write 0
same one halves

# ---- ^C: what is there by then goes on, too
# shellcheck disable=SC2086
"$test" run $sizes --steps 100000 "$out/killed" "$text" > "$out/killed.log" 2>&1 &
pid=$!
waited=0
until test -s "$out/killed/checkpoint.safetensors" || test $waited -ge 60; do sleep 1 && waited=$((waited + 1)); done
kill -INT $pid 2> "$out/log" || fail "it ended before it was stopped: $(cat "$out/killed.log")"
wait $pid || fail "stopped, it says it failed: $(cat "$out/killed.log")"
step=$(sed -n 's/^stopped after step \([0-9]*\);.*/\1/p' "$out/killed.log")
test "${step:-0}" -ge 10 || fail "it was stopped at no step: $(cat "$out/killed.log")"
run killed --steps 100000 --resume --stop $((step + 3))
run whole --steps 100000 --stop $((step + 3))
cmp "$out/killed/model.safetensors" "$out/whole/model.safetensors" || fail "stopped by ^C and resumed is not the whole"

# ---- what is made is a model: generate.c writes on, and training goes on from it
"$generate" run --tokens 20 "$out/one" "the cat" > "$out/log" 2> "$out/message" || fail "generate: $(cat "$out/message")"
grep -q '[a-z]' "$out/log" || fail "generate wrote '$(cat "$out/log")'"
run tuned --from "$out/one" --rate 0.001 --steps 20 --write 0
awk '/held out [0-9]/ { sub(/.*held out /, ""); if (!n++) exit !($1 < 1.5) }' "$out/tuned.log" ||
  fail "it did not begin with the model: $(cat "$out/tuned.log")"
run sparse --from "$out/one" --window 8 --globals 2 --rate 0.001 --steps 20 --write 0
cmp -s "$out/sparse/model.safetensors" "$out/tuned/model.safetensors" && fail "a window changed nothing"
run gradients --gradients
test -s "$out/gradients/gradients.safetensors" || fail "no gradients were written"

# ---- what it must refuse
refuses() { # words of the message, arguments
  words=$1
  status=0
  shift
  train "$@" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "$*: exit status $status, not 1"
  grep -q "^train: .*$words" "$out/message" || fail "$*: message '$(cat "$out/message")'"
}
new=$out/new
refuses 'usage' "$new"
refuses 'no option --nothing' --nothing "$new" "$text"
refuses "\-\-steps cannot be '0'" --steps 0 "$new" "$text"
refuses "\-\-steps cannot be '1.5'" --steps 1.5 "$new" "$text"
refuses "\-\-rate cannot be 'x'" --rate x "$new" "$text"
refuses "\-\-rate cannot be ''" "$new" "$text" --rate
refuses 'must divide' --width 30 --heads 4 "$new" "$text"
refuses 'must divide' --width 32 --heads 4 --kv-heads 3 "$new" "$text"
refuses 'globals must be less' --length 8 --globals 8 --window 2 "$new" "$text"
refuses 'No such file' "$new" "$out/absent"
refuses 'No such file' "$out/absent/new" "$text"
refuses 'it cannot be read' "$new" "$out"
printf 'too short' > "$out/short"
refuses 'too few' "$new" "$out/short"
refuses 'No such file' --from "$out/absent" "$new" "$text"
refuses 'config.json: No such file' --resume "$out/fresh" "$text"
# shellcheck disable=SC2086
{
  refuses 'another training: --seed' $sizes --resume --seed 1 "$out/one" "$text"
  refuses 'another training: --rate' $sizes --resume --rate 0.03 "$out/one" "$text"
  refuses 'another training: the texts' $sizes --resume "$out/one" "$text" "$text"
  refuses 'halves has another --hidden: 40' $sizes --resume --hidden 44 "$out/halves" "$text"
  refuses 'one has another --layers: 2' $sizes --from "$out/one" --layers 3 "$new" "$text"
  cp "$out/isa/checkpoint.safetensors" "$out/tuned"
  refuses 'no checkpoint of this model' --steps 1 --batch 1 --length 8 --resume "$out/tuned" "$text"
  rm "$out/tuned/checkpoint.safetensors"
  refuses 'checkpoint.safetensors: No such file' --resume "$out/tuned" "$text"
  head -c 5000 "$out/one/checkpoint.safetensors" > "$out/halves/checkpoint.safetensors"
  refuses 'halves/checkpoint.safetensors: ' $sizes --resume "$out/halves" "$text"
}
mkdir -p "$out/gemma"
sed 's/"llama"/"gemma2"/; s/"hidden_act"/"hidden_activation"/' "$out/one/config.json" > "$out/gemma/config.json"
cp "$out/one/model.safetensors" "$out/gemma"
refuses "'gemma2' is not trained here" --from "$out/gemma" "$new" "$text"
refuses "context is 1024 tokens" --from "$out/one" --length 1025 "$new" "$text"


# ---- what was refused has changed nothing in a folder that there was
before=$(cat "$out/one"/*.json "$out/one"/*.safetensors | cksum)
refuses 'No such file' "$out/one" "$out/absent"
refuses 'No such file' --from "$out/absent" "$out/one" "$text"
refuses 'another training' --resume "$out/one" "$text"
refuses 'too few' "$out/one" "$out/short"
test "$(cat "$out/one"/*.json "$out/one"/*.safetensors | cksum)" = "$before" || fail "what was refused left a trace"

test $failures = 0 && echo "train: all passed"
