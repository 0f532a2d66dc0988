"""Right captions against wrong ones: arrays, files of SugarCrepe, ARO and Winoground, and trained models on drawn
scenes, against loops over what each definition says."""

import functools
import json

import numpy as np
import pytest
import torch

import evaluate
import metrics
from checkpoint import Trained
from demo.scenes import THING_COLOURS
from evaluation import evaluate_hard_negatives, evaluate_winoground
from evaluation.embeddings import Embeddings
from evaluation.hard_negatives import Quadruples, read_all, read_items
from tests.helpers import refused
from utils import InputError, read_lines


def cosine(x, y):
    """The cosine of two vectors, in float64."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def made_up(n=40, items=90, each=1, width=6, seed=0):
    """Images (N, D), right captions (K, D), wrong ones (K, J, D), and the row of each item's image."""
    rng = np.random.default_rng(seed)
    images, owner = rng.standard_normal((n, width)), rng.integers(n, size=items)
    captions = images[owner] + 1.5 * rng.standard_normal((items, width))
    negatives = images[owner][:, None] + 2 * rng.standard_normal((items, each, width))
    return images, captions, negatives, owner


# ---- arrays


@pytest.mark.parametrize("each", [1, 3])
def test_choices_equal_their_definition(each):
    images, captions, negatives, owner = made_up(each=each)
    hits, without = [], []
    for k, row in enumerate(owner):
        scores = [cosine(images[row], text) for text in (captions[k], *negatives[k])]
        hits.append(all(scores[0] > other for other in scores[1:]))
        blind = [
            np.mean([cosine(image, text) for image in images])
            for text in (captions[k], *negatives[k])
        ]
        without.append(all(blind[0] > other for other in blind[1:]))
    found = evaluate_hard_negatives(images, torch.tensor(captions), negatives.tolist(), owner)
    assert json.loads(json.dumps(found)) == found
    assert found["items"] == 90 and found["images"] == len(set(owner)) and found["ties"] == 0
    assert (
        found["text"]["accuracy"] == pytest.approx(100 * np.mean(hits))
        and 20 < 100 * np.mean(hits) < 90
    )
    assert found["text"]["chance"] == pytest.approx(100 / (1 + each))
    assert found["text"]["text_only"] == pytest.approx(100 * np.mean(without))
    assert found["text"]["low"] < found["text"]["accuracy"] < found["text"]["high"]

    right = [cosine(images[row], text) for row, text in zip(owner, captions)]
    wrong = [[cosine(images[row], text) for text in texts] for row, texts in zip(owner, negatives)]
    scored = evaluate_hard_negatives(scores=right, negative_scores=wrong, owner=owner)
    assert scored["text"].items() <= found["text"].items() and "text_only" not in scored["text"]
    if each == 1:  # one wrong caption an item, with and without an axis of its own
        assert evaluate_hard_negatives(images, captions, negatives[:, 0], owner) == found


def test_longer_and_shorter_captions_are_told_by_their_words():
    rng = np.random.default_rng(0)
    texts = ["a dog", "a dog runs .", "one two three", "a"]
    wrong = [["a", "dog"], ["a dog", "a dog runs fast ."], ["one", "two"], ["b", "c"]]
    found = evaluate_hard_negatives(
        scores=rng.random(4), negative_scores=rng.random((4, 2)), texts=texts, negative_texts=wrong
    )["text"]
    assert (found["longer"], found["shorter"]) == (
        50,
        0,
    )  # items 0 and 2; of equal lengths none is chosen
    swapped = evaluate_hard_negatives(
        scores=rng.random(2),
        negative_scores=rng.random(2),
        texts=["a", "a b c"],
        negative_texts=["a b", "a b"],
    )["text"]
    assert (swapped["longer"], swapped["shorter"]) == (50, 50)


def test_quadruples_equal_winogrounds_definition():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((300, 2, 5)).astype(np.float32)
    captions = (images + 1.5 * rng.standard_normal((300, 2, 5))).astype(np.float32)
    text, image, group = [], [], []
    for x, c in zip(images, captions):
        c0_i0, c0_i1, c1_i0, c1_i1 = (cosine(c[a], x[b]) for a in (0, 1) for b in (0, 1))
        # as in Winoground's own evaluation
        text.append(c0_i0 > c1_i0 and c1_i1 > c0_i1)
        image.append(c0_i0 > c0_i1 and c1_i1 > c1_i0)
        group.append(text[-1] and image[-1])
    found = evaluate_winoground(images, captions)
    for name, slow, chance in (("text", text, 25), ("image", image, 25), ("group", group, 100 / 6)):
        assert found[name]["accuracy"] == pytest.approx(100 * np.mean(slow))
        assert found[name]["chance"] == pytest.approx(chance)
    assert found["group"]["accuracy"] < min(found["text"]["accuracy"], found["image"]["accuracy"])

    scores = [
        [[cosine(c[a], x[b]) for b in (0, 1)] for a in (0, 1)] for x, c in zip(images, captions)
    ]
    assert evaluate_winoground(scores=scores) == found


