"""--kind open_clip: a small random CLIP network through the commands, against open_clip's own calls one by one, and
every refusal with its sentence."""
import importlib.util
import json
import os
import socket

import numpy as np
import pytest
import torch
from PIL import Image

import evaluate
import models.clip
import search
from checkpoints import Trained
from cli import InputError
from data import read_split
from features import extract, openclip
from retrieval.searcher import Searcher
from tests.helpers import refused

if importlib.util.find_spec("open_clip") is None:
    pytest.skip("open_clip_torch is not installed", allow_module_level=True)
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

TINY = {"embed_dim": 16, "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
        "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}}
PREPARED = {"url": "", "hf_hub": "someone/tiny/", "mean": (0.48145466, 0.4578275, 0.40821073),
            "std": (0.26862954, 0.26130258, 0.27577711), "interpolation": "bicubic", "resize_mode": "shortest"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """open_clip with two small networks of ours: `tiny`, and `tiny-hf`, whose captions need a file of Hugging Face."""
    at, open_clip = tmp_path_factory.mktemp("configs"), openclip.import_open_clip()
    (at / "tiny.json").write_text(json.dumps(TINY))
    hf = {**TINY["text_cfg"], "hf_tokenizer_name": "some/words"}
    (at / "tiny-hf.json").write_text(json.dumps({**TINY, "text_cfg": hf}))
    open_clip.add_model_config(at)
    return open_clip


@pytest.fixture(scope="module")
def weights(tmp_path_factory, clip):
    """A folder with the weights of one random `tiny`: safetensors, a state dict, a checkpoint of open_clip's training;
    and with files that are none of its weights."""
    at = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    net = clip.create_model("tiny")
    with torch.no_grad():                                   # so that what is normalised can be told from what is not
        net.text_projection *= 20
    state = {name: x.contiguous() for name, x in net.state_dict().items()}
    safetensors.save_file(state, at / "tiny.safetensors")
    torch.save(state, at / "tiny.pt")
    torch.save({"epoch": 3, "name": "run", "state_dict": {f"module.{name}": x for name, x in state.items()}},
               at / "epoch_3.pt")
    torch.save({**state, "visual.proj": torch.zeros(32, 8)}, at / "wrong.pt")
    torch.save({name: x for name, x in state.items() if name != "visual.proj"}, at / "less.pt")
    (at / "junk.pt").write_bytes(b"junk")
    (at / "junk.safetensors").write_bytes(b"junk")
    torch.save({"run": os.system}, at / "code.pt")
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), at / "script.pt")
    return at


@pytest.fixture
def offline(monkeypatch):
    """Ends a test that asks for an address on the network."""
    def never(*args, **kwargs):
        raise AssertionError(f"it went online: {args}")
    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(socket.socket, "connect", never)


def images(folder, *words):
    extract.main(["images", "--data_path", str(folder), "--data_name", "demo", "--output_name", "new", "--splits",
                  "test", "--kind", "open_clip", "--workers", "0", "--device", "cpu", *map(str, words)])


def captions(folder, *words):
    extract.main(["captions", "--data_path", str(folder), "--data_name", "new", "--kind", "open_clip",
                  *map(str, words)])


@pytest.fixture
def folder(tmp_path, demo_path):
    for name in ("demo", "demo_precomp"):
        os.symlink(os.path.join(demo_path, name), tmp_path / name)
    return tmp_path


def extractors(folder):
    return json.loads((folder / "new" / "features.json").read_text())


def own_calls(clip, weights, split, **prepared):
    """open_clip's embeddings of the photos and the captions of a split, one by one."""
    net, _, transform = clip.create_model_and_transforms("tiny", pretrained=str(weights / "tiny.pt"), **prepared)
    net, tokenizer = net.eval(), clip.get_tokenizer("tiny")
    with torch.no_grad():
        return ([net.encode_image(transform(split.images.open(n))[None])[0].numpy() for n in range(len(split.images))],
                [net.encode_text(tokenizer([caption]))[0].numpy() for caption in split.captions])


