#!/bin/sh
# test_encode.sh owns the check of the sentence encoder: tokens of known strings, every layer of a model
# of random numbers against float64, sentences in a batch against the same alone, and what must be
# refused with a message and exit status 1. Run from the root; test_examples.sh calls it.
#   test_encode.sh ENCODE TEST_ENCODE FOLDER   the two programs, and a folder to write to
set -eu
encode=$1 helper=$2 out=$3
sizes="3 24 3 40 32 70" # layers, width, heads, inner width, positions, vocabulary
failures=0
LC_ALL=C
export LC_ALL

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

for type in F32 F16 BF16; do
  rm -rf "$out/$type"
  mkdir -p "$out/$type"
  "$helper" make "$out/$type" $type $sizes
done
model=$out/F32/model.safetensors vocab=$out/F32/vocab.txt

run() { "$encode" --heads 3 --vocab "$vocab" "$@"; }

# ---- tokens
tokens() { # text, its tokens between [CLS] and [SEP]
  got=$(run --tokens "$model" "$1" 2>&1) || :
  test "$got" = "tokens 0 [CLS]$2 [SEP]" || fail "tokens of '$1': $got"
}
tokens '' ''
tokens '   	 ' ''
tokens 'UNwant\low' ' un ##want [UNK] low' # a backslash is punctuation
tokens "$(printf 'UNwant\303\251d,running')" ' un ##want ##ed , runn ##ing'
tokens 'unaffable' ' un ##aff ##able'
tokens 'The cats sat, on the MAT!' ' the cat ##s sat , on the mat !'
tokens 'lowest lower low' ' lowest low ##er low'
tokens "$(printf 'Caf\303\251 cafe\314\201')" ' cafe cafe'
tokens "$(printf '\303\234ber \303\234BER')" ' uber uber'
tokens "$(printf '\316\243\316\277\317\206\317\214\317\203')" "$(printf ' \317\203\316\277\317\206\316\277\317\203')"
tokens "$(printf '\320\234\320\270\320\240')" "$(printf ' \320\274\320\270\321\200')"
tokens "$(printf 'a\344\270\255\346\226\207b\343\200\202')" "$(printf ' a \344\270\255 \346\226\207 b \343\200\202')"
tokens "$(printf '\355\225\234')" "$(printf ' \341\204\222 ##\341\205\241 ##\341\206\253')"
tokens "$(printf '\342\202\254 \342\200\224a\342\200\224 \360\237\230\200')" \
  "$(printf ' \342\202\254 \342\200\224 a \342\200\224 \360\237\230\200')"
