# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet
T ?= tests

# Without stored byte code, each process of the tests compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run chat test test-long test-all faults chaos soak-connectors bench bench-scale bench-replicas bench-page soak check audit format gen screenshots docs dependencies lock cov dist clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 10

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Torana needs Python 3.11 or newer; name it with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "This Python cannot make virtual environments. On Debian: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# uv installs in seconds what takes pip minutes.
$(BIN)/uv: requirements-uv.lock | $(BIN)/python
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-uv.lock
	@touch $@

$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/uv
	$(INSTALL) --python $(VENV) --require-hashes -r requirements.lock
	$(INSTALL) --python $(VENV) --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/uv
	$(INSTALL) --python $(VENV) --require-hashes -r requirements-dev.lock
	$(INSTALL) --python $(VENV) --no-deps --editable .
	@touch $@

.venv-bench/.run: requirements.lock pyproject.toml | $(BIN)/uv
	$(PYTHON) -m venv .venv-bench
	$(INSTALL) --python .venv-bench --require-hashes -r requirements.lock
	$(INSTALL) --python .venv-bench --no-deps --editable .
	@touch $@

setup: $(VENV)/.dev ## the virtual environment with all that tests and checks need

run: $(VENV)/.run ## the gateway on 127.0.0.1:18789 with its builtin model: no key, no other service
	@$(BIN)/torana serve

chat: $(VENV)/.run ## talk with the agent in the terminal
	@$(BIN)/torana chat

PYTEST := $(BIN)/python -m pytest --maxprocesses 8 --durations 10

# The tests wait for other processes, the long ones often: so many workers for each processor use the time.
WORKERS = $(call workers,1.5)
LONG_WORKERS = $(call workers,2)
workers = $(shell $(BIN)/python -c 'import math, os; print(math.ceil(os.cpu_count() * $(1)))')

test: $(VENV)/.dev ## the fast tests, in a few minutes; `make test T=tests/attacks` for all tests of a path
	$(PYTEST) --numprocesses $(WORKERS) --dist worksteal $(if $(filter tests,$(T)),-m "not long") $(T)

# A file's tests stay together: they share servers that take long to start. In the order of the files, those that
# take minutes with few tests do not come last.
test-long: $(VENV)/.dev ## the tests with real platforms, kills and attacks, and the property tests with more examples
	TORANA_TEST_PROFILE=long $(PYTEST) --numprocesses $(LONG_WORKERS) --dist loadfile --no-loadscope-reorder -m "long or hypothesis" $(T)

test-all: test test-long ## every test

faults: $(VENV)/.dev ## plant forty faults one by one, and show which the tests find; `make faults A='"the name"'` for some
	TORANA_CHAOS_SECONDS=$${TORANA_CHAOS_SECONDS:-20} $(BIN)/python scripts/plant_faults.py $(A)

chaos: $(VENV)/.dev ## five minutes of faults each for one gateway and for three replicas; 300 pairs of deaths
	TORANA_CHAOS_SECONDS=$${TORANA_CHAOS_SECONDS:-300} $(BIN)/python -m pytest tests/chaos --timeout=3600

soak-connectors: $(VENV)/.dev ## ten minutes of cuts, limits and kills while people talk on chat platforms
	TORANA_SOAK_SECONDS=$${TORANA_SOAK_SECONDS:-600} $(BIN)/python -m pytest tests/chaos/test_connectors.py -rA --log-level=INFO --timeout=1800

bench: $(VENV)/.dev .venv-bench/.run ## how fast it is, beside the bare agent loop; `make bench A="--peer nanobot --peer hermes"` beside others
	$(BIN)/python -m bench $(A)

bench-scale: $(VENV)/.dev .venv-bench/.run ## 100,000 sessions on disk, sessions of 5,000 messages, and 1,000 event streams at once
	$(BIN)/python -m bench.scale

bench-replicas: $(VENV)/.dev ## replicas on PostgreSQL: throughput, takeover, cancel, statements; `make bench-replicas A="throughput --postgres 18"`
	$(BIN)/python -m bench.replicas $(A)

bench-page: $(VENV)/.dev .venv-bench/.run ## the console in Chromium: size, start, a long session, a long answer, memory
	$(BIN)/python -m bench.page

soak: $(VENV)/.dev .venv-bench/.run ## 20,000 messages: memory and file handles
	$(BIN)/python -m bench.scale soak

check: $(VENV)/.dev ## format, lint, types, layers, spelling, generated documents, licenses, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs scripts *.md
	$(BIN)/python scripts/gen_docs.py --check
	$(BIN)/python scripts/licenses.py --check
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bf]*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml compose.replicas.yaml
	$(BIN)/pre-commit validate-config
	$(BIN)/zizmor --offline --quiet .github

audit: $(VENV)/.dev ## known vulnerabilities of the locked packages; `make audit A=--require` fails offline
	$(BIN)/python scripts/audit.py $(A)

format: $(VENV)/.dev ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

gen: $(VENV)/.dev ## rewrite the generated documents
	$(BIN)/python scripts/gen_docs.py

screenshots: $(VENV)/.dev ## the screenshots of the documentation, in docs/images/
	TORANA_SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/acceptance/console/test_views.py

docs: $(VENV)/.dev ## the documentation site, in site/
	$(BIN)/python scripts/build_site.py

dependencies: $(VENV)/.dev ## rewrite the table of dependencies, with sizes and import times
	$(BIN)/python scripts/licenses.py

lock: $(VENV)/.dev ## pin all dependencies anew, without addresses
	echo uv | $(BIN)/uv pip compile - --universal --generate-hashes --no-header --no-annotate --upgrade -o requirements-uv.lock
	$(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-header --no-annotate --upgrade -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes --no-header --no-annotate --upgrade -o requirements-dev.lock
	$(BIN)/uv pip compile pyproject.toml --extra all --universal --generate-hashes --no-header --no-annotate --constraint requirements-dev.lock -o requirements-all.lock

cov: $(VENV)/.dev ## coverage of the tests
	$(BIN)/coverage run -m pytest $(T)
	$(BIN)/coverage combine
	$(BIN)/coverage report

# The time of the last commit is the time of every file, so that each build of a commit gives the same bytes.
dist: $(VENV)/.dev ## reproducible wheel and source archive, SBOM and checksums, in dist/
	@test -z "$$(git status --porcelain)" || { echo "Commit your changes first: a release is built from a commit."; exit 1; }
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
	$(BIN)/python scripts/sbom.py dist/sbom.cdx.json
	cd dist && sha256sum * > SHA256SUMS

clean: ## remove the virtual environment and everything made
	rm -rf $(VENV) .venv-bench .venv-nanobot .venv-hermes bench/results dist build site .coverage* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
