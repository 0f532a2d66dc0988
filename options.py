"""Options of train.py: what they are, what one implies of another, what cannot work together."""
import argparse
import functools
import os
import re

import numpy as np

from cli import (
    Arguments,
    InputError,
    data_set,
    filename,
    natural,
    number,
    positive,
    split_names,
    torch_device,
    up_to,
    width,
    workers,
)
from data import DEV_IMAGES
from encoders import CNNS
from inputs import Photos
from losses import OBJECTIVES, PRIOR_LOSSES
from methods.jwae import learns_alone
from methods.scan import AGGREGATES, DIRECTIONS, NORMS
from model import ALL_SIMILARITIES, SHAPES, TRIGRAM_NETWORKS

GAUSSIANS = [shape for shape in SHAPES if shape != "point"]
TEXT_ENCODERS = ["gru", "bigru", "pie", "mean", "sum", "features", *TRIGRAM_NETWORKS]
MAY_CHANGE = {"data_path", "num_epochs", "workers", "log_step", "val_step", "device", "logger_name", "resume", "overwrite",
              "dry_run", "config", "word_vectors", "cnn_weights", "vocab"}    # options that a resumed run may set anew
COMMAND_LINE = {"logger_name", "overwrite", "resume", "config", "dry_run"}    # what a file of options never says: which run
SCAN = {"cross_attn": "t2i", "raw_feature_norm": "clipped_l2norm", "agg_func": "LogSumExp", "lambda_lse": 6.0,
        "lambda_softmax": 9.0, "bi_gru": False, "precomp_enc_type": "basic", "no_txtnorm": False}    # its options' defaults
# Flags of other code bases, and what to do here instead: VSE++, VSRN, SCAN, PVSE, PCME and VSE-infinity.
ADVICE = {
    "--reset_train": "leave it out, everything that learns is in training mode after every validation (VSE++'s branches)",
    "--model_name": "SCAN's folder of checkpoints is the run folder here, --logger_name",
    "--num_workers": "--workers", "--lr": "--learning_rate", "--log_dir": "--logger_name", "--ckpt": "--init_from RUN",
    "--order": "--sim order", "--num_embeds": "--n_embeds, with --sim mil",
    "--img_attention": "--sim mil (PVSE) or --img_enc pie", "--txt_attention": "--sim mil (PVSE) or --txt_enc pie",
    "--mmd_weight": "--mmd, times the batch size", "--div_weight": "--diversity, times the batch size",
    "--img_finetune": "--finetune", "--txt_finetune": "leave --freeze_words out",
    "--wemb_type": "--word_vectors FILE of GloVe or word2vec", "--amsgrad": "leave it out, Adam is VSE++'s",
    "--dim_word": "--word_dim", "--dim_vid": "leave it out, it is --embed_size", "--bidirectional": "--txt_enc bigru",
    "--rnn_type": "leave it out, the captioner has GRUs", "--input_dropout_p": "leave it out, the captioner has VSRN's 0.2",
    "--rnn_dropout_p": "leave it out, the captioner has VSRN's 0.5", "--eval_on_gpu": "evaluate.py --device cuda",
    "--vse_mean_warmup_epoch": "--vse_mean_warmup_epochs", "--latent_bn": "--latent_norm batch",
    "--no-latent_bn": "--latent_norm none", "--backbone_source": "--cnn_weights FILE",
    "--weight_decay": "there is none here, as in VSE++", "--fold5": "evaluate.py --fold5, after the training"}


