"""Options of train.py and evaluate.py, their defaults, and refused combinations.

A loss or an encoder with options of its own declares them beside its code, in `options`; they are added here by
themselves.
`options(sim="wasserstein")` gives the options of a training to a script.
"""
import argparse
import contextlib
import inspect
import os
import textwrap

import cli
from cli import Arguments, InputError, at_least_zero, check, data_set, filename, natural, positive, spell_value
from data import DEV_IMAGES
from files import read_yaml
from images import NoImages, Photos
from losses import LOSSES, SIMILARITIES, list_functions
from methods import (  # the files of papers add their similarities, encoders and terms
    ADVICE,
    CAPTION_FEATURES,
    METHODS,
    NEEDS,
    SAME_AS_HERE,
    SYNONYMS,
    pvse_pcme,  # noqa: F401
    scan,
    two_branch,  # noqa: F401
    volume,  # noqa: F401
    vse_infinity,  # noqa: F401
    vsrn,  # noqa: F401
)
from model import CNNS, HEADS, IMAGE_ENCODERS, LATENT_NORMS, LAYER_STYLES, OPTION_RULES, POOLINGS, TEXT_ENCODERS

FLAG, SWITCH = {"action": "store_true"}, {"action": argparse.BooleanOptionalAction}
WEIGHT = {"type": at_least_zero, "default": 0.0, "metavar": "WEIGHT"}
# Options that no file of options holds, since they say which run it is or start a command.
COMMAND_LINE = {"logger_name", "overwrite", "resume", "config", "dry_run", "methods"}
NOT_STORED = COMMAND_LINE - {"logger_name"}   # options that no checkpoint holds


LETTERS_PER_SIMILARITY = 140          # of its description in --help


class Options(argparse.Namespace):
    """Options of train.py; `asked`, not in vars(), are those given, before `resolve`."""
    __slots__ = ("asked",)


# ---- --help

