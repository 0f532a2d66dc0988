"""Options of train.py and evaluate.py, their defaults, and refused combinations.

Options are declared in tables, {name: (type, default, help)}: the general ones here, those of a
loss, an encoder or a file of methods/ beside their code. `training_parser` puts them in groups,
`resolve` fills in what they imply and refuses what they cannot mean, and `fit_to_data` settles what
only the data can tell. `options(sim="wasserstein")` gives the options of a training to a script.
"""

import argparse
import contextlib
import inspect
from collections.abc import Callable
from typing import NamedTuple

import utils
import vocab
from data import DEV_IMAGES
from images import Features, NoImages, Photos
from losses import LOSSES, SIMILARITIES, count_gaussian_sides, list_functions
from methods import (  # the files of papers add their similarities, encoders and terms
    ADVICE,
    CAPTION_FEATURES,
    METHODS,
    NEEDS,
    SAME_AS_HERE,
    SYNONYMS,
    pretrained,  # noqa: F401
    pvse_pcme,
    scan,
    two_branch,
    volume,  # noqa: F401
    vse_infinity,  # noqa: F401
    vsrn,
)
from model import (
    CNNS,
    HEADS,
    IMAGE_ENCODERS,
    LATENT_NORMS,
    LAYER_STYLES,
    OPTION_DEFAULTS,
    OPTION_RULES,
    POOLINGS,
    TEXT_ENCODERS,
)
from utils import (
    DEVICE_OPTION,
    Arguments,
    InputError,
    above_zero,
    at_least_two,
    at_least_zero,
    below_one,
    data_set,
    depth,
    filename,
    flag,
    fraction,
    natural,
    number,
    positive,
    read_yaml,
    sizes,
    spell_value,
    split_name,
    weight,
    width,
    workers,
)

# Options that no file of options holds, since they say which run it is or start a command.
COMMAND_LINE = {"logger_name", "overwrite", "resume", "config", "dry_run", "methods"}
NOT_STORED = COMMAND_LINE - {"logger_name"}  # options that no checkpoint holds

# What stands for the value of an option of a type, in --help.
METAVARS = {
    natural: "N",
    positive: "N",
    width: "N",
    depth: "N",
    at_least_two: "N",
    workers: "N",
    at_least_zero: "X",
    weight: "WEIGHT",
    above_zero: "X",
    below_one: "X",
    fraction: "X",
    number: "X",
    filename: "PATH",
    data_set: "NAME",
    split_name: "NAME",
    sizes: "SIZES",
}
# What float and int stand for in a declaration of an option.
DECLARED_TYPES = {float: at_least_zero, int: positive}


class Options(argparse.Namespace):
    """Options of train.py; `asked`, not in vars(), are those given, before `resolve`."""

    __slots__ = ("asked",)


# ---- --help


class Help(utils.HelpWithDefaults):
    """Help in which texts of several lines keep these, each cut to the width of the terminal.

    A description of a group may be a function, which is called where help is asked for.
    """

    def add_text(self, text: str | Callable[[], str] | None) -> None:
        if callable(text):
            text = text()
        super().add_text(text)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        lines = []
        for line in text.splitlines():
            if len(line) > width:
                whole_words = line[: width - 4].rpartition(" ")[0]
                line = f"{whole_words} ..."
            lines.append(indent + line)
        return "\n".join(lines)


class Option(NamedTuple):
    """A declared option. Tables hold these, or plain tuples of the first three or four."""

    # a type of utils.py, float, int, bool (--x and --no-x), flag, or the names to choose from;
    # None: a text
    kind: object
    default: object
    help: str
    metavar: str | None = None  # a word for the value in --help
    nargs: str | None = None  # "+": several values; "?": the value may be missing, and is then ""
    alias: str | None = None  # another name, which --help lists, too


def add_options(group, *tables: dict[str, tuple]) -> None:
    """Add the options that tables declare, {name: `Option` or (type, default, help)}, to a parser.

    group: the parser, or a group of its options. An option that two tables share, with the same
    declaration, is added once.
    """
    added = {}
    for table in tables:
        for name, declaration in table.items():
            if added.get(name) == declaration:
                continue
            added[name] = declaration

            option = Option(*declaration)
            settings = {"default": option.default, "help": option.help}
            if option.kind is bool:
                settings["action"] = argparse.BooleanOptionalAction
            elif option.kind is flag:
                settings["action"] = "store_true"
            elif option.kind is None or callable(option.kind):
                kind = DECLARED_TYPES.get(option.kind, option.kind)
                settings["type"] = kind
                # argparse would repeat the name of the option
                settings["metavar"] = option.metavar or METAVARS.get(kind, "TEXT")
            else:
                settings["choices"] = option.kind
                settings["metavar"] = option.metavar

            if option.nargs:
                settings["nargs"] = option.nargs
            if option.nargs == "?":
                settings["const"] = ""
            names = [f"--{name}"]
            if option.alias:
                names.append(option.alias)
            group.add_argument(*names, **settings)


