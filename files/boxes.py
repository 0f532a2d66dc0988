"""Boxes in pixels: x1, y1, x2, y2, with both corners inside, so that a box is x2 - x1 + 1 pixels wide, as in the
Pascal challenge and in Flickr30k Entities."""
import numpy as np


def areas(boxes: np.ndarray) -> np.ndarray:
    """(..., 4) -> (...,) float64: how many pixels each box has."""
    boxes = np.asarray(boxes, np.float64)
    return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def _iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (..., 4) whose leading shapes broadcast."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0]) + 1
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1]) + 1
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    return shared / (areas(a) + areas(b) - shared)


def iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union, 0 to 1, of every box of a with every one of b: (n, 4), (m, 4) -> (n, m) float64."""
    return _iou(np.asarray(a)[:, None], np.asarray(b)[None])


def enclosing(boxes: np.ndarray) -> np.ndarray:
    """The smallest box that holds all k of them: (k, 4) -> (4,) float64, k at least 1."""
    boxes = np.asarray(boxes, np.float64)
    return np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])
