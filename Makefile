# Two commands do all the set-up:  make demo   make test
# Everything goes into .venv/; what tests need from Debian is installed by `make system` (part of `make test`).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
TEST_ARGS ?=
# More than two cores: some tests wait for real programs most of their time.
TEST_WORKERS ?= 4
SLOW_WORKERS ?= 2
BENCH_ARGS ?=
# Else every command that a test starts as a process would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format docs pictures bench focus-check system lock hashes clean

help: ## Say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"gpucost needs Python 3.11 or newer, $(PYTHON) is {v.major}.{v.minor}; try: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

# The demo needs the server's packages only; tests, lint and benchmarks need the development ones.
$(VENV)/.server: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) (server) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "setting up $(VENV) (development) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.server

demo: $(VENV)/.server ## A month of a simulated cluster: report, HTML page, API on loopback (DEMO_ARGS=--once ends after it)
	@$(BIN)/gpucost demo $(DEMO_ARGS)

# What comes last on the command line wins: TEST_ARGS may name another -m.
test: $(VENV)/.dev system ## All tests but the slow ones (TEST_ARGS="-k ledger" for some)
	@echo "all tests but those marked slow, which make test-slow runs"
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) -m "not slow" $(TEST_ARGS)

# Beside a `make test`: its notes of failed tests are its own.
test-slow: $(VENV)/.dev system ## The slow tests: soak, kills, replays of traces, the demo
	@$(BIN)/python -m pytest -n $(SLOW_WORKERS) -m slow -o cache_dir=.pytest_cache/slow $(TEST_ARGS)

lint: $(VENV)/.dev ## Format, lint, types, layers, generated docs
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev ## Mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.dev ## Write every generated file anew: the newest schema, settings, metrics, commands, detectors, dashboards, alerts
	@$(BIN)/python -m gpucost.service.settings_docs > docs/settings.md
	@$(BIN)/python -c "from gpucost.ledger.db.database import *; print(migrated_schema(), end='')" > newest.sql
	@mv newest.sql gpucost/ledger/migrations/newest.sql
	@$(BIN)/python -m gpucost.service.metrics docs/metrics.md
	@$(BIN)/python -m gpucost.service.settings_docs docs/detectors
	@$(BIN)/python -m gpucost.cli.docs > docs/cli.md
	@$(BIN)/python -m tests.support.example_cluster > docs/examples/cluster.yaml
	@$(BIN)/python -m dashboards
	@$(BIN)/python -m dashboards.docs
	@$(BIN)/python -m alerts
	@$(BIN)/python -m tests.support.helm_values

pictures: $(VENV)/.dev system ## Draw the pictures in docs/pictures: messages, pages, the report, dashboards
	@$(BIN)/python docs/pictures/draw.py
	@$(BIN)/python docs/pictures/draw_pages.py
	@rm -rf demo-out && $(BIN)/gpucost demo --once --dir demo-out > /dev/null
	@$(BIN)/python docs/pictures/draw_report.py demo-out/config.yaml
	@$(BIN)/python -m tests.support.demo_prometheus demo-out/prometheus
	@$(BIN)/python docs/pictures/draw_dashboards.py demo-out/prometheus

bench: $(VENV)/.dev system ## Every benchmark; each prints ratios and one line of JSON
	@for program in benchmarks/[!_]*.py; do echo "== $$program"; $(BIN)/python $$program $(BENCH_ARGS) || exit 1; done

# The validator pins packages that gpucost does not, and needs Python 3.12: an environment of its own.
FOCUS_PYTHON ?= $(shell for each in python3.12 $(HOME)/.pyenv/versions/3.12*/bin/python; do \
	$$each -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo $$each && break; done)
.cache/focus/.made: Makefile
	@test -n "$(FOCUS_PYTHON)" || { echo "FOCUS CHECK NOT RUN: it needs Python 3.12 (make focus-check FOCUS_PYTHON=/path/to/python3.12)" >&2; exit 1; }
	@rm -rf .cache/focus && $(FOCUS_PYTHON) -m venv .cache/focus
	@.cache/focus/bin/python -m pip install --quiet --disable-pip-version-check 'focus-validator==2.2.1' 'pyarrow<22'
	@touch $@

focus-check: $(VENV)/.dev .cache/focus/.made ## focus-validator over exports: what fails must stand on the reviewed list
	@$(BIN)/python -m tests.support.focus_validator .cache/focus

# Real components that tests run against, as Debian packages: binary:package+package.
SYSTEM := prometheus:prometheus promtool:prometheus prometheus-alertmanager:prometheus-alertmanager \
	amtool:prometheus-alertmanager chromium:chromium pdftotext:poppler-utils \
	pg_ctl:postgresql gcc:gcc+libc6-dev openssl:openssl wrk:wrk victoria-metrics:victoria-metrics
system: ## Install what tests need from Debian, or say what is missing
	@missing=""; for pair in $(SYSTEM); do binary=$${pair%%:*}; package=$${pair##*:}; \
	  command -v $$binary >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/$$binary >/dev/null 2>&1 || missing="$$missing $$(echo $$package | tr + " ")"; done; \
	missing=$$(echo $$missing | tr ' ' '\n' | sort -u | tr '\n' ' '); \
	if [ -n "$$(echo $$missing)" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "installing from Debian: $$missing"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null \
	      || echo "WARNING: apt-get could not install $$missing: the tests that need them will be SKIPPED"; \
	  else echo "WARNING: not installed: $$missing (apt-get install $$missing): the tests that need them will be SKIPPED"; fi; fi

# Requirements with hashes, for images: what is in the package of each, and what builds the wheel.
HASHED = .cache/lock/bin/uv pip compile --quiet --python-version 3.11 --python-platform linux \
	--generate-hashes --no-annotate --no-emit-find-links --custom-compile-command "make lock"
lock: ## Write constraints.txt and the requirements of images anew from the newest versions allowed
	@rm -rf .cache/lock && $(PYTHON) -m venv .cache/lock
	@.cache/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	@(sed -n '/^#/p' constraints.txt; .cache/lock/bin/python -m pip freeze --exclude gpucost) > .cache/constraints.txt
	@mv .cache/constraints.txt constraints.txt
	@$(MAKE) --no-print-directory hashes
	@rm -rf .cache/lock

hashes:
	@test -e .cache/lock/bin/python || $(PYTHON) -m venv .cache/lock
	@.cache/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(HASHED) -c constraints.txt --extra server --extra chat --extra lake --extra mcp pyproject.toml -o gpucost/requirements.txt
	@$(HASHED) -c constraints.txt --extra exporter pyproject.toml -o exporters/gpucost_gpu_exporter/requirements.txt
	@$(HASHED) -c constraints.txt --extra collector pyproject.toml -o exporters/gpucost_queue_collector/requirements.txt
	@echo hatchling | $(HASHED) -c constraints.txt - -o requirements-build.txt

clean: ## Remove everything that was made
	@rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis demo-out
