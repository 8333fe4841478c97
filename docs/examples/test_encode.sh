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

run() { "$encode" --heads 3 "$@"; }

# ---- tokens
tokens() { # text, its tokens between [CLS] and [SEP]
  got=$(run --tokens "$model" "$vocab" "$1" 2>&1) || :
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
got=$(run --tokens "$model" "$vocab" "${long}a" "$(printf '\303\240%s' "${long#a}")" 2> "$out/message")
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
    ATTN_ISA=$tier run --layers "$out/$type/model.safetensors" "$vocab" "$@" > "$out/rows" \
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

# ---- a batch is what its sentences are alone
run --vectors "$model" "$vocab" "$@" > "$out/batch"
for sentence in "$@"; do run --vectors "$model" "$vocab" "$sentence"; done > "$out/alone"
"$helper" same "$out/batch" "$out/alone" $sizes || fail "a batch is not what its sentences are alone"
run "$model" "$vocab" "$@" > "$out/cosines"
awk '$NR != "1.0000" { exit 1 } END { if (NR != 5) exit 1 }' "$out/cosines" || fail "a sentence is not like itself"

# ---- the clock: a line a tier
run --time "$model" "$vocab" > "$out/log" || fail "--time"
grep -q '^scalar  *[1-9][0-9]* tokens/s, ' "$out/log" || fail "--time: $(cat "$out/log")"

# ---- a whole model, whose encoder's tensors have a name before theirs
mkdir -p "$out/whole"
"$helper" whole "$out/whole" F32 $sizes
run --vectors "$out/whole/model.safetensors" "$vocab" "$@" | cmp - "$out/batch" || fail "the names of a whole model"

# ---- norms whose gains and biases are called gamma and beta
mkdir -p "$out/gamma"
"$helper" gamma "$out/gamma" F32 $sizes
run --vectors "$out/gamma/model.safetensors" "$vocab" "$@" | cmp - "$out/batch" || fail "gamma and beta"

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
  refuses "$2" "$out/bad.safetensors" "$vocab" a
}
header() { # JSON, bytes of numbers, words of the message: a file of this header
  {
    printf "\\$(printf '%03o' $((${#1} % 256)))\\$(printf '%03o' $((${#1} / 256)))\\0\\0\\0\\0\\0\\0"
    printf '%s' "$1"
    head -c "$2" /dev/zero
  } > "$out/bad.safetensors"
  refuses "$3" "$out/bad.safetensors" "$vocab" a
}
one='"shape":[1],"data_offsets":[0,4]'

refuses 'No such file' "$out/absent" "$vocab" a
refuses 'No such file' "$model" "$out/absent" a
refuses 'directory' "$out" "$vocab" a
refuses 'directory' "$model" "$out" a
refuses 'usage' "$model" "$vocab"
refuses 'no such option' --frobnicate "$model" "$vocab" a
refuses 'a number of 1 or more' --max 0 "$model" "$vocab" a
refuses 'a number of 1 or more' --max 99999999999999999999 "$model" "$vocab" a
refuses 'a number of 1 or more' --heads
refuses 'two tokens at least' --max 1 "$model" "$vocab" a
refuses 'cannot be cut into 5 heads' --heads 5 "$model" "$vocab" a

# a file that ends early, anywhere
size=$(wc -c < "$model")
for length in 0 7 8 9 1000 $((size - 1)); do
  head -c "$length" "$model" > "$out/bad.safetensors"
  refuses 'cut short\|8 bytes\|lies at bytes' "$out/bad.safetensors" "$vocab" a
done
{ cat "$model"; printf x; } > "$out/bad.safetensors"
refuses 'belong to no tensor' "$out/bad.safetensors" "$vocab" a
printf '\377\377\377\377\377\377\377\377{}' > "$out/bad.safetensors"
refuses 'no safetensors file' "$out/bad.safetensors" "$vocab" a
refuses 'no safetensors file' "$vocab" "$vocab" a
printf '\003\000\000\000\000\000\000\000{}\000' > "$out/bad.safetensors"
refuses 'a zero byte' "$out/bad.safetensors" "$vocab" a

# weights that are NaN, and an output that is full
{ head -c $((size - 4)) "$model"; printf '\377\377\377\377'; } > "$out/bad.safetensors"
refuses 'not finite' "$out/bad.safetensors" "$vocab" a
if [ -c /dev/full ]; then
  status=0
  run "$model" "$vocab" a > /dev/full 2> "$out/message" || status=$?
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
refuses 'has no \[CLS\]' "$model" "$out/bad.txt" a
sed '/\[UNK\]/d' "$vocab" > "$out/bad.txt"
refuses 'has no \[UNK\]' "$model" "$out/bad.txt" a
: > "$out/bad.txt"
refuses 'has no \[CLS\]' "$model" "$out/bad.txt" a
printf '[CLS]\n\377\n' > "$out/bad.txt"
refuses 'line 2 is not UTF-8' "$model" "$out/bad.txt" a
printf '[CLS]\n\000\n' > "$out/bad.txt"
refuses 'a zero byte' "$model" "$out/bad.txt" a
cat "$vocab" "$vocab" > "$out/bad.txt"
refuses "longer than the model's" "$model" "$out/bad.txt" a
awk '{ printf "%s\r\n", $0 }' "$vocab" > "$out/dos.txt"
got=$(run --tokens "$model" "$out/dos.txt" 'the cat')
test "$got" = 'tokens 0 [CLS] the cat [SEP]' || fail "lines that end with CR: $got"

# text that is no UTF-8: a stray byte, a cut character, a longer form, half a pair, beyond the last
for text in 'a\377' 'a\342\202' 'a\300\200' 'a\355\240\200' 'a\364\220\200\200' 'a\200' 'a\342\202b'; do
  refuses 'not UTF-8 at byte 1' "$model" "$vocab" "$(printf "$text")"
done

test $failures = 0 && echo "encode: all passed"
