#!/bin/sh
# deps.sh owns what the tests need from the system: each line is a probe and the Debian package
# that makes it succeed. Nothing is fetched when nothing is missing.
set -eu

runtime() { [ -e "$(clang -print-file-name="libclang_rt.$1-$(uname -m).a" 2>/dev/null)" ]; }
header() { echo "#include <$1>" | gcc -E - >/dev/null 2>&1; }
command_() { command -v "$1" >/dev/null 2>&1; }

missing() {
  while read -r package probe; do
    [ -n "$package" ] || continue
    eval "$probe" || echo "$package"
  done <<'END'
gcc command_ gcc
python3 command_ python3
python3-venv python3 -c 'import venv, ensurepip' 2>/dev/null
g++ command_ g++
make command_ make
binutils command_ objdump
libc6-dev header math.h
clang command_ clang
clang command_ clang++
libclang-rt-14-dev runtime fuzzer
libclang-rt-14-dev runtime asan
clang-format command_ clang-format
libsleef-dev header sleef.h
libcmocka-dev header cmocka.h
libstb-dev header stb/stb_image.h
openmpi-bin command_ mpirun
libopenmpi-dev command_ mpicc
gcc-aarch64-linux-gnu command_ aarch64-linux-gnu-gcc
libc6-dev-arm64-cross command_ aarch64-linux-gnu-gcc && echo '#include <math.h>' | aarch64-linux-gnu-gcc -E - >/dev/null 2>&1
gcc-arm-linux-gnueabihf command_ arm-linux-gnueabihf-gcc
libc6-dev-armhf-cross command_ arm-linux-gnueabihf-gcc && echo '#include <math.h>' | arm-linux-gnueabihf-gcc -E - >/dev/null 2>&1
qemu-user command_ qemu-aarch64
qemu-user command_ qemu-arm
qemu-user command_ qemu-x86_64
gnuplot-nox command_ gnuplot
pkg-config command_ pkg-config
cmake command_ cmake
tcc command_ tcc
wasi-libc command_ clang && echo '#include <math.h>' | clang --target=wasm32-wasi -E - >/dev/null 2>&1
libclang-rt-14-dev-wasm32 [ -e "$(clang --target=wasm32-wasi -print-libgcc-file-name 2>/dev/null)" ]
lld command_ wasm-ld || command_ wasm-ld-14
nodejs command_ node
gcc-mingw-w64-x86-64-win32 command_ x86_64-w64-mingw32-gcc
wine64 command_ wine64 || command_ wine || [ -x /usr/lib/wine/wine64 ] || [ "$(uname -m)" != x86_64 ]
gcc-s390x-linux-gnu command_ s390x-linux-gnu-gcc
libc6-dev-s390x-cross command_ s390x-linux-gnu-gcc && echo "#include <math.h>" | s390x-linux-gnu-gcc -E - >/dev/null 2>&1
END
}

packages=$(missing | sort -u | tr '\n' ' ')
packages=${packages% }
[ -n "$packages" ] || exit 0

install="apt-get install -y --no-install-recommends $packages"
if ! command_ apt-get; then
  echo "deps: these Debian packages, or what they hold, are missing: $packages" >&2
  exit 1
fi
if [ "$(id -u)" = 0 ]; then
  as_root=
elif command_ sudo && sudo -n true 2>/dev/null; then
  as_root="sudo -n"
else
  echo "deps: the tests need packages that are not here. Run this, then make test again:" >&2
  echo "  sudo $install" >&2
  exit 1
fi
echo "deps: installing $packages"
export DEBIAN_FRONTEND=noninteractive
# the lists may be absent or old; only then is an update worth its time
# shellcheck disable=SC2086 # words
$as_root $install >/dev/null 2>&1 || { $as_root apt-get update && $as_root $install; } || {
  echo "deps: could not run: $install" >&2
  exit 1
}
left=$(missing | sort -u | tr '\n' ' ')
[ -z "$left" ] || {
  echo "deps: still missing after the installation: $left" >&2
  exit 1
}
