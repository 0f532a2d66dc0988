"""Every similarity against its slow twin in references.py, mls and the objectives against loops."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

import losses
from evaluation.embeddings import check_sides
from evaluation.protocols import shuffle_variances
from losses import MLS, SIMILARITIES, Embedding, Hinge, InfoNCE, Match, uncertainty
from methods import METHODS
from model import Encoded
from options import defaults, training_parser
from tests.helpers import FORMULAS, numbers
from tests.references import SLOW_LOSSES, broadcasts, slow_hinge, slow_infonce, slow_match, slow_rcl
from utils import InputError

RANKING_LOSSES = [
    name for name, loss in losses.LOSSES.items() if issubclass(loss, losses.RankingLoss)
]
GAUSSIAN = [name for name in FORMULAS if SIMILARITIES[name].gaussian_sides == 2]


def embedding(
    n, d, kind="random", seed=0, dtype=torch.float64, spherical=False, bounds=losses.LOG_VAR_BOUNDS
):
    """n unit means of d dimensions, with log-variances of a kind between the bounds.

    Kinds: random; low, high: all at this bound; bounds: each number at one of the two; items: each
    item at one of the two; shared: each dimension at one, the same for all items and both sides.
    """
    low, high = bounds
    shape = (n, d)
    if spherical:
        shape = (n, 1)

    pattern_seed = seed
    if kind == "shared":
        pattern_seed = 99
    pattern = torch.rand(shape, generator=torch.Generator().manual_seed(pattern_seed))

    log_var = {
        "random": low + (high - low) * pattern,
        "low": torch.full(shape, low),
        "high": torch.full(shape, high),
        "bounds": torch.where(pattern < 0.5, low, high),
        "shared": torch.where(pattern[:1] < 0.5, low, high).expand(shape),
        "items": torch.where(pattern[:, :1] < 0.5, low, high).expand(shape),
    }
    mean = F.normalize(numbers(n, d, seed=seed), dim=1)
    return Embedding(mean.to(dtype), log_var[kind].to(dtype))


def sides(name, images, captions):
    """Take the variances away from the sides that a similarity wants as points (GCE for mahalanobis)."""
    gaussian_sides = SIMILARITIES[name].gaussian_sides
    if gaussian_sides < 2:
        images = Embedding(images.mean)
    if gaussian_sides == 0:
        captions = Embedding(captions.mean)
    return images, captions


def to(e, dtype):
    if e.log_var is None:
        return Embedding(e.mean.to(dtype))
    return Embedding(e.mean.to(dtype), e.log_var.to(dtype))


@pytest.mark.parametrize("kind", ["random", "bounds", "high", "low"])
@pytest.mark.parametrize("name", FORMULAS)
def test_similarity_equals_its_slow_twin(name, kind):
    images = embedding(5, 16, kind, 1)
    captions = embedding(7, 16, kind, 2)
    images, captions = sides(name, images, captions)

    scores = FORMULAS[name](images, captions)

    expected = broadcasts(name, images, captions)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)


def test_mahalanobis_of_gaussian_images_is_pmrl_eq_10():
    images = embedding(5, 8, seed=1)
    captions = Embedding(embedding(7, 8, seed=2).mean)

    scores = FORMULAS["mahalanobis"](images, captions)

    # The twin has Gaussian captions: the same, sides exchanged.
    expected = broadcasts("mahalanobis", captions, images).T
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("d", [64, 2048])
@pytest.mark.parametrize(
    "kinds",
    [
        ("bounds", "bounds"),
        ("low", "high"),
        ("high", "low"),
        ("low", "low"),
        ("shared", "shared"),
        ("items", "items"),
    ],
)
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("spherical", [False, True])
def test_float32_is_close_to_float64(name, kinds, d, spherical):
    images = embedding(40, d, kinds[0], 5, spherical=spherical)
    captions = embedding(60, d, kinds[1], 6, spherical=spherical)
    images, captions = sides(name, images, captions)

    exact = FORMULAS[name](images, captions)
    single = FORMULAS[name](to(images, torch.float32), to(captions, torch.float32)).double()

    scale = exact.abs()
    if name in ("cosine", "dot"):  # these pass through zero
        scale = exact.abs().max()
    assert ((single - exact).abs() / scale).max() < 1e-5


@pytest.mark.parametrize("name", GAUSSIAN)
def test_a_spherical_side_is_an_ellipsoidal_one_with_a_repeated_value(name):
    images = embedding(4, 10, seed=1, spherical=True)
    captions = embedding(5, 10, seed=2, spherical=True)
    repeated_images, repeated_captions = (
        Embedding(e.mean, e.log_var.expand_as(e.mean).contiguous()) for e in (images, captions)
    )

    expected = FORMULAS[name](repeated_images, repeated_captions)

    for pair in (
        (images, captions),
        (images, repeated_captions),
        (repeated_images, captions),
    ):
        torch.testing.assert_close(FORMULAS[name](*pair), expected)
    torch.testing.assert_close(uncertainty(images), uncertainty(repeated_images))


@pytest.mark.parametrize("name", FORMULAS)
def test_gradcheck(name):
    """Gradients of every similarity equal finite differences."""
    images = embedding(3, 5, seed=1)
    captions = embedding(4, 5, seed=2)
    inputs = [
        x.clone().requires_grad_()
        for x in (images.mean, images.log_var, captions.mean, captions.log_var)
    ]

    def scores(mi, li, mc, lc):
        return FORMULAS[name](*sides(name, Embedding(mi, li), Embedding(mc, lc)))

    assert torch.autograd.gradcheck(scores, inputs, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", ["equal", "zero", "low", "high"])
@pytest.mark.parametrize("name", FORMULAS)
def test_gradients_are_finite(name, case, dtype):
    kind = "random"
    if case in ("low", "high"):
        kind = case
    e = embedding(4, 8, kind, seed=1, dtype=dtype)
    mean = e.mean
    if case == "zero":
        mean = torch.zeros_like(e.mean)
    inputs = [x.clone().requires_grad_() for x in (mean, e.log_var, mean, e.log_var)]
    images = Embedding(*inputs[:2])
    captions = Embedding(*inputs[2:])

    scores = FORMULAS[name](*sides(name, images, captions))
    scores.sum().backward()

    assert scores.isfinite().all()
    for x in inputs:
        assert x.grad is None or x.grad.isfinite().all()


def test_sides_that_a_similarity_cannot_compare_are_refused():
    point = Embedding(torch.randn(3, 4))
    gaussian = embedding(3, 4, dtype=torch.float32)

    for name, sides, message in (
        ("kl", (point, gaussian), "on 2 of the two sides, images and captions; 1 of those"),
        ("mahalanobis", (gaussian, gaussian), "on 1 of the two sides, .*; 2 of those"),
        ("mls", (point, point), "on 2 of the two sides, images and captions, or on 1; 0 of those"),
        ("mil", (point, point), "compares the parts of items, .*means only"),
    ):
        with pytest.raises(InputError, match=f"e.npz does not fit --sim {name}: it .*{message}"):
            check_sides(name, *sides, "e.npz")
    check_sides("mls", point, gaussian, "e.npz")


def test_what_a_similarity_needs_is_found_by_its_name_and_of_what_was_built():
    table = losses.Similarities()
    table["mine"] = losses.dot  # a function alone compares points
    assert table["mine"] == losses.Similarity(losses.dot)
    assert not table["mine"].gaussian_sides

    table["gaussian"] = losses.Similarity(losses.kl, gaussian_sides=2)
    assert table["gaussian"].gaussian_sides == 2

    for name in ("mahalanobis", "mls", "cosine"):
        assert losses.find_declaration(SIMILARITIES[name].build(None)) is SIMILARITIES[name]

    e = embedding(3, 4)
    assert losses.within_modality(losses.kl, e) == (losses.kl, e)
    score, points = losses.within_modality(MLS(), e)
    assert score is losses.cosine
    assert points.log_var is None
    assert torch.equal(points.mean, e.mean)


def test_uncertainty_is_log_det():
    e = embedding(5, 6, seed=1)

    for i in range(5):
        log_det = torch.logdet(e.log_var[i].exp().diag())
        assert float(uncertainty(e)[i]) == pytest.approx(float(log_det))

    with pytest.raises(ValueError, match="a point has no uncertainty"):
        uncertainty(Embedding(e.mean))


def test_shuffled_variances_are_those_of_other_items():
    """No item keeps its own, every one is given once, and matching variances do not stay together."""
    images = Embedding(torch.zeros(40, 3), torch.arange(120.0).reshape(40, 3))
    captions = Embedding(torch.zeros(40, 3), torch.arange(120.0).reshape(40, 3))

    shuffled = shuffle_variances(images, captions, 3)
    again = shuffle_variances(images, captions, 3)

    for before, after, same in zip((images, captions), shuffled, again):
        assert torch.equal(before.mean, after.mean)
        assert (before.log_var != after.log_var).all()
        assert torch.equal(before.log_var, after.log_var[after.log_var[:, 0].argsort()])
        assert torch.equal(after.log_var, same.log_var)
    assert (shuffled[0].log_var == shuffled[1].log_var).all(1).sum() < 8

    point = Embedding(images.mean)
    assert shuffle_variances(point, captions)[0] is point


# ---- mls, of one variance an item; a point has variance 0


def mls_side(n, seed=0, kind="random", d=6):
    """As `embedding`, spherical, between the bounds of MLS; of the kind point, too."""
    bounds = (math.log(1e-4), math.log(10))
    if kind == "point":
        return Embedding(embedding(n, d, "low", seed, spherical=True, bounds=bounds).mean)
    return embedding(n, d, kind, seed, spherical=True, bounds=bounds)


def find_variance(e):
    """(n, 1); 0 of points."""
    if e.log_var is None:
        return 0 * e.mean[:, :1]
    return e.log_var.exp()


def slow_mls(images, captions, k):
    v = find_variance(images) + find_variance(captions).T
    squared = torch.stack([(row - captions.mean).square().sum(1) for row in images.mean])
    return -(squared / v + k * v.log()) / 2


KINDS = [
    ("random", "random"),
    ("point", "random"),
    ("random", "point"),
    ("low", "high"),
    ("low", "low"),
]


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("k, d", [(1.0, 6), (4.4, 6), (300.0, 2048)])
def test_mls_equals_its_slow_twin_also_in_float32(kinds, k, d):
    images = mls_side(15, 1, kinds[0], d)
    captions = mls_side(17, 2, kinds[1], d)
    exact = slow_mls(images, captions, k)

    double = MLS(k).double()(images, captions)
    single = MLS(k)(to(images, torch.float32), to(captions, torch.float32)).double()

    torch.testing.assert_close(double, exact, rtol=1e-6, atol=1e-6)
    assert ((single - exact).abs() / exact.abs().max()).max() < 1e-6


def test_gradients_of_mls_are_finite_where_a_pair_is_one_point():
    mean = mls_side(3, 2).mean.float().requires_grad_()
    log_var = torch.full((3, 1), math.log(1e-4)).requires_grad_()
    same = Embedding(mean, log_var)
    mls = MLS()

    mls(same, same).sum().backward()

    for x in (mean, log_var, mls.log_k):
        assert torch.isfinite(x.grad).all()
    assert mls.log_k.grad != 0


# ---- objectives: the terms of an item, from its own score and those of the others that count; then what they are
# divided by. There are seven items in two directions.


def scores():
    return numbers(7, 7) / 3


def list_others(row, k, same_image):
    """The scores of a query with the items beside its own, k, that `same_image` (None or booleans) does not take out."""
    others = []
    for j, score in enumerate(row):
        if j == k:
            continue
        if same_image is not None and same_image[k, j]:
            continue
        others.append(float(score))
    return others


def slow_hinge_of_all(own, others):
    return sum(slow_hinge(own, others))


def slow_hinge_of_the_hardest(own, others):
    return max(slow_hinge(own, others))


def slow_pseudo_positives(own, others, weight, smoothing):
    """PCME++'s smooth loss: the whole cross-entropy again, with items that score as high as the own one as matches."""
    total = 0.0
    for x in (own, *others):
        p = 1 / (1 + math.exp(-5 * x - 5))
        target = smoothing
        if x >= own:
            target = 1 - smoothing
        total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    return slow_match(own, others, smoothing=smoothing) + weight * total


