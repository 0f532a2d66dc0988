"""Words and short phrases: the photos that name them, data that hold them, and how many photos are said to fit."""

import json
import os
import shutil
import types

import numpy as np
import pytest
import torch

from data import Split, read_split
from features.store import record_extractor
from images import Features
from losses import Embedding
from methods import volume
from methods.volume import find_naming_photos, read_phrase, stem
from metrics import Sigmoid, fit_logistic
from model import encode
from photos import words
from photos.encoder import PhotoEncoder
from photos.searcher import Probabilities, read_probabilities
from photos.words import find_showing_photos, is_content, list_beginnings, list_short_texts
from tests.helpers import fit, refused
from utils import InputError
from vocab import tokenize

CAPTIONS = [
    "A young black dog runs .",
    "Two dogs in the snow",
    "a man with a dog-lead",
    "running men",
    "a photo of a dog .",
]


@pytest.mark.parametrize(
    "text, phrase",
    [
        ("a dog .", ("dog",)),
        ("dogs", ("dog",)),
        ("The young black dogs", ("young", "black", "dog")),
        ("a young black dog runs", None),
        (".", None),
        ("running", ("run",)),
    ],
)
def test_a_short_text_is_a_phrase_of_stems(text, phrase):
    assert read_phrase(tokenize(text)) == phrase


def test_short_texts_of_captions_and_the_photos_that_name_them():
    """Words and the ends of runs of words; photos name a phrase in a row, and fit a sentence by all of its words."""
    assert list_short_texts(tokenize(CAPTIONS[0])) == {
        "young",
        "black",
        "dog",
        "runs",
        "dog runs",
        "black dog runs",
    }
    assert (
        list_short_texts(tokenize(CAPTIONS[4])) == {"dog"}
        and list_short_texts(["the", ","]) == set()
    )
    assert list_beginnings(tokenize(CAPTIONS[0])) == ["a young black dog runs"]
    assert (
        list_beginnings(tokenize(CAPTIONS[1])) == []
    )  # "two dogs" is a short text, and the end is all
    assert list_beginnings("there is a dog near two men on bikes .".split()) == [
        "there is a dog",
        "there is a dog near two men",
        "there is a dog near two men on bikes",
    ]
    owner = np.array([4, 4, 7, 7, 2])
    expected = {
        ("dog",): {4, 2},
        ("black", "dog"): {4},
        ("run",): {4, 7},
        ("dog", "snow"): set(),
        ("cat",): set(),
    }
    assert find_naming_photos([*expected], map(tokenize, CAPTIONS), owner) == expected
    texts = ["two dogs run through the snow", "the young men", "a black cat", "there is a"]
    assert find_showing_photos(map(tokenize, texts), map(tokenize, CAPTIONS), owner) == [
        {4},
        set(),
        set(),
        set(),
    ]


# ---- what heads learn


def test_the_share_of_a_word_is_the_share_of_photos_that_name_it(monkeypatch):
    """And the shares of sentences are those without the words."""
    captions = [*(f"a dog number {k} in the snow" for k in range(6)), "dog", "a snow man", "cat"]
    owner = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2])
    x = torch.nn.functional.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))

    def encode_captions(model, split, tokens, device, part):
        return None, Embedding(x[: len(split.captions)][part.captions])

    monkeypatch.setattr(volume, "encode", encode_captions)

    def split_of(texts, owner):
        words_of_texts = [tokenize(text) for text in texts]
        return types.SimpleNamespace(
            captions=texts, words=words_of_texts, caption_image=owner, images=[0, 0, 0]
        )

    model = types.SimpleNamespace(eval=lambda: None, train=lambda: None)
    train = split_of(captions, owner)
    dev = split_of(captions[:6], owner[:6])

    shares = volume.training_shares(model, train, dev, {"train": None, "dev": None}, "cpu")

    assert shares[6:].exp().tolist() == pytest.approx([1, 1 / 3, 1 / 3])
    sentences = Embedding(x[:6])
    sigmoid = volume.fit_sigmoid(sentences, owner[:6])
    of_sentences = volume.shares_of_captions(sentences, owner[:6], sigmoid)
    assert shares[:6].tolist() == pytest.approx(of_sentences.tolist())