class Help(cli._Defaults):
    """Help whose texts keep their own lines, where they have several."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        if "\n" not in text:
            return super()._split_lines(text, width)
        lines = []
        for line in text.splitlines():
            lines += textwrap.wrap(line, width, subsequent_indent="  ")
        return lines


# What stands for the value of an option of a type.
METAVARS = {natural: "N", positive: "N", cli.width: "N", cli.depth: "N", cli.at_least_two: "N", cli.workers: "N",
            at_least_zero: "X", cli.above_zero: "X", cli.below_one: "X", cli.fraction: "X", cli.number: "X",
            filename: "PATH", data_set: "NAME", cli.split_name: "NAME", cli.sizes: "SIZES"}


def name_values(p: Arguments) -> None:
    """Give options a short word for their value, where argparse would repeat their name."""
    for action in p._actions:
        if action.metavar is None and action.choices is None and action.nargs != 0:
            action.metavar = METAVARS.get(action.type, "TEXT")


def describe_similarities() -> str:
    """List the similarities, a line each, from where they stand in the code."""
    lines = ["similarity (default: %(default)s):"]
    for name, similarity in SIMILARITIES.items():
        words = inspect.getdoc(similarity.score) or "of your own"
        words = textwrap.shorten(words, LETTERS_PER_SIMILARITY, placeholder=" ...")
        lines.append(f"{name}: {words}".replace("%", "%%"))
    return "\n".join(lines)


# ---- train.py

def training_parser() -> Arguments:
    """Build the parser of train.py."""
    p = Arguments("Train a joint embedding of images and captions.", ADVICE, usage="%(prog)s [options]",
                  formatter_class=Help)
    add_data_options(p.add_argument_group("data").add_argument)
    add_method_options(p.add_argument_group("method").add_argument)
    add_image_options(p.add_argument_group("images").add_argument)
    add_caption_options(p.add_argument_group("captions").add_argument)
    add_part_options(p.add_argument_group("SCAN, PVSE and CITE").add_argument)
    add_loss_options(p.add_argument_group("objective").add_argument)
    add_term_options(p.add_argument_group("terms beside the objective, off at a weight of 0").add_argument)
    add_optimizer_options(p.add_argument_group("optimisation").add_argument)
    add_run_options(p.add_argument_group("run").add_argument)
    # what the data settle, stored with the options
    p.set_defaults(n_regions=None, txt_dim=None)
    name_values(p)
    add_foreign_flags(p)
    return p


def add_data_options(add) -> None:
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=data_set, default="coco_precomp", help="folder of the data set")
    add("--vocab_path", type=filename, default="./vocab/", help="folder of {data_name}_vocab.json, else one is built")
    add("--vocab_splits", default="train", help="splits whose words count (original: train,dev)")
    add("--vocab_threshold", type=positive, default=4, help="keep words that are seen at least this often")
    add("--use_restval", **FLAG, help="train on COCO's restval images, too")
    add("--dev_images", type=natural, default=DEV_IMAGES, help="dev images of precomputed data and COCO to use; 0: all")
    add("--supervised_fraction", type=cli.fraction, default=1.0, help="jWAE: share of the images whose pairs are known")
    add("--noise_ratio", type=cli.below_one, default=0.0, help="share of captions that exchange their images (NCR)")
    add("--noise_seed", type=natural, default=0, help="seed of --noise_ratio")
    add("--noise_file", type=filename, help="the image of each training caption (NCR) or image (DECL), as .npy")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1), help="processes that read photos")


def add_method_options(add) -> None:
    add("--method", choices=METHODS, metavar="NAME", help="options of a method of the papers (see --methods)")
    add("--sim", "--measure", choices=SIMILARITIES, default="cosine", metavar="NAME",
        help=describe_similarities())
    add("--head", choices=HEADS, help="points or Gaussians, for both sides (default: what --sim needs)")
    add("--image_head", choices=HEADS, help="head of the image side; a Gaussian here and points for captions give GIE")
    add("--text_head", choices=HEADS, help="head of the caption side; a Gaussian here and points for images give GCE")
    add("--embed_size", type=cli.width, help="size of the joint embedding, D (default: 1024; vsrn: 2048)")
    add("--use_abs", **FLAG, help="take absolute values of the embeddings (order embeddings)")
    add("--no_imgnorm", **FLAG, help="do not normalise image means; 'cosine' is then their inner product")
    add("--logvar_norm", **SWITCH, default=False, help="give log-variances norm 1")
    add("--logvar_init", type=cli.number, help="initial log-variance (default: 0; mls: -2.5, --loss volume: -7)")
    add("--var_min", type=cli.above_zero, help="smallest variance (default: 0.1; mls: 1e-4, match_prob: 1e-6)")


def add_image_options(add) -> None:
    add("--img_enc", choices=["auto", *IMAGE_ENCODERS], default="auto", help="image encoder (auto: by the data and "
        "--sim). vsrn: graph and GRU over regions; pie: attention (PVSE, PCME); scan: every region")
    add("--cnn_type", choices=CNNS, default="vgg19", help="network for photos")
    add("--cnn_weights", type=filename, help="weights of the network (default: those in torch's cache)")
    add("--finetune", **FLAG, help="also train the network for photos")
    add("--freeze_bn", **FLAG, help="with --finetune: its BatchNorms keep their statistics, as in VSE++")
    add("--crop_size", type=cli.width, default=224, help="side of the random crops of training photos")
    add("--img_dim", type=cli.width, metavar="F",
        help="width of the features, which VSE++ has to be told (default: read from the data)")
    add("--feature_norm", **SWITCH, default=True, help="l2-normalise features (vsrn: the output of its first layer)")
    add("--pool", choices=POOLINGS, default="mean", help="pooling of regions: mean, or VSE-infinity's")
    add("--region_norm", choices=["entries", "regions"], default="entries", help="vsrn: scale regions to entries of "
        "order 1, or each feature to norm 1 over the regions, as the original code does")
    add("--region_bn", **FLAG, help="vsrn: BatchNorm after the GRU, as in the original on Flickr30K")
    add("--img_layers", type=cli.sizes, help="hidden layers, as in 2000-1000 (default: a linear layer; 0: none)")


def add_caption_options(add) -> None:
    add("--txt_enc", choices=TEXT_ENCODERS, help="text encoder (default: gru, or what --sim needs). bigru: jWAE's; "
        "pie: attention (PVSE, PCME); mean, sum: of word vectors; trigram_*: letter trigrams (DMSM, DSSM)")
    add("--txt_fc", **FLAG, help="gru: a linear layer after each GRU, as in pmrl's equations")
    add("--txt_layers", type=cli.sizes, help="hidden layers for mean, sum, features and trigrams, as in --img_layers")
    add("--layer_style", choices=LAYER_STYLES, default="relu", help="hidden layers of jWAE, of DMSM "
        "(tanh, also after the last), or of two-branch networks (one, with BatchNorm, ReLU and dropout)")
    add("--text_features", metavar="NAME", help="read features of captions, {split}_NAME.npy, instead of words")
    add("--word_vectors", type=filename, help="initialise words from word2vec or GloVe vectors")
    add("--freeze_words", **FLAG, help="do not train the vectors of --word_vectors")
    add("--word_dim", type=cli.width, default=300, help="size of the word vectors")
    add("--num_layers", type=cli.depth, default=1, help="layers of the GRU")
    add_declared(add, [*IMAGE_ENCODERS.values(), *TEXT_ENCODERS.values()])


def add_part_options(add) -> None:
    add("--bi_gru", **FLAG, help="scan: read the words in both directions and average")
    add("--cross_attn", choices=["t2i", "i2t"], default="t2i", help="scan: words attend to regions, or the reverse")
    add("--agg_func", choices=scan.AGGREGATES, default="LogSumExp", help="scan: score from the cosines of parts")
    add("--lambda_lse", type=at_least_zero, default=6.0, help="scan: sharpness of LogSumExp")
    add("--lambda_softmax", type=at_least_zero, default=9.0, help="scan: sharpness of the attention (i2t: 4)")
    add("--n_embeds", type=cli.depth, metavar="K", help="mil: embeddings per item (default: 2)")
    add("--cite_layers", type=cli.sizes, help="cite: the shared and the concepts' layers (default: 1024-256)")


def add_loss_options(add) -> None:
    add("--loss", choices=LOSSES, help="loss to minimise. hinge (VSE++), infonce (CLIP), match "
        "(PCME, PCME++), rcl (for data with wrong pairs), nll (DMSM), mse (jWAE), two_branch, logistic (CITE), volume "
        "(variances of given means, from the share of photos that fit). Default: hinge, or what --sim needs")
    add_declared(add, LOSSES.values())
    add("--vse_mean_warmup_epochs", type=natural, default=0, help="hinge: sum of violations in the first N epochs")
    add("--mask_same_image", **SWITCH, help="no negatives of the same image (default: on for infonce, match and rcl)")
    add("--pseudo_positives", **WEIGHT, help="match: weight of the loss with pairs that score above "
        "the matched one relabelled as matches (PCME++: 0.1)")
    add("--label_smoothing", type=cli.below_one, help="infonce, match: share of the targets spread over all pairs")
    add("--mse_weight", type=cli.above_zero, default=1.0, help="mse: weight of the squared distance per dimension")


def add_term_options(add) -> None:
    for side in ("images", "captions"):
        add(f"--recon_{side}", **WEIGHT, help=f"jWAE: reconstruct {side}")
        add(f"--prior_{side}", **WEIGHT, help=f"jWAE: latents of {side} follow N(0, I)")
    add("--latent_norm", choices=LATENT_NORMS, help="scale of latents: norm sqrt(embed_size), or mean 0 and variance 1 "
        "over a batch (default: sphere with a prior and a loss of scores, else none)")
    add("--vae", **WEIGHT, help="sample latents from Gaussians; weight of their KL to N(0, I) (jWAE's VAE)")
    add("--captioner", **WEIGHT, help="vsrn: weight of the caption generator (VSRN: 1)")
    add("--captioner_original", **FLAG, help="captioner: attend as in VSRN's code, without the previous word")
    add("--dim_hidden", type=cli.width, default=512, help="captioner: size of its GRUs")
    add("--vib", **WEIGHT, help="KL of every Gaussian to N(0, I) in nats, mean over items (PCME: 5e-6; PCME++: 1e-4 "
        "times half the batch size, divided by D)")
    add("--diversity", **WEIGHT, help="mil: keep the K embeddings apart (PVSE: 0.1 x batch size)")
    add("--mmd", **WEIGHT, help="pull the two distributions of embeddings together (PVSE: 0.01 x batch size)")


def add_optimizer_options(add) -> None:
    add("--dropout", type=cli.below_one, default=0.0, help="dropout of features and word vectors")
    add("--feature_noise", **WEIGHT, help="noise added to features and word vectors, its norm as a share of theirs")
    add("--weight_decay", **WEIGHT, help="decoupled weight decay of matrices (AdamW)")
    add("--schedule", choices=["step", "cosine"], default="step", help="of the rate. step: divide it by 10 "
        "every --lr_update epochs; cosine: let it fall to 0 in half a cosine")
    add("--warmup", type=at_least_zero, default=0.0, metavar="EPOCHS", help="epochs in which the rate rises from 0")
    add("--num_epochs", type=positive, default=30, help="number of epochs")
    add("--batch_size", type=cli.at_least_two, default=128, help="pairs per batch")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd is DMSM's, at --learning_rate 0.5")
    add("--learning_rate", type=cli.above_zero, default=0.0002, help="initial learning rate")
    add("--lr_update", type=positive, default=15, help="epochs until the learning rate is divided by 10")
    add("--grad_clip", type=at_least_zero, default=2.0, help="largest norm of the gradient; 0: no limit")
    add("--select", choices=["rsum", "hbr", "r1"], default="rsum", help="choose the best epoch on dev by the sum of "
        "recalls, the harmonic mean of the images' best ranks (DMSM), or R@1 of both directions")
    add("--patience", type=positive, help="stop after N epochs in a row without a better model on dev (CITE: 5)")
    add("--amp", choices=["off", "bf16"], default="off", help="bf16: mixed precision; off: float32")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (auto: CUDA if present)")
    add("--seed", type=natural, default=0, help="seed of initialisation, batch order and crops")


def add_run_options(add) -> None:
    add("--logger_name", type=filename, metavar="FOLDER", help="run folder (default: runs/DATA_METHOD_seedN)")
    add("--log_step", type=positive, default=10, help="steps between log lines")
    add("--val_step", type=positive, default=500, help="steps between validations within an epoch")
    add("--resume", type=lambda text: text and filename(text), metavar="RUN", nargs="?", const="", help="continue "
        "exactly where the run in this folder, or in --logger_name, stopped")
    add("--init_from", type=filename, metavar="RUN", help="start from the weights and vocabulary of RUN; "
        "the loss and variances may be others")
    add("--vocab", type=filename, metavar="FILE", help="vocabulary of an --init_from of an original code base")
    add("--overwrite", **FLAG, help="replace a run: checkpoints, logs, events, and files made from it")
    add("--config", type=filename, help="YAML file of options; options of the command line override it")
    add("--methods", **FLAG, help="list the methods and their options, and exit")
    add("--dry_run", **FLAG, help="check everything, print sizes and options, write nothing")


def add_declared(add, parts) -> None:
    """Add the options that losses or encoders declare: {name: (type, default, help)}.

    One that two of them share, with the same declaration, is added once.
    """
    kinds = {float: {"type": at_least_zero}, int: {"type": positive}, bool: SWITCH}
    declared = {}
    for part in parts:
        for name, (kind, default, text) in part.options.items():
            if declared.get(name) != (kind, default, text):
                add(f"--{name}", default=default, help=text, **kinds.get(kind, {"type": kind}))
            declared[name] = (kind, default, text)


class SaysTheSame(argparse.Action):
    """A flag of another code base that says what this code does anyway: nothing is stored."""

    def __call__(self, parser, namespace, values, option_string=None):
        pass


def add_foreign_flags(p: Arguments) -> None:
    """Take flags of the methods' own code that mean the same here; --help does not list them."""
    for theirs, ours in SYNONYMS.items():
        p._option_string_actions.setdefault(theirs, p._option_string_actions[ours])

    hidden = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag, value in SAME_AS_HERE.items():
        if value is None:
            p.add_argument(flag, action=SaysTheSame, nargs=0, **hidden)
        else:
            p.add_argument(flag, action=SaysTheSame, type=only(value), **hidden)
    p.add_argument("--order", action="store_const", const="order", **{**hidden, "dest": "sim"})


