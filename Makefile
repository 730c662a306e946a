# `make fit` and `make test` are all that a newcomer needs. TORCH installs a torch of your choice
# first, such as TORCH='torch==2.13.0'.

PYTHON ?= python3
VENV ?= .venv
TORCH ?=
CONFIG ?= configs/llama.yaml
BIN := $(VENV)/bin

.PHONY: fit test check slow docs clean

fit: $(VENV)/.installed
	$(BIN)/llama-lab fit --config $(CONFIG) $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH),$(BIN)/pip install '$(TORCH)')
	$(BIN)/pip install -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install -e '.[test]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site
