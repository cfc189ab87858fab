# One virtual environment, made on first use; PYTHON and VENV may be set.
PYTHON ?= python3
VENV ?= .venv

.PHONY: demo test lint docs

demo: $(VENV)/installed
	$(VENV)/bin/speechbrain-triton demo

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

docs: $(VENV)/installed
	$(VENV)/bin/mkdocs build --strict

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
		|| { echo "Python 3.11 or 3.12 is needed: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install --upgrade pip
	$(VENV)/bin/pip install --editable ".[dev]"
	touch $@