def parser() -> argparse.ArgumentParser:
    p = Arguments("Train a joint embedding of images and captions.", ADVICE)
    add, switch = p.add_argument, argparse.BooleanOptionalAction
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--vocab_path", type=filename, default="./vocab/",
        help="folder that may hold {data_name}_vocab.json; built when it is not there")
    add("--vocab_splits", type=split_names, default="train",
        help="splits whose words count (train,dev reproduces the original vocabularies)")
    add("--vocab_threshold", type=positive, default=4, help="keep words seen at least this often")
    add("--use_restval", action="store_true", help="train on COCO's restval images too")
    add("--dev_images", type=natural, default=DEV_IMAGES,
        help="images of the dev split of precomputed data and COCO that validation uses; 0: all")
    add("--sim", "--measure", choices=list(ALL_SIMILARITIES), default="cosine", help="similarity of an image and a caption")
    add("--head", choices=list(SHAPES), help="embeddings of both sides (default: what --sim needs)")
    add("--image_head", choices=list(SHAPES), help="embeddings of images (GIE: Gaussian here only)")
    add("--text_head", choices=list(SHAPES), help="embeddings of captions (GCE: Gaussian here only)")
    add("--logvar_norm", action=switch, default=False, help="unit-norm log-variances")
    add("--img_enc", choices=["auto", "precomp", "cnn", "vsrn", "pie", "scan"], default="auto",
        help="image encoder (auto: precomp or cnn, what the data need, pie for mil and match_prob; vsrn: graph and GRU over "
        "region features; pie: attention to regions or to a network's last map, PVSE and PCME; scan: every region by itself, "
        "for --sim scan)")
    add("--cnn_type", choices=list(CNNS), default="vgg19", help="network for photos")
    add("--cnn_weights", type=filename,
        help="file with the network's weights (default: torch's cache, nothing is fetched; a run that goes on from "
        "another, by --init_from or --resume, has its network)")
    add("--crop_size", type=up_to(4096), default=224, help="side of the random crops of training photos")
    add("--img_dim", type=positive, help="size of the image features (default: read from the data)")
    add("--txt_dim", type=positive, help="size of the features of --text_features (default: read from the data)")
    add("--n_regions", type=positive, help="regions of an image (default: read from the data)")
    add("--feature_norm", action=switch, default=True, help="l2-normalise precomputed features, as VSE++ does CNN features "
        "(vsrn: what its first linear layer makes of them; the original does not on Flickr30k)")
    add("--pool", choices=["mean", "gpo"], default="mean", help="pooling of regions: mean of the features, or "
        "generalised pooling of their embeddings (VSE-infinity)")
    add("--region_norm", choices=["entries", "regions"], default="entries",
        help="vsrn: each region to entries of order 1, or, as the original's code, each feature to norm 1 over the regions")
    add("--region_bn", action="store_true", help="vsrn: BatchNorm after the GRU, as the original on Flickr30k")
    add("--img_layers", type=sizes, help="image embedding of a vector: sizes of hidden layers, as 1024 or 2000-1000, in the "
        "style of --layer_style (default: one linear layer; 0: none)")
    add("--txt_enc", choices=TEXT_ENCODERS, help="text embedding (default: gru, and pie for mil and match_prob: attention to "
        "word vectors beside a bidirectional GRU; bigru: jWAE's; mean, sum: of word vectors; features: --text_features; "
        "trigram_conv, trigram_bag: DMSM's over letter trigrams)")
    add("--txt_fc", action="store_true", help="gru: a linear layer behind each GRU, as pmrl's equations print it: variances of "
        "captions then reach --var_min and --var_max")
    add("--txt_layers", type=sizes, help="text embedding of mean, sum, features and trigrams: as --img_layers")
    add("--layer_style", choices=["relu", "tanh", "branch"], default="relu", help="hidden layers: relu (jWAE), tanh, the last "
        "layer too (DMSM), branch: BatchNorm, ReLU and dropout, one hidden layer (two-branch networks)")
    add("--text_features", metavar="NAME", help="read captions as ready features, {split}_NAME.npy (features.extract captions)")
    add("--word_vectors", type=filename, metavar="FILE",
        help="start the words from word2vec or GloVe vectors of --word_dim numbers")
    add("--freeze_words", action="store_true", help="keep the vectors of --word_vectors as they are")
    add("--n_embeds", type=up_to(1024), metavar="K", help="mil: embeddings an item (default: 2)")
    add("--n_samples", type=up_to(1024), default=7, metavar="J", help="match_prob: samples of every Gaussian")
    add("--cross_attn", choices=DIRECTIONS, default=SCAN["cross_attn"],
        help="scan: words attend to regions (t2i), or regions to words (i2t)")
    add("--raw_feature_norm", choices=list(NORMS), default=SCAN["raw_feature_norm"],
        help="scan: norm of the products of words and regions before the softmax")
    add("--agg_func", choices=list(AGGREGATES), default=SCAN["agg_func"],
        help="scan: what the score makes of the cosines of all words (i2t: regions) with what they attend to")
    add("--lambda_lse", type=number, default=SCAN["lambda_lse"], help="scan: sharpness of LogSumExp")
    add("--lambda_softmax", type=number, default=SCAN["lambda_softmax"], help="scan: sharpness of the attention (i2t: 4)")
    add("--bi_gru", action="store_true", help="scan: read the words in both directions and average")
    add("--precomp_enc_type", choices=["basic", "weight_norm"], default=SCAN["precomp_enc_type"],
        help="scan: linear layer of the regions, plain or weight-normalised")
    add("--no_txtnorm", action="store_true", help="scan: do not normalise word states")
    add("--word_dim", type=width, default=300, help="size of the word vectors")
    add("--embed_size", type=width, help="size of the joint embedding (default: 1024; vsrn: 2048)")
    add("--num_layers", type=up_to(64), default=1, help="layers of the GRU")
    add("--use_abs", action="store_true", help="absolute values of the embeddings (order embeddings)")
    add("--no_imgnorm", action="store_true", help="do not normalise image means; 'cosine' is then their inner product")
    add("--loss", choices=OBJECTIVES, help="objective: hinge (VSE++), infonce (CLIP), match: binary cross-entropy of every "
        "pair (PCME, PCME++), nll: softmax over sampled captions (DMSM), mse: squared distance of matching pairs (jWAE), "
        "two_branch (Embedding Network) or logistic (Similarity Network); default: hinge, match for match_prob, logistic for "
        "product")
    add("--gamma", type=number, default=10.0, help="nll: smoothing factor of the softmax")
    add("--negatives", type=positive, default=40, metavar="N", help="nll: captions that the true one is compared with")
    add("--negative_source", choices=["batch", "set"], default="batch", help="nll: draw them from the batch, or from all "
        "training captions")
    for side in ("images", "captions"):
        add(f"--recon_{side}", type=number, default=0.0, metavar="WEIGHT", help=f"jWAE: {side} are reconstructed from their "
            "latents")
        add(f"--prior_{side}", type=number, default=0.0, metavar="WEIGHT", help=f"jWAE: latents of {side} follow N(0, I), by "
            "--prior_loss")
        add(f"--unpaired_{side}", type=data_set, metavar="NAME",
            help=f"data set below --data_path whose training {side} join these terms")
    add("--mse_weight", type=number, default=1.0, help="mse: of the squared distance per dimension, summed over the batch "
        "(--embed_size: jWAE's eq. 7, counted per item)")
    add("--prior_loss", choices=list(PRIOR_LOSSES), default="gan", help="what tells latents from the prior: gan, a critic "
        "(jWAE), or mmd, a maximum mean discrepancy (both of Tolstikhin et al. 2018)")
    add("--latent_norm", choices=["batch", "sphere", "none"], help="gives latents the prior's scale: sphere, a norm of "
        "sqrt(embed_size), the vector that the cosine compares; batch, mean 0 and variance 1 of each dimension over a batch "
        "(default: with --prior_images or --prior_captions sphere, and batch for --loss mse, which else shrinks; none "
        "without)")
    add("--recon_norm", type=int, choices=[1, 2], default=2, help="norm of what a reconstructed image misses")
    add("--decoder_dim", type=width, default=1024, help="hidden layer of the decoders of vectors")
    add("--word_dropout", type=number, default=0.2, help="share of the words that the caption decoder does not see in training")
    add("--critic_learning_rate", type=number, default=5e-5, help="of the critic's own Adam")
    add("--supervised_fraction", type=number, default=1.0, help="share of the training images whose pairs are known; the "
        "others join the terms that need no pairs")
    add("--vae", type=number, default=0.0, metavar="WEIGHT", help="sample every latent from a Gaussian of its own, at this "
        "weight of its KL to N(0, I) (the VAE that jWAE compares with)")
    add("--pseudo_positives", type=number, default=0.0, metavar="WEIGHT",
        help="match: pairs that score above the true one count as matches at this weight (PCME++: 0.1)")
    add("--captioner", type=number, default=0.0, metavar="WEIGHT", help="vsrn: the image's regions also generate the caption, "
        "at this weight (VSRN: 1; 0: off)")
    add("--captioner_original", action="store_true", help="captioner: as VSRN's code has it, which looks at the regions with "
        "its state alone (the default with the word before, too)")
    add("--dim_hidden", type=width, default=512, help="captioner: size of its GRUs")
    add("--max_len", type=up_to(10_000), default=60, help="captioner: captions are cut after so many tokens, <start> and <end> "
        "among them")
    add("--vib", type=number, default=0.0, metavar="WEIGHT", help="KL of every Gaussian to N(0, I), in nats, averaged over "
        "items (PCME++ averages over dimensions, too: its 1e-4 is 1e-4 / embed_size here; PCME: 5e-6)")
    add("--diversity", type=number, default=0.0, metavar="WEIGHT", help="keeps the K embeddings of mil apart (PVSE: 0.1 "
        "beside a hinge that is averaged over the batch; ours is summed, so 0.1 x batch size)")
    add("--mmd", type=number, default=0.0, metavar="WEIGHT", help="draws the distributions of image and caption embeddings "
        "together (PVSE: 0.01, so here 0.01 x batch size)")
    add("--var_min", type=number, help="smallest variance (default: 0.1, and 1e-6 for match_prob)")
    add("--var_max", type=number, default=10.0, help="largest variance")
    add("--logvar_init", type=number, default=0.0, help="where log-variances start (csd with --loss match: -6)")
    add("--average", choices=["none", "ema", "swa"], default="none", help="average weights over the last third of the epochs: "
        "exponentially (0.999) each step, or evenly over epochs")
    add("--margin", type=number, default=0.2, help="margin of the hinge (VSE++ and VSRN: 0.2; ucmr's VSRN: 0.1)")
    add("--max_violation", action=switch, default=None,
        help="hardest negatives instead of their sum (default: on for similarities of Gaussians)")
    add("--vse_mean_warmup_epochs", type=natural, default=0, help="first epochs on the sum of violations")
    add("--mask_same_image", action="store_true", help="other captions of an image are no negatives")
    add("--num_epochs", type=positive, default=30, help="epochs")
    add("--batch_size", type=positive, default=128, help="pairs in a batch")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd: plain, as in DMSM, at --learning_rate 0.5")
    add("--learning_rate", type=number, default=2e-4, help="initial learning rate")
    add("--lr_update", type=positive, default=15, help="epochs between tenfold reductions of the learning rate")
    add("--grad_clip", type=number, default=2.0, help="largest norm of the gradient; 0: no limit")
    add("--finetune", action="store_true", help="train the CNN too")
    add("--freeze_bn", action="store_true", help="with --finetune: the CNN's BatchNorms keep their statistics, as VSE++'s did")
    add("--amp", choices=["off", "bf16", "fp16"], default="off", help="precision of the networks (fp16: CUDA only)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to train (auto: CUDA when present)")
    add("--workers", type=workers, default=min(10, os.cpu_count() or 1),
        help="processes that read photos or large feature files")
    add("--seed", type=natural, default=0, help="of initialisation, batch order and crops")
    add("--select", choices=["rsum", "hbr"], default="rsum", help="the best model on dev: the highest sum of recalls, or the "
        "lowest harmonic mean of the images' best ranks (DMSM)")
    add("--log_step", type=positive, default=10, help="steps between log lines")
    add("--val_step", type=positive, default=500, help="steps between validations within an epoch")
    add("--logger_name", type=filename, help="run folder (default: runs/{data_name}_{sim}_seed{seed})")
    add("--resume", type=lambda text: text and filename(text), nargs="?", const="", metavar="RUN",
        help="go on exactly where RUN, or the run in --logger_name, stopped; a checkpoint file with --logger_name NEW goes on "
        "from there in a new folder")
    add("--init_from", type=filename, metavar="RUN", help="start from the weights and vocabulary of RUN, with a new optimiser")
    add("--vocab", type=filename, metavar="FILE.json",
        help="vocabulary of an --init_from checkpoint of the original VSE++ or VSRN (python vocab.py convert)")
    add("--overwrite", action="store_true", help="replace a run that --logger_name already holds")
    add("--config", type=filename, metavar="FILE", help="YAML file of options; the command line comes before it")
    add("--dry_run", action="store_true", help="check everything, print sizes and options, write nothing")
    return p