def only(value: str):
    """Return the type of an option that has one value here, a word or a number."""
    def read(text: str) -> str:
        same = text == value
        with contextlib.suppress(ValueError):
            same = same or float(text) == float(value)
        if not same:
            raise InputError(f"'{text}' is not computed here; give {value}, or leave it out")
        return text
    return read


def list_options(p: Arguments) -> dict[str, argparse.Action]:
    """Return the options of a parser by name, without those that --help does not list."""
    return {action.dest: action for action in p._actions
            if action.dest != "help" and action.help != argparse.SUPPRESS}


def defaults(p: Arguments) -> dict:
    """Return the options of a parser where none is given, with what the data settle."""
    return vars(p.parse_args([]))


# ---- options of a training from the command line, a file or a script

def parse_words(p: Arguments, words: list[str]) -> Options:
    """Parse a command line; its options come before the options of --method."""
    opt = p.parse_args(words, Options())
    if opt.method:
        opt = p.parse_args([*METHODS[opt.method].flags.split(), *words], Options())
    opt.asked = {name: value for name, value in vars(opt).items() if name not in COMMAND_LINE}
    return opt


def options(**values) -> Options:
    """Resolve options of a training: options(sim="wasserstein"). Raises InputError."""
    p = training_parser()

    def refuse(message: str):
        raise InputError(p.explain(message))
    p.error = refuse
    opt = parse_words(p, spell(values, p, "options()"))
    resolve(opt)
    return opt


