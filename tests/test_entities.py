"""Flickr30k Entities: boxes against sets of pixels, phrases read by hand, and refusals."""

import itertools
import json
import os
import random
import re

import numpy as np
import pytest

from metrics import box_areas, box_iou
from phrases import counts
from phrases.entities import photo_paths, read_entities
from utils import InputError


def pixels(box):
    x1, y1, x2, y2 = box
    return set(itertools.product(range(x1, x2 + 1), range(y1, y2 + 1)))


def test_boxes_are_sets_of_pixels():
    rng = random.Random(0)
    boxes = []
    for _ in range(60):
        x = rng.randrange(12)
        y = rng.randrange(12)
        boxes.append((x, y, x + rng.randrange(8), y + rng.randrange(8)))
    a = boxes[:25]
    b = boxes[25:]

    found = box_iou(np.array(a, np.float32), np.array(b))

    expected = np.zeros((25, 35))
    for i, p in enumerate(a):
        for j, q in enumerate(b):
            expected[i, j] = len(pixels(p) & pixels(q)) / len(pixels(p) | pixels(q))
    assert 0 < (expected == 0).sum() < expected.size
    assert found.dtype == np.float64
    assert found.shape == (25, 35)
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    assert box_areas(np.array(a)).tolist() == [len(pixels(p)) for p in a]
    assert box_iou(np.zeros((0, 4)), np.array(b)).shape == (0, 35)


# ---- a data set by hand

BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"
SIZE = "<size><width>100</width><height>80</height><depth>3</depth></size>"
NONE = "<scene>0</scene><nobndbox>1</nobndbox>"


def thing(chains, *box, flags=""):
    names = "".join(f"<name>{chain}</name>" for chain in chains.split())
    return f"<object>{names}{flags or BOX.format(*box)}</object>"


def annotation(*objects, size=SIZE):
    return f"<annotation><filename>x.jpg</filename>{size}{''.join(objects)}</annotation>\n"


PHOTOS = {
    "1000": (
        [
            "[/EN#1/people Two young , White males] in [/EN#2/clothing/other green  shirts] at [/EN#3/scene a bus] .",
            "[/EN#4/people A man 's] is [/EN#0/notvisual the back] of [/EN#5/other time]",
            "",
            "Nothing .",
            "[/EN#2/clothing shirts] [/EN#2/clothing shirts]",
        ],
        annotation(
            thing("1 4", 1, 2, 30, 40),
            thing("1", 50, 5, 100, 80),
            thing("2", 10, 10, 20, 20),
            thing("3", flags="<scene>1</scene><nobndbox>1</nobndbox>"),
            thing("5", flags=NONE),
            thing("9", 1, 1, 2, 2),
        ),
    ),
    "2000": (
        ["No phrase here .", "[/EN#6/scene The sky] ."],
        annotation(thing("6", flags="<scene>1</scene><nobndbox>0</nobndbox>")),
    ),
    "3000": (["[/EN#7/animals A dog] ."], annotation(thing("7", 100, 80, 100, 80))),
    "4000": (
        ["[/EN#8/vehicles Cars] .", "[/EN#9/notvisual it] is [/EN#0/notvisual that] ."],
        annotation(thing("8", flags=NONE), thing("8", 0, 0, 100, 80), thing("0", 1, 1, 2, 2)),
    ),
}


def made(root, splits=(("train", "2000 1000"), ("val", "3000"), ("test", "4000")), **changed):
    """A data set in `root`. changed: photo_NUMBER=(sentences, annotation)."""
    for name in ("Sentences", "Annotations", "images"):
        (root / name).mkdir(parents=True)

    photos = dict(PHOTOS)
    for name, content in changed.items():
        photos[name.removeprefix("photo_")] = content
    for photo, (sentences, annotated) in photos.items():
        (root / "Sentences" / f"{photo}.txt").write_text("\n".join(sentences) + "\n")
        (root / "Annotations" / f"{photo}.xml").write_text(annotated)
        (root / "images" / f"{photo}.jpg").write_bytes(b"")
    for split, ids in splits:
        (root / f"{split}.txt").write_text("\n".join(ids.split()) + "\n")
    return str(root)


