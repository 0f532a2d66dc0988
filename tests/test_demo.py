"""The demo data: what its formats share, the same for a seed, and ratings and truths that follow from what is shown."""

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
from itertools import permutations

import numpy as np
import pytest
from PIL import Image

import demo as folders
import utils
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
from tests.helpers import ROOT, refused
from utils import InputError

PRECOMP = ("demo_precomp", "demo_region_precomp")


@pytest.fixture(scope="module", params=WORLDS)
def scenes(request):
    """Scenes of a world and their captions."""
    world = WORLDS[request.param]
    made = []
    for k in range(40):
        rng = random.Random(f"scene {k}")
        s = random_scene(rng, world)
        made.append((s, five_captions(rng, s, world)))
    return made


def digests(path):
    """{file below a folder: its digest}"""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = os.path.join(folder, name)
            content = open(file, "rb").read()
            found[os.path.relpath(file, path)] = hashlib.sha256(content).hexdigest()
    return found


# ---- files


def stop_when_none_is_left(write, left):
    """A function that stands for Ctrl-C once the iterator `left` is at its end."""

    def call(*args, **kwargs):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return write(*args, **kwargs)

    return call


def test_a_demo_that_was_stopped_ends_as_an_unbroken_one(tmp_path, monkeypatch, capsys):
    """Readers take no half split. Files of others, and demo data of another size, stay as they are."""
    whole = tmp_path / "whole"
    path = tmp_path / "data"
    counts = demo.write_demo(whole, size=8)
    atomic = utils.atomic
    save_bytes = folders.save_bytes

    for after in (2, 40, 70, 98):  # of the 103 files
        left = iter(range(after))  # of both ways to write
        for module in (utils, layouts, folders):
            monkeypatch.setattr(module, "atomic", stop_when_none_is_left(atomic, left))
        monkeypatch.setattr(folders, "save_bytes", stop_when_none_is_left(save_bytes, left))
        with pytest.raises(KeyboardInterrupt):
            demo.write_demo(path, size=8)
        assert not (path / "demo" / "scenes.json").exists()

        for name in ("demo", "demo_coco", *PRECOMP):
            with contextlib.suppress(InputError):  # a split that is there is whole
                split = read_split(str(path), name, "test")
                assert split.fingerprint() == read_split(str(whole), name, "test").fingerprint()
        with contextlib.suppress(InputError):
            entities = read_entities(str(path / "demo_entities"), "val")
            expected = read_entities(str(whole / "demo_entities"), "val")
            assert entities.phrases == expected.phrases
    monkeypatch.undo()

    own_photo = path / "demo" / "images" / "holiday.png"
    own_photo.write_bytes(b"mine")
    shutil.rmtree(path / "demo_cxc")
    assert demo.write_demo(path, size=8) == counts == demo.write_demo(path, size=8)
    assert "are in" in capsys.readouterr().out
    assert own_photo.read_bytes() == b"mine"

    own_photo.unlink()
    with pytest.raises(InputError, match="is not of version 4, size 12, seed 0; move"):
        demo.write_demo(path, size=12)
    message = "'7' is not a whole number of at least 8 and at most 100,000"
    refused(capsys, demo.main, ["--size", "7"], message)
    assert digests(path) == digests(whole)


def test_several_processes_draw_what_one_draws(tmp_path, demo_path, monkeypatch):
    monkeypatch.setattr(demo, "MANY_IMAGES", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})

    demo.write_demo(tmp_path, size=48)

    made_by_one = digests(demo_path)
    for path in list(made_by_one):
        if path.endswith("_bag.npy"):  # which conftest adds
            del made_by_one[path]
    assert digests(tmp_path) == made_by_one


def read_content(path) -> bytes:
    """Of an image its pixels, of an array its numbers: what the libraries that write them do not change."""
    if path.endswith(".png"):
        return np.asarray(Image.open(path)).tobytes()
    if path.endswith(".npy"):
        return np.load(path).tobytes()
    return open(path, "rb").read()