def sizes(text: str) -> str:
    parts = text.split("-")
    if text != "0" and (not all(re.fullmatch("[1-9][0-9]{0,4}", size) for size in parts) or len(parts) > 64):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of layer sizes; give numbers below 100,000 joined by '-', as "
                                         "2000-1000, or 0 for none")
    return text


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


def resolve(opt) -> None:
    """Fill in what --sim implies and refuse, before data load, what cannot work."""
    opt.embed_size = opt.embed_size or (2048 if opt.img_enc == "vsrn" else 1024)
    resolve_pie(opt)
    resolve_scan(opt)
    resolve_text(opt)
    resolve_jwae(opt)
    needs = ALL_SIMILARITIES[opt.sim].gaussian_sides
    heads = [opt.image_head or opt.head, opt.text_head or opt.head]
    if needs == 1:                                          # GCE unless the image side is asked for
        if heads == [None, None]:
            heads = ["point", "ellipsoidal"]
        elif None in heads:
            given = heads[heads.index(None) - 1]
            heads = [head or ("ellipsoidal" if given == "point" else "point") for head in heads]
    wanted, needs = needs, 2 if opt.vae else needs          # --vae: Gaussians whose samples are compared as points
    heads = [head or ("ellipsoidal" if needs else "point") for head in heads]
    gaussian = sum(head != "point" for head in heads)
    if gaussian != needs:
        shown = f"image head '{heads[0]}' and text head '{heads[1]}'"
        fix = {0: "leave the heads out, or choose a similarity of Gaussians such as wasserstein",
               1: f"give one of --image_head (GIE) and --text_head (GCE) one of {', '.join(GAUSSIANS)}",
               2: f"give both sides one of {', '.join(GAUSSIANS)}"}[needs]
        wants = ["compares points", "needs one Gaussian side and one point", "needs a Gaussian on both sides"][needs]
        raise InputError(f"{f'--vae {opt.vae}' if opt.vae else f'--sim {opt.sim}'} {wants}, not {shown}; {fix}")
    for side, layers, head in (("img", opt.img_layers, heads[0]), ("txt", opt.txt_layers, heads[1])):
        if layers == "0" and head != "point":
            raise InputError(f"--{side}_layers 0 leaves nothing to learn variances with, and the {side} head is '{head}'; give "
                             "sizes, or leave it out for a linear layer")
    opt.image_head, opt.text_head = heads
    opt.head = heads[0] if heads[0] == heads[1] else None
    if opt.no_imgnorm and opt.sim == "cosine":              # VSE0: the original's cosine is an inner product
        opt.sim = "dot"
    if opt.max_violation and opt.loss != "hinge":
        raise InputError(f"--max_violation is for --loss hinge, not {opt.loss}; leave it out")
    if opt.max_violation is None:
        opt.max_violation = wanted > 0 and opt.loss == "hinge"
    if opt.vse_mean_warmup_epochs and not opt.max_violation:
        raise InputError("--vse_mean_warmup_epochs delays --max_violation, which is off; give --max_violation too")
    fewest = {"none": 1, "ema": 3, "swa": 6}[opt.average]
    if opt.num_epochs < fewest:
        raise InputError(f"--average {opt.average} averages over the last third of the epochs, and of --num_epochs "
                         f"{opt.num_epochs} that is not enough; give at least {fewest}")
    if opt.pseudo_positives and opt.loss != "match":
        raise InputError(f"--pseudo_positives {opt.pseudo_positives} is for --loss match, not {opt.loss}; leave it out")
    if opt.vib and opt.vae:
        raise InputError(f"--vib {opt.vib} and --vae {opt.vae} draw the same Gaussians to N(0, I); leave --vib out")
    if opt.vib and not gaussian:
        raise InputError(f"--vib {opt.vib} needs a Gaussian side, and --sim {opt.sim} has points; choose a similarity of "
                         "Gaussians or leave it out")
    if min(opt.pseudo_positives, opt.vib) < 0 or not 0 < opt.var_min < opt.var_max:
        raise InputError(f"--pseudo_positives {opt.pseudo_positives}, --vib {opt.vib}, --var_min {opt.var_min} and --var_max "
                         f"{opt.var_max}: weights are at least 0, variances positive and in order")
    if opt.captioner and opt.img_enc != "vsrn":
        raise InputError(f"--captioner {opt.captioner} reads the regions of --img_enc vsrn, not of {opt.img_enc}; give "
                         "--img_enc vsrn too, or leave it out")
    if opt.captioner and (opt.txt_enc == "features" or opt.txt_enc in TRIGRAM_NETWORKS):
        raise InputError(f"--captioner {opt.captioner} tells captions word by word, and --txt_enc {opt.txt_enc} reads no "
                         "words; take gru, or leave it out")
    if not opt.captioner >= 0 or opt.max_len < 2:
        raise InputError(f"--captioner {opt.captioner} and --max_len {opt.max_len}: the first is a weight of at least 0, the "
                         "second at least 2, <start> and a token to predict")
    if opt.batch_size < 2:
        raise InputError(f"--batch_size {opt.batch_size} has no negatives to learn from; give at least 2, 128 is usual")
    if opt.amp == "fp16" and torch_device(opt.device).type != "cuda":
        raise InputError("--amp fp16 needs CUDA; on this device use --amp bf16 or off")
    if not opt.learning_rate > 0 or not opt.margin >= 0 or not opt.grad_clip >= 0:
        raise InputError(f"--learning_rate {opt.learning_rate}, --margin {opt.margin} and --grad_clip {opt.grad_clip}: the "
                         "first must be above 0, the others at least 0")
    refuse_unused(opt)
    if opt.vocab and not opt.init_from:
        raise InputError(f"--vocab {opt.vocab} is the vocabulary of an original checkpoint that --init_from names; give both, "
                         "or a vocabulary for training in --vocab_path")
    opt.logger_name = opt.logger_name or default_run(opt)


