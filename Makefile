# `make` or `make help` lists the targets. Every target sets up what it needs in a fresh clone.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := $(VENV)/.peers
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Extra arguments for pip, for instance `--extra-index-url …` for an index with torch's CPU build.
PIP_ARGS ?=
ARGS   ?=
# Two processes of one thread each; a process that has nothing left to do takes of the other's.
# Bytecode is written, also where the environment says not to: some hundred processes are started,
# and compiling eqsynth again costs each of them 0.15 s, and each of the two some 4 s.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# Random programs and random torch modules that the long run of test-all tries.
PROGRAMS ?= 20000
MODULES  ?= 300

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv peers browser demo test quick test-all lint bench wheel-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## create .venv with the pinned versions (again only when the pins change)

# torch goes first and alone: resolving it together with the rest may pick a CUDA build. pip would
# compile to bytecode on one core; compileall uses all cores, and leaves out what hardly any program
# loads. A file that doesn't compile is left as it is, as pip does.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "eqsynth needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(PIP_ARGS) --no-compile -c constraints.txt torch
	$(PIP) install $(PIP_ARGS) --no-compile -c constraints.txt hatchling
	$(PIP) install $(PIP_ARGS) --no-compile -c constraints.txt --no-build-isolation -e '.[dev,onnx,cuda]'
	$(BIN)/python -m compileall -q -j 0 -x '/(mypy|pip|setuptools|testing|tests)/' $(VENV)/lib || true
	@touch $@

peers: $(PEERS)  ## add the engines that `make bench` compares with (250 MB)

$(PEERS): $(STAMP)
	$(PIP) install $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[peers]'
	@touch $@

browser: $(STAMP)  ## add playwright, which drives a Chromium in the tests of the HTML page
	$(PIP) install $(PIP_ARGS) -c constraints.txt --no-build-isolation -e '.[browser]'

demo: $(STAMP)  ## optimize the example models and print one table (under 5 minutes)
	@$(BIN)/python -m benchmarks.demo $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

# At once: mypy takes 20 s of one core where it has no cache yet.
test:  ## lint and the quick tests (ARGS="-k proof" selects)
	+@$(MAKE) --no-print-directory -j2 lint quick

quick: $(STAMP)
	$(PYTEST) -m "not slow" --part now $(ARGS)

test-all: lint wheel-check  ## lint, every test (says why those it skips are), PROGRAMS random programs, MODULES modules (resumes)
	$(PYTEST) -rs $(ARGS)
	$(BIN)/python -m benchmarks.long_run --programs $(PROGRAMS) --modules $(MODULES)

bench: $(PEERS)  ## run every benchmarks/bench_*.py; results go to benchmarks/results/
	@mkdir -p benchmarks/results
	@for f in benchmarks/bench_*.py; do name=$$(basename $$f .py); \
		$(BIN)/python -m benchmarks.$$name --json benchmarks/results/$$name.json $(ARGS) || exit 1; done

wheel-check: $(STAMP)  ## build the wheel, install it apart, and see that it finds its rules
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
	$(BIN)/python -m hatchling build -t wheel -d "$$tmp" && \
	$(PIP) install --no-deps --no-index --target "$$tmp/site" "$$tmp"/*.whl && \
	cd "$$tmp" && PYTHONPATH="$$tmp/site" $(CURDIR)/$(BIN)/python -c \
	'from eqsynth.rules.location import rules_directory as d; n = len(list(d().rglob("*.egg"))); \
	print(f"{n} rule files in", d()); raise SystemExit(n == 0 or "_rules" not in str(d()))'

clean:  ## remove what was built (not .venv)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
