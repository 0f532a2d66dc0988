"""Labelled pairs of regions and phrases: the objectives against loops, what they become with matching pairs alone,
which pairs are scored, and that every kind of model learns from them."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from losses import SIMILARITIES, Embedding
from methods import METHODS
from model import Encoded, build_model
from phrases.data import PhraseBatch
from phrases.losses import (
    LabelledHinge,
    LabelledInfoNCE,
    LabelledLogistic,
    LabelledMatch,
    LabelledTwoBranch,
    build_phrase_model,
    labelled_scores,
)
from tests.helpers import FORMULAS, having, numbers, options
from vocab import END, SPECIALS, START, Vocabulary

R = 9  # regions
M = 6  # phrases


def some_labels(seed=0) -> torch.Tensor:
    """Two photos; phrases with several regions, without negatives (5), regions without positives or negatives."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 2, (R, M), generator=g)
    labels[:5, 3:] = 0  # of two photos
    labels[5:, :3] = 0
    phrases = torch.arange(M)
    regions = torch.where(phrases > 2, phrases + 2, phrases)
    labels[regions, phrases] = 1
    labels[:, 5] = labels[:, 5].clamp(min=0)
    return labels.to(torch.int8)


def of_column(labels, j, sign) -> list[int]:
    return [i for i in range(len(labels)) if labels[i, j] == sign]


def slow_hinge(s, labels, margin, hardest):
    def reduce(values):
        if hardest:
            return max(values, default=0.0)
        return sum(values)

    total = 0.0
    for j in range(labels.shape[1]):
        positives = of_column(labels, j, 1)
        for i in positives:
            others = of_column(labels, j, -1)
            regions = [max(0.0, float(margin - s[i, j] + s[k, j])) for k in others]
            others = of_column(labels.T, i, -1)
            phrases = [max(0.0, float(margin - s[i, j] + s[i, k])) for k in others]
            total += (reduce(regions) + reduce(phrases)) / len(positives)
    return total


def slow_logistic(s, labels):
    return np.mean([math.log1p(math.exp(-labels[i, j] * s[i, j])) for i, j in np.argwhere(labels)])


def slow_match(s, labels, scale, shift, smoothing):
    total = 0.0
    for i, j in np.argwhere(labels):
        p = 1 / (1 + math.exp(-scale * s[i, j] - shift))
        target = smoothing
        if labels[i, j] > 0:
            target = 1 - smoothing
        total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    return total / M


def slow_infonce(s, labels, smoothing):
    def missed(scores, signs):
        z = [float(x) / 0.07 for x, sign in zip(scores, signs) if sign]
        z_positive = [float(x) / 0.07 for x, sign in zip(scores, signs) if sign > 0]
        norm = math.log(sum(map(math.exp, z)))
        positive = math.log(sum(map(math.exp, z_positive)))
        return norm - (1 - smoothing) * positive - smoothing * sum(z) / len(z)

    phrases = [missed(s[:, j], labels[:, j]) for j in range(M)]
    regions = [missed(s[i], labels[i]) for i in range(R) if {1, -1} <= set(labels[i].tolist())]
    return (sum(phrases) / M + sum(regions) / max(1, len(regions))) / 2


@pytest.mark.parametrize(
    "objective, slow, more",
    [
        (LabelledHinge(0.2, False), slow_hinge, (0.2, False)),
        (LabelledHinge(0.2, True), slow_hinge, (0.2, True)),
        (LabelledHinge(3.0, True), slow_hinge, (3.0, True)),
        (LabelledLogistic(), slow_logistic, ()),
        (LabelledMatch(smoothing=0.01), slow_match, (5, 5, 0.01)),
        (LabelledMatch(True), slow_match, (1, 0, 0)),
        (LabelledInfoNCE(smoothing=0.0), slow_infonce, (0.0,)),
        (LabelledInfoNCE(smoothing=0.1), slow_infonce, (0.1,)),
    ],
)
def test_objectives_equal_loops(objective, slow, more):
    s = numbers(R, M)
    labels = some_labels()
    without_negatives = labels.clone()  # of regions
    without_negatives[:, 1:] = without_negatives[:, 1:].clamp(min=0)
    without_negatives[without_negatives[:, 0] < 0, 1:] = 0

    for signs in (labels, without_negatives):
        expected = slow(s.numpy(), signs.numpy().astype(int), *more)
        assert float(objective.double()(s, signs).detach()) == pytest.approx(expected, rel=1e-6)


