"""evaluate.py as users run it: all protocols of runs, embeddings and ready scores; what it writes; what it refuses."""

import json
import os
import pathlib
import shutil
import zipfile
from functools import partial, reduce

import numpy as np
import pytest
import safetensors.torch
import scipy.stats
import torch

import evaluate
import metrics
from checkpoint import Trained
from cli import InputError
from confidence.calibration import calibration_file
from evaluation import bootstrap, outputs, pictures, protocols, report
from evaluation.embeddings import Embeddings, check_same_items
from evaluation.reading import load_file, load_scores
from files import read_lines
from losses import Embedding, cosine
from tests import helpers
from tests.helpers import FORMULAS, fit, unwritable

MODELS = {
    "wasserstein0": ["--sim", "wasserstein"],
    "wasserstein1": ["--sim", "wasserstein", "--seed", "1"],
    "cosine0": ["--sim", "cosine"],
    "cosine1": ["--sim", "cosine", "--seed", "1"],
    "spherical": ["--sim", "kl", "--head", "spherical_one"],
    "gce": ["--sim", "mahalanobis"],
    "mls": ["--sim", "mls"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_run):
    """Small runs on the demo features; the folder that holds them."""
    root = tmp_path_factory.mktemp("runs")
    for name, words in MODELS.items():
        small_run(*words, to=root / name)
    return root


@pytest.fixture
def refused(capsys):
    """refused(words, message): evaluate.py ends in one line that says so."""
    return partial(helpers.refused, capsys, evaluate.main)


@pytest.fixture
def everything(demo_path):
    """Options of all protocols that the demo data allow."""
    return [
        "--cxc",
        "--cxc_path",
        f"{demo_path}/demo_cxc",
        "--pmrp",
        "--instances",
        f"{demo_path}/demo_coco/annotations/instances_val2014.json",
    ]


@pytest.fixture
def told(ev, capsys):
    """told(*words): what evaluate.py makes of these options, and what it prints. In an empty folder."""

    def call(*words):
        capsys.readouterr()
        return ev(*words), capsys.readouterr().out

    return call


@pytest.fixture
def exported(ev, runs):
    """The arrays of a run's --export."""

    def call(name, *words):
        ev("--checkpoint", runs / name, "--export", "e.npz", *words)
        with np.load("e.npz", allow_pickle=False) as stored:
            return dict(stored)

    return call


def save(arrays: dict) -> str:
    np.savez("x.npz", **{name: value for name, value in arrays.items() if value is not None})
    return "x.npz"


def sides(e):
    arrays = {
        key: torch.from_numpy(value)
        for key, value in e.items()
        if key.endswith(("_mean", "_log_var"))
    }
    return [
        Embedding(arrays[f"{side}_mean"], arrays.get(f"{side}_log_var"))
        for side in ("image", "caption")
    ]


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


def test_scores_give_the_results_of_their_model(runs, ev, exported, everything, demo_path):
    e = exported("wasserstein0")
    matrix = FORMULAS["wasserstein"](*sides(e)).numpy()
    for name, x in (("s", matrix), ("half", matrix.astype(np.float16))):
        np.save(f"{name}.npy", x)
        scores = load_scores(f"{name}.npy").scores
        assert scores.dtype == np.float32 and scores.flags.writeable == (
            name == "half"
        )  # the other is mapped
    words = ["--data_path", demo_path, "--data_name", "demo_precomp", *everything]
    found, own = (
        ev("--scores", "s.npy", *words),
        ev("--checkpoint", runs / "wasserstein0", *everything),
    )
    found, own = found["protocols"], own["protocols"]
    assert set(found) == {"full", "cxc", "pmrp"} and set(found["cxc"]) == {
        "i2t",
        "t2i",
        "rsum",
        "sits",
    }
    assert found["full"] == own["full"] == metrics.retrieval(matrix, e["caption_image"])
    assert found["pmrp"] == own["pmrp"] and found["cxc"] == {
        key: own["cxc"][key] for key in found["cxc"]
    }
    found = ev("--embeddings", "e.npz", "--sim", "kl")  # which replaces that of the file
    assert found["similarity"] == "kl"
    assert found["protocols"]["full"] == metrics.retrieval(
        FORMULAS["kl"](*sides(e)), e["caption_image"]
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"image_mean": np.zeros(24)},
            r"image_mean must hold numbers \(items, D\), and has shape \(24,\)",
        ),
        ({"image_mean": None}, r"needs image_mean .* it holds .*caption_mean \(120, 16\)"),
        ({"caption_log_var": None}, "does not fit --sim wasserstein: .*needs variances"),
        ({"image_mean": np.zeros((24, 5)), "image_log_var": np.zeros((24, 1))}, r"\b5\b.*\b16\b"),
        *(
            ({"image_mean": x}, r"NaN, infinity or numbers above 1e\+18 in image_mean")
            for x in (np.full((24, 16), 1e25), np.full((24, 16), np.inf, np.float16))
        ),
        (
            {
                "image_mean": np.zeros((0, 16)),
                "caption_mean": np.zeros((0, 16)),
                "image_log_var": None,
                "caption_log_var": None,
                "similarity": None,
                "caption_image": None,
            },
            "0 captions for 0 images",
        ),
        (
            {"caption_image": np.arange(120)},
            "caption_image must hold 120 whole numbers from 0 to 23",
        ),
        ({"caption_images": np.zeros(120)}, "'caption_images'.* may hold image_mean, "),
        (
            {"similarity": np.array("euclid")},
            "has similarity 'euclid', which cannot .* another similarity with --sim, one",
        ),
        (
            {
                "similarity": np.array("mls"),
                "image_log_var": np.zeros((24, 1)),
                "caption_log_var": np.zeros((120, 1)),
            },
            "similarity 'mls', and no number 'effective_dim' above 0",
        ),
        (
            {"similarity": np.array("mls"), "effective_dim": np.array(4)},
            "of one log-variance an item, and 16 of each",
        ),
        ({"caption_id": np.arange(119)}, "caption_id must hold one for each of 120 and holds 119"),
        (np.zeros((24, 120), int), "holds int64"),
        (np.full((24, 120), np.nan), "NaN or infinity"),
        (np.zeros(120), r"of shape \(120,\); scores are floats, images x captions"),
        (np.zeros((24, 119)), "119 captions for 24 images"),
    ],
)
def test_wrong_files_are_refused(exported, refused, change, message):
    """Embeddings, of which one array is changed, and scores."""
    np.save("x.npy", change)
    path = save({**exported("wasserstein0"), **change}) if isinstance(change, dict) else "x.npy"
    refused(["--embeddings", path], message)
    assert not os.path.exists("x_results.json")


