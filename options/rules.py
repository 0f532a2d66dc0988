"""Rules of train.py that rows of options cannot say: what follows from what, and what cannot work.

IMPLIED says what an option is where it was not given. `conflicts` and its like give pairs: whether
something cannot work, and the sentence that says so, formatted with the options. `resolve` goes
through them before any data is read, `fit_to_data` after.
"""
import os

import cli
from files.phrases import Regions, has_phrases
from files.tars import TarPhotos
from inputs import NoImages, Photos
from methods.jwae import learns_alone
from model import ALL_SIMILARITIES, IMAGE_ENCODERS, SHAPES, TEXT_ENCODERS
from options import refuse
from options.training import NETWORKS, SIDES, TRAIN, gaussians, prior

# ---- what options say of a model

def similarity(opt):
    return ALL_SIMILARITIES[opt.sim]


def needed_gaussians(opt) -> int:
    """How many sides must be Gaussian. With --vae both, whose samples are then compared as points,
    and with --loss probvlm or volume both, whose means are."""
    return 2 if opt.vae or opt.loss in ("probvlm", "volume") else similarity(opt).gaussian_sides


def unpaired(opt) -> bool:
    """Whether images or captions without partners are learned from."""
    return opt.unpaired_images or opt.unpaired_captions or opt.supervised_fraction < 1


def has_phrases_of(opt) -> bool:
    """Whether the data are phrases and the regions of their photos."""
    return has_phrases(os.path.join(opt.data_path, opt.data_name))


def regions_of(opt, name: str | None = None) -> Regions:
    """Which proposals and features of them are read; name: others than those of the options."""
    return Regions(name or opt.regions, opt.box_geometry, opt.box_origin)


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


def heads(opt) -> tuple[str, str]:
    """Of images and of captions: what was asked for, else what the similarity needs."""
    image, text = opt.image_head or opt.head, opt.text_head or opt.head
    usual = similarity(opt).implies.get("head", "ellipsoidal")
    if similarity(opt).gaussian_sides == 1:         # GCE, unless the image side is asked for
        image = image or (usual if text == "point" else "point")
        return image, text or (usual if image == "point" else "point")
    usual = usual if needed_gaussians(opt) else "point"
    return image or usual, text or usual


# ---- what follows from what, in the order in which one needs another

IMPLIED = {
    "localise": has_phrases_of,
    "embed_size": lambda o: 2048 if o.img_enc == "vsrn" else 1024,
    "txt_enc": lambda o: similarity(o).implies.get(
        "txt_enc", "features" if o.text_features else "gru"
    ),
    "n_embeds": lambda o: similarity(o).implies.get("n_embeds", 1),
    "loss": lambda o: similarity(o).implies.get("loss", "hinge"),
    "var_min": lambda o: (
        1e-6 if o.loss in ("probvlm", "volume") else similarity(o).implies.get("var_min", 0.1)
    ),
    "logvar_init": lambda o: (
        -7.0 if o.loss == "volume" else similarity(o).implies.get("logvar_init", 0.0)
    ),
    "var_layers": lambda o: (
        "256"
        if o.img_layers == "0"
        and o.image_head != "point"
        or o.txt_layers == "0"
        and o.text_head != "point"
        else None
    ),  # of means that are given
    "label_smoothing": lambda o: 1e-4 if o.pseudo_positives else 0.0,
    "latent_norm": lambda o: "none" if not prior(o) else "batch" if o.loss == "mse" else "sphere",
    "max_violation": lambda o: similarity(o).gaussian_sides > 0 and o.loss == "hinge",
    "logger_name": default_run,
}


def resolve(opt) -> None:
    """Fill in what the options imply. Raise InputError where they cannot work, before any data is
    read."""
    if opt.img_enc == "auto":
        opt.img_enc = similarity(opt).implies.get("img_enc", "auto")
    opt.image_head, opt.text_head = heads(opt)
    opt.head = opt.image_head if opt.image_head == opt.text_head else None
    for name, value in IMPLIED.items():
        if getattr(opt, name) is None:
            setattr(opt, name, value(opt))
    if opt.no_imgnorm and opt.sim == "cosine":      # VSE0: its cosine is an inner product
        opt.sim = "dot"
    refuse(conflicts(opt), opt)
    TRAIN.refuse_unused(opt, IMPLIED)


