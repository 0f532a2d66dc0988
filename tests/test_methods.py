"""One method of each kind: its loss falls, a run that stopped amid an epoch goes on to the bit, and evaluates."""

import shutil

import numpy as np
import pytest

import train
from checkpoint import load_checkpoint
from methods import METHODS
from tests.helpers import evaluated, fit_steps, log_of, resume, same_runs
from tests.test_text import write_vectors

# SCAN's time grows with the square of the batch, and jWAE learns little in ten steps.
SMALL_BATCHES = ["--batch_size", "32"]
WORDS = 10  # of a caption: every step of a GRU takes time
TWO_LAYERS = ["--img_layers", "16", "--txt_layers", "16"]
SMALL = {  # widths of the test beside the method's own options
    "vse++": [],
    "order++": [],
    "gie_spherical": [],
    "gcie_kl": [],
    "gcie_wasserstein_one": [],
    "vsrn_gaussian_original": ["--dim_hidden", "16"],
    "scan_t2i": SMALL_BATCHES,
    "pvse": [],
    "pcme": [],
    "pcme++": [],
    "vse_infinity": [],
    "mls": ["--schedule", "cosine", "--weight_decay", "0.1", "--dropout", "0.1"],
    "jwae_mh": [*SMALL_BATCHES, "--img_layers", "16", "--supervised_fraction", "0.5"],
    "jwae_mh_scan": SMALL_BATCHES,
    "vae_mh": ["--img_layers", "16", "--num_layers", "1"],
    "mmd_mse": [*TWO_LAYERS, "--mse_weight", "32"],
    "dmsm": ["--img_layers", "16", "--txt_layers", "16-16", "--negatives", "10"],
    "devise": [
        "--negatives",
        "10",
        "--embed_size",
        "6",
        "--word_dim",
        "6",
        "--word_vectors",
        "words.txt",
    ],
    "embedding_network": TWO_LAYERS,
    "jwae_mh_similarity": TWO_LAYERS,
    "cite": [*TWO_LAYERS, "--cite_layers", "8-6"],
}


@pytest.fixture(scope="module")
def data_path(tmp_path_factory, demo_path):
    """The demo's features, 12 of its 36 regions, and the first WORDS words of its captions."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("demo_precomp", "demo_region_precomp"):
        shutil.copytree(f"{demo_path}/{name}", folder / name)
        for path in (folder / name).glob("*_caps.txt"):
            captions = [caption.split()[:WORDS] for caption in path.read_text().splitlines()]
            path.write_text("".join(" ".join(words) + "\n" for words in captions))
    for path in (folder / "demo_region_precomp").glob("*_ims.npy"):
        np.save(path, np.load(path)[:, ::3])
    return str(folder)


@pytest.mark.parametrize("name", SMALL)
def test_a_method_learns_goes_on_and_evaluates(name, data_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open(f"{data_path}/demo_precomp/train_caps.txt", encoding="utf-8") as f:
        write_vectors(tmp_path / "words.txt", sorted(set(f.read().split())))
    needs = METHODS[name].needs
    words = [
        "--data_path",
        data_path,
        "--method",
        name,
        "--num_epochs",
        2,
        "--val_step",
        3,
        "--batch_size",
        48,
        *SMALL[name],
        "--data_name",
        "demo_precomp",
    ]
    if "regions" in needs:
        words[-1] = "demo_region_precomp"
    if "caption" in needs:
        words += ["--text_features", "bag"]
    learn = train.Training.learn

    def copy_amid_an_epoch(run, batch):
        """The folder of a run that is killed here has a checkpoint some steps older."""
        state = run.state
        if (state["epoch"], state["step"]) == (1, 3):
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")
        return learn(run, batch)

    monkeypatch.setattr(train.Training, "learn", copy_amid_an_epoch)
    fit_steps(*words, "--logger_name", tmp_path / "whole")
    monkeypatch.setattr(train.Training, "learn", learn)

    left = load_checkpoint(str(tmp_path / "cut"), "checkpoint.pt")["state"]
    assert left["epoch"] == 1 and 0 < left["step"] < 3
    assert resume(tmp_path / "cut") == 0
    assert same_runs(tmp_path / "whole", tmp_path / "cut")

    steps = log_of(tmp_path / "whole", lambda line: line["kind"] == "step")
    losses = [line["Le"] for line in steps]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]), losses

    results = evaluated("--checkpoint", tmp_path / "whole")
    assert results["protocols"]["full"]["rsum"] > 0
