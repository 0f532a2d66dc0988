"""Variances for a point model that is trained already, without training: `evaluate.py --variances
{volume,knn,laplace}`.

volume: the share of a gallery's photos that an item covers (evaluation/volume.py).

knn: how far the k nearest training items of the other modality lie from each other. An image that
captions of many kinds fit is spread, and so is a caption that fits many images. The idea is that of
proxy embeddings (MA-PaPSP, arXiv 2601.22570).

laplace: Laplace's approximation of the last linear layer of each side, as in BayesVLM (Baumann et
al. 2026, arXiv 2412.06014), Kronecker-factored over the training pairs. Where the paper's public
code has the exponents of the determinant swapped, and where its variance of a cosine is too large,
the right forms stand here.

knn and laplace give the variance of an embedding's direction, its mean divided by its norm. What
ranks is not changed: scores are those of the points. `volume.fit`, `fit_knn` and `fit_laplace`
return what gives variances to images and what gives them to captions: `layer`, see `around`, and
`log_var` of a batch.
"""
import contextlib
import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor, nn

from cli import InputError, check
from evaluation.posterior import masses, rows_of, sample_scores, temperature
from evaluation.subjects import Gallery, Subject, Variances
from losses import InfoNCE
from model import JointEmbedding, Tower
from similarities import Cosine, Embedding, Similarity, unit

LEAST = 1e-14         # a variance per dimension; rounding of unit vectors in float32 makes as much
ROWS = 1024           # rows of a matrix product in float32, whose sums are added up in float64


# ---- what stands around the last linear layer of a tower

class Activations(NamedTuple):
    """Of N items, around the last linear layer of their tower, outputs = W inputs + b."""
    inputs: Tensor                    # (N, p) phi
    outputs: Tensor                   # (N, q) g, whose norm is not 1 yet


def watched(tower: Tower, layers: list[str], *batch) -> tuple:
    """What a tower makes of a batch, and {layer: (inputs, outputs)} of the layers of these
    names."""
    seen = {}

    def keep(name: str):
        return lambda layer, inputs, outputs: seen.update({name: (inputs[0], outputs)})
    with contextlib.ExitStack() as hooks:
        for name in layers:
            hooks.enter_context(tower.get_submodule(name).register_forward_hook(keep(name)))
        return tower(*batch), seen


def last_linear(tower: Tower, *batch) -> str | None:
    """The name of the linear layer that makes the latent (B, D) of a tower, of which the embedding
    is the direction; None where another operation makes it (the state of a GRU, a tanh, a pooling).
    batch: inputs, and lengths of captions, to see which layer it is."""
    linear = [name for name, layer in tower.named_modules() if isinstance(layer, nn.Linear)]
    encoded, seen = watched(tower, linear, *batch)
    latent = encoded.latent
    if tower.head.use_abs or latent.n_parts is not None:
        return None
    return next((name for name, (_, x) in seen.items()
                 if x.shape == latent.value.shape and torch.equal(x, latent.value)), None)


def around(tower: Tower, layer: str | None, *batch) -> tuple[Embedding, Activations]:
    """The embedding of a batch, and what goes into and comes out of the linear layer of that name.
    None stands for a linear layer behind the tower whose matrix is the identity: both are the
    embedding's mean."""
    encoded, seen = watched(tower, [layer] if layer else [], *batch)
    e = encoded.embedding
    return e, Activations(*(x.float() for x in seen.get(layer, (e.mean, e.mean))))


class View:
    """A model that gives something else in place of embeddings: of(side, tower, *batch), where side
    is "images" or "captions"."""

    def __init__(self, model: JointEmbedding):
        self.model = model

    def embed_images(self, images: Tensor):
        return self.of("images", self.model.image_tower, images)

    def embed_captions(self, tokens: Tensor, lengths: Tensor):
        return self.of("captions", self.model.text_tower, tokens, lengths)