@functools.cache
def defaults() -> dict:
    return vars(parser().parse_args([]))


def refuse_unused(opt) -> None:
    """Refuse what was given and would change nothing, among resolved options."""
    gaussian, words = (opt.image_head, opt.text_head) != ("point", "point"), opt.txt_enc in ("gru", "bigru")
    bags = opt.txt_enc in ("mean", "sum", "features")
    vectors = opt.img_enc in ("auto", "precomp", "cnn") and opt.pool == "mean"      # one an image, embedded by layers
    layers = any(hidden not in (None, "0") for hidden in (opt.img_layers, opt.txt_layers))
    for names, used, where in (
            ("margin", opt.loss == "hinge", "--loss hinge"),
            ("gamma negatives negative_source", opt.loss == "nll", "--loss nll"),
            ("mask_same_image", opt.loss not in ("mse", "two_branch") and opt.negative_source == "batch",
             "objectives over the pairs of a batch"),
            ("recon_norm", opt.recon_images, "--recon_images"),
            ("decoder_dim", opt.recon_images or opt.recon_captions and bags,
             "--recon_images, and --recon_captions with --txt_enc mean or features"),
            ("word_dropout", opt.recon_captions and words, "--recon_captions with --txt_enc gru or bigru"),
            ("prior_loss", opt.prior_images or opt.prior_captions, "--prior_images and --prior_captions"),
            ("critic_learning_rate", (opt.prior_images or opt.prior_captions) and opt.prior_loss == "gan",
             "--prior_images and --prior_captions with --prior_loss gan"),
            ("dim_hidden max_len captioner_original", opt.captioner, "--captioner"),
            ("n_samples", opt.sim == "match_prob", "--sim match_prob"),
            ("var_max logvar_init logvar_norm", gaussian, "Gaussian heads"),
            ("lambda_lse", opt.agg_func == "LogSumExp", "--agg_func LogSumExp"),
            ("no_imgnorm", opt.sim not in ("mil", "product"), "similarities that do not normalise by themselves"),
            ("layer_style", {"tanh": layers or vectors or bags, "branch": layers}.get(opt.layer_style, True),
             "--img_layers and --txt_layers"),
            ("freeze_bn", opt.finetune, "--finetune"),
            ("txt_fc", opt.txt_enc == "gru" and opt.sim != "scan", "--txt_enc gru and one vector a caption"),
            ("num_layers", words or opt.txt_enc == "pie", "--txt_enc gru, bigru and pie")):
        given = [] if used else [name for name in names.split() if getattr(opt, name) != defaults()[name]]
        if given:
            raise InputError(f"--{given[0]} {getattr(opt, given[0])} is for {where}, and has no effect here; leave it out")