def test_independent_scores_reach_the_chance_that_is_named(monkeypatch):
    few_samples = functools.partial(metrics.bootstrap_intervals, samples=10)  # not looked at
    monkeypatch.setattr(metrics, "bootstrap_intervals", few_samples)
    scores = np.random.default_rng(0).standard_normal((20_000, 2, 2))
    found = evaluate_winoground(scores=scores)
    for name in ("text", "image", "group"):
        assert found[name]["accuracy"] == pytest.approx(found[name]["chance"], abs=0.8)


def test_ties_count_as_wrong_and_are_counted():
    found = evaluate_hard_negatives(
        scores=[0.5, 0.5, 0.9, 0.1], negative_scores=[0.5, 0.4, 0.2, 0.3]
    )
    assert found["ties"] == 1 and found["text"]["accuracy"] == 50
    text_alone, image_alone = [[1, 1], [0, 2]], [[1, 0], [1, 2]]  # captions x images
    found = evaluate_winoground(
        scores=[[[1, 0], [0, 1]], text_alone, image_alone, [[1, 1], [1, 1]]]
    )
    assert [found[name]["accuracy"] for name in ("text", "image", "group")] == [50, 50, 25]
    assert found["ties"] == 3


def test_two_orders_of_the_same_words_tie_although_their_sums_are_rounded():
    rng = np.random.default_rng(0)
    words = rng.standard_normal((200, 9, 64)).astype(np.float32)  # of 200 captions of 9 words
    right, wrong = np.zeros((200, 64), np.float32), np.zeros((200, 64), np.float32)
    for k in range(9):
        right += words[:, k]
        wrong += words[:, 8 - k]
    assert (right != wrong).any(1).mean() > 0.9
    found = evaluate_hard_negatives(rng.standard_normal((200, 64)), right, wrong)
    assert found["ties"] == 200 and found["text"]["accuracy"] == 0


def test_the_interval_is_that_of_images_and_not_of_their_items():
    rng = np.random.default_rng(0)
    right = (rng.random(400) < 0.7).astype(float)
    alone = evaluate_hard_negatives(scores=right, negative_scores=np.full(400, 0.5))["text"]
    share = right.mean()
    spread = 196 * (share * (1 - share) / 400) ** 0.5
    assert alone["high"] - alone["accuracy"] == pytest.approx(spread, abs=0.4)
    assert alone["accuracy"] - alone["low"] == pytest.approx(spread, abs=0.4)
    repeated = evaluate_hard_negatives(  # the same of four items of each image
        scores=right.repeat(4), negative_scores=np.full(1600, 0.5), owner=np.arange(400).repeat(4)
    )["text"]
    assert {**repeated, "chance": 50.0} == alone


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "give images, captions, negatives, or scores and negative_scores"),
        ({"images": [[1.0]], "scores": [1.0]}, "give images, captions, negatives, or scores"),
        ({"images": [[1.0]], "captions": [[1.0]]}, "negatives is missing"),
        (
            {"scores": [1.0], "negative_scores": [1.0, 2.0]},
            "there are 1 right captions and 2 times wrong ones",
        ),
        (
            {"scores": [[1.0]], "negative_scores": [1.0]},
            "scores has shape (1, 1) of float64; give numbers with 1 axes",
        ),
        ({"scores": [np.nan], "negative_scores": [1.0]}, "NaN or infinity"),
        (
            {"scores": [1.0], "negative_scores": [1.0], "owner": [-1]},
            "owner is the row of each item's image",
        ),
        (
            {
                "scores": [1.0],
                "negative_scores": [2.0],
                "texts": ["a"],
                "negative_texts": [["b", "c"]],
            },
            "give one for each caption and 1 in each list",
        ),
        (
            {"images": [[1.0]], "captions": [[1.0, 2]], "negatives": [[1.0, 2]]},
            "the widths must be equal",
        ),
        (
            {"images": [[1.0]], "captions": [[1.0]], "negatives": [[1.0]], "sim": "kl"},
            "needs variances",
        ),
        (
            {"images": [[1.0]], "captions": [[1.0]], "negatives": [[1.0]], "sim": "cos"},
            "similarity 'cos'",
        ),
        (
            {"images": [[1.0]], "captions": [[1.0]] * 2, "negatives": [[1.0]] * 2},
            "2 items and 1 images",
        ),
    ],
)
def test_arrays_that_cannot_be_judged_are_a_value_error(arguments, message):
    with pytest.raises(ValueError) as error:
        evaluate_hard_negatives(**arguments)
    assert isinstance(error.value, InputError) and message in str(error.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "give images, captions, or scores"),
        ({"scores": np.ones((3, 2))}, "scores has shape (3, 2)"),
        ({"scores": np.ones((3, 2, 3))}, "scores (K, 2, 2), captions x images"),
        ({"images": np.ones((3, 2, 4)), "captions": np.ones((2, 2, 4))}, "differ in number"),
        (
            {"images": np.ones((3, 1, 4)), "captions": np.ones((3, 2, 4))},
            "images has shape (3, 1, 4)",
        ),
    ],
)
def test_quadruples_that_cannot_be_judged_are_a_value_error(arguments, message):
    with pytest.raises(ValueError) as error:
        evaluate_winoground(**arguments)
    assert message in str(error.value)


