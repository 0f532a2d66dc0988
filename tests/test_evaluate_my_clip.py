"""The blocks of docs/evaluate-my-clip.md run as they are written, on stand-ins with the interface of each library."""

import os
import re
import shutil
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from confidence import calibrate
from data import read_split
from evaluation import evaluate, evaluate_hard_negatives, evaluate_winoground
from losses import unit
from tests.helpers import ROOT, evaluated
from utils import read_text
from vocab import tokenize

TEXT = read_text(f"{ROOT}/docs/evaluate-my-clip.md")
SECTIONS = re.split(r"^## (.*)$", TEXT, flags=re.M)
BLOCKS = {
    title: re.findall(r"```python\n(.*?)```", text, re.S)
    for title, text in zip(["First", *SECTIONS[1::2]], SECTIONS[::2])
}
WIDTH = 12


# ---- embeddings that all stand-ins share

LEARNED: dict[bytes, torch.Tensor] = {}  # {pixels of a photo: its embedding}


def see(pixels: torch.Tensor) -> torch.Tensor:
    """Embed photos (B, 3, H, W), which the stand-in has learned: (B, 12)."""
    return torch.stack([LEARNED[photo.numpy().tobytes()] for photo in pixels])


def learn(split) -> None:
    """Learn to see photos near their captions, but for noise."""
    rng = np.random.default_rng(0)
    texts = torch.cat([read(pad([caption])) for caption in split.captions])
    for image, path in enumerate(split.images.paths):
        own = texts[torch.from_numpy(split.caption_image == image)].mean(0)
        pixels = to_pixels(Image.open(path).convert("RGB"))
        LEARNED[pixels.numpy().tobytes()] = own + torch.from_numpy(rng.normal(0, 2, WIDTH)).float()


def read(numbers: torch.Tensor) -> torch.Tensor:
    """Embed captions (B, T) of numbers of words, 0 for padding: (B, 12)."""
    vectors = torch.sin(torch.arange(1000.0)[:, None] * torch.arange(1.0, WIDTH + 1))
    return (vectors[numbers] * (numbers > 0)[..., None]).sum(1)


def number_words(caption: str) -> list[int]:
    return [1 + sum(word.encode()) % 997 for word in tokenize(caption)]


def to_pixels(photo: Image.Image) -> torch.Tensor:
    assert photo.mode == "RGB", "CLIP's preprocessing reads RGB"
    return torch.tensor(np.asarray(photo.resize((32, 32)))).permute(2, 0, 1) / 255


def pad(captions: list[str]) -> torch.Tensor:
    assert not isinstance(captions, str)
    rows = [torch.tensor(number_words(caption)) for caption in captions]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


# ---- the libraries


class Model(nn.Module):
    """Half of it is dropped unless it is in eval mode."""

    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(100.0).log())

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, training=self.training)


class OpenClip(Model):
    def encode_image(self, image, normalize=False):
        assert image.shape[1:] == (3, 32, 32)
        return self.drop(see(image)) * self.logit_scale / self.logit_scale

    def encode_text(self, text, normalize=False):
        assert text.shape[1:] == (77,)
        return self.drop(read(text)) * self.logit_scale / self.logit_scale


def preprocess(photo):
    return to_pixels(photo.convert("RGB"))


def tokenize_texts(texts, context_length=77):
    return nn.functional.pad(pad(texts), (0, 1000))[:, :context_length]


def create_model_and_transforms(model_name, pretrained=None):
    assert (model_name, pretrained) == ("ViT-B-32", "laion2b_s34b_b79k")
    return OpenClip(), "for training", preprocess


def get_tokenizer(model_name):
    return tokenize_texts


class CLIPModel(Model):
    @classmethod
    def from_pretrained(cls, name):
        assert name == "openai/clip-vit-base-patch32"
        return cls()

    def get_image_features(self, pixel_values):
        return self.output(see(pixel_values))

    def get_text_features(self, input_ids, attention_mask):
        return self.output(read(input_ids * attention_mask))

    def output(self, x):
        """A tensor, as transformers before version 5 returns."""
        return self.drop(x)


class CLIPModel5(CLIPModel):
    def output(self, x):
        return types.SimpleNamespace(last_hidden_state=x[:, None], pooler_output=self.drop(x))


class CLIPProcessor:
    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def __call__(
        self, text=None, images=None, return_tensors=None, truncation=False, padding=False
    ):
        assert return_tensors == "pt"
        assert (text is None) != (images is None)
        if images is not None:
            if not isinstance(images, list):
                images = [images]
            return {"pixel_values": torch.stack([to_pixels(photo) for photo in images])}
        assert truncation, "a caption may be longer than 77 tokens"
        numbers = pad(text)
        return {"input_ids": numbers, "attention_mask": (numbers > 0).long()}


class SentenceTransformer:
    def __init__(self, model_name_or_path):
        assert model_name_or_path == "clip-ViT-B-32"

    def encode(self, sentences, batch_size=32, convert_to_tensor=False):
        if isinstance(sentences[0], str):
            embeddings = read(pad(sentences))
        else:
            embeddings = see(torch.stack([preprocess(photo) for photo in sentences]))
        if convert_to_tensor:
            return embeddings
        return embeddings.numpy()


def module(name: str, *members) -> types.ModuleType:
    made = types.ModuleType(name)
    for member in members:
        setattr(made, member.__name__.removesuffix("5"), member)
    return made


