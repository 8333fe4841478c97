# examples.mk owns the demo and the example programs. Included by the top Makefile; everything lands
# in build/demo and build/examples. `make demo IMAGE=picture.ppm` denoises a picture of yours.

IMAGE ?= docs/ascent.pgm

.PHONY: demo examples ring test-ring

# No flags but these: the header finds the processor's instructions by itself, and ATTN_STATIC leaves
# out what the program does not call.
DEMO_FLAGS := -O2 -DATTN_STATIC -I.
build/demo/denoise: docs/examples/denoise.c docs/examples/image.h docs/examples/fma_peak.h attn.h
	@mkdir -p $(@D)
	@echo "compiling the program with attn.h inside, for every instruction set: some 10 seconds"
	$(CC) $(DEMO_FLAGS) -o $@ $< -lm

demo: build/demo/denoise ## use: denoise a photograph by attention: make demo IMAGE=picture.ppm
	build/demo/denoise "$(IMAGE)" build/demo

EXAMPLES_OPENMP := $(if $(filter cc gcc,$(CC)),build/impl/gcc-openmp.o)
examples: $(call compiled_by,$(CC)) $(EXAMPLES_OPENMP) ## use: build and run the programs of docs/examples
	CC="$(CC)" IMPL=$< IMPL_OPENMP=$(EXAMPLES_OPENMP) sh docs/examples/test_examples.sh

# For the models below: OPENMP= is for compilers without, WORKERS says how many threads are timed.
OPENMP ?= -fopenmp
WORKERS ?= 1
MODEL ?=
OPTIONS ?=

# The encoder: `make encode MODEL=folder`, OPTIONS for more; without MODEL a tiny BERT of random numbers.
.PHONY: encode encode-time
ENCODER := $(addprefix docs/examples/,encoder.h encoder_family.h encoder_read.h texts.h wordpiece.h bpe.h \
  sentencepiece.h nfc.h utf8.h unicode.h safetensors.h json.h progress.h fma_peak.h)

build/demo/encode: docs/examples/encode.c $(ENCODER) attn.h
	@mkdir -p $(@D)
	@echo "compiling the program with attn.h inside: a minute or two"
	$(CC) $(DEMO_FLAGS) $(OPENMP) -o $@ $< -lm

build/demo/test_encode: docs/examples/test_encode.c docs/examples/safetensors_write.h
	@mkdir -p $(@D)
	$(CC) -O2 -I. -o $@ $< -lm

ifneq ($(MODEL),)
encode: build/demo/encode ## use: how alike sentences are: make encode MODEL=folder OPTIONS=--pairs
	build/demo/encode $(OPTIONS) "$(MODEL)" "A man is eating." "Someone has a meal." "It rains."
else
encode: build/demo/encode build/demo/test_encode
	@mkdir -p build/demo/tiny-bert
	build/demo/test_encode make build/demo/tiny-bert F32 3 24 3 40 32 70
	build/demo/encode build/demo/tiny-bert "the cat sat" "the cats sat on the mat" "a dog"
	@echo "These are cosines by a model of random numbers. A real one: make encode MODEL=folder, of one of these"
	@echo "families (docs/examples/README.md says more):"
	@build/demo/encode --families
endif

encode-time: build/demo/encode build/demo/test_encode ## measure: its tokens a second, on random numbers of MiniLM's size
	@mkdir -p build/demo/bert
	build/demo/test_encode make build/demo/bert F32 6 384 12 1536 512 30522
	OMP_NUM_THREADS=$(WORKERS) build/demo/encode --time build/demo/bert

# The atom mapper: `make map` takes published weights from PyPI (3 MB), once, and maps REACTION.
.PHONY: map map-time
MAP := build/demo/map
REACTION ?= Brc1cccnc1.OB(O)c1ccc(C=O)cc1.O=C([O-])[O-]~[K+]~[K+].C1COCCO1>>O=Cc1ccc(-c2cccnc2)cc1
MAPPER := $(addprefix docs/examples/,smiles.h atom_map.h map_picture.h) $(ENCODER)

$(MAP)/map: docs/examples/map.c $(MAPPER) attn.h
	@mkdir -p $(@D)
	$(CC) $(DEMO_FLAGS) $(OPENMP) -o $@ $< -lm

$(MAP)/model.safetensors: docs/examples/map_weights.py
	@python3 $< $(@D) $(WHEEL)

map: $(MAP)/model.safetensors $(MAP)/map ## use: which atom becomes which, by a trained model: make map REACTION="CC(=O)O.OCC>>CC(=O)OCC"
	$(MAP)/map --pairs --svg $(MAP)/map.svg $(MAP) '$(REACTION)'
	@echo "the picture of it: $(MAP)/map.svg"

map-time: $(MAP)/model.safetensors $(MAP)/map ## measure: its reactions a second
	OMP_NUM_THREADS=$(WORKERS) $(MAP)/map --time --file docs/examples/test_map.tsv $(MAP)

# Language models: `make generate MODEL=folder PROMPT=text`, OPTIONS for more; without MODEL a tiny one of random numbers.
.PHONY: generate generate-time
GENERATE := $(addprefix docs/examples/,generate.c batch.h sampling.h decoder.h experts.h mamba2.h model_config.h model_matrix.h \
  model_files.h work.h progress.h safetensors.h json.h safetensors_write.h bpe.h nfc.h utf8.h unicode.h)
