"""Readers on data written in each format, batches, photos, vocabulary, and bad input with its sentence."""

import json
import os
import re
import shutil
import threading

import numpy as np
import pytest
import torch

import data
from data import read_split
from images import Features
from tests.helpers import write_precomp
from utils import InputError
from vocab import END, SPECIALS, START, UNK, Vocabulary, Words, tokenize


def captions(n):
    return [f"caption number {k} of the set ." for k in range(n)]


FEATURES = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
ROWS = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)


def precomp(tmp_path, features, count, split="train", **ids):
    """A split of features with `count` captions, written and read."""
    write_precomp(tmp_path / "x", features, captions(count), split, **ids)
    return read_split(str(tmp_path), "x", split, dev_images=0)


# ---- vocabulary


def test_vocabulary_order_threshold_and_specials():
    words = [["b"] * 5, ["a"] * 5, ["c"] * 9, ["rare"] * 3, ["<unk>"] * 9]
    vocab = Vocabulary.build(words, threshold=4)
    assert vocab.words == [*SPECIALS, "c", "a", "b"]
    assert vocab.encode_captions([["a", "rare", "c"]]).flat.tolist() == [START, 5, UNK, 4, END]


def test_vocabulary_file_round_trip_and_bad_files(tmp_path):
    vocab = Vocabulary([*SPECIALS, "naïve", "“"])
    vocab.save(str(tmp_path / "v.json"))
    assert Vocabulary.load(str(tmp_path / "v.json")).words == vocab.words
    for content, message in (
        ("not json", "is not JSON"),
        ('{"words": [1]}', 'has no list "words"'),
        ('{"words": ["a"]}', "a vocabulary starts with"),
    ):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(InputError, match=message):
            Vocabulary.load(str(tmp_path / "bad.json"))


# ---- precomputed features


@pytest.mark.parametrize("k", [1, 3, 5, 20])
@pytest.mark.parametrize("shape, dtype", [((60, 6), np.float32), ((60, 3, 2), np.float16)])
def test_rows_stand_once_or_once_a_caption(tmp_path, shape, dtype, k):
    rows = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    rows[1] = rows[0]  # two photos alike, next to each other
    rows[7] = np.nan  # a failed one
    captions_per_image = k
    if k == 1:
        captions_per_image = 5
    n_captions = 60 * captions_per_image

    split = precomp(tmp_path, rows.repeat(k, 0), n_captions)

    assert split.images.step == k
    assert split.caption_image.tolist() == [m // captions_per_image for m in range(n_captions)]
    got = split.images.gather([5, 0, 5])
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got, rows[[5, 0, 5]].astype(np.float32))


def test_a_large_file_does_not_stay_in_memory(tmp_path, monkeypatch):
    """31 GiB of regions are trained on in 2: pages that were read are released."""

    def count_mapped_kib() -> int:
        """KiB of files in memory."""
        with open("/proc/self/status", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("RssFile"))

    monkeypatch.setattr("images.LARGE_FILE_BYTES", 4 << 20)
    rows = np.ones((64, 1 << 18), np.float32)  # 64 MiB
    features = precomp(tmp_path, rows, 320).images
    before = count_mapped_kib()

    for k in range(0, 64, 2):
        features.gather([k, k + 1])
        assert count_mapped_kib() - before < 16_000


def test_dev_is_cut_as_in_vsepp_and_val_is_its_other_name(tmp_path):
    precomp(tmp_path, np.zeros((1014, 2), np.float16), 5070, "dev", ids=range(1014))
    for dev_images, expected in ((1000, 1000), (0, 1014), (3, 3)):
        split = read_split(str(tmp_path), "x", "val", dev_images=dev_images)
        assert len(split.images) == expected
        assert len(split.captions) == 5 * expected
        assert len(split.image_ids) == expected


def test_caption_ids_of_testall_are_those_of_vsepp(tmp_path):
    """SCAN's folder has none of its own; its `test` is a part of testall, to which the file does not belong."""
    (tmp_path / "x").mkdir()
    np.save(tmp_path / "x" / "coco_test_ids.npy", np.arange(20) + 700)

    whole = precomp(tmp_path, FEATURES, 20, "testall")
    part = precomp(tmp_path, FEATURES, 20, "test")

    assert whole.caption_ids.tolist() == [*range(700, 720)]
    assert "coco_test_ids.npy" in whole.notes[0]
    assert part.caption_ids is None
    assert not part.notes

    np.save(tmp_path / "x" / "coco_test_ids.npy", np.arange(19))
    refused(tmp_path, "coco_test_ids.npy has 19 ids for the 20 captions", "testall")


