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
grouped="$out/grouped"
tied="$out/tied"
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
  echo "{\"eos_token_id\": [257, $first]}" > "$out/grouped/generation_config.json"
  says "" generate --ids $grouped "72 105 33"
  rm "$out/grouped/generation_config.json"
  draw=$(generate --ids --temperature 1 --seed 3 --tokens 20 $grouped "1")
  says "$draw" generate --ids --temperature 1 --seed 3 --tokens 20 $grouped "1"
  test "$draw" != "$(generate --ids --temperature 1 --seed 4 --tokens 20 $grouped "1")" ||
    fail "seeds 3 and 4 draw alike"
  generate --time --ids $grouped "1 2 3" > "$out/log" 2> "$out/message"
  grep -q '^prefill: 3 tokens in .* tokens/s$' "$out/message" || fail "no time of prefill"
  grep -q '^decode: 127 tokens in 127 steps, .* tokens/s$' "$out/message" || fail "no time of decode"
  first=$(generate --ids --tokens 9 --logits "$out/logits" $grouped "72 105 33")
  test "$(wc -c < "$out/logits")" = $((11 * 258 * 4)) || fail "logits of 3 tokens and 8 that were fed back"

  # ---- several texts at once, each as it is alone, in any number of slots and pieces
  : > "$out/prompts"
  : > "$out/alone"
  : > "$out/drawn"
  i=0
  for text in "1 2 3" "200" "7 7 7 7 7 7 7 7 7 7 7 7" "5 4" "250 3 9" "$(seq -s ' ' 150)" "8"; do
    echo "$text" >> "$out/prompts"
    generate --ids --tokens 20 --piece 4 $grouped "$text" >> "$out/alone"
    generate --ids --tokens 20 --piece 4 --temperature 1.5 --top-k 90 --top-p 0.95 --seed $((40 + i)) $grouped "$text" >> "$out/drawn"
    i=$((i + 1))
  done
  for batch in 1 2 3 8; do
    generate --ids --tokens 20 --piece 4 --batch $batch --prompts "$out/prompts" $grouped > "$out/together"
    cmp "$out/alone" "$out/together" || fail "texts in $batch slots"
    generate --ids --tokens 20 --piece 4 --temperature 1.5 --top-k 90 --top-p 0.95 --seed 40 --batch $batch \
      --prompts "$out/prompts" $grouped > "$out/together"
    cmp "$out/drawn" "$out/together" || fail "drawn texts in $batch slots"
  done
  generate --tokens 3 $grouped a b > "$out/together"
  test "$(grep -ac '^=== [12]$' "$out/together")" = 2 || fail "two texts have two headings"

  # ---- text by the model's own tokens: 256 bytes, and two that they join to
  pairs() { # post_processor
    awk -v post="$1" 'BEGIN {
      print "{\"added_tokens\": [], \"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
      print "{\"type\": \"Digits\", \"individual_digits\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false}]},"
      print "\"post_processor\": " post ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"th\": 256, \"12\": 257"
      for (other = 256; i < 256; i++) {
        seen = (i > 32 && i < 127) || (i > 160 && i != 173)
        printf ", \"\\u%04x\": %d\n", (seen ? i : other++), i }
      print "}, \"merges\": [\"t h\", \"1 2\"]}}" }' > $grouped/tokenizer.json
  }
  spelt() { # ids
    for token in $1; do
      case $token in
        256) printf th ;;
        257) printf 12 ;;
        *) printf "\\$(printf %o "$token")" ;;
      esac
    done
    echo
  }
  written() { # ids of the prompt, options and prompt; a letter and its accent are one character, numbers stay apart
    ids=$1
    shift
    spelt "$("$test" greedy grouped 30 "$ids")" > "$out/expected"
    generate --no-eos --tokens 30 "$@" > "$out/text" || fail "$*"
    cmp "$out/text" "$out/expected" || fail "text of $ids"
  }
  accent=$(printf 'e\314\201')
  pairs null
  written "256 101 32 49 50 195 169" $grouped "the 12$accent"
  written "257 256 101" --bos 257 $grouped "the"
  pairs '{"type": "ByteLevel"}'
  written "256 101" $grouped "the"
  mark='{"SpecialToken": {"id": "<s>", "type_id": 0}}'
  text='{"Sequence": {"id": "A", "type_id": 0}}'
  template() { # single
    pairs "{\"type\": \"TemplateProcessing\", \"single\": [$1], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [255]}}}"
  }
  template "$text"
  written "256 101" $grouped "the"
  template "$mark, $text"
  written "255 256 101" $grouped "the"
  written "255" $grouped ""
  written "7 256 101" --bos 7 $grouped "the"
  says "$("$test" greedy grouped 5 "72 105")" generate --no-eos --ids --tokens 5 $grouped "72 105"
  generate --no-eos --tokens 9 --batch 1 $grouped the thth > "$out/together"
  { echo "=== 1"; spelt "$("$test" greedy grouped 9 "255 256 101")"
    echo "=== 2"; spelt "$("$test" greedy grouped 9 "255 256 256")"; } > "$out/expected"
  cmp "$out/together" "$out/expected" || fail "two texts of tokens"
  unread() { # sed script, words of the message
    sed "$1" $grouped/tokenizer.json > "$out/pairs.json"
    cp "$out/pairs.json" $grouped/tokenizer.json
    status=0
    generate $grouped a > "$out/log" 2> "$out/message" || status=$?
    test $status = 1 && grep -q "^generate: .*tokenizer.json: .*$2" "$out/message" || fail "$1: $(cat "$out/message")"
  }
  template "$text, $mark"
  unread 's/x/x/' 'its post_processor does not say what stands before.*; use --ids'
  template "$mark"
  unread 's/x/x/' 'its post_processor does not say what stands before.*; use --ids'
  pairs null
  unread 's/"individual_digits": true/"individual_digits": false/' 'Digits in a form that is not done here'
  pairs null
  unread 's/"Digits"/"Split"/' 'its pre_tokenizer is not one that is done here; use --ids'
  pairs null
  unread 's/"th": 256/"th": 258/' 'it has 259 tokens, the model 258'
  pairs null
  unread 's/^}/]/' 'at byte'
  rm $grouped/tokenizer.json

  # ---- drafts change no token, whoever makes them
  "$test" make "$out/draft" draft
  for drafter in grouped draft; do
    for how in "--draft-tokens 3" "--draft-tokens 5 --draft-width 3 --batch 2" "--one-order --draft-tokens 1 --draft-width 16"; do
      generate --time --ids --tokens 20 --piece 4 --draft "$out/$drafter" $how --prompts "$out/prompts" $grouped \
        > "$out/together" 2> "$out/message"
      cmp "$out/alone" "$out/together" || fail "drafts of $drafter, $how"
      grep -q '^drafts: [0-9]* of [0-9]* drafted' "$out/message" || fail "no count of drafts"
    done
    generate --ids --tokens 20 --piece 4 --temperature 1.5 --top-k 90 --top-p 0.95 --seed 40 --draft "$out/$drafter" \
      --draft-width 2 --prompts "$out/prompts" $grouped > "$out/together"
    cmp "$out/drawn" "$out/together" || fail "drafts of $drafter of drawn texts"
  done
  generate --time --ids --tokens 21 --draft $grouped $grouped "1 2" > "$out/log" 2> "$out/message"
  grep -q '^drafts: 16 of 16 drafted tokens were right, 4.00 a step$' "$out/message" ||
    fail "a model drafts for itself: $(cat "$out/message")"

  # ---- fewer bits: the first tokens are the same where the logits are apart
  for weights in f32 bf16 int8 int4; do
    generate --ids --tokens 20 --weights $weights $tied "5 6" > "$out/$weights" || fail "weights $weights"
  done
  cmp "$out/f32" "$out/bf16" || fail "a bf16 file says something else as f32"

  # ---- products of bf16: logits of a prompt are near
  for how in "" --bf16; do
    generate $how --ids --tokens 1 --logits "$out/logits$how" $tied "5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20" > "$out/log"
    od -An -v -w4 -tf4 "$out/logits$how" > "$out/numbers$how"
  done
  paste "$out/numbers" "$out/numbers--bf16" | awk '
    { d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d; if ($1 > most) most = $1 }
    END { exit !(NR == 16 * 90 && worst < 0.05 * most) }' || fail "logits by products of bf16"
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
  refuses "$3" "$out/spoilt" "Hi"
}
# shellcheck disable=SC2086
{
  refuses 'usage' $grouped
  refuses 'usage'
  refuses 'no option --head$' --head 4 $grouped a
  refuses "--tokens cannot be '-1'" --tokens -1 $grouped a
  refuses "--seed cannot be '99999999999999999999'" --seed 99999999999999999999 $grouped a
  refuses "--temperature cannot be 'nan'" --temperature nan $grouped a
  refuses "--temperature cannot be ''" $grouped a --temperature
  refuses "--top-p cannot be '1.5'" --top-p 1.5 $grouped a
  refuses "--weights cannot be 'int2'" --weights int2 $grouped a
  refuses "--draft-width cannot be '0'" --draft-width 0 $grouped a
  refuses 'they cannot be the same' --draft $tied $grouped a
  refuses 'absent: config.json: No such file' --draft "$out/absent" $grouped a
  refuses 'No such file' --prompts "$out/absent" $grouped
  refuses 'takes one prompt' --logits "$out/logits" $grouped a b
  refuses 'No such file' --logits "$out/absent/logits" --tokens 1 $grouped a
  refuses 'prompt 1 is empty' $grouped ""
  refuses 'prompt 1 is empty' --ids $grouped " "
  refuses "'258', which is no number from 0 to 257" --ids $grouped "1 258"
  refuses "'x', which is no number" --ids $grouped "1 x"
  refuses "'-1', which is no number" --ids $grouped "-1"
  refuses 'tokens 0 to 257' --bos 258 $grouped a
  refuses 'there is no tokenizer.json, and the model has 90 tokens, which are no bytes; use --ids' $tied a
  refuses 'exceed the model.s context of 2048 ' --tokens 2046 $grouped abc
}
refuses 'config.json: No such file' "$out/absent" a
rm -rf "$out/other"
mkdir -p "$out/other"
cp "$out/grouped/config.json" "$out/other/config.json"
refuses 'model.safetensors: No such file' "$out/other" a
: > "$out/other/model.safetensors"
refuses 'no 8 bytes' "$out/other" a
echo 'a file of some other kind' > "$out/other/model.safetensors"
refuses 'no safetensors file' "$out/other" a
for size in 100 3000 30000; do
  head -c $size "$out/grouped/model.safetensors" > "$out/other/model.safetensors"
  refuses ': .' "$out/other" a
