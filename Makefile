# Everything runs in .venv, which is made on first use; see CONTRIBUTING.md.

.DEFAULT_GOAL := help
# What comes last on the screen shall be the tests' own summary.
.NOTPARALLEL:
SHELL := /bin/bash
# Container images set it; every process that a test starts would then compile the modules that it imports.
unexport PYTHONDONTWRITEBYTECODE
.SHELLFLAGS := -euo pipefail -c

PY := .venv/bin/python
# Files without a name ending are told by their first line.
PYTHON_SCRIPTS = $(shell grep -lE '^\#!.*python' scripts/* 2>/dev/null)
SHELL_SCRIPTS = $(shell grep -lE '^\#!.*\b(ba)?sh$$' .ci/run distribution/deb/* distribution/rpm/* examples/slurm/* scripts/* \
    2>/dev/null)

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: .venv/.runtime ## the main job on a simulated GPU, installs what it needs; REAL=1: on this machine's GPU
	PATH="$(CURDIR)/.venv/bin:$$PATH" scripts/demo $(if $(filter 1,$(REAL)),--real)

# Workers of pytest-xdist: tests wait for other processes more than they compute.
WORKERS ?= 4
PYTEST = $(PY) -m pytest -q -ra -o faulthandler_timeout=600
# A file's tests stay together: they share a booted systemd, a compiled library. The slow files come first
# (tests/conftest.py).
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: check
check: lint ## lint, types, unit tests, a handful of failovers; for every change
	$(PYTEST) $(PARALLEL) -m 'not slow and not soak' tests/unit
	$(PY) scripts/takeover-simulation --schedules 5 --seed 1

.PHONY: test
test: packages vendor lint ## everything this machine can check; what it cannot is named; what CI runs
	$(PYTEST) $(PARALLEL) --durations=20

.PHONY: soak
soak: packages vendor ## long campaigns, an hour or more: 1,000 failovers, 100,000 histories, 10,000,000 hostile inputs
	$(PY) scripts/takeover-simulation --schedules 1000 --seed 1
	$(PY) scripts/triage-campaign --histories 100000 --seed 1
	$(PY) scripts/fuzz --cases 10000000 --seed 1
	$(PYTEST) --durations=0 -o timeout=3600 -m soak
	$(PYTEST) $(PARALLEL) --hypothesis-profile=search -m 'not slow and not soak' tests/unit
	$(PYTEST) --hypothesis-profile=search tests/unit/preload/zones/test_accounting.py

.PHONY: lint
lint: venv ## ruff, mypy, import layers, shellcheck
	$(PY) -m ruff check . $(PYTHON_SCRIPTS)
	$(PY) -m ruff format --check . $(PYTHON_SCRIPTS)
	$(PY) -m mypy
	$(PY) -m mypy --scripts-are-modules $(PYTHON_SCRIPTS)
	.venv/bin/lint-imports
	@if command -v shellcheck >/dev/null; then echo shellcheck -x $(SHELL_SCRIPTS); shellcheck -x $(SHELL_SCRIPTS); \
	else echo 'not run: shellcheck (not installed)'; fi

.PHONY: venv
venv: .venv/.stamp ## .venv with the project and its development tools

.venv/.stamp: pyproject.toml scripts/bootstrap scripts/packages-python.txt
	scripts/bootstrap venv
	@touch $@ .venv/.runtime

# The project alone, without the development tools and PyTorch.
.venv/.runtime: pyproject.toml scripts/bootstrap scripts/packages-python.txt
	scripts/bootstrap runtime
	@touch $@

.PHONY: packages
packages: ## Debian packages the tests need (as root; else names them)
	@scripts/bootstrap packages

.PHONY: vendor
vendor: venv ## the vendor's MPS daemons and module sources, and helm, unpacked into .cache for the tests, not installed
	@$(PY) scripts/fetch-vendor-mps || [ $$? -eq 3 ]
	@$(PY) scripts/fetch-kernel-sources || [ $$? -eq 3 ]
	@$(PY) scripts/fetch-kubernetes-tools || [ $$? -eq 3 ]

.PHONY: dist
dist: venv ## wheel, deb, rpm, bundle and a bill of materials, into dist/
	$(PY) scripts/build-packages

.PHONY: site
site: venv ## the documentation as a site, in build/site; fails on a broken link, and on a page that its menu lacks
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

.PHONY: results
results: venv ## the newest measured results
	@$(PY) scripts/results

.PHONY: clean
clean: ## remove what make and the tools made
	rm -rf .venv .cache "$${XDG_CACHE_HOME:-$$HOME/.cache}/mpsguard" .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
