"""Readers on data written in each format, batches, photos, vocabulary, and every bad input with its sentence."""
import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import data
from data import pair_batches, read_split
from inputs import Features, Photos
from vocab import END, SPECIALS, START, UNK, InputError, Vocabulary, tokenize


def write_precomp(folder, features, captions, split="train", ids=None):
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{split}_ims.npy", features)
    (folder / f"{split}_caps.txt").write_text("".join(f"{caption}\n" for caption in captions), encoding="utf-8")
    if ids is not None:
        (folder / f"{split}_ids.txt").write_text("".join(f"{i}\n" for i in ids))


def captions(n):
    return [f"caption number {k} of the set ." for k in range(n)]


FEATURES = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


# ---- vocabulary

def test_tokens_are_words_not_bytes():
    """The trap of the ported originals: str(bytes) turned 'a man' into the token b'a."""
    assert tokenize("A man's dog, running.") == ["a", "man", "'s", "dog", ",", "running", "."]


def test_vocabulary_order_threshold_and_specials():
    words = [["b"] * 5, ["a"] * 5, ["c"] * 9, ["rare"] * 3, ["<unk>"] * 9]
    vocab = Vocabulary.build(words, threshold=4)
    assert vocab.words == [*SPECIALS, "c", "a", "b"]
    assert vocab.encode(["a", "rare", "c"]) == [START, 5, UNK, 4, END]


def test_vocabulary_file_round_trip_and_bad_files(tmp_path):
    vocab = Vocabulary([*SPECIALS, "naïve", "“"])
    vocab.save(str(tmp_path / "v.json"))
    assert Vocabulary.load(str(tmp_path / "v.json")).words == vocab.words
    for content, message in (("not json", "not a JSON vocabulary"), ('{"words": [1]}', 'no list "words"'),
                             ('{"words": ["a"]}', "a vocabulary starts with")):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(InputError, match=message):
            Vocabulary.load(str(tmp_path / "bad.json"))


# ---- precomputed features