def describe_similarities() -> str:
    """List the similarities, a line each, by what they compare."""
    by_gaussians = ("two points:", "a Gaussian and a point:", "two Gaussians:")
    lines = {title: [] for title in (*by_gaussians, "parts of an image and of a caption:")}
    for name, similarity in SIMILARITIES.items():
        title = by_gaussians[similarity.gaussian_sides]
        if similarity.parts:
            title = "parts of an image and of a caption:"
        lines[title].append(describe_entry(name, similarity.score))

    text = []
    for title, entries in lines.items():
        text += [title, *entries]
    return "\n".join(text)


def describe_losses() -> str:
    """List the losses, a line each."""
    return "\n".join(describe_entry(name, loss) for name, loss in LOSSES.items())


def describe_entry(name: str, code) -> str:
    """Describe a similarity or a loss by the first line of its docstring."""
    text = inspect.getdoc(code) or "of your own"
    return f"  {name:<16}{text.splitlines()[0]}"


# ---- train.py


def filename_or_nothing(text: str) -> str:
    """Parse the name of a file or folder, or an empty text."""
    if not text:
        return text
    return filename(text)


DATA_OPTIONS = {
    "data_path": (filename, "data", "folder that holds the data sets"),
    "data_name": (data_set, "coco_precomp", "folder of the data set below --data_path"),
    "use_restval": (flag, False, "add COCO's 30,504 restval images to train"),
    "dev_images": (
        natural,
        DEV_IMAGES,
        "validate on the first N dev images, except in Karpathy's layout, as VSE++; 0: on all",
    ),
    "vocab_path": (
        filename,
        "./vocab/",
        "folder of {data_name}_vocab.json; without this file, the words are those of the captions",
    ),
    "vocab_splits": (
        None,
        "train",
        "splits that a new vocabulary is built from (VSE++: train,dev)",
    ),
    "vocab_threshold": (
        positive,
        vocab.MIN_WORD_COUNT,
        "a new vocabulary lists the words that occur at least N times",
    ),
    "workers": (workers, utils.count_workers(), "processes that read photos and very large files"),
}

METHOD_OPTIONS = {
    "method": (
        METHODS,
        None,
        "preset of a published method (--methods lists them); options that are given override it",
        "NAME",
    ),
    "sim": Option(
        SIMILARITIES,
        "cosine",
        "score of an image and a caption: one of the similarities below",
        "NAME",
        alias="--measure",
    ),
    "loss": (
        LOSSES,
        None,
        "what is minimized: one of the losses below (default: hinge, or what --sim needs)",
        "NAME",
    ),
    "embed_size": (width, None, "dimensions of the joint embedding, D (default: 1024; vsrn: 2048)"),
    "use_abs": (flag, False, "take absolute values of the embeddings (order embeddings)"),
    "no_imgnorm": (
        flag,
        False,
        "do not scale image embeddings to length 1; 'cosine' is then an inner product",
    ),
}

TRAINING_OPTIONS = {
    "num_epochs": (positive, 30, "passes over the training captions"),
    "batch_size": (
        at_least_two,
        128,
        "matched pairs in a step; the items of the other pairs are the negatives",
    ),
    "optimizer": (["adam", "sgd"], "adam", "adam, or sgd (DMSM, with --learning_rate 0.5)"),
    "learning_rate": (above_zero, 0.0002, "learning rate at the beginning"),
    "schedule": (
        ["step", "cosine"],
        "step",
        "how the rate falls. step: it is divided by 10 every --lr_update epochs; cosine: along "
        "half a cosine to 0",
    ),
    "lr_update": (
        positive,
        15,
        "with --schedule step: divide the learning rate by 10 every N epochs",
    ),
    "warmup": (at_least_zero, 0.0, "epochs of linear warm-up of the learning rate", "EPOCHS"),
    "grad_clip": (at_least_zero, 2.0, "largest norm of the gradient; 0: no limit"),
    "dropout": (
        below_one,
        0.0,
        "share of the entries of features and word vectors that training sets to 0",
    ),
    "feature_noise": (
        weight,
        0.0,
        "noise that training adds to features and word vectors, its norm as a share of theirs",
    ),
    "weight_decay": (weight, 0.0, "decoupled weight decay of matrices (AdamW)"),
    "select": (
        ["rsum", "hbr", "r1"],
        "rsum",
        "what makes an epoch the best on dev: rsum, the sum of recalls; hbr, the harmonic mean "
        "of the images' best ranks (DMSM); r1, the sum of R@1 of both directions",
    ),
    "patience": (
        positive,
        None,
        "stop after N epochs in a row without a better model on dev (default: never; CITE: 5)",
    ),
    "amp": (["off", "bf16"], "off", "bf16: mixed precision; off: float32"),
    "device": DEVICE_OPTION,
    "seed": (natural, 0, "seed of initialization, batch order and crops"),
}