def test_files_that_cannot_be_written_are_refused_before_the_work(
    runs, refused, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluate, "embed_split", None)
    for option, path in zip(("--output", "--export"), unwritable(tmp_path)):
        refused(["--checkpoint", runs / "cosine0", option, path], f"{path} cannot be written")


# ---- matches beyond the original pairs, other splits


def test_positives_of_the_user(told, exported):
    """By the ids of the split; also with the cosine of the means, and with the variances of other items."""
    e, rng = exported("wasserstein0"), np.random.default_rng(0)
    images, captions, count = (
        e["image_id"].tolist(),
        e["caption_id"].tolist(),
        rng.integers(0, 6, 120),
    )
    listed = {
        "i2t": {images[4]: [captions[9]], images[0]: [captions[50]], images[5]: []},
        "t2i": {c: rng.permutation(images)[:n].tolist() for c, n in zip(captions, count)},
    }
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump(listed, f)
    found, shown = told("--embeddings", "e.npz", "--positives", "p.json", "--uncertainty")
    own, wasserstein = sides(e), FORMULAS["wasserstein"]
    for name, scores in (
        ("positives", wasserstein(*own)),
        ("positives_mean_only", cosine(*own)),
        ("positives_shuffled", wasserstein(*protocols.shuffle_variances(*own))),
    ):
        ranks = [(row >= row[m]).sum().item() for row, m in ((scores[4], 9), (scores[0], 50))]
        numbers = found["protocols"][name]["i2t"]
        assert numbers["queries"] == 2 and numbers["meanr"] == pytest.approx(np.mean(ranks))
    rho = scipy.stats.spearmanr(e["caption_log_var"].sum(1)[count > 0], count[count > 0]).statistic
    assert found["uncertainty"]["captions"]["rho_positives"] == pytest.approx(rho, abs=1e-3)
    correlation = found["uncertainty"]["captions"]["correlations"]["log_det"]
    assert correlation["rho"] == found["uncertainty"]["captions"]["rho_positives"]
    asked = (count > 0).sum()
    assert (
        f"captions as queries: Spearman's rho with the number of positives ({asked} queries)"
        in shown
    )
    assert f"log det Sigma  {rho:.3f} ({correlation['low']:.2f} to" in shown
    assert "(of only 2.4 queries each)" in shown


def test_protocols_of_5000_images_take_testall_and_dev_the_val_files(
    runs, ev, told, everything, demo_path, tmp_path
):
    """VSE++'s and SCAN's `test` is a fifth of it."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "all")
    for path in (tmp_path / "all").glob("test_*"):
        shutil.copy(path, path.with_name(path.name.replace("test_", "testall_")))
    words = ["--checkpoint", runs / "cosine0", "--data_path", tmp_path, "--data_name", "all"]
    found, shown = told(*words, *everything)
    assert found["split"] == "testall" and "--cxc and --pmrp evaluate the split testall of" in shown
    assert ev(*words, *everything, "--split", "test")["split"] == ev(*words)["split"] == "test"
    found = ev(*words, *everything, "--split", "dev")["protocols"]
    assert (
        found["cxc"]["t2t"]["queries"]
        == found["full"]["t2i"]["queries"]
        == found["pmrp"]["t2i"]["queries"]
        == 60
    )


def test_text_only_splits(runs, told, refused, everything, demo_path):
    """Captions without features: what needs no image, the same as with features; the rest is named."""
    os.makedirs("only/x")
    for name in ("test_caps.txt", "test_img_ids.npy", "test_ann_ids.npy"):
        shutil.copy(f"{demo_path}/demo_precomp/{name}", "only/x")
    words = ["--checkpoint", runs / "wasserstein0", *everything]
    whole, (found, shown) = (
        told(*words)[0]["protocols"]["cxc"],
        told(*words, "--data_path", "only", "--data_name", "x"),
    )
    assert found["protocols"] == {"cxc": {"t2t": whole["t2t"], "sts": whole["sts"]}}
    assert "captions" in found["uncertainty"] and "images" not in found["uncertainty"]
    assert "note: images and captions are not ranked: there are no images" in shown
    refused(
        [*words, "--data_path", "only", "--data_name", "x", "--bank", "train"],
        "--bank train normalizes scores of images and captions, and .* has no images to score",
    )


def test_an_ensemble_shares_the_split_of_its_first_run(runs, ev, refused, demo_path, tmp_path):
    """The other run reads features of captions, so it cannot take over the split that was read; it has 5 dev images."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "two")
    fit(
        "--data_path",
        tmp_path,
        "--data_name",
        "two",
        "--text_features",
        "bag",
        "--dev_images",
        5,
        "--logger_name",
        "other",
    )
    refused(
        ["--checkpoint", runs / "cosine0", "other"],
        "other was trained on .*two, the first run on .*demo_precomp; an ensemble needs one split",
    )
    words = ["--data_path", tmp_path, "--data_name", "two", "--split", "dev"]
    for paths, images in (((runs / "cosine0", "other"), 12), (("other", runs / "cosine0"), 5)):
        assert ev("--checkpoint", *paths, *words)["images"] == images


