"""evaluate.py as users run it: all protocols of runs, embeddings and ready scores; what it writes; what it refuses."""
import json
import os
import shutil

import numpy as np
import pytest
import scipy.stats
import torch

import evaluate
import metrics
from evaluation import compare, pictures, protocols
from evaluation.embeddings import load_scores
from losses import Embedding, cosine, formulas
from tests.helpers import fit, unwritable
from tests.helpers import refused as refuses

FORMULAS = formulas()

MODELS = {"wasserstein0": ["--sim", "wasserstein"], "wasserstein1": ["--sim", "wasserstein", "--seed", "1"],
          "cosine0": ["--sim", "cosine"], "cosine1": ["--sim", "cosine", "--seed", "1"],
          "spherical": ["--sim", "kl", "--head", "spherical_one"], "gce": ["--sim", "mahalanobis"],
          "mls": ["--sim", "mls"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_run):
    """Small runs on the demo features; the folder that holds them."""
    root = tmp_path_factory.mktemp("runs")
    for name, words in MODELS.items():
        small_run(*words, to=root / name)
    return root


def refused(capsys, words, message) -> None:
    refuses(capsys, evaluate.main, words, message)


@pytest.fixture
def everything(demo_path):
    """Options of all protocols that the demo data allow."""
    return ["--cxc", "--cxc_path", f"{demo_path}/demo_cxc", "--pmrp", "--instances",
            f"{demo_path}/demo_coco/annotations/instances_val2014.json"]


@pytest.fixture
def ev(tmp_path, monkeypatch):
    """evaluate.run on words; its results, which it wrote to r.json, comparisons to c.json. In an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        path = "c.json" if "--compare" in words else "r.json"
        results = evaluate.run(evaluate.parse_args([*map(str, words), "--output", path, "--overwrite"]))
        with open(path, encoding="utf-8") as f:
            assert f.read() == json.dumps(results, indent=1) + "\n"
        return results
    return call


@pytest.fixture
def exported(ev, runs):
    """The arrays of a run's --export."""
    def call(name, *words):
        ev("--checkpoint", runs / name, "--export", "e.npz", *words)
        with np.load("e.npz", allow_pickle=False) as stored:
            return dict(stored)
    return call


def sides(e):
    arrays = {key: torch.from_numpy(value) for key, value in e.items() if key.endswith(("_mean", "_log_var"))}
    return [Embedding(arrays[f"{side}_mean"], arrays.get(f"{side}_log_var")) for side in ("image", "caption")]


# ---- embeddings and scores of any origin

@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["wasserstein0", "gce", "mls"])
def test_embeddings_give_the_results_of_their_run(runs, ev, exported, everything, name):
    e = exported(name)
    width = {"wasserstein0": 16, "mls": 1, "gce": 0}[name]
    assert e.get("image_log_var", np.zeros((24, 0))).shape == (24, width)
    more = everything if name == "gce" else [*everything, "--uncertainty"]
    own, again = ev("--checkpoint", runs / name, *more), ev("--embeddings", "e.npz", *more)
    assert {"full", "cxc", "pmrp"} <= set(own["protocols"])
    for part in ("protocols", "best_ranks", "similarity", "uncertainty"):
        assert again.get(part) == own.get(part), part


