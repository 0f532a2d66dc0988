"""Box proposals, the phrases that they reach, and their features: what is written, and every refusal."""

import gzip
import importlib.util
import itertools
import json
import os
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from demo import scenes
from features.filters import compute_responses
from images import whole_transform
from model import CNN
from phrases import proposals, regions
from phrases.data import read_phrases, read_proposals, read_region_features
from phrases.entities import read_entities
from phrases.pooling import SceneRegions, pool_regions, roi_align
from tests.helpers import built_quickly, refused
from utils import InputError, save_arrays

opencv = pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None,
    reason="OpenCV is an optional package (phrases/requirements.txt)",
)
SIZES = {"train": 3, "val": 1, "test": 2}


@pytest.fixture
def root(tmp_path, demo_path):
    """A data set D/x: a few photos of the demo, whose phrases are to be found."""
    folder = shutil.copytree(os.path.join(demo_path, "demo_entities"), tmp_path / "x")
    for split, count in SIZES.items():
        path = folder / f"{split}.txt"
        path.write_text("\n".join(path.read_text().split()[:count]) + "\n")
    return str(folder)


def propose(root, *words, main=proposals.main):
    data = ["--data_path", os.path.dirname(root), "--data_name", "x", "--workers", "0"]
    main([*data, *map(str, words)])


def describe(root, *words):
    propose(root, "--device", "cpu", *words, main=regions.main)


def refuse_proposals(capsys, root, words, message):
    def command(words):
        propose(root, *words)

    refused(capsys, command, words, message)


def refuse_description(capsys, root, words, message):
    def command(words):
        describe(root, *words)

    refused(capsys, command, words, message)


def boxes_file(root, changes=()):
    """A JSON file of five random boxes for every photo; changes: boxes of the first ones of train."""
    rng = np.random.default_rng(1)
    found = {}
    for split in SIZES:
        for photo in read_entities(root, split).ids:
            corner = rng.integers(0, 60, (5, 2))
            found[photo] = np.hstack([corner, corner + rng.integers(5, 60, (5, 2))]).tolist()
    found |= dict(zip(found, changes))
    path = os.path.join(os.path.dirname(root), "boxes.json")
    with open(path, "w") as f:
        json.dump(found, f)
    return path


@pytest.fixture
def given(root):
    """Proposals of one's own, named mine, of all splits."""
    propose(root, "--from", boxes_file(root), "--name", "mine")
    return root


def load(root, split, name="mine"):
    found = read_phrases(root, split)
    found.proposals = read_proposals(root, found, name)
    return found


# ---- proposals


@opencv
def test_edge_boxes_find_the_things(root, capsys):
    propose(root, "--count", 50)
    for split in SIZES:
        found = load(root, split, "edgeboxes50")
        for n in range(len(found.ids)):
            rows = slice(found.start[n], found.start[n + 1])
            added = found.boxes[rows][found.added[rows]]
            truth = found.truth[found.phrase_photo == n]
            assert 0 < (~found.added[rows]).sum() <= 50
            if split == "train":
                assert added.tolist() == np.unique(truth, axis=0).tolist()
            else:
                assert added.tolist() == []

        best = found.best_overlaps(added=False)
        facts = found.proposals.facts
        recall = round(100 * np.mean(best >= 0.7), 2)
        assert np.mean(best >= 0.5) > 0.6 and facts["recall"]["0.7"] == recall
        method = "EdgeBoxes (alpha 0.65, beta 0.65, minScore 0.01) of gradients"
        assert facts["method"].startswith(method)

    propose(root, "--count", 50)
    assert capsys.readouterr().out.count("done already") == 3
    message = (
        "train_edgeboxes50.npz is there, with at most 50 boxes per photo, EdgeBoxes .*; "
        "give another --name"
    )
    refuse_proposals(capsys, root, ["--count", 60, "--name", "edgeboxes50"], message)


