# Everything from a fresh clone: `make demo`, `make test`. Each MPI has a virtual environment of its own, made on demand.

MPI ?= mpich
PYTHON ?= python3
# Named before the package, so that pip takes this release: where an index offers CPU builds, a CPU build.
TORCH ?= torch==2.13.0
# Options for pytest, as in `make test-ranks-2 ARGS='-k gather -x'`
ARGS ?=
SUITES ?= unit docs 1 2 3 4 torch_backend:2 torch_backend:4 faults examples
# Ranks of `make torch-suite`
N ?= 4
PYTHONS ?= 3.10 3.12 3.13
PYENV_ROOT ?= $(HOME)/.pyenv

MPIS := mpich openmpi impi
ifeq ($(filter $(MPI),$(MPIS)),)
$(error MPI=$(MPI): choose one of $(MPIS))
endif

BIN := $(CURDIR)/.venv/$(MPI)/bin
READY := .venv/$(MPI)/.ready
# With the environment's bin on PATH, since Intel's mpirun looks for its parts there.
IN := PATH="$(BIN):$$PATH"

# One thread a rank: the ranks fill the cores.
export OMP_NUM_THREADS ?= 1
ifeq ($(MPI),openmpi)
# Containers and CI run as root and have fewer cores than ranks. Without yielding, a small call then takes a time slice.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_mpi_yield_when_idle := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
endif
ifeq ($(MPI),impi)
export I_MPI_THREAD_YIELD := 3
export I_MPI_THREAD_SLEEP := 1
endif

.PHONY: help
help: ## list the targets
	@echo "make TARGET [MPI=mpich|openmpi|impi] [ARGS='options of pytest']"
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(READY) ## train a small network on 4 ranks and compare it with one process
	$(IN) mpirun -n 4 python examples/train_digits.py

.PHONY: test
test: $(READY) ## run all tests: without MPI, on 1 to 4 ranks, and jobs that fail
	$(IN) python tests/run.py $(SUITES) -- $(ARGS)

.PHONY: test-unit
test-unit: $(READY) ## run the tests that need no mpirun
	$(IN) python tests/run.py unit -- $(ARGS)

.PHONY: test-faults
test-faults: $(READY) ## run the tests of jobs that fail
	$(IN) python tests/run.py faults -- $(ARGS)

test-ranks-%: $(READY) ## run the tests of tests/ranks on % ranks
	$(IN) python tests/run.py $* -- $(ARGS)

.PHONY: test-torch
test-torch: $(READY) ## run PyTorch's own distributed code over mpicoll, beside one process, on 2 and 4 ranks
	$(IN) python tests/run.py torch_backend:2 torch_backend:4 -- $(ARGS)

.PHONY: test-clients
test-clients: .venv/clients/.ready ## run accelerate, lightning, transformers and others over mpicoll, on 2 ranks of MPICH
	PATH="$(CURDIR)/.venv/clients/bin:$$PATH" python tests/run.py clients -- $(ARGS)

.PHONY: torch-suite
torch-suite: $(READY) ## run the distributed test-suite that the torch wheel ships, on N ranks
	$(IN) python tests/torch_backend/suite.py -n $(N) $(ARGS)

.PHONY: test-whole
test-whole: $(READY) ## run the whole product of operations, dtypes and layouts, of which `make test` takes a part
	$(IN) MPICOLL_TEST_WHOLE=1 python tests/run.py --limit 7200 1 2 3 4 -- -k product $(ARGS)

.PHONY: test-python
test-python: ## run the tests on other Pythons, with numpy and without torch
	@tried=; failed=; \
	for version in $(PYTHONS); do \
		if $(MAKE) --no-print-directory .venv/python$$version/.found; then \
			tried="$$tried $$version"; \
			$(MAKE) --no-print-directory test-python-$$version || failed="$$failed $$version"; \
		else \
			echo "Python $$version: not found, left out"; \
		fi; \
	done; \
	echo; echo "Pythons without torch: tried$${tried:- none}, failed$${failed:- none}"; \
	test -n "$$tried" && test -z "$$failed"

test-python-%: .venv/python%/.ready
	@echo; echo "==== Python $* without torch"
	PATH="$(CURDIR)/.venv/python$*/bin:$$PATH" python tests/run.py unit 1 2 3 -- $(ARGS)

.PHONY: bench
bench: $(READY) ## time all_reduce beside mpi4py's and gloo's, and DDP beside gloo's, on 2 ranks
	$(IN) mpirun -n 2 python tests/benchmarks/all_reduce.py
	$(IN) mpirun -n 2 python tests/benchmarks/ddp.py

.PHONY: lint
lint: $(READY) ## check with ruff
	$(IN) ruff check . && $(IN) ruff format --check .

.PHONY: types
types: $(READY) ## check with mypy --strict
	$(IN) mypy

.PHONY: setup
setup: $(READY) ## make the virtual environment and do nothing more

.PHONY: clean
clean: ## remove the virtual environments and what the tools leave
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that exists is brought up to date, not made anew.
.venv/%/.ready: pyproject.toml
	test -x .venv/$*/bin/python || $(PYTHON) -m venv .venv/$*
	.venv/$*/bin/python -m pip install -qq $(TORCH)
	.venv/$*/bin/python -m pip install -qq --editable '.[$*,dev,examples]'
	touch $@

# torch is named again, so that no client brings another one along.
.venv/clients/.ready: pyproject.toml tests/clients/requirements.txt
	test -x .venv/clients/bin/python || $(PYTHON) -m venv .venv/clients
	.venv/clients/bin/python -m pip install -qq $(TORCH)
	.venv/clients/bin/python -m pip install -qq $(TORCH) --requirement tests/clients/requirements.txt --editable '.[mpich,dev]'
	touch $@

.venv/python%/.found:
	@mkdir -p $(@D)
	@for python in $(PYENV_ROOT)/versions/$*.*/bin/python python$*; do \
		if command -v $$python >/dev/null && $$python -c pass 2>/dev/null; then echo $$python >$@; exit 0; fi; \
	done; rmdir $(@D); exit 1

.venv/python%/.ready: .venv/python%/.found pyproject.toml
	test -x .venv/python$*/bin/python || $$(cat $<) -m venv .venv/python$*
	.venv/python$*/bin/python -m pip install -qq mpich 'mpi4py>=4.1' numpy pytest pytest-mpi hypothesis
	.venv/python$*/bin/python -m pip install -qq --no-deps --editable .
	touch $@

.PRECIOUS: .venv/%/.ready .venv/python%/.ready .venv/python%/.found
