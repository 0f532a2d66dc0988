"""Pool features of boxes in photos: of a CNN's last map by RoIAlign, or by filters of drawn scenes.

Boxes are x1, y1, x2, y2 as shares of the photo's width and height. An encoder has `line`, its name,
and `dim`, the numbers of a box. `read(photo, boxes)` prepares a photo, in a worker process;
`encode` turns a list of such values into features (P, dim) float16.
"""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from features.filters import FILTERS, compute_responses, transform
from features.networks import CELLS_PER_SIDE, build_network
from images import whole_transform
from model import CNN
from utils import InputError

SCENE_CELLS = 32  # a side of the maps of drawn scenes
# The surroundings of a box: so many times as wide and high.
SURROUNDINGS = 1.5


def axis_weights(first: Tensor, last: Tensor, cells: int, bins: int) -> Tensor:
    """Weigh cells in bins of boxes along one axis: (P,), (P,) -> (P, bins, cells).

    first, last: where the boxes begin and end, shares of the photo. A bin is the mean of points,
    the centers of equal parts of it, bilinear between the centers of cells. A box has at least as
    many points as the map has cells.
    """
    points_per_bin = -(-max(CELLS_PER_SIDE, cells) // bins)
    points = bins * points_per_bin
    share = (torch.arange(points, device=first.device) + 0.5) / points  # of the box
    position = (first[:, None] + (last - first)[:, None] * share) * cells - 0.5  # (P, points)

    position = position.clamp(0, cells - 1)[..., None]
    distance = (position - torch.arange(cells, device=first.device)).abs()  # (P, points, cells)
    weights = (1 - distance).clamp(min=0)
    return weights.unflatten(1, (bins, -1)).mean(2)


def roi_align(cells: Tensor, boxes: Tensor, bins: int = 1) -> Tensor:
    """Pool boxes of a map by RoIAlign: (C, h, w), (P, 4) -> (P, C, bins, bins).

    He et al. 2017, section 3. Boxes are x1, y1, x2, y2 as shares of width and height. As points lie
    on a grid, their mean is a product of one weight per row and one per column of the map.
    torchvision's roi_align, aligned, gives the same, and needs a compiled part that a CPU-only
    installation lacks.
    """
    down = axis_weights(boxes[:, 1], boxes[:, 3], cells.shape[1], bins)  # (P, bins, h)
    across = axis_weights(boxes[:, 0], boxes[:, 2], cells.shape[2], bins)  # (P, bins, w)
    weights = torch.einsum("piy,pjx->pijyx", down, across).flatten(3)  # (P, i, j, h * w)
    pooled = weights @ cells.flatten(1).T  # (P, i, j, C)
    return pooled.permute(0, 3, 1, 2)


@torch.no_grad()
def pool_regions(cnn: CNN, photos: Tensor, boxes: list[Tensor]) -> list[Tensor]:
    """Compute features of boxes: photos (B, 3, S, S) and B tensors (P, 4) -> B tensors (P, F).

    Boxes are x1, y1, x2, y2 as shares of width and height, and S is a multiple of 32. A CNN of
    cells: one bin of `roi_align` of the last map. Else (VGG): 7 x 7 bins of the last map before its
    last pooling, and then the layers after it with the ReLU, as in Fast R-CNN, F = 4096.
    """
    features = []
    if cnn.cells:
        cells = cnn(photos)  # (B, h * h, C)
        side = math.isqrt(cells.shape[1])
        maps = cells.transpose(1, 2).unflatten(2, (side, -1))  # (B, C, h, h)
        for cell_map, of_photo in zip(maps, boxes):
            features.append(roi_align(cell_map, of_photo).flatten(1))
        return features

    maps = cnn.net.features[:-1](photos)  # (B, 512, h, w)
    for cell_map, of_photo in zip(maps, boxes):
        pooled = roi_align(cell_map, of_photo, bins=CELLS_PER_SIDE)  # (P, 512, 7, 7)
        features.append(cnn.net.classifier(pooled.flatten(1)))
    return features


class NetworkRegions:
    """Features by a CNN that sees photos resized to side x side together.

    layer: fc6 (default) or fc7 of VGG, or cells (default of others). Raises InputError for another
    one.
    """

    def __init__(self, cnn_type: str, layer: str | None, weights: str | None, side: int, device):
        layers = ("cells",)
        if cnn_type.startswith("vgg"):
            layers = ("fc6", "fc7", "cells")
        layer = layer or layers[0]
        if layer not in layers:
            raise InputError(
                f"--layer {layer} is not a layer of {cnn_type}; it has {', '.join(layers)}"
            )

        cnn, _, line, self.device = build_network(device, cnn_type, layer, weights)
        if cnn.cells and hasattr(cnn.net, "features"):
            cnn.net.avgpool = nn.Identity()  # VGG's would make 7 x 7 cells of any map
        self.cnn = cnn
        self.dim = cnn.dim
        digest = line.split()[-1]
        self.line = f"{cnn_type} RoI {layer}, photos resized to {side}x{side}, {digest}"
        self.transform = whole_transform(side)

    def read(self, photo: Image.Image, boxes: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.transform(photo), torch.from_numpy(boxes)

    def encode(self, pairs: list[tuple]) -> list[np.ndarray]:
        """Compute features of photos and their boxes: a list of (P, dim) float16."""
        photos = torch.stack([photo for photo, _ in pairs])
        boxes = [of_photo.to(self.device) for _, of_photo in pairs]
        features = pool_regions(self.cnn, photos.to(self.device), boxes)
        return [x.cpu().numpy().astype(np.float16) for x in features]


class SceneRegions:
    """Features by the filters of drawn scenes. All is done where a photo is read."""

    dim = 3 * FILTERS
    line = f"demo_scenes boxes, {dim} numbers of photos resized to 128x128"
    encode = staticmethod(list)

    @staticmethod
    def read(photo: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """Compute features of boxes (P, 4), shares of width and height -> (P, 576) float16.

        Of each of 192 filters the strongest response in the box, which tells what is there, the
        mean in it, and the mean around it, which tell whether the box fits.
        """
        maps = pool_responses(photo)  # (32, 32, 192)
        strongest = pool_strongest(maps, boxes)  # P of (192,)

        center = (boxes[:, :2] + boxes[:, 2:]) / 2
        half = (boxes[:, 2:] - boxes[:, :2]) / 2
        outer = [center - SURROUNDINGS * half, center + SURROUNDINGS * half]
        outer = np.clip(np.concatenate(outer, 1), 0, 1)  # (P, 4)
        inside = cover_cells(boxes)  # (P, 1024)
        around = cover_cells(outer) - inside

        features = [strongest, average_cells(maps, inside), average_cells(maps, around)]
        features = np.concatenate(features, 1, dtype=np.float32, casting="same_kind")
        return features.astype(np.float16)


def pool_responses(photo: Image.Image) -> np.ndarray:
    """Compute the strongest response of each filter in each cell of a photo: (32, 32, 192)."""
    maps = []
    for response in compute_responses(transform(photo).numpy()[None]):  # (1, h, h, C)
        step = response.shape[1] // SCENE_CELLS
        blocks = response.reshape(SCENE_CELLS, step, SCENE_CELLS, step, -1)
        maps.append(blocks.max((1, 3)))
    return np.concatenate(maps, -1)


def pool_strongest(maps: np.ndarray, boxes: np.ndarray) -> list[np.ndarray]:
    """Take the strongest response of each filter in boxes: (32, 32, C), (P, 4) -> P of (C,).

    A box has the cells whose centers it holds, or else the nearest one.
    """
    first = np.ceil(boxes[:, :2] * SCENE_CELLS - 0.5)  # (P, 2)
    first = np.clip(first, 0, SCENE_CELLS - 1).astype(int)
    last = np.floor(boxes[:, 2:] * SCENE_CELLS - 0.5).astype(int)
    last = np.maximum(first, last)

    strongest = []
    for (x1, y1), (x2, y2) in zip(first, last):
        strongest.append(maps[y1 : y2 + 1, x1 : x2 + 1].max((0, 1)))
    return strongest


def average_cells(maps: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average the cells of a map by weights: (32, 32, C), (P, 1024) -> (P, C)."""
    total = np.maximum(weights.sum(1, keepdims=True), 1e-6)
    return weights @ maps.reshape(SCENE_CELLS**2, -1) / total


def cover_cells(boxes: np.ndarray) -> np.ndarray:
    """Compute the share of each cell that boxes cover: (P, 4) -> (P, 1024) float64."""
    boxes = np.asarray(boxes, np.float64)[..., None] * SCENE_CELLS  # (P, 4, 1)
    low, high = np.split(boxes, 2, 1)  # (P, 2, 1): x, y
    cells = np.arange(SCENE_CELLS)
    covered = np.minimum(high, cells + 1) - np.maximum(low, cells)  # (P, 2, 32)
    across, down = np.clip(covered, 0, 1).swapaxes(0, 1)
    return (down[:, :, None] * across[:, None]).reshape(len(boxes), -1)
