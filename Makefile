# The verbs that people, CI and pre-commit share. `./kronos setup --dev` installs what they need.
PYTHON ?= .venv/bin/python
BENCHMARKS := $(sort $(basename $(notdir $(wildcard benchmarks/[a-z]*.py))))

.PHONY: system-deps format lint types contracts collect test coverage reference docs bench release ci

# What tests need that pip cannot install: redis-server with TLS, libfaketime and Chromium. Debian and Ubuntu.
system-deps:
	.ci/system-deps

format:
	$(PYTHON) -m ruff check --fix-only --quiet .
	$(PYTHON) -m ruff format .

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(dir $(PYTHON))actionlint
	$(dir $(PYTHON))zizmor --offline --quiet --min-severity medium .github

types:
	$(PYTHON) -m mypy

contracts:
	$(dir $(PYTHON))lint-imports

# Imports every test. Else each process of the suite would compile them all.
collect:
	mkdir -p output
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -qq --collect-only >output/collect.log || { cat output/collect.log; exit 1; }

test:
	./kronos test

# The pages of docs/ that come from the code.
reference:
	$(PYTHON) -m docs.generate

# The site, in output/site. What builds it is installed once, apart from the project; after that no network is needed.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build

.venv-docs/installed: requirements-docs.txt
	python3 -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet -r requirements-docs.txt
	touch $@

# Lines and branches that the tests reach, in their processes and in those that they start.
coverage:
	rm -rf output/coverage && mkdir -p output/coverage
	$(PYTHON) -m coverage run -m pytest -n 6 --dist loadfile --no-loadscope-reorder
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report

bench:
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(PYTHON) -m benchmarks.$$name; done

# Builds dist/ anew, and checks it by installing it.
release:
	.ci/release

ci:
	.ci/run
