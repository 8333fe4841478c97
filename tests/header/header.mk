# header.mk owns the objects of the implementation, one for each row of matrix.txt, and the checks of
# the header as a file. Whoever needs an object names build/impl/ROW.o, so that each is made once.

HEADER_ROWS := $(shell sed -n 's/^\([a-z][^ ]*\) .*/\1/p' tests/header/matrix.txt)
HEADER_CHECKS := symbols budget forms only warnings macros cpus msvc
HEADER_TESTS := $(HEADER_CHECKS:%=header-%) $(HEADER_ROWS:%=header-row-%)

build/impl/%.o: attn.h tests/header/implementation.c tests/header/matrix.txt tests/header/impl.sh
	@sh tests/header/impl.sh $*

# $(call compiled_by,COMPILER): the object for a compiler of the user's choice.
compiled_by = build/impl/$(if $(filter cc gcc,$(1)),gcc,$(notdir $(1)))-O2.o

HEADER_NEEDS_symbols := gcc-O2 gcc-O0 gcc-O3 clang-O2 clang-O0 clang-O3 gcc-openmp
HEADER_NEEDS_budget := gcc-O2 gcc-O0
HEADER_NEEDS_cpus := gcc-O2
HEADER_NEEDS_only := gcc-O2
header_needs = $(HEADER_NEEDS_$(1):%=build/impl/%.o)

.PHONY: test-header $(HEADER_TESTS)
test-header: $(HEADER_TESTS) ## test: check the header as a file: compilers, standards, symbols, macros, size

.SECONDEXPANSION:
$(HEADER_CHECKS:%=header-%): header-%: $$(call header_needs,$$*) attn.h
	@sh tests/header/$*.sh
$(HEADER_ROWS:%=header-row-%): header-row-%: build/impl/%.o
	@sh tests/header/row.sh $*