@pytest.fixture(scope="module")
def learned(demo_path, tmp_path_factory):
    """A run on the demo's captions with words behind them, as one on own captions, and the folder of its data."""
    root = tmp_path_factory.mktemp("words")
    (root / "data").mkdir()
    os.symlink(os.path.join(demo_path, "demo_precomp"), root / "data" / "x")
    words.main(["--data_path", str(root / "data"), "--data_name", "x", "--write", "mine"])
    data = ["--data_path", root / "data", "--data_name", "mine"]
    data += "--embed_size 32 --word_dim 16 --learning_rate 0.005".split()
    points = ["--num_epochs", 4, "--loss", "infonce"]
    fit(*data, *points, "--logger_name", root / "points")
    shares = ["--num_epochs", 3, "--loss", "volume", "--freeze_means", "--head", "spherical_one"]
    fit(*data, *shares, "--init_from", root / "points", "--logger_name", root / "run")
    return root


def test_every_photo_gets_short_texts_that_its_captions_name(demo_path, learned):
    added = words.SHORT_TEXTS_PER_PHOTO
    before = read_split(demo_path, "demo_precomp", "train")
    after = read_split(str(learned / "data"), "mine", "train")
    of_photos = np.bincount(before.caption_image)
    assert np.array_equal(np.bincount(after.caption_image), of_photos + added)

    per_photo = len(after.captions) // len(after.images)
    per_photo_before = per_photo - added
    short_texts = []
    for photo in range(len(after.images)):
        own = after.captions[per_photo * photo : per_photo * (photo + 1)]
        start = per_photo_before * photo
        assert own[:-added] == before.captions[start : start + per_photo_before]
        known = set()
        for text in own[:-added]:
            known.update(list_short_texts(tokenize(text)))
        for text in own[-added:]:
            assert text in known or text.split(" ", 1)[1] in known
        short_texts += own[-added:]
    with_article = [text.split()[0] in ("a", "an") for text in short_texts]
    assert 0.4 < np.mean(with_article) < 0.6

    # what the data set no longer says is removed from the copy
    mine = learned / "data" / "mine"
    for name in ("train_caption_image.npy", "dev_caption_image.npy", "dev_num_boxes.npy"):
        np.save(mine / name, np.zeros(3, int))

    # a training that goes on writes again
    record_extractor(str(learned / "data" / "mine"), "bag", "a bag")
    words.main(["--data_path", str(learned / "data"), "--data_name", "x", "--write", "mine"])
    again = read_split(str(learned / "data"), "mine", "train")
    assert again.captions == after.captions and again.extractors["bag"] == "a bag"
    assert not [*mine.glob("*_caption_image.npy"), *mine.glob("*_num_boxes.npy")]

    # features with a row for each caption
    each = learned / "data" / "each"
    shutil.copytree(learned / "data" / "x", each)
    for split in ("train", "dev", "test"):
        path = each / f"{split}_ims.npy"
        images = np.load(path)
        count = len(read_split(demo_path, "demo_precomp", split).captions) // len(images)
        np.save(path, images.repeat(count, 0))
        names = [f"{n}.jpg" for n in range(len(images)) for _ in range(count)]
        for ids in each.glob(f"{split}*_ids.*"):
            ids.unlink()
        (each / f"{split}_ids.txt").write_text("\n".join(names) + "\n")
    words.main(["--data_path", str(learned / "data"), "--data_name", "each", "--write", "of_each"])
    of_each = read_split(str(learned / "data"), "of_each", "train")
    assert of_each.captions == after.captions
    assert np.array_equal(of_each.caption_image, after.caption_image)
    assert of_each.photo_names == [f"{n}.jpg" for n in range(len(of_each.images))]