tokens "$(printf 'a\302\240b\343\200\200c\342\200\213d')" ' a b [UNK]' # no-break and wide space; width 0
tokens "$(printf 'a\001\357\277\275b\302\255')" ' a ##b'
tokens '[MASK] $a' ' [ mask ] $ a'
tokens 'aaabbb aaaz' ' a ##a ##a ##b ##b ##b [UNK]'
long=$(printf 'a%.0s' 1 2 3 4 5 6 7 8 9 10)
long=$long$long$long$long$long$long$long$long$long$long
got=$(run --tokens "$model" "${long}a" "$(printf '\303\240%s' "${long#a}")" 2> "$out/message")
test "$got" = "tokens 0 [CLS] [UNK] [SEP]
tokens 1 [CLS] a$(printf ' ##a%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 \
  27 28 29) [SEP]" || fail "long words: $got"
grep -q 'sentence 2 has 102 tokens, of which 32 are read' "$out/message" || fail "nobody was told of the cut"

# ---- every layer, in every type and on every tier
set -- 'The cat sat on the mat.' 'a' '' 'UNAFFABLE dogs; un-wanted, running cats, $ a b c d [MASK]?' \
  'lower and lowest'
for type in F32 F16 BF16; do
  for tier in auto scalar avx2 avx512 neon; do
    status=0
    ATTN_ISA=$tier run --layers "$out/$type/model.safetensors" "$@" > "$out/rows" \
      2> "$out/message" || status=$?
    if [ $status != 0 ]; then
      # a word of the other processor family is refused
      grep -q 'ATTN_ISA' "$out/message" || fail "$type $tier: $(cat "$out/message")"
      continue
    fi
    "$helper" check $sizes < "$out/rows" > "$out/log" || fail "$type on $tier"
    echo "encode $type $tier: $(cat "$out/log")"
    # a NaN anywhere must be found: here at the first number of a row in the middle
    awk '/^row/ && ++n == 9 { $5 = "nan" } 1' "$out/rows" > "$out/nan"
    if "$helper" check $sizes < "$out/nan" > "$out/log" 2>&1; then fail "the check took a NaN"; fi
  done
done

# ---- pairs: the second text has the other token type
run --layers --pairs "$model" 'The cat sat' 'on the mat.' '' '' un 'lower and lowest' > "$out/rows"
"$helper" check $sizes < "$out/rows" > "$out/log" || fail "pairs"
got=$(run --tokens --pairs "$model" 'the cat' 'a dog' '' a)
test "$got" = 'tokens 0 [CLS] the cat [SEP] | a dog [SEP]
tokens 1 [CLS] [SEP] | a [SEP]' || fail "pairs: $got"
got=$(run --tokens --pairs --max 8 "$model" 'the cat sat on' 'a dog' 2> "$out/message")
test "$got" = 'tokens 0 [CLS] the cat sat [SEP] | a dog [SEP]' || fail "a pair that is cut: $got"
grep -q 'sentence 1 has 9 tokens, of which 8 are read' "$out/message" || fail "nobody was told of the cut of a pair"

# ---- a batch is what its sentences are alone
run --vectors "$model" "$@" > "$out/batch"
for sentence in "$@"; do run --vectors "$model" "$sentence"; done > "$out/alone"
"$helper" same "$out/batch" "$out/alone" $sizes || fail "a batch is not what its sentences are alone"
run "$model" "$@" > "$out/cosines"
awk '$NR != "1.0000" { exit 1 } END { if (NR != 5) exit 1 }' "$out/cosines" || fail "a sentence is not like itself"
run --bf16 "$model" "$@" > "$out/bf16" || fail "--bf16"
paste "$out/cosines" "$out/bf16" | awk '{ for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d * d > 4e-4) exit 1 } }' ||
  fail "cosines by products of bf16"

# ---- texts from the standard input, as numbers, and more of them than go together
printf '%s\n' "$@" | run --vectors "$model" | cmp - "$out/batch" || fail "texts from the standard input"
run --layers --pairs "$model" 'the cat' 'a dog' | grep '^vector' > "$out/pair"
ids=$(run --layers --pairs "$model" 'the cat' 'a dog' | sed -n 's/^tokens 0 //p')
"$encode" --heads 3 --ids --vectors "$model" "$ids" | cmp - "$out/pair" || fail "a pair as numbers"
n=0
while [ $n -lt 33 ]; do
  echo 'The cat sat'
  echo "a dog$(printf ' a%.0s' $(seq $((n % 7 + 1))))"
  n=$((n + 1))
done > "$out/many"
run --vectors "$model" < "$out/many" > "$out/all"
i=0
while read -r sentence; do
  run --vectors "$model" "$sentence" | sed "s/^vector 0/vector $i/"
  i=$((i + 1))
  test $i -lt 16 || break
done < "$out/many" > "$out/first"
head -n 16 "$out/all" > "$out/head"
"$helper" same "$out/head" "$out/first" $sizes || fail "many texts"
test "$(wc -l < "$out/all")" = 66 || fail "many texts: $(wc -l < "$out/all") vectors"

# ---- the mean, the first and the largest of the rows, and the attention
for pool in mean cls max; do
  { run --layers --pool $pool "$model" 'the cat sat on' | grep '^row 0 3 '
    run --vectors --pool $pool "$model" 'the cat sat on'; } | awk -v pool=$pool '
    $1 == "row" { for (c = 5; c <= NF; c++) {
      if (pool == "mean") x[c] += $c
      if (pool == "cls" && !n) x[c] = $c
      if (pool == "max" && (!n || $c > x[c])) x[c] = $c }
      n++ }
    $1 == "vector" { for (c = 5; c <= NF; c++) square += x[c] ^ 2
      for (c = 5; c <= NF; c++) { d = x[c] / sqrt(square) - $c; if (d > 1e-6 || d < -1e-6) exit 1 }
      seen = NF }
    END { if (n != 6 || seen != 28) exit 1 }' || fail "--pool $pool"
done
run --map 2 "$model" 'the cat' a | awk '{ sum = 0; for (c = 5; c <= NF; c++) sum += $c
  if (sum < 0.999999 || sum > 1.000001 || NF != 4 + ($2 ? 3 : 4)) exit 1 }
  END { if (NR != 3 * 4 + 3 * 3) exit 1 }' || fail "--map"

# ---- a folder: its config.json says what the tensors do not
"$encode" --vectors "$out/F32" "$@" | cmp - "$out/batch" || fail "a folder"
config=$out/F32/config.json
mkdir -p "$out/folder"
cp "$model" "$vocab" "$out/folder"
sed 's/"num_attention_heads": 3/"num_attention_heads": 4/' "$config" > "$out/folder/config.json"
if "$encode" --vectors "$out/folder" "$@" | cmp -s - "$out/batch"; then fail "heads of config.json are not read"; fi
"$encode" --heads 3 --vectors "$out/folder" "$@" | cmp - "$out/batch" || fail "--heads"
sed 's/1e-12/0.5/; s/"gelu"/"relu"/' "$config" > "$out/folder/config.json"
"$encode" --eps 1e-12 --activation gelu --vectors "$out/folder" "$@" | cmp - "$out/batch" || fail "--eps and --activation"
for option in '--eps 1e-12' '--activation gelu'; do
  # shellcheck disable=SC2086
  if "$encode" $option --vectors "$out/folder" "$@" | cmp -s - "$out/batch"; then fail "more than $option is read"; fi
done

"$encode" --families | grep -q '^  deberta-v2 ' || fail "--families"

# ---- the clock: a line a tier
run --time "$model" > "$out/log" || fail "--time"
grep -q '^scalar  *[1-9][0-9]* tokens/s, ' "$out/log" || fail "--time: $(cat "$out/log")"

# ---- a whole model, whose encoder's tensors have a name before theirs
mkdir -p "$out/whole"
"$helper" whole "$out/whole" F32 $sizes
run --vectors "$out/whole/model.safetensors" "$@" | cmp - "$out/batch" || fail "the names of a whole model"

# ---- norms whose gains and biases are called gamma and beta
mkdir -p "$out/gamma"
"$helper" gamma "$out/gamma" F32 $sizes
run --vectors "$out/gamma/model.safetensors" "$@" | cmp - "$out/batch" || fail "gamma and beta"

# ---- what must be refused
refuses() { # words of the message, then the arguments
  words=$1
  shift
  status=0
  run "$@" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "'$words': exit status $status, not 1"
  grep -q "^encode: .*$words" "$out/message" || fail "'$words': message '$(cat "$out/message")'"
}
edited() { # sed script, words of the message: a model with other bytes in its header
  sed "$1" "$model" > "$out/bad.safetensors"
  if cmp -s "$model" "$out/bad.safetensors"; then fail "$1 changes nothing"; fi
  refuses "$2" "$out/bad.safetensors" a
}
header() { # JSON, bytes of numbers, words of the message: a file of this header
  {
    printf "\\$(printf '%03o' $((${#1} % 256)))\\$(printf '%03o' $((${#1} / 256)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$1"
    head -c "$2" /dev/zero
  } > "$out/bad.safetensors"
  refuses "$3" "$out/bad.safetensors" a
}
one='"shape":[1],"data_offsets":[0,4]'

refuses 'No such file' "$out/absent" a
refuses 'No such file' --vocab "$out/absent" "$model" a
refuses 'config.json: No such file' "$out" a
refuses 'directory' --vocab "$out" "$model" a
refuses 'usage'
refuses 'no such option' --frobnicate "$model" a
refuses 'a number of 1 or more' --max 0 "$model" a
refuses 'a number of 1 or more' --max 99999999999999999999 "$model" a
refuses 'a number of 1 or more' --heads
refuses '2 tokens are the least' --max 1 "$model" a
refuses 'cannot be cut into 5 heads' --heads 5 "$model" a

refuses 'usage' "$model" < /dev/null
refuses 'even number' --pairs "$model" a
refuses '3 tokens are the least' --pairs --max 2 "$model" a b
refuses 'mean, cls or max' --pool middle "$model" a
refuses 'fewer layers' --map 4 "$model" a
refuses 'a number above 0' --eps -1 "$model" a
refuses "activation 'mish' is not one" --activation mish "$model" a
refuses 'a word must follow' --activation
refuses 'makes a pair' --ids --pairs "$model" 1
refuses 'no token 70' --ids "$model" '1 70'
refuses 'no token -1' --ids "$model" -1
refuses 'byte 2 must begin' --ids "$model" '1 x'
refuses 'byte 2 must begin' --ids "$model" '1 99999999999999999999'
refuses 'byte 4 must begin' --ids "$model" '1 | | 2'
refuses 'byte 0 must begin' --ids "$model" '| 2'
refuses '1 token at least' --ids "$model" ''

# a config.json that is none, or that is no such model's
configured() { # sed script, words of the message
  sed "$1" "$config" > "$out/folder/config.json"
  if cmp -s "$config" "$out/folder/config.json"; then fail "$1 changes nothing"; fi
  refuses "$2" "$out/folder" a
}
configured 's/,$//' 'config.json: at byte [0-9]*: '
configured '2,$d; s/{/[]/' 'config.json: it holds no object'
configured 's/"bert"/"gpt2"/' "model_type 'gpt2' is not one"
configured 's/"bert"/7/' 'model_type must be a string'
configured '/model_type/d' "model_type '' is not one"
configured 's/"bert"/"distilbert"/' 'n_layers is missing or no number of layers'
configured 's/"bert"/"modernbert"/' "no tensor 'embeddings.tok_embeddings.weight'"
configured 's/"hidden_size": 24/"hidden_size": 48/' 'hidden_size is 48, but the tensors have 24'
configured 's/"intermediate_size": 40/"intermediate_size": 41/' 'intermediate_size is 41'
configured 's/"vocab_size": 70/"vocab_size": 71/' 'vocab_size is 71'
configured 's/embeddings": 32/embeddings": 31/' 'max_position_embeddings is 31'
configured 's/"type_vocab_size": 2/"type_vocab_size": 3/' 'has shape \[2, 24\], not \[3, 24\]'
configured 's/layers": 3/layers": 4/' "no tensor 'encoder.layer.3"
configured 's/layers": 3/layers": 2/' "tensor 'encoder.layer.2.*' belongs to no bert of these sizes"
configured 's/layers": 3/layers": 0/' 'num_hidden_layers is missing or no number'
configured 's/layers": 3/layers": 1001/' 'num_hidden_layers is missing or no number'
configured 's/layers": 3/layers": 3.5/' 'num_hidden_layers must be a whole number'
configured 's/1e-12/-1/' 'layer_norm_eps must be a number above 0'
configured 's/1e-12/"small"/' 'layer_norm_eps must be a number above 0'
configured 's/"gelu"/"mish"/' "the activation 'mish' is not one"
configured 's/"gelu"/null, "is_decoder": true/' 'this is no encoder alone'
configured 's/"gelu"/null, "position_embedding_type": "relative_key"/' "'relative_key' is not computed here"
sed 's/"num_attention_heads": 3/"num_attention_heads": 5/' "$config" > "$out/folder/config.json"
status=0
"$encode" "$out/folder" a 2> "$out/message" || status=$?
test $status = 1 && grep -q 'cannot be cut into 5 heads' "$out/message" || fail "5 heads: $(cat "$out/message")"

# a file that ends early, anywhere
size=$(wc -c < "$model")
for length in 0 7 8 9 1000 $((size - 1)); do
  head -c "$length" "$model" > "$out/bad.safetensors"
  refuses 'cut short\|8 bytes\|lies at bytes' "$out/bad.safetensors" a
done
{ cat "$model"; printf x; } > "$out/bad.safetensors"
refuses 'belong to no tensor' "$out/bad.safetensors" a
printf '\377\377\377\377\377\377\377\377{}' > "$out/bad.safetensors"
refuses 'no safetensors file' "$out/bad.safetensors" a
cp "$vocab" "$out/bad.safetensors"
refuses 'no safetensors file' "$out/bad.safetensors" a
printf '\003\000\000\000\000\000\000\000{}\000' > "$out/bad.safetensors"
refuses 'a zero byte' "$out/bad.safetensors" a

# weights that are NaN, and an output that is full
{ head -c $((size - 4)) "$model"; printf '\377\377\377\377'; } > "$out/bad.safetensors"
refuses 'not finite' "$out/bad.safetensors" a
if [ -c /dev/full ]; then
  status=0
  run "$model" a > /dev/full 2> "$out/message" || status=$?
  test $status = 1 && grep -q 'could not be written' "$out/message" || fail "a full output: status $status"
fi

# a tensor that is not what it must be
edited 's/word_embeddings.weight/word_embeddings.mutton/' "no tensor 'embeddings.word_embeddings.weight'"
edited 's/layer.1.output.dense.bias/layer.1.output.dense.bile/' "no tensor 'encoder.layer.1.output.dense.bias'"
edited 's/layer.2.attention.self.query.weight/layer.2.attention.self.Query.weight/' "layer.2.attention.self.query.weight'"
edited 's/layer.2.attention.self.query.bias/layer.9999999.tio.self.query.bias/' 'is of no layer'
edited 's/"dtype":"F32","shape":\[2,24\]/"dtype":"I32","shape":[2,24]/' 'has type I32'
edited 's/"dtype":"F32","shape":\[2,24\]/"dtype":"F64","shape":[1,24]/' 'has type F64'
edited 's/"dtype":"F32","shape":\[2,24\]/"dtype":"Q32","shape":[2,24]/' "unknown type 'Q32'"
edited 's/"shape":\[24,40\]/"shape":[40,24]/' 'has shape \[40, 24\], not \[24, 40\]'
edited 's/"shape":\[32,24\]/"shape":[32,25]/' 'has 3072 bytes, but its shape asks for 3200'
edited 's/"shape":\[40\]/"shape":[41]/' 'has 160 bytes'
edited 's/\[6720,9792\]/[6719,9791]/' 'overlaps the one before'
edited 's/\[9792,9984\]/[9793,9985]/' 'leaves a gap'
edited 's/\[9792,9984\]/[-792,9984]/' 'a whole number of 0 or more'
edited 's/\[9792,9984\]/[9984,9792]/' 'lies at bytes 9984 to 9792'
edited 's/\[9792,9984\]/[9792,9.5e4]/' 'a whole number of 0 or more'
header '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,99]}}' 4 'lies at bytes 0 to 99'
header '{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}' 0 'shape .* too large'
header '{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}' 4 'number is too large'
header '{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}' 4 'too many numbers'
header '{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}' 2 'its shape asks for'
header "{\"a\":{\"dtype\":\"F32\",$one},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}" 8 "two tensors 'a'"
header "{\"a\":{$one}}" 4 'takes dtype, shape'
header "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",$one}}" 4 'comes twice'