def test_the_default_data_are_what_they_always_were(demo_path):
    """The pixels, numbers and texts of size 48, seed 0, in every file."""
    digest = hashlib.sha256()
    for folder, _, names in sorted(os.walk(demo_path)):
        where = os.path.relpath(folder, demo_path).replace(os.sep, "/")
        for name in sorted(x for x in names if not x.endswith("_bag.npy")):  # which conftest adds
            content = read_content(os.path.join(folder, name))
            digest.update(f"{where}/{name}\0".removeprefix("./").encode() + content)
    assert demo.DEMO_VERSION == 4
    assert digest.hexdigest() == "5004365c4adb41c9cc8f9d67b1dead82a7aa9dbee0713055eb48807d947b9fbd"


def list_attributes(things) -> set:
    found = set()
    for thing in things:
        found |= {thing.shape, thing.colour}
    return found


def is_inside(thing, box) -> bool:
    x, y, w, h = box
    left, top = thing.box[:2]
    return x < left < thing.x + thing.radius < x + w and y < top < thing.y + thing.radius < y + h


def test_a_region_holds_what_its_phrase_names():
    for k in range(50):
        rng = random.Random(f"regions {k}")
        s = random_scene(rng)
        for box, phrase in region_phrases(rng, s):
            named = list_attributes(s.things) & set(phrase.split())
            shown = list_attributes(thing for thing in s.things if is_inside(thing, box))
            width = box[2]
            assert not width or named <= shown


def test_other_scenes_share_most_words_and_the_extractor(tmp_path, demo_path, capsys):
    demo.main(["--data_path", str(tmp_path), "--size", "16", "--scenes", "other"])

    assert "other_region_precomp" in capsys.readouterr().out
    expected = [f"other{x}" for x in sorted(demo.FOLDER_ENDINGS)]
    assert sorted(x.name for x in tmp_path.iterdir()) == expected

    ours = read_split(demo_path, "demo_precomp", "train")
    theirs = read_split(tmp_path, "other_precomp", "train")
    assert theirs.captions == read_split(tmp_path, "other", "train").captions

    known = set()
    for words in ours.words:
        known.update(words)
    is_new = []
    for words in theirs.words:
        is_new += [word not in known for word in words]
    assert 0.02 < np.mean(is_new) < 0.2

    photos = tmp_path / "other" / "images"
    pixels = np.stack([np.asarray(Image.open(photos / name)) for name in theirs.photo_names])
    regions = region_features(pixels)
    np.testing.assert_array_equal(theirs.images.array, global_features(regions))
    of_regions = read_split(tmp_path, "other_region_precomp", "train")
    np.testing.assert_array_equal(of_regions.images.array, regions.astype(np.float16))


# ---- ratings and truths


def weigh_shared_attributes(x, y) -> int:
    """Of two things, lists of the numbers of their attributes; 0 is one that is not said."""
    if not any(x) or not any(y):
        return 1
    weights = (1, 1, 3, 3, 1, 1)
    return sum(weight for weight, p, q in zip(weights, x, y) if p and p == q)


def weigh_pairing(a, b, partners) -> int:
    """What two statements share where thing i of `a` is thing partners[i] of `b`."""
    total = 0
    for i, j in enumerate(partners):
        total += weigh_shared_attributes(a.things[i].tolist(), b.things[j].tolist())
        for k in range(i):
            relation = a.relations[k, i]
            if relation and relation == b.relations[partners[k], j]:
                total += 2
    return total


def test_the_pairing_of_things_is_the_best_of_all(scenes):
    """Against the definition, thing by thing, on captions of every level and the scene of another image."""
    of_several_things = 0
    for (s, captions), (other, _) in zip(scenes, scenes[1:]):
        for caption in captions:
            a = caption_statement(s, caption)
            b = scene_statement(other)
            if len(a.things) > len(b.things):
                a, b = b, a
            pairings = permutations(range(len(b.things)), len(a.things))
            best = max(weigh_pairing(a, b, partners) for partners in pairings)
            assert shared_weight(a, b) == best + 2 * len(a.rest & b.rest)
            if len(a.things) > 1:
                of_several_things += 1
    assert of_several_things > 50


