# examples.mk owns the demo and the example programs. Included by the top Makefile; everything lands
# in build/demo and build/examples. `make demo IMAGE=picture.ppm` denoises a picture of yours.

IMAGE ?= docs/ascent.pgm

.PHONY: demo examples ring test-ring

# No flags but these: the header finds the processor's instructions by itself.
build/demo/denoise: docs/examples/denoise.c docs/examples/image.h docs/examples/fma_peak.h attn.h
	@mkdir -p $(@D)
	$(CC) -O2 -I. -o $@ $< -lm

demo: build/demo/denoise ## denoise a photograph by attention: make demo IMAGE=picture.ppm
	build/demo/denoise "$(IMAGE)" build/demo

examples: attn.h ## build and run the programs of docs/examples
	CC="$(CC)" sh docs/examples/test_examples.sh

# Ring attention needs MPI (Debian: openmpi-bin, libopenmpi-dev); nothing else here does.
RANKS ?= 4
MPIRUN ?= mpirun --oversubscribe $(if $(filter 0,$(shell id -u)),--allow-run-as-root)

build/ring/demo: docs/examples/ring_attention.c attn.h
	@mkdir -p $(@D)
	mpicc -O2 -I. -o $@ $< -lm

ring: build/ring/demo ## attention over a ring of RANKS (4) MPI processes on this machine
	$(MPIRUN) -n $(RANKS) $< --check

test-ring: attn.h ## check ring attention over 1 to 4 MPI ranks
	sh docs/examples/test_ring.sh
