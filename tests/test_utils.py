"""The commands as users run them: options, help, refusals that write nothing, evaluation and its files."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import evaluate
import train
import utils
from checkpoint import load_checkpoint
from confidence import __main__ as confidence
from data import read_split, vocabulary_main
from demo import __main__ as demo
from losses import SIMILARITIES, Embedding
from methods import METHODS
from options import check_fits, fit_to_data, options, resolve, training_parser
from photos import __main__ as photos_program
from phrases import train as phrases_train
from tests.helpers import ROOT, SMALL, Command, evaluated, fit, hold_run, refused, unwritable
from tests.references import slow_retrieval
from utils import InputError, output
from vocab import Vocabulary


def test_whether_a_file_can_be_written_is_tried_without_a_trace(tmp_path):
    for path in [*unwritable(tmp_path), "/dev/null"]:
        with pytest.raises(InputError, match=f"^{path} cannot be written .*; name a file"):
            output(path)

    new = tmp_path / "new" / "r.json"
    assert output(str(new)) == str(new)
    assert not os.listdir(tmp_path / "new")

    new.write_text("kept")
    assert output(str(new))
    assert new.read_text() == "kept"
    assert os.listdir(tmp_path / "new") == ["r.json"]


# ---- options


def test_similarities_imply_heads_and_objective():
    for line, expected in (
        ("", ("point", "point", False)),
        ("--sim order", ("point", "point", False)),
        ("--sim wasserstein", ("ellipsoidal", "ellipsoidal", True)),
        ("--measure kl --head spherical_avg", ("spherical_avg", "spherical_avg", True)),
        ("--sim mahalanobis", ("point", "ellipsoidal", True)),  # GCE
        ("--sim mahalanobis --text_head spherical_one", ("point", "spherical_one", True)),
        ("--sim mahalanobis --image_head spherical_avg", ("spherical_avg", "point", True)),  # GIE
        ("--sim mahalanobis --text_head point", ("ellipsoidal", "point", True)),
        ("--sim wasserstein --no-max_violation", ("ellipsoidal", "ellipsoidal", False)),
        ("--sim mls --image_head point", ("point", "spherical_one", False)),
    ):
        opt = train.parse_args(line.split())
        assert (opt.image_head, opt.text_head, opt.max_violation) == expected, line

    for values, masks in (
        ({}, False),
        ({"loss": "infonce"}, True),
        ({"loss": "rcl"}, True),
        ({"sim": "csd", "loss": "match"}, True),
        ({"method": "mls"}, False),
        ({"loss": "infonce", "mask_same_image": False}, False),
    ):
        assert options(**values).mask_same_image is masks  # METHODS keep their papers' choice

    opt = train.parse_args(["--sim", "mls"])
    assert opt.loss == "infonce"
    assert opt.image_head == "spherical_one"
    assert opt.text_head == "spherical_one"
    assert opt.logvar_init == -2.5


def test_help_shows_defaults_that_are_0(capsys):

    with pytest.raises(SystemExit):
        train.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for end in (
        "batch order and crops (default: 0)",
        "seed of --noise_ratio (default: 0)",
        "warm-up of the learning rate (default: 0.0)",
        "word vectors that training sets to 0 (default: 0.0)",
        "in the first N epochs (default: 0)",
    ):
        assert end in shown
    assert "(default: False)" not in shown
    assert "(default: None)" not in shown


@pytest.mark.parametrize(
    "main, words",
    [
        (
            photos_program.main,
            "(default: indexes/NAME.npz, where NAME is the folder's name, followed",
        ),
        (train.main, "a better model on dev (default: never; CITE: 5)"),
        (train.main, "sum of violations (default: on for similarities of Gaussians)"),
        (phrases_train.main, "Train a joint embedding of phrases and regions of photos."),
    ],
)
def test_help_says_what_a_command_does_by_default(main, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_number_of_hundreds_of_digits_is_refused(capsys):
    """Python cannot turn it into a float."""
    message = "--seed: '9{40,60}[.]{3} is not a whole number of at least 0"
    refused(capsys, train.main, ["--seed", "9" * 400], message)


def test_defaults_are_vsepps():
    opt = train.parse_args([])

    assert opt.margin == 0.2
    assert opt.num_epochs == 30
    assert opt.batch_size == 128
    assert opt.word_dim == 300
    assert opt.embed_size == 1024
    assert opt.grad_clip == 2.0
    assert opt.num_layers == 1
    assert opt.learning_rate == 2e-4
    assert opt.lr_update == 15
    assert opt.val_step == 500
    assert opt.log_step == 10
    assert opt.crop_size == 224
    assert opt.cnn_type == "vgg19"

    assert train.parse_args(["--img_enc", "vsrn"]).embed_size == 2048
    assert train.parse_args(["--img_enc", "vsrn", "--embed_size", "9"]).embed_size == 9


SENTENCES_OF_TRAINING = [
    "--amp {off,bf16} bf16: mixed precision; off: float32",
    "step: it is divided by 10 every --lr_update epochs; cosine: along half a cosine to 0",
    "one of the similarities below (default: cosine)",
    "two points: cosine Cosine of the means, in [-1, 1]",
    "csd -(|mu_i - mu_c|^2 + tr(Sigma_i + Sigma_c)), <= 0.",
    "parts of an image and of a caption: mil Highest cosine of K embeddings",
    "product Log-odds of a match from the product",
    "losses (--loss): hinge Triplet",
]
SENTENCES_OF_EVALUATION = ["--sim NAME similarity to rank by"]


def test_help_says_what_names_mean_and_repeats_none(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "110")

    for main, sentences in (
        (train.main, SENTENCES_OF_TRAINING),
        (evaluate.main, SENTENCES_OF_EVALUATION),
    ):
        with pytest.raises(SystemExit):
            main(["--help"])
        shown = capsys.readouterr().out
        assert not re.search(r"--(\w+) \1", shown, re.IGNORECASE)
        text = " ".join(shown.split())
        for sentence in sentences:
            assert sentence in text, sentence


# ---- training: what must not start writes nothing


def test_dry_run_writes_nothing(tmp_path, monkeypatch, demo_path, weights, capsys):
    """COCO's train split has 39 images here, and restval 9."""
    monkeypatch.chdir(tmp_path)
    cnn = ["--cnn_type", "resnet18", "--cnn_weights", weights]

    for words in (
        ["--data_name", "demo_coco", "--use_restval", *cnn],
        ["--sim", "wasserstein"],
    ):
        with pytest.raises(SystemExit) as stop:
            train.main([*SMALL, "--data_path", demo_path, *words, "--dry_run"])
        shown = capsys.readouterr().out
        assert stop.value.code == 0
        assert os.listdir(tmp_path) == []
        assert "240 training pairs of 48 images" in shown
    assert "max_violation: true" in shown
    assert "image_head: ellipsoidal" in shown


