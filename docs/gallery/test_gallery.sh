#!/bin/sh
# test_gallery.sh owns the check of the gallery: the programs build without a warning, what they draw is
# docs/gallery, byte for byte, on every tier that runs here, and the numbers they print are those of the
# pages. Run from the root of the project; CC names the compiler, IMPL an object of the implementation.
set -eu
cc=${CC:-cc}
out=build/gallery/test
rm -rf "$out"
mkdir -p "$out"
flags="-std=c99 -O1 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I."
for program in gallery content maps heads; do
  # shellcheck disable=SC2086
  $cc $flags -o "$out/$program" "docs/gallery/$program.c" "${IMPL:?an object of the implementation}" -lm
done

case $(uname -m) in
  x86_64 | i?86) tiers="scalar avx2 avx512" ;; # what the machine lacks is replaced by what it has
  *) tiers="scalar neon" ;;
esac
(cd docs/gallery && ls ./*.png README.md) > "$out/old.txt"
for tier in $tiers; do
  new=$out/$tier
  mkdir "$new"
  "$out/gallery" "$new"
  for page in content maps heads; do
    ATTN_ISA=$tier "$out/$page" "$new" > "$out/$page.txt"
    while read -r line; do
      grep -qF -- "$line" "docs/$page.md" || {
        echo "FAILED: docs/$page.md does not have: $line ($tier)" >&2
        exit 1
      }
    done < "$out/$page.txt"
  done

  # Both ways: nothing is missing and nothing is left over.
  (cd "$new" && ls ./*.png README.md) > "$out/new.txt"
  cmp "$out/old.txt" "$out/new.txt" || { echo "FAILED: other pictures: run make gallery" >&2; exit 1; }
  while read -r name; do
    cmp "docs/gallery/$name" "$new/$name" || { echo "FAILED: run make gallery ($tier)" >&2; exit 1; }
  done < "$out/new.txt"
done

# A folder that is not there is an error with a message.
if "$out/gallery" "$out/absent" 2> "$out/message"; then
  echo "FAILED: wrote to an absent folder" >&2
  exit 1
fi
grep -q '^gallery: ' "$out/message"
echo "gallery: $(grep -c png "$out/new.txt") pictures as committed"