def test_phrases_by_hand(tmp_path):
    root = made(tmp_path / "d")

    e = read_entities(root, "train")
    assert e.ids == ["2000", "1000"]
    assert e.sizes.tolist() == [[100, 80], [100, 80]]
    assert e.phrases == ["Two young , White males", "green shirts", "A man 's", "shirts", "shirts"]
    assert e.phrase_photo.tolist() == [1, 1, 1, 1, 1]
    assert e.types == [
        ("people",),
        ("clothing", "other"),
        ("people",),
        ("clothing",),
        ("clothing",),
    ]
    assert e.truth.tolist() == [
        [0, 1, 99, 79],
        [9, 9, 19, 19],
        [0, 1, 29, 39],
        [9, 9, 19, 19],
        [9, 9, 19, 19],
    ]
    assert e.dropped == {"notvisual": 1, "scene": 2, "no box": 1, "fault": 0}
    assert e.faults == []
    assert (e.truth.dtype, e.sizes.dtype, e.phrase_photo.dtype) == (np.float64, np.int64, np.int64)

    assert read_entities(root, "val").truth.tolist() == [[99, 79, 99, 79]]

    e = read_entities(root, "test")  # boxes beside a flag, and chains that need no entry
    assert e.phrases == ["Cars"]
    assert e.dropped == {"notvisual": 2, "scene": 0, "no box": 0, "fault": 0}
    assert e.truth.tolist() == [[-1, -1, 99, 79]]  # a box may lie one pixel outside


def test_photos_by_any_of_their_endings(tmp_path):
    root = made(tmp_path / "d")
    images = os.path.join(root, "images")
    os.rename(os.path.join(images, "1000.jpg"), os.path.join(images, "1000.png"))

    first, second = photo_paths(root, ["1000", "2000"])
    assert first == os.path.join(images, "1000.png")
    assert second == os.path.join(images, "2000.jpg")

    message = r"there is no photo .*images/5.jpg \(nor .jpeg, nor .png\); put"
    with pytest.raises(InputError, match=message):
        photo_paths(root, ["1000", "5"])


# ---- refusals

DOG = ["[/EN#7/animals A dog] ."]


FAULTY_PHOTOS = [
    (
        (DOG, "<annotation><size>"),
        r"3000\.xml is not a whole annotation of a photo \(no element found.*\); fetch",
    ),
    (
        (DOG, f"<!DOCTYPE a [<!ENTITY x 'x'>]>{annotation(thing('7', 1, 1, 2, 2))}"),
        "has a DOCTYPE, .* not read; rem",
    ),
    (
        (DOG, annotation(thing("7", 1, 1, 2, 2), size="")),
        r"annotation of a photo \(int.* not 'NoneType'\); fetch",
    ),
    ((DOG, annotation(thing("7", 1, 1, "2.5", 2))), "annotation .*'2.5'"),
    (([""], annotation(thing("7", 1, 1, 2, 2))), r"3000\.txt holds no sentence"),
    (
        (["Nothing ."], annotation(thing("7", 1, 1, 2, 2))),
        r"val\.txt: no phrase of its 1 photos has a box \(left out: "
        r"notvisual 0, scene 0, no box 0, fault 0\), and at least one must",
    ),
]
FAULTY_SPLITS = [
    ((("train", "1000"),), r"there is no file .*val\.txt; Flickr30k Entities has"),
    ((("val", "3000 1000 3000"),), r"val\.txt name the photo '3000' more than once; "),
    (
        (("train", "1000 3000"), ("val", "4000 3000"), ("test", "2000")),
        r"train\.txt and .*val\.txt name the photo '3000' more than once; a photo is of one split",
    ),
    ((("val", "3000 ../1000"),), r"names the photo '\.\./1000'; an id is of letters"),
    (
        (("val", "3000 5"),),
        r"there is no file .*Annotations.5\.xml; a split names the photo 5: fetch the",
    ),
]


@pytest.mark.parametrize(
    "name, content, message",
    [
        *(("photo_3000", *case) for case in FAULTY_PHOTOS),
        *(("splits", *case) for case in FAULTY_SPLITS),
    ],
)
def test_faulty_files_are_refused_in_one_sentence(name, content, message, tmp_path):
    root = made(tmp_path / "d", **{name: content})
    with pytest.raises(InputError, match=message) as refusal:
        read_entities(root, "val")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


SOUND = ["[/EN#1/people A man] ."]


