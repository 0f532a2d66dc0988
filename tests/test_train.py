"""Training itself: it learns, also in two processes, and never leaves a broken checkpoint; what keeps it from learning
pairs by heart; and variances for means that stay."""

import functools
import importlib
import itertools
import json
import math
import os
import re
import resource
import signal
import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
from checkpoint import Trained, load_checkpoint
from model import Corruption
from options import options as make_options
from tests.helpers import (
    DEVICE,
    STEPS,
    Command,
    act_at,
    in_a_process,
    log_of,
    numbers,
    options,
    same_weights,
    write_precomp,
)
from tests.helpers import fit_steps as fit
from utils import InputError


@pytest.mark.parametrize(
    "sim, more", [("mahalanobis", ["--no-max_violation"]), ("wasserstein", ["--loss", "infonce"])]
)
def test_overfits_a_tiny_set(tmp_path, sim, more):
    """12 images with one caption each that names them: every one is found again."""
    colors = ("red", "green", "blue")
    animals = ("cat", "dog", "bird", "fish")
    captions = [f"{color} {animal}" for color, animal in itertools.product(colors, animals)]
    for split in ("train", "dev"):
        features = np.random.default_rng(1).standard_normal((12, 10)).astype(np.float32)
        write_precomp(tmp_path / "tiny", features, captions, split)
    data = ["--data_path", tmp_path, "--data_name", "tiny", "--sim", sim]
    long = ["--num_epochs", 24, "--batch_size", 12, "--learning_rate", 0.04, "--lr_update", 100]

    fit(*data, *long, "--logger_name", tmp_path / "run", "--log_step", 100, *more)

    assert load_checkpoint(str(tmp_path / "run"))["state"]["best_rsum"] == 600


def test_a_script_trains_and_gets_the_best_model(tmp_path, demo_path):
    options_of_script = make_options(
        sim="wasserstein",
        data_path=demo_path,
        data_name="demo_precomp",
        embed_size=16,
        word_dim=8,
        num_epochs=1,
        vocab_threshold=1,
        workers=0,
        device="cpu",
        logger_name=str(tmp_path / "run"),
    )

    model, words = train.fit(options_of_script)

    stored = load_checkpoint(str(tmp_path / "run"))
    assert words.words == stored["vocabulary"] and not model.training
    assert all(torch.equal(x, stored["model"][name]) for name, x in model.state_dict().items())


