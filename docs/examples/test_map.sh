#!/bin/sh
# test_map.sh owns the check of the atom mapper: the weights that PyPI has, the maps and confidences of
# test_map.tsv, which the published package gave (test_map.py), on every tier, and what must be refused
# with a message and exit status 1. Run from the root; test_examples.sh calls it.
#   test_map.sh MAP FOLDER   the program, and a folder to write to; the weights stay in build/demo/map
set -eu
map=$1 out=$2
weights=build/demo/map
failures=0
LC_ALL=C
OMP_NUM_THREADS=1 # many small calls: threads that wait for a busy machine's processors would only hold it up
export LC_ALL OMP_NUM_THREADS

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

converts() { # words of the message, then the arguments: map_weights.py must refuse them
  words=$1
  shift
  status=0
  python3 docs/examples/map_weights.py "$@" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "'$words': exit status $status, not 1"
  grep -q "^map_weights: .*$words" "$out/message" || fail "'$words': message '$(cat "$out/message")'"
}

# ---- what is no wheel, and one that nobody can fetch
if ! python3 -c '' 2> /dev/null; then
  echo "NOT RUN: test_map: there is no python3, which reads the weights"
  exit 0
fi
rm -rf "$out"
mkdir -p "$out/bad"
converts 'usage'
printf 'PK' > "$out/not.whl"
converts 'is no wheel of rxnmapper' "$out/bad" "$out/not.whl"
converts 'is no wheel of rxnmapper' "$out/bad" "$out/absent.whl"
PIP_INDEX_URL=file:///absent PIP_EXTRA_INDEX_URL='' PIP_FIND_LINKS='' PIP_CONFIG_FILE=/dev/null \
  converts 'could not be downloaded; put rxnmapper-' "$out/bad"

mkdir -p "$weights"
if ! python3 docs/examples/map_weights.py "$weights" 2> "$out/message"; then
  cat "$out/message"
  echo "NOT RUN: test_map: the published weights could not be had from PyPI"
  test $failures = 0 && exit 0
  exit 1
fi
mangled() { # a Python expression of the checkpoint's bytes b, words of the message
  python3 -c '
import sys, zipfile
path, out, change = sys.argv[1:]
with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
    for name in old.namelist():
        b = old.read(name)
        new.writestr(name, eval(change) if name.endswith(".bin") else b)
' "$weights"/rxnmapper-*.whl "$out/mangled.whl" "$1"
  converts "is no wheel .*$2" "$out/bad" "$out/mangled.whl"
}
mangled 'b[:-1]' 'cut short'
mangled 'b[:3000]' ''
mangled 'b""' ''
mangled 'b"PK" + b' ''
mangled 'b.replace(b"collections\nOrderedDict", b"os\nsystem", 1)' ''
mangled 'b.replace(b"torch._utils\n_rebuild_tensor_v2", b"os\nsystem", 1)' 'os.system'
test ! -e "$out/bad/model.safetensors" || fail "a bad wheel made a model"

# ---- the maps and confidences: all on the best tier, a third on each of the slower ones
awk 'NR % 3 == 1' docs/examples/test_map.tsv > "$out/third"
for tier in auto scalar avx2; do
  table=docs/examples/test_map.tsv
  test $tier = auto || table=$out/third
  status=0
  ATTN_ISA=$tier "$map" --file "$table" "$weights" > "$out/maps" 2> "$out/message" || status=$?
  if [ $status != 0 ]; then
    grep -q 'ATTN_ISA' "$out/message" || fail "$tier: $(cat "$out/message")" # of another processor family
    continue
  fi
  paste "$table" "$out/maps" | awk -F '\t' -v tier=$tier -v all="$(wc -l < "$table")" '
    { d = $3 - $5; if (d < 0) d = -d; if (d > most) most = d }
    $2 "" != $4 "" || NF != 5 || !(d <= 1e-4) { print "another map or confidence: " $0; bad++ }
    END { printf "map %s: %d reactions, the confidences differ by %.1e at most\n", tier, NR, most
          exit bad > 0 || NR != all || NR < 80 }' > "$out/log" || fail "$tier: $(head -n 3 "$out/log")"
  tail -n 1 "$out/log"
  test $tier != auto || test "$(grep -c 'become \[UNK\]' "$out/message")" = 2 || fail "$tier: tokens without a number: $(cat "$out/message")"
