"""`evaluate.py --variances volume` as users run it; tests/test_people.py has its formula against loops."""
import json
import os

import numpy as np
import pytest
import torch

import evaluate
from confidence import measures as confidence
from confidence import volume
from demo import __main__ as demo
from evaluation import bank
from evaluation.report import describe_variances
from losses import Embedding, formulas, uncertainty
from tests.helpers import fit_steps, refused

FORMULAS = formulas()

SIDES = ("images", "captions")
VOLUME = ["--variances", "volume"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """"linear" is trained with InfoNCE, "state" with the hinge. Of 100 images; 25 are dev, 50 test."""
    root = tmp_path_factory.mktemp("runs")
    demo.write(root / "data", size=100, seed=0, progress=False)
    for name, words in (("linear", ["--loss", "infonce", "--txt_fc"]), ("state", ["--loss", "hinge"])):
        fit_steps("--data_path", root / "data", "--num_epochs", 4, "--workers", 0, *words, "--logger_name", root / name)
    return root


@pytest.fixture
def point(runs):
    return runs / "linear"


@pytest.fixture
def ev(tmp_path, monkeypatch, undrawn):
    """evaluate.run on words, in an empty folder; its results, which it wrote to r.json."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: evaluate.run(evaluate.parse_args([*map(str, words), "--output", "r.json", "--overwrite"]))


def parsed(*words):
    return evaluate.parse_args([*map(str, words), "--device", "cpu"])


def opened(run, *words):
    opt = parsed(*words)
    return evaluate.open_runs(list(evaluate.load_models([str(run)], opt).values()), opt)


def test_blocks_of_items_do_not_change_their_variances(monkeypatch):
    x, owner = Embedding(torch.randn(20, 8, generator=torch.Generator().manual_seed(0))), np.arange(20) // 2
    sides = volume.fit(FORMULAS["cosine"], x, owner, x, owner)
    whole = [volume.widened(x, side) for side in sides]
    monkeypatch.setattr(volume, "ROWS", 3)
    for side, e in zip(sides, whole):
        assert e.mean is x.mean and e.log_var.shape == (20, 1)
        torch.testing.assert_close(volume.widened(x, side).log_var, e.log_var)


def test_a_run_and_its_report(point, ev, capsys):
    plain = ev("--checkpoint", point, "--confidence")
    capsys.readouterr()
    found = ev("--checkpoint", point, "--confidence", "--uncertainty", *VOLUME)
    shown, told = capsys.readouterr().out, found["variances"]
    assert found["protocols"] == plain["protocols"]                                 # no row of means, or of dealt ones
    assert told["kind"] == "volume" and told["fitted_on"] == ["demo_precomp train"]
    assert (told["images"], told["captions"]) == ([100], [500]) and describe_variances(told) in shown
    assert ("captions of one photo of dev lie no nearer" in shown) == (told["of_photo"][0][0] < 0)
    for side in ("t2i", "i2t"):
        sure = found["confidence"][side]
        for name in ("posterior", "max"):
            assert sure[name]["auroc"] == plain["confidence"][side][name]["auroc"], name
        assert "log_det_query" in sure and "log_det_query" not in plain["confidence"][side]
    assert all("recall_bins" in found["uncertainty"][side] for side in SIDES)
    with open("r.json", encoding="utf-8") as f:
        assert json.load(f)["variances"] == told


def test_dev_is_calibrated_on_with_the_same_variances(point, monkeypatch):
    opt = parsed("--checkpoint", point, "--confidence", *VOLUME)
    subject, expected = opened(point, "--confidence", *VOLUME), opened(point, "--split", "dev", *VOLUME)
    monkeypatch.setattr(volume, "fit_runs", None)                                    # they are fitted once
    dev = evaluate.open_dev(subject, opt)
    assert dev.volumes is subject.volumes
    for side in SIDES:
        torch.testing.assert_close(getattr(dev.members[0], side).log_var, getattr(expected.members[0], side).log_var)


def test_half_of_the_images_can_be_calibrated_on(point):
    subject = opened(point, "--confidence", "--calibrate_on", "0.5", *VOLUME)
    dev, judged, kept = confidence.split_images(subject, 0.5)
    assert torch.equal(judged.members[0].images.log_var, subject.members[0].images.log_var[kept])
    assert len(dev.members[0].images.log_var) == len(kept) == 25


def test_an_ensemble_has_the_variances_of_each(runs, ev, capsys):
    both = [runs / "linear", runs / "state"]
    capsys.readouterr()
    found = ev("--checkpoint", *both, *VOLUME)
    alone = [opened(run, *VOLUME) for run in both]
    assert found["variances"]["of_photo"] == [list(x.report["variances"]["of_photo"][0]) for x in alone]
    logs = [uncertainty(x.members[0].captions).mean() for x in alone]
    assert found["uncertainty"]["captions"]["mean"] == pytest.approx(float(sum(logs) / 2), rel=1e-4)
    assert capsys.readouterr().out.count("500 captions of demo_precomp train") == 1


def test_a_bank_beside_variances(point, ev):
    found = ev("--checkpoint", point, "--bank", "train", *VOLUME)
    assert found["bank"] == ev("--checkpoint", point, "--bank", "train")["bank"] and "variances" in found


def test_embeddings_take_training_pairs_from_a_file(point, ev):
    for split in ("train", "dev", "test"):
        ev("--checkpoint", point, "--split", split, "--export", f"{split}.npz")
    words = ["--embeddings", "test.npz", *VOLUME, "--variances_from", "train.npz", "--confidence"]
    found = ev(*words, "--calibration", "dev.npz")
    assert found["variances"]["fitted_on"] == ["train.npz"] and found["variances"]["captions"] == [500]
    subject = evaluate.open_file("test.npz", "embeddings", parsed(*words, "--calibration", "dev.npz"))
    own = opened(point, *VOLUME)
    for side in SIDES:
        torch.testing.assert_close(getattr(subject.members[0], side).log_var,
                                   getattr(own.members[0], side).log_var, atol=1e-5, rtol=1e-5)


def test_exported_variances_are_read_again(point, ev):
    direct = ev("--checkpoint", point, *VOLUME, "--export", "wide.npz")
    with np.load("wide.npz") as f:
        assert f["image_log_var"].shape == (50, 1) and str(f["similarity"]) == "cosine"
    again = ev("--embeddings", "wide.npz")
    assert again["uncertainty"] == direct["uncertainty"] and again["protocols"] == direct["protocols"]


def test_results_with_variances_have_their_own_file(small_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = small_run("--sim", "cosine", to=tmp_path / "run")
    before = set(os.listdir(run))
    for _ in range(2):                                                              # the second over its own
        evaluate.main(["--checkpoint", str(run), *VOLUME])
    assert set(os.listdir(run)) - before == {"results_volume.json"}


@pytest.mark.parametrize("words,message", [
    ([*VOLUME, "--split", "train"], "is fitted on the train split, so it must not be judged there"),
    ([*VOLUME, "--sim", "csd"], "--sim csd ranks by variances, and those of --variances volume change no")])
def test_what_does_not_go_together_is_refused(point, capsys, words, message):
    refused(capsys, evaluate.main, ["--checkpoint", point, *words], message)


def test_other_subjects_are_refused(point, small_run, ev, capsys):
    gaussian = small_run("--sim", "wasserstein")
    for split, run, file in (("train", point, "train"), ("test", point, "test"), ("dev", point, "dev"),
                             ("train", gaussian, "wide"), ("test", gaussian, "wide_test")):
        ev("--checkpoint", run, "--split", split, "--export", f"{file}.npz")
    np.save("s.npy", np.zeros((24, 120), np.float32))
    mine, size = ["--embeddings", "test.npz", *VOLUME], os.path.getsize("train.npz")
    for words, message in (
            (["--checkpoint", gaussian, *VOLUME], "gives variances to points, and .* has variances of its own"),
            (["--checkpoint", point, gaussian, *VOLUME], "gives variances to points"),
            (["--embeddings", "wide_test.npz", "--variances_from", "wide.npz", *VOLUME], "wide_test.npz has variances"),
            (["--compare", point, gaussian, *VOLUME], "does not go with --compare: variances change no score"),
            (["--scores", "s.npy", *VOLUME], "does not go with --scores: ready scores have no embeddings"),
            (mine, "needs the training pairs of the same model, .* give them with --variances_from"),
            ([*mine, "--variances_from", "test.npz"], "--variances_from test.npz and test.npz share 50 images"),
            ([*mine, "--variances_from", "wide.npz"], "wide.npz .* is of another model than test.npz"),
            ([*mine, "--variances_from", "none.npz"], "none.npz"),
            ([*mine, "--variances_from", "dev.npz", "--calibration", "dev.npz", "--confidence"],
             "--variances_from and --calibration are both dev.npz")):
        refused(capsys, evaluate.main, [*words, "--output", "new.json"], message)
    refused(capsys, evaluate.main, [*mine, "--variances_from", "train.npz", "--output", "train.npz"], "train.npz")
    assert os.path.getsize("train.npz") == size


def test_few_items_are_drawn_as_for_a_bank(point, monkeypatch):
    draw = bank.draw
    monkeypatch.setattr(bank, "draw", lambda caption_image, n, size: draw(caption_image, n, 50))
    report = opened(point, *VOLUME).report["variances"]
    assert (report["images"], report["captions"]) == ([50], [50])