@pytest.mark.usefixtures("offline")
def test_photos_and_captions_are_those_of_open_clip(folder, clip, weights, capsys):
    images(folder, "--model", "tiny", "--weights", weights / "tiny.safetensors", "--batch_size", 5)
    captions(folder, "--model", "tiny", "--weights", weights / "epoch_3.pt")
    assert "random" not in capsys.readouterr().err
    split, photos = (read_split(str(folder), name, "test", text_features=text)
                     for name, text in (("new", "open_clip"), ("demo", None)))
    assert split.captions == photos.captions
    expected = own_calls(clip, weights, photos)
    for features, own in zip((split.images, split.text), expected):
        rows = features.gather(range(len(features))).numpy()
        assert rows.shape == (len(own), 16) and features.array.dtype == np.float32
        np.testing.assert_allclose(rows, own, rtol=1e-4, atol=1e-5)
        assert np.abs(np.linalg.norm(rows, axis=1) - 1).min() > 0.01                # nobody normalised them
        assert np.abs(rows[0] - rows[-1]).max() > 1e-3
    made = extractors(folder)
    assert made["ims"].startswith("open_clip tiny encode_image, not normalised, photos sha256:")
    assert made["open_clip"].startswith("open_clip tiny encode_text, not normalised, weights sha256:")
    assert made["ims"].split("weights ")[1] == made["open_clip"].split("weights ")[1]