# ---- files


def items_of(**ids):
    return Embeddings("here", np.arange(4), 4, ids=ids)


def written(path, entries):
    path.write_text(json.dumps(entries), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "ids, images",
    [
        ({}, [2, 0]),
        ({"image_id": [7, 8, 391895, 9]}, [391895, 7]),
        ({"image_id": [7, 8, 391895, 9]}, ["000000391895.jpg", "COCO_val2014_000000000007.jpg"]),
        ({"image_name": ["a/x.jpg", "a/y.jpg", "a/z.jpg", "b/y.jpg"]}, ["z.jpg", "x"]),
        ({"image_name": ["a/x.jpg", "a/y.jpg", "a/z.jpg", "b/y.jpg"]}, ["a/z.jpg", "x.jpg"]),
        ({"image_name": ["a/x.jpg", "a/y.jpg", "a/z.jpg", "b/y.jpg"]}, [2, 0]),
    ],
)
def test_images_are_found_by_id_by_name_or_by_row(tmp_path, ids, images):
    entries = [{"image": image, "caption": "a", "negative_caption": "b"} for image in images]
    entries.append(
        {"image": "y.jpg", "caption": "a", "negative_caption": "c"}
    )  # none, or one of two
    items = read_items(written(tmp_path / "x.json", entries), items_of(**ids))
    assert items.image.tolist() == [2, 0] and items.left_out == 1
    assert [items.texts[number] for number in items.right] == ["a", "a"]


def test_the_forms_of_sugarcrepe_aro_and_json_lines_are_read(tmp_path):
    names = items_of(image_name=["1.jpg", "2.jpg", "3.jpg", "4.jpg"])
    sugarcrepe = {
        "0": {"filename": "2.jpg", "caption": "a red dog", "negative_caption": "a blue dog"},
        "1": {"filename": "4.jpg", "caption": "a cat", "negative_caption": "a hat"},
    }
    aro = [
        {
            "image_path": "2.jpg",
            "true_caption": "the cat",
            "false_caption": "the hat",
            "relation_name": "on",
        }
    ]
    several = [{"image": "1.jpg", "caption": "a", "negative_caption": ["b", "c", "b"]}]
    several.append({"image": "3.jpg", "caption": "b", "negative_caption": "a"})
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(json.dumps(entry) for entry in several) + "\n\n", encoding="utf-8")
    paths = [
        written(tmp_path / "add att.json", sugarcrepe),
        written(tmp_path / "aro.json", aro),
        str(lines),
    ]
    found = read_all(paths, names)
    assert list(found) == ["add_att", "aro", "lines"]
    assert found["add_att"].image.tolist() == [1, 3] and found["aro"].texts == [
        "the cat",
        "the hat",
    ]
    choices = found["lines"]
    assert choices.texts == ["a", "b", "c"] and choices.right.tolist() == [0, 1]
    assert choices.wrong.tolist() == [1, 2, 1, 0] and choices.item.tolist() == [0, 0, 0, 1]


