"""Photos on the demo: answers are those of the model, an index follows its folder and survives stops, bad input gets a
sentence."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import types
import unicodedata
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from data import read_split
from features import images
from features.store import read_images
from images import read_photo
from metrics import Sigmoid
from model import encode
from photos import __main__ as search
from photos import build, encoder, index, question
from photos.encoder import PhotoEncoder
from photos.index import Index
from photos.searcher import Probabilities, Searcher, describe_number
from tests.helpers import act_at, in_a_process, refused
from utils import InputError

GAUSSIAN = ["--sim", "wasserstein"]
KINDS = {
    "cosine": [],
    "wasserstein": GAUSSIAN,
    "kl": ["--sim", "kl"],
    "mls": ["--sim", "mls"],
    "gce": ["--sim", "mahalanobis"],
    "order": ["--sim", "order", "--use_abs"],
    "pvse": [
        "--sim",
        "mil",
        "--img_enc",
        "pie",
        "--txt_enc",
        "pie",
        "--data_name",
        "demo_region_precomp",
    ],
    "scan": ["--sim", "scan", "--img_enc", "scan", "--data_name", "demo_region_precomp"],
}
TEXTS = [
    "a red circle .",
    "two squares and a star .",
    "a large blue triangle above a small green circle .",
]


def run(*words):
    search.main([*map(str, words)])


@pytest.fixture
def said(capsys):
    """said(*words): what the command prints."""

    def call(*words) -> str:
        capsys.readouterr()
        run(*words)
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def make(tmp_path_factory, demo_path, small_run):
    """make(*words): the file of an index of the demo's test photos by a small run of `words`."""
    made = {}

    def call(*words, to=None):
        if words not in made:
            made[words] = tmp_path_factory.mktemp("index") / "index.npz"
            data = "demo_precomp"
            if "demo_region_precomp" in words:
                data = "demo_region_precomp"
            features = ["--data_path", demo_path, "--images", data]
            photos = ["--photos", os.path.join(demo_path, "demo", "images")]
            checkpoint = ["--checkpoint", small_run(*words)]
            run("index", *checkpoint, *features, *photos, "--output", made[words])
        if to is None:
            return made[words]
        return shutil.copy(made[words], to)

    return call


@pytest.fixture(scope="module")
def own_index(tmp_path_factory, demo_path, small_run):
    """A folder with ten photos below photos/, its index.npz, and two more photos in spare/."""
    folder = tmp_path_factory.mktemp("own")
    images = os.path.join(demo_path, "demo", "images")
    names = sorted(name for name in os.listdir(images) if name.startswith("test"))
    for subfolder in ("photos/sub", "spare"):
        os.makedirs(folder / subfolder)
    for k, name in enumerate(names[:12]):
        if k > 9:
            target = folder / "spare"
        elif k % 2:
            target = folder / "photos" / "sub"
        else:
            target = folder / "photos"
        shutil.copy(os.path.join(images, name), target / f"{k}.png")
    run(
        folder / "photos",
        "--checkpoint",
        small_run(*GAUSSIAN),
        "--index_only",
        "--workers",
        0,
        "--output",
        folder / "index",
    )
    return folder


@pytest.fixture
def own(own_index, tmp_path, monkeypatch, said):
    """A copy of `own_index`, and the working directory. own.update(*words): what the command says of it."""
    folder = shutil.copytree(own_index, tmp_path / "own")
    monkeypatch.chdir(folder)
    copied = Index.open("index")
    copied.manifest["folder"] = str(folder / "photos")
    copied.save()
    return types.SimpleNamespace(
        photos=folder / "photos",
        spare=folder / "spare",
        run=copied.manifest["run"],
        update=partial(
            said,
            "photos",
            "--checkpoint",
            copied.manifest["run"],
            "--index_only",
            "--workers",
            0,
            "--output",
            "index",
        ),
    )


def all_answers(path="index") -> dict[str, float]:
    return {
        hit.name: hit.score
        for hit in Searcher(str(path)).find_texts(TEXTS[:1], top=1000)[0].answers
    }


def scores_by_model(path, demo_path, texts):
    """Scores (Q, N) of texts and all photos by the model itself, and the split."""
    manifest = Index.open(str(path)).manifest
    model = PhotoEncoder(manifest["run"])
    split = read_split(demo_path, manifest["data"], "test")
    images, _ = encode(model.model, split, None, model.device)
    return model.similarity(images, model.captions(texts)).T.detach().cpu(), split


# ---- answers


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_model(make, demo_path, kind):
    path = make(*KINDS[kind])
    scores, split = scores_by_model(path, demo_path, TEXTS)
    for result, row in zip(Searcher(str(path)).find_texts(TEXTS, top=5), scores):
        best = row.sort(descending=True)
        assert [hit.row for hit in result.answers] == best.indices[:5].tolist()
        assert [split.photo_names[hit.row] for hit in result.answers] == [
            hit.name for hit in result.answers
        ]
        assert [hit.score for hit in result.answers] == pytest.approx(
            best.values[:5].tolist(), abs=float(scores.std()) * 1e-4
        )
        assert result.gallery == len(row) and not any(hit.gone for hit in result.answers)
    (last,) = Searcher(str(path)).find_texts(TEXTS[-1:], top=9, first=3)
    assert [hit.row for hit in last.answers] == best.indices[3:12].tolist()


@pytest.mark.parametrize("kind", ["cosine", "kl", "mls", "gce"])
def test_photos_like_one_of_the_index_are_the_others(make, kind):
    """By the similarity where it compares two images, else by the cosine of the means."""
    searcher = Searcher(str(make(*KINDS[kind])))
    scores = searcher.scores(searcher.embedding(3), like=True)
    result = searcher.find_row(3, top=searcher.count)
    assert scores.argmax() == 3 and result.sure is None
    assert [hit.row for hit in result.answers] == [
        row for row in scores.argsort(descending=True).tolist() if row != 3
    ]
    with pytest.raises(InputError, match="no photo 99999"):
        searcher.find_row(99999)