def read_config(path: str, p: Arguments) -> list[str]:
    """Read the options of a YAML file as words of a command line.
    A run's config.yaml gives those that it was asked for, from which others follow, and never its folder."""
    values, where = read_yaml(path), f"--config {path}"
    check_mapping(values, where)
    known = {*list_options(p)}
    if isinstance(values.get("options"), dict):             # a run's config.yaml
        if "asked" not in values:                           # of an older run, whose data settled it
            known.discard("img_dim")
        values = values.get("asked", values["options"])
        check_mapping(values, f"{where}, under 'asked',")
        values = {name: value for name, value in values.items() if name in known - COMMAND_LINE}
    wrong = [name for name in values if name in COMMAND_LINE]
    if wrong:
        raise InputError(f"{where} holds '{wrong[0]}', which only the command line can say, since it names a run or "
                         "starts a command; leave it out")
    return spell(values, p, where)


def check_mapping(values, where: str) -> None:
    """Raise InputError where a file, or a part of it, holds no options by their names."""
    if not isinstance(values, dict):
        raise InputError(f"{where} holds no options by their names but {spell_value(values)}; write lines NAME: VALUE")


def spell(values: dict, p: Arguments, where: str) -> list[str]:
    """Spell options by name as words of a command line, to be checked like typed ones."""
    words, known = [], list_options(p)
    for name, value in values.items():
        if f"--{name}" in SYNONYMS:
            name = SYNONYMS[f"--{name}"].removeprefix("--")     # lr: learning_rate
        if name not in known:
            raise InputError(f"{where} holds {spell_value(name)}, which is not an option; "
                             f"{p.advise(name) or 'see train.py --help'}")
        switch = known[name].nargs == 0
        several = isinstance(value, (dict, list, set, tuple, bytes))
        if value is not None and (several or isinstance(value, bool) != switch):
            raise InputError(f"{where}: {name} is {spell_value(value)}; a switch is true or false, without quotes, and "
                             "any other option a single number or text, 'off' in quotes")
        if value is not None and not switch:
            words.append(f"--{name}={value}")
        elif value:
            words.append(f"--{name}")
        elif value is False and f"--no-{name}" in known[name].option_strings:
            words.append(f"--no-{name}")
    return words


