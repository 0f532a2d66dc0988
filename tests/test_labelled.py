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

R, M = 9, 6


def some_labels(seed=0) -> torch.Tensor:
    """Two photos; phrases with several regions, without negatives (5), regions without positives or negatives."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 2, (R, M), generator=g)
    labels[:5, 3:], labels[5:, :3] = 0, 0
    labels[torch.arange(M) + (torch.arange(M) > 2) * 2, torch.arange(M)] = 1
    labels[:, 5] = labels[:, 5].clamp(min=0)
    return labels.to(torch.int8)


def of_column(labels, j, sign) -> list[int]:
    return [i for i in range(len(labels)) if labels[i, j] == sign]


def slow_hinge(s, labels, margin, hardest):
    total = 0.0
    for j in range(labels.shape[1]):
        positives = of_column(labels, j, 1)
        for i in positives:
            regions = [
                max(0.0, float(margin - s[i, j] + s[k, j])) for k in of_column(labels, j, -1)
            ]
            phrases = [
                max(0.0, float(margin - s[i, j] + s[i, k])) for k in of_column(labels.T, i, -1)
            ]
            reduce = (lambda v: max(v, default=0.0)) if hardest else sum
            total += (reduce(regions) + reduce(phrases)) / len(positives)
    return total


def slow_logistic(s, labels):
    return np.mean([math.log1p(math.exp(-labels[i, j] * s[i, j])) for i, j in np.argwhere(labels)])


def slow_match(s, labels, scale, shift, smoothing):
    total = 0.0
    for i, j in np.argwhere(labels):
        p = 1 / (1 + math.exp(-scale * s[i, j] - shift))
        target = 1 - smoothing if labels[i, j] > 0 else smoothing
        total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    return total / M


def slow_infonce(s, labels, smoothing):
    def missed(scores, signs):
        z = [float(x) / 0.07 for x, sign in zip(scores, signs) if sign]
        positive = math.log(
            sum(math.exp(float(x) / 0.07) for x, sign in zip(scores, signs) if sign > 0)
        )
        return (
            math.log(sum(map(math.exp, z)))
            - (1 - smoothing) * positive
            - smoothing * sum(z) / len(z)
        )

    phrases = [missed(s[:, j], labels[:, j]) for j in range(M)]
    regions = [missed(s[i], labels[i]) for i in range(R) if {1, -1} <= set(labels[i].tolist())]
    return (sum(phrases) / M + sum(regions) / max(1, len(regions))) / 2


@pytest.mark.parametrize(
    "objective, slow, more",
    [
        *(
            (LabelledHinge(*more), slow_hinge, more)
            for more in ((0.2, False), (0.2, True), (3.0, True))
        ),
        (LabelledLogistic(), slow_logistic, ()),
        (LabelledMatch(smoothing=0.01), slow_match, (5, 5, 0.01)),
        (LabelledMatch(True), slow_match, (1, 0, 0)),
        *((LabelledInfoNCE(smoothing=x), slow_infonce, (x,)) for x in (0.0, 0.1)),
    ],
)
def test_objectives_equal_loops(objective, slow, more):
    s, labels = numbers(R, M), some_labels()
    without = labels.clone()
    without[:, 1:] = without[:, 1:].clamp(min=0)  # no region has negative phrases
    without[without[:, 0] < 0, 1:] = 0
    for signs in (labels, without):
        expected = slow(s.numpy(), signs.numpy().astype(int), *more)
        assert float(objective.double()(s, signs).detach()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("top", [1, 2, 10])
def test_two_branch_equals_loops(top):
    def d(x, y):
        return math.sqrt(float((x - y).square().sum()) + 1e-4)

    def largest(positive, others):
        values = sorted((max(0.0, margin + positive - other) for other in others), reverse=True)[
            :top
        ]
        return sum(values) / len(values) if values else 0.0

    x, y = F.normalize(numbers(R, 4), dim=1), F.normalize(numbers(M, 4, seed=1), dim=1)
    for seed, margin, weights in (
        (0, 0.05, (1.5, 1.0, 0.05)),
        (1, 0.7, (1.0, 0, 0)),
        (2, 0.7, (0, 1.0, 0)),
        (3, 0.7, (0, 0, 1.0)),
        (4, 3.0, (1.0, 2.0, 4.0)),
    ):
        labels, total = some_labels(seed), [0.0, 0.0, 0.0]
        for j in range(M):
            positives = of_column(labels, j, 1)
            for i in positives:
                total[0] += largest(
                    d(x[i], y[j]), [d(x[k], y[j]) for k in of_column(labels, j, -1)]
                ) / len(positives)
                total[1] += largest(
                    d(x[i], y[j]), [d(x[i], y[k]) for k in of_column(labels.T, i, -1)]
                ) / len(positives)
            siblings = [k for k in range(M) if any(labels[i, k] > 0 for i in positives)]
            apart = [
                k
                for k in range(M)
                if k not in siblings and any(labels[i, k] < 0 for i in positives)
            ]
            total[2] += largest(
                max(d(y[j], y[k]) for k in siblings), [d(y[j], y[k]) for k in apart]
            )
        expected = sum(weight * value for weight, value in zip(weights, total)) / M
        loss = having(LabelledTwoBranch(), margin=margin, weights=weights, top=top)
        got = loss(
            *(Encoded(Embedding(e), None, None) for e in (x, y)),
            PhraseBatch(None, None, None, labels),
        )
        assert float(got) == pytest.approx(expected, rel=1e-9) and expected > 0


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
        assert (
            value.isfinite()
            and scores.grad.isfinite().all()
            and (scores.grad[labels == 0] == 0).all()
        )


@pytest.mark.parametrize("name", FORMULAS)
def test_scores_of_chosen_pairs_are_those_of_the_matrix(name):
    similarity = FORMULAS[name]
    x, y = (
        Embedding(
            F.normalize(numbers(n, 4, seed=n), dim=1),
            numbers(n, 4, seed=n + 1) / 4 if k < SIMILARITIES[name].gaussian_sides else None,
        )
        for k, n in enumerate((5, 7))
    )
    rows, columns = torch.tensor([4, 0, 0, 2]), torch.tensor([6, 6, 1, 2])
    labels = torch.zeros(5, 7).index_put((rows, columns), torch.tensor([1.0, -1, 1, -1]))
    expected = similarity(x, y).masked_fill(labels == 0, 0)
    torch.testing.assert_close(labelled_scores(similarity, x, y, labels), expected)


# ---- models

KINDS = 5
VOCAB = Vocabulary([*SPECIALS, *(f"w{k}" for k in range(KINDS))])


def built(*words, build=build_phrase_model):
    opt = options(*words)
    opt.img_dim, opt.img_enc = 8, "precomp"
    torch.manual_seed(0)
    return build(opt, VOCAB)


def photos(n=8, seed=0) -> PhraseBatch:
    """n photos of 2 KINDS regions, two of each kind, and phrases of 3 kinds; a tenth of the pairs is not compared."""
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randn(KINDS, 8, generator=torch.Generator().manual_seed(9))
    region = torch.arange(KINDS).repeat(2 * n)  # (R,)
    phrase = torch.cat([torch.randperm(KINDS, generator=g)[:3] for _ in range(n)])  # (M,)
    same = torch.arange(n).repeat_interleave(2 * KINDS)[:, None] == torch.arange(
        n
    ).repeat_interleave(3)
    fits = region[:, None] == phrase
    left_out = (torch.rand(fits.shape, generator=g) < 0.1) & ~fits
    labels = torch.where(same & ~left_out, torch.where(fits, 1, -1), 0).to(torch.int8)
    tokens = torch.stack(
        [torch.full_like(phrase, START), phrase + len(SPECIALS), torch.full_like(phrase, END)], 1
    )
    regions = kinds[region] + 0.3 * torch.randn(len(region), 8, generator=g)
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
    model, batch, new = built(*MODELS[name]), photos(), photos(seed=1)
    plain, own = (x.state_dict() for x in (built(*MODELS[name], build=build_model), model))
    assert [(k, v.shape) for k, v in plain.items()] == [
        (k, v.shape) for k, v in own.items()
    ]  # evaluation loads it
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(
        200 if name == "match" else 60
    ):  # whose scale and shift start far from these cosines
        adam.zero_grad()
        terms = model(batch)
        sum(terms.values()).backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
        assert all(term.isfinite() for term in terms.values())
        assert all(grad is not None and grad.isfinite().all() for grad in grads.values())
        assert step or all(grad.abs().sum() > 0 for grad in grads.values())
        adam.step()
    model.eval()
    with torch.no_grad():
        scores = model.similarity(
            model.embed_images(new.images), model.embed_captions(new.tokens, new.lengths)
        )
    best = scores.masked_fill(new.labels == 0, -torch.inf).argmax(0)
    right = (new.labels[best, torch.arange(len(best))] > 0).float().mean()
    assert right > 0.9, f"{name}: {right:.2f} of the phrases find a region of theirs, by chance 0.2"
