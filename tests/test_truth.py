"""The truth of captions: every pair of a split against a twin that parses the words."""
import json
import os
import random
import re
from itertools import permutations

import numpy as np
import pytest

from demo import __main__ as demo
from demo import truth
from demo.captions import caption_statement, five_captions, scene_statement, shared_weight
from demo.scenes import DEMO, WORLDS, random_scene
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


# ---- the twin: what the words say, and what scenes.json shows

MEANING = {word: meaning for meaning, words in DEMO.words.items() for word in words}
RELATION = "|".join(sorted((f" {word} " for key in ("left", "right", "above", "below") for word in DEMO.words[key]),
                           key=len, reverse=True))
COUNT = {"one": 1, "two": 2, "a couple of": 2, "three": 3, "four": 4, "five": 5, "six": 6}
PLACE = r" (in the (?:middle|centre)|in the (?:top|upper|bottom|lower) (?:left|right) corner|on the (?:left|right)|" \
        r"at the (?:top|bottom))$"


def meanings(phrase):
    """The attributes that a phrase gives a thing, as words of scenes.json, without the general noun."""
    words = re.sub(r"^(an?|another) ", "", phrase).split()
    return {MEANING.get(word, word) for word in words} - {"any"}


def singular(phrase):
    """The kind that a phrase in the plural or the singular names: a shape, a colour or "any"."""
    words = [re.sub(r"(?<=ss)es$|(?<=[^s])s$", "", word) for word in phrase.split()]
    named = {MEANING.get(word, word) for word in words}
    return next(iter(named - {"any"}), "any")


def parsed(text):
    """Content of a caption.
    {"background", "shaded", "counts": [(kind, number)], "least", "things": [(attributes, place)], "relations": [(i,
    word, j)]}."""
    text = text.lower().removesuffix(" .")
    text = re.sub("^(" + "|".join(DEMO.openings) + ") ", "", text)
    told = {"background": None, "shaded": False, "counts": [], "least": 0, "things": [], "relations": []}
    for pattern in (r" in front of (\w+) and sky$", r" with (\w+) and sky behind$",
                    r" on an? (?:shaded )?(\w+) background$"):
        if found := re.search(pattern, text):
            told["background"], told["shaded"] = found[1], "shaded" in found[0]
            text = text[:found.start()]
    if found := re.match("(some|several) ", text):
        return {**told, "least": 3 if found[1] == "some" else 4}
    clauses = re.split(r" , | and ", text)
    numbers = "|".join(COUNT)
    if re.search(f"^({numbers}) ", clauses[-1]) or len(clauses) > 1 and not re.search(RELATION, text):
        for clause in clauses:                               # "two circles and a star"
            number, kind = re.match(f"({numbers}|an?) (.*)", clause).groups()
            told["counts"].append((singular(kind), COUNT.get(number, 1)))
        return told
    for clause in clauses:
        place = re.search(PLACE, clause)
        ends = re.split(f"({RELATION})", re.sub(PLACE, "", clause))
        if len(ends) == 3:
            n = len(told["things"])
            told["relations"].append((n, MEANING.get(ends[1].strip(), ends[1].strip()), n + 1))
        for phrase in ends[::2]:
            told["things"].append((meanings(phrase), place[1] if place else ""))
    return told


def centre(thing):
    x, y, w, h = thing["box"]
    return x + w / 2, y + h / 2


def seen(a, b):
    """The word for where a lies seen from b."""
    (ax, ay), (bx, by) = centre(a), centre(b)
    if abs(ax - bx) > abs(ay - by):
        return "left" if ax < bx else "right"
    return "above" if ay < by else "below"


def at(thing, place):
    """True if a phrase for a place holds.
    Places are the outer thirds of the image, or 15 pixels around its centre."""
    x, y = centre(thing)
    middle = abs(x - 64) <= 15 and abs(y - 64) <= 15
    if "middle" in place or "centre" in place:
        return middle
    inside = {"left": x <= 42, "right": x >= 86, "top": y <= 42, "upper": y <= 42, "bottom": y >= 86, "lower": y >= 86}
    return all(inside[word] for word in place.split() if word in inside)


def is_true(told, entry):
    """True if the result of `parsed` holds in an entry of scenes.json."""
    things = entry["objects"]
    if told["background"] not in (None, entry["background"]) or told["shaded"] and not entry["shaded"]:
        return False
    if len(things) < told["least"]:
        return False
    for kind, number in told["counts"]:
        if sum(kind in ("any", x["colour"], x["shape"]) for x in things) != number:
            return False
    return any(all(attributes <= set(list(x.values())[:4]) and at(x, place)
                   for x, (attributes, place) in zip(chosen, told["things"]))
               and all(seen(chosen[i], chosen[j]) == word for i, word, j in told["relations"])
               for chosen in permutations(things, len(told["things"])))


def stored(demo_path, name, split):
    folder = os.path.join(demo_path, name)
    images, captions = (np.load(f"{folder}/{split}_{kind}_ids.npy").tolist() for kind in ("img", "ann"))
    with open(f"{folder}/{split}_positives.json", encoding="utf-8") as file:
        return json.load(file), images, captions


@pytest.mark.parametrize("name, split", PARTS)
def test_positives_equal_the_twin_on_all_pairs(demo_path, name, split):
    found, images, captions = stored(demo_path, name, split)
    with open(os.path.join(demo_path, "demo", "scenes.json"), encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if entry["split"] == split]
    told = [caption for entry in entries for caption in entry["captions"]]
    claims = [parsed(caption["raw"]) for caption in told]
    expected = {str(k): [image for image, entry in zip(images, entries, strict=True) if is_true(said, entry)]
                for k, said in zip(captions, claims)}
    assert found["t2i"] == expected and len(images) * len(captions) >= 720
    assert found["i2t"] == {str(i): [k for k in captions if i in expected[str(k)]] for i in images}
    assert all(images[k // 5] in expected[str(number)] for k, number in enumerate(captions))
    assert sum(map(len, expected.values())) > 1.5 * len(captions)
    assert list(found["i2t"]) == [str(i) for i in images] and list(found["t2i"]) == [str(k) for k in captions]


def test_evaluation_reads_the_positives(demo_path):
    found, images, captions = stored(demo_path, "demo_precomp", "test")
    path = os.path.join(demo_path, "demo_precomp", "test_positives.json")
    read = read_positives(path, IdIndex(images, "image", "the split"), IdIndex(captions, "caption", "the split"))
    assert set(read) == {"i2t", "t2i"}
    assert len(read["t2i"].pairs.query) == len(read["i2t"].pairs.query) == sum(map(len, found["t2i"].values()))


# ---- files

def test_large_splits_have_none(tmp_path, monkeypatch, capsys):
    demo.write(tmp_path, size=8, progress=False)             # dev has 2 images and test 4
    monkeypatch.setattr(demo, "LARGEST", 3)
    demo.write(tmp_path, size=12, progress=False)            # dev 3, test 6
    assert sorted(path.name for path in tmp_path.glob("*/*_positives.json")) == ["dev_positives.json"] * 2
    capsys.readouterr()
    demo.write(tmp_path, size=12)
    assert "are in" in capsys.readouterr().out