# JSON that is none
header '' 0 'it must begin with {'
header '[]' 0 'it must begin with {'
header '{}' 0 'no tensor'
header '{} {}' 0 'something follows'
header '{"a"}' 0 'must be followed by :'
header '{"a":7}' 0 'a tensor must be an object'
header "{\"a\":{\"dtype\":\"F32\",$one},}" 4 'a string must stand here'
header "{\"a\":{\"dtype\":\"F32\",$one" 4 'must go on with , or end'
header "{\"a" 4 'ends within a string'
header "{\"a\\" 4 'unknown escape'
header "{\"\\u00" 4 'four hexadecimal digits'
header "{\"\\ud800\":{\"dtype\":\"F32\",$one}}" 4 'surrogate'
header "{\"\\u0000\":{\"dtype\":\"F32\",$one}}" 4 'u0000'
header "{\"\\n\":{\"dtype\":\"F32\",$one}}" 4 'control character'
header "{\"\\u009b\":{\"dtype\":\"F32\",$one}}" 4 'control character'
header "{\"a\":{\"dtype\":\"\\u001b[31m\",$one}}" 4 'control character'
header "{\"a\":{\"dtype\":\"F32\",\"notes\":,$one}}" 4 'a value must stand here'
deep=$(printf '[%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20)
header "{\"__metadata__\":$deep$deep$deep" 0 'nested too deeply'

# vocabularies
sed '/\[CLS\]/d' "$vocab" > "$out/bad.txt"
refuses 'has no \[CLS\]' --vocab "$out/bad.txt" "$model" a
sed '/\[UNK\]/d' "$vocab" > "$out/bad.txt"
refuses 'has no \[UNK\]' --vocab "$out/bad.txt" "$model" a
: > "$out/bad.txt"
refuses 'has no \[CLS\]' --vocab "$out/bad.txt" "$model" a
printf '[CLS]\n\377\n' > "$out/bad.txt"
refuses 'line 2 is not UTF-8' --vocab "$out/bad.txt" "$model" a
printf '[CLS]\n\000\n' > "$out/bad.txt"
refuses 'a zero byte' --vocab "$out/bad.txt" "$model" a
cat "$vocab" "$vocab" > "$out/bad.txt"
refuses "longer than the model.s" --vocab "$out/bad.txt" "$model" a
awk '{ printf "%s\r\n", $0 }' "$vocab" > "$out/dos.txt"
got=$(run --tokens --vocab "$out/dos.txt" "$model" 'the cat')
test "$got" = 'tokens 0 [CLS] the cat [SEP]' || fail "lines that end with CR: $got"

# ---- other vocabularies: the same pieces in a tokenizer.json, letters with their case, byte pairs, SentencePiece
mkdir -p "$out/other"
cp "$vocab" "$out/other"
echo '{"do_lower_case": false}' > "$out/other/tokenizer_config.json"
got=$(run --tokens --vocab "$out/other/vocab.txt" "$model" 'the Cat cat')
test "$got" = 'tokens 0 [CLS] the [UNK] cat [SEP]' || fail "letters with their case: $got"
{
  echo '{"normalizer": {"type": "BertNormalizer", "lowercase": true}, "pre_tokenizer": {"type": "BertPreTokenizer"},'
  echo '"model": {"type": "WordPiece", "vocab": {'
  sed 's/["\\]/\\&/g' "$vocab" | awk '{ printf "%s\"%s\": %d\n", (NR > 1 ? "," : ""), $0, NR - 1 }'
  echo '}}}'
} > "$out/other/tokenizer.json"
got=$(run --tokens --vocab "$out/other/tokenizer.json" "$model" 'The cats "unaffable"')
test "$got" = 'tokens 0 [CLS] the cat ##s " un ##aff ##able " [SEP]' || fail "a tokenizer.json of WordPiece: $got"
sed 's/: 5$/: 4/' "$out/other/tokenizer.json" > "$out/other/bad.json"
refuses 'does not number its pieces' --vocab "$out/other/bad.json" "$model" a
sed 's/BertPreTokenizer/Whitespace/' "$out/other/tokenizer.json" > "$out/other/bad.json"
refuses 'normalizer or pre_tokenizer' --vocab "$out/other/bad.json" "$model" a
sed 's/"lowercase": true/"lowercase": true, "strip_accents": false/' "$out/other/tokenizer.json" > "$out/other/bad.json"
refuses 'strip_accents' --vocab "$out/other/bad.json" "$model" a
awk 'BEGIN {
  printf "{\"added_tokens\": [{\"id\": 262, \"content\": \"<m>\", \"lstrip\": true}],\n"
  print "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
  print "\"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"<s>\", 0], \"sep\": [\"</s>\", 1]},"
  print "\"model\": {\"type\": \"BPE\", \"vocab\": {\"<s>\": 0, \"</s>\": 1"
  for (other = 256; i < 256; i++) {
    seen = (i > 32 && i < 127) || (i > 160 && i != 173)
    printf ", \"\\u%04x\": %d\n", (seen ? i : other++), i + 2 }
  print ", \"th\": 258, \"the\": 259, \"\\u0120the\": 260, \"he\": 261},"
  print "\"merges\": [\"h e\", [\"t\", \"he\"], \"\\u0120 the\", \"t h\"]}}" }' > "$out/other/pairs.json"