RUN_OPTIONS = {
    "logger_name": (filename, None, "folder of the run (default: runs/DATA_METHOD_seedN)", "RUN"),
    "overwrite": (
        flag,
        False,
        "replace the run in this folder, with the files that were made from it",
    ),
    "resume": Option(
        filename_or_nothing,
        None,
        "continue exactly where the run in this folder, or in --logger_name, stopped (torchrun: "
        "but for dropout and noise)",
        "RUN",
        nargs="?",
    ),
    "init_from": (
        filename,
        None,
        "start from the weights and vocabulary of RUN; the loss and the variances may differ",
        "RUN",
    ),
    "vocab": (
        filename,
        None,
        "with --init_from: vocabulary (.json or .pkl) that belongs to a checkpoint of the original "
        "VSE++ or VSRN",
        "FILE",
    ),
    "config": (filename, None, "YAML file of options; options of the command line override it"),
    "log_step": (positive, 10, "steps between two lines of the log"),
    "val_step": (positive, 500, "steps between two validations within an epoch"),
    "methods": (flag, False, "list the methods and their options, and exit"),
    "dry_run": (flag, False, "check everything, print sizes and options, write nothing"),
}

GAUSSIAN_OPTIONS = {
    "head": (
        HEADS,
        None,
        f"kind of embedding of both sides: {', '.join(HEADS)} (default: what --sim needs)",
        "KIND",
    ),
    "image_head": (
        HEADS,
        None,
        "as --head, of images alone; Gaussian images and caption points are GIE",
        "KIND",
    ),
    "text_head": (
        HEADS,
        None,
        "as --head, of captions alone; Gaussian captions and image points are GCE",
        "KIND",
    ),
    "var_min": (
        above_zero,
        None,
        "smallest variance (default: 0.1, or what --sim or --loss needs)",
    ),
    "logvar_init": (
        number,
        None,
        "log-variance before training (default: 0, or what --sim or --loss needs)",
    ),
    "logvar_norm": (bool, False, "scale log-variances to norm 1"),
}

IMAGE_OPTIONS = {
    "cnn_type": (CNNS, "vgg19", f"network for photos: {', '.join(CNNS)}", "NAME"),
    "cnn_weights": (filename, None, "weights of this network (default: those in torch's cache)"),
    "finetune": (flag, False, "also train the network for photos"),
    "freeze_bn": (
        flag,
        False,
        "with --finetune: the network's BatchNorms keep their statistics, as in VSE++",
    ),
    "crop_size": (width, 224, "side of the random crops of training photos, in pixels"),
    "img_dim": (
        width,
        None,
        "dimensions of an image feature, as VSE++'s commands give it (default: read from the data)",
        "F",
    ),
    "feature_norm": (bool, True, "scale features to norm 1 (vsrn: the output of its first layer)"),
    "img_layers": (
        sizes,
        None,
        "sizes of hidden layers, such as 2000-1000; 0: the features are the embedding (default:"
        " a linear layer alone)",
    ),
    "pool": (POOLINGS, "mean", "pooling of regions: mean, or VSE-infinity's (gpo)"),
    **vsrn.VSRN_IMAGE_OPTIONS,
}

CAPTION_OPTIONS = {
    "txt_enc": (
        TEXT_ENCODERS,
        None,
        "gru; bigru: jWAE's; mean, sum: of word vectors; features: --text_features; trigram_conv, "
        "trigram_bag: character trigrams (DMSM, DSSM); pie: attention (PVSE, PCME) (default: gru, "
        "or what --sim needs)",
        "NAME",
    ),
    "word_dim": (width, 300, "dimensions of a word vector"),
    "num_layers": (depth, 1, "layers of the GRU"),
    "txt_fc": (flag, False, "gru: a linear layer after each GRU, as in pmrl's equations"),
    "txt_layers": (
        sizes,
        None,
        "as --img_layers, for the caption encoders mean, sum, features, trigrams and pretrained",
    ),
    "layer_style": (
        LAYER_STYLES,
        "relu",
        "hidden layers. relu: of jWAE; tanh: of DMSM, with a tanh after the last; branch: of "
        "two-branch networks, one layer with BatchNorm, ReLU and dropout",
    ),
    "text_features": (
        None,
        None,
        "read features of captions, {split}_NAME.npy, instead of words",
        "NAME",
    ),
    "word_vectors": (filename, None, "file of word2vec or GloVe vectors that the words start from"),
    "freeze_words": (flag, False, "do not train the vectors of --word_vectors"),
}

LOSS_OPTIONS = {
    "vse_mean_warmup_epochs": (
        natural,
        0,
        "hinge: take the sum of violations in the first N epochs",
    ),
    "mask_same_image": (
        bool,
        None,
        "the other captions of an image are not its negatives (default: on for infonce, match "
        "and rcl)",
    ),
    "pseudo_positives": (
        weight,
        0.0,
        "match: weight of a second loss, in which pairs that score above the matched pair count"
        " as matches (PCME++: 0.1)",
    ),
    "label_smoothing": (
        below_one,
        None,
        "infonce, match: share of the target probability that is spread over all pairs "
        "(default: 0; with --pseudo_positives 0.0001)",
    ),
    "mse_weight": (above_zero, 1.0, "mse: weight of the squared distance per dimension"),
}

