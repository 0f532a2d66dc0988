"""The demo's drawn filters as an extractor of features, which needs no weights.

features.networks and features.regions list it in their tables of kinds.
"""
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from demo import scenes

FILTERS = sum(scenes.WIDTHS)          # 192
AROUND = 1.5                          # the surroundings of a box: so many times as wide and high


class Photos(nn.Module):
    """Photos as pixels (B, 128, 128, 3) uint8 -> (B, 960), or by `grid` (B, 36, 192)."""

    def __init__(self, grid: bool):
        super().__init__()
        self.regions, self.dim = (scenes.GRID ** 2, FILTERS) if grid else (None, 5 * FILTERS)
        self.line = scenes.EXTRACTORS["regions" if grid else "global"]

    def forward(self, pixels: Tensor) -> Tensor:
        regions = scenes.region_features(pixels.cpu().numpy())
        return torch.from_numpy(regions if self.regions else scenes.global_features(regions))


def transform(photo: Image.Image) -> Tensor:
    """A photo in RGB as (128, 128, 3) uint8. Photos of another size are resized, not cropped."""
    size = scenes.CANVAS, scenes.CANVAS
    return torch.from_numpy(np.array(photo if photo.size == size
                                     else photo.resize(size, Image.Resampling.BILINEAR)))


class Regions:
    """Features of boxes in photos. All is done where a photo is read."""
    dim, device = 3 * FILTERS, None
    line = f"demo_scenes boxes, {dim} numbers of photos resized to 128x128"

    @staticmethod
    def read(photo: Image.Image, boxes: np.ndarray) -> np.ndarray:
        """Boxes (P, 4), shares of width and height -> (P, 576) float32: of each of 192 filters the
        strongest response in the box, the mean response in it, and the mean around it.

        The first tells what is there, and the others whether the box fits it. The responses are
        computed once per photo.
        """
        maps = []
        for response in scenes.responses(transform(photo).numpy()[None]):           # (1, h, h, C)
            cells = response[0].reshape(32, len(response[0]) // 32, 32, -1, response.shape[-1])
            maps.append(cells.max((1, 3)))
        maps = np.concatenate(maps, -1)                                             # (32, 32, 192)
        return np.concatenate([strongest(maps, boxes), *means(maps, boxes)], 1)

    @staticmethod
    def encode(values: list) -> list:
        return values


def strongest(maps: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The maximum over the cells whose centres lie in each box, at least over one: (h, h, C),
    (P, 4) -> (P, C)."""
    side = len(maps)
    first = np.clip(np.ceil(boxes[:, :2] * side - 0.5), 0, side - 1).astype(int)    # (P, 2)
    last = np.clip(np.floor(boxes[:, 2:] * side - 0.5), 0, side - 1).astype(int)
    last = np.maximum(first, last)
    return np.stack([maps[y1:y2 + 1, x1:x2 + 1].max((0, 1))
                     for (x1, y1), (x2, y2) in zip(first, last)])


def means(maps: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean in each box and the mean around it, where cells count by the share that is covered:
    (h, h, C), (P, 4) -> twice (P, C) float32. Surroundings outside the photo count as 0."""
    integral = np.pad(maps, ((1, 0), (1, 0), (0, 0))).astype(np.float64).cumsum(0).cumsum(1)
    centre, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2
    outer = np.clip(np.concatenate([centre - AROUND * half, centre + AROUND * half], 1), 0, 1)
    (inside, area), (whole, covered) = (total(integral, x) for x in (boxes, outer))
    ring = np.maximum(covered - area, 0)
    around = np.where(ring > 1e-6, (whole - inside) / np.maximum(ring, 1e-6), 0)
    return (inside / np.maximum(area, 1e-6)).astype(np.float32), around.astype(np.float32)


def total(integral: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum in each box (P, C), and how many cells it covers (P, 1), from the sums (h + 1, h + 1,
    C) from the corner on."""
    side = len(integral) - 1
    x1, y1, x2, y2 = (np.asarray(boxes, np.float64).T * side)

    def corner(x, y):
        a, b = (np.minimum(v.astype(int), side - 1) for v in (x, y))
        u, v = (x - a)[:, None], (y - b)[:, None]
        return ((1 - v) * ((1 - u) * integral[b, a] + u * integral[b, a + 1])
                + v * ((1 - u) * integral[b + 1, a] + u * integral[b + 1, a + 1]))
    return (corner(x2, y2) - corner(x1, y2) - corner(x2, y1) + corner(x1, y1),
            ((x2 - x1) * (y2 - y1))[:, None])