def test_winogrounds_form_is_read(tmp_path):
    entry = {
        "id": 0,
        "image_0": "ex_0_img_0",
        "image_1": "ex_0_img_1",
        "caption_0": "a b",
        "caption_1": "b a",
        "tag": "x",
    }
    names = items_of(
        image_name=["ex_1_img_0.png", "ex_0_img_1.png", "ex_0_img_0.png", "ex_1_img_1.png"]
    )
    items = read_items(
        written(tmp_path / "w.json", [entry, {**entry, "image_1": "ex_9_img_1"}]), names
    )
    assert isinstance(items, Quadruples) and items.left_out == 1
    assert (
        items.image.tolist() == [[2, 1]]
        and items.caption.tolist() == [[0, 1]]
        and items.texts == ["a b", "b a"]
    )


RIGHT = {"image": 0, "caption": "a", "negative_caption": "b"}


@pytest.mark.parametrize(
    "entries, message",
    [
        ([], "holds no list of entries"),
        ("text", "holds no list of entries"),
        ([RIGHT, "text"], "has 'text' as an entry"),
        ([RIGHT, {"image": 0, "caption": "a"}], "has an entry without negative_caption"),
        ([{"caption": "a", "negative_caption": "b"}], "has an entry without image"),
        ([RIGHT, {**RIGHT, "caption": ""}], "has '' as caption, which is not text"),
        ([{**RIGHT, "negative_caption": []}], "negative_caption is empty"),
        ([{**RIGHT, "negative_caption": [3]}], "has 3 as negative_caption"),
        ([{**RIGHT, "image": 0.5}], "has 0.5 as image, which is not an id, a name or a row"),
        ([{**RIGHT, "image": True}], "has True as image"),
        ([{**RIGHT, "image": 9}], "has the images of none, such as 9"),
        (
            [{"image_0": 0, "image_1": 1, "caption_0": "a", "caption_1": "b"}, RIGHT],
            "has an entry without image_0",
        ),
    ],
)
def test_other_content_is_refused(tmp_path, entries, message):
    with pytest.raises(InputError) as error:
        read_items(written(tmp_path / "x.json", entries), items_of())
    assert message in str(error.value)


# ---- trained models on drawn scenes


def swap_colors(caption):
    """The caption with its first two different colors swapped, None where it has not two."""
    words = caption.split()
    places = [k for k, word in enumerate(words) if word in THING_COLOURS]
    for k in places[1:]:
        if words[k] != words[places[0]]:
            words[places[0]], words[k] = words[k], words[places[0]]
            return " ".join(words)
    return None