@opencv
def test_boxes_lie_in_photos_of_any_size():
    rng = np.random.default_rng(0)
    for height, width in ((1, 1), (3, 200), (31, 17), (300, 280)):
        pixels = rng.integers(0, 255, (-(-height // 8), -(-width // 8), 3)).astype(np.uint8)
        photo = np.array(Image.fromarray(pixels).resize((width, height)))
        found = proposals.edge_boxes(photo, 30)
        first, last = np.split(found, 2, 1)
        assert 1 <= len(found) <= 30 and (0 <= first).all() and (first <= last).all()
        assert (last <= [width - 1, height - 1]).all()


# A tree of one question, whether the gradient in the middle of a patch is strong, and one answer, an edge there.
EDGE_BINS = ", ".join(["136"] * 40)
FOREST = f"""%YAML:1.0
---
options: {{ stride: 2, shrinkNumber: 2, patchSize: 32, patchInnerSize: 16, numberOfGradientOrientations: 4,
   gradientSmoothingRadius: 0, regFeatureSmoothingRadius: 2, ssFeatureSmoothingRadius: 8,
   gradientNormalizationRadius: 4, selfsimilarityGridSize: 5, numberOfTrees: 1, numberOfTreesToEvaluate: 1 }}
childs: [ [ 2, 0, 0 ] ]
featureIds: [ [ {3 * 256 + 8 * 16 + 8}, 0, 0 ] ]
thresholds: [ [ 0.05, 0., 0. ] ]
edgeBoundaries: [ [ 0, 0, 0, 40 ] ]
edgeBins: [ [ {EDGE_BINS} ] ]
"""


@opencv
def test_a_structured_forest_finds_edges_too(root, tmp_path):
    """OpenCV reads the file, and its edges lead to things."""
    path = tmp_path / "model.yml.gz"
    path.write_bytes(gzip.compress(FOREST.encode()))
    propose(root, "--model", path, "--splits", "val", "--name", "forest")
    found = load(root, "val", "forest")
    assert " of the structured forest " in found.proposals.facts["method"]
    assert np.mean(found.best_overlaps() >= 0.5) > 0.3

    (tmp_path / "other.yml").write_text("%YAML:1.0\n---\noptions: {}\n")
    message = "other.yml holds no structured forest .it has no edgeBins.; give model"
    with pytest.raises(SystemExit, match=message):
        propose(root, "--model", tmp_path / "other.yml", "--splits", "val", "--name", "none")


def test_boxes_of_ones_own(root):
    of_first = [[0, 0, 119, 127], [1, 2, 3.5, 4]]
    of_second = [[1, 1, 9, k] for k in range(2, 12)]
    path = boxes_file(root, (of_first, of_second))

    propose(root, "--from", path, "--name", "mine", "--count", 4)

    found = load(root, "train")
    assert found.boxes[:2].tolist() == of_first
    rows = slice(found.start[1], found.start[2])
    lower_edges = found.boxes[rows, 3][~found.added[rows]]
    assert lower_edges.tolist() == [2, 3, 4, 5]  # the first, which are the best


@pytest.mark.parametrize(
    "boxes, message",
    [
        (
            [[0, 0, 128, 20]],
            "the box \\[0.0, 0.0, 128.0, 20.0\\] of [0-9]+ is inverted or leaves its photo, 128 x 128",
        ),
        ([[0, 0, float("nan"), 20]], "is not JSON .NaN is not a number"),
        ([], "boxes of [0-9]+ are not a list"),
        ([["a", 0, 5, 5]], "boxes of [0-9]+ are not a list"),
        ([[0, 0, 5, 5], [1, 1, 2, 2, 3]], "[0-9]+ are not"),
    ],
)
def test_wrong_boxes_of_ones_own(root, capsys, boxes, message):
    words = ["--from", boxes_file(root, [boxes]), "--name", "mine"]
    refuse_proposals(capsys, root, words, message)


def test_proposals_of_other_photos_and_broken_files_are_refused(given):
    split = load(given, "test")
    path = os.path.join(given, "test_mine.npz")
    with pytest.raises(InputError, match="there is no file .*test_none.npz"):
        read_proposals(given, split, "none")

    shutil.copy(os.path.join(given, "val_mine.npz"), path)
    message = "is of other photos, or other annotations, than test.txt names"
    with pytest.raises(InputError, match=message):
        read_proposals(given, split, "mine")

    save_arrays(path, {"boxes": split.boxes, "start": split.start})
    message = "test_mine.npz holds no proposals .*; delete it, and write it again"
    with pytest.raises(InputError, match=message):
        read_proposals(given, split, "mine")


@pytest.mark.parametrize(
    "name, change",
    [
        ("boxes", lambda x: x.astype(np.float64)),
        ("boxes", lambda x: x[:, :3]),
        ("boxes", lambda x: x[:, [2, 3, 0, 1]]),
        ("boxes", lambda x: np.where(x == x.max(), np.nan, x).astype(np.float32)),
        ("boxes", lambda x: np.float32(1)),
        ("start", lambda x: x[:-1]),
        ("start", lambda x: x.astype(float)),
        ("start", lambda x: x + 1),
        ("start", lambda x: np.r_[0, 0, x[2:]]),
        ("added", lambda x: x.astype(int)),
        ("added", lambda x: x[1:]),
        ("facts", {"method": 5}),
        ("facts", {"count": "x"}),
        ("facts", {"recall": {"0.5": "x"}}),
        ("facts", {"recall": 3}),
        ("facts", {"recall": {"0.5": 1e9}}),
    ],
)
def test_proposals_with_other_arrays_and_facts_are_refused(given, name, change):
    split = load(given, "train")
    path = os.path.join(given, "train_mine.npz")
    arrays = dict(np.load(path))
    if name == "facts":
        facts = json.loads(str(arrays["facts"])) | change
        arrays["facts"] = np.array(json.dumps(facts))
    else:
        arrays[name] = change(arrays[name])
    save_arrays(os.path.join(given, "train_changed.npz"), arrays)

    message = "train_changed.npz holds no proposals .*; delete it, and write it again"
    with pytest.raises(InputError, match=message):
        read_proposals(given, split, "changed")


# ---- features of boxes


def test_roi_align_of_a_linear_map_is_its_value_at_the_centre():
    """On a map that is linear in x and y, the mean of a box is the value at its centre, where no point leaves the
    centres of the border cells; and bins are those of the box cut by hand."""
    y, x = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    cells = torch.stack([2 * x + 1, 3 * y - x])
    boxes = torch.tensor([[0.1, 0.2, 0.5, 0.4], [0.3, 0.3, 0.9, 0.8], [0.25, 0.5, 0.26, 0.51]])
    centre = ((boxes[:, :2] + boxes[:, 2:]) / 2 * 14 - 0.5).T  # in cells, from the first's centre
    expected = torch.stack([2 * centre[0] + 1, 3 * centre[1] - centre[0]], 1)
    torch.testing.assert_close(roi_align(cells, boxes)[..., 0, 0], expected)

    bins = roi_align(cells, boxes, 7)
    assert bins.shape == (3, 2, 7, 7)
    start = boxes[:, :2]
    side = (boxes[:, 2:] - boxes[:, :2]) / 7
    for i, j in itertools.product(range(7), repeat=2):
        first_corner = start + side * torch.tensor([j, i])
        last_corner = start + side * torch.tensor([j + 1, i + 1])
        own = torch.cat([first_corner, last_corner], 1)
        torch.testing.assert_close(bins[:, :, i, j], roi_align(cells, own)[..., 0, 0])


def test_fc6_is_the_layer_of_the_pooled_bins():
    """VGG of the box of the whole photo with 14 x 14 cells: 7 x 7 bins of it are its 2 x 2 averages."""
    torch.manual_seed(0)
    cnn = built_quickly("vgg16", normalize=False)
    photo = torch.randn(1, 3, 224, 224)
    cells = cnn.net.features[:-1](photo)  # (1, 512, 14, 14)
    pooled = torch.nn.functional.avg_pool2d(cells, 2).flatten(1)
    fc6 = cnn.net.classifier[0]
    slow = torch.relu(pooled @ fc6.weight.T + fc6.bias)

    cnn.net.classifier = cnn.net.classifier[:2]
    found = pool_regions(cnn, photo, [torch.tensor([[0.0, 0, 1, 1]])])[0]

    assert found.shape == (1, 4096)
    torch.testing.assert_close(found, slow, rtol=1e-3, atol=1e-5)


def test_features_are_those_of_each_box(given, weights, monkeypatch):
    monkeypatch.setattr(regions, "REGION_PHOTO_SIDE", 64)
    resnet = ["--cnn_type", "resnet18", "--cnn_weights", weights]
    describe(given, "--proposals", "mine", *resnet, "--name", "r18")

    found = load(given, "train")
    stored = read_region_features(given, found, "mine_r18")[0].array
    assert stored.shape == (len(found.boxes), 512) and stored.dtype == np.float16

    photo = Image.open(os.path.join(given, "images", f"{found.ids[1]}.png"))
    cnn = CNN("resnet18", weights=weights, cells=True, normalize=False)
    cells = cnn(whole_transform(64)(photo)[None])[0]
    rows = slice(found.start[1], found.start[2])
    shares = torch.from_numpy((found.boxes[rows] + [0, 0, 1, 1]) / 128).float()
    expected = roi_align(cells.T.reshape(-1, 2, 2), shares)[..., 0, 0]
    found = torch.tensor(stored[rows]).float()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_demo_features_are_those_of_a_loop():
    pixels = scenes.draw_scene(scenes.random_scene(random.Random(3)))
    cells = np.arange(32)
    boxes = np.float32(
        [[0, 0, 1, 1], [0.1, 0.2, 0.45, 0.8], [0.5, 0.5, 0.51, 0.51], [0.7, 0.1, 1, 0.3]]
    )
    found = SceneRegions.read(Image.fromarray(pixels), boxes)

    of_responses = []
    for response in compute_responses(pixels[None]):
        rows = []
        for strip in np.split(response[0], 32):
            rows.append([np.max(cell, (0, 1)) for cell in np.split(strip, 32, 1)])
        of_responses.append(rows)
    maps = np.concatenate(of_responses, -1)  # (32, 32, 192)

    def cover(low, high):
        """The share of each of the 32 cells of an axis between low and high."""
        return np.clip(np.minimum(high * 32, cells + 1) - np.maximum(low * 32, cells), 0, 1)

    def covered(x1, y1, x2, y2):  # of each cell
        return cover(y1, y2)[:, None] * cover(x1, x2)

    assert found.shape == (4, SceneRegions.dim)
    centres = (cells + 0.5) / 32
    for (x1, y1, x2, y2), row in zip(boxes.astype(np.float64), found):
        in_rows = (y1 <= centres) & (centres <= y2)
        in_columns = (x1 <= centres) & (centres <= x2)
        inside = maps[in_rows][:, in_columns].reshape(-1, 192)
        if len(inside):
            assert np.array_equal(row[:192], np.max(inside, 0).astype(np.float16))

        own = covered(x1, y1, x2, y2)
        w = (x2 - x1) / 4
        h = (y2 - y1) / 4
        ring = covered(max(x1 - w, 0), max(y1 - h, 0), min(x2 + w, 1), min(y2 + h, 1)) - own
        for part, values in ((own, row[192:384]), (ring, row[384:])):
            mean = np.zeros(192)
            if part.sum() > 1e-6:
                mean = (part[..., None] * maps).sum((0, 1)) / part.sum()
            np.testing.assert_allclose(values, mean, rtol=1e-3, atol=1e-3)


def test_features_of_ones_own(given, capsys, tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "fc6.npy"
    found = load(given, "val")
    features = rng.standard_normal((len(found.boxes), 12)).astype(np.float32)
    np.save(path, features)
    words = ["--proposals", "mine", "--given", path, "--name", "vgg"]
    message = "holds the features of one split; name it with"
    refuse_description(capsys, given, words, message)
    message = "--layer fc6 is for --kind cnn, not for --given; leave it out"
    of_val = [*words, "--splits", "val"]
    refuse_description(capsys, given, [*of_val, "--layer", "fc6"], message)
    message = "--kind demo and --given .* are two sources of features; give one"
    refuse_description(capsys, given, [*of_val, "--kind", "demo"], message)
    message = "--model .* is for EdgeBoxes, and --from .* gives the boxes; leave one out"
    both = ["--from", path, "--name", "x", "--model", path]
    refuse_proposals(capsys, given, both, message)

    describe(given, *of_val)
    stored, made_by = read_region_features(given, found, "mine_vgg")
    assert np.array_equal(stored.array, features) and made_by.startswith("given in fc6.npy ")
    describe(given, *of_val)  # the same file again
    assert np.array_equal(np.load(path), features)
    assert np.array_equal(np.load(stored.path), features)

    already_there = "val_mine_vgg.npy is there, made by given in fc6.npy .*; give another --name"
    for array, message in (
        (features[1:], "holds float32 of shape \\(4, 12\\), and 5 boxes"),
        (features * 2, already_there),
    ):
        np.save(tmp_path / "new.npy", array)
        changed = [*of_val, "--given", tmp_path / "new.npy"]
        refuse_description(capsys, given, changed, message)
    assert np.array_equal(np.load(stored.path), features)

    found.proposals = found.proposals._replace(boxes=found.boxes + 1)
    message = "val_mine_vgg.npy is of other boxes than those that val_mine.npz holds now"
    with pytest.raises(InputError, match=message):
        read_region_features(given, found, "mine_vgg")
