"""search.py on the demo: answers are those of the model, an index survives every stop, bad input gets a sentence."""
import json
import os
import re
import shlex
import shutil
import signal

import numpy as np
import pytest
import torch

import files
from checkpoint import load_checkpoint
from cli import InputError
from data import Photos, read_split
from evaluation.bank import item_terms
from evaluation.encode import encode
from features import images
from features.networks import find_recipe
from photos import __main__ as search
from photos import build, encoder, index, searcher
from photos.encoder import Encoder
from photos.index import Index
from photos.searcher import Searcher
from photos.trust import Trust
from tests.helpers import in_a_process, refused

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
    """make(*words, options=[...]): the file of an index of the demo's test photos by a small run of `words`."""
    found = {}

    def call(*words, options=(), to=None):
        key = (words, tuple(options))
        if key not in found:
            found[key] = tmp_path_factory.mktemp("index") / "index.npz"
            data = "demo_region_precomp" if "demo_region_precomp" in words else "demo_precomp"
            run("index", "--checkpoint", small_run(*words), "--data_path", demo_path, "--images", data, "--photos",
                os.path.join(demo_path, "demo", "images"), "--output", found[key], *options)
        return shutil.copy(found[key], to) if to else found[key]
    return call


def scores_by_model(folder, demo_path, texts):
    """Scores (Q, N) of texts and all photos by the model itself, and the model."""
    made = Index.open(str(folder)).manifest
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


def test_what_should_not_be_there_lowers_scores(make, demo_path, capsys):
    folder = make(*GAUSSIAN)
    scores, _ = scores_by_model(folder, demo_path, TEXTS)
    z = (scores - scores.mean(1, keepdim=True)) / scores.std(1, correction=0, keepdim=True)
    one, = trusted(folder).find_texts(TEXTS[:1], top=5, without=TEXTS[1:])
    best = (z[0] - z[1].clamp(min=0) - z[2].clamp(min=0)).sort(descending=True)
    assert [a.row for a in one.answers] == best.indices[:5].tolist()
    assert [a.score for a in one.answers] == pytest.approx(best.values[:5].tolist(), abs=1e-3)
    assert one.sure is None and one.answers[0].p is None and any("scores alone" in note for note in one.notes)
    run("query", folder, TEXTS[0], "--not", TEXTS[1], "--top", 1)
    assert f"{TEXTS[0]}, not {TEXTS[1]}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["cosine", "kl", "wasserstein", "mls"])
