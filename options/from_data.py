"""What options of train.py the data settle, and which they contradict."""
from cli import InputError
from files.tars import TarPhotos
from inputs import NoImages, Photos
from model import ALL_SIMILARITIES, IMAGE_ENCODERS

READ_BY = {"vector": ("vector", "regions"), "regions": ("regions",), "cells": ("regions", "photos"),
           "photos": ("photos",)}


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, --img_dim, --n_regions and --txt_dim by a split's images and the features of its captions
    (None: the model reads words). Raises InputError where options and data do not fit."""
    photos = isinstance(images, Photos)
    held = "photos" if photos else "vector" if images.regions is None else "regions"
    given = f"one vector per image in {images.path}" if held == "vector" else held
    img_enc = ("cnn" if photos else "precomp") if opt.img_enc == "auto" else opt.img_enc
    implied = img_enc == ALL_SIMILARITIES[opt.sim].implies.get("img_enc")
    chooser = f"--sim {opt.sim}" if implied else f"--img_enc {img_enc}"
    other = "another --sim" if implied else f"--img_enc {'cnn' if photos else 'precomp'}"
    reads = " or ".join(READ_BY[IMAGE_ENCODERS[img_enc].reads])
    width = None if text is None else text.dim
    for wrong, sentence in (
            (photos and (opt.unpaired_images or opt.supervised_fraction < 1),
             f"--unpaired_images and --supervised_fraction need precomputed features, and {opt.data_name} has photos; "
             "extract features first: features.extract images"),
            (opt.use_restval and not photos,
             f"--use_restval adds COCO's restval photos, and {opt.data_name} has precomputed features, whose train "
             "split is what it is; leave it out"),
            (opt.use_restval and isinstance(images, TarPhotos),
             f"--use_restval adds COCO's restval photos, and {opt.data_name} has photos in tar shards, whose "
             "train split is what it is; leave it out"),
            (held not in READ_BY[IMAGE_ENCODERS[img_enc].reads],
             f"{chooser} reads {reads}, and {opt.data_name} has {given}; take {other}"
             + ", or give features of shape (images, regions, F)" * (img_enc != "cnn")),
            (opt.pool == "gpo" and (img_enc, held) != ("precomp", "regions"),
             f"--pool gpo pools regions with --img_enc precomp, and {opt.data_name} with --img_enc {img_enc} has none "
             "to pool; give features of shape (images, regions, F), or leave it out"),
            (opt.img_dim not in (None, images.dim) and not photos,
             f"--img_dim {opt.img_dim} differs from the {images.dim} of {getattr(images, 'path', '')}; leave --img_dim "
             "out"),
            (opt.n_regions not in (None, images.regions),
             f"--n_regions {opt.n_regions} differs from the {images.regions or 'single vector'} of each image in "
             f"{opt.data_name}; leave --n_regions out"),
            (opt.txt_dim not in (None, width),
             f"--txt_dim {opt.txt_dim} differs from the {width} of --text_features {opt.text_features}; leave it out")):
        if wrong:
            raise InputError(sentence)
    opt.img_enc, opt.img_dim, opt.n_regions, opt.txt_dim = img_enc, images.dim, images.regions, width


def check_fits(opt, split, path: str) -> None:
    """Refuse images and features of captions that the model of `path` cannot take."""
    images, text = split.images, split.text
    if text is not None and text.dim != opt.txt_dim:
        raise InputError(f"{text.path} has features of width {text.dim}, {path} was trained on width {opt.txt_dim}; "
                         "use features of the same vectors")
    if isinstance(images, NoImages):
        return
    needed = "cnn" if isinstance(images, Photos) else "precomp"
    photos = opt.img_enc == "cnn" or (opt.img_enc == "pie" and opt.img_dim is None)
    if photos != (needed == "cnn"):
        kind = {"cnn": "photos", "precomp": "precomputed features", "vsrn": "region features", "pie": "region features",
                "scan": "region features"}
        raise InputError(f"{path} was trained on {kind['cnn' if photos else opt.img_enc]} and the data are "
                         f"{kind[needed]}; name data of the same kind with --data_name")
    if opt.img_enc in ("vsrn", "pie", "scan") and not photos and images.array.ndim != 3:
        raise InputError(f"{path} reasons over regions and {images.path} holds one vector an image; give features of "
                         "shape (images, regions, F)")
    if needed == "precomp" and images.dim != opt.img_dim:
        raise InputError(f"{images.path} has features of width {images.dim}, {path} was trained on width "
                         f"{opt.img_dim}; use features of the same extractor")
    if opt.n_regions != images.regions and (opt.n_regions or opt.img_enc == "precomp"):
        raise InputError(f"{images.path} has {images.regions or 'no'} regions an image, {path} was trained on "
                         f"{opt.n_regions or 'one vector an image'}; use features of the same extractor")
