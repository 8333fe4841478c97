# Makefile owns the targets. It builds nothing a user needs: attn.h is used by copying it.
# Everything made here lands in build/, except the two generated headers.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60
# Of make test, which a clock must not decide.
FUZZ_RUNS ?= 8000
FUZZ_CC ?= clang
# -O1 takes minutes to compile and then runs three times as fast; -O0 is what other tests have, too.
FUZZ_O ?= -O0
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build

PARTS := $(shell find attn -name '*.h' ! -name '.*' | sort)
VERSION := $(shell awk '$$2 == "ATTN_VERSION" { printf "%d.%d.%d", $$3 / 10000, \
             $$3 / 100 % 100, $$3 % 100 }' attn/api/types.h)

# A target's comment begins with its group.
.PHONY: help
help: ## maintain: list the targets
	@echo "attn.h $(VERSION): copy attn.h into your project; nothing here need be built."
	@for group in use test measure draw maintain; do \
	  printf '\n%s\n' "$$group"; \
	  awk -F ':.*## ' -v group="$$group" '/^[a-zA-Z_][a-zA-Z0-9_.%-]*:.*## / && \
	    index($$2, group ": ") == 1 { \
	      printf "  make %-18s %s\n", $$1, substr($$2, length(group) + 3) }' $(MAKEFILE_LIST); \
	done
	@echo
	@echo "  CC, PREFIX, DESTDIR, FUZZ_SECONDS, JOBS may be set: make test CC=clang"

# The tests, benchmarks and examples say themselves how they are built.
-include tests/header/header.mk
-include tests/tests.mk
-include tests/onnx/onnx.mk
-include tests/porting/porting.mk
-include bench/bench.mk
-include docs/examples/examples.mk
-include docs/gallery/gallery.mk
-include tests/models/models.mk
-include tests/steps.mk

# --- the header ---------------------------------------------------------------------------------

attn/api/left_out.h: $(filter-out attn/api/left_out.h,$(filter attn/all.h attn/api/%,$(PARTS))) attn/left_out
	attn/left_out

attn.h: $(PARTS) attn/amalgamate ## use: write the header from attn/
	attn/amalgamate

attn_flat.h: $(PARTS) attn/amalgamate ## use: write the form for people who rename or paste the header
	attn/amalgamate --flat

.PHONY: check-amalgam
check-amalgam: ## test: fail if attn.h is not what attn/ makes
	@mkdir -p $(BUILD)
	@attn/left_out $(BUILD)/left_out.h
	@cmp attn/api/left_out.h $(BUILD)/left_out.h || { echo "attn/api/left_out.h is stale: run make attn.h"; exit 1; }
	@attn/amalgamate $(BUILD)/attn.h
	@cmp attn.h $(BUILD)/attn.h || { echo "attn.h is stale: run make attn.h"; exit 1; }
	@echo "attn.h is what attn/ makes"

# --- all tests ----------------------------------------------------------------------------------

.PHONY: deps test
deps: ## test: install what the tests need (Debian; says what is missing elsewhere)
	@tests/deps.sh

test: deps ## test: run every test: all tiers, compilers, emulated ARM, sanitizers, fuzzing
	@MAKE='$(MAKE)' JOBS='$(JOBS)' FUZZ_RUNS='$(FUZZ_RUNS)' tests/all.sh

# What to run before a commit: every tier of this machine with one compiler.
.PHONY: test-quick
test-quick: check-amalgam ## test: the native tiers, one compiler, names and symbols: 4 minutes on 2 cores
	@$(MAKE) -j$(JOBS) --no-print-directory $(TEST_NATIVE) build/impl/gcc-O2.o
	@$(MAKE) --no-print-directory test-native test-catalogue test-porting header-row-gcc-O2
	@sh tests/header/symbols.sh gcc-O2

# The two worked examples of docs/adding-a-mechanism.md, on a copy of the tree.
.PHONY: test-guide
test-guide: ## test: apply the examples of the guide to a copy of the tree and check them
	@CC='$(CC)' python3 tests/guide.py

# --- fuzzing ------------------------------------------------------------------------------------