# ---- what options imply

def resolve(opt) -> None:
    """Fill in what the options imply, and refuse what they cannot mean, before any data are read.

    Raises InputError with the first reason. Each rule prevents a wrong result in silence, or an error
    of torch that does not name the option.
    """
    fill_options(opt)
    check_heads(opt)
    apply_rules(opt, "heads")
    check_encoders(opt)
    check_loss(opt)
    check_terms(opt)
    apply_rules(opt, "terms")


def apply_rules(opt, subject: str) -> None:
    """Apply the rules about a subject that files of methods/ declare for options of their own."""
    for rule in OPTION_RULES[subject]:
        rule(opt)


def fill_options(opt) -> None:
    """Fill in what was not given, first by the similarity, then by the loss and by other options."""
    similarity = SIMILARITIES[opt.sim]
    fill_heads(opt)
    opt.loss = opt.loss or similarity.defaults.get("loss", "hinge")
    loss = LOSSES[opt.loss]
    encoder = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])            # auto: by the data
    for declared in (similarity, loss, encoder):
        for name, value in declared.defaults.items():
            if name != "head":
                fill(opt, name, value)

    fill(opt, "var_min", 0.1)
    fill(opt, "logvar_init", 0.0)
    apply_rules(opt, "defaults")

    fill(opt, "embed_size", 1024)
    fill(opt, "txt_enc", "features" if opt.text_features else "gru")
    fill(opt, "n_embeds", 1)
    fill(opt, "cite_layers", "1024-256")

    fill(opt, "max_violation", similarity.gaussian_sides > 0 and "max_violation" in loss.options)
    fill(opt, "mask_same_image", loss.masks_same_image)
    fill(opt, "label_smoothing", 1e-4 if opt.pseudo_positives else 0.0)

    prior = opt.prior_images or opt.prior_captions
    fill(opt, "latent_norm", "sphere" if prior else "none")

    run = f"{opt.data_name}_{opt.method or opt.sim}_seed{opt.seed}".replace("/", "_")
    fill(opt, "logger_name", f"runs/{run}")
    if opt.no_imgnorm and similarity.unnormalised:          # VSE0: its cosine is an inner product
        opt.sim = similarity.unnormalised


def fill(opt, name: str, value) -> None:
    """Set an option that was not given."""
    if getattr(opt, name) in (None, "auto"):
        setattr(opt, name, value)


def fill_heads(opt) -> None:
    """Settle --image_head and --text_head; --head is what both are, or None."""
    similarity = SIMILARITIES[opt.sim]
    gaussian = similarity.defaults.get("head", "ellipsoidal")
    image = opt.image_head or opt.head
    text = opt.text_head or opt.head
    if similarity.gaussian_sides == 1:                      # GCE, unless the image side is asked for
        if not image:
            image = gaussian if text == "point" else "point"
        if not text:
            text = gaussian if image == "point" else "point"

    usual = gaussian if count_gaussian_sides(opt) else "point"
    opt.image_head = image or usual
    opt.text_head = text or usual
    opt.head = opt.image_head if opt.image_head == opt.text_head else None


