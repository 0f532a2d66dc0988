"""COCO's annotations of 2017: VSE++'s splits by caption ids, or the splits of 2017."""

import json
import os
import shutil

import numpy as np
import pytest

from data import read_split
from utils import InputError


@pytest.fixture
def coco_2017(tmp_path, demo_path):
    """The demo's COCO 2014 as it came in 2017: all photos but the dev ones are of train2017."""
    source = os.path.join(demo_path, "demo_coco")
    folder = tmp_path / "coco"
    (folder / "annotations").mkdir(parents=True)
    merged = {"images": [], "annotations": []}
    for year in ("train2014", "val2014"):
        with open(f"{source}/annotations/captions_{year}.json", encoding="utf-8") as file:
            content = json.load(file)
        for name in merged:
            merged[name] += content[name]
    for part in ("train", "dev", "test", "restval"):
        name = f"annotations/coco_{part}_ids.npy"
        shutil.copyfile(f"{source}/{name}", folder / name)
    dev_ids = set(np.load(folder / "annotations/coco_dev_ids.npy").tolist())
    dev = {entry["image_id"] for entry in merged["annotations"] if entry["id"] in dev_ids}

    for year in ("train2017", "val2017"):
        (folder / "images" / year).mkdir(parents=True)
        images = [x for x in merged["images"] if (x["id"] in dev) == (year == "val2017")]
        named = []
        for image in images:
            old = image["file_name"]
            new = f"{image['id']:012d}.png"
            shutil.copyfile(
                f"{source}/images/{old.split('_')[1]}/{old}", folder / "images" / year / new
            )
            named.append({**image, "file_name": new})
        ids = {image["id"] for image in images}
        captions = [x for x in merged["annotations"] if x["image_id"] in ids]
        content = {"images": named, "annotations": captions}
        (folder / f"annotations/captions_{year}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_splits_by_caption_ids_are_those_of_2014(coco_2017, demo_path, split):
    found = read_split(str(coco_2017.parent), "coco", split, use_restval=True).require_sound()
    expected = read_split(demo_path, "demo_coco", split, use_restval=True)
    assert found.captions == expected.captions
    assert found.image_ids == expected.image_ids
    assert found.caption_ids.tolist() == expected.caption_ids.tolist()
    assert found.caption_image.tolist() == expected.caption_image.tolist()
    assert found.images.gather([0]).equal(expected.images.gather([0]))


def test_without_ids_the_splits_are_those_of_2017(coco_2017, demo_path):
    for path in (coco_2017 / "annotations").glob("*_ids.npy"):
        path.unlink()
    dev = read_split(str(coco_2017.parent), "coco", "val", dev_images=0).require_sound()
    expected = read_split(demo_path, "demo_coco", "dev", dev_images=0)
    assert dev.name == "dev" and sorted(dev.captions) == sorted(expected.captions)
    train = read_split(str(coco_2017.parent), "coco", "train").require_sound()
    assert not set(train.image_ids) & set(dev.image_ids)
    message = "no captions of the split test: COCO 2017 .* none of test2017; .*coco_test_ids.npy"
    with pytest.raises(InputError, match=message):
        read_split(str(coco_2017.parent), "coco", "test")


def test_ids_that_both_files_lack_are_named(coco_2017):
    path = coco_2017 / "annotations" / "coco_test_ids.npy"
    np.save(path, np.r_[np.load(path), 10**9])
    with pytest.raises(
        InputError, match="names 1 captions that .*train2017.* and .*val2017.* lack"
    ):
        read_split(str(coco_2017.parent), "coco", "test")
