"""Every part of the benchmark runs and measures something, at a small size; what it compares with is right."""
import json

import numpy as np
import pytest
import torch

import benchmark
from devices.precision import compile_parts
from metrics import retrieval
from similarities import SIMILARITIES, Embedding
from tests import references
from tests.helpers import processes_of
from timing import Setting, Sizes, epoch, precision, records, scale
from timing import features as features_timing
from timing import localisation as localisation_timing
from timing import search as search_timing

SIZES = {"DIM": 8, "SCORES": (20, 40), "SLICE": 2, "SAMPLE": (6, 8), "ORIGINAL": 2, "ATTENTION": (6, 10, 4),
         "TIMED_CAPTIONS": (4, 2), "SIZES": Sizes(6, (12,), 8, 40), "REGION_STEP": {"shape": (4, 12)},
         "BLOCKS": (8, 5, 3), "ELEMENTS": (64, 128), "CALIBRATED": ((20, 100), (30, 150)),
         "FILES": {"features": ((10, 12), np.float32), "regions": ((10, 4, 12), np.float16)}}

# Whose two steps and one to warm up are more than an epoch.
EPOCH = {"IMAGES": 5, "SIZES": Sizes(16, dim=8, words=40), "DRAWN": 3, "PROFILED": 1,
         "KINDS": {name: kind._replace(shape=(*kind.shape[:-1], 12)) for name, kind in epoch.KINDS.items()}}
SEARCH = {"DIM": 8, "LATENT": 6, "CLUSTERS": 5, "LEARNED": 40, "TUNED": 20, "TRIED": 20, "ASKED": (1, 3)}


def timed(*words) -> None:
    print(json.dumps(scale.timed(*words)))


def in_processes(count: int, words: list[str], seed: int, alone=scale.in_processes) -> dict:
    """scale.in_processes where one alone is started anew; several are forked, which load torch no more."""
    if count == 1:
        return alone(count, words, seed)
    with processes_of(count, timed, words, scale.SIZES, scale.STEPS, seed) as ranks:
        (status, out, err), *_ = [rank.ended() for rank in ranks]
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("part", benchmark.PARTS)
def test_every_part_measures(part, monkeypatch, capsys):
    for name, value in SIZES.items():
        monkeypatch.setattr(benchmark, name, value)
    size = (1400, 1400) if part == "suite" else (20, 100)   # its ECCV part asks for the matches of 1,332 queries
    monkeypatch.setattr(benchmark, "EVALUATION", size)
    monkeypatch.setattr("evaluation.subjects.FOLD", size[0] // 5)
    monkeypatch.setattr(features_timing, "EXTRACTED", 6)
    monkeypatch.setattr(features_timing, "WORKERS", 1)
    monkeypatch.setattr(localisation_timing, "PHRASES", (30, 6, 90, 8))
    records.clear()
    for name, value in SEARCH.items():
        monkeypatch.setattr(search_timing, name, value)
    for module in (benchmark, search_timing, localisation_timing):
        monkeypatch.setattr(module, "in_fresh_process", lambda function, *words: function(*words))
    if part == "search":
        pytest.importorskip("faiss", reason="FAISS is an optional package (requirements-search.txt)")
    for name, value in EPOCH.items():
        monkeypatch.setattr(epoch, name, value)
    monkeypatch.setattr(precision, "SAMPLE", (6, 12))
    monkeypatch.setattr(precision, "DIM", 8)
    monkeypatch.setattr(epoch, "compile_parts", lambda model, device: compile_parts(model, device, "eager"))
    monkeypatch.setattr(scale, "SIZES", Sizes(4, (6,), 8, 20, (2, 4)))
    monkeypatch.setattr(scale, "STEPS", 1)
    monkeypatch.setattr(scale, "in_processes", in_processes)
    monkeypatch.setattr(scale, "KINDS", {"point": scale.KINDS["point"]})
    benchmark.PARTS[part](Setting(1, 0, torch.device("cpu"), 1200, profile=part == "epoch"))
    assert records and all(np.isfinite(record["value"]) for record in records)
    assert part in capsys.readouterr().out


def gaussians(n: int, seed: int) -> Embedding:
    g = torch.Generator().manual_seed(seed)
    return Embedding(*torch.randn(2, n, 6, generator=g, dtype=torch.float64))


@pytest.mark.parametrize("name", SIMILARITIES)
def test_broadcasts_are_the_similarities(name):
    images, captions = gaussians(4, 1), gaussians(5, 2)
    points = images._replace(log_var=None) if name == "mahalanobis" else images
    scores = SIMILARITIES[name]()(points, captions)
    torch.testing.assert_close(references.broadcasts(name, points, captions), scores, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_attended_is_the_loop_over_pairs(direction):
    g = torch.Generator().manual_seed(0)
    regions, words = (torch.randn(n, 4, 6, generator=g, dtype=torch.float64) for n in (130, 3))
    count = torch.tensor([4, 1, 2])
    images, captions = (Embedding(x.mean(1), None, x, n) for x, n in ((regions, torch.full((130,), 4)), (words, count)))
    slow = [[references.pair_score(v, w[:n], direction, "clipped_l2norm", "LogSumExp") for w, n in zip(words, count)]
            for v in (regions[0], regions[129])]
    torch.testing.assert_close(references.attended(direction, images, captions)[[0, 129]],
                               torch.stack([torch.stack(row) for row in slow]))


def test_ranks_of_the_originals_loop_are_those_of_the_metrics():
    rng, owner = np.random.default_rng(0), np.arange(40) // 5
    images, captions = rng.standard_normal((8, 6)), rng.standard_normal((40, 6))
    found = retrieval(torch.tensor(images @ captions.T), owner)
    for side, ranks in (("i2t", references.image_ranks(images, captions, owner, 8)),
                        ("t2i", references.caption_ranks(images, captions, owner, 40))):
        assert found[side]["meanr"] == pytest.approx(np.mean(ranks) + 1)
        assert found[side]["r1"] == pytest.approx(100 * np.mean(np.array(ranks) == 0))
