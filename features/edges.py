"""EdgeBoxes (Zitnick and Dollar 2014): boxes that wholly hold many edges, by OpenCV's ximgproc."""
import functools
import gzip
import os
import re
import zlib

import numpy as np

from cli import InputError, reason
from features.photos import file_digest

SETTINGS = {"alpha": 0.65, "beta": 0.65, "minScore": 0.01}     # as the code of pl-clc sets them
LEAST = 256                           # pixels: a photo whose longer side has fewer is enlarged to this
SMOOTH = 2.0                          # pixels of the photo: textures below this size have no edges
THIN = 1.01                           # an edge is kept where it is not weaker than its neighbours by more than this
FOREST = {"options", "stride", "shrinkNumber", "patchSize", "patchInnerSize", "numberOfGradientOrientations",
          "selfsimilarityGridSize", "numberOfTrees", "numberOfTreesToEvaluate", "childs", "featureIds", "thresholds",
          "edgeBoundaries", "edgeBins"}            # what OpenCV reads of a forest's file
INSTALL = "EdgeBoxes needs OpenCV's contributed modules: pip install -r requirements-localise.txt"


def opencv():
    """The module cv2, kept to one thread: photos are spread over processes. Raises InputError where it is missing."""
    try:
        import cv2
    except ImportError as error:
        raise InputError(f"{INSTALL} ({reason(error)})") from error
    if not hasattr(cv2, "ximgproc"):
        raise InputError(f"this OpenCV has no module ximgproc. {INSTALL}, in place of the other opencv package")
    cv2.setNumThreads(1)
    return cv2


@functools.cache
def forest_of(path: str):
    """The structured forest in a file. Raises InputError if it holds none."""
    cv2 = opencv()
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; --model is model.yml.gz of opencv_extra/testdata/cv/ximgproc")
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            missing = FOREST - {found[1].decode() for line in f if (found := re.match(rb"\s*(\w+):", line))}
        if missing:                                         # OpenCV would divide by the number of trees, 0
            raise InputError(f"{path} holds no structured forest (it has no {', '.join(sorted(missing))}); give "
                             "model.yml.gz of opencv_extra/testdata/cv/ximgproc")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} holds no structured forest ({reason(error)}); give model.yml.gz of "
                         "opencv_extra/testdata/cv/ximgproc") from error
    try:
        return cv2.ximgproc.createStructuredEdgeDetection(path)
    except cv2.error as error:
        raise InputError(f"{path} holds no structured forest ({reason(error)}); give model.yml.gz of "
                         "opencv_extra/testdata/cv/ximgproc") from error


def method_of(model: str | None) -> str:
    """What makes the boxes, in one line. model: the file of a structured forest, or None for gradients. Raises
    InputError where OpenCV is missing or the file is no forest."""
    cv2 = opencv()
    if model:
        forest_of(model)
    edges = f"the structured forest {file_digest(model)}" if model else f"gradients smoothed by {SMOOTH:g} pixels"
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    return f"EdgeBoxes ({settings}) of {edges}, longer side at least {LEAST}, OpenCV {cv2.__version__}"


def gradients(photo: np.ndarray, smooth: float) -> tuple[np.ndarray, np.ndarray]:
    """Edges of a photo (H, W, 3) uint8 by Sobel's filters, after smoothing by a Gaussian of `smooth` pixels: strength
    in 0 to 1 and the direction across the edge in 0 to pi, both (H, W) float32.

    The gradients of the three colours are joined by their structure tensor (Di Zenzo 1986): the direction is that of
    its first eigenvector, and the strength the root of its trace.
    """
    cv2 = opencv()
    smoothed = cv2.GaussianBlur(photo.astype(np.float32), (0, 0), smooth)
    dx, dy = (cv2.Sobel(smoothed, cv2.CV_32F, *order) for order in ((1, 0), (0, 1)))            # (H, W, 3)
    xx, yy, xy = ((a * b).sum(2) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
    strength, across = np.sqrt(xx + yy), np.arctan2(2 * xy, xx - yy) / 2
    return strength / max(strength.max(), 1e-6), np.mod(across, np.float32(np.pi))


def thinned(strength: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Edges one or two pixels wide: 0 where one of the two neighbours across the edge is stronger. (H, W) -> (H, W)."""
    cv2 = opencv()
    y, x = np.mgrid[:strength.shape[0], :strength.shape[1]].astype(np.float32)
    beside = [cv2.remap(strength, x + sign * np.cos(across), y + sign * np.sin(across), cv2.INTER_LINEAR,
                        borderMode=cv2.BORDER_REPLICATE) for sign in (1, -1)]
    return np.where(THIN * strength < np.maximum(*beside), np.float32(0), strength)


def edge_boxes(photo: np.ndarray, count: int, model: str | None = None) -> np.ndarray:
    """At most `count` boxes of a photo (H, W, 3) uint8, best first: (k, 5) float32, x1, y1, x2, y2 in pixels from 0
    with both corners inside, and the score.

    A photo without an edge has one box, the whole of it, of score 0, so that every photo has one to rank.
    """
    cv2, (height, width) = opencv(), photo.shape[:2]
    scale = max(1.0, LEAST / max(height, width))
    if scale > 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        photo = cv2.resize(photo, size, interpolation=cv2.INTER_CUBIC)
    if model:
        forest = forest_of(model)
        strength = forest.detectEdges(photo.astype(np.float32) / 255)
        across = forest.computeOrientation(strength)
        strength = forest.edgesNms(strength, across)
    else:
        strength, across = gradients(photo, SMOOTH * scale)
        strength = thinned(strength, across)
    finder = cv2.ximgproc.createEdgeBoxes(maxBoxes=count, **SETTINGS)
    boxes, scores = finder.getBoundingBoxes(np.ascontiguousarray(strength, np.float32),
                                            np.ascontiguousarray(across, np.float32))
    if not len(boxes):
        return np.array([[0, 0, width - 1, height - 1, 0]], np.float32)
    x, y, w, h = np.asarray(boxes, np.float64).reshape(-1, 4).T
    across_x, across_y = width / photo.shape[1], height / photo.shape[0]
    x1, y1 = np.clip(x * across_x, 0, width - 1), np.clip(y * across_y, 0, height - 1)
    x2, y2 = (np.clip(end, start, most) for end, start, most in
              (((x + w) * across_x - 1, x1, width - 1), ((y + h) * across_y - 1, y1, height - 1)))
    return np.stack([x1, y1, x2, y2, np.ravel(scores)], 1).astype(np.float32)[:count]