# ---- what cannot work together

def conflicts(opt):
    for of in (of_encoders, of_autoencoders, of_objectives, of_gaussians):
        yield from of(opt)
    for wrong, sentence in of_phrases(opt):
        yield opt.localise and wrong, sentence
    yield from of_training(opt)


def of_encoders(opt):
    text = TEXT_ENCODERS[opt.txt_enc]
    # several embeddings per item
    for name in ("img_enc", "txt_enc"):
        yield opt.sim == "mil" and getattr(opt, name) != "pie", (
            f"--sim mil compares several embeddings per item, and --{name} {{{name}}} makes one; "
            f"leave --{name} out (it is pie then), or take --sim cosine")
    yield opt.n_embeds > 1 and opt.sim != "mil", (
        "--n_embeds {n_embeds} is for --sim mil, and --sim {sim} compares one embedding per item; "
        "leave it out")
    yield opt.diversity and opt.n_embeds == 1, (
        "--diversity {diversity} keeps several embeddings of an item apart, and there is one; "
        "take --sim mil with --n_embeds 2 or more, or leave it out")
    yield opt.txt_enc in ("pie", "bigru") and opt.embed_size % 2, (
        "--embed_size {embed_size} is odd, and --txt_enc {txt_enc} joins two directions of a GRU "
        "of half that size; give an even one")
    # regions and words compared one by one
    yield opt.img_enc == "scan" and opt.sim != "scan", (
        "--img_enc scan keeps every region of an image, and --sim {sim} does not compare them; "
        "take --sim scan, or leave --img_enc out")
    yield opt.sim == "scan" and opt.text_features, (
        "--text_features {text_features} are one vector per caption, and --sim scan compares "
        "words; leave it out, or take --sim cosine")
    for name, needed in (("img_enc", "scan"), ("txt_enc", "gru"), ("pool", "mean")):
        yield opt.sim == "scan" and getattr(opt, name) != needed, (
            f"--sim scan compares every region with every word, which --{name} {{{name}}} does "
            f"not leave; leave --{name} out")
    # captions and words
    yield (opt.txt_enc == "features") != bool(opt.text_features), (
        "--txt_enc {txt_enc} and --text_features {text_features}: features are read by --txt_enc "
        "features, from the files that --text_features names; give both or neither")
    yield text.reads == "trigrams" and opt.txt_layers == "0", (
        "--txt_layers 0: --txt_enc {txt_enc} needs a layer; give sizes, or leave it out for a "
        "single one")
    for name in ("dropout", "feature_noise"):
        yield getattr(opt, name) and text.reads == "trigrams", (
            f"--{name} {{{name}}} is for features and word vectors, and --txt_enc {{txt_enc}} "
            "reads letter trigrams; leave it out")
    yield opt.word_vectors and text.reads != "words", (
        "--word_vectors {word_vectors}: --txt_enc {txt_enc} has no word vectors; leave it out")
    yield opt.word_vectors and opt.init_from and opt.resume is None, (
        "--word_vectors {word_vectors}: the words are those of --init_from {init_from}; leave it "
        "out")
    yield opt.word_vectors and opt.resume is None and not os.path.isfile(opt.word_vectors), (
        "there is no file {word_vectors} of word vectors; `python -m features.word_vectors` "
        "learns some from the captions")
    yield opt.freeze_words and not (opt.word_vectors or opt.init_from), (
        "--freeze_words keeps vectors of a file, or of a run, as they are; give --word_vectors "
        "FILE or --init_from RUN too")
    for name in ("img_layers", "txt_layers"):
        yield opt.layer_style == "branch" and "-" in (getattr(opt, name) or ""), (
            f"--{name} {{{name}}}: --layer_style branch has one hidden layer; give one size")


