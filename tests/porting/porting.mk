# porting.mk owns the check of docs/porting.md: each row of its tables is compiled, run and judged; and of the lines of C on
# other pages, which are compiled.

build/porting/rows.h: docs/porting.md docs/content.md docs/heads.md docs/maps.md README.md tests/porting/porting.py
	@mkdir -p $(@D)
	@python3 tests/porting/porting.py $@ $(@D)/pages.c

build/porting/pages: build/porting/rows.h tests/porting/pages.h attn.h
	$(CC) -std=c99 -Wall -Wextra -Werror -Wno-unused -Wno-declaration-after-statement -fsyntax-only -I. $(@D)/pages.c
	@touch $@

build/porting/porting: tests/porting/porting.c build/porting/rows.h $(call compiled_by,$(CC))
	$(CC) $(TEST_FLAGS) -Wno-unused-variable -Werror -O1 -g -Ibuild/porting -o $@ $< $(call compiled_by,$(CC)) -lm

.PHONY: test-porting
test-porting: build/porting/porting build/porting/pages ## test: compile, run and judge every row of docs/porting.md
	$<
