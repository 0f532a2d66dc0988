"""--device names the same devices everywhere, and one that is absent is said."""

import os
import re
from glob import glob

import pytest
import torch

import evaluate
import metrics
import train
import utils
from confidence import __main__ as confidence
from confidence import pairs
from features import captions, images
from tests.helpers import ROOT, refused
from utils import read_text


def test_every_option_takes_the_devices_of_cli():
    declared = []
    for path in glob("**/*.py", root_dir=ROOT, recursive=True):
        text = read_text(f"{ROOT}/{path}")
        if path.split(os.sep)[0] != "tests" and re.search(r"\"--device\",\s*choices=", text):
            declared.append(path)
    assert declared == ["utils.py"]

    parser = utils.Arguments("")
    utils.add_device(parser)
    for device in ("auto", "cpu", "cuda", "mps"):
        assert parser.parse_args(["--device", device]).device == device


@pytest.mark.parametrize(
    "available, cuda", [(True, False), (False, False), (False, True), (True, True)]
)
def test_a_device_is_chosen_or_said_to_be_absent(monkeypatch, available, cuda):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    for name, present, sentence in (
        (
            "mps",
            available,
            "--device mps: there is no Mac GPU, or this torch was built without it",
        ),
        ("cuda", cuda, "--device cuda: no CUDA device is available; use --device cpu"),
    ):
        if present:
            assert utils.torch_device(name) == torch.device(name)
        else:
            with pytest.raises(utils.InputError, match=sentence):
                utils.torch_device(name)
    assert utils.torch_device("cpu").type == "cpu"
    assert utils.torch_device("auto").type == ("cuda" if cuda else "cpu")  # mps is untried


def test_commands_say_that_there_is_no_gpu_of_a_mac(capsys, monkeypatch, demo_path, small_run):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    run, words = str(small_run()), ["--device", "mps"]
    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]
    sentence = "--device mps: there is no Mac GPU, .* use --device cpu"
    refused(
        capsys,
        train.main,
        [*data, *words, "--logger_name", "mine", "--vocab_path", "none"],
        sentence,
    )
    refused(capsys, evaluate.main, ["--checkpoint", run, *words], sentence)
    refused(capsys, confidence.main, [run, *words], sentence)
    assert {"mps"} == {command.parse_args([run, *words]).device for command in (confidence, pairs)}
    assert {images.PHOTOS_PER_STEP[name] for name in utils.DEVICES[1:]}  # sizes for every device
    assert captions.utils.DEVICES is utils.DEVICES


def test_what_torch_lacks_for_the_gpu_of_a_mac_is_left_to_the_processor(monkeypatch):
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    monkeypatch.setattr(utils, "limit_threads", lambda: None)
    utils.start()
    assert os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "1"
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "0")
    utils.start()
    assert os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] == "0"


def test_one_gpu_of_a_mac_is_no_device_of_torchrun(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(
        utils.InputError, match="--device mps is one GPU; train on it without torchrun"
    ):
        train.join_processes(train.parse_args(["--device", "mps"]))


def test_rows_that_float32_cannot_square_keep_their_directions():
    x = torch.tensor([[3e-30, 4e-30], [3.0, 4.0], [3e30, -4e30], [0.0, 0.0]])
    scaled = metrics.scale_rows(x)
    assert scaled.dtype == torch.float32
    directions = torch.nn.functional.normalize(scaled.double(), dim=1)
    expected = torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.6, -0.8], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(directions, expected, atol=1e-6, rtol=0)