@pytest.mark.parametrize(
    "photo, message",
    [
        (
            (DOG, annotation(thing("7 8", 5, 5, 4, 9))),
            "the box 4, 4, 3, 8 of chain 7, 8, pixels from 0, is inverted or leaves the photo, "
            "100 x 80 pixels, and is p",
        ),
        ((DOG, annotation(thing("7", -1, 1, 9, 9))), "the box -2, 0, 8, 8"),
        (
            (["A cat .", "[/EN#8/animals A cat] ."], annotation(thing("7", 1, 1, 9, 9))),
            r"3000\.txt, sentence 2: 'A cat' is left out, as .*3000\.xml gives its chain 8 "
            "neither a box in the photo nor a",
        ),
        (
            (["[/EN#7/animals A dog"], annotation(thing("7", 1, 1, 2, 2))),
            r"sentence 1: the mark of a phrase at '\[/EN#7",
        ),
        ((["[/EN#7/animals ] ."], annotation(thing("7", 1, 1, 2, 2))), "is not whole"),
    ],
)
def test_a_fault_of_one_entry_costs_that_alone(photo, message, tmp_path):
    """Beside it stands a sound phrase, which stays; `phrases.data` names every fault."""
    sentences, xml = photo
    objects = xml.replace("</annotation>", thing("1", 3, 3, 9, 9) + "</annotation>")
    root = made(tmp_path / "d", photo_3000=([*sentences, *SOUND], objects))

    e = read_entities(root, "val")

    assert e.phrases[-1:] == ["A man"]
    assert len(e.phrases) <= 2
    assert e.truth[-1].tolist() == [2, 2, 8, 8]
    assert e.dropped["fault"] == 1
    assert re.search(message, " ".join(e.faults))
    for text in e.faults:
        assert "\n" not in text
        assert len(text) < 500


# ---- how many photos show a thing


def test_photos_that_show_a_word_are_counted_beside_those_whose_captions_name_it(tmp_path, capsys):
    root = tmp_path / "x"
    (root / "Sentences").mkdir(parents=True)
    (root / "Annotations").mkdir()

    def photo(number, captions, *objects):
        (root / "Sentences" / f"{number}.txt").write_text("\n".join(captions))
        (root / "Annotations" / f"{number}.xml").write_text(annotation(*objects))

    dog = "[/EN#1/animals A black dog] runs ."
    photo(
        1,
        [dog, dog, "Two [/EN#1/animals dogs] .", "[/EN#1/animals It] runs .", "Black ."],
        thing("1", 1, 2, 30, 40),
    )
    photo(
        2,
        [dog, "[/EN#2/animals A cat] on [/EN#3/scene a beach] .", "x", "x", "x"],
        thing("1", 1, 2, 30, 40),
        thing("2", flags=NONE),
        thing("3", flags="<scene>1</scene><nobndbox>0</nobndbox>"),
    )

    photo(3, ["[/EN#0/notvisual The dog] is not there .", "x", "x", "x", "x"])

    (root / "test.txt").write_text("1\n2\n3\n")
    data = ["--data_path", str(tmp_path), "--data_name", "x"]

    output = str(tmp_path / "o.json")
    counts.main([*data, "--least", "1", "--splits", "test", "test", "--output", output])
    found = json.load(open(output))
    # photo 1 names the dog in three captions and photo 2 in one, of which 4 of 10; photo 3 names it and shows none
    assert found["by_word"] == {
        "dog": {
            "shown": 2,
            "named": 3,
            "precision": pytest.approx(200 / 3),
            "one": pytest.approx(40),
            "estimated": 2,
        },
        "it": found["by_word"]["it"],
    }
    assert found["shown"]["factor"] == pytest.approx((1 + 3 / 2) / 2)  # "it": one photo and one
    assert "2 words, photos by captions and photos, by boxes: rank" in capsys.readouterr().out

    (tmp_path / "words.csv").write_text("beach,Strand\nblack,schwarz\ncat,Katze\ndogs,Hunde\n")
    output = str(tmp_path / "p.json")
    words = ["--words", str(tmp_path / "words.csv"), "--scenes"]
    counts.main([*data, "--least", "1", *words, "--output", output])
    assert set(json.load(open(output))["by_word"]) == {"beach", "dogs"}

    message = "no word is shown by 4 of the 3 photos; give a smaller --least"
    with pytest.raises(SystemExit, match=message):
        counts.main([*data, "--least", "4"])


def test_photos_that_more_captions_would_add_are_estimated():
    words = counts.WordCounts()
    words.showing["dog"] = set("abcdef")
    words.naming["dog"].update({"a": 1, "b": 1, "c": 1, "d": 2, "e": 5, "f": 4, "g": 1})

    found = words.compare("dog")

    assert found["estimated"] == pytest.approx(6 + 4 / 5 * 3 * 2 / (2 * 2))  # Chao 1987: f1 3, f2 1
    assert found["precision"] == pytest.approx(600 / 7)
    assert found["one"] == pytest.approx(100 * 14 / 30)
