"""What options of train.py the data settle, and what data a trained model can take."""
from cli import InputError
from files.tars import TarPhotos
from inputs import NoImages, Photos
from model import ALL_SIMILARITIES, IMAGE_ENCODERS

READ_BY = {"vector": ("vector", "regions"), "regions": ("regions",),
           "cells": ("regions", "photos"), "photos": ("photos",)}
SHAPE = "give features of shape (images, regions, F)"
KINDS = {"cnn": "photos", "precomp": "precomputed features", "vsrn": "region features",
         "pie": "region features", "scan": "region features"}     # by --img_enc


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, --img_dim, --n_regions and --txt_dim by a split's images and the features
    of its captions (None: the model reads words). Raise InputError where options and data do not
    fit."""
    photos = isinstance(images, Photos)
    held = "photos" if photos else "vector" if images.regions is None else "regions"
    img_enc = ("cnn" if photos else "precomp") if opt.img_enc == "auto" else opt.img_enc
    reads = READ_BY[IMAGE_ENCODERS[img_enc].reads]
    if photos and (opt.unpaired_images or opt.supervised_fraction < 1):
        raise InputError("--unpaired_images and --supervised_fraction need precomputed features, "
                         f"and {opt.data_name} has photos; extract features first: "
                         "features.extract images")
    if opt.use_restval and (not photos or isinstance(images, TarPhotos)):
        kind = "photos in tar shards" if photos else "precomputed features"
        raise InputError(f"--use_restval adds COCO's restval photos, and {opt.data_name} has "
                         f"{kind}, whose train split is what it is; leave it out")
    if held not in reads:
        implied = img_enc == ALL_SIMILARITIES[opt.sim].implies.get("img_enc")
        chooser = f"--sim {opt.sim}" if implied else f"--img_enc {img_enc}"
        other = "another --sim" if implied else f"--img_enc {'cnn' if photos else 'precomp'}"
        given = f"one vector per image in {images.path}" if held == "vector" else held
        raise InputError(f"{chooser} reads {' or '.join(reads)}, and {opt.data_name} has {given}; "
                         f"take {other}" + f", or {SHAPE}" * (img_enc != "cnn"))
    if opt.pool == "gpo" and (img_enc, held) != ("precomp", "regions"):
        raise InputError(f"--pool gpo pools regions with --img_enc precomp, and {opt.data_name} "
                         f"with --img_enc {img_enc} has none to pool; {SHAPE}, or leave it out")
    of_data = {"img_dim": images.dim, "n_regions": images.regions, "txt_dim": text and text.dim}
    for name, value in of_data.items():
        given = getattr(opt, name)
        if given not in (None, value) and not (photos and name == "img_dim"):
            raise InputError(f"--{name} {given} differs from the {value or 'none'} of "
                             f"{opt.data_name}; leave --{name} out")
    vars(opt).update(of_data, img_enc=img_enc)


def check_fits(opt, split, path: str) -> None:
    """Raise InputError on images or features of captions that the model of path cannot take, which
    was trained as the options say."""
    images, text = split.images, split.text
    if text is not None and text.dim != opt.txt_dim:
        raise InputError(f"{text.path} has features of width {text.dim}, {path} was trained on "
                         f"width {opt.txt_dim}; use features of the same vectors")
    if isinstance(images, NoImages):
        return
    photos = opt.img_enc == "cnn" or (opt.img_enc == "pie" and opt.img_dim is None)
    given = "cnn" if isinstance(images, Photos) else "precomp"
    if photos != (given == "cnn"):
        raise InputError(f"{path} was trained on {KINDS['cnn' if photos else opt.img_enc]} and the "
                         f"data are {KINDS[given]}; name data of the same kind with --data_name")
    if photos:
        return
    if "vector" not in READ_BY[IMAGE_ENCODERS[opt.img_enc].reads] and images.regions is None:
        raise InputError(f"{path} reasons over regions and {images.path} holds one vector an "
                         f"image; {SHAPE}")
    if images.dim != opt.img_dim:
        raise InputError(f"{images.path} has features of width {images.dim}, {path} was trained on "
                         f"width {opt.img_dim}; use features of the same extractor")
    if opt.n_regions != images.regions and (opt.n_regions or opt.img_enc == "precomp"):
        raise InputError(f"{images.path} has {images.regions or 'no'} regions an image, {path} was "
                         f"trained on {opt.n_regions or 'one vector an image'}; use features of "
                         "the same extractor")
