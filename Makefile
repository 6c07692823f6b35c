# make train     installs what a run needs into .venv and trains configs/quickstart.py
# make sweep     the same for all points of a sweep, CONFIG
# make test      installs what the tests need besides and runs those that take minutes
# make test-all  those, and then the long ones: kills, several processes, buckets, a run of every config; on Linux test-accelerators
# make test-accelerators  every config's step and every kernel, with the compiler for TPUs in an environment of its own
# make test-browser  the pages of eval.py --attention=OUT.html in a browser; needs chromium and chromium-driver
# make lint      checks the style
# make plan      what a run needs on a slice of TPUs, from the compiler for TPUs in an environment of its own; with
#                ARGS="--config=configs/gpt2.py:1558m --topology=v5e:8x8 --config.train.microbatches=4"
# make plans     the same for the table of docs/tpu.md, or with ARGS="'GPT-2 1.5B'" for a case of it

PYTHON ?= python3
WORKDIR ?= runs/quickstart
CONFIG ?= configs/stability.py
BIN := .venv/bin
# Files with tests of a mark: to import the others as well takes up to 20 seconds.
marked = $(sort $(shell grep -rlE --include='*_test.py' '$(1)' tests))

.PHONY: train sweep test test-all test-accelerators test-browser lint plan plans

train: .venv/run
	$(BIN)/python train.py --workdir=$(WORKDIR)

sweep: .venv/run
	$(BIN)/python sweep.py --config=$(CONFIG)

test: .venv/dev
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow'

test-all: test .venv/gs
	$(BIN)/python -m pytest -n auto -m slow $(call marked,mark\.slow|slow_but)
ifeq ($(shell uname -sm),Linux x86_64)
	$(MAKE) test-accelerators
endif

test-accelerators: .venv-plan/dev
	.venv-plan/bin/python -m pytest -n auto -m accelerators $(call marked,mark\.accelerators)

test-browser: .venv/browser
	$(BIN)/python -m pytest -m browser $(call marked,mark\.browser)

lint: .venv/dev
	$(BIN)/ruff check .

plan: .venv-plan/run
	.venv-plan/bin/python -m benchmarks.plan $(ARGS)

plans: .venv-plan/run
	.venv-plan/bin/python -m benchmarks.plans $(ARGS)

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run: requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

# Runs and data in gs://
.venv/gs: requirements.txt requirements-gs.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -r requirements-gs.txt
	touch $@

.venv/browser: requirements.txt requirements-dev.txt requirements-browser.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -r requirements-browser.txt
	touch $@

.venv/dev: requirements.txt requirements-dev.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	touch $@

.venv-plan/run: requirements.txt
	$(PYTHON) -m venv .venv-plan
	.venv-plan/bin/python -m pip install --quiet "jax[tpu]" -r requirements.txt
	touch $@

.venv-plan/dev: requirements-dev.txt .venv-plan/run
	.venv-plan/bin/python -m pip install --quiet -r requirements-dev.txt
	touch $@