# name: (loss, its term of one query, what the sum of the terms is divided by)
TWINS = {
    "hinge": (Hinge(0.2), slow_hinge_of_all, 1),
    "hinge, hardest": (Hinge(0.2, True), slow_hinge_of_the_hardest, 1),
    "infonce": (InfoNCE(0.07), slow_infonce, 14),
    "infonce, smoothed": (InfoNCE(0.07, 0.1), partial(slow_infonce, smoothing=0.1), 14),
    "match": (Match(), slow_match, 14),
    "match, smoothed": (Match(smoothing=0.01), partial(slow_match, smoothing=0.01), 14),
    "match, pseudo-positives": (
        Match(pseudo_positives=0.1),
        partial(slow_pseudo_positives, weight=0.1, smoothing=0.0),
        14,
    ),
    "match, pseudo-positives, smoothed": (
        Match(pseudo_positives=0.5, smoothing=0.01),
        partial(slow_pseudo_positives, weight=0.5, smoothing=0.01),
        14,
    ),
    "match of logits": (Match(True), partial(slow_match, scale=1.0, shift=0.0), 14),
    "rcl": (losses.RCL(), slow_rcl, 14),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", RANKING_LOSSES)
def test_every_loss_has_a_slow_twin_and_equals_it(name, masked):
    """Also one that is added. Those that draw negatives draw all that there are."""
    assert name in SLOW_LOSSES, (
        f"{name} has no slow twin; write it as a line of SLOW_LOSSES in tests/references.py"
    )
    opt = SimpleNamespace(
        **{**defaults(training_parser()), "label_smoothing": 0.0, "max_violation": False}
    )
    loss = losses.LOSSES[name].build(opt, SIMILARITIES["cosine"]).double()
    if hasattr(loss, "n_negatives"):
        loss.n_negatives = 7

    s = scores()
    image = torch.arange(7) // 2
    same_image = None
    if masked:
        same_image = image[:, None] == image

    queries = []
    for rows in (s, s.T):
        for k, row in enumerate(rows):
            queries.append((float(row[k]), list_others(row, k, same_image)))
    expected = SLOW_LOSSES[name](queries)

    assert loss(s, same_image).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_loss_equals_its_slow_twin(name, masked):
    loss, slow_term, count = TWINS[name]
    s = scores()
    image = torch.arange(7) // 2
    same_image = None
    if masked:
        same_image = image[:, None] == image

    total = 0.0
    for k in range(7):
        for row in (s[k].tolist(), s[:, k].tolist()):
            total += slow_term(row[k], list_others(row, k, same_image))

    # The temperature's logarithm is stored in float32.
    assert loss.double()(s, same_image).item() == pytest.approx(total / count, rel=1e-6)


def test_infonce_keeps_its_temperature_above_a_hundredth():
    too_low = InfoNCE(1e-9)(scores() / 33)
    lowest = InfoNCE(0.01)(scores() / 33)

    torch.testing.assert_close(too_low, lowest)


@pytest.mark.parametrize("spherical", [False, True])
def test_vib_is_the_divergence_from_the_unit_gaussian(spherical):
    mean = numbers(5, 4)
    log_var = numbers(5, 4, seed=1)
    if spherical:
        log_var = numbers(5, 1, seed=1)
    gaussian = Encoded(Embedding(mean, log_var), None, None)
    point = Encoded(Embedding(mean), None, None)

    vib = losses.information_bottleneck(gaussian, point, None)

    std = (log_var / 2).exp().expand_as(mean)
    unit = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = kl_divergence(Normal(mean, std), unit).sum(1).mean()
    assert float(vib) == pytest.approx(float(expected))


def test_the_vib_of_pcmepp_has_its_weight_beside_the_matching_loss():
    """Its code adds twice the mean over pairs and 1e-4 times the means over dimensions; ours is that times B / 2."""
    batch = 128
    dim = 1024
    images = Embedding(numbers(batch, dim, seed=0), numbers(batch, dim, seed=2))
    captions = Embedding(numbers(batch, dim, seed=1), numbers(batch, dim, seed=3))
    pairs = numbers(batch, batch, seed=4)

    matches = torch.eye(batch, dtype=torch.float64)
    theirs = 2 * F.binary_cross_entropy_with_logits(5 * pairs + 5, matches)
    for e in (images, captions):
        divergence = 0.5 * (e.log_var.exp() - e.log_var + e.mean**2 - 1)
        theirs += 1e-4 * divergence.mean()

    vib = losses.information_bottleneck(
        Encoded(images, None, None), Encoded(captions, None, None), None
    )
    ours = Match()(pairs) + METHODS["pcme++"].options["vib"] * vib

    torch.testing.assert_close(ours, theirs * batch / 2)
