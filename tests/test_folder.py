"""A folder of one's own photos as users have them: what is found, what is written, every stop and every refusal."""

import functools
import io
import json
import os
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

import images as pictures
from data import Split, check_data_set, check_extractors, read_split
from features import filters, folder
from features import images as command
from features.store import Part, read_images
from images import read_photo
from tests.helpers import refused
from utils import InputError

PARTS = "train", "dev", "test"


@pytest.fixture
def mine(tmp_path, demo_path):
    """A data path, and in it `photos` with 12 photos of the demo, four of them in a folder of their own."""
    (tmp_path / "photos" / "below").mkdir(parents=True)
    for n in range(12):
        folder = tmp_path / "photos"
        if n >= 8:
            folder = folder / "below"
        source = os.path.join(demo_path, "demo", "images", f"test_{n:05}.png")
        shutil.copy(source, folder / f"{n:02}.png")
    return tmp_path


def run(mine, *words, kind=("--cnn_type", "demo"), output="out"):
    """Compute the features of `photos` into `data`."""
    folders = ["--data_path", str(mine / "data"), "--photos", str(mine / "photos")]
    how = ["--workers", "0", "--output_name", output, "--device", "cpu"]
    command.main([*folders, *how, *kind, *map(str, words)])


def run_is_refused(capsys, mine, words, message):
    def main(words):
        run(mine, *words)

    refused(capsys, main, words, message)


def images(mine, output="out"):
    return read_images(str(mine / "data"), output)


def names_of(images):
    return [photo.name for photo in images.photos]


def splits(mine):
    return [read_split(str(mine / "data"), "out", part) for part in PARTS]


def files(mine, output="out"):
    """{name: contents} of the output."""
    return {path.name: path.read_bytes() for path in (mine / "data" / output).iterdir()}


def features_of(path):
    """The demo's features of a photo, from the definition."""
    return compute_features(path.read_bytes())


@functools.cache
def compute_features(content: bytes):
    photo = Image.open(io.BytesIO(content)).convert("RGB")
    photo = photo.resize((128, 128), Image.Resampling.BILINEAR)
    return filters.global_features(filters.region_features(np.asarray(photo)[None]))[0]


def assert_rows(out, photos):
    """Every row is that of its photo (of those that are there still)."""
    for name, row in zip(names_of(out), out.features.array):
        if (photos / name).exists():
            np.testing.assert_array_equal(row, features_of(photos / name))


def count_photos(monkeypatch, stop_after=None):
    """Numbers of photos that the network sees at a time; a batch ends with Ctrl-C's exception."""
    seen = []
    forward = filters.FilterNetwork.forward

    def watched(self, photos):
        if len(seen) == stop_after:
            raise KeyboardInterrupt
        seen.append(len(photos))
        return forward(self, photos)

    monkeypatch.setattr(filters.FilterNetwork, "forward", watched)
    return seen


# ---- what is found and written


def test_photos_become_rows_with_their_paths_as_names(mine, demo_path, capsys):
    """The same features as the demo's own, which a run on these accepts."""
    run(mine, "--photos", os.path.join(demo_path, "demo", "images"))

    shown = capsys.readouterr().out.splitlines()
    out = images(mine)
    assert len(shown) == 1
    assert "all_ims.npy: (84, 960) of demo_scenes global" in shown[0]
    assert sorted(files(mine)) == ["all_ids.txt", "all_ims.npy", "all_photos.json", "features.json"]
    assert json.loads(files(mine)["features.json"]) == {"ims": out.extractor}

    split = read_split(demo_path, "demo_precomp", "test")
    rows = [names_of(out).index(name) for name in split.photo_names]
    np.testing.assert_array_equal(out.features.array[rows], split.images.array)

    extractors = {"ims": out.extractor}
    own = Split("test", out.features, ["x"], np.zeros(1, int), "x", extractors=extractors)
    check_extractors(split.extractors, own, None, "run")
    of_regions = read_split(demo_path, "demo_region_precomp", "test")
    with pytest.raises(InputError, match="image features"):
        check_extractors(of_regions.extractors, own, None, "run")