class Opened(View):
    """The Activations of a model's last linear layers. layers: the name of that layer by side,
    known once a batch was encoded (`last_linear`)."""

    def __init__(self, model: JointEmbedding):
        super().__init__(model)
        self.layers = {}

    def of(self, side: str, tower: Tower, *batch) -> Activations:
        if side not in self.layers:
            self.layers[side] = last_linear(tower, *batch)
        return around(tower, self.layers[side], *batch)[1]

    def weights(self) -> dict[str, Tensor]:
        """The matrix W (q, p) of the last linear layer of each side that has one."""
        towers = {"images": self.model.image_tower, "captions": self.model.text_tower}
        return {side: towers[side].get_submodule(layer).weight.detach()
                for side, layer in self.layers.items() if layer is not None}


class Widened(View):
    """The embeddings of a point model with variances; their means stay what they are. sides: what
    gives variances to images and to captions."""

    def __init__(self, model: JointEmbedding, sides: tuple):
        super().__init__(model)
        self.sides = dict(zip(("images", "captions"), sides))

    def of(self, side: str, tower: Tower, *batch) -> Embedding:
        e, seen = around(tower, self.sides[side].layer, *batch)
        return e._replace(log_var=self.sides[side].log_var(e, *seen))


# ---- the nearest partners

def scatter(partners: Tensor) -> Tensor:
    """The spread of K partners x_1 ... x_K of each of B items as a log-variance, one for all
    dimensions:

        log_var = log( 1 / (K D) sum_k |x_k - m|^2 ),    m = 1 / K sum_k x_k

    partners (B, K, D), of norm 1 -> (B, 1). LEAST stands for a smaller variance, as of equal
    partners."""
    apart = partners - partners.mean(1, keepdim=True)                               # (B, K, D)
    return apart.square().mean((1, 2)).clamp(min=LEAST).log()[:, None]


class Scatter(NamedTuple):
    """Gives an item the scatter of its nearest partners in a bank of the other modality."""
    similarity: Similarity
    bank: Embedding                   # (M, D): captions for images, images for captions
    images: bool                      # whether images are given variances
    neighbours: int
    layer: str | None = None          # it needs none

    def log_var(self, e: Embedding, *activations) -> Tensor:
        """(B, D) -> (B, 1); nearest by the similarity that ranks."""
        scores = self.similarity(e, self.bank) if self.images else self.similarity(self.bank, e).T
        nearest = scores.topk(self.neighbours, 1).indices               # (B, M) -> (B, K)
        return scatter(unit(self.bank.mean[nearest]))                   # (B, K, D) -> (B, 1)


def fit_knn(similarity: Similarity, images: Embedding, captions: Embedding,
            neighbours: int) -> tuple[Scatter, Scatter]:
    """images, captions: those of the training split. Raises InputError where they are fewer than
    the neighbours."""
    for name, e in (("captions", captions), ("images", images)):
        check(len(e.mean) >= neighbours,
              f"--neighbours {neighbours} are more than the {len(e.mean):,} {name} "
              "to find them among; give fewer")
    return (Scatter(similarity, captions, True, neighbours),
            Scatter(similarity, images, False, neighbours))


# ---- Laplace's approximation of W in g = W phi, p inputs and q outputs

def input_factor(inputs: Tensor, count: Tensor) -> Tensor:
    """A = n^-1/2 sum_i count_i phi_i phi_i^T, n = sum_i count_i: (N, p), (N,) how many pairs an
    item is in -> (p, p) float64."""
    total = torch.zeros(inputs.shape[1], inputs.shape[1], dtype=torch.float64, device=inputs.device)
    for x, n in zip(inputs.split(ROWS), count.to(inputs.dtype).split(ROWS)):
        total += (n[:, None] * x).T @ x
    return total / float(count.sum()) ** 0.5


