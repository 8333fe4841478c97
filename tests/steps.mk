# steps.mk owns the steps of `make test` (all.sh) and what make compiles before them: a step itself
# then only runs, with a log of its own. Longest first, so that the end is not one long step.

TEST_STEPS := test-arm64 test-arm32 test-spoil sanitize-gcc sanitize-clang test-clang test-emulated fuzz-once test-native \
  header-forms examples fuzz-replay header-symbols test-sleef test-gallery test-ring \
  test-onnx test-models test-porting sanitize-thread test-install test-guide test-bench-report $(filter-out header-forms header-symbols,$(HEADER_TESTS))

STEP_NEEDS_test-arm32 := $(TEST_OUT)/arm32/runner
STEP_NEEDS_test-arm64 := $(TEST_OUT)/arm64/runner
STEP_NEEDS_test-native := $(TEST_OUT)/native/runner
STEP_NEEDS_test-clang := $(TEST_OUT)/clang/runner
STEP_NEEDS_test-emulated := $(TEST_EMULATED_HERE)
STEP_NEEDS_test-sleef := $(TEST_OUT)/sleef/runner
STEP_NEEDS_sanitize-gcc := $(TEST_OUT)/asan-gcc/runner
STEP_NEEDS_test-spoil := $(TEST_OUT)/spoil/runner
STEP_NEEDS_sanitize-clang := $(TEST_OUT)/asan-clang/runner
STEP_NEEDS_fuzz-once := $(BUILD)/fuzz/fuzz
STEP_NEEDS_fuzz-replay := $(BUILD)/fuzz/replay
STEP_NEEDS_examples := $(call compiled_by,$(CC)) $(EXAMPLES_OPENMP)
STEP_NEEDS_test-gallery := build/impl/gcc-O2.o
STEP_NEEDS_test-onnx := build/onnx/nodes
STEP_NEEDS_test-models := build/models/generate build/models/encode build/models/train build/models/gradients
STEP_NEEDS_test-porting := build/porting/porting
STEP_NEEDS_test-ring := build/impl/gcc-O2.o
step_needs = $(or $(STEP_NEEDS_$(1)),$(if $(filter header-row-%,$(1)),$(1:header-row-%=build/impl/%.o),\
  $(call header_needs,$(1:header-%=%))))

.PHONY: test-steps test-needs $(TEST_STEPS:%=step-%)
test-steps:
	@echo $(TEST_STEPS)

test-needs: $(foreach step,$(TEST_STEPS),$(call step_needs,$(step)))

$(TEST_STEPS:%=step-%): step-%: $$(call step_needs,$$*)
	@sh tests/all.sh step $*