def test_truth_is_a_share_of_one_but_for_several_and_follows_from_the_words(scenes):
    """Against `shared_weight`, pair by pair; every caption is true of its own image."""
    captions, images = truth.true_pairs(scenes)
    pairs = set(zip(captions.tolist(), images.tolist()))

    shows = [scene_statement(drawn) for drawn, _ in scenes]
    told = []
    for drawn, five in scenes:
        told += [(drawn, caption) for caption in five]

    vague = 0
    claims = {}
    for k, (drawn, caption) in enumerate(told):
        assert (k, k // 5) in pairs
        text = caption.text.lower()
        claim = truth.claim(drawn, caption)
        assert claims.setdefault(text, claim) == claim

        says = caption_statement(drawn, caption)
        found = {image for image in range(len(scenes)) if (k, image) in pairs}
        whole = {
            image for image, show in enumerate(shows) if shared_weight(says, show) == says.weight
        }
        if "several" not in text:
            assert found == whole
            continue

        vague += 1
        crowded = {image for image, (scene, _) in enumerate(scenes) if len(scene.things) >= 4}
        if caption.background:
            crowded = {image for image in crowded if says.rest <= shows[image].rest}
        assert found == crowded
        assert whole <= found

    assert vague
    assert len(pairs) > 1.5 * len(claims)  # many captions are true of other images too


def test_positives_have_the_order_of_the_split_and_both_sides_agree(demo_path):
    start = os.path.join(demo_path, "demo_region_precomp", "test_")
    images = np.load(f"{start}img_ids.npy").tolist()
    captions = np.load(f"{start}ann_ids.npy").tolist()

    found = utils.read_json(f"{start}positives.json")

    assert list(found["i2t"]) == [str(i) for i in images]
    assert list(found["t2i"]) == [str(k) for k in captions]
    for i in images:
        assert found["i2t"][str(i)] == [k for k in captions if i in found["t2i"][str(k)]]
    for n, k in enumerate(captions):
        assert images[n // 5] in found["t2i"][str(k)]


def test_summary_says_recalls_chance_and_the_most_confident_tenth(tmp_path):
    results = {
        "similarity": "mls",
        "images": 1000,
        "captions": 5000,
        "protocols": {"full": {"i2t": {"r1": 74.0, "r10": 94.0}, "t2i": {"r1": 23.9, "r10": 43.6}}},
        "chance": {"full": {"t2i": {"r1": 0.1, "r10": 1.0}}},
        "uncertainty": {"captions": {"recall_bins": {"recall": [84.0, 30.0, 2.0]}}},
    }
    confidences = {"confidence": {"t2i": {"posterior": {"auroc": 0.92}}}}
    utils.save_json(results, str(tmp_path / "results.json"))
    utils.save_json(confidences, str(tmp_path / "confidence.json"))

    with pytest.raises(InputError, match="config.yaml.*make demo"):
        summarize(str(tmp_path))

    (tmp_path / "config.yaml").write_text("options:\n  embed_size: 256\n  num_epochs: 12\n")
    assert "tables.txt" not in summarize(str(tmp_path))[3]  # they were printed

    of_points = {name: value for name, value in results.items() if name != "uncertainty"}
    utils.save_json(of_points, str(tmp_path / "results.json"))
    with pytest.raises(InputError, match="lacks recalls by tenths of Gaussian captions"):
        summarize(str(tmp_path))
    utils.save_json(results, str(tmp_path / "results.json"))

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


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("verbose", [[], ["VERBOSE=1"]], ids=["quiet", "verbose"])
def test_make_demo_evaluates_and_calibrates_side_by_side(verbose):
    """What is printed stands in one order all the same: the tables of evaluate.py come first."""
    words = ["make", "-n", "demo", "RUN=own", "DATA=there", *verbose]
    inherited = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VERBOSE")  # of make test
    env = {name: value for name, value in os.environ.items() if name not in inherited}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    target = "" if verbose else " >> own/tables.txt"
    lines = [line.rstrip() for line in done.stdout.replace("\\\n", "").splitlines()]
    (evaluation,) = [k for k, line in enumerate(lines) if "evaluate.py --checkpoint own" in line]
    (confidence,) = [k for k, line in enumerate(lines) if "-m confidence own" in line]
    together = [k for k, line in enumerate(lines) if "-j 2 demo-evaluation demo-confidence" in line]
    shown = lines.index(f"cat own/confidence.txt{target}")
    assert together[0] < min(evaluation, confidence) < max(evaluation, confidence) < shown
    assert lines[evaluation].endswith(f"test_positives.json{target}")
    assert lines[confidence].endswith("--photos there/demo/images > own/confidence.txt")
    assert lines[-1].endswith("-m demo.summary own")
