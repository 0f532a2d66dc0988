"""Words and short phrases: the photos that name them, data that hold them, and how many photos are said to fit."""
import types

import numpy as np
import pytest
import torch

from data import Split
from images import Features
from losses import Embedding
from methods.words import photos_naming, phrase_of, short_texts
from photos import words
from photos.probability import Probabilities
from vocab import tokenize

CAPTIONS = ["A young black dog runs .", "Two dogs in the snow", "a man with a dog-lead", "running men",
            "a photo of a dog ."]


@pytest.mark.parametrize("text, phrase", [("a dog .", ("dog",)), ("dogs", ("dog",)), ("The young black dogs", (
    "young", "black", "dog")), ("a young black dog runs", None), (".", None), ("running", ("run",))])
def test_a_short_text_is_a_phrase_of_stems(text, phrase):
    assert phrase_of(tokenize(text)) == phrase


def test_the_short_texts_of_a_caption_are_its_words_and_the_ends_of_its_runs_of_words():
    assert short_texts(tokenize(CAPTIONS[0])) == {"young", "black", "dog", "runs", "dog runs", "black dog runs"}
    assert short_texts(tokenize(CAPTIONS[4])) == {"dog"} and short_texts(["the", ","]) == set()


def test_photos_name_what_stands_in_one_of_their_captions_in_a_row():
    named = photos_naming([("dog",), ("black", "dog"), ("run",), ("dog", "snow"), ("cat",)], map(tokenize, CAPTIONS),
                          np.array([4, 4, 7, 7, 2]))
    assert named == {("dog",): {4, 2}, ("black", "dog"): {4}, ("run",): {4, 7}, ("dog", "snow"): set(), ("cat",): set()}


# ---- the yardstick

def test_numbers_are_judged_by_what_captions_name(tmp_path):
    """A model that knows each word: the score of a photo is 1 where its captions name it, 0 elsewhere."""
    captions = ["a dog", "a cat", "a dog", "a sheep", "a dog", "a cat", "a dog", "the cow", "a dog", "a cat"] * 2
    np.save(tmp_path / "x.npy", np.eye(10, dtype=np.float32))
    split = Split("test", Features(str(tmp_path / "x.npy")), captions[:10], np.arange(10), "x")
    names = ["dog", "cat", "sheep", "cow"]

    def embed(texts):
        phrases = [phrase_of(tokenize(text)) for text in texts]
        return Embedding(torch.tensor([[float(phrase == phrase_of(tokenize(caption))) for caption in captions[:10]]
                                       for phrase in phrases]))
    model = types.SimpleNamespace(captions=embed, device="cpu", similarity=lambda a, b: a.mean @ b.mean.T,
                                  model=types.SimpleNamespace(embed_images=lambda x: Embedding(x)))
    results = words.judge(model, Probabilities(1.0, "x", [20.0, 0.0, -10.0]), [split], ["pony", "a sheep", *names])
    row = results["words of 3 to 9 photos, with an article"]
    assert (row["texts"], row["said"], row["true"], row["absent"]) == (2, pytest.approx(4, abs=0.01), 4, 0)
    assert row["factor"] == pytest.approx(1, abs=0.01) and row["rho"] == pytest.approx(1) and row["first"] == 0.4
    absent = results["names that no caption has, bare"]
    assert (absent["texts"], absent["absent"], absent["said"]) == (1, 1, 0) and "rho" not in absent
    assert "words of 30 photos and more, bare" not in results            # nothing is asked
