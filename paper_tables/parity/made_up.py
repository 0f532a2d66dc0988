"""Made-up data sets in the layouts that train.py reads, for comparisons without real data."""

import os

import numpy as np
import torch
from PIL import Image

from images import import_torchvision
from utils import save_array, save_json, save_lines

VOCABULARY_SIZE = 200  # words, of which all captions are made
WORDS_PER_IMAGE = 12
TOY_CAPTIONS_PER_IMAGE = 5
TOY_REGIONS = {"vectors": None, "regions": 9, "cells": 49}  # of an image, by what a system reads


def write_data(folder: str, reads: str, seed: int = 0, dim: int = 64) -> str:
    """Write a data set of "vectors", "regions", "cells" or "photos" into a folder.

    Return the flags that name it. Every image has 12 words, and its captions some of these.
    """
    name = f"made_up_{reads}"
    path = os.path.join(folder, name)
    rng = np.random.default_rng(seed)
    os.makedirs(path)
    if reads != "photos":
        write_features(path, TOY_REGIONS[reads], dim, rng)
        return f"--data_path {folder} --data_name {name}"

    write_photos(path, rng)
    weights = os.path.join(folder, "resnet18.pth")
    torch.save(import_torchvision().models.resnet18(weights=None).state_dict(), weights)
    return f"--data_path {folder} --data_name {name} --cnn_weights {weights}"


def draw_captions(words: np.ndarray, rng: np.random.Generator) -> list[str]:
    """Draw five captions of 4 to 10 of an image's words."""
    captions = []
    for _ in range(TOY_CAPTIONS_PER_IMAGE):
        chosen = rng.choice(words, rng.integers(4, 11), replace=False)
        captions.append(" ".join(f"w{word}" for word in chosen))
    return captions


def write_features(folder: str, regions: int | None, dim: int, rng: np.random.Generator) -> None:
    """Write 160 training and 60 dev images as features (dim,), or regions (P, dim), of norm 1.

    Every word has a random vector. A feature is the sum of those of its image's words, a region is
    one of them, both with noise.
    """
    vectors = rng.standard_normal((VOCABULARY_SIZE, dim))
    for split, count in (("train", 160), ("dev", 60)):
        features = []
        captions = []
        for _ in range(count):
            words = rng.choice(VOCABULARY_SIZE, WORDS_PER_IMAGE, replace=False)
            if regions is None:
                exact = vectors[words].sum(0)  # (dim,)
            else:
                exact = vectors[rng.choice(words, regions)]  # (P, dim)
            feature = exact + rng.standard_normal(exact.shape)
            norm = np.linalg.norm(feature, axis=-1, keepdims=True)
            features.append(feature / norm)
            captions += draw_captions(words, rng)
        save_array(os.path.join(folder, f"{split}_ims.npy"), np.array(features, np.float32))
        save_lines(os.path.join(folder, f"{split}_caps.txt"), captions)


def write_photos(folder: str, rng: np.random.Generator) -> None:
    """Write 40 training and 4 dev photos of 40 x 40 random pixels, in Karpathy's layout."""
    os.makedirs(os.path.join(folder, "images"))
    images = []
    for split, count in (("train", 40), ("val", 4)):
        for _ in range(count):
            name = f"{len(images)}.png"
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(os.path.join(folder, "images", name))
            words = rng.choice(VOCABULARY_SIZE, WORDS_PER_IMAGE, replace=False)
            sentences = [{"raw": caption} for caption in draw_captions(words, rng)]
            images.append({"split": split, "filename": name, "sentences": sentences})
    save_json({"images": images}, os.path.join(folder, "dataset_made_up.json"))
