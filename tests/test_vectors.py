"""Vectors for a database: their inner products give the scores of every similarity that is one."""
import pytest
import torch
import torch.nn.functional as F

from losses import Embedding, formulas, trait
from photos.milvus import INNER_PRODUCTS, image_vectors, query_vectors, scores_of_products

N, Q, D = 40, 6, 48
FORMULAS = formulas()


def gaussians(n: int, seed: int, spherical: bool) -> Embedding:
    """Means of norm 1; log-variances near a level of their own."""
    g = torch.Generator().manual_seed(seed)
    log_var = 0.3 * torch.randn(n, 1 if spherical else D, generator=g) + torch.randn(n, 1, generator=g) - 2
    return Embedding(F.normalize(torch.randn(n, D, generator=g), dim=1), log_var)


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("name", INNER_PRODUCTS)
def test_scores_are_those_of_the_similarity(name, spherical):
    images, captions = (gaussians(n, k, spherical) for k, n in enumerate((N, Q)))
    if not trait(FORMULAS[name], "gaussian_sides"):
        images, captions = Embedding(images.mean), Embedding(captions.mean)
    exact = FORMULAS[name](*(Embedding(*(None if x is None else x.double() for x in e)) for e in (images, captions))).T
    origin = Embedding(*(None if x is None else x.mean(0, keepdim=True) for x in images))
    vectors, number = query_vectors(name, captions, origin)
    scores = scores_of_products(name, vectors @ image_vectors(name, images, origin).T + number[:, None])
    if name in ("kl", "kl_reverse"):
        assert scores.shape == exact.shape
    assert (scores - exact).abs().max() / exact.std() < 2e-5