@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("regions", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_both_row_layouts(tmp_path, dtype, regions, repeated):
    features = (FEATURES if not regions else np.random.default_rng(1).standard_normal((4, 3, 6))).astype(dtype)
    write_precomp(tmp_path / "x_precomp", features.repeat(5, 0) if repeated else features, captions(20))
    split = read_split(str(tmp_path), "x_precomp", "train")
    assert len(split.images) == 4 and split.caption_image.tolist() == [k // 5 for k in range(20)]
    got = split.images.gather([3, 0, 3])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.numpy(), features[[3, 0, 3]].astype(np.float32))


def test_one_caption_an_image(tmp_path):
    features = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    write_precomp(tmp_path / "x", features, captions(20))
    split = read_split(str(tmp_path), "x", "train")
    assert len(split.images) == 20 and split.caption_image.tolist() == list(range(20))


def test_dev_is_cut_as_in_vsepp_and_val_is_its_other_name(tmp_path):
    write_precomp(tmp_path / "x", np.zeros((1014, 2), np.float16), captions(5070), "dev", ids=range(1014))
    for dev_images, expected in ((1000, 1000), (0, 1014), (3, 3)):
        split = read_split(str(tmp_path), "x", "val", dev_images=dev_images)
        assert (len(split.images), len(split.captions), len(split.image_ids)) == (expected, 5 * expected, expected)


def test_ids_of_images_and_of_captions(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, captions(20), ids=[10, 11, 12, 13])
    assert read_split(str(tmp_path), "x", "train").image_ids == [10, 11, 12, 13]
    write_precomp(tmp_path / "x", FEATURES, captions(20), ids=np.arange(10, 14).repeat(5))
    assert read_split(str(tmp_path), "x", "train").image_ids == [10, 11, 12, 13]


def test_batches_equal_a_loop_over_items(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, ["a b c .", "a", "b c", "c c c c c c", "a ."] * 4)
    split = read_split(str(tmp_path), "x", "train")
    vocab = Vocabulary.build(split.words, 1)
    tokens, order = split.encode(vocab), np.random.default_rng(0).permutation(20)
    seen = []
    for batch in pair_batches(split, tokens, order, 6):
        for k, m in enumerate(batch.caption_index.tolist()):
            expected = vocab.encode(tokenize(split.captions[m]))
            assert batch.tokens[k, :batch.lengths[k]].tolist() == expected
            assert batch.tokens[k, batch.lengths[k]:].sum() == 0
            assert batch.image_index[k] == m // 5
            torch.testing.assert_close(batch.images[k].numpy(), FEATURES[m // 5])
            seen.append(m)
        assert batch.tokens.shape[1] == batch.lengths.max()
    assert seen == order.tolist()
    skipped = [b.caption_index.tolist() for b in pair_batches(split, tokens, order, 6, skip=2)]
    assert sum(skipped, []) == order.tolist()[12:]


def test_worker_processes_give_the_same_batches(tmp_path, monkeypatch):
    write_precomp(tmp_path / "x", FEATURES, captions(20))
    split = read_split(str(tmp_path), "x", "train")
    tokens = split.encode(Vocabulary.build(split.words, 1))
    alone = list(pair_batches(split, tokens, np.arange(20), 6))
    monkeypatch.setattr(Features, "parallel", True)
    together = list(pair_batches(split, tokens, np.arange(20), 6, workers=2))
    assert all(torch.equal(x, y) for a, b in zip(alone, together, strict=True) for x, y in zip(a[:-1], b[:-1]))


# ---- photos: Karpathy's JSON and COCO

def test_karpathy_layout(demo_path):
    stored = json.load(open(os.path.join(demo_path, "demo", "dataset_demo.json")))
    for name, theirs in (("train", "train"), ("dev", "val"), ("test", "test")):
        split, images = read_split(demo_path, "demo", name), [i for i in stored["images"] if i["split"] == theirs]
        assert [os.path.basename(p) for p in split.images.paths] == [i["filename"] for i in images] == split.image_ids
        assert split.captions == [s["raw"] for i in images for s in i["sentences"]]
        assert list(split.faults(deep=True)) == []


def test_karpathy_coco_json_has_folders_ids_and_restval(tmp_path):
    images = [{"filename": f"{k}.jpg", "filepath": "val2014", "cocoid": 100 + k, "split": split,
               "sentences": [{"raw": f"words of {k}"}] * (k + 1)} for k, split in enumerate(["train", "restval", "test"])]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "dataset_coco.json").write_text(json.dumps({"images": images}))
    split = read_split(str(tmp_path), "c", "train", use_restval=True)
    assert split.image_ids == [100, 101] and split.caption_image.tolist() == [0, 1, 1]
    assert split.images.paths[1] == os.path.join(str(tmp_path), "c", "images", "val2014", "1.jpg")
    assert read_split(str(tmp_path), "c", "train").image_ids == [100]


def test_coco_layout(demo_path):
    root = os.path.join(demo_path, "demo_coco", "annotations")
    texts = {}
    for year in ("train2014", "val2014"):
        stored = json.load(open(os.path.join(root, f"captions_{year}.json")))
        texts.update({a["id"]: (a["caption"], a["image_id"]) for a in stored["annotations"]})
    for name in ("train", "dev", "test"):
        ids, split = np.load(os.path.join(root, f"coco_{name}_ids.npy")), read_split(demo_path, "demo_coco", name)
        assert split.caption_ids.tolist() == ids.tolist()
        assert split.captions == [texts[i][0] for i in ids]
        assert [split.image_ids[i] for i in split.caption_image] == [texts[i][1] for i in ids]
        assert list(split.faults(deep=True)) == []
    more = read_split(demo_path, "demo_coco", "train", use_restval=True)
    rest = np.load(os.path.join(root, "coco_restval_ids.npy"))
    assert more.caption_ids.tolist()[-len(rest):] == rest.tolist() and "val2014" in more.images.paths[-1]


def test_photos_are_transformed_as_in_vsepp(tmp_path):
    """Resize the short side to 256, cut the middle 224, ImageNet mean and deviation; grey and CMYK become RGB."""
    colour = Image.new("RGB", (300, 400), (200, 100, 50))
    colour.save(tmp_path / "rgb.png")
    colour.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    Image.new("L", (300, 300), 128).save(tmp_path / "grey.png")
    Image.new("P", (300, 300), 3).save(tmp_path / "palette.png")
    photos = Photos([str(tmp_path / n) for n in ("rgb.png", "cmyk.jpg", "grey.png", "palette.png")])
    batch = photos.gather([0, 1, 2, 3])
    assert batch.shape == (4, 3, 224, 224)
    expected = (np.array([200, 100, 50]) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(batch[0].mean((1, 2)), expected, atol=1e-5)
    np.testing.assert_allclose(batch[1].mean((1, 2)), expected, atol=0.1)
    assert len(set((batch[2].mean((1, 2)) * torch.tensor([0.229, 0.224, 0.225])
                    + torch.tensor([0.485, 0.456, 0.406])).mul(255).round().tolist())) == 1


def test_augmentation_depends_on_seed_epoch_and_caption_only(demo_path):
    split = read_split(demo_path, "demo", "train")
    tokens = split.encode(Vocabulary.build(split.words, 1))

    def photos(order, seed, workers=0, skip=0):
        batches = pair_batches(split, tokens, order, 4, crop_size=64, seed=seed, workers=workers, skip=skip)
        return {int(m): x for b in batches for m, x in zip(b.caption_index, b.images)}
    first = photos(np.arange(8), (0, 0))
    assert first[0].shape == (3, 64, 64) and (first[0] != first[1]).any()      # one image, two captions, two crops
    for again in (photos(np.arange(8)[::-1], (0, 0)), photos(np.arange(8), (0, 0), workers=2)):
        assert all(torch.equal(first[m], again[m]) for m in range(8))
    assert torch.equal(photos(np.arange(8), (0, 0), skip=1)[5], first[5])
    assert (photos(np.arange(8), (0, 1))[0] != first[0]).any()


# ---- what cannot be read

def refused(tmp_path, message, split="train", name="x", encode=False, **kwargs):
    with pytest.raises(InputError, match=message) as error:
        got = read_split(str(tmp_path), name, split, **kwargs).require_sound()
        if encode:
            got.encode(encode)
        for batch in got.images.gather([0]):
            assert batch is not None
    assert "\n" not in str(error.value)


def test_missing_data(tmp_path):
    refused(tmp_path, "there is no folder .*x .*README.md.*data.py check.*demo.py")
    (tmp_path / "x").mkdir()
    refused(tmp_path, "looked for train_caps.txt and train_ims.npy")
    (tmp_path / "x" / "train_caps.txt").write_text("a\n")
    refused(tmp_path, "there is no file .*train_ims.npy")


def test_captions_that_are_no_multiple_of_images(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, captions(19))
    refused(tmp_path, "19 captions for the 4 rows")


def test_bad_feature_files(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, captions(20))
    path = tmp_path / "x" / "train_ims.npy"
    whole = path.read_bytes()
    for bad in (whole[:-10], whole[:40], b"", b"text"):
        path.write_bytes(bad)
        refused(tmp_path, "train_ims.npy is not a whole .npy file")
    np.save(path, np.array([{"a": 1}] * 4, dtype=object), allow_pickle=True)
    refused(tmp_path, "train_ims.npy is not a whole .npy file of numbers")
    np.save(path, np.zeros((4, 6), np.int64))
    refused(tmp_path, "holds int64 of shape")
    np.save(path, np.zeros(4, np.float32))
    refused(tmp_path, "of shape .4,.; features are float16 or float32")
    for value in (np.nan, np.inf, -np.inf):
        broken = FEATURES.copy()
        broken[2, 3] = value
        np.save(path, broken)
        refused(tmp_path, "train_ims.npy holds NaN or infinity in row 2")


def test_rows_repeated_for_some_images_only(tmp_path):
    rows = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32).repeat(5, 0)
    rows[57] += 1
    write_precomp(tmp_path / "x", rows, captions(200))
    refused(tmp_path, "some images of the feature file stand in five equal rows")


def test_empty_and_unknown_captions(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, [*captions(7), " ", *captions(12)])
    refused(tmp_path, "train_caps.txt, caption 8 is empty")
    write_precomp(tmp_path / "x", FEATURES, [*captions(7), "zzz yyy", *captions(12)])
    refused(tmp_path, "caption 8: no word of 'zzz yyy' is in the vocabulary.*--vocab_threshold",
            encode=Vocabulary.build([tokenize(c) for c in captions(9)], 4))


def test_text_that_is_not_utf8(tmp_path):
    write_precomp(tmp_path / "x", FEATURES, captions(20))
    (tmp_path / "x" / "train_caps.txt").write_bytes(b"caf\xe9\n" * 20)
    refused(tmp_path, "is not UTF-8 text")


def test_bad_photos_are_named(tmp_path, demo_path):
    shutil.copytree(os.path.join(demo_path, "demo"), tmp_path / "x")
    split = read_split(str(tmp_path), "x", "train")
    whole = open(split.images.paths[0], "rb").read()
    for bad in (whole[:len(whole) // 2], b"no picture"):
        open(split.images.paths[0], "wb").write(bad)
        with pytest.raises(InputError, match=os.path.basename(split.images.paths[0])):
            split.images.gather([0])
        assert len(list(split.faults(deep=True))) == 1
        for workers in (0, 2):                                # the sentence crosses the process border whole
            with pytest.raises(InputError, match="^the photo .* cannot be read") as error:
                list(data.image_batches(split.images, 4, workers=workers))
            assert "Traceback" not in str(error.value)
    os.remove(split.images.paths[0])
    refused(tmp_path, "1 of 48 photos are missing, the first is .*" + os.path.basename(split.images.paths[0]))


def test_bad_json_and_foreign_layouts(tmp_path):
    (tmp_path / "x").mkdir()
    for content, message in (("{", "is not JSON"), ("[]", "not in Karpathy's layout"),
                             ('{"images": [{}]}', "Karpathy's layout"), ('{"images": []}', "no images of split 'train'")):
        (tmp_path / "x" / "dataset_x.json").write_text(content)
        refused(tmp_path, message)


@pytest.mark.parametrize("content", ['["x"]', '{"ims": 1}', "7"])
def test_extractors_that_are_no_object(tmp_path, content):
    write_precomp(tmp_path / "x", np.ones((2, 3)), captions(2))
    (tmp_path / "x" / "features.json").write_text(content)
    refused(tmp_path, "features.json is not a JSON object, file suffix to extractor; delete it")


def test_coco_ids_that_the_captions_lack(tmp_path, demo_path):
    shutil.copytree(os.path.join(demo_path, "demo_coco"), tmp_path / "x")
    path = tmp_path / "x" / "annotations" / "coco_dev_ids.npy"
    ids = np.load(path)
    absent = int(ids.max()) + 987654321
    np.save(path, np.append(ids, [absent, absent + 1]))
    refused(tmp_path, f"names 2 captions that .*captions_val2014.json lacks, the first is {absent}", "dev")
    path.write_bytes(path.read_bytes()[:50])
    refused(tmp_path, "coco_dev_ids.npy is not a whole .npy file", "dev")


def test_check_prints_what_is_there_and_every_fault(tmp_path, demo_path, capsys):
    assert data.check(demo_path, "demo_precomp") == 0
    shown = capsys.readouterr().out
    assert "train" in shown and "48 images" in shown and "vocabulary" in shown and "3 splits, 0 faults" in shown
    broken = FEATURES.copy()
    broken[1] = np.nan
    write_precomp(tmp_path / "x", broken, ["", *captions(19)])
    write_precomp(tmp_path / "x", FEATURES, captions(18), "dev")
    assert data.check(str(tmp_path), "x") == 4                # empty caption, NaN, 18 captions for 4 rows, no test split
    shown = capsys.readouterr().out
    for part in ("caption 1 is empty", "row 1", "18 captions for the 4 rows", "test_caps.txt"):
        assert part in shown


def test_worker_processes_leave_the_generator_of_training_alone(demo_path):
    """Dropout draws from it, and a resumed run starts its batches anew."""
    split = data.read_split(demo_path, "demo", "test")
    before = torch.get_rng_state()
    for _ in data.image_batches(split.images, 16, workers=1):
        pass
    assert torch.equal(torch.get_rng_state(), before)