TERM_OPTIONS = {
    "recon_images": (weight, 0.0, "jWAE: reconstruct images"),
    "prior_images": (weight, 0.0, "jWAE: latents of images follow N(0, I)"),
    "recon_captions": (weight, 0.0, "jWAE: reconstruct captions"),
    "prior_captions": (weight, 0.0, "jWAE: latents of captions follow N(0, I)"),
    "latent_norm": (
        LATENT_NORMS,
        None,
        "scale of latents. sphere: norm sqrt(embed_size); batch: mean 0 and variance 1 over a "
        "batch (default: sphere with a prior and a loss of scores, else none)",
    ),
    "vae": (
        weight,
        0.0,
        "sample latents from Gaussians; weight of their KL to N(0, I) (jWAE's VAE)",
    ),
    **vsrn.VSRN_TERM_OPTIONS,
    "vib": (
        weight,
        0.0,
        "KL of every Gaussian to N(0, I) in nats, mean over items (PCME: 5e-6; PCME++: 1e-4 times "
        "half the batch size, divided by D)",
    ),
    **pvse_pcme.PARTS_TERM_OPTIONS,
}

PART_OPTIONS = {
    **scan.ATTENTION_OPTIONS,
    **pvse_pcme.PARTS_OPTIONS,
    **two_branch.CITE_OPTIONS,
}

PAIR_OPTIONS = {
    "noise_ratio": (
        below_one,
        0.0,
        "share of captions whose images are shuffled (noisy correspondence, NCR)",
    ),
    "noise_seed": (natural, 0, "seed of --noise_ratio"),
    "noise_file": (
        filename,
        None,
        ".npy of noisy pairs: for each training caption the image it is paired with (NCR), or for "
        "each training image the one that replaces it (DECL)",
    ),
    "supervised_fraction": (
        fraction,
        1.0,
        "jWAE: share of the images that keep their captions; the others are unpaired",
    ),
}

GAUSSIANS_IN_WORDS = (
    "an embedding is a point, or a Gaussian that is ellipsoidal (a variance for each dimension) or "
    "spherical (one variance: the average of log-variances or of variances, or one output)"
)


def training_parser(foreign_flags: bool = True) -> Arguments:
    """Build the parser of train.py.

    foreign_flags: it also takes flags of the methods' own code, which a command line may have.
    """
    p = Arguments(
        "Train a joint embedding of images and captions.",
        ADVICE,
        usage="%(prog)s [options]",
        formatter_class=Help,
    )
    # tables that others add to are read here, when all have
    image_encoder = {
        "img_enc": (
            ["auto", *IMAGE_ENCODERS],
            "auto",
            "auto: by the data and --sim; precomp: features; cnn: photos; pie: attention (PVSE, "
            "PCME); scan: every region; vsrn: graph and GRU over regions",
            "NAME",
        )
    }
    encoders = [*IMAGE_ENCODERS.values(), *TEXT_ENCODERS.values()]
    of_encoders = [encoder.options for encoder in encoders]
    of_losses = [loss.options for loss in LOSSES.values()]
    methods = "what is learned: a published method, or a similarity and a loss"
    terms = "each is added to the loss with its weight; 0 leaves it out"
    groups = [
        ("data", "what is read; docs/data.md describes the files", [DATA_OPTIONS]),
        ("method", methods, [METHOD_OPTIONS]),
        ("similarities (--sim)", describe_similarities, []),
        ("losses (--loss)", describe_losses, []),
        ("training", "how long, how fast, and with which regularization", [TRAINING_OPTIONS]),
        ("run", "where results go, and how a run starts", [RUN_OPTIONS]),
        ("points and Gaussians", GAUSSIANS_IN_WORDS, [GAUSSIAN_OPTIONS]),
        ("images", "the image encoder", [image_encoder, IMAGE_OPTIONS]),
        ("captions", "the caption encoder", [CAPTION_OPTIONS, *of_encoders]),
        ("loss", "options that some of the losses read", [*of_losses, LOSS_OPTIONS]),
        ("further terms of the loss", terms, [TERM_OPTIONS]),
        ("SCAN, PVSE and CITE", "options of --sim scan, mil and cite", [PART_OPTIONS]),
        ("noisy or unknown pairs", "for studies of imperfect training data", [PAIR_OPTIONS]),
    ]
    for title, description, tables in groups:
        add_options(p.add_argument_group(title, description), *tables)

    # what the data and the folders of pretrained networks settle, stored with the options
    p.set_defaults(n_regions=None, txt_dim=None, image_config=None, text_config=None)
    if foreign_flags:
        add_foreign_flags(p)
    return p


class SaysTheSame(argparse.Action):
    """A flag of another code base that says what this code does anyway: nothing is stored."""

    def __call__(self, parser, namespace, values, option_string=None):
        pass


def add_foreign_flags(p: Arguments) -> None:
    """Take flags of the methods' own code that mean the same here; --help does not list them."""
    for theirs, ours in SYNONYMS.items():
        p.accept_name(theirs, ours)

    hidden = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for theirs, value in SAME_AS_HERE.items():
        if value is None:
            p.add_argument(theirs, action=SaysTheSame, nargs=0, **hidden)
        else:
            p.add_argument(theirs, action=SaysTheSame, type=only(value), **hidden)
    hidden["dest"] = "sim"
    p.add_argument("--order", action="store_const", const="order", **hidden)


