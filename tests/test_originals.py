"""Checkpoints and vocabularies of the original VSE++ and VSRN code, built here in the formats that those wrote.

The originals' networks are written down here again; their embeddings in float64 are compared with ours.
"""

import argparse
import json
import math
import os
import pickle
import sys

import numpy as np
import pytest
import torch

import checkpoint
import evaluate
from images import import_torchvision
from methods import originals
from model import build_model
from tests.helpers import ROOT, evaluated, fit, refused, write_precomp
from utils import InputError
from vocab import SPECIALS, Vocabulary

WORDS = [*SPECIALS, *(f"w{k}" for k in range(40))]


# ---- the originals' networks, as their code builds and calls them; their state dicts have the originals' names


def original_norm(x, axis=1):
    return x / x.pow(2).sum(axis, keepdim=True).sqrt()


def finish(x, opt, normalize=True):
    if normalize:
        x = original_norm(x)
    if opt.use_abs:
        return x.abs()
    return x


class EncoderText(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.embed = torch.nn.Embedding(len(WORDS), opt.word_dim)
        self.rnn = torch.nn.GRU(opt.word_dim, opt.embed_size, opt.num_layers, batch_first=True)

    def forward(self, captions):
        last_states = []
        for caption in captions:
            states, _ = self.rnn(self.embed(torch.tensor([caption])))
            last_states.append(states[0, -1])
        return finish(torch.stack(last_states), self.opt)


class EncoderImage(torch.nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.fc = torch.nn.Linear(opt.img_dim, opt.embed_size)

    def forward(self, features):
        return finish(self.fc(features), self.opt, not self.opt.no_imgnorm)


class EncoderFull(EncoderImage):
    """A ResNet-18 behind DataParallel."""

    def __init__(self, opt):
        super().__init__(opt)
        torch.manual_seed(0)
        self.cnn = torch.nn.DataParallel(import_torchvision().models.resnet18(weights=None))
        self.cnn.module.fc = torch.nn.Sequential()

    def forward(self, photos):
        return super().forward(original_norm(self.cnn.module(photos)))


class RsGCN(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g, self.theta, self.phi = (torch.nn.Conv1d(d, d, 1) for _ in range(3))
        self.W = torch.nn.Sequential(torch.nn.Conv1d(d, d, 1), torch.nn.BatchNorm1d(d))

    def forward(self, v):  # (B, D, P)
        relation = self.theta(v).transpose(1, 2) @ self.phi(v) / v.shape[2]  # (B, P, P)
        return self.W((relation @ self.g(v).transpose(1, 2)).transpose(1, 2)) + v


class EncoderGraph(EncoderImage):
    """VSRN's; its first norm and its last layer depend on the data set, and norms go across the regions."""

    def __init__(self, opt):
        super().__init__(opt)
        d = opt.embed_size
        self.f30k = opt.data_name == "f30k_precomp"
        self.img_rnn = torch.nn.GRU(d, d, batch_first=True)
        self.Rs_GCN_1, self.Rs_GCN_2, self.Rs_GCN_3, self.Rs_GCN_4 = (RsGCN(d) for _ in range(4))
        if self.f30k:
            self.bn = torch.nn.BatchNorm1d(d)

    def forward(self, regions):  # (B, P, F) -> (B, D)
        v = self.fc(regions)
        if not self.f30k:
            v = original_norm(v)
        for layer in (self.Rs_GCN_1, self.Rs_GCN_2, self.Rs_GCN_3, self.Rs_GCN_4):
            v = layer(v.transpose(1, 2)).transpose(1, 2)
        state = self.img_rnn(original_norm(v))[1][-1]
        if self.f30k:
            state = self.bn(state)
        return finish(state, self.opt, not self.opt.no_imgnorm)


def made(kind, opt, seed=0, scale=0.25):
    """A network in eval mode with random weights and statistics; a CNN keeps the weights of its start."""
    net = kind(opt).eval()
    g = torch.Generator().manual_seed(seed)
    for name, value in net.state_dict().items():
        if name.endswith("num_batches_tracked"):
            value.fill_(7)
        elif "running" in name or not name.startswith("cnn."):
            value.copy_(scale * torch.randn(value.shape, generator=g))
        if name.endswith("running_var"):
            value.copy_(value.abs() + 0.2)
    return net


# ---- checkpoints in the originals' layout


def namespace(**changes):
    """VSE++'s options, with small sizes."""
    options = {
        "data_path": "/elsewhere/data",
        "data_name": "coco_precomp",
        "margin": 0.2,
        "batch_size": 128,
        "word_dim": 7,
        "embed_size": 12,
        "num_layers": 1,
        "learning_rate": 2e-4,
        "logger_name": "runs/runX",
        "resume": "",
        "max_violation": False,
        "img_dim": 9,
        "finetune": False,
        "cnn_type": "vgg19",
        "measure": "cosine",
        "use_abs": False,
        "no_imgnorm": False,
        "vocab_size": len(WORDS),
    }
    return argparse.Namespace(**options | changes)


def original_checkpoint(opt, image=None, text=None):
    if image is None:
        image = made(EncoderImage, opt).state_dict()
    if text is None:
        text = made(EncoderText, opt, 1).state_dict()
    return {
        "epoch": 3,
        "model": [image, text],
        "best_rsum": np.float64(123.5),
        "opt": opt,
        "Eiters": 77,
    }


@pytest.fixture
def convert(tmp_path):
    """convert(stored, path, words): the checkpoint as ours, with a vocabulary of these words."""

    def call(stored, path, words=WORDS):
        vocabulary = {"word2idx": {word: k for k, word in enumerate(words)}}
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        return originals.convert_file(stored, str(path), str(tmp_path / "vocab.json"))

    return call


FULL = {
    "data_name": "f8k",
    "cnn_type": "resnet18",
    "img_dim": 512,
    "crop_size": 96,
    "finetune": True,
}
VARIANTS = [
    (EncoderImage, {}),
    (EncoderImage, {"no_imgnorm": True}),
    (EncoderImage, {"num_layers": 2, "max_violation": True, "margin": 0.1}),
    (
        EncoderImage,
        {"measure": "order", "use_abs": True, "margin": 0.05, "learning_rate": 0.001},
    ),
    (EncoderGraph, {"dim_vid": 2048, "rnn_type": "gru"}),
    (EncoderGraph, {"data_name": "f30k_precomp"}),
    (EncoderFull, FULL),
]


@pytest.mark.parametrize("kind, changes", VARIANTS)
@torch.no_grad()
def test_items_are_embedded_as_by_the_original(tmp_path, convert, kind, changes):
    opt = namespace(**changes)
    image = made(kind, opt)
    text = made(EncoderText, opt, 1)
    weights_of_image = image.state_dict()
    if kind is not EncoderGraph:  # counters that BatchNorm had not before torch 0.4.1
        weights_of_image = {k: x for k, x in weights_of_image.items() if "tracked" not in k}
    stored = original_checkpoint(opt, weights_of_image, text.state_dict())
    if kind is EncoderGraph:  # options as a dict, and names as DataParallel has them
        parts = [{f"module.{name}": x for name, x in part.items()} for part in stored["model"]]
        stored |= {"opt": vars(opt), "model": parts}
    path = tmp_path / "model_best.pth.tar"
    zipped = kind is EncoderImage  # else torch's older format
    torch.save(stored, path, _use_new_zipfile_serialization=zipped)
    assert (path.read_bytes()[:2] == b"PK") == zipped

    converted = convert(checkpoint.read(str(path)), path)
    model, _, options = checkpoint.load_model(converted)

    shape = {EncoderImage: (8, 9), EncoderGraph: (8, 36, 9), EncoderFull: (3, 3, 96, 96)}[kind]
    inputs = 3 * torch.rand(shape, generator=torch.Generator().manual_seed(3))
    expected = image.double()(inputs.double())
    np.testing.assert_allclose(model.embed_images(inputs).mean, expected, atol=2e-5)

    captions = [[1, *range(4, 4 + n), 2] for n in range(1, 6)]
    ours = []
    for caption in captions:
        lengths = torch.tensor([len(caption)])
        ours.append(model.embed_captions(torch.tensor([caption]), lengths).mean[0])
    np.testing.assert_allclose(torch.stack(ours), text.double()(captions), atol=2e-5)

    f30k = opt.data_name == "f30k_precomp"
    of_graph = {
        "img_enc": "vsrn",
        "img_dim": 9,
        "region_norm": "regions",
        "region_bn": f30k,
        "feature_norm": not f30k,
    }
    of_images = {
        EncoderImage: {"img_enc": "precomp", "img_dim": 9, "feature_norm": False},
        EncoderGraph: of_graph,
        EncoderFull: {"img_enc": "cnn", "img_dim": None, "crop_size": 96, "finetune": True},
    }
    expected = {"embed_size": 12, "word_dim": 7, **of_images[kind]}
    expected["sim"] = {"cosine": "dot", "order": "order"}[opt.measure]
    for name in ("margin", "max_violation", "use_abs", "no_imgnorm", "data_name"):
        expected[name] = getattr(opt, name)
    assert {name: getattr(options, name) for name in expected} == expected
    assert converted["state"] == {"epoch": 3, "iteration": 77, "best_rsum": 123.5, "step": 0}
    assert type(converted["state"]["best_rsum"]) is float


@pytest.mark.parametrize("old", [False, True], ids=["0 and 3", "1 and 4"])
def test_vgg_names_and_its_older_numbering(convert, old):
    """Shapes only (no memory for 134 million weights): every tensor comes out under our name, none is left."""
    opt = namespace(data_name="f8k", cnn_type="vgg16")
    with torch.device("meta"):
        net = import_torchvision().models.vgg16(weights=None)
        net.classifier = net.classifier[:-1]
        image = {"fc.weight": torch.empty(12, 4096), "fc.bias": torch.empty(12)}
    older_numbers = {"0": "1", "3": "4"}
    for name, value in net.state_dict().items():
        part, number, kind = name.split(".")
        if old and part == "classifier":
            number = older_numbers[number]
        if part == "features":
            part = "features.module"
        image[f"cnn.{part}.{number}.{kind}"] = value

    converted = convert(original_checkpoint(opt, image), "vgg")

    options = argparse.Namespace(**converted["options"])
    with torch.device("meta"):
        model = build_model(options, Vocabulary(WORDS), pretrained=False)
    expected = {name: value.shape for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in converted["model"].items()} == expected
    for number in ("0", "3"):
        theirs = older_numbers[number] if old else number
        ours = converted["model"][f"image_tower.trunk.net.classifier.{number}.weight"]
        assert ours is image[f"cnn.classifier.{theirs}.weight"]


# ---- what Python 2 wrote, what wants to run code, what does not fit


def test_a_checkpoint_of_python_2_is_read(convert):
    """Its texts and its bytes are alike str, and best_rsum, a number of numpy by its older name, is no UTF-8."""
    path = f"{ROOT}/tests/python2.pth.tar"
    with open(path, "rb") as f:
        content = f.read()
    assert b"cnumpy.core.multiarray\nscalar" in content and b"U\x05model" in content
    converted = convert(checkpoint.read(path), path, WORDS[:8])
    assert converted["state"]["best_rsum"] == -math.pi * 100
    model, *_ = checkpoint.load_model(converted)
    assert torch.equal(model.image_tower.mean.fc.weight, torch.arange(20.0).reshape(4, 5))


class Calls(tuple):
    """Pickles as a call (function, *arguments)."""

    def __reduce__(self):
        return self[0], tuple(self[1:])


ATTACKS = {
    "system": (Calls((os.system, "touch ran.txt")), r"(posix|nt)\.system"),
    "hub": (Calls((torch.hub.load, "user/repo", "model")), r"torch\.hub\.load"),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("attack", ATTACKS)
def test_checkpoints_that_want_to_run_code_are_refused(tmp_path, monkeypatch, attack, zipped):
    monkeypatch.chdir(tmp_path)
    bomb, name = ATTACKS[attack]
    admitted = set(torch.serialization.get_safe_globals())  # some of torch's own
    torch.save(
        original_checkpoint(namespace(resume=bomb)),
        "c.pth.tar",
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(
        InputError, match=f"c.pth.tar .*wants to call {name},.*nothing of it was run"
    ):
        checkpoint.read("c.pth.tar")
    assert os.listdir(".") == ["c.pth.tar"]
    assert set(torch.serialization.get_safe_globals()) == admitted  # what read admits ends with it


def changed(image=(), text=(), opt=(), **parts):
    """A checkpoint with one thing wrong."""
    stored = original_checkpoint(namespace(**dict(opt)))
    for own, more in zip(stored["model"], (image, text)):
        own.update(more)
    return {**stored, **parts}


@pytest.mark.parametrize(
    "stored, message",
    [
        (
            changed(text={"embed.weight": torch.zeros(45, 7)}),
            "vectors for 45 words and the vocabulary lists 44",
        ),
        (
            changed(image={"cap.weight": torch.zeros(2)}),
            r"cap.weight is \(2,\) there and absent here",
        ),
        (changed(opt={"cross_attn": "t2i"}), "SCAN's attention is another model"),
        (changed(opt={"measure": "l1"}), "--measure l1; cosine and order"),
        (changed(opt={"measure": ["cosine"]}), "holds the measure .'cosine'.; cosine and order"),
        (
            changed(opt={"margin": "wide"}),
            "has an option that cannot be read: .*--margin: 'wide' is not a number",
        ),
        (changed(model=[{}, {}, {}]), "no weights of an image and a text encoder"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(convert, stored, message):
    with pytest.raises(InputError, match=message) as error:
        checkpoint.load_model(convert(stored, "c.pth.tar"), "c.pth.tar")
    assert len(str(error.value).splitlines()) == 1 and "c.pth.tar" in str(error.value)


@pytest.mark.parametrize(
    "part, value",
    [
        ("best_rsum", torch.ones(2)),
        ("best_rsum", torch.ones(1, device="meta")),
        ("epoch", "x"),
        ("Eiters", 0.5),
        ("Eiters", -2),
    ],
)
def test_states_of_other_kinds_are_refused(tmp_path, part, value):
    path = str(tmp_path / "c.pth.tar")
    words = tmp_path / "v.pkl"
    words.write_bytes(pickle_vocabulary())
    torch.save(changed(**{part: value}), path)
    message = "c.pth.tar has an invalid 'state'"
    with pytest.raises(InputError, match=message):
        checkpoint.load_checkpoint(path, vocab=str(words))


# ---- vocabularies


def pickle_vocabulary(protocol=2, words=WORDS, **fields) -> bytes:
    """The originals' class has the module and the name of ours."""
    vocabulary = object.__new__(Vocabulary)
    word_numbers = {word: k for k, word in enumerate(words)}
    vars(vocabulary).update(word2idx=word_numbers, idx2word=dict(enumerate(words)), **fields)
    return pickle.dumps(vocabulary, protocol)


def read_bytes(tmp_path, content) -> list[str]:
    (tmp_path / "old.pkl").write_bytes(content)
    return originals.read_vocabulary(str(tmp_path / "old.pkl"))


@pytest.mark.parametrize("module", ["vocab", "__main__"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_vocabularies_are_read(tmp_path, monkeypatch, module, protocol):
    monkeypatch.setattr(Vocabulary, "__module__", module)
    monkeypatch.setattr(sys.modules[module], "Vocabulary", Vocabulary, raising=False)
    words = [*WORDS, "café", "naïve", "'s", "\u2026"]
    assert read_bytes(tmp_path, pickle_vocabulary(protocol, words)) == words


MADE2 = b"ccopy_reg\n_reconstructor\n(cvocab\nVocabulary\nc__builtin__\nobject\nNtR"  # by protocols 0 and 1
PYTHON2 = [
    MADE2 + b"(dS'word2idx'\n(dS'a'\nI0\nsS'caf\\xc3\\xa9'\nI1\nssb.",
    MADE2 + b"}U\x08word2idx}(U\x01aK\x00U\x05caf\xc3\xa9K\x01usb.",
    b"\x80\x02cvocab\nVocabulary\n)\x81}U\x08word2idx}(U\x01aK\x00U\x05caf\xc3\xa9K\x01usb.",
]


@pytest.mark.parametrize(
    "content", [*PYTHON2, b'{"word2idx": {"a": 0, "caf\xc3\xa9": 1}, "idx": 2}']
)
def test_vocabularies_of_python_2_and_of_scan_are_read(tmp_path, content):
    """Python 2's texts are bytes; SCAN's file is JSON."""
    assert read_bytes(tmp_path, content) == ["a", "café"]


def list_pickles_of_code():
    """Pickles that would call something, and the name of what they would call."""
    found = []
    for protocol in (0, 2, 4):
        for bomb, name in ATTACKS.values():
            found.append((pickle_vocabulary(protocol, extra=bomb), name))
            found.append((pickle.dumps(bomb, protocol), name))
    found.append((b"ccollections\nCounter\n(tR.", "collections.Counter"))
    globals_of_ours = b"cvocab\nVocabulary.__init__.__globals__\n."
    found.append((globals_of_ours, "vocab.Vocabulary.__init__"))
    return found


OF_CODE = [
    (content, rf"wants to call (\w+\.)?{name}.*nothing of it was run")
    for content, name in list_pickles_of_code()
]
NO_NUMBERING = "has no word2idx of words whose indices run from 0 without a gap"


@pytest.mark.parametrize(
    "content, message",
    [
        *OF_CODE,
        (b'{"word2idx": ', "old.pkl is not JSON"),
        (b"", "is not a pickled vocabulary"),
        (b"(lp0\n.", "is not a pickled vocabulary"),
        (b'{"word2idx": 3}', NO_NUMBERING),
        (b'{"word2idx": {"a": 0, "b": 2}}', NO_NUMBERING),
        (b'{"word2idx": {"a": "0"}}', NO_NUMBERING),
    ],
)
def test_vocabularies_that_run_code_or_are_none_are_refused(
    tmp_path, monkeypatch, content, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        read_bytes(tmp_path, content)
    assert os.listdir(".") == ["old.pkl"]


def test_an_original_is_evaluated_and_trained_further(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.pkl").write_bytes(pickle_vocabulary())
    stored = original_checkpoint(namespace(data_name="f8k_precomp"))
    torch.save(stored, tmp_path / "model_best.pth.tar")
    rng = np.random.default_rng(7)
    features = rng.normal(size=(6, 9))
    captions = [" ".join(rng.choice(WORDS[4:], 5)) for _ in range(30)]
    for split in ("train", "dev", "test"):
        write_precomp(tmp_path / "f8k_precomp", features.astype(np.float32), captions, split)
    words = ["model_best.pth.tar", "--vocab", "old.pkl"]
    data = ["--data_path", ".", "--data_name", "f8k_precomp"]

    first = evaluated("--checkpoint", *words, *data, "--output", "r.json")["protocols"]
    note = "whether they stand in its order is unchecked, and recalls near chance would say"
    assert note in capsys.readouterr().out

    without_words = ["--checkpoint", words[0], *data]
    message = "which holds no words; .*: --vocab FILE"
    refused(capsys, evaluate.main, without_words, message)

    # the learning rate leaves the weights as they are
    sizes = ["--embed_size", 12, "--word_dim", 7, "--no-feature_norm"]
    further = ["--init_from", *words, "--logger_name", "run", "--learning_rate", "1e-30"]
    fit(*data, *further, *sizes)
    assert evaluated("--checkpoint", "run", *data)["protocols"] == first
