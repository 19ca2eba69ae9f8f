.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# pip compiles one file after another; compileall does it on every core. Left out is a third that nothing here imports.
# A few packages ship files that are not Python 3.
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/(tests|transformers/models)/' $(VENV)/lib || true
SOURCES := pyproject.toml constraints.txt
# Extras of pyproject.toml that `make up` installs besides: EXTRAS=heic, EXTRAS=heic,log. Each choice has a stamp of its own.
EXTRAS =
INSTALLED = $(VENV)/.installed$(EXTRAS:%=+%)
# pip's own variables, of the shell or, as Docker Compose reads them, of .env.
ifneq ($(wildcard .env),)
of_dotenv = $(shell sed -n 's/^$(1)=//p' .env | tail -n 1)
export PIP_INDEX_URL ?= $(call of_dotenv,PIP_INDEX_URL)
export PIP_EXTRA_INDEX_URL ?= $(call of_dotenv,PIP_EXTRA_INDEX_URL)
endif
# PyTorch's builds without CUDA, by its installation page. Where torch is not installed yet, no other index is named and there
# is no GPU, they are taken if that index answers; CPU=1 insists on them, CPU=0 on the others.
CPU =
CPU_INDEX := https://download.pytorch.org/whl/cpu
ifeq ($(CPU),1)
export PIP_EXTRA_INDEX_URL := $(CPU_INDEX)
endif
CUDA_IS_USELESS = $(if $(CPU)$(PIP_EXTRA_INDEX_URL)$(wildcard /proc/driver/nvidia /dev/nvidiactl /dev/dxg $(VENV)/lib/python3*/site-packages/torch),,yes)
ANSWERS = timeout 8 $(BIN)/python -c 'import urllib.request; urllib.request.urlopen("$(CPU_INDEX)/torch/", timeout=5)' 2>/dev/null
TAKE_CPU_BUILDS = $(if $(CUDA_IS_USELESS),if $(ANSWERS); then export PIP_EXTRA_INDEX_URL=$(CPU_INDEX); \
  echo "no NVIDIA GPU here: taking PyTorch's CPU builds of $(CPU_INDEX); CPU=0 takes those with CUDA"; \
  else echo "no NVIDIA GPU here. $(CPU_INDEX) does not answer: taking the builds with CUDA"; fi;)
# What pip downloads, of which most is torch; the lines about what is there already would hide it.
PROGRESS = --progress-bar on
# In place of pip's pages about "requires-python", or of Debian's about a missing ensurepip.
CAN_INSTALL := import sys; v = sys.version_info; ok = (3, 11) <= v[:2] <= (3, 13); \
  sys.exit(None if ok else "this is Python %d.%d, and the service needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 …" % v[:2])
# A file's tests run in one worker, so that they share what they start; a crash of a worker is a failure of the test that ran.
PYTEST := $(BIN)/pytest -q
# The order is that of tests/workers.py: without --no-loadscope-reorder, files of few and long tests would come last.
# Two workers for each core of two: a third of the time of a worker is a wait for a process, a deadline or a peer. Six take longer.
WORKERS = -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 3 $(EXAMPLES) $(ORDER)
# A number makes the order of the tests random; the same number, the same order.
SHUFFLE =
ORDER = $(if $(SHUFFLE),--random-order --random-order-seed $(SHUFFLE))
# Up to five tests that failed beside others are run once more, without others; the first report stays on the screen. If more
# fail, the cause is not a busy machine; if none did, the tests were not collected. pytest-rerunfailures would add 40 ms to
# every test: its workers ask the controller.
FAILED := .pytest_cache/v/cache/lastfailed
ONCE_MORE = [ $$code = 1 ] && failed=$$(grep -c :: $(FAILED)) && [ $$failed -le 5 ] && echo "failed tests once more, without others:" && \
  $(PYTEST) $(EXAMPLES) --last-failed --last-failed-no-failures=none -rp && code=0
# To collect the other files would take longer than to run the tests of these.
ALONE = $(shell grep -rlE --include='test_*.py' '^(@|[A-Za-z]+ = )pytest\.mark\.alone' tests)
# Hypothesis tries the same examples in every run, and more of them in test-long; with PROFILE=random others, which may find more.
PROFILE = repeatable
test-long: PROFILE = thorough
EXAMPLES = --hypothesis-profile $(PROFILE)
PACKAGES := gateway gateway_client gateway_local gateway_models triton_models native bench deploy tests docs

