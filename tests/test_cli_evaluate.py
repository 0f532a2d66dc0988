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
from confidence.calibration import calibration_file
from evaluation import bootstrap, pictures, protocols, report
from evaluation.embeddings import Embeddings, check_same_items
from evaluation.reading import is_run, load_file, load_scores
from losses import Embedding, cosine
from tests import helpers
from tests.helpers import FORMULAS, fit, unwritable
from utils import InputError, read_lines

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
def everything(demo_path, monkeypatch):
    """Options of all protocols that the demo data allow. Correlations with ratings are of few bootstrap samples."""
    few_samples = partial(metrics.sampled_spearman, samples=50)
    monkeypatch.setattr(metrics, "sampled_spearman", few_samples)
    cxc = ["--cxc", "--cxc_path", f"{demo_path}/demo_cxc"]
    instances = f"{demo_path}/demo_coco/annotations/instances_val2014.json"
    return [*cxc, "--pmrp", "--instances", instances]


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
    """x.npz of those that are not None."""
    np.savez("x.npz", **{name: value for name, value in arrays.items() if value is not None})
    return "x.npz"


def sides(e):
    """Embeddings of images and captions of the arrays of a file."""
    found = []
    for side in ("image", "caption"):
        log_var = e.get(f"{side}_log_var")
        if log_var is not None:
            log_var = torch.from_numpy(log_var)
        found.append(Embedding(torch.from_numpy(e[f"{side}_mean"]), log_var))
    return found


# ---- embeddings and scores of any origin


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["wasserstein0", "gce", "mls"])
def test_embeddings_give_the_results_of_their_run(runs, ev, exported, everything, name):
    e = exported(name)
    width = {"wasserstein0": 16, "mls": 1, "gce": 0}[name]
    assert e.get("image_log_var", np.zeros((24, 0))).shape == (24, width)
    words = list(everything)
    if name != "gce":  # its images are points
        words.append("--uncertainty")

    of_run = ev("--checkpoint", runs / name, *words)
    of_file = ev("--embeddings", "e.npz", *words)

    assert {"full", "cxc", "pmrp"} <= set(of_run["protocols"])
    parts = ["protocols", "best_ranks", "similarity", "uncertainty"]
    if helpers.DEVICE != "cpu":  # whose sums are rounded in another way
        parts = ["similarity"]
    for part in parts:
        assert of_file.get(part) == of_run.get(part), part


def test_scores_give_the_results_of_their_model(runs, ev, exported, everything, demo_path):
    e = exported("wasserstein0")
    matrix = FORMULAS["wasserstein"](*sides(e)).numpy()

    np.save("s.npy", matrix)
    scores = load_scores("s.npy").scores
    assert scores.dtype == np.float32
    assert not scores.flags.writeable  # it is mapped

    np.save("half.npy", matrix.astype(np.float16))
    scores = load_scores("half.npy").scores
    assert scores.dtype == np.float32
    assert scores.flags.writeable

    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]
    found = ev("--scores", "s.npy", *data, *everything)["protocols"]
    of_run = ev("--checkpoint", runs / "wasserstein0", *everything)["protocols"]
    assert set(found) == {"full", "cxc", "pmrp"}
    assert set(found["cxc"]) == {"i2t", "t2i", "rsum", "sits"}
    assert found["full"] == metrics.retrieval(matrix, e["caption_image"])
    if helpers.DEVICE != "cpu":  # whose sums are rounded in another way
        return
    assert found["full"] == of_run["full"]
    assert found["pmrp"] == of_run["pmrp"]
    for key, numbers in found["cxc"].items():
        assert numbers == of_run["cxc"][key]

    found = ev("--embeddings", "e.npz", "--sim", "kl")  # which replaces that of the file
    expected = metrics.retrieval(FORMULAS["kl"](*sides(e)), e["caption_image"])
    assert found["similarity"] == "kl"
    assert found["protocols"]["full"] == expected


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
        (
            {"image_mean": np.full((24, 16), 1e25)},
            r"NaN, infinity or numbers above 1e\+18 in image_mean",
        ),
        (
            {"image_mean": np.full((24, 16), np.inf, np.float16)},
            r"NaN, infinity or numbers above 1e\+18 in image_mean",
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
            "needs one log-variance per item, but 16 of each",
        ),
        ({"caption_id": np.arange(119)}, "caption_id must hold one for each of 120 and holds 119"),
        (np.zeros((24, 120), complex), "holds complex128"),
        (np.full((24, 120), np.nan), "NaN or infinity"),
        (np.zeros(120), r"of shape \(120,\); scores are numbers, images x captions"),
        (np.zeros((24, 119)), "119 captions for 24 images"),
    ],
)
def test_wrong_files_are_refused(exported, refused, change, message):
    """Embeddings, of which one array is changed, and scores."""
    if isinstance(change, dict):
        path = save({**exported("wasserstein0"), **change})
    else:
        path = "x.npy"
        np.save(path, change)

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
    e = exported("wasserstein0")
    images = e["image_id"].tolist()
    captions = e["caption_id"].tolist()
    rng = np.random.default_rng(0)
    count = rng.integers(0, 6, 120)
    positives = {
        "i2t": {images[4]: [captions[9]], images[0]: [captions[50]], images[5]: []},
        "t2i": {c: rng.permutation(images)[:n].tolist() for c, n in zip(captions, count)},
    }
    with open("p.json", "w", encoding="utf-8") as f:
        json.dump(positives, f)

    found, shown = told("--embeddings", "e.npz", "--positives", "p.json", "--uncertainty")

    own = sides(e)
    wasserstein = FORMULAS["wasserstein"]
    for name, scores in (
        ("positives", wasserstein(*own)),
        ("positives_mean_only", cosine(*own)),
        ("positives_shuffled", wasserstein(*protocols.shuffle_variances(*own))),
    ):
        ranks = [(row >= row[m]).sum().item() for row, m in ((scores[4], 9), (scores[0], 50))]
        numbers = found["protocols"][name]["i2t"]
        assert numbers["queries"] == 2
        assert numbers["meanr"] == pytest.approx(np.mean(ranks))

    asked = count > 0
    rho = scipy.stats.spearmanr(e["caption_log_var"].sum(1)[asked], count[asked]).statistic
    uncertainty = found["uncertainty"]["captions"]
    correlation = uncertainty["correlations"]["log_det"]
    assert uncertainty["rho_positives"] == pytest.approx(rho, abs=1e-3)
    assert correlation["rho"] == uncertainty["rho_positives"]

    heading = "captions as queries: Spearman's rho with the number of positives"
    assert f"{heading} ({asked.sum()} queries)" in shown
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
    assert found["split"] == "testall"
    assert "--cxc and --pmrp evaluate the split testall of" in shown
    assert ev(*words, *everything, "--split", "test")["split"] == "test"
    assert ev(*words)["split"] == "test"

    found = ev(*words, *everything, "--split", "dev")["protocols"]
    assert found["cxc"]["t2t"]["queries"] == 60
    assert found["full"]["t2i"]["queries"] == 60
    assert found["pmrp"]["t2i"]["queries"] == 60