def of_autoencoders(opt):
    text = TEXT_ENCODERS[opt.txt_enc]
    directions = opt.sim in ("cosine", "dot", "scan")       # the similarity compares them alone
    yield (opt.recon_images and opt.img_enc != "auto"
           and not IMAGE_ENCODERS[opt.img_enc].decoder), (
        "--recon_images {recon_images}: --img_enc {img_enc} learns what its embedding is given, "
        "so there is no fixed target; take --img_enc precomp or --sim scan")
    yield opt.recon_images and opt.pool == "gpo", (
        "--recon_images {recon_images}: --pool gpo makes one latent of all regions, which cannot "
        "give each of them back; take --pool mean or --sim scan")
    yield opt.recon_captions and not text.decoder, (
        "--recon_captions {recon_captions}: --txt_enc {txt_enc} has no decoder; take gru, bigru, "
        "mean or features")
    yield opt.recon_captions and opt.txt_enc in ("mean", "sum") and not opt.freeze_words, (
        "--recon_captions {recon_captions}: --txt_enc {txt_enc} would move its own target; keep "
        "the words as they are with --word_vectors FILE --freeze_words, or take gru or bigru")
    for name in ("recon_images", "recon_captions", "prior_images", "prior_captions", "vae"):
        fits = directions or opt.sim in NETWORKS and name != "vae"
        yield getattr(opt, name) and not fits, (
            f"--{name} is for points compared by their direction, not for --sim {{sim}}; take "
            "--sim cosine")
    yield opt.vae and opt.sim == "scan", (
        "--vae {vae} samples one vector per item, and --sim scan compares parts; take --sim cosine")
    yield opt.word_dropout >= 1, (
        "--word_dropout {word_dropout} is a share of the words; give less than 1")
    latents = prior(opt) or opt.recon_images or opt.recon_captions or opt.vae
    yield opt.text_anchor and latents, (
        "--text_anchor {text_anchor} gives a part of the embedding, and reconstruction, prior and "
        "--vae make latents of all of it; leave it out, or them")
    for side in SIDES:
        yield getattr(opt, f"unpaired_{side}") and not learns_alone(vars(opt), side), (
            f"--unpaired_{side} {{unpaired_{side}}}: nothing is learned from {side} without "
            f"partners here; give a weight, such as --recon_{side} or --prior_{side}, or leave it "
            "out")


def of_objectives(opt):
    yield opt.loss == "mse" and opt.sim not in ("cosine", "dot"), (
        "--loss mse draws matching points together, and --sim {sim} does not compare them; take "
        "--sim cosine")
    yield opt.loss == "two_branch" and opt.no_imgnorm, (
        "--no_imgnorm: --loss two_branch compares unit vectors; leave it out")
    odd = opt.batch_size % 2 and not opt.localise
    yield opt.loss == "two_branch" and (opt.sim != "cosine" or odd), (
        "--loss two_branch compares points in batches of pairs of captions; --sim {sim} and "
        "--batch_size {batch_size} do not go with it: take cosine and an even number")
    yield (opt.sim in NETWORKS) != (opt.loss == "logistic"), (
        "--sim {sim} and --loss {loss}: the Similarity Network is --sim product with --loss "
        "logistic, and CITE --sim cite with it; give both or neither")
    yield opt.sim == "cite" and opt.cite_layers.count("-") != 1, (
        "--cite_layers {cite_layers}: --sim cite has a layer that all concepts share, and one for "
        "each; give two sizes, such as 1024-256")
    few = opt.negative_source == "batch" and opt.negatives >= opt.batch_size
    yield opt.loss == "nll" and few, (
        "--negatives {negatives}: a batch of {batch_size} captions has one less to compare with; "
        "give fewer, a larger --batch_size, or --negative_source set")
    yield unpaired(opt) and opt.negative_source == "set", (
        "--negative_source set draws captions of its own and does not go with unpaired data; take "
        "batch")


KINDS = ", ".join(kind for kind in SHAPES if kind != "point")
HEADS = "image head '{image_head}' and text head '{text_head}'"
BOTH, ON_BOTH = "needs a Gaussian on both sides", f"give both sides one of {KINDS}"
NEEDS = [                             # Gaussian sides of a similarity, in words, and the fix
    (0, "compares points",
     "leave the heads out, or choose a similarity of Gaussians such as wasserstein"),
    (1, "needs one Gaussian side and one point",
     f"give one of --image_head (GIE) and --text_head (GCE) one of {KINDS}"),
    (2, BOTH, ON_BOTH)]