def resolve_pie(opt) -> None:
    """What PIE-Net, the best of K embeddings (mil) and the match probability of samples (match_prob) imply and need."""
    pie = opt.sim in ("mil", "match_prob")
    opt.img_enc = "pie" if pie and opt.img_enc == "auto" else opt.img_enc
    opt.txt_enc = opt.txt_enc or ("pie" if pie else "features" if opt.text_features else "gru")
    opt.n_embeds = opt.n_embeds or (2 if opt.sim == "mil" else 1)
    opt.loss = opt.loss or ("logistic" if opt.sim == "product" else "match" if ALL_SIMILARITIES[opt.sim].logits else "hinge")
    opt.var_min = (1e-6 if opt.sim == "match_prob" else 0.1) if opt.var_min is None else opt.var_min
    if opt.sim == "mil" and (opt.img_enc, opt.txt_enc) != ("pie", "pie"):
        name, value = ("img_enc", opt.img_enc) if opt.img_enc != "pie" else ("txt_enc", opt.txt_enc)
        raise InputError(f"--sim mil compares several embeddings an item, and --{name} {value} makes one; leave --{name} out "
                         "(it is pie then), or take --sim cosine")
    if opt.n_embeds > 1 and opt.sim != "mil":
        raise InputError(f"--n_embeds {opt.n_embeds} is for --sim mil, and --sim {opt.sim} compares one embedding an item; "
                         "leave it out")
    if opt.diversity and opt.n_embeds == 1:
        raise InputError(f"--diversity {opt.diversity} keeps several embeddings of an item apart, and there is one; take --sim "
                         "mil with --n_embeds 2 or more, or leave it out")
    if min(opt.diversity, opt.mmd) < 0:
        raise InputError(f"--diversity {opt.diversity} and --mmd {opt.mmd} are weights; give at least 0")
    if opt.txt_enc in ("pie", "bigru") and opt.embed_size % 2:
        raise InputError(f"--embed_size {opt.embed_size} is odd, and --txt_enc {opt.txt_enc} joins two directions of a GRU of "
                         "half that size; give an even one")