def test_text_only_splits(runs, told, refused, everything, demo_path):
    """Captions without features: what needs no image, the same as with features; the rest is named."""
    os.makedirs("only/x")
    for name in ("test_caps.txt", "test_img_ids.npy", "test_ann_ids.npy"):
        shutil.copy(f"{demo_path}/demo_precomp/{name}", "only/x")
    words = ["--checkpoint", runs / "wasserstein0", *everything]
    text_only = [*words, "--data_path", "only", "--data_name", "x"]

    whole, _ = told(*words)
    found, shown = told(*text_only)

    cxc = whole["protocols"]["cxc"]
    assert found["protocols"] == {"cxc": {"t2t": cxc["t2t"], "sts": cxc["sts"]}}
    assert "captions" in found["uncertainty"]
    assert "images" not in found["uncertainty"]
    assert "note: images and captions are not ranked: there are no images" in shown

    message = "--bank train normalizes scores of images and captions, and .* has no images to score"
    refused([*text_only, "--bank", "train"], message)


def test_an_ensemble_shares_the_split_of_its_first_run(runs, ev, refused, demo_path, tmp_path):
    """The other run reads features of captions, so it cannot take over the split that was read; it has 5 dev images."""
    shutil.copytree(f"{demo_path}/demo_precomp", tmp_path / "two")
    data = ["--data_path", tmp_path, "--data_name", "two"]
    fit(*data, "--text_features", "bag", "--dev_images", 5, "--logger_name", "other")

    message = "other was trained on .*two, but the first run on .*demo_precomp; an ensemble needs one split"
    refused(["--checkpoint", runs / "cosine0", "other"], message)

    other_last = ev("--checkpoint", runs / "cosine0", "other", *data, "--split", "dev")
    other_first = ev("--checkpoint", "other", runs / "cosine0", *data, "--split", "dev")
    assert other_last["images"] == 12
    assert other_first["images"] == 5


# ---- what is written