# Images of containers often set it. Here every process would compile the gateway again, and pytest all of the tests.
unexport PYTHONDONTWRITEBYTECODE

# One process for each core; each prints its output when it has ended, and a failure of one does not stop the others.
BESIDE_EACH_OTHER = --no-print-directory --jobs 2 --output-sync=target --keep-going

.PHONY: help ready install up test test-most test-long check check-tests check-style check-types check-imports test-python coverage lint fmt docs site dist bench figures fuzz sanitize clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "there is no $(PYTHON): install Python 3.11, 3.12 or 3.13, or make PYTHON=/path/to/python …"; exit 1; }
	@$(PYTHON) -c '$(CAN_INSTALL)'
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@# The pip that comes with Python 3.11 takes half a minute of processor time to choose what this one chooses in seconds.
	@$(PIP_INSTALL) --upgrade pip || echo "no other pip: installing takes longer"

$(INSTALLED): $(SOURCES) | $(BIN)/python
	@echo "installing the gateway, Triton's Python parts and torch into $(VENV)"
	@$(TAKE_CPU_BUILDS) began=$$(date +%s); $(subst --quiet,$(PROGRESS),$(PIP_INSTALL)) --no-compile -e '.[local$(EXTRAS:%=,%)]' && { $(COMPILE); } && \
	  echo "installed in $$(($$(date +%s) - began)) s"
	@touch $@

# With all that .installed has: one run of pip instead of two.
$(VENV)/.installed-dev: $(SOURCES) $(VENV)/.installed-native | $(BIN)/python
	@echo "installing the gateway, Triton's Python parts, torch, and what tests, lint and benchmarks need"
	@$(TAKE_CPU_BUILDS) $(PIP_INSTALL) --no-compile -e '.[local,dev,docs]'
	@$(COMPILE)
	@touch $(VENV)/.installed $@

ready: | $(BIN)/python
	@$(MAKE) -s --no-print-directory $(VENV)/.installed-dev

# It needs a C compiler, which nothing else here does. Without it Pillow resizes: the same pixels in more time.
$(VENV)/.installed-native: native/setup.py native/pyproject.toml $(wildcard native/src/*.[ch] native/src/*/*.py) | $(BIN)/python
	@rm -rf native/build
	@began=$$(date +%s); $(PIP_INSTALL) ./native >$(VENV)/native.log 2>&1 && \
	  echo "built the resize kernel in $$(($$(date +%s) - began)) s" || \
	  echo "no resize kernel (why: $(VENV)/native.log): Pillow resizes to the same pixels, in six times the time"
	@touch $@

install: $(INSTALLED) $(VENV)/.installed-native ## install into .venv; EXTRAS=heic also decodes HEIC

up: $(INSTALLED) $(VENV)/.installed-native ## start Triton and the gateway on http://127.0.0.1:8080, Ctrl-C stops both; PORT=9000, CPU=0, ARGS=--help
# PORT from the command line alone, since some tools export a variable of that name.
	@exec $(BIN)/gateway up $(if $(filter command,$(firstword $(origin PORT))),--port $(PORT)) $(ARGS)

# Lint has a core while tests wait; what it finds is printed as soon as it has ended.
test: ready ## lint, type-check and test against a real Triton: all but test-long
	@$(MAKE) $(subst target,none,$(BESIDE_EACH_OTHER)) test-most check-style check-types check-imports

test-most:
	@rm -f $(FAILED)
	@$(PYTEST) $(WORKERS) -m "not alone and not long"; code=$$?; $(ONCE_MORE); $(PYTEST) -m alone $(ALONE) && [ $$code = 0 ]

test-long: ready ## the tests that take minutes: tutorials, round trips of many networks, property tests with more examples
	@rm -f $(FAILED)
	@$(PYTEST) $(WORKERS) -m "(long or hypothesis) and not alone"; code=$$?; $(ONCE_MORE); exit $$code

check: ready ## the inner loop: lint, types and the tests that a change concerns, without Triton, torch and browsers
	@$(MAKE) $(BESIDE_EACH_OTHER) check-tests check-style check-types check-imports

# No tests to run, 5, is no failure: the change concerns tests with Triton alone.
check-tests:
	@files=$$($(BIN)/python -m tests.affected) || exit 1; [ -z "$$files" ] || \
	  $(PYTEST) $(WORKERS) -n 2 -m "not triton and not alone and not slow and not long" $$files || [ $$? = 5 ]