def resolve_scan(opt) -> None:
    """What cross-attention (scan) implies and needs: a trunk that keeps every region, a GRU that keeps every word."""
    if opt.sim != "scan":
        if opt.img_enc == "scan":
            raise InputError(f"--img_enc scan keeps every region of an image, and --sim {opt.sim} does not compare them; take "
                             "--sim scan, or leave --img_enc out")
        foreign = [name for name, default in SCAN.items() if getattr(opt, name) != default]
        if foreign:
            raise InputError(f"--{foreign[0]} is for --sim scan, not {opt.sim}; give --sim scan too, or leave it out")
        return
    opt.img_enc = "scan" if opt.img_enc == "auto" else opt.img_enc
    if opt.text_features:
        raise InputError(f"--text_features {opt.text_features} are one vector a caption, and --sim scan compares words; leave "
                         "it out, or take --sim cosine")
    for name, needed in (("img_enc", "scan"), ("txt_enc", "gru"), ("pool", "mean")):
        if getattr(opt, name) != needed:
            raise InputError(f"--sim scan compares every region with every word, which --{name} {getattr(opt, name)} does not "
                             f"leave; leave --{name} out")
    if opt.use_abs:
        raise InputError("--use_abs is for order embeddings, and --sim scan compares regions and words; leave it out")
    if not 0 < opt.lambda_lse < np.inf or not 0 < opt.lambda_softmax < np.inf:
        raise InputError(f"--lambda_lse {opt.lambda_lse} and --lambda_softmax {opt.lambda_softmax} must be positive and "
                         "finite; SCAN has 6 and 9")


