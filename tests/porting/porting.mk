# porting.mk owns the check of docs/porting.md: each row of its tables is compiled, run and judged.

build/porting/rows.h: docs/porting.md tests/porting/porting.py
	@mkdir -p $(@D)
	@python3 tests/porting/porting.py $@

build/porting/porting: tests/porting/porting.c build/porting/rows.h $(call compiled_by,$(CC))
	$(CC) $(TEST_FLAGS) -Wno-unused-variable -Werror -O1 -g -Ibuild/porting -o $@ $< $(call compiled_by,$(CC)) -lm

.PHONY: test-porting
test-porting: build/porting/porting ## test: compile, run and judge every row of docs/porting.md
	$<