THEIR_FLAGS = """
--img_dim 960 --num_workers 3 --lr 0.001 --model_name runs/a --order --img_finetune
--vse_mean_warmup_epoch 2 --reset_train --txt_finetune --eval_on_gpu
--raw_feature_norm clipped_l2norm --precomp_enc_type=basic --dim_vid 2048 --max_len 60
--dim_word 300 --rnn_type gru --bidirectional 0 --input_dropout_p .20 --rnn_dropout_p 0.5
"""
OUR_FLAGS = """
--img_dim 960 --workers 3 --learning_rate 0.001 --logger_name runs/a --sim order --finetune
--vse_mean_warmup_epochs 2
"""


def test_flags_of_the_original_codes_that_mean_the_same(demo_path, capsys):
    """--img_dim of VSE++ and SCAN is that of the data; other names; values that this code computes anyway."""
    words = [*SMALL, "--data_path", demo_path]

    theirs = train.parse_args([*words, *THEIR_FLAGS.split()])
    ours = train.parse_args([*words, *OUR_FLAGS.split()])
    assert theirs == ours
    assert theirs.asked == ours.asked
    assert theirs.img_dim == 960

    with pytest.raises(SystemExit) as stop:
        train.main([*words, "--img_dim", "960", "--dry_run"])
    assert stop.value.code == 0

    for given, message in (
        (
            ["--img_dim", "2048"],
            "--img_dim 2048 is not the width of the features in .*train_ims.npy, which is 960; "
            "leave --img_dim out",
        ),
        (
            ["--rnn_type", "lstm"],
            "--rnn_type: 'lstm' is not supported; give gru, or leave it out",
        ),
        (["--rnn_dropout_p", "0.3"], "'0.3' is not supported; give 0.5, or leave it out"),
        (["--amsgrad"], "--amsgrad: this code has Adam without it"),
        (["--mmd_weight", "0.01"], "--mmd_weight: --mmd, times the batch size"),
    ):
        refused(capsys, train.main, [*words, *given], message)

    photos = SimpleNamespace(**{**vars(ours), "img_dim": 4096, "img_enc": "auto"})
    fit_to_data(photos, read_split(demo_path, "demo", "train").images, None)
    assert photos.img_dim is None  # as in VSE++, the network settles it
    assert photos.img_enc == "cnn"


