"""Options of train.py: what they are, what follows from what, and what cannot go together.

Three tables say the rest: IMPLIED, what an option is where it was not given; CONFLICTS, what cannot work, with the
sentence that says so; USED_BY, what an option has an effect with. `resolve` goes through them before any data is read.
"""
import argparse
import functools
import os

import cli
from cli import InputError, above_zero, at_least_zero, filename, natural, number, positive, up_to, width
from data import DEV_IMAGES
from encoders import CNNS
from losses import OBJECTIVES, PRIOR_LOSSES
from methods import ADVICE, METHODS
from methods.jwae import learns_alone
from methods.scan import AGGREGATES, DIRECTIONS, NORMS
from model import ALL_SIMILARITIES, IMAGE_ENCODERS, SHAPES, TEXT_ENCODERS

GAUSSIANS = [shape for shape in SHAPES if shape != "point"]


# ---- the command line

def parser() -> argparse.ArgumentParser:
    p, switch = cli.Arguments("Train a joint embedding of images and captions.", ADVICE), argparse.BooleanOptionalAction

    add = p.add_argument_group("data").add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=cli.data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--vocab_path", type=filename, default="./vocab/",
        help="folder that may hold {data_name}_vocab.json; the vocabulary is built when the file is not there")
    add("--vocab_splits", type=cli.split_names, default="train", help="splits whose words count (original: train,dev)")
    add("--vocab_threshold", type=positive, default=4, help="keep words that are seen at least this often")
    add("--use_restval", action="store_true", help="train on COCO's restval images, too")
    add("--dev_images", type=natural, default=DEV_IMAGES, help="dev images of precomputed data and COCO; 0: all")
    add("--supervised_fraction", type=cli.fraction, default=1.0,
        help="share of the training images whose pairs are known; the others join the terms that need no pairs")
    for side in ("images", "captions"):
        add(f"--unpaired_{side}", type=cli.data_set, metavar="NAME",
            help=f"data set below --data_path whose training {side} join the terms that need no pairs")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1),
        help="processes that read photos or large files")

    add = p.add_argument_group("method").add_argument
    add("--method", choices=list(METHODS), metavar="NAME",
        help="take the options of a method of the papers (see --methods); other options given come before them")
    add("--sim", "--measure", choices=list(ALL_SIMILARITIES), default="cosine", help="similarity of image and caption")
    add("--head", choices=list(SHAPES), help="points or Gaussians, for both sides (default: what --sim needs)")
    add("--image_head", choices=list(SHAPES), help="the same for images (GIE: Gaussian here only)")
    add("--text_head", choices=list(SHAPES), help="the same for captions (GCE: Gaussian here only)")
    add("--embed_size", type=width, help="size of the joint embedding, D (default: 1024; vsrn: 2048)")
    add("--use_abs", action="store_true", help="take absolute values of the embeddings (order embeddings)")
    add("--no_imgnorm", action="store_true", help="do not normalise image means; 'cosine' is then their inner product")
    add("--logvar_norm", action=switch, default=False, help="give log-variances norm 1")
    add("--logvar_init", type=number, default=0.0, help="where log-variances start (csd with --loss match: -6)")
    add("--var_min", type=above_zero, help="smallest variance (default: 0.1; match_prob: 1e-6)")
    add("--var_max", type=above_zero, default=10.0, help="largest variance")

    add = p.add_argument_group("images").add_argument
    add("--img_enc", choices=["auto", *IMAGE_ENCODERS], default="auto", help="image encoder. auto: precomp or cnn, "
        "whichever fits the data, or what --sim needs; vsrn: graph and GRU over regions; pie: attention to regions or "
        "to a network's last map (PVSE, PCME); scan: every region by itself (SCAN)")
    add("--cnn_type", choices=list(CNNS), default="vgg19", help="network for photos")
    add("--cnn_weights", type=filename, help="file with the network's weights (default: torch's cache, nothing is "
        "fetched; with --init_from or --resume those of the run)")
    add("--finetune", action="store_true", help="train the network for photos, too")
    add("--freeze_bn", action="store_true", help="with --finetune: its BatchNorms keep their statistics, as in VSE++")
    add("--crop_size", type=up_to(4096), default=224, help="side of the random crops of training photos")
    add("--img_dim", type=positive, help="size of the image features (default: read from the data)")
    add("--n_regions", type=positive, help="regions per image (default: read from the data)")
    add("--feature_norm", action=switch, default=True, help="l2-normalise precomputed features, as VSE++ does CNN "
        "features (vsrn: the output of its first linear layer; the original does not on Flickr30K)")
    add("--pool", choices=["mean", "gpo"], default="mean",
        help="pooling of regions: the mean of the features, or generalised pooling of their embeddings (VSE-infinity)")
    add("--region_norm", choices=["entries", "regions"], default="entries", help="vsrn: scale regions to entries of "
        "order 1, or, as the original code, each feature to norm 1 over the regions")
    add("--region_bn", action="store_true", help="vsrn: BatchNorm after the GRU, as the original on Flickr30K")
    add("--img_layers", type=cli.sizes, help="hidden layers of the image embedding, as 1024 or 2000-1000 (0: no "
        "layer at all; default: one linear layer)")
    add("--precomp_enc_type", choices=["basic", "weight_norm"], default="basic",
        help="scan: linear layer of the regions, plain or weight-normalised")

    add = p.add_argument_group("captions").add_argument
    add("--txt_enc", choices=list(TEXT_ENCODERS), help="text encoder (default: gru, or what --sim needs). bigru: "
        "jWAE's; pie: attention to word vectors (PVSE, PCME); mean, sum: of word vectors; features: --text_features; "
        "trigram_conv, trigram_bag: letter trigrams (DMSM, DSSM)")
    add("--txt_fc", action="store_true", help="gru: a linear layer behind each GRU, as in pmrl's equations; variances "
        "of captions then reach --var_min and --var_max")
    add("--txt_layers", type=cli.sizes, help="hidden layers for mean, sum, features and trigrams, as in --img_layers")
    add("--layer_style", choices=["relu", "tanh", "branch"], default="relu", help="hidden layers: relu (jWAE); tanh, "
        "the last layer, too (DMSM); branch: one, with BatchNorm, ReLU and dropout (two-branch networks)")
    add("--text_features", metavar="NAME", help="read captions as ready features, {split}_NAME.npy")
    add("--txt_dim", type=positive, help="size of the features of --text_features (default: read from the data)")
    add("--word_vectors", type=filename, metavar="FILE", help="start words from word2vec or GloVe vectors")
    add("--freeze_words", action="store_true", help="keep the vectors of --word_vectors as they are")
    add("--word_dim", type=width, default=300, help="size of the word vectors")
    add("--num_layers", type=up_to(64), default=1, help="layers of the GRU")
    add("--bi_gru", action="store_true", help="scan: read the words in both directions and average")
    add("--no_txtnorm", action="store_true", help="scan: do not normalise word states")

    add = p.add_argument_group("similarities of parts and samples").add_argument
    add("--n_embeds", type=up_to(1024), metavar="K", help="mil: embeddings per item (default: 2)")
    add("--n_samples", type=up_to(1024), default=7, metavar="J", help="match_prob: samples of every Gaussian")
    add("--cross_attn", choices=DIRECTIONS, default="t2i", help="scan: words attend to regions (t2i) or the reverse")
    add("--raw_feature_norm", choices=list(NORMS), default="clipped_l2norm",
        help="scan: norm of the products of words and regions before the softmax")
    add("--agg_func", choices=list(AGGREGATES), default="LogSumExp",
        help="scan: how the cosines of all words (i2t: regions) with what they attend to become a score")
    add("--lambda_lse", type=above_zero, default=6.0, help="scan: sharpness of LogSumExp")
    add("--lambda_softmax", type=above_zero, default=9.0, help="scan: sharpness of the attention (SCAN has 4 for i2t)")

    add = p.add_argument_group("objective").add_argument
    add("--loss", choices=OBJECTIVES, help="hinge (VSE++), infonce (CLIP), match: cross-entropy of every pair (PCME, "
        "PCME++), nll: softmax over sampled captions (DMSM), mse: squared distance of matching pairs (jWAE), "
        "two_branch (Embedding Network), logistic (Similarity Network). Default: hinge, or what --sim needs")
    add("--margin", type=at_least_zero, default=0.2, help="margin of the hinge (VSE++ and VSRN: 0.2; ucmr's VSRN: 0.1)")
    add("--max_violation", action=switch, default=None,
        help="hinge: the hardest negatives and not the sum over all (default: on for similarities of Gaussians)")
    add("--vse_mean_warmup_epochs", type=natural, default=0, metavar="N", help="first N epochs: the sum of violations")
    add("--mask_same_image", action="store_true", help="do not count other captions of an image as negatives")
    add("--gamma", type=above_zero, default=10.0, help="nll: smoothing factor of the softmax")
    add("--negatives", type=positive, default=40, metavar="N", help="nll: captions that the true one is compared with")
    add("--negative_source", choices=["batch", "set"], default="batch", help="nll: from the batch or all captions")
    add("--pseudo_positives", type=at_least_zero, default=0.0, metavar="WEIGHT", help="match: weight of pairs that "
        "score above the true one and then count as matches (PCME++: 0.1)")
    add("--mse_weight", type=above_zero, default=1.0, help="mse: weight of the squared distance per dimension, summed "
        "over the batch (embed_size gives jWAE's eq. 7 per item)")

    add = p.add_argument_group("terms beside the objective, off at a weight of 0").add_argument
    for side in ("images", "captions"):
        add(f"--recon_{side}", type=at_least_zero, default=0.0, metavar="WEIGHT", help=f"jWAE: reconstruct {side}")
        add(f"--prior_{side}", type=at_least_zero, default=0.0, metavar="WEIGHT", help="jWAE: latents follow N(0, I)")
    add("--prior_loss", choices=list(PRIOR_LOSSES), default="gan", help="what tells latents from the prior: gan, a "
        "critic (jWAE), or mmd, a maximum mean discrepancy (both of Tolstikhin et al. 2018)")
    add("--latent_norm", choices=["batch", "sphere", "none"], help="scale of latents. sphere: norm sqrt(embed_size), "
        "the direction that the cosine compares; batch: mean 0 and variance 1 per dimension over a batch (default with "
        "a prior: sphere, and batch for --loss mse, whose latents shrink otherwise; none without a prior)")
    add("--recon_norm", type=int, choices=[1, 2], default=2, help="norm of the error of a reconstructed image")
    add("--decoder_dim", type=width, default=1024, help="hidden size of the decoders of vectors")
    add("--word_dropout", type=at_least_zero, default=0.2, help="share of words hidden from the caption decoder")
    add("--critic_learning_rate", type=above_zero, default=5e-05, help="learning rate of the critic's own Adam")
    add("--vae", type=at_least_zero, default=0.0, metavar="WEIGHT", help="sample every latent from a Gaussian of its "
        "own, with this weight of its KL to N(0, I) (the VAE that jWAE is compared with)")
    add("--captioner", type=at_least_zero, default=0.0, metavar="WEIGHT", help="vsrn: generate the caption, too (1)")
    add("--captioner_original", action="store_true",
        help="captioner: attend as VSRN's code does, with the state alone (default: with the word before, too)")
    add("--dim_hidden", type=width, default=512, help="captioner: size of its GRUs")
    add("--max_len", type=up_to(10000, least=2), default=60,
        help="captioner: cut captions after so many tokens, <start> and <end> among them")
    add("--vib", type=at_least_zero, default=0.0, metavar="WEIGHT", help="KL of every Gaussian to N(0, I), in nats, "
        "averaged over items (PCME: 5e-6; PCME++ averages over dimensions, too: its 1e-4 is 1e-4 / embed_size here)")
    add("--diversity", type=at_least_zero, default=0.0, metavar="WEIGHT", help="mil: keep the K embeddings apart "
        "(PVSE: 0.1 beside a hinge averaged over the batch; ours is summed, so 0.1 x batch size)")
    add("--mmd", type=at_least_zero, default=0.0, metavar="WEIGHT",
        help="draw the distributions of image and caption embeddings together (PVSE: 0.01, so here 0.01 x batch size)")

    add = p.add_argument_group("optimisation").add_argument
    add("--num_epochs", type=positive, default=30, help="epochs")
    add("--batch_size", type=positive, default=128, help="pairs per batch")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd is plain, as in DMSM, at --learning_rate 0.5")
    add("--learning_rate", type=above_zero, default=0.0002, help="initial learning rate")
    add("--lr_update", type=positive, default=15, help="epochs between tenfold reductions of the learning rate")
    add("--grad_clip", type=at_least_zero, default=2.0, help="largest norm of the gradient; 0: no limit")
    add("--average", choices=["none", "ema", "swa"], default="none",
        help="average weights over the last third of the epochs: exponentially (0.999) per step, or evenly per epoch")
    add("--select", choices=["rsum", "hbr"], default="rsum", help="which model is best on dev: the one with the "
        "highest sum of recalls, or the lowest harmonic mean of the images' best ranks (DMSM)")
    add("--amp", choices=["off", "bf16", "fp16"], default="off", help="precision of the networks (fp16: CUDA only)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to train (auto: CUDA when present)")
    add("--seed", type=natural, default=0, help="seed of initialisation, batch order and crops")

    add = p.add_argument_group("run").add_argument
    add("--logger_name", type=filename, help="run folder (default: runs/{data_name}_{sim}_seed{seed})")
    add("--log_step", type=positive, default=10, help="steps between log lines")
    add("--val_step", type=positive, default=500, help="steps between validations within an epoch")
    add("--resume", type=lambda text: text and filename(text), nargs="?", const="", metavar="RUN",
        help="go on exactly where RUN, or the run in --logger_name, stopped; give a checkpoint file and --logger_name "
        "NEW to go on from there in a new folder")
    add("--init_from", type=filename, metavar="RUN", help="start from the weights and vocabulary of RUN")
    add("--vocab", type=filename, metavar="FILE.json",
        help="vocabulary of an --init_from checkpoint of the original VSE++ or VSRN (python vocab.py convert)")
    add("--overwrite", action="store_true", help="replace the run that --logger_name already holds")
    add("--config", type=filename, metavar="FILE", help="YAML file of options; the command line comes before it")
    add("--methods", action="store_true", help="list the methods and their options, and end")
    add("--dry_run", action="store_true", help="check everything, print sizes and options, write nothing")
    return p


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