def distance(x, y):
    return math.sqrt(float((x - y).square().sum()) + 1e-4)


@pytest.mark.parametrize("top", [1, 2, 10])
def test_two_branch_equals_loops(top):
    def average_largest(margin, positive, others):
        """Mean of the `top` largest violations of the margin."""
        violations = [max(0.0, margin + positive - other) for other in others]
        largest = sorted(violations, reverse=True)[:top]
        if not largest:
            return 0.0
        return sum(largest) / len(largest)

    x = F.normalize(numbers(R, 4), dim=1)
    y = F.normalize(numbers(M, 4, seed=1), dim=1)
    regions = Encoded(Embedding(x), None, None)
    phrases = Encoded(Embedding(y), None, None)

    for seed, margin, weights in (
        (0, 0.05, (1.5, 1.0, 0.05)),
        (1, 0.7, (1.0, 0, 0)),
        (2, 0.7, (0, 1.0, 0)),
        (3, 0.7, (0, 0, 1.0)),
        (4, 3.0, (1.0, 2.0, 4.0)),
    ):
        labels = some_labels(seed)

        of_regions = 0.0
        of_phrases = 0.0
        among_phrases = 0.0
        for j in range(M):
            positives = of_column(labels, j, 1)
            for i in positives:
                own = distance(x[i], y[j])
                others = [distance(x[k], y[j]) for k in of_column(labels, j, -1)]
                of_regions += average_largest(margin, own, others) / len(positives)
                others = [distance(x[i], y[k]) for k in of_column(labels.T, i, -1)]
                of_phrases += average_largest(margin, own, others) / len(positives)

            siblings = [k for k in range(M) if any(labels[i, k] > 0 for i in positives)]
            opposed = [k for k in range(M) if any(labels[i, k] < 0 for i in positives)]
            farthest = max(distance(y[j], y[k]) for k in siblings)
            others = [distance(y[j], y[k]) for k in opposed if k not in siblings]
            among_phrases += average_largest(margin, farthest, others)
        terms = (of_regions, of_phrases, among_phrases)
        expected = sum(weight * value for weight, value in zip(weights, terms)) / M

        loss = having(LabelledTwoBranch(), margin=margin, weights=weights, top=top)
        got = loss(regions, phrases, PhraseBatch(None, None, None, labels))
        assert float(got) == pytest.approx(expected, rel=1e-9)
        assert expected > 0


@pytest.mark.parametrize(
    "objective", [LabelledHinge(0.5, True), LabelledLogistic(), LabelledMatch(), LabelledInfoNCE()]
)
def test_gradients_are_finite_and_of_labelled_pairs_alone(objective):
    labels = some_labels()
    for scores in (
        numbers(R, M).float(),
        torch.full((R, M), -1e4),
        torch.full((R, M), 1e4),
        torch.zeros(R, M),
    ):
        value = objective(scores.requires_grad_(), labels)
        value.backward()
        assert value.isfinite()
        assert scores.grad.isfinite().all()
        assert (scores.grad[labels == 0] == 0).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_scores_of_chosen_pairs_are_those_of_the_matrix(name):
    similarity = FORMULAS[name]
    gaussian_sides = SIMILARITIES[name].gaussian_sides
    x = Embedding(F.normalize(numbers(5, 4, seed=5), dim=1))
    y = Embedding(F.normalize(numbers(7, 4, seed=7), dim=1))
    if gaussian_sides >= 1:
        x = Embedding(x.mean, numbers(5, 4, seed=6) / 4)
    if gaussian_sides >= 2:
        y = Embedding(y.mean, numbers(7, 4, seed=8) / 4)

    rows = torch.tensor([4, 0, 0, 2])
    columns = torch.tensor([6, 6, 1, 2])
    labels = torch.zeros(5, 7).index_put((rows, columns), torch.tensor([1.0, -1, 1, -1]))

    expected = similarity(x, y).masked_fill(labels == 0, 0)
    torch.testing.assert_close(labelled_scores(similarity, x, y, labels), expected)