def as_rank(rank: int, port: int, words, number: int = 0) -> None:
    """train.py as `torchrun --nproc_per_node 2` starts it, on the CPU: two processes cannot share a GPU.
    number: of a signal that process 1 gets before its third step; the other then waits three seconds for it."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    importlib.reload(train)
    if number:
        train.STEP_MINUTES = 0.05
    if number and rank:

        def send_signal():
            os.kill(os.getpid(), number)

        act_at("train.Training.learn", 3, send_signal)
    train.main([*map(str, words), "--device", "cpu"])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_ends_the_other_with_a_sentence(
    tmp_path, demo_path, number
):
    words = [*STEPS, "--data_path", demo_path, "--logger_name", tmp_path / "run"]
    port = free_port()
    with (
        Command(as_rank, 0, port, words, number) as first,
        Command(as_rank, 1, port, words, number),
    ):
        status, said, err = first.ended()

    processes = (
        "2 processes; all of them stop if one does not respond for 0.05 minutes in a step, "
        "or 4 hours in a validation"
    )
    assert processes in said
    assert status == 1 and "Traceback" not in err
    sentence = "another process of this torchrun ended or does not answer .*; look for its mess"
    assert re.search(f"train.py: {sentence}", err)


def test_a_refusal_of_the_first_process_is_a_sentence_of_both(tmp_path, demo_path, small_run):
    words = [*STEPS, "--data_path", demo_path, "--logger_name", small_run(to=tmp_path / "run")]
    port = free_port()
    with Command(as_rank, 0, port, words) as first, Command(as_rank, 1, port, words) as second:
        status, _, err = first.ended()
        other, _, others = second.ended()
    assert status == other == 1 and "run already holds a run; continue with --resume" in err
    assert "Traceback" not in err + others and "another process of this torchrun ended" in others


def test_two_processes_learn_and_go_on(tmp_path, demo_path, small_run):
    """Each from half of the pairs; the first one writes the run."""

    def start_two(*words):
        port = free_port()
        with Command(as_rank, 0, port, words) as first, Command(as_rank, 1, port, words) as second:
            status, said, err = first.ended()
            other, silence, _ = second.ended()
        assert status == other == 0, err
        assert "epoch" not in silence
        return said

    data = [*STEPS, "--data_path", demo_path, "--logger_name", tmp_path / "run"]
    model = ["--method", "jwae_mh", "--no-max_violation", "--img_layers", 16]

    said = start_two(*data, *model, "--num_epochs", 2)
    assert said.count("epoch 2/2 done") == said.count("\ndone: dev rsum") == 1
    start_two("--resume", tmp_path / "run", "--num_epochs", 4)

    # variances that no score reads get no gradients
    start = ["--init_from", small_run(*STEPS), "--head", "spherical_one"]
    start_two(*STEPS, "--data_path", demo_path, *start, "--logger_name", tmp_path / "gaussian")

    steps = [line for line in log_of(tmp_path / "run") if line["kind"] == "step"]
    numbers_of_steps = [(line["epoch"], line["step"]) for line in steps]
    assert numbers_of_steps == list(itertools.product(range(1, 5), range(1, 9)))
    first_losses = sum(line["hinge"] for line in steps[:8])
    last_losses = sum(line["hinge"] for line in steps[-8:])
    assert last_losses < 0.8 * first_losses
    state = load_checkpoint(str(tmp_path / "run"), "checkpoint.pt")
    assert state["options"]["logger_name"] == str(tmp_path / "run") and state["state"]["epoch"] == 4


@pytest.mark.parametrize("select, saved", [("rsum", [1, 2]), ("hbr", [1, 2, 3]), ("r1", [1, 4])])
def test_the_best_model_is_that_of_the_criterion(select, saved):
    """Epochs whose recalls, best ranks and R@1 disagree."""
    files = []

    def note_epoch(name):
        files.append(run.state["epoch"])

    def warn_of_nothing(scalars):
        pass

    run = SimpleNamespace(
        opt=options("--select", select),
        save=note_epoch,
        warn_of_collapse=warn_of_nothing,
        model=SimpleNamespace(frozen=False),
        state={"epoch": 0, "waited": 0, "best_rsum": 0.0, "best_hbr": 0.0, "best_r1": -1.0},
    )
    epochs = [(30.0, 9.0, 5.0), (50.0, 7.0, 2.0), (40.0, 5.0, 3.0), (10.0, 6.0, 6.0)]

    for k, (rsum, hbr, r1) in enumerate(epochs, 1):
        run.state["epoch"] = k
        train.Training.choose_best(run, {"rsum": rsum, "hbr": hbr, "r1": r1})

    values = dict(zip(("best_rsum", "best_hbr", "best_r1"), epochs[saved[-1] - 1]))
    assert files == saved and run.state["waited"] == 4 - saved[-1]
    assert {name: run.state[name] for name in values} == values


HARDEST = "restart with --vse_mean_warmup_epochs 1, which begins with the sum of violations, or with --loss infonce"
OTHER = "restart with a lower --learning_rate or with --loss infonce"


@pytest.mark.parametrize(
    "words, advice",
    [
        (["--max_violation"], HARDEST),
        (["--max_violation", "--vse_mean_warmup_epochs", "1"], OTHER),
        ([], OTHER),
    ],
)
def test_a_side_that_collapses_is_named_once_with_what_helps(words, advice):
    lines = []
    run = SimpleNamespace(opt=options(*words), say=lines.append, state={"epoch": 1, "warned": 0})
    healthy = {"cos_images": 0.2, "cos_captions": 0.9}
    train.Training.warn_of_collapse(run, healthy)
    assert lines == []
    for cosine in (0.99, 0.995):
        train.Training.warn_of_collapse(run, {**healthy, "cos_captions": cosine})
    assert lines == [
        "warning: the embeddings of captions (mean cosine of two: 0.990) are collapsing to one point. "
        f"If dev rsum stays low, {advice}"
    ]
    run.state["warned"] = 0
    train.Training.warn_of_collapse(run, {"cos_images": 0.981, "cos_captions": 0.999})
    images = "of images (mean cosine of two: 0.981)"
    captions = "of captions (mean cosine of two: 0.999)"
    assert f"{images} and {captions} are" in lines[1]


def test_a_full_disk_leaves_the_old_run(tmp_path, demo_path, small_run):
    """The system refuses to write past a size, as a full disk does: one sentence, and no temporary file."""
    run = small_run(*STEPS, to=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = [*STEPS, "--data_path", demo_path, "--logger_name", run, "--overwrite"]
    status, _, said = in_a_process(train_on_a_full_disk, words)
    assert status == 1 and "could not be saved" in said and said.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def train_on_a_full_disk(words) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
    train.main(list(map(str, words)))


def test_a_non_finite_loss_stops_with_the_name_of_the_term(tmp_path, demo_path, monkeypatch):
    calls = []

    def broken(self, scores, *_):
        calls.append(1)
        if len(calls) == 3:
            return scores.sum() * float("nan")
        return scores.sum() * 0.0

    monkeypatch.setattr("losses.Hinge.forward", broken)
    words = [*STEPS, "--data_path", demo_path, "--num_epochs", 1, "--logger_name", tmp_path / "run"]
    message = "the term 'hinge' of the loss became nan at epoch 1 step 3"
    with pytest.raises(InputError, match=message):
        fit(*words)

    # a GPU is not waited for at every step, and the first broken step is named all the same
    calls.clear()
    run = train.Training(options(*words), None, torch.device("cpu"))
    for batch in run.batches(run.order(0)):
        run.learn(batch)
    assert len(calls) > 4
    with pytest.raises(InputError, match=message):
        run.read_terms()


def test_losses_that_are_read_later_are_those_of_the_last_step(tmp_path, demo_path):
    model = [*STEPS, "--data_path", demo_path, "--sim", "wasserstein", "--vib", 0.1]
    words = [*model, "--logger_name", tmp_path / "run"]
    at_once = train.Training(options(*words), None, torch.device("cpu"))
    later = train.Training(options(*words), None, torch.device("cpu"))

    for batch in at_once.batches(at_once.order(0)):
        expected = at_once.step(batch)
        later.learn(batch)

    assert later.read_terms() == expected and set(expected) == {"hinge", "vib"}
    assert later.read_terms() == {}


def test_warm_up_uses_the_sum_of_violations_first(tmp_path, demo_path):
    common = ["--data_path", demo_path, "--sim", "cosine", "--num_epochs", 1]
    warm_up = ["--max_violation", "--vse_mean_warmup_epochs", 1]

    fit(*common, *warm_up, "--logger_name", tmp_path / "warm")
    fit(*common, "--no-max_violation", "--logger_name", tmp_path / "sum")

    assert same_weights(tmp_path / "warm", tmp_path / "sum")


def test_bf16_stays_close_and_is_float32_on_a_cpu_without_its_units(
    tmp_path, demo_path, monkeypatch
):
    data = ["--data_path", demo_path, "--num_epochs", 1]
    losses = {}
    for name, amp, units in (
        ("off", "off", True),
        ("units", "bf16", True),
        ("none", "bf16", False),
    ):
        capabilities = {"avx2": True, "avx512_bf16": units}
        find_capabilities = functools.partial(dict, capabilities)
        monkeypatch.setattr("torch.cpu.get_capabilities", find_capabilities, raising=False)

        fit(*data, "--amp", amp, "--logger_name", tmp_path / name, "--device", "cpu")

        steps = log_of(tmp_path / name, lambda line: line["kind"] == "step")
        losses[name] = [line["Le"] for line in steps]
        log = (tmp_path / name / "log.txt").read_text()
        assert log.count("note: --amp bf16: this CPU has no bf16 units") == (name == "none")

    assert losses["units"] != losses["off"]
    assert losses["units"][0] == pytest.approx(losses["off"][0], rel=0.05)
    assert losses["none"] == losses["off"] and same_weights(tmp_path / "none", tmp_path / "off")


@pytest.mark.skipif(DEVICE == "cpu", reason="TEST_DEVICE names no GPU")
def test_bf16_stays_close_on_a_gpu(tmp_path, demo_path):
    losses = {}
    for amp in ("off", "bf16"):
        words = ["--data_path", demo_path, "--num_epochs", 1, "--amp", amp]
        fit(*words, "--logger_name", tmp_path / amp)
        steps = log_of(tmp_path / amp, lambda line: line["kind"] == "step")
        losses[amp] = [line["Le"] for line in steps]
    assert losses["bf16"] != losses["off"]
    assert losses["bf16"][0] == pytest.approx(losses["off"][0], rel=0.05)


# ---- against learning pairs by heart


def test_corruption_is_of_the_size_it_says_and_in_training_only():
    torch.manual_seed(0)
    x = 3 * torch.ones(400, 50)
    noise = Corruption(noise=0.5)
    dropout = Corruption(dropout=0.2)
    norms = (noise(x) - x).norm(dim=1) / x.norm(dim=1)
    assert norms.mean() == pytest.approx(0.5, rel=0.02) and norms.std() > 0

    kept = dropout(x)
    share_dropped = (kept == 0).float().mean()
    assert set(kept.unique().tolist()) == {0.0, 3.75}
    assert share_dropped == pytest.approx(0.2, abs=0.01)
    assert torch.equal(noise.eval()(x), x) and torch.equal(dropout.eval()(x), x)


def test_decay_shrinks_matrices_and_nothing_else():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model.critic = None
    before = {name: p.clone() for name, p in model.named_parameters()}
    opt = options("--weight_decay", "0.1", "--learning_rate", "0.01")
    optimizer = train.build_optimizers(opt, model)["optimizer"]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()

    for name, p in model.named_parameters():
        torch.testing.assert_close(p, before[name] * (1 - 0.001 * (p.ndim > 1)))

    plain = train.build_optimizers(options(), model)["optimizer"]
    assert type(plain) is torch.optim.Adam and len(plain.param_groups) == 1


def test_the_course_of_the_rate(tmp_path, demo_path):
    schedule = ["--schedule", "cosine", "--warmup", 0.5, "--learning_rate", 0.01]
    run = ["--data_path", demo_path, "--logger_name", tmp_path / "run"]

    fit(*run, "--num_epochs", 3, *schedule)

    lines = log_of(tmp_path / "run", lambda line: line["kind"] == "step")
    steps = len(lines) // 3
    for k, line in enumerate(lines):
        done = k / steps
        if done < 0.5:
            expected = (k + 1) / (0.5 * steps + 1)
        else:
            expected = (1 + math.cos(math.pi * (done - 0.5) / 2.5)) / 2
        assert line["lr"] == pytest.approx(0.01 * expected), k
    assert lines[-1]["lr"] < 1e-4 < lines[0]["lr"] < 0.01


# ---- variances learned for means that stay as they are: those of a trained point model, or vectors that are given


@pytest.mark.parametrize(
    "head, width",
    [(["--sim", "csd", "--loss", "match", "--var_layers", 16], 32), (["--sim", "mls"], 1)],
)
def test_the_means_of_a_point_model_stay_and_variances_are_learned(
    small_run, tmp_path, demo_path, head, width
):
    point = small_run(*STEPS)
    start = ["--init_from", point, "--freeze_means"]

    fit("--data_path", demo_path, "--logger_name", tmp_path / "run", *start, *head)

    before = Trained(str(point))
    after = Trained(str(tmp_path / "run"))
    features = numbers(4, 960)
    texts = ["a red circle", "two blue squares", "a small star above a large cat"]
    for old, new in (
        (before.images(features), after.images(features)),
        (before.texts(texts, any_words=True), after.texts(texts, any_words=True)),
    ):
        assert torch.equal(old.mean, new.mean)
        assert new.log_var.shape[1] == width
        assert new.log_var.std(0).max() > 0  # items differ


def test_a_training_starts_from_another_loss_and_keeps_variances_that_it_does_not_learn(
    small_run, tmp_path, demo_path, capsys
):
    point = small_run(*STEPS)
    data = ["--data_path", demo_path]
    words = [*data, "--loss", "volume", "--head", "spherical_one", "--var_layers", 8]

    fit(*words, "--init_from", point, "--freeze_means", "--logger_name", tmp_path / "spread")
    anew = capsys.readouterr().out.split("so newly initialized: ")[1].splitlines()[0].split(", ")
    assert {name.split(".")[1] for name in anew} == {"log_var"}

    start = ["--init_from", tmp_path / "spread", "--loss", "infonce"]
    fit(*words, *start, "--logger_name", tmp_path / "run")
    assert "so newly initialized: objective.log_scale\n" in capsys.readouterr().out

    before = load_checkpoint(str(tmp_path / "spread"))["model"]
    after = load_checkpoint(str(tmp_path / "run"))["model"]
    for name, x in before.items():
        assert torch.equal(x, after[name]) == (".log_var." in name)


def test_given_vectors_are_the_means(tmp_path, demo_path):
    """Vectors of both sides in one space, as CLIP's are."""
    folder = tmp_path / "clip"
    rng = np.random.default_rng(0)
    captions = ["a dog" for _ in range(60)]
    for split in ("train", "dev"):
        x = rng.normal(size=(60, 12)).astype(np.float32)
        write_precomp(folder, x, captions, split)
        np.save(folder / f"{split}_clip.npy", x + rng.normal(size=(60, 12)).astype(np.float32))
    data = ["--data_path", tmp_path, "--data_name", "clip", "--text_features", "clip"]
    no_layers = ["--img_layers", 0, "--txt_layers", 0, "--embed_size", 12]

    fit(*data, *no_layers, "--logger_name", tmp_path / "run", "--sim", "mls")

    run = Trained(str(tmp_path / "run"))
    x = torch.rand(5, 12)
    embedded = run.images(x)
    torch.testing.assert_close(embedded.mean, torch.nn.functional.normalize(x, dim=1))
    assert embedded.log_var.shape == (5, 1) and run.options.var_layers == "256"