@functools.cache
def defaults() -> dict:
    return vars(parser().parse_args([]))


# ---- what follows from what

def similarity(opt):
    return ALL_SIMILARITIES[opt.sim]


def prior(opt) -> bool:
    return bool(opt.prior_images or opt.prior_captions)


# What an option is where it was not given, in the order in which one needs another.
IMPLIED = {
    "embed_size": lambda o: 2048 if o.img_enc == "vsrn" else 1024,
    "txt_enc": lambda o: similarity(o).implies.get("txt_enc") or ("features" if o.text_features else "gru"),
    "n_embeds": lambda o: similarity(o).implies.get("n_embeds", 1),
    "loss": lambda o: similarity(o).implies.get("loss", "hinge"),
    "var_min": lambda o: similarity(o).implies.get("var_min", 0.1),
    "latent_norm": lambda o: "none" if not prior(o) else "batch" if o.loss == "mse" else "sphere",
    "max_violation": lambda o: similarity(o).gaussian_sides > 0 and o.loss == "hinge",
    "logger_name": default_run,
}


def heads(opt) -> tuple[str, str]:
    """Of images and of captions: what was asked for, else what the similarity needs."""
    image, text = opt.image_head or opt.head, opt.text_head or opt.head
    if similarity(opt).gaussian_sides == 1:                 # GCE, unless the image side is asked for
        if image is None:
            image = "point" if text in (None, *GAUSSIANS) else "ellipsoidal"
        return image, text or ("ellipsoidal" if image == "point" else "point")
    usual = "ellipsoidal" if needed_gaussians(opt) else "point"
    return image or usual, text or usual