def test_usual_words_are_those_of_four_photos():
    captions = ["Anna runs", "anna", "Anna in snow", "a dog", "anna", "Anna .", "dog dog dog dog"]
    train = types.SimpleNamespace(
        words=[*map(tokenize, captions)],
        images=[0, 0, 0, 0, 0, 0],
        caption_image=np.array([0, 0, 1, 2, 3, 4, 5]),
    )
    assert words.list_usual_words(train) == ["anna"]


def test_numbers_are_fitted_to_what_captions_name(learned):
    """The same by one logistic regression on all pairs."""
    model = PhotoEncoder(str(learned / "run"))
    root = str(learned / "data")
    train = read_split(root, "mine", "train", dev_images=0)
    dev = read_split(root, "mine", "dev", dev_images=0)

    # all short texts count, as many beginnings of captions, and the captions
    texts = sorted({text for text in train.captions if read_phrase(tokenize(text))})
    beginnings = set()
    for caption in dev.words:
        beginnings.update(list_beginnings(caption))
    rng = np.random.default_rng(0)
    rng.permutation(texts)
    texts += rng.permutation(sorted(beginnings))[: len(dev.captions)].tolist()
    texts += dev.captions
    assert any(not read_phrase(tokenize(text)) for text in texts)

    stems_of_photos = [[] for _ in range(len(dev.images))]
    texts_of_photos = [set() for _ in range(len(dev.images))]  # its captions and their beginnings
    for caption, caption_words, photo in zip(dev.captions, dev.words, dev.caption_image):
        stems_of_photos[photo].append(f" {' '.join(stem(word) for word in caption_words)} ")
        texts_of_photos[photo].update([caption, *list_beginnings(caption_words)])

    photos = encode(model.model, dev, None, model.device)[0]
    queries = model.captions(texts)
    scores_and_variances = []
    fits = []
    count = []
    for k, text in enumerate(texts):
        log_var = queries.log_var[k].mean().item()
        scores = model.similarity(photos, queries.rows([k]))[:, 0].tolist()
        phrase = read_phrase(tokenize(text))
        needed = {stem(word) for word in tokenize(text) if is_content(word)}
        for photo, score in enumerate(scores):
            scores_and_variances.append((score, log_var))
            if text in texts_of_photos[photo]:
                count.append(len(dev.images) / 500)  # one of 500 photos
            else:
                count.append(1.0)
            stems = stems_of_photos[photo]
            if phrase:
                fits.append(float(any(f" {' '.join(phrase)} " in caption for caption in stems)))
            else:
                fits.append(float(needed <= {*" ".join(stems).split()}))
    assert 0 < sum(n < 1 for n in count) < len(count) / 2

    inputs = torch.tensor(scores_and_variances).T
    weights, bias = fit_logistic(inputs, torch.tensor(fits), torch.tensor(count))
    expected = (weights[0], bias, weights[1])
    assert words.fit_numbers(model, train, dev) == pytest.approx(expected, rel=1e-3)


# ---- the yardstick


def test_everyday_words_have_translations():
    texts = words.read_everyday_words()
    assert [*texts] == ["en", *words.LANGUAGES] and {*map(len, texts.values())} == {40}
    for column in texts.values():
        assert all(text.strip() == text != "" for text in column)


