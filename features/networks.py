"""Frozen networks that turn photos into features, each named in one line."""
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cli import check
from features.filters import EXTRACTORS, FilterNetwork, transform
from files import checksum
from images import eval_transform, whole_transform
from model import CNN, CNNS

SIDE = 7                              # cells a side of the last map of every network, for photos of 224 x 224
LITES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}         # pixels a side
SIDE_BY_SIDE = "efficientnet_lite012"
SCENES = "demo"                       # the filters of drawn scenes, which need no weights
NETWORKS = (*CNNS, SIDE_BY_SIDE, SCENES)
# The line of a CNN, by which `rebuild_network` builds it again.
LINE = re.compile(r"(\w+) (pooled|fc6|fc7|cells)(, photos resized to 224x224,)? sha256:\w+")


class Network(NamedTuple):
    """Frozen network: B photos as `transform` prepares them -> (B, dim) or (B, regions, dim).

    `net` has `dim` and `regions` (None: one vector a photo).
    """
    net: nn.Module
    transform: Callable
    line: str                         # its name, with a checksum of the weights
    device: torch.device

    @torch.no_grad()
    def __call__(self, photos: list[Tensor]) -> Tensor:
        return self.net(torch.stack(photos).to(self.device))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the features of a photo."""
        return (self.net.regions, self.net.dim) if self.net.regions else (self.net.dim,)

    @property
    def dtype(self) -> np.dtype:
        """Type in which features are stored."""
        return np.dtype(np.float16 if self.net.regions else np.float32)


class Lites(nn.Module):
    """EfficientNet-Lite0, 1 and 2 side by side: (B, 3, 224, 224) -> (B, 3 * 1280).
    Each sees photos of its own size and gives features of norm 1. Their weights come with packages."""
    regions, dim = None, 3 * 1280

    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(map(CNN, LITES)).eval()

    def forward(self, photos: Tensor) -> Tensor:
        resized = (F.interpolate(photos, (side, side), mode="bicubic", antialias=True) for side in LITES.values())
        return torch.cat([net(x) for net, x in zip(self.nets, resized)], 1)


def build_network(device, cnn_type: str, layer: str | None = None, weights: str | None = None,
                  whole: bool = False) -> Network:
    """Build one of NETWORKS, frozen, that gives the raw activations of a layer.

    layer: fc7 or fc6 (VGG, AlexNet), (B, 4096) after the ReLU; pooled (the others), (B, F); cells, the last map, (B,
    49, C), which AlexNet's is not. whole: of whole photos, out of shape. Raises InputError where it cannot be built.
    """
    if cnn_type == SCENES:
        check(not (layer or weights or whole), f"--cnn_type {SCENES} has neither layers nor weights, and sees whole "
                                               "photos; leave --layer, --cnn_weights and --whole out")
        net = FilterNetwork(grid=False)
        return Network(net, transform, net.line, device)
    layers = {SIDE_BY_SIDE: ("pooled",), "alexnet": ("fc7", "fc6")}.get(
        cnn_type, ("fc7", "fc6", "cells") if cnn_type.startswith("vgg") else ("pooled", "cells"))
    layer = layer or layers[0]
    check(layer in layers, f"--layer {layer} is not a layer of {cnn_type}; it has {', '.join(layers)}")
    if cnn_type == SIDE_BY_SIDE:
        check(not weights, f"{cnn_type} has the weights of its packages; leave --cnn_weights out")
        net = Lites()
    else:
        net = CNN(cnn_type, weights=weights, cells=layer == "cells", normalize=False)
        net.regions = SIDE ** 2 if net.cells else None
        if layer == "fc6":
            net.net.classifier = net.net.classifier[:3 if cnn_type == "alexnet" else 2]       # (dropout,) linear, ReLU
    state = checksum(x.numpy() for x in net.state_dict().values())
    line = f"{cnn_type} {layer}{', photos resized to 224x224,' * whole} {state}"
    return Network(net.to(device).eval(), whole_transform() if whole else eval_transform(), line, device)


def rebuild_network(line: str, device, weights: str | None = None) -> Network | None:
    """Build the network that a line of features.json names; None if it names none of these.

    Raises InputError where the network at hand has other weights.
    """
    if line in EXTRACTORS.values():
        return Network(FilterNetwork(grid=line == EXTRACTORS["regions"]), transform, line, device)
    match = LINE.fullmatch(line)
    if not match or match[1] not in NETWORKS:
        return None
    network = build_network(device, match[1], match[2], weights, whole=bool(match[3]))
    check(network.line == line, f"the features were made by '{line}' and the network at hand is '{network.line}'; give "
                                "it the same weights, or delete the features and extract them again")
    return network
