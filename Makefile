# `make demo` and `make test` do all the set-up they need.
PYTHON ?=
BIN := .venv/bin
ARGS ?=

.PHONY: install demo test check format bench clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt deploy/install.sh
	PYTHON="$(PYTHON)" ./deploy/install.sh

demo: install
	$(BIN)/warden demo $(ARGS)

test: install
	$(BIN)/python -m pytest -n 2 $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .demo