# ---- what is written


def test_files_are_named_by_what_they_are_of(runs):
    run, model = str(runs / "cosine0"), Trained(str(runs / "cosine0"))
    for words, name in (
        ([], "results"),
        (["--split", "dev"], "results_demo_precomp_dev"),
        (["--data_name", "two", "--sim", "kl"], "results_kl_two_test"),
    ):
        opt = evaluate.parse_args(["--checkpoint", run, *words])
        for path in (run, f"{run}/model_best.pt"):
            assert outputs.name_results_file([path], [model], opt) == f"{run}/{name}.json"
    assert outputs.name_results_file([run, "x/other.v2"], [model] * 2, opt) == (
        f"{run}/results_ensemble_cosine0_other.v2_kl_two_test.json"
    )
    assert (
        outputs.name_results_file(["d/a.npz"], [], opt, "confidence", "volume")
        == "d/a_confidence_kl_volume.json"
    )
    for target, path in (
        ("d/results_kl.json", "d/retrieval_kl.png"),
        ("d/mine.json", "d/mine_retrieval.png"),
    ):
        assert outputs.name_file_beside("retrieval", target) == path
    calibrated = outputs.name_file_beside(
        "calibration", "d/a_confidence_kl.json", "confidence", "json"
    )
    assert calibrated == "d/a_calibration_kl.json"
    for file in ("model_best.pt", "checkpoint.pt"):  # a search finds what confidence writes
        target = outputs.name_results_file([f"d/{file}"], [], evaluate.parse_args([]), "confidence")
        assert calibration_file(f"d/{file}") == outputs.name_file_beside(
            "calibration", target, "confidence", "json"
        )


def test_a_file_of_means_does_not_hold_a_learned_similarity(told, refused, demo_path):
    fit("--data_path", demo_path, "--sim", "product", "--logger_name", "run")
    assert (
        "in e.npz: means only, from which its similarity 'product' cannot be recomputed\n"
        in told("--checkpoint", "run", "--export", "e.npz")[1]
    )
    refused(
        ["--embeddings", "e.npz"], "has similarity 'product', which cannot be computed from a file"
    )


