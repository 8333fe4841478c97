# models.mk owns the check of docs/examples/generate.c, encode.c and train.c against transformers, on tiny models of random
# numbers, and of gradients against PyTorch's autograd.
# MODELS_VENV names a virtual environment that has what requirements.txt lists; without, one is made in build/models.

build/models/generate: docs/examples/generate.c $(GENERATE) $(call compiled_by,$(CC))
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -DATTN_IMPLEMENTED -O1 -g -o $@ $< $(call compiled_by,$(CC)) -lm

build/models/encode: docs/examples/encode.c $(ENCODER) $(call compiled_by,$(CC))
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -DATTN_IMPLEMENTED -O1 -g -o $@ $< $(call compiled_by,$(CC)) -lm

build/models/train: docs/examples/train.c $(TRAIN) $(call compiled_by,$(CC))
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -DATTN_IMPLEMENTED -O1 -g -o $@ $< $(call compiled_by,$(CC)) -lm -pthread

build/models/gradients: tests/models/gradients.c $(call compiled_by,$(CC))
	@mkdir -p $(@D)
	$(CC) $(TEST_FLAGS) -DATTN_IMPLEMENTED -O1 -g -o $@ $< $(call compiled_by,$(CC)) -lm

.PHONY: test-models
test-models: build/models/generate build/models/encode build/models/train build/models/gradients ## test: language models, encoders, training and gradients against transformers and PyTorch (fetches them)
	@MODELS_VENV='$(MODELS_VENV)' sh tests/models/run.sh