done
# another head knows less: the check above can fail
"$map" --head 0 --file docs/examples/test_map.tsv "$weights" 2> "$out/message" |
  paste docs/examples/test_map.tsv - | awk -F '\t' '$2 "" != $4 "" { bad++ } END { exit !(bad > 100) }' ||
  fail "head 0 gives the same maps as head 5"

# ---- the other outputs
"$map" --svg "$out/map.svg" --pairs "$weights" 'CC(=O)O.OCC>>CC(=O)OCC' > "$out/log" || fail "--svg --pairs"
grep -q '^    5 C    <-     6 C     0\.99' "$out/log" || fail "--pairs: $(cat "$out/log")"
python3 -c '
import sys, xml.dom.minidom
cells = xml.dom.minidom.parse(sys.argv[1]).getElementsByTagName("rect")
framed = [c for c in cells if c.getAttribute("stroke")]
sys.exit(len(cells) != 1 + 6 * 7 or len(framed) != 6)' "$out/map.svg" || fail "the picture"
"$map" --attention "$weights" 'CCO>>CC=O' | awk '{ s = 0; for (i = 1; i <= NF; i++) s += $i }
  NF != 10 || s < 0.99999 || s > 1.00001 { bad = 1 } END { exit bad || NR != 10 }' || fail "--attention"
printf 'CCO>>CC=O\r\n\nCC>O>C\tand more\nCCO>>CCO' > "$out/lines"
status=0
"$map" --file - "$weights" < "$out/lines" > "$out/log" 2> "$out/message" || status=$?
test $status = 1 && test "$(cut -c 1-5 "$out/log" | tr '\n' ' ')" = '[CH3: >>	0 [CH3: ' || fail "--file -: $(cat "$out/log")"
grep -q '^map: reaction 2: at character 3' "$out/message" || fail "--file -: $(cat "$out/message")"

# ---- what must be refused
refuses() { # words of the message, then the arguments
  words=$1
  shift
  status=0
  "$map" "$@" > "$out/log" 2> "$out/message" || status=$?
  test $status = 1 || fail "'$words': exit status $status, not 1"
  grep -q "^map: .*$words" "$out/message" || fail "'$words': message '$(cat "$out/message")'"
}
bad() { # reaction, words of the message
  refuses "reaction 1: .*$2" "$weights" "$1"
}
bad '' 'it is empty'
bad 'CC' 'it has no >>'
bad 'CC>C>C' 'agents between two >'
bad 'C>>C>>C' 'another >>'
bad 'CC>>' 'no molecule on one side'
bad '>>CC' 'no molecule on one side'
bad 'C..C>>C' 'no molecule on one side'
bad '.C>>C' 'no molecule on one side'
bad '[CH3:1]C>>CC' 'has a map number already'
bad 'C[Xx]>>C' 'hold no element'
bad 'C[#6]>>C' 'hold no element'
bad 'C[]>>C' 'empty or not closed'
bad 'C[C>>C' 'empty or not closed'
bad 'C[C@XY]>>C' 'no such chirality'
bad 'C[CH3;R]>>C' 'more than an atom'
bad 'CAC>>C' 'no part of SMILES'
bad 'C C>>C' 'no part of SMILES'
bad "$(printf 'C\303\251>>C')" 'a byte that SMILES has not'
bad 'C%1C>>C' 'no part of SMILES'
bad 'C+C>>C' 'belongs into brackets'
bad 'C1CC>>C' 'not closed within its molecule'
bad 'C1.C1>>CC' 'not closed within its molecule'
bad 'C%12CC>>C' 'not closed within its molecule'
bad 'C11>>C' 'bonded to itself'
bad 'C12CC12>>C' 'bonded twice'
bad '1CC>>C' 'a ring bond without an atom'
bad 'C=1CC#1>>C' 'another symbol at its other end'
bad 'C(C>>C' 'before its ( is closed'
bad 'C)C>>C' 'there is no ( for it'
bad '(C)C>>C' 'an atom must precede'
bad 'C((C))C>>C' 'an atom must precede'
bad 'C()>>C' 'an atom must precede'
bad 'C(=)C>>C' 'an atom must precede'
bad 'C(1)CC1>>C' 'an atom must follow'
bad 'C=>>C' 'a bond without an atom behind'
bad '=C>>C' 'a bond without an atom before'
bad 'C==C>>C' 'a bond after a bond'
chain=CCCCCCCCCCCCCCCCCCCC
chain=$chain$chain$chain$chain$chain # 100
bad "$chain$chain$chain$chain$chain>>$chain" 'it has 603 tokens with .*; the model reads 512'
bad "$(head -c 20000 /dev/zero | tr '\0' C)>>C" 'it has 20003 characters; 16384 can be read'
"$map" "$weights" "$chain$chain$chain$chain${chain}CCCCCCC>>CC" > "$out/log" || fail "512 tokens"

