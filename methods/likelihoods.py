"""Similarities that are log-likelihoods, in nats: what a softmax over a batch (`--loss infonce`)
can turn into probabilities as they are.

`mls` is the mutual likelihood score of probabilistic face embeddings (PFE: Shi and Jain 2019, eq.
3) in an effective number of dimensions.
"""
import math

import torch
from torch import Tensor, nn

from similarities import Embedding, Lifted, shift


class MLS(Lifted):
    """-(|mu_i - mu_c|^2 / v + k log v) / 2 with v = v_i + v_c, any real number in nats; a point has
    variance 0.

    At k = D this is the log of the expected likelihood of two spherical Gaussians, the integral of
    p q, but for the constant -D/2 log 2 pi (PFE eq. 3, of one variance per item). Embeddings do not
    fill their D dimensions: their squared distances hardly vary beside D, which pins v to |mu_i -
    mu_c|^2 / D of every pair. So k, the effective dimension, is learned. It starts at
    `effective_dim`.

    With point images a caption's variance shifts and scales all its scores alike: text to image
    ranks as the cosine of unit means does.
    """
    gaussian_sides, point_side, centred = 2, True, ("mean",)
    log_likelihood, options = True, ("effective_dim",)
    within_modality = False           # a point side has no variance to compare with
    implies = {"loss": "infonce", "head": "spherical_one", "var_min": 1e-4, "logvar_init": -2.5}

    def __init__(self, effective_dim: float = 4.0):
        super().__init__()
        self.log_k = nn.Parameter(torch.tensor(math.log(effective_dim)))

    @property
    def k(self) -> Tensor:
        """The effective dimension, above 0."""
        return self.log_k.exp()

    def lift_caption(
        self, e: Embedding, origin: Embedding | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means (M, D) from the origin, half of their squared norms (M,), and variances (M, 1), or
        None of points."""
        mean = shift(e, origin)
        return mean, mean.square().sum(1) / 2, None if e.log_var is None else e.log_var.exp()

    lift_image = lift_caption

    def rows_of(self, lift, i):
        return tuple(None if x is None else x[i] for x in lift)

    def piece(self, image_lift, caption_lift, dim):
        (x, x_half, of_image), (y, y_half, of_caption) = image_lift, caption_lift
        sides = [v for v in (of_image, None if of_caption is None else of_caption.T)
                 if v is not None]
        variance = sum(sides)                   # (n, 1) + (1, p) -> (n, p); beside a point as it is
        score = (-x_half[:, None] - y_half).addmm_(x, y.T)                  # -|x - y|^2 / 2, (n, p)
        return score.div_(variance).addcmul_(variance.log(), -0.5 * self.k)
