"""Rows of images and captions as .jsonl, .json and .parquet, and embeddings in every form of file."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch

import data
import tables
from confidence.__main__ import main as confidence_main
from data import check_data_set, read_split
from images import Photos
from tests.helpers import evaluated, fit_steps, same_weights
from utils import InputError

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

FEATURES = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
ROWS = [
    {"image": "a.jpg", "captions": ["a dog runs", "two dogs"]},
    {"image": "b.jpg", "captions": ["a cat"]},
    {"image": "c.jpg", "captions": ["snow", "a hill", "a sledge"]},
]
PAIRS = [{"image": row["image"], "caption": caption} for row in ROWS for caption in row["captions"]]
CAPTIONS = [pair["caption"] for pair in PAIRS]
OWNER = [0, 0, 1, 2, 2, 2]


def write_jsonl(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")


def write_json(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS = {"jsonl": write_jsonl, "json": write_json, "parquet": write_parquet}


def check_split(split):
    assert split.captions == CAPTIONS and split.caption_image.tolist() == OWNER
    assert split.photo_names == ["a.jpg", "b.jpg", "c.jpg"]
    assert split.notes[0].endswith(": 1 to 3 captions an image")


@pytest.mark.parametrize("rows", [ROWS, PAIRS], ids=["lists", "pairs"])
@pytest.mark.parametrize("kind", WRITERS)
def test_rows_with_features_are_read(tmp_path, kind, rows):
    WRITERS[kind](tmp_path / "x" / f"train.{kind}", rows)
    np.save(tmp_path / "x" / "train_ims.npy", FEATURES)
    split = read_split(str(tmp_path), "x", "train")
    check_split(split)
    np.testing.assert_array_equal(split.images.gather([0, 1, 2]), FEATURES)


def test_rows_without_images_have_a_row_of_features_each(tmp_path):
    rows = [{"text": row["captions"]} for row in ROWS]
    write_jsonl(tmp_path / "x" / "test.jsonl", rows)
    np.save(tmp_path / "x" / "test_ims.npy", FEATURES)
    split = read_split(str(tmp_path), "x", "test")
    assert split.captions == CAPTIONS and split.caption_image.tolist() == OWNER
    assert split.image_ids is None and split.photo_names is None


def test_numbers_of_images_are_their_ids(tmp_path):
    rows = [{"image": 100 + n, "captions": row["captions"]} for n, row in enumerate(ROWS)]
    write_jsonl(tmp_path / "x" / "test.jsonl", rows)
    np.save(tmp_path / "x" / "test_ims.npy", FEATURES)
    split = read_split(str(tmp_path), "x", "test")
    assert split.image_ids == [100, 101, 102] and split.photo_names is None
    assert split.caption_image.tolist() == OWNER


def test_features_for_each_row_of_an_image_are_one_image(tmp_path):
    pairs = [{"image": f"{m // 2}.jpg", "caption": f"caption {m}"} for m in range(6)]
    write_jsonl(tmp_path / "x" / "test.jsonl", pairs)
    np.save(tmp_path / "x" / "test_ims.npy", FEATURES.repeat(2, 0))
    split = read_split(str(tmp_path), "x", "test")
    assert split.caption_image.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(split.images.gather([0, 1, 2]), FEATURES)


def test_splits_by_a_column_by_other_names_and_in_shards(tmp_path):
    rows = [{**row, "split": split} for split in ("train", "validation") for row in ROWS]
    write_jsonl(tmp_path / "x" / "metadata.jsonl", rows)
    write_jsonl(tmp_path / "y" / "train.jsonl", ROWS)
    write_jsonl(tmp_path / "y" / "validation.jsonl", ROWS)
    write_parquet(tmp_path / "z" / "data" / "train-00000-of-00002.parquet", ROWS[:2])
    write_parquet(tmp_path / "z" / "data" / "train-00001-of-00002.parquet", ROWS[2:])
    write_parquet(tmp_path / "z" / "data" / "validation-00000-of-00001.parquet", ROWS)
    for name in "xyz":
        for split in ("train", "dev"):
            found = read_split(str(tmp_path), name, split)
            check_split(found)
            assert found.name == split and isinstance(found.images, Photos)


def test_photos_are_found_below_the_folder_and_elsewhere(tmp_path, demo_path):
    photos = sorted(os.listdir(f"{demo_path}/demo/images"))[:3]
    folder = tmp_path / "x"
    (folder / "images").mkdir(parents=True)
    (folder / "other").mkdir()
    for photo, to in zip(photos, ("images", "other", "")):
        shutil.copyfile(f"{demo_path}/demo/images/{photo}", folder / to / photo)
    names = [photos[0], f"other/{photos[1]}", str(folder / photos[2])]
    write_jsonl(folder / "test.jsonl", [{"image": name, "caption": "a"} for name in names])
    split = read_split(str(tmp_path), "x", "test").require_sound()
    assert split.images.gather([0, 1, 2]).shape == (3, 3, 224, 224)
    assert not split.uneven and not split.notes


@pytest.mark.parametrize(
    "row, message",
    [
        ({"image": "a.jpg"}, "line 3 has no caption; give it 'caption', .* .it has image"),
        ({"image": "a.jpg", "caption": 3}, "line 3 has no caption"),
        ({"image": "a.jpg", "captions": ["a", None]}, "line 3 has no caption"),
        ({"image": ["a"], "caption": "a"}, "line 3 has an image of type list; give the path"),
        ({"image": True, "caption": "a"}, "line 3 has an image of type bool"),
        ({"image": {"bytes": "x"}, "caption": "a"}, "line 3 holds the photo itself; save the"),
        ({"image": "https://x/a.jpg", "caption": "a"}, "an address; fetch the photos first"),
        ({"image": "../a.jpg", "caption": "a"}, "lies outside"),
        ([1], "line 3 is not an object"),
    ],
)
def test_other_rows_are_refused(tmp_path, row, message):
    write_jsonl(tmp_path / "x" / "train.jsonl", [ROWS[0], row])
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "x", "train")


def test_faults_of_files_are_sentences(tmp_path, monkeypatch):
    path = tmp_path / "x" / "train.jsonl"
    write_jsonl(path, ROWS)
    path.write_text(path.read_text() + "{'image': 1}\n")
    with pytest.raises(InputError, match="line 7 is not JSON .*; write one object a line"):
        read_split(str(tmp_path), "x", "train")
    with pytest.raises(InputError, match="has no table of the split dev: looked for dev.jsonl"):
        read_split(str(tmp_path), "x", "dev")

    write_jsonl(path, ROWS)
    np.save(tmp_path / "x" / "train_ims.npy", FEATURES[:2])
    with pytest.raises(InputError, match="has 3 images in 3 rows, and .*train_ims.npy 2 rows of"):
        read_split(str(tmp_path), "x", "train")

    write_jsonl(tmp_path / "y" / "all.jsonl", ROWS)
    with pytest.raises(InputError, match="line 1 has no 'split'; write it .* or save each split"):
        read_split(str(tmp_path), "y", "train")
    write_jsonl(tmp_path / "y" / "all.jsonl", [{**ROWS[0], "split": "train"}])
    with pytest.raises(InputError, match="has no row of the split test; name another --split"):
        read_split(str(tmp_path), "y", "test")

    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "train.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="train.parquet is damaged or not a .parquet file"):
        read_split(str(tmp_path), "z", "train")
    monkeypatch.setattr(pyarrow, "__version__", "14.0.0")
    with pytest.raises(InputError, match="pyarrow>=14.0.1.* .pyarrow 14.0.0 is here"):
        read_split(str(tmp_path), "z", "train")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow: pip install 'pyarrow>=14"):
        read_split(str(tmp_path), "z", "train")


def test_lines_of_captions_come_first(tmp_path):
    write_jsonl(tmp_path / "x" / "train.jsonl", ROWS)
    np.save(tmp_path / "x" / "train_ims.npy", FEATURES)
    (tmp_path / "x" / "train_caps.txt").write_text("a\nb\nc\n")
    assert read_split(str(tmp_path), "x", "train").captions == ["a", "b", "c"]


def test_a_training_on_rows_is_the_one_on_lines(tmp_path, demo_path):
    """To the bit; the check finds no fault."""
    folder = tmp_path / "demo_precomp"
    folder.mkdir()
    for split in ("train", "dev", "test"):
        lines = open(f"{demo_path}/demo_precomp/{split}_caps.txt", encoding="utf-8")
        captions = lines.read().splitlines()
        rows = [{"captions": captions[k : k + 5]} for k in range(0, len(captions), 5)]
        write_jsonl(folder / f"{split}.jsonl", rows)
        shutil.copyfile(f"{demo_path}/demo_precomp/{split}_ims.npy", folder / f"{split}_ims.npy")
    assert check_data_set(str(tmp_path), "demo_precomp") == 0
    for k, data_path in enumerate((demo_path, tmp_path)):
        fit_steps("--data_path", data_path, "--logger_name", tmp_path / f"{k}")
    assert same_weights(tmp_path / "0", tmp_path / "1")


def test_a_training_on_photos_of_rows_starts(tmp_path, demo_path, weights):
    source = read_split(demo_path, "demo", "train", dev_images=0)
    for split in ("train", "dev"):
        rows = []
        for image, path in enumerate(source.images.paths[:6]):
            own = np.flatnonzero(source.caption_image == image)[: 1 + image % 3]
            captions = [source.captions[m] for m in own]
            rows.append({"image": os.path.abspath(path), "captions": captions})
        write_jsonl(tmp_path / "x" / f"{split}.jsonl", rows)
    cnn = ["--cnn_type", "resnet18", "--cnn_weights", weights, "--crop_size", 32]
    run = tmp_path / "run"
    data_flags = ["--data_path", tmp_path, "--data_name", "x", "--batch_size", 6]
    fit_steps(*data_flags, *cnn, "--logger_name", run)
    assert (run / "model_best.pt").exists()


def test_tables_are_inputs_that_no_output_replaces(tmp_path):
    write_jsonl(tmp_path / "x" / "train.jsonl", ROWS)
    np.save(tmp_path / "x" / "train_ims.npy", FEATURES)
    listed = data.list_data_files(str(tmp_path / "x"))
    assert {os.path.basename(path) for path in listed} == {"train.jsonl", "train_ims.npy"}
    assert tables.holds_tables(str(tmp_path / "x"))


# ---- embeddings


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    """The same vectors of 60 images with three captions each, in every form of file."""
    folder = tmp_path_factory.mktemp("forms")
    rng = np.random.default_rng(0)
    images = rng.standard_normal((60, 8)).astype(np.float32)
    owner = np.arange(180) // 3
    captions = (images[owner] + 0.8 * rng.standard_normal((180, 8))).astype(np.float32)
    arrays = {"image_mean": images, "caption_mean": captions}
    np.savez(folder / "npz.npz", **arrays, caption_image=owner)
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    torch.save({**tensors, "caption_image": torch.from_numpy(owner)}, folder / "pt.pt")
    for name, x in (("img_emb", images), ("text_emb", captions)):
        (folder / "clip" / name).mkdir(parents=True)
        np.save(folder / "clip" / name / f"{name}_0.npy", x[: len(x) // 2])
        np.save(folder / "clip" / name / f"{name}_1.npy", x[len(x) // 2 :])

    pairs = {"image_embedding": list(images[owner]), "text_embedding": list(captions)}
    parquet.write_table(pyarrow.table(pairs), folder / "pairs.parquet")
    pairs["image_path"] = [f"{image}.jpg" for image in owner]
    parquet.write_table(pyarrow.table(pairs), folder / "named.parquet")
    pairs["image"] = [{"path": path} for path in pairs.pop("image_path")]  # Hugging Face's Image
    parquet.write_table(pyarrow.table(pairs), folder / "photos.parquet")
    order = rng.permutation(180)
    pairs = {
        "image_mean": list(images[owner[order]]),
        "caption_mean": list(captions[order]),
        "caption_image": owner[order],
    }
    parquet.write_table(pyarrow.table(pairs), folder / "mixed.parquet")
    return folder


FORMS = [
    *("npz.npz", "pt.pt", "clip"),
    *("pairs.parquet", "named.parquet", "photos.parquet", "mixed.parquet"),
]


def test_every_form_of_file_gives_the_same_numbers(embeddings, tmp_path, undrawn):
    protocols = []
    confidences = []
    for form in FORMS:
        output = tmp_path / "r.json"
        words = ["--embeddings", embeddings / form, "--ndcg", "--output", output, "--overwrite"]
        protocols.append(evaluated(*words)["protocols"])
        words = [embeddings / form, "--calibrate_on", 0.5, "--output", output, "--overwrite"]
        confidence_main([str(word) for word in words])
        confidences.append(json.loads(output.read_text())["confidence"])
    assert protocols[0]["full"]["i2t"]["queries"] == 60
    for form, numbers in zip(FORMS[1:-1], protocols[1:-1]):
        assert numbers == protocols[0], form
    assert protocols[-1]["full"] == protocols[0]["full"]  # of captions in another order
    for form, numbers in zip(FORMS[1:-1], confidences[1:-1]):
        assert numbers == confidences[0], form


@pytest.mark.parametrize("form", ["npz", "pt", "parquet"])
def test_confidence_reads_the_logit_scale_of_every_form(embeddings, tmp_path, undrawn, form):
    """It was read from an .npz alone."""
    arrays = dict(np.load(embeddings / "npz.npz"))
    file = tmp_path / f"e.{form}"
    if form == "npz":
        np.savez(file, **arrays, logit_scale=np.float32(20), similarity="cosine")
    elif form == "pt":
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        torch.save({**tensors, "logit_scale": torch.tensor(20.0), "similarity": "cosine"}, file)
    else:
        owner = arrays["caption_image"]
        pairs = {
            "image_mean": list(arrays["image_mean"][owner]),
            "caption_mean": list(arrays["caption_mean"]),
            "image_id": owner,
        }
        facts = {"similarity": "cosine", "logit_scale": "20"}
        parquet.write_table(pyarrow.table(pairs, metadata=facts), file)
    words = [file, "--calibrate_on", 0.5, "--output", tmp_path / "r.json"]
    confidence_main([str(word) for word in words])
    assert "own_softmax" in json.loads((tmp_path / "r.json").read_text())["confidence"]["t2i"]


def test_other_columns_are_named(tmp_path, embeddings):
    cases = (
        ({"x": [1.0]}, "has the columns x; embeddings are read from columns image_mean and"),
        (
            {"image_mean": [[1.0], [1.0, 2.0]], "caption_mean": [[1.0], [1.0]]},
            "image_mean has vectors of 1 to 2 numbers; write all of one length",
        ),
        ({"image_mean": ["a"], "caption_mean": [[1.0]]}, "image_mean is not a column of vectors"),
        (
            {"image_mean": [[1.0], None], "caption_mean": [[1.0], [1.0]]},
            "image_mean: 1 rows have no vector; leave them out",
        ),
        (
            {"image_mean": [[1.0]], "caption_mean": [[1.0]], "image": [{"bytes": b"x"}]},
            "row 1 does not name its image in the column image; add a column image_id",
        ),
        (
            {"image_mean": [[1.0]], "caption_mean": [[1.0]], "image_id": pyarrow.array([None])},
            "row 1 does not name its image in the column image_id",
        ),
    )
    for columns, message in cases:
        parquet.write_table(pyarrow.table(columns), tmp_path / "e.parquet")
        with pytest.raises(SystemExit) as stop:
            confidence_main([str(tmp_path / "e.parquet"), "--calibrate_on", "0.5"])
        assert message in str(stop.value.code)
