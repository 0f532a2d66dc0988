"""Frozen networks that turn photos into features. Each is built from a recipe of plain values and
has a one-line name.

A network has `regions` (None: one vector per photo) and `dim`. It maps photos as its transform
prepares them, stacked, to (B, dim) or (B, regions, dim).
"""
import math
import os
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cli import check
from data import Photos, eval_transform, whole_transform
from features import filters
from features.boxes import PhotoBoxes
from features.store import How, PhotoFeatures
from files import checksum
from model import CNN, CNNS

SIDE = 7                    # cells a side of the last map of every network, for photos of 224 x 224
RECIPE = ("kind", "cnn_type", "layer", "cnn_weights", "grid", "boxes", "whole")
# what `cnn_of` says of a network, from which `recipe_of` takes its recipe
LINE = re.compile(r"(\w+) (?:(pooled|fc6|fc7|cells)|grid (\d)x\3)(, photos resized to 224x224,)? sha256:\w+")


def map_of(cells: Tensor) -> Tensor:
    """The last map, (B, h * h, C) -> (B, C, h, h)."""
    side = math.isqrt(cells.shape[1])
    return cells.transpose(1, 2).unflatten(2, (side, side))


class Grid(nn.Module):
    """The last map of a CNN, averaged in N x N cells: photos (B, 3, 224, 224) -> (B, N * N, C), row
    by row.

    Cells overlap where 7 is no multiple of N, as in `adaptive_avg_pool2d`. N = 7 is the map itself.
    """

    def __init__(self, cnn: CNN, side: int):
        super().__init__()
        self.cnn, self.side, self.regions, self.dim = cnn, side, side * side, cnn.dim

    def forward(self, photos: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(map_of(self.cnn(photos)), self.side).flatten(2).transpose(1, 2)


def axis_weights(first: Tensor, last: Tensor, cells: int, bins: int) -> Tensor:
    """How much each cell of a map counts in bins of boxes along one axis: (P,), (P,) -> (P, bins,
    cells), sums 1.

    first, last: where the boxes begin and end, shares of the photo, 0 to 1. A bin is the mean of
    points, the centres of equal parts of it, bilinear between the centres of cells. There are at
    least as many points in a box as the map has cells, so that no box skips one.
    """
    points = bins * -(-max(SIDE, cells) // bins)
    place = (torch.arange(points, device=first.device) + 0.5) / points
    at = (first[:, None] + (last - first)[:, None] * place) * cells - 0.5              # (P, points)
    near = at.clamp(0, cells - 1)[..., None] - torch.arange(cells, device=first.device)
    # mean over the points of each bin
    return (1 - near.abs()).clamp(min=0).unflatten(1, (bins, -1)).mean(2)


def roi_align(cells: Tensor, boxes: Tensor, bins: int = 1) -> Tensor:
    """RoIAlign (He et al. 2017, section 3) with aligned coordinates: (C, h, w), (P, 4) -> (P, C,
    bins, bins).

    Boxes are x1, y1, x2, y2 as shares of width and height, 0 to 1. As points lie on a grid, their
    mean is a product of one weight per row and one per column of the map. torchvision's roi_align
    gives the same; without its compiled part it needs a C++ compiler, so it is not called.
    """
    down = axis_weights(boxes[:, 1], boxes[:, 3], cells.shape[1], bins)               # (P, bins, h)
    across = axis_weights(boxes[:, 0], boxes[:, 2], cells.shape[2], bins)             # (P, bins, w)
    if bins == 1:                                           # one matrix product for all boxes
        weights = down.transpose(1, 2) * across                                          # (P, h, w)
        return (weights.flatten(1) @ cells.flatten(1).T)[..., None, None]
    rows = torch.einsum("piy,cyx->picx", down, cells)
    return torch.einsum("picx,pjx->pcij", rows, across)


class RegionPooling(nn.Module):
    """Features of any number of boxes: photos (B, 3, S, S), S a multiple of 32, and B tensors of
    boxes (P, 4), x1, y1, x2, y2 as shares of width and height, 0 to 1, -> B tensors (P, F).

    layer "cells": one bin of `roi_align` of the last map, the mean at 7 x 7 points or more, so the
    box of the whole photo is the mean of the map, the pooled feature. "fc6" and "fc7" (VGG): 7 x 7
    bins of the last map before its last pooling, and then the layers after it with the ReLU, as in
    Fast R-CNN, F = 4096.
    """
    regions = None                    # the boxes tell how many there are

    def __init__(self, cnn: CNN, layer: str):
        super().__init__()
        self.cnn, self.layer, self.dim = cnn, layer, cnn.dim
        if cnn.cells and hasattr(cnn.net, "features"):
            cnn.net.avgpool = nn.Identity()                # VGG's would make 7 x 7 cells of any map

    def forward(self, photos: Tensor, boxes=None) -> list[Tensor]:
        check(boxes is not None,
              "these features are of boxes in photos (--boxes), so a photo alone cannot be "
              "embedded; extract features without --boxes for that")
        if self.layer == "cells":
            return [roi_align(*pair).flatten(1) for pair in zip(map_of(self.cnn(photos)), boxes)]
        with torch.no_grad():
            maps = self.cnn.net.features[:-1](photos)                               # (B, 512, h, w)
            return [self.cnn.net.classifier(roi_align(*pair, bins=SIDE).flatten(1))
                    for pair in zip(maps, boxes)]


def layer_of(cnn_type: str, layer: str | None, layers: tuple, others: tuple, what: str) -> str:
    """The layer, by default the first of `layers` (VGG) or of `others`. Raises InputError where the
    network has none of that name."""
    allowed = layers if cnn_type.startswith("vgg") else others
    check((layer or allowed[0]) in allowed,
          f"--layer {layer} is no layer {what}{cnn_type}; it has {', '.join(allowed)}")
    return layer or allowed[0]


def frozen(cnn_type: str, layer: str, weights: str | None, pretrained: bool) -> tuple[CNN, str]:
    """A CNN that ends with a layer, without normalisation, and the checksum of its weights."""
    cnn = CNN(cnn_type, weights=weights, pretrained=pretrained, cells=layer == "cells",
              normalise=False).eval()
    cnn.regions = SIDE ** 2 if cnn.cells else None
    if layer == "fc6":
        cnn.net.classifier = cnn.net.classifier[:2]                             # linear, ReLU
    return cnn, checksum(x.numpy() for x in cnn.net.state_dict().values())


def network(cnn_type: str, layer: str | None = None, weights: str | None = None,
            pretrained: bool = True, *, grid: int | None = None, boxes: bool = False,
            whole: bool = False) -> tuple[nn.Module, str]:
    """A frozen network that gives the raw activations of a layer, and its one-line name.

    layer: fc7 or fc6 (VGG), (B, 4096) after the ReLU; pooled (the others), (B, F); cells, the last
    map, (B, 49, C). grid: the last map in N x N cells instead, see `Grid`. boxes: in boxes, see
    `RegionPooling`. whole: of whole photos, out of shape. Raises InputError if the network has no such
    layer.
    """
    layer = layer_of(cnn_type, "cells" if grid or boxes else layer, ("fc7", "fc6", "cells"),
                     ("pooled", "cells"), "of ")
    cnn, state = frozen(cnn_type, layer, weights, pretrained)
    state = ", photos resized to 224x224," * bool(boxes or whole) + f" {state}"
    if grid:
        return Grid(cnn, grid), f"{cnn_type} grid {grid}x{grid}{state}"
    if boxes:
        return RegionPooling(cnn, layer), f"{cnn_type} boxes{state}"
    return cnn, f"{cnn_type} {layer}{state}"


def region_network(cnn_type: str, layer: str | None, weights: str | None, side: int,
                   pretrained: bool = True) -> tuple[RegionPooling, str]:
    """A network of regions in photos that are resized to side x side, and its one-line name.

    layer: see `RegionPooling` (default: fc6 of VGG, else cells). Raises InputError if the network
    has no such layer.
    """
    layer = layer_of(cnn_type, layer, ("fc6", "fc7", "cells"), ("cells",), "of regions of ")
    cnn, state = frozen(cnn_type, layer, weights, pretrained)
    return (RegionPooling(cnn, layer),
            f"{cnn_type} RoI {layer}, photos resized to {side}x{side}, {state}")


# ---- kinds: (network, transform, line) of a recipe

def cnn_of(recipe: dict) -> tuple:
    check(recipe["cnn_type"] in CNNS,
          f"'{recipe['cnn_type']}' is none of the networks {', '.join(CNNS)}; extract again")
    net, line = network(recipe["cnn_type"], recipe["layer"], recipe["cnn_weights"],
                        grid=recipe["grid"], boxes=bool(recipe["boxes"]), whole=recipe.get("whole"))
    return net, whole_transform() if recipe["boxes"] or recipe.get("whole") else eval_transform(), line


def drawn_of(recipe: dict) -> tuple:
    net = filters.Photos(bool(recipe["grid"]))
    return net, filters.transform, net.line


KINDS = {"cnn": cnn_of, "demo": drawn_of}


def recipe_of(line: str) -> dict | None:
    """The recipe of the network that a line of features.json names, where its weights need no file."""
    recipe, found = dict.fromkeys(RECIPE), LINE.fullmatch(line)
    if found and found[1] in CNNS:
        grid = found[3] and int(found[3])
        return recipe | {"kind": "cnn", "cnn_type": found[1], "layer": found[2], "grid": grid,
                         "whole": bool(found[4]) or None}
    regions = {filters.Photos(of).line: of for of in (False, True)}
    return recipe | {"kind": "demo", "grid": filters.GRID * regions[line] or None} if line in regions else None


def network_of(recipe: dict, device) -> tuple:
    """(network, transform, line) of a recipe: `network(torch.stack([transform(photo)]))` are the
    features of a photo.

    recipe: the values of RECIPE, None where a kind has no use for them, and perhaps "extractor",
    the line that the network must have. Raises InputError where it has another one, or cannot be
    built.
    """
    net, transform, line = KINDS[recipe["kind"]](recipe)
    recorded = recipe.get("extractor", line)
    check(recorded == line,
          f"the features were made by '{recorded}' and the network at hand is '{line}'; put the "
          "weights back, or delete the features and extract them again")
    return net.to(device).eval(), transform, line


def shape_of(net: nn.Module, boxes: PhotoBoxes | None) -> tuple[tuple, type]:
    """The shape and type of one photo's features: (dim,) float32, or (regions, dim) float16."""
    regions = boxes.count if boxes else net.regions
    return ((regions, net.dim), np.float16) if regions else ((net.dim,), np.float32)


def weights_file(net: nn.Module, recipe: dict) -> list | None:
    """[path, bytes, time] of the file of a network's weights; None for a kind without any."""
    return stamp(getattr(net, "cnn", net).net.weights_file) if recipe["kind"] == "cnn" else None


def stamp(path: str) -> list | None:
    """[path, bytes, time in ns] of a file, or None if there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return [os.path.abspath(path), stat.st_size, stat.st_mtime_ns]


class PhotoReader(NamedTuple):
    """Reads photo n for a network: (its tensor,), or (its tensor, its boxes (P, 4))."""
    photos: Photos
    transform: Callable
    boxes: PhotoBoxes | None

    def __call__(self, n: int) -> tuple[Tensor, ...]:
        photo = self.photos.open(n)
        shares = (self.boxes.shares(n, photo.size),) if self.boxes else ()
        return self.transform(photo), *shares


def stacked(photos: list[tuple]) -> tuple[Tensor, ...]:
    """What several photos give, one tensor of each kind: (b, 3, H, W), (b, P, 4)."""
    return tuple(map(torch.stack, zip(*photos)))


def compute(work: PhotoFeatures, photos: Photos, net: nn.Module, transform,
            boxes: PhotoBoxes | None, how: How) -> None:
    """Compute the features that `work` lacks."""
    def encode(ready: tuple[Tensor, ...]) -> np.ndarray:
        rows = net(*(x.to(how.device) for x in ready))
        return (torch.stack(rows) if boxes else rows).cpu().numpy()
    work.run(PhotoReader(photos, transform, boxes), encode, how, work.split, stacked)
