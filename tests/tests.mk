# tests.mk owns how the cmocka runner is built and run: natively, with clang, and for ARM under
# qemu. The top Makefile includes it. Everything lands in build/tests.

TEST_SOURCES := $(sort $(wildcard tests/*.c))
TEST_PARTS := $(TEST_SOURCES) $(wildcard tests/*.h)
TEST_OUT := build/tests
TEST_WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes
TEST_FLAGS := -std=c99 -D_POSIX_C_SOURCE=200809L -D_FILE_OFFSET_BITS=64 -O2 -g $(TEST_WARNINGS) -I.

# SLEEF, where it is, judges attn_exp as well.
TEST_SLEEF := $(if $(wildcard /usr/include/sleef.h /usr/include/*/sleef.h),-DATTN_TEST_SLEEF)
TEST_SLEEF_LIB := $(if $(TEST_SLEEF),-lsleef)

# $(call test_objects,NAME): one object a source, so that an edit rebuilds one.
test_objects = $(TEST_SOURCES:tests/%.c=$(TEST_OUT)/$(1)/%.o)

TEST_NATIVE := $(TEST_OUT)/native/runner
TEST_CLANG := $(TEST_OUT)/clang/runner
TEST_ARM64 := $(TEST_OUT)/arm64/runner
TEST_ARM32 := $(TEST_OUT)/arm32/runner