def test_probabilities_and_what_should_not_be_there(make, demo_path):
    scores, _ = scores_by_model(make(*GAUSSIAN), demo_path, TEXTS)
    searcher = Searcher(str(make(*GAUSSIAN)))
    searcher.probabilities = Probabilities(3.0, "demo_precomp", Sigmoid(0.5, 2.0, 0.1))
    p = (3.0 * scores.double()).softmax(1)  # the posterior over the gallery
    for result, row in zip(searcher.find_texts(TEXTS, top=p.shape[1]), p):
        assert [hit.p for hit in result.answers] == pytest.approx(
            row.sort(descending=True).values.tolist(), rel=1e-4
        )
        assert result.sure == result.answers[0].p
    spread = searcher.encoder.captions(TEXTS).log_var.mean(1).tolist()
    fits = [
        [1 / (1 + np.exp(-0.5 * x - 0.1 * wide - 2.0)) for x in row.tolist()]
        for row, wide in zip(scores, spread)
    ]
    least = 1.0001 * float(np.median(fits))  # smaller ones count as 0
    searcher.probabilities = searcher.probabilities._replace(least=least)
    expected = [sum(x for x in row if x >= least) for row in fits]
    assert [result.expected for result in searcher.find_texts(TEXTS)] == pytest.approx(
        expected, rel=1e-4
    )
    p = torch.tensor(fits)
    searcher.probabilities = searcher.probabilities._replace(least=0)
    (result,) = searcher.find_texts([" OR ".join(TEXTS[:2])], top=5)  # any of both
    either = 1 - (1 - p[0]) * (1 - p[1])
    assert [hit.row for hit in result.answers] == either.argsort(descending=True)[:5].tolist()
    assert result.expected == pytest.approx(either.sum().item(), rel=1e-4) and result.sure is None
    (result,) = searcher.find_texts(TEXTS[:1], top=5, without=TEXTS[1:])
    shown = 1 - (1 - p[1]) * (1 - p[2])
    best = (p[0].log() + 2 * (1 - shown).log()).sort(descending=True)
    assert [hit.row for hit in result.answers] == best.indices[:5].tolist()
    assert [hit.score for hit in result.answers] == pytest.approx(
        best.values[:5].tolist(), abs=1e-3
    )
    assert result.expected == pytest.approx((p[0] * (1 - shown)).sum().item(), rel=1e-4)
    assert result.sure is None and result.answers[0].p is None
    searcher.probabilities = None  # scores alone
    z = (scores - scores.mean(1, keepdim=True)) / scores.std(1, correction=0, keepdim=True)
    (result,) = searcher.find_texts(TEXTS[:1], top=5, without=TEXTS[1:])
    best = (z[0] - z[1].clamp(min=0) - z[2].clamp(min=0)).sort(descending=True)
    assert [hit.row for hit in result.answers] == best.indices[:5].tolist()
    assert [hit.score for hit in result.answers] == pytest.approx(
        best.values[:5].tolist(), abs=1e-3
    )
    assert result.sure is None and result.answers[0].p is None and result.said == ""
    (result,) = searcher.find_texts([" | ".join(TEXTS[:2])], top=5)
    assert [hit.row for hit in result.answers] == scores[:2].max(0).values.argsort(descending=True)[
        :5
    ].tolist()


def test_numbers_of_other_photos_are_a_hint_and_those_of_a_training_on_these_are_not(
    own, small_run, tmp_path
):
    run_of = small_run(*GAUSSIAN, to=tmp_path / "run")
    side = {"temperature": 3.0, "gallery": 9}
    calibration = {
        "calibration": 1,
        "checkpoints": ["x"],
        "weights": [PhotoEncoder(str(run_of)).weights],
        "similarity": "wasserstein",
        "t2i": side,
    }
    for data, hints in (("photos", 0), ("photos_mine_words", 0), ("photosynthesis", 1)):
        (run_of / "calibration.json").write_text(
            json.dumps({**calibration, "data_name": data, "vocabulary": ["anna"]})
        )
        searcher = Searcher("index", checkpoint=str(run_of))
        assert (
            len(searcher.notes) == hints and [*searcher.known_words][-1] == "anna"
        )  # of one's own captions


def test_json_is_for_programs_and_lines_are_for_people(make, said):
    index_of = make(*GAUSSIAN)
    results = json.loads(said("query", index_of, *TEXTS, "--json", "--top", 3))
    assert [result["query"] for result in results] == TEXTS and all(
        len(result["answers"]) == 3 for result in results
    )
    assert {"row", "name", "score", "p", "gone", "path"} == set(results[0]["answers"][0])
    assert isinstance(results[0]["uncertainty"], float) and results[0]["sure"] is None
    plain = said("query", index_of, TEXTS[0], "--top", 1)
    verbose = said("query", index_of, TEXTS[0], "--top", 1, "--verbose")
    score = f"{results[0]['answers'][0]['score']:.4f}"
    assert (
        "log det" not in plain
        and score not in plain
        and "log det Sigma" in verbose
        and score in verbose
    )


def test_the_library_in_a_few_lines(own):
    """In a program, docs/search.md."""
    model = PhotoEncoder(own.run)
    photos = model.photos([str(own.photos / "0.png"), read_photo(str(own.photos / "2.png"))])
    assert model.similarity(photos, model.captions(TEXTS)).shape == (2, 3)
    assert torch.allclose(photos.mean.cpu(), Index.open("index").embedding.mean[[0, 1]], atol=1e-5)


# ---- questions


@pytest.mark.parametrize(
    "text, wanted, unwanted, note",
    [
        ("dog -beach", ["dog"], ["beach"], None),
        ("a dog \u2013beach, -snow", ["a dog"], ["beach", "snow"], None),
        ("t-shirt", ["t-shirt"], [], None),
        ("people - 2 dogs", ["people - 2 dogs"], [], None),
        ("no dogs", ["no dogs"], [], "write -dogs"),
        ("a beach without any people", ["a beach without any people"], [], "write -people"),
        ("a piano in a casino", ["a piano in a casino"], [], None),
        ("dog OR cat -snow OR", ["dog", "cat"], ["snow"], None),
        ("a dog | two cats||birds |", ["a dog", "two cats", "birds"], [], None),
        ("dogs or cats", ["dogs", "cats"], [], None),
        ("a man with a red or a blue shirt", ["a man with a red or a blue shirt"], [], None),
    ],
)
def test_what_is_wanted_and_what_is_not(text, wanted, unwanted, note):
    *result, notes = question.read_question(text)
    assert result == [wanted, unwanted]
    if note:
        assert note in notes[0]
    else:
        assert not notes