# ---- evaluation


def test_raw_photos_train_and_evaluate(tmp_path, weights):
    """Through a CNN with local weights, frozen, then the fine-tuning recipe."""
    demo.write_demo(tmp_path, size=8)
    data = ["--data_path", tmp_path, "--data_name", "demo", "--crop_size", "32"]
    words = [*data, "--cnn_type", "resnet18", "--batch_size", "20", "--sim", "mahalanobis"]
    frozen = str(tmp_path / "frozen")
    tuned = str(tmp_path / "tuned")

    fit(*words, "--cnn_weights", weights, "--logger_name", frozen)
    recipe = ["--init_from", frozen, "--finetune", "--learning_rate", "2e-5"]
    fit(*words, *recipe, "--logger_name", tuned)

    given = torch.load(weights, weights_only=True)["conv1.weight"]
    kept, moved = (
        load_checkpoint(run)["model"]["image_tower.trunk.net.conv1.weight"]
        for run in (frozen, tuned)
    )
    assert torch.equal(given, kept)
    assert not torch.equal(kept, moved)

    results = evaluated("--checkpoint", tuned, "--workers", 0, "--export", tmp_path / "e.npz")
    assert (results["images"], results["captions"], results["data_name"]) == (4, 20, "demo")
    e = np.load(tmp_path / "e.npz", allow_pickle=False)
    assert e["image_id"].dtype.kind == "i"
    assert e["caption_id"].shape == (20,)


def read_sides(e):
    """Embeddings of images and captions of the arrays of a file."""
    found = []
    for side in ("image", "caption"):
        log_var = None
        if f"{side}_log_var" in e:
            log_var = torch.from_numpy(e[f"{side}_log_var"])
        found.append(Embedding(torch.from_numpy(e[f"{side}_mean"]), log_var))
    return found