done

# ---- configurations
cp "$out/grouped/model.safetensors" "$out/other/model.safetensors"
configured() { # sed script, words of the message
  sed "$1" "$out/grouped/config.json" > "$out/other/config.json"
  refuses "$2" "$out/other" a
}
configured 's/}//' 'config.json: at byte'
configured 's/.*/[1]/' 'config.json:'
configured 's/"llama"/"bert"/' "model_type 'bert' is none of llama"
configured 's/"model_type"/"type"/' "'model_type' is missing"
configured 's/"num_hidden_layers": 2/"num_hidden_layers": 0/' "'num_hidden_layers', at byte"
configured 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "no tensor 'model.layers.2"
configured 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "'model.layers.1.* is none that this model_type has"
configured 's/"num_attention_heads": 4/"num_attention_heads": 5/' 'do not divide 5 heads'
configured 's/"num_attention_heads": 4/"num_attention_heads": 2/' 'has shape \[24, 24\], not \[12, 24\]'
configured 's/"head_dim": 6/"head_dim": 5/' 'pairs rotate, but 5 columns'
configured 's/"vocab_size": 258/"vocab_size": 1e3/' "'vocab_size', at byte"
configured 's/"rms_norm_eps": 1e-05/"rms_norm_eps": "x"/' "'rms_norm_eps', at byte"
configured 's/"tie_word_embeddings": false/"tie_word_embeddings": 0/' "must be true or false"
configured 's/}/, "hidden_act": "mish"}/' "activation 'mish' is not served"
configured 's/}/, "rope_scaling": {"type": "longrope"}}/' "rope_type 'longrope' is not served"
configured 's/}/, "rope_scaling": {"type": "yarn"}}/' 'rope parameters'
configured 's/}/, "rope_scaling": 7}/' 'must be an object'
configured 's/}/, "quantization_config": {}}/' 'quantised checkpoints'
configured 's/}/, "layer_types": ["full_attention"]}/' 'must list the 2 layers'
configured 's/}/, "layer_types": ["full_attention", "chunked_attention"]}/' 'a layer that is not served'
configured 's/}/, "layer_types": ["full_attention", "sliding_attention"]}/' "has a layer that is not served"
cp "$out/grouped/config.json" "$out/other/config.json"
indexed() { # index, words of the message
  printf '%s' "$1" > "$out/other/model.safetensors.index.json"
  refuses "$2" "$out/other" a
}
rm -f "$out/other/model.safetensors"
indexed '{"weight_map": {"model.norm.weight": "model.safetensors"' 'index.json: at byte'
indexed '{}' 'has no weight_map'
indexed '{"weight_map": {}}' 'names no file'
indexed '{"weight_map": {"a": 1}}' 'a file.s name must stand'
indexed '{"weight_map": {"a": "../grouped/model.safetensors"}}' 'cannot be in the folder'
indexed '{"weight_map": {"a": "absent.safetensors"}}' 'absent.safetensors: No such file'
rm "$out/other/model.safetensors.index.json"