def of_gaussians(opt):
    sides, kinds = gaussians(opt), {opt.image_head, opt.text_head}
    yield opt.vae and sides != 2, f"--vae {{vae}} {BOTH}, not {HEADS}; {ON_BOTH}"
    yield opt.sim in ("mls", "vmf") and "ellipsoidal" in kinds, (
        f"--sim {{sim}} has one variance per item, not {HEADS}; leave the heads out, or make one "
        "side a point (--image_head point)")
    yield opt.loss in ("probvlm", "volume") and opt.sim not in ("cosine", "dot"), (
        "--loss {loss} learns variances beside points, and --sim {sim} does not compare points; "
        "take --sim cosine")
    fits = similarity(opt).point_side and sides
    for needed, wants, fix in NEEDS:
        yield needed_gaussians(opt) == needed != sides and not fits, (
            f"--sim {{sim}} {wants}, not {HEADS}; {fix}")
    yield opt.text_anchor and opt.no_imgnorm, (
        "--no_imgnorm: --text_anchor shares out the cosine of unit vectors; leave it out")
    second = "ellipsoidal" in kinds and not opt.var_layers and opt.loss != "probvlm"
    yield opt.text_anchor and second, (
        "--text_anchor {text_anchor} makes embeddings longer than what a second copy gives, here as "
        f"{HEADS}; take --var_layers 256, or --head spherical_logavg")
    yield opt.var_layers == "0", (
        "--var_layers 0: variances need a hidden layer; give a size, such as 256")
    yield opt.freeze_means and not opt.init_from and opt.resume is None, (
        "--freeze_means keeps the means of a trained run as they are; name it with --init_from RUN")
    yield opt.held_out and opt.supervised_fraction == 1, (
        "--held_out trains on the pairs that --supervised_fraction leaves out, and 1 leaves none; "
        "give that of the run whose other pairs are wanted, such as 0.7")
    yield opt.freeze_means and not sides, (
        "--freeze_means leaves only variances to learn, and --sim {sim} has points; take a "
        "similarity of Gaussians, such as mls")
    ready = opt.img_layers == opt.txt_layers == "0" and opt.txt_enc == "features"
    learns = not opt.freeze_means and not ready             # something learns a mean
    fit = kinds == {"ellipsoidal"} if opt.loss == "probvlm" else sides == 2
    yield opt.loss in ("probvlm", "volume") and (learns or not fit), (
        "--loss {loss} learns variances of both sides (probvlm: ellipsoidal ones) around means that "
        "are given, and here are image head '{image_head}', text head '{text_head}'; leave the heads "
        "out, and give --freeze_means with --init_from RUN, or --text_features NAME with "
        "--img_layers 0 --txt_layers 0")
    yield opt.inclusion and sides != 2, (
        f"--inclusion {{inclusion}} {BOTH}, not {HEADS}; leave it out")
    yield opt.vib and opt.vae, (
        "--vib {vib} and --vae {vae} draw the same Gaussians to N(0, I); leave --vib out")
    yield opt.vib and not sides, (
        "--vib {vib} needs a Gaussian side, and --sim {sim} has points; choose a similarity of "
        "Gaussians or leave it out")


HERE = "and {data_name} has phrases and the regions of their photos"


def of_phrases(opt):
    yield opt.loss in ("nll", "mse", "probvlm", "volume"), (
        "--loss {loss} needs pairs that match one to one, and a phrase fits several regions of "
        "its photo; take hinge, infonce, match, two_branch, or logistic with --sim cite")
    for name in ("inclusion", "captioner", "diversity", "mmd"):
        yield getattr(opt, name), (
            f"--{name} {{{name}}} compares images with captions of their own, and a phrase fits "
            "several regions of its photo; leave it out")
    yield opt.pseudo_positives, (
        "--pseudo_positives {pseudo_positives} takes pairs without a label for matches, and "
        "regions and phrases have labels; leave it out")
    yield opt.mask_same_image, (
        "--mask_same_image drops other captions of an image from the negatives, and of regions "
        "and phrases the labels say which are negatives; leave it out")
    yield opt.sim in ("mil", "match_prob", "scan"), (
        f"--sim {{sim}} compares the parts or samples of an item, {HERE}; take another one")
    yield opt.img_enc not in ("auto", "precomp"), (
        f"--img_enc {{img_enc}} does not read one vector an image, {HERE}; leave it out")
    yield unpaired(opt), (
        "--unpaired_images, --unpaired_captions and --supervised_fraction are for images and "
        f"captions, {HERE}; leave them out")
    yield opt.select == "hbr", f"--select hbr ranks captions for images, {HERE}; leave it out"
    yield not has_phrases_of(opt), (
        "--localise needs a data set with Annotations/, as Flickr30k Entities, and {data_name} "
        "has none; leave it out")
    yield opt.negative_iou > opt.positive_iou, (
        "--negative_iou {negative_iou} lies above --positive_iou {positive_iou}; give a smaller "
        "one")