def needed_gaussians(opt) -> int:
    """How many sides must be Gaussian; with --vae both, whose samples are then compared as points."""
    return 2 if opt.vae else similarity(opt).gaussian_sides


def gaussians(opt) -> int:
    return (opt.image_head != "point") + (opt.text_head != "point")


def resolve(opt) -> None:
    """Fill in what the options imply, and refuse, before data is read, what cannot work. Raises InputError."""
    if opt.img_enc == "auto":
        opt.img_enc = similarity(opt).implies.get("img_enc", "auto")
    opt.image_head, opt.text_head = heads(opt)
    opt.head = opt.image_head if opt.image_head == opt.text_head else None
    for name, value in IMPLIED.items():
        if getattr(opt, name) is None:
            setattr(opt, name, value(opt))
    if opt.no_imgnorm and opt.sim == "cosine":              # VSE0: the original's cosine is an inner product
        opt.sim = "dot"
    for wrong, sentence in CONFLICTS:
        if wrong(opt):
            raise InputError(sentence.format(**vars(opt)))
    refuse_unused(opt)


def refuse_unused(opt) -> None:
    """Raise InputError where an option was given that changes nothing."""
    for names, used, where in USED_BY:
        given = [] if used(opt) else [name for name in names.split() if getattr(opt, name) != defaults()[name]]
        if given:
            value = getattr(opt, given[0])
            shown = {True: given[0], False: f"no-{given[0]}"}.get(value, f"{given[0]} {value}")
            raise InputError(f"--{shown} is for {where}, and has no effect here; leave it out")


