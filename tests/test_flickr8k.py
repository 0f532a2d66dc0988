"""Flickr8k as it is published: captions by name, lists of the splits, photos; what users do to the files."""

import os
import shutil

import numpy as np
import pytest

import data
from data import read_split
from features import captions, images
from tests.helpers import refused
from utils import InputError

LISTS = {
    "train": "Flickr_8k.trainImages.txt",
    "dev": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
PHOTOS = {
    "train": ["30_c.jpg", "10_a.jpg", "20_b.jpg"],
    "dev": ["50_e.jpg"],
    "test": ["40_d.jpg", "15_z.jpg"],
}


def caption(name: str, number: int) -> str:
    return f"caption {number} of photo {name[:2]} ."


def write_flickr8k(root, demo_path, text="", photos="Flicker8k_Dataset", end="\n", after=""):
    """The six photos with five captions each, sorted by name as in the published file.

    text, photos: folders below root. end: of lines. after: text at the end of all files.
    """
    (root / text).mkdir(parents=True, exist_ok=True)
    (root / photos).mkdir(parents=True, exist_ok=True)
    names = sorted(sum(PHOTOS.values(), []))
    for k, name in enumerate(names):
        source = os.path.join(demo_path, "demo", "images", f"test_{k:05}.png")
        shutil.copy(source, root / photos / name)

    # in the published file the name of one photo ends in .1, and others are in no list
    captions = []
    for name in [*names, "25_x.jpg.1", "60_y.jpg"]:
        captions += [f"{name}#{k}\t{caption(name, k)}" for k in range(5)]

    lines = {"Flickr8k.token.txt": captions}
    for split, name in LISTS.items():
        lines[name] = PHOTOS[split]
    for name, own in lines.items():
        (root / text / name).write_bytes((end.join(own) + end + after).encode())


def captions_of(photos) -> list[str]:
    """The five captions of each."""
    found = []
    for photo in photos:
        found += [caption(photo, k) for k in range(5)]
    return found


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"end": "\r\n", "after": "\r\n\r\n"},
        {"after": "\n  \n"},
        {"photos": "Flickr8k_Dataset"},
        {"photos": "images"},
        {"text": "Flickr8k_text"},
        {"text": "Flickr8k_text", "photos": "Flickr8k_Dataset/Flicker8k_Dataset"},
    ],
    ids=["published", "windows", "blank", "dataset", "images", "text", "nested"],
)
def test_the_published_files_are_read(tmp_path, demo_path, layout):
    """Photos in the order of their list, captions by number, those of no list left out."""
    write_flickr8k(tmp_path / "f8k", demo_path, **layout)

    for asked, name in (("train", "train"), ("dev", "dev"), ("test", "test"), ("val", "dev")):
        split = read_split(str(tmp_path), "f8k", asked).require_sound()
        photos = PHOTOS[name]
        caption_names = []
        for photo in photos:
            caption_names += [f"{photo}#{k}" for k in range(5)]
        assert split.name == name
        assert split.image_ids == photos
        assert split.photo_names == photos
        assert split.captions == captions_of(photos)
        assert split.caption_image.tolist() == np.arange(len(photos)).repeat(5).tolist()
        assert split.caption_names == caption_names
        assert split.images.gather([0]).shape == (1, 3, 224, 224)
        assert not split.notes

    assert data.check_data_set(str(tmp_path), "f8k") == 0


def test_lines_in_any_order_and_twice_are_read_the_same(tmp_path, demo_path):
    write_flickr8k(tmp_path / "f8k", demo_path)
    whole = read_split(str(tmp_path), "f8k", "train")
    for name in ("Flickr8k.token.txt", LISTS["train"]):
        path = tmp_path / "f8k" / name
        lines = path.read_text().splitlines()
        again = [*lines, lines[0]]
        if name == "Flickr8k.token.txt":
            again = [*lines[::-1], lines[0]]
        path.write_text("\n".join(again))  # and no line end at the end
    read = read_split(str(tmp_path), "f8k", "train")
    assert (read.captions, read.image_ids) == (whole.captions, whole.image_ids)


def images_command(data_path, output_name) -> list[str]:
    """Words of features.images for f8k."""
    data = ["--data_path", str(data_path), "--data_name", "f8k"]
    return [*data, "--cnn_type", "demo", "--output_name", output_name]


def test_one_command_writes_the_three_splits(tmp_path, demo_path, capsys):
    """And features.captions reads what it wrote."""
    write_flickr8k(tmp_path / "f8k", demo_path)
    words = images_command(tmp_path, "f8k_precomp")

    images.main([*words, "--workers", "0", "--device", "cpu"])
    for name, photos in PHOTOS.items():
        split = read_split(str(tmp_path), "f8k_precomp", name)
        ids = (tmp_path / "f8k_precomp" / f"{name}_ids.txt").read_text().splitlines()
        assert ids == photos
        assert split.photo_names == photos
        assert len(split.images) == len(photos)
        assert split.captions == captions_of(photos)

    captions.main(["--data_path", str(tmp_path), "--data_name", "f8k_precomp", "--kind", "tfidf"])
    assert np.load(tmp_path / "f8k_precomp" / "test_tfidf.npy").shape[0] == 10
    assert data.check_data_set(str(tmp_path), "f8k_precomp") == 0


