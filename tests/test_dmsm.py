"""DMSM's objective and the drawing of items without partners: against the definition, by counting, and in training."""
import itertools
import math

import numpy as np
import pytest
import torch

from images import Features
from losses import SampledNLL
from methods.unpaired import Unpaired, choose_pairs

SCORES = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def slow_nll(scores, gamma, row, others) -> float:
    return -math.log(math.exp(gamma * scores[row, row]) / sum(math.exp(gamma * scores[row, k]) for k in [row, *others]))


def test_all_negatives_make_the_full_softmax():
    full = torch.nn.functional.cross_entropy(10 * SCORES, torch.arange(6), reduction="none")
    torch.testing.assert_close(SampledNLL(10, 5).nll(SCORES), full)
    torch.testing.assert_close(SampledNLL(10, 500).nll(SCORES), full)


def test_samples_are_those_of_the_definition_and_all_are_drawn():
    expected = {row: {round(slow_nll(SCORES, 3, row, others), 9)
                      for others in itertools.combinations(set(range(6)) - {row}, 2)}
                for row in range(6)}
    torch.manual_seed(1)
    seen = {row: set() for row in range(6)}
    for _ in range(300):
        for row, value in enumerate(SampledNLL(3, 2).nll(SCORES).tolist()):
            seen[row].add(round(value, 9))
    assert seen == expected


def test_captions_of_the_same_image_are_never_drawn():
    own = torch.zeros(6, 6, dtype=torch.bool)
    own[0, 1] = own[1, 0] = True
    got = SampledNLL(3, 5).nll(SCORES, own)
    assert float(got[0]) == pytest.approx(slow_nll(SCORES, 3, 0, [2, 3, 4, 5]))
    assert float(got[2]) == pytest.approx(slow_nll(SCORES, 3, 2, [0, 1, 3, 4, 5]))
    assert torch.autograd.gradcheck(lambda s: SampledNLL(3, 5).nll(s, own), SCORES.clone().requires_grad_())


def test_a_pool_gives_every_item_once_before_any_comes_again():
    def draw(step, pool=None):
        return (pool or Unpaired({}, {"images": np.array([7, 9, 1, 0, 2])}, 3, 0)).draw("images", step).tolist()
    pool = Unpaired({}, {"images": np.array([7, 9, 1, 0, 2])}, 3, 0)
    drawn = [draw(step, pool) for step in range(5)]
    assert drawn[-1] == draw(4)                             # whatever was drawn before
    assert sorted(sum(drawn, [])) == sorted(3 * [7, 9, 1, 0, 2])
    assert sorted(sum(drawn, [])[:5]) == [0, 1, 2, 7, 9]


def test_supervised_fraction_keeps_the_pairs_of_a_share_of_the_images(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((20, 3), np.float32))
    split = type("Split", (), {"images": Features(str(tmp_path / "x.npy")), "caption_image": np.arange(100) // 5})
    chosen = choose_pairs(split, 0.25, 0)
    assert len(chosen) == 25 and len(set(split.caption_image[chosen])) == 5
    assert not np.array_equal(chosen, choose_pairs(split, 0.25, 1)) and len(choose_pairs(split, 1, 0)) == 100
    assert len(choose_pairs(split, 0.001, 0)) == 5
