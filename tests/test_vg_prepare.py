"""vg_experiments.prepare: a manifest by hand, the choice of crops by its definition, and what is refused."""

import itertools
import json
import os
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from data import read_split
from tests.helpers import refused
from utils import InputError
from vg_experiments import prepare

# Every irregularity once: both spellings of ids, an image of COCO, regions of no listed image, boxes over the edge,
# outside, flat and in fractions of a pixel, phrases that are empty or null.
LISTED = [
    {
        "image_id": 7,
        "url": "https://x/VG_100K_2/7.jpg",
        "width": 100,
        "height": 80,
        "coco_id": None,
    },
    {"id": 8, "width": 100, "height": 80, "coco_id": 5},
    {"id": 10, "width": 50, "height": 50},
]
BOXES = {
    1: (0, 0, 20, 20, "A dog."),
    2: (60, 50, 20.4, 20, " a cat "),
    3: (90, 70, 20, 20, "grass"),
    4: (5, 5, 0, 9, "flat"),
    5: (100, 0, 9, 9, "outside"),
    6: (0, 0, 9, 9, ""),
    7: (0, 0, 9, 9, None),
    8: (-10, 0, 40, 30, "a tree."),
    9: (30, 0, 30, 20, "a car"),
}
FIELDS = ("x", "y", "width", "height", "phrase")
NUMBERED_REGIONS = []
for number, box_and_phrase in BOXES.items():
    key = "id" if number % 2 else "region_id"
    NUMBERED_REGIONS.append({key: number} | dict(zip(FIELDS, box_and_phrase)))
TOLD = [
    {"id": 7, "regions": NUMBERED_REGIONS},
    {
        "image_id": 99,
        "regions": [{"id": 1, "x": 0, "y": 0, "width": 5, "height": 5, "phrase": "a"}],
    },
]


def annotations(folder):
    (folder / "VG_100K_2").mkdir()
    (folder / "VG_100K_2" / "7.jpg").write_bytes(b"")
    (folder / "image_data.json").write_text(json.dumps(LISTED))
    (folder / "region_descriptions.json").write_text(json.dumps(TOLD))


def test_a_manifest_by_hand(tmp_path):
    annotations(tmp_path)
    manifest = prepare.make_manifest(str(tmp_path), thresholds=(6, 12))
    assert {key: count for key, count in manifest["counts"].items() if count} == {
        "images_listed": 3,
        "images_in_coco": 1,
        "images_kept": 1,
        "images_without_regions": 1,
        "regions_read": 9,
        "regions_without_area": 2,
        "regions_without_phrase": 2,
        "regions_kept": 5,
        "images_with_triplet_6": 1,
        "images_with_triplet_12": 1,
        "images_with_all_triplets": 1,
        "images_with_three_crops": 1,
    }
    assert manifest["images"] == {"7": {"file": "VG_100K_2/7.jpg", "width": 100, "height": 80}}
    assert manifest["triplets"]["6"] == [
        {
            "image": 7,
            "regions": [1, 2],
            "a": [0, 0, 20, 20],
            "b": [60, 50, 20, 20],
            "c": [0, 0, 80, 70],
            "iou": 0.0,
            "caption_a": "A dog",
            "caption_b": "a cat",
            "caption_c": "A dog and a cat",
        }
    ]
    assert manifest["triplets"]["12"][0]["regions"] == [8, 9]  # 8, clipped, has 900 of 8,000 pixels
    assert manifest["wholes"] == [
        {
            "image": 7,
            "regions": [8, 9, 1],
            "crops": [[0, 0, 30, 30], [30, 0, 30, 20], [0, 0, 20, 20]],
            "captions": ["a tree", "a car", "A dog"],
            "description": "a tree and a car and A dog",
        }
    ]


def pixels_of(box):
    x, y, width, height = box
    return set(itertools.product(range(x, x + width), range(y, y + height)))


def iou(a, b):
    pixels_of_a = pixels_of(a)
    pixels_of_b = pixels_of(b)
    return len(pixels_of_a & pixels_of_b) / len(pixels_of_a | pixels_of_b)


