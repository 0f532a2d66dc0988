"""Rules of train.py: what follows from what, and what cannot work.

IMPLIED says what an option is where it was not given. `conflicts` and its like give pairs: whether
something cannot work, and the sentence that says so, formatted with the options. `resolve` goes
through them before any data is read, `fit_to_data` after.
"""
import os

from cli import check
from data import NoImages, Photos
from losses import SIMILARITIES, VAR_MAX, trait
from model import HEADS, IMAGE_ENCODERS, TEXT_ENCODERS
from options import refuse

NETWORKS = ("product", "cite")        # similarities that read each pair by themselves, unit vectors
POINTS = ("cosine", "dot")
LATENTS = (*POINTS, "scan", *NETWORKS)                      # compare latents by their direction


# ---- what options say of a model

def similarity(opt):
    return SIMILARITIES[opt.sim]


def gaussians(opt) -> int:
    """How many sides are Gaussian."""
    return (opt.image_head != "point") + (opt.text_head != "point")


def prior(opt) -> bool:
    return bool(opt.prior_images or opt.prior_captions)


def needed_gaussians(opt) -> int:
    """How many sides must be Gaussian. With --vae both, whose samples are then compared as points,
    and with --loss volume both, whose means are."""
    return 2 if opt.vae or opt.loss == "volume" else trait(similarity(opt), "gaussian_sides")


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


def heads(opt) -> tuple[str, str]:
    """Of images and of captions: what was asked for, else what the similarity needs."""
    image, text = opt.image_head or opt.head, opt.text_head or opt.head
    usual = trait(similarity(opt), "implies").get("head", "ellipsoidal")
    if trait(similarity(opt), "gaussian_sides") == 1:         # GCE, unless the image side is asked for
        image = image or (usual if text == "point" else "point")
        return image, text or (usual if image == "point" else "point")
    usual = usual if needed_gaussians(opt) else "point"
    return image or usual, text or usual


# ---- what follows from what, in the order in which one needs another, where the similarity implies
# nothing else

IMPLIED = {
    "embed_size": lambda o: 2048 if o.img_enc == "vsrn" else 1024,
    "txt_enc": lambda o: "features" if o.text_features else "gru",
    "n_embeds": lambda o: 1,
    "loss": lambda o: "hinge",
    "var_min": lambda o: 1e-6 if o.loss == "volume" else 0.1,
    "logvar_init": lambda o: -7.0 if o.loss == "volume" else 0.0,
    # of means that are given
    "var_layers": lambda o: "256" if (o.img_layers == "0" and o.image_head != "point" or
                                      o.txt_layers == "0" and o.text_head != "point") else None,
    "label_smoothing": lambda o: 1e-4 if o.pseudo_positives else 0.0,
    "latent_norm": lambda o: "none" if not prior(o) else "batch" if o.loss == "mse" else "sphere",
    "max_violation": lambda o: trait(similarity(o), "gaussian_sides") > 0 and o.loss == "hinge",
    "logger_name": default_run,
}


def resolve(opt) -> None:
    """Fill in what the options imply. Raise InputError where they cannot work, before any data is
    read."""
    opt.image_head, opt.text_head = heads(opt)
    opt.head = opt.image_head if opt.image_head == opt.text_head else None
    for name, value in trait(similarity(opt), "implies").items():
        if name != "head" and getattr(opt, name) in (None, "auto"):
            setattr(opt, name, value)
    for name, implied in IMPLIED.items():
        if getattr(opt, name) is None:
            setattr(opt, name, implied(opt))
    if opt.no_imgnorm and opt.sim == "cosine":      # VSE0: its cosine is an inner product
        opt.sim = "dot"
    refuse(conflicts(opt), opt)


# ---- what cannot work together

def conflicts(opt):
    yield from of_networks(opt)
    yield from of_objectives(opt)
    yield from of_terms(opt)
    yield opt.warmup >= opt.num_epochs, (
        "--warmup {warmup:g} is as long as the training of --num_epochs {num_epochs}; give less")


