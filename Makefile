# The verbs that people, CI and pre-commit share. `./kronos setup --dev` installs what they need.
PYTHON ?= .venv/bin/python
BENCHMARKS := $(sort $(basename $(notdir $(wildcard benchmarks/[a-z]*.py))))

.PHONY: format lint types contracts test coverage kombu-5.6 bench ci

format:
	$(PYTHON) -m ruff check --fix-only --quiet .
	$(PYTHON) -m ruff format .

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

contracts:
	$(dir $(PYTHON))lint-imports

test:
	$(PYTHON) -m pytest

# Lines and branches that the tests reach, in their processes and in those that they start.
coverage:
	rm -rf output/coverage && mkdir -p output/coverage
	$(PYTHON) -m coverage run -m pytest -n 4 --dist loadfile --no-loadscope-reorder
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report

# The transport on the earlier kombu. Celery 5.7 excludes it in its metadata, and works with it.
kombu-5.6:
	$(PYTHON) -m pip install --quiet --no-deps --upgrade --target output/kombu-5.6 'kombu~=5.6.0'
	PYTHONPATH=output/kombu-5.6 $(PYTHON) -m pytest --quiet tests/worker/broker/test_transport.py

bench:
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(PYTHON) -m benchmarks.$$name; done

ci:
	.ci/run