OTHER_FILES = [
    "notes.txt",
    "film.MP4",
    "below/film.mp4",
    "README",
    ".hidden.png",
    ".cache/x.png",
    "a.png/x.txt",
]
FOLDERS_WITHOUT_PHOTOS = [
    "@eaDir",
    "#recycle",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
    ".thumbnails",
    "below/@eaDir",
    "Screenshots",
    "below/old",
]


def test_what_is_left_out_is_counted(mine, capsys):
    photos = mine / "photos"
    photo = photos / "00.png"

    for name in OTHER_FILES:
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(b"x")
    os.mkfifo(photos / "pipe.png")

    for name in FOLDERS_WITHOUT_PHOTOS:
        (photos / name).mkdir()
        shutil.copy(photo, photos / name / "x.png")

    shutil.copy(photo, os.fsencode(photos) + b"/latin-\xe9.png")
    shutil.copy(photo, photos / "two\nlines.png")

    away = mine / "away"
    away.mkdir()
    shutil.copy(photo, away / "a.png")
    os.symlink(away / "a.png", photos / "out.png")
    os.symlink(away, photos / "outside")
    os.symlink(photos, photos / "loop")
    os.symlink(photos / "below" / "08.png", photos / "again.png")
    os.symlink("nowhere", photos / "none.png")

    run(mine, "--exclude", "screen*", "Screen*", "below/old", "*7.png")

    shown = capsys.readouterr().out
    names = names_of(images(mine))
    assert len(names) == 11
    assert not [name for name in names if "x.png" in name]
    for note in (
        "other files: 6 left out, the first: 'README'",
        "names that are not UTF-8 or have a line break: 2 left out, the first: 'latin-\\udce9.png'",
        "that --exclude names: 3 left out, the first: '07.png'",
        "symbolic links: 5 left out, the first: 'again.png'",
    ):
        assert note in shown

    (photos / "Trip [1]").mkdir()
    shutil.copy(photo, photos / "Trip [1]" / "away.png")
    run(mine, "--exclude", "Trip [1]/*", output="without_trip")
    assert "Trip [1]/away.png" not in names_of(images(mine, "without_trip"))
    shutil.rmtree(photos / "Trip [1]")

    os.symlink(photos, mine / "linked")
    run(mine, "--photos", mine / "linked", output="by_link")
    assert len(names_of(images(mine, "by_link"))) == 14


def test_photos_of_phones_are_read_where_a_package_reads_them(tmp_path):
    pytest.importorskip("pillow_heif").register_heif_opener()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "a.HEIC", format="HEIF")
    assert folder.find_photos(str(tmp_path)) == (["a.HEIC"], [])
    assert read_photo(str(tmp_path / "a.HEIC")).size == (64, 48)


def test_photos_of_cameras_are_read_by_their_bytes(tmp_path, monkeypatch):
    """A JPEG that is named .HEIC, and RAW files with a preview that Pillow reads. Others are named as what they are."""

    def list_formats_without_pillow_heif():
        return ["JPEG", "TIFF"]

    monkeypatch.setattr(folder, "photo_formats", list_formats_without_pillow_heif)
    monkeypatch.setattr(pictures, "photo_formats", list_formats_without_pillow_heif)
    photo = Image.effect_noise((64, 48), 50)
    photo.save(tmp_path / "a.HEIC", format="JPEG")
    photo.save(tmp_path / "b.NEF", format="TIFF")
    photo.save(tmp_path / "c.dng", format="TIFF")
    for name in ("d.heic", "e.CR2", "f.arw", "g.raf", "h.mp4"):
        (tmp_path / name).write_bytes(b"II*\0\x08\0\0\0\0\0 noise")
    os.mkfifo(tmp_path / "i.nef")

    names, notes = folder.find_photos(str(tmp_path))

    assert names == ["a.HEIC", "b.NEF", "c.dng"]
    assert notes == [
        "photos of .heic, which are read after pip install pillow-heif: 1 left out, "
        "the first: 'd.heic'",
        "RAW photos, which are found once they are exported as JPEG: 4 left out, "
        "the first: 'e.CR2'",
        "other files: 1 left out, the first: 'h.mp4'",
    ]
    for name in names:
        assert read_photo(str(tmp_path / name)).size == (64, 48)

    _, notes = folder.find_photos(str(tmp_path), list_all=True)
    assert notes[1].endswith("all: 'e.CR2', 'f.arw', 'g.raf', 'i.nef'")


