"""Every similarity against its slow twin in references.py, mls and the objectives against loops."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

import losses
from cli import InputError
from evaluation.embeddings import check_sides
from evaluation.protocols import shuffle_variances
from losses import MLS, SIMILARITIES, Embedding, Hinge, InfoNCE, Match, uncertainty
from methods import METHODS
from model import Encoded
from options import defaults, training_parser
from tests.helpers import FORMULAS, numbers
from tests.references import SLOW_LOSSES, broadcasts, slow_hinge, slow_infonce, slow_match, slow_rcl

RANKING_LOSSES = [
    name for name, loss in losses.LOSSES.items() if issubclass(loss, losses.RankingLoss)
]
GAUSSIAN = [name for name in FORMULAS if SIMILARITIES[name].gaussian_sides == 2]


def embedding(
    n, d, kind="random", seed=0, dtype=torch.float64, spherical=False, bounds=losses.LOG_VAR_BOUNDS
):
    (low, high), shape = bounds, (n, 1 if spherical else d)
    pattern = torch.rand(
        shape, generator=torch.Generator().manual_seed(99 if kind == "shared" else seed)
    )
    log_var = {
        "random": low + (high - low) * pattern,
        "low": torch.full(shape, low),
        "high": torch.full(shape, high),
        "bounds": torch.where(pattern < 0.5, low, high),
        "shared": torch.where(pattern[:1] < 0.5, low, high).expand(shape),
        "items": torch.where(pattern[:, :1] < 0.5, low, high).expand(shape),
    }  # every item at one of the bounds
    return Embedding(
        F.normalize(numbers(n, d, seed=seed), dim=1).to(dtype), log_var[kind].to(dtype)
    )


def sides(name, images, captions):
    """Take the variances away from the sides that a similarity wants as points (GCE for mahalanobis)."""
    gaussian = SIMILARITIES[name].gaussian_sides
    return (images if gaussian == 2 else Embedding(images.mean)), (
        captions if gaussian else Embedding(captions.mean)
    )


def to(e, dtype):
    return Embedding(*(None if x is None else x.to(dtype) for x in e))


@pytest.mark.parametrize("kind", ["random", "bounds", "high", "low"])
@pytest.mark.parametrize("name", FORMULAS)
def test_similarity_equals_its_slow_twin(name, kind):
    images, captions = embedding(5, 16, kind, 1), embedding(7, 16, kind, 2)
    images, captions = sides(name, images, captions)
    torch.testing.assert_close(
        FORMULAS[name](images, captions), broadcasts(name, images, captions), rtol=1e-9, atol=1e-9
    )


def test_mahalanobis_of_gaussian_images_is_pmrl_eq_10():
    images, captions = embedding(5, 8, seed=1), embedding(7, 8, seed=2)
    scores = FORMULAS["mahalanobis"](images, Embedding(captions.mean))
    expected = broadcasts(
        "mahalanobis", Embedding(captions.mean), images
    ).T  # the same, sides exchanged
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
    images, captions = sides(
        name,
        embedding(40, d, kinds[0], 5, spherical=spherical),
        embedding(60, d, kinds[1], 6, spherical=spherical),
    )
    exact = FORMULAS[name](images, captions)
    single = FORMULAS[name](to(images, torch.float32), to(captions, torch.float32)).double()
    scale = (
        exact.abs() if name not in ("cosine", "dot") else exact.abs().max()
    )  # these pass through zero
    assert ((single - exact).abs() / scale).max() < 1e-5


@pytest.mark.parametrize("name", GAUSSIAN)
def test_a_spherical_side_is_an_ellipsoidal_one_with_a_repeated_value(name):
    images, captions = (
        embedding(4, 10, seed=1, spherical=True),
        embedding(5, 10, seed=2, spherical=True),
    )
    wide = [Embedding(e.mean, e.log_var.expand_as(e.mean).contiguous()) for e in (images, captions)]
    expected = FORMULAS[name](*wide)
    for pair in ((images, captions), (images, wide[1]), (wide[0], captions)):
        torch.testing.assert_close(FORMULAS[name](*pair), expected)
    torch.testing.assert_close(uncertainty(images), uncertainty(wide[0]))


@pytest.mark.parametrize("name", FORMULAS)
def test_gradcheck(name):
    images, captions = embedding(3, 5, seed=1), embedding(4, 5, seed=2)
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
    e = embedding(4, 8, case if case in ("low", "high") else "random", seed=1, dtype=dtype)
    mean = torch.zeros_like(e.mean) if case == "zero" else e.mean
    inputs = [x.clone().requires_grad_() for x in (mean, e.log_var, mean, e.log_var)]
    scores = FORMULAS[name](*sides(name, Embedding(*inputs[:2]), Embedding(*inputs[2:])))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(x.grad.isfinite().all() for x in inputs if x.grad is not None)


def test_sides_that_a_similarity_cannot_compare_are_refused():
    point, gaussian = Embedding(torch.randn(3, 4)), embedding(3, 4, dtype=torch.float32)
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
    assert table["mine"] == losses.Similarity(losses.dot) and not table["mine"].gaussian_sides
    table["gaussian"] = losses.Similarity(losses.kl, gaussian_sides=2)
    assert table["gaussian"].gaussian_sides == 2
    for name in ("mahalanobis", "mls", "cosine"):
        assert losses.find_declaration(SIMILARITIES[name].build(None)) is SIMILARITIES[name]
    e = embedding(3, 4)
    assert losses.within_modality(losses.kl, e) == (losses.kl, e)
    score, points = losses.within_modality(MLS(), e)
    assert score is losses.cosine and points.log_var is None and torch.equal(points.mean, e.mean)


def test_uncertainty_is_log_det():
    e = embedding(5, 6, seed=1)
    for i in range(5):
        assert float(uncertainty(e)[i]) == pytest.approx(
            float(torch.logdet(e.log_var[i].exp().diag()))
        )
    with pytest.raises(ValueError, match="a point has no uncertainty"):
        uncertainty(Embedding(e.mean))


def test_dealt_variances_are_those_of_other_items():
    """No item keeps its own, every one is dealt once, and matching variances do not stay together."""
    images, captions = (
        Embedding(torch.zeros(40, 3), torch.arange(120.0).reshape(40, 3)) for _ in range(2)
    )
    dealt, again = shuffle_variances(images, captions, 3), shuffle_variances(images, captions, 3)
    for before, after, same in zip((images, captions), dealt, again):
        assert torch.equal(before.mean, after.mean) and (before.log_var != after.log_var).all()
        assert torch.equal(before.log_var, after.log_var[after.log_var[:, 0].argsort()])
        assert torch.equal(after.log_var, same.log_var)
    assert (dealt[0].log_var == dealt[1].log_var).all(1).sum() < 8
    point = Embedding(images.mean)
    assert shuffle_variances(point, captions)[0] is point


# ---- mls, of one variance an item; a point has variance 0


def mls_side(n, seed=0, kind="random", d=6):
    e = embedding(
        n,
        d,
        "low" if kind == "point" else kind,
        seed,
        spherical=True,
        bounds=(math.log(1e-4), math.log(10)),
    )
    return Embedding(e.mean) if kind == "point" else e


def slow_mls(images, captions, k):
    v_images, v_captions = (
        0 * e.mean[:, :1] if e.log_var is None else e.log_var.exp() for e in (images, captions)
    )
    v, squared = (
        v_images + v_captions.T,
        torch.stack([(row - captions.mean).square().sum(1) for row in images.mean]),
    )
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
    images, captions = mls_side(15, 1, kinds[0], d), mls_side(17, 2, kinds[1], d)
    exact = slow_mls(images, captions, k)
    torch.testing.assert_close(MLS(k).double()(images, captions), exact, rtol=1e-6, atol=1e-6)
    single = MLS(k)(to(images, torch.float32), to(captions, torch.float32)).double()
    assert ((single - exact).abs() / exact.abs().max()).max() < 1e-6


def test_gradients_of_mls_are_finite_where_a_pair_is_one_point():
    captions = mls_side(3, 2)
    same = Embedding(
        captions.mean.float().requires_grad_(), torch.full((3, 1), math.log(1e-4)).requires_grad_()
    )
    small = MLS()
    small(same, same).sum().backward()
    assert (
        all(torch.isfinite(x.grad).all() for x in (same.mean, same.log_var, small.log_k))
        and small.log_k.grad != 0
    )


# ---- objectives: the terms of an item, from its own score and those of the others that count; then what they are
# divided by. There are seven items in two directions.


def scores():
    return numbers(7, 7) / 3


def slow_pseudo_positives(own, others, weight, smoothing):
    """PCME++'s smooth loss: the whole cross-entropy again, with items that score as high as the own one as matches."""
    total = 0.0
    for x in (own, *others):
        p = 1 / (1 + math.exp(-5 * x - 5))
        target = 1 - smoothing if x >= own else smoothing
        total -= target * math.log(p) + (1 - target) * math.log(1 - p)
    return slow_match(own, others, smoothing=smoothing) + weight * total


