"""Frozen networks that turn photos into features, each named in one line."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from features.filters import EXTRACTORS, FilterNetwork, transform
from images import eval_transform, whole_transform
from methods.pretrained import load_images
from model import CNN, CNNS, NO_CELLS
from utils import InputError, checksum

CELLS_PER_SIDE = 7  # of the last map of every network, for photos of 224 x 224
LITES = {  # pixels a side
    "efficientnet_lite0": 224,
    "efficientnet_lite1": 240,
    "efficientnet_lite2": 260,
}
SIDE_BY_SIDE = "efficientnet_lite012"
SCENES = "demo"  # the filters of drawn scenes, which need no weights
NETWORKS = (*CNNS, SIDE_BY_SIDE, SCENES)

# The line of a CNN, by which `rebuild_network` builds it again.
WHOLE_PHOTOS = ", photos resized to 224x224,"
CNN_LINE = re.compile(rf"(\w+) (pooled|fc6|fc7|cells)({WHOLE_PHOTOS})? sha256:\w+")


class Network(NamedTuple):
    """Frozen network: B photos as `transform` prepares them -> (B, dim) or (B, regions, dim).

    `net` has `dim` and `regions` (None: one vector a photo).
    """

    net: nn.Module
    transform: Callable
    line: str  # its name, with a checksum of the weights
    device: torch.device

    @torch.no_grad()
    def __call__(self, photos: list[Tensor]) -> Tensor:
        return self.net(torch.stack(photos).to(self.device))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the features of a photo."""
        if self.net.regions:
            return self.net.regions, self.net.dim
        return (self.net.dim,)

    @property
    def dtype(self) -> np.dtype:
        """Type in which features are stored."""
        return np.dtype(np.float16 if self.net.regions else np.float32)


class Lites(nn.Module):
    """EfficientNet-Lite0, 1 and 2 side by side: (B, 3, 224, 224) -> (B, 3 * 1280).

    Each gets photos of its own size and gives features of norm 1. Their weights come with packages.
    """

    regions = None
    dim = 3 * 1280

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([CNN(name) for name in LITES]).eval()

    def forward(self, photos: Tensor) -> Tensor:
        features = []
        for net, side in zip(self.nets, LITES.values()):
            resized = F.interpolate(photos, (side, side), mode="bicubic", antialias=True)
            features.append(net(resized))  # (B, 1280)
        return torch.cat(features, 1)


def list_layers(cnn_type: str) -> tuple[str, ...]:
    """List the layers of a network that can be written, the default first."""
    if cnn_type == SIDE_BY_SIDE or cnn_type in NO_CELLS:
        return ("pooled",)
    if cnn_type == "alexnet":
        return "fc7", "fc6"
    if cnn_type.startswith("vgg"):
        return "fc7", "fc6", "cells"
    return "pooled", "cells"


def build_network(
    device,
    cnn_type: str,
    layer: str | None = None,
    weights: str | None = None,
    whole: bool = False,
) -> Network:
    """Build one of NETWORKS, frozen, that gives the raw activations of a layer.

    Args:
        layer: fc7 or fc6 (VGG, AlexNet), (B, 4096) after the ReLU; pooled (the others), (B, F);
            cells, the last map, (B, 49, C), which AlexNet lacks.
        weights: file of the weights; None: those of ImageNet.
        whole: resize whole photos, without keeping their shape.

    Raises InputError if it cannot be built.
    """
    if cnn_type == SCENES:
        if layer or weights or whole:
            raise InputError(
                f"--cnn_type {SCENES} has neither layers nor weights, and sees whole photos; leave "
                "--layer, --cnn_weights and --whole out"
            )
        net = FilterNetwork(grid=False)
        return Network(net, transform, net.line, device)

    layers = list_layers(cnn_type)
    layer = layer or layers[0]
    if layer not in layers:
        raise InputError(
            f"--layer {layer} is not a layer of {cnn_type}; it has {', '.join(layers)}"
        )
    if cnn_type == SIDE_BY_SIDE:
        if weights:
            raise InputError(f"{cnn_type} has the weights of its packages; leave --cnn_weights out")
        net = Lites()
    else:
        net = build_cnn_layer(cnn_type, layer, weights)

    state = checksum(x.numpy() for x in net.state_dict().values())
    how = WHOLE_PHOTOS if whole else ""
    line = f"{cnn_type} {layer}{how} {state}"
    prepare = whole_transform() if whole else eval_transform()
    return Network(net.to(device).eval(), prepare, line, device)


def build_cnn_layer(cnn_type: str, layer: str, weights: str | None) -> CNN:
    """Build a CNN that ends with a layer."""
    net = CNN(cnn_type, weights=weights, cells=layer == "cells", normalize=False)
    net.regions = None
    if net.cells:
        net.regions = CELLS_PER_SIDE**2
    if layer == "fc6":
        modules = 3 if cnn_type == "alexnet" else 2  # (dropout,) linear, ReLU
        net.net.classifier = net.net.classifier[:modules]
    return net


def build_pretrained(device, folder: str) -> Network:
    """Build the network of a folder of save_pretrained, frozen. Raises InputError without one."""
    net, preparation = load_images(folder, "model")
    net.regions = None
    weights = checksum(x.numpy() for x in net.state_dict().values())
    line = f"pretrained {net.kind}, {net.dim} numbers, {weights}"
    return Network(net.to(device), preparation, line, device)


def rebuild_network(line: str, device, weights: str | None = None) -> Network | None:
    """Build the network that a line of features.json names; None if it names none of these.

    Raises InputError if the installed network has other weights.
    """
    if line in EXTRACTORS.values():
        net = FilterNetwork(grid=line == EXTRACTORS["regions"])
        return Network(net, transform, line, device)

    match = CNN_LINE.fullmatch(line)
    if not match or match[1] not in NETWORKS:
        return None
    network = build_network(device, match[1], match[2], weights, whole=bool(match[3]))
    if network.line != line:
        raise InputError(
            f"the features were made by '{line}' and the network at hand is '{network.line}'; give "
            "it the same weights, or delete the features and extract them again"
        )
    return network
