#!/bin/sh
# install.sh owns the check of an installation: the files are there and go again, the libraries export the
# public functions alone, and programs build on it by pkg-config, static and shared, and by CMake.
. "$(dirname "$0")/lib.sh"

prefix=$work/prefix
# one tier, unoptimised: a library like any other, in no time
run() {
  (cd "$root" && ${MAKE:-make} --no-print-directory PREFIX="$prefix" LIB="$work/lib" \
    LIB_CFLAGS="-O0 -DATTN_NO_AVX2 -DATTN_NO_AVX512" "$@")
}
run install >"$log" 2>&1 || { fail "make install"; exit 1; }
ok "make install"
major=${VERSION%%.*}

nm -D --defined-only "$prefix/lib/libattn.so" | awk '{ print $NF }' | grep -Ev '^attn_([a-z0-9_]*[a-z0-9])?$' \
  >private || true
check "libattn.so exports public functions only" diff /dev/null private
objdump -p "$prefix/lib/libattn.so" >dynamic
check "libattn.so is called libattn.so.$major" grep -q "SONAME *libattn.so.$major\$" dynamic

if have pkg-config; then
  export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
  # shellcheck disable=SC2046 # flags are words
  check "pkg-config, shared: builds" gcc -std=c99 -o shared "$here/use.c" $(pkg-config --cflags --libs attn) -lm
  check "pkg-config, shared: runs" env LD_LIBRARY_PATH="$prefix/lib" ./shared
  # shellcheck disable=SC2046
  check "pkg-config, static: builds" gcc -std=c99 -static -o static "$here/use.c" \
    $(pkg-config --static --cflags --libs attn)
  check "pkg-config, static: runs" ./static
else
  not_run "pkg-config is not here"
fi

if have cmake; then
  mkdir -p consumer
  cp "$here/use.c" "$here/sdpa.c" consumer/
  cat >consumer/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.13)
project(consumer C)
find_package(attn $VERSION REQUIRED)
add_executable(use use.c)
target_link_libraries(use attn::attn m)
add_executable(sdpa sdpa.c)
target_link_libraries(sdpa attn::header)
END
  check "CMake: finds attn" cmake -S consumer -B made -DCMAKE_PREFIX_PATH="$prefix"
  check "CMake: builds" cmake --build made
  check "CMake: the library runs" made/use
  check "CMake: the header runs" made/sdpa
else
  not_run "cmake is not here"
fi

run uninstall >"$log" 2>&1 || fail "make uninstall"
find "$prefix" ! -type d >left
check "make uninstall leaves nothing" diff /dev/null left
