#!/bin/sh
# arm_inner_loop.sh owns the static look at the NEON kernels where no ARM machine can be timed: it
# compiles the header for aarch64, cuts the inner loop with the most multiply-adds out of each dense
# kernel, counts its instructions and lets llvm-mca estimate its cycles.
#
# Usage: bench/arm_inner_loop.sh [all.h | attn.h]; ARM_CC, ARM_OBJDUMP and LLVM_MCA name
# other tools.
set -eu

header=${1:-all.h}
mca=${LLVM_MCA:-$(command -v llvm-mca-16 || command -v llvm-mca || echo llvm-mca)}
objdump=${ARM_OBJDUMP:-aarch64-linux-gnu-objdump}
cc=${ARM_CC:-aarch64-linux-gnu-gcc}
out=build/bench/arm
for tool in "${cc%% *}" "$objdump" "$mca"; do
  command -v "$tool" > /dev/null || {
    echo "bench-arm needs $tool (gcc-aarch64-linux-gnu, llvm)"
    exit 1
  }
done
mkdir -p "$out"

# The innermost loops of a function: a backward branch with no other one inside its span. Prints
# the one with the most multiply-adds, labelled for the assembler.
cut_loop() { # object function
  "$objdump" -d --no-show-raw-insn "$1" | awk -v name="<$2>:" '
    function hex(s,   i, v) {
      v = 0
      for (i = 1; i <= length(s); i++) v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
      return v
    }
    $2 == name { inside = 1; next }
    inside && NF == 0 { exit }
    !inside { next }
    {
      sub(/ *\/\/.*/, "")
      a = $1; sub(":", "", a)
      at[n] = hex(a); op[n] = $2
      text = $0; sub(/^[^:]*:[ \t]*/, "", text)
      target[n] = -1
      if ($2 ~ /^(b|b\..*|cbnz|cbz|tbz|tbnz)$/ && match(text, /[0-9a-f]+ </)) {
        target[n] = hex(substr(text, RSTART, RLENGTH - 2))
        sub(/[0-9a-f]+ <.*/, ".Lloop", text)
      }
      line[n++] = text
    }
    END {
      best = 0
      for (i = 0; i < n; i++) {
        if (target[i] < 0 || target[i] > at[i]) continue
        first = i
        while (first > 0 && at[first] > target[i]) first--
        fma = 0
        for (j = first; j < i; j++) {
          if (target[j] >= 0) { fma = -1; break }
          if (op[j] == "fmla") fma++
        }
        if (fma > best) { best = fma; from = first; to = i }
      }
      if (!best) exit 1
      print ".Lloop:"
      for (i = from; i <= to; i++) print line[i]
    }'
}

# Three counts bound the loop on Cortex-A76 and Neoverse-N1, which decode 4 instructions and start 2
# vector multiply-adds and 2 loads a cycle. LLVM up to 16 models both as the narrower Cortex-A57, so
# its cycles are set against the cycles it gives the multiply-adds of the loop alone.
report() { # object function
  loop=$out/$2.s
  cut_loop "$1" "$2" > "$loop" || { echo "$2: no loop with multiply-adds found"; exit 1; }
  awk -v name="$2" '
    NR == 1 { next }
    { total++ }
    /^fmla/ { fma++ }
    /^(ld|st)/ && /\[sp/ { spill++ }
    /^ld/ { loads += /^ldp/ ? 2 : 1 }
    END {
      print name
      printf "  %d instructions: %d vector multiply-adds, %d others;", total, fma, total - fma
      printf " %d stack accesses (spills)\n", spill
      printf "  instructions per multiply-add: %.3f per vector, %.3f per number\n", \
        total / fma, total / fma / 4
      printf "  cycles bounds: multiply-adds %.1f, decode %.1f, loads %.1f\n", \
        fma / 2, total / 4, loads / 2
    }' "$loop"
  grep '^fmla' "$loop" > "$out/fma.s"
  for cpu in cortex-a76 neoverse-n1; do
    alone=$(mca_cycles $cpu "$out/fma.s")
    all=$(mca_cycles $cpu "$loop")
    echo "$cpu $all $alone" | awk '{
      printf "  llvm-mca %-12s %.1f cycles an iteration,", $1, $2
      printf " %.1f for its multiply-adds alone: %.0f %%\n", $3, 100 * $3 / $2 }'
  done
}

mca_cycles() { # cpu assembly
  "$mca" -mtriple=aarch64-linux-gnu -mcpu="$1" -iterations=500 "$2" 2> /dev/null |
    awk '/^Total Cycles:/ { print $3 / 500 }'
}

$cc -std=c99 -O2 -Iattn -I. "-DBENCH_ATTN_H=\"$header\"" -c bench/impl.c -o "$out/impl.o"
echo "$($cc --version | head -n 1), -O2"
"$mca" --version | sed -n 's/^ *\(.*LLVM version\)/llvm-mca: \1/p'
for kernel in attn_score_block_neon_ attn_value_block_neon_; do
  report "$out/impl.o" $kernel
done