def only(value: str):
    """Return the type of an option that has one value here, a word or a number."""

    def read(text: str) -> str:
        same = text == value
        with contextlib.suppress(ValueError):
            same = same or float(text) == float(value)
        if not same:
            raise InputError(f"'{text}' is not supported; give {value}, or leave it out")
        return text

    return read


def list_options(p: Arguments) -> dict[str, argparse.Action]:
    """Return the options of a parser by name, without those that --help does not list."""
    listed = {}
    for action in p._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            listed[action.dest] = action
    return listed


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

    A run's config.yaml gives those that it was asked for, from which others follow, and never its
    folder.
    """
    where = f"--config {path}"
    values = read_yaml(path)
    check_mapping(values, where)
    known = set(list_options(p))
    if isinstance(values.get("options"), dict):  # a run's config.yaml
        if "asked" not in values:  # of an older run, whose data settled it
            known.discard("img_dim")
        values = values.get("asked", values["options"])
        check_mapping(values, f"{where}, under 'asked',")
        values = {name: value for name, value in values.items() if name in known - COMMAND_LINE}
    wrong = [name for name in values if name in COMMAND_LINE]
    if wrong:
        raise InputError(
            f"{where} holds '{wrong[0]}', which only the command line can say, since it names a "
            "run or starts a command; leave it out"
        )
    return spell(values, p, where)


def check_mapping(values, where: str) -> None:
    """Raise InputError where a file, or a part of it, holds no options by their names."""
    if not isinstance(values, dict):
        raise InputError(
            f"{where} must give options by name, and holds {spell_value(values)}; write one "
            "NAME: VALUE per line"
        )


def spell(values: dict, p: Arguments, where: str) -> list[str]:
    """Spell options by name as words of a command line, to be checked like typed ones."""
    known = list_options(p)
    words = []
    for name, value in values.items():
        if f"--{name}" in SYNONYMS:
            name = SYNONYMS[f"--{name}"].removeprefix("--")  # lr: learning_rate
        if name not in known:
            raise InputError(
                f"{where} holds {spell_value(name)}, which is not an option; "
                f"{p.advise(name) or 'see train.py --help'}"
            )
        if value is None:
            continue

        is_switch = known[name].nargs == 0
        several = isinstance(value, (dict, list, set, tuple, bytes))
        if several or isinstance(value, bool) != is_switch:
            raise InputError(
                f"{where}: {name} is {spell_value(value)}; a switch takes true or false without "
                "quotes, any other option one number or text (put 'off' in quotes, since YAML "
                "reads it as false)"
            )
        if not is_switch:
            words.append(f"--{name}={value}")
        elif value:
            words.append(f"--{name}")
        elif f"--no-{name}" in known[name].option_strings:
            words.append(f"--no-{name}")
    return words


# ---- what options imply


def resolve(opt) -> None:
    """Fill in what the options imply, and refuse what they cannot mean, before any data are read.

    Raises InputError with the first reason. Each rule prevents a silently wrong result, or an error
    of torch that does not name the option.
    """
    fill_options(opt)
    check_heads(opt)
    apply_rules(opt, "heads")
    check_encoders(opt)
    apply_rules(opt, "encoders")
    check_loss(opt)
    check_terms(opt)
    apply_rules(opt, "terms")


def apply_rules(opt, subject: str) -> None:
    """Apply the rules about a subject that files of methods/ declare for options of their own."""
    for names, rule in OPTION_RULES[subject]:
        if any(getattr(opt, name) for name in names):
            rule(opt)


def fill_options(opt) -> None:
    """Fill in what was not given, by the similarity, then by the loss and by other options."""
    similarity = SIMILARITIES[opt.sim]
    fill_heads(opt)
    apply_rules(opt, "encoder_defaults")
    opt.loss = opt.loss or similarity.defaults.get("loss", "hinge")
    loss = LOSSES[opt.loss]
    encoder = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])  # auto: by the data
    for declared in (similarity, loss, encoder):
        for name, value in declared.defaults.items():
            if name != "head":
                fill(opt, name, value)

    fill(opt, "var_min", 0.1)
    fill(opt, "logvar_init", 0.0)
    apply_rules(opt, "defaults")

    fill(opt, "embed_size", 1024)
    if opt.text_features:
        fill(opt, "txt_enc", "features")
    fill(opt, "txt_enc", "gru")
    for name, value in OPTION_DEFAULTS.items():
        fill(opt, name, value)

    fill(opt, "max_violation", similarity.gaussian_sides > 0 and "max_violation" in loss.options)
    fill(opt, "mask_same_image", loss.masks_same_image)
    if opt.pseudo_positives:
        fill(opt, "label_smoothing", 1e-4)
    fill(opt, "label_smoothing", 0.0)

    if opt.prior_images or opt.prior_captions:
        fill(opt, "latent_norm", "sphere")
    fill(opt, "latent_norm", "none")

    run = f"{opt.data_name}_{opt.method or opt.sim}_seed{opt.seed}".replace("/", "_")
    fill(opt, "logger_name", f"runs/{run}")
    if opt.no_imgnorm and similarity.unnormalized:  # VSE0: its cosine is an inner product
        opt.sim = similarity.unnormalized


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

    if similarity.gaussian_sides == 1:  # GCE, unless the image side is asked for
        if not image:
            image = other_kind(text, gaussian)
        if not text:
            text = other_kind(image, gaussian)
    usual = gaussian if count_gaussian_sides(opt) else "point"
    opt.image_head = image or usual
    opt.text_head = text or usual

    opt.head = None
    if opt.image_head == opt.text_head:
        opt.head = opt.image_head


def other_kind(head: str | None, gaussian: str) -> str:
    """Return the head of the other side where one side is a point and one a Gaussian."""
    return gaussian if head == "point" else "point"


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
    if gaussians and opt.init_from and not needed:  # variances stay where points learn
        fits = True
    if not fits:
        reason = f"--sim {opt.sim}"
        if opt.vae:
            reason = f"--vae {opt.vae:g}"
        elif LOSSES[opt.loss].gaussian_sides is not None:
            reason = f"--loss {opt.loss}"
        needs = (
            "compares points",
            "needs one Gaussian side and one point",
            "needs a Gaussian on both sides",
        )
        raise InputError(
            f"{reason} {needs[needed]}, not image head '{heads[0]}' and text head '{heads[1]}'; "
            "leave --head, --image_head and --text_head out"
        )

    if similarity.spherical and "ellipsoidal" in heads:
        raise InputError(
            f"--sim {opt.sim} has one variance per item, not an ellipsoidal head; leave --head, "
            "--image_head and --text_head out, or give spherical"
        )

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
        raise InputError(
            f"--sim {opt.sim} does not compare what --img_enc {opt.img_enc} and --txt_enc "
            f"{opt.txt_enc} give; use another --sim, or leave these encoders out"
        )

    if opt.method and METHODS[opt.method].needs == CAPTION_FEATURES and opt.txt_enc == "gru":
        raise InputError(
            f"--method {opt.method} needs {NEEDS[CAPTION_FEATURES]}; make them with "
            "features.captions"
        )
    cause = f" (or that of --method {opt.method})" if opt.method else ""
    if opt.txt_enc == "features" and not opt.text_features:
        raise InputError("--txt_enc features needs --text_features NAME; give it too")
    if opt.text_features and opt.txt_enc != "features":
        raise InputError(
            f"--text_features {opt.text_features} takes the place of --txt_enc {opt.txt_enc}"
            f"{cause}; leave one of them out"
        )
    if opt.txt_layers and not text.layers:
        raise InputError(
            f"--txt_layers {opt.txt_layers} is for word vectors, features and trigrams, not "
            f"for --txt_enc {opt.txt_enc}; leave it out"
        )
    image = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])  # auto: by the data
    reads_layers = image.layers and opt.pool == "mean"
    if opt.img_layers and not reads_layers and opt.resume is None:  # older runs have had it
        raise InputError(
            f"--img_layers {opt.img_layers}{cause} is for one vector per image, not for --img_enc "
            f"{opt.img_enc} with --pool {opt.pool}; leave one of them out"
        )
    if opt.freeze_words and not (opt.word_vectors or opt.init_from):
        raise InputError(
            "--freeze_words keeps words that were learned before; give --word_vectors FILE "
            "or --init_from RUN"
        )


def check_loss(opt) -> None:
    """Raise InputError on a loss that does not fit the similarity, the data or the schedule."""
    similarity = SIMILARITIES[opt.sim]
    loss = LOSSES[opt.loss]
    if (loss.compares_points or opt.vae) and not similarity.compares_points:
        reason = f"--loss {opt.loss}" if loss.compares_points else f"--vae {opt.vae:g}"
        raise InputError(
            f"{reason} compares points, and --sim {opt.sim} does not; use --sim cosine"
        )
    if similarity.labelled_pairs != loss.labelled_pairs:
        losses = [name for name, other in LOSSES.items() if other.labelled_pairs]
        networks = [name for name, other in SIMILARITIES.items() if other.labelled_pairs]
        raise InputError(
            f"--loss {opt.loss} does not go with --sim {opt.sim}; --loss {' and '.join(losses)} "
            f"goes with --sim {' and '.join(networks)} alone"
        )
    loss.check(opt)
    if opt.noise_ratio and opt.noise_file:
        raise InputError(
            f"--noise_ratio {opt.noise_ratio:g} and --noise_file {opt.noise_file} both change "
            "the pairs; give one"
        )
    if opt.warmup >= opt.num_epochs:
        raise InputError(
            f"--warmup {opt.warmup:g} must be less than --num_epochs {opt.num_epochs}; give less"
        )


def check_terms(opt) -> None:
    """Raise InputError on terms of the loss that have nothing to work on."""
    image = IMAGE_ENCODERS.get(opt.img_enc, IMAGE_ENCODERS["precomp"])  # auto: by the data
    text = TEXT_ENCODERS[opt.txt_enc]

    jwae = opt.recon_images or opt.recon_captions or opt.prior_images or opt.prior_captions
    if jwae and not SIMILARITIES[opt.sim].latents:
        raise InputError(
            "--recon_* and --prior_* need latents compared by direction, not --sim "
            f"{opt.sim}; use --sim cosine"
        )
    pools = opt.pool != "mean" and not image.parts
    if opt.recon_images and (pools or image.decoder is None):
        raise InputError(
            f"--recon_images cannot reconstruct what --img_enc {opt.img_enc} --pool "
            f"{opt.pool} reads; leave it out"
        )
    words_learn = opt.txt_enc in ("mean", "sum") and not opt.freeze_words
    if opt.recon_captions and (words_learn or not text.decoder):
        raise InputError(
            f"--recon_captions cannot reconstruct what --txt_enc {opt.txt_enc} reads; use "
            "gru or --freeze_words"
        )


# ---- what the data settle, and what data a trained model can take

READ_BY = {"vector": ("vectors", "regions"), "regions": ("regions",), "photos": ("photos",)}


def fit_to_data(opt, images, text) -> None:
    """Settle --img_enc, img_dim, n_regions and txt_dim by the data.

    images: of a split.
    text: features of its captions, or None where the model reads words.

    Raises InputError where options and data do not fit.
    """
    photos = isinstance(images, Photos)
    if opt.img_enc == "auto":
        opt.img_enc = "cnn" if photos else "precomp"
    if photos:
        opt.img_dim = None  # the network settles it
    elif opt.resume is None and opt.img_dim not in (None, images.dim):
        raise InputError(
            f"--img_dim {opt.img_dim} is not the width of the features in {images.path}, which is "
            f"{images.dim}; leave --img_dim out, or name other data"
        )

    settle(opt, "img_dim", images.dim)
    settle(opt, "n_regions", images.regions)
    if text is not None:
        settle(opt, "txt_dim", text.dim)

    if photos and opt.supervised_fraction != 1:
        raise InputError(
            f"--supervised_fraction {opt.supervised_fraction:g} needs precomputed features, and "
            f"{opt.data_name} has photos; extract features first: features.images"
        )
    if opt.pool == "gpo" and images.regions is None:
        cause = f" (of --method {opt.method})" if opt.method else ""
        raise InputError(
            f"--pool gpo{cause} pools regions, and {opt.data_name} has none; name data with "
            "regions, or leave it out"
        )

    model = f"--img_enc {opt.img_enc} with --sim {opt.sim}"
    if opt.method:
        model = f"--method {opt.method}"
    check_fits(opt, images, text, model)


def settle(opt, name: str, value: int | None) -> None:
    """Set a size that is not known yet."""
    if getattr(opt, name) is None:
        setattr(opt, name, value)


def check_fits(opt, images, text, path: str) -> None:
    """Raise InputError on images or features that a trained model cannot take.

    path: the model, trained with these options.
    """
    if text is not None and text.dim != opt.txt_dim:
        raise InputError(
            f"{text.path} has features of width {text.dim}, but {path} reads width {opt.txt_dim}; "
            "use features of the same vectors"
        )
    if isinstance(images, NoImages):
        return

    kind = "photos"
    where = ""
    if not isinstance(images, Photos):
        kind = "vectors" if images.regions is None else "regions"
        where = f" in {images.path}"
    reads = IMAGE_ENCODERS[opt.img_enc].reads
    if reads == "cells":
        reads = "regions" if opt.img_dim else "photos"
    if kind not in READ_BY[reads]:
        raise InputError(
            f"{path} reads {' or '.join(READ_BY[reads])}, but the images are {kind}{where}; name "
            "other data with --data_name, or take another --img_enc or --sim (regions are "
            "features of shape (images, regions, F))"
        )
    if kind == "photos":
        return

    if images.dim != opt.img_dim:
        raise InputError(
            f"the features{where} have width {images.dim}, but {path} reads width {opt.img_dim}; "
            "use the same extractor"
        )
    takes_any_number = not opt.n_regions and opt.img_enc != "precomp"
    if opt.n_regions == images.regions or takes_any_number:
        return
    # regions of a split are padded to the most that an image of it has
    padded = opt.n_regions and isinstance(images, Features) and images.is_padded()
    if not padded:
        raise InputError(
            f"the features{where} have {images.regions or 'no'} regions per image, but {path} "
            f"reads {opt.n_regions or 'one vector per image'}; use features of the same extractor"
        )


# ---- evaluate.py


def filenames(text: str) -> str:
    """Parse names of files or folders that are joined by commas."""
    return ",".join(map(filename, text.split(",")))


MODEL_OPTIONS = {
    "checkpoint": Option(
        filename,
        None,
        "run folders or checkpoint files; several are an ensemble (default: the newest run)",
        "RUN",
        nargs="+",
    ),
    "compare": Option(
        filenames,
        None,
        "evaluate runs, .npz embeddings or .npy scores, and compare each with the first by a "
        "paired bootstrap; A0,A1,A2 are seeds of one model",
        "RUN",
        nargs="+",
    ),
    "embeddings": Option(
        filename,
        None,
        "embeddings of any model, as --export writes them (.npz), or scores, images x captions "
        "(.npy; .npz with a matrix for each direction); higher scores are better",
        "FILE",
        alias="--scores",
    ),
}

ITEM_OPTIONS = {
    "data_path": (filename, None, "folder of the data sets (default: as in training)", "FOLDER"),
    "data_name": (data_set, None, "data set (default: as in training)"),
    "split": (
        split_name,
        None,
        "train, dev, test or testall (default: what a file names, else test)",
    ),
    "dev_images": (natural, None, "number of dev images; 0: all (default: as in training)"),
    "vocab": (
        filename,
        None,
        "vocabulary (.json or .pkl) that belongs to a checkpoint of the original VSE++ or VSRN",
        "FILE",
    ),
}

PROTOCOL_OPTIONS = {
    "fold5": (flag, False, "also give the mean over five folds of 1,000 images (COCO 1K)"),
    "ndcg": (flag, False, "MRR, nDCG@10, R-precision and mAP@R of the matched pairs"),
    "cxc": (flag, False, "Crisscrossed Captions: all four directions, RPC2, STS, SIS and SITS"),
    "cxc_path": (
        filename,
        None,
        "--cxc, from the csv files in this folder (default: DATA_PATH/cxc)",
        "FOLDER",
    ),
    "pmrp": (flag, False, "Plausible Match R-Precision, from the instances of COCO"),
    "instances": (
        filename,
        None,
        "--pmrp, from these instances (default: instances_val2014.json of the data set's "
        "annotations)",
        "FILE.json",
    ),
    "eccv": (flag, False, "ECCV Caption, from --eccv_path or the package eccv_caption"),
    "eccv_path": (filename, None, "--eccv, from its two JSON files in this folder", "FOLDER"),
    "positives": (
        filename,
        None,
        "recalls, R-precision and mAP@R of your own matches: "
        '{"i2t": {image id: [caption ids]}, "t2i": {...}}',
        "FILE.json",
    ),
    "hard_negatives": Option(
        filename,
        None,
        "how often a right caption scores higher than a wrong one, of SugarCrepe, ARO or "
        'Winoground: [{"image": id, name or row, "caption": text, "negative_caption": text}, ...]',
        "FILE.json",
        nargs="+",
    ),
    "bank": (
        split_name,
        None,
        "also rank with query bank normalization, which reduces hubs; the bank holds queries of "
        "this split, usually train, and beta is chosen on dev",
        "SPLIT",
    ),
}

PICTURE_OPTIONS = {
    "uncertainty": (
        flag,
        False,
        "how well log det Sigma predicts recall: recall by tenths of it, risk and coverage, and "
        "two pictures",
    ),
    "retrieval": (flag, False, "draw captions, from certain to uncertain, with their best images"),
    "photos": (
        filename,
        None,
        "folder of the photos to draw, if the data are precomputed features",
        "FOLDER",
    ),
}

OUTPUT_OPTIONS = {
    "export": (filename, None, "write the embeddings to this file", "FILE.npz"),
    "trec": (
        filename,
        None,
        "write the 100 best items of each query and its matches for trec_eval: PREFIX_i2t.run, "
        "PREFIX_i2t.qrels, PREFIX_t2i.run and PREFIX_t2i.qrels",
        "PREFIX",
    ),
    "output": (
        filename,
        None,
        "file of the results (default: results.json in the run folder, or "
        "results_SIM_DATA_SPLIT.json for another similarity, data set or split)",
        "FILE.json",
    ),
    "overwrite": (flag, False, "replace existing files of --output and --export"),
}

SPEED_OPTIONS = {
    "batch_size": (positive, 128, "images or captions per step"),
    "workers": (workers, utils.count_workers(), "processes that read photos"),
    "device": DEVICE_OPTION,
}


def parse_evaluation(argv=None) -> argparse.Namespace:
    """Return the options of evaluate.py."""
    p = Arguments("Evaluate image-caption retrieval.", usage="%(prog)s [options]")
    subject = p.add_argument_group(
        "what is evaluated", "one of --checkpoint, --compare and --embeddings"
    )
    add_options(subject.add_mutually_exclusive_group(), MODEL_OPTIONS)
    functions = list_functions()
    default = "the run's, the file's, or cosine"
    help = f"similarity to rank by (default: {default}): {', '.join(functions)}"
    add_options(subject, {"sim": (functions, None, help, "NAME")}, ITEM_OPTIONS)

    measured = "what is measured in addition to R@1, R@5, R@10 and ranks"
    add_options(p.add_argument_group("protocols", measured), PROTOCOL_OPTIONS)
    add_options(p.add_argument_group("pictures"), PICTURE_OPTIONS)
    add_options(p.add_argument_group("what is written"), OUTPUT_OPTIONS)
    add_options(p.add_argument_group("speed and memory"), SPEED_OPTIONS)

    opt = p.parse_args(argv)
    opt.cxc = opt.cxc or opt.cxc_path is not None
    opt.eccv = opt.eccv or opt.eccv_path is not None
    opt.pmrp = opt.pmrp or opt.instances is not None
    return opt