@pytest.mark.parametrize("method", ["vse++", "gcie_wasserstein", "infonce", "embedding_network"])
def test_images_with_different_numbers_of_captions(tmp_path, demo_path, method):
    """One to five of each, in any order, by the names of their photos."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "uneven"
    folder.mkdir()

    lines = []
    for split in ("train", "dev", "test"):
        whole = read_split(demo_path, "demo_precomp", split)
        shutil.copy(whole.images.path, folder)
        names = [f"{split}{n}.jpg" for n in range(len(whole.images))]
        (folder / f"{split}_ids.txt").write_text("".join(f"{name}\n" for name in names))
        for m, (image, caption) in enumerate(zip(whole.caption_image.tolist(), whole.captions)):
            if m % 5 <= image % 5:
                lines.append(f"{names[image]}#{m % 5}\t{caption}\n")
    (folder / "captions.tsv").write_text("".join(rng.permutation(lines)))

    run = str(tmp_path / "run")
    words = ["--data_path", tmp_path, "--data_name", "uneven", "--method", method]
    if method == "embedding_network":
        counts = [
            len(read_split(str(tmp_path), "uneven", name).captions)
            for name in ("train", "dev", "test")
        ]
        for split, count in zip(("train", "dev", "test"), counts):
            np.save(folder / f"{split}_bag.npy", rng.standard_normal((count, 9)).astype(np.float32))
        words += ["--text_features", "bag"]
    fit(*words, "--logger_name", run)

    found = evaluated("--checkpoint", run, "--export", tmp_path / "e.npz")

    with np.load(tmp_path / "e.npz", allow_pickle=False) as e:
        images, captions = read_sides(e)
        owner = e["caption_image"]
        similarity = SIMILARITIES[str(e["similarity"])].score
    assert np.bincount(owner).tolist() == [1 + n % 5 for n in range(24)]
    assert (np.diff(owner) < 0).any()

    full = found["protocols"]["full"]
    slow = slow_retrieval(similarity(images, captions).numpy(), owner)
    assert full["t2i"]["queries"] == len(owner) == 70
    for side in ("i2t", "t2i"):
        assert full[side] == pytest.approx(slow[side])


def test_newest_run_is_taken_and_named(small_run, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = small_run("--sim", "cosine", to=tmp_path / "runs" / "mine")

    evaluated("--output", "r.json")
    assert "using the newest run: runs/mine" in capsys.readouterr().out

    (run / "model_best.pt").unlink()
    message = "no run is in runs/ that reached its first validation, .*train.py --resume"
    refused(capsys, evaluate.main, [], message)


def test_results_of_a_run_that_is_still_training_are_called_so(
    small_run, monkeypatch, capsys, tmp_path, demo_path
):
    monkeypatch.chdir(tmp_path)
    run = small_run("--sim", "cosine", to=tmp_path / "runs" / "mine")
    before = set(os.listdir(run))
    other_run = str(small_run("--sim", "wasserstein"))
    state = "still training .epoch 3/12 done."

    with Command(hold_run, str(run)) as owner:
        owner.said("held")
        evaluate.main(["--device", "cpu"])
        out = capsys.readouterr().out
        assert re.search(f"using the newest run: runs/mine, which is {state}", out)
        assert re.search(f"note: runs/mine is {state}, so these are not its final numbers", out)
        assert "written to runs/mine/results_unfinished.json" in out
        confidence.main(["--device", "cpu"])
        evaluate.main(["--compare", "runs/mine", other_run, "--device", "cpu"])

    new = {
        "results_unfinished.json",
        "confidence_unfinished.json",
        "calibration_unfinished.json",
        "confidence_unfinished.png",
    }
    assert set(os.listdir(run)) - before - {".training"} == new
    assert [
        name for name in os.listdir() if re.fullmatch("comparison_mine_.*_unfinished.json", name)
    ]
    for name in ("results", "confidence"):
        notes = json.loads((run / f"{name}_unfinished.json").read_text())["notes"]
        assert any(re.search(f"mine is {state}", note) for note in notes)

    evaluate.main(["--device", "cpu"])  # the lock is gone with its owner
    assert "still training" not in capsys.readouterr().out.split("written to")[-1]
    assert (run / "results.json").exists()


@pytest.mark.parametrize(
    "trained, given, message",
    [
        ((9, None), (7, None), "features in x.npy have width 7, but the model reads width 9"),
        ((9, None), (9, 4), "have 4 regions per image, but the model reads one vector"),
        ((9, 4), (9, 5), "have 5 regions per image, but the model reads 4"),
        ((9, 4), (9, None), "have no regions per image, but the model reads 4"),
    ],
)
def test_features_of_another_shape_are_refused(trained, given, message):
    opt = train.parse_args([])
    opt.img_enc = "precomp"
    opt.img_dim, opt.n_regions = trained
    dim, regions = given
    features = SimpleNamespace(dim=dim, regions=regions, path="x.npy", is_padded=lambda: False)

    with pytest.raises(InputError, match=message):
        check_fits(opt, features, None, "the model")


def test_vocab_command(tmp_path, demo_path, capsys, monkeypatch):
    """It writes the words of a data set, which a training then takes."""
    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]

    vocabulary_main([*data, "--vocab_path", str(tmp_path)])
    built = Vocabulary.load(str(tmp_path / "demo_precomp_vocab.json"))
    assert f"{len(built):,} words" in capsys.readouterr().out

    vocab_of_run = tmp_path / "run" / "vocab.json"
    fit("--data_path", demo_path, "--vocab_path", tmp_path, "--logger_name", tmp_path / "run")
    assert "using the vocabulary in " in capsys.readouterr().out
    assert Vocabulary.load(str(vocab_of_run)).words == built.words

    message = "vocab.json/demo_precomp_vocab.json cannot be written"
    refused(capsys, vocabulary_main, [*data, "--vocab_path", vocab_of_run], message)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of runpy, about modules that are loaded
def test_every_command_starts_from_any_folder(tmp_path, monkeypatch, capsys):
    """The first starts as a user starts it, the others in this process, which has loaded torch."""
    command = [sys.executable, os.path.join(ROOT, "train.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: train.py"), done.stderr

    for name in (
        "evaluate",
        "vocab",
        "data",
        "methods.cca",
        "features.images",
        "features.captions",
        "phrases.train",
        "phrases.evaluate",
        "phrases.proposals",
        "demo",
        "results",
    ):
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as stop:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        assert not stop.value.code, name
        assert "usage: " in capsys.readouterr().out, name


# ---- options that cannot work, each line for one reason

REFUSED = """
--sim mil --img_enc precomp
--sim mil --txt_enc gru
--img_enc scan
--sim scan --img_enc precomp
--sim scan --txt_enc bigru
--txt_enc features
--txt_layers 12
--sim scan --img_layers 12
--pool gpo --img_layers 12
--bi_gru
--freeze_words
--diversity 1
--sim order --loss mse
--loss logistic
--noise_ratio 0.2 --noise_file x.npy
--loss nll --negatives 128
--vae 1 --head point
--head ellipsoidal
--sim mahalanobis --head ellipsoidal
--sim wasserstein --head point
--sim mls --head ellipsoidal
--sim wasserstein --loss volume
--loss volume
--freeze_means --sim wasserstein
--freeze_means --init_from x --head ellipsoidal
--sim order --prior_images 1
--recon_images 1 --pool gpo
--recon_captions 1 --txt_enc sum
--sim order --vae 1
--vib 1
--captioner 1
--text_anchor 0.5
--warmup 30
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence_with_the_fix(line):
    with pytest.raises(InputError, match="--") as error:
        resolve(training_parser().parse_args(line.split()))
    assert "; " in str(error.value)  # what is wrong; and the fix
    assert "{" not in str(error.value)