def count_gaussian_sides(opt) -> int:
    """Return the number of sides that must be Gaussian.

    With --vae both, whose samples are compared as points; else what the loss or the similarity needs.
    """
    if opt.vae:
        return 2
    if opt.loss and LOSSES[opt.loss].gaussian_sides is not None:
        return LOSSES[opt.loss].gaussian_sides
    return SIMILARITIES[opt.sim].gaussian_sides


# ---- refused combinations

def check_heads(opt) -> None:
    """Raise InputError on heads that do not fit what is compared."""
    similarity = SIMILARITIES[opt.sim]
    heads = (opt.image_head, opt.text_head)
    gaussians = 2 - heads.count("point")
    needed = count_gaussian_sides(opt)

    fits = needed == gaussians
    if gaussians and similarity.point_side:
        fits = True
    if gaussians and opt.init_from and not needed:          # variances stay where points learn
        fits = True
    if not fits:
        reason = f"--sim {opt.sim}"
        if opt.vae:
            reason = f"--vae {opt.vae:g}"
        elif LOSSES[opt.loss].gaussian_sides is not None:
            reason = f"--loss {opt.loss}"
        wants = ("compares points", "needs one Gaussian side and one point",
                 "needs a Gaussian on both sides")[needed]
        raise InputError(f"{reason} {wants}, not image head '{heads[0]}' and text head '{heads[1]}'; "
                         "leave --head, --image_head and --text_head out")

    if similarity.spherical and "ellipsoidal" in heads:
        raise InputError(f"--sim {opt.sim} has one variance per item, not --head {opt.head}; leave it "
                         "out, or give --image_head point")

    if opt.vib and (opt.vae or not gaussians):
        raise InputError(f"--vib {opt.vib:g} needs Gaussian embeddings; leave it out")


def check_encoders(opt) -> None:
    """Raise InputError on encoders that do not give what is compared, or read what is not given."""
    similarity = SIMILARITIES[opt.sim]
    text = TEXT_ENCODERS[opt.txt_enc]

    misfit = opt.img_enc in IMAGE_ENCODERS and IMAGE_ENCODERS[opt.img_enc].parts
    if similarity.parts:
        fitting = (similarity.defaults["img_enc"], similarity.defaults["txt_enc"])
        misfit = (opt.img_enc, opt.txt_enc) != fitting
    if misfit:
        raise InputError(f"--sim {opt.sim} does not compare what --img_enc {opt.img_enc} and --txt_enc "
                         f"{opt.txt_enc} give; leave them out")

    if opt.method and METHODS[opt.method].needs == CAPTION_FEATURES and opt.txt_enc == "gru":
        raise InputError(f"--method {opt.method} needs {NEEDS[CAPTION_FEATURES]}; make them with "
                         "features.captions")
    if (opt.txt_enc == "features") != bool(opt.text_features):
        raise InputError(f"--txt_enc {opt.txt_enc} does not read --text_features {opt.text_features}; "
                         "give --text_features alone")
    if opt.txt_layers and not text.layers:
        raise InputError(f"--txt_layers {opt.txt_layers} is for word vectors, features and trigrams, not "
                         f"for --txt_enc {opt.txt_enc}; leave it out")
    if "n_embeds" not in similarity.defaults and (opt.n_embeds != 1 or opt.diversity):
        raise InputError(f"--n_embeds {opt.n_embeds} and --diversity {opt.diversity:g} need --sim mil; "
                         "leave them out")
    if opt.freeze_words and not (opt.word_vectors or opt.init_from):
        raise InputError("--freeze_words keeps words that were learned before; give --word_vectors FILE "
                         "or --init_from RUN")


def check_loss(opt) -> None:
    """Raise InputError on a loss that does not fit the similarity, the data or the schedule."""
    similarity = SIMILARITIES[opt.sim]
    loss = LOSSES[opt.loss]
    if (loss.compares_points or opt.vae) and not similarity.compares_points:
        raise InputError(f"--loss {opt.loss} and --vae {opt.vae:g} compare points, and --sim {opt.sim} "
                         "does not; use --sim cosine")
    if similarity.labelled_pairs != loss.labelled_pairs:
        losses = [name for name, other in LOSSES.items() if other.labelled_pairs]
        networks = [name for name, other in SIMILARITIES.items() if other.labelled_pairs]
        raise InputError(f"--loss {opt.loss} does not go with --sim {opt.sim}; --loss {' and '.join(losses)} goes "
                         f"with --sim {' and '.join(networks)} alone")
    loss.check(opt)
    if opt.noise_ratio and opt.noise_file:
        raise InputError(f"--noise_ratio {opt.noise_ratio:g} and --noise_file {opt.noise_file} both name "
                         "wrong pairs; give one")
    if opt.warmup >= opt.num_epochs:
        raise InputError(f"--warmup {opt.warmup:g} is as long as the training of --num_epochs "
                         f"{opt.num_epochs}; give less")


