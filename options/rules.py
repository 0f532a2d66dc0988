"""Rules of train.py that rows of options cannot say: what follows from what, and what cannot work.

IMPLIED says what an option is where it was not given; CONFLICTS what cannot work together, with the
sentence that says so. `resolve` goes through them before any data is read, `fit_to_data` after.
"""
import os

import cli
from cli import InputError
from files.phrases import Labels, Regions, has_phrases
from files.tars import TarPhotos
from inputs import NoImages, Photos
from methods.jwae import learns_alone
from model import ALL_SIMILARITIES, IMAGE_ENCODERS, SHAPES, TEXT_ENCODERS
from options import refuse
from options.training import NETWORKS, SIDES, TRAIN, gaussians, prior

GAUSSIANS = [shape for shape in SHAPES if shape != "point"]


# ---- what options say of a model

def similarity(opt):
    return ALL_SIMILARITIES[opt.sim]


def needed_gaussians(opt) -> int:
    """How many sides must be Gaussian. With --vae both, whose samples are then compared as points,
    and with --loss probvlm both, whose means are."""
    return 2 if opt.vae or opt.loss == "probvlm" else similarity(opt).gaussian_sides


def means_learn(opt) -> bool:
    """Whether anything learns a mean."""
    given = opt.img_layers == opt.txt_layers == "0" and opt.txt_enc == "features"
    return not opt.freeze_means and not given


def unpaired(opt) -> bool:
    """Whether images or captions without partners are learned from."""
    return opt.unpaired_images or opt.unpaired_captions or opt.supervised_fraction < 1


def by_direction(opt, name: str) -> bool:
    """Whether the similarity compares points by their direction, as a term of jWAE does."""
    return opt.sim in ("cosine", "dot", "scan") or opt.sim in NETWORKS and name != "vae"


def has_phrases_of(opt) -> bool:
    """Whether the data are phrases and the regions of their photos."""
    return has_phrases(os.path.join(opt.data_path, opt.data_name))


def regions_of(opt, name: str | None = None) -> Regions:
    """Which proposals and features of them are read; name: others than those of the options. Runs
    from before there were any have no such options."""
    regions = Regions(*(getattr(opt, option, default) for option, default in zip(
        ("regions", "box_geometry", "box_origin"), Regions())))
    return regions._replace(name=name) if name else regions


def labels_of(opt) -> Labels:
    return Labels(opt.positive_iou, opt.negative_iou, opt.region_negatives)


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


def heads(opt) -> tuple[str, str]:
    """Of images and of captions: what was asked for, else what the similarity needs."""
    image, text = opt.image_head or opt.head, opt.text_head or opt.head
    usual = similarity(opt).implies.get("head", "ellipsoidal")
    if similarity(opt).gaussian_sides == 1:         # GCE, unless the image side is asked for
        if image is None:
            image = "point" if text in (None, *GAUSSIANS) else usual
        return image, text or (usual if image == "point" else "point")
    usual = usual if needed_gaussians(opt) else "point"
    return image or usual, text or usual


# ---- what follows from what, in the order in which one needs another

