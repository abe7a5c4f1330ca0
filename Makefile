# The only tools needed beforehand: Python 3.11-3.13 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
SYNC    = KVGATE_PURE=1 UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --frozen --quiet
FAST   ?= .venv-fast
SOURCES = hatch_build.py $(shell find gateway replicas loadtest -name '*.py')

.PHONY: run test fast test-fast check real bench rivals lock clean
.DEFAULT_GOAL := run

# A venv of our own with uv in it, which installs the locked set; done again only when the lock file changes.
$(VENV)/.installed: pyproject.toml uv.lock
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9,<1"; }
	@$(SYNC) --inexact
	@touch $@

run: $(VENV)/.installed    ## simulated replicas, the gateway, one streamed chat; keeps serving
	@$(BIN)/kvgate demo

test: $(VENV)/.installed   ## everything that needs no GPU and no root
	@$(BIN)/python -m pytest --ignore=tests/real

# The wheel as users get it, compiled, beside the locked set. The tests' folder is linked, so that they cannot see the source.
$(FAST)/.installed: $(VENV)/.installed $(SOURCES)
	@UV_PROJECT_ENVIRONMENT=$(FAST) $(BIN)/uv sync --frozen --quiet --python $(BIN)/python --no-editable --reinstall-package kvgate
	@mkdir -p $(FAST)/suite && ln -sfn $(CURDIR)/tests $(FAST)/suite/tests
	@$(FAST)/bin/kvgate --version | tee /dev/stderr | grep -q compiled || { echo 'no compiled wheel: $(BIN)/uv build --wheel tells why'; exit 1; }
	@touch $@

fast: $(FAST)/.installed   ## the compiled gateway: .venv-fast/bin/kvgate, built in about a minute

test-fast: fast            ## unit and integration tests against the compiled gateway
	@$(FAST)/bin/pytest -o pythonpath=$(FAST)/suite tests/unit tests/integration

check: $(VENV)/.installed  ## lint, formatting, types, import rules, unused dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry gateway replicas loadtest

real: $(VENV)/.installed   ## against promtool, the Node client and vLLM on CPU (3.4 GB), as far as they can be installed here
	@PYTHON=$(PYTHON) .ci/install-real
	@$(BIN)/python -m pytest -rs tests/real

rivals: $(VENV)/.installed ## other gateways, each in a venv of its own, for the benchmark
	$(BIN)/python -m loadtest.rivals

bench: rivals fast         ## CPU and latency beside other gateways, in one run
	$(BIN)/python -m loadtest.overhead

lock:                      ## resolve again after a change of dependencies
	$(BIN)/uv lock

clean:
	rm -rf $(VENV) $(FAST) .venv-rivals .venv-vllm tests/real/node/node_modules build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
