# Two commands matter: `make demo` and `make test`. Each sets itself up alone in .venv.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first of these that is 3.11 or newer (the tests run on 3.11); override with `make PYTHON=... test`.
CANDIDATES := python3.11 python3.12 python3.13 python3
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(NEW_ENOUGH)' 2>/dev/null; then echo $$p; break; fi; done)

# Processes of the tests, for pytest's -n.
WORKERS ?= auto

# What `make gpu` may take: for the reference workloads, and for small modules of all families.
SECONDS ?= 480
FAMILY_SECONDS ?= 600

# torch.compile needs a C++ compiler for a CPU; without one the loop times eager alone.
EXECUTORS := $(shell command -v g++ >/dev/null 2>&1 && echo eager,inductor || echo eager)

.DEFAULT_GOAL := help
.PHONY: help demo xla loop docs test test-whole test-fast test-oldest test-newest newest gate gpu check lint types lines setup release-check clean

help:
	@echo "make demo    BERT-large training on a V100 and an H100, and what fusion would win; writes build/demo/"
	@echo "make loop    this CPU calibrated, and one layer of BERT modeled and measured on it; writes build/demo/"
	@echo "make test    run all tests; make test-fast those of the inner loop"
	@echo "make test-oldest, make test-newest    a selection of tests with the oldest and the newest versions of libraries"
	@echo "make newest  resolve the newest versions anew, and say what changed"
	@echo "make gate    compare the reference workloads with profiles/baselines"
	@echo "make gpu     test, calibrate and measure on this machine's NVIDIA GPU, 18 minutes; writes profiles/measured/, reports/"
	@echo "make docs    the docs site, build/docs/index.html"
	@echo "make check   lint, types and lines per folder"
	@echo "make release-check  the wheel and source distribution of a release, checked and run from outside; writes dist/"
	@echo "make clean   remove what make made"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "memwall needs Python 3.11 or newer; none of $(CANDIDATES) is. Set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "memwall needs Python 3.11 or newer; $(PYTHON) is older" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e lab
	@touch $(STAMP)

# XLA's compilers for NVIDIA's GPUs and for TPUs, 1.2 GB: tests that compile are skipped without them.
XLA := $(VENV)/.installed-xla
xla: $(XLA)
$(XLA): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[xla-cuda,xla-tpu]'
	@touch $@

# Ends with the answer: what stands above the tables of the single GPUs.
demo: $(STAMP)
	@mkdir -p build/demo
	@$(BIN)/memwall fuse profiles/bert_large/model.py --gpu v100 h100 --mode training --no-capture -q \
	    --policy memwall ideal -o build/demo/fusion.png -o build/demo/fusion.md > build/demo/fusion.txt
	@$(BIN)/memwall profile profiles/bert_large/model.py --gpu v100 h100 --mode training -q \
	    -o build/demo/bert_large.html -o build/demo/bert_large.png > build/demo/bert_large.txt
	@awk '/^── / && seen++ { exit } { print }' build/demo/bert_large.txt
	@echo "The page: build/demo/bert_large.html; what fusion would win: build/demo/fusion.md"
	@echo "Next, after '. $(BIN)/activate': docs/optimise.md, docs/deploy.md, docs/many_gpus.md or docs/guard.md"

# The distributions as they would be published: checked, and the wheel alone, in an environment that holds nothing else
# and a folder that is no checkout, runs the demo's command.
RELEASE := build/release
release-check: $(STAMP)
	@rm -rf dist $(RELEASE)
	$(BIN)/python -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	    build check-wheel-contents twine
	@$(RELEASE)/tools/bin/python -m build --outdir dist . > $(RELEASE)/build.txt 2>&1 || { cat $(RELEASE)/build.txt; exit 1; }
	$(RELEASE)/tools/bin/python -m twine check --strict dist/*
	$(RELEASE)/tools/bin/check-wheel-contents dist/*.whl
	@there=$$(mktemp -d) && trap 'rm -rf "$$there"' EXIT && \
	$(BIN)/python -m venv "$$there/venv" && \
	"$$there/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl && \
	cp profiles/bert_large/model.py "$$there/model.py" && cd "$$there" && \
	venv/bin/memwall profile model.py --gpu v100 h100 --mode training -q -o bert_large.html -o bert_large.png \
	    > bert_large.txt && ls -l bert_large.html bert_large.png && awk '/^── / && seen++ { exit } { print }' bert_large.txt

# Refuses a busy machine, whose ceilings would be lower than what is then measured.
loop: $(STAMP)
	@mkdir -p build/demo
	$(BIN)/memwall calibrate -q -o build/demo/cpu.toml
	$(BIN)/memwall measure profiles/bert_layer/model.py --device cpu --gpu build/demo/cpu.toml --dtype fp32 --batch 1 \
	    --executor $(EXECUTORS) --samples 9 -o build/demo/measured.html -o build/demo/measured.png

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# But for what test-newest and test-oldest alone are for. Tests of a module stay together, as they share what is made once.
test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore=tests/cli/test_versions.py

# Every case, also of the tests of which `make test` runs a sample.
test-whole: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --whole --ignore=tests/cli/test_versions.py

test-fast: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not slow"

# A selection with the versions of constraints-oldest.txt or constraints-newest.txt, in an environment of its own, which
# pip neither compiles nor gets what the tests of other files need.
test-oldest test-newest: test-%: build/venv-%/.installed
	build/venv-$*/bin/python -m pytest -n $(WORKERS) -q -m versions $$(grep -rl --include='*.py' 'mark\.versions' tests)

build/venv-%/.installed: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv --clear build/venv-$*
	build/venv-$*/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints-$*.txt \
	    -e '.[dask,fit,hf,parquet,triton]' hypothesis pytest pytest-xdist pyyaml
	@touch $@

# Each installs this folder, into which pip writes: one after the other where both are asked for.
build/venv-oldest/.installed: | $(if $(filter test-newest,$(MAKECMDGOALS)),build/venv-newest/.installed)

newest: $(STAMP)
	$(BIN)/python tools/newest.py

gate: $(STAMP)
	$(BIN)/memwall gate -q

# Takes the first Python that has a CUDA build of torch, else one that has any: nothing need be installable here. Where
# none has torch it is installed, but for a machine without a board.
HAS_CUDA  := import sys, torch; sys.exit(torch.version.cuda is None)
HAS_TORCH := import torch

MEASURE = $(1) lab/reports/measured_report.py --seconds $(SECONDS) && exec $(1) lab/benchmarks/families.py --seconds $(FAMILY_SECONDS); exit $$?

gpu:
	@for needs in '$(HAS_CUDA)' '$(HAS_TORCH)'; do for p in $(BIN)/python python python3 python3.12 python3.11; do \
	    if $$p -c "$$needs" 2>/dev/null; then export PYTHONPATH=.:lab; $(call MEASURE,$$p); fi; \
	done; done; \
	for board in /dev/nvidia[0-9]* /dev/dxg; do if test -e $$board; then \
	    $(MAKE) --no-print-directory setup && { $(call MEASURE,$(BIN)/python); }; exit 1; fi; \
	done; \
	echo "memwall: no CUDA device here: make gpu needs an NVIDIA GPU; nothing was written" >&2; exit 3

check: lint types lines

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

lines: $(STAMP)
	$(BIN)/python tools/lines.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
