# Only Python >= 3.10 with its headers, make and g++ must be there. Everything is written to .venv and
# build/, but for dsprof.egg-info, two extension modules beside their sources, .pytest_cache and
# __pycache__.

PYTHON ?= python3
STAGE ?= 2
RANKS ?= 2

BIN := .venv/bin
DEMO := build/demo
TORCHRUN := $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node $(RANKS)

# DeepSpeed compiles a helper for CPU runs: keep it here, not in the user's cache. The warnings are
# DeepSpeed's use of names that torch 2.13 deprecates, one a call.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/build/torch_extensions
DEEPSPEED_ON_CPU := DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore::FutureWarning

# Commands and tests start Python thousands of times: compile what it imports once.
export PYTHONDONTWRITEBYTECODE :=

# Tests of one process share all cores. So do those that start several, or a browser, but by whole
# files, whose tests share runs. What another run would disturb follows, one after the other.
SEVERAL := dist or browser
ON_ALL_CORES := -n logical --maxprocesses 8
define run_tests
	$(BIN)/python -m pytest $(ON_ALL_CORES) --dist worksteal -m "($(1)) and not ($(SEVERAL) or alone)"
	$(BIN)/python -m pytest $(ON_ALL_CORES) --dist loadfile -m "($(1)) and ($(SEVERAL)) and not alone"
	$(BIN)/python -m pytest -m "($(1)) and alone"
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-trainers compat test-gpu check lint docs torch-suite bench savings hangs fuzz clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1	\2/' | expand -t 12

demo: build/.warm ## Train a small model under DeepSpeed ZeRO (STAGE=2), then write its report
	rm -rf $(DEMO)
	mkdir -p $(DEMO)
	DSPROF=1 DSPROF_OUT=$(DEMO)/trace $(DEEPSPEED_ON_CPU) \
	    $(TORCHRUN) examples/deepspeed_zero.py --stage $(STAGE)
	$(BIN)/dsprof report $(DEMO)/trace -o $(DEMO)/report.html

test: build/.warm build/.kernels ## Run the tests that take minutes together
	$(call run_tests,not long and not browser and not gpu)

test-all: build/.warm build/.kernels build/node_modules ## Run all tests: the long ones and those in a browser too
	$(call run_tests,not gpu)

test-trainers: .venv-trainers/.installed ## Run the tests with Hugging Face and Lightning trainers
	.venv-trainers/bin/python -m pytest tests/trainers

compat: build/.warm ## Try older releases of DeepSpeed and torch (ONLY=torch), and write docs/reference/compatibility.md
	$(BIN)/python -m tests.compat $(ONLY)

test-gpu: build/.warm build/.kernels ## Run the tests on a real GPU, if there is one that torch can use
	$(BIN)/python -m pytest -m gpu -s tests/device

check: lint test ## Lint and test

lint: .venv/.installed ## Check style, types, layers, spelling and words
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy dsprof dsprof_autostart.py benchmarks examples
	PYTHONPATH=. $(BIN)/lint-imports --cache-dir build/import_linter
	$(BIN)/codespell *.md docs dsprof hooks reports benchmarks examples deploy
	$(BIN)/python -m tests.words
	$(BIN)/python -m tests.pages --check

docs: .venv/.installed ## Write what the docs take from code and from a run, and build the site into build/site
	$(BIN)/python -m dsprof.trace.generate
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.pictures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

torch-suite: build/.warm build/.kernels ## Run PyTorch's own distributed tests with dsprof and without (an hour)
	$(BIN)/python -m tests.torch_suite

bench: build/.warm build/.kernels ## Measure what recording costs, how fast a trace is judged, a page opens
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.analysis_speed
	$(BIN)/python -m benchmarks.report_page

savings: build/.warm ## Make the changes that findings name, and compare what was predicted (minutes)
	$(BIN)/python -m benchmarks.savings $(CASES)

hangs: build/.warm build/.kernels ## Let real runs hang and die in every way, and compare the verdicts (an hour)
	$(BIN)/python -m tests.hangs $(CASES)

fuzz: build/.parser ## Feed each reader 100,000 damaged files, and each command hostile ones (hours)
	$(BIN)/python -m tests.hostile
	$(BIN)/python -m tests.fuzzing

clean: ## Remove what the other targets made, .venv included
	rm -rf .venv .venv-trainers .pytest_cache build dist *.egg-info dsprof/trace/*.so dsprof/recording/recorder/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	touch $@

build/.warm: .venv/.installed tests/dist/warm.py | build/.parser
	DS_ACCELERATOR=cpu $(BIN)/python tests/dist/warm.py
	touch $@

# Installing builds it once; this does again when it has changed.
build/.parser: .venv/.installed setup.py dsprof/trace/_comm_rows.c $(wildcard dsprof/recording/recorder/c/*)
	mkdir -p build
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

build/.kernels: .venv/.installed $(wildcard hooks/wire/*.cpp) hooks/wire/native.py hooks/wire/native_build.py
	mkdir -p build
	$(BIN)/dsprof build
	touch $@

# What the browser tests check accessibility with; without npm that test is skipped.
build/node_modules:
	mkdir -p $@
	-npm install --silent --no-save --no-audit --no-fund --prefix build axe-core@4.14.1

# Sees what .venv has, and adds the trainers: `make test` does without them.
.venv-trainers/.installed: build/.warm tests/beside.py
	$(BIN)/python -m tests.beside .venv-trainers 'dsprof[trainers]'
	touch $@
