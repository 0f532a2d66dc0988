"""Features of drawn scenes by fixed filters of hues, shapes, textures and colors.

They need no weights. `python -m demo` writes them beside its scenes, and programs for photos, crops
and boxes compute them for models that were trained on these. filters.npz holds the filters, whole
numbers: patches cut from 200 drawn scenes, and random ones. All arithmetic is exact, so that every
machine gives the same features.
"""

import functools
import itertools
import os

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

SCENE_PIXELS = 128  # width and height of the photos that the filters see
REGIONS_PER_SIDE = 6
N_REGIONS = REGIONS_PER_SIDE**2

# The kinds of filters, as filters.npz names them.
KINDS_OF_FILTERS = ("hue", "fine", "coarse", "texture", "colour")
FILTERS_OF_KINDS = (9 * 13, 23, 22, 15, 15)  # hue: 9 filters on 13 maps
FILTERS = sum(FILTERS_OF_KINDS)  # 192
SCALES = (4096, 256, 8192, 8, 128)  # powers of two that bring each kind to the order of one
USUAL_RESPONSES = (0.75, 4, 3, 2.5, 1.5)  # of each kind in global features, the mean, roughly

# What features.json says of the features below. Change it whenever they change.
EXTRACTORS = {
    "global": "demo_scenes global, 960 numbers of photos resized to 128x128",
    "regions": "demo_scenes regions, 36 x 192 numbers of photos resized to 128x128",
}
MAX_HUE_DISTANCE = 160  # of 255, at which a color no longer counts as a hue


@functools.cache
def read_filters() -> list[Tensor]:
    """Read a float32 matrix for each kind, (filters, numbers in a window)."""
    path = os.path.join(os.path.dirname(__file__), "filters.npz")
    with np.load(path) as stored:
        return [torch.from_numpy(stored[kind].T.astype(np.float32)) for kind in KINDS_OF_FILTERS]


@functools.cache
def build_color_table() -> Tensor:
    """Compute the closeness of RGB colors to 12 hues and white, (32769, 14), 0 to 8.

    32 steps per channel; the last column is 8. A color counts as if its strongest channel were
    full, so that the dark pixels of a texture keep their hue. The last row, the background, is 0.
    """
    steps = torch.arange(4, 256, 8)  # (32,)
    rgb = torch.cartesian_prod(steps, steps, steps)  # (32768, 3)
    pure = rgb * 255 // rgb.amax(1, keepdim=True)

    rise = (0, 128, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0)  # one channel round the color wheel
    wheel = []
    for k in range(12):
        wheel.append((rise[(k + 4) % 12], rise[k], rise[(k + 8) % 12]))
    wheel.append((255, 255, 255))

    distance = (pure[:, None] - torch.tensor(wheel)).abs().amax(2)  # (32768, 13)
    closeness = (MAX_HUE_DISTANCE - distance).clamp(min=0) * 8 // MAX_HUE_DISTANCE
    closeness = F.pad(closeness, (0, 1), value=8)
    return F.pad(closeness, (0, 0, 0, 1)).float()


def add_pixels(maps: Tensor, step: int) -> Tensor:
    """Sum over step x step pixels: (n, h, h, C) -> (n, C, h / step, h / step)."""
    return F.avg_pool2d(maps.permute(0, 3, 1, 2), step, divisor_override=1)


def add_rows_of_cells(table: Tensor, numbers: Tensor, step: int) -> Tensor:
    """Sum a table's rows (R, C) of the step x step pixels of each cell.

    numbers (n, h, h), of rows -> (n, C, h / step, h / step).
    """
    n, side, _ = numbers.shape
    cells = side // step
    windows = numbers.view(n, cells, step, cells, step).transpose(2, 3)
    sums = F.embedding_bag(windows.reshape(-1, step * step), table, mode="sum")
    return sums.view(n, cells, cells, -1).permute(0, 3, 1, 2)


def filter_maps(maps: Tensor, kernels: Tensor, stride: int = 1) -> Tensor:
    """Filter maps (n, h, h) by kernels (K, width ** 2): (n, K, h / stride, h / stride).

    Both hold whole numbers, whose sums of products stay below 2 ** 24, so any order gives the same.
    """
    width = round(kernels.shape[1] ** 0.5)
    before = width // 2
    after = width - 1 - before
    padded = F.pad(maps[:, None], (before, after, before, after))
    return F.conv2d(padded, kernels.reshape(-1, 1, width, width), stride=stride)