def check_terms(opt) -> None:
    """Raise InputError on terms of the loss that have nothing to work on."""
    image = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])              # auto: by the data
    text = TEXT_ENCODERS[opt.txt_enc]

    jwae = opt.recon_images or opt.recon_captions or opt.prior_images or opt.prior_captions
    if jwae and not SIMILARITIES[opt.sim].latents:
        raise InputError("--recon_* and --prior_* need latents compared by direction, not --sim "
                         f"{opt.sim}; use --sim cosine")
    pools = opt.pool != "mean" and not image.parts
    if opt.recon_images and (pools or image.decoder is None):
        raise InputError(f"--recon_images cannot reconstruct what --img_enc {opt.img_enc} --pool "
                         f"{opt.pool} reads; leave it out")
    words_learn = opt.txt_enc in ("mean", "sum") and not opt.freeze_words
    if opt.recon_captions and (words_learn or not text.decoder):
        raise InputError(f"--recon_captions cannot reconstruct what --txt_enc {opt.txt_enc} reads; use "
                         "gru or --freeze_words")
    if opt.captioner and not (opt.img_enc == "vsrn" and text.reads == "words"):
        raise InputError(f"--captioner {opt.captioner:g} writes captions from VSRN's regions; use "
                         "--img_enc vsrn and --txt_enc gru")


# ---- what the data settle, and what data a trained model can take

