# make demo   the main job, on data that comes with the package
# make check  the fast half of make test: style, types and the tests that take no whole runs
# make test   style, types and all tests
# make fuzz   ten minutes of damaged and malicious input to everything that reads any; make test has a short one
# make trial  a federation of real processes on this machine, over Flower with TLS and keys
# make faults real processes killed over and over, and other long checks (many minutes); make test has short ones
# make bench  speed against a plain PyTorch loop (minutes)
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PIP_QUIETLY := -qq --disable-pip-version-check
PIP := $(BIN)/pip install $(PIP_QUIETLY)

.PHONY: demo style check test fuzz trial faults bench install clean

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
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not long"

test: style
	$(BIN)/pytest -n 2 --dist worksteal

fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m fuzz --minutes 10

trial: $(INSTALLED)
	@rm -rf runs/trial
	$(BIN)/fedkeel deploy trial runs/trial --clients 3

faults: $(INSTALLED)
	$(BIN)/python -m pytest -m long --tb=short

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.dual

install: $(INSTALLED)

# Nothing is installed whose hash is not in the lock. Asked for a hash, pip prefers the public torch to a CPU build that it
# finds beside; so torch is fetched first, then installed by its hash. What it lacks on this platform comes last.
$(INSTALLED): requirements.lock pyproject.toml
	@echo "installing into .venv (once, a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedkeel needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv .venv
	@sed -n '/^torch==/,/[^\\]$$/p' requirements.lock > .venv/torch.lock
	@$(BIN)/pip download $(PIP_QUIETLY) --no-deps --only-binary :all: -d .venv/torch "$$(grep -o '^torch==[^ ]*' .venv/torch.lock)"
	@$(PIP) --no-deps --require-hashes --no-index --find-links .venv/torch -r .venv/torch.lock
	@rm -r .venv/torch
	@$(PIP) --no-deps --require-hashes -r requirements.lock
	@$(PIP) "$$(grep -o '^torch==[^ ]*' .venv/torch.lock)"
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