$(TEST_OUT)/native/%.o: tests/%.c attn.h $(wildcard tests/*.h)
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) $(TEST_SLEEF) -c -o $@ $<
$(TEST_NATIVE): $(call test_objects,native)
	$(CC) -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm

$(TEST_OUT)/clang/%.o: tests/%.c attn.h $(wildcard tests/*.h)
	@mkdir -p $(@D)
	clang $(TEST_FLAGS) $(TEST_SLEEF) -c -o $@ $<
$(TEST_CLANG): $(call test_objects,clang)
	clang -o $@ $^ -lcmocka $(TEST_SLEEF_LIB) -lpthread -lm

# cmocka for ARM: Debian's own packages, unpacked here. They are fetched with a private list of
# packages, so that the system's architectures and lists stay as they are and no root is needed.
TEST_CMOCKA := $(TEST_OUT)/cmocka
TEST_APT = apt-get -q -o APT::Architectures::=$(1) -o Dir::State::lists=$(CURDIR)/$(TEST_CMOCKA)/lists \
  -o Dir::Cache=$(CURDIR)/$(TEST_CMOCKA)/cache -o APT::Sandbox::User= -o Acquire::Retries=3
define TEST_FETCH
@mkdir -p $(TEST_CMOCKA)/lists/partial $(TEST_CMOCKA)/cache/archives/partial $(@D)
@cd $(TEST_CMOCKA) && rm -f libcmocka*_$(1).deb && { $(call TEST_APT,$(1)) update || true; } && \
  $(call TEST_APT,$(1)) download libcmocka0:$(1) libcmocka-dev:$(1) && \
  for deb in libcmocka*_$(1).deb; do dpkg -x $$deb $(1) || exit 1; done
@touch $@
endef

$(TEST_CMOCKA)/arm64/done:
	$(call TEST_FETCH,arm64)
$(TEST_CMOCKA)/armhf/done: | $(TEST_CMOCKA)/arm64/done
	$(call TEST_FETCH,armhf)

$(TEST_OUT)/arm64/%.o: tests/%.c attn.h $(wildcard tests/*.h) $(TEST_CMOCKA)/arm64/done
	@mkdir -p $(@D)
	aarch64-linux-gnu-gcc $(TEST_FLAGS) -I$(TEST_CMOCKA)/arm64/usr/include -c -o $@ $<
$(TEST_ARM64): $(call test_objects,arm64)
	aarch64-linux-gnu-gcc -o $@ $^ -L$(TEST_CMOCKA)/arm64/usr/lib/aarch64-linux-gnu \
	  -Wl,-rpath,$(CURDIR)/$(TEST_CMOCKA)/arm64/usr/lib/aarch64-linux-gnu -lcmocka -lpthread -lm

TEST_ARM32_FLAGS := -march=armv7-a -mfpu=neon-vfpv4 -mfloat-abi=hard
$(TEST_OUT)/arm32/%.o: tests/%.c attn.h $(wildcard tests/*.h) $(TEST_CMOCKA)/armhf/done
	@mkdir -p $(@D)
	arm-linux-gnueabihf-gcc $(TEST_ARM32_FLAGS) $(TEST_FLAGS) \
	  -I$(TEST_CMOCKA)/armhf/usr/include -c -o $@ $<
$(TEST_ARM32): $(call test_objects,arm32)
	arm-linux-gnueabihf-gcc -o $@ $^ -L$(TEST_CMOCKA)/armhf/usr/lib/arm-linux-gnueabihf \
	  -Wl,-rpath,$(CURDIR)/$(TEST_CMOCKA)/armhf/usr/lib/arm-linux-gnueabihf -lcmocka -lpthread -lm

# ATTN_TEST_SCALE=small, since an emulator is some twenty times slower.
TEST_QEMU64 := ATTN_TEST_SCALE=small qemu-aarch64 -L /usr/aarch64-linux-gnu
TEST_QEMU32 := ATTN_TEST_SCALE=small qemu-arm -L /usr/arm-linux-gnueabihf

# Elementary functions from SLEEF: other bits, the same bounds.
TEST_SLEEF_RUNNER := $(TEST_OUT)/sleef/runner
$(TEST_OUT)/sleef/%.o: tests/%.c attn.h $(wildcard tests/*.h)
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -DATTN_USE_SLEEF -c -o $@ $<
$(TEST_SLEEF_RUNNER): $(call test_objects,sleef)
	$(CC) -o $@ $^ -lcmocka -lsleef -lpthread -lm

.PHONY: test-sleef
test-sleef: $(TEST_SLEEF_RUNNER) ## the attention tests with ATTN_USE_SLEEF
	ATTN_TEST_SCALE=small $(TEST_SLEEF_RUNNER) --filter 'A*'

.PHONY: test-native test-clang test-arm64 test-arm32 test-catalogue golden exp-exhaustive
test-native: $(TEST_NATIVE) ## run the tests on every tier of this machine
	$(TEST_NATIVE)

test-clang: $(TEST_CLANG) ## the same, compiled with clang
	$(TEST_CLANG)

# scalar is the same C as everywhere else: A covers what differs between machines.
test-arm64: $(TEST_ARM64) ## the same for 64-bit ARM under qemu, smaller random cases
	$(TEST_QEMU64) $(TEST_ARM64) --isa neon
	$(TEST_QEMU64) $(TEST_ARM64) --isa scalar --filter 'A*'

test-arm32: $(TEST_ARM32) ## the same for 32-bit ARM with NEON
	$(TEST_QEMU32) $(TEST_ARM32) --isa neon
	$(TEST_QEMU32) $(TEST_ARM32) --isa scalar --filter 'A*'

test-isa-neon: $(TEST_ARM64)
	$(if $(filter aarch64 armv%,$(shell uname -m)),,$(TEST_QEMU64)) $(TEST_ARM64) --isa neon

test-isa-%: $(TEST_NATIVE) ## one tier only: test-isa-scalar, -avx2, -avx512, -neon
	$(TEST_NATIVE) --isa $*

test-catalogue: $(TEST_NATIVE) ## check the names in docs/catalogue.md
	$(TEST_NATIVE) --filter api_catalogue

golden: $(TEST_NATIVE) ## rewrite tests/golden.h from the best tier here
	$(TEST_NATIVE) --golden >$(TEST_OUT)/golden.h
	mv $(TEST_OUT)/golden.h tests/golden.h

exp-exhaustive: $(TEST_NATIVE) ## measure attn_exp on all 2^32 floats (some minutes)
	$(TEST_NATIVE) --exp-exhaustive

$(TEST_OUT)/numerics: tests/numerics/numerics.c tests/oracle.c tests/oracle_terms.c tests/oracle.h attn.h
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -o $@ tests/numerics/numerics.c tests/oracle.c tests/oracle_terms.c -lm

.PHONY: numerics
numerics: $(TEST_OUT)/numerics ## measure the figures of docs/numerics.md (a minute)
	$(TEST_OUT)/numerics
