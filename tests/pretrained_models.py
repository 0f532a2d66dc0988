"""Small pretrained models of random weights, as save_pretrained of transformers writes them."""

import importlib.util
import io
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from methods.pretrained import import_transformers

TEXTS = [
    "a red circle above a blue star .",
    "Two GREEN squares, left of it",
    "a dog",
    "the yellow triangle is smaller than the red one; a café " * 3,
]
# Photos by their width and height: wide, tall, odd, and smaller than the networks read.
SHAPES = [(61, 40), (33, 58), (47, 47), (20, 31)]
SIDE = 32  # pixels of a photo that the networks read
LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SMALL_PHOTOS = {**LAYERS, "image_size": SIDE, "patch_size": 8}


def need_transformers():
    """Import transformers. Skips the test without it."""
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs transformers: pip install -r methods/requirements-pretrained.txt")
    return import_transformers()


def draw_photos() -> list[Image.Image]:
    """Draw photos of SHAPES, of smooth random colors."""
    rng = np.random.default_rng(0)
    photos = []
    for width, height in SHAPES:
        pixels = rng.integers(0, 256, (5, 6, 3), np.uint8)
        photos.append(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))
    return photos


COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230), "white": (255,) * 3}
PLACES = {
    "top left": (0, 0),
    "top right": (20, 0),
    "bottom left": (0, 20),
    "bottom right": (20, 20),
}


def write_drawn_photos(folder) -> None:
    """Write a data set of 16 photos, a square each, with two captions, in Karpathy's layout.

    All splits hold the same photos, so that evaluation says how well they were learned.
    """
    os.makedirs(folder / "images")
    images = []
    for color, pixels in COLORS.items():
        for place, corner in PLACES.items():
            photo = Image.new("RGB", (44, 44), (90, 90, 90))
            photo.paste(pixels, (*corner, corner[0] + 24, corner[1] + 24))
            name = f"{color} {place}.png"
            photo.save(folder / "images" / name)
            texts = [f"a {color} square at the {place}", f"{place}: something {color.upper()}"]
            images.append({"filename": name, "sentences": [{"raw": text} for text in texts]})

    named = []
    for split in ("train", "val", "test"):
        os.makedirs(folder / "images" / split)
        for image in images:
            os.link(
                folder / "images" / image["filename"], folder / "images" / split / image["filename"]
            )
            named.append({**image, "filepath": split, "split": split})

    with open(folder / "dataset_drawn.json", "w", encoding="utf-8") as file:
        json.dump({"images": named}, file)


def join_texts() -> str:
    """Join texts whose letters and words a small tokenizer should know."""
    return " ".join(TEXTS).lower()


def write_clip(folder: str) -> None:
    """Write a CLIP: a network of photos, one of captions, their processor and tokenizer."""
    transformers = need_transformers()
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "re", "red</w>"]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    merges = [("r", "e"), ("re", "d</w>")]

    tokenizer = transformers.CLIPTokenizer(vocab=numbers, merges=merges, model_max_length=40)

    end = numbers["<|endoftext|>"]
    text = {
        **LAYERS,
        "vocab_size": len(pieces),
        "max_position_embeddings": 40,
        "projection_dim": 16,
        "bos_token_id": end - 1,
        "eos_token_id": end,
        "pad_token_id": end,
    }

    photos = {**SMALL_PHOTOS, "projection_dim": 16}
    config = transformers.CLIPConfig(text_config=text, vision_config=photos, projection_dim=16)
    transformers.CLIPModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": SIDE}
    crop = {"height": SIDE, "width": SIDE}
    transformers.CLIPImageProcessor(size=size, crop_size=crop).save_pretrained(folder)


def write_siglip(folder: str) -> None:
    """Write a SigLIP, whose tokenizer is a file of sentencepiece."""
    transformers = need_transformers()
    import sentencepiece

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([join_texts()] * 50),
        model_writer=content,
        vocab_size=60,
        hard_vocab_limit=False,
        bos_id=-1,
        pad_id=-1,
        unk_id=0,
        eos_id=1,
        minloglevel=2,
    )

    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "spiece.model")
    with open(path, "wb") as file:
        file.write(content.getvalue())

    # as those of Google: the network reads padding like any piece, and so no mask
    tokenizer = transformers.SiglipTokenizer(
        path, model_max_length=24, model_input_names=["input_ids"]
    )

    text = {
        **LAYERS,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 24,
        "projection_size": 32,
    }
    config = transformers.SiglipConfig(text_config=text, vision_config=SMALL_PHOTOS)
    transformers.SiglipModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.SiglipImageProcessor(size=size).save_pretrained(folder)


def write_vit(folder: str) -> None:
    """Write a ViT that classifies photos, as most of those that one can fetch."""
    transformers = need_transformers()
    config = transformers.ViTConfig(**SMALL_PHOTOS, num_labels=3)
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder)


def write_dinov2(folder: str) -> None:
    """Write a DINOv2, which reads photos of another size than its config says."""
    transformers = need_transformers()
    sizes = {name: LAYERS[name] for name in LAYERS if name != "intermediate_size"}
    config = transformers.Dinov2Config(**sizes, mlp_ratio=2, image_size=40, patch_size=8)
    transformers.Dinov2Model(config).save_pretrained(folder)
    size = {"shortest_edge": SIDE + 5}
    crop = {"height": SIDE, "width": SIDE}
    transformers.BitImageProcessor(size=size, crop_size=crop).save_pretrained(folder)


def write_bert(folder: str) -> None:
    """Write a BERT that predicts words, as most of those that one can fetch."""
    transformers = need_transformers()
    words = sorted({*join_texts().replace(";", " ").replace(",", " ").split()} - {"star"})
    letters = [letter for letter in "abcdefghijklmnopqrstuvwxyz.,;" if letter not in words]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = transformers.BertTokenizer(vocab=numbers, model_max_length=30)
    config = transformers.BertConfig(**LAYERS, vocab_size=len(pieces), max_position_embeddings=30)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


WRITERS = {
    "clip": write_clip,
    "siglip": write_siglip,
    "vit": write_vit,
    "dinov2": write_dinov2,
    "bert": write_bert,
}


def write_model(folder, kind: str) -> str:
    """Write a small model of WRITERS; return its folder."""
    need_transformers()
    torch.manual_seed(0)
    WRITERS[kind](str(folder))
    return str(folder)


def change_json(path, **values) -> None:
    """Change values of an object in a JSON file."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**content, **values}, file)
