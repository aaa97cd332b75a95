# What one does with this repository. `make help` lists it.

PYTHON ?= python3
# Of `make test-oldest`: numpy 1.24 has wheels for no newer one than 3.11.
OLDEST_PYTHON ?= python3.10
# Any pip requirement; to change it, `make clean` first. PyPI's torch brings CUDA, several gigabytes:
# without a GPU, point PIP_EXTRA_INDEX_URL at PyTorch's index of CPU builds.
TORCH ?= torch==2.13.0
# torchrec and FBGEMM belong to one version of torch: 1.6 to 2.11, 1.7 to 2.12, 1.8 to 2.13, 1.9 to 2.14.
TORCHREC ?= torchrec==1.8.0
FBGEMM ?= fbgemm-gpu-cpu==1.8.0
# Passed on to pytest, train.py or the benchmarks: make test ARGS="-k step -x"
ARGS ?=
RUN := runs/$(shell date +%Y%m%d-%H%M%S)

VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PEERS := .venv-peers
OLDEST := .venv-oldest
TWINE := build/twine
PLUGIN := packages/trainobs-tensorboard
OBJECT := src/trainobs/probes/objects/trainobs.$(shell uname -m).preemptible.bpf.o
NATIVE := src/trainobs/steps/_fast_path.abi3.so src/trainobs/core/_loops.so
C_FILES := $(wildcard bpf/*.c bpf/*.h)
NATIVE_FILES := $(wildcard native/*.c native/*.h)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup bpf demo demo-imagenet demo-dlrm test test-all test-oldest test-kernels check format bench bench-fae storm gpu-bundle bench-peers profile-dlrm faults pictures docs wheel release clean

help: ## Show this list
	@echo "usage: make TARGET [PYTHON=$(PYTHON)] [TORCH=$(TORCH)] [RUN=DIR] [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Install everything into .venv; quick when nothing is to be done

$(READY): pyproject.toml $(PLUGIN)/pyproject.toml hatch_build.py scripts/system-packages.sh
	bash scripts/system-packages.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile "$(TORCH)" "$(FBGEMM)" -e ".[dev,examples,torchrec-cpu]" -e $(PLUGIN)
	$(BIN)/pip install --no-compile --no-deps "$(TORCHREC)" # by itself it would bring fbgemm-gpu, and CUDA
	$(BIN)/python -W ignore -m compileall -qq -j 0 $(abspath $(VENV))/lib || true # pip would use one CPU for it
	touch $@

bpf: $(OBJECT) $(NATIVE) ## Compile the BPF programs, and what user space has in C

$(OBJECT): $(C_FILES) bpf/build.py | $(READY)
	$(BIN)/python bpf/build.py

$(NATIVE) &: $(NATIVE_FILES) native/build.py | $(READY)
	$(BIN)/python native/build.py

demo: setup bpf ## Train twice, observed, with one change; runs/demo is the second run
	$(BIN)/python examples/quickstart.py --run-dir $(RUN)/before
	$(BIN)/trainobs report $(RUN)/before
	@echo
	$(BIN)/python examples/quickstart.py --run-dir $(RUN)/after --workers 2
	$(BIN)/trainobs compare $(RUN)/before $(RUN)/after
	@[ -e runs/demo ] && [ ! -L runs/demo ] || ln -sfn $(abspath $(RUN))/after runs/demo
	$(BIN)/trainobs report $(RUN)/before --html $(RUN)/before.html
	@echo "The same in TensorBoard: $(BIN)/tensorboard --logdir $(RUN)"

demo-imagenet: setup bpf ## Train a ResNet on 2,000 photographs, observed, and report on it
	$(BIN)/python examples/imagenet/train.py --run-dir $(RUN) $(ARGS)
	$(BIN)/trainobs report $(RUN)

demo-dlrm: setup bpf ## Train a recommendation model, observed, and report on its lookups
	$(BIN)/python examples/dlrm/train.py --run-dir $(RUN) $(ARGS)

test: setup bpf ## Run the tests, but for slow ones; those of the kernel side need root
	bash tests/run "not slow" $(ARGS)

test-all: test ## Run the slow ones, too
	bash tests/run slow $(ARGS)

test-oldest: setup bpf $(OLDEST)/.ready ## Run the tests with the oldest versions that pyproject.toml allows
	VENV=$(OLDEST) bash tests/run "not slow" -o filterwarnings=default --ignore=tests/embeddings --ignore=tests/fae $(ARGS)

$(OLDEST)/.ready: pyproject.toml $(PLUGIN)/pyproject.toml tests/oldest.txt
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install -c tests/oldest.txt -e ".[tests,examples]" -e $(PLUGIN)
	touch $@

test-kernels: setup bpf ## Try the probes on other kernels, in virtual machines; as root, hours
	bash tests/guests/setup
	RESULTS=build/kernels bash tests/guests/test-kernels $(ARGS)
	$(BIN)/python tests/guests/table docs/kernels.md build/kernels

check: setup bpf ## Lint, formats, types, layers, links
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES) $(NATIVE_FILES)
	$(BIN)/python bpf/build.py --werror
	$(BIN)/python native/build.py --werror
	$(BIN)/python -m pytest -q tests/architecture

format: setup ## Format Python and C
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(C_FILES) $(NATIVE_FILES)

bench: setup bpf ## Measure what observation costs
	$(BIN)/python benchmarks/run.py $(ARGS)
	$(if $(ARGS),,$(BIN)/python benchmarks/fae_cpu.py)

bench-fae: setup $(NATIVE) ## Measure FAE's work on the host
	$(BIN)/python benchmarks/fae_cpu.py $(ARGS)

gpu-bundle: setup ## Write what a machine with a GPU and no network needs to measure, into build/gpu-bundle
	$(BIN)/python -m benchmarks.gpu.bundle $(ARGS)

faults: setup bpf ## Inject faults into small trainings, and check the verdicts on them
	$(BIN)/python benchmarks/verdicts.py $(ARGS)

profile-dlrm: setup ## Profile the recommendation model: docs/dlrm-profile.md
	$(BIN)/python -m benchmarks.dlrm_profile.run $(ARGS)

storm: setup bpf ## Try to break runs, and whoever reads them, by thousands; as root, hours
	$(BIN)/python -m benchmarks.storms.run $(ARGS)

bench-peers: setup bpf $(PEERS)/.ready ## Compare the cost of observing with that of other tools; 15 minutes
	$(PEERS)/bin/python -m benchmarks.peers.run $(ARGS)

$(PEERS)/.ready: $(READY) benchmarks/peers/requirements.txt benchmarks/peers/setup.sh
	bash benchmarks/peers/setup.sh $(BIN)/python $(PEERS)
	touch $@

pictures: setup ## Take the pictures of the docs from the runs of make demo, in Chromium
	$(BIN)/python scripts/pictures.py runs/demo/../before $(ARGS)

docs: setup ## Write docs/metrics.md from the catalogue
	page=$$($(BIN)/python -m trainobs.core.catalogue_page) && echo "$$page" > docs/metrics.md

wheel: setup ## Build a wheel for this type of machine into dist/
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

release: setup $(TWINE)/.ready ## Build all that is published, of the last commit, into dist/
	bash scripts/release.sh $(BIN)/python dist
	$(TWINE)/bin/twine check --strict dist/*

$(TWINE)/.ready:
	$(PYTHON) -m venv $(TWINE)
	$(TWINE)/bin/pip install -q "twine>=6"
	touch $@

clean: ## Remove the environments, the probes and caches; runs, demo data and build/ stay
	rm -rf $(VENV) $(PEERS) $(OLDEST) dist src/trainobs/probes/objects $(NATIVE) .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
