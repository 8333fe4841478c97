# models.mk owns the check of docs/examples/generate.c, encode.c and train.c against transformers, on tiny models of random numbers.
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

.PHONY: test-models
test-models: build/models/generate build/models/encode build/models/train ## test: language models, encoders and training against transformers (fetches it)
	@MODELS_VENV='$(MODELS_VENV)' sh tests/models/run.sh