def test_files_are_named_by_what_they_are_of(runs):
    run = str(runs / "cosine0")
    model = Trained(run)

    for words, name in (
        ([], "results"),
        (["--split", "dev"], "results_demo_precomp_dev"),
        (["--data_name", "two", "--sim", "kl"], "results_kl_two_test"),
    ):
        opt = evaluate.parse_args(["--checkpoint", run, *words])
        for path in (run, f"{run}/model_best.pt"):
            assert report.name_results_file([path], [model], opt) == f"{run}/{name}.json"

    ensemble = report.name_results_file([run, "x/other.v2"], [model, model], opt)
    assert ensemble == f"{run}/results_ensemble_cosine0_other.v2_kl_two_test.json"

    seeds = [f"coco_precomp_infonce_bag_seed{seed}" for seed in range(7)]
    names = set()
    for words in ([], ["--split", "dev"], ["--sim", "kl"]):
        opt_of_many = evaluate.parse_args(["--checkpoint", *seeds, *words])
        names.add(report.name_results_file(seeds, [model] * 7, opt_of_many))
        opt_of_two = evaluate.parse_args(["--compare", "A", "B", *words])
        names.add(report.name_comparison_file({}, opt_of_two))
    assert len(names) == 6
    assert max(len(os.path.basename(name)) for name in names) == report.MAX_STEM + len(".json")

    of_file = report.name_results_file(["d/a.npz"], [], opt, "confidence", "volume")
    assert of_file == "d/a_confidence_kl_volume.json"

    picture = report.name_file_beside("retrieval", "d/results_kl.json")
    assert picture == "d/retrieval_kl.png"
    picture = report.name_file_beside("retrieval", "d/mine.json")
    assert picture == "d/mine_retrieval.png"

    beside = partial(report.name_file_beside, "calibration", results="confidence", ending="json")
    assert beside("d/a_confidence_kl.json") == "d/a_calibration_kl.json"
    for file in ("model_best.pt", "checkpoint.pt"):  # a search finds what confidence writes
        target = report.name_results_file([f"d/{file}"], [], evaluate.parse_args([]), "confidence")
        assert calibration_file(f"d/{file}") == beside(target)


def test_a_file_of_means_does_not_hold_a_learned_similarity(told, refused, demo_path):
    fit("--data_path", demo_path, "--sim", "product", "--logger_name", "run")

    _, shown = told("--checkpoint", "run", "--export", "e.npz")
    note = "in e.npz: means only, from which its similarity 'product' cannot be recomputed\n"
    assert note in shown

    message = "has similarity 'product', which cannot be computed from a file"
    refused(["--embeddings", "e.npz"], message)


@pytest.fixture
def drawn_rows(monkeypatch):
    """{file: rows of the picture}, of the pictures that are drawn."""
    found = {}
    draw = pictures.draw_rows

    def draw_and_keep(path, title, rows, across):
        found[path] = rows
        draw(path, title, rows, across)

    monkeypatch.setattr(pictures, "draw_rows", draw_and_keep)
    return found