FUZZ_PARTS := $(wildcard tests/fuzz/*.[ch])
FUZZ_FLAGS := -std=gnu11 -g1 -DATTN_SMALL -fno-omit-frame-pointer -fno-sanitize-recover=all -I.

FUZZ_MEND := -Wno-unused-function tests/fuzz/mend.c
FUZZ_HOOKS := objcopy --redefine-sym malloc=fuzz_malloc --redefine-sym free=fuzz_free

$(BUILD)/fuzz/impl.o: attn.h tests/header/implementation.c
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_O) -fsanitize=fuzzer-no-link,address,undefined -c -o $@ tests/header/implementation.c

$(BUILD)/fuzz/fuzz: $(if $(filter -O0,$(FUZZ_O)),build/impl/clang-asan.o,$(BUILD)/fuzz/impl.o) $(FUZZ_PARTS)
	@mkdir -p $(@D)
	$(FUZZ_HOOKS) $< $(@D)/hooked.o
	$(FUZZ_CC) $(FUZZ_FLAGS) -O0 -fsanitize=fuzzer,address,undefined -o $@ tests/fuzz/fuzz.c $(FUZZ_MEND) $(@D)/hooked.o -lm

$(BUILD)/fuzz/replay: build/impl/gcc-asan.o $(FUZZ_PARTS)
	@mkdir -p $(@D)
	$(FUZZ_HOOKS) $< $(@D)/replay.o
	gcc $(FUZZ_FLAGS) -O0 -fsanitize=address -o $@ tests/fuzz/fuzz.c tests/fuzz/replay.c \
	  $(FUZZ_MEND) $(@D)/replay.o -lm

FUZZ_RUN := -max_len=256 -len_control=0 -timeout=300 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0

.PHONY: fuzz fuzz-once fuzz-replay fuzz-corpus
fuzz: $(BUILD)/fuzz/fuzz ## test: fuzz the descriptors for FUZZ_SECONDS (60) under ASan and UBSan
	@mkdir -p $(BUILD)/fuzz/corpus
	cd $(BUILD)/fuzz && ./fuzz -max_total_time=$(FUZZ_SECONDS) $(FUZZ_RUN) corpus ../../tests/fuzz/corpus

# A change of the sources is met by other inputs; the same sources by the same ones, so that what is found once is
# found again. Addresses and the clock would steer the fuzzer too: none at random, nor by an environment, no folder that is
# read again each second, inputs by name.
fuzz-once: $(BUILD)/fuzz/fuzz ## test: fuzz with FUZZ_RUNS (8000) inputs from a seed that the sources are
	@rm -rf $(BUILD)/fuzz/once
	@mkdir -p $(BUILD)/fuzz/once
	@cd $(BUILD)/fuzz && ls ../../tests/fuzz/corpus | LC_ALL=C sort | sed 's|^|../../tests/fuzz/corpus/|' | paste -sd, >once.list
	seed=$$(cat attn.h $(sort $(FUZZ_PARTS)) | cksum | cut -d ' ' -f 1); cd $(BUILD)/fuzz && \
	  env -i PATH=/usr/bin:/bin $$(setarch -R true 2>/dev/null && echo setarch -R) ./fuzz -runs=$(FUZZ_RUNS) -seed=$$seed -reload=0 -seed_inputs=@once.list $(FUZZ_RUN) once

fuzz-replay: $(BUILD)/fuzz/replay ## test: run the committed corpus once, without libFuzzer
	$(BUILD)/fuzz/replay tests/fuzz/corpus/*

# Takes the smallest set of inputs that reaches all the code the fuzzer has found.
fuzz-corpus: $(BUILD)/fuzz/fuzz
	@mkdir -p $(BUILD)/fuzz/corpus $(BUILD)/fuzz/minimal
	$(BUILD)/fuzz/fuzz -set_cover_merge=1 -use_counters=0 -max_len=256 $(BUILD)/fuzz/minimal \
	  tests/fuzz/corpus $(BUILD)/fuzz/corpus

# --- style --------------------------------------------------------------------------------------

FORMATTED = $(shell find attn tests bench docs -name '*.[ch]' -o -name '*.cc' -o -name '*.cpp' | sort)

.PHONY: lint format
lint: ## test: check the layout, the scripts and the size of the source files
	@clang-format --dry-run -Werror $(FORMATTED)
	@for script in attn/amalgamate attn/left_out .ci/run $$(find tests bench docs -name '*.sh'); do \
	  sh -n $$script || exit 1; done
	@wc -l $(PARTS) | awk '$$2 != "total" && $$1 > 700 { print $$2 ": " $$1 " lines"; bad = 1 } \
	  END { exit bad }'
	@awk 'length > 126 { print FILENAME ":" FNR ": longer lines double what gcc spends on columns"; bad = 1 } \
	  END { exit bad }' $(PARTS)
	@if grep -rnE '[[:space:]]+$$|	' $(PARTS) attn/amalgamate attn/left_out; then echo "stray white space"; exit 1; fi
	@python3 tests/floors.py
	@echo "lint: $(words $(FORMATTED)) files are in order"

format: ## maintain: apply the layout
	clang-format -i $(FORMATTED)

# --- the library, for those who would rather link ------------------------------------------------

LIB := $(BUILD)/lib
MAJOR := $(firstword $(subst ., ,$(VERSION)))
SO := libattn.so.$(VERSION)
LIB_CFLAGS ?= -O2

$(LIB)/attn.o: attn.h
	@mkdir -p $(@D)
	@echo "compiling every function for every tier: half a minute"
	@printf '#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' >$(LIB)/attn.c
	$(CC) -std=c99 $(LIB_CFLAGS) -fPIC -I. -c -o $@ $(LIB)/attn.c

$(LIB)/libattn.a: $(LIB)/attn.o
	rm -f $@
	$(AR) rcs $@ $<

$(LIB)/$(SO): $(LIB)/attn.o
	$(CC) -shared -Wl,-soname,libattn.so.$(MAJOR) -o $@ $< -lm

# What a program links with, beside the folders of an installation.
$(LIB)/attn.pc: attn/api/types.h Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' 'libdir=$${prefix}/lib' '' \
	  'Name: attn' 'Description: attention on the CPU, in one C header' 'Version: $(VERSION)' \
	  'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lattn' 'Libs.private: -lm' >$@

$(LIB)/attnConfig.cmake: Makefile
	@mkdir -p $(@D)
	@printf '%s\n' '# attn::attn links the library; attn::header only finds attn.h.' \
	  'get_filename_component(_attn "$${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)' \
	  'if(NOT TARGET attn::attn)' \
	  '  add_library(attn::header INTERFACE IMPORTED)' \
	  '  set_target_properties(attn::header PROPERTIES' \
	  '    INTERFACE_INCLUDE_DIRECTORIES "$${_attn}/include" INTERFACE_LINK_LIBRARIES m)' \
	  '  add_library(attn::attn SHARED IMPORTED)' \
	  '  set_target_properties(attn::attn PROPERTIES IMPORTED_LOCATION "$${_attn}/lib/$(SO)"' \
	  '    IMPORTED_SONAME libattn.so.$(MAJOR) INTERFACE_INCLUDE_DIRECTORIES "$${_attn}/include")' \
	  'endif()' >$@

$(LIB)/attnConfigVersion.cmake: attn/api/types.h Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'set(PACKAGE_VERSION $(VERSION))' \
	  'if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION)' '  set(PACKAGE_VERSION_COMPATIBLE TRUE)' \
	  'endif()' 'if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)' '  set(PACKAGE_VERSION_EXACT TRUE)' \
	  'endif()' >$@

.PHONY: lib install uninstall test-install
lib: $(LIB)/libattn.a $(LIB)/$(SO) ## use: libattn.a and libattn.so in build/lib, for those who would rather link
	@echo "made $^"

INSTALLED = include/attn.h lib/libattn.a lib/$(SO) lib/libattn.so.$(MAJOR) lib/libattn.so \
  lib/pkgconfig/attn.pc lib/cmake/attn/attnConfig.cmake lib/cmake/attn/attnConfigVersion.cmake
install: lib $(LIB)/attn.pc $(LIB)/attnConfig.cmake $(LIB)/attnConfigVersion.cmake ## use: header, library, pkg-config and CMake files under PREFIX
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig' \
	  '$(DESTDIR)$(PREFIX)/lib/cmake/attn'
	install -m 644 attn.h '$(DESTDIR)$(PREFIX)/include'
	install -m 644 $(LIB)/libattn.a $(LIB)/$(SO) '$(DESTDIR)$(PREFIX)/lib'
	ln -sf $(SO) '$(DESTDIR)$(PREFIX)/lib/libattn.so.$(MAJOR)'
	ln -sf libattn.so.$(MAJOR) '$(DESTDIR)$(PREFIX)/lib/libattn.so'
	install -m 644 $(LIB)/attn.pc '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	install -m 644 $(LIB)/attnConfig.cmake $(LIB)/attnConfigVersion.cmake \
	  '$(DESTDIR)$(PREFIX)/lib/cmake/attn'

uninstall: ## use: remove them
	cd '$(DESTDIR)$(PREFIX)' && rm -f $(INSTALLED)

test-install: ## test: programs that use an installation by pkg-config and by CMake
	@MAKE='$(MAKE)' VERSION=$(VERSION) sh tests/header/install.sh

.PHONY: clean
clean: ## maintain: remove build/ and attn_flat.h
	rm -rf $(BUILD) attn_flat.h
