#!/bin/sh
# test_gallery.sh owns the check of the gallery: the program builds without a warning, and what it
# draws is docs/gallery, byte for byte. Run from the root of the project; CC names the compiler.
set -eu
cc=${CC:-cc}
out=build/gallery/test
rm -rf "$out"
mkdir -p "$out/new"
flags="-std=c99 -O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I."
# shellcheck disable=SC2086
$cc $flags -o "$out/gallery" docs/gallery/gallery.c -lm
"$out/gallery" "$out/new"

# Both ways: nothing is missing and nothing is left over.
(cd docs/gallery && ls ./*.png README.md) > "$out/old.txt"
(cd "$out/new" && ls ./*.png README.md) > "$out/new.txt"
cmp "$out/old.txt" "$out/new.txt" || { echo "FAILED: other pictures: run make gallery" >&2; exit 1; }
while read -r name; do
  cmp "docs/gallery/$name" "$out/new/$name" || { echo "FAILED: run make gallery" >&2; exit 1; }
done < "$out/new.txt"

# A folder that is not there is an error with a message.
if "$out/gallery" "$out/absent" 2> "$out/message"; then
  echo "FAILED: wrote to an absent folder" >&2
  exit 1
fi
grep -q '^gallery: ' "$out/message"
echo "gallery: $(grep -c png "$out/new.txt") pictures as committed"