def test_uncertainty_and_its_pictures(runs, ev, exported, demo_path, drawn_rows):
    """Captions with their best images, from the least to the most uncertain caption; the matched image is framed."""
    e = exported("spherical")
    photos = ["--photos", f"{demo_path}/demo/images"]
    words = ["--checkpoint", runs / "spherical", "--uncertainty", "--retrieval", *photos]

    found = ev(*words)["uncertainty"]

    for side in ("images", "captions"):
        spread = 16 * e[f"{side[:-1]}_log_var"].sum(1)  # log det of 16 dimensions
        assert found[side]["mean"] == pytest.approx(spread.mean(), rel=1e-5, abs=1e-5)
        assert len(found[side]["recall_bins"]["recall"]) == 10
        assert "area" in found[side]["risk_coverage"]
        assert os.path.getsize(f"r_uncertain_{side}.png") > 5000

    for file, n_rows in (("r_retrieval.png", 5), ("r_uncertain_captions.png", 10)):
        queries = [row.query for row in drawn_rows[file]]
        assert len(queries) == len(set(queries)) == n_rows

    # Captions in the order of their uncertainty, each text once: the first and the last are shown.
    texts = read_lines(f"{demo_path}/demo_precomp/test_caps.txt")
    order = np.argsort(spread, kind="stable")
    order = [m for k, m in enumerate(order) if texts[m] not in {texts[n] for n in order[:k]}]
    rows = drawn_rows["r_retrieval.png"]
    assert rows[0].query == texts[order[0]]
    assert rows[4].query == texts[order[-1]]

    scores = FORMULAS["kl"](*sides(e)).numpy()
    for row, m in ((rows[0], order[0]), (rows[4], order[-1])):
        best = np.argsort(-scores[:, m])[:5]
        shown_scores = [cell.label.split()[1] for cell in row.cells]
        assert shown_scores == [f"{score:.3f}" for score in scores[best, m]]
        assert [cell.frame == pictures.OWN for cell in row.cells] == (best == m // 5).tolist()
        rank = (scores[:, m] >= scores[m // 5, m]).sum()
        assert row.facts.endswith(f"; the matched image has rank {rank} of 24")


def test_photos_that_are_not_there_are_said(demo_path, capsys):
    folder = f"{demo_path}/demo/images"
    for ids, given, message in (
        ([], folder, "no photos"),
        (["a.png"], None, "name their folder with --photos"),
        (["a.png"], folder, f"1 of 1 photos are missing (first: {folder}/a.png)"),
    ):
        e = Embeddings("x", np.arange(1), 1, ids={"image_name": ids})
        assert pictures.locate_photos(e, given) is None
        assert message in capsys.readouterr().err


def find_words_for_photos(rows) -> set[str]:
    """What stands where a photo is not shown."""
    found = set()
    for row in rows:
        found.update(cell.photo for cell in row.cells if isinstance(cell.photo, str))
    return found


def test_pictures_are_drawn_of_the_photos_that_are_there(runs, ev, demo_path, monkeypatch, capsys):
    """Nine of 24: nothing was drawn."""
    drawn_rows = {}

    def keep_rows(path, title, rows, across):
        drawn_rows[path] = rows

    monkeypatch.setattr(pictures, "draw_rows", keep_rows)
    names = read_lines(f"{demo_path}/demo_precomp/test_ids.txt")
    os.mkdir("some")
    for name in names[:9]:
        shutil.copy(f"{demo_path}/demo/images/{name}", "some")

    ev("--checkpoint", runs / "spherical", "--uncertainty", "--retrieval", "--photos", "some")

    note = (
        "examples are drawn of the photos that are there: 15 of 24 photos are missing "
        f"(first: some/{names[9]})"
    )
    assert note in capsys.readouterr().err

    retrieval = drawn_rows["r_retrieval.png"]
    uncertain_images = drawn_rows["r_uncertain_images.png"]
    uncertain_captions = drawn_rows["r_uncertain_captions.png"]
    assert len(retrieval) == 5
    assert len(uncertain_captions) == 10

    texts = read_lines(f"{demo_path}/demo_precomp/test_caps.txt")
    for row in retrieval + uncertain_captions:
        assert min(m // 5 for m, text in enumerate(texts) if text == row.query) < 9

    assert find_words_for_photos(uncertain_images) == set()
    assert find_words_for_photos(uncertain_captions) == set()
    assert find_words_for_photos(retrieval) == {"missing"}


# ---- comparisons


def test_groups_of_seeds_are_compared(runs, ev, told, exported, everything, monkeypatch):
    """Differences are of the means over seeds; the runs' own results are those of each alone. A constant model has no
    correlations with ratings, so no mean of them stands among those of its seeds."""
    few_samples = partial(metrics.paired_bootstrap, samples=500)
    monkeypatch.setattr(metrics, "paired_bootstrap", few_samples)
    wasserstein_runs = [str(runs / "wasserstein0"), str(runs / "wasserstein1")]
    cosine_runs = [str(runs / "cosine0"), str(runs / "cosine1")]
    ones = {"image_mean": np.ones((24, 16)), "caption_mean": np.ones((120, 16))}
    np.savez("zeros.npz", **{**exported("cosine0"), **ones})
    alone = {}
    for path in wasserstein_runs + cosine_runs:
        alone[path] = ev("--checkpoint", path, *everything)["protocols"]
    assert alone[wasserstein_runs[0]] != alone[wasserstein_runs[1]]  # another seed is another run

    groups = [",".join(wasserstein_runs), ",".join(cosine_runs), "zeros.npz"]
    found, shown = told("--compare", *groups, *everything)

    for path, protocols_alone in alone.items():
        assert found["runs"][path]["protocols"] == protocols_alone
    assert set(found["groups"]) == {str(runs / "wasserstein"), str(runs / "cosine"), "zeros.npz"}
    of_wasserstein, of_cosine, of_zeros = found["groups"].values()
    assert "cxc sts rho x 100" in of_wasserstein
    assert "cxc sts rho x 100" in of_cosine
    assert "cxc sts rho x 100" not in of_zeros

    pair, _ = found["comparisons"]
    assert {"cxc i2i r1", "pmrp t2i pmrp", "full rsum"} < {*pair["metrics"]}
    assert pair["seeds"] == [2, 2]
    assert pair["pairs"]
    for name, m in pair["metrics"].items():
        assert not name.startswith("mean_only")  # points have none
        a = [reduce(dict.get, name.split(), alone[path]) for path in wasserstein_runs]
        b = [reduce(dict.get, name.split(), alone[path]) for path in cosine_runs]
        assert m["a"] == pytest.approx(np.mean(a)), name
        assert m["b"] == pytest.approx(np.mean(b)), name
        assert m["difference"] == pytest.approx(np.mean(b) - np.mean(a)), name
        assert m["low"] <= m["difference"] <= m["high"]
        assert 0 < m["p"] <= 1

        for group, seeds in ((of_wasserstein, a), (of_cosine, b)):
            mean = pytest.approx(np.mean(seeds))
            deviation = pytest.approx(np.std(seeds, ddof=1))
            assert group[name] == [mean, deviation, 2]

    assert f"{m['difference']:+.2f}" in shown
    assert "bootstrap over images and 2 pairs of seeds" in " ".join(shown.split())

    reordered = ",".join(cosine_runs[::-1])
    groups = [",".join(wasserstein_runs), reordered, f"{runs}/spherical,{runs}/gce"]
    found, shown = told("--compare", *groups, *everything)
    same, other = found["comparisons"]
    assert same["metrics"] == pair["metrics"]  # in any order
    assert not other["pairs"]
    assert "over images and seeds" in " ".join(shown.split())

    assert bootstrap.common_name(["a/b0", "a/b1/"]) == "a/b"
    assert bootstrap.common_name(["a0/b", "a1/b"]) == "a0/b"
    assert bootstrap.common_name(["x", "y"]) == "x"


def test_items_of_different_splits_are_refused(runs, exported, refused, demo_path):
    arrays = exported("wasserstein0", "--split", "dev")

    path = save({**arrays, "split": np.array("train")})
    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]
    message = (
        "has 12 images and 60 captions, but demo_precomp train has 48 and 240; "
        "they must be the same items"
    )
    refused(["--embeddings", path, *data], message)

    for words, message in (
        ([runs / "wasserstein0", "e.npz"], "e.npz has 12 images and 60 captions, .* 24 and 120"),
        ([runs / "wasserstein0"], "nothing to compare with"),
        ([runs / "wasserstein0", runs / "none"], "there is no checkpoint"),
    ):
        refused(["--compare", *words], message)


# ---- tables: every number at its row and column


def recalls(start, **more):
    return {
        "r1": start + 0.25,
        "r5": start + 1.25,
        "r10": start + 2.25,
        "medr": start + 3.25,
        "meanr": start + 4.25,
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

two minus one, paired bootstrap over images and 3 pairs of seeds
                first  second  difference      95% interval       p
full set, rsum  400.0   402.5       +2.50  -10.12 to +15.10  0.0600

mean and standard deviation over seeds (number of seeds)
                                                   one        two
full set, rsum                        400.0 +- 1.2 (3)  410.0 (1)
Crisscrossed Captions, STS rho x 100    1.0 +- 0.0 (3)"""


def test_every_number_is_in_its_place():
    b = {"similarity": "cosine", "protocols": {"full": results(50)["protocols"]["full"]}}
    seeds = {
        "one": {"full rsum": (400, 1.25, 3), "cxc sts rho x 100": (1, 0, 3)},
        "two": {"full rsum": (410, 0, 1)},
    }

    tables = [
        *report.tables({"a": results(), "b_1": b}),
        *report.comparisons([PAIR]),
        *report.seed_tables(seeds),
    ]
    assert report.render(tables) == PAGE

    assert "\nall, kl  " in report.render(report.tables({"a": results()}))
    assert report.tables({"a": {"protocols": {}}}) == []

    sentence, *_ = report.describe_p_values([{**PAIR, "seeds": [3, 1]}])
    assert sentence.startswith("two: one run, so the interval")


def test_lines_of_a_terminal_end_at_110_columns_and_keep_whole_names():
    names = [f"runs/f8k_precomp_gcie_wasserstein_spherical_large_batch_seed{k}" for k in range(3)]
    metrics = dict.fromkeys(("cxc_folds5 t2i r10", "positives_mean_only t2i map_at_r"), DIFFERENCE)
    seeds = {name: {"mean_only_folds5 i2t r1": (40.0, 1.25, 3)} for name in names}
    tables = [
        *report.tables({name: results() for name in names}),
        *report.comparisons([{**PAIR, "metrics": metrics}]),
        *report.seed_tables(seeds),
    ]

    shown = report.render(tables)

    assert max(map(len, shown.splitlines())) <= 110
    for name in names:
        assert f"{name}:all" in "".join(shown.split())


# ---- two things that meet are of the same items in one order, and what is assumed of them is said


@pytest.mark.parametrize("name", ["image_id", "image_name", "caption_id", "caption_image"])
def test_a_file_in_another_order_than_the_split_is_refused(
    runs, exported, refused, demo_path, name
):
    arrays = exported("wasserstein0")
    arrays[name] = np.roll(arrays[name], 1)
    if name == "image_name":  # which counts where there are no numbers
        arrays["image_id"] = None
    path = save(arrays)

    for words in (
        ["--embeddings", path, "--data_path", demo_path, "--data_name", "demo_precomp"],
        ["--compare", runs / "wasserstein0", path],
    ):
        refused(words, "give files of one split")


def test_means_alone_take_the_split_or_five_captions_an_image_and_say_so(exported, told, demo_path):
    arrays = exported("wasserstein0")
    results, shown = told("--embeddings", "e.npz")
    assert "\nall, wasserstein " in shown
    assert "\nall, cosine of the means " in shown
    assert "\nchance  " in shown
    assert results["chance"]["full"]["t2i"]["r1"] == pytest.approx(100 / 24)

    alone = {name: x for name, x in arrays.items() if name.endswith(("_mean", "_log_var"))}
    alone["similarity"] = arrays["similarity"]
    path = save(alone)
    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]
    found, shown = told("--embeddings", path, *data)
    assert found["protocols"] == results["protocols"]
    assert f"note: x.npz does not say what it is about: the items of {demo_path}" in shown
    assert "order, assumed" in shown

    found, shown = told("--embeddings", path)
    assert (
        "note: x.npz does not say which image each caption belongs to, so 5 per image, in order, are assumed"
        in shown
    )
    assert found["split"] is None
    assert found["protocols"] == results["protocols"]

    path = save({**arrays, "similarity": None})
    found, shown = told("--embeddings", path, "--uncertainty")
    note = (
        "note: x.npz names no similarity; using the cosine of the means, "
        "and its variances are not used"
    )
    assert note in shown
    assert "\nall, cosine " in shown
    assert found["similarity"] == "cosine"
    assert not {"mean_only", "shuffled"} & set(found["protocols"])  # they would be the same thrice
    assert found["protocols"]["full"] == results["protocols"]["mean_only"]


def test_items_are_known_by_their_words_their_split_and_their_ids():
    """SCAN numbers the rows of its files where VSE++ has COCO's ids."""

    owner = np.repeat(np.arange(3), 2)

    def made(name, split="", data_name="", **ids):
        return Embeddings(name, owner, 3, ids=ids, split=split, data_name=data_name)

    texts = [f"caption {k}" for k in range(6)]
    by_row = made("a", caption=texts, image_id=[0, 1, 2])
    by_coco = made("a", caption=texts, image_id=[9, 7, 8])
    assert check_same_items(by_row, by_coco) == []

    a = made("a", caption=["a"] * 6, image_id=[0, 1, 2])
    b = made("b", caption=["b"] * 6, image_id=[0, 1, 2])
    with pytest.raises(InputError, match="a and b have other captions, and no ids"):
        check_same_items(a, b)

    # Numbers that are not those of rows are ids.
    a = made("a", caption=["a"] * 6, image_id=[0, 1, 5])
    b = made("b", caption=["b"] * 6, image_id=[0, 1, 5])
    assert check_same_items(a, b) == []

    ids = {"image_id": [1, 2, 3], "caption_id": list(range(6))}
    mine = made("a", "dev", "x", **ids)
    with pytest.raises(InputError, match="a is of the dev split and b of the test split; give"):
        check_same_items(mine, made("b", "test", "x", **ids))
    assert check_same_items(mine, made("b", "testall", "y", **ids)) == []
    note = "a does not say what it is about: the items of b, in their order, assumed"
    assert check_same_items(mine, made("b", data_name="y")) == [note]


# ---- layouts and meanings that fit in shape alone

Z = np.random.default_rng(0).standard_normal((140, 16)).astype(np.float32)
IMAGES = Z[:20] + 0.6 * Z[20:40]
TEXTS = Z[:20].repeat(5, 0) + 0.6 * Z[40:]  # 5 captions an image


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

    plain, _ = told("--embeddings", "plain.npz")
    found, shown = told("--embeddings", "repeated.npz")
    assert found["images"] == 20
    assert "its 100 rows of images are 20 images, each repeated 5 times" in shown
    assert found["protocols"] == plain["protocols"]
    assert load_file("repeated.npz").ids.get("image_id", [*range(20)]) == [*range(20)]

    np.save("repeated.npy", IMAGES.repeat(5, 0) @ TEXTS.T)
    found, shown = told("--scores", "repeated.npy")
    assert found["images"] == 20
    assert found["protocols"]["full"]["t2i"]["r1"] > 40
    assert "are 20 images" in shown
    assert (
        "note: repeated.npy does not say which image each caption belongs to, so 5 per image"
        in shown
    )
    assert "all, scores" in shown


def test_meanings_that_fit_in_shape_alone(told, refused):
    """One caption an image; transposed scores; distances."""
    for repeat in (1, 5):
        np.save("transposed.npy", TEXTS @ IMAGES.repeat(repeat, 0).T)
        refused(["--scores", "transposed.npy"], "transposed: .*np.save.path, scores.T")

    sentence = (
        "far worse than chance (10): scores are higher where items fit better, so negate distances"
    )
    for scores, is_said in (
        (IMAGES @ TEXTS.T, False),
        (-IMAGES @ TEXTS.T, True),
        (np.random.default_rng(0).standard_normal((20, 100)), False),
    ):
        np.save("s.npy", scores)
        _, shown = told("--scores", "s.npy")
        assert (sentence in shown) == is_said

    twice = IMAGES[[0, 1, 2, *range(2, 19)]]  # a photo that stands there twice
    np.savez("pairs.npz", image_mean=twice, caption_mean=twice)
    assert told("--embeddings", "pairs.npz")[0]["images"] == 20


def test_ties_are_told_with_the_recall_without_them(told):
    """Vectors of few values tie: a recall of 0 may be one of 100."""
    images = np.sign(IMAGES[:, :3])
    captions = np.sign(TEXTS[:, :3])
    np.savez("few.npz", image_mean=images, caption_mean=captions, similarity="dot")

    found, shown = told("--embeddings", "few.npz")

    scores = images @ captions.T
    own = scores[np.arange(100) // 5, np.arange(100)]
    worst_rank = (scores >= own).sum(0) - 1
    best_rank = (scores > own).sum(0)
    tied = int((best_rank < worst_rank).sum())
    lowest_recall = 100 * np.mean(worst_rank == 0)
    highest_recall = 100 * np.mean(best_rank == 0)
    assert tied > 90
    assert found["ties"]["t2i"] == {"queries": tied, "r1": highest_recall}
    assert (
        f"text to image: {tied} of 100 queries have ties: other items that score exactly as high as"
        in shown
    )
    assert (
        f"They count against the model: R@1 is {lowest_recall:.1f}, and would be "
        f"{highest_recall:.1f} if they counted for it"
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
    repeated = "its 20 rows of images are 10 images, each repeated 2 times"
    assert (repeated in shown) == (images == 10)
    told_apart = "caption_image gives the copies different captions, so they count as 20 images"
    assert (told_apart in shown) == ([*ids] == ["caption_image"] and images == 20)

    repetition = 20 // images
    image_points = Embedding(torch.from_numpy(PAIRS[::repetition]))
    caption_points = Embedding(torch.from_numpy(TEXTS[:20]))
    scores = FORMULAS["cosine"](image_points, caption_points)
    owner = np.arange(20) // repetition
    assert found["protocols"]["full"] == metrics.retrieval(scores.numpy(), owner)


@pytest.mark.parametrize("rows", [20, 7])
def test_equal_rows_alone_are_no_repetition(told, rows):
    np.savez("same.npz", image_mean=np.ones((rows, 4)), caption_mean=TEXTS[:rows, :4])
    np.save("same.npy", np.ones((rows, rows)))

    found, shown = told("--embeddings", "same.npz")
    assert found["images"] == rows
    assert f"same.npz: all {rows} rows of image_mean are equal, so their ranks are" in shown

    found, _ = told("--scores", "same.npy")
    assert found["images"] == rows


@pytest.mark.parametrize("sim", ["cosine", "dot", "order"])
@pytest.mark.parametrize("scale", [1e-10, 1e-30, 1e-200, 1e30, 1e200])
def test_points_of_any_size_have_the_ranks_of_their_directions(told, sim, scale):
    """Float32 cannot square them, and the norm has a floor: other recalls came out, or a refusal."""
    np.savez("plain.npz", image_mean=IMAGES, caption_mean=TEXTS)
    scaled_images = IMAGES.astype(float) * scale
    scaled_captions = TEXTS.astype(float) * scale
    np.savez("scaled.npz", image_mean=scaled_images, caption_mean=scaled_captions)

    plain, _ = told("--embeddings", "plain.npz", "--sim", sim)
    scaled, _ = told("--embeddings", "scaled.npz", "--sim", sim)

    assert scaled["protocols"] == plain["protocols"]
    assert plain["protocols"]["full"]["t2i"]["r1"] > 10


def test_one_small_vector_and_one_of_zeros(told):
    np.savez("plain.npz", image_mean=IMAGES, caption_mean=TEXTS)
    images = IMAGES.copy()

    images[3] *= 1e-9
    np.savez("small.npz", image_mean=images, caption_mean=TEXTS)
    plain, _ = told("--embeddings", "plain.npz")
    small, _ = told("--embeddings", "small.npz")
    assert small["protocols"] == plain["protocols"]

    images[3] = 0
    np.savez("zero.npz", image_mean=images, caption_mean=TEXTS)
    _, shown = told("--embeddings", "zero.npz")
    note = (
        "zero.npz: zero vectors in image_mean: 1 of 20; "
        "they have no direction and score 0 with every item"
    )
    assert note in shown


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
    path = save({"image_mean": IMAGES, "caption_mean": TEXTS, **arrays})

    refused(["--embeddings", path], message)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_with_an_array_twice_or_none_are_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    np.savez("x.npz", image_mean=IMAGES, caption_mean=TEXTS)
    with zipfile.ZipFile("x.npz", "a") as archive, archive.open("image_mean.npy", "w") as f:
        np.save(f, IMAGES)
    refused(["--embeddings", "x.npz"], "holds two arrays 'image_mean', of which one would")

    np.savez("x.npz", image_mean=IMAGES, caption_mean=TEXTS)
    with zipfile.ZipFile("x.npz", "a") as archive:
        archive.writestr("notes.txt", b"mine")
    refused(["--embeddings", "x.npz"], "holds 'notes.txt', which is not an array")


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
    images = IMAGES[:20].repeat(each, 0)
    texts = np.random.default_rng(1).standard_normal((100, 16)).astype(np.float16)
    for name, x in zip(names, (images, texts)):
        os.makedirs(os.path.join("cr", os.path.dirname(name)), exist_ok=True)
        for k, part in enumerate(np.array_split(x, 11)):
            np.save(os.path.join("cr", name.format(k)), part)
    np.savez("e.npz", image_mean=images, caption_mean=texts)

    of_file, _ = told("--embeddings", "e.npz")
    found, shown = told("--embeddings", "cr")
    compared, _ = told("--compare", "e.npz", "cr")

    assert found["protocols"] == of_file["protocols"]
    assert found["images"] == 20
    assert found["captions"] == 100
    assert (
        "cr does not say which image each caption belongs to, so 5 per image, in order, are assumed"
        in shown
    )
    order = np.random.default_rng(2).permutation(100)
    owner = np.repeat(np.arange(20), 5)
    if each == 1:  # captions in another order, which a file says
        for name in os.listdir("cr"):
            shutil.move(os.path.join("cr", name), f"old_{name}")
        np.save("cr/img.npy", images)
        np.save("cr/text.npy", texts[order])
        np.save("cr/caption_image.npy", owner[order])
        named, _ = told("--embeddings", "cr")
        assert named["protocols"]["full"]["t2i"] == found["protocols"]["full"]["t2i"]
    repeated = "cr: its 100 rows of images are 20 images, each repeated 5 times"
    assert (repeated in shown) == (each == 5)
    for numbers in compared["comparisons"][0]["metrics"].values():
        assert numbers["difference"] == 0


def test_a_folder_that_holds_no_two_arrays_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("cr")

    np.save("cr/img_emb.npy", IMAGES)
    message = (
        "cr is a folder without caption embeddings, an .npy file with text or txt or cap "
        "in its name; save the arrays with np.savez"
    )
    refused(["--embeddings", "cr"], message)

    np.save("cr/text_emb.npy", TEXTS)
    np.save("cr/txt.npy", TEXTS)
    message = "cr holds several arrays of caption embeddings, cr/text_emb.npy and cr/txt.npy; "
    refused(["--embeddings", "cr"], message)

    os.remove("cr/txt.npy")
    np.save("cr/text_emb_1.npy", TEXTS[:, :3])
    os.rename("cr/text_emb.npy", "cr/text_emb_0.npy")
    message = "cr/text_emb_0.npy and the other parts of caption embeddings do not fit together"
    refused(["--embeddings", "cr"], message)

    np.save("cr/text_emb_1.npy", np.array([{}], object), allow_pickle=True)
    refused(["--embeddings", "cr"], "cr/text_emb_1.npy is not a whole .npy file of numbers")


def test_correlations_are_printed_where_positives_are_too_many_to_rank():
    correlations = {"log_det": {"rho": 0.5, "low": 0.4, "high": 0.6, "given": {}}}
    results = {"protocols": {}, "uncertainty": {"captions": {"correlations": correlations}}}
    (found,) = report.tables({"run": results})[-1:]
    assert "captions as queries: Spearman's rho with the number of positives" in str(found)


def test_a_dict_of_scores_is_no_run(tmp_path, monkeypatch):
    """Nor is a checkpoint a dict of scores because its captions have this word."""
    monkeypatch.chdir(tmp_path)
    torch.save({"scores": torch.eye(3)}, "s.pt")
    words = ["scores", "image_mean", "x" * 2**20]
    torch.save({"vocabulary": words, "state": {"best_rsum": 0.0}}, "run.pt")
    torch.save({"model": {}, "best_rsum": 0.0, "scores": 1}, "original.pth.tar")
    assert not is_run("s.pt")
    assert is_run("run.pt") and is_run("original.pth.tar")


def test_options_that_would_be_ignored_are_refused_or_taken(refused, demo_path):
    assert evaluate.parse_args(["--cxc_path", "x"]).cxc
    assert evaluate.parse_args(["--instances", "x.json"]).pmrp
    assert not evaluate.parse_args([]).cxc and not evaluate.parse_args([]).pmrp

    refused(["--photos", demo_path], "--photos is for the pictures of --retrieval and --uncertai")
    words = ["--embeddings", "e.npz", "--vocab", "v.json"]
    refused(words, "--vocab v.json is for original checkpoints .* --embeddings reads none")