def test_the_choice_is_that_of_the_definition(monkeypatch):
    monkeypatch.setattr(prepare, "MAX_CROP_IOU", 0.1)
    rng = np.random.default_rng(0)
    chosen = []
    for _ in range(60):
        corners = rng.integers(0, 20, (15, 2))
        sizes = rng.integers(1, 20, (15, 2))
        boxes = np.concatenate([corners, sizes], 1).tolist()
        regions = [prepare.Region(tuple(box), k, "a") for k, box in enumerate(boxes)]
        regions.sort(key=lambda region: -region.area)
        for percent in (10, 30, 50):
            ten = [r for r in regions if 100 * r.area < percent * 400][:10]
            least = min((iou(ten[0].box, r.box) for r in ten[1:]), default=None)
            pair = prepare.choose_triplet(regions, 400, percent)
            assert (pair is None) == (len(ten) < 2)
            if pair:
                assert pair[0] == ten[0] and iou(pair[0].box, pair[1].box) == least

        crops = prepare.choose_crops(regions, 400)
        small = [r for r in regions if 100 * r.area <= 20 * 400][:10]
        three = []
        for r in small:
            apart = all(iou(r.box, other.box) <= 0.1 for other in three)
            if len(three) < 3 and apart:
                three.append(r)
        if len(three) == 3:
            assert crops == three
        else:
            assert crops is None
        chosen.append(crops)
    assert None in chosen and any(chosen)

    # the order of the images that are given changes nothing
    photos = {n: prepare.Photo(n, 9, 9, "x.jpg", [], []) for n in range(50)}
    order = prepare.draw_images(photos, dict.fromkeys(photos), 40, 3, "triplets", ".")
    again = prepare.draw_images(photos, dict.fromkeys(reversed(photos)), 40, 3, "triplets", ".")
    assert order == again != sorted(order) and len(order) == 40


def test_what_cannot_work_is_one_sentence(tmp_path, capsys):
    annotations(tmp_path)
    words = ["--vg", tmp_path, "--output", tmp_path / "m.json"]
    refused(
        capsys,
        prepare.main,
        [*words, "--thresholds", "0.01", "50"],
        "no image has two regions smaller than 0.01",
    )
    refused(capsys, prepare.main, [*words, "--thresholds", "101"], "'101' is not a percentage")
    (tmp_path / "VG_100K_2" / "7.jpg").unlink()
    refused(
        capsys,
        prepare.main,
        [*words, "--thresholds", "6", "12"],
        "1 of the 1 photos .* the images 7; put the ph",
    )
    entry = '{"id": 7, "regions": [{"id": 1, "x": 1e400, "y": 0, "width": 1, "height": 1, "phrase": "a"}]}'
    told = tmp_path / "region_descriptions.json"
    listed = tmp_path / "image_data.json"
    for path, broken, message in (
        (told, '[{"id"', "is not JSON"),
        (told, "{}", "not a list of im"),
        (told, f"[{entry}]", "entry 1 is not as Visual Genome ships.*infinity"),
        (
            told,
            f"[{entry.replace('1e400', '0').replace('width', 'w')}]",
            "not as Visual Genome ships.*width",
        ),
        (listed, "[]", "none of its 0 images"),
        (listed, "[1]", "entry 1 is not as Visual Genome ships"),
        (listed, None, "there is no file .*image_data.json"),
    ):
        if broken is None:
            path.unlink()
        else:
            path.write_text(broken)
        refused(capsys, prepare.main, words, message)
    outside = {"format": 1, "folder": str(tmp_path), "images": {"1": {"file": "../x.jpg"}}}
    for manifest, message in (
        ("1", "not a manifest of format 1.*; write one"),
        ('{"format": 0}', "not a manifest of format 1"),
        (json.dumps(outside), "x.jpg"),
    ):
        (tmp_path / "m.json").write_text(manifest)
        with pytest.raises(InputError, match=message):
            prepare.load_manifest(str(tmp_path / "m.json"))