# ---- models

KINDS = 5
VOCAB = Vocabulary([*SPECIALS, *(f"w{k}" for k in range(KINDS))])


def built(*words, build=build_phrase_model):
    opt = options(*words)
    opt.img_dim = 8
    opt.img_enc = "precomp"
    torch.manual_seed(0)
    return build(opt, VOCAB)


def photos(n=8, seed=0) -> PhraseBatch:
    """n photos of 2 KINDS regions, two of each kind, and phrases of 3 kinds; a tenth of the pairs is not compared."""
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randn(KINDS, 8, generator=torch.Generator().manual_seed(9))
    region_kind = torch.arange(KINDS).repeat(2 * n)  # (R,)
    phrase_kind = torch.cat([torch.randperm(KINDS, generator=g)[:3] for _ in range(n)])  # (M,)
    region_photo = torch.arange(n).repeat_interleave(2 * KINDS)
    phrase_photo = torch.arange(n).repeat_interleave(3)

    fits = region_kind[:, None] == phrase_kind
    left_out = (torch.rand(fits.shape, generator=g) < 0.1) & ~fits
    compared = (region_photo[:, None] == phrase_photo) & ~left_out
    labels = torch.where(compared, torch.where(fits, 1, -1), 0).to(torch.int8)

    start = torch.full_like(phrase_kind, START)
    end = torch.full_like(phrase_kind, END)
    tokens = torch.stack([start, phrase_kind + len(SPECIALS), end], 1)
    regions = kinds[region_kind] + 0.3 * torch.randn(len(region_kind), 8, generator=g)
    return PhraseBatch(regions, tokens, torch.full((len(tokens),), 3), labels)


JWAE = [
    "--recon_images",
    "0.5",
    "--recon_captions",
    "0.005",
    "--prior_images",
    "0.01",
    "--prior_captions",
    "0.01",
]
MODELS = {
    "hinge": [],
    "hardest": ["--max_violation"],
    "infonce": ["--loss", "infonce"],
    "match": ["--loss", "match"],
    "two_branch": ["--loss", "two_branch"],
    "similarity network": ["--sim", "product"],
    "cite": ["--sim", "cite", "--cite_layers", "16-8"],
    "jwae": ["--max_violation", *JWAE],
    "jwae cite": [
        "--sim",
        "cite",
        "--cite_layers",
        "16-8",
        *METHODS["jwae_mh_cite"].flags.split()[-8:],
    ],
    "wasserstein": ["--sim", "wasserstein"],
    "mls": ["--sim", "mls"],
    "pcme++": METHODS["pcme++"].flags.split(),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_learns_which_region_a_phrase_means(name):
    model = built(*MODELS[name])
    plain = built(*MODELS[name], build=build_model)
    batch = photos()
    new = photos(seed=1)

    # Evaluation loads its weights into a plain model.
    shapes = [(k, v.shape) for k, v in model.state_dict().items()]
    assert shapes == [(k, v.shape) for k, v in plain.state_dict().items()]

    steps = 40
    if name == "match":  # whose scale and shift start far from these cosines
        steps = 200

    adam = torch.optim.Adam(model.parameters(), lr=0.015)
    for step in range(steps):
        adam.zero_grad()
        terms = model(batch)
        sum(terms.values()).backward()
        for term in terms.values():
            assert term.isfinite()
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert step or parameter.grad.abs().sum() > 0
        adam.step()

    model.eval()
    with torch.no_grad():
        images = model.embed_images(new.images)
        captions = model.embed_captions(new.tokens, new.lengths)
        scores = model.similarity(images, captions)
    best = scores.masked_fill(new.labels == 0, -torch.inf).argmax(0)
    right = (new.labels[best, torch.arange(len(best))] > 0).float().mean()
    assert right > 0.9, f"{name}: {right:.2f} of the phrases find a region of theirs, by chance 0.2"