# ---- what would end in a traceback, or go wrong in silence


@pytest.mark.parametrize(
    "words, message",
    [
        (["--txt_enc", "bigru", "--embed_size", 7], "--embed_size 7 is odd"),
        (["--data_name", "demo", "--cnn_type", "vit_b_16", "--crop_size", 128], "224 x 224 pixels"),
    ],
)
def test_networks_refuse_sizes_that_they_do_not_read(tmp_path, demo_path, words, message):
    with pytest.raises(InputError, match=message):
        fit(*STEPS, "--data_path", demo_path, *words, "--logger_name", tmp_path / "run")


def test_a_model_in_which_nothing_learns_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32)
    for split in ("train", "dev"):
        write_precomp(tmp_path / "clip", x, ["a dog" for _ in range(60)], split)
        np.save(tmp_path / "clip" / f"{split}_clip.npy", x)
    data = ["--data_path", tmp_path, "--data_name", "clip", "--text_features", "clip"]
    no_layers = ["--img_layers", 0, "--txt_layers", 0, "--embed_size", 12]

    with pytest.raises(InputError, match="nothing of this model learns"):
        fit(*data, *no_layers, "--logger_name", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_script_under_torchrun_is_told(monkeypatch):
    monkeypatch.setattr(train, "WORLD_SIZE", 2)
    with pytest.raises(InputError, match="with torchrun, run train.py"):
        train.fit(None)


def test_another_number_of_processes_begins_the_epoch_again(small_run, tmp_path, capsys):
    """A step's share of the pairs depends on it."""
    run = small_run(*STEPS, to=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.pt"
    stored = torch.load(path, weights_only=True)
    stored["state"]["iteration"] += 3
    stored["state"] |= {"processes": 2, "step": 3}
    torch.save(stored, path)
    position = {"epoch": stored["state"]["epoch"] + 1, "iteration": stored["state"]["iteration"]}
    with open(tmp_path / "run" / "log.jsonl", "a") as log:
        log.write(json.dumps({"kind": "step", "step": 3, "hinge": 9.0, **position}) + "\n")

    epoch = stored["state"]["epoch"] + 1
    train.train(train.parse_args(["--resume", str(run), "--num_epochs", str(epoch)]))

    said = capsys.readouterr().out
    assert (
        f"epoch {epoch} is begun again, since the number of processes changed from 2 to 1" in said
    )
    steps = [line for line in log_of(run) if line["kind"] == "step" and line["epoch"] == epoch]
    numbers_of_steps = [line["step"] for line in steps]
    assert numbers_of_steps == sorted(set(numbers_of_steps)) and numbers_of_steps[0] == 1
    assert torch.load(path, weights_only=True)["state"]["processes"] == 1


def test_weights_of_files_that_are_not_read_are_named(small_run, tmp_path, demo_path, capsys):
    point = small_run(*STEPS)
    words = ["--init_from", point, "--word_vectors", "vectors.txt"]
    fit(*STEPS, "--data_path", demo_path, *words, "--logger_name", tmp_path / "run")
    note = "note: --word_vectors vectors.txt is not read: --init_from has these weights"
    assert note in capsys.readouterr().out


def test_networks_of_a_script_compute_in_float32_too(small_run):
    run = str(small_run(*STEPS))
    cudnn = torch.backends.cudnn
    for kind in (cudnn.conv, cudnn.rnn):
        kind.fp32_precision = "tf32"
    Trained(run)
    assert cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == "ieee"