READ_BY = {"vector": ("vectors", "regions"), "regions": ("regions",), "photos": ("photos",)}


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, img_dim, n_regions and txt_dim by the data.
    images: of a split; text: features of its captions, or None where the model reads words. Raises InputError where
    options and data do not fit."""
    photos = isinstance(images, Photos)
    if opt.img_enc == "auto":
        opt.img_enc = "cnn" if photos else "precomp"
    if photos:
        opt.img_dim = None                                  # the network settles it
    elif opt.resume is None and opt.img_dim not in (None, images.dim):
        raise InputError(f"--img_dim {opt.img_dim} is not the width of the features in {images.path}, "
                         f"which is {images.dim}; leave --img_dim out, or name other data")
    for name, value in (("img_dim", images.dim), ("n_regions", images.regions), ("txt_dim", text and text.dim)):
        if getattr(opt, name) is None:
            setattr(opt, name, value)
    check(not photos or opt.supervised_fraction == 1,
          f"--supervised_fraction {opt.supervised_fraction:g} needs precomputed features, and {opt.data_name} has "
          "photos; extract features first: features.images")
    check(opt.pool != "gpo" or images.regions is not None,
          f"--pool gpo{f' (of --method {opt.method})' * bool(opt.method)} pools regions, and {opt.data_name} has none; "
          "name data with regions, or leave it out")
    check_fits(opt, images, text, f"--method {opt.method}" if opt.method else
               f"--img_enc {opt.img_enc} with --sim {opt.sim}")


def check_fits(opt, images, text, path: str) -> None:
    """Raise InputError on images or features that a trained model cannot take.
    path: the model, trained with these options."""
    check(text is None or text.dim == opt.txt_dim,
          f"{text and text.path} has features of width {text and text.dim}, {path} reads width {opt.txt_dim}; use "
          "features of the same vectors")
    if isinstance(images, NoImages):
        return
    reads = IMAGE_ENCODERS[opt.img_enc].reads
    if reads == "cells":
        reads = "regions" if opt.img_dim else "photos"
    photos = isinstance(images, Photos)
    kind = "photos" if photos else "vectors" if images.regions is None else "regions"
    where = "" if photos else f" in {images.path}"
    check(kind in READ_BY[reads],
          f"{path} reads {' or '.join(READ_BY[reads])}, and the images are {kind}{where}; name other data with "
          "--data_name, or take another --img_enc or --sim (regions are features of shape (images, regions, F))")
    check(photos or images.dim == opt.img_dim,
          f"the features{where} have width {images.dim}, {path} reads width {opt.img_dim}; use the same extractor")
    check(photos or opt.n_regions == images.regions or not opt.n_regions and opt.img_enc != "precomp",
          f"the features{where} have {images.regions or 'no'} regions an image, {path} reads "
          f"{opt.n_regions or 'one vector an image'}; use features of the same extractor")


# ---- evaluate.py

def parse_evaluation(argv=None) -> argparse.Namespace:
    """Return the options of evaluate.py."""
    p = Arguments("Evaluate image-caption retrieval.", usage="%(prog)s [options]")
    add_subject_options(p.add_argument_group("what is evaluated"))
    add_protocol_options(p.add_argument_group("protocols").add_argument)
    add_picture_options(p.add_argument_group("pictures").add_argument)
    add_output_options(p.add_argument_group("what is written").add_argument)
    add_speed_options(p.add_argument_group("speed and memory").add_argument)
    name_values(p)
    opt = p.parse_args(argv)
    opt.eccv = opt.eccv or opt.eccv_path is not None
    return opt


def add_subject_options(group) -> None:
    add = group.add_mutually_exclusive_group().add_argument
    add("--checkpoint", type=filename, metavar="RUN", nargs="+", help="run folders or checkpoint files; several are an "
        "ensemble (default: the newest run)")
    add("--compare", type=lambda text: ",".join(map(filename, text.split(","))), metavar="RUN", nargs="+",
        help="evaluate runs, .npz embeddings or .npy scores, and compare each with the first by a paired bootstrap; "
        "A0,A1,A2 are seeds of one model")
    add("--embeddings", "--scores", type=filename, metavar="FILE", help="embeddings of any model, as --export writes "
        "them (.npz), or scores, images x captions; higher scores are better (.npy)")
    add = group.add_argument
    add("--sim", choices=list_functions(), metavar="NAME", help="similarity to rank by (default: the run's, the "
        f"file's, or cosine): {', '.join(list_functions())}")
    add("--data_path", type=filename, metavar="FOLDER", help="folder of the data sets (default: as in training)")
    add("--data_name", type=data_set, help="data set (default: as in training)")
    add("--split", type=cli.split_name, help="train, dev, test or testall (default: what a file names, else test)")
    add("--dev_images", type=natural, help="number of dev images; 0: all (default: as in training)")
    add("--vocab", type=filename, metavar="FILE", help="vocabulary of an original VSE++ or VSRN checkpoint")


def add_protocol_options(add) -> None:
    add("--fold5", **FLAG, help="also give the mean over five folds of 1,000 images (COCO 1K)")
    add("--ndcg", **FLAG, help="MRR, nDCG@10, R-precision and mAP@R of the original pairs")
    add("--cxc", **FLAG, help="Crisscrossed Captions: all four directions, RPC2, STS, SIS and SITS")
    add("--cxc_path", type=filename, metavar="FOLDER", help="folder of its csv files (default: DATA_PATH/cxc)")
    add("--pmrp", **FLAG, help="Plausible Match R-Precision, from the instances of COCO")
    add("--instances", type=filename, metavar="FILE.json", help="COCO's instances (default: instances_val2014.json of "
        "the data set's annotations)")
    add("--eccv", **FLAG, help="ECCV Caption, from --eccv_path or the package eccv_caption")
    add("--eccv_path", type=filename, metavar="FOLDER", help="folder of its two JSON files")
    add("--positives", type=filename, metavar="FILE.json", help='recalls, R-precision and mAP@R of your own matches: '
        '{"i2t": {image id: [caption ids]}, "t2i": {...}}')
    add("--bank", type=cli.split_name, metavar="SPLIT", help="also rank with query-bank normalisation (lowers hubs), "
        "by queries of this split, usually train; its beta is chosen on dev")


def add_picture_options(add) -> None:
    add("--uncertainty", **FLAG, help="what log det Sigma tells about recall: bins, risk and coverage, two pictures")
    add("--retrieval", **FLAG, help="draw captions, from certain to uncertain, with their best images")
    add("--photos", type=filename, metavar="FOLDER", help="photos to draw where the data are precomputed features")


def add_output_options(add) -> None:
    add("--export", type=filename, metavar="FILE.npz", help="write the embeddings to this file")
    add("--trec", type=filename, metavar="PREFIX", help="write the 100 best items of each query and the right ones for "
        "trec_eval: PREFIX_i2t.run, PREFIX_i2t.qrels, PREFIX_t2i.run and PREFIX_t2i.qrels")
    add("--output", type=filename, help="file of the results (default: results.json in the run folder, or "
        "results_SIM_DATA_SPLIT.json for another similarity, data set or split)")
    add("--overwrite", **FLAG, help="replace existing files of --output and --export")


def add_speed_options(add) -> None:
    add("--batch_size", type=positive, default=128, help="images or captions per step")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA if present")
