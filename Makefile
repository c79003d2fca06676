# make demo   the main job, on data that comes with the package
# make check  the fast half of make test: style, types and the tests that take no whole runs
# make test   style, types and all tests
# make bench  speed against a plain PyTorch loop (minutes)
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: demo style check test bench install clean

demo: $(INSTALLED)
	@rm -rf runs/demo runs/demo-own
	$(BIN)/fedkeel compare examples/demo.toml --methods fedavg,ova-lp,ridge --out runs/demo
	$(BIN)/fedkeel run examples/demo.toml --set method.name=ridge partition.kind=dirichlet partition.alpha=0.1 --out runs/demo-own
	$(BIN)/fedkeel personalize runs/demo-own --method lp:epochs=5

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: style
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test: style
	$(BIN)/pytest -n 2 --dist worksteal

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.dual

install: $(INSTALLED)

# torch brings its own dependencies, which differ by platform; everything else is locked to the last package.
$(INSTALLED): requirements.lock pyproject.toml
	@echo "installing into .venv (once, a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedkeel needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check -c requirements.lock "$$(grep '^torch==' requirements.lock)"
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps -r requirements.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
