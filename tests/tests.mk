# tests.mk owns how the cmocka runner is built and run: natively, with clang, with SLEEF, under the
# sanitizers, and for ARM under qemu. The top Makefile includes it. Everything lands in build/tests.

TEST_ROOMS := tests/calls tests/compose $(wildcard tests/families/*)
TEST_SOURCES := $(sort $(wildcard tests/*.c $(TEST_ROOMS:%=%/*.c)))
TEST_OUT := build/tests
TEST_WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
TEST_FLAGS := -std=c99 -D_POSIX_C_SOURCE=200809L -D_FILE_OFFSET_BITS=64 $(TEST_WARNINGS) -I. -Itests

# SLEEF, where it is, judges attn_exp as well.
TEST_SLEEF := $(if $(wildcard /usr/include/sleef.h /usr/include/*/sleef.h),-DATTN_TEST_SLEEF)
TEST_SLEEF_LIB := $(if $(TEST_SLEEF),-lsleef)

# What a test reads of attn.h: its declarations.
TEST_READS := $(wildcard tests/*.h $(TEST_ROOMS:%=%/*.h)) $(shell find attn/api -name '*.h') | attn.h

# $(call hooked,NAME,IMPLEMENTATION,OBJCOPY): the implementation, calling the tests' malloc and free.
define hooked
$(TEST_OUT)/$(1)/attn.o: $(2)
	@mkdir -p $$(@D)
	$(3) --redefine-sym malloc=hook_malloc --redefine-sym free=hook_free $$< $$@
endef

# $(call runner,NAME,COMPILER,FLAGS,IMPLEMENTATION,LIBRARIES,OBJCOPY): one object a source, so that
# an edit rebuilds one.
define runner
$(call hooked,$(1),$(4),$(6))
$(TEST_OUT)/$(1)/%.o: tests/%.c $$(TEST_READS)
	@mkdir -p $$(@D)
	$(2) $$(TEST_FLAGS) $(3) -c -o $$@ $$<
$(TEST_OUT)/$(1)/runner: $$(TEST_SOURCES:tests/%.c=$(TEST_OUT)/$(1)/%.o) $(TEST_OUT)/$(1)/attn.o
	$(2) $(3) -o $$@ $$^ $(5) -lpthread -lm
endef

TEST_NATIVE := $(TEST_OUT)/native/runner
TEST_ARM64 := $(TEST_OUT)/arm64/runner
TEST_ARM32 := $(TEST_OUT)/arm32/runner

$(eval $(call runner,native,$(CC),-O2 -g $(TEST_SLEEF),$(call compiled_by,$(CC)),-lcmocka $(TEST_SLEEF_LIB),objcopy))

# The same tests of another implementation: compiled by clang; with elementary functions from SLEEF, which have
# other bits and the same bounds.
TEST_NATIVE_OBJECTS := $(TEST_SOURCES:tests/%.c=$(TEST_OUT)/native/%.o)
$(eval $(call hooked,clang,build/impl/clang-O2.o,objcopy))
$(TEST_OUT)/clang/runner: $(TEST_NATIVE_OBJECTS) $(TEST_OUT)/clang/attn.o
	clang -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm
$(eval $(call hooked,sleef,build/impl/gcc-sleef.o,objcopy))
$(TEST_OUT)/sleef/runner: $(TEST_NATIVE_OBJECTS) $(TEST_OUT)/sleef/attn.o
	$(CC) -o $@ $^ -lcmocka -lsleef -lpthread -lm

# The avx512 tier on any x86 processor: tests/emulated does its words by AVX2. The tests are the native
# ones; where AVX2 is missing too, qemu has it.
TEST_EMULATED := $(TEST_OUT)/emulated
$(TEST_EMULATED)/impl.o: tests/emulated/attn.c tests/emulated/avx512.h tests/emulated/avxvnni.h attn.h
	@mkdir -p $(@D)
	gcc -std=gnu11 -O1 -DATTN_SMALL -mavx2 -mfma -mf16c $(TEST_WARNINGS) -Wno-psabi -I. -c -o $@ $<
	@! objdump -d $@ | grep -E '%(zmm|k[0-7]|[xy]mm(1[6-9]|2[0-9]|3[01]))' || { rm $@; false; }
$(eval $(call hooked,emulated,$(TEST_EMULATED)/impl.o,objcopy))
$(TEST_EMULATED)/runner: $(TEST_NATIVE_OBJECTS) $(TEST_EMULATED)/attn.o
	$(CC) -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm

# Word by word against the real ones, where the processor has them.
$(TEST_EMULATED)/words: $(wildcard tests/emulated/*.[ch])
	@mkdir -p $(@D)
	gcc -std=gnu11 -O1 -mavx512f -mavx512bw -mavx512dq -mavx512vl -c -o $@_real.o tests/emulated/words_real.c
	gcc -std=gnu11 -O1 -mavx2 -mfma -mf16c $(TEST_WARNINGS) -Wno-psabi -o $@ tests/emulated/words.c $@_real.o -lm

# cmocka for ARM: Debian's own packages, unpacked here. They are fetched with a private list of
# packages, so that the system's architectures and lists stay as they are and no root is needed.
TEST_CMOCKA := $(TEST_OUT)/cmocka
TEST_APT = apt-get -q -o APT::Architectures::=$(1) -o Dir::State::lists=$(CURDIR)/$(TEST_CMOCKA)/lists \
  -o Dir::Cache=$(CURDIR)/$(TEST_CMOCKA)/cache -o APT::Sandbox::User= -o Acquire::Retries=3
define TEST_FETCH
@mkdir -p $(TEST_CMOCKA)/lists/partial $(TEST_CMOCKA)/cache/archives/partial $(@D)
@cd $(TEST_CMOCKA) && rm -f libcmocka*_$(1).deb && { $(call TEST_APT,$(1)) update || true; } >$(1).log 2>&1 && \
  $(call TEST_APT,$(1)) download libcmocka0:$(1) libcmocka-dev:$(1) >>$(1).log 2>&1 || { cat $(1).log; exit 1; }
@cd $(TEST_CMOCKA) && for deb in libcmocka*_$(1).deb; do dpkg -x $$deb $(1) || exit 1; done
@touch $@
endef

$(TEST_CMOCKA)/arm64/done:
	$(call TEST_FETCH,arm64)
$(TEST_CMOCKA)/armhf/done: | $(TEST_CMOCKA)/arm64/done
	$(call TEST_FETCH,armhf)

# $(call arm_cmocka,ARCHITECTURE,TRIPLET): how to link it.
arm_cmocka = -L$(TEST_CMOCKA)/$(1)/usr/lib/$(2) -Wl,-rpath,$(CURDIR)/$(TEST_CMOCKA)/$(1)/usr/lib/$(2) -lcmocka

$(eval $(call runner,arm64,aarch64-linux-gnu-gcc,-O1 -I$(TEST_CMOCKA)/arm64/usr/include,\
  build/impl/arm64-O2.o,$(call arm_cmocka,arm64,aarch64-linux-gnu),aarch64-linux-gnu-objcopy))
$(eval $(call runner,arm32,arm-linux-gnueabihf-gcc -march=armv7-a -mfpu=neon-vfpv4 -mfloat-abi=hard,\
  -O1 -I$(TEST_CMOCKA)/armhf/usr/include,\
  build/impl/arm32-O1.o,$(call arm_cmocka,armhf,arm-linux-gnueabihf),arm-linux-gnueabihf-objcopy))
$(TEST_SOURCES:tests/%.c=$(TEST_OUT)/arm64/%.o): | $(TEST_CMOCKA)/arm64/done
$(TEST_SOURCES:tests/%.c=$(TEST_OUT)/arm32/%.o): | $(TEST_CMOCKA)/armhf/done

# The sanitizers watch the implementation, unoptimised: optimising that code takes longer than running it. What it
# does to memory that a test has allocated is seen there too.
$(eval $(call hooked,asan-gcc,build/impl/gcc-asan.o,objcopy))
$(TEST_OUT)/asan-gcc/runner: $(TEST_NATIVE_OBJECTS) $(TEST_OUT)/asan-gcc/attn.o
	gcc -fsanitize=address -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm
$(eval $(call hooked,asan-clang,build/impl/clang-asan.o,objcopy))
$(TEST_OUT)/asan-clang/runner: $(TEST_NATIVE_OBJECTS) $(TEST_OUT)/asan-clang/attn.o
	clang -fsanitize=address,undefined -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm

# ATTN_TEST_SCALE=least, since an emulator is some twenty times slower.
TEST_QEMU64 := ATTN_TEST_SCALE=least qemu-aarch64 -L /usr/aarch64-linux-gnu
TEST_QEMU32 := ATTN_TEST_SCALE=least qemu-arm -L /usr/arm-linux-gnueabihf

.PHONY: test-sleef
test-sleef: $(TEST_OUT)/sleef/runner ## test: the attention tests with ATTN_USE_SLEEF
	ATTN_TEST_SCALE=small $< --other-bits --filter 'A*'

.PHONY: test-native test-clang test-emulated test-arm64 test-arm32 test-catalogue golden exp-exhaustive
test-native: $(TEST_NATIVE) ## test: run the tests on every tier of this machine
	$(TEST_NATIVE)

test-clang: $(TEST_OUT)/clang/runner ## test: the same, compiled with clang, smaller random cases, those of A on lesser tiers
	ATTN_TEST_SCALE=least $< --isa $(firstword $(TEST_TIERS))
	@for tier in $(wordlist 2,3,$(TEST_TIERS)); do ATTN_TEST_SCALE=small $< --isa $$tier --filter 'A*' || exit 1; done

TEST_AVX2 := $(if $(shell grep -m1 -w avx2 /proc/cpuinfo 2>/dev/null),,qemu-x86_64 -cpu max)
TEST_EMULATED_HERE := $(if $(filter x86_64,$(shell uname -m)),$(TEST_EMULATED)/runner \
  $(if $(shell grep -m1 avx512dq /proc/cpuinfo 2>/dev/null),$(TEST_EMULATED)/words))
test-emulated: $(TEST_EMULATED_HERE) ## test: the avx512 tier, and avx2 with AVX-VNNI, by emulating vocabularies
	$(if $<,,@echo "NOT RUN: the emulated avx512 tier is for x86")
	$(filter %/words,$^)
	$(if $<,ATTN_TEST_SCALE=least $(TEST_AVX2) $< --isa avx512)
	$(if $<,ATTN_TEST_SCALE=small $(TEST_AVX2) $< --isa avx2 --filter 'O4_*')

# scalar is the same C as everywhere else: A covers what differs between machines.
test-arm64: $(TEST_ARM64) ## test: the same for 64-bit ARM under qemu, smaller random cases
	$(TEST_QEMU64) $(TEST_ARM64) --isa neon
	$(TEST_QEMU64) $(TEST_ARM64) --filter 'O6_*'
	$(TEST_QEMU64) -cpu cortex-a72 $(TEST_ARM64) --filter 'O6_*' # without features
	$(TEST_QEMU64) $(TEST_ARM64) --isa scalar --filter 'A*'

# 32 bits change the vocabulary of neon, the sizes and the addresses: the core mechanisms, the linear states, and
# the generic tests, whose golden hashes go through every mechanism.
test-arm32: $(TEST_ARM32) ## test: the core, the states and the generic tests for 32-bit ARM with NEON
	for some in 'A*' 'E*' 'MM_*' 'api_*' 'causal_*'; do $(TEST_QEMU32) $(TEST_ARM32) --isa neon --filter "$$some" || exit 1; done

test-isa-neon: $(TEST_ARM64)
	$(if $(filter aarch64 armv%,$(shell uname -m)),,$(TEST_QEMU64)) $(TEST_ARM64) --isa neon

test-isa-%: $(TEST_NATIVE) ## test: one tier only: test-isa-scalar, -avx2, -avx512, -neon
	$(TEST_NATIVE) --isa $*

test-catalogue: $(TEST_NATIVE) ## test: check the names in docs/catalogue.md
	$(TEST_NATIVE) --filter api_catalogue

.PHONY: test-bench-report
test-bench-report: ## test: the page of make bench-report has its pictures
	python3 tests/bench_report.py

MUTANTS ?= 20
MUTANT_SEED ?= 1
.PHONY: mutate
mutate: $(TEST_NATIVE) ## maintain: change MUTANTS lines one at a time and see which changes no test notices
	@python3 tests/mutate.py --count $(MUTANTS) --seed $(MUTANT_SEED) \
	  --libs '-lcmocka $(TEST_SLEEF_LIB) -lpthread -lm'

golden: $(TEST_NATIVE) ## maintain: rewrite tests/golden.h from the best tier here
	$(TEST_NATIVE) --golden >$(TEST_OUT)/golden.h
	mv $(TEST_OUT)/golden.h tests/golden.h

exp-exhaustive: $(TEST_NATIVE) ## measure: measure attn_exp on all 2^32 floats (some minutes)
	$(TEST_NATIVE) --exp-exhaustive

$(TEST_OUT)/numerics: tests/numerics/numerics.c tests/oracle.c tests/oracle_terms.c tests/oracle.h attn.h
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -o $@ tests/numerics/numerics.c tests/oracle.c tests/oracle_terms.c -lm

.PHONY: numerics
numerics: $(TEST_OUT)/numerics ## measure: measure the figures of docs/numerics.md (a minute)
	$(TEST_OUT)/numerics

# --- sanitizers

.PHONY: sanitize sanitize-gcc sanitize-clang sanitize-thread
sanitize: sanitize-gcc sanitize-clang sanitize-thread ## test: run the tests under ASan, UBSan and TSan

# Addresses: gcc watches the best tier here in all tests, clang the next one in those of A, and of scalar, which is slow
# here, the masks. Undefined behaviour: clang, here and in all tests of test-spoil. gcc 12 does not align the frames that
# it moves off the stack to detect their use after return, as avx512 needs.
TEST_TIERS := $(if $(filter x86_64 i%86,$(shell uname -m)),$(if $(shell grep -m1 avx512f \
  /proc/cpuinfo 2>/dev/null),avx512) avx2,neon) scalar
sanitized = ASAN_OPTIONS=detect_stack_use_after_return=$(1):allocator_may_return_null=1 \
  ATTN_TEST_SCALE=least $< --isa $(2) --filter '$(3)'

sanitize-gcc: $(TEST_OUT)/asan-gcc/runner
	$(call sanitized,0,$(firstword $(TEST_TIERS)),*)

sanitize-clang: $(TEST_OUT)/asan-clang/runner
	@$(foreach tier,$(wordlist 2,3,$(TEST_TIERS)),$(call sanitized,1,$(tier),$(if $(filter scalar,$(tier)),A2_*,A*)) &&) :

# Every public call with arguments that are nearly right (tests/spoil), which the tests' own calls provide.
TEST_SPOIL := $(TEST_OUT)/spoil
$(TEST_SPOIL)/attn.i: attn.h
	@mkdir -p $(@D)
	gcc -E -P $< >$@
$(TEST_SPOIL)/entries.c: $(TEST_SPOIL)/attn.i tests/spoil/entries.py
	python3 tests/spoil/entries.py $< >$@
$(TEST_SPOIL)/symbols: $(TEST_SPOIL)/attn.i tests/spoil/entries.py
	python3 tests/spoil/entries.py --symbols $< >$@
$(TEST_SPOIL)/impl.o: attn.h tests/header/implementation.c
	@mkdir -p $(@D)
	$(FUZZ_CC) -std=gnu11 -O0 -g1 -DATTN_SMALL -fsanitize=undefined -fno-sanitize=function \
	  -fno-sanitize-recover=all -I. -c -o $@ tests/header/implementation.c
$(TEST_SPOIL)/attn.o: $(TEST_SPOIL)/impl.o $(TEST_SPOIL)/symbols
	objcopy --redefine-syms=$(TEST_SPOIL)/symbols --redefine-sym malloc=hook_malloc \
	  --redefine-sym free=hook_free $< $@
$(TEST_SPOIL)/%.o: $(TEST_SPOIL)/%.c
	$(CC) -std=gnu11 -w -O1 -I. -Itests -Itests/spoil -c -o $@ $<
$(TEST_SPOIL)/spoil.o: tests/spoil/spoil.c tests/spoil/spoil.h attn.h
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -Wall -Wextra -O1 -I. -Itests -c -o $@ $<
$(TEST_SPOIL)/runner: $(TEST_NATIVE_OBJECTS) $(TEST_SPOIL)/attn.o \
  $(TEST_SPOIL)/entries.o $(TEST_SPOIL)/spoil.o
	$(FUZZ_CC) -fsanitize=undefined -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm

.PHONY: test-spoil
test-spoil: $(TEST_SPOIL)/runner ## test: spoil the arguments of every public call under UBSan
	SPOIL_ALL=1 ATTN_TEST_SCALE=small $< --isa $(or $(filter avx2,$(TEST_TIERS)),$(firstword $(TEST_TIERS)))

sanitize-thread: attn.h
	@mkdir -p build/sanitize
	@for cc in gcc clang; do \
	  command -v $$cc >/dev/null || { echo "NOT RUN: no $$cc here"; continue; }; \
	  $$cc -std=gnu11 -g1 -O0 -DATTN_SMALL -fno-omit-frame-pointer -fno-sanitize-recover=all -I. \
	    -fsanitize=thread -o build/sanitize/first_use-$$cc tests/header/first_use.c -lpthread -lm || exit 1; \
	  for round in 1 2 3 4 5; do build/sanitize/first_use-$$cc || exit 1; done; \
	done