def of_training(opt):
    yield has_phrases_of(opt) and not opt.localise, (
        "--no-localise: {data_name} has phrases and the regions of their photos, none of which is "
        "an image of its own; leave it out")
    yield opt.var_min >= opt.var_max, (
        "--var_min {var_min} and --var_max {var_max} are not in order; give a smaller --var_min")
    yield opt.train_shards and opt.text_features, (
        "--text_features {text_features} lie beside precomputed features, and --train_shards "
        "{train_shards} holds photos; leave one of them out")
    yield opt.max_violation and opt.loss != "hinge", (
        "--max_violation is for --loss hinge, not {loss}; leave it out")
    yield opt.vse_mean_warmup_epochs and not opt.max_violation, (
        "--vse_mean_warmup_epochs delays --max_violation, which is off; give --max_violation too")
    for kind, fewest in (("ema", 3), ("swa", 6)):           # whose last third can be averaged
        yield opt.average == kind and opt.num_epochs < fewest, (
            f"--average {kind} averages over the last third of the epochs, and of --num_epochs "
            f"{{num_epochs}} that is not enough; give at least {fewest}")
    yield opt.warmup >= opt.num_epochs, (
        "--warmup {warmup:g} is as long as the training of --num_epochs {num_epochs}; give less")
    yield opt.captioner and opt.img_enc != "vsrn", (
        "--captioner {captioner} reads the regions of --img_enc vsrn, not of {img_enc}; give "
        "--img_enc vsrn too, or leave it out")
    yield opt.captioner and TEXT_ENCODERS[opt.txt_enc].reads != "words", (
        "--captioner {captioner} tells captions word by word, and --txt_enc {txt_enc} reads no "
        "words; take gru, or leave it out")
    yield opt.batch_size < 2, (
        "--batch_size {batch_size} has no negatives to learn from; give at least 2, 128 is usual")
    for on_cuda, sentence in (
            (opt.amp == "fp16", "--amp fp16 needs CUDA; on this device use --amp bf16 or off"),
            (opt.tf32, "--tf32 needs CUDA, as a CPU has no tf32; leave it out"),
            (opt.features_on == "device",
             "--features_on device needs CUDA; on this device use auto or host")):
        yield on_cuda and cli.torch_device(opt.device).type != "cuda", sentence
    yield opt.deterministic and opt.finetune and opt.cnn_type.startswith("vgg"), (
        "--deterministic: torch has no deterministic gradient of {cnn_type}'s pooling on CUDA; "
        "take a resnet, or leave --finetune or --deterministic out")
    yield opt.vocab and not opt.init_from, (
        "--vocab {vocab} is the vocabulary of an original checkpoint that --init_from names; give "
        "both, or a vocabulary for training in --vocab_path")


# ---- what several processes cannot share; n is their number

IN_ONE = "train in one process, without torchrun"


def refuse_several(opt, processes: int) -> None:
    """Raises InputError where resolved options cannot be trained by so many processes."""
    several = processes > 1
    refuse([
        (processes > opt.batch_size,
         "--batch_size {batch_size} is shared by {n} processes, so that some have nothing to do; "
         "give a larger one, or fewer processes (--nproc_per_node)"),
        (several and opt.localise,
         f"{{data_name}} has phrases, whose photos {{n}} processes do not share yet; {IN_ONE}"),
        (several and opt.sim == "cite",
         "--sim cite normalises captions by the batch of one process, and there are {n}; "
         f"{IN_ONE}"),
        (several and opt.finetune and not opt.freeze_bn,
         "--finetune takes the statistics of BatchNorm from the batch of one process, and there "
         "are {n}; give --freeze_bn, which VSE++ had in effect"),
        (several and opt.captioner and opt.captioner_original,
         "--captioner_original drops other numbers at each word, which {n} processes do not "
         "share; leave it out, or train in one process")], opt, n=processes)