"$helper" make "$out/other" F32 3 24 3 40 32 300
got=$("$encode" --tokens --vocab "$out/other/pairs.json" "$out/other" "the  the th's <m>x")
test "$got" = "tokens 0 <s> the $(printf '\304\240') $(printf '\304\240')the $(printf '\304\240') th ' s <m> x </s>" || fail "byte pairs: $got"
misread() { # sed script, words of the message
  sed "$1" "$out/other/pairs.json" > "$out/other/bad.json"
  if cmp -s "$out/other/pairs.json" "$out/other/bad.json"; then fail "$1 changes nothing"; fi
  refuses "$2" --vocab "$out/other/bad.json" "$out/other" a
}
misread 's/"BPE"/"Unigram"/' 'its model is not BPE'
misread 's/"merges"/"purges"/' 'its model is not BPE'
misread 's/"ByteLevel"/"Whitespace"/' 'its pre_tokenizer is not one'
misread 's/"pre_tokenizer"/"post_tokenizer"/' 'it has no pre_tokenizer'
misread 's/"pre_tokenizer"/"normalizer": {"type": "Lowercase"}, "pre_tokenizer"/' 'its normalizer is not one'
misread 's/false}/false, "use_regex": false}/' 'another pattern'
misread 's/"lstrip"/"single_word"/' 'single_word, which is not done'
misread 's/"id": 262/"id": -1/' 'added_tokens has no number'
misread 's/\["<s>", 0\]/["<s>", 999]/' 'what stands before and behind'
misread 's/"RobertaProcessing"/"None"/' 'what stands before and behind'
misread 's/": 66$/": 67/' "another token's"
misread 's/", "\\u0041": 67/, "AA": 67/; s/"\\u0041"/"AA"/' 'no token for each byte'
misread 's/"h e"/"he"/' 'no pair'
misread 's/"h e"/"h eee"/' 'is one of no tokens'
misread 's/"type": "BPE"/"type": "BPE", "end_of_word_suffix": "w"/' 'end_of_word_suffix is not done'
piece() { # text, its bytes and those with 9 more in octal, score, type
  printf "\\012\\$3\\012\\$2%s\\025$4\\030\\00$5" "$1"
}
under=$(printf '\342\226\201')
pieces() {
  piece '<unk>' 005 016 '\000\000\000\000' 2
  piece '[CLS]' 005 016 '\000\000\000\000' 3
  piece '[SEP]' 005 016 '\000\000\000\000' 3
  piece "${under}the" 006 017 '\000\000\200\277' 1
  piece "$under" 003 014 '\000\000\100\300' 1
  piece cat 003 014 '\000\000\000\300' 1
  for letter in a c t; do piece $letter 001 012 '\000\000\200\300' 1; done
}
pieces > "$out/other/p.model"
got=$(run --tokens --vocab "$out/other/p.model" "$model" ' the  cat qq atc')
test "$got" = "tokens 0 [CLS] ${under}the $under cat $under <unk> $under a t c [SEP]" || fail "SentencePiece: $got"
size=$(wc -c < "$out/other/p.model")
for length in 0 1 3 20 $((size - 1)); do
  head -c "$length" "$out/other/p.model" > "$out/other/bad.model"
  refuses 'no model of SentencePiece' --vocab "$out/other/bad.model" "$model" a
