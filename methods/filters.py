"""Features of drawn scenes by fixed filters of hues, shapes, textures, colours.

They need no weights. `python -m demo` writes them beside its scenes, and programs for photos, crops and boxes compute
them for models that were trained on these. filters.npz holds the filters, whole numbers: patches cut from 200 drawn
scenes, and random ones. All arithmetic is exact, so that every machine gives the same features.
"""
import functools
import os

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIDE = 128                       # width and height of the photos that the filters see, pixels
GRID = 6                         # regions a side
# Responses of each kind, 192 in all: hue (9 filters on 13 maps), fine figure, coarse figure, texture, plain colour.
WIDTHS = (9 * 13, 23, 22, 15, 15)
FILTERS = sum(WIDTHS)
SCALES = (4096, 256, 8192, 8, 128)   # powers of two that bring each kind to the order of one
USUAL = (0.75, 4, 3, 2.5, 1.5)   # the mean of each kind in global features, roughly
# What features.json says of the features below. To be changed whenever they change.
EXTRACTORS = {"global": "demo_scenes global, 960 numbers of photos resized to 128x128",
              "regions": "demo_scenes regions, 36 x 192 numbers of photos resized to 128x128"}
HUE_REACH = 160                  # distance, of 255, at which a colour no longer counts as a hue


@functools.cache
def filters() -> list[np.ndarray]:
    """Build a float32 matrix for each kind, (numbers in a window, filters)."""
    with np.load(os.path.join(os.path.dirname(__file__), "filters.npz")) as stored:
        return [stored[kind].astype(np.float32) for kind in ("hue", "fine", "coarse", "texture", "colour")]


@functools.cache
def colour_table():
    """Closeness of RGB colours to 12 hues and white, (32768, 14) uint8, 0 to 8.
    32 steps per channel; the last column is 8. A colour counts as if its strongest channel were full, so that the dark
    pixels of a texture keep their hue."""
    rgb = np.stack(np.meshgrid(*[np.arange(4, 256, 8)] * 3, indexing="ij"), -1).reshape(-1, 3)
    pure = rgb * 255 // rgb.max(-1, keepdims=True)
    rise = (0, 128, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0)   # one channel round the colour wheel
    wheel = [*((rise[(i + 4) % 12], rise[i], rise[(i + 8) % 12]) for i in range(12)), (255, 255, 255)]
    distance = np.abs(pure[:, None] - np.array(wheel)).max(-1)              # (32768, 13)
    near = np.maximum(HUE_REACH - distance, 0) * 8 // HUE_REACH
    return np.pad(near, ((0, 0), (0, 1)), constant_values=8).astype(np.uint8)


def shrink(maps, step):
    """Sum over step x step pixels: (n, h, h, ...) -> (n, h / step, h / step, ...)."""
    maps = sum(maps[:, i::step] for i in range(step))
    return sum(maps[:, :, i::step] for i in range(step))


def windows(maps, width, stride=1):
    """Collect surroundings: (n, h, h) -> (n, h / stride, h / stride, width ** 2)."""
    before, after = width // 2, width - 1 - width // 2
    maps = np.pad(maps, ((0, 0), (before, after), (before, after)))
    views = np.lib.stride_tricks.sliding_window_view(maps, (width, width), axis=(1, 2))[:, ::stride, ::stride]
    return views.reshape(*views.shape[:3], width ** 2).astype(np.float32)


def input_maps(pixels):
    """Compute the maps that the filters see, from (n, 128, 128, 3) uint8.
    Hues (n, 32, 32, 13) and figure (n, 32, 32), both from 0 to 128; figure (n, 64, 64) from 0 to 4; texture (n, 128,
    128), -1 dark, 1 light, 0 background; colour (n, 32, 32, 3) from -128 to 127."""
    # nothing covers the leftmost column
    figure = np.abs(pixels.astype(np.int16) - pixels[:, :, :1]).sum(-1) > 40
    step = (pixels >> 3).astype(np.int32)
    hues = shrink(colour_table()[step[..., 0] << 10 | step[..., 1] << 5 | step[..., 2]] * figure[..., None], 4)
    return (hues[..., :-1], hues[..., -1], shrink(figure.astype(np.uint8), 2),
            np.where(pixels.max(-1) > 128, 1, -1) * figure,
            shrink(pixels.astype(np.int32), 4) // 16 - 128)


def responses(pixels):
    """Compute responses to the filters around each cell, at least 0.
    (n, 128, 128, 3) uint8 -> for each kind of filter (n, h, h, filters) float32, h is 64 for textures and else 32."""
    hues, coarse, fine, texture, colour = input_maps(pixels)
    hue_f, fine_f, coarse_f, texture_f, colour_f = filters()
    by_hue = np.concatenate([windows(hues[..., i], 5) @ hue_f for i in range(hues.shape[-1])], -1)
    products = (by_hue, windows(fine, 11, stride=2) @ fine_f, windows(coarse, 10) @ coarse_f,
                windows(texture, 6, stride=2) @ texture_f, colour.astype(np.float32) @ colour_f)
    return [np.maximum(response, 0) / np.float32(scale) for response, scale in zip(products, SCALES, strict=True)]


def region_features(pixels):
    """Take the strongest responses in 6 x 6 cells: (n, 128, 128, 3) -> (n, 36, 192)."""
    cells = []
    for response in responses(pixels):                             # (n, h, h, filters of this kind)
        starts = np.arange(GRID) * response.shape[1] // GRID
        cells.append(np.maximum.reduceat(np.maximum.reduceat(response, starts, axis=1), starts, axis=2))
    return np.concatenate(cells, -1).reshape(len(pixels), GRID ** 2, -1)


def global_features(regions):
    """Take the strongest responses in image and quarters: (n, 36, 192) -> (n, 960).
    Less the usual value of their kind of filter."""
    n, half = len(regions), GRID // 2
    quarters = regions.reshape(n, 2, half, 2, half, -1).max((2, 4)).reshape(n, 4, -1)
    usual = np.repeat(np.float32(USUAL), WIDTHS)                                    # (192,)
    return (np.concatenate([quarters.max(1, keepdims=True), quarters], 1) - usual).reshape(n, -1)


# ---- as a network for photos

class FilterNetwork(nn.Module):
    """Photos as pixels (B, 128, 128, 3) uint8 -> (B, 960), or by `grid` (B, 36, 192)."""

    def __init__(self, grid: bool):
        super().__init__()
        self.regions, self.dim = (GRID ** 2, FILTERS) if grid else (None, 5 * FILTERS)
        self.line = EXTRACTORS["regions" if grid else "global"]

    def forward(self, pixels: Tensor) -> Tensor:
        regions = region_features(pixels.cpu().numpy())
        return torch.from_numpy(regions if self.regions else global_features(regions))


def transform(photo: Image.Image) -> Tensor:
    """Photo in RGB as (128, 128, 3) uint8, resized, not cropped."""
    size = SIDE, SIDE
    return torch.from_numpy(np.array(photo if photo.size == size else photo.resize(size, Image.Resampling.BILINEAR)))