def output_factor(outputs: Tensor, others: Tensor, count: Tensor, scale: float) -> Tensor:
    """B = n^-1/2 sum_i count_i J_i^T H_i J_i, the Gauss-Newton matrix of InfoNCE with respect to
    the outputs of one side: (N, q), (M, q), (N,) -> (q, q) float64.

        J = (I - u u^T) / |g|,    u = g / |g|
        H = s^2 (sum_j p_j t_j t_j^T - m m^T),    m = sum_j p_j t_j

    t_j are the directions of the other side's M items and p = softmax(s u . t_j), s the scale of
    the logits. H does not change where all t_j are moved. So they are centred, and then d_j = t_j -
    r is taken, r the nearest t_j: in float32 nothing is left to cancel where all t_j are near each
    other, or nearly all of p is on one. The sums over items are matrix products.
    """
    t, q = unit(others), outputs.shape[1]
    t = t - t.mean(0)
    mass = torch.zeros(len(t), dtype=torch.float64, device=t.device)    # (M,) weight of t_j t_j^T
    total = torch.zeros(q, q, dtype=torch.float64, device=t.device)
    for g, n in zip(outputs.split(ROWS), count.to(outputs.dtype).split(ROWS)):
        norm = g.norm(dim=1).clamp(min=1e-6)
        u, w = g / norm[:, None], scale ** 2 * n / norm.square()                    # (b, q), (b,)
        below = u @ t.T                                         # cosines, moved: (b, M)
        best, nearest = below.max(1)
        below -= best[:, None]                                                      # u . d_j
        p = masses(below, scale)             # without subnormal numbers, which are slow
        r, whole = t[nearest], p.sum(1, keepdim=True)                               # (b, q), (b, 1)
        p = p.scatter_(1, nearest[:, None], 0) / whole      # d of the nearest is 0
        rest = p.sum(1, keepdim=True)                                               # (b, 1)
        sums = p @ t                                                                # sum_j p_j t_j
        p_below = p * below
        along = p_below @ t - p_below.sum(1, keepdim=True) * r   # S u, S = sum_j p_j d_j d_j^T
        mean = sums - rest * r                                                      # sum_j p_j d_j
        off = mean - (mean * u).sum(1, keepdim=True) * u         # J of it, times |g|
        # S = sum p t t^T - sums r^T - r sums^T + rest r r^T, and
        # |g|^2 J^T S J = S - along u^T - u along^T + (u . along) u u^T;
        # `half` of what stands there twice
        half = (sums - rest / 2 * r, along - (along * u).sum(1, keepdim=True) / 2 * u)
        cross = (w[:, None] * half[0]).T @ r + (w[:, None] * half[1]).T @ u         # (q, q)
        total -= cross + cross.T + (w[:, None] * off).T @ off
        mass += w @ p
    total += (mass.to(t.dtype)[:, None] * t).T @ t
    return total / float(count.sum()) ** 0.5


def log_det(a, b) -> float:
    """log det(A (x) B) = q log det A + p log det B, of the eigenvalues a (p,) of A and b (q,) of B.
    (The public code of BayesVLM takes p log det A + q log det B.)"""
    return float(len(b) * np.log(a).sum() + len(a) * np.log(b).sum())


def log_evidence(damping: float, a, b, square: float) -> float:
    """What of the log marginal likelihood changes with lambda, in nats: of eigenvalues a (p,), b
    (q,) and the square |W|^2 of the weights, whose prior is N(0, I / lambda).

        -lambda / 2 |W|^2 + pq / 2 log lambda
            - 1/2 log det((A + sqrt(lambda) I) (x) (B + sqrt(lambda) I))
    """
    volume = log_det(a + damping ** 0.5, b + damping ** 0.5)
    return -damping / 2 * square + len(a) * len(b) / 2 * math.log(damping) - volume / 2


def best_damping(a, b, square: float) -> float:
    """The lambda of the largest log_evidence, which rises up to it and falls behind it: there
    lambda |W|^2 is the number of well-determined weights, of which there are at most pq (MacKay
    1992)."""
    top = math.log(len(a) * len(b) / square)
    return math.exp(optimize.minimize_scalar(
        lambda x: -log_evidence(math.exp(x), a, b, square), bounds=(top - 200, top),
        method="bounded", options={"xatol": 1e-7}).x)


