"""The truth of captions against shared weights, what is written, and what evaluation reads."""
import json
import os
import random

import numpy as np
import pytest

from demo import __main__ as demo
from demo import truth
from demo.captions import caption_statement, five_captions, scene_statement, shared_weight
from demo.scenes import WORLDS, random_scene
from evaluation.annotations import IdIndex, read_positives

PARTS = [("demo_precomp", "dev"), ("demo_precomp", "test"), ("demo_region_precomp", "test")]


@pytest.mark.parametrize("world", WORLDS)
def test_truth_is_a_share_of_one_but_for_several_and_follows_from_the_words(world):
    """Against `shared_weight`, pair by pair; every caption is true of its own image."""
    scenes = []
    for k in range(60):
        rng = random.Random(f"truth of {world} {k}")
        drawn = random_scene(rng, WORLDS[world])
        scenes.append((drawn, five_captions(rng, drawn, WORLDS[world])))
    captions, images = truth.true_pairs(scenes)
    pairs, vague, claims = set(zip(captions.tolist(), images.tolist())), 0, {}
    shows = [scene_statement(drawn) for drawn, _ in scenes]
    for k, (drawn, caption) in enumerate((drawn, caption) for drawn, five in scenes for caption in five):
        assert (k, k // 5) in pairs
        assert claims.setdefault(caption.text.lower(), truth.claim(drawn, caption)) == truth.claim(drawn, caption)
        says = caption_statement(drawn, caption)
        whole = {image for image, show in enumerate(shows) if shared_weight(says, show) == says.weight}
        found = {image for image in range(len(scenes)) if (k, image) in pairs}
        if "several" in caption.text:
            vague += 1
            assert whole <= found == {image for image in range(60) if len(scenes[image][0].things) >= 4
                                      and (not caption.background or says.rest <= shows[image].rest)}
        else:
            assert found == whole
    assert vague and len(pairs) > 1.5 * 300                 # many captions are true of other images too


# ---- files

def stored(demo_path, name, split):
    folder = os.path.join(demo_path, name)
    images, captions = (np.load(f"{folder}/{split}_{kind}_ids.npy").tolist() for kind in ("img", "ann"))
    with open(f"{folder}/{split}_positives.json", encoding="utf-8") as file:
        return json.load(file), images, captions


@pytest.mark.parametrize("name, split", PARTS)
def test_positives_have_the_order_of_the_split_and_both_sides_agree(demo_path, name, split):
    found, images, captions = stored(demo_path, name, split)
    assert list(found["i2t"]) == [str(i) for i in images] and list(found["t2i"]) == [str(k) for k in captions]
    assert found["i2t"] == {str(i): [k for k in captions if i in found["t2i"][str(k)]] for i in images}
    assert all(images[k // 5] in found["t2i"][str(number)] for k, number in enumerate(captions))


def test_evaluation_reads_the_positives(demo_path):
    found, images, captions = stored(demo_path, "demo_precomp", "test")
    path = os.path.join(demo_path, "demo_precomp", "test_positives.json")
    read = read_positives(path, IdIndex(images, "image", "the split"), IdIndex(captions, "caption", "the split"))
    assert set(read) == {"i2t", "t2i"}
    assert len(read["t2i"].query) == len(read["i2t"].query) == sum(map(len, found["t2i"].values()))


def test_large_splits_have_none(tmp_path, monkeypatch, capsys):
    demo.write_demo(tmp_path, size=8, progress=False)             # dev has 2 images and test 4
    monkeypatch.setattr(demo, "LARGEST", 3)
    demo.write_demo(tmp_path, size=12, progress=False)            # dev 3, test 6
    assert sorted(path.name for path in tmp_path.glob("*/*_positives.json")) == ["dev_positives.json"] * 2
    capsys.readouterr()
    demo.write_demo(tmp_path, size=12)
    assert "are in" in capsys.readouterr().out