LIBRARIES = {
    "open_clip": module("open_clip", create_model_and_transforms, get_tokenizer),
    "transformers": module("transformers", CLIPModel, CLIPProcessor),
    "transformers 5": module("transformers", CLIPModel5, CLIPProcessor),
    "sentence-transformers": module("sentence_transformers", SentenceTransformer),
}


@pytest.fixture
def run(tmp_path, demo_path, monkeypatch):
    """run(blocks, names): executes blocks of code where data/f8k holds photos; returns its names."""
    shutil.copytree(os.path.join(demo_path, "demo"), tmp_path / "data" / "f8k")
    shutil.copytree(os.path.join(demo_path, "demo_precomp"), tmp_path / "data" / "f8k_precomp")
    monkeypatch.chdir(tmp_path)

    def call(*blocks, **names):
        for block in blocks:
            exec(compile(block, "docs/evaluate-my-clip.md", "exec"), names)
        return names

    return call


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_is_evaluated_in_ten_lines(run, monkeypatch, capsys, library):
    monkeypatch.setitem(sys.modules, LIBRARIES[library].__name__, LIBRARIES[library])
    (block,) = BLOCKS[library.removesuffix(" 5")]
    lines = [line for line in block.splitlines() if line and not line.startswith("        ")]
    assert len(lines) <= 10
    split = read_split("data", "f8k", "test")
    learn(split)

    found = run(*BLOCKS["First"], block, *BLOCKS["How well, and how sure"])

    with torch.no_grad():
        pixels = torch.stack([preprocess(Image.open(path)) for path in split.images.paths])
        images = see(pixels)
        texts = torch.cat([read(pad([caption])) for caption in split.captions])
    torch.testing.assert_close(unit(torch.as_tensor(found["images"])), unit(images))
    torch.testing.assert_close(unit(torch.as_tensor(found["texts"])), unit(texts))
    assert found["scale"] == pytest.approx(100)

    owner = split.caption_image
    results = evaluate(found["images"], found["texts"], owner)
    assert found["results"]["protocols"] == results["protocols"]
    sure = calibrate(found["images"], found["texts"], owner, logit_scale=found["scale"])
    assert found["sure"]["confidence"] == sure["confidence"]
    r1 = results["protocols"]["full"]["t2i"]["r1"]
    assert f"{r1:.1f}" in capsys.readouterr().out


@pytest.mark.parametrize("each", [1, 3])
def test_right_captions_against_wrong_ones(run, capsys, each):
    rng = np.random.default_rng(0)
    owner = rng.integers(20, size=60)
    images = rng.normal(size=(20, WIDTH))
    right = images[owner] + 2 * rng.normal(size=(60, WIDTH))
    wrong = images[owner, None] + 3 * rng.normal(size=(60, each, WIDTH))
    if each == 1:
        wrong = wrong[:, 0]
    pairs_of_images = rng.normal(size=(30, 2, WIDTH))
    pairs_of_captions = pairs_of_images + 2 * rng.normal(size=(30, 2, WIDTH))

    found = run(
        *BLOCKS["Right captions against wrong ones"],
        images=images,
        right=right,
        wrong=wrong,
        owner=owner,
        pairs_of_images=pairs_of_images,
        pairs_of_captions=pairs_of_captions,
    )

    choices = evaluate_hard_negatives(images, right, wrong, owner)
    assert {"accuracy", "low", "high", "chance", "text_only"} <= set(choices["text"])
    assert choices["text"]["chance"] == pytest.approx(100 / (1 + each))

    # Winoground by its definition: item by item, captions x images
    names = ("text", "image", "group")
    hits = {name: [] for name in names}
    for two_images, two_captions in zip(unit(torch.tensor(pairs_of_images)), pairs_of_captions):
        scores = (unit(torch.tensor(two_captions)) @ two_images.T).numpy()
        own = scores.diagonal()
        hits["text"].append(bool((own > scores[::-1].diagonal()).all()))
        hits["image"].append(bool((own > scores[:, ::-1].diagonal()).all()))
        hits["group"].append(hits["text"][-1] and hits["image"][-1])
    accuracies = {name: found["results"][name]["accuracy"] for name in names}
    assert accuracies == pytest.approx({name: 100 * np.mean(hits[name]) for name in names})
    assert 0 < accuracies["group"] < 100

    quadruples = evaluate_winoground(pairs_of_images, pairs_of_captions)
    assert found["results"] == quadruples
    assert capsys.readouterr().out.splitlines() == [str(choices["text"]), str(accuracies)]


def test_scores_of_a_re_ranker(run):
    rng = np.random.default_rng(0)
    names = {
        "scores_i2t": rng.random((6, 30)),
        "scores_t2i": rng.random((30, 6)),
        "owner": np.arange(30) // 5,
    }
    found = run(*BLOCKS["A re-ranker"], **names)
    assert found["results"] == evaluate(**names)


def test_a_trained_model_embeds_texts_and_images(run, small_run):
    """checkpoint.Trained in five lines."""
    (block,) = BLOCKS["A model of this repository"]
    assert len([line for line in block.splitlines() if line]) == 5
    small_run("--sim", "wasserstein", to="runs/A")

    found = run(block)

    assert found["scores"].shape == (24, 2)
    assert torch.isfinite(found["scores"]).all()

    model = found["model"]
    split = read_split("data", "f8k_precomp", "test")
    scores = model.similarity(found["images"], model.texts(split.captions))
    results = evaluate(scores=scores, owner=split.caption_image)
    data = ("--data_path", "data", "--data_name", "f8k_precomp")
    expected = evaluated("--checkpoint", "runs/A", *data)
    assert results["protocols"]["full"] == expected["protocols"]["full"]