def test_features_beside_the_published_files_are_read_as_such(tmp_path, demo_path):
    """Karpathy's JSON and features come first, so that a folder that was read goes on to be read so."""
    write_flickr8k(tmp_path / "f8k", demo_path)
    np.save(tmp_path / "f8k" / "test_ims.npy", np.eye(2, 5, dtype=np.float32))
    (tmp_path / "f8k" / "test_caps.txt").write_text("one .\ntwo .\n")
    assert read_split(str(tmp_path), "f8k", "test").captions == ["one .", "two ."]


def test_photos_without_a_caption_are_left_out_and_said(tmp_path, demo_path):
    write_flickr8k(tmp_path / "f8k", demo_path)
    path = tmp_path / "f8k" / "Flickr8k.token.txt"
    path.write_text(path.read_text().replace("10_a.jpg#", "10_a.jpg.1#"))

    split = read_split(str(tmp_path), "f8k", "train")

    assert split.image_ids == ["30_c.jpg", "20_b.jpg"]
    assert len(split.captions) == 10
    note = (
        f"{tmp_path}/f8k/{LISTS['train']}: 1 of 3 photos have no caption in {path} and are left "
        "out (first: 10_a.jpg)"
    )
    assert split.notes == [note]


SOURCE = (
    "the University of Illinois gives Flickr8k_text.zip and Flickr8k_Dataset.zip, "
    "which holds the photos, to everyone who fills in forms.illinois.edu/sec/1713398; "
    "unpack both into .*f8k$"
)


@pytest.mark.parametrize("name", ["Flickr8k.token.txt", LISTS["train"]])
def test_a_missing_file_is_named_with_its_source(tmp_path, demo_path, capsys, name):
    write_flickr8k(tmp_path / "f8k", demo_path)
    os.remove(tmp_path / "f8k" / name)

    message = f"there is no file {name} in .*f8k or a folder below it; {SOURCE}"
    refused(capsys, images.main, images_command(tmp_path, "out"), message)


def test_missing_photos_are_named_with_their_source(tmp_path, demo_path, capsys):
    write_flickr8k(tmp_path / "f8k", demo_path)
    words = images_command(tmp_path, "out")
    photos = tmp_path / "f8k" / "Flicker8k_Dataset"

    os.remove(photos / "10_a.jpg")
    message = f"1 of 3 photos are missing .first: .*Flicker8k_Dataset/10_a.jpg.; {SOURCE}"
    refused(capsys, images.main, words, message)

    shutil.rmtree(photos)
    message = f"3 of 3 photos are missing .first: .*f8k/images/30_c.jpg.; {SOURCE}"
    refused(capsys, images.main, words, message)

    # A vocabulary needs no photos.
    assert len(read_split(str(tmp_path), "f8k", "train").captions) == 15


# Ways to break a file


def lose_the_first_tab(text):
    return text.replace("\t", " ", 1)


def repeat_a_caption(text):
    return text + "10_a.jpg#0\tanother\n"


def empty(text):
    return ""


def leave_a_blank_line(text):
    return "\n"


def name_a_file_elsewhere(text):
    return text + "../10_a.jpg\n"


@pytest.mark.parametrize(
    "name, change, message",
    [
        (
            "Flickr8k.token.txt",
            lose_the_first_tab,
            "line 1: '10_a.jpg#0 capt.* is not a new NAME#K",
        ),
        ("Flickr8k.token.txt", repeat_a_caption, "line 41: .* is not a new NAME#K"),
        (
            "Flickr8k.token.txt",
            empty,
            "has no caption of the 3 photos of .*trainImages.txt; use the files",
        ),
        (
            LISTS["train"],
            leave_a_blank_line,
            "trainImages.txt names no photo; unpack Flickr8k_text.zip again",
        ),
        (
            LISTS["train"],
            name_a_file_elsewhere,
            "trainImages.txt names the file '../10_a.jpg', which lies",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path, demo_path, name, change, message):
    write_flickr8k(tmp_path / "f8k", demo_path)
    if name == LISTS["train"]:
        with open(tmp_path / "f8k" / "Flickr8k.token.txt", "a", encoding="utf-8") as f:
            f.write("../10_a.jpg#0\ta photo elsewhere\n")
    path = tmp_path / "f8k" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "f8k", "train")


def test_other_splits_are_refused(tmp_path, demo_path):
    write_flickr8k(tmp_path / "f8k", demo_path)
    message = "has no split 'testall'; its splits are train, dev .= val. and test$"
    with pytest.raises(InputError, match=message):
        read_split(str(tmp_path), "f8k", "testall")
