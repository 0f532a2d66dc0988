"""Two things that meet have to be of the same items in one order, and what is assumed of them is said."""
import os
import shutil

import numpy as np
import pytest

import data
import evaluate
import train
from cli import InputError
from evaluation.embeddings import Embeddings, check_same_items
from tests.helpers import SMALL, refused


@pytest.fixture(scope="module")
def exported(tmp_path_factory, demo_path):
    """The arrays of a Gaussian run's --export, and its results."""
    root = tmp_path_factory.mktemp("exported")
    words = [*SMALL, "--data_path", demo_path, "--sim", "wasserstein", "--logger_name", str(root / "run")]
    assert train.train(train.parse_args(words)) == 0
    opt = evaluate.parse_args(["--checkpoint", str(root / "run"), "--export", str(root / "e.npz")])
    results = evaluate.run(opt)
    with np.load(root / "e.npz", allow_pickle=False) as stored:
        return dict(stored), results, root


@pytest.fixture
def ev(tmp_path, monkeypatch, capsys):
    """ev(arrays, *words): what evaluate.py makes of a file of these arrays, x.npz, and what it prints."""
    monkeypatch.chdir(tmp_path)

    def call(arrays, *words, how="--embeddings"):
        np.savez("x.npz", **{name: value for name, value in arrays.items() if value is not None})
        capsys.readouterr()
        given = [how, "x.npz"] if how == "--embeddings" else [how, *words[:1], "x.npz"]
        options = map(str, [*given, *words[how != "--embeddings":]])
        results = evaluate.run(evaluate.parse_args([*options, "--output", "r.json", "--overwrite"]))
        return results, capsys.readouterr().out
    return call


SPLIT = ("--data_name", "demo_precomp")


def split_of(demo_path):
    return "--data_path", demo_path, *SPLIT


@pytest.mark.parametrize("name", ["image_id", "image_name", "caption_id", "caption_image"])
def test_a_file_in_another_order_than_the_split_is_refused(exported, ev, demo_path, name):
    arrays = {**exported[0], name: np.roll(exported[0][name], 1)}
    if name == "image_name":
        del arrays["image_id"]
    with pytest.raises(InputError, match="give files of one split"):
        ev(arrays, *split_of(demo_path))
    with pytest.raises(InputError, match="give files of one split"):
        ev(arrays, exported[2] / "run", how="--compare")


def test_means_alone_take_the_split_for_granted_and_say_so(exported, ev, demo_path):
    arrays, results, _ = exported
    means = {name: arrays[name]
             for name in ("image_mean", "caption_mean", "image_log_var", "caption_log_var", "similarity")}
    found, shown = ev(means, *split_of(demo_path))
    assert found["protocols"] == results["protocols"]
    assert "note: x.npz does not say which images and captions it is about: those of " in shown
    assert "order, assumed" in shown
    found, shown = ev(means)
    assert "note: x.npz does not say whose caption each is: 5 per image, in order, assumed" in shown
    assert found["split"] is None and found["protocols"] == results["protocols"]
    found, shown = ev({**means, "caption_image": arrays["caption_image"]}, *split_of(demo_path))
    assert "does not say which images and captions" in shown


def test_scores_are_taken_in_order_and_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", np.random.default_rng(0).random((8, 24)))
    evaluate.main(["--scores", "s.npy"])
    shown = capsys.readouterr().out
    assert "note: s.npy does not say whose caption each is: 3 per image, in order, assumed" in shown
    assert "all, scores" in shown


def test_the_table_names_the_similarity(exported, ev):
    arrays, results, _ = exported
    _, shown = ev(arrays)
    assert "\nall, wasserstein " in shown and "\nall, cosine of the means " in shown
    found, shown = ev({**arrays, "similarity": None}, "--uncertainty")
    assert "\nall, cosine " in shown and found["similarity"] == "cosine"
    assert not {"mean_only", "shuffled"} & set(found["protocols"])                  # they would be the same thrice
    assert "note: x.npz names no similarity: the cosine of the means is taken, and its variances are not used" in shown
    assert found["protocols"]["full"] == results["protocols"]["mean_only"]
    _, shown = ev(arrays, "--sim", "kl")
    assert "\nall, kl " in shown


def test_chance_stands_beside_recalls(exported, ev):
    arrays, _, _ = exported
    found, shown = ev(arrays)
    assert found["chance"]["full"]["t2i"]["r1"] == pytest.approx(100 / 24)
    assert found["chance"]["full"]["i2t"]["r1"] == pytest.approx(100 / 24)
    assert f"\nchance  {found['chance']['full']['rsum']:.1f}"[:8] in shown


# ---- the rule itself

def made(n=3, each=2, **known):
    owner = np.repeat(np.arange(n), each)
    given = {name: known.pop(name, "") for name in ("data_name", "split")}
    return Embeddings("", owner, n, source=known.pop("source", "a"), ids=known, **given)


def test_the_same_words_are_the_same_items_whatever_their_numbers():
    """SCAN numbers the rows of its files where VSE++ has COCO's ids."""
    texts = [f"caption {k}" for k in range(6)]
    theirs = made(caption=texts, image_id=[391895, 7, 9], source="b")
    assert check_same_items(made(caption=texts, image_id=[0, 1, 2]), theirs) == []


