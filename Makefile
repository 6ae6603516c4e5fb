# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed

# Compiled modules are kept also where the environment says otherwise: tests start processes that import them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check check-platforms format peers peers-test clean

demo: $(STAMP)
	$(BIN)/python examples/digits.py

# Two processes with one thread each: on two cores that is faster than one process with two. With worksteal each takes
# half of the files in order, so that tests of a file share what they compute once.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-all: check check-platforms
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m ""

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Types as on Windows, macOS and a later Python: no import may fail there, and no function may be missing.
check-platforms: $(STAMP)
	$(BIN)/mypy --platform win32 --python-version 3.14 --cache-dir .mypy_cache/win32 src papers/sordino_papers
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src papers/sordino_papers

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The libraries that benchmarks and `make peers-test` compare with. Other tests do not need them.
peers: $(PEERS_STAMP)

peers-test: $(PEERS_STAMP)
	$(PEERS)/bin/python -m pytest -m "" tests/opacus/test_opacus_page.py tests/gradients/test_peers.py

clean:
	rm -rf $(VENV) $(PEERS)

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e papers
	touch $(STAMP)

$(PEERS_STAMP): pyproject.toml papers/pyproject.toml constraints.txt bench/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r bench/peers.txt \
		-e . -e papers
	touch $(PEERS_STAMP)
