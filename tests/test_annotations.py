"""Readers of judgements: small files in the real formats, every bad input with its sentence, counts of real files."""

import csv
import itertools
import json

import numpy as np
import pytest

from data import read_split
from evaluation import annotations
from evaluation.annotations import IdIndex, Pairs
from utils import InputError, integers

IMAGES = [30, 10, 20]  # not sorted, as captions are not
CAPTIONS = [105, 101, 104, 102, 103, 106, 107]
OWNER = np.array([0, 0, 1, 2, 2, 1, 2])  # unequal, not in runs
HEADS = {"sts": "caption1,caption2", "sis": "image1,image2", "sits": "caption,image"}
RATED = {
    "sts": [
        (105, 104, 3.0),
        (101, 102, 2.99),
        (104, 106, 1.0),
        (103, 107, 0),
        (107, 105, 5),
        (102, 106, 2.5),
        (106, 102, 3.5),
        (102, 101, 3.0),
    ],
    "sis": [(30, 10, 2.4), (10, 30, 2.6), (20, 10, 2.5), (30, 20, 4.0), (20, 30, 0.9)],
    "sits": [
        (105, 10, 3.0),
        (104, 30, 2.99),
        (105, 30, 1.0),
        (102, 20, 4.97),
        (103, 30, 5),
        (101, 30, 3.2),
    ],
}


def index(images=IMAGES, captions=CAPTIONS):
    return IdIndex(images, "image", "split"), IdIndex(captions, "caption", "split")


def spelt(number, column):
    """An id as the files have it in a column."""
    if column.startswith("image"):
        return f"COCO_val2014_{number:012d}.jpg"
    return f"COCO_val2014:sentid:{number}"


@pytest.fixture
def cxc(tmp_path):
    """The three files of the test part as they are published."""
    for kind, rows in RATED.items():
        with open(tmp_path / f"{kind}_test.csv", "w", encoding="utf-8", newline="") as f:
            table = csv.writer(f)
            first, second = HEADS[kind].split(",")
            table.writerow([first, second, "agg_score", "sampling_method"])
            for a, b, score in rows:
                table.writerow([spelt(a, first), spelt(b, second), score, "c2c_isim"])
    return tmp_path


def refused(message, reader, *words):
    """InputError of one line that says it."""
    with pytest.raises(InputError, match=message) as caught:
        reader(*words)
    assert "\n" not in str(caught.value)


def named(pairs, queries, items):
    """Pairs of positions as a set of pairs of ids; sorted and each once, as promised."""
    as_listed = list(zip(pairs.query.tolist(), pairs.item.tolist()))
    assert as_listed == sorted(set(as_listed))
    return {(queries[q], items[g]) for q, g in as_listed}


def test_pairs_turn_around_and_are_found_within_lists():
    rng = np.random.default_rng(0)
    firsts = rng.integers(0, 12, 60)
    seconds = rng.integers(0, 20, 60)
    pairs = Pairs.of(firsts, seconds)
    assert named(pairs, range(12), range(20)) == set(zip(firsts, seconds))
    assert named(pairs.swapped(), range(20), range(12)) == set(zip(seconds, firsts))

    queries = np.sort(rng.permutation(15)[:7])  # some beyond all pairs
    items = np.sort(rng.permutation(20)[:9])
    inside = {(q, g) for q, g in zip(firsts, seconds) if q in queries and g in items}
    assert inside
    assert named(pairs.among(queries, items), queries.tolist(), items.tolist()) == inside


# ---- Crisscrossed Captions