IMPLIED = {
    "localise": has_phrases_of,
    "embed_size": lambda o: 2048 if o.img_enc == "vsrn" else 1024,
    "txt_enc": lambda o: similarity(o).implies.get("txt_enc",
                                                   "features" if o.text_features else "gru"),
    "n_embeds": lambda o: similarity(o).implies.get("n_embeds", 1),
    "loss": lambda o: similarity(o).implies.get("loss", "hinge"),
    "var_min": lambda o: (1e-6 if o.loss == "probvlm" else
                          similarity(o).implies.get("var_min", 0.1)),
    "logvar_init": lambda o: similarity(o).implies.get("logvar_init", 0.0),
    "var_layers": lambda o: "256" if o.img_layers == "0" and o.image_head != "point"
    or o.txt_layers == "0" and o.text_head != "point" else None,  # of means that are given
    "label_smoothing": lambda o: 1e-4 if o.pseudo_positives else 0.0,
    "latent_norm": lambda o: ("none" if not prior(o) else
                              "batch" if o.loss == "mse" else "sphere"),
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
    refuse(CONFLICTS, opt)
    TRAIN.refuse_unused(opt, IMPLIED)


# ---- what cannot work together: (when, the sentence that says so, formatted with the options)

HERE = "and {data_name} has phrases and the regions of their photos"
OF_PHRASES = [
    (lambda o: o.loss in ("nll", "mse", "probvlm"),
     "--loss {loss} needs pairs that match one to one, and a phrase fits several regions of its "
     "photo; take hinge, infonce, match, two_branch, or logistic with --sim cite"),
    *((lambda o, name=name: getattr(o, name),
       f"--{name} {{{name}}} compares images with captions of their own, and a phrase fits several "
       "regions of its photo; leave it out")
      for name in ("inclusion", "captioner", "diversity", "mmd")),
    (lambda o: o.pseudo_positives,
     "--pseudo_positives {pseudo_positives} takes pairs without a label for matches, and regions "
     "and phrases have labels; leave it out"),
    (lambda o: o.mask_same_image,
     "--mask_same_image drops other captions of an image from the negatives, and of regions and "
     "phrases the labels say which are negatives; leave it out"),
    (lambda o: o.sim in ("mil", "match_prob", "scan"),
     f"--sim {{sim}} compares the parts or samples of an item, {HERE}; take another one"),
    (lambda o: o.img_enc not in ("auto", "precomp"),
     f"--img_enc {{img_enc}} does not read one vector an image, {HERE}; leave it out"),
    (unpaired,
     "--unpaired_images, --unpaired_captions and --supervised_fraction are for images and "
     f"captions, {HERE}; leave them out"),
    (lambda o: o.select == "hbr", f"--select hbr ranks captions for images, {HERE}; leave it out"),
    (lambda o: not has_phrases_of(o),
     "--localise needs a data set with Annotations/, as Flickr30k Entities, and {data_name} has "
     "none; leave it out"),
    (lambda o: o.negative_iou > o.positive_iou,
     "--negative_iou {negative_iou} lies above --positive_iou {positive_iou}; give a smaller one"),
]
TERMS = ("recon_images", "recon_captions", "prior_images", "prior_captions", "vae")
FEWEST_EPOCHS = {"ema": 3, "swa": 6}  # whose last third can be averaged
HEADS = "image head '{image_head}' and text head '{text_head}'"
BOTH = "needs a Gaussian on both sides"
ON_BOTH = f"give both sides one of {', '.join(GAUSSIANS)}"

CONFLICTS = [
    # several embeddings per item
    *((lambda o, name=name: o.sim == "mil" and getattr(o, name) != "pie",
       f"--sim mil compares several embeddings per item, and --{name} {{{name}}} makes one; leave "
       f"--{name} out (it is pie then), or take --sim cosine") for name in ("img_enc", "txt_enc")),
    (lambda o: o.n_embeds > 1 and o.sim != "mil",
     "--n_embeds {n_embeds} is for --sim mil, and --sim {sim} compares one embedding per item; "
     "leave it out"),
    (lambda o: o.diversity and o.n_embeds == 1,
     "--diversity {diversity} keeps several embeddings of an item apart, and there is one; take "
     "--sim mil with --n_embeds 2 or more, or leave it out"),
    (lambda o: o.txt_enc in ("pie", "bigru") and o.embed_size % 2,
     "--embed_size {embed_size} is odd, and --txt_enc {txt_enc} joins two directions of a GRU of "
     "half that size; give an even one"),
    # regions and words compared one by one
    (lambda o: o.img_enc == "scan" and o.sim != "scan",
     "--img_enc scan keeps every region of an image, and --sim {sim} does not compare them; take "
     "--sim scan, or leave --img_enc out"),
    (lambda o: o.sim == "scan" and o.text_features,
     "--text_features {text_features} are one vector per caption, and --sim scan compares words; "
     "leave it out, or take --sim cosine"),
    *((lambda o, name=name, needed=needed: o.sim == "scan" and getattr(o, name) != needed,
       f"--sim scan compares every region with every word, which --{name} {{{name}}} does not "
       f"leave; leave --{name} out")
      for name, needed in (("img_enc", "scan"), ("txt_enc", "gru"), ("pool", "mean"))),
    # text encoders
    (lambda o: (o.txt_enc == "features") != bool(o.text_features),
     "--txt_enc {txt_enc} and --text_features {text_features}: features are read by --txt_enc "
     "features, from the files that --text_features names; give both or neither"),
    (lambda o: TEXT_ENCODERS[o.txt_enc].reads == "trigrams" and o.txt_layers == "0",
     "--txt_layers 0: --txt_enc {txt_enc} needs a layer; give sizes, or leave it out for a single "
     "one"),
    *((lambda o, name=name: getattr(o, name) and TEXT_ENCODERS[o.txt_enc].reads == "trigrams",
       f"--{name} {{{name}}} is for features and word vectors, and --txt_enc {{txt_enc}} reads "
       "letter trigrams; leave it out") for name in ("dropout", "feature_noise")),
    (lambda o: o.word_vectors and TEXT_ENCODERS[o.txt_enc].reads != "words",
     "--word_vectors {word_vectors}: --txt_enc {txt_enc} has no word vectors; leave it out"),
    (lambda o: o.word_vectors and o.init_from and o.resume is None,
     "--word_vectors {word_vectors}: the words are those of --init_from {init_from}; leave it out"),
    (lambda o: o.word_vectors and o.resume is None and not os.path.isfile(o.word_vectors),
     "there is no file {word_vectors} of word vectors; `python -m features.word_vectors` learns "
     "some from the captions"),
    (lambda o: o.freeze_words and not (o.word_vectors or o.init_from),
     "--freeze_words keeps vectors of a file, or of a run, as they are; give --word_vectors FILE "
     "or --init_from RUN too"),
    # layers
    *((lambda o, name=name: o.layer_style == "branch" and "-" in (getattr(o, name) or ""),
       f"--{name} {{{name}}}: --layer_style branch has one hidden layer; give one size")
      for name in ("img_layers", "txt_layers")),
    # autoencoders
    (lambda o: o.recon_images and o.img_enc != "auto" and not IMAGE_ENCODERS[o.img_enc].target,
     "--recon_images {recon_images}: --img_enc {img_enc} learns what its embedding is given, so "
     "there is no fixed target; take --img_enc precomp or --sim scan"),
    (lambda o: o.recon_images and o.pool == "gpo",
     "--recon_images {recon_images}: --pool gpo makes one latent of all regions, which cannot give "
     "each of them back; take --pool mean or --sim scan"),
    (lambda o: o.recon_captions and not TEXT_ENCODERS[o.txt_enc].decoder,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} has no decoder; take gru, bigru, mean "
     "or features"),
    (lambda o: o.recon_captions and o.txt_enc in ("mean", "sum") and not o.freeze_words,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} would move its own target; keep the "
     "words as they are with --word_vectors FILE --freeze_words, or take gru or bigru"),
    *((lambda o, name=name: getattr(o, name) and not by_direction(o, name),
       f"--{name} is for points compared by their direction, not for --sim {{sim}}; take --sim "
       "cosine") for name in TERMS),
    (lambda o: o.vae and o.sim == "scan",
     "--vae {vae} samples one vector per item, and --sim scan compares parts; take --sim cosine"),
    (lambda o: o.word_dropout >= 1, "--word_dropout {word_dropout} is a share of the words; give "
                                    "less than 1"),
    *((lambda o, side=side: getattr(o, f"unpaired_{side}") and not learns_alone(o, side),
       f"--unpaired_{side} {{unpaired_{side}}}: nothing is learned from {side} without partners "
       f"here; give a weight, such as --recon_{side} or --prior_{side}, or leave it out")
      for side in SIDES),
    # objectives
    (lambda o: o.loss == "mse" and o.sim not in ("cosine", "dot"),
     "--loss mse draws matching points together, and --sim {sim} does not compare them; take --sim "
     "cosine"),
    (lambda o: o.loss == "two_branch" and o.no_imgnorm,
     "--no_imgnorm: --loss two_branch compares unit vectors; leave it out"),
    (lambda o: o.loss == "two_branch" and (o.sim != "cosine"
                                           or o.batch_size % 2 and not o.localise),
     "--loss two_branch compares points in batches of pairs of captions; --sim {sim} and "
     "--batch_size {batch_size} do not go with it: take cosine and an even number"),
    (lambda o: (o.sim in NETWORKS) != (o.loss == "logistic"),
     "--sim {sim} and --loss {loss}: the Similarity Network is --sim product with --loss logistic, "
     "and CITE --sim cite with it; give both or neither"),
    (lambda o: o.sim == "cite" and o.cite_layers.count("-") != 1,
     "--cite_layers {cite_layers}: --sim cite has a layer that all concepts share, and one for "
     "each; give two sizes, such as 1024-256"),
    (lambda o: o.loss == "nll" and o.negative_source == "batch" and o.negatives >= o.batch_size,
     "--negatives {negatives}: a batch of {batch_size} captions has one less to compare with; give "
     "fewer, a larger --batch_size, or --negative_source set"),
    (lambda o: unpaired(o) and o.negative_source == "set",
     "--negative_source set draws captions of its own and does not go with unpaired data; take "
     "batch"),
    # points and Gaussians
    (lambda o: o.vae and gaussians(o) != 2,
     f"--vae {{vae}} {BOTH}, not {HEADS}; {ON_BOTH}"),
    (lambda o: o.sim in ("mls", "vmf") and "ellipsoidal" in (o.image_head, o.text_head),
     f"--sim {{sim}} has one variance per item, not {HEADS}; leave the heads out, or make one side "
     "a point (--image_head point)"),
    (lambda o: o.loss == "probvlm" and o.sim not in ("cosine", "dot"),
     "--loss probvlm learns variances beside points, and --sim {sim} does not compare points; take "
     "--sim cosine"),
    *((lambda o, n=n: needed_gaussians(o) == n != gaussians(o)
       and not (similarity(o).point_side and gaussians(o)),
       f"--sim {{sim}} {wants}, not {HEADS}; {fix}") for n, wants, fix in (
        (0, "compares points",
         "leave the heads out, or choose a similarity of Gaussians such as wasserstein"),
        (1, "needs one Gaussian side and one point",
         f"give one of --image_head (GIE) and --text_head (GCE) one of {', '.join(GAUSSIANS)}"),
        (2, BOTH, ON_BOTH))),
    (lambda o: o.var_layers == "0", "--var_layers 0: variances need a hidden layer; give a size, "
                                    "such as 256"),
    (lambda o: o.freeze_means and not o.init_from and o.resume is None,
     "--freeze_means keeps the means of a trained run as they are; name it with --init_from RUN"),
    (lambda o: o.held_out and o.supervised_fraction == 1,
     "--held_out trains on the pairs that --supervised_fraction leaves out, and 1 leaves none; "
     "give that of the run whose other pairs are wanted, such as 0.7"),
    (lambda o: o.freeze_means and not gaussians(o),
     "--freeze_means leaves only variances to learn, and --sim {sim} has points; take a similarity "
     "of Gaussians, such as mls"),
    (lambda o: o.loss == "probvlm" and (means_learn(o)
                                        or {o.image_head, o.text_head} != {"ellipsoidal"}),
     "--loss probvlm learns ellipsoidal variances around means that are given, and here are "
     "image head '{image_head}', text head '{text_head}'; leave the heads out, and give "
     "--freeze_means with --init_from RUN, or --text_features NAME with --img_layers 0 "
     "--txt_layers 0"),
    (lambda o: o.inclusion and gaussians(o) != 2,
     f"--inclusion {{inclusion}} {BOTH}, not {HEADS}; leave it out"),
    (lambda o: o.vib and o.vae, "--vib {vib} and --vae {vae} draw the same Gaussians to N(0, I); "
                                "leave --vib out"),
    (lambda o: o.vib and not gaussians(o),
     "--vib {vib} needs a Gaussian side, and --sim {sim} has points; choose a similarity of "
     "Gaussians or leave it out"),
    # phrases in photos
    *((lambda o, wrong=wrong: o.localise and wrong(o), sentence) for wrong, sentence in OF_PHRASES),
    (lambda o: has_phrases_of(o) and not o.localise,
     "--no-localise: {data_name} has phrases and the regions of their photos, none of which is an "
     "image of its own; leave it out"),
    (lambda o: o.var_min >= o.var_max,
     "--var_min {var_min} and --var_max {var_max} are not in order; give a smaller --var_min"),
    # training
    (lambda o: o.train_shards and o.text_features,
     "--text_features {text_features} lie beside precomputed features, and --train_shards "
     "{train_shards} holds photos; leave one of them out"),
    (lambda o: o.max_violation and o.loss != "hinge", "--max_violation is for --loss hinge, not "
                                                      "{loss}; leave it out"),
    (lambda o: o.vse_mean_warmup_epochs and not o.max_violation,
     "--vse_mean_warmup_epochs delays --max_violation, which is off; give --max_violation too"),
    *((lambda o, kind=kind, fewest=fewest: o.average == kind and o.num_epochs < fewest,
       f"--average {kind} averages over the last third of the epochs, and of --num_epochs "
       f"{{num_epochs}} that is not enough; give at least {fewest}")
      for kind, fewest in FEWEST_EPOCHS.items()),
    (lambda o: o.warmup >= o.num_epochs,
     "--warmup {warmup:g} is as long as the training of --num_epochs {num_epochs}; give less"),
    (lambda o: o.captioner and o.img_enc != "vsrn",
     "--captioner {captioner} reads the regions of --img_enc vsrn, not of {img_enc}; give "
     "--img_enc vsrn too, or leave it out"),
    (lambda o: o.captioner and TEXT_ENCODERS[o.txt_enc].reads != "words",
     "--captioner {captioner} tells captions word by word, and --txt_enc {txt_enc} reads no words; "
     "take gru, or leave it out"),
    (lambda o: o.batch_size < 2, "--batch_size {batch_size} has no negatives to learn from; give "
                                 "at least 2, 128 is usual"),
    (lambda o: o.amp == "fp16" and cli.torch_device(o.device).type != "cuda",
     "--amp fp16 needs CUDA; on this device use --amp bf16 or off"),
    (lambda o: o.tf32 and cli.torch_device(o.device).type != "cuda",
     "--tf32 needs CUDA, as a CPU has no tf32; leave it out"),
    (lambda o: o.features_on == "device" and cli.torch_device(o.device).type != "cuda",
     "--features_on device needs CUDA; on this device use auto or host"),
    (lambda o: o.deterministic and o.finetune and o.cnn_type.startswith("vgg"),
     "--deterministic: torch has no deterministic gradient of {cnn_type}'s pooling on CUDA; take a "
     "resnet, or leave --finetune or --deterministic out"),
    (lambda o: o.vocab and not o.init_from,
     "--vocab {vocab} is the vocabulary of an original checkpoint that --init_from names; give "
     "both, or a vocabulary for training in --vocab_path"),
]

# ---- what several processes cannot share; n is their number

IN_ONE = "; train in one process, without torchrun"
SEVERAL = [
    (lambda o: o.localise,
     "{data_name} has phrases, whose photos {n} processes do not share yet" + IN_ONE),
    (lambda o: o.sim == "cite",
     "--sim cite normalises captions by the batch of one process, and there are {n}" + IN_ONE),
    (lambda o: o.finetune and not o.freeze_bn,
     "--finetune takes the statistics of BatchNorm from the batch of one process, and there are "
     "{n}; give --freeze_bn, which VSE++ had in effect"),
    (lambda o: o.captioner and o.captioner_original,
     "--captioner_original drops other numbers at each word, which {n} processes do not share; "
     "leave it out, or train in one process"),
]


def refuse_several(opt, processes: int) -> None:
    """Raises InputError where resolved options cannot be trained by so many processes."""
    if processes > opt.batch_size:
        raise InputError(f"--batch_size {opt.batch_size} is shared by {processes} processes, so "
                         "that some have nothing to do; give a larger one, or fewer processes "
                         "(--nproc_per_node)")
    if processes > 1:
        refuse(SEVERAL, opt, n=processes)


# ---- what the data settle, and what data a trained model can take

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
