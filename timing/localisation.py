"""How long the evaluation of phrase localisation takes beyond the encoding, and its memory.
benchmark.py shows it."""
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from evaluation.localisation import Phrases, judge_phrases
from evaluation.phrases import largest_first, locate, measures
from timing import MIB, Setting, in_fresh_process, line, race, resident

# photos, proposals of each, phrases of all, D: the test of Flickr30k Entities
PHRASES = (1000, 200, 14500, 512)
SIZE = (500, 375)                     # width and height of a photo, as most of Flickr30k's
NOISE = 8                      # length of what is added to a proposal's unit vector: R@1 is near 40


def drawn(name: str, photos: int, proposals: int, phrases: int, dim: int, seed: int) -> Phrases:
    """Random boxes and unit vectors of proposals; phrases that are noisy copies of one of their
    photo's proposals, with its box moved a little as the truth; the cosine."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    photo = np.sort(rng.integers(photos, size=phrases))
    rows = photo * proposals + rng.integers(proposals, size=phrases)                     # (M,) rows
    corners = np.sort(rng.integers(0, SIZE, (photos * proposals, 2, 2)), 1)   # (R, corner, x and y)
    boxes = corners.reshape(-1, 4).astype(np.float32)
    truth = boxes[rows] + rng.integers(-5, 6, (phrases, 4))
    truth[:, 2:] = np.maximum(truth[:, :2], truth[:, 2:])
    kinds = np.array(["people", "clothing", "animals", "other"])[rng.integers(4, size=phrases)]
    split = SimpleNamespace(  # what is read of a PhraseSplit
        ids=[str(n) for n in range(photos)], sizes=np.tile(SIZE, (photos, 1)), boxes=boxes,
        start=np.arange(photos + 1) * proposals, phrases=["two words"] * phrases,
        phrase_photo=photo, truth=truth.astype(np.float64), types=[(kind,) for kind in kinds],
        n_boxes=rng.integers(1, 4, phrases), added=np.zeros(len(boxes), bool))
    regions = torch.randn(photos * proposals, dim, generator=generator)
    regions /= regions.norm(dim=1, keepdim=True)                                            # (R, D)
    words = F.normalize(torch.randn(phrases, dim, generator=generator) * NOISE / dim ** 0.5
                        + regions[rows], dim=1)

    def scores_of(n: int, columns: np.ndarray) -> torch.Tensor:
        # (P, m)
        return regions[split.start[n]:split.start[n + 1]] @ words[columns[0]:columns[-1] + 1].T
    return Phrases(name, split, scores_of)


def evaluated(of: Phrases) -> dict:
    """All numbers of the tables."""
    return measures(locate(of.split, of.scores_of), of.split) | {"largest": largest_first(of.split)}


def memory(names: tuple, sizes: tuple, seed: int) -> float:
    """MiB of this process at its peak, the vectors included: of the tables of the last of these
    sets, and, where there are two, of the confidence that is fitted on the first."""
    *dev, test = (drawn(name, *sizes, seed + k) for k, name in enumerate(names))
    evaluated(test)
    for other in dev:
        judge_phrases(other, test)
    return resident("VmHWM") / MIB


def phrases(how: Setting) -> None:
    """An evaluation with cosines of random vectors, on the CPU."""
    print("\nphrases: {:,} photos x {:,} proposals, {:,} phrases, D = {:,}, cosine".format(
        *PHRASES), flush=True)
    dev, test = (drawn(name, *PHRASES, how.seed + k) for k, name in enumerate(("dev", "test")))

    def products() -> None:
        _, low = np.unique(test.split.phrase_photo, return_index=True)
        for columns in np.split(np.arange(len(test.split.phrase_photo)), low[1:]):
            test.scores_of(int(test.split.phrase_photo[columns[0]]), columns)

    best = race({"products": products, "plain": partial(evaluated, test),
                 "sure": partial(judge_phrases, dev, test)}, how, 2)
    line("the scores alone, seconds", best["products"], ".2f")
    line("ranks, measures, both baselines, seconds", best["plain"], ".2f", "phrases")
    line("confidence, fitted on as many phrases of dev, seconds", best["sure"], ".2f", "phrases")
    line("peak memory of the process, vectors included, MiB",
         in_fresh_process(memory, ("test",), PHRASES, how.seed), ".0f", "phrases memory")
    line("the same with the confidence and the vectors of dev, MiB",
         in_fresh_process(memory, ("dev", "test"), PHRASES, how.seed), ".0f")
