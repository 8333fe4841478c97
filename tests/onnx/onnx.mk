# onnx.mk owns the node tests of the ONNX package: cases.py writes them as plain bytes, nodes runs them.

ONNX_SOURCES := $(wildcard tests/onnx/*.c)

build/onnx/nodes: $(ONNX_SOURCES) tests/onnx/node.h $(call compiled_by,$(CC))
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -Itests/onnx -O1 -g -o $@ $(ONNX_SOURCES) $(call compiled_by,$(CC)) -lm

.PHONY: test-onnx
test-onnx: build/onnx/nodes ## test: the ONNX package's own tests of Attention and others (fetches the package)
	@sh tests/onnx/run.sh
