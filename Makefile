# make demo: set up, write the demo data, train, evaluate, draw; after a stop it goes on. VERBOSE=1 prints all tables.
# make search-demo: search its photos.
# make photos PHOTOS=FOLDER: set up, search a folder of your own.   make test, make lint: set up, check.
PYTHON ?= python3
DATA ?= data
RUN ?= runs/demo
PY := .venv/bin/python
TABLES = $(if $(VERBOSE),,>> $(RUN)/tables.txt)
START = $(if $(wildcard $(RUN)/checkpoint.pt),--resume $(RUN),--config demo.yaml --logger_name $(RUN))

.PHONY: demo demo-evaluation demo-confidence search-demo photos test test-milvus lint setup

demo: .venv/runtime
	$(PY) -m demo --data_path $(DATA)
	$(PY) train.py $(START) --data_path $(DATA)
	@rm -f $(RUN)/tables.txt
	@$(MAKE) --no-print-directory -j 2 demo-evaluation demo-confidence
	@cat $(RUN)/confidence.txt $(TABLES)
	@rm $(RUN)/confidence.txt
	@$(PY) -m demo.summary $(RUN)

# Side by side, as either is busy on one core for most of its time.
demo-evaluation:
	$(PY) evaluate.py --checkpoint $(RUN) --uncertainty --retrieval --photos $(DATA)/demo/images --cxc --cxc_path $(DATA)/demo_cxc \
		--pmrp --instances $(DATA)/demo_coco/annotations/instances_val2014.json \
		--positives $(DATA)/demo_precomp/test_positives.json $(TABLES)

demo-confidence:
	$(PY) -m confidence $(RUN) --sets 0.1 --photos $(DATA)/demo/images > $(RUN)/confidence.txt

# The photos are those of val2014: dev, test and a fifth of train.
search-demo: .venv/photos $(RUN)/calibration.json
	@rm -f $(RUN)_index.npz
	$(PY) -m photos $(DATA)/demo_coco/images/val2014 --checkpoint $(RUN) --output $(RUN)_index --index_only
	$(PY) -m photos query $(RUN)_index --captions demo/questions.txt --top 5
	@echo "now: . .venv/bin/activate; python -m photos serve $(RUN)_index"

$(RUN)/calibration.json:
	$(MAKE) demo

ifneq ($(filter photos,$(MAKECMDGOALS)),)
ifndef PHOTOS
$(error name the folder of your photos: make photos PHOTOS=~/Pictures)
endif
endif
photos: .venv/photos
	$(PY) -m photos "$(PHOTOS)"

test: .venv/dev
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal -rs

# On a Milvus server of its own, which the package `milvus` brings for Linux on x86-64.
test-milvus: .venv/dev
	OMP_NUM_THREADS=1 $(PY) -m pytest -m milvus tests/test_milvus.py

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

setup: .venv/dev

# Wheels of the pinned packages exist for these versions.
.venv/bin/python:
	@$(PYTHON) -c "import sys; (3, 11) <= sys.version_info[:2] <= (3, 14) or sys.exit('$(PYTHON) is Python ' \
		+ sys.version.split()[0] + ', and the pinned packages exist for 3.11 to 3.14: name one of them, for example ' \
		+ 'make $(MAKECMDGOALS) PYTHON=python3.11')"
	$(PYTHON) -m venv .venv

.venv/runtime: requirements.txt | .venv/bin/python
	$(PY) -m pip install -q -r requirements.txt
	touch $@

.venv/photos: requirements.txt photos/requirements.txt features/requirements.txt | .venv/bin/python
	$(PY) -m pip install -q -r requirements.txt -r photos/requirements.txt
	$(PY) -m pip install -q --no-deps -r features/requirements.txt
	touch .venv/runtime $@

.venv/dev: requirements.txt photos/requirements.txt photos/requirements-milvus.txt features/requirements.txt \
		methods/requirements-pretrained.txt phrases/requirements.txt requirements-dev.txt | .venv/bin/python
	$(PY) -m pip install -q -r requirements-dev.txt
	$(PY) -m pip install -q --no-deps -r features/requirements.txt
	touch .venv/runtime .venv/photos $@
