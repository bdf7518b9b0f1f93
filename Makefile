# Everything that is run by hand or by CI. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed_for_demo
WORKERS ?= 3
SHARE ?= 0/1
PYTHONS ?= 3.10 3.12 3.13
# Tests run with this one; `make titans` has the other. 0.3 was made for torch 2.14.
TORCHTITAN ?= 0.2.2
# Where PYTHONDONTWRITEBYTECODE is set, no import would keep what it compiled.
COMPILE := $(BIN)/python -m compileall -q monarch sync recipes

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Each is imported once, so that no process of the demo compiles it anew.
DEMO_IMPORTS := torch, torch.distributed, torch.nn.parallel, torch._dynamo, sklearn.datasets

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or later is needed; set PYTHON=... to one" >&2; exit 1; }
	@echo "Making $(VENV)."
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "python3 -m venv does not work here: install it with 'apt-get install python3-venv', then run make again" >&2; exit 1; }

$(DEMO_STAMP): pyproject.toml tools/install.py | $(BIN)/pip
	@$(COMPILE) & $(BIN)/python tools/install.py --torch --says "what the demo needs" \
		--editable '.[train]' && \
		PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -c 'import $(DEMO_IMPORTS)' && wait
	@touch $@

$(STAMP): pyproject.toml tools/install.py | $(BIN)/pip
	@$(COMPILE) & $(BIN)/python tools/install.py --torch --says "the project, and what its tests need" \
		--editable '.[titan,ft,dev]' 'torchtitan==$(TORCHTITAN)' && \
		PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore tools/import_all.py && wait
	@touch $(DEMO_STAMP) $@

.PHONY: setup
setup: $(STAMP) ## make .venv and install the project into it
	@$(COMPILE)

.PHONY: demo
demo: $(DEMO_STAMP) ## run the dev loop: train, edit, sync, refuse a broken edit, train on
	@$(BIN)/python examples/dev_loop.py

# Test files that import most of what is installed: TorchTitan, pandas, textual, cloud SDKs. A reload
# looks through all objects of its process, so its tests run without them, in a session before.
MUCH_IMPORTED := cli compat examples gpu job observe rdma recipes runs tensors tools view
.PHONY: test
test: $(STAMP) ## run the tests, with WORKERS (3) at a time
	@status=0; \
	$(BIN)/python -m pytest -n $(WORKERS) $(MUCH_IMPORTED:%=--ignore=tests/%) || status=$$?; \
	$(BIN)/python -m pytest -n $(WORKERS) $(MUCH_IMPORTED:%=tests/%) || status=$$?; \
	exit $$status

# What decides without a process, a socket or a file, but for a few lines.
PURE := mesh wire core config config_file tools

.PHONY: test-fast
test-fast: $(STAMP) ## run the tests of pure code only
	@$(BIN)/python -m pytest -n 2 -q $(PURE:%=tests/%)

# The tensors of wire want torch, which is large to install for each.
.PHONY: pythons
pythons: ## on the other Pythons that are here: import all modules, run the tests of pure code
	@tools/pythons.sh "$(PYTHONS)" $(patsubst %,tests/%,$(filter-out wire,$(PURE)))

# Made once, in build/titans. KINDS="long or not long" has whole trainings among them.
KINDS ?= not huge and not slow and not long
.PHONY: titans
titans: $(STAMP) ## run the titan recipe's tests with the other TorchTitan: 0.3 beside 0.2.2, or 0.2.2
	@KINDS="$(KINDS)" tools/titans.sh $(VENV)

# The first and the last that can be had; each takes gigabytes where there is no CPU build of it.
TORCHES ?= 2.11.0 2.14.1
.PHONY: torches
torches: $(STAMP) ## on other torches: import all modules, tests of pure code, a run of each recipe
	@tools/torches.sh $(VENV) "$(TORCHES)" $(PURE:%=tests/%)