def test_ratings_and_matches_of_crisscrossed_captions(cxc):
    ratings, pairs = annotations.read_cxc(str(cxc), "test", *index(), OWNER)

    for kind, firsts, seconds in (
        ("sts", CAPTIONS, CAPTIONS),
        ("sis", IMAGES, IMAGES),
        ("sits", CAPTIONS, IMAGES),
    ):
        r = ratings[kind]
        read = [(firsts[a], seconds[b], s) for a, b, s in zip(r.first, r.second, r.score)]
        assert read == RATED[kind]

    rated = {(10, 105), (20, 102), (30, 103), (30, 101)}  # exactly 3 counts, 2.99 does not
    own = {(30, 105), (30, 101), (10, 104), (20, 102), (20, 103), (10, 106), (20, 107)}
    assert named(pairs["i2t"], IMAGES, CAPTIONS) == rated | own
    assert named(pairs["t2i"], CAPTIONS, IMAGES) == {(c, i) for i, c in rated | own}

    # 10-30: mean of 2.4 and 2.6 is 2.5, the threshold; 20-30: mean of 4 and 0.9 is below
    assert named(pairs["i2i"], IMAGES, IMAGES) == {(30, 10), (10, 30), (20, 10), (10, 20)}

    of_one_image = set()  # co-captions, even where rated 0 or 1
    for group in ({105, 101}, {104, 106}, {102, 103, 107}):
        of_one_image.update(itertools.permutations(group, 2))
    # 101-102: mean of 2.99 and 3.0 is below; 102-106: mean of 2.5 and 3.5 is 3
    similar = {(105, 104), (107, 105), (102, 106)}
    similar |= {(b, a) for a, b in similar}
    assert named(pairs["t2t"], CAPTIONS, CAPTIONS) == of_one_image | similar


# ---- instances


def coco(pairs, images=IMAGES, categories=(90, 1, 7)):
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in images],
        "categories": [{"id": c} for c in categories],
        "annotations": [
            {"id": k, "image_id": i, "category_id": c, "iscrowd": k % 2}
            for k, (i, c) in enumerate(pairs)
        ],
    }


def test_instances(tmp_path):
    """How many things of a category an image shows, by category id; other splits' images do not matter."""
    things = [(20, 90), (20, 1), (20, 90), (30, 7), (99, 1)]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(coco(things, images=[99, *sorted(IMAGES)])))
    images, _ = index()

    counts = annotations.read_instances(str(path), images)

    assert counts.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 2]]


# ---- positives


def write_json(path, content):
    path.write_text(json.dumps(content))
    return str(path)


def test_positives(tmp_path):
    """Either direction or both; queries that are not listed do not exist."""
    path = tmp_path / "p.json"
    stored = {"i2t": {"20": [107, 105, 107], "30": [], "10": []}, "t2i": {"106": [10, 20, 30]}}
    read = annotations.read_positives(write_json(path, stored), *index())
    assert named(read["i2t"], IMAGES, CAPTIONS) == {(20, 107), (20, 105)}
    assert named(read["t2i"], CAPTIONS, IMAGES) == {(106, 10), (106, 20), (106, 30)}

    read = annotations.read_positives(write_json(path, {"t2i": stored["t2i"]}), *index())
    assert set(read) == {"t2i"}


def test_eccv_files(tmp_path):
    """Read by id; captions that no split holds, of which the real file names two, are left out."""
    refused("pip install eccv_caption", annotations.read_eccv, None, *index())
    write_json(tmp_path / "eccv_image_to_caption.json", {"30": [105, 999, 101], "20": [102]})
    write_json(tmp_path / "eccv_caption_to_image.json", {"107": [20, 10]})
    pairs = annotations.read_eccv(str(tmp_path), *index())
    assert named(pairs["i2t"], IMAGES, CAPTIONS) == {(30, 105), (30, 101), (20, 102)}
    assert named(pairs["t2i"], CAPTIONS, IMAGES) == {(107, 20), (107, 10)}
    write_json(tmp_path / "eccv_caption_to_image.json", {"999": [20]})
    refused("names 1 captions that split lacks", annotations.read_eccv, str(tmp_path), *index())


def test_eccv_of_the_package_of_its_authors():
    """1,261 images and 1,332 captions are queries."""
    pytest.importorskip(
        "eccv_caption", reason="eccv_caption (requirements-dev.txt) is not installed"
    )
    folder = annotations.eccv_folder()
    captions = np.load(f"{folder}/coco_test_ids.npy").tolist()
    with open(f"{folder}/original_caption_to_image.json", encoding="utf-8") as f:
        owner = json.load(f)
    images = list(dict.fromkeys(owner[str(c)][0] for c in captions))

    pairs = annotations.read_eccv(folder, *index(images, captions))

    assert len(np.unique(pairs["i2t"].query)) == 1261
    assert len(np.unique(pairs["t2i"].query)) == 1332


# ---- what is refused


def read_ratings(path):
    return annotations.read_ratings(path, "sits", *index())


def read_instances(path):
    images, _ = index()
    return annotations.read_instances(path, images)


def read_positives(path):
    return annotations.read_positives(path, *index())