def test_numbers_are_judged_by_what_captions_name(tmp_path, monkeypatch):
    """A model that knows each word: the score of a photo is 1 where its captions name it, 0 elsewhere."""
    captions = [f"a {name}" for name in ("dog", "cat", "dog", "sheep", "dog", "cat", "dog")]
    captions += ["the cow", "a dog", "a cat"]
    np.save(tmp_path / "x.npy", np.eye(10, dtype=np.float32))
    split = Split("test", Features(str(tmp_path / "x.npy")), captions, np.arange(10), "x")
    names = ["dog", "cat", "sheep", "cow"]
    phrases_of_photos = [read_phrase(tokenize(caption)) for caption in captions]

    def embed(texts):
        rows = []
        for text in texts:
            phrase = read_phrase(tokenize(text))
            rows.append([float(phrase == of_photo) for of_photo in phrases_of_photos])
        return Embedding(torch.tensor(rows))

    def embed_images(x):
        return Embedding(x)

    def similarity(a, b):
        return a.mean @ b.mean.T

    def read_two_everyday_words():
        return {"en": ["dog", "cow"], "de": ["dog", "Kuh"], "fr": ["dog", "cow"]}

    model = types.SimpleNamespace(
        captions=embed,
        device="cpu",
        vocab=types.SimpleNamespace(index={"a": 0, "dog": 1}),
        options=types.SimpleNamespace(text_features="minilm"),
        similarity=similarity,
        model=types.SimpleNamespace(embed_images=embed_images),
    )
    numbers = Probabilities(1.0, "x", words=Sigmoid(20.0, -10.0))
    monkeypatch.setattr(words, "read_everyday_words", read_two_everyday_words)
    monkeypatch.setattr(words, "LANGUAGES", {"de": "German", "fr": "French"})
    monkeypatch.setattr(words, "JUDGED_ANSWERS", 1)

    results = words.judge(model, numbers, [split], ["pony", "a sheep", *names])

    row = results["words of 3 to 9 photos"]
    assert (row["texts"], row["true"], row["absent"]) == (2, 4, 0)
    assert row["said"] == pytest.approx(4, abs=0.01)
    assert row["factor"] == pytest.approx(1, abs=0.01) and row["rho"] == pytest.approx(1)
    assert row["first"] == 1 and row["held"] == 1
    german = results["2 everyday words, in German"]
    french = results["2 everyday words, in French"]
    assert french["first"] == 1 and german["absent"] == 0.5 and german["first"] == 0.5
    absent = results["names that no caption has"]
    assert (absent["texts"], absent["absent"], absent["said"]) == (1, 1, 0) and "rho" not in absent
    assert "words of 30 photos and more" not in results  # nothing is asked


def test_pairs_of_words_that_photos_name_together_and_alone(monkeypatch):
    """People are known by what captions call them."""
    monkeypatch.setattr(words, "MIN_COMMON_PHOTOS", 1)
    monkeypatch.setattr(words, "JUDGED_ANSWERS", 1)
    captions = ["a dog in the snow", "a dog", "snow", "a boy on a sled in snow", "a cat"]
    split = types.SimpleNamespace(
        words=[tokenize(caption) for caption in captions],
        caption_image=np.arange(5),
        images=[0, 0, 0, 0, 0],
    )
    people = words.mark_people([split])
    assert people.tolist() == [False, False, False, True, False]

    names = ["cat", "dog", "snow"]
    named = torch.tensor([[name in caption for caption in captions] for name in names])
    groups = {}
    for title, texts, masks in words.list_pairs(names, named, people):
        groups[title] = (texts, masks.int().tolist())

    assert groups == {
        "people": (["people"], [[0, 0, 0, 1, 0]]),
        "words joined by OR": (
            ["cat OR dog", "cat OR snow", "dog OR snow"],
            [[1, 1, 0, 0, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 0]],
        ),
        "words with -word": (["dog -snow", "snow -dog"], [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]),
        "words with -word, left out": (["dog", "snow"], [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]),
        "words with -people": (["snow -people"], [[1, 0, 1, 0, 0]]),
        "words with -people, left out": (["snow"], [[1, 0, 1, 0, 0]]),
    }