WORDS = (
    "a on the dog beach man child run glass glasses shorts red short t-shirt two men children dogs photo of with "
    "is there"
).split()
INDEX = {word: k for k, word in enumerate(WORDS)}


@pytest.mark.parametrize(
    "known, unknown",
    [
        (
            "dogs Dog glasses beached shorts t-shirt red-glass beaches man's",
            "dgo Mann ein Hund rot un le la de 2019 12345",
        ),
        ("men", "gla \u4e00\u53ea\u72d7 l eau"),
    ],
)
def test_words_of_the_captions_are_known_with_their_inflections(known, unknown):
    known, unknown = (question.list_words(text) for text in (known, unknown))
    assert [word for word in known if not question.is_known(word, INDEX)] == []
    assert [word for word in unknown if question.is_known(word, INDEX)] == []


@pytest.mark.parametrize(
    "text, ranking, counting",
    [
        (
            (
                "dog",
                "Dog",
                "a dog",
                "the dog",
                "A dog.",
                "my dog",
                "photo of a dog",
                "Show me pictures of the dog",
                "there is a dog",
            ),
            ["a dog"],
            ["a dog"],
        ),
        # several come first, and each photo with one counts
        (("dogs", "the dogs", "some dogs", "photos of dogs"), ["dogs"], ["a dog"]),
        (("red dogs",), ["red dogs"], ["a red dog"]),
        (("men",), ["men"], ["a man"]),
        (("glasses",), ["glasses"], ["a glass"]),
        (("shorts",), ["a shorts"], ["a shorts"]),  # "short" is no singular of it
        (("two dogs",), ["two dogs"], ["two dogs"]),
        (("Hund",), ["Hund"], ["Hund"]),
        (("a dog on the beach",), ["a dog on the beach"], ["a dog on the beach"]),
        (("ein dog",), ["ein dog"], ["ein dog"]),
    ],
)
def test_a_noun_is_asked_with_its_article(text, ranking, counting):
    for form in text:
        assert question.list_forms(question.strip_lead(form), INDEX) == (ranking, counting), form


def test_people_are_men_women_and_children():
    index = INDEX | {"people": 99, "anybody": 100}
    for text in ("people", "photos of people", "anybody"):
        ranking, counting = question.list_forms(question.strip_lead(text), index)
        assert (
            ranking
            == counting
            == ["a man", "a woman", "a boy", "a girl", "a child", "a person", "people"]
        )


def words_model(words) -> PhotoEncoder:
    """An encoder on MiniLM as far as words go: its tokenizer reads five."""

    class Tokenizer:
        def encode(self, text):
            ends = [match.end() for match in re.finditer(r"\S+", text)][:5]
            return types.SimpleNamespace(
                overflowing=text.split()[5:], offsets=[(0, end) for end in ends]
            )

    return types.SimpleNamespace(
        vocab=types.SimpleNamespace(
            index={word: k for k, word in enumerate(words)}, reads_captions=False
        ),
        sentence_network=types.SimpleNamespace(tokenizer=Tokenizer()),
        options=types.SimpleNamespace(text_features="minilm"),
    )


@pytest.mark.parametrize(
    "folder, title, held",
    [
        ("/home/me/Pictures", "/home/me/Pictures", "95%"),
        ("disk/own", "own", "98%"),
        ("link", "link", "98%"),
        ("", "own_photos test", "98%"),
        ("/x/Pictures", "own_photos", "98%"),
    ],
    ids=["others", "own", "linked", "a data set", "a data set with photos"],
)
def test_the_range_is_said_to_hold_as_it_was_measured_for_such_a_model(
    folder, title, held, tmp_path, monkeypatch
):
    """A model trained on one's own photos was tested by itself (docs/search.md)."""
    monkeypatch.chdir(tmp_path)
    os.makedirs("disk/own")
    os.symlink("disk/own", "link")
    data = "own_photos_test" if not folder else "own_photos"
    said = Searcher.list_notes(
        types.SimpleNamespace(
            probabilities=types.SimpleNamespace(data=data),
            folder=folder,
            title=title,
            counts_photos=True,
        )
    )
    assert f"held for {held} of everyday words" in said[-1]


@pytest.mark.parametrize(
    "text, notes, certain",
    [
        ("a dog , the beach", [], True),
        (
            "a dgo on a baech",
            ["not in the training captions: 'dgo', 'baech'; so there is no estimate of how"],
            False,
        ),
        ("ein dog", ["not in the training captions: 'ein'; "], False),
        ("l'eau", ["not in the training captions: 'l', 'eau'"], False),
        ("\u4e00\u53ea\u72d7", ["not in the training captions: '\u4e00\u53ea\u72d7'"], False),
        ("2019", ["not in the training captions: '2019'"], False),
        ("\U0001f436", ["there is no word in"], False),
        (
            "the beach today",
            ["the model does not see when a photo was taken; a year, as in", "not in the training"],
            False,
        ),
        ("dog the this summer", ["the model does not see when"], False),
        ("a dog that says on", ["the model reads no text in photos"], False),
        ("...", ["there is no word in '...'"], False),
        ("a dog on the beach a dog", ["only the first 5 of 7 words"], True),
        (
            " ".join("x" * k for k in range(1, 99)),
            ["not in the training captions: 'x', 'xx', .* and others; so", "only"],
            False,
        ),
    ],
)
def test_words_that_the_model_does_not_know_are_said(text, notes, certain):
    encoder = words_model(["a", "dog", "on", "the", "beach", "that", "says", "this", "summer"])
    said, known = question.read_words(encoder, text, encoder.vocab.index)
    assert len(said) == len(notes) and all(re.match(note, said) for said, note in zip(said, notes))
    assert known == certain


def test_a_model_of_words_leaves_others_out(make, said, capsys):
    assert "unknown words, which are left out: 'xyzzy'" in said(
        "query", make(), "a red xyzzy circle .", "--top", 1
    )
    refused(
        capsys,
        search.main,
        ["query", make(), "xyzzy plugh"],
        "no word of 'xyzzy plugh' is in the vocabulary",
    )