def test_photos_with_captions_give_a_manifest(demo_path, tmp_path, capsys):
    """A and B are two captions of the photo, another pair at each threshold; boxes are drawn."""
    words = ["--data_path", demo_path, "--data_name", "demo", "--images", "12"]
    for name in ("drawn", "again"):
        prepare.main([*words, "--output", str(tmp_path / f"{name}.json")])
    assert (tmp_path / "drawn.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    manifest = prepare.load_manifest(str(tmp_path / "drawn.json"))
    assert manifest["wholes"] == [] and len(manifest["triplets"]["10"]) > 5
    split = read_split(demo_path, "demo", "test")
    for k, (percent, triplets) in enumerate(manifest["triplets"].items()):
        for t in triplets:
            own = [
                split.captions[m].rstrip(" .")
                for m in np.flatnonzero(split.caption_image == t["image"])
            ]
            assert (t["caption_a"], t["caption_b"]) == (own[k % 5], own[(k + 1) % 5])
            photo = manifest["images"][str(t["image"])]
            width, height = Image.open(os.path.join(manifest["folder"], photo["file"])).size
            assert (photo["width"], photo["height"]) == (width, height)
            assert 100 * t["a"][2] * t["a"][3] < float(percent) * width * height
            assert all(
                0 <= x <= width - w and 0 <= y <= height - h
                for x, y, w, h in (t[letter] for letter in "abc")
            )
    refused(
        capsys,
        prepare.main,
        [*words[:2], "--data_name", "demo_precomp", "--output", tmp_path / "x.json"],
        "crops are cut from photos",
    )


def test_phrases_of_entities_are_regions(demo_path, tmp_path, capsys):
    """A region is the box around a thing's boxes with a phrase that names it; "the dog" and "The dog" are one."""
    root = tmp_path / "own"
    for name in ("Annotations", "Sentences", "images"):
        (root / name).mkdir(parents=True)
    Image.new("RGB", (90, 60)).save(root / "images" / "12.png")

    def thing(chain, box):
        corners = "".join(
            f"<{side}>{x}</{side}>" for side, x in zip(("xmin", "ymin", "xmax", "ymax"), box)
        )
        return f"<object><name>{chain}</name><bndbox>{corners}</bndbox></object>"

    objects = thing(5, (1, 1, 10, 20)) + thing(5, (21, 11, 30, 15)) + thing(6, (41, 1, 50, 10))
    (root / "Annotations" / "12.xml").write_text(
        f"<annotation><size><width>90</width><height>60</height></size>{objects}</annotation>"
    )
    (root / "Sentences" / "12.txt").write_text(
        "[/EN#5/animals The dog] sees [/EN#6/other a ball] on [/EN#7/scene the grass] .\n"
        "[/EN#5/animals A  brown dog] and [/EN#5/animals the dog] , [/EN#0/notvisual it] .\n"
    )
    (root / "val.txt").write_text("12\n")
    (photo,) = prepare.read_entity_photos(str(root), ["val"], Counter())
    assert (photo.number, photo.width, photo.height, photo.file) == (12, 90, 60, "images/12.png")
    assert [(r.box, r.number, r.phrase) for r in photo.regions] == [
        ((0, 0, 30, 20), 1, "the dog"),
        ((0, 0, 30, 20), 2, "a brown dog"),
        ((40, 0, 10, 10), 3, "a ball"),
    ]

    words = ["--data_path", str(tmp_path), "--data_name", "own", "--split", "dev", "val"]
    prepare.main([*words, "--thresholds", "50", "--output", str(tmp_path / "m.json")])
    (t,) = prepare.load_manifest(str(tmp_path / "m.json"))["triplets"]["50"]
    assert (t["caption_c"], t["c"]) == ("the dog and a ball", [0, 0, 50, 20])
    assert "1 triplets at each of 1 thresholds" in capsys.readouterr().out
    several = ["--data_path", demo_path, "--data_name", "demo", "--split", "dev", "test"]
    refused(
        capsys,
        prepare.main,
        [*several, "--output", tmp_path / "x.json"],
        "dev test names several splits; .* one",
    )
