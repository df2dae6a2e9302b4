# On a machine with Python 3.11 or newer and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
# Two test processes of one thread each are faster than one of two, and give the same numbers on any machine.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: setup test test-all test-browser test-mcu closest demo bench lint types docs wheel extras figures clean

setup: $(READY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "plmu needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml requirements.txt | $(BIN)/python
	@$(BIN)/python .ci/install.py --editable '.[dev]'
	@touch $(DEMO_READY) $(READY)

# What `make demo` needs, which is less.
$(DEMO_READY): pyproject.toml requirements.txt | $(BIN)/python
	@$(BIN)/python .ci/install.py --editable '.[train,data]'
	@touch $(DEMO_READY)

test: $(READY)
	$(PYTEST)

# The whole grid of algorithms, precisions, sizes, states and lengths, where `make test` takes every pair of values.
test-all: $(READY)
	$(PYTEST) -m 'full or not full'

# Exported C on an emulated Cortex-M4: flash, RAM and instructions per step. It needs Debian's gcc-arm-none-eabi,
# libnewlib-arm-none-eabi and qemu-system-arm.
test-mcu: $(READY)
	$(BIN)/python -m benchmarks.mcu

# The page of `plmu serve` in a headless browser. Needs Debian's package chromium; pictures go to build/browser.
test-browser: $(READY)
	$(BIN)/python -m tests.browser

# The tests, and after them the ten comparisons that stand closest to their bounds.
closest: $(READY)
	$(PYTEST) --closest 10

# The main job on data that is included: fit, test, plot, stream and export.
demo: $(DEMO_READY)
	$(BIN)/plmu demo --out demo

bench: $(READY)
	$(BIN)/python -m benchmarks.cpu

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The site, build/docs/index.html. Warnings are errors.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

# A wheel that installs and imports in an environment of its own, from a folder that does not hold the source. Warnings
# are errors but one: torch says that there is no NumPy, which the library alone does not need.
wheel: $(READY)
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m build --wheel --no-isolation --outdir build/wheel .
	$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/python .ci/install.py build/wheel/plmu-*.whl
	cd build/wheel && venv/bin/python -W error -W 'ignore:Failed to initialize NumPy' -c 'import plmu, torch; print(plmu.__version__, plmu.ParallelLMU(1, 4, order=6, theta=20.0)(torch.randn(2, 30, 1))[0].shape)'

# Each extra alone, in an environment of its own: serve serves, export exports, data forecasts, train trains.
extras: wheel
	$(BIN)/python -m tests.extras build/wheel/venv build/wheel/plmu-*.whl

figures: $(READY)
	$(BIN)/python docs/figures.py

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
