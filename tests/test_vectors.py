"""What an index holds gives the scores of every similarity: by products, or by the similarity itself."""
import pytest
import torch
import torch.nn.functional as F

from methods.scan import CrossAttention
from model import OF_VECTORS
from retrieval.ranking import LiftedVectors, WholeVectors, form_of, vectors_of
from similarities import Cosine, Embedding

N, Q, D = 40, 6, 48


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
    wanted = OF_VECTORS[name].gaussian_sides
    return images if wanted == 2 else Embedding(images.mean), captions if wanted else Embedding(captions.mean)


def scores_of(vectors, images, captions):
    held, rest = vectors.images(images)
    asked = vectors.queries(captions)
    half = [x if x is None or not vectors.half else x.half().float() for x in (*held, rest)]
    return vectors.scores_of(half[:-1], half[-1], asked)


def origin_of(images):
    return Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in images))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("name", OF_VECTORS)
def test_scores_are_those_of_the_similarity(name, spherical, half):
    similarity = OF_VECTORS[name]()
    images, captions = sides(name, spherical)
    exact = similarity(*(Embedding(*(None if x is None else x.double() for x in e)) for e in (images, captions))).T
    vectors = vectors_of(similarity, origin_of(images), half, form_of(similarity, images))
    error = (scores_of(vectors, images, captions) - exact).abs().max() / exact.std()
    # float16 has a relative error of 2 ** -11 for every number; here it is of the spread of the scores
    assert error < (4e-3 if half else 2e-5), float(error)


def test_the_two_columns_are_what_float16_needs():
    """The norms of a whole item in one column of float16 would change the order of the photos."""
    similarity = OF_VECTORS["kl"]()
    images, captions = sides("kl", spherical=True)
    vectors = vectors_of(similarity, origin_of(images), True, form_of(similarity, images))
    exact = similarity(images, captions).T
    A, a = similarity.images(images, origin_of(images))
    B, b = similarity.captions(captions, origin_of(images))
    one = torch.cat([A, a[:, None]], 1).half().float()
    plain = torch.cat([B, B.new_ones(Q, 1)], 1) @ one.T + b[:, None]
    assert (plain - exact).abs().max() > 5 * (scores_of(vectors, images, captions) - exact).abs().max()


def test_a_bank_lies_in_the_vectors_where_the_score_is_a_product():
    images, captions = sides("kl")
    taken = torch.linspace(-1, 1, N)
    vectors = vectors_of(OF_VECTORS["kl"](), origin_of(images), False, form_of(OF_VECTORS["kl"](), images))
    scores = vectors.scores_of(*vectors.images(images, taken), vectors.queries(captions))
    torch.testing.assert_close(scores, OF_VECTORS["kl"]()(images, captions).T - taken, rtol=1e-5, atol=1e-4)
    assert vectors.takes_bank
    root = OF_VECTORS["wasserstein"]()
    assert not vectors_of(root, origin_of(images), False, form_of(root, images)).takes_bank


@pytest.mark.parametrize("half", [False, True])
def test_parts_are_held_whole(half):
    similarity = CrossAttention()
    images, captions = gaussians(N, 0, parts=5), gaussians(Q, 1, parts=4)
    images, captions = (e._replace(log_var=None) for e in (images, captions))
    vectors = vectors_of(similarity, origin_of(Embedding(images.mean)), half, form_of(similarity, images))
    assert isinstance(vectors, WholeVectors) and vectors.images(images)[1].shape == (N, 5 * D + 1)
    exact = similarity(images, captions).T
    assert (scores_of(vectors, images, captions) - exact).abs().max() < (2e-3 if half else 1e-6)


@pytest.mark.parametrize("name", ["mls", "mahalanobis", "csd", "wasserstein"])
def test_a_photo_as_a_query(name):
    """By the similarity where it compares two images, else by the cosine of the means."""
    similarity = OF_VECTORS[name]()
    images = gaussians(N, 3, spherical=name == "mls")
    vectors = vectors_of(similarity, origin_of(images), False, form_of(similarity, images))
    few = images.rows(slice(4, 7))
    held, rest = vectors.images(images)
    asked = vectors.queries(few, of_images=True)
    found = vectors.scores_of(held, rest, asked)
    wanted = (similarity if isinstance(vectors, LiftedVectors) else Cosine())(images, few).T
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 if name != "wasserstein" else 3e-3)
    if name != "csd":                                       # to which a surer photo is nearer than the photo itself
        assert found.argmax(1).tolist() == [4, 5, 6]