def test_uncertainty_and_its_pictures(runs, ev, exported, demo_path, monkeypatch):
    """Captions with their best images, from the least to the most uncertain caption; the own image is framed."""
    e, drawn, draw = exported("spherical"), {}, pictures.draw_rows
    monkeypatch.setattr(
        pictures,
        "draw_rows",
        lambda path, title, rows, across: (
            drawn.update({path: rows}),
            draw(path, title, rows, across),
        ),
    )
    found = ev(
        "--checkpoint",
        runs / "spherical",
        "--uncertainty",
        "--retrieval",
        "--photos",
        f"{demo_path}/demo/images",
    )["uncertainty"]
    for side in ("images", "captions"):
        spread = 16 * e[f"{side[:-1]}_log_var"].sum(1)  # log det of 16 dimensions
        assert found[side]["mean"] == pytest.approx(spread.mean(), rel=1e-5, abs=1e-5)
        assert (
            len(found[side]["recall_bins"]["recall"]) == 10
            and "area" in found[side]["risk_coverage"]
        )
        assert os.path.getsize(f"r_uncertain_{side}.png") > 5000
    scores, rows = FORMULAS["kl"](*sides(e)).numpy(), drawn["r_retrieval.png"]
    texts = read_lines(f"{demo_path}/demo_precomp/test_caps.txt")
    order = np.argsort(spread, kind="stable")
    order = [m for k, m in enumerate(order) if texts[m] not in {texts[n] for n in order[:k]}]
    for file in ("r_retrieval.png", "r_uncertain_captions.png"):
        queries = [row.query for row in drawn[file]]
        assert len(queries) == len(set(queries)) == (5 if "retrieval" in file else 10)
    assert len(rows) == 5 and [rows[0].query, rows[4].query] == [texts[order[0]], texts[order[-1]]]
    for row, m in ((rows[0], order[0]), (rows[4], order[-1])):
        best = np.argsort(-scores[:, m])[:5]
        assert [cell.label.split()[1] for cell in row.cells] == [
            f"{score:.3f}" for score in scores[best, m]
        ]
        assert [cell.frame == pictures.OWN for cell in row.cells] == (best == m // 5).tolist()
        assert row.facts.endswith(
            f"; its own image is number {(scores[:, m] >= scores[m // 5, m]).sum()} of 24"
        )


def test_photos_that_are_not_there_are_said(demo_path, capsys):
    folder = f"{demo_path}/demo/images"
    for ids, given, message in (
        ([], folder, "no photos"),
        (["a.png"], None, "name their folder with --photos"),
        (["a.png"], folder, f"1 of 1 photos are missing, the first is {folder}/a.png"),
    ):
        e = Embeddings("x", np.arange(1), 1, ids={"image_name": ids})
        assert pictures.locate_photos(e, given) is None
        assert message in capsys.readouterr().err


def test_pictures_are_drawn_of_the_photos_that_are_there(runs, ev, demo_path, monkeypatch, capsys):
    """Nine of 24: nothing was drawn."""
    drawn = {}
    monkeypatch.setattr(
        pictures, "draw_rows", lambda path, title, rows, across: drawn.update({path: rows})
    )
    names = read_lines(f"{demo_path}/demo_precomp/test_ids.txt")
    os.mkdir("some")
    for name in names[:9]:
        shutil.copy(f"{demo_path}/demo/images/{name}", "some")
    ev("--checkpoint", runs / "spherical", "--uncertainty", "--retrieval", "--photos", "some")
    assert (
        "examples are drawn of the photos that are there: 15 of 24 photos are missing, the first is "
        f"some/{names[9]}"
    ) in capsys.readouterr().err
    texts = read_lines(f"{demo_path}/demo_precomp/test_caps.txt")
    assert len(drawn["r_retrieval.png"]) == 5 and len(drawn["r_uncertain_captions.png"]) == 10
    for row in drawn["r_retrieval.png"] + drawn["r_uncertain_captions.png"]:
        assert min(m // 5 for m, text in enumerate(texts) if text == row.query) < 9
    assert all(
        not isinstance(cell.photo, str)
        for file in ("images", "captions")
        for row in drawn[f"r_uncertain_{file}.png"]
        for cell in row.cells
    )
    words = {
        cell.photo
        for row in drawn["r_retrieval.png"]
        for cell in row.cells
        if isinstance(cell.photo, str)
    }
    assert words == {"missing"}


# ---- comparisons


def test_groups_of_seeds_are_compared(runs, ev, told, exported, everything):
    """Differences are of the means over seeds; the runs' own results are those of each alone. A constant model has no
    correlations with ratings, so no mean of them stands among those of its seeds."""
    groups = [
        [str(runs / f"{name}{seed}") for seed in (0, 1)] for name in ("wasserstein", "cosine")
    ]
    ones = {"image_mean": np.ones((24, 16)), "caption_mean": np.ones((120, 16))}
    np.savez("zeros.npz", **{**exported("cosine0"), **ones})
    alone = {
        path: ev("--checkpoint", path, *everything)["protocols"]
        for group in groups
        for path in group
    }
    assert alone[groups[0][0]] != alone[groups[0][1]]  # another seed is another run
    found, shown = told("--compare", *map(",".join, groups), "zeros.npz", *everything)
    assert {path: r["protocols"] for path, r in found["runs"].items() if path in alone} == alone
    assert set(found["groups"]) == {str(runs / "wasserstein"), str(runs / "cosine"), "zeros.npz"}
    assert [("cxc sts rho x 100" in group) for group in found["groups"].values()] == [
        True,
        True,
        False,
    ]
    pair, _ = found["comparisons"]
    assert {"cxc i2i r1", "pmrp t2i pmrp", "full rsum"} < {*pair["metrics"]}
    assert pair["seeds"] == [2, 2] and pair["pairs"]
    assert not any(name.startswith("mean_only") for name in pair["metrics"])  # points have none
    for name, m in pair["metrics"].items():
        values = [
            [reduce(dict.get, name.split(), alone[path]) for path in group] for group in groups
        ]
        a, b = map(np.mean, values)
        assert (m["a"], m["b"], m["difference"]) == (
            pytest.approx(a),
            pytest.approx(b),
            pytest.approx(b - a),
        ), name
        assert m["low"] <= m["difference"] <= m["high"] and 0 < m["p"] <= 1
        for group, seeds in zip(found["groups"].values(), values):
            assert group[name] == [
                pytest.approx(np.mean(seeds)),
                pytest.approx(np.std(seeds, ddof=1)),
                2,
            ]
    assert f"{m['difference']:+.2f}" in shown
    assert "bootstrap over images and 2 pairs of seeds" in " ".join(shown.split())
    again = [groups[0], groups[1][::-1], [f"{runs}/spherical", f"{runs}/gce"]]
    found, shown = told("--compare", *map(",".join, again), *everything)
    turned, other = found["comparisons"]
    assert turned["metrics"] == pair["metrics"] and not other["pairs"]  # in any order
    assert "over images and seeds" in " ".join(shown.split())
    for paths, name in ((["a/b0", "a/b1/"], "a/b"), (["a0/b", "a1/b"], "a0/b"), (["x", "y"], "x")):
        assert bootstrap.common_name(paths) == name


def test_items_of_different_splits_are_refused(runs, exported, refused, demo_path):
    arrays = exported("wasserstein0", "--split", "dev")
    refused(
        [
            "--embeddings",
            save({**arrays, "split": np.array("train")}),
            "--data_path",
            demo_path,
            "--data_name",
            "demo_precomp",
        ],
        "has 12 images and 60 captions, demo_precomp train has 48 and 240; they must be the same items",
    )
    for words, message in (
        ([runs / "wasserstein0", "e.npz"], "e.npz has 12 images and 60 captions, .* 24 and 120"),
        ([runs / "wasserstein0"], "nothing to compare with"),
        ([runs / "wasserstein0", runs / "none"], "there is no checkpoint"),
    ):
        refused(["--compare", *words], message)


# ---- tables: every number at its row and column


def recalls(start, **more):
    return {
        **{key: start + k + 0.25 for k, key in enumerate(("r1", "r5", "r10", "medr", "meanr"))},
        "queries": 25000,
        **more,
    }


def results(start=10):
    rho = {"spearman": 0.5, "std": 0.0123, "shuffled": -0.01, "pairs": 9, "items": 5}
    return {
        "similarity": "kl",
        "protocols": {
            "full": {"i2t": recalls(start), "t2i": recalls(start + 10), "rsum": 500.06},
            "mean_only": {"i2t": recalls(start + 20), "t2i": recalls(start + 30), "rsum": 1.0},
            "cxc": {
                "i2t": recalls(start, rpc2=33.3),
                "t2t": recalls(start + 40),
                "rsum": 2.0,
                "sts": rho,
            },
            "pmrp": {"t2i": {"pmrp": 1.5, "zeta0": 2.0, "zeta1": 3.0, "zeta2": 4.0, "queries": 7}},
            "positives": {"t2i": recalls(60, rp=None)},
        },
    }


DIFFERENCE = {"a": 400.0, "b": 402.5, "difference": 2.5, "low": -10.125, "high": 15.1, "p": 0.06}
PAIR = {
    "a": "one",
    "b": "two",
    "seeds": [3, 3],
    "pairs": True,
    "metrics": {"full rsum": DIFFERENCE},
}
PAGE = """\
                                      image to text                      text to image
                               R@1    R@5   R@10   medr  meanr    R@1    R@5   R@10   medr  meanr   rsum
a: all, kl                    10.2   11.2   12.2   13.2   14.2   20.2   21.2   22.2   23.2   24.2  500.1
b_1: all, cosine              50.2   51.2   52.2   53.2   54.2   60.2   61.2   62.2   63.2   64.2  500.1
a: all, cosine of the means   30.2   31.2   32.2   33.2   34.2   40.2   41.2   42.2   43.2   44.2    1.0

Crisscrossed Captions; rsum a: 2.0
                    R@1    R@5   R@10   medr  meanr   RPC2  queries
a: image to text   10.2   11.2   12.2   13.2   14.2   33.3   25,000
a: text to text    50.2   51.2   52.2   53.2   54.2          25,000

Crisscrossed Captions: rank correlation with the ratings, mean and deviation of bootstrap samples
        Spearman's rho  deviation  shuffled
a: STS           0.500      0.012    -0.010

Plausible Match R-Precision
                   PMRP  zeta 0  zeta 1  zeta 2  queries
a: text to image    1.5     2.0     3.0     4.0        7

positives of --positives
                    R@1    R@5   R@10   medr  meanr    R-P  queries
a: text to image   60.2   61.2   62.2   63.2   64.2      -   25,000

two less one, paired bootstrap over images and 3 pairs of seeds
                first  second  difference      95% interval       p
full set, rsum  400.0   402.5       +2.50  -10.12 to +15.10  0.0600

mean and standard deviation over seeds (number of seeds)
                                                   one        two
full set, rsum                        400.0 +- 1.2 (3)  410.0 (1)
Crisscrossed Captions, STS rho x 100    1.0 +- 0.0 (3)"""


def test_every_number_is_in_its_place():
    seeds = {
        "one": {"full rsum": (400, 1.25, 3), "cxc sts rho x 100": (1, 0, 3)},
        "two": {"full rsum": (410, 0, 1)},
    }
    assert (
        report.render(
            [
                *report.tables(
                    {
                        "a": results(),
                        "b_1": {
                            "similarity": "cosine",
                            "protocols": {"full": results(50)["protocols"]["full"]},
                        },
                    }
                ),
                *report.comparisons([PAIR]),
                *report.seed_tables(seeds),
            ]
        )
        == PAGE
    )
    assert "\nall, kl  " in report.render(report.tables({"a": results()}))
    assert report.tables({"a": {"protocols": {}}}) == []
    sentence, *_ = report.describe_p_values([{**PAIR, "seeds": [3, 1]}])
    assert sentence.startswith("two: one run, so the interval")


def test_lines_of_a_terminal_end_at_110_columns_and_keep_whole_names():
    names = [f"runs/f8k_precomp_gcie_wasserstein_spherical_large_batch_seed{k}" for k in range(3)]
    metrics = dict.fromkeys(("cxc_folds5 t2i r10", "positives_mean_only t2i map_at_r"), DIFFERENCE)
    shown = report.render(
        [
            *report.tables({name: results() for name in names}),
            *report.comparisons([{**PAIR, "metrics": metrics}]),
            *report.seed_tables(
                {name: {"mean_only_folds5 i2t r1": (40.0, 1.25, 3)} for name in names}
            ),
        ]
    )
    assert max(map(len, shown.splitlines())) <= 110
    assert all(f"{name}:all" in "".join(shown.split()) for name in names)


# ---- two things that meet are of the same items in one order, and what is assumed of them is said


@pytest.mark.parametrize("name", ["image_id", "image_name", "caption_id", "caption_image"])
def test_a_file_in_another_order_than_the_split_is_refused(
    runs, exported, refused, demo_path, name
):
    arrays = exported("wasserstein0")
    path = save(
        {
            **arrays,
            "image_id": None if name == "image_name" else arrays["image_id"],
            name: np.roll(arrays[name], 1),
        }
    )
    for words in (
        ["--embeddings", path, "--data_path", demo_path, "--data_name", "demo_precomp"],
        ["--compare", runs / "wasserstein0", path],
    ):
        refused(words, "give files of one split")


def test_means_alone_take_the_split_or_five_captions_an_image_and_say_so(exported, told, demo_path):
    arrays = exported("wasserstein0")
    results, shown = told("--embeddings", "e.npz")
    assert (
        "\nall, wasserstein " in shown
        and "\nall, cosine of the means " in shown
        and "\nchance  " in shown
    )
    assert results["chance"]["full"]["t2i"]["r1"] == pytest.approx(100 / 24)
    path = save(
        {
            name: x
            for name, x in arrays.items()
            if name.endswith(("_mean", "_log_var")) or name == "similarity"
        }
    )
    found, shown = told(
        "--embeddings", path, "--data_path", demo_path, "--data_name", "demo_precomp"
    )
    assert found["protocols"] == results["protocols"]
    assert (
        f"note: x.npz does not say what it is about: the items of {demo_path}" in shown
        and "order, assumed" in shown
    )
    found, shown = told("--embeddings", path)
    assert "note: x.npz does not say whose caption each is: 5 per image, in order, assumed" in shown
    assert found["split"] is None and found["protocols"] == results["protocols"]
    found, shown = told("--embeddings", save({**arrays, "similarity": None}), "--uncertainty")
    assert "\nall, cosine " in shown and found["similarity"] == "cosine"
    assert not {"mean_only", "shuffled"} & set(found["protocols"])  # they would be the same thrice
    assert (
        "note: x.npz names no similarity; using the cosine of the means, and its variances are not used"
        in shown
    )
    assert found["protocols"]["full"] == results["protocols"]["mean_only"]


def test_items_are_known_by_their_words_their_split_and_their_ids():
    """SCAN numbers the rows of its files where VSE++ has COCO's ids."""

    def made(name, split="", data_name="", **ids):
        return Embeddings(
            name, np.repeat(np.arange(3), 2), 3, ids=ids, split=split, data_name=data_name
        )

    texts, ids = (
        [f"caption {k}" for k in range(6)],
        {"image_id": [1, 2, 3], "caption_id": list(range(6))},
    )
    assert (
        check_same_items(
            *(made("a", caption=texts, image_id=numbers) for numbers in ([0, 1, 2], [9, 7, 8]))
        )
        == []
    )
    with pytest.raises(InputError, match="a and b have other captions, and no ids"):
        check_same_items(*(made(name, caption=[name] * 6, image_id=[0, 1, 2]) for name in "ab"))
    assert (
        check_same_items(*(made(name, caption=[name] * 6, image_id=[0, 1, 5]) for name in "ab"))
        == []
    )
    mine = made("a", "dev", "x", **ids)
    with pytest.raises(InputError, match="a is of the dev split and b of the test split; give"):
        check_same_items(mine, made("b", "test", "x", **ids))
    assert check_same_items(mine, made("b", "testall", "y", **ids)) == []
    assert check_same_items(mine, made("b", data_name="y")) == [
        "a does not say what it is about: the items of b, in their order, assumed"
    ]


# ---- layouts and meanings that fit in shape alone

Z = np.random.default_rng(0).standard_normal((140, 16)).astype(np.float32)
IMAGES, TEXTS = Z[:20] + 0.6 * Z[20:40], Z[:20].repeat(5, 0) + 0.6 * Z[40:]  # 5 captions an image


@pytest.mark.parametrize(
    "ids",
    [
        {},
        {"caption_image": np.arange(100), "image_id": np.arange(100) // 5},
        {"caption_image": np.arange(100) // 5},
    ],
)
def test_rows_of_vse_pp_are_images(told, ids):
    """An image's row stands once for each of its captions."""
    np.savez("plain.npz", image_mean=IMAGES, caption_mean=TEXTS)
    noise = 1e-3 * (np.arange(100)[:, None] % 5)  # as of a network that ran anew for each caption
    np.savez("repeated.npz", image_mean=IMAGES.repeat(5, 0) + noise, caption_mean=TEXTS, **ids)
    found, shown = told("--embeddings", "repeated.npz")
    assert (
        found["images"] == 20
        and "its 100 rows of images are 20 images, each repeated 5 times" in shown
    )
    assert found["protocols"] == told("--embeddings", "plain.npz")[0]["protocols"]
    assert load_file("repeated.npz").ids.get("image_id", [*range(20)]) == [*range(20)]
    np.save("repeated.npy", IMAGES.repeat(5, 0) @ TEXTS.T)
    found, shown = told("--scores", "repeated.npy")
    assert (
        found["images"] == 20
        and "are 20 images" in shown
        and found["protocols"]["full"]["t2i"]["r1"] > 40
    )
    assert (
        "note: repeated.npy does not say whose caption each is: 5 per image" in shown
        and "all, scores" in shown
    )


def test_meanings_that_fit_in_shape_alone(told, refused):
    """One caption an image; scores on their side; distances."""
    for repeat in (1, 5):
        np.save("turned.npy", TEXTS @ IMAGES.repeat(repeat, 0).T)
        refused(["--scores", "turned.npy"], "transposed: .*np.save.path, scores.T")
    sentence = (
        "far worse than chance (10): scores are higher where items fit better, so negate distances"
    )
    for scores, expected in (
        (IMAGES @ TEXTS.T, False),
        (-IMAGES @ TEXTS.T, True),
        (np.random.default_rng(0).standard_normal((20, 100)), False),
    ):
        np.save("s.npy", scores)
        assert (sentence in told("--scores", "s.npy")[1]) == expected
    twice = IMAGES[[0, 1, 2, *range(2, 19)]]  # a photo that stands there twice
    np.savez("pairs.npz", image_mean=twice, caption_mean=twice)
    assert told("--embeddings", "pairs.npz")[0]["images"] == 20


def test_ties_are_told_with_the_recall_without_them(told):
    """Vectors of few values tie: a recall of 0 may be one of 100."""
    np.savez(
        "few.npz",
        image_mean=np.sign(IMAGES[:, :3]),
        caption_mean=np.sign(TEXTS[:, :3]),
        similarity="dot",
    )
    found, shown = told("--embeddings", "few.npz")
    scores = np.sign(IMAGES[:, :3]) @ np.sign(TEXTS[:, :3]).T
    own = scores[np.arange(100) // 5, np.arange(100)]
    worst, best = (scores >= own).sum(0) - 1, (scores > own).sum(0)
    tied = int((best < worst).sum())
    assert found["ties"]["t2i"] == {"queries": tied, "r1": 100 * np.mean(best == 0)} and tied > 90
    assert (
        f"text to image: {tied} of 100 queries have ties: other items that score exactly as high as"
        in shown
    )
    assert (
        f"They count against the model: R@1 is {100 * np.mean(worst == 0):.1f}, and would be "
        f"{100 * np.mean(best == 0):.1f} if they counted for it"
    ) in shown
    np.savez("many.npz", image_mean=IMAGES, caption_mean=TEXTS)
    assert "ties" not in told("--embeddings", "many.npz")[0]


@pytest.mark.parametrize(
    "area, words",
    [
        (97.3, "hardly separates right from wrong"),
        (90.0, "separates right from wrong well"),
        (95.0, "separates right from wrong a little"),
        (99.5, "puts the wrong answers first"),
    ],
)
def test_the_area_under_risk_and_coverage_is_said_in_words(area, words):
    risk = {"area": area, "area_random": 97.4, "area_best": 88.0}
    assert report.describe_risk(risk) == (
        f"Ranking queries by variance {words}: AURC {area} (random 97.4, ideal 88.0)"
    )


PAIRS = IMAGES[:10].repeat(2, 0)  # 20 rows, equal in pairs


@pytest.mark.parametrize(
    "ids, images",
    [
        ({"caption_image": np.arange(20)}, 20),
        ({"image_name": np.array([f"{k}.jpg" for k in range(20)])}, 20),
        ({"image_id": np.arange(20)}, 20),
        ({"caption_image": np.arange(20), "image_id": np.arange(20) // 2}, 10),
        ({"caption_image": np.arange(20) // 2 * 2}, 10),
        ({"caption_image": np.arange(20) // 2}, 10),
        ({}, 10),
        ({"image_name": np.array([f"{k // 2}.jpg" for k in range(20)])}, 10),
        ({"image_id": np.arange(10)}, 10),
    ],
)
def test_ids_names_and_owners_tell_equal_rows_apart(told, ids, images):
    """Two photos of one thing may have one vector; they are two images where the file says so."""
    np.savez("pairs.npz", image_mean=PAIRS, caption_mean=TEXTS[:20], **ids)
    found, shown = told("--embeddings", "pairs.npz")
    assert (found["images"], found["captions"]) == (images, 20)
    assert ("its 20 rows of images are 10 images, each repeated 2 times" in shown) == (images == 10)
    assert (
        "caption_image gives equal rows captions of their own, so they count as 20 images" in shown
    ) == ([*ids] == ["caption_image"] and images == 20)
    owner = np.arange(20) // (20 // images)
    expected = metrics.retrieval(
        FORMULAS["cosine"](
            *(Embedding(torch.from_numpy(x)) for x in (PAIRS[:: 20 // images], TEXTS[:20]))
        ).numpy(),
        owner,
    )
    assert found["protocols"]["full"] == expected


@pytest.mark.parametrize("rows", [20, 7])
def test_equal_rows_alone_are_no_repetition(told, rows):
    np.savez("same.npz", image_mean=np.ones((rows, 4)), caption_mean=TEXTS[:rows, :4])
    found, shown = told("--embeddings", "same.npz")
    assert (
        found["images"] == rows
        and f"same.npz: all {rows} rows of image_mean are equal, so their ranks are" in shown
    )
    np.save("same.npy", np.ones((rows, rows)))
    assert told("--scores", "same.npy")[0]["images"] == rows


@pytest.mark.parametrize("sim", ["cosine", "dot", "order"])
@pytest.mark.parametrize("scale", [1e-10, 1e-30, 1e-200, 1e30, 1e200])
def test_points_of_any_size_have_the_ranks_of_their_directions(told, sim, scale):
    """Float32 cannot square them, and the norm has a floor: other recalls came out, or a refusal."""
    np.savez("plain.npz", image_mean=IMAGES, caption_mean=TEXTS)
    np.savez(
        "scaled.npz",
        image_mean=IMAGES.astype(float) * scale,
        caption_mean=TEXTS.astype(float) * scale,
    )
    plain, scaled = (
        told("--embeddings", name, "--sim", sim)[0]["protocols"]
        for name in ("plain.npz", "scaled.npz")
    )
    assert scaled == plain and plain["full"]["t2i"]["r1"] > 10


def test_one_small_vector_and_one_of_zeros(told):
    images = IMAGES.copy()
    images[3] *= 1e-9
    np.savez("plain.npz", image_mean=IMAGES, caption_mean=TEXTS)
    np.savez("small.npz", image_mean=images, caption_mean=TEXTS)
    assert (
        told("--embeddings", "small.npz")[0]["protocols"]
        == told("--embeddings", "plain.npz")[0]["protocols"]
    )
    images[3] = 0
    np.savez("zero.npz", image_mean=images, caption_mean=TEXTS)
    assert (
        "zero.npz: zero vectors in image_mean: 1 of 20; they have no direction and score 0 with every item"
        in told("--embeddings", "zero.npz")[1]
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "arrays, message",
    [
        (
            {"image_mean": IMAGES * np.nan},
            "holds NaN, infinity or numbers above 1e.18 in image_mean",
        ),
        (
            {
                "image_mean": IMAGES.astype(float) * 1e300,
                "image_log_var": IMAGES,
                "caption_log_var": TEXTS,
                "similarity": np.array("kl"),
            },
            "holds NaN, infinity or numbers above 1e.18 in image_mean",
        ),
        ({"image_mean": IMAGES.astype(complex)}, "image_mean must hold numbers .* of complex"),
        (
            {
                "similarity": np.array("mls"),
                "effective_dim": np.array(1e30),
                "image_log_var": IMAGES[:, :1],
                "caption_log_var": TEXTS[:, :1],
            },
            "has effective_dim 1e.30, of at most 65,536 dimensions",
        ),
    ],
)
def test_numbers_that_cannot_be_ranked_are_refused_without_a_warning(
    refused, tmp_path, monkeypatch, arrays, message
):
    monkeypatch.chdir(tmp_path)
    refused(
        ["--embeddings", save({"image_mean": IMAGES, "caption_mean": TEXTS, **arrays})], message
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_an_array_twice_or_none_are_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, (name, message) in enumerate(
        (
            ("image_mean.npy", "holds two arrays 'image_mean', of which one would"),
            ("notes.txt", "holds 'notes.txt', which is not an array"),
        )
    ):
        np.savez("x.npz", image_mean=IMAGES, caption_mean=TEXTS)
        with zipfile.ZipFile("x.npz", "a") as archive, archive.open(name, "w") as f:
            np.save(f, IMAGES) if not number else f.write(b"mine")
        refused(["--embeddings", "x.npz"], message)


@pytest.mark.parametrize("name", ["e.pt", "torch_under_another_ending.npz", "e.safetensors"])
def test_files_of_tensors_give_the_numbers_of_an_npz(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    arrays = {"image_mean": IMAGES, "caption_mean": TEXTS}
    np.savez("e.npz", **arrays, similarity="cosine")
    tensors = {key: torch.from_numpy(x).contiguous() for key, x in arrays.items()}
    if name.endswith(".safetensors"):
        safetensors.torch.save_file(tensors, name, metadata={"similarity": "cosine"})
    else:
        torch.save(tensors | {"similarity": "cosine"}, name)

    evaluate.main(["--embeddings", "e.npz", "--output", "npz.json"])
    evaluate.main(["--embeddings", name, "--output", "tensors.json"])
    expected = json.loads(pathlib.Path("npz.json").read_text())
    found = json.loads(pathlib.Path("tensors.json").read_text())
    assert found["protocols"] == expected["protocols"]


def test_files_of_pytorch_without_embeddings_are_told_how_to_save_them(
    refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    torch.save(torch.ones(2, 3), "matrix.pt")
    torch.save({"image_mean": torch.ones(2, 3).to_sparse()}, "sparse.pt")
    torch.save({"image_mean": IMAGES, "caption_mean": pathlib.Path("x")}, "code.pt")
    pathlib.Path("broken.safetensors").write_bytes(b"1" * 40)
    save = r"save the arrays with np.savez.'e.npz', image_mean=d\['image_mean'\].numpy\(\)"
    refused(["--embeddings", "matrix.pt"], f"matrix.pt holds a Tensor, not a dict .*; {save}")
    for name in ("sparse.pt", "code.pt"):
        refused(["--embeddings", name], f"{name} cannot be read as a dict of tensors .*; {save}")
    refused(["--embeddings", "broken.safetensors"], "broken.safetensors is damaged or no")
    torch.save({"model": torch.ones(2)}, "weights.pt")
    refused(["--embeddings", "weights.pt"], "weights.pt has an array 'model', unknown here")
    refused(["--embeddings", "absent"], "there is no file absent")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "names",
    [
        ("img_emb/img_emb_{}.npy", "text_emb/text_emb_{}.npy"),
        ("image_embeddings_{}.npy", "text_embeddings_{}.npy"),
        ("images/{}.npy", "captions/{}.npy"),
        ("image_text/img{}.npy", "image_text/cap{}.npy"),
    ],
    ids=["clip-retrieval", "two", "folders", "both words"],
)
@pytest.mark.parametrize("each", [1, 5])
def test_a_folder_of_two_arrays_is_read(told, names, each):
    """In eleven parts, of which part 10 is the last; images once, or once for each caption."""
    texts = np.random.default_rng(1).standard_normal((100, 16)).astype(np.float16)
    arrays = IMAGES[:20].repeat(each, 0), texts
    for name, x in zip(names, arrays):
        os.makedirs(os.path.join("cr", os.path.dirname(name)), exist_ok=True)
        for k, part in enumerate(np.array_split(x, 11)):
            np.save(os.path.join("cr", name.format(k)), part)
    np.savez("e.npz", image_mean=arrays[0], caption_mean=texts)
    (found, shown), own = told("--embeddings", "cr"), told("--embeddings", "e.npz")[0]
    assert found["protocols"] == own["protocols"] and (found["images"], found["captions"]) == (
        20,
        100,
    )
    assert "cr does not say whose caption each is: 5 per image, in order, assumed" in shown
    assert ("cr: its 100 rows of images are 20 images, each repeated 5 times" in shown) == (
        each == 5
    )
    compared = told("--compare", "e.npz", "cr")[0]["comparisons"][0]["metrics"]
    assert all(numbers["difference"] == 0 for numbers in compared.values())


def test_a_folder_that_holds_no_two_arrays_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("cr")
    np.save("cr/img_emb.npy", IMAGES)
    refused(
        ["--embeddings", "cr"],
        "cr is a folder without caption embeddings, an .npy file with text or txt or cap "
        "in its name; save the arrays with np.savez",
    )
    np.save("cr/text_emb.npy", TEXTS)
    np.save("cr/txt.npy", TEXTS)
    refused(
        ["--embeddings", "cr"],
        "cr holds several arrays of caption embeddings, cr/text_emb.npy and cr/txt.npy; ",
    )
    os.remove("cr/txt.npy")
    np.save("cr/text_emb_1.npy", TEXTS[:, :3])
    os.rename("cr/text_emb.npy", "cr/text_emb_0.npy")
    refused(
        ["--embeddings", "cr"],
        "cr/text_emb_0.npy and the other parts of caption embeddings do not fit together",
    )
    np.save("cr/text_emb_1.npy", np.array([{}], object), allow_pickle=True)
    refused(["--embeddings", "cr"], "cr/text_emb_1.npy is not a whole .npy file of numbers")


def test_correlations_are_printed_where_positives_are_too_many_to_rank():
    correlations = {"log_det": {"rho": 0.5, "low": 0.4, "high": 0.6, "given": {}}}
    results = {"protocols": {}, "uncertainty": {"captions": {"correlations": correlations}}}
    (found,) = report.tables({"run": results})[-1:]
    assert "captions as queries: Spearman's rho with the number of positives" in str(found)