def of_networks(opt):
    for name in ("img_enc", "txt_enc"):
        needed = trait(similarity(opt), "parts") and trait(similarity(opt), "implies")[name]
        yield needed and getattr(opt, name) != needed, (
            f"--sim {{sim}} compares the parts of an item, which --{name} {{{name}}} does not "
            f"keep; leave --{name} out")
    yield opt.img_enc == "scan" and opt.sim != "scan", (
        "--img_enc scan keeps every region of an image, and --sim {sim} does not compare them; "
        "take --sim scan, or leave --img_enc out")
    yield opt.txt_enc in ("pie", "bigru") and opt.embed_size % 2, (
        "--embed_size {embed_size} is odd, and --txt_enc {txt_enc} joins two directions of a GRU "
        "of half that size; give an even one")
    yield (opt.txt_enc == "features") != bool(opt.text_features), (
        "--txt_enc {txt_enc} and --text_features {text_features}: features are read by --txt_enc "
        "features, from the files that --text_features names; give both or neither")
    text = TEXT_ENCODERS[opt.txt_enc]
    trigrams = text.reads == "trigrams"
    yield opt.txt_layers and (not text.layers or trigrams and opt.txt_layers == "0"), (
        "--txt_layers {txt_layers} does not fit --txt_enc {txt_enc}, as sizes are for "
        "--text_features NAME, --txt_enc mean, sum and trigrams, and 0 not for the last; leave it "
        "out")
    yield opt.word_vectors and opt.init_from and opt.resume is None, (
        "--word_vectors {word_vectors} and --init_from {init_from} both say where the words start; "
        "leave one out")
    yield opt.freeze_words and not (opt.word_vectors or opt.init_from), (
        "--freeze_words keeps word vectors that were learned before; give --word_vectors FILE or "
        "--init_from RUN")
    yield opt.bi_gru and opt.sim != "scan", (
        "--bi_gru averages the states of --sim scan, and this is --sim {sim}; take --txt_enc bigru")
    yield (opt.dropout or opt.feature_noise) and trigrams, (
        "--dropout {dropout:g} and --feature_noise {feature_noise:g} change features and word "
        "vectors, and --txt_enc {txt_enc} reads letter trigrams; leave them out")
    yield opt.n_embeds > 1 and opt.sim != "mil" or opt.diversity and opt.n_embeds < 2, (
        "--n_embeds {n_embeds}, --diversity {diversity:g} and --sim {sim}: several embeddings an "
        "item are compared by --sim mil, and --diversity keeps two or more apart; take --sim mil "
        "with --n_embeds 2, or leave both out")
    for name in ("img_layers", "txt_layers"):
        yield opt.layer_style == "branch" and "-" in (getattr(opt, name) or ""), (
            f"--{name} {{{name}}}: --layer_style branch has one hidden layer; give one size")
    yield opt.sim == "cite" and opt.cite_layers.count("-") != 1, (
        "--cite_layers {cite_layers}: --sim cite has a layer that all concepts share, and one for "
        "each; give two sizes, such as 1024-256")
    yield opt.var_layers == "0", (
        "--var_layers 0: variances need a hidden layer; give a size, such as 256")
    yield opt.var_min >= VAR_MAX, (
        f"--var_min {{var_min}} is not below the largest variance, {VAR_MAX:g}; give a smaller one")


KINDS = ", ".join(kind for kind in HEADS if kind != "point")
STATED_HEADS = "image head '{image_head}' and text head '{text_head}'"
NEEDS = [                             # Gaussian sides of a model, in words, and the fix
    (0, "compares points",
     "leave the heads out, or choose a similarity of Gaussians such as wasserstein"),
    (1, "needs one Gaussian side and one point",
     f"give one of --image_head (GIE) and --text_head (GCE) one of {KINDS}"),
    (2, "needs a Gaussian on both sides", f"give both sides one of {KINDS}")]


def of_objectives(opt):
    yield opt.loss in ("mse", "two_branch", "volume") and opt.sim not in ("cosine", "dot"), (
        "--loss {loss} compares points, and --sim {sim} does not; take --sim cosine")
    yield opt.loss == "two_branch" and opt.batch_size % 2, (
        "--loss two_branch learns from pairs of captions, and --batch_size {batch_size} splits "
        "one; give an even number")
    yield (opt.sim in NETWORKS) != (opt.loss == "logistic"), (
        "--sim {sim} and --loss {loss}: the Similarity Network is --sim product with --loss "
        "logistic, and CITE --sim cite with it; give both or neither")
    yield opt.loss == "nll" and opt.negatives >= opt.batch_size, (
        "--negatives {negatives}: a batch of {batch_size} captions has one less to compare with; "
        "give fewer, or a larger --batch_size")
    sides = gaussians(opt)
    yield opt.sim == "mls" and "ellipsoidal" in (opt.image_head, opt.text_head), (
        f"--sim mls has one variance per item, not {STATED_HEADS}; leave the heads out, or make one "
        "side a point (--image_head point)")
    who = "vae" if opt.vae else "loss" if opt.loss == "volume" else "sim"
    fits = trait(similarity(opt), "point_side") and sides
    for needed, wants, fix in NEEDS:
        yield needed_gaussians(opt) == needed != sides and not fits, (
            f"--{who} {{{who}}} {wants}, not {STATED_HEADS}; {fix}")
    ready = opt.img_layers == opt.txt_layers == "0" and opt.txt_enc == "features"
    yield opt.loss == "volume" and not (opt.freeze_means or ready), (
        "--loss volume learns variances around means that are given; give --freeze_means with "
        "--init_from RUN, or --text_features NAME with --img_layers 0 --txt_layers 0")
    yield opt.freeze_means and not (sides and (opt.init_from or opt.resume is not None)), (
        "--freeze_means learns variances around the means of a trained run; give --init_from RUN "
        "and a Gaussian head")