TWINS = {
    "hinge": (Hinge(0.2), lambda *row: sum(slow_hinge(*row)), 1),
    "hinge, hardest": (Hinge(0.2, True), lambda *row: max(slow_hinge(*row)), 1),
    "infonce": (InfoNCE(0.07), slow_infonce, 14),
    "infonce, smoothed": (InfoNCE(0.07, 0.1), lambda *row: slow_infonce(*row, smoothing=0.1), 14),
    "match": (Match(), slow_match, 14),
    "match, smoothed": (Match(smoothing=0.01), lambda *row: slow_match(*row, smoothing=0.01), 14),
    "match, pseudo-positives": (
        Match(pseudo_positives=0.1),
        lambda *row: slow_pseudo_positives(*row, 0.1, 0.0),
        14,
    ),
    "match, pseudo-positives, smoothed": (
        Match(pseudo_positives=0.5, smoothing=0.01),
        lambda *row: slow_pseudo_positives(*row, 0.5, 0.01),
        14,
    ),
    "match of logits": (Match(True), lambda *row: slow_match(*row, scale=1.0, shift=0.0), 14),
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
    s, image = scores(), torch.arange(7) // 2
    same = image[:, None] == image
    queries = [
        (
            float(row[k]),
            [float(x) for j, x in enumerate(row) if j != k and not (masked and same[k, j])],
        )
        for rows in (s, s.T)
        for k, row in enumerate(rows)
    ]
    assert loss(s, same if masked else None).item() == pytest.approx(
        SLOW_LOSSES[name](queries), rel=1e-6
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", TWINS)
def test_loss_equals_its_slow_twin(name, masked):
    loss, slow, count = TWINS[name]
    s, image, total = scores(), torch.arange(7) // 2, 0.0
    same = image[:, None] == image
    for k in range(7):
        for row in (s[k].tolist(), s[:, k].tolist()):
            total += slow(
                row[k], [x for j, x in enumerate(row) if j != k and not (masked and same[k, j])]
            )
    got = loss.double()(s, same if masked else None)
    assert got.item() == pytest.approx(
        total / count, rel=1e-6
    )  # the temperature's logarithm is stored in float32


def test_infonce_keeps_its_temperature_above_a_hundredth():
    hot, warm = (InfoNCE(temperature)(scores() / 33) for temperature in (1e-9, 0.01))
    torch.testing.assert_close(hot, warm)


@pytest.mark.parametrize("spherical", [False, True])
def test_vib_is_the_divergence_from_the_unit_gaussian(spherical):
    mean, log_var = numbers(5, 4), numbers(5, 1 if spherical else 4, seed=1)
    gaussian = Encoded(Embedding(mean, log_var), None, None)
    std = (log_var / 2).exp().expand_as(mean)
    expected = (
        kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), torch.ones_like(mean)))
        .sum(1)
        .mean()
    )
    point = Encoded(Embedding(mean), None, None)
    assert float(losses.information_bottleneck(gaussian, point, None)) == pytest.approx(
        float(expected)
    )


def test_the_vib_of_pcmepp_has_its_weight_beside_the_matching_loss():
    """Its code adds twice the mean over pairs and 1e-4 times the means over dimensions; ours is that times B / 2."""
    batch, dim = 128, 1024
    sides = [
        Encoded(Embedding(numbers(batch, dim, seed=k), numbers(batch, dim, seed=k + 2)), None, None)
        for k in (0, 1)
    ]
    pairs = numbers(batch, batch, seed=4)
    divergence = [
        0.5 * (e.embedding.log_var.exp() - e.embedding.log_var + e.embedding.mean**2 - 1)
        for e in sides
    ]
    match = F.binary_cross_entropy_with_logits(5 * pairs + 5, torch.eye(batch, dtype=torch.float64))
    theirs = 2 * match + 1e-4 * sum(x.mean() for x in divergence)
    ours = Match()(pairs) + METHODS["pcme++"].options["vib"] * losses.information_bottleneck(
        *sides, None
    )
    torch.testing.assert_close(ours, theirs * batch / 2)
