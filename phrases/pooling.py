"""Pool features of boxes in photos: of a CNN's last map by RoIAlign, or by the filters of drawn scenes.

Boxes are x1, y1, x2, y2 as shares of the photo's width and height. An encoder has `line`, its name, and `dim`, the
numbers of a box. `read(photo, boxes)` prepares a photo, in a worker process; `encode` turns a list of such values into
features (P, dim) float16.
"""
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cli import check
from features.filters import FILTERS, compute_responses, transform
from features.networks import CELLS_PER_SIDE, build_network
from images import whole_transform
from model import CNN

CELLS = 32                            # a side of the maps of drawn scenes
AROUND = 1.5                          # the surroundings of a box: so many times as wide and high


def axis_weights(first: Tensor, last: Tensor, cells: int, bins: int) -> Tensor:
    """Weigh cells in bins of boxes along one axis: (P,), (P,) -> (P, bins, cells).

    first, last: where the boxes begin and end, shares of the photo. A bin is the mean of points, the centres of equal
    parts of it, bilinear between the centres of cells. A box has at least as many points as the map has cells.
    """
    points = bins * -(-max(CELLS_PER_SIDE, cells) // bins)
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


@torch.no_grad()
def pool_regions(cnn: CNN, photos: Tensor, boxes: list[Tensor]) -> list[Tensor]:
    """Compute features of boxes: photos (B, 3, S, S) and B tensors (P, 4) -> B tensors (P, F).

    Boxes are x1, y1, x2, y2 as shares of width and height, and S is a multiple of 32. A CNN of cells: one bin of
    `roi_align` of the last map. Else (VGG): 7 x 7 bins of the last map before its last pooling, and then the layers
    after it with the ReLU, as in Fast R-CNN, F = 4096.
    """
    if cnn.cells:
        cells = cnn(photos)                                                                           # (B, h * h, C)
        maps = cells.transpose(1, 2).unflatten(2, (math.isqrt(cells.shape[1]), -1))                   # (B, C, h, h)
        return [roi_align(*pair).flatten(1) for pair in zip(maps, boxes)]
    maps = cnn.net.features[:-1](photos)                                                              # (B, 512, h, w)
    return [cnn.net.classifier(roi_align(*pair, bins=CELLS_PER_SIDE).flatten(1)) for pair in zip(maps, boxes)]


class NetworkRegions:
    """Features by a CNN that sees photos resized to side x side together.

    layer: fc6 (default) or fc7 of VGG, or cells (default of others). Raises InputError for another one.
    """

    def __init__(self, cnn_type: str, layer: str | None, weights: str | None, side: int, device):
        layers = ("fc6", "fc7", "cells") if cnn_type.startswith("vgg") else ("cells",)
        layer = layer or layers[0]
        check(layer in layers, f"--layer {layer} is not a layer of {cnn_type}; it has {', '.join(layers)}")
        cnn, _, line, self.device = build_network(device, cnn_type, layer, weights)
        if cnn.cells and hasattr(cnn.net, "features"):
            cnn.net.avgpool = nn.Identity()                 # VGG's would make 7 x 7 cells of any map
        self.cnn, self.dim = cnn, cnn.dim
        self.line = f"{cnn_type} RoI {layer}, photos resized to {side}x{side}, {line.split()[-1]}"
        self.transform = whole_transform(side)

    def read(self, photo: Image.Image, boxes: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.transform(photo), torch.from_numpy(boxes)

    def encode(self, pairs: list[tuple]) -> list[np.ndarray]:
        photos, boxes = zip(*pairs)
        rows = pool_regions(self.cnn, torch.stack(photos).to(self.device), [x.to(self.device) for x in boxes])
        return [x.cpu().numpy().astype(np.float16) for x in rows]


class SceneRegions:
    """Features by the filters of drawn scenes. All is done where a photo is read."""
    dim = 3 * FILTERS
    line = f"demo_scenes boxes, {dim} numbers of photos resized to 128x128"
    encode = staticmethod(list)

    @staticmethod
    def read(photo: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """Compute features of boxes (P, 4), shares of width and height -> (P, 576) float16.

        Of each of 192 filters the strongest response in the box, which tells what is there, the mean in it, and the
        mean around it, which tell whether the box fits.
        """
        maps = []
        for response in compute_responses(transform(photo).numpy()[None]):          # (1, h, h, C)
            step = response.shape[1] // CELLS
            maps.append(response.reshape(CELLS, step, CELLS, step, -1).max((1, 3)))
        maps = np.concatenate(maps, -1)                                             # (32, 32, 192)
        first = np.clip(np.ceil(boxes[:, :2] * CELLS - 0.5), 0, CELLS - 1).astype(int)          # (P, 2)
        last = np.maximum(first, np.floor(boxes[:, 2:] * CELLS - 0.5).astype(int))
        strongest = [maps[y1:y2 + 1, x1:x2 + 1].max((0, 1)) for (x1, y1), (x2, y2) in zip(first, last)]
        centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
        outer = np.clip(np.concatenate([centre - AROUND * half, centre + AROUND * half], 1), 0, 1)
        inside, surrounded = cover_cells(boxes), cover_cells(outer)                 # (P, 1024)
        means = [weights @ maps.reshape(CELLS ** 2, -1) / np.maximum(weights.sum(1, keepdims=True), 1e-6)
                 for weights in (inside, surrounded - inside)]                      # (P, 192)
        return np.concatenate([strongest, *means], 1, dtype=np.float32, casting="same_kind").astype(np.float16)


def cover_cells(boxes: np.ndarray) -> np.ndarray:
    """Compute the share of each cell that boxes cover: (P, 4) -> (P, 1024) float64."""
    low, high = np.split(np.asarray(boxes, np.float64)[..., None] * CELLS, 2, 1)    # (P, 2, 1): x, y
    cells = np.arange(CELLS)
    across, down = np.clip(np.minimum(high, cells + 1) - np.maximum(low, cells), 0, 1).swapaxes(0, 1)
    return (down[:, :, None] * across[:, None]).reshape(len(boxes), -1)
