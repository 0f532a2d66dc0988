"""Frozen networks that turn photos into features, each named in one line.

A network has `regions` (None: one vector a photo) and `dim`. It maps photos as its transform prepares them, stacked, to
(B, dim) or (B, regions, dim).
"""
import math
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cli import check
from features import filters
from files import checksum
from images import eval_transform, whole_transform
from model import CNN, CNNS

SIDE = 7                              # cells a side of the last map of every network, for photos of 224 x 224
KINDS = ("cnn", "demo")
LITES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}         # pixels a side
SIDE_BY_SIDE = "efficientnet_lite012"
# A network's line, by which `rebuild_network` builds it again.
LINE = re.compile(r"(\w+) (pooled|fc6|fc7|cells)(, photos resized to 224x224,)? sha256:\w+")


def axis_weights(first: Tensor, last: Tensor, cells: int, bins: int) -> Tensor:
    """Weigh cells in bins of boxes along one axis: (P,), (P,) -> (P, bins, cells).

    first, last: where the boxes begin and end, shares of the photo. A bin is the mean of points, the centres of equal
    parts of it, bilinear between the centres of cells. A box has at least as many points as the map has cells.
    """
    points = bins * -(-max(SIDE, cells) // bins)
    place = (torch.arange(points, device=first.device) + 0.5) / points
    at = (first[:, None] + (last - first)[:, None] * place) * cells - 0.5                             # (P, points)
    near = at.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=first.device)
    return (1 - near.abs()).clamp(min=0).unflatten(1, (bins, -1)).mean(2)


def roi_align(cells: Tensor, boxes: Tensor, bins: int = 1) -> Tensor:
    """Pool boxes of a map by RoIAlign: (C, h, w), (P, 4) -> (P, C, bins, bins).

    He et al. 2017, section 3. Boxes are x1, y1, x2, y2 as shares of width and height. As points lie on a grid, their
    mean is a product of one weight per row and one per column of the map. torchvision's roi_align, aligned, gives the
    same, and needs a compiled part that a CPU-only installation lacks.
    """
    down = axis_weights(boxes[:, 1], boxes[:, 3], cells.shape[1], bins)                               # (P, bins, h)
    across = axis_weights(boxes[:, 0], boxes[:, 2], cells.shape[2], bins)                             # (P, bins, w)
    weights = torch.einsum("piy,pjx->pijyx", down, across).flatten(3)                                 # (P, i, j, h * w)
    return (weights @ cells.flatten(1).T).permute(0, 3, 1, 2)                                         # (P, C, i, j)


class RegionPooling(nn.Module):
    """Features of boxes: photos (B, 3, S, S) and B tensors (P, 4) -> B tensors (P, F).

    Boxes are x1, y1, x2, y2 as shares of width and height, and S is a multiple of 32. layer "cells": one bin of
    `roi_align` of the last map. "fc6" and "fc7" (VGG): 7 x 7 bins of the last map before its last pooling, and then the
    layers after it with the ReLU, as in Fast R-CNN, F = 4096.
    """

    def __init__(self, cnn: CNN, layer: str):
        super().__init__()
        self.cnn, self.layer, self.dim = cnn, layer, cnn.dim
        if cnn.cells and hasattr(cnn.net, "features"):
            cnn.net.avgpool = nn.Identity()                 # VGG's would make 7 x 7 cells of any map

    def forward(self, photos: Tensor, boxes: list[Tensor]) -> list[Tensor]:
        if self.layer == "cells":
            cells = self.cnn(photos)                                                                  # (B, h * h, C)
            maps = cells.transpose(1, 2).unflatten(2, (math.isqrt(cells.shape[1]), -1))               # (B, C, h, h)
            return [roi_align(*pair).flatten(1) for pair in zip(maps, boxes)]
        with torch.no_grad():
            maps = self.cnn.net.features[:-1](photos)                                                 # (B, 512, h, w)
            return [self.cnn.net.classifier(roi_align(*pair, bins=SIDE).flatten(1)) for pair in zip(maps, boxes)]


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


def load_network(cnn_type: str, layer: str | None = None, weights: str | None = None, whole: bool = False,
                 side: int | None = None) -> tuple[nn.Module, str]:
    """Load a frozen network that gives the raw activations of a layer, and its one-line name.

    layer: fc7 or fc6 (VGG, AlexNet), (B, 4096) after the ReLU; pooled (the others), (B, F); cells, the last map, (B,
    49, C), which AlexNet's is not. whole: of whole photos, out of shape. side: a network of boxes in photos of side x
    side, see `RegionPooling`, by default with fc6 of VGG, else cells. Raises InputError for another layer.
    """
    if cnn_type == SIDE_BY_SIDE:
        layers = ("pooled",)
        check(not weights, f"{cnn_type} has the weights of its packages; leave --cnn_weights out")
    elif side:
        layers = ("fc6", "fc7", "cells") if cnn_type.startswith("vgg") else ("cells",)
    else:
        layers = ("fc7", "fc6", "cells") if cnn_type.startswith("vgg") else ("pooled", "cells")
        layers = ("fc7", "fc6") if cnn_type == "alexnet" else layers
    layer = layer or layers[0]
    check(layer in layers, f"--layer {layer} is not a layer of {cnn_type}; it has {', '.join(layers)}")
    if cnn_type == SIDE_BY_SIDE:
        net = Lites()
    else:
        net = CNN(cnn_type, weights=weights, cells=layer == "cells", normalise=False).eval()
        net.regions = SIDE ** 2 if net.cells else None
        if layer == "fc6":
            net.net.classifier = net.net.classifier[:3 if cnn_type == "alexnet" else 2]       # (dropout,) linear, ReLU
    state = checksum(x.numpy() for x in net.state_dict().values())
    if side:
        return RegionPooling(net, layer), f"{cnn_type} RoI {layer}, photos resized to {side}x{side}, {state}"
    return net, f"{cnn_type} {layer}{', photos resized to 224x224,' * whole} {state}"


def build_network(device, cnn_type: str | None, layer: str | None = None, weights: str | None = None,
                  whole: bool = False) -> tuple:
    """Build (network, transform, line) of a CNN, or without one of the demo's filters.

    network(torch.stack([transform(photo)])) computes features. Raises InputError where the network cannot be built.
    """
    if not cnn_type:
        net = filters.FilterNetwork(grid=False)
        return net, filters.transform, net.line
    net, line = load_network(cnn_type, layer, weights, whole=whole)
    return net.to(device).eval(), whole_transform() if whole else eval_transform(), line


def rebuild_network(line: str, device) -> tuple | None:
    """Build (network, transform) that a line of features.json names, or None.

    Raises InputError where the network at hand has other weights.
    """
    if line == filters.EXTRACTORS["global"]:
        return build_network(device, None)[:2]
    match = LINE.fullmatch(line)
    if not match or match[1] not in (*CNNS, SIDE_BY_SIDE):
        return None
    net, transform, present = build_network(device, match[1], match[2], whole=bool(match[3]))
    check(present == line, f"the features were made by '{line}' and the network at hand is '{present}'; put the "
                           "weights back, or delete the features and extract them again")
    return net, transform


def feature_shape(net: nn.Module) -> tuple[tuple, np.dtype]:
    """Return shape and type of features: (dim,) float32 or (regions, dim) float16."""
    return ((net.regions, net.dim), np.dtype(np.float16)) if net.regions else ((net.dim,), np.dtype(np.float32))
