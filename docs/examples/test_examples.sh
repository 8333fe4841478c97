#!/bin/sh
# test_examples.sh owns the check of the examples: all build without a warning and run, and the demo
# reads every kind of PGM and PPM and refuses bad ones with a message and exit status 1.
# Run from the root of the project; CC names the compiler, IMPL an optimised object of the implementation.
set -eu
cc=${CC:-cc}
out=build/examples
flags="-std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I."
impl=${IMPL:?the object of the implementation}
quick="-O0 -DATTN_SMALL" # four times as quickly compiled
rm -rf "$out"
mkdir -p "$out/pictures"
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

build() { # name, extra flags
  echo "build $1"
  # shellcheck disable=SC2086
  $cc $flags -o "$out/$1" "docs/examples/$1.c" $2 -lm
}

openmp=
echo '#include <omp.h>
int main(void) { return omp_get_max_threads() < 1; }' > "$out/probe.c"
if $cc -fopenmp -o "$out/probe" "$out/probe.c" 2> "$out/probe.log"; then openmp=-fopenmp
else echo "$cc has no OpenMP: the example runs without"; fi

# One example as its reader builds it. The implementation is the same text in all the others: those
# take it compiled already, once with OpenMP and once optimised.
build hello "$quick"
if [ -n "${IMPL_OPENMP:-}" ]; then cp "$IMPL_OPENMP" "$out/attn.o"
else
  printf '#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' > "$out/attn.c"
  # shellcheck disable=SC2086
  $cc $flags $quick $openmp -c -o "$out/attn.o" "$out/attn.c"
fi
linked="-DATTN_IMPLEMENTED $out/attn.o $openmp"
build threads "$linked -pthread"
build test_pool "-O1 -pthread"
build openmp "$linked"
build bias "$linked"
build patterns "$linked"
build cache "$linked"
build denoise "-O2 -DATTN_IMPLEMENTED $impl"
build test_json -O1
build test_sampling "-O1 $linked"
build encode "$linked"
build test_encode -O1
build test_generate "$linked"
build test_train "-O1 -DATTN_IMPLEMENTED $impl -pthread"
build map "-O2 -DATTN_IMPLEMENTED $impl"

"$out/hello" || fail "hello"
for workers in 1 2 7; do "$out/threads" $workers || fail "threads $workers"; done
"$out/test_pool" || fail "the pool"
# the pool alone is judged for races, in a few seconds: attn.h's own loop has its tests
if $cc $flags -D_GNU_SOURCE -O1 -g -fsanitize=thread -o "$out/race_pool" docs/examples/test_pool.c -pthread \
  2> "$out/probe.log"; then
  TSAN_OPTIONS=halt_on_error=1 "$out/race_pool" 300 || fail "the pool has a race"
else echo "$cc has no ThreadSanitizer: the pool's races are not looked for"; fi
"$out/openmp" || fail "openmp"
"$out/bias" || fail "bias"
"$out/patterns" || fail "patterns"
"$out/cache" || fail "cache"
"$out/test_json" || fail "json"
"$out/test_sampling" || fail "sampling"
if "$out/threads" 0 2> "$out/message"; then fail "threads accepted 0 workers"; fi

mkdir -p "$out/bert"
sh docs/examples/test_encode.sh "$out/encode" "$out/test_encode" "$out/bert" || fail "encode"
mkdir -p "$out/llama"
sh docs/examples/test_generate.sh "$out/test_generate" "$out/llama" || fail "generate"
sh docs/examples/test_map.sh "$out/map" "$out/mapped" || fail "map"
sh docs/examples/test_train.sh "$out/test_train" "$out/test_generate" "$out/trained" || fail "train"

# ---- the demo on the photograph: it must gain 9 dB at least
"$out/denoise" docs/ascent.pgm "$out" | tee "$out/demo.log"
awk '/^PSNR/ { gain = $5 - $2 } END { exit !(gain >= 9) }' "$out/demo.log" || fail "PSNR gain"