def test_only_new_contents_are_computed(mine, monkeypatch, capsys):
    """Photos that were renamed, moved or copied keep their features; deleted ones leave."""
    photos = mine / "photos"
    run(mine)
    first = files(mine)
    seen = count_photos(monkeypatch)

    capsys.readouterr()
    run(mine)
    assert files(mine) == first
    assert ", 0 of them computed now" in capsys.readouterr().out

    os.remove(photos / "03.png")
    os.rename(photos / "02.png", photos / "below" / "moved.png")
    os.rename(photos / "00.png", photos / "zz.png")
    shutil.copy(photos / "06.png", photos / "05.png")
    os.utime(photos / "04.png", (1, 1))  # the same bytes at another time
    run(mine)
    assert not seen
    assert ", 0 of them computed now" in capsys.readouterr().out

    Image.open(photos / "07.png").rotate(90).save(photos / "new.png")
    run(mine)
    assert sum(seen) == 1
    assert "1 of them computed now" in capsys.readouterr().out
    assert_rows(images(mine), photos)
    assert len(names_of(images(mine))) == 12


def test_what_was_computed_before_a_stop_is_not_computed_again(mine, monkeypatch):
    """Nor what another extractor computed. No file has its name before all are whole."""
    monkeypatch.setitem(command.PHOTOS_PER_STEP, "cpu", 4)
    out = mine / "data" / "out"
    run(mine)
    whole = files(mine)

    shutil.rmtree(out)
    with monkeypatch.context() as patch:
        count_photos(patch, stop_after=2)
        with pytest.raises(SystemExit):
            run(mine)
    assert sorted(path.suffix for path in out.iterdir()) == [".json", ".part"]

    (part,) = out.glob(".*.part")
    (part / "new").write_bytes(b"half")  # half a file, as a kill leaves it
    own = Part(str(out / "all_ims.npy"), "a")
    other = Part(str(out / "all_ims.npy"), "b")
    own["k"] = np.array([3, 4])
    assert own["k"].tolist() == [3, 4]
    assert "l" not in own
    assert "k" not in other

    seen = count_photos(monkeypatch)
    run(mine)
    assert seen == [4]
    assert files(mine) == whole


def test_two_processes_put_values_into_one_folder(mine, monkeypatch):
    """A value that is not whole is refused by name."""
    part = Part(str(mine / "all_ims.npy"), "a")
    save = np.save
    process_ids = iter((1, 2))

    def take_next_id():
        return next(process_ids)

    def save_beside(file, value):
        save(file, value)
        if value == 1:  # the second writes before the first renames its file
            part["l"] = np.array(2)

    monkeypatch.setattr(os, "getpid", take_next_id)
    monkeypatch.setattr(np, "save", save_beside)
    part["k"] = np.array(1)

    assert part["k"] == 1
    assert part["l"] == 2

    message = "is not a whole .npy file .*; delete it"
    with open(part.path_of("k"), "wb"), pytest.raises(InputError, match=message):
        part["k"]


def test_broken_photos_are_skipped_and_named_once(mine, monkeypatch, capsys):
    run(mine)
    seen = count_photos(monkeypatch)
    broken = mine / "photos" / "05.png"
    good = broken.read_bytes()

    broken.write_bytes(b"no picture")
    message = "the photo .*05.png cannot be read .*--skip_broken"
    run_is_refused(capsys, mine, [], message)
    assert len(names_of(images(mine))) == 12

    run(mine, "--skip_broken")
    shown = capsys.readouterr().err
    assert "1 of 12 photos of all cannot be read and are left out:" in shown
    assert sum("05.png" in line for line in shown.splitlines()) == 1
    assert len(names_of(images(mine))) == 11
    assert not seen
    assert_rows(images(mine), mine / "photos")

    broken.write_bytes(good)  # mended: one more row, and no other is computed again
    run(mine, "--skip_broken")
    assert sum(seen) == 1
    assert len(names_of(images(mine))) == 12

    for path in (mine / "photos").glob("**/*.png"):
        path.write_bytes(path.name.encode())
    message = "not one of the 12 photos of all can be read; the first: the photo"
    run_is_refused(capsys, mine, ["--skip_broken"], message)