def resolve_text(opt) -> None:
    """What the text encoders need of each other's options."""
    vectors = opt.txt_enc in ("mean", "sum", "features") or opt.txt_enc in TRIGRAM_NETWORKS
    if (opt.txt_enc == "features") != bool(opt.text_features):
        raise InputError(f"--txt_enc {opt.txt_enc} and --text_features {opt.text_features}: features are read by --txt_enc "
                         "features, from the files that --text_features names; give both or neither")
    if opt.txt_layers and not vectors:
        raise InputError(f"--txt_layers {opt.txt_layers} is for --txt_enc mean, sum, features and trigrams, not "
                         f"{opt.txt_enc}; leave it out")
    if opt.txt_enc in TRIGRAM_NETWORKS and opt.txt_layers == "0":
        raise InputError(f"--txt_layers 0: --txt_enc {opt.txt_enc} needs a layer; give sizes, or leave it out for a single one")
    if opt.word_vectors and (opt.txt_enc == "features" or opt.txt_enc in TRIGRAM_NETWORKS):
        raise InputError(f"--word_vectors {opt.word_vectors}: --txt_enc {opt.txt_enc} has no word vectors; leave it out")
    if opt.word_vectors and opt.init_from and opt.resume is None:
        raise InputError(f"--word_vectors {opt.word_vectors}: the words are those of --init_from {opt.init_from}; leave it out")
    if opt.word_vectors and opt.resume is None and not os.path.isfile(opt.word_vectors):
        raise InputError(f"there is no file {opt.word_vectors} of word vectors; `python -m features.word_vectors` learns some "
                         "from the "
                         "captions")
    if opt.freeze_words and not (opt.word_vectors or opt.init_from):
        raise InputError("--freeze_words keeps vectors of a file, or of a run, as they are; give --word_vectors FILE or "
                         "--init_from RUN too")
    for name in ("img_layers", "txt_layers"):
        if opt.layer_style == "branch" and "-" in (getattr(opt, name) or ""):
            raise InputError(f"--{name} {getattr(opt, name)}: --layer_style branch has one hidden layer; give one size")
    if opt.img_layers and (opt.img_enc in ("vsrn", "pie", "scan") or opt.pool == "gpo"):
        raise InputError(f"--img_layers {opt.img_layers} embeds one vector an image, and --img_enc {opt.img_enc} --pool "
                         f"{opt.pool} has an embedding of its own; leave it out")


def resolve_jwae(opt) -> None:
    """What objectives beside the hinge, autoencoders and unpaired data need."""
    terms = {name: getattr(opt, name) for name in ("recon_images", "recon_captions", "prior_images", "prior_captions", "vae")}
    wrong = next((name for name, weight in terms.items() if not 0 <= weight < np.inf), None)
    if wrong:
        raise InputError(f"--{wrong} {terms[wrong]} is a weight; give at least 0")
    prior = opt.prior_images or opt.prior_captions
    opt.latent_norm = opt.latent_norm or ("none" if not prior else "batch" if opt.loss == "mse" else "sphere")
    if opt.recon_images and opt.img_enc in ("vsrn", "pie"):
        raise InputError(f"--recon_images {opt.recon_images}: --img_enc {opt.img_enc} learns what its embedding is given, and "
                         "that is no target; take --img_enc precomp or --sim scan")
    if opt.recon_images and opt.pool == "gpo":
        raise InputError(f"--recon_images {opt.recon_images}: --pool gpo makes one latent of all regions, which cannot give "
                         "each of them back; take --pool mean or --sim scan")
    if opt.recon_captions and (opt.txt_enc == "pie" or opt.txt_enc in TRIGRAM_NETWORKS):
        raise InputError(f"--recon_captions {opt.recon_captions}: --txt_enc {opt.txt_enc} has no decoder; take gru, bigru, "
                         "mean or features")
    if opt.recon_captions and opt.txt_enc in ("mean", "sum") and not opt.freeze_words:
        raise InputError(f"--recon_captions {opt.recon_captions}: --txt_enc {opt.txt_enc} would move its own target; keep the "
                         "words as they are with --word_vectors FILE --freeze_words, or take gru or bigru")
    if opt.sim not in ("cosine", "dot", "scan") and any(terms.values()):
        raise InputError(f"--{next(name for name, weight in terms.items() if weight)} is for points compared by their cosine, "
                         f"not for --sim {opt.sim}; take --sim cosine or scan")
    if opt.loss == "mse" and opt.sim not in ("cosine", "dot"):
        raise InputError(f"--loss mse draws matching points together, and --sim {opt.sim} does not compare them; take --sim "
                         "cosine")
    if opt.loss == "two_branch" and opt.no_imgnorm:
        raise InputError("--no_imgnorm: --loss two_branch compares unit vectors; leave it out")
    if opt.loss == "two_branch" and (opt.sim != "cosine" or opt.batch_size % 2):
        raise InputError(f"--loss two_branch compares points in batches of pairs of captions; --sim {opt.sim} and --batch_size "
                         f"{opt.batch_size} do not go with it: take cosine and an even number")
    if (opt.sim == "product") != (opt.loss == "logistic"):
        raise InputError(f"--sim {opt.sim} and --loss {opt.loss}: the Similarity Network is --sim product with --loss "
                         "logistic; give both or neither")
    if opt.loss == "nll" and opt.negative_source == "batch" and opt.negatives > opt.batch_size - 1:
        raise InputError(f"--negatives {opt.negatives}: a batch of {opt.batch_size} has {opt.batch_size - 1} other captions; "
                         "give fewer, a larger --batch_size, or --negative_source set")
    if opt.loss == "nll" and not opt.gamma > 0:
        raise InputError(f"--gamma {opt.gamma} must be positive; DMSM has 10")
    if opt.mse_weight != 1 and opt.loss != "mse" or not opt.mse_weight > 0:
        raise InputError(f"--mse_weight {opt.mse_weight} is a positive weight for --loss mse, not {opt.loss}; leave it out")
    if not 0 < opt.supervised_fraction <= 1:
        raise InputError(f"--supervised_fraction {opt.supervised_fraction} is a share of the pairs; give more than 0 and at "
                         "most 1")
    if not 0 <= opt.word_dropout < 1 or not opt.critic_learning_rate > 0:
        raise InputError(f"--word_dropout {opt.word_dropout} and --critic_learning_rate {opt.critic_learning_rate}: the first "
                         "lies in [0, 1), the second is above 0")
    unpaired = [side for side in ("images", "captions") if getattr(opt, f"unpaired_{side}")]
    for side in unpaired:
        if not learns_alone(opt, side):
            raise InputError(f"--unpaired_{side} {getattr(opt, f'unpaired_{side}')}: nothing is learned from {side} without "
                             f"partners here; give a weight, such as --recon_{side} or --prior_{side}, or leave it out")
    if (unpaired or opt.supervised_fraction < 1) and opt.loss == "nll" and opt.negative_source == "set":
        raise InputError("--negative_source set draws captions of its own and does not go with unpaired data; take batch")
    if opt.vae and opt.sim == "scan":
        raise InputError(f"--vae {opt.vae} samples one vector an item, and --sim scan compares parts; take --sim cosine")