refuses 'usage' "$weights"
refuses 'usage' --file "$out/lines" "$weights" 'C>>C'
refuses 'No such file' --file "$out/absent" "$weights"
refuses 'directory' --file "$out" "$weights"
: > "$out/empty"
refuses 'no reaction in it' --file "$out/empty" "$weights"
printf 'C>>C\000\n' > "$out/zero"
refuses 'a zero byte' --file "$out/zero" "$weights"
refuses 'no such option' --frobnicate "$weights" 'C>>C'
refuses 'fewer layers' --layer 12 "$weights" 'C>>C'
refuses 'fewer heads' --head 8 "$weights" 'C>>C'
refuses 'a number of 0 or more' --head -1 "$weights" 'C>>C'
refuses 'a number of 0 or more' --layer
refuses 'a number of 1 to' --multiplier nan "$weights" 'C>>C'
refuses 'a path must follow' --svg
refuses 'No such file' --svg "$out/absent/map.svg" "$weights" 'C>>C'
refuses 'No such file' "$out/absent" 'C>>C'

# weights that are broken
broken() { # words of the message
  refuses "$1" "$out/broken" 'CCO>>CC=O'
}
fresh() {
  rm -rf "$out/broken"
  mkdir "$out/broken"
  cp "$weights/model.safetensors" "$weights/config.json" "$weights/vocab.txt" "$out/broken"
}
fresh
head -c 1000000 "$weights/model.safetensors" > "$out/broken/model.safetensors"
broken 'lies at bytes\|cut short'
fresh
sed 's/ffn_output.weight/ffn_outfit.weight/' "$weights/model.safetensors" > "$out/broken/model.safetensors"
broken 'no tensor .*ffn_output'
fresh
{ head -c 8000 "$weights/model.safetensors"; printf '\377\377\377\377%.0s' $(seq 100)
  tail -c +8401 "$weights/model.safetensors"; } > "$out/broken/model.safetensors"
"$map" "$out/broken" 'CCO>>CC=O' > /dev/null 2>&1 || : # words that no reaction has may be anything
python3 -c '
import sys
b = open(sys.argv[1], "rb").read()
open(sys.argv[2], "wb").write(b[:len(b) // 2 // 4 * 4] + b"\377" * (len(b) - len(b) // 2 // 4 * 4))' \
  "$weights/model.safetensors" "$out/broken/model.safetensors"
broken 'not finite'
fresh
rm "$out/broken/vocab.txt"
broken 'No such file'
fresh
cat "$weights/vocab.txt" "$weights/vocab.txt" > "$out/broken/vocab.txt"
broken "longer than the model's"
fresh
sed '/\[CLS\]/d' "$weights/vocab.txt" > "$out/broken/vocab.txt"
broken 'has no \[CLS\]'
fresh
sed 's/"num_attention_heads": 8/"num_attention_heads": 7/' "$weights/config.json" > "$out/broken/config.json"
broken 'cannot be cut into 7 heads'
fresh
printf '{' > "$out/broken/config.json"
broken 'config.json'

test $failures = 0 && echo "map: all passed"