@pytest.mark.parametrize("line,expected", [("img{}.jpg#0", None), ("1{:02}", [*range(100, 120)])])
def test_caption_ids_are_integers_or_none(tmp_path, line, expected):
    path = tmp_path / "x" / "train_capids.txt"
    path.parent.mkdir()
    path.write_text("".join(line.format(k) + "\n" for k in range(20)))

    ids = precomp(tmp_path, FEATURES, 20).caption_ids
    if expected is None:
        assert ids is None
    else:
        assert ids.tolist() == expected

    path.write_text("1\n2\n")
    refused(tmp_path, "train_capids.txt has 2 ids for the 20 captions")


def test_batches_equal_a_loop_over_items_with_and_without_workers(tmp_path, monkeypatch):
    write_precomp(tmp_path / "x", FEATURES, ["a b c .", "a", "b c", "c c c c c c", "a ."] * 4)
    split = read_split(str(tmp_path), "x", "train")
    vocab = Vocabulary.build(split.words, 1)
    tokens = split.encode(vocab)
    order = np.random.default_rng(0).permutation(20)

    batches = list(split.batches(tokens, order, 6))
    for batch, chosen in zip(batches, data.chunks(order, 6), strict=True):
        assert batch.caption_index.tolist() == chosen.tolist()
        assert batch.tokens.shape[1] == batch.lengths.max()
        for k, m in enumerate(chosen):
            expected = vocab.encode_captions([tokenize(split.captions[m])]).flat.tolist()
            assert batch.tokens[k, : batch.lengths[k]].tolist() == expected
            assert batch.tokens[k, batch.lengths[k] :].sum() == 0
            assert batch.image_index[k] == m // 5
            torch.testing.assert_close(batch.images[k].numpy(), FEATURES[m // 5])

    skipped = [b.caption_index.tolist() for b in split.batches(tokens, order, 6, skip=2)]
    assert sum(skipped, []) == order.tolist()[12:]

    monkeypatch.setattr(Features, "parallel", True)
    of_workers = list(split.batches(tokens, order, 6, workers=2))
    for a, b in zip(batches, of_workers, strict=True):
        for x, y in zip(a[:5], b[:5]):
            assert torch.equal(x, y)


def test_reading_ahead_keeps_the_order_and_raises_where_the_fault_is():
    """Of a GPU's batches, which a thread reads while it computes."""
    read = []

    def square(k):
        read.append(k)
        if k == 9:
            raise InputError("the ninth is broken")
        return k * k

    assert list(data.read_ahead(square, range(9))) == [k * k for k in range(9)]

    read.clear()
    squares = data.read_ahead(square, range(100))
    assert [next(squares) for _ in range(9)] == [k * k for k in range(9)]
    with pytest.raises(InputError, match="the ninth is broken"):
        next(squares)
    assert len(read) <= 10 + data.BATCHES_AHEAD  # what comes after it is left

    assert list(data.read_ahead(square, [])) == []


def test_photos_that_are_cropped_at_random_are_read_by_no_thread(demo_path, monkeypatch):
    """They draw from torch's generator of the CPU, from which the training draws meanwhile."""
    threads = []

    def note_thread(*_):
        threads.append(threading.current_thread())
        return original(*_)

    original = data.Photos.open
    monkeypatch.setattr(data.Photos, "open", note_thread)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)

    split = read_split(demo_path, "demo", "dev")
    tokens = split.encode(Vocabulary.build(split.captions, 1))
    for crop_size in (32, None):
        threads.clear()
        batches = split.batches(tokens, np.arange(6), 3, crop_size=crop_size, pin=True)
        assert len(list(batches)) == 2
        in_this_one = {thread is threading.current_thread() for thread in threads}
        assert in_this_one == {crop_size is not None}


# ---- photos: Karpathy's JSON and COCO


def test_karpathy_layout(demo_path):
    stored = json.load(open(os.path.join(demo_path, "demo", "dataset_demo.json")))
    for name, theirs in (("train", "train"), ("dev", "val"), ("test", "test")):
        images = [i for i in stored["images"] if i["split"] == theirs]
        captions = []
        for image in images:
            captions += [sentence["raw"] for sentence in image["sentences"]]

        split = read_split(demo_path, "demo", name)

        assert [os.path.basename(p) for p in split.images.paths] == [i["filename"] for i in images]
        assert split.image_ids == [i.get("cocoid", i["imgid"]) for i in images]
        assert split.captions == captions
        assert list(split.faults(deep=True)) == []


def karpathy(tmp_path, images, name="test", **kwargs):
    """A split of images of which the fields that matter are given; two captions each, with sentid from `first` on."""
    (tmp_path / "k").mkdir(exist_ok=True)
    stored = []
    for n, image in enumerate(images):
        sentences = [{"raw": "words 0"}, {"raw": "words 1"}]
        if "first" in image:
            sentences[0]["sentid"] = image["first"]
            sentences[1]["sentid"] = image["first"] + 1
        stored.append({"filename": f"{n}.jpg", "split": "test", **image, "sentences": sentences})

    (tmp_path / "k" / "dataset_k.json").write_text(json.dumps({"images": stored}))
    return read_split(str(tmp_path), "k", name, **kwargs)


def test_karpathy_coco_json_has_folders_ids_and_restval(tmp_path):
    images = [
        {"filepath": "val2014", "cocoid": 100, "split": "train"},
        {"filepath": "val2014", "cocoid": 101, "split": "restval"},
        {"filepath": "val2014", "cocoid": 102, "split": "test"},
    ]

    split = karpathy(tmp_path, images, "train", use_restval=True)
    assert split.image_ids == [100, 101]
    assert split.caption_image.tolist() == [0, 0, 1, 1]
    assert split.images.paths[1] == os.path.join(str(tmp_path), "k", "images", "val2014", "1.jpg")

    assert karpathy(tmp_path, images, "train").image_ids == [100]


def test_karpathy_photos_of_one_name_in_two_folders(tmp_path):
    images = [{"filepath": "a", "filename": "1.jpg"}, {"filepath": "b", "filename": "1.jpg"}]

    split = karpathy(tmp_path, images)
    assert split.caption_image.tolist() == [0, 0, 1, 1]
    assert split.image_ids == [os.path.join(f, "1.jpg") for f in "ab"]
    assert [p.split(os.sep)[-2] for p in split.images.paths] == ["a", "b"]

    sentence = "the image 1.jpg of split .test. or its cocoid, 7, twice; list each once"
    with pytest.raises(InputError, match=sentence):
        karpathy(tmp_path, [{"cocoid": 7}, {"cocoid": 7}])


@pytest.mark.parametrize(
    "fields,image_ids,caption_ids",
    [
        ([{"imgid": 30, "first": 5}, {"imgid": 9, "first": 1}], [30, 9], [5, 6, 1, 2]),
        (
            [{"imgid": 30, "cocoid": 77, "first": 5}, {"imgid": 9, "cocoid": 78, "first": 1}],
            [77, 78],
            [5, 6, 1, 2],
        ),
        ([{"imgid": 30, "first": 5}, {"imgid": 30, "first": 6}], ["0.jpg", "1.jpg"], None),
        ([{"imgid": "30", "first": 5.0}, {"imgid": True, "first": 1}], ["0.jpg", "1.jpg"], None),
    ],
)
def test_karpathy_numbers_are_ids_where_all_have_their_own(
    tmp_path, fields, image_ids, caption_ids
):
    split = karpathy(tmp_path, fields)

    assert split.image_ids == image_ids
    if caption_ids is None:
        assert split.caption_ids is None
    else:
        assert split.caption_ids.tolist() == caption_ids
    if image_ids == [30, 9]:
        assert split.photo_names == ["0.jpg", "1.jpg"]
    else:
        assert split.photo_names is None


def test_coco_layout(demo_path):
    root = os.path.join(demo_path, "demo_coco", "annotations")
    texts = {}
    for year in ("train2014", "val2014"):
        stored = json.load(open(os.path.join(root, f"captions_{year}.json")))
        texts.update({a["id"]: (a["caption"], a["image_id"]) for a in stored["annotations"]})

    for name in ("train", "dev", "test"):
        ids = np.load(os.path.join(root, f"coco_{name}_ids.npy"))
        split = read_split(demo_path, "demo_coco", name)
        assert split.caption_ids.tolist() == ids.tolist()
        assert split.captions == [texts[i][0] for i in ids]
        assert [split.image_ids[i] for i in split.caption_image] == [texts[i][1] for i in ids]
        assert list(split.faults(deep=True)) == []

    more = read_split(demo_path, "demo_coco", "train", use_restval=True)
    rest = np.load(os.path.join(root, "coco_restval_ids.npy"))
    assert more.caption_ids.tolist()[-len(rest) :] == rest.tolist()
    assert "val2014" in more.images.paths[-1]


def test_augmentation_depends_on_seed_epoch_and_caption_only(demo_path):
    split = read_split(demo_path, "demo", "train")
    tokens = split.encode(Vocabulary.build(split.words, 1))

    def crop(order, seed, **more):
        """{caption: its crop of the photo}"""
        crops = {}
        for batch in split.batches(tokens, order, 4, crop_size=64, seed=seed, **more):
            for m, x in zip(batch.caption_index, batch.images):
                crops[int(m)] = x
        return crops

    order = np.arange(8)
    first = crop(order, (0, 0))
    assert first[0].shape == (3, 64, 64)
    assert (first[0] != first[1]).any()  # one image, two captions, two crops

    before = torch.get_rng_state()  # dropout draws from it, and a resumed run starts anew
    for again in (crop(order[::-1], (0, 0)), crop(order, (0, 0), workers=2)):
        for m in range(8):
            assert torch.equal(first[m], again[m])
    list(data.stream(split.images.gather, data.chunks(order, 4), workers=1))
    assert torch.equal(torch.get_rng_state(), before)

    assert torch.equal(crop(order, (0, 0), skip=1)[5], first[5])
    assert (crop(order, (0, 1))[0] != first[0]).any()


# ---- what cannot be read


def refused(tmp_path, message, split="train"):
    with pytest.raises(InputError, match=message) as error:
        got = read_split(str(tmp_path), "x", split).require_sound()
        got.images.gather([0])
        got.encode(Vocabulary.build([tokenize(c) for c in captions(9)], 4))
    assert "\n" not in str(error.value)


def test_missing_data(tmp_path):
    """A folder, all files or one of them."""
    refused(tmp_path, "there is no folder .*x .*docs/data.md.*data.py check.*-m demo")

    (tmp_path / "x").mkdir()
    refused(tmp_path, "looked for train_caps.txt and train_ims.npy")

    (tmp_path / "x" / "train_caps.txt").write_text("a\n")
    refused(tmp_path, "there is no file .*train_ims.npy")


def among(line) -> list[str]:
    """20 captions, the eighth of which is `line`."""
    return [*captions(7), line, *captions(12)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "array, texts, message",
    [
        (np.zeros((4, 6), np.int64), captions(20), "train_ims.npy holds int64 of shape"),
        (np.zeros(4, np.float32), captions(20), "of shape .4,.; features are floats"),
        (
            FEATURES * np.float32([1, 1, np.inf, 1])[:, None],
            captions(20),
            "holds NaN or infinity in row 2",
        ),
        (
            np.ones((4, 300, 36), np.float32),
            captions(20),
            "has 300 regions of 36 numbers an image: its axes look transposed, .*transpose",
        ),
        (
            ROWS.repeat(5, 0)[[*range(57), 0, *range(58, 200)]],
            captions(200),
            "some images of .*train_ims.npy stand in several equal rows .*the one up to row 56",
        ),
        (
            FEATURES.astype(float) * 1e300,
            captions(20),
            r"holds NaN or infinity in row 0, or numbers above 1e\+18",
        ),
        (
            FEATURES * np.float32(1e38),
            captions(20),
            "holds NaN or infinity in row 0, or numbers above 1e.18",
        ),
        (FEATURES, among(" "), "train_caps.txt, line 8: the caption is empty"),
        (FEATURES, among("nan"), "line 8: the caption is 'nan'; every caption needs words"),
        (
            FEATURES,
            among("1.PNG| 0| a dog"),
            "line 8: .* begins with the name of a photo, as do 1 of 20",
        ),
        (FEATURES, among("391895\ta dog"), "line 8: .* begins with the name of a photo"),
        (FEATURES, among("ok\n"), "21 captions for the 4 rows .*; its line 9 is empty"),
        (
            FEATURES,
            captions(21),
            "21 captions for the 4 rows .*, not the same number for each; if images have "
            "different numbers of captions, save the row of each caption's image, .21,. whole "
            "numbers from 0 to 3, with np.save.*train_caption_image.npy.*into .*train_ids.txt",
        ),
        (
            FEATURES,
            ["zzz yyy"] * 20,
            "train_caps.txt: no word of its 20 captions is in the vocabulary of 10 words .the "
            "first is .zzz yyy..; give captions in the language .*--vocab_threshold",
        ),
    ],
)
def test_bad_features_and_captions(tmp_path, array, texts, message):
    write_precomp(tmp_path / "x", array, texts)
    refused(tmp_path, message)


def test_captions_without_a_known_word_are_read_as_unknown(tmp_path, capsys):
    """As VSE++ reads them. One note counts them; only where all are such the vocabulary is wrong."""
    for k, split in enumerate(("train", "dev", "test")):
        write_precomp(tmp_path / "x", FEATURES + k, among("zzz yyy"), split)
    split = read_split(str(tmp_path), "x", "dev")
    vocab = Vocabulary.build([tokenize(c) for c in captions(9)], 4)

    for _ in range(2):  # one note of both
        tokens, lengths = split.encode(vocab).batch(np.array([7]))
    assert tokens.tolist() == [[START, UNK, UNK, END]]
    assert lengths.tolist() == [4]
    note = (
        "1 of 20 dev captions has no known word (first: 'zzz yyy'); they are read as unknown words"
    )
    assert split.notes == [note]
    assert f"note: {note}\n" in checked(tmp_path, capsys, 0)

    write_precomp(tmp_path / "x", FEATURES + 2, ["eine Katze"] * 20, "test")
    said = checked(tmp_path, capsys, 1)
    assert "test_caps.txt: no word of its 20 captions is in the vocabulary" in said


@pytest.mark.parametrize("alike, step", [(3, 1), (40, 5)])
def test_some_or_all_photos_alike_are_no_repetition(tmp_path, alike, step):
    is_alike = np.arange(40)[:, None] < alike
    features = np.where(is_alike, ROWS[0], ROWS)

    assert precomp(tmp_path, features, 40).images.step == step


def test_names_are_equal_however_their_accents_are_stored(tmp_path):
    """Of photos in a split of any name, which the check reads, too."""
    write_precomp(tmp_path / "x", FEATURES[:1], [], "all", ids=["cafe\u0301.jpg"])
    os.remove(tmp_path / "x" / "all_caps.txt")
    (tmp_path / "x" / "captions.tsv").write_text("caf\u00e9.jpg#0\ta cup\n")

    assert read_split(str(tmp_path), "x", "all").captions == ["a cup"]
    assert data.check_data_set(str(tmp_path), "x") == 0


def test_captions_in_any_order_keep_their_features_where_dev_is_cut(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, [], "dev", ids=[f"{n}.jpg" for n in range(4)])
    os.remove(tmp_path / "x" / "dev_caps.txt")
    order = [2, 0, 3, 1]
    lines = [f"{n}.jpg#0\tphoto {n}\n" for n in order]
    (tmp_path / "x" / "captions.tsv").write_text("".join(lines))
    np.save(tmp_path / "x" / "dev_w2v.npy", FEATURES[order])

    split = read_split(str(tmp_path), "x", "dev", dev_images=2, text_features="w2v")

    assert split.captions == ["photo 0", "photo 1"]
    assert split.caption_names == ["0.jpg#0", "1.jpg#0"]
    assert torch.equal(split.text.gather([0, 1]), split.images.gather(split.caption_image))


def test_bad_photos_are_named(tmp_path, demo_path):
    shutil.copytree(os.path.join(demo_path, "demo"), tmp_path / "x")
    split = read_split(str(tmp_path), "x", "train")
    path = split.images.paths[0]
    name = os.path.basename(path)
    whole = open(path, "rb").read()

    for bad in (whole[: len(whole) // 2], b"no picture"):
        open(path, "wb").write(bad)
        with pytest.raises(InputError, match=name):
            split.images.gather([0])
        assert len(list(split.faults(deep=True))) == 1
        for workers in (0, 2):  # the sentence crosses the process border whole
            with pytest.raises(InputError, match="^the photo .* cannot be read") as error:
                list(data.stream(split.images.gather, data.chunks(np.arange(24), 4), workers))
            assert "Traceback" not in str(error.value)

    os.remove(path)
    refused(tmp_path, f"1 of 48 photos are missing .first: .*{name}")


def test_coco_ids_that_the_captions_lack_or_that_stand_twice(tmp_path, demo_path):
    shutil.copytree(os.path.join(demo_path, "demo_coco"), tmp_path / "x")
    ids_file = tmp_path / "x" / "annotations" / "coco_dev_ids.npy"
    captions_file = tmp_path / "x" / "annotations" / "captions_val2014.json"
    ids = np.load(ids_file)
    stored = json.loads(captions_file.read_text())

    absent = int(ids.max()) + 987654321
    np.save(ids_file, np.append(ids, [absent, absent + 1]))
    sentence = f"names 2 captions that .*captions_val2014.json lacks .first: {absent}"
    refused(tmp_path, sentence, "dev")

    np.save(ids_file, np.append(ids, ids[0]))
    refused(tmp_path, f"coco_dev_ids.npy names the caption {ids[0]} twice", "dev")

    np.save(ids_file, ids)
    for kind in ("annotations", "images"):
        twice = {**stored[kind][0], "image_id": stored["images"][-1]["id"]}
        captions_file.write_text(json.dumps({**stored, kind: [*stored[kind], twice]}))
        sentence = (
            f"captions_val2014.json has two {kind} with the id {twice['id']}; give each its own"
        )
        refused(tmp_path, sentence, "dev")

    refused(tmp_path, "^there is no file .*coco_foo_ids.npy; ", "foo")


def test_check_prints_what_is_there_and_every_fault(tmp_path, demo_path, capsys):
    broken = FEATURES.copy()
    broken[1] = np.nan
    write_precomp(tmp_path / "x", broken, ["", *captions(19)])
    write_precomp(tmp_path / "x", FEATURES, captions(18), "dev")

    zero = FEATURES.repeat(5, 0)
    zero[5:15] = 0
    write_precomp(tmp_path / "y", zero, captions(20), "train")
    write_precomp(tmp_path / "y", FEATURES[:, :5], captions(20), "dev")
    write_precomp(tmp_path / "y", FEATURES.reshape(4, 2, 3), captions(20), "test")
    np.save(tmp_path / "y" / "test_img_ids.npy", np.zeros(4, int))
    np.save(tmp_path / "y" / "test_ann_ids.npy", np.arange(20) // 2)
    for path, name, faults, parts in (
        (demo_path, "demo_precomp", 0, ["train  .*48 images", "3 splits, 0 faults"]),
        (
            tmp_path,
            "x",
            4,
            [
                "line 1: the caption is empty",
                "row 1",
                "18 captions for the 4 rows",
                "test_caps.txt",
            ],
        ),
        (
            tmp_path,
            "y",
            5,
            [
                "train_ims.npy holds only zeros for 2 of 4 images .first: row 5.; ",
                r"dev_ims.npy has rows of \(5,\), .*train_ims.npy of \(6,\); ",
                r"test_ims.npy has rows of \(2, 3\), .*train_ims.npy of \(6,\); ",
                "3 of 4 images have the id or name of another one",
                "10 of 20 captions have the id or name of",
            ],
        ),
    ):
        assert data.check_data_set(str(path), name) == faults
        shown = capsys.readouterr().out
        for part in parts:
            assert re.search(part, shown), shown

    with pytest.raises(SystemExit, match="1"):
        data.main(["check", "--data_path", str(tmp_path), "--data_name", "x"])


def checked(tmp_path, capsys, faults: int) -> str:
    """What the check of data set x prints, with so many faults."""
    capsys.readouterr()
    assert data.check_data_set(str(tmp_path), "x") == faults
    return capsys.readouterr().out


def write_three(folder, rows=40, ending=".npy"):
    """Splits of images and captions of their own."""
    rng = np.random.default_rng(1)
    texts = captions(600)
    for k, split in enumerate(("train", "dev", "test")):
        features = rng.standard_normal((rows, 6)).astype(np.float32)
        own_texts = texts[200 * k : 200 * k + 5 * rows]
        write_precomp(folder, features, own_texts, split)
        if ending != ".npy":
            os.rename(folder / f"{split}_ims.npy", folder / f"{split}_ims{ending}")


def test_check_compares_test_and_dev_with_train(tmp_path, capsys):
    """Copies of train gave numbers too high, and 0 faults. A few are noted, most of a split is a fault."""
    folder = tmp_path / "x"
    write_three(folder)
    assert "train," not in checked(tmp_path, capsys, 0)

    train = np.load(folder / "train_ims.npy")
    test = np.load(folder / "test_ims.npy")
    three_copies = np.concatenate([train[[5, 7, 9]], test[3:]]).astype(np.float16)
    np.save(folder / "test_ims.npy", three_copies.repeat(5, 0))
    np.save(folder / "train_ims.npy", train.astype(np.float16))
    sentence = "/test_caps.txt: 3 of 40 test images are also in train (the same"
    assert f"note: {folder}{sentence}" in checked(tmp_path, capsys, 0)

    most_copies = np.concatenate([train[:21], test[21:]]).astype(np.float16)
    np.save(folder / "test_ims.npy", most_copies)
    sentence = "/test_caps.txt: 21 of 40 test images are also in train"
    assert f"fault: {folder}{sentence}" in checked(tmp_path, capsys, 1)

    half = [*captions(100), *(f"other {k}" for k in range(100))]
    (folder / "dev_caps.txt").write_text("\n".join(half).upper() + "\n")
    sentence = "/dev_caps.txt: 50% of the 200 dev captions are also in train, word for word"
    assert f"note: {folder}{sentence}" in checked(tmp_path, capsys, 1)

    texts = [f"a much longer caption of picture number {k} ." for k in range(200)]
    for split in ("train", "dev"):
        (folder / f"{split}_caps.txt").write_text("\n".join(texts) + "\n")
    sentence = "/dev_caps.txt: 100% of the 200 dev captions are also in train"
    assert f"fault: {folder}{sentence}" in checked(tmp_path, capsys, 2)


def test_images_that_differ_in_one_region_are_not_taken_for_equal(tmp_path, capsys):
    """Drawn scenes and photos on white have equal corners."""
    rng = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        features = np.ones((40, 6, 300), np.float32)
        features[:, 3] = rng.standard_normal((40, 300))
        texts = [f"{split} {caption}" for caption in captions(200)]
        write_precomp(tmp_path / "x", features, texts, split)

    said = checked(tmp_path, capsys, 0)

    assert "note" not in said
    assert "also in" not in said


def test_check_compares_photos_by_path_and_content(tmp_path, demo_path, capsys):
    shutil.copytree(os.path.join(demo_path, "demo"), tmp_path / "x")
    photos = tmp_path / "x" / "images"
    stored = json.loads((tmp_path / "x" / "dataset_demo.json").read_text())
    train, dev, test = (
        next(i for i in stored["images"] if i["split"] == split)
        for split in ("train", "val", "test")
    )
    shutil.copy(photos / train["filename"], photos / dev["filename"])
    test["filename"] = train["filename"]
    (tmp_path / "x" / "dataset_demo.json").write_text(json.dumps(stored))

    said = checked(tmp_path, capsys, 0)

    assert "1 of 12 dev images are also in train" in said
    assert "1 of 24 test images are also in train" in said


# Features (40, 6) of which a check has to doubt


def repeat_the_first(x):
    return 0 * x + x[:1]


def nearly_repeat_the_first(x):
    return x[:1] + 1e-4 * x


def repeat_one_in_most_rows(x):
    rows = np.arange(40)
    return x[np.where(rows % 4 == 1, rows, 1)]


def clear_three_rows(x):
    return x * (np.arange(40) > 2)[:, None]


def clear_the_last_region(x):
    is_filled = (np.arange(3) < 2)[:, None]
    return x.reshape(40, 3, 2) * is_filled * np.ones((40, 1, 1))


@pytest.mark.parametrize(
    "change, sentence, faults",
    [
        (
            repeat_the_first,
            "train_ims.npy has the same features for all 40 images (their variance is ",
            3,
        ),
        (
            nearly_repeat_the_first,
            "train_ims.npy has the same features for all 40 images (their variance is ",
            3,
        ),
        (
            repeat_one_in_most_rows,
            "train_ims.npy has the features of an earlier image for 30 of 40 images; "
            "nothing tells these apart",
            3,
        ),
        (
            clear_three_rows,
            "train_ims.npy holds only zeros for 3 of 40 images (first: row 0",
            3,
        ),
        (
            clear_the_last_region,
            "train_ims.npy has regions of zeros alone in 40 of 40 images "
            "(2.0 of 3 regions are filled on average); they count as padding and are left out of "
            "pooling, attention and graphs",
            0,
        ),
    ],
)
def test_features_that_fit_in_shape_alone_are_told(tmp_path, capsys, change, sentence, faults):
    """By the check, and by a training in its notes."""
    write_three(tmp_path / "x")
    for split in ("train", "dev", "test"):
        path = tmp_path / "x" / f"{split}_ims.npy"
        np.save(path, change(np.load(path)).astype(np.float32))

    assert sentence in checked(tmp_path, capsys, faults)

    split = read_split(str(tmp_path), "x", "train").require_sound()
    split.note_doubts()
    assert len(split.notes) == 1
    assert sentence in split.notes[0]


@pytest.mark.parametrize(
    "ending, line",
    [
        (".npz", "a = np.load('{0}'); np.save('{1}', a[a.files[0]])"),
        (".h5", "f = h5py.File('{0}'); np.save('{1}', f[list(f)[0]][:])"),
        (".csv", "np.save('{1}', np.loadtxt('{0}', delimiter=',', dtype='f4'))"),
        (".pt", "np.save('{1}', torch.load('{0}', map_location='cpu').numpy())"),
    ],
)
def test_features_in_another_form_are_named_with_the_line_that_converts_them(
    tmp_path, capsys, ending, line
):
    """They were not seen: text only, 0 faults."""
    write_three(tmp_path / "x", ending=ending)
    path = str(tmp_path / "x" / "train_ims")
    line = line.format(path + ending, path + ".npy")

    said = checked(tmp_path, capsys, 1)
    assert f"so convert train_ims{ending} (its array may have another name): python -c " in said
    assert line in said

    sentence = "train_ims.npy; features are read from .npy files, so convert train_ims"
    with pytest.raises(InputError, match=sentence):
        read_split(str(tmp_path), "x", "train")

    text_only = read_split(str(tmp_path), "x", "train", text_only=True)
    assert "captions alone are read; features are" in text_only.notes[0]


def test_images_without_sentences_are_counted_and_said(tmp_path, capsys):
    entries = []
    for k in range(8):
        sentences = [{"raw": "a dog"}]
        if k in (0, 4):
            sentences = []
        entries.append({"filename": f"{k}.png", "split": "test", "sentences": sentences})
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "dataset_x.json").write_text(json.dumps({"images": entries}))

    assert len(read_split(str(tmp_path), "x", "test").images) == 6

    data.check_data_set(str(tmp_path), "x")
    sentence = "2 of 8 images of split 'test' have no sentence and are left out\n"
    assert f"note: {tmp_path}/x/dataset_x.json: {sentence}" in capsys.readouterr().out


def test_captions_read_fast_are_read_the_same():
    """Plain captions skip the tokenizer's thirty expressions, and only those that it would not change otherwise."""
    words = ["a", "man", "'s", "dog", ",", "running", "."]  # words, not bytes
    assert tokenize("A man's dog, running.") == words
    from nltk.tokenize import word_tokenize

    rng = np.random.default_rng(0)
    characters = "ab9 ,.-'\"($é’:;\tA"
    marks = [" ,", ", ", "--", " .", "..."]
    words = ["'s", "n't", "cannot", "gonna", "can", "not"]
    pieces = [*characters, *marks, *words]
    for _ in range(5_000):
        text = "".join(rng.choice(pieces, rng.integers(0, 9)))
        assert tokenize(text) == word_tokenize(text.lower(), preserve_line=True), text


def test_words_are_stored_as_numbers_and_read_as_lists():
    lists = [["a", "red", "cat", "."], [], ["a", "cat", "a"], ["sofa"]]
    words = Words(lists)

    assert list(words) == lists
    assert len(words) == 4
    assert words[1:3] == lists[1:3]
    assert words[-1] == ["sofa"]
    assert words.distinct == ["a", "red", "cat", ".", "sofa"]
    assert words.count() == {"a": 3, "red": 1, "cat": 2, ".": 1, "sofa": 1}
    assert words.count_in_captions(np.isin(words.distinct, ["a", "sofa"])).tolist() == [1, 0, 2, 1]
    assert len(Words([])) == 0
    assert Words([]).count() == {}

    vocab = Vocabulary.build(lists, 2)
    assert vocab.words == [*SPECIALS, "a", "cat"]
    first = [START, 4, UNK, 5, UNK, END]
    second = [START, END]
    third = [START, 4, 5, 4, END]
    fourth = [START, UNK, END]
    for captions_ in (words, lists):
        tokens = vocab.encode_captions(captions_)
        assert tokens.flat.tolist() == [*first, *second, *third, *fourth]
        assert tokens.length.tolist() == [6, 2, 5, 3]
        assert tokens.unknown.tolist() == [False, True, False, True]


# ---- whose captions and rows they are


def grouped(tmp_path, **files):
    """Six images with five captions each, and files of ids beside them."""
    write_precomp(tmp_path / "g", ROWS[:6], captions(30), "test", ids=files.pop("ids", None))
    for name, content in files.items():
        np.save(tmp_path / "g" / f"test_{name}.npy", content)
    return read_split(str(tmp_path), "g", "test")


def test_ids_beside_captions_have_to_agree_on_whose_they_are(tmp_path):
    ids = np.arange(6) + 40
    assert grouped(tmp_path / "a", img_ids=np.repeat(ids, 5)).image_ids == ids.tolist()
    assert grouped(tmp_path / "b", img_ids=ids).image_ids == ids.tolist()

    with_zeros = grouped(tmp_path / "n", ids=["007", "010", "5", "0", "8", "9"])
    assert with_zeros.image_ids == [7, 10, 5, 0, 8, 9]

    names = [f"{i}.jpg" for i in ids]
    assert grouped(tmp_path / "c", ids=np.repeat(names, 5)).photo_names == names

    sentence = "gives the captions 1 to 5, which 30 captions for 6 images make"
    with pytest.raises(InputError, match=f"img_ids.npy {sentence}"):
        grouped(tmp_path / "x0", img_ids=np.repeat(ids, [4, 6, 5, 5, 5, 5]))
    with pytest.raises(InputError, match=f"ids.txt {sentence}"):
        grouped(tmp_path / "x1", ids=names * 5)

    found = grouped(tmp_path / "d", ids=range(30))  # as some files of regions have them
    assert found.image_ids is None
    assert found.photo_names is None


def test_folders_with_brackets_in_their_names_are_read(tmp_path, capsys):
    write_three(tmp_path / "sets [2024]" / "mine [1]")
    split = read_split(str(tmp_path / "sets [2024]"), "mine [1]", "train")
    assert len(split.captions) == len(read_split_of_plain(tmp_path))


def read_split_of_plain(tmp_path) -> list[str]:
    write_three(tmp_path / "x")
    return read_split(str(tmp_path), "x", "train").captions