def test_the_command_fits_and_judges(learned, capsys, monkeypatch):
    run = learned / "run"
    data = ["--data_path", learned / "data"]
    monkeypatch.setattr(words, "read_class_names", lambda: ["circle circle", "red circle", "tench"])
    for more, message in (
        ([], "--write x copies a data set; name that with --data_name"),
        (["--data_name", "mine", "--fit"], "--write x reads no run; leave RUN and --fit out"),
        (
            ["--data_name", "mine"],
            "data/x already exists and is not a copy of mine by --write; give",
        ),
        (["--data_name", "none"], "there is no file .*none/train_caps.txt; name a data set"),
    ):
        refused(capsys, words.main, ["--write", "x", *data, *more], message)
    message = "does not say how many photos fit a word; fit that with python"
    refused(capsys, words.main, [run, *data], message)

    side = {"temperature": 9.0, "queries": 9, "gallery": 9}
    calibration = {
        "calibration": 1,
        "checkpoints": [str(run)],
        "weights": [PhotoEncoder(str(run)).weights],
        "data_name": "mine",
        "similarity": "cosine",
        "t2i": side,
        "i2t": side,
        "pair": {"slope": 5.0, "bias": -3.0},
    }
    (run / "calibration.json").write_text(json.dumps(calibration))
    narrow = learned / "data" / "narrow"
    shutil.copytree(learned / "data" / "mine", narrow)
    for split in ("train", "dev"):
        np.save(narrow / f"{split}_ims.npy", np.load(narrow / f"{split}_ims.npy")[:, :7])
    message = "width 7, but .* reads width"
    refused(capsys, words.main, [run, "--fit", *data, "--data_name", "narrow"], message)

    words.main([str(word) for word in (run, "--fit", *data)])
    written = json.loads((run / "calibration.json").read_text())
    assert set(written["words"]) == {"slope", "bias", "log_det"} and written["vocabulary"] == []

    capsys.readouterr()
    words.main([str(word) for word in (run, *data, "--split", "test")])
    shown = capsys.readouterr().out
    assert "words of 10 to 29 photos" in shown and "names that no caption has" in shown


def test_other_files_are_no_calibration(tmp_path):
    """Nor is one in which anything is missing or of another kind."""
    whole = {
        "calibration": 1,
        "checkpoints": ["x"],
        "weights": ["w"],
        "data_name": "d",
        "similarity": "kl",
        "t2i": {"temperature": 1.0, "gallery": 9},
    }

    def read(content, sim="kl"):
        (tmp_path / "calibration.json").write_text(json.dumps(content))
        encoder = types.SimpleNamespace(weights="w", options=types.SimpleNamespace(sim=sim))
        return read_probabilities(str(tmp_path), encoder)

    assert read(whole) == (1.0, "d", None, 1 / 500, ())  # 9 photos stand for 500
    assert read({**whole, "t2i": {"temperature": 1.0, "gallery": 800}}).least == 1 / 800

    of_words = {"slope": 1, "bias": 1, "log_det": 1}
    others = [[]]
    for change in (
        {"calibration": 2},
        {"t2i": {"temperature": 0, "gallery": 9}},
        {"t2i": {}},
        {"words": {"slope": 1.0}},
        {"vocabulary": [1]},
        {"words": {**of_words, "slope": "nan"}},
        {"words": {**of_words, "bias": "inf"}},
    ):
        others.append({**whole, **change})
    for name in whole.keys() - {"weights"}:
        others.append({key: value for key, value in whole.items() if key != name})
    message = "is not a calibration .*; write it again with python -m confidence"
    for content in others:
        with pytest.raises(InputError, match=message):
            read(content)

    message = "was fitted to x with kl, not to the weights of .* with kl; write it again"
    for content in ({**whole, "weights": ["v"]}, {**whole, "weights": None}):
        with pytest.raises(InputError, match=message):
            read(content)
    message = "fitted to x with kl, not to the weights of .* with cosine; write it again"
    with pytest.raises(InputError, match=message):
        read(whole, "cosine")


def test_a_model_that_learned_no_words_is_refused():
    text = "a dog runs through the snow"
    train = types.SimpleNamespace(captions=[text], words=[tokenize(text)])
    run = types.SimpleNamespace(path="x")
    message = "x learned no short texts, so it cannot say how many photos fit a word"
    with pytest.raises(InputError, match=message):
        words.fit_numbers(run, train, None)
