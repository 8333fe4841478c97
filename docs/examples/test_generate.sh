#!/bin/sh
# test_generate.sh owns the check of generate.c: its logits against a reference in double precision,
# its text, and that bad files and options are refused with a message and exit status 1.
# test_examples.sh runs it: test_generate.sh PROGRAM FOLDER, the built test_generate.c and a folder for files.
set -eu
test=$1
out=$2
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

"$test" "$out" || fail "logits"

# ---- text: as the reference says, and a function of the seed
generate() { "$test" run "$@"; }
grouped="--heads 4 $out/grouped.safetensors"
tied="--heads 3 --rope-base 500000 --rope-type llama3 --rope-factor 8 --rope-low 1 --rope-high 4 \
  --rope-original 64 --eps 1e-6 $out/tied.safetensors"
says() { # words, command
  expected=$1
  shift
  said=$("$@" 2> "$out/message") || fail "$*: $(cat "$out/message")"
  test "$said" = "$expected" || fail "$*: '$said', not '$expected'"
}
# shellcheck disable=SC2086
{
  says "$("$test" greedy grouped 12 "72 105 33")" generate --ids --tokens 12 $grouped "72 105 33"
  says "$("$test" greedy grouped 5 "257 72 105")" \
    generate --ids --bos 257 --tokens 5 $grouped "72,105"
  says "$("$test" greedy tied 9 "5")" generate --ids --tokens 9 $tied "5"
  says "$("$test" greedy tied 9 "5")" generate --ids --workers 3 --tokens 9 $tied "5"
  generate --tokens 5 $grouped "Hi!" > "$out/bytes" || fail "bytes"
  "$test" greedy grouped 5 "72 105 33" | tr ' ' '\n' |
    while read -r byte; do test "$byte" -lt 256 || break; printf "\\$(printf %o "$byte")"; done \
      > "$out/expected"
  echo >> "$out/expected"
  cmp "$out/bytes" "$out/expected" || fail "text of bytes"
  first=$("$test" greedy grouped 1 "72 105 33")
  says "" generate --ids --eos "$first" $grouped "72 105 33"
  draw=$(generate --ids --temperature 1 --seed 3 --tokens 20 $grouped "1")
  says "$draw" generate --ids --temperature 1 --seed 3 --tokens 20 $grouped "1"
  test "$draw" != "$(generate --ids --temperature 1 --seed 4 --tokens 20 $grouped "1")" ||
    fail "seeds 3 and 4 draw alike"
  generate --time --ids $grouped "1 2 3" > "$out/log" 2> "$out/message"
  grep -q '^prefill: 3 tokens in .* tokens/s$' "$out/message" || fail "no time of prefill"
  grep -q '^decode: 127 steps in .* tokens/s$' "$out/message" || fail "no time of decode"
}

# ---- what it must refuse
refuses() { # words of the message, arguments
  words=$1
  shift
  status=0
  generate "$@" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "$*: exit status $status, not 1"
  grep -q "^generate: .*$words" "$out/message" || fail "$*: message '$(cat "$out/message")'"
  test ! -s "$out/log" || fail "$*: printed '$(cat "$out/log")'"
}
spoilt() { # how, tensor, words of the message
  "$test" make "$out/spoilt" grouped "$1" "$2"
  refuses "$3" --heads 4 "$out/spoilt" "Hi"
}
# shellcheck disable=SC2086
{
  refuses 'usage' --heads 4
  refuses 'usage' $grouped a b
  refuses '--heads is missing' "$out/grouped.safetensors" a
  refuses 'no option --head$' --head 4 $grouped a
  refuses "--heads cannot be 'x'" --heads x $grouped a
  refuses "--heads cannot be '0'" --heads 0 $grouped a
  refuses "--rope-type cannot be 'longrope'" --rope-type longrope $grouped a
  refuses 'original_max_position_embeddings must be given' --rope-type yarn $grouped a
  refuses "--tokens cannot be '-1'" --tokens -1 $grouped a
  refuses "--seed cannot be '99999999999999999999'" --seed 99999999999999999999 $grouped a
  refuses "--temperature cannot be 'nan'" --temperature nan $grouped a
  refuses "--temperature cannot be ''" $grouped a --temperature
  refuses '5 heads do not divide the 24 rows' --heads 5 "$out/grouped.safetensors" a
  refuses '8 heads would be 3 numbers wide' --heads 8 "$out/grouped.safetensors" a
  refuses 'do not fit the 12 rows of k_proj' --heads 1 "$out/grouped.safetensors" a
  refuses 'the prompt is empty' $grouped ""
  refuses 'the prompt is empty' --ids $grouped " "
  refuses "'258', which is no number from 0 to 257" --ids $grouped "1 258"
  refuses "'x', which is no number" --ids $grouped "1 x"
  refuses "'-1', which is no number" --ids $grouped "-1"
  refuses 'tokens 0 to 257' --bos 258 $grouped a
  refuses '90 tokens, which are no bytes' $tied a
  refuses 'exceed the context of 10 ' --context 10 --tokens 8 $grouped abc
  refuses 'exceed the context of 2 ' --context 2 --tokens 1 $grouped abc
  refuses 'exceed the context of 2048 ' --tokens 2046 $grouped abc
}
refuses 'No such file' --heads 4 "$out/absent" a
refuses ': ' --heads 4 "$out" a
: > "$out/empty"
refuses 'no 8 bytes' --heads 4 "$out/empty" a
echo 'a file of some other kind' > "$out/other"
refuses 'no safetensors file' --heads 4 "$out/other" a
for size in 100 3000 30000; do
  head -c $size "$out/grouped.safetensors" > "$out/short"
  refuses ': .' --heads 4 "$out/short" a
done
spoilt drop model.embed_tokens.weight "no tensor 'model.embed_tokens.weight'"
spoilt drop model.norm.weight "no tensor 'model.norm.weight'"
spoilt drop model.layers.0.self_attn.q_proj.weight "no tensor 'model.layers.0.self_attn.q_proj"
spoilt drop model.layers.1.mlp.down_proj.weight "no tensor 'model.layers.1.mlp.down_proj.weight'"
spoilt add model.layers.2.mlp.up_proj.weight "no tensor 'model.layers.2.input_layernorm.weight'"
spoilt add model.layers.99999999999999999999.mlp.up_proj.weight 'layers before tensor'
spoilt add model.layers.01.mlp.up_proj.weight 'none of a plain Llama decoder'
spoilt add model.layers.0.self_attn.q_norm.weight 'none of a plain Llama decoder'
spoilt add transformer.wte.weight 'none of a plain Llama decoder'
spoilt add model.layers.0.self_attn.k_proj.bias "has shape \[4\], not \[12\]"
for part in self_attn.v_proj self_attn.o_proj mlp.up_proj mlp.down_proj input_layernorm; do
  spoilt widen model.layers.1.$part.weight "'model.layers.1.$part.weight' has shape"
done
spoilt widen lm_head.weight "'lm_head.weight' has shape \[258, 25\], not \[258, 24\]"
spoilt nan model.norm.weight 'logits are not finite'

test $failures = 0 && echo "generate: all passed"
