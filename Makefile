# make train: build the environment if need be, then train.   make test: lint, types, tests.
#
# PYTHON       interpreter to build .venv with, 3.11 or newer
# TORCH_INDEX  further package index for torch; on a machine without a GPU, the index of CPU builds saves gigabytes:
#              make train TORCH_INDEX=https://download.pytorch.org/whl/cpu
# ARGS         more arguments of adaptive-rec train, e.g. ARGS="--data train.txt --steps 1000"; of bench and bench-gpu likewise
#
# make bench: what a step costs on the CPU beside its rivals, in under 10 minutes; bench-all: more cells and rounds, resumable.
# make bench-drop-in: a training loop of one's own with the modules in it, beside adaptive-rec train, torch's and TorchRec's tables.
# make bench-gpu: what training costs on a GPU, in under 8 minutes; bench-gpu-all: everything, resumable. Both need no .venv: where
# there is none they take PYTHON, in which torch with CUDA, Triton, Numba, NumPy and pydantic have to be installed.

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt

.PHONY: train test check-long study-quality study-tracking study-policies study-globo study-staleness study-sidecar bench bench-all bench-drop-in bench-gpu bench-gpu-all docs tutorial lint clean

train: $(VENV)/installed
	$(BIN)/adaptive-rec train --policy slipstream $(ARGS)

# Tests of processes that talk to each other in real time have the machine to themselves (marker alone); the others share it.
# The browser's come last: the run that they look at goes on until the end.
test: lint
	$(BIN)/pytest -m "not slow and not alone" -n auto --maxprocesses=4
	$(BIN)/pytest -m "alone and not slow" tests/cli tests/live tests/modules tests/service tests/browser

# Minutes to an hour. Resumable: what has passed on this commit is not run again.
check-long: $(VENV)/installed-dev
	$(BIN)/pytest -m slow --passed-file=studies/check-long-$$(git rev-parse --short HEAD).txt

# Resumable too: a run whose summary lies under studies/ is not made again.
STUDY ?= slipstream
study-quality: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.quality $(STUDY) --data $(DATA)

study-tracking: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.tracking --data $(DATA) --out studies/tracking.json

# About an hour on two cores for all streams; Globo's wants its clicks prepared under studies/staleness/data/globo.
study-staleness: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.staleness --data $(DATA) $(ARGS)

# Every policy on four streams, about an hour in all; compare's pages lie beside the tables.
study-policies: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.policies --data $(DATA) $(ARGS)

study-globo: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.globo --data $(DATA) --out studies/globo.json --picture docs/images/globo-memory.svg

# What being watched costs training. PRESET=criteo_kaggle: tables of 33.8 M rows.
PRESET ?= synthetic
study-sidecar: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.sidecar --preset $(PRESET) --turns 30

# Without what they depend on: TorchRec asks for fbgemm-gpu, which is the CUDA build, and others would let pip change torch. What
# they import besides torch and NumPy is named after them. What cannot be installed is named as absent in the results.
RIVALS := fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0 datasketches polars polars-runtime-32 \
	tensordict pyre-extensions iopath torchmetrics pyvers typing-inspect mypy-extensions cloudpickle lightning-utilities \
	portalocker tqdm

bench: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.cpu $(ARGS)

bench-all: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.cpu --all $(ARGS)

bench-drop-in: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.drop_in $(ARGS)

$(VENV)/installed-bench: $(VENV)/installed
	@$(INSTALL) --no-deps $(RIVALS) && touch $@ || echo "not all rivals could be installed; the results name those that are absent"

BENCH_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
bench-gpu:
	@$(BENCH_PYTHON) -m benchmarks.gpu $(ARGS)

bench-gpu-all:
	@$(BENCH_PYTHON) -m benchmarks.gpu --all $(ARGS)

# The pages of docs/ as a site, in site/: open site/index.html, nothing is fetched from elsewhere. A warning is an error.
docs: $(VENV)/installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir site
	@echo "open site/index.html"

# All chapters of the tutorial as they stand there, under 20 minutes; runs and plots stay in studies/tutorial.
tutorial: $(VENV)/installed-dev
	rm -rf studies/tutorial
	$(BIN)/python docs/tools/run.py docs/tutorial --folder studies/tutorial

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/installed

# Some systems ship Python without ensurepip: venv then fails half-way.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "adaptive-rec needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null \
		|| { rm -rf $(VENV); $(PYTHON) -m virtualenv $(VENV) 2>/dev/null; } \
		|| virtualenv -p $(PYTHON) $(VENV) 2>/dev/null \
		|| { rm -rf $(VENV); \
		     echo "no virtual environment can be made: install python3-venv (Debian, Ubuntu) or virtualenv, then again"; exit 1; }

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