def test_options_of_a_script_are_checked_like_typed_ones():
    opt = options(sim="wasserstein", data_name="x", margin=0.1, feature_norm=False, seed=3)
    assert opt.text_head == "ellipsoidal"
    assert opt.margin == 0.1
    assert opt.feature_norm is False
    assert opt.logger_name == "runs/x_wasserstein_seed3"

    of_method = vars(options(**METHODS["vsrn"].options))
    of_method["method"] = "vsrn"
    of_method["logger_name"] = "runs/coco_precomp_vsrn_seed0"
    assert vars(options(method="vsrn")) == of_method

    assert options(lr=1e-3).learning_rate == 1e-3  # VSE++'s name

    for values, message in (
        ({"margins": 1}, "options.. holds 'margins', which is not an option"),
        ({"margin": "wide"}, "'wide' is not a number of at least 0"),
        ({"sim": "wassserstein"}, "invalid choice: 'wassserstein'; did you mean 'wasserstein'"),
        ({"similarity": "kl"}, "'similarity', which is not an option; did you mean 'sim'"),
        ({"method": "VSE++"}, "invalid choice: 'VSE..'; did you mean 'vse..'"),
        ({"method": "jwae_mse"}, "--method jwae_mse needs features of captions"),
        ({"sim": "kl", "head": "point"}, "--sim kl needs a Gaussian on both sides"),
    ):
        with pytest.raises(InputError, match=message):
            options(**values)


def test_what_a_command_prints_cannot_drive_a_terminal(capsys):
    def work() -> None:
        print("\x1b]0;title\x07 data \x1b[31m", "\tnext", "grün", sep="\n")

    assert utils.run("train.py", work) == 0
    assert capsys.readouterr().out == "\\x1b]0;title\\x07 data \\x1b[31m\n\tnext\ngrün\n"


def test_a_machine_without_git_has_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert utils.find_commit() == ""


def test_a_command_of_this_checkout_keeps_the_folders_of_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert utils.find_modules_here()["PYTHONPATH"].split(os.pathsep) == [ROOT, "/elsewhere"]
    monkeypatch.delenv("PYTHONPATH")
    assert utils.find_modules_here()["PYTHONPATH"] == ROOT
