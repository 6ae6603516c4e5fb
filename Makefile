# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Compiled modules are kept also where the environment says otherwise: tests start processes that import them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check format clean

demo: $(STAMP)
	$(BIN)/python examples/digits.py

# Two processes with one thread each: on two cores that is faster than one process with two. With worksteal each takes
# half of the files in order, so that tests of a file share what they compute once.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-all: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m ""

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e papers
	touch $(STAMP)
