"""Every part of the benchmark runs and measures something, at a small size."""
import argparse

import numpy as np
import pytest
import torch

import benchmark

SMALL = {"DIM": 8, "SCORES": (20, 40), "SLICE": 2, "SAMPLE": (6, 8), "ORIGINAL": 2, "ATTENTION": (6, 10, 4),
         "TIMED_CAPTIONS": (4, 2), "BATCH": 6, "FEATURES": 12, "WORDS": 40, "REGION_STEP": ((4, 12), 8),
         "BLOCKS": (8, 5, 3), "ELEMENTS": (64, 128),
         "FILES": {"features": ((10, 12), np.float32), "regions": ((10, 4, 12), np.float16)}}


@pytest.mark.parametrize("part", [
    pytest.param(part, marks=pytest.mark.slow) if part == "suite" else part for part in benchmark.PARTS])
def test_every_part_measures(part, monkeypatch, capsys):
    for name, value in SMALL.items():
        monkeypatch.setattr(benchmark, name, value)
    if part != "suite":                                     # which needs five folds of 1,000 images
        monkeypatch.setattr(benchmark, "EVALUATION", (20, 100))
    monkeypatch.setattr(benchmark, "records", [])
    monkeypatch.setattr(benchmark, "in_fresh_process", lambda function, *words: function(*words))
    benchmark.PARTS[part](argparse.Namespace(repeats=1, seed=0, device="cpu"), torch.device("cpu"))
    assert benchmark.records and all(np.isfinite(record["value"]) for record in benchmark.records)
    assert part in capsys.readouterr().out