def write_twelve_captions(mine):
    """One of each photo, which says its number."""
    lines = ["name,caption\n"]
    lines += [f"{n:02}.png,photo {n}\n" for n in range(8)]
    lines += [f"below/{n:02}.png,photo {n}\n" for n in range(8, 12)]
    (mine / "photos" / "captions.csv").write_text("".join(lines))


def assign_split_by_last_digit(name):
    return PARTS[ord(name[-5]) % 3]


def stop_at_replacement(number):
    """os.replace that stands for Ctrl-C after so many calls."""
    replace = os.replace
    left = iter(range(number))

    def stopping(*names):
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(*names)

    return stopping


def test_a_stop_at_any_write_is_mended_by_the_next_call(mine, monkeypatch):
    """A photo comes and goes at each stop, so that rows move; readers see the old state, the new one, or refuse."""
    photos = mine / "photos"
    write_twelve_captions(mine)
    monkeypatch.setattr(folder, "assign_split", assign_split_by_last_digit)
    run(mine)

    for stop in range(40):
        if stop % 2 == 0:
            shutil.move(photos / "02.png", mine / "kept.png")
        else:
            shutil.move(mine / "kept.png", photos / "02.png")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop_at_replacement(stop))
            try:
                run(mine)
                break  # nothing was left to stop
            except SystemExit:
                pass

        try:
            assert_rows(images(mine), photos)
        except InputError as error:
            sentence = "is not a whole list of photos (KeyError 'extractor'); call `python"
            assert sentence in str(error)

        run(mine)
        out = images(mine)
        assert_rows(out, photos)
        assert len(names_of(out)) == len(list(photos.glob("**/*.png")))
        train = splits(mine)[0]
        for name, row, caption in zip(train.photo_names, train.images.array, train.captions):
            np.testing.assert_array_equal(row, out.features.array[names_of(out).index(name)])
            assert caption == f"photo {int(name[-6:-4])}"

    assert stop > 10
    assert not [name for name in files(mine) if name.startswith(".")]


# ---- refusals


def test_refusals(mine, weights, capsys):
    """In a sentence each, and nothing is written."""
    (mine / "empty").mkdir()
    photos = mine / "photos"
    own = mine / "data" / "own"
    (photos / "data").mkdir()
    own.mkdir(parents=True)
    (own / "all_ims.npy").write_text("mine\n")
    cnn = ["--cnn_type", "resnet18", "--cnn_weights", weights]
    for words, message in (
        (["--folder", mine / "nowhere"], "nowhere is not a folder; give the folder that holds"),
        (["--photos", mine / "empty"], "empty holds no photo \\(it is empty\\); photos are files"),
        (
            ["--data_path", photos / "data"],
            "the output .*/photos/data/out is inside --folder .*photos, among the",
        ),
        (
            ["--output_name", "own"],
            "own/all_ims.npy already exists, and this command did not write it",
        ),
        (
            ["--data_name", "coco"],
            "--data_name is not for --folder FOLDER, a folder of your own photos; leave it",
        ),
        (
            ["--captions_per_image", 2],
            "--captions_per_image 2 needs captions, and there is no .*captions.csv",
        ),
        (
            ["--whole"],
            "--cnn_type demo has neither layers nor weights, and sees whole photos; leave --layer",
        ),
        ([*cnn, "--layer", "fc7"], "--layer fc7 is not a layer of resnet18"),
    ):
        run_is_refused(capsys, mine, words, message)
    assert not (mine / "data" / "out").exists()
    assert os.listdir(own) == ["all_ims.npy"]

    words = ["--data_name", "x", "--exclude", "x", "--output_name", "out"]
    refused(capsys, command.main, words, "--exclude is for --folder FOLDER")

    run(mine)
    words = ["--data_path", mine / "data", "--data_name", "out", "--output_name", "b"]
    refused(capsys, command.main, words, "there is no file .*out/train_caps.txt")