# ---- pictures it must read
reads() { # name, checksum and size of the original.png it becomes
  if "$out/denoise" "$out/pictures/$1" "$out/pictures" > "$out/log" 2> "$out/message"; then
    sum=$(cksum < "$out/pictures/original.png")
    test "$sum" = "$2" || fail "$1 was read as another picture: $sum"
  else
    fail "$1 was refused: $(cat "$out/message")"
  fi
}
cd "$out/pictures"
printf 'P2 1 1 255 128' > one.pgm
printf 'P2\n# a comment\n3 # width\n2\n255#\n0 50 100\n150 # half\n200 250\n' > ascii.pgm
printf 'P5\n3 2\n255\n\000\062\144\226\310\372' > binary.pgm
printf 'P5 3 2 65535\n\000\000\062\062\144\144\226\226\310\310\372\372' > deep.pgm
printf 'P3 2 1 100  0 50 100  20 40 60\n' > ascii.ppm
printf 'P6 2 1 100\n\000\062\144\024\050\074' > binary.ppm
printf 'P6 2 1 1000\n\000\000\001\364\003\350\000\310\001\220\002\130' > deep.ppm
awk 'BEGIN { print "P2 37 19 255"; for (i = 0; i < 37 * 19; i++) print i % 256 }' > odd.pgm
cd - > /dev/null
reads one.pgm "1551360487 70"
reads ascii.pgm "1422325377 76"
reads binary.pgm "1422325377 76"
reads deep.pgm "1422325377 76"
reads ascii.ppm "1232798518 75"
reads binary.ppm "1232798518 75"
reads deep.ppm "1232798518 75"
reads odd.pgm "3937241899 790"

# ---- pictures it must refuse
refuses() { # path, words of the message
  status=0
  "$out/denoise" "$1" "$out/pictures" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "$1: exit status $status, not 1"
  grep -q "^denoise: .*$2" "$out/message" || fail "$1: message '$(cat "$out/message")'"
}
bad() { # name, contents, words of the message
  printf "$2" > "$out/pictures/$1"
  refuses "$out/pictures/$1" "$3"
}
refuses "$out/pictures/absent.pgm" "No such file"
refuses "$out" "directory"
bad empty.pgm '' 'the file is empty'
bad magic.pgm 'GIF89a' 'must begin with P2, P3, P5 or P6'
bad bits.pbm 'P4 8 1\n\377' 'must begin with P2, P3, P5 or P6'
bad glued.pgm 'P51 1 255\n\000' 'must begin with P2, P3, P5 or P6'
bad header.pgm 'P5 3' 'header is cut short'
bad letters.pgm 'P5 three 2 255\n' 'width and height'
bad zero.pgm 'P5 0 2 255\n' 'width and height'
bad negative.pgm 'P5 -3 2 255\n' 'width and height'
bad huge.pgm 'P5 99999999999999999999 2 255\n' 'width and height'
bad side.pgm 'P5 1 65536 255\n' 'width and height'
bad nul.pgm 'P\000 1 1 255 1' 'must begin with P2'
bad product.pgm 'P5 60000 60000 255\n' 'width and height'
bad depth.pgm 'P5 1 1 65536\n\000\000' 'largest sample value'
bad depth0.pgm 'P5 1 1 0\n\000' 'largest sample value'
bad short.pgm 'P5 3 2 255\n\000\001\002' 'ends before its last sample'
bad short16.pgm 'P5 1 2 65535\n\000\001\002' 'ends before its last sample'
bad shortascii.ppm 'P3 1 1 255 1 2' 'ends before its last sample'
bad toobig.pgm 'P2 2 1 255 1 256' 'a sample is no number or exceeds'
bad toobig5.pgm 'P5 1 1 100\n\377' 'a sample is no number or exceeds'
bad word.pgm 'P2 2 1 255 1 x' 'a sample is no number or exceeds'
bad claim.pgm 'P5 8192 8192 255\n\000' 'ends before its last sample'

# ---- and a folder it cannot write to
if "$out/denoise" "$out/pictures/one.pgm" "$out/absent" > "$out/log" 2> "$out/message"; then
  fail "wrote to an absent folder"
fi
grep -q 'No such file' "$out/message" || fail "absent folder: message '$(cat "$out/message")'"

test $failures = 0 && echo "examples: all passed"