def test_an_extraction_goes_on_and_refuses_other_weights(folder, weights, capsys):
    tiny = ["--model", "tiny", "--weights"]
    images(folder, *tiny, weights / "tiny.safetensors")
    first = np.load(folder / "new" / "test_ims.npy")
    images(folder, *tiny, weights / "tiny.pt")                                      # the same weights in another file
    assert "test_ims.npy: done already" in capsys.readouterr().out
    state = torch.load(weights / "tiny.pt")
    torch.save({**state, "visual.proj": 2 * state["visual.proj"]}, folder / "twice.pt")
    refused(capsys, lambda words: images(folder, *words), [*tiny, folder / "twice.pt"],
            "test_ims.npy is of 'open_clip tiny .*' and these are of 'open_clip tiny .*give another name")
    images(folder, *tiny, folder / "twice.pt", "--output_name", "twice")
    np.testing.assert_allclose(np.load(folder / "twice" / "test_ims.npy"), 2 * first, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("offline")
def test_a_file_with_the_name_of_published_weights_is_read_and_nothing_fetched(folder, clip, weights, monkeypatch):
    entry = {**PREPARED, "url": "https://example.org/x.pt"}
    monkeypatch.setitem(clip.pretrained._PRETRAINED, "tiny", {"openai": entry})
    monkeypatch.chdir(folder)
    (folder / "openai").write_bytes((weights / "tiny.pt").read_bytes())
    images(folder, "--model", "tiny", "--weights", "openai")
    expected = own_calls(clip, weights, read_split(str(folder), "demo", "test"))[0]
    np.testing.assert_allclose(np.load(folder / "new" / "test_ims.npy"), expected, rtol=1e-4, atol=1e-5)
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_photos_are_prepared_as_the_published_weights_want_them(folder, clip, weights, monkeypatch, capsys):
    other = {**PREPARED, "mean": (0.5, 0.5, 0.5), "interpolation": "bilinear", "resize_mode": "squash"}
    monkeypatch.setitem(clip.pretrained._PRETRAINED, "tiny", {
        "first": PREPARED, "second": PREPARED, "other": other, "quick": {**other, "quick_gelu": True}})
    tiny = ["--model", "tiny", "--weights", weights / "tiny.pt"]
    refused(capsys, lambda words: images(folder, *words), tiny,
            r"--model tiny has published weights whose photos are prepared in 2 ways \(first, second; other\); say "
            "which of them the file holds: --tag NAME")
    for tag, message in (
            ("none", "--tag none names no published weights of tiny; give one of first, second, other, quick"),
            ("quick", "--tag quick: these weights were trained with QuickGELU, and --model tiny computes GELU; give "
                      "--model tiny-quickgelu")):
        refused(capsys, lambda words: images(folder, *words), [*tiny, "--tag", tag], message)
    assert not (folder / "new").exists()
    images(folder, *tiny, "--tag", "other")
    photos = read_split(str(folder), "demo", "test")
    expected = own_calls(clip, weights, photos, image_mean=(0.5, 0.5, 0.5), image_interpolation="bilinear",
                         image_resize_mode="squash")[0]
    stored = np.load(folder / "new" / "test_ims.npy")
    np.testing.assert_allclose(stored, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(stored - own_calls(clip, weights, photos)[0]).max() > 1e-3
    capsys.readouterr()
    captions(folder, *tiny)                                 # what is done to photos is nothing to them
    assert capsys.readouterr().err == (f"warning: --model tiny computes GELU; if {weights / 'tiny.pt'} holds quick, "
                                       "give --model tiny-quickgelu\n")


def test_what_open_clip_says_of_its_networks(clip):
    """Real entries: SigLIP squashes photos, MobileCLIP2-S0 does not normalise them, OpenAI trained with QuickGELU."""
    def prepared(name, tag=None):
        known, other = openclip.published(name, tag, bool(clip.get_model_config(name).get("quick_gelu")))
        return openclip.preparation(name, known), other

    siglip, mobile = prepared("ViT-B-16-SigLIP")[0], prepared("MobileCLIP2-S0")[0]
    assert siglip["mean"] == (0.5, 0.5, 0.5) and siglip["resize_mode"] == "squash"
    assert mobile["mean"] == (0, 0, 0) and mobile["std"] == (1, 1, 1)
    assert "openai" in prepared("ViT-B-32")[1] and prepared("ViT-B-32-quickgelu")[1] == []
    assert prepared("ViT-S-32-alt") == ({}, [])
    with pytest.raises(InputError, match="prepared in 2 ways .*laion2b_s32b_b82k"):
        prepared("ViT-L-14")
    assert prepared("ViT-L-14", "laion2b_s32b_b82k")[0]["mean"] == (0.5, 0.5, 0.5)
    assert prepared("ViT-L-14", "datacomp_xl_s13b_b90k")[0]["mean"] == PREPARED["mean"]


@pytest.mark.usefixtures("clip", "offline")
def test_refusals(folder, weights, monkeypatch, capsys):
    tiny = ["--model", "tiny"]
    common = (
        ([], "--kind open_clip needs --model NAME, a network of open_clip such as ViT-B-32"),
        (["--model", "ViT-B32"], "--model ViT-B32 is none of the [0-9]+ networks of open_clip; give one such as ViT"),
        (["--model", "hf-hub:a/b"], "--model hf-hub:a/b is none of the"),
        (["--model", "roberta-ViT-B-32"],
         "--model roberta-ViT-B-32 builds its text network from roberta-base of Hugging Face, and nothing is downl"),
        (tiny, "--model tiny needs weights, and nothing is downloaded; give --weights FILE with those that you"),
        (["--model", "ViT-B-16-quickgelu"], "ViT-B-16-quickgelu needs weights, .* with those of huggingface.co/"),
        ([*tiny, "--weights", "nowhere"], "there is no file nowhere with weights of tiny; give one with --weights"),
        ([*tiny, "--weights", weights / "tiny.pt", "--tag", "x"],
         "--tag x names no published weights of tiny; there are none, so leave it out"),
        *(([*tiny, "--weights", weights / name], f"{name} does not hold the weights of tiny .*give a state dict of")
          for name in ("wrong.pt", "less.pt", "junk.pt", "junk.safetensors", "code.pt", "script.pt")))
    for words, message in (*common, ([*tiny, "--cnn_type", "resnet18"],
                                     "--cnn_type resnet18 is for --kind cnn, not for --kind open_clip; leave it out"),
                           ([*tiny, "--layer", "pooled"], "--layer pooled is for --kind cnn, not for"),
                           ([*tiny, "--kind", "cnn"], "--model tiny is for --kind open_clip, not for --kind cnn"),
                           (["--kind", "cnn", "--weights", "x"], "--weights x is for --kind open_clip, not")):
        refused(capsys, lambda words: images(folder, *words), words, message)
    assert not (folder / "new").exists()
    os.symlink(folder / "demo_precomp", folder / "new")
    for words, message in (*common, (["--model", "tiny-hf", "--weights", weights / "tiny.pt"],
                                     "--model tiny-hf reads captions by the tokenizer some/words of Hugging Face, and "
                                     "nothing is downloaded; its photos can be extracted"),
                           ([*tiny, "--word_vectors", "v"], "--word_vectors v is for --kind mean and hglmm, not")):
        refused(capsys, lambda words: captions(folder, *words), words, message)
    monkeypatch.setitem(openclip.sys.modules, "open_clip", None)
    refused(capsys, lambda words: captions(folder, *words), tiny,
            "--kind open_clip needs a package: pip install open_clip_torch")


def test_photos_of_a_network_whose_captions_are_refused(folder, clip, weights):
    images(folder, "--model", "tiny-hf", "--weights", weights / "tiny.pt")
    assert extractors(folder)["ims"].startswith("open_clip tiny-hf encode_image") and clip.list_models()


# ---- a network as a run, without training

def test_a_network_is_a_run_without_training(folder, clip, weights, capsys, monkeypatch):
    """models.clip: a folder of photos is searched with it, and it is evaluated, by open_clip's own cosines."""
    monkeypatch.chdir(folder)
    file = weights / "tiny.safetensors"
    made = ["--model", "tiny", "--weights", str(file), "--output", "runs/clip"]
    models.clip.main(made)
    assert "search with: python search.py photos FOLDER --checkpoint runs/clip" in capsys.readouterr().out
    refused(capsys, models.clip.main, made, "is there already")
    search.main(["photos", "demo/images", "--checkpoint", "runs/clip", "--index_only", "--workers", "0", "--data_path",
                 str(folder / "d"), "--output", "index"])
    found, = Searcher("index").find_texts(["a red circle ."], top=3)
    net, _, transform = clip.create_model_and_transforms("tiny", pretrained=str(file))
    with torch.no_grad():
        text = net.eval().encode_text(clip.get_tokenizer("tiny")(["a red circle ."]), normalize=True)[0]
        for answer in found.answers:
            photo = Image.open(folder / "demo" / "images" / answer.name).convert("RGB")
            image = net.encode_image(transform(photo)[None], normalize=True)[0]
            assert answer.score == pytest.approx(float(image @ text), abs=1e-5)
    assert found.answers[0].score >= found.answers[2].score
    every, = Searcher("index").find_texts(["a red circle ."], top=1000)        # the network's own temperature
    scores = torch.tensor([answer.score for answer in every.answers])
    expected = (net.logit_scale.exp() * scores).softmax(0)
    assert [answer.p for answer in every.answers] == pytest.approx(expected.tolist(), rel=1e-3)
    assert "by the network's own temperature" in Searcher("index").notes[0]
    images(folder, "--model", "tiny", "--weights", file)
    captions(folder, "--model", "tiny", "--weights", file)
    results = evaluate.run(evaluate.parse_args(
        ["--checkpoint", "runs/clip", "--data_path", str(folder), "--data_name", "new", "--output", "r.json",
         "--export", "e.npz"]))
    x = np.load(folder / "new" / "test_ims.npy")
    with np.load("e.npz") as f:
        assert results["images"] == len(x)
        np.testing.assert_allclose(f["image_mean"], x / np.linalg.norm(x, axis=1, keepdims=True), atol=1e-5)
    other = Trained("runs/clip")
    other.extractors = {"ims": "another network"}
    assert other.weights != Trained("runs/clip").weights
