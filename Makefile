# make train: build the environment if needed, then train.   make test: lint, types, tests (docs/contributing.md).
#
# PYTHON       interpreter that builds .venv, 3.11 to 3.13
# TORCH_INDEX  further package index for torch; on a machine without a GPU, the index of CPU builds saves gigabytes:
#              make train TORCH_INDEX=https://download.pytorch.org/whl/cpu
# ARGS         more arguments for adaptive-rec train, e.g. ARGS="--data train.txt --steps 1000"; also for bench and gpu-first
# ROOMS        folders of tests that make test runs, e.g. ROOMS=embedding,modules; empty: all
#
# make bench: a step on the CPU compared with its rivals, in under 10 minutes; bench-all: more cells and rounds, resumable.
# make bench-processes: several processes beside TorchRec's, on a loopback device and at 1 Gbit/s; as root, for network namespaces.
# make bench-drop-in: your own training loop with our modules, compared with adaptive-rec train and with torch's and TorchRec's tables.
# make bench-disk: rows on a disk beside rows in memory, mapped files and RocksDB; as root, for memory groups (cgroup v1).
# make check-matrix: the wheel beside each Python and torch that it allows, see docs/install.md.
# make gpu-first: the first run on a GPU: steps, tests, figures beside rivals, in under 10 minutes; ARGS="--part 1" is one of
# three parts. gpu-all: every combination, resumable. Both work without .venv: then they use PYTHON, which needs torch with CUDA,
# Triton, Numba, NumPy, pydantic and pytest. make gpu-carry OUT=FOLDER packs what such a machine lacks, for CARRIED=FOLDER there.

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt

.PHONY: train test test-durations check check-long check-matrix check-clients study-disk-crashes bench bench-all bench-drop-in bench-processes bench-disk gpu-first gpu-all gpu-carry docs site tutorial lint clean

train: $(VENV)/installed
	$(BIN)/adaptive-rec train $(ARGS)

# Ruff, mypy, and every behaviour once. Mypy and the tests of processes that talk to each other in real time (marker alone) run
# beside the others.
ROOMS ?=
test: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/python -m tests.parts --rooms "$(ROOMS)"

# The heaviest files and tests of the last make test, in processor seconds.
test-durations: $(VENV)/installed-dev
	@$(BIN)/python -m tests.durations

# make test, then all grids (marker slow) and the budget of seconds of each file. Resumable: tests that have passed on this commit
# are not run again.
check: test
	$(BIN)/python -m tests.parts --slow -- --passed-file=studies/check-$$(git rev-parse --short HEAD).txt

# Those of make check and what takes minutes each (marker long), up to hours. Resumable as make check.
check-long: $(VENV)/installed-dev
	$(BIN)/pytest -m "slow or long" --passed-file=studies/check-$$(git rev-parse --short HEAD).txt

# The wheel in a fresh environment for each Python and torch that it allows, and beside the oldest of every dependency: about an hour,
# resumable, 10 GB of disk. Prints the table of docs/install.md. Pythons are those that uv finds; it downloads none.
check-matrix: $(VENV)/installed-dev
	@$(BIN)/python -c 'import uv' 2>/dev/null || $(INSTALL) uv
	@$(BIN)/python -m tests.packaging.versions

# Models of other libraries, plain and wrapped; in an environment of its own, as the libraries ask for old versions of others.
# RecBole and DeepCTR-Torch are installed without their dependencies: they would replace torch. ARGS="recbole --only SASRec".
CLIENTS := studies/clients
CLIENTS_INSTALL = $(CLIENTS)/bin/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt
check-clients: $(CLIENTS)/installed
	$(CLIENTS)/bin/python -m tests.clients $(ARGS)
	$(if $(ARGS),,$(CLIENTS)/bin/python -m pytest -q tests/docs/test_migrate.py)

$(CLIENTS)/installed: pyproject.toml constraints.txt
	@mkdir -p studies
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS) 2>/dev/null || virtualenv -q -p $(PYTHON) $(CLIENTS)
	$(CLIENTS_INSTALL) -e . pytest pytest-timeout "pandas<3" scipy scikit-learn tqdm pyyaml networkx lightning transformers accelerate \
		colorlog colorama texttable thop tabulate psutil tensorboard faiss-cpu annoy requests
	$(CLIENTS_INSTALL) --no-deps torchfm==0.7.0 deepctr-torch==0.3.0 torch-rechub==0.9.0 recbole==1.2.1
	-$(CLIENTS_INSTALL) --no-deps $(RIVALS)
	-$(CLIENTS_INSTALL) --no-deps --no-build-isolation torch_scatter
	@touch $@