def compute_responses(pixels: np.ndarray) -> list[np.ndarray]:
    """Compute responses to the filters around each cell, at least 0.

    (n, 128, 128, 3) uint8 -> for each kind of filter (n, h, h, filters) float32; h is 64 for
    textures and 32 otherwise.
    """
    return [response.permute(0, 2, 3, 1).numpy() for response in compute_maps(pixels)]


def compute_maps(pixels: np.ndarray) -> list[Tensor]:
    """Compute the same as maps: (n, 128, 128, 3) uint8 -> for each kind (n, filters, h, h)."""
    x = torch.tensor(pixels, dtype=torch.int32)
    figure = (x - x[:, :, :1]).abs().sum(3) > 40  # nothing covers the leftmost column

    red, green, blue = (x >> 3).unbind(3)
    color_table = build_color_table()
    colors = torch.where(figure, red << 10 | green << 5 | blue, len(color_table) - 1)
    hues = add_rows_of_cells(color_table, colors, 4)  # (n, 14, 32, 32)
    hue_maps = hues[:, :-1]
    coarse = hues[:, -1]
    fine = add_pixels(figure[..., None].float(), 2)[:, 0]  # (n, 64, 64), 0 to 4
    texture = torch.where(x.amax(3) > 128, 1.0, -1.0) * figure  # 1 light, -1 dark, 0 background
    color = add_pixels(x.float(), 4) // 16 - 128  # (n, 3, 32, 32), -128 to 127

    of_hue, of_fine, of_coarse, of_texture, of_color = read_filters()
    hue_products = filter_maps(hue_maps.flatten(0, 1), of_hue)  # (n * 13, 9, 32, 32)
    products = (
        hue_products.unflatten(0, (len(x), -1)).flatten(1, 2),
        filter_maps(fine, of_fine, 2),
        filter_maps(coarse, of_coarse),
        filter_maps(texture, of_texture, 2),
        torch.einsum("kc,nchw->nkhw", of_color, color),
    )
    return [product.relu() / scale for product, scale in zip(products, SCALES)]


def region_features(pixels: np.ndarray) -> np.ndarray:
    """Take the strongest responses in 6 x 6 cells: (n, 128, 128, 3) -> (n, 36, 192)."""
    cells = []
    for maps in compute_maps(pixels):  # (n, filters of this kind, h, h)
        side = maps.shape[2]
        bounds = [k * side // REGIONS_PER_SIDE for k in range(REGIONS_PER_SIDE + 1)]
        spans = [slice(start, end) for start, end in itertools.pairwise(bounds)]
        rows = torch.stack([maps[:, :, span].amax(2) for span in spans], 2)  # (n, filters, 6, h)
        of_kind = [rows[..., span].amax(3) for span in spans]
        cells.append(torch.stack(of_kind, 3))  # (n, filters, 6, 6)
    regions = torch.cat(cells, 1).permute(0, 2, 3, 1).reshape(len(pixels), N_REGIONS, -1)
    return regions.contiguous().numpy()


def global_features(regions: np.ndarray) -> np.ndarray:
    """Take the strongest responses in image and quarters: (n, 36, 192) -> (n, 960).

    The usual response of their kind is subtracted.
    """
    n = len(regions)
    half = REGIONS_PER_SIDE // 2
    quarters = regions.reshape(n, 2, half, 2, half, -1).max((2, 4)).reshape(n, 4, -1)
    whole = quarters.max(1, keepdims=True)  # (n, 1, 192)
    usual = np.repeat(np.float32(USUAL_RESPONSES), FILTERS_OF_KINDS)  # (192,)
    return (np.concatenate([whole, quarters], 1) - usual).reshape(n, -1)


# ---- as a network for photos


class FilterNetwork(nn.Module):
    """Photos as pixels (B, 128, 128, 3) uint8 -> (B, 960), or with `grid` (B, 36, 192)."""

    def __init__(self, grid: bool):
        super().__init__()
        if grid:
            self.regions = N_REGIONS
            self.dim = FILTERS
            self.line = EXTRACTORS["regions"]
        else:
            self.regions = None
            self.dim = 5 * FILTERS
            self.line = EXTRACTORS["global"]

    def forward(self, pixels: Tensor) -> Tensor:
        features = region_features(pixels.cpu().numpy())
        if not self.regions:
            features = global_features(features)
        return torch.from_numpy(features)


def transform(photo: Image.Image) -> Tensor:
    """Photo in RGB as (128, 128, 3) uint8, resized, not cropped."""
    size = (SCENE_PIXELS, SCENE_PIXELS)
    if photo.size != size:
        photo = photo.resize(size, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(photo))
