"""benchmark.py runs at tiny sizes, and its plain way computes what ours does."""
import re

import pytest
import torch

import benchmark
from losses import SIMILARITIES

TINY = benchmark.Sizes(batch=4, features=6, words=12, length=3, dim=8, images=6, timed=3)


def test_every_comparison_is_printed_as_a_ratio(capsys):
    benchmark.main(["--rounds", "2"], TINY)
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(re.search(r"\d ms, plain +[\d.]+ ms, ratio +[\d.]+$", line) for line in lines)


@pytest.mark.parametrize("sim", ["cosine", "wasserstein"])
def test_the_plain_way_has_our_scores_up_to_a_rising_function(sim):
    torch.manual_seed(0)
    images, captions = benchmark.make_gaussians(9, 8), benchmark.make_gaussians(2, 8)
    ours = SIMILARITIES[sim](images, captions)
    for k in range(2):
        plain = benchmark.score_plainly(sim, captions.rows([k]), images)
        assert torch.equal(plain.argsort(), ours[:, k].argsort())
