# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs make, git, Java 17 or 21 and Python >= 3.11; says in one line what is missing.

PYTHON_BIN := .venv/bin
RUN := $(PYTHON_BIN)/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet install --no-deps --no-compile --no-build-isolation
STAMP := .venv/.made-in

# Without cached byte code every process of the tests would compile everything anew
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-browser compose audit table1 throughput site notebooks check format lock clean distclean

# Preflight runs before anything else, so that a missing tool is one line and exit code 2
NEEDY := setup demo test test-long test-browser compose audit table1 throughput site notebooks check format lock
ifneq ($(filter $(NEEDY),$(MAKECMDGOALS)),)
PREFLIGHT := $(shell PYTHON='$(PYTHON)' sh .ci/preflight 2>&1)
ifneq ($(firstword $(PREFLIGHT)),python:)
$(error $(PREFLIGHT))
endif
HOST_PYTHON := $(word 2,$(PREFLIGHT))
# A virtual environment holds absolute paths: a moved checkout makes a new one
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP) .venv/.locked .venv/.installed conf/spark-defaults.conf)
endif
endif

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 14

setup: .venv/.installed conf/spark-defaults.conf ## the virtual environment, the jars and conf/spark-defaults.conf
	@:

$(STAMP):
	@echo "making .venv ..."
	@$(HOST_PYTHON) -m venv --clear .venv
	@printf '%s' '$(CURDIR)' > $@

# setuptools and wheel first, because they build pyspark, which is published as source only
.venv/.locked: requirements.lock $(STAMP)
	@echo "installing the packages of requirements.lock (pyspark alone is 450 MB) ..."
	@sed -n '/^setuptools==/,/[^\\]$$/p; /^wheel==/,/[^\\]$$/p' requirements.lock > .venv/build.lock
	@$(PIP) --require-hashes -r .venv/build.lock
	@$(PIP) --require-hashes -r requirements.lock
	@touch $@

.venv/.installed: pyproject.toml .venv/.locked
	@$(PIP) --editable .
	@touch $@

conf/spark-defaults.conf: conf/spark-defaults.template conf/ivy.xml conf/jars.sha256 .venv/.installed
	@echo "fetching the jars of conf/ivy.xml ..."
	@$(RUN) -m dpsql.jars $@

DEMO := conf/queries/demo.sql
demo: setup ## a small stream, a private histogram of it, and what it promises
	@rm -rf demo-out && cat $(DEMO)
	@for command in "explain $(DEMO)" "run $(DEMO) --lake demo-out/lake --until-caught-up --until 2015-09-13" \
		"show demo --lake demo-out/lake" "try $(DEMO) --until 2015-09-13 --compare --limit 8" "verify demo --lake demo-out/lake"; do \
		echo; echo "$$ dpsql $$command"; DPSQL_SECRET_FILE=demo-out/secret/secret $(RUN) -m dpsql.jobs.cli $$command || exit; done

# A file of tests stays with one worker, which starts Spark once for all of its files; their order is that of tests/conftest.py
PYTEST := $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The broker's jars come meanwhile, which the tests of Kafka wait for
test: setup ## all tests that a change needs, on two cores
	@$(RUN) -c 'from dpsql import jars; jars.ensure(jars.BROKER)' & $(PYTEST)

test-long: setup ## what takes too long for every change: kills, clusters, other users, restores, whole sweeps
	@DPSQL_SWEEPS=whole $(PYTEST) tests/long $$(grep -rl --include='test_*.py' --exclude-dir=long 'tests.sweeps import' tests)

test-browser: setup ## the live view in a real Chromium, which has to be there (CHROMIUM names it)
	@$(RUN) -m pytest tests/browser

compose: setup ## docker-compose.yml on this machine's Docker Engine: started, killed, verified, every port asked, stopped
	@docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1 || { echo "make compose needs a Docker Engine that answers, and the plugin compose"; exit 2; }
	@$(RUN) -m pytest -s tests/long/deployment/test_compose.py

audit: setup ## audits and independent checks at full size; writes the tables of docs/audits.md
	@$(RUN) benchmarks/audit.py --full
	@$(RUN) benchmarks/checks.py
	@$(RUN) benchmarks/totality.py
	@$(RUN) -m pytest tests/sql/test_googlesql.py

table1: setup ## the paper's Table 1 at full size (an hour, 8 GiB); writes docs/accuracy.md
	@$(RUN) benchmarks/papers/table1.py

throughput: setup ## speed beside plain Spark (an hour, 12 GiB); writes docs/performance.md
	@$(RUN) benchmarks/throughput.py

site: setup ## a site of docs/ with a search, in build/site
	@$(PYTHON_BIN)/python -m sphinx -q -W --keep-going docs build/site && echo build/site/index.html

notebooks: setup ## the notebooks executed in a folder of `dpsql init`, with what they show
	@$(RUN) .ci/notebooks.py

check: setup ## lint, format, types, the lock file, who imports whom, and whether faults can be planted
	@$(PYTHON_BIN)/ruff check
	@$(PYTHON_BIN)/ruff format --check
	@$(PYTHON_BIN)/mypy
	@$(RUN) .ci/lock.py check
	@$(RUN) -m pytest -q tests/unit/test_project.py tests/unit/test_structure.py tests/unit/test_rooms.py tests/planted

format: setup ## make the code look as `check` wants it
	@$(PYTHON_BIN)/ruff check --fix-only --quiet
	@$(PYTHON_BIN)/ruff format

lock: $(STAMP) ## requirements.lock anew, after a change of dependencies in pyproject.toml
	@$(HOST_PYTHON) -m venv .venv/lock
	@.venv/lock/bin/python -m pip --disable-pip-version-check --quiet install uv
	@.venv/lock/bin/python .ci/lock.py make .venv/lock/bin/uv

clean: ## what tests, checks and the demo leave behind
	@rm -rf demo-out build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## also what `setup` made
	@rm -rf .venv .jars conf/spark-defaults.conf *.egg-info