# ---- what cannot work together: (when, the sentence that says so, formatted with the options)

TERMS = ("recon_images", "recon_captions", "prior_images", "prior_captions", "vae")
FEWEST_EPOCHS = {"ema": 3, "swa": 6}             # whose last third can be averaged


def text_reads(opt) -> str:
    return TEXT_ENCODERS[opt.txt_enc].reads


CONFLICTS = [
    # several embeddings per item
    *((lambda o, name=name: o.sim == "mil" and getattr(o, name) != "pie",
       f"--sim mil compares several embeddings per item, and --{name} {{{name}}} makes one; leave --{name} out (it is "
       "pie then), or take --sim cosine") for name in ("img_enc", "txt_enc")),
    (lambda o: o.n_embeds > 1 and o.sim != "mil",
     "--n_embeds {n_embeds} is for --sim mil, and --sim {sim} compares one embedding per item; leave it out"),
    (lambda o: o.diversity and o.n_embeds == 1,
     "--diversity {diversity} keeps several embeddings of an item apart, and there is one; take --sim mil with "
     "--n_embeds 2 or more, or leave it out"),
    (lambda o: o.txt_enc in ("pie", "bigru") and o.embed_size % 2,
     "--embed_size {embed_size} is odd, and --txt_enc {txt_enc} joins two directions of a GRU of half that size; give "
     "an even one"),
    # regions and words compared one by one
    (lambda o: o.img_enc == "scan" and o.sim != "scan",
     "--img_enc scan keeps every region of an image, and --sim {sim} does not compare them; take --sim scan, or leave "
     "--img_enc out"),
    (lambda o: o.sim == "scan" and o.text_features,
     "--text_features {text_features} are one vector per caption, and --sim scan compares words; leave it out, or take "
     "--sim cosine"),
    *((lambda o, name=name, needed=needed: o.sim == "scan" and getattr(o, name) != needed,
       f"--sim scan compares every region with every word, which --{name} {{{name}}} does not leave; leave --{name} "
       "out")
      for name, needed in (("img_enc", "scan"), ("txt_enc", "gru"), ("pool", "mean"))),
    (lambda o: o.sim == "scan" and o.use_abs,
     "--use_abs is for order embeddings, and --sim scan compares regions and words; leave it out"),
    # text encoders
    (lambda o: (o.txt_enc == "features") != bool(o.text_features),
     "--txt_enc {txt_enc} and --text_features {text_features}: features are read by --txt_enc features, from the files "
     "that --text_features names; give both or neither"),
    (lambda o: o.txt_layers and not TEXT_ENCODERS[o.txt_enc].layers,
     "--txt_layers {txt_layers} is for --txt_enc mean, sum, features and trigrams, not {txt_enc}; leave it out"),
    (lambda o: text_reads(o) == "trigrams" and o.txt_layers == "0",
     "--txt_layers 0: --txt_enc {txt_enc} needs a layer; give sizes, or leave it out for a single one"),
    (lambda o: o.word_vectors and text_reads(o) != "words",
     "--word_vectors {word_vectors}: --txt_enc {txt_enc} has no word vectors; leave it out"),
    (lambda o: o.word_vectors and o.init_from and o.resume is None,
     "--word_vectors {word_vectors}: the words are those of --init_from {init_from}; leave it out"),
    (lambda o: o.word_vectors and o.resume is None and not os.path.isfile(o.word_vectors),
     "there is no file {word_vectors} of word vectors; `python -m features.word_vectors` learns some from the "
     "captions"),
    (lambda o: o.freeze_words and not (o.word_vectors or o.init_from),
     "--freeze_words keeps vectors of a file, or of a run, as they are; give --word_vectors FILE or --init_from RUN "
     "too"),
    # layers
    *((lambda o, name=name: o.layer_style == "branch" and "-" in (getattr(o, name) or ""),
       f"--{name} {{{name}}}: --layer_style branch has one hidden layer; give one size")
      for name in ("img_layers", "txt_layers")),
    (lambda o: o.img_layers and (o.pool == "gpo" or o.img_enc != "auto" and not IMAGE_ENCODERS[o.img_enc].layers),
     "--img_layers {img_layers} embeds one vector per image, and --img_enc {img_enc} --pool {pool} has an embedding of "
     "its own; leave it out"),
    # autoencoders
    (lambda o: o.recon_images and o.img_enc != "auto" and not IMAGE_ENCODERS[o.img_enc].target,
     "--recon_images {recon_images}: --img_enc {img_enc} learns what its embedding is given, so there is no fixed "
     "target; take --img_enc precomp or --sim scan"),
    (lambda o: o.recon_images and o.pool == "gpo",
     "--recon_images {recon_images}: --pool gpo makes one latent of all regions, which cannot give each of them back; "
     "take --pool mean or --sim scan"),
    (lambda o: o.recon_captions and not TEXT_ENCODERS[o.txt_enc].decoder,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} has no decoder; take gru, bigru, mean or features"),
    (lambda o: o.recon_captions and o.txt_enc in ("mean", "sum") and not o.freeze_words,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} would move its own target; keep the words as they are "
     "with --word_vectors FILE --freeze_words, or take gru or bigru"),
    *((lambda o, name=name: getattr(o, name) and o.sim not in ("cosine", "dot", "scan"),
       f"--{name} is for points compared by their cosine, not for --sim {{sim}}; take --sim cosine or scan")
      for name in TERMS),
    (lambda o: o.vae and o.sim == "scan",
     "--vae {vae} samples one vector per item, and --sim scan compares parts; take --sim cosine"),
    (lambda o: o.word_dropout >= 1, "--word_dropout {word_dropout} is a share of the words; give less than 1"),
    *((lambda o, side=side: getattr(o, f"unpaired_{side}") and not learns_alone(o, side),
       f"--unpaired_{side} {{unpaired_{side}}}: nothing is learned from {side} without partners here; give a weight, "
       f"such as --recon_{side} or --prior_{side}, or leave it out") for side in ("images", "captions")),
    # objectives
    (lambda o: o.loss == "mse" and o.sim not in ("cosine", "dot"),
     "--loss mse draws matching points together, and --sim {sim} does not compare them; take --sim cosine"),
    (lambda o: o.loss == "two_branch" and o.no_imgnorm,
     "--no_imgnorm: --loss two_branch compares unit vectors; leave it out"),
    (lambda o: o.loss == "two_branch" and (o.sim != "cosine" or o.batch_size % 2),
     "--loss two_branch compares points in batches of pairs of captions; --sim {sim} and --batch_size {batch_size} do "
     "not go with it: take cosine and an even number"),
    (lambda o: (o.sim == "product") != (o.loss == "logistic"),
     "--sim {sim} and --loss {loss}: the Similarity Network is --sim product with --loss logistic; give both or "
     "neither"),
    (lambda o: o.loss == "nll" and o.negative_source == "batch" and o.negatives >= o.batch_size,
     "--negatives {negatives}: a batch of {batch_size} captions has one less to compare with; give fewer, a larger "
     "--batch_size, or --negative_source set"),
    (lambda o: (o.unpaired_images or o.unpaired_captions or o.supervised_fraction < 1) and o.negative_source == "set",
     "--negative_source set draws captions of its own and does not go with unpaired data; take batch"),
    # points and Gaussians
    (lambda o: o.vae and gaussians(o) != 2, "--vae {vae} needs a Gaussian on both sides, not image head '{image_head}' "
                                            f"and text head '{{text_head}}'; give both sides one of "
                                            f"{', '.join(GAUSSIANS)}"),
    *((lambda o, n=n: needed_gaussians(o) == n != gaussians(o),
       f"--sim {{sim}} {wants}, not image head '{{image_head}}' and text head '{{text_head}}'; "
       f"{fix}") for n, wants, fix in (
        (0, "compares points", "leave the heads out, or choose a similarity of Gaussians such as wasserstein"),
        (1, "needs one Gaussian side and one point",
         f"give one of --image_head (GIE) and --text_head (GCE) one of {', '.join(GAUSSIANS)}"),
        (2, "needs a Gaussian on both sides", f"give both sides one of {', '.join(GAUSSIANS)}"))),
    *((lambda o, layers=layers, head=head: getattr(o, layers) == "0" and getattr(o, head) != "point",
       f"--{layers} 0 leaves nothing to learn variances with, and the {head.replace('_', ' ')} is '{{{head}}}'; give "
       "sizes, or leave it out for a linear "
       "layer") for layers, head in (("img_layers", "image_head"), ("txt_layers", "text_head"))),
    (lambda o: o.vib and o.vae, "--vib {vib} and --vae {vae} draw the same Gaussians to N(0, I); leave --vib out"),
    (lambda o: o.vib and not gaussians(o),
     "--vib {vib} needs a Gaussian side, and --sim {sim} has points; choose a similarity of Gaussians or leave it out"),
    (lambda o: o.var_min >= o.var_max,
     "--var_min {var_min} and --var_max {var_max} are not in order; give a smaller --var_min"),
    # training
    (lambda o: o.max_violation and o.loss != "hinge", "--max_violation is for --loss hinge, not {loss}; leave it out"),
    (lambda o: o.vse_mean_warmup_epochs and not o.max_violation,
     "--vse_mean_warmup_epochs delays --max_violation, which is off; give --max_violation too"),
    *((lambda o, kind=kind, fewest=fewest: o.average == kind and o.num_epochs < fewest,
       f"--average {kind} averages over the last third of the epochs, and of --num_epochs {{num_epochs}} that is not "
       f"enough; give at least {fewest}") for kind, fewest in FEWEST_EPOCHS.items()),
    (lambda o: o.captioner and o.img_enc != "vsrn",
     "--captioner {captioner} reads the regions of --img_enc vsrn, not of {img_enc}; give --img_enc vsrn too, or leave "
     "it out"),
    (lambda o: o.captioner and text_reads(o) != "words",
     "--captioner {captioner} tells captions word by word, and --txt_enc {txt_enc} reads no words; take gru, or leave "
     "it out"),
    (lambda o: o.batch_size < 2, "--batch_size {batch_size} has no negatives to learn from; give at least 2, 128 is "
                                 "usual"),
    (lambda o: o.amp == "fp16" and cli.torch_device(o.device).type != "cuda",
     "--amp fp16 needs CUDA; on this device use --amp bf16 or off"),
    (lambda o: o.vocab and not o.init_from,
     "--vocab {vocab} is the vocabulary of an original checkpoint that --init_from names; give both, or a vocabulary "
     "for training in --vocab_path"),
]

