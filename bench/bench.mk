# bench.mk owns the benchmark targets. Included by the top Makefile; everything lands in
# build/bench. ISA="avx2 scalar" and FILTER=regex select, JSON=file.json is written (of several tiers
# file-TIER.json); BENCH_MIN_TIME are seconds an entry; BENCH_FULL=1 runs every case; BENCH_ATTN=attn.h
# measures the generated header instead of the source tree; BENCH_CC=clang BENCH_CXX=clang++ BENCH_OPENMP= another compiler, here one without OpenMP.

BENCH_DIR := build/bench
BENCH_CC ?= gcc
BENCH_CXX ?= g++
BENCH_ATTN ?= all.h
BENCH_OPENMP ?= -fopenmp
BENCH_FLAGS := -O2 -g -Wall -Wextra -Iattn -Ibench -I. $(BENCH_INCLUDE) -DBENCH_ATTN_H='"$(BENCH_ATTN)"'
BENCH_CFLAGS := -std=gnu11 $(BENCH_FLAGS)
# Objects of one form of the header and one compiler; only impl.o holds more of the header than
# its declarations.
BENCH_BIN := $(BENCH_DIR)/$(basename $(BENCH_ATTN))-$(notdir $(firstword $(BENCH_CC)))
BENCH_DEPS := $(wildcard bench/*.h) docs/examples/pool.h $(shell find attn/api -name "*.h") bench/bench.mk
BENCH_HEADER := $(if $(filter all.h,$(BENCH_ATTN)),$(shell find attn -name "*.h"),$(BENCH_ATTN))

.PHONY: bench bench-sparse bench-decode bench-linear bench-quick bench-plots bench-compile bench-arm bench-cache bench-call

$(BENCH_BIN)/%.o: bench/%.c $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(BENCH_CC) $(BENCH_CFLAGS) -c -o $@ $<

# The implementation as its users compile it, plus OpenMP for the ready-made parallel loop.
$(BENCH_BIN)/impl.o: bench/impl.c $(BENCH_DEPS) $(BENCH_HEADER)
	@mkdir -p $(@D)
	$(BENCH_CC) -std=c99 $(BENCH_FLAGS) $(BENCH_OPENMP) -c -o $@ $<

BENCH_COMMON := $(addprefix $(BENCH_BIN)/,impl.o peak.o clock.o problem.o)

$(BENCH_BIN)/quick: $(BENCH_BIN)/quick.o $(BENCH_COMMON)
	$(BENCH_CC) $(BENCH_OPENMP) -o $@ $^ -lm

bench-quick: $(BENCH_BIN)/quick ## measure: percent of the FMA peak for the main shapes, in 20 seconds
	$(BENCH_BIN)/quick $(ISA)

$(BENCH_BIN)/decode: $(BENCH_BIN)/decode.o $(BENCH_BIN)/bandwidth.o $(BENCH_COMMON)
	$(BENCH_CC) $(BENCH_OPENMP) -o $@ $^ -lpthread -lm

bench-decode: $(BENCH_BIN)/decode ## measure: few queries against a long cache: each figure beside its limit
	$(BENCH_BIN)/decode $(ISA)

$(BENCH_BIN)/linear: $(BENCH_BIN)/linear.o $(BENCH_BIN)/approximations.o $(BENCH_COMMON)
	$(BENCH_CC) $(BENCH_OPENMP) -o $@ $^ -lm

bench-linear: $(BENCH_BIN)/linear ## measure: less than quadratic attention against dense: speed, growth, error
	$(BENCH_BIN)/linear $(BENCH_DIR)/linear$(if $(LINEAR_ONLY),-part).csv $(ISA)

# --- make bench: one process per tier, so that OpenBLAS uses the same instructions as ours.

BENCH_MIN_TIME ?= $(if $(BENCH_FULL),1,$(if $(BENCH_SPARSE),0.05,0.1))
BENCH_TIERS := $(or $(ISA),$(if $(filter x86_64,$(shell uname -m)),avx512 avx2,neon) scalar)
# A partial run does not replace the results that bench-plots draws.
BENCH_RESULTS := $(BENCH_DIR)/$(if $(BENCH_SPARSE),sparse/)$(if $(FILTER),filtered/)
# $(call bench_json,TIER,FOLDER)
bench_json = $(if $(JSON),$(if $(word 2,$(BENCH_TIERS)),$(JSON:.json=-$(1).json),$(JSON)),$(2)$(1).json)
BENCH_RUNS := $(addprefix bench-run-,$(BENCH_TIERS))
# OpenBLAS gets kernels of the tier: its own choice for a processor that it does not know is SSE3, a fifth of the speed.
BENCH_ENV := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE
BENCH_ENV_avx512 := OPENBLAS_CORETYPE=SkylakeX
BENCH_ENV_avx2 := OPENBLAS_CORETYPE=Haswell
BENCH_CXXFLAGS := -std=c++17 $(BENCH_FLAGS) $(BENCH_OPENMP)
# What the plain loop is compiled for, and what the program is linked with: others for another machine.
BENCH_NATIVE ?= -march=native
BENCH_LIBS ?= -lbenchmark -lopenblas -lsleef -lpthread -lm
BENCH_CASES := $(shell find bench -name '*.cpp' | sort)
BENCH_OBJECTS := $(BENCH_COMMON) $(BENCH_CASES:bench/%.cpp=$(BENCH_BIN)/%.o) \
  $(addprefix $(BENCH_BIN)/,bandwidth.o ulp.o composite.o naive.o naive_baseline.o sleef_exp.o)

.PHONY: $(BENCH_RUNS)

$(BENCH_BIN)/%.o: bench/%.cpp $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(BENCH_CXX) $(BENCH_CXXFLAGS) -c -o $@ $<

$(BENCH_BIN)/naive.o: bench/naive.c $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(BENCH_CC) $(BENCH_CFLAGS) -O3 $(BENCH_NATIVE) -ffast-math -c -o $@ $<

$(BENCH_BIN)/naive_baseline.o: bench/naive.c $(BENCH_DEPS)
	@mkdir -p $(@D)
	$(BENCH_CC) $(BENCH_CFLAGS) -O3 -ffast-math -DNAIVE_BASELINE -c -o $@ $<

$(BENCH_BIN)/bench: $(BENCH_OBJECTS)
	$(BENCH_CXX) $(BENCH_OPENMP) -o $@ $^ $(BENCH_LIBS)

# One after the other, also under make -j: two at once would slow each other down.
$(BENCH_RUNS): bench-run-%: $(BENCH_BIN)/bench
	@mkdir -p $(dir $(call bench_json,$*,$(BENCH_RESULTS))); rm -f $(call bench_json,$*,$(BENCH_RESULTS)); echo
	@$(BENCH_ENV) $(BENCH_ENV_$*) $(BENCH_BIN)/bench --isa=$* \
	  $(if $(BENCH_FULL),--full) $(if $(BENCH_SPARSE),--sparse) \
	  $(if $(FILTER),'--benchmark_filter=$(FILTER)') \
	  --benchmark_min_time=$(BENCH_MIN_TIME) \
	  --benchmark_out=$(call bench_json,$*,$(BENCH_RESULTS)) --benchmark_out_format=json

.PHONY: bench-needs
bench-needs:
	@printf '#include <benchmark/benchmark.h>\n#include <cblas.h>\n#include <sleef.h>\n' | \
	  $(BENCH_CXX) -std=c++17 -E -x c++ - > /dev/null 2>&1 || \
	  { echo "make bench needs libbenchmark-dev libopenblas-dev libsleef-dev"; exit 1; }

bench: bench-needs $(BENCH_BIN)/bench ## measure: speed of every tier, against OpenBLAS and a plain loop
	@status=0; for tier in $(BENCH_TIERS); do \
	  $(MAKE) -s --no-print-directory bench-run-$$tier || status=1; \
	done; \
	python3 bench/table.py $(foreach tier,$(BENCH_TIERS),$(call bench_json,$(tier),$(BENCH_RESULTS))); exit $$status

# Alone on its machine: a second worker shows what others take. THREADS_ENTRY are seconds of one worker an entry.
THREADS_ENTRY ?= 0.05
.PHONY: bench-threads
bench-threads: bench-needs $(BENCH_BIN)/bench ## measure: every call by two workers against one, goal 1.95: pool of docs/examples, OpenMP
	@mkdir -p $(BENCH_DIR)/threads
	@$(foreach tier,$(or $(ISA),$(firstword $(BENCH_TIERS))),$(BENCH_ENV) $(BENCH_ENV_$(tier)) $(BENCH_BIN)/bench --threads --isa=$(tier) \
	  $(if $(BENCH_FULL),--full) $(if $(FILTER),'--benchmark_filter=$(FILTER)') --benchmark_min_time=$(THREADS_ENTRY) \
	  --benchmark_out=$(call bench_json,$(tier),$(BENCH_DIR)/threads/) --benchmark_out_format=json;)

bench-sparse: ## measure: every pattern against dense attention, every score term, schedules
	@$(MAKE) --no-print-directory bench BENCH_SPARSE=1

# --- make bench-arm-binary: the same program for an ARM machine, where nothing need be installed. Google Benchmark
# has no static library in Debian: it is made from Debian's source. OpenBLAS has one, in its package for arm64.
# Both come through the system's sources, with lists of packages of their own.

BENCH_ARM := $(BENCH_DIR)/arm
BENCH_ARM_BIN := $(BENCH_DIR)/$(basename $(BENCH_ATTN))-aarch64-linux-gnu-gcc
BENCH_APT = apt-get -q -o Dir::State::lists=$(CURDIR)/$(BENCH_ARM)/lists -o Dir::Cache=$(CURDIR)/$(BENCH_ARM)/cache \
  -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$(CURDIR)/$(BENCH_ARM)/parts \
  -o APT::Architectures::=arm64 -o APT::Sandbox::User= -o Acquire::Retries=3
$(BENCH_ARM)/fetched:
	@mkdir -p $(BENCH_ARM)/lists/partial $(BENCH_ARM)/cache/archives/partial
	@mkdir -p $(BENCH_ARM)/parts; cd $(BENCH_ARM)/parts && rm -f * && \
	  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > old.list 2>/dev/null; \
	  cat /etc/apt/sources.list >> old.list 2>/dev/null; \
	  for part in /etc/apt/sources.list.d/*.sources; do \
	    sed 's/^Types:.*/Types: deb deb-src/' $$part > $${part##*/}; done
	@cd $(BENCH_ARM) && rm -f *.deb *.orig.tar.gz && { $(BENCH_APT) update && \
	  $(BENCH_APT) --download-only source benchmark && $(BENCH_APT) download libopenblas-pthread-dev:arm64; } \
	  > apt.log 2>&1 || { tail -5 apt.log; exit 1; }
	@cd $(BENCH_ARM) && dpkg -x libopenblas*_arm64.deb openblas && mkdir -p benchmark && \
	  tar -xzf benchmark_*.orig.tar.gz -C benchmark --strip-components=1
	@touch $@

BENCH_ARM_CXX := aarch64-linux-gnu-g++
$(BENCH_ARM)/libbenchmark.a: $(BENCH_ARM)/fetched
	@cd $(BENCH_ARM)/benchmark/src && rm -f *.o && ls *.cc | grep -v benchmark_main | xargs -n 1 -P $(JOBS) \
	  $(BENCH_ARM_CXX) -std=c++11 -O2 -DNDEBUG -DHAVE_STD_REGEX -DHAVE_STEADY_CLOCK -DBENCHMARK_STATIC_DEFINE -I../include -c
	@rm -f $@; aarch64-linux-gnu-ar rcs $@ $(BENCH_ARM)/benchmark/src/*.o

BENCH_ARM_BLAS = $(BENCH_ARM)/openblas/usr/$(1)/aarch64-linux-gnu/openblas-pthread
.PHONY: bench-arm-binary
bench-arm-binary: $(BENCH_ARM)/libbenchmark.a ## measure: one static program for 64-bit ARM, build/bench/arm/bench, whose JSON bench-report takes
	@command -v $(BENCH_ARM_CXX) > /dev/null || { echo "needs g++-aarch64-linux-gnu"; exit 1; }
	@$(MAKE) --no-print-directory BENCH_CC=aarch64-linux-gnu-gcc BENCH_CXX=$(BENCH_ARM_CXX) BENCH_NATIVE= \
	  BENCH_INCLUDE='-DBENCHMARK_STATIC_DEFINE -I$(BENCH_ARM)/benchmark/include -I$(call BENCH_ARM_BLAS,include)' \
	  BENCH_LIBS='-static $(BENCH_ARM)/libbenchmark.a $(call BENCH_ARM_BLAS,lib)/libopenblas.a -lpthread -lm' \
	  $(BENCH_ARM_BIN)/bench
	aarch64-linux-gnu-strip -o $(BENCH_ARM)/bench $(BENCH_ARM_BIN)/bench

# --- make bench-peers: libraries that come by pip, in one Python process with ours.

BENCH_VENV := $(BENCH_DIR)/venv
BENCH_PEERS ?= torch==2.13.0 onnxruntime==1.32.0 onnx==1.23.2
$(BENCH_VENV)/done: bench/bench.mk
	python3 -m venv $(@D)
	$(@D)/bin/pip install -q $(BENCH_PEERS)
	@touch $@

$(BENCH_DIR)/ours.so: $(addprefix bench/,ours.c peak.c clock.c bandwidth.c) build/lib/attn.o $(BENCH_DEPS)
	$(BENCH_CC) $(BENCH_CFLAGS) -fPIC -shared -o $@ $(filter %.c %.o,$^) -lpthread -lm

.PHONY: bench-peers
bench-peers: $(BENCH_VENV)/done $(BENCH_DIR)/ours.so ## measure: against PyTorch and ONNX Runtime from PyPI, one thread each, in turn
	@$(foreach tier,$(filter-out $(if $(ISA),,scalar),$(BENCH_TIERS)),\
	  $(BENCH_VENV)/bin/python bench/peers.py $(BENCH_DIR)/ours.so $(tier) \
	    $(call bench_json,$(tier),$(BENCH_DIR)/peers/) $(BENCH_MIN_TIME) '$(FILTER)' &&) :

# The tables again, and the pictures, from the last results.
.PHONY: bench-table
bench-table: ## measure: the tables of the last make bench
	python3 bench/table.py $(wildcard $(BENCH_DIR)/*.json)

FILES ?= $(wildcard $(addprefix $(BENCH_DIR)/,*.json peers/*.json arm/*.json))
REPORT ?= $(BENCH_DIR)/report.html
.PHONY: bench-report
bench-report: ## measure: one HTML page with pictures, from FILES="a.json b.json" of any tiers and machines
	@command -v gnuplot > /dev/null || { echo "make bench-report needs gnuplot"; exit 1; }
	@test -n "$(FILES)" || { echo "run make bench first, or name FILES"; exit 1; }
	@python3 bench/report.py $(REPORT) $(BENCH_DIR)/report $(FILES)

BENCH_FILES = $(wildcard $(BENCH_DIR)/*.json $(BENCH_DIR)/linear.csv)
bench-plots: ## draw: its pictures, into docs/img (gnuplot)
	@command -v gnuplot > /dev/null || { echo "make bench-plots needs gnuplot"; exit 1; }
	@test -n "$(BENCH_FILES)" || { echo "run make bench or make bench-linear first"; exit 1; }
	python3 bench/plots.py docs/img $(BENCH_DIR) $(BENCH_FILES)

# --- What the clock does not show: caches, the cost to the compiler, the kernels on ARM by static analysis.

$(BENCH_BIN)/one_call: $(BENCH_BIN)/one_call.o $(BENCH_COMMON)
	$(BENCH_CC) $(BENCH_OPENMP) -o $@ $^ -lm

bench-cache: $(BENCH_BIN)/one_call ## measure: cache misses a multiply-add of the dense kernels, under valgrind (CACHE_FILTER=value)
	@command -v valgrind > /dev/null || { echo "make bench-cache needs valgrind"; exit 1; }
	@python3 bench/cache.py $< $(BENCH_DIR)/cache $(JOBS)

bench-call: $(BENCH_BIN)/one_call ## measure: small calls: their time, what of it happens once a call, instructions beside kernels (CALL_FILTER=gemm)
	@command -v valgrind > /dev/null || { echo "make bench-call needs valgrind"; exit 1; }
	@python3 bench/call.py $< $(BENCH_DIR)/call $(or $(ISA),$(BENCH_TIERS))

bench-compile: ## measure: what the header costs to compile and to carry, beside four stb headers
	@python3 bench/compile.py attn.h

bench-arm: ## measure: the inner loops for ARM: instructions, spills, cycles on six processors by llvm-mca
	@$(MAKE) --no-print-directory BENCH_CC=aarch64-linux-gnu-gcc BENCH_NATIVE= $(BENCH_ARM_BIN)/one_call
	@python3 bench/arm_loops.py $(BENCH_ARM_BIN)
