"""The demo data: what its formats share, the same for a seed, and ratings and truths that follow from what is shown."""

import contextlib
import hashlib
import os
import random
import shutil
from itertools import permutations

import numpy as np
import pytest
from PIL import Image

import demo as folders
import files
from cli import InputError
from data import read_split
from demo import __main__ as demo
from demo import layouts, truth
from demo.captions import (
    caption_statement,
    five_captions,
    region_phrases,
    scene_statement,
    shared_weight,
)
from demo.scenes import WORLDS, random_scene
from demo.summary import summarize
from features.filters import global_features, region_features
from phrases.entities import read_entities
from tests.helpers import refused

PRECOMP = ("demo_precomp", "demo_region_precomp")


@pytest.fixture(scope="module", params=WORLDS)
def scenes(request):
    """Scenes of a world and their captions."""
    made, world = [], WORLDS[request.param]
    for k in range(60):
        rng = random.Random(f"scene {k}")
        s = random_scene(rng, world)
        made.append((s, five_captions(rng, s, world)))
    return made


def digests(path):
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return {
        os.path.relpath(each, path): hashlib.sha256(open(each, "rb").read()).hexdigest()
        for each in paths
    }


# ---- files


def test_a_demo_that_was_stopped_ends_as_an_unbroken_one(tmp_path, monkeypatch, capsys):
    """Readers take no half split. Files of others, and demo data of another size, stay as they are."""
    whole, path = tmp_path / "whole", tmp_path / "data"
    counts = demo.write_demo(whole, size=8)
    atomic, save_bytes = files.atomic, folders.save_bytes
    for after in (2, 40, 70, 98):  # of the 103 files
        left = iter(range(after))

        def stopping(write, left=left):
            def call(*args, **kwargs):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return write(*args, **kwargs)

            return call

        for module in (files, layouts, folders):
            monkeypatch.setattr(module, "atomic", stopping(atomic))
        monkeypatch.setattr(folders, "save_bytes", stopping(save_bytes))
        with pytest.raises(KeyboardInterrupt):
            demo.write_demo(path, size=8)
        assert not (path / "demo" / "scenes.json").exists()
        for name in ("demo", "demo_coco", *PRECOMP):
            with contextlib.suppress(InputError):  # a split that is there is whole
                assert (
                    read_split(str(path), name, "test").fingerprint()
                    == read_split(str(whole), name, "test").fingerprint()
                )
        with contextlib.suppress(InputError):
            assert (
                read_entities(str(path / "demo_entities"), "val").phrases
                == read_entities(str(whole / "demo_entities"), "val").phrases
            )
    monkeypatch.undo()
    (path / "demo" / "images" / "holiday.png").write_bytes(b"mine")
    shutil.rmtree(path / "demo_cxc")
    assert demo.write_demo(path, size=8) == counts == demo.write_demo(path, size=8)
    assert "are in" in capsys.readouterr().out
    assert (path / "demo" / "images" / "holiday.png").read_bytes() == b"mine"
    (path / "demo" / "images" / "holiday.png").unlink()
    with pytest.raises(InputError, match="is not of version 4, size 12, seed 0; move"):
        demo.write_demo(path, size=12)
    refused(
        capsys,
        demo.main,
        ["--size", "7"],
        "'7' is not a whole number of at least 8 and at most 100,000",
    )
    assert digests(path) == digests(whole)


def test_several_processes_draw_what_one_draws(tmp_path, demo_path, monkeypatch):
    monkeypatch.setattr(demo, "MANY_IMAGES", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    demo.write_demo(tmp_path, size=48)
    made_by_one = {
        path: digest for path, digest in digests(demo_path).items() if not path.endswith("_bag.npy")
    }
    assert digests(tmp_path) == made_by_one


def test_the_default_data_are_what_they_always_were(demo_path):
    """The pixels, numbers and texts of size 48, seed 0, in every file."""
    digest = hashlib.sha256()
    for folder, _, names in sorted(os.walk(demo_path)):
        where = os.path.relpath(folder, demo_path).replace(os.sep, "/")
        for name in sorted(x for x in names if not x.endswith("_bag.npy")):  # which conftest adds
            path = os.path.join(folder, name)
            content = (
                np.asarray(Image.open(path)).tobytes()
                if name.endswith(".png")
                else np.load(path).tobytes()
                if name.endswith(".npy")
                else open(path, "rb").read()
            )
            digest.update(f"{where}/{name}\0".removeprefix("./").encode() + content)
    assert demo.DEMO_VERSION == 4
    assert digest.hexdigest() == "5004365c4adb41c9cc8f9d67b1dead82a7aa9dbee0713055eb48807d947b9fbd"


def test_a_region_holds_what_its_phrase_names():
    for k in range(50):
        rng = random.Random(f"regions {k}")
        s = random_scene(rng)
        for (x, y, w, h), phrase in region_phrases(rng, s):
            inside = [
                t
                for t in s.things
                if x < t.box[0] < t.x + t.radius < x + w and y < t.box[1] < t.y + t.radius < y + h
            ]
            named = {a for t in s.things for a in (t.shape, t.colour)} & set(phrase.split())
            assert not w or named <= {a for t in inside for a in (t.shape, t.colour)}


def test_other_scenes_share_most_words_and_the_extractor(tmp_path, demo_path, capsys):
    demo.main(["--data_path", str(tmp_path), "--size", "16", "--scenes", "other"])
    assert "other_region_precomp" in capsys.readouterr().out
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        f"other{x}" for x in sorted(demo.FOLDER_ENDINGS)
    ]
    ours, theirs = (
        read_split(demo_path, "demo_precomp", "train"),
        read_split(tmp_path, "other_precomp", "train"),
    )
    assert theirs.captions == read_split(tmp_path, "other", "train").captions
    known = {word for words in ours.words for word in words}
    assert 0.02 < np.mean([word not in known for words in theirs.words for word in words]) < 0.2
    pixels = np.stack(
        [
            np.asarray(Image.open(tmp_path / "other" / "images" / name))
            for name in theirs.photo_names
        ]
    )
    regions = region_features(pixels)
    np.testing.assert_array_equal(theirs.images.array, global_features(regions))
    np.testing.assert_array_equal(
        read_split(tmp_path, "other_region_precomp", "train").images.array,
        regions.astype(np.float16),
    )