# ---- what has an effect only with what: (options, when they have one, what that is)

USED_BY = [
    ("cross_attn raw_feature_norm agg_func lambda_lse lambda_softmax bi_gru precomp_enc_type no_txtnorm",
     lambda o: o.sim == "scan", "--sim scan"),
    ("lambda_lse", lambda o: o.agg_func == "LogSumExp", "--agg_func LogSumExp"),
    ("n_samples", lambda o: o.sim == "match_prob", "--sim match_prob"),
    ("margin", lambda o: o.loss == "hinge", "--loss hinge"),
    ("gamma negatives negative_source", lambda o: o.loss == "nll", "--loss nll"),
    ("pseudo_positives", lambda o: o.loss == "match", "--loss match"),
    ("mse_weight", lambda o: o.loss == "mse", "--loss mse"),
    ("mask_same_image", lambda o: o.loss not in ("mse", "two_branch") and o.negative_source == "batch",
     "objectives over the pairs of a batch"),
    ("recon_norm", lambda o: o.recon_images, "--recon_images"),
    ("decoder_dim", lambda o: o.recon_images or o.recon_captions and TEXT_ENCODERS[o.txt_enc].decoder == "vector",
     "--recon_images, and --recon_captions with --txt_enc mean or features"),
    ("word_dropout", lambda o: o.recon_captions and TEXT_ENCODERS[o.txt_enc].decoder == "words",
     "--recon_captions with --txt_enc gru or bigru"),
    ("prior_loss", prior, "--prior_images and --prior_captions"),
    ("critic_learning_rate", lambda o: prior(o) and o.prior_loss == "gan",
     "--prior_images and --prior_captions with --prior_loss gan"),
    ("dim_hidden max_len captioner_original", lambda o: o.captioner, "--captioner"),
    ("var_max logvar_init logvar_norm", gaussians, "Gaussian heads"),
    ("no_imgnorm", lambda o: o.sim not in ("mil", "product"), "similarities that do not normalise by themselves"),
    ("layer_style", lambda o: o.layer_style == "relu" or hidden_layers(o) or o.layer_style == "tanh" and one_vector(o),
     "--img_layers and --txt_layers"),
    ("freeze_bn", lambda o: o.finetune, "--finetune"),
    ("txt_fc", lambda o: o.txt_enc == "gru" and o.sim != "scan", "--txt_enc gru and one vector per caption"),
    ("num_layers", lambda o: o.txt_enc in ("gru", "bigru", "pie"), "--txt_enc gru, bigru and pie"),
    ("region_norm region_bn", lambda o: o.img_enc == "vsrn", "--img_enc vsrn"),
    ("finetune cnn_weights cnn_type crop_size", lambda o: o.img_dim is None, "photos"),
]


def hidden_layers(opt) -> bool:
    return any(hidden not in (None, "0") for hidden in (opt.img_layers, opt.txt_layers))


def one_vector(opt) -> bool:
    """Whether a side embeds one vector per item by layers, of which tanh has one behind the last, too."""
    vectors = opt.img_enc in ("auto", "precomp", "cnn") and opt.pool == "mean"
    return vectors or opt.txt_enc in ("mean", "sum", "features")