def test_splits_of_one_set_are_not_of_each_other():
    ids = {"image_id": [1, 2, 3], "caption_id": list(range(6))}
    mine = made(data_name="x", split="dev", **ids)
    with pytest.raises(InputError, match="a is of the dev split and b of the test split; give"):
        check_same_items(mine, made(data_name="x", split="test", source="b", **ids))
    assert check_same_items(mine, made(data_name="y", split="testall", source="b", **ids)) == []
    assert check_same_items(mine, made(data_name="y", image_id=[1, 2, 3], source="b")) == [
        "a does not say which captions it is about: those of b in their order, assumed"]


def test_an_ensemble_of_other_items_is_refused(exported, tmp_path, demo_path, monkeypatch):
    """The second model reads features of captions, so that its split is read anew: say it has changed meanwhile."""
    _, _, root = exported
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "x")
    for split, count in (("train", 240), ("dev", 60), ("test", 120)):
        np.save(tmp_path / "x" / f"{split}_bag.npy", np.random.default_rng(0).random((count, 7)).astype(np.float32))
    mine = ["--data_path", str(tmp_path), "--data_name", "x"]
    words = [*SMALL, *mine, "--text_features", "bag", "--logger_name", str(tmp_path / "r")]
    assert train.train(train.parse_args(words)) == 0

    def changed(*args, **kwargs):
        split = data.read_split(*args, **kwargs)
        if kwargs.get("text_features"):
            split.caption_ids, split.captions = split.caption_ids + 1, split.captions[::-1]
        return split
    monkeypatch.setattr("evaluation.embeddings.read_split", changed)
    opt = evaluate.parse_args(["--checkpoint", str(root / "run"), str(tmp_path / "r"), *mine,
                               "--output", str(tmp_path / "o")])
    message = "have other caption ids, or the same in another order; give files of one split"
    with pytest.raises(InputError, match=message):
        evaluate.run(opt)


# ---- layouts and meanings that fit in shape alone

@pytest.fixture
def layouts(tmp_path, monkeypatch):
    """Embeddings of 20 images and 100 captions by the names of files, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20, 16)).astype(np.float32)
    x = z + 0.6 * rng.standard_normal(z.shape).astype(np.float32)
    y = np.repeat(z, 5, 0) + 0.6 * rng.standard_normal((100, 16)).astype(np.float32)
    return x, y


def evaluate_file(option: str, path: str, capsys) -> tuple[dict, str]:
    capsys.readouterr()
    results = evaluate.run(evaluate.parse_args([option, path, "--overwrite", "--output", "o.json"]))
    return results, capsys.readouterr().out


@pytest.mark.parametrize("ids", [{}, {"caption_image": np.arange(100), "image_id": np.arange(100) // 5}])
def test_rows_of_vse_pp_are_images(layouts, capsys, ids):
    """An image's row stands once for each of its captions."""
    x, y = layouts
    np.savez("plain.npz", image_mean=x, caption_mean=y)
    np.savez("repeated.npz", image_mean=np.repeat(x, 5, 0), caption_mean=y, **ids)
    found, shown = evaluate_file("--embeddings", "repeated.npz", capsys)
    assert found["images"] == 20 and "its 100 rows of images are 20 images, each repeated 5 times" in shown
    assert found["protocols"] == evaluate_file("--embeddings", "plain.npz", capsys)[0]["protocols"]
    np.save("repeated.npy", np.repeat(x, 5, 0) @ y.T)
    found, shown = evaluate_file("--scores", "repeated.npy", capsys)
    assert found["images"] == 20 and "are 20 images" in shown and found["protocols"]["full"]["t2i"]["r1"] > 40


def test_one_caption_an_image_is_no_repetition(layouts, capsys):
    x, _ = layouts
    x[3] = x[2]                                             # a photo that stands there twice
    np.savez("pairs.npz", image_mean=x, caption_mean=x)
    assert evaluate_file("--embeddings", "pairs.npz", capsys)[0]["images"] == 20


@pytest.mark.parametrize("repeat", [1, 5])
def test_scores_on_their_side_are_told(layouts, demo_path, capsys, repeat):
    x, y = layouts
    np.save("turned.npy", y @ np.repeat(x, repeat, 0).T)
    refused(capsys, evaluate.main, ["--scores", "turned.npy"], "turned on its side: .*np.save.path, scores.T")
    np.save("turned.npy", np.zeros((120, 24), np.float32))
    refused(capsys, evaluate.main, ["--scores", "turned.npy", "--data_path", demo_path, "--data_name", "demo_precomp"],
            "turned on its side")


def test_distances_are_told(layouts, capsys):
    x, y = layouts
    for sign, told in ((1, False), (-1, True)):
        np.save("s.npy", sign * x @ y.T)
        assert ("far worse than chance (10): scores are higher where items fit better, so negate distances"
                in evaluate_file("--scores", "s.npy", capsys)[1]) == told
    np.save("s.npy", np.random.default_rng(0).standard_normal((20, 100)))
    assert "worse than chance" not in evaluate_file("--scores", "s.npy", capsys)[1]