# ---- ratings and truths


def test_the_pairing_of_things_is_the_best_of_all(scenes):
    """Against the definition, thing by thing, on captions of every level and the scene of another image."""
    weights, few = (1, 1, 3, 3, 1, 1), 0
    for (s, told), (other, _) in zip(scenes, scenes[1:]):
        for a, b in ((caption_statement(s, caption), scene_statement(other)) for caption in told):
            a, b = (a, b) if len(a.things) <= len(b.things) else (b, a)
            best = 0
            for way in permutations(range(len(b.things)), len(a.things)):
                total = 0
                for i, j in enumerate(way):
                    x, y = a.things[i].tolist(), b.things[j].tolist()
                    total += (
                        sum(w for w, p, q in zip(weights, x, y) if p and p == q)
                        if any(x) and any(y)
                        else 1
                    )
                    total += sum(
                        2
                        for k in range(i)
                        if a.relations[k, i] and a.relations[k, i] == b.relations[way[k], j]
                    )
                best = max(best, total)
            assert shared_weight(a, b) == best + 2 * len(a.rest & b.rest)
            few += len(a.things) > 1
    assert few > 50


def test_truth_is_a_share_of_one_but_for_several_and_follows_from_the_words(scenes):
    """Against `shared_weight`, pair by pair; every caption is true of its own image."""
    captions, images = truth.true_pairs(scenes)
    pairs, vague, claims = set(zip(captions.tolist(), images.tolist())), 0, {}
    shows = [scene_statement(drawn) for drawn, _ in scenes]
    for k, (drawn, caption) in enumerate(
        (drawn, caption) for drawn, five in scenes for caption in five
    ):
        assert (k, k // 5) in pairs
        assert claims.setdefault(caption.text.lower(), truth.claim(drawn, caption)) == truth.claim(
            drawn, caption
        )
        says = caption_statement(drawn, caption)
        whole = {
            image for image, show in enumerate(shows) if shared_weight(says, show) == says.weight
        }
        found = {image for image in range(len(scenes)) if (k, image) in pairs}
        if "several" in caption.text.lower():
            vague += 1
            assert (
                whole
                <= found
                == {
                    image
                    for image in range(len(scenes))
                    if len(scenes[image][0].things) >= 4
                    and (not caption.background or says.rest <= shows[image].rest)
                }
            )
        else:
            assert found == whole
    assert vague and len(pairs) > 1.5 * len(claims)  # many captions are true of other images too


def test_positives_have_the_order_of_the_split_and_both_sides_agree(demo_path):
    start = os.path.join(demo_path, "demo_region_precomp", "test_")
    images, captions = (np.load(f"{start}{kind}_ids.npy").tolist() for kind in ("img", "ann"))
    found = files.read_json(f"{start}positives.json")
    assert list(found["i2t"]) == [str(i) for i in images] and list(found["t2i"]) == [
        str(k) for k in captions
    ]
    assert found["i2t"] == {
        str(i): [k for k in captions if i in found["t2i"][str(k)]] for i in images
    }
    assert all(images[k // 5] in found["t2i"][str(number)] for k, number in enumerate(captions))


def test_summary_says_recalls_chance_and_the_surest_tenth(tmp_path):
    results = {
        "similarity": "mls",
        "images": 1000,
        "captions": 5000,
        "protocols": {"full": {"i2t": {"r1": 74.0, "r10": 94.0}, "t2i": {"r1": 23.9, "r10": 43.6}}},
        "chance": {"full": {"t2i": {"r1": 0.1, "r10": 1.0}}},
        "uncertainty": {"captions": {"recall_bins": {"recall": [84.0, 30.0, 2.0]}}},
    }
    files.save_json(results, str(tmp_path / "results.json"))
    files.save_json(
        {"confidence": {"t2i": {"posterior": {"auroc": 0.92}}}}, str(tmp_path / "confidence.json")
    )
    with pytest.raises(InputError, match="config.yaml.*make demo"):
        summarize(str(tmp_path))
    (tmp_path / "config.yaml").write_text("options:\n  embed_size: 256\n  num_epochs: 12\n")
    assert "tables.txt" not in summarize(str(tmp_path))[3]  # they were printed
    (tmp_path / "tables.txt").write_text("")
    text = "\n".join(summarize(str(tmp_path)))
    for part in (
        "24% of the captions (chance 0.1%)",
        "74% and 94%",
        "84%",
        "in 2%",
        "92%",
        "tables.txt",
    ):
        assert part in text