def test_a_name_of_a_file_finds_the_photo(own):
    os.rename(
        own.photos / "4.png",
        own.photos / unicodedata.normalize("NFD", "Stra\u00dfe \u00e9t\u00e9.PNG"),
    )
    own.update()
    searcher = Searcher("index")
    for text, name in (
        ("7.png", "sub/7.png"),
        ("sub/7.png", "sub/7.png"),
        ("7", "sub/7.png"),
        ("stra\u00dfe \u00e9t\u00e9.png", "Stra\u00dfe \u00e9t\u00e9.PNG"),
    ):
        (result,) = searcher.find_texts([text])
        assert (
            unicodedata.normalize("NFC", result.answers[0].name) == name
            and "photo's name" in result.notes[0]
        )


# ---- an index follows its folder


def test_one_command_reads_what_is_new(own, small_run, said, monkeypatch):
    """From nothing to answers; each run has an index of its own; the page opens at the end."""
    words = [own.photos, "--checkpoint", own.run, "--workers", 0]
    for output in ([], ["--output", "with blank"]):
        (query,) = re.findall(
            "python -m photos (query .*)", said(*words, "--index_only", *output)
        )  # it parses
        run(*shlex.split(query.replace("a dog on a beach", "a star .")))
        assert all_answers(shlex.split(query)[1]) == all_answers()
    monkeypatch.setattr(encoder, "SHIPPED", str(small_run()))
    assert "query indexes/photos " in said(*words[:1], *words[3:], "--index_only")
    assert Index.open("indexes/photos").manifest["run"] is None
    assert len(Searcher("indexes/photos").find_texts(TEXTS[:1])[0].answers) == 10
    served = []
    monkeypatch.setattr("photos.page.serve", lambda *args: served.append(args))
    run(*words, "--port", 0)
    assert served[0][0].count == 10 and served[0][0].title == "photos"


def test_new_changed_renamed_and_deleted_photos(own, monkeypatch):
    """Only what is new or changed is read, and the index equals one that is made anew."""
    embedded = []

    def note_and_read(path, **more):
        embedded.append(os.path.relpath(path, own.photos))
        return read_photo(path, **more)

    monkeypatch.setattr(build, "read_photo", note_and_read)
    assert "10 photos, 0 new or changed, 0 gone" in own.update() and not embedded
    shutil.copy(own.spare / "10.png", own.photos)  # new
    shutil.copy(own.spare / "11.png", own.photos / "0.png")  # changed
    os.rename(own.photos / "2.png", own.photos / "sub" / "moved.png")
    os.remove(own.photos / "sub" / "3.png")
    os.utime(own.photos / "4.png", (1, 1))  # the same bytes
    assert "10 photos, 2 new or changed, 1 gone from the index" in own.update()
    assert sorted(embedded) == ["0.png", "10.png"]
    build.index_folder("fresh", str(own.photos), PhotoEncoder(own.run))
    assert all_answers() == pytest.approx(all_answers("fresh"), abs=1e-5)
    assert "sub/moved.png" in all_answers()

    shutil.copy(own.photos / "4.png", own.photos / "copy.png")
    assert "11 photos, 0 new or changed, 0 gone" in own.update()
    os.remove(own.photos / "copy.png")  # of which another copy stays
    assert "10 photos, 0 new or changed, 1 gone" in own.update()


def test_photos_that_cannot_be_read_are_named_once_and_no_name_controls_the_terminal(own, said):
    (own.photos / "bad\x1b[2J.png").write_bytes(b"no photo")
    os.rename(own.photos / "0.png", own.photos / "a\x1b]0;x\x07\x9b.png")
    shutil.copy(own.spare / "10.png", own.photos)
    text = own.update()
    assert "11 photos, 1 new or changed" in text and text.count("bad\\x1b[2J.png") == 1
    assert "left out, since they cannot be read: 1 photo, bad" in text
    for words in (
        ["query", "index", "a star .", "--top", 99],
        ["info", "index", "--names"],
        ["query", "index", "a star .", "--json"],
    ):
        text += said(*words)
    for words in (
        ["query", "index", "--photo", "\x1b[2Jnone.png"],
        ["remove", "index", "\x1bnone"],
    ):
        with pytest.raises(SystemExit) as stop:
            run(*words)
        text += stop.value.code
    assert not set("\x1b\x07\x9b") & set(text)


def test_what_is_done_and_what_is_left_out_is_said(own, monkeypatch):
    """Files of hundreds of faults are all listed on demand; lines on the way where no bar is drawn."""
    for k in range(12):
        (own.photos / f"bad{k:02}.jpg").write_bytes(b"no photo")
    for name in ("a.txt", "b.MP4", "c.nef", "d.CR3"):
        (own.photos / name).write_bytes(b"II*\0 something")
    shutil.copy(own.spare / "10.png", own.photos)
    monkeypatch.setattr(build, "SAVE_SECONDS", -1)
    monkeypatch.setattr(build, "PHOTOS_PER_CALL", 2)
    text = own.update()
    first, *rest = text.splitlines()
    assert first == f"reading 23 photos of {own.photos}" and "0 of 13 new photos are read" in rest
    listed = ", ".join(f"bad{k:02}.jpg" for k in range(10))
    assert (
        f"note: left out, since they cannot be read: 12 photos, {listed} and others; --verbose lists all"
        in rest
    )
    assert "note: other files: 2 left out, the first: 'a.txt'" in rest
    raw = "note: RAW photos, which are found once they are exported as JPEG: 2 left out"
    assert f"{raw}, the first: 'c.nef'" in rest
    text = own.update("--verbose")
    assert f"{raw}, all: 'c.nef', 'd.CR3'" in text and f"{listed}, bad10.jpg, bad11.jpg" in text
    for k in range(12):
        assert (
            f"note: the photo {own.photos}/bad{k:02}.jpg cannot be read (cannot identify image file)"
            in text
        )


def test_a_cut_photo_is_read_and_named_and_its_year_is_known(own):
    """The year of the camera counts for its photo, also under another name."""
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "2017:08:09 10:11:12"
    exif[0x0132] = "2020:01:01 00:00:00"
    noise = Image.effect_noise((200, 200), 50).convert("RGB")
    noise.save(own.photos / "whole.jpg", exif=exif)
    data = (own.photos / "whole.jpg").read_bytes()
    (own.photos / "cut.jpg").write_bytes(data[: int(0.42 * len(data))])
    assert "note: truncated, and read as far as they go: 1 photo, cut.jpg" in own.update()
    assert set(Index.open("index").manifest["years"].values()) == {"2017"}
    os.rename(own.photos / "whole.jpg", own.photos / "other.jpg")
    assert "0 new or changed" in own.update()
    hits = Searcher("index").find_texts(["2017"])[0].answers
    assert {hit.name for hit in hits[:2]} == {"cut.jpg", "other.jpg"}
    os.remove(own.photos / "cut.jpg")
    own.update()
    assert len(Index.open("index").manifest["years"]) == 1


def test_a_photo_that_becomes_a_pipe_or_a_device_is_not_waited_for(own, monkeypatch):
    """While others are read."""
    find = build.find_photos

    def change_after(*words, **more):
        found = find(*words, **more)
        for name in ("0.png", "2.png"):
            os.remove(own.photos / name)
        os.mkfifo(own.photos / "0.png")
        os.symlink("/dev/zero", own.photos / "2.png")
        return found

    monkeypatch.setattr(build, "find_photos", change_after)
    text = own.update()
    assert (
        "left out, since they cannot be read: 2 photos, 0.png, 2.png" in text
        and "8 photos, 0 new" in text
    )


def test_patterns_leave_photos_out_until_others_are_given(own):
    os.rename(own.photos / "0.png", own.photos / unicodedata.normalize("NFD", "\u00e9.png"))
    own.update()
    assert "--exclude names: 2 left out" in own.update("--exclude", "sub/", "\u00e9*")
    assert len(all_answers()) == 4 and not [
        name for name in all_answers() if name.startswith("sub")
    ]
    own.update()
    assert len(all_answers()) == 4
    own.update("--exclude", "none")
    assert len(all_answers()) == 10


def test_removed_photos_stay_out_until_they_are_named(own, said, capsys):
    before = all_answers()
    assert (
        "3 photos removed, 7 left" in said("remove", "index", "0.png", "sub/[13].png")
        and len(all_answers()) == 7
    )
    os.rename(own.photos / "0.png", own.photos / "renamed.png")
    assert (
        "3 photos stay out, since python -m photos remove took them out" in own.update()
        and len(all_answers()) == 7
    )
    assert "3 were removed, the first is renamed.png" in said("info", "index")

    # a copy of a removed photo is another photo, also when the removed one is deleted
    shutil.copy(own.photos / "4.png", own.photos / "copy.png")
    own.update()
    said("remove", "index", "4.png")
    os.remove(own.photos / "4.png")
    own.update()
    assert "copy.png" in all_answers()
    os.rename(own.photos / "copy.png", own.photos / "4.png")
    run("add", "index", "4.png", "--workers", 0)
    run("add", "index", "renamed.png", "--workers", 0)
    run("add", "index", "*", "--workers", 0)
    after = all_answers()
    assert (
        sorted(after.values()) == pytest.approx(sorted(before.values()), abs=1e-5)
        and "renamed.png" in after
    )
    refused(
        capsys,
        search.main,
        ["add", "index", "*"],
        "no photo that was removed from index.npz is named",
    )
    refused(
        capsys,
        search.main,
        ["remove", "index"],
        "nothing is removed from index; name photos, or give patterns",
    )
    refused(
        capsys,
        search.main,
        ["remove", "index", "nothing*"],
        "no photo of index.npz is named nothing",
    )
    refused(capsys, search.main, ["remove", "index", "*"], "this would leave no photo")


def test_a_folder_that_is_away_or_empty_empties_no_index(own, said, capsys):
    os.rename(own.photos, "elsewhere")
    (result,) = Searcher("index").find_texts(TEXTS[:1])
    assert (
        all(hit.gone for hit in result.answers)
        and "are not there, so all look gone" in result.notes[-1]
    )
    refused(
        capsys,
        search.main,
        ["add", "index"],
        "is not a folder; give the folder that holds your photos",
    )
    os.mkdir("photos")  # of a disk that is not mounted
    refused(capsys, search.main, ["add", "index"], "holds no photo .*it is empty")
    assert len(all_answers()) == 10
    os.rmdir("photos")
    assert "0 new" in said(
        "elsewhere", "--index_only", "--output", "index", "--checkpoint", own.run
    )
    assert not Searcher("index").find_texts(TEXTS[:1])[0].answers[0].gone