def test_a_bank_is_taken_from_the_scores(make, demo_path, kind, monkeypatch, capsys):
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": 2.0}})
    folder = make(*KINDS[kind], options=["--bank", "train", "--sets", "0.2"])
    scores, split = scores_by_model(folder, demo_path, TEXTS)
    made = Index.open(str(folder)).manifest
    assert "note: no set: sets that were calibrated among 12 photos" in capsys.readouterr().out
    bank = build.BankColumn(Encoder(made["run"]), "train", build.How())
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
    run("index", "--checkpoint", Index.open(str(folder)).manifest["run"], "--data_path", own / "data", "--images",
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
        run("remove", folder, Index.open(str(folder)).names[0])
        run("add", folder, "*")
        answers.append(all_answers(folder))
    assert answers[0] == answers[1] and len(answers[0]) == 24


def test_no_bank_where_none_helps(make, small_run, demo_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("evaluation.bank.choose", lambda dev, queries: {"beta": {"t2i": None}})
    run("index", "--checkpoint", small_run(), "--data_path", demo_path, "--images", "demo_precomp", "--output",
        tmp_path / "i", "--bank", "train")
    assert "no beta" in capsys.readouterr().out and Index.open(str(tmp_path / "i")).manifest["bank"] is None


# ---- changes

def all_answers(folder):
    return {a.name: a.score for a in Searcher(str(folder)).find_texts(TEXTS[:1], top=1000)[0].answers}


def test_photos_are_removed(make, tmp_path, capsys):
    folder = make(*GAUSSIAN, to=tmp_path / "index.npz")
    before = all_answers(folder)
    names = Index.open(str(folder)).names
    run("remove", folder, names[3], "*_00005.png")
    gone = {names[3], next(name for name in names if name.endswith("_00005.png"))}
    assert "2 photos removed" in capsys.readouterr().out
    # a score's last bit may change: the kernels of a product depend on how many photos there are
    left = {name: score for name, score in before.items() if name not in gone}
    assert all_answers(folder) == pytest.approx(left, abs=1e-5)
    assert os.listdir(tmp_path) == ["index.npz"]
    run("add", folder)
    assert "0 photos added, 0 changed; 2 stay out as python -m photos remove took them out" in capsys.readouterr().out
    run("info", folder)
    assert "2 photos were removed, the first is" in capsys.readouterr().out
    refused(capsys, search.main, ["add", folder, "nothing*"], "no photo that was removed from .* is named nothing")
    for name, left in ((names[3], 1), ("*", 0)):
        run("add", folder, name)
        assert "1 photos added" in capsys.readouterr().out and len(Index.open(str(folder)).manifest["removed"]) == left
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
    images.main(["--photos", str(photos), "--kind", "demo", "--data_path", str(folder / "data"),
                  "--output_name", "mine", "--workers", "0"])


def test_one_command_reads_what_is_new(own, small_run, capsys, monkeypatch):
    """`photos` from nothing, again, and with a new and a damaged photo; its answers are those of the long way."""
    monkeypatch.chdir(own)
    words = ["photos", own / "photos", "--checkpoint", small_run(*GAUSSIAN), "--index_only", "--workers", 0]
    run(*words)
    shown = capsys.readouterr().out
    folder, = (name[:-4] for name in os.listdir("indexes"))
    assert folder.startswith("photos_") and ": 10 photos of photos" in shown and f"query indexes/{folder}" in shown
    expected, found = (Searcher(str(path)).find_texts(TEXTS, top=10) for path in (own / "index", f"indexes/{folder}"))
    assert [[a[:3] for a in one.answers] for one in found] == [[a[:3] for a in one.answers] for one in expected]
    run(*words)
    assert "0 photos added, 0 changed" in capsys.readouterr().out
    monkeypatch.setattr(search, "SHIPPED", small_run("--sim", "cosine"))            # another run, another index
    run(*words[:2], *words[4:])
    shown = capsys.readouterr().out
    assert ": 10 photos of photos" in shown and "none of them computed now" in shown and len(os.listdir("indexes")) == 2
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
        if words[1] == "confidence":
            (own / "mine" / "calibration.json").write_text("{}")
    monkeypatch.setattr(search, "call_python", called)
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
        assert [of[0] for of in asked[1:4]] == ["-m", "train.py", "-m"] and asked[4][2] == "mine"
        assert asked[2] == ("train.py", "--resume", "mine") if begun else asked[2][-2:] == ("--logger_name", "mine")
        line = "efficientnet_lite0 pooled, photos resized to 224x224, sha256:ab"    # as photos/model has it
        assert asked[0][1] == find_recipe(line) and "its_name" in asked[1]
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
    assert not (own / "new.npz").exists()


def test_a_folder_of_photos_from_end_to_end(own, capsys):
    """Photos that are new, changed and removed arrive in the index, and equal an index made anew."""
    folder = own / "index"
    capsys.readouterr()
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    run("add", folder)
    said = capsys.readouterr().out
    assert "0 photos added, 0 changed\nnote: the folder holds 1 photos whose features were not extracted" in said
    comes_first = shlex.split(re.search("python -m features.images (.*)", said)[1])
    shutil.copy(own / "photos" / "4.png", own / "photos" / "0.png")
    os.remove(own / "photos" / "sub" / "3.png")
    images.main([*comes_first, "--workers", "0"])
    run("add", folder)
    assert "1 photos added, 1 changed; 1 are no longer among those indexed" in capsys.readouterr().out
    run("remove", folder, "--gone")
    made = Index.open(str(folder)).manifest
    assert made["removed"] == []                            # these come back with their files
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
    """What the docstring of photos/encoder.py shows."""
    made = Index.open(str(own / "index")).manifest
    model = Encoder(made["run"], made["recipe"])
    captions = model.captions(TEXTS)
    photos = model.photos([str(own / "photos" / "0.png"), str(own / "photos" / "2.png")])
    assert model.similarity(photos, captions).shape == (2, 3)


# ---- what can go wrong

@pytest.mark.parametrize("where", ["numpy.savez", "os.replace", "photos.build.image_batches"])
def test_a_stop_at_any_step_leaves_the_old_index(own, monkeypatch, where):
    folder = own / "index"
    before = all_answers(folder)
    shutil.move(own / "spare" / "10.png", own / "photos" / "10.png")
    extracted(own, own / "photos")

    def stop(*_, **__):
        raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(where, stop)
        with pytest.raises(SystemExit):
            run("add", folder)
    assert all_answers(folder) == before
    run("add", folder)
    assert len(all_answers(folder)) == len(before) + 1
    assert [path.name for path in own.iterdir() if "index" in path.name] == ["index.npz"]


def remove_and_die(folder: str) -> None:
    def save(path: str, arrays: dict) -> None:
        with files.atomic(path, "wb") as f:
            np.savez(f, vectors0=arrays["vectors0"])
            f.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    index.save_arrays = save
    run("remove", folder, "0.png")


def test_a_kill_while_writing_leaves_the_old_index(own):
    folder = own / "index"
    before = all_answers(folder)
    assert in_a_process(remove_and_die, str(folder)).exitcode == -signal.SIGKILL
    assert all_answers(folder) == before
    run("remove", folder, "0.png")                          # removes what the killed process left
    assert len(all_answers(folder)) == len(before) - 1
    assert [path.name for path in own.iterdir() if "index" in path.name] == ["index.npz"]


def changed(path, **values) -> None:
    """An index with other values in its manifest."""
    arrays = dict(np.load(path))
    manifest = {**json.loads(arrays["manifest"].tobytes()), **values}
    np.savez(path, **{**arrays, "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8)})


@pytest.mark.parametrize("values, message", [
    ({"index": 2}, "it is of format 2, and this version reads 3.*; make it again with python -m photos index"),
    ({"folder": None, "names": None}, "is no whole index"), ({"names": ["a"]}, "its arrays are of different lengths"),
    ({"channels": 2}, "is no whole index"), ({"trust": {"temperature": "hot"}}, "is no whole index"),
    ({"weights": "sha256:000000000000"}, "was made by the model with sha256:000000000000"),
    ({"run": "nowhere"}, "there is no checkpoint nowhere")])
def test_an_index_that_was_changed(make, tmp_path, capsys, values, message):
    path = make(*GAUSSIAN, to=tmp_path / "index.npz")
    changed(path, **values)
    refused(capsys, search.main, ["query", path, "a star"], message)


def test_what_is_no_index(make, tmp_path, capsys):
    path = make(*GAUSSIAN, to=tmp_path / "index.npz")
    path.write_bytes(path.read_bytes()[:-900])
    refused(capsys, search.main, ["query", path, "a star"], "is no .npz file of plain arrays .*; make it again")
    np.savez(path, names=np.zeros(3))
    refused(capsys, search.main, ["info", path], "is no whole index")
    refused(capsys, search.main, ["info", tmp_path / "none"], "there is no file .*none.npz; make an index with")


def test_numbers_that_cannot_be_kept_are_refused():
    x = torch.ones(3, 2)
    x[1, 1] = 70_000
    assert index.stored(x, False, [*"abc"]) is x
    with pytest.raises(InputError, match="^b has a number that float16 cannot hold; leave --float16 out"):
        index.stored(x, True, [*"abc"])
    x[2, 0] = torch.nan
    with pytest.raises(InputError, match="^c has a number that float32 cannot hold; its features or the model"):
        index.stored(x, False, [*"abc"])


def test_an_index_of_another_run(make, tmp_path, capsys, small_run):
    folder = make(*GAUSSIAN, to=tmp_path / "index.npz")
    refused(capsys, search.main, ["query", folder, "--checkpoint", small_run(), "a star"], "was made by the model with")
    run("query", folder, "--checkpoint", small_run(*GAUSSIAN, to=tmp_path / "moved"), "a star")


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
    refused(capsys, search.main, ["query", make(*GAUSSIAN), "--photo", photo], "were not written by features.images")


def test_unknown_words_are_named(make, capsys):
    run("query", make(), "a red xyzzy circle .", "--top", 1)
    assert "unknown words, which are left out: xyzzy" in capsys.readouterr().out


@pytest.mark.parametrize("text, said", [
    ("un chien sur la plage", "5 of its 5 words"), ("a red chien sur plage", "3 of its 5 words"),
    ("a red chien plage", ""), ("astronaut", ""), ("a red circle .", "")])
def test_a_question_in_another_language_is_told_by_the_words_of_the_training(make, monkeypatch, text, said):
    """Where ready features of captions take any word. A handful of words tells no language."""
    model = Encoder(Index.open(str(make())).manifest["run"])
    model.options.text_features = "minilm"
    assert len(model.vocab) < encoder.BROAD and model.note_on(text) is None
    monkeypatch.setattr(encoder, "BROAD", len(model.vocab))
    assert (model.note_on(text) or "").startswith(said) and bool(model.note_on(text)) == bool(said)


@pytest.mark.parametrize("words, message", [
    (["--output", "OLD"], "index.npz is there already"), (["--output", "FOLDER.npz", "--overwrite"], "is a folder"),
    (["--images", "nothing"], "there is no folder"),
    (["--images", "demo_region_precomp"], "reads|was trained on"), (["--images", "demo"], "reads features of photos"),
    (["--images", "demo_cxc"], "holds no data set"), (["--sets", "0.1"], "--sets 0.1 belongs to --bank"),
    (["--photos", "nowhere"], "--photos nowhere is no folder"), (["--bank", "dev"], "beta is chosen on"),
    (["--collection", "x"], "--collection x is for --uri"), (["--checkpoint", "nowhere"], "there is no checkpoint")])
def test_bad_indexes(make, tmp_path, capsys, small_run, demo_path, words, message):
    folder = make(*GAUSSIAN, to=tmp_path / "index.npz")
    os.mkdir(tmp_path / "folder.npz")
    words = [word.replace("FOLDER", str(tmp_path / "folder")).replace("OLD", str(folder)) for word in words]
    refused(capsys, search.main, ["index", "--checkpoint", small_run(*GAUSSIAN), "--data_path", demo_path, "--images",
                                  "demo_precomp", "--output", tmp_path / "new", *words], message)
    assert sorted(os.listdir(tmp_path)) == ["folder.npz", "index.npz"] and len(all_answers(folder)) > 1


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

