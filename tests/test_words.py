"""Words and short phrases: the photos that name them, data that hold them, and how many photos are said to fit."""

import json
import os
import types

import numpy as np
import pytest
import torch

from cli import InputError
from data import Split, read_split
from evaluation.encoding import encode
from features.store import record_extractor
from images import Features
from losses import Embedding
from methods import volume
from methods.volume import find_naming_photos, read_phrase, stem
from metrics import Sigmoid, fit_logistic
from photos import words
from photos.encoder import PhotoEncoder
from photos.searcher import Probabilities, read_probabilities
from photos.words import find_showing_photos, is_content, list_beginnings, list_short_texts
from tests.helpers import fit_steps, refused
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
    monkeypatch.setattr(
        volume,
        "encode",
        lambda model, split, tokens, device, part: (
            None,
            Embedding(x[: len(split.captions)][part.captions]),
        ),
    )

    def split(texts, owner):
        return types.SimpleNamespace(
            captions=texts, words=[*map(tokenize, texts)], caption_image=owner, images=[0] * 3
        )

    model = types.SimpleNamespace(eval=lambda: None, train=lambda: None)
    dev = split(captions[:6], owner[:6])
    shares = volume.training_shares(
        model, split(captions, owner), dev, {"train": None, "dev": None}, "cpu"
    )
    assert shares[6:].exp().tolist() == pytest.approx([1, 1 / 3, 1 / 3])
    long = volume.shares_of_captions(
        Embedding(x[:6]), owner[:6], volume.fit_sigmoid(Embedding(x[:6]), owner[:6])
    )
    assert shares[:6].tolist() == pytest.approx(long.tolist())


@pytest.fixture(scope="module")
def learned(demo_path, tmp_path_factory):
    """A run on the demo's captions with words behind them, as one on own captions, and the folder of its data."""
    root = tmp_path_factory.mktemp("words")
    (root / "data").mkdir()
    os.symlink(os.path.join(demo_path, "demo_precomp"), root / "data" / "x")
    words.main(["--data_path", str(root / "data"), "--data_name", "x", "--write", "mine"])
    data = ["--data_path", root / "data", "--data_name", "mine"]
    fit_steps(*data, "--num_epochs", 4, "--loss", "infonce", "--logger_name", root / "points")
    fit_steps(
        *data,
        "--num_epochs",
        8,
        "--loss",
        "volume",
        "--freeze_means",
        "--head",
        "spherical_one",
        "--init_from",
        root / "points",
        "--logger_name",
        root / "run",
    )
    return root


def test_every_photo_gets_short_texts_that_its_captions_name(demo_path, learned):
    added = words.SHORT_TEXTS_PER_PHOTO
    before = read_split(demo_path, "demo_precomp", "train")
    after = read_split(str(learned / "data"), "mine", "train")
    assert np.array_equal(
        np.bincount(after.caption_image), np.bincount(before.caption_image) + added
    )
    per = len(after.captions) // len(after.images)
    for photo in range(len(after.images)):
        own = after.captions[per * photo : per * (photo + 1)]
        assert own[:-added] == before.captions[(per - added) * photo : (per - added) * (photo + 1)]
        known = set().union(*(list_short_texts(tokenize(text)) for text in own[:-added]))
        assert all(text in known or text.split(" ", 1)[1] in known for text in own[-added:])
    short = [text for k in range(added) for text in after.captions[per - 1 - k :: per]]
    assert 0.4 < np.mean([text.split()[0] in ("a", "an") for text in short]) < 0.6
    record_extractor(
        str(learned / "data" / "mine"), "bag", "a bag"
    )  # a training that goes on writes again
    words.main(["--data_path", str(learned / "data"), "--data_name", "x", "--write", "mine"])
    again = read_split(str(learned / "data"), "mine", "train")
    assert again.captions == after.captions and again.extractors["bag"] == "a bag"


def test_usual_words_are_those_of_four_photos():
    captions = ["Anna runs", "anna", "Anna in snow", "a dog", "anna", "Anna .", "dog dog dog dog"]
    train = types.SimpleNamespace(
        words=[*map(tokenize, captions)],
        images=[0] * 6,
        caption_image=np.array([0, 0, 1, 2, 3, 4, 5]),
    )
    assert words.list_usual_words(train) == ["anna"]