MODELS_VENV ?=
PROMPT ?= Once upon a time

build/demo/generate build/demo/test_generate: build/demo/%: docs/examples/%.c $(GENERATE) attn.h
	@mkdir -p $(@D)
	@echo "compiling the program with attn.h inside: a minute or two"
	$(CC) -std=c99 $(DEMO_FLAGS) $(OPENMP) -o $@ $< -lm

ifneq ($(MODEL),)
generate: build/demo/generate ## use: the language model: make generate MODEL=folder PROMPT="Once upon a time"
	build/demo/generate --time $(OPTIONS) "$(MODEL)" "$(PROMPT)"
else
generate: build/demo/test_generate
	build/demo/test_generate make build/demo/tiny tiny
	build/demo/test_generate run --time --ids --temperature 1 --tokens 64 build/demo/tiny "1 2 3" "4 5"
	@echo "These are tokens of a model of random numbers. A real one: make generate MODEL=folder PROMPT=text"
	@echo "(docs/examples/README.md says which models and which tokenisers)"
endif

generate-time: build/demo/test_generate ## measure: its tokens a second, on 135 million random numbers; with MODELS_VENV= PyTorch's too
	build/demo/test_generate make build/demo/135m 135m
	@for weights in f32 bf16 int8 int4; do echo "weights $$weights:"; \
	  build/demo/test_generate run --time --ids --no-eos --workers $(WORKERS) --tokens 33 --weights $$weights $(OPTIONS) \
	    build/demo/135m "$$(seq -s ' ' 512)" > build/demo/135m.ids || exit 1; done
ifneq ($(MODELS_VENV),)
	OMP_NUM_THREADS=1 "$(MODELS_VENV)/bin/python" tests/models/eager.py build/demo/135m
endif

# A language model that learns: `make train`, for some two minutes on two cores, from the project's own documents, or from
# TEXTS; OPTIONS for more (train.c has them). The model goes to TRAINED, where generate reads it.
.PHONY: train train-sparse train-time
TRAIN := $(addprefix docs/examples/,trainer.h trainer_files.h corpus.h loss_plot.h pool.h) \
  $(filter-out docs/examples/generate.c,$(GENERATE))
TRAINED ?= build/demo/trained
TEXTS ?= README.md $(sort $(wildcard docs/*.md)) docs/examples/README.md \
  $(filter-out attn/api/left_out.h,$(sort $(wildcard attn/api/*.h attn/api/*/*.h attn/api/*/*/*.h)))

build/demo/train build/demo/test_train: build/demo/%: docs/examples/%.c docs/examples/train.c $(TRAIN) attn.h
	@mkdir -p $(@D)
	@echo "compiling the program with attn.h inside: a minute or two"
	$(CC) -std=c99 $(DEMO_FLAGS) -o $@ $< -lm -pthread

train: build/demo/train ## use: a language model learns from texts, draws its losses and writes: make train TEXTS=file OPTIONS=--resume
	@build/demo/train $(OPTIONS) "$(TRAINED)" $(TEXTS)

# The same model goes on learning with a window of 8 tokens and one that all see, in place of all tokens.
SPARSE ?= --window 8 --globals 1
TUNED := --from "$(TRAINED)" --steps 100 --rate 0.0005 --write 0
train-sparse: build/demo/train ## use: the model of make train learns to do with sparse attention, and its losses are compared
	@test -s "$(TRAINED)/model.safetensors" || { echo "first: make train"; exit 1; }
	@echo "100 steps with all tokens:"
	@build/demo/train $(TUNED) $(OPTIONS) "$(TRAINED)-full" $(TEXTS)
	@echo "100 steps with $(SPARSE):"
	@build/demo/train $(TUNED) $(SPARSE) $(OPTIONS) "$(TRAINED)-sparse" $(TEXTS)

train-time: build/demo/train ## measure: its tokens a second, and with MODELS_VENV= PyTorch's, losses side by side
ifneq ($(MODELS_VENV),)
	"$(MODELS_VENV)/bin/python" tests/models/training.py --time build/demo/train build/demo/train-time $(WORKERS) $(TEXTS)
else
	build/demo/train --workers $(WORKERS) --steps 50 --every 50 --write 0 build/demo/train-time $(TEXTS)
endif

# Ring attention needs MPI (Debian: openmpi-bin, libopenmpi-dev); nothing else here does.
RANKS ?= 4
MPIRUN ?= mpirun --oversubscribe $(if $(filter 0,$(shell id -u)),--allow-run-as-root)

build/ring/demo: docs/examples/ring_attention.c attn.h
	@mkdir -p $(@D)
	mpicc -O2 -I. -o $@ $< -lm

ring: build/ring/demo ## use: attention over a ring of RANKS (4) MPI processes on this machine
	$(MPIRUN) -n $(RANKS) $< --check

test-ring: build/impl/gcc-O2.o ## test: check ring attention over 1 to 4 MPI ranks
	IMPL=$< sh docs/examples/test_ring.sh