done
{ pieces; printf '\022\002\030\002'; } > "$out/other/bad.model"
refuses 'no unigram model' --vocab "$out/other/bad.model" "$model" a
{ pieces; printf '\032\003\022\001\000'; } > "$out/other/bad.model"
refuses 'its map of characters is broken' --vocab "$out/other/bad.model" "$model" a
pieces | sed 's/\[SEP\]/[SOP]/' > "$out/other/bad.model"
refuses 'no pieces \[CLS\] and \[SEP\]' --vocab "$out/other/bad.model" "$model" a
{ piece a 001 012 '\000\000\200\300' 1; } > "$out/other/bad.model"
refuses 'no piece for what is unknown' --vocab "$out/other/bad.model" "$model" a
{ pieces; piece a 001 012 '\000\000\300\177' 1; } > "$out/other/bad.model"
refuses 'one of its pieces is broken' --vocab "$out/other/bad.model" "$model" a

# text that is no UTF-8: a stray byte, a cut character, a longer form, half a pair, beyond the last
for text in 'a\377' 'a\342\202' 'a\300\200' 'a\355\240\200' 'a\364\220\200\200' 'a\200' 'a\342\202b'; do
  refuses 'not UTF-8 at byte 1' "$model" "$(printf "$text")"
done

test $failures = 0 && echo "encode: all passed"
