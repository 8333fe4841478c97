# Makefile owns the targets. It builds nothing a user needs: attn.h is used by copying it.
# Everything made here lands in build/, except the two generated headers.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
# -O1 takes minutes to compile and then runs three times as fast.
FUZZ_O ?= -O0
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build

PARTS := $(shell find attn -name '*.h' ! -name '.*' | sort)
VERSION := $(shell awk '$$2 == "ATTN_VERSION" { printf "%d.%d.%d", $$3 / 10000, \
             $$3 / 100 % 100, $$3 % 100 }' attn/api/types.h)

.PHONY: help
help: ## list the targets
	@echo "attn.h $(VERSION): copy attn.h into your project; nothing here need be built."
	@echo
	@cat $(MAKEFILE_LIST) | awk -F ':.*## ' '/^[a-zA-Z_][a-zA-Z0-9_.%-]*:.*## / \
	  { printf "  make %-18s %s\n", $$1, $$2 }'
	@echo
	@echo "  CC, PREFIX, DESTDIR, FUZZ_SECONDS, JOBS may be set: make test CC=clang"

# The tests, benchmarks and examples say themselves how they are built.
-include tests/header/header.mk
-include tests/tests.mk
-include bench/bench.mk
-include docs/examples/examples.mk
-include docs/gallery/gallery.mk
-include tests/steps.mk

# --- the header ---------------------------------------------------------------------------------

attn.h: $(PARTS) attn/amalgamate ## write the header from attn/
	attn/amalgamate

attn_flat.h: $(PARTS) attn/amalgamate ## write the form for people who rename or paste the header
	attn/amalgamate --flat

.PHONY: check-amalgam
check-amalgam: ## fail if attn.h is not what attn/ makes
	@mkdir -p $(BUILD)
	@attn/amalgamate $(BUILD)/attn.h
	@cmp attn.h $(BUILD)/attn.h || { echo "attn.h is stale: run make attn.h"; exit 1; }
	@echo "attn.h is what attn/ makes"

# --- all tests ----------------------------------------------------------------------------------

.PHONY: deps test
deps: ## install what the tests need (Debian; says what is missing elsewhere)
	@tests/deps.sh

test: deps ## run every test: all tiers, compilers, emulated ARM, sanitizers, fuzzing
	@MAKE='$(MAKE)' JOBS='$(JOBS)' FUZZ_SECONDS='$(FUZZ_SECONDS)' tests/all.sh

# --- fuzzing ------------------------------------------------------------------------------------

FUZZ_PARTS := $(wildcard tests/fuzz/*.[ch])
FUZZ_FLAGS := -std=gnu11 -g1 -DATTN_SMALL -fno-omit-frame-pointer -fno-sanitize-recover=all -I.

$(BUILD)/fuzz/fuzz: attn.h $(FUZZ_PARTS)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_O) -fsanitize=fuzzer,address,undefined -o $@ tests/fuzz/fuzz.c -lm

$(BUILD)/fuzz/replay: attn.h $(FUZZ_PARTS)
	@mkdir -p $(@D)
	$(CC) $(FUZZ_FLAGS) -O0 -fsanitize=address,undefined -o $@ tests/fuzz/fuzz.c \
	  tests/fuzz/replay.c -lm

.PHONY: fuzz fuzz-replay fuzz-corpus
fuzz: $(BUILD)/fuzz/fuzz ## fuzz the descriptors for FUZZ_SECONDS (60) under ASan and UBSan
	@mkdir -p $(BUILD)/fuzz/corpus
	cd $(BUILD)/fuzz && ./fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=256 -len_control=0 -timeout=20 \
	  -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 corpus ../../tests/fuzz/corpus

fuzz-replay: $(BUILD)/fuzz/replay ## run the committed corpus once, with any compiler
	$(BUILD)/fuzz/replay tests/fuzz/corpus/*

# Takes the smallest set of inputs that reaches all the code the fuzzer has found.
fuzz-corpus: $(BUILD)/fuzz/fuzz
	@mkdir -p $(BUILD)/fuzz/corpus $(BUILD)/fuzz/minimal
	$(BUILD)/fuzz/fuzz -set_cover_merge=1 -use_counters=0 -max_len=256 $(BUILD)/fuzz/minimal \
	  tests/fuzz/corpus $(BUILD)/fuzz/corpus

# --- style --------------------------------------------------------------------------------------

FORMATTED = $(shell find attn tests bench docs -name '*.[ch]' -o -name '*.cc' -o -name '*.cpp' | sort)

.PHONY: lint format
lint: ## check the layout, the scripts and the size of the source files
	@clang-format --dry-run -Werror $(FORMATTED)
	@for script in attn/amalgamate .ci/run $$(find tests bench docs -name '*.sh'); do \
	  sh -n $$script || exit 1; done
	@wc -l $(PARTS) | awk '$$2 != "total" && $$1 > 700 { print $$2 ": " $$1 " lines"; bad = 1 } \
	  END { exit bad }'
	@if grep -rnE '[[:space:]]+$$|	' $(PARTS) attn/amalgamate; then echo "stray white space"; exit 1; fi
	@echo "lint: $(words $(FORMATTED)) files are in order"

format: ## apply the layout
	clang-format -i $(FORMATTED)

# --- installation -------------------------------------------------------------------------------

.PHONY: install uninstall
install: attn.h ## copy attn.h and attn.pc under PREFIX
	install -d '$(DESTDIR)$(PREFIX)/include' '$(DESTDIR)$(PREFIX)/lib/pkgconfig'
	install -m 644 attn.h '$(DESTDIR)$(PREFIX)/include/attn.h'
	@printf '%s\n' 'prefix=$(PREFIX)' 'includedir=$${prefix}/include' '' 'Name: attn' \
	  'Description: attention on the CPU, in one C header' 'Version: $(VERSION)' \
	  'Cflags: -I$${includedir}' 'Libs: -lm' >'$(DESTDIR)$(PREFIX)/lib/pkgconfig/attn.pc'

uninstall: ## remove both
	rm -f '$(DESTDIR)$(PREFIX)/include/attn.h' '$(DESTDIR)$(PREFIX)/lib/pkgconfig/attn.pc'

.PHONY: clean
clean: ## remove build/ and attn_flat.h
	rm -rf $(BUILD) attn_flat.h
