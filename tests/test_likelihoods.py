"""mls, the mutual likelihood score in an effective dimension, against loops and torch.distributions."""
import math

import pytest
import torch
from torch.nn.functional import normalize

from evaluation.embeddings import within_modality
from losses import MLS, Embedding, InfoNCE, check_sides, cosine
from options import resolve, training_parser

BOUNDS = math.log(1e-4), math.log(10)


def embedding(n, d, seed=0, kind="random", dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    mean = normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)
    if kind == "point":
        return Embedding(mean.to(dtype))
    part = {"random": torch.rand(n, 1, generator=g), "low": torch.zeros(n, 1), "high": torch.ones(n, 1)}[kind]
    return Embedding(mean.to(dtype), (BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * part.double()).to(dtype))


def single(e):
    return Embedding(*(x if x is None else x.float() for x in e))


def loop(images, captions, k):
    def variance(e, j):
        return 0.0 if e.log_var is None else math.exp(e.log_var[j])
    scores = torch.empty(len(images.mean), len(captions.mean), dtype=torch.float64)
    for i in range(len(images.mean)):
        for c in range(len(captions.mean)):
            v = variance(images, i) + variance(captions, c)
            squared = sum((float(a) - float(b)) ** 2 for a, b in zip(images.mean[i], captions.mean[c]))
            scores[i, c] = -(squared / v + k * math.log(v)) / 2
    return scores


KINDS = [("random", "random"), ("point", "random"), ("random", "point"), ("low", "high"), ("low", "low")]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("k", [1.0, 4.4, 300.0])
def test_mls_equals_a_loop(kinds, k):
    images, captions = embedding(5, 6, 1, kinds[0]), embedding(7, 6, 2, kinds[1])
    torch.testing.assert_close(MLS(k).double()(images, captions), loop(images, captions, k), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("d", [64, 2048])
def test_float32_is_close_to_float64(kinds, d):
    images, captions = embedding(40, d, 1, kinds[0]), embedding(60, d, 2, kinds[1])
    exact = MLS().double()(images, captions)
    error = (MLS()(single(images), single(captions)).double() - exact).abs()
    assert (error / exact.abs().max()).max() < 1e-6


def test_of_point_images_it_ranks_text_to_image_as_the_cosine_and_not_image_to_text():
    images, captions = embedding(30, 8, 1, "point"), embedding(40, 8, 2)
    scores, plain = MLS().double()(images, captions), cosine(images, captions)
    assert torch.equal(scores.argsort(0), plain.argsort(0))
    assert not torch.equal(scores.argsort(1), plain.argsort(1))


def test_two_points_are_refused_and_one_side_is_compared_by_the_cosine():
    points = embedding(3, 4, 1, "point")
    with pytest.raises(ValueError, match="on 2 of the two sides, images and captions, or on 1; 0 of those"):
        check_sides(MLS(), "mls", points, points)
    similarity, side = within_modality(MLS(), points)
    torch.testing.assert_close(similarity(side, side), cosine(points, points))


def test_gradients_are_right_and_finite_where_a_pair_is_one_point():
    images, captions = embedding(3, 4, 1), embedding(3, 4, 2)
    similarity = MLS().double()

    inputs = images.mean.requires_grad_(), images.log_var.requires_grad_()
    assert torch.autograd.gradcheck(lambda mean, log_var: similarity(Embedding(mean, log_var), captions), inputs)
    same = Embedding(captions.mean.float().requires_grad_(), torch.full((3, 1), BOUNDS[0]).requires_grad_())
    small = MLS()
    small(same, same).sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (same.mean, same.log_var, small.log_k)) and small.log_k.grad != 0


def resolved(*words):
    opt = training_parser().parse_args(["--sim", "mls", *words])
    resolve(opt)
    return opt


def test_what_the_option_implies():
    opt = resolved()
    assert (opt.loss, opt.image_head, opt.text_head, opt.logvar_init) == ("infonce", *["spherical_one"] * 2, -2.5)
    assert resolved("--image_head", "point").text_head == "spherical_one"
    assert resolved("--logvar_init", "0").logvar_init == 0
    objective = InfoNCE.build(opt, MLS())
    assert isinstance(objective, InfoNCE) and objective.log_scale == 0