def of_terms(opt):
    recon, beside = opt.recon_images or opt.recon_captions, prior(opt) or opt.vae
    yield (recon or prior(opt)) and opt.sim not in LATENTS, (
        "--recon_images, --recon_captions, --prior_images and --prior_captions are for latents that "
        "are compared by their direction, not --sim {sim}; take --sim cosine")
    one_vector = opt.pool == "mean" and opt.img_enc in ("auto", "precomp", "cnn")
    yield opt.recon_images and not one_vector and opt.img_enc != "scan", (
        "--recon_images cannot reconstruct what --img_enc {img_enc} --pool {pool} reads; take "
        "--pool mean with --img_enc precomp or cnn, or --sim scan")
    text = TEXT_ENCODERS[opt.txt_enc]
    learned = opt.txt_enc in ("mean", "sum") and not opt.freeze_words
    yield opt.recon_captions and (not text.decoder or learned), (
        "--recon_captions cannot reconstruct what --txt_enc {txt_enc} reads; take gru, bigru or "
        "features, or mean or sum with --freeze_words")
    yield opt.vae and opt.sim not in POINTS, (
        "--vae {vae:g} samples latents that are compared as points, and --sim {sim} does not; take "
        "--sim cosine")
    yield opt.vib and (opt.vae or not gaussians(opt)), (
        "--vib {vib:g} is the KL of Gaussian embeddings, and there are none (with --vae its own "
        "weight counts); take a similarity of Gaussians, or leave --vib out")
    yield opt.captioner and (opt.img_enc != "vsrn" or text.reads != "words"), (
        "--captioner {captioner:g} writes the words of a caption from VSRN's regions, not --img_enc "
        "{img_enc} --txt_enc {txt_enc}; take --img_enc vsrn with --txt_enc gru, or leave it out")
    copied = "ellipsoidal" in (opt.image_head, opt.text_head) and not opt.var_layers
    yield opt.text_anchor and not (
        opt.text_features and one_vector and opt.loss in ("infonce", "match", "volume")
        and not recon and not beside and not copied), (
        "--text_anchor {text_anchor:g} needs --text_features, one vector per image, --loss infonce, "
        "match or volume, points, spherical heads or --var_layers, and neither reconstruction, "
        "prior nor --vae; change what differs, or leave it out")


# ---- what the data settle, and what data a trained model can take

READ_BY = {"vector": ("vectors", "regions"), "regions": ("regions",), "photos": ("photos",)}
SHAPE = "features of shape (images, regions, F)"


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, img_dim, n_regions and txt_dim by a split's images and the features of its
    captions (None: the model reads words). Raise InputError where options and data do not
    fit."""
    photos = isinstance(images, Photos)
    if opt.img_enc == "auto":
        opt.img_enc = "cnn" if photos else "precomp"
    of_data = {"img_dim": images.dim, "n_regions": images.regions, "txt_dim": text and text.dim}
    vars(opt).update({name: x for name, x in of_data.items() if getattr(opt, name) is None})
    refuse([
        (opt.finetune and not photos,
         "--finetune trains the network for photos, and {data_name} has precomputed features; leave "
         "it out"),
        (photos and (opt.unpaired_images or opt.supervised_fraction < 1),
         "--unpaired_images and --supervised_fraction need precomputed features, and {data_name} "
         "has photos; extract features first: features.extract images"),
        (opt.use_restval and not photos,
         "--use_restval adds COCO's restval photos, and {data_name} has precomputed features, whose "
         "train split is what it is; leave it out"),
        (opt.pool == "gpo" and images.regions is None,
         f"--pool gpo pools regions, and {{data_name}} has none; give {SHAPE}, or leave it out")],
        opt)
    check_fits(opt, images, text, f"--img_enc {opt.img_enc} with --sim {opt.sim}")


def check_fits(opt, images, text, path: str) -> None:
    """Raise InputError on images or features of captions that the model of path cannot take, which
    is trained as the options say."""
    if text is not None:
        check(text.dim == opt.txt_dim,
              f"{text.path} has features of width {text.dim}, {path} reads width {opt.txt_dim}; "
              "use features of the same vectors")
    if isinstance(images, NoImages):
        return
    reads = IMAGE_ENCODERS[opt.img_enc].reads
    if reads == "cells":
        reads = "regions" if opt.img_dim else "photos"
    photos = isinstance(images, Photos)
    kind = "photos" if photos else "vectors" if images.regions is None else "regions"
    check(kind in READ_BY[reads],
          f"{path} reads {' or '.join(READ_BY[reads])}, and the images are {kind}"
          + ("" if photos else f" in {images.path}") + "; name other data with "
          f"--data_name, or take another --img_enc or --sim (regions are {SHAPE})")
    if photos:
        return
    check(images.dim == opt.img_dim,
          f"{images.path} has features of width {images.dim}, {path} reads width {opt.img_dim}; "
          "use features of the same extractor")
    check(opt.n_regions == images.regions or not opt.n_regions and opt.img_enc != "precomp",
          f"{images.path} has {images.regions or 'no'} regions an image, {path} reads "
          f"{opt.n_regions or 'one vector an image'}; use features of the same extractor")