def prepare_images(opt, images) -> None:
    """Settle --img_enc and --img_dim by what the data hold."""
    if isinstance(images, Photos) and (opt.unpaired_images or opt.supervised_fraction < 1):
        raise InputError(f"--unpaired_images and --supervised_fraction need precomputed features, and {opt.data_name} has "
                         "photos; extract features first: features.extract images")
    needed = "cnn" if isinstance(images, Photos) else "precomp"
    if opt.use_restval and needed == "precomp":
        raise InputError(f"--use_restval adds COCO's restval photos, and {opt.data_name} has precomputed features, whose train "
                         "split is what it is; leave it out")
    img_enc = needed if opt.img_enc == "auto" else opt.img_enc
    if img_enc == "pie" and needed == "precomp" and images.array.ndim != 3:
        other = "another --sim" if opt.sim == "mil" else "--img_enc precomp"
        raise InputError(f"--img_enc pie attends to regions and {images.path} holds one vector an image; give features of "
                         f"shape (images, regions, F) or photos, or take {other}")
    if img_enc == "scan" and (needed == "cnn" or images.array.ndim != 3):
        given = "photos" if needed == "cnn" else f"one vector an image in {images.path}"
        raise InputError(f"--sim scan attends to regions and {opt.data_name} has {given}; give features of shape (images, "
                         "regions, F), or take another --sim")
    if img_enc != "pie" and (img_enc == "cnn") != (needed == "cnn"):
        raise InputError(f"--img_enc {img_enc} cannot read {opt.data_name}, which needs --img_enc {needed}")
    if img_enc == "vsrn" and images.array.ndim != 3:
        raise InputError(f"--img_enc vsrn reasons over regions and {images.path} holds one vector an image; give features of "
                         "shape (images, regions, F), or take --img_enc precomp")
    if opt.pool == "gpo" and (img_enc != "precomp" or images.array.ndim != 3):
        raise InputError(f"--pool gpo pools regions with --img_enc precomp, and {opt.data_name} with --img_enc {img_enc} has "
                         "none to pool; give features of shape (images, regions, F), or leave it out")
    if img_enc != "vsrn" and (opt.region_bn or opt.region_norm != "entries"):
        raise InputError(f"--region_norm and --region_bn are for --img_enc vsrn, not {img_enc}; leave them out")
    if opt.img_dim not in (None, images.dim) and needed == "precomp":
        raise InputError(f"--img_dim {opt.img_dim} differs from the {images.dim} of {images.path}; leave --img_dim out")
    given = [name for name in ("finetune", "cnn_weights", "cnn_type", "crop_size") if getattr(opt, name) != defaults()[name]]
    if needed == "precomp" and given:
        raise InputError(f"--{given[0]} is for photos, and {opt.data_name} has precomputed features; leave it out")
    if opt.n_regions not in (None, images.regions):
        raise InputError(f"--n_regions {opt.n_regions} differs from the {images.regions or 'single vector'} of each image in "
                         f"{opt.data_name}; leave --n_regions out")
    opt.img_enc, opt.img_dim, opt.n_regions = img_enc, images.dim, images.regions


def prepare_text(opt, text) -> None:
    """Settle --txt_dim by the features of the captions, where there are any."""
    width = text.dim if text is not None else None
    if opt.txt_dim not in (None, width):
        raise InputError(f"--txt_dim {opt.txt_dim} differs from the {width} of --text_features {opt.text_features}; leave it "
                         "out")
    opt.txt_dim = width
