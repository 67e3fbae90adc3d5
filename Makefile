# Two commands matter: `make demo` and `make test`. Each sets itself up alone in .venv.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first of these that is 3.11 or newer (the tests run on 3.11); override with `make PYTHON=... test`.
CANDIDATES := python3.11 python3.12 python3.13 python3
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(NEW_ENOUGH)' 2>/dev/null; then echo $$p; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help demo test gpu check lint types setup clean

help:
	@echo "make demo    profile BERT-large training on a V100 and an H100, and what fusion would win; writes build/demo/"
	@echo "make test    run all tests"
	@echo "make gpu     run the tests that need an NVIDIA GPU; without one they are skipped, saying so"
	@echo "make check   lint and types"
	@echo "make clean   remove what make made"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "memwall needs Python 3.11 or newer; none of $(CANDIDATES) is. Set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "memwall needs Python 3.11 or newer; $(PYTHON) is older" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@mkdir -p build/demo
	$(BIN)/memwall profile profiles/bert_large/model.py --gpu v100 h100 --mode training \
	    -o build/demo/bert_large.html -o build/demo/bert_large.png
	$(BIN)/memwall fuse profiles/bert_large/model.py --gpu v100 h100 --mode training --no-capture \
	    --policy memwall ideal -o build/demo/fusion.png -o build/demo/fusion.md

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu -rs tests/gpu

check: lint types

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