def test_another_folder_is_refused_and_a_moved_one_goes_on(mine, monkeypatch, capsys):
    run(mine)
    before = files(mine)
    seen = count_photos(monkeypatch)

    shutil.copytree(mine / "photos", mine / "other")
    message = (
        "out holds the photos of .*/photos, and these are of .*/other; give them an --output_name"
    )
    run_is_refused(capsys, mine, ["--photos", mine / "other"], message)
    assert files(mine) == before

    shutil.rmtree(mine / "photos")
    run(mine, "--photos", mine / "other")
    assert not seen
    assert images(mine).folder == str(mine / "other")


def test_read_images_refuses_what_does_not_belong_together(mine):
    """Another extraction computes it again."""
    run(mine)
    np.save(mine / "data" / "out" / "all_ims.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(InputError, match="has 3 rows for 12 photos in"):
        images(mine)

    run(mine)
    assert_rows(images(mine), mine / "photos")

    for content in ("[]", '{"photos": [[1]]}'):
        (mine / "data" / "out" / "all_photos.json").write_text(content)
        with pytest.raises(InputError, match="all_photos.json is not a whole list of photos"):
            images(mine)


# ---- captions


def copy_all(mine, demo_path):
    """Put all 84 photos of the demo into `photos`, and return their names."""
    shutil.rmtree(mine / "photos")
    shutil.copytree(os.path.join(demo_path, "demo", "images"), mine / "photos")
    return sorted(os.listdir(mine / "photos"))


def write_table(mine, rows, between=","):
    lines = [f"name{between}caption", *(between.join(row) for row in rows)]
    (mine / "photos" / "captions.csv").write_text("\n".join(lines) + "\n")


def split_of_each_photo(mine):
    """{name of a photo: name of its split}"""
    found = {}
    for split in splits(mine):
        found.update(dict.fromkeys(split.photo_names, split.name))
    return found


def test_captions_make_a_data_set_whose_splits_stay(mine, demo_path, capsys):
    """Photos with more captions than others lose some; every note says how many."""
    names = copy_all(mine, demo_path)
    rows = []
    for n, name in enumerate(names[:80]):
        rows.append((name, f"caption 0 of {name[:-4]}"))
        rows.append((name, f"caption 1 of {name[:-4]}"))
        if n % 4 > 0:
            rows.append((name, f"caption 2 of {name[:-4]}"))
    write_table(mine, [*rows, ("gone.png", "x"), (names[80], "  "), (names[81], "one")])

    run(mine, "--captions_per_image", 2)

    shown = capsys.readouterr().out
    for text in (
        "train_ims.npy: (",
        "captions of photos with more than 2 (--captions_per_image N keeps N): 60 left",
        "note: captions of photos that are not there: 1 left out, the first: 'gone.png'",
        "captions that are empty, nan, null or None: 1 left out",
        "photos with fewer than 2 captions: 4 left out, the first",
    ):
        assert text in shown
    assert check_data_set(str(mine / "data"), "out") == 0

    out = images(mine)
    for split in splits(mine):
        expected = []
        for name in split.photo_names:
            expected += [f"caption {k} of {name[:-4]}" for k in range(2)]
        assert split.captions == expected
        for name, row in zip(split.photo_names, split.images.array):
            np.testing.assert_array_equal(row, out.features.array[names_of(out).index(name)])
    before = split_of_each_photo(mine)
    assert sorted(before) == names[:80]
    assert 50 < list(before.values()).count("train") < 75

    shutil.copy(mine / "photos" / names[0], mine / "photos" / "0 new.png")
    rows = [(f"./{name}", "other") for name in reversed(names)]  # as find names them
    write_table(mine, [("0 new.png", "new"), *rows])
    run(mine)
    now = split_of_each_photo(mine)
    assert {name: now[name] for name in before} == before
    assert len(now) == 85


def test_the_split_of_a_photo_is_a_hash_of_its_name():
    parts = [folder.assign_split(f"photo {n}.jpg") for n in range(4000)]

    assert abs(parts.count("train") - 3200) < 100
    assert abs(parts.count("dev") - 400) < 80
    assert folder.assign_split("a.jpg") == "train"
    assert folder.assign_split("f.jpg") == "test"
    assert folder.assign_split("Ω.jpg") == "train"


def test_tables_of_spreadsheets(mine, demo_path):
    """Names with \\ for /, and accents in the other form of Unicode, quotes, line breaks and empty columns."""
    photos = mine / "photos"
    names = copy_all(mine, demo_path)
    os.mkdir(photos / "sub")
    os.rename(photos / names[0], photos / "sub" / "a b.png")
    os.rename(photos / names[1], photos / unicodedata.normalize("NFD", "Café.png"))
    rows = [
        ("sub\\a b.png", '"say ""hi"", you;\ntwo lines"'),
        (unicodedata.normalize("NFC", "Café.png"), "a café"),
        *((name, "x;") for name in names[2:]),
    ]
    write_table(mine, rows, between=";")
    path = photos / "captions.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))

    run(mine)

    captions = {}
    for split in splits(mine):
        captions.update(zip(split.photo_names, split.captions))
    assert captions["sub/a b.png"] == 'say "hi", you; two lines'
    assert captions[names[5]] == "x"
    assert "a café" in captions.values()
    assert len(captions) == 84


def test_captions_of_photos_that_cannot_be_read(mine, monkeypatch):
    """They are left out with their photos; a split of which none is left is named."""
    monkeypatch.setattr(folder, "assign_split", assign_split_by_last_digit)
    write_twelve_captions(mine)
    photos = (mine / "photos").glob("**/*.png")
    dev = [path for path in photos if assign_split_by_last_digit(path.name) == "dev"]

    dev[0].write_bytes(b"no picture")
    run(mine, "--skip_broken")
    split = splits(mine)[1]
    assert len(split.captions) == len(dev) - 1
    assert f"photo {int(dev[0].stem)}" not in split.captions

    for path in dev:
        path.write_bytes(b"no picture")
    message = f"not one of the {len(dev)} photos of dev can be read; the first: the photo"
    with pytest.raises(SystemExit, match=message):
        run(mine, "--skip_broken")


def test_wrong_tables(mine, capsys):
    """Of captions: named by their line, and nothing is written."""
    path = mine / "photos" / "captions.csv"
    for text, message in (
        (
            b"photo,text\n00.png,x\n",
            "begins with 'photo,text'; its first line has to be name,caption",
        ),
        (b"name,caption\n00.png,a dog, running\n", "line 2: it has 3 fields and the header has 2"),
        (b'name,caption\n00.png,"open\n', "line 2: unexpected end of data"),
        (
            b"name,caption\nx.png,a dog\n",
            "has no caption of the 12 photos, such as '00.png' .*the first: 'x.png'",
        ),
        (
            b"name,caption\n",
            "has no caption of the 12 photos, such as '00.png' .it has only its header.; names",
        ),
        (b"name,caption\n00.png,x\n", "no photo with captions, at least 1, is of .*names decide"),
        (b"name,caption\n00.png,\xe9\n", "captions.csv is not UTF-8 text"),
    ):
        path.write_bytes(text)
        run_is_refused(capsys, mine, [], message)

    lines = [f"{n:02}.png,x\n" for n in range(8)]
    path.write_text("name,caption\n" + "".join(lines))
    message = (
        "no photo with captions, at least 2, is of train and dev and test .*; "
        ".*smaller --captions_per_image"
    )
    run_is_refused(capsys, mine, ["--captions_per_image", 2], message)
    assert not (mine / "data" / "out").exists()