# Rows on a disk: 10,000 states after a loss of power, 2,000 flipped bits, 300 failing calls, 100 kills: about 40 minutes.
study-disk-crashes: $(VENV)/installed-dev
	$(BIN)/pytest -s -m slow tests/checkpoint/test_disk_crashes.py
	$(BIN)/pytest -s -m slow tests/checkpoint/test_resume_kills.py -k on_a_disk

# Installed without their dependencies: TorchRec requires fbgemm-gpu, which is the CUDA build, and others would let pip change torch.
# The packages that they import besides torch and NumPy follow them. The results list those that could not be installed.
RIVALS := fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0 datasketches polars polars-runtime-32 \
	tensordict pyre-extensions iopath torchmetrics pyvers typing-inspect mypy-extensions cloudpickle lightning-utilities \
	portalocker tqdm

bench: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.cpu $(ARGS)

bench-all: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.cpu --all $(ARGS)

bench-drop-in: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.drop_in $(ARGS)

bench-processes: $(VENV)/installed-bench
	@$(BIN)/python -m benchmarks.torchrec_processes $(ARGS)

bench-disk: $(VENV)/installed-rocks
	@$(BIN)/python -m benchmarks.disk_tier $(ARGS)

$(VENV)/installed-bench: $(VENV)/installed
	@$(INSTALL) --no-deps $(RIVALS) && touch $@ || echo "not all rivals could be installed; the results name those that are absent"

$(VENV)/installed-rocks: $(VENV)/installed
	@$(INSTALL) --no-deps rocksdict==0.3.29
	@touch $@

BENCH_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
OUT ?= studies/gpu/first
CARRIED ?=
gpu-first:
	@$(BENCH_PYTHON) -m benchmarks.gpu --out $(OUT) $(if $(CARRIED),--carried $(CARRIED)) $(ARGS)

gpu-all:
	@$(BENCH_PYTHON) -m benchmarks.gpu --all $(ARGS)

gpu-carry: $(VENV)/installed
	$(BIN)/python -m benchmarks.gpu.carry $(OUT) --rivals $(ARGS)

# Builds docs/ into site/: open site/index.html, it loads nothing from elsewhere. A warning is an error.
docs: $(VENV)/installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --site-dir site
	@echo "open site/index.html"

# Builds docs/ as those of this minor version, and puts all versions into site/ with a switch between them. mike keeps their pages in the
# local branch gh-pages. To add an older version: make site ALIAS= in a worktree of its tag.
ALIAS ?= latest
site: export PATH := $(abspath $(BIN)):$(PATH)
site: export NO_MKDOCS_2_WARNING := 1
site: $(VENV)/installed-dev
	@version=$$(python -c 'from adaptive_rec.system.version import __version__; print(__version__)') && \
		mike --quiet deploy --alias-type redirect --update-aliases --title $$version $${version%.*} $(ALIAS)
	@mike --quiet set-default --allow-undefined --template docs/tools/first_page.html latest
	@rm -rf site && mkdir site && git archive gh-pages | tar -x -C site
	@{ printf 'docsVersions = '; cat site/versions.json; } > site/versions.js
	@echo "open site/index.html"

# Runs all chapters of the tutorial, under 20 minutes; runs and plots stay in studies/tutorial.
tutorial: $(VENV)/installed-dev
	rm -rf studies/tutorial
	mkdir -p studies/tutorial && ln -s ../../examples studies/tutorial/examples
	$(BIN)/python docs/tools/blocks.py docs/tutorial --folder studies/tutorial

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/installed

# Some systems ship Python without ensurepip, and venv then fails half-way.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "adaptive-rec needs Python 3.11 to 3.13; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null \
		|| { rm -rf $(VENV); $(PYTHON) -m virtualenv $(VENV) 2>/dev/null; } \
		|| virtualenv -p $(PYTHON) $(VENV) 2>/dev/null \
		|| { rm -rf $(VENV); \
		     echo "no virtual environment can be made: install python3-venv (Debian, Ubuntu) or virtualenv, then again"; exit 1; }

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +
