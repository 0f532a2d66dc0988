"""search.py on the demo: answers are those of the model, an index survives every stop, bad input gets a sentence."""
import json
import os
import re
import shlex
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import search
from checkpoints import load_checkpoint
from cli import InputError
from data import read_split
from evaluation.bank import item_terms
from evaluation.encode import encode
from evaluation.open import How
from features import extract
from features.networks import recipe_of
from files import writing
from inputs import Photos
from retrieval import build, encoder, engines, index, milvus, searcher
from retrieval.encoder import Encoder
from retrieval.milvus import Milvus
from retrieval.ranking import NEAR
from retrieval.searcher import Searcher, Wanted
from retrieval.trust import Trust
from tests.helpers import Command, in_a_process, refused

GAUSSIAN = ["--sim", "wasserstein"]
KINDS = {"cosine": [], "wasserstein": GAUSSIAN, "kl": ["--sim", "kl"], "minkl": ["--sim", "minkl"],
         "mls": ["--sim", "mls"], "gce": ["--sim", "mahalanobis"], "order": ["--sim", "order", "--use_abs"],
         "pvse": ["--sim", "mil", "--img_enc", "pie", "--txt_enc", "pie", "--data_name", "demo_region_precomp"],
         "scan": ["--sim", "scan", "--img_enc", "scan", "--data_name", "demo_region_precomp"]}
TEXTS = ["a red circle .", "two squares and a star .", "a large blue triangle above a small green circle ."]


def run(command, *words):
    """A command of search.py, in this process."""
    search.main([command, *map(str, words)])


@pytest.fixture(scope="module")
def make(tmp_path_factory, demo_path, small_run):
    """make(*words, options=[...]): the folder of an index of the demo's test photos by a small run of `words`."""
    found = {}

    def call(*words, options=(), to=None):
        key = (words, tuple(options))
        if key not in found:
            found[key] = tmp_path_factory.mktemp("index") / "index"
            data = "demo_region_precomp" if "demo_region_precomp" in words else "demo_precomp"
            run("index", "--checkpoint", small_run(*words), "--data_path", demo_path, "--images", data, "--photos",
                os.path.join(demo_path, "demo", "images"), "--output", found[key], *options)
        return shutil.copytree(found[key], to) if to else found[key]
    return call


def scores_by_model(folder, demo_path, texts):
    """Scores (Q, N) of texts and all photos by the model itself, and the model."""
    made = index.Index(str(folder)).manifest
    model = Encoder(made["run"])
    split = read_split(demo_path, made["images"][1], "test")
    images, _ = encode(model.model, split, None, "cpu")
    return model.similarity(images, model.captions(texts)).T.detach(), split


# ---- answers

@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_model(make, demo_path, kind, half):
    folder = make(*KINDS[kind], options=["--float16"] * half)
    scores, split = scores_by_model(folder, demo_path, TEXTS)
    found = Searcher(str(folder)).find_texts(TEXTS, top=5)
    spread = scores.std()
    for one, row in zip(found, scores):
        best = row.sort(descending=True)
        assert [split.photo_names[a.row] for a in one.answers] == [a.name for a in one.answers]
        assert [a.score for a in one.answers] == pytest.approx(best.values[:5].tolist(),
                                                                abs=float(spread) * (5e-3 if half else 1e-4))
        if not half:
            assert [a.row for a in one.answers] == best.indices[:5].tolist()
        assert one.gallery == len(row) and not any(a.gone for a in one.answers)


def test_pages_follow_each_other(make):
    found = Searcher(str(make()))
    whole, = found.find_texts(TEXTS[:1], top=9)
    second, = found.find_texts(TEXTS[:1], top=4, first=5)
    assert second.answers == whole.answers[5:9]
    last, = found.find_texts(TEXTS[:1], top=100, first=found.count - 2)
    assert len(last.answers) == 2 and not found.find_texts(TEXTS[:1], top=5, first=10 ** 6)[0].answers


def trusted(folder, **values):
    found = Searcher(str(folder))
    found.trust = Trust(**{"temperature": 3.0, "gallery": 1000, "data": "demo_precomp", "alpha": 0.1, "limit": 2.5,
                           **values})
    return found


def test_probabilities_are_the_posterior_over_the_gallery(make, demo_path):
    folder = make(*GAUSSIAN)
    scores, _ = scores_by_model(folder, demo_path, TEXTS)
    p = (3.0 * scores.double()).softmax(1)
    for one, row in zip(trusted(folder).find_texts(TEXTS, top=len(p[0])), p):
        assert [a.p for a in one.answers] == pytest.approx(row.sort(descending=True).values.tolist(), rel=1e-4)
        held = int((-row.log() <= 2.5).sum())
        assert one.sure == one.answers[0].p and one.level == (pytest.approx(0.9) if held else None)
        assert (one.in_set or 0) == held == sum(bool(a.in_set) for a in one.answers)


@pytest.mark.parametrize("values, reason", [
    ({"gallery": 23}, "calibrated among 23 photos promise nothing among 24; calibrate them on a dev split of as many"),
    ({"limit": 0.0}, "even the first photo is less probable")])
def test_a_set_that_holds_no_promise_is_none(make, capsys, monkeypatch, tmp_path, demo_path, values, reason):
    """Of more photos than it was calibrated among, and an empty one."""
    found = trusted(make(), **values)
    one, = found.find_texts(TEXTS[:1], top=3)
    assert (one.in_set, one.level, [a.in_set for a in one.answers]) == (None, None, [None] * 3) and reason in one.no_set
    monkeypatch.setattr(search, "opened", lambda opt: found)
    run("query", make(), TEXTS[0], "--sets", "--top", 1)
    assert one.no_set in capsys.readouterr().out
    run("query", make(), TEXTS[0], "--top", 1)
    assert "no set" not in capsys.readouterr().out


def test_copies_of_the_first_photo_share_what_is_said_of_it(own, capsys, monkeypatch):
    folder = own / "index"
    found = trusted(folder, gallery=10, temperature=30.0)
    first = found.find_texts(TEXTS[:1])[0].answers[0]
    for name in ("twice.png", "sub/again.png"):
        shutil.copy(found.path_of(first.row), own / "photos" / name)
    extracted(own, own / "photos")
    run("add", folder)
    found = trusted(folder, gallery=10, temperature=30.0)
    one, = found.find_texts(TEXTS[:1], top=1)
    every, = found.find_texts(TEXTS[:1], top=12)
    copies = [a for a in every.answers if a.copy]
    assert {a.name for a in copies} == {first.name, "twice.png", "sub/again.png"} and one.copies == every.copies == 3
    assert one.sure == every.sure == pytest.approx(sum(a.p for a in copies)) and one.sure > 2 * every.answers[0].p
    assert one.answers[0].p == every.answers[0].p and len(one.answers) == 1
    monkeypatch.setattr(search, "opened", lambda opt: found)
    run("query", folder, TEXTS[0], "--top", 1)
    assert "sure of the first photo, of which there are 3 copies" in capsys.readouterr().out


# ---- questions of several parts, of some photos

def test_parts_are_the_sum_of_standard_scores(make, demo_path):
    folder = make(*GAUSSIAN)
    scores, _ = scores_by_model(folder, demo_path, TEXTS)
    z = (scores - scores.mean(1, keepdim=True)) / scores.std(1, correction=0, keepdim=True)
    found = trusted(folder)
    for wanted, expected in ((Wanted(also=(TEXTS[1],)), z[0] + z[1]),
                             (Wanted(without=(TEXTS[1],)), z[0] - z[1].clamp(min=0)),
                             (Wanted((TEXTS[1],), (TEXTS[2], TEXTS[1])),
                              z[0] + z[1] - z[1].clamp(min=0) - z[2].clamp(min=0))):
        one, = found.find_texts(TEXTS[:1], top=5, wanted=wanted)
        best = expected.sort(descending=True)
        assert [a.row for a in one.answers] == best.indices[:5].tolist()
        assert [a.score for a in one.answers] == pytest.approx(best.values[:5].tolist(), abs=1e-3)
        assert one.sure is None and one.answers[0].p is None and any("scores alone" in note for note in one.notes)
    assert one.query == f"{TEXTS[0]} and {TEXTS[1]}, not {TEXTS[2]}, not {TEXTS[1]}"


def test_a_photo_and_words_weigh_alike(own, small_run):
    """Where the similarity of a photo and a text cannot compare two photos, too."""
    run("index", "--checkpoint", small_run("--sim", "mls"), "--data_path", own / "data", "--images", "mine", "--output",
        own / "mls")
    found = Searcher(str(own / "mls"))
    photo = Photos([found.path_of(3)]).open(0)
    alone = {a.row: a.score for a in found.find_photo(photo, top=1000).answers}
    words = {a.row: a.score for a in found.find_texts(TEXTS[:1], top=1000)[0].answers}
    both = found.find_photo(photo, top=1000, wanted=Wanted((TEXTS[0],))).answers
    a, b = (np.array([x[k] for k in range(found.count)]) for x in (alone, words))
    expected = (a - a.mean()) / a.std() + (b - b.mean()) / b.std()
    assert [x.score for x in both] == pytest.approx(sorted(expected, reverse=True), abs=1e-3)


def test_only_some_photos_are_searched(own, capsys):
    folder, photos = own / "index", own / "photos"
    names = index.Index(str(folder)).items.names
    os.makedirs(photos / "old")
    for k, name in enumerate(names[:4]):
        image, exif = Image.open(photos / name), Image.Exif()
        exif[0x0132] = f"200{k}:0{k + 1}:15 10:00:00"
        exif.get_ifd(0x8769)[0x9003] = f"201{k}:0{k + 1}:15 10:00:00"
        image.convert("RGB").save(photos / "old" / f"{k}.jpg", exif=exif)
    extracted(own, photos)
    run("add", folder)
    found = trusted(folder)

    def names_of(**wanted):
        one, = found.find_texts(TEXTS[:1], top=1000, wanted=Wanted(**wanted))
        assert one.gallery == len(one.answers) and sum(a.p for a in one.answers) == pytest.approx(1)
        return {a.name for a in one.answers}
    old = {f"old/{k}.jpg" for k in range(4)}
    assert names_of(only=("old",)) == names_of(only=("old/",)) == names_of(only=("old/*.jpg",)) == old
    assert names_of(only=("old/0.jpg", names[5])) == {"old/0.jpg", names[5]}
    assert names_of(until="2013") == old and names_of(since="2011-02-15", until="2012-03-15") == {"old/1.jpg",
                                                                                                 "old/2.jpg"}
    assert names_of(only=("old",), since="2013") == {"old/3.jpg"}
    assert names_of(since="2014") == {*names}                       # those of the demo have the days of their files
    with pytest.raises(InputError, match="no photo of .* is from 2014 to today among those of --only; give other days"):
        names_of(only=("old",), since="2014")
    with pytest.raises(InputError, match="no photo of .* is named nothing; search.py info .* --names lists them"):
        names_of(only=("nothing",))
    run("query", folder, TEXTS[0], "--only", "old", "--until", "2011-12-31", "--not", TEXTS[1], "--top", 9)
    out = capsys.readouterr().out
    assert "old/0.jpg" in out and "old/1.jpg" in out and "old/2.jpg" not in out and f", not {TEXTS[1]}" in out
    for text in ("2011-13", "11", "2011-2", "2011-02-30", "yesterday"):
        refused(capsys, search.main, ["query", str(folder), TEXTS[0], "--since", text],
                f"'{text}' is no day; write it as 2024, 2024-07 or 2024-07-31")


def test_photos_that_are_nearly_equal_are_shown_once(own):
    folder, photos = own / "index", own / "photos"
    first = Searcher(str(folder)).find_texts(TEXTS[:1])[0].answers[0].name
    shutil.copy(photos / first, photos / "twice.png")
    extracted(own, photos)
    run("add", folder)
    found = Searcher(str(folder))
    every, once = (found.find_texts(TEXTS[:1], top=1000, wanted=Wanted(once=once))[0].answers for once in (False, True))
    x = torch.nn.functional.normalize(found.index.fetch(np.array([a.row for a in every])).vectors[0], dim=1)
    near = x @ x.T > NEAR
    expected = [a for k, a in enumerate(every) if not near[k, :k].any()]
    assert [a.name for a in once] == [a.name for a in expected] and once[0].name in (first, "twice.png")
    assert len({first, "twice.png"} & {a.name for a in once}) == 1 and len(once) < len(every)
    second = found.find_texts(TEXTS[:1], top=2, first=1, wanted=Wanted(once=True))[0].answers
    assert [a.name for a in second] == [a.name for a in once[1:3]]


def proposing(found, rows):
    """Makes the index of a searcher propose these photos, of which nothing but the exact scores counts."""
    found.index.exact, found.index.depth = False, 1
    found.index.candidates = lambda vectors, r: np.stack([rows] * len(vectors[0]))


@pytest.mark.parametrize("kind", ["kl", "minkl", "mls", "pvse"])
def test_candidates_are_scored_exactly(make, kind):
    found = trusted(make(*KINDS[kind]))
    whole = found.find_texts(TEXTS, top=6)
    proposing(found, np.append(np.arange(found.count), -1))
    for a, b in zip(whole, found.find_texts(TEXTS, top=6)):
        assert [x.row for x in a.answers] == [x.row for x in b.answers] and a.in_set == b.in_set
        assert a.sure == pytest.approx(b.sure, rel=1e-5)
    some = sorted(a.row for a in whole[0].answers)[:3] + [-1]
    proposing(found, np.array(some))
    few, = found.find_texts(TEXTS[:1], top=6)
    assert {a.row for a in few.answers} == set(some) - {-1}
    # all others are in the sample, so the sum over the gallery is exact though they were not proposed
    assert {a.row: a.p for a in few.answers} == pytest.approx({a.row: a.p for a in whole[0].answers if a.row in some},
                                                              rel=1e-5)


def test_a_sample_stands_for_the_gallery(make, monkeypatch):
    """The estimate of the sum over the gallery has no bias: its mean over samples is the sum."""
    found = trusted(make(), temperature=1.0)
    e = found.encoder.captions(TEXTS[:1])
    asked = found.vectors.queries(e)
    exact = found.ranker.rank(asked, 3, found.trust).log_total.exp()
    rows = np.arange(3)
    totals = []
    for seed in range(200):
        drawn = np.sort(np.random.default_rng(seed).permutation(found.count)[:8])
        found.index.sample = drawn, found.index.fetch(drawn)
        totals.append(found.ranker.rank_some(asked, rows, 3, found.trust).log_total.exp())
    totals = torch.stack(totals)
    assert abs(totals.mean() - exact) < 4 * totals.std() / len(totals) ** 0.5 and totals.std() > 0


@pytest.mark.parametrize("kind", ["cosine", "kl", "wasserstein", "mls"])
def test_a_bank_is_taken_from_the_scores(make, demo_path, kind, monkeypatch, capsys):
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": 2.0}})
    folder = make(*KINDS[kind], options=["--bank", "train", "--sets", "0.2"])
    scores, split = scores_by_model(folder, demo_path, TEXTS)
    made = index.Index(str(folder)).manifest
    assert "note: no set: sets that were calibrated among 12 photos" in capsys.readouterr().out
    bank = build.BankColumn(Encoder(made["run"]), "train", How())
    images, _ = encode(Encoder(made["run"]).model, split, None, "cpu")
    taken = item_terms([bank.queries[0]._replace(images=images)], bank.queries, [2.0], "t2i")[0]
    found = Searcher(str(folder))
    for one, row in zip(found.find_texts(TEXTS, top=4), scores - taken):
        assert [a.row for a in one.answers] == row.argsort(descending=True)[:4].tolist()
        assert one.sure is not None and found.trust.alpha == 0.2 and "among 12 photos promise nothing" in one.no_set
        logits = found.trust.temperature * row.double()
        assert one.sure == pytest.approx(float(logits.softmax(0).max()), rel=1e-4)


def test_an_index_with_a_bank_has_a_calibration_of_its_own(own, capsys, monkeypatch):
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": 2.0}})
    folder = own / "index"
    run("index", "--checkpoint", index.Index(str(folder)).manifest["run"], "--data_path", own / "data", "--images",
        "mine", "--output", folder, "--overwrite", "--bank", "train")
    refused(capsys, search.main, ["query", folder, "a star", "--sets"],
            "make the index again with --bank train --sets 0.1")
    refused(capsys, search.main, ["query", folder, "a star", "--calibration", "mine.json"],
            "leave --calibration mine.json out")
    run("query", folder, "a star", "--photo", own / "photos" / "0.png", "--json")
    text, photo = json.loads(capsys.readouterr().out)
    assert len(text["notes"]) == len(photo["notes"]) == 1                # a photo's answers have no probabilities


def test_a_run_whose_data_moved_finds_them_below_data_path(make, small_run, demo_path, tmp_path, monkeypatch):
    """Or whose --data_path was said from another working directory; index and add alike."""
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": 2.0}})
    moved = small_run(*GAUSSIAN, to=tmp_path / "moved")
    for name in ("checkpoint.pt", "model_best.pt"):
        stored = torch.load(moved / name, weights_only=True)
        stored["options"]["data_path"] = "nowhere"
        torch.save(stored, moved / name)
    answers = []
    for run_of, folder in ((small_run(*GAUSSIAN), tmp_path / "there"), (moved, tmp_path / "gone")):
        run("index", "--checkpoint", run_of, "--data_path", demo_path, "--images", "demo_precomp", "--output", folder,
            "--bank", "train")
        run("remove", folder, index.Index(str(folder)).items.names[0])
        run("add", folder, "*")
        answers.append(all_answers(folder))
    assert answers[0] == answers[1] and len(answers[0]) == 24


def test_no_bank_where_none_helps(make, small_run, demo_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": None}})
    run("index", "--checkpoint", small_run(), "--data_path", demo_path, "--images", "demo_precomp", "--output",
        tmp_path / "i", "--bank", "train")
    assert "no beta" in capsys.readouterr().out and index.Index(str(tmp_path / "i")).manifest["bank"] is None


# ---- approximate indexes

@pytest.mark.parametrize("kind", ["minkl", "mls"])
def test_a_graph_proposes_what_is_scored_exactly(make, kind, monkeypatch):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed (requirements-search.txt)")
    monkeypatch.setattr("retrieval.engines.DEPTHS", (12, 20))
    exact, graph = trusted(make(*KINDS[kind])), trusted(make(*KINDS[kind], options=["--hnsw"]))
    check = graph.index.manifest["check"]
    assert check[0].startswith("hnsw proposes 12 candidates") or check[0].startswith("hnsw proposes 2")
    assert "captions of demo_precomp dev" in check[1] and "queries per second" in check[2]
    a, b = exact.find_texts(TEXTS, top=3), graph.find_texts(TEXTS, top=3)
    same = [x.row == y.row for one, other in zip(a, b) for x, y in zip(one.answers, other.answers)]
    assert np.mean(same) > 0.8
    for one, other in zip(a, b):                            # the sample holds all photos, so sums and counts are exact
        assert other.gallery == one.gallery and other.in_set == one.in_set
        shared = {x.row: x.p for x in one.answers}
        assert all(y.p == pytest.approx(shared[y.row], rel=1e-5) for y in other.answers if y.row in shared)


def test_a_graph_takes_changes(own, capsys, monkeypatch):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed (requirements-search.txt)")
    made = index.Index(str(own / "index")).manifest
    folder = own / "graph"
    run("index", "--checkpoint", made["run"], "--data_path", own / "data", "--images", "mine", "--output", folder,
        "--hnsw")
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    extracted(own, own / "photos")
    built = []
    monkeypatch.setattr(build, "build", lambda *words: built.append(words) or engines.build(*words))
    for change in (["add", folder], ["remove", folder, "4.png"]):
        run(*change)
    assert len(built) == 1                                  # a graph takes photos in, and none out
    run("add", own / "index")
    run("remove", own / "index", "4.png")
    assert all_answers(folder) == pytest.approx(all_answers(own / "index"), abs=1e-5)


def test_codes_need_photos_to_learn_from(make, tmp_path, capsys, small_run, demo_path):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed (requirements-search.txt)")
    refused(capsys, search.main, ["index", "--checkpoint", small_run(), "--data_path", demo_path, "--images",
                                  "demo_precomp", "--output", tmp_path / "codes", "--ivfpq"], "at least 1,000 vectors")
    assert not (tmp_path / "codes" / "manifest.json").exists()


# ---- changes

def all_answers(folder):
    return {a.name: a.score for a in Searcher(str(folder)).find_texts(TEXTS[:1], top=1000)[0].answers}


def test_photos_are_removed(make, tmp_path, capsys):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    before = all_answers(folder)
    names = index.Index(str(folder)).listed()[1]
    run("remove", folder, names[3], "*_00005.png")
    gone = {names[3], next(name for name in names if name.endswith("_00005.png"))}
    assert "2 photos removed" in capsys.readouterr().out
    # a score's last bit may change: the kernels of a product depend on how many photos there are
    left = {name: score for name, score in before.items() if name not in gone}
    assert all_answers(folder) == pytest.approx(left, abs=1e-5)
    assert sorted(os.listdir(folder)) == [".lock", "000002", "manifest.json"]
    run("add", folder)
    assert "0 photos added, 0 changed; 2 stay out as search.py remove took them out" in capsys.readouterr().out
    run("info", folder)
    assert "2 photos were removed, the first is" in capsys.readouterr().out
    refused(capsys, search.main, ["add", folder, "nothing*"], "no photo that was removed from .* is named nothing")
    for name, left in ((names[3], 1), ("*", 0)):
        run("add", folder, name)
        assert "1 photos added" in capsys.readouterr().out and len(build.removed_from(str(folder))) == left
    assert all_answers(folder) == pytest.approx(before, abs=1e-5)


def test_photos_that_are_gone_are_shown_as_gone(make, tmp_path, demo_path, capsys, small_run):
    photos = shutil.copytree(os.path.join(demo_path, "demo", "images"), tmp_path / "photos")
    folder = tmp_path / "index"
    run("index", "--checkpoint", small_run(), "--data_path", demo_path, "--images", "demo_precomp", "--photos", photos,
        "--output", folder)
    first = Searcher(str(folder)).find_texts(TEXTS[:1])[0].answers[0]
    os.remove(photos / first.name)
    capsys.readouterr()
    run("query", folder, TEXTS[0], "--top", 2)
    assert f"{first.name} (gone)" in capsys.readouterr().out
    run("info", folder)
    assert "1 photos are gone" in capsys.readouterr().out
    run("remove", folder, "--gone")
    assert first.name not in all_answers(folder)
    with pytest.raises(searcher.InputError, match="no photo 99999"):
        Searcher(str(folder)).path_of(99999)
    os.rename(photos, tmp_path / "moved")                    # or a disk that is not mounted
    refused(capsys, search.main, ["remove", folder, "--gone"], "photos, is not there, so all look gone; put")
    run("info", folder)
    said = capsys.readouterr().out
    assert "is not there, so all look gone" in said and "--gone" not in said
    run("query", folder, TEXTS[0], "--top", 1)
    again = re.search(r": search.py (index .* --photos )FOLDER( .*)", capsys.readouterr().out)
    run(*shlex.split(f"{again[1]}{tmp_path / 'moved'}{again[2]}"))
    run("query", folder, TEXTS[0], "--top", 1)
    assert "(gone)" not in capsys.readouterr().out.splitlines()[-1]


@pytest.fixture
def own(tmp_path, demo_path, small_run):
    """A folder of ten photos, their features by the demo's extractor, and the index of these."""
    photos = tmp_path / "photos"
    os.makedirs(photos / "sub")
    names = sorted(name for name in os.listdir(os.path.join(demo_path, "demo", "images")) if name.startswith("test"))
    for k, name in enumerate(names[:12]):
        shutil.copy(os.path.join(demo_path, "demo", "images", name), photos / ("sub" if k % 2 else "") / f"{k}.png")
    extras = [photos / "10.png", photos / "sub" / "11.png"]
    spare = tmp_path / "spare"
    os.makedirs(spare)
    for path in extras:
        shutil.move(path, spare)
    extracted(tmp_path, photos)
    run("index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", tmp_path / "data", "--images", "mine", "--output",
        tmp_path / "index")
    return tmp_path


def extracted(folder, photos):
    extract.main(["images", "--photos", str(photos), "--kind", "demo", "--data_path", str(folder / "data"),
                  "--output_name", "mine", "--workers", "0"])


def test_one_command_reads_what_is_new(own, small_run, capsys, monkeypatch):
    """`photos` from nothing, again, and with a new and a damaged photo; its answers are those of the long way."""
    monkeypatch.chdir(own)
    words = ["photos", own / "photos", "--checkpoint", small_run(*GAUSSIAN), "--index_only", "--workers", 0]
    run(*words)
    shown = capsys.readouterr().out
    folder, = os.listdir("indexes")
    assert folder.startswith("photos_") and ": 10 photos of photos" in shown and f"query indexes/{folder}" in shown
    expected, found = (Searcher(str(path)).find_texts(TEXTS, top=10) for path in (own / "index", f"indexes/{folder}"))
    assert [[a[:3] for a in one.answers] for one in found] == [[a[:3] for a in one.answers] for one in expected]
    run(*words)
    assert "0 photos added, 0 changed" in capsys.readouterr().out
    monkeypatch.setattr(search, "SHIPPED", small_run("--sim", "cosine"))            # another run, another index
    run(*words[:2], *words[4:])
    shown = capsys.readouterr().out
    assert ": 10 photos of photos" in shown and "nothing was computed" in shown and len(os.listdir("indexes")) == 2
    assert len(os.listdir("data")) == 2                                             # `mine` and the features of both
    shutil.copy(own / "spare" / "10.png", own / "photos")
    (own / "photos" / "bad.png").write_bytes(b"no photo")
    run(*words)
    shown = capsys.readouterr()
    assert "1 photos added" in shown.out and "bad.png" in shown.err
    served = []
    monkeypatch.setattr(search, "serve", lambda *args: served.append(args))
    run(*words[:4], "--port", 0)
    assert served[0][0].count == 11 and served[0][0].title == "photos"


def test_own_captions_make_a_run_in_one_command(own, small_run, capsys, monkeypatch):
    """The commands one after the other; a training that was stopped goes on; a run with its calibration is taken."""
    monkeypatch.chdir(own)
    asked = []
    monkeypatch.setattr(search, "features_of", lambda *words: asked.append(words) or "its_name")

    def called(*words):
        asked.append(words)
        if words[0] == "evaluate.py":
            (own / "mine" / "calibration.json").write_text("{}")
    monkeypatch.setattr(search, "called", called)
    monkeypatch.setattr(search, "of_folder", lambda *words: asked.append(words) or ["done"])
    words = ["photos", own / "photos", "--train", "mine", "--index_only"]
    refused(capsys, search.main, words, "captions.csv; list photos and captions in it")
    (own / "photos" / "captions.csv").write_text("name,caption\n0.png,a red circle .\n")
    for begun in (False, True):
        asked.clear()
        os.makedirs("mine", exist_ok=True)
        if begun:
            os.remove("mine/calibration.json")
            (own / "mine" / "checkpoint.pt").write_bytes(b"")
        run(*words)
        assert [of[0] for of in asked[1:4]] == ["-m", "train.py", "evaluate.py"] and asked[4][2] == "mine"
        assert asked[2] == ("train.py", "--resume", "mine") if begun else asked[2][-2:] == ("--logger_name", "mine")
        line = "efficientnet_lite0 pooled, photos resized to 224x224, sha256:ab"    # as models/photos has it
        assert asked[0][1] == recipe_of(line) and "its_name" in asked[1]
    asked.clear()
    run(*words)
    assert len(asked) == 1 and asked[0][2] == "mine"


def test_a_run_that_does_not_say_what_it_reads_takes_no_folder(own, small_run, capsys, monkeypatch):
    class Silent(Encoder):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.extractors = {}
    monkeypatch.setattr(build, "Encoder", Silent)
    refused(capsys, search.main, ["photos", own / "photos", "--checkpoint", small_run(*GAUSSIAN), "--data_path",
                                  own / "data", "--output", own / "new"], "an unnamed network.* index --images")
    assert not (own / "new").exists()


def test_a_folder_of_photos_from_end_to_end(own, capsys):
    """Photos that are new, changed and removed arrive in the index, and equal an index made anew."""
    folder = own / "index"
    capsys.readouterr()
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    run("add", folder)
    said = capsys.readouterr().out
    assert "0 photos added, 0 changed\nnote: the folder holds 1 photos whose features were not extracted" in said
    comes_first = shlex.split(re.search("python -m features.extract (.*)", said)[1])
    shutil.copy(own / "photos" / "4.png", own / "photos" / "0.png")
    os.remove(own / "photos" / "sub" / "3.png")
    extract.main([*comes_first, "--workers", "0"])
    run("add", folder)
    assert "1 photos added, 1 changed; 1 are no longer among those indexed" in capsys.readouterr().out
    run("remove", folder, "--gone")
    assert build.removed_from(str(folder)) == []         # these come back with their files
    made = index.Index(str(folder)).manifest
    run("index", "--checkpoint", made["run"], "--data_path", own / "data", "--images", "mine", "--output", own / "new")
    new, old = all_answers(own / "new"), all_answers(folder)
    assert old == pytest.approx(new, abs=1e-5) and set(old) == {"0.png", "2.png", "4.png", "6.png", "8.png", "10.png",
                                                                *(f"sub/{k}.png" for k in (1, 5, 7, 9))}
    assert old["0.png"] == pytest.approx(old["4.png"], abs=1e-6)


def test_a_photo_finds_itself(own):
    found = Searcher(str(own / "index"))
    path = found.path_of(3)
    assert found.find_photo(Photos([path]).open(0)).answers[0].row == 3
    assert found.find_row(3).answers[0].row == 3 and found.find_row(3).sure is None
    os.remove(path)
    with pytest.raises(searcher.InputError, match="is gone"):
        found.find_row(3)


def test_the_library_in_a_few_lines(own):
    """What the docstring of retrieval/encoder.py shows."""
    made = index.Index(str(own / "index")).manifest
    model = Encoder(made["run"], made["recipe"])
    captions = model.captions(TEXTS)
    photos = model.photos([str(own / "photos" / "0.png"), str(own / "photos" / "2.png")])
    assert model.similarity(photos, captions).shape == (2, 3)


# ---- what can go wrong

@pytest.mark.parametrize("where", ["retrieval.index.save_json", "retrieval.index.save_arrays", "os.rename",
                                   "retrieval.index.writing", "retrieval.build.image_batches"])
def test_a_stop_at_any_step_leaves_the_old_index(own, monkeypatch, where):
    folder = own / "index"
    before = all_answers(folder)
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    extracted(own, own / "photos")

    def stop(*_, **__):
        raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(where, stop)
        with pytest.raises(KeyboardInterrupt):
            run("add", folder)
    assert all_answers(folder) == before
    run("add", folder)
    assert len(all_answers(folder)) == len(before) + 1
    assert len([name for name in os.listdir(folder) if name != ".lock"]) == 2      # the manifest and one state


def test_what_a_killed_process_left_is_removed(own):
    folder = own / "index"
    os.mkdir(folder / f".000007.{in_a_process(os.getpid).pid}.part")
    run("remove", folder, "0.png")
    assert not list(folder.glob(".0*"))


def hold(folder: str) -> None:
    with writing.locked(folder, "writing the index"):
        print("held")
        signal.pause()


def lock_once(folder: str) -> None:
    try:
        with writing.locked(folder, "x"):
            sys.exit(0)
    except InputError:
        sys.exit(1)


def test_one_process_writes_at_a_time(own, capsys):
    """A lock of this process would not keep itself out, so another one holds it."""
    with Command(hold, str(own / "index")) as other:
        other.said("held")
        refused(capsys, search.main, ["remove", own / "index", "0.png"], "another process is writing the index .*index")
        assert len(all_answers(own / "index")) == 10                                # reading goes on


def test_the_lock_is_held_from_before_the_index_is_read(own, monkeypatch):
    """Otherwise a change of another process meanwhile would be lost."""
    held, real = [], build.open_index

    def opened(folder, *words, **options):
        held.append(in_a_process(lock_once, folder).exitcode)
        return real(folder, *words, **options)
    monkeypatch.setattr(build, "open_index", opened)
    run("remove", own / "index", "0.png")
    assert held == [1]


def edit(folder, /, **values):
    path = folder / "manifest.json"
    stored = json.loads(path.read_text())
    writing.save_json({**stored, **values}, str(path))


@pytest.mark.parametrize("values, message", [
    ({"index": 1}, "is of format 1, and this version reads format 2; make it again with search.py index"),
    ({"index": "x" * 500}, "is of format x{20},"),
    ({"generation": "000009"}, "items.json cannot be read"), ({"generation": "../x"}, "names no folder"),
    ({"weights": "sha256:000000000000"}, "was made by the model with sha256:000000000000"),
    ({"origin": {"mean": "?"}}, "is no whole index"), ({"run": "nowhere"}, "there is no checkpoint nowhere"),
    ({"trust": {"temperature": "hot"}}, "is no whole index|calibration"), ({"count": 3}, "its manifest says 3"),
    ({"folder": 7}, "manifest.json is damaged: folder is 7; make it again"), ({"images": []}, "images is \\[\\]"),
    ({"removed": [3]}, "removed is \\[3\\]"),
    ({"recipe": "x"}, "recipe is x"), ({"vectors": {}}, "is no whole index")])
def test_a_manifest_that_was_changed(make, tmp_path, capsys, values, message):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    edit(folder, **values)
    refused(capsys, search.main, ["query", folder, "a star"], message)


def test_an_index_of_the_format_before_can_be_made_again(make, tmp_path, small_run, demo_path):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    edit(folder, index=1)
    (folder / "000001" / "vectors0.npy").rename(folder / "000001" / "vectors0.faiss")
    run("index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images", "demo_precomp", "--output",
        folder, "--overwrite")
    assert sorted(os.listdir(folder)) == [".lock", "000002", "manifest.json"] and len(all_answers(folder)) > 1


def test_an_index_of_another_run(make, tmp_path, capsys, small_run):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    refused(capsys, search.main, ["query", folder, "--checkpoint", small_run(), "a star"], "was made by the model with")
    run("query", folder, "--checkpoint", small_run(*GAUSSIAN, to=tmp_path / "moved"), "a star")


@pytest.mark.parametrize("name", ["vectors0.npy", "items.json", "numbers.npz"])
def test_files_that_are_cut_or_missing(make, tmp_path, capsys, name):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    path = folder / "000001" / name
    data = path.read_bytes()
    path.write_bytes(data[:len(data) // 2])
    refused(capsys, search.main, ["query", folder, "a star"], name.split(".")[0])
    path.unlink()
    refused(capsys, search.main, ["query", folder, "a star"], name.split(".")[0])


def test_names_that_are_no_list(make, tmp_path, capsys):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    (folder / "000001" / "items.json").write_text('{"names": ["a"], "digests": 3}')
    refused(capsys, search.main, ["info", folder], "is no whole index")


def test_a_manifest_without_its_dimension(make, tmp_path, capsys):
    folder, other = make(*GAUSSIAN, to=tmp_path / "index"), make()
    shutil.copy(other / "000001" / "vectors0.npy", folder / "000001" / "vectors0.npy")
    refused(capsys, search.main, ["query", folder, "a star"], "vectors of .* numbers, and its manifest says")


@pytest.mark.parametrize("words, message", [
    (["xyzzy plugh"], "no word of 'xyzzy plugh' is in the vocabulary"), (["  "], "nothing to search for"),
    ([], "nothing to search for"), (["a star", "--sets"], "--sets needs a calibration"),
    (["a star", "--sheet", "x.doc"], "x.doc ends in none of"), (["--photo", "no.jpg"], "no.jpg cannot be read"),
    (["a star", "--top", "0"], "'0' is not a whole number of at least 1"),
    (["--captions", "no.txt"], "no.txt cannot be read"),
    (["--calibration", "no.json", "a star"], "no.json cannot be read")])
def test_bad_queries(make, capsys, words, message):
    refused(capsys, search.main, ["query", make(*GAUSSIAN), *words], message)


def test_a_photo_where_its_features_cannot_be_computed(make, capsys, demo_path):
    photo = os.path.join(demo_path, "demo", "images", "test_00000.png")
    refused(capsys, search.main, ["query", make(*GAUSSIAN), "--photo", photo], "were not written by features.extract")


def test_unknown_words_are_named(make, capsys):
    run("query", make(), "a red xyzzy circle .", "--top", 1)
    assert "unknown words, which are left out: xyzzy" in capsys.readouterr().out


@pytest.mark.parametrize("text, said", [
    ("un chien sur la plage", "5 of its 5 words"), ("a red chien sur plage", "3 of its 5 words"),
    ("a red chien plage", ""), ("astronaut", ""), ("a red circle .", "")])
def test_a_question_in_another_language_is_told_by_the_words_of_the_training(make, monkeypatch, text, said):
    """Where ready features of captions take any word. A handful of words tells no language."""
    model = Encoder(index.Index(str(make())).manifest["run"])
    model.options.text_features = "minilm"
    assert len(model.vocab) < encoder.BROAD and model.note_on(text) is None
    monkeypatch.setattr(encoder, "BROAD", len(model.vocab))
    assert (model.note_on(text) or "").startswith(said) and bool(model.note_on(text)) == bool(said)


@pytest.mark.parametrize("words, message", [
    (["--output", "OLD"], "is an index already"), (["--output", "FOREIGN"], "holds notes.txt and is no index"),
    (["--output", "FOREIGN/notes.txt"], "is no folder"), (["--images", "nothing"], "there is no folder"),
    (["--images", "demo_region_precomp"], "reads|was trained on"), (["--images", "demo"], "reads features of photos"),
    (["--images", "demo_cxc"], "holds no data set"), (["--sets", "0.1"], "--sets 0.1 belongs to --bank"),
    (["--photos", "nowhere"], "--photos nowhere is no folder"), (["--bank", "dev"], "beta is chosen on"),
    (["--hnsw", "--ivfpq"], "not allowed with"),
    (["--checkpoint", "nowhere"], "there is no checkpoint")])
def test_bad_indexes(make, tmp_path, capsys, small_run, demo_path, words, message):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    os.mkdir(tmp_path / "foreign")
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    words = [word.replace("FOREIGN", str(tmp_path / "foreign")).replace("OLD", str(folder)) for word in words]
    refused(capsys, search.main, ["index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images",
                                  "demo_precomp", "--output", tmp_path / "new", *words], message)
    assert not (tmp_path / "new" / "manifest.json").exists()
    assert (tmp_path / "foreign" / "notes.txt").read_text() == "mine" and len(all_answers(folder)) > 1


@pytest.mark.parametrize("files", [["202301/a.jpg", "202302/b.jpg"], ["manifest.json", "page.js"]])
def test_an_index_replaces_no_files_of_others(make, tmp_path, capsys, small_run, demo_path, files):
    words = ["index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images", "demo_precomp",
             "--overwrite", "--output", tmp_path / "mine"]
    for name in files:
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text("7")
    refused(capsys, search.main, words, f"holds {files[0].split('/')[0]} and is no index")
    assert all((tmp_path / "mine" / name).read_text() == "7" for name in files)
    make(*GAUSSIAN, to=tmp_path / "index")
    os.makedirs(tmp_path / "index" / "202301")
    (tmp_path / "index" / "202301" / "a.jpg").write_text("7")
    run("remove", tmp_path / "index", index.Index(str(tmp_path / "index")).items.names[0])
    assert (tmp_path / "index" / "202301" / "a.jpg").read_text() == "7" and not (tmp_path / "index" / "000001").exists()


def test_a_first_index_that_was_killed_can_be_made_again(make, tmp_path, small_run, demo_path):
    folder = make(*GAUSSIAN, to=tmp_path / "index")
    os.rename(folder / "manifest.json", folder / ".manifest.json.9999999.part")
    run("index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images", "demo_precomp", "--output",
        folder)
    assert sorted(os.listdir(folder)) == [".lock", "000002", "manifest.json"] and len(all_answers(folder)) > 1


def test_what_is_no_index(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "nowhere"):
        refused(capsys, search.main, ["query", folder, "a star"], "is no index; make one with")
    (tmp_path / "manifest.json").write_text("[]")
    refused(capsys, search.main, ["info", tmp_path], "describes no index")


def test_features_of_another_extractor(own, capsys, small_run, demo_path):
    path = own / "data" / "mine" / "features.json"
    stored = load_checkpoint(str(small_run(*GAUSSIAN)))["data"].get("extractors")
    assert stored and "ims" in stored                       # the demo tells what made its features
    listed = own / "data" / "mine" / "all_photos.json"
    for file in (path, listed):
        text = file.read_text()
        file.write_text(text.replace(stored["ims"], "another network"))
    refused(capsys, search.main, ["index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", own / "data",
                                  "--images", "mine", "--output", own / "other"], "was trained on photos of '.*', and")


def test_port_0_is_any_free_one_as_the_message_of_a_port_in_use_says(make, monkeypatch):
    ports = []
    monkeypatch.setattr(search, "serve", lambda found, port, unsure: ports.append(port))
    run("serve", make(), "--port", 0)
    assert ports == [0]


def test_json_is_what_programs_read(make, capsys):
    run("query", make(*GAUSSIAN), *TEXTS, "--json", "--top", 3)
    found = json.loads(capsys.readouterr().out)
    assert [one["query"] for one in found] == TEXTS and all(len(one["answers"]) == 3 for one in found)
    assert {"row", "name", "score", "p", "gone", "in_set", "uncertainty", "copy", "path"} == set(found[0]["answers"][0])
    assert isinstance(found[0]["uncertainty"], float) and found[0]["sure"] is None


def test_what_stands_behind_two_dashes_is_no_option(make, capsys):
    folder, _ = make(), capsys.readouterr()
    run("query", folder, "--json", "--top", 1, "--", "-a star")
    assert [one["query"] for one in json.loads(capsys.readouterr().out)] == ["-a star"]
    refused(capsys, search.main, ["query", folder, "--json", "-star"], "unrecognized arguments: -star")
    refused(capsys, search.main, ["info", folder, "--names", "--", "-star"], "unrecognized arguments: -star")


def test_captions_come_from_a_file(make, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, "", ""]))
    run("query", make(), "--captions", tmp_path / "texts.txt", "--json", "--top", 1)
    assert [one["query"] for one in json.loads(capsys.readouterr().out)] == TEXTS


# ---- Milvus

@pytest.fixture
def server():
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed (requirements-milvus.txt)")


@pytest.mark.parametrize("kind", ["kl", "minkl", "mls"])
def test_milvus_answers_alike(server, make, tmp_path, demo_path, small_run, kind):
    """The same commands, the same answers."""
    run("index", "--checkpoint", small_run(*KINDS[kind]), "--data_path", demo_path, "--images", "demo_precomp",
        "--output", tmp_path / "there", "--engine", "milvus", "--uri", tmp_path / "photos.db")
    here, there = trusted(make(*KINDS[kind])), trusted(tmp_path / "there")
    for a, b in zip(here.find_texts(TEXTS, top=6), there.find_texts(TEXTS, top=6)):
        assert [x.name for x in a.answers] == [x.name for x in b.answers]
        assert [x.score for x in a.answers] == pytest.approx([x.score for x in b.answers], abs=1e-4)
        assert [x.uncertainty for x in a.answers] == pytest.approx([x.uncertainty for x in b.answers], rel=1e-5)
        assert a.sure == pytest.approx(b.sure, rel=1e-3)     # 24 photos: candidates and sample are all of them
    there.index.close()


def test_a_milvus_folder_is_found_from_everywhere(server, tmp_path, demo_path, small_run, capsys, monkeypatch):
    os.mkdir(tmp_path / "else")
    monkeypatch.chdir(tmp_path)
    run("index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images", "demo_precomp", "--output",
        "there", "--engine", "milvus", "--uri", "photos.db")
    monkeypatch.chdir(tmp_path / "else")
    run("query", tmp_path / "there", TEXTS[0], "--top", 1)
    assert "   1 " in capsys.readouterr().out


def test_milvus_takes_changes(server, own, capsys):
    made = index.Index(str(own / "index")).manifest
    folder = own / "there"
    words = ["index", "--checkpoint", made["run"], "--data_path", own / "data", "--images", "mine", "--output", folder,
             "--engine", "milvus", "--uri", own / "photos.db"]
    run(*words)
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    shutil.copy(own / "photos" / "4.png", own / "photos" / "0.png")
    extracted(own, own / "photos")
    for place in (folder, own / "index"):
        capsys.readouterr()
        run("add", place)
        assert "1 photos added, 1 changed" in capsys.readouterr().out
        run("remove", place, "sub/*")
        assert "5 photos removed, 6 left" in capsys.readouterr().out
        run("add", place)
        assert "0 photos added, 0 changed; 5 stay out" in capsys.readouterr().out
    there = Searcher(str(folder))
    found = {a.name: a.score for a in there.find_texts(TEXTS[:1], top=100)[0].answers}
    there.index.close()
    assert found == pytest.approx(all_answers(own / "index"), abs=1e-5)
    refused(capsys, search.main, words, "is an index already")
    run("info", folder, "--names")
    assert len(capsys.readouterr().out.split()) == 6


def test_milvus_goes_on_after_a_stop(server, own, monkeypatch):
    made = index.Index(str(own / "index")).manifest
    words = ["index", "--checkpoint", made["run"], "--data_path", own / "data", "--images", "mine", "--output",
             own / "there", "--engine", "milvus", "--uri", own / "photos.db"]
    monkeypatch.setattr(build, "ROWS", 4)
    monkeypatch.setattr(search, "how_of", lambda opt: How(batch_size=4))
    real, names = Milvus.add, []

    def add(self, block, items):
        if len(names) == stop_at:
            raise KeyboardInterrupt
        names.extend(items.names)
        real(self, block, items)
    monkeypatch.setattr(Milvus, "add", add)
    stop_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(*words)
    assert not (own / "there" / "manifest.json").exists()
    stop_at = None
    run(*words)
    assert len(names) == len(set(names)) == 10               # the first four were there
    there = Searcher(str(own / "there"))
    assert len(there.find_texts(TEXTS[:1], top=100)[0].answers) == 10
    there.index.close()


@pytest.mark.parametrize("words, message", [
    (["--engine", "milvus"], "--engine milvus needs --uri"), (["--uri", "x.db"], "--engine milvus needs --uri"),
    (["--collection", "x"], "--collection x is for --engine milvus"),
    (["--diskann"], "--diskann is an index of Milvus"),
    (["--engine", "milvus", "--uri", "http://127.0.0.1:9"], "127.0.0.1:9"),
    (["--engine", "milvus", "--uri", "photos"], "photos is no address and no milvus-lite folder")])
def test_bad_servers(server, own, capsys, monkeypatch, words, message):
    monkeypatch.setattr(milvus, "CONNECT", 1)               # second that is waited for one that is not there
    made = index.Index(str(own / "index")).manifest
    refused(capsys, search.main, ["index", "--checkpoint", made["run"], "--data_path", own / "data", "--images",
                                  "mine", "--output", own / "there", *words], message)
