"""What an index holds gives the scores of every similarity: by products, or by the similarity itself."""
import pytest
import torch
import torch.nn.functional as F

from losses import MLS, Embedding, cosine, formulas, trait
from methods.scan import CrossAttention
from photos.ranking import InnerProducts, WholeVectors, form_of, vectors_of

FORMULAS = formulas()

N, Q, D = 40, 6, 48
SIMILARITIES = {**FORMULAS, "mls": MLS()}


def gaussians(n, seed, spherical=False, shared=1.0, parts=0):
    """Means of norm 1; log-variances near a level of their own, `shared` times as wide as within an item."""
    g = torch.Generator().manual_seed(seed)
    log_var = 0.3 * torch.randn(n, 1 if spherical else D, generator=g) + shared * torch.randn(n, 1, generator=g) - 2
    split = (F.normalize(torch.randn(n, parts, D, generator=g), dim=2), torch.randint(1, parts + 1, (n,), generator=g)
             ) if parts else (None, None)
    return Embedding(F.normalize(torch.randn(n, D, generator=g), dim=1), log_var, *split)


def sides(name, spherical=False):
    """Images and captions that the similarity takes."""
    images, captions = (gaussians(n, k, spherical or name == "mls") for k, n in enumerate((N, Q)))
    wanted = trait(SIMILARITIES[name], "gaussian_sides")
    return images if wanted == 2 else Embedding(images.mean), captions if wanted else Embedding(captions.mean)


def scores_of(vectors, images, captions):
    held, rest = vectors.images(images)
    asked = vectors.queries(captions)
    half = [x.half().float() if vectors.half else x for x in held]          # variances and parts stay float32
    return vectors.scores_of(half, rest, asked)


def origin_of(images):
    return Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in images))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("name", SIMILARITIES)
def test_scores_are_those_of_the_similarity(name, spherical, half):
    similarity = SIMILARITIES[name]
    images, captions = sides(name, spherical)
    exact = similarity(*(Embedding(*(None if x is None else x.double() for x in e)) for e in (images, captions))).T
    vectors = vectors_of(similarity, origin_of(images), half, form_of(similarity, images, products=not half))
    error = (scores_of(vectors, images, captions) - exact).abs().max() / exact.std()
    # float16 has a relative error of 2 ** -11 for every number; here it is of the spread of the scores
    assert error < (4e-3 if half else 2e-5), float(error)


def test_a_bank_lies_in_the_vectors_where_the_score_is_a_product():
    images, captions = sides("kl")
    taken = torch.linspace(-1, 1, N)
    form = form_of(SIMILARITIES["kl"], images, products=True)
    vectors = vectors_of(SIMILARITIES["kl"], origin_of(images), False, form)
    scores = vectors.scores_of(*vectors.images(images, taken), vectors.queries(captions))
    torch.testing.assert_close(scores, SIMILARITIES["kl"](images, captions).T - taken, rtol=1e-5, atol=1e-4)
    assert vectors.takes_bank
    root = SIMILARITIES["wasserstein"]
    assert not vectors_of(root, origin_of(images), False, form_of(root, images, products=True)).takes_bank


@pytest.mark.parametrize("half", [False, True])
def test_parts_are_held_whole(half):
    similarity = CrossAttention()
    images, captions = gaussians(N, 0, parts=5), gaussians(Q, 1, parts=4)
    images, captions = (e._replace(log_var=None) for e in (images, captions))
    vectors = vectors_of(similarity, origin_of(Embedding(images.mean)), half, form_of(similarity, images, True))
    assert isinstance(vectors, WholeVectors) and vectors.images(images)[1].shape == (N, 5 * D + 1)
    exact = similarity(images, captions).T
    assert (scores_of(vectors, images, captions) - exact).abs().max() < (2e-3 if half else 1e-6)


@pytest.mark.parametrize("name", ["mls", "mahalanobis", "csd", "wasserstein"])
def test_a_photo_as_a_query(name):
    """By the similarity where it compares two images, else by the cosine of the means."""
    similarity = SIMILARITIES[name]
    images = gaussians(N, 3, spherical=name == "mls")
    vectors = vectors_of(similarity, origin_of(images), False, form_of(similarity, images, products=True))
    few = images.rows(slice(4, 7))
    held, rest = vectors.images(images)
    asked = vectors.queries(few, of_images=True)
    found = vectors.scores_of(held, rest, asked)
    wanted = (similarity if isinstance(vectors, InnerProducts) else cosine)(images, few).T
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 if name != "wasserstein" else 3e-3)
    if name != "csd":                                       # to which a surer photo is nearer than the photo itself
        assert found.argmax(1).tolist() == [4, 5, 6]