@pytest.fixture(scope="module")
def swapped(learned_runs, tmp_path_factory):
    """Two files of test captions of the demo that name two colors, each beside the same with the colors swapped, and
    as quadruples of two images and one caption of each."""
    folder, target = learned_runs / "data" / "demo_precomp", tmp_path_factory.mktemp("swapped")
    captions, ids = (
        read_lines(f"{folder}/test_caps.txt"),
        np.load(folder / "test_img_ids.npy").tolist(),
    )
    pairs = [(ids[k // 5], caption, swap_colors(caption)) for k, caption in enumerate(captions)]
    pairs = [pair for pair in pairs if pair[2]][:150]
    choices = [dict(zip(("image", "caption", "negative_caption"), pair)) for pair in pairs]
    quadruples = []
    for k in range(0, 495, 10):
        quadruple = (ids[k // 5], ids[k // 5 + 1], captions[k], captions[k + 5])
        quadruples.append(dict(zip(("image_0", "image_1", "caption_0", "caption_1"), quadruple)))
    written(target / "swap_color.json", choices)
    written(target / "quadruples.json", quadruples)
    return target, ids, choices, quadruples


@pytest.fixture(scope="module")
def slow_scores(learned_runs, swapped):
    """slow_scores(run, pairs): scores of (image id, caption) pairs one at a time, by a run on the demo."""
    features = np.load(learned_runs / "data" / "demo_precomp" / "test_ims.npy")
    ids = swapped[1]

    @functools.cache
    def load(run):
        return Trained(str(learned_runs / run))

    @functools.cache
    def embed_image(run, image):
        return load(run).images(features[[ids.index(image)]])

    @functools.cache
    def embed_caption(run, caption):
        return load(run).texts([caption], any_words=True)

    def call(run, pairs):
        found = []
        for image, caption in pairs:
            sides = (embed_image(run, image), embed_caption(run, caption))
            found.append(load(run).similarity(*sides).item())
        return found

    return call


@pytest.mark.parametrize("runs", [["wasserstein"], ["cosine"], ["cosine", "wasserstein"]])
def test_trained_models_choose_as_single_pairs_say(
    ev, capsys, learned_runs, swapped, slow_scores, runs
):
    target, _, choices, quadruples = swapped
    paths = [target / "swap_color.json", target / "quadruples.json"]
    found = ev("--checkpoint", *(learned_runs / run for run in runs), "--hard_negatives", *paths)[
        "hard_negatives"
    ]
    shown = capsys.readouterr().out

    def score(pairs):
        return np.mean([slow_scores(run, pairs) for run in runs], 0)

    right = score([(entry["image"], entry["caption"]) for entry in choices])
    wrong = score([(entry["image"], entry["negative_caption"]) for entry in choices])
    hits = right > wrong
    of_choices = found["swap_color"]
    assert of_choices["items"] == len(choices) > 100 and of_choices["left_out"] == 0
    # single and batched captions differ by rounding alone
    assert of_choices["text"]["accuracy"] == pytest.approx(
        100 * hits.mean(), abs=100 / len(choices)
    )
    assert of_choices["text"]["chance"] == 50 and of_choices["text"]["longer"] == 0

    scores = []
    for c in (0, 1):
        for i in (0, 1):
            scores.append(
                score([(entry[f"image_{i}"], entry[f"caption_{c}"]) for entry in quadruples])
            )
    c0_i0, c0_i1, c1_i0, c1_i1 = scores
    text, image = (c0_i0 > c1_i0) & (c1_i1 > c0_i1), (c0_i0 > c0_i1) & (c1_i1 > c1_i0)
    of_quadruples = found["quadruples"]
    for name, slow in (("text", text), ("image", image), ("group", text & image)):
        assert of_quadruples[name]["accuracy"] == pytest.approx(100 * slow.mean(), abs=2)
    assert of_quadruples["items"] == 50 and of_quadruples["group"]["accuracy"] > 100 / 6

    heads = ("items", "accuracy", "95% interval", "chance", "longer", "shorter", "without")
    assert "right captions against wrong ones (--hard_negatives), percent" in shown
    assert all(head in shown for head in heads) and "quadruples, group score" in shown


def test_models_are_compared_over_images(ev, capsys, learned_runs, swapped):
    target = swapped[0]
    runs = [learned_runs / "cosine", learned_runs / "wasserstein"]
    words = ("--hard_negatives", target / "swap_color.json")
    alone = [
        ev("--checkpoint", run, *words)["hard_negatives"]["swap_color"]["text"] for run in runs
    ]
    compared = ev("--compare", *runs, *words)
    found = compared["comparisons"][0]["metrics"]["hard_negatives:swap_color text accuracy"]
    assert [found["a"], found["b"]] == pytest.approx([text["accuracy"] for text in alone])
    assert found["low"] < found["difference"] < found["high"]
    assert "swap_color, text accuracy" in capsys.readouterr().out


def test_what_has_no_model_or_no_images_is_refused(ev, capsys, learned_runs, swapped, tmp_path):
    words = ["--hard_negatives", str(swapped[0] / "swap_color.json")]
    np.savez(
        "x.npz", image_mean=np.eye(3), caption_mean=np.eye(3), image_id=np.array(swapped[1][:3])
    )
    refused(
        capsys,
        evaluate.main,
        ["--embeddings", "x.npz", *words],
        "judge these in Python: evaluation.evaluate_hard_neg",
    )
    run = ["--checkpoint", str(learned_runs / "cosine")]
    refused(capsys, evaluate.main, [*run, "--hard_negatives", "no.json"], "no file no.json")
    refused(
        capsys, evaluate.main, [*run, *words, "--output", words[1], "--overwrite"], "is an input"
    )


def test_images_that_the_split_lacks_are_said(ev, capsys, learned_runs, swapped, tmp_path):
    some = [*swapped[2][:40], {**swapped[2][0], "image": 1}, {**swapped[2][1], "image": 2}]
    path = written(tmp_path / "some.json", some)
    found = ev("--checkpoint", learned_runs / "cosine", "--hard_negatives", path)["hard_negatives"][
        "some"
    ]
    assert (found["items"], found["left_out"]) == (40, 2)
    assert (
        "some: 2 entries are left out, since the split does not have their images"
        in capsys.readouterr().out
    )