def test_only_one_process_at_a_time_writes_an_index(own, capsys, monkeypatch):
    """What was removed while photos are read would come back when the index of before is saved."""
    shutil.copy(own.spare / "10.png", own.photos)
    busy = f"another process is writing {os.path.realpath('index.npz')}; run this again when it has ended"
    said = []

    def read(path, **more):
        for words in (["remove", "index", "0.png"], ["add", "index", "--workers", "0"]):
            with pytest.raises(SystemExit) as stop:
                run(*words)
            said.append(stop.value.code)
        return read_photo(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(build, "read_photo", read)
        assert "11 photos, 1 new" in own.update()
    assert said == [f"photos remove: {busy}", f"photos add: {busy}"]
    run("remove", "index", "0.png")
    assert "0.png" not in all_answers() and sorted(os.listdir()) == ["index.npz", "photos", "spare"]
    refused(capsys, search.main, ["remove", "none/index", "x"], "there is no file none/index.npz")
    assert not os.path.exists("none")


def test_folders_of_one_name_have_an_index_each(own, said, capsys):
    """The second is known by its path, also while the first is away. A moved folder keeps its vectors."""
    words = ["--checkpoint", own.run, "--workers", 0, "--index_only"]
    for place, photos in (("a", own.photos), ("b", own.spare)):
        shutil.copytree(photos, f"{place}/Pictures")

    def index_of(text):
        return text.splitlines()[1].split(": ")[0]

    first = index_of(said("a/Pictures", *words))
    os.rename("a", "away")
    for new in (2, 0):
        text = said("b/Pictures", *words)
        second = index_of(text)
        assert f"2 photos, {new} new or changed, 0 gone from the index" in text and second != first
    os.rename("away", "a")
    assert f"{first}: 10 photos, 0 new or changed, 0 gone" in said("a/Pictures", *words)
    assert all_answers(first) == pytest.approx(all_answers())
    os.rename("a", "moved")
    refused(
        capsys,
        search.main,
        ["b/Pictures", *words, "--output", first],
        f"{first} is the index of .*a/Pictures, which is not there, and .*b/Pictures holds none of its photos",
    )
    assert len(all_answers(first)) == 10
    assert "10 photos, 0 new or changed, 0 gone" in said(
        "moved/Pictures", *words, "--output", first
    )


def test_photos_that_are_gone_do_not_count(own):
    """Nor are they answers; the first that is there is the first."""
    searcher = Searcher("index")
    searcher.probabilities = Probabilities(3.0, "x", Sigmoid(0.5, 2.0), least=0)
    (before,) = searcher.find_texts(TEXTS[:1])
    os.remove(own.photos / before.answers[0].name)
    os.mkdir(own.photos / before.answers[0].name)
    (after,) = searcher.find_texts(TEXTS[:1])
    fits = [1 / (1 + np.exp(-0.5 * hit.score - 2)) for hit in before.answers]
    assert [hit.row for hit in after.answers] == [
        hit.row for hit in before.answers[1:]
    ] and after.gallery == 9
    assert (before.expected, after.expected) == (
        pytest.approx(sum(fits)),
        pytest.approx(sum(fits[1:])),
    )
    assert (
        after.sure == after.answers[0].p == pytest.approx(before.answers[1].p / (1 - before.sure))
    )
    assert after.notes == [
        "left out, as the files are gone: 1 photo; python -m photos add index.npz updates the index"
    ]
    assert len(searcher.find_photo(read_photo(str(own.spare / "10.png"))).answers) == 9


def test_words_that_the_model_does_not_know_find_names(own, small_run):
    """Names of folders and files and the year in them. Other words order what has the name."""
    for k, name in enumerate(
        (
            "Urlaub 2019/IMG_20190714.png",
            "Urlaub 2018/ein Bild 220 \u2013 s\u00fc\u00df.png",
            "ein Tag/Bild7.png",
        )
    ):
        (own.photos / name).parent.mkdir()
        os.rename(own.photos / f"{2 * k}.png", own.photos / name)
    own.update()
    searcher = Searcher("index")
    order = [hit.name for hit in searcher.find_texts(TEXTS[:1])[0].answers]
    first, second, third = (
        next(name for name in order if part in name) for part in ("0714", "220", "Bild7")
    )
    for text, expected in (
        ("Urlaub 2019", [first, second]),
        ("urlaub", [second, first]),
        ("2018", [second]),
        ("Bild 220", [second, third]),
        ("S\u00dcSS", [second]),
        ("Bild 7", [third, second]),
        (f"2019 {TEXTS[0]}", [first]),
        (f"urlaub {TEXTS[0]}", [name for name in order if name in (first, second)]),
    ):
        (result,) = searcher.find_texts([text])
        assert [hit.name for hit in result.answers][: len(expected)] == expected, text
        assert "in the folder's or the file's name, or as the year" in result.notes[0]
        if TEXTS[0] in text:
            rest = [name for name in order if name not in expected]
            assert [hit.name for hit in result.answers] == [*expected, *rest]
    assert "first come 2 photos with 'urlaub' in" in searcher.find_texts(["urlaub"])[0].notes[0]
    assert (
        "first come 1 photo with 'bild', '220' in" in searcher.find_texts(["Bild 220"])[0].notes[0]
    )
    for text in ("photos of Urlaub", "Urlaub and Bild", "Urlaub 2019 pics"):  # names alone
        assert searcher.read_parts([text]).texts == [], text
    (result,) = searcher.find_texts([f"ein {TEXTS[0]}"])  # a short word is no name
    assert [hit.name for hit in result.answers] == order and result.notes == [
        "unknown words, which are left out: 'ein'"
    ]
    searcher.probabilities = Probabilities(3.0, "x", Sigmoid(0.5, 2.0), least=0)
    (result,) = searcher.find_texts([f"{TEXTS[0]} -star"])
    assert result.notes == ["photos that seem to show star are listed later"]
    (result,) = searcher.find_texts([f"{TEXTS[0]} -urlaub"])
    assert [hit.name for hit in result.answers] == [
        name for name in order if name not in (first, second)
    ]
    assert result.expected == pytest.approx(
        sum(1 / (1 + np.exp(-0.5 * hit.score - 2)) for hit in result.answers)
    )
    assert result.notes == [
        "photos with 'urlaub' in the folder's or the file's name, or as the year, are left out"
    ]
    (result,) = searcher.find_texts([f"urlaub {TEXTS[0]}"])
    fits = [1 / (1 + np.exp(-0.5 * hit.score - 2)) for hit in result.answers[:2]]
    assert result.expected == pytest.approx(sum(fits)) and " of 2 photos show this" in result.said


def test_a_searcher_sees_what_another_process_writes(own, small_run, capsys):
    """As the page asks it to. An index of another model is refused."""
    searcher = Searcher("index")
    searcher.update()
    index_before = searcher.index
    assert len(searcher.find_texts(TEXTS[:1])[0].answers) == 10 and searcher.index is index_before
    shutil.copy(own.spare / "10.png", own.photos)
    own.update()
    run("remove", "index", "0.png", "2.png")
    searcher.update()
    names = [hit.name for hit in searcher.find_texts(TEXTS[:1])[0].answers]
    assert len(names) == 9 and "10.png" in names and "0.png" not in searcher.rows
    shutil.copy("index.npz", "kept.npz")
    os.remove("index.npz")
    searcher.update()  # there is no other one yet
    assert searcher.count == 9
    run("photos", "--checkpoint", small_run(), "--output", "index", "--index_only", "--workers", 0)
    with pytest.raises(
        InputError, match="was made by the model with .*delete the index and make it again"
    ):
        searcher.update()
    assert searcher.count == 9


def test_a_taken_port_is_told_before_anything_is_read(own, capsys, monkeypatch):
    pytest.importorskip("flask")
    monkeypatch.setattr(search, "PhotoEncoder", None)
    monkeypatch.setattr(search, "Searcher", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words in (["photos"], ["serve", "index"]):
            refused(
                capsys,
                search.main,
                [*words, "--port", port],
                f"cannot listen on 127.0.0.1:{port} .*--port",
            )


def test_words_that_the_model_knows_raise_photos_with_such_names(own):
    (own.photos / "Star circles").mkdir()
    names = ["6.png", "8.png"]
    for name in names:
        os.rename(own.photos / name, own.photos / "Star circles" / name)
    own.update()
    searcher = Searcher("index")
    searcher.probabilities = Probabilities(3.0, "x", Sigmoid(0.5, 2.0), least=0)
    (raised,) = searcher.find_texts(["a star and two squares ."])
    scores = {
        hit.name: hit.score / 2 + 2 * (hit.name.startswith("Star")) / 3 for hit in raised.answers
    }
    assert [hit.name for hit in raised.answers] == sorted(scores, key=scores.get, reverse=True)
    assert raised.notes == [
        "photos with 'star' in the folder's or the file's name are listed earlier"
    ]


def test_own_captions_make_a_run_in_one_command(own, capsys, monkeypatch):
    """The commands one after the other; a training that was stopped goes on; a run with its calibration is taken."""
    called = []

    def call(*words):
        called.append(words)
        if "--fit" in words:
            pathlib.Path("mine/calibration.json").write_text('{"words": {}}')

    monkeypatch.setattr(search, "call_python", call)
    monkeypatch.setattr(
        search, "PhotoEncoder", lambda run, **_: types.SimpleNamespace(device="cpu")
    )
    monkeypatch.setattr(build, "index_folder", lambda *words, **more: ["done"])
    words = ["photos", "--train", "mine/", "--index_only"]
    refused(capsys, search.main, words, "captions.csv; list photos and captions in it")
    (own.photos / "captions.csv").write_text("name,caption\n0.png,a red circle .\n")
    os.mkdir("mine")
    run(*words)
    programs = {"train.py", "confidence", "features.images", "features.captions", "photos.words"}
    steps = [(programs & {*words}).pop() for words in called]
    assert steps == [
        "features.images",
        "photos.words",
        "features.captions",
        "train.py",
        "features.captions",
        "train.py",
        "confidence",
        "photos.words",
    ]
    assert [called[3][-1], called[5][-1]] == ["mine_points", "mine/"]
    assert "mine_points" in called[5]
    run(*words)
    assert len(called) == 8
    pathlib.Path("mine/calibration.json").write_text("{}")
    open("mine/checkpoint.pt", "w").close()
    run(*words)
    assert len(called) == 14 and called[11] == ("train.py", "--resume", "mine/")


def test_features_of_the_training_are_not_computed_again(own, said, monkeypatch):
    images.main(
        [
            "--data_path",
            "data",
            "--photos",
            "photos",
            "--cnn_type",
            "demo",
            "--output_name",
            "mine",
            "--workers",
            "0",
            "--device",
            "cpu",
        ]
    )
    monkeypatch.setattr(build, "read_images", lambda *_: read_images("data", "mine"))
    monkeypatch.setattr(build, "read_photo", None)
    assert "10 new" in said("photos", "--index_only", "--output", "again", "--checkpoint", own.run)
    assert all_answers() == pytest.approx(all_answers("again"), abs=1e-5)


# ---- stops


def run_and_die(folder: str, place: str, count: int, words: list[str]) -> None:
    """A command that is killed at a call of a function."""
    os.chdir(folder)
    act_at(place, count, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run(*words)


@pytest.mark.parametrize(
    "place, count", [("photos.build.read_photo", 1), ("numpy.savez", 1), ("os.replace", 1)]
)
def test_a_kill_leaves_an_index_that_answers_or_none(own, place, count):
    shutil.copy(own.spare / "10.png", own.photos)
    index_new = [
        "photos",
        "--checkpoint",
        own.run,
        "--index_only",
        "--output",
        "new",
        "--workers",
        "0",
    ]
    for words in (index_new, ["add", "index", "--workers", "0"], ["remove", "index", "0.png"]):
        if place != "photos.build.read_photo" or words[0] != "remove":
            assert in_a_process(run_and_die, os.getcwd(), place, count, words)[0] == -signal.SIGKILL
        assert len(all_answers()) == 10 and not os.path.exists("new.npz")
    own.update()  # removes what the killed processes left
    run(*index_new)
    assert all_answers() == pytest.approx(all_answers("new"), abs=1e-5) and len(all_answers()) == 11
    assert sorted(os.listdir()) == ["index.npz", "new.npz", "photos", "spare"]


def test_an_index_is_saved_while_it_grows_and_at_a_stop(own, monkeypatch):
    sizes = []
    photos = iter(range(7))
    save = Index.save

    def read(path, **more):
        if next(photos, None) is None:
            raise KeyboardInterrupt
        return read_photo(path, **more)

    monkeypatch.setattr(build, "SAVE_SECONDS", -1)
    monkeypatch.setattr(build, "PHOTOS_PER_CALL", 2)

    def note_and_save(self):
        sizes.append(len(self))
        save(self)

    monkeypatch.setattr(Index, "save", note_and_save)
    monkeypatch.setattr(build, "read_photo", read)
    with pytest.raises(SystemExit):
        own.update("--output", "new")
    assert sizes == [2, 4, 6] and len(all_answers("new")) == 6


# ---- what can go wrong


def rewrite(**values) -> None:
    """The index with other arrays, or other values in its manifest, under a digest of its own."""
    stored = {**np.load("index.npz")}
    manifest = {}
    stored.pop("digest")
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            stored[name] = value
        else:
            manifest[name] = value
    manifest = json.dumps(json.loads(stored["manifest"].tobytes()) | manifest).encode()
    stored["manifest"] = np.frombuffer(manifest, np.uint8)
    np.savez("index.npz", **stored, digest=index.digest(stored))


def test_an_index_of_another_time_or_cut_off_is_one_sentence(own, make, capsys):
    mixed = {**np.load("index.npz"), "mean": np.roll(np.load("index.npz")["mean"], 1, 0)}
    whole = open("index.npz", "rb").read()
    kinds = (
        {"photos": [[1]]},
        {"folder": None},
        {"exclude": [1]},
        {"removed": []},
        {"mean": np.zeros((10, 9), int)},
        {"mean": np.zeros((9, 9))},
        {"log_var": np.zeros(10)},
        {"mean": np.array(["a"] * 10)},
        {"years": [1]},
        {"years": {"x": 2019}},
    )
    numbers = np.load("index.npz")["mean"]
    no_numbers = [
        np.where(np.arange(len(numbers))[:, None] == 3, value, numbers).astype(np.float32)
        for value in (np.nan, np.inf, -1e30)
    ]
    photos = json.loads(np.load("index.npz")["manifest"].tobytes())["photos"]
    odd_names = [[[name, *photos[0][1:]], *photos[1:]] for name in ("a\0b.png", "\udcff.png")]
    none = {
        name: np.zeros_like(x[:0]) for name, x in np.load("index.npz").items() if name in index.AXES
    }
    for values, message in (
        ({"run": "nowhere"}, "there is no checkpoint nowhere"),
        ({"index": 3}, "it is of format 3, and this version reads 4.*; make it again with python"),
        ({"mean": np.zeros((10, 9), np.float32)}, "holds 9 numbers per photo, but its run"),
        *((values, "is not a whole index .*; make it again") for values in kinds),
        *(
            ({"mean": x}, "not a whole index .mean holds numbers that are not finite, or too large")
            for x in no_numbers
        ),
        ({"log_var": np.full_like(numbers, 1000)}, "log_var holds numbers that are not finite"),
        ({"photos": odd_names[0]}, "is not a whole index .*a.x00b.png' is not the name of a file"),
        ({"photos": odd_names[1]}, "is not a whole index .*surrogates not allowed"),
        ({"folder": "a\0b"}, "is not the name of a file"),
        ({"photos": [], **none}, "is not a whole index .it has no photos.; make it again"),
    ):
        open("index.npz", "wb").write(whole)
        rewrite(**values)
        refused(capsys, search.main, ["query", "index", "a star ."], message)
    np.savez("index.npz", **mixed)
    refused(
        capsys,
        search.main,
        ["query", "index", "a star ."],
        "its arrays do not belong together.*; make it again",
    )
    data = open(make(), "rb").read()
    open("index.npz", "wb").write(data[:-900])
    refused(
        capsys, search.main, ["query", "index", "a star ."], "is not an .npz file .*; make it again"
    )
    refused(capsys, search.main, ["info", "none"], "there is no file none.npz; make an index with")


def test_an_index_from_before_years_were_kept_is_read(own):
    older = Index.open("index")
    del older.manifest["years"]
    older.save()
    before = all_answers()
    assert "10 photos, 0 new" in own.update() and all_answers() == before


def test_an_index_of_another_folder_or_run(own, capsys, small_run, tmp_path):
    words = ["--index_only", "--output", "index", "--checkpoint"]
    for folder, run_of, message in (
        ("spare", own.run, "is the index of .*photos; name another file"),
        ("photos", small_run(), "was made by the model with .*delete the index and"),
    ):
        refused(capsys, search.main, [folder, *words, run_of], message)
    refused(
        capsys,
        search.main,
        ["query", "index", "a star", "--checkpoint", small_run()],
        "was made by the model",
    )
    run("query", "index", "--checkpoint", small_run(*GAUSSIAN, to=tmp_path / "moved"), "a star")
    refused(capsys, search.main, ["nothing"], "nothing is not a folder")
    refused(
        capsys,
        search.main,
        ["querry", "index", "a star"],
        "arguments: index a star; the commands are query, add",
    )
    refused(
        capsys,
        search.main,
        ["photos", "--output", "photos/x", "--exclude", "*"],
        "holds no photo .*--exclude",
    )


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "nothing to search for"),
        (["--", " "], "an empty question"),
        (["--top", "5", "--", "-beach"], "says only what is not wanted"),
        (["--photo", "no.jpg"], "there is no file no.jpg"),
        (["--captions", "no.txt"], "there is no file no.txt"),
        (["x" * 100_000], "no word of 'x{57}[.]{3}' is in the vocabulary"),
        (
            ["--json", "-star"],
            "unrecognized arguments: -star; write what should not be there after .--not",
        ),
    ],
)
def test_bad_queries(make, capsys, words, message):
    refused(capsys, search.main, ["query", make(*GAUSSIAN), *words], message)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--output", "OLD"], "index.npz already exists"),
        (["--output", "FOLDER", "--overwrite"], "folder.npz cannot"),
        (["--images", "nothing"], "there is no folder"),
        (["--images", "demo_region_precomp"], "reads|was trained on"),
        (["--images", "demo"], "demo/.* holds no features of images"),
        (["--images", "demo_cxc"], "holds no data set"),
        (["--photos", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_bad_indexes_of_data(make, tmp_path, capsys, small_run, demo_path, words, message):
    path = make(*GAUSSIAN, to=tmp_path / "index.npz")
    os.mkdir(tmp_path / "folder.npz")
    words = [
        word.replace("FOLDER", str(tmp_path / "folder")).replace("OLD", str(path)) for word in words
    ]
    refused(
        capsys,
        search.main,
        [
            "index",
            "--checkpoint",
            small_run(*GAUSSIAN),
            "--data_path",
            demo_path,
            "--images",
            "demo_precomp",
            "--output",
            tmp_path / "new",
            *words,
        ],
        message,
    )
    assert (
        sorted(os.listdir(tmp_path)) == ["folder.npz", "index.npz"] and len(all_answers(path)) > 1
    )


def test_a_run_on_features_of_another_network_takes_no_folder(
    own, make, small_run, capsys, monkeypatch
):
    monkeypatch.setattr(encoder, "rebuild_network", lambda *_: None)
    refused(
        capsys,
        search.main,
        ["photos", "--checkpoint", small_run(*GAUSSIAN), "--output", "new"],
        "of photos of 'demo_scenes.*, and those of other photos cannot be computed from that.* index --images",
    )
    assert not os.path.exists("new.npz")
    refused(
        capsys,
        search.main,
        ["add", make()],
        "was made of features of demo_precomp; make it again with",
    )


def test_a_number_of_photos_is_none_above_all():
    assert describe_number(700, 1260) == "about 700 (350 to 1,260) of 1,260 photos show this"
    assert describe_number(1260, 1260).startswith("about 1,260 (630 to 1,260) of 1,260")