check-style:
	@$(BIN)/ruff check $(PACKAGES)
	@$(BIN)/ruff format --check $(PACKAGES)
	@$(BIN)/codespell

# Its workers have 3 seconds to start, too few on a busy machine: 2 says that mypy itself failed. Beside a cache, to start
# them takes longer than all that is left to do.
check-types:
	@$(BIN)/mypy $(if $(wildcard .mypy_cache),,--num-workers 2) || { [ $$? = 2 ] && $(BIN)/mypy; }

check-imports:
	@$(BIN)/lint-imports

coverage: ready ## what of gateway/ runs in the tests without Triton, and what does not
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest -q $(WORKERS) -m "not triton and not alone and not long"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

OTHER = build/$(notdir $(PYTHON))

test-python: ## run the concurrency tests, without Triton, on another Python: PYTHON=python3.13
	@$(PYTHON) -m venv $(OTHER)
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[heic,grpc]' \
	  httpx hypothesis psutil pytest pytest-timeout scikit-image scikit-learn
	@$(OTHER)/bin/pytest -q -p no:cacheprovider -m "not triton" tests/gateway/inference tests/gateway/server tests/attack tests/gateway/decoder/test_decoders.py \
	  tests/gateway/limits tests/gateway/test_timing.py

lint: ready ## check style, types and the import rule
	@$(MAKE) $(BESIDE_EACH_OTHER) check-style check-types check-imports

fmt: ready ## format the code
	@$(BIN)/ruff check --fix $(PACKAGES)
	@$(BIN)/ruff format $(PACKAGES)

docs: ready ## rewrite what is made from code: the tables of docs/reference, the chart's files
	@$(BIN)/python docs/tables.py

site: ready ## build the documentation's site into build/site, without a network; a broken link is an error
	@$(BIN)/sphinx-build -c docs -E -W --keep-going -q . build/site
	@echo "open build/site/index.html"

dist: ready ## build wheels, sdists, the chart's package and SBOMs into dist/, and classify an image with them; TAG=v0.1.0
	@$(BIN)/python -m deploy.dist $(if $(filter command,$(firstword $(origin TAG))),--tag '$(TAG)')

bench: ready ## measure throughput against the bare limit; options: make bench ARGS=--help
	@$(BIN)/python -m bench $(ARGS)

RESULTS := --write bench/RESULTS.md
MODELS := --model mobilenet-v3-small --model efficientnet-lite0

figures: ready ## measure the tables of bench/RESULTS.md, performance and README again, on a quiet machine
	@$(BIN)/python -m bench --seconds 6 --rounds 3 $(MODELS) $(RESULTS)
	@$(BIN)/python -m bench --seconds 5 --rounds 4 --peers $(MODELS) --write docs/explanation/performance.md --write README.md
	@$(BIN)/python -m bench.feed --seconds 6 --rounds 3 $(RESULTS)

fuzz: ready ## mutate images of every form, requests and WebSockets, which takes minutes
	@FUZZ_SEED=$$(date +%s) $(BIN)/pytest -q -m "slow or long" tests/fuzz

SANITIZED := build/sanitized

sanitize: PROFILE = thorough
sanitize: ready ## test the resize kernel with the address and undefined-behaviour sanitizers, on many random images
	@rm -rf $(SANITIZED)
	@cd native && EXACT_RESIZE_SANITIZE=1 ../$(BIN)/python setup.py -q build --build-base ../$(SANITIZED)/objects --build-lib ../$(SANITIZED)/lib
	@set -e; export PYTHONPATH=$(SANITIZED)/lib LD_PRELOAD="$$($${CC:-gcc} -print-file-name=libasan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc; \
	  $(PYTEST) tests/native --hypothesis-profile $(PROFILE) $(ARGS)

clean: ## remove the virtual environment, the default model and what was generated
	rm -rf $(VENV) build dist *.egg-info native/build native/src/*.egg-info .*_cache
	rm -f $(addprefix triton_models/classifier/,1/model.pt 1/cpu.onnx 1/cpu.json labels.txt)
	@echo "left: your models in triton_models/ and $${XDG_DATA_HOME:-~/.local/share}/triton-image-gateway, downloads in"; \
	  echo "$${XDG_CACHE_HOME:-~/.cache}/triton-image-gateway, logs in $${XDG_STATE_HOME:-~/.local/state}/triton-image-gateway: docs/guides/install.md#uninstall"
