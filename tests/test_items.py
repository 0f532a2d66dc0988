"""Two things that meet have to be of the same items in one order, and what is assumed of them is said."""

import numpy as np
import pytest

import evaluate
from cli import InputError
from evaluation.embeddings import Embeddings, check_same_items
from tests.helpers import refused


@pytest.fixture
def ev(tmp_path, monkeypatch, capsys):
    """ev(*words): what evaluate.py makes of these options, and what it prints. In an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        results = evaluate.run(evaluate.parse_args([*map(str, words), "--output", "r.json", "--overwrite"]))
        return results, capsys.readouterr().out
    return call


@pytest.fixture
def exported(small_run, ev):
    """A Gaussian run, the arrays of its --export, which is e.npz, and its results."""
    run = small_run("--sim", "wasserstein")
    results, _ = ev("--checkpoint", run, "--export", "e.npz")
    with np.load("e.npz", allow_pickle=False) as stored:
        return run, dict(stored), results


def save(arrays: dict) -> str:
    np.savez("x.npz", **{name: value for name, value in arrays.items() if value is not None})
    return "x.npz"


# ---- the items of a file

@pytest.mark.parametrize("name", ["image_id", "image_name", "caption_id", "caption_image"])
def test_a_file_in_another_order_than_the_split_is_refused(exported, ev, demo_path, name):
    run, arrays, _ = exported
    path = save({**arrays, "image_id": None if name == "image_name" else arrays["image_id"],
                 name: np.roll(arrays[name], 1)})
    for words in (["--embeddings", path, "--data_path", demo_path, "--data_name", "demo_precomp"],
                  ["--compare", run, path]):
        with pytest.raises(InputError, match="give files of one split"):
            ev(*words)


def test_means_alone_take_the_split_or_five_captions_an_image_and_say_so(exported, ev, demo_path):
    _, arrays, results = exported
    path = save({name: x for name, x in arrays.items() if name.endswith(("_mean", "_log_var")) or name == "similarity"})
    found, shown = ev("--embeddings", path, "--data_path", demo_path, "--data_name", "demo_precomp")
    assert found["protocols"] == results["protocols"]
    assert f"note: x.npz does not say what it is about: the items of {demo_path}" in shown and "order, assumed" in shown
    found, shown = ev("--embeddings", path)
    assert "note: x.npz does not say whose caption each is: 5 per image, in order, assumed" in shown
    assert found["split"] is None and found["protocols"] == results["protocols"]


def test_the_table_names_the_similarity_and_the_results_of_chance(exported, ev):
    _, arrays, results = exported
    found, shown = ev("--embeddings", "e.npz")
    assert "\nall, wasserstein " in shown and "\nall, cosine of the means " in shown and "\nchance  " in shown
    assert found["chance"]["full"]["t2i"]["r1"] == pytest.approx(100 / 24)
    found, shown = ev("--embeddings", save({**arrays, "similarity": None}), "--uncertainty")
    assert "\nall, cosine " in shown and found["similarity"] == "cosine"
    assert not {"mean_only", "shuffled"} & set(found["protocols"])                  # they would be the same thrice
    assert "note: x.npz names no similarity; using the cosine of the means, and its variances are not used" in shown
    assert found["protocols"]["full"] == results["protocols"]["mean_only"]


# ---- the rule itself

def made(n=3, each=2, **known):
    given = {name: known.pop(name, "") for name in ("data_name", "split")}
    return Embeddings(known.pop("name", "a"), np.repeat(np.arange(n), each), n, ids=known, **given)


def test_the_same_words_are_the_same_items_whatever_their_numbers():
    """SCAN numbers the rows of its files where VSE++ has COCO's ids."""
    texts = [f"caption {k}" for k in range(6)]
    theirs = made(caption=texts, image_id=[391895, 7, 9], name="b")
    assert check_same_items(made(caption=texts, image_id=[0, 1, 2]), theirs) == []


def test_splits_of_one_set_are_not_of_each_other():
    ids = {"image_id": [1, 2, 3], "caption_id": list(range(6))}
    mine = made(data_name="x", split="dev", **ids)
    with pytest.raises(InputError, match="a is of the dev split and b of the test split; give"):
        check_same_items(mine, made(data_name="x", split="test", name="b", **ids))
    assert check_same_items(mine, made(data_name="y", split="testall", name="b", **ids)) == []
    assert check_same_items(mine, made(data_name="y", name="b")) == [
        "a does not say what it is about: the items of b, in their order, assumed"]


# ---- layouts and meanings that fit in shape alone

@pytest.fixture
def layouts(tmp_path, monkeypatch):
    """Embeddings of 20 images and 100 captions, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = rng.standard_normal((20, 16)).astype(np.float32)
    x = z + 0.6 * rng.standard_normal(z.shape).astype(np.float32)
    y = np.repeat(z, 5, 0) + 0.6 * rng.standard_normal((100, 16)).astype(np.float32)
    return x, y


@pytest.mark.parametrize("ids", [{}, {"caption_image": np.arange(100), "image_id": np.arange(100) // 5},
                                 {"caption_image": np.arange(100) // 5}])
def test_rows_of_vse_pp_are_images(layouts, ev, ids):
    """An image's row stands once for each of its captions."""
    x, y = layouts
    np.savez("plain.npz", image_mean=x, caption_mean=y)
    np.savez("repeated.npz", image_mean=np.repeat(x, 5, 0), caption_mean=y, **ids)
    found, shown = ev("--embeddings", "repeated.npz")
    assert found["images"] == 20 and "its 100 rows of images are 20 images, each repeated 5 times" in shown
    assert found["protocols"] == ev("--embeddings", "plain.npz")[0]["protocols"]
    np.save("repeated.npy", np.repeat(x, 5, 0) @ y.T)
    found, shown = ev("--scores", "repeated.npy")
    assert found["images"] == 20 and "are 20 images" in shown and found["protocols"]["full"]["t2i"]["r1"] > 40
    assert "note: repeated.npy does not say whose caption each is: 5 per image" in shown and "all, scores" in shown


def test_a_text_file_is_no_embeddings(tmp_path, capsys):
    (tmp_path / "x.npz").write_text("hello")
    refused(capsys, evaluate.main, ["--embeddings", tmp_path / "x.npz"], "x.npz is not an .npz file of plain arrays; w")


def test_one_caption_an_image_is_no_repetition(layouts, ev):
    x, _ = layouts
    x[3] = x[2]                                             # a photo that stands there twice
    np.savez("pairs.npz", image_mean=x, caption_mean=x)
    assert ev("--embeddings", "pairs.npz")[0]["images"] == 20


@pytest.mark.parametrize("repeat", [1, 5])
def test_scores_on_their_side_are_told(layouts, capsys, repeat):
    x, y = layouts
    np.save("turned.npy", y @ np.repeat(x, repeat, 0).T)
    refused(capsys, evaluate.main, ["--scores", "turned.npy"], "turned on its side: .*np.save.path, scores.T")


def test_distances_are_told(layouts, ev):
    x, y = layouts
    told = "far worse than chance (10): scores are higher where items fit better, so negate distances"
    for scores, expected in ((x @ y.T, False), (-x @ y.T, True),
                             (np.random.default_rng(0).standard_normal((20, 100)), False)):
        np.save("s.npy", scores)
        assert (told in ev("--scores", "s.npy")[1]) == expected