def of_direction(variance: Tensor, outputs: Tensor) -> Tensor:
    """The variances of u = g / |g| where those of g are diagonal, by the delta method: (N, q), (N,
    q) -> (N, q).

        diag(J V J^T)_d = (v_d (1 - u_d^2)^2 + u_d^2 sum_{e != d} u_e^2 v_e) / |g|^2,
        J = (I - u u^T) / |g|
    """
    norm = outputs.norm(dim=1, keepdim=True).clamp(min=1e-6)
    square = (outputs / norm).square()
    share = square * variance
    others = (share.sum(1, keepdim=True) - share).clamp(min=0)
    return (variance * (1 - square).square() + square * others) / norm.square()


class Posterior(NamedTuple):
    """Laplace's posterior of one side's last linear layer: cov(g) = (phi^T A~^-1 phi) B~^-1, of
    which the diagonal is taken, with A~ = A + sqrt(lambda) I and B~ alike."""
    root: Tensor                      # (p, p) R: A~^-1 = R R^T
    spread: Tensor                    # (q,) the diagonal of B~^-1
    damping: float                    # lambda
    layer: str | None                 # None: W = I behind the tower, phi = g the embedding's mean

    def log_var(self, e: Embedding, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Of the direction g / |g|: (N, p), (N, q) -> (N, q)."""
        variance = (inputs @ self.root).square().sum(1, keepdim=True) * self.spread
        return of_direction(variance, outputs).clamp(
            min=torch.finfo(torch.float32).tiny).log()


def fit_side(mine: Activations, others: Tensor, count: Tensor, scale: float, weight: Tensor | None,
             layer: str | None) -> Posterior:
    """The posterior of the layer of one side. others (M, q): the outputs of the other side; count
    (N,): how many pairs each item is in; scale: of the logits; weight: W (q, p), None for the
    identity."""
    (a, of_inputs), (b, of_outputs) = (torch.linalg.eigh(x) for x in (
        input_factor(mine.inputs, count), output_factor(mine.outputs, others, count, scale)))
    a, b = a.clamp(min=0), b.clamp(min=0)        # eigenvalues; rounding makes zeros negative
    square = float(len(b) if weight is None else weight.double().square().sum())
    check(square > 0 and (a.any() or b.any()),
          "--variances laplace finds a last linear layer whose weights or inputs are all zeros, "
          "which is none of a trained model; take --variances knn")
    damping = best_damping(a.cpu().numpy(), b.cpu().numpy(), square)
    root = of_inputs / (a + damping ** 0.5).sqrt()                                    # (p, p)
    spread = (of_outputs.square() / (b + damping ** 0.5)).sum(1)                       # (q,)
    return Posterior(root.float(), spread.float(), damping, layer)


def pairs(drawn: Gallery, owner: np.ndarray) -> tuple[Gallery, np.ndarray]:
    """The images and captions of the pairs that were drawn, and the row (m,) of each caption's
    image among these images. owner (M,): the image of each caption of the split."""
    images, place = np.unique(owner[drawn.captions], return_inverse=True)
    return Gallery(images, drawn.captions), place


def fit_laplace(images: Activations, captions: Activations, owner: np.ndarray,
                scale: dict[str, float], layers: dict,
                weights: dict) -> tuple[Posterior, Posterior]:
    """images (n), captions (m), owner (m,): of the training pairs (`pairs`). scale: of the logits
    by direction. layers, weights: name and matrix of the last linear layer by side; a side without
    one has the identity behind it."""
    count = torch.from_numpy(np.bincount(owner)).to(images.inputs.device)
    ones = torch.ones_like(captions.inputs[:, 0])
    return (fit_side(images, captions.outputs, count, scale["i2t"], weights.get("images"),
                     layers.get("images")),
            fit_side(captions, images.outputs, ones, scale["t2i"], weights.get("captions"),
                     layers.get("captions")))


def scale_of(objective) -> dict[str, float] | None:
    """The scale of the logits by direction where a model was trained with InfoNCE, else None."""
    if isinstance(objective, InfoNCE):
        scale = float(objective.log_scale.detach().clamp(max=math.log(100)).exp())
        return dict.fromkeys(("i2t", "t2i"), scale)
    return None


def fitted_scale(subject: Subject) -> dict[str, float]:
    """The scale of the logits by direction: the temperature of a softmax over the gallery
    (`posterior.temperature`, every right pair by itself). Raises InputError where there is
    none."""
    try:
        return {side: temperature(*sample_scores(rows_of(subject, side)), each=True)
                for side in ("i2t", "t2i")}
    except InputError as error:
        raise InputError("--variances laplace needs the temperature of a softmax, and that of "
                         f"{subject.name} cannot be found: its scores tell all right items from "
                         "the others, or none; take --variances knn") from error


# ---- the command

def refuse_gaussian(gaussian: bool, name: str, kind: str) -> None:
    check(not gaussian, f"--variances {kind} gives variances to points, and {name} has variances "
                        "of its own; leave it out, or evaluate a point model")


def refuse_no_cosine(similarity: Similarity, name: str) -> None:
    """Raises InputError unless the scores are cosines, whose softmax has the Hessian of
    `output_factor`."""
    check(isinstance(similarity, Cosine),
          f"--variances laplace is for the cosine of one vector per item, and {name} is scored by "
          f"{type(similarity).__name__}; take --variances knn, which goes with any similarity")


class Fit(NamedTuple):
    """The variances of one model, and what they were fitted to."""
    name: str                         # of the model
    sides: tuple                      # of images and of captions
    fitted_on: str
    images: int
    captions: int
    scale: dict[str, float] | None    # of the logits, for Laplace's approximation


def gathered(kind: str, fits: list[Fit]) -> Variances:
    """The variances of all members, and what results.json says of them."""
    sides, notes = dict(zip(("images", "captions"), zip(*(fit.sides for fit in fits)))), []
    if kind == "knn":
        how = {"neighbours": sides["images"][0].neighbours}
    elif kind == "volume":
        how = {"of_photo": [x.of_photo[:2] for x in sides["images"]]}
        notes = [f"{fit.name}: captions of one photo of dev lie no nearer to each other than to those "
                 "of others, so that these variances say nothing of how many photos fit"
                 for fit, (slope, _) in zip(fits, how["of_photo"]) if slope <= 0]
    else:
        how = {"damping": {side: [x.damping for x in of] for side, of in sides.items()},
               "scale": {side: [fit.scale[side] for fit in fits] for side in ("i2t", "t2i")}}
        notes = [f"{fit.name}: the {side} end in no linear layer that is known, so their variances "
                 "are those of a linear layer behind them that has the identity as its matrix"
                 for k, fit in enumerate(fits) for side, of in sides.items() if of[k].layer is None]
    told = {name: [getattr(fit, name) for fit in fits]
            for name in ("fitted_on", "images", "captions")}
    return Variances([fit.sides for fit in fits], {"kind": kind, **how, **told}, notes)


def widened(e: Embedding, side) -> Embedding:
    """Embeddings of which nothing but themselves is known, with variances."""
    return e._replace(
        log_var=torch.cat([side.log_var(part, part.mean, part.mean) for part in e.split(ROWS)]))


def sentence(report: dict) -> str:
    """What the report says of the variances: how they were made, from what, and what they do not
    change."""
    on = " and ".join(dict.fromkeys(
        f"{n:,} images and {m:,} captions of {name}"
        for n, m, name in zip(report["images"], report["captions"], report["fitted_on"])))
    if report["kind"] == "volume":
        how = f"the share that an item covers of the photos of {on}"
    elif report["kind"] == "knn":
        how = (f"the scatter of the {report['neighbours']} nearest items of the other modality "
               f"among {on}")
    else:
        numbers = [" and ".join(f"{x:.3g}" for x in values)
                   for name in ("damping", "scale") for values in report[name].values()]
        how = ("Laplace's approximation of the last linear layers on {}: lambda {} for images and "
               "{} for captions, scale of the logits {} (image to text) and {}".format(on, *numbers))
    return f"variances: {how}; the scores are those of the points"