# ---- tensors
spoilt drop model.embed_tokens.weight "no tensor 'model.embed_tokens.weight'"
spoilt drop model.norm.weight "no tensor 'model.norm.weight'"
spoilt drop model.layers.0.self_attn.q_proj.weight "no tensor 'model.layers.0.self_attn.q_proj"
spoilt drop model.layers.1.mlp.down_proj.weight "no tensor 'model.layers.1.mlp.down_proj.weight'"
spoilt add model.layers.2.mlp.up_proj.weight 'is none that this model_type has'
spoilt add model.layers.01.mlp.up_proj.weight 'is none that this model_type has'
spoilt add model.layers.0.self_attn.q_norm.weight 'is none that this model_type has'
spoilt add transformer.wte.weight 'is none that this model_type has'
spoilt add model.layers.0.self_attn.k_proj.bias "has shape \[4\], not \[12\]"
for part in self_attn.v_proj self_attn.o_proj mlp.up_proj mlp.down_proj input_layernorm; do
  spoilt widen model.layers.1.$part.weight "'model.layers.1.$part.weight' has shape"
done
spoilt widen lm_head.weight "'lm_head.weight' has shape \[258, 25\], not \[258, 24\]"
spoilt nan model.norm.weight 'logits are not finite'

test $failures = 0 && echo "generate: all passed"
