# make demo    train a small net on two processes and see its loss fall, about a minute after the clone
# make test    run the tests
# make lint    ruff and mypy
# make soak    kill ranks, savers and data workers of real runs, more than a hundred times (half an hour)
# make environment   start real containers (after make images), a real Slurm and a real Ray (docs/clusters.md)
# make images   build and check the container images without CUDA (podman, buildah; see docs/images.md for IMAGES=...)
# make bench   measure the step and the launch, each with its control (minutes; see benchmarks/)
#
# Each first sets up .venv with the versions in constraints.txt; the next time it starts at once.
#   make demo PYTHON=python3.12                                               another Python (3.10 or newer)
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo        torch without CUDA: a smaller download

PYTHON ?= python3
BIN := .venv/bin
timed = @start=$$(date +%s); $(2) && echo "$(1) took $$(( $$(date +%s) - start )) s"

.PHONY: demo test lint soak environment images bench

demo: .venv/ready
	$(call timed,The demo,$(BIN)/rankwise run fashion --mode ddp --devices 2)

test: .venv/ready-dev
	$(call timed,The tests,$(BIN)/python -m pytest -q -n 3 --dist loadfile)

lint: .venv/ready-dev
	$(call timed,Linting,$(BIN)/ruff check . && $(BIN)/mypy)

soak: .venv/ready-dev
	$(call timed,The soak,$(BIN)/python -m pytest -q -s -m soak)

environment: .venv/ready-environment
	$(call timed,The environments,$(BIN)/python -m pytest -q -rs -m environment)

images: .venv/ready
	$(call timed,The images,$(BIN)/python tools/build_images.py $(IMAGES))

bench: .venv/ready
	$(BIN)/python benchmarks/step.py --devices 1
	$(BIN)/python benchmarks/step.py --devices 2
	$(BIN)/python benchmarks/launch.py

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "rankwise needs Python 3.10 or newer with venv; choose one with: make PYTHON=python3.12 ..."; exit 2; }
	@echo "Setting up .venv (torch is large; this happens once) ..."
	$(call timed,Setting up,$(PYTHON) -m venv .venv && \
	    $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .)
	@touch $@

.venv/ready-dev: .venv/ready
	$(call timed,Setting up the tools,$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]')
	@touch $@

.venv/ready-environment: .venv/ready-dev
	$(call timed,Setting up Ray,$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,ray]')
	@touch $@