def test_numbers_are_fitted_to_what_captions_name(learned):
    """The same by one logistic regression on all pairs."""
    model = PhotoEncoder(str(learned / "run"))
    train, dev = (
        read_split(str(learned / "data"), "mine", name, dev_images=0) for name in ("train", "dev")
    )
    texts = sorted({text for text in train.captions if read_phrase(tokenize(text))})
    beginnings = sorted({text for caption in dev.words for text in list_beginnings(caption)})
    rng = np.random.default_rng(0)
    rng.permutation(texts)  # all of them count, and as many beginnings
    texts += [
        *rng.permutation(beginnings)[: len(dev.captions)].tolist(),
        *dev.captions,
    ]  # as captions
    assert any(not read_phrase(tokenize(text)) for text in texts)
    photos, queries = encode(model.model, dev, None, model.device)[0], model.captions(texts)
    x, y, count = [], [], []
    stems = [
        [
            f" {' '.join(stem(word) for word in caption)} "
            for caption, of in zip(dev.words, dev.caption_image)
            if of == photo
        ]
        for photo in range(len(dev.images))
    ]
    for k, text in enumerate(texts):
        v = queries.log_var[k].mean().item()
        for photo, s in enumerate(model.similarity(photos, queries.rows([k]))[:, 0].tolist()):
            x.append((s, v))
            own = any(
                text == caption or text in list_beginnings(parts)
                for caption, parts, of in zip(dev.captions, dev.words, dev.caption_image)
                if of == photo
            )
            count.append(len(dev.images) / 500 if own else 1.0)  # one of 500 photos
            if phrase := read_phrase(tokenize(text)):
                y.append(float(any(f" {' '.join(phrase)} " in caption for caption in stems[photo])))
            else:
                needed = {stem(word) for word in tokenize(text) if is_content(word)}
                y.append(float(needed <= {*" ".join(stems[photo]).split()}))
    assert 0 < sum(n < 1 for n in count) < len(count) / 2
    weights, bias = fit_logistic(torch.tensor(x).T, torch.tensor(y), torch.tensor(count))
    assert words.fit_numbers(model, train, dev) == pytest.approx(
        (weights[0], bias, weights[1]), rel=1e-3
    )


# ---- the yardstick


def test_everyday_words_have_translations():
    texts = words.read_everyday_words()
    assert [*texts] == ["en", *words.LANGUAGES] and {*map(len, texts.values())} == {40}
    assert all(text.strip() == text != "" for column in texts.values() for text in column)