def test_sim_overrides_that_of_the_file(ev, exported):
    e = exported("wasserstein0")
    found = ev("--embeddings", "e.npz", "--sim", "kl")
    assert found["similarity"] == "kl"
    assert found["protocols"]["full"] == metrics.retrieval(FORMULAS["kl"](*sides(e)), e["caption_image"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scores_give_the_results_of_their_model(runs, ev, exported, everything, demo_path, dtype):
    matrix = FORMULAS["wasserstein"](*sides(exported("wasserstein0"))).numpy().astype(dtype)
    np.save("s.npy", matrix)
    words = ["--scores", "s.npy", "--data_path", demo_path, "--data_name", "demo_precomp", *everything]
    assert load_scores("s.npy").scores.flags.writeable == (dtype != np.float32)         # which is mapped, not read
    found = ev(*words)["protocols"]
    assert {"full", "cxc", "pmrp"} <= set(found) and "mean_only" not in found
    assert set(found["cxc"]) == {"i2t", "t2i", "rsum", "sits"}
    assert found["full"] == metrics.retrieval(matrix.astype(np.float32), np.arange(120) // 5)
    if dtype != np.float16:                                                     # which rounds, and so ties
        own = ev("--checkpoint", runs / "wasserstein0", *everything)["protocols"]
        assert found["full"] == own["full"] and found["pmrp"] == own["pmrp"]
        assert found["cxc"] == {key: own["cxc"][key] for key in found["cxc"]}


@pytest.mark.parametrize("change, message", [
    ({"image_mean": None}, "needs image_mean of shape"),
    ({"image_mean": np.zeros(24)}, r"needs image_mean .* it holds .*image_mean \(24,\)"),
    ({"caption_log_var": None}, "does not fit --sim wasserstein: .*needs variances"),
    ({"image_mean": np.zeros((24, 5)), "image_log_var": np.zeros((24, 1))}, r"\b5\b.*\b16\b"),
    ({"image_mean": np.full((24, 16), np.nan)}, r"NaN, infinity or numbers above 1e\+18 in image_mean"),
    ({"image_mean": np.full((24, 16), 1e25)}, "squares float32 cannot add up"),
    ({"caption_image": np.arange(120)}, "caption_image must hold 120 whole numbers from 0 to 23"),
    ({"caption_images": np.zeros(120)}, "'caption_images'.* may hold image_mean, "),
    ({"similarity": np.array("euclid")}, "has similarity 'euclid', which cannot .* another similarity with --sim, one"),
    ({"similarity": np.array("mls"), "image_log_var": np.zeros((24, 1)), "caption_log_var": np.zeros((120, 1))},
     "similarity 'mls', and no number 'effective_dim' above 0"),
    ({"image_id": None}, "has no image ids"), ({"image_id": np.zeros(24, int)}, "lists image id 0 twice"),
    ({"caption_id": np.arange(119)}, "caption_id")])
def test_wrong_embeddings_are_refused(exported, everything, capsys, change, message):
    e = {**exported("wasserstein0"), **change}
    np.savez("x.npz", **{key: value for key, value in e.items() if value is not None})
    refused(capsys, ["--embeddings", "x.npz", *everything], message)
    assert not os.path.exists("x_results.json")


@pytest.mark.parametrize("matrix, message", [
    (np.zeros((24, 120), int), "holds int64"), (np.full((24, 120), np.nan), "NaN or infinity"),
    (np.zeros(120), r"of shape \(120,\); scores are floats, images x captions"),
    (np.zeros((24, 119)), "119 captions for 24 images")])
def test_wrong_scores_are_refused(tmp_path, monkeypatch, capsys, matrix, message):
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", matrix)
    refused(capsys, ["--scores", "s.npy"], message)


def test_options_that_do_not_fit_are_refused(runs, exported, capsys, demo_path):
    exported("cosine0")
    split = ["--data_path", demo_path, "--data_name", "demo_precomp", "--split", "dev"]
    for words, message in ((split, "--split dev: e.npz says that it is of the split test"),
                           (["--fold5"], "--fold5 needs 5 x 1,000 images"),
                           (["--cxc", "--cxc_path", "."], "there is no file .*sts_test.csv"),
                           (["--uncertainty"], "has points, which have no uncertainty"),
                           (["--export", "f.npz"], "--export writes the embeddings of one run")):
        refused(capsys, ["--embeddings", "e.npz", *words], message)
    refused(capsys, ["--checkpoint", runs / "cosine0", f"{runs}/cosine0/."], "names .*cosine0 more than once")


def test_files_that_cannot_be_written_are_named_before_the_work(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "embed_split", None)
    for option, path in zip(("--output", "--export"), unwritable(tmp_path)):
        refused(capsys, ["--checkpoint", runs / "cosine0", option, path], f"{path} cannot be written")


# ---- matches beyond the original pairs, other splits

def test_the_dev_split_takes_the_val_files(runs, ev, everything, capsys):
    found = ev("--checkpoint", runs / "wasserstein0", "--split", "dev", *everything, "--format", "latex")["protocols"]
    assert r"\begin{tabular}" in capsys.readouterr().out
    assert found["cxc"]["t2t"]["queries"] == found["full"]["t2i"]["queries"] == found["pmrp"]["t2i"]["queries"] == 60


def test_positives_of_the_user(ev, exported, capsys):
    """By the ids of the split; also with the cosine of the means, and with the variances of other items."""
    e, rng = exported("wasserstein0"), np.random.default_rng(0)
    images, captions, count = e["image_id"].tolist(), e["caption_id"].tolist(), rng.integers(0, 6, 120)
    listed = {"i2t": {images[0]: [captions[50], captions[3]], images[4]: [captions[9]], images[5]: []},
              "t2i": {c: rng.permutation(images)[:n].tolist() for c, n in zip(captions, count)}}
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump(listed, f)
    capsys.readouterr()
    found = ev("--embeddings", "e.npz", "--positives", "p.json", "--uncertainty")
    numbers, spread = found["protocols"], e["caption_log_var"].sum(1)
    assert numbers["positives"]["i2t"]["queries"] == 2
    own, wasserstein = sides(e), FORMULAS["wasserstein"]
    for name, scores in (("positives", wasserstein(*own)), ("positives_mean_only", cosine(*own)),
                         ("positives_shuffled", wasserstein(*protocols.deal_variances(*own)))):
        scores = scores.numpy()
        ranks = np.array([np.sum(scores[0] >= max(scores[0, 50], scores[0, 3])) - 1,
                          np.sum(scores[4] >= scores[4, 9]) - 1])
        assert numbers[name]["i2t"]["meanr"] == pytest.approx(np.mean(ranks) + 1)
        assert numbers[name]["i2t"]["r1"] == 100 * np.mean(ranks < 1)
    rho = scipy.stats.spearmanr(spread[count > 0], count[count > 0]).statistic
    assert found["uncertainty"]["captions"]["rho_positives"] == pytest.approx(rho, abs=1e-3)
    assert f"rho of log det Sigma with the number of positives of a query: {rho:.2f}" in capsys.readouterr().out


def test_protocols_of_5000_images_take_testall(runs, ev, everything, demo_path, tmp_path, capsys):
    """VSE++'s and SCAN's `test` is a fifth of it."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "all")
    for path in (tmp_path / "all").glob("test_*"):
        shutil.copy(path, path.with_name(path.name.replace("test_", "testall_")))
    words = ["--checkpoint", runs / "cosine0", "--data_path", tmp_path, "--data_name", "all"]
    assert ev(*words, *everything)["split"] == "testall"
    assert "--cxc and --pmrp evaluate the split testall of" in capsys.readouterr().out
    assert ev(*words, *everything, "--split", "test")["split"] == ev(*words)["split"] == "test"


def test_text_only_splits(runs, ev, everything, demo_path, capsys):
    """Captions without features: what needs no image, the same as with features; the rest is named."""
    os.makedirs("only/x")
    for name in ("test_caps.txt", "test_img_ids.npy", "test_ann_ids.npy"):
        shutil.copy(f"{demo_path}/demo_precomp/{name}", "only/x")
    found = ev("--checkpoint", runs / "wasserstein0", "--data_path", "only", "--data_name", "x", *everything)
    whole = ev("--checkpoint", runs / "wasserstein0", *everything)["protocols"]["cxc"]
    assert found["protocols"] == {"cxc": {"t2t": whole["t2t"], "sts": whole["sts"]}}
    assert "captions" in found["uncertainty"] and "images" not in found["uncertainty"]
    assert "note: images and captions are not ranked: there are no images" in capsys.readouterr().out


def test_an_ensemble_shares_the_split_of_its_first_run(runs, ev, demo_path, tmp_path, capsys):
    """The other run reads features of captions, so that it cannot take over the split that was read, and has 5 dev
    images."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "two")
    for split, count in (("train", 240), ("dev", 60), ("test", 120)):
        np.save(tmp_path / "two" / f"{split}_bag.npy",
                np.random.default_rng(0).standard_normal((count, 7)).astype(np.float32))
    fit("--data_path", tmp_path, "--data_name", "two", "--text_features", "bag", "--dev_images", 5,
        "--logger_name", "other")
    refused(capsys, ["--checkpoint", runs / "cosine0", "other"],
            "other was trained on .*two, the first run on .*demo_precomp; an ensemble needs one split")
    words = ["--data_path", tmp_path, "--data_name", "two", "--split", "dev"]
    for paths, images in (((runs / "cosine0", "other"), 12), (("other", runs / "cosine0"), 5)):
        assert ev("--checkpoint", *paths, *words)["images"] == images


# ---- what is written

def test_results_of_other_data_or_splits_have_their_own_file(runs, demo_path, tmp_path, monkeypatch):
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "two")
    run, other = (shutil.copytree(runs / "cosine0", tmp_path / name) for name in ("run", "other.v2"))
    two = ["--data_path", tmp_path, "--data_name", "two"]
    for words, name in (([run], "results"), ([run, "--split", "dev"], "results_demo_precomp_dev"),
                        ([run, *two], "results_two_test"),
                        ([run, other, *two], "results_ensemble_run_other.v2_two_test")):
        evaluate.main(["--checkpoint", *map(str, words)])
        assert os.path.exists(run / f"{name}.json")
    monkeypatch.chdir(tmp_path)
    evaluate.main(["--compare", str(runs / "cosine0"), str(runs / "wasserstein0"), "--split", "dev"])
    assert os.path.exists("comparison_cosine0_wasserstein0_dev.json")


def test_a_file_of_means_does_not_hold_a_learned_similarity(ev, demo_path, capsys):
    fit("--data_path", demo_path, "--sim", "product", "--logger_name", "run")
    ev("--checkpoint", "run", "--export", "e.npz")
    assert "in e.npz: means only, from which its similarity 'product' cannot be recomputed\n" in capsys.readouterr().out
    refused(capsys, ["--embeddings", "e.npz"], "has similarity 'product', which cannot be computed from a file")


def test_uncertainty_numbers_and_pictures(runs, ev, exported, demo_path):
    e = exported("spherical")
    words = ["--checkpoint", runs / "spherical", "--uncertainty", "--photos", f"{demo_path}/demo/images"]
    found = ev(*words)["uncertainty"]
    for side in ("images", "captions"):
        spread = 16 * e[f"{side[:-1]}_log_var"].sum(1)                          # log det of 16 dimensions
        assert found[side]["mean"] == pytest.approx(spread.mean(), rel=1e-5, abs=1e-5)
        assert len(found[side]["recall_bins"]["recall"]) == 10 and "area" in found[side]["risk_coverage"]
    for picture in ("r_uncertain_images", "r_uncertain_captions"):
        with open(f"{picture}.png", "rb") as f:
            assert f.read(8) == b"\x89PNG\r\n\x1a\n" and os.path.getsize(f"{picture}.png") > 5000


def test_captions_are_drawn_with_their_best_images(runs, ev, exported, demo_path, monkeypatch):
    """From the least to the most uncertain caption; the own image is framed."""
    e, rows = exported("wasserstein0"), []
    monkeypatch.setattr(pictures, "draw_rows", lambda path, title, drawn, across: rows.extend(drawn))
    ev("--checkpoint", runs / "wasserstein0", "--retrieval", "--photos", f"{demo_path}/demo/images")
    scores, spread = FORMULAS["wasserstein"](*sides(e)).numpy(), e["caption_log_var"].sum(1)
    texts = open(f"{demo_path}/demo_precomp/test_caps.txt", encoding="utf-8").read().splitlines()
    order = np.argsort(spread, kind="stable")               # some captions are the same text
    assert len(rows) == 5 and [rows[0].query, rows[4].query] == [texts[order[0]], texts[order[-1]]]
    for row, m in ((rows[0], order[0]), (rows[4], order[-1])):
        best = np.argsort(-scores[:, m])[:5]
        assert [cell.label.split()[0] for cell in row.cells] == [f"{score:.3f}" for score in scores[best, m]]
        assert [cell.frame == pictures.OWN for cell in row.cells] == (best == m // 5).tolist()
        assert row.facts.endswith(f"; its own image is number {(scores[:, m] >= scores[m // 5, m]).sum()} of 24")


def test_photos_that_are_not_there_are_said(runs, ev, demo_path, monkeypatch, capsys):
    words = ["--checkpoint", runs / "wasserstein0", "--uncertainty", "--photos"]
    shutil.copytree(f"{demo_path}/demo/images", "some")
    os.remove("some/test_00003.png")
    ev(*words, "some")
    assert "drawn: 1 of 24 photos are missing, the first is some/test_00003.png" in capsys.readouterr().err
    ev(*words[:-1])
    assert "the photos are not at hand; name their folder with --photos" in capsys.readouterr().err
    monkeypatch.setattr(evaluate, "embed_split", None)
    refused(capsys, [*words, "nofolder"], "--photos nofolder is not a folder; give the folder of the photos")


# ---- comparisons

def test_comparison_of_two_runs(runs, ev, everything, capsys):
    first, second = str(runs / "wasserstein0"), str(runs / "cosine0")
    found = ev("--compare", first, second, *everything)
    shown = capsys.readouterr().out
    alone = {path: ev("--checkpoint", path, *everything)["protocols"] for path in (first, second)}
    assert {path: r["protocols"] for path, r in found["runs"].items()} == alone
    pair, = found["comparisons"]
    assert (pair["a"], pair["b"]) == (first, second)
    assert "cxc i2i r1" in pair["metrics"] and "pmrp t2i pmrp" in pair["metrics"]
    for name, m in pair["metrics"].items():
        protocol, side, *key = name.split()
        a, b = (alone[path][protocol][side] for path in (first, second))
        a, b = (a[key[0]], b[key[0]]) if key else (a, b)                        # rsum belongs to no side
        assert (m["a"], m["b"], m["difference"]) == (pytest.approx(a), pytest.approx(b), pytest.approx(b - a)), name
        assert m["low"] <= m["difference"] <= m["high"] and 0 < m["p"] <= 1
    assert not any(name.startswith("mean_only") for name in pair["metrics"])    # points have none
    assert f"{pair['metrics']['full rsum']['difference']:+.2f}" in shown


def test_groups_of_seeds(runs, ev, exported, everything, capsys):
    """A constant model has no correlations with ratings, so no mean of them stands among those of its seeds."""
    groups = [",".join(str(runs / f"{name}{seed}") for seed in (0, 1)) for name in ("wasserstein", "cosine")]
    ones = {"image_mean": np.ones((24, 16)), "caption_mean": np.ones((120, 16))}
    np.savez("zeros.npz", **{**exported("cosine0"), **ones})
    found = ev("--compare", *groups, "zeros.npz", *everything)
    shown = capsys.readouterr().out
    rsum = {path: r["protocols"]["full"]["rsum"] for path, r in found["runs"].items()}
    assert set(found["groups"]) == {str(runs / "wasserstein"), str(runs / "cosine"), "zeros.npz"}
    assert [("cxc sts rho x 100" in group) for group in found["groups"].values()] == [True, True, False]
    means = []
    for group in groups:
        values = [rsum[path] for path in group.split(",")]
        mean, deviation, n = found["groups"][group.split(",")[0][:-1]]["full rsum"]
        assert (mean, deviation, n) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)), 2)
        assert f"{mean:.1f} +- {deviation:.1f} (2)" in shown
        means.append(mean)
    pair = found["comparisons"][0]
    assert pair["seeds"] == [2, 2] and pair["metrics"]["full rsum"]["difference"] == pytest.approx(means[1] - means[0])
    assert pair["pairs"] and "paired bootstrap over images and 2 pairs of seeds" in " ".join(shown.split())
    again = [groups[0], ",".join(groups[1].split(",")[::-1]), f"{runs}/spherical,{runs}/gce"]
    found = ev("--compare", *again, *everything)
    turned, other = found["comparisons"]
    assert turned["metrics"] == pair["metrics"]                                             # in any order
    assert not other["pairs"] and "over images and seeds" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("paths, name", [(["a/b0", "a/b1/"], "a/b"), (["a0/b", "a1/b"], "a0/b"), (["x", "y"], "x")])
def test_a_group_is_named_by_what_its_paths_share(paths, name):
    assert compare.common_name(paths) == name


def test_different_splits_are_not_compared(runs, exported, capsys):
    exported("wasserstein0", "--split", "dev")
    for words, message in (([runs / "wasserstein0", "e.npz"], "e.npz has 12 images and 60 captions .* has 24 and 120"),
                           ([runs / "wasserstein0"], "nothing to compare with"),
                           ([runs / "wasserstein0", runs / "none"], "there is no checkpoint")):
        refused(capsys, ["--compare", *words], message)
