"""Features of drawn scenes by fixed filters of hues, shapes, textures, colours.

They need no weights. `python -m demo` writes them beside its scenes, and programs for photos, crops and boxes compute
them for models that were trained on these. filters.npz holds the filters, whole numbers: patches cut from 200 drawn
scenes, and random ones. All arithmetic is exact, so that every machine gives the same features.
"""
import functools
import itertools
import os

import numpy as np
import torch
import torch.nn.functional as F
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
def read_filters() -> list[Tensor]:
    """Read a float32 matrix for each kind, (filters, numbers in a window)."""
    with np.load(os.path.join(os.path.dirname(__file__), "filters.npz")) as stored:
        return [torch.from_numpy(stored[kind].T.astype(np.float32))
                for kind in ("hue", "fine", "coarse", "texture", "colour")]


@functools.cache
def build_colour_table() -> Tensor:
    """Closeness of RGB colours to 12 hues and white, (32768, 14), 0 to 8.
    32 steps per channel; the last column is 8. A colour counts as if its strongest channel were full, so that the dark
    pixels of a texture keep their hue."""
    rgb = torch.cartesian_prod(*[torch.arange(4, 256, 8)] * 3)                      # (32768, 3)
    pure = rgb * 255 // rgb.amax(1, keepdim=True)
    rise = (0, 128, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0)   # one channel round the colour wheel
    wheel = [*((rise[(i + 4) % 12], rise[i], rise[(i + 8) % 12]) for i in range(12)), (255, 255, 255)]
    distance = (pure[:, None] - torch.tensor(wheel)).abs().amax(2)                  # (32768, 13)
    return F.pad((HUE_REACH - distance).clamp(min=0) * 8 // HUE_REACH, (0, 1), value=8).float()


def add_pixels(maps: Tensor, step: int) -> Tensor:
    """Sums over step x step pixels: (n, h, h, C) -> (n, C, h / step, h / step)."""
    return F.avg_pool2d(maps.permute(0, 3, 1, 2), step, divisor_override=1)


def filter_maps(maps: Tensor, kernels: Tensor, stride: int = 1) -> Tensor:
    """Responses around each cell: (n, h, h), (K, width ** 2) -> (n, K, h / stride, h / stride)."""
    width = round(kernels.shape[1] ** 0.5)
    before, after = width // 2, width - 1 - width // 2
    windows = F.unfold(F.pad(maps[:, None], (before, after) * 2), width, stride=stride)     # (n, width ** 2, cells)
    return (kernels @ windows).unflatten(2, (maps.shape[1] // stride, -1))


def compute_responses(pixels: np.ndarray) -> list[np.ndarray]:
    """Compute responses to the filters around each cell, at least 0.
    (n, 128, 128, 3) uint8 -> for each kind of filter (n, h, h, filters) float32, h is 64 for textures and else 32."""
    return [response.permute(0, 2, 3, 1).numpy() for response in compute_maps(pixels)]


def compute_maps(pixels: np.ndarray) -> list[Tensor]:
    """Compute the same as maps: (n, 128, 128, 3) uint8 -> for each kind of filter (n, filters, h, h)."""
    x = torch.tensor(pixels, dtype=torch.int32)
    figure = (x - x[:, :, :1]).abs().sum(3) > 40            # nothing covers the leftmost column
    red, green, blue = (x >> 3).unbind(3)
    hues = add_pixels(build_colour_table()[red << 10 | green << 5 | blue] * figure[..., None], 4)   # (n, 14, 32, 32)
    fine = add_pixels(figure[..., None].float(), 2)[:, 0]                           # (n, 64, 64), 0 to 4
    texture = torch.where(x.amax(3) > 128, 1.0, -1.0) * figure                      # 1 light, -1 dark, 0 background
    colour = add_pixels(x.float(), 4) // 16 - 128                                   # (n, 3, 32, 32), -128 to 127
    of_hue, of_fine, of_coarse, of_texture, of_colour = read_filters()
    products = (filter_maps(hues[:, :-1].flatten(0, 1), of_hue).unflatten(0, (len(x), -1)).flatten(1, 2),
                filter_maps(fine, of_fine, 2), filter_maps(hues[:, -1], of_coarse), filter_maps(texture, of_texture, 2),
                torch.einsum("kc,nchw->nkhw", of_colour, colour))
    return [product.relu() / scale for product, scale in zip(products, SCALES)]


def region_features(pixels):
    """Take the strongest responses in 6 x 6 cells: (n, 128, 128, 3) -> (n, 36, 192)."""
    cells = []
    for maps in compute_maps(pixels):                              # (n, filters of this kind, h, h)
        side = maps.shape[2]
        bounds = [k * side // GRID for k in range(GRID + 1)]
        spans = [slice(*pair) for pair in itertools.pairwise(bounds)]
        rows = torch.stack([maps[:, :, span].amax(2) for span in spans], 2)         # (n, filters, 6, h)
        cells.append(torch.stack([rows[..., span].amax(3) for span in spans], 3))   # (n, filters, 6, 6)
    regions = torch.cat(cells, 1).permute(0, 2, 3, 1).reshape(len(pixels), GRID ** 2, -1)
    return regions.contiguous().numpy()


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