READERS = {
    "--cxc_path": read_ratings,
    "--instances": read_instances,
    "--positives": read_positives,
}
HEAD = "caption,image,agg_score"
ROW = "COCO_val2014:sentid:105,COCO_val2014_000000000030.jpg"


@pytest.mark.parametrize(
    "option,text,message",
    [
        ("--cxc_path", "caption,image\n", "needs the columns caption, image, agg_score"),
        ("--cxc_path", f"{HEAD}\n{ROW},3\n{ROW},5.1\n", "line 3 .*the rating is '5.1'"),
        ("--cxc_path", f"{HEAD},more\n{ROW},4.97,c2i\n{ROW},4", "line 3 .*it was cut off"),
        (
            "--cxc_path",
            f"{HEAD}\n105,COCO_val2014_000000000030.jpg,3\n",
            "line 2 .*'105' names no id",
        ),
        (
            "--cxc_path",
            f"{HEAD}\nCOCO_val2014:sentid:999,COCO_val2014_000000000030.jpg,3\n",
            "names 1 captions that split lacks .first: 999",
        ),
        (
            "--instances",
            json.dumps(coco([(10, 1)], images=[10, 20])),
            "lacks 1 of the 3 images of split .first: 30",
        ),
        ("--instances", json.dumps(coco([(10, 5)])), "is not a file of COCO instances"),
        (
            "--instances",
            '{"images": [{"file_name": "a"}]}',
            r"or lacks a field \(KeyError 'id'\); fetch it again",
        ),
        ("--instances", "[1, 2]", "has 0 categories"),
        (
            "--positives",
            '{"i2t": {"31": [105]}}',
            "names 1 images that split lacks .first: 31",
        ),
        (
            "--positives",
            '{"i2t": {"30": [[105]]}}',
            r"the caption id \[105\], which is not a whole number",
        ),
        ("--positives", '{"i2t": null}', "is not a table of ids"),
        ("--positives", "[]", "holds no positives"),
    ],
)
def test_bad_files(tmp_path, option, text, message):
    """Of each option, and a file that is not there."""
    path = str(tmp_path / "sits_test.csv")
    refused(f"there is no file .*{option}", READERS[option], path)
    (tmp_path / "sits_test.csv").write_text(text)
    refused(message, READERS[option], path)


def test_splits_that_cannot_be_annotated():
    for ids, message in (
        (["a.jpg", "b.jpg"], r"split has no image ids.*\{split\}_img_ids.npy"),
        ([4, 7, 4, 7, 4, 1], "split lists image id 4 twice; every image needs"),
    ):
        refused(message, IdIndex, ids, "image", "split")


@pytest.mark.parametrize(
    "values", [[3, -(2**63), 2**63 - 1], [np.int64(3), 4], np.arange(3), (5,), []], ids=repr
)
def test_whole_numbers_are_converted(values):
    assert integers(values, "a.json", "the id").tolist() == list(values)
    assert integers(values, "a.json", "the id").dtype == np.int64


@pytest.mark.parametrize(
    "value, spelled", [(2**63, 2**63), (True, "True"), (2.0, "2.0"), ("7", "'7'")], ids=repr
)
def test_what_is_no_whole_number_is_named(value, spelled):
    sentence = f"a.json gives the id {spelled}, which is not a whole number of at most 64 bits"
    with pytest.raises(InputError, match=sentence):
        integers([1, value, 3], "a.json", "the id")


def test_real_crisscrossed_captions(real_path):
    split = read_split(real_path, "coco_text", "test", text_only=True)
    images, captions = index(split.image_ids, split.caption_ids.tolist())
    owner = split.caption_image

    ratings, pairs = annotations.read_cxc(f"{real_path}/cxc", "test", images, captions, owner)

    counts = {kind: len(r.score) for kind, r in ratings.items()}
    assert counts == {"sts": 44045, "sis": 46719, "sits": 44833}

    of_others = owner[pairs["i2t"].item] != pairs["i2t"].query
    assert len(of_others) == len(pairs["t2i"].query) == 35614
    assert of_others.sum() == 10614

    of_others = owner[pairs["t2t"].query] != owner[pairs["t2t"].item]
    assert (~of_others).sum() == 25000 * 4
    assert of_others.sum() == 2 * 583

    assert len(np.unique(pairs["i2i"].query)) == 4772