.PHONY: check lint types types-of-tests layers
check: lint types types-of-tests layers ## lint, types, layers
lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types: $(STAMP)
	$(BIN)/mypy
types-of-tests: $(STAMP)
	$(BIN)/mypy --config-file tests/mypy.ini tests benchmarks
layers: $(STAMP)
	$(BIN)/lint-imports

.PHONY: report
report: ## print the longest files, and the small ones with one importer
	@$(PYTHON) tools/report.py

.PHONY: format
format: $(STAMP) ## rewrite the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: reference
reference: $(STAMP) ## write docs/reference.md anew, from the code
	@$(BIN)/python tools/reference.py

# An environment of its own where .venv is not made yet: MkDocs and our small dependencies, no torch.
DOCS_VENV := build/docs
DOCS_BIN = $(if $(wildcard $(BIN)/mkdocs),$(BIN),$(DOCS_VENV)/bin)
.PHONY: docs
docs: ## build the documents as a site, in build/site; a link that leads nowhere fails
	@test -x $(DOCS_BIN)/mkdocs || { $(PYTHON) -m venv $(DOCS_VENV) && \
		$(DOCS_VENV)/bin/python tools/install.py --says "MkDocs into $(DOCS_VENV)" --editable '.[docs]'; }
	@NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/python -m mkdocs build --clean --config-file tools/mkdocs.yml

.PHONY: soak
soak: $(STAMP) ## shake the runtime, or SOAK_OF=run a training, for SOAK_SECONDS (600), with SOAK_SEED
	@$(BIN)/python -m tests.soak.main

.PHONY: kills
kills: $(STAMP) ## kill any process of ddp, titan and fault_tolerant, KILLS_COUNT (40) times each
	@$(BIN)/python -m tests.soak.kills

# Of the folders that an edit concerns: make long TESTS="tests/workspace tests/runtime"
TESTS ?= tests
.PHONY: long
long: $(STAMP) ## run the tests that take long, of TESTS; or a SHARE of their files: 0/3, 1/3, 2/3
	@$(BIN)/python -m pytest -p tests.by_day --share $(SHARE) -n $(WORKERS) \
		-m 'long and not slow and not huge and not system and not gpu' -o timeout=240 -o faulthandler_timeout=0 $(TESTS)

.PHONY: slow
slow: $(STAMP) ## run the tests of whole trainings, and of what survives kills
	@$(BIN)/python -m pytest -m slow -o faulthandler_timeout=0

# The guest with an RDMA device takes longest, so its folder is first.
.PHONY: system
system: $(STAMP) ## run the tests against real servers, which it installs (apt, pip)
	@tools/system.sh $(VENV)
	@$(BIN)/python -m pytest -m system -p tests.by_server -n 2 \
		-o faulthandler_timeout=0 --durations=40 tests/rdma tests/job tests/examples tests/observe

# One at a time: they share the GPUs. On a machine without a network: tools/gpu.sh.
.PHONY: gpu
gpu: $(STAMP) ## run the tests on the GPUs of this machine, and print their figures
	@$(BIN)/python -m pytest -m gpu -o timeout=600 -o faulthandler_timeout=0 tests

.PHONY: kubernetes
kubernetes: ## build the Kubernetes that `make system` tests against, which no package has
	@tools/kubernetes.sh

.PHONY: huge
huge: $(STAMP) ## run the tests with hundreds of thousands of files, or gigabytes
	@$(BIN)/python -m pytest -m huge -o timeout=600 -o faulthandler_timeout=0

.PHONY: bench
bench: $(STAMP) ## measure the runtime; prints JSON lines
	$(BIN)/python benchmarks/runtime.py

# Trees are given by their paths, and PROGRAMS_PYTHON is a Python with what their suites import.
.PHONY: programs
programs: $(STAMP) ## run suites of others: MONARCH_TREE, TORCHSTORE_TREE, TORCHFORGE_TREE, TITAN_TREE
	@$(BIN)/python tools/programs.py

.PHONY: clean
clean: ## remove .venv and what tools left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