# ---- what the data settle, and what data a trained model can take

READ_BY = {"vector": ("vector", "regions"), "regions": ("regions",),
           "cells": ("regions", "photos"), "photos": ("photos",)}
SHAPE = "give features of shape (images, regions, F)"
NAMES = {"vector": "precomputed features", "regions": "region features",
         "cells": "region features", "photos": "photos"}


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, --img_dim, --n_regions and --txt_dim by a split's images and the features
    of its captions (None: the model reads words). Raise InputError where options and data do not
    fit."""
    photos = isinstance(images, Photos)
    kind = "photos" if photos else "vector" if images.regions is None else "regions"
    img_enc = ("cnn" if photos else "precomp") if opt.img_enc == "auto" else opt.img_enc
    reads = READ_BY[IMAGE_ENCODERS[img_enc].reads]
    chooser, other = f"--img_enc {img_enc}", f"--img_enc {'cnn' if photos else 'precomp'}"
    if img_enc == similarity(opt).implies.get("img_enc"):
        chooser, other = f"--sim {opt.sim}", "another --sim"
    of_data = {"img_dim": images.dim, "n_regions": images.regions, "txt_dim": text and text.dim}
    refuse([
        (photos and (opt.unpaired_images or opt.supervised_fraction < 1),
         "--unpaired_images and --supervised_fraction need precomputed features, and {data_name} "
         "has photos; extract features first: features.extract images"),
        (opt.use_restval and (not photos or isinstance(images, TarPhotos)),
         "--use_restval adds COCO's restval photos, and {data_name} has "
         f"{'photos in tar shards' if photos else 'precomputed features'}, whose train split is "
         "what it is; leave it out"),
        (kind not in reads,
         f"{chooser} reads {' or '.join(reads)}, and {{data_name}} has "
         f"{'one vector per image in {images.path}' if kind == 'vector' else kind}; take {other}"
         + f", or {SHAPE}" * (img_enc != "cnn")),
        (opt.pool == "gpo" and (img_enc, kind) != ("precomp", "regions"),
         f"--pool gpo pools regions with --img_enc precomp, and {{data_name}} with --img_enc "
         f"{img_enc} has none to pool; {SHAPE}, or leave it out"),
        *((getattr(opt, name) not in (None, value) and not (photos and name == "img_dim"),
           f"--{name} {{{name}}} differs from the {value or 'none'} of {{data_name}}; leave "
           f"--{name} out") for name, value in of_data.items())], opt, images=images)
    vars(opt).update(of_data, img_enc=img_enc)


def check_fits(opt, split, path: str) -> None:
    """Raise InputError on images or features of captions that the model of path cannot take, which
    was trained as the options say."""
    refuse(misfits(opt, split), opt, images=split.images, text=split.text, path=path)


def misfits(opt, split):
    images, text = split.images, split.text
    yield text is not None and text.dim != opt.txt_dim, (
        "{text.path} has features of width {text.dim}, {path} was trained on width {txt_dim}; use "
        "features of the same vectors")
    if isinstance(images, NoImages):
        return
    reads, are_photos = IMAGE_ENCODERS[opt.img_enc].reads, isinstance(images, Photos)
    photos = reads == "photos" or reads == "cells" and opt.img_dim is None
    yield photos != are_photos, (
        f"{{path}} was trained on {NAMES['photos' if photos else reads]} and the data are "
        f"{NAMES['photos' if are_photos else 'vector']}; name data of the same kind with "
        "--data_name")
    if photos:
        return
    yield "vector" not in READ_BY[reads] and images.regions is None, (
        f"{{path}} reasons over regions and {{images.path}} holds one vector an image; {SHAPE}")
    yield images.dim != opt.img_dim, (
        "{images.path} has features of width {images.dim}, {path} was trained on width {img_dim}; "
        "use features of the same extractor")
    yield opt.n_regions != images.regions and (opt.n_regions or opt.img_enc == "precomp"), (
        f"{{images.path}} has {images.regions or 'no'} regions an image, {{path}} was trained on "
        f"{opt.n_regions or 'one vector an image'}; use features of the same extractor")