def test_numbers_are_judged_by_what_captions_name(tmp_path, monkeypatch):
    """A model that knows each word: the score of a photo is 1 where its captions name it, 0 elsewhere."""
    captions = [
        "a dog",
        "a cat",
        "a dog",
        "a sheep",
        "a dog",
        "a cat",
        "a dog",
        "the cow",
        "a dog",
        "a cat",
    ] * 2
    np.save(tmp_path / "x.npy", np.eye(10, dtype=np.float32))
    split = Split("test", Features(str(tmp_path / "x.npy")), captions[:10], np.arange(10), "x")
    names = ["dog", "cat", "sheep", "cow"]

    def embed(texts):
        phrases = [read_phrase(tokenize(text)) for text in texts]
        return Embedding(
            torch.tensor(
                [
                    [float(phrase == read_phrase(tokenize(caption))) for caption in captions[:10]]
                    for phrase in phrases
                ]
            )
        )

    model = types.SimpleNamespace(
        captions=embed,
        device="cpu",
        vocab=types.SimpleNamespace(index={"a": 0, "dog": 1}),
        options=types.SimpleNamespace(text_features="minilm"),
        similarity=lambda a, b: a.mean @ b.mean.T,
        model=types.SimpleNamespace(embed_images=lambda x: Embedding(x)),
    )
    numbers = Probabilities(1.0, "x", words=Sigmoid(20.0, -10.0))
    monkeypatch.setattr(
        words,
        "read_everyday_words",
        lambda: {"en": ["dog", "cow"], "de": ["dog", "Kuh"], "fr": ["dog", "cow"]},
    )
    monkeypatch.setattr(words, "LANGUAGES", {"de": "German", "fr": "French"})
    monkeypatch.setattr(words, "JUDGED_ANSWERS", 1)
    results = words.judge(model, numbers, [split], ["pony", "a sheep", *names])
    row = results["words of 3 to 9 photos"]
    assert (row["texts"], row["said"], row["true"], row["absent"]) == (
        2,
        pytest.approx(4, abs=0.01),
        4,
        0,
    )
    assert (
        row["factor"] == pytest.approx(1, abs=0.01)
        and row["rho"] == pytest.approx(1)
        and row["first"] == 1
    )
    assert row["held"] == 1
    german, french = (results[f"2 everyday words, in {name}"] for name in ("German", "French"))
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
        words=[*map(tokenize, captions)], caption_image=np.arange(5), images=[0] * 5
    )
    people = words.mark_people([split])
    assert people.tolist() == [False, False, False, True, False]
    named = torch.tensor(
        [[word in caption for caption in captions] for word in ("cat", "dog", "snow")]
    )
    groups = {
        title: (texts, masks.int().tolist())
        for title, texts, masks in words.list_pairs(["cat", "dog", "snow"], named, people)
    }
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
    run, data = learned / "run", ["--data_path", learned / "data"]
    monkeypatch.setattr(words, "read_class_names", lambda: ["circle circle", "red circle"])
    for more, message in (
        ([], "--write x copies a data set; name that with --data_name"),
        (["--data_name", "mine", "--fit"], "--write x reads no run; leave RUN and --fit out"),
        (["--data_name", "mine"], "data/x already exists and is no copy of mine by --write; give"),
        (["--data_name", "none"], "there is no file .*none/train_caps.txt; name a data set"),
    ):
        refused(capsys, words.main, ["--write", "x", *data, *more], message)
    refused(
        capsys,
        words.main,
        [run, *data],
        "does not say how many photos fit a word; fit that with python",
    )
    pair = {"slope": 5.0, "bias": -3.0}
    side = {"temperature": 9.0, "queries": 9, "gallery": 9}
    (run / "calibration.json").write_text(
        json.dumps(
            {
                "calibration": 1,
                "checkpoints": [str(run)],
                "weights": [PhotoEncoder(str(run)).weights],
                "data_name": "mine",
                "similarity": "cosine",
                "t2i": side,
                "i2t": side,
                "pair": pair,
            }
        )
    )
    words.main([*map(str, [run, "--fit", *data])])
    written = json.loads((run / "calibration.json").read_text())
    assert set(written["words"]) == {"slope", "bias", "log_det"} and written["vocabulary"] == []
    capsys.readouterr()
    words.main([*map(str, [run, *data, "--split", "test"])])
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
        return read_probabilities(
            str(tmp_path),
            types.SimpleNamespace(weights="w", options=types.SimpleNamespace(sim=sim)),
        )

    assert read(whole) == (1.0, "d", None, 1 / 500, ())  # 9 photos stand for 500
    assert read({**whole, "t2i": {"temperature": 1.0, "gallery": 800}}).least == 1 / 800
    others = [
        {**whole, **change}
        for change in (
            {"calibration": 2},
            {"t2i": {"temperature": 0, "gallery": 9}},
            {"t2i": {}},
            {"words": {"slope": 1.0}},
            {"vocabulary": [1]},
            *(
                {"words": {"slope": 1, "bias": 1, "log_det": 1, **odd}}
                for odd in ({"slope": "nan"}, {"bias": "inf"})
            ),
        )
    ]
    for content in (
        [],
        *others,
        *(
            {key: whole[key] for key in whole.keys() - {name}}
            for name in whole.keys() - {"weights"}
        ),
    ):
        with pytest.raises(
            InputError, match="is not a calibration .*; write it again with python -m confidence"
        ):
            read(content)
    for content in ({**whole, "weights": ["v"]}, {**whole, "weights": None}):
        with pytest.raises(
            InputError, match="is of x by kl and not of the weights of .* by kl; write it again"
        ):
            read(content)
    with pytest.raises(
        InputError, match="of x by kl and not of the weights of .* by cosine; write it again"
    ):
        read(whole, "cosine")


def test_a_model_that_learned_no_words_is_refused():
    text = "a dog runs through the snow"
    train = types.SimpleNamespace(captions=[text], words=[tokenize(text)])
    with pytest.raises(
        InputError, match="x learned no short texts, so it cannot say how many photos fit a word"
    ):
        words.fit_numbers(types.SimpleNamespace(path="x"), train, None)
