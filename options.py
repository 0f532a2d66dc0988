"""Options of train.py and evaluate.py, their defaults, and refused combinations.

`training_parser` declares the options in groups, `resolve` fills in what they imply and refuses
what they cannot mean, and `fit_to_data` settles what only the data can tell. A loss, an encoder or
a file of methods/ declares its own options beside its code, {name: (type, default, help)}, and
`OptionGroup.add_declared` adds them here. `options(sim="wasserstein")` gives the options of a
training to a script.
"""

import argparse
import contextlib
import inspect
from collections.abc import Callable

import utils
import vocab
from data import DEV_IMAGES
from images import Features, NoImages, Photos
from losses import LOSSES, SIMILARITIES, list_functions
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
    Arguments,
    InputError,
    above_zero,
    at_least_two,
    at_least_zero,
    below_one,
    data_set,
    depth,
    filename,
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


class OptionGroup:
    """A group of options in --help."""

    def __init__(self, p: Arguments, title: str, description: str | None = None):
        self.group = p.add_argument_group(title, description)

    def add(self, flag: str, kind, default, help: str, **more) -> None:
        """Add an option with a value. kind: its type, of those in utils.py; None: a text."""
        self.group.add_argument(flag, type=kind, default=default, help=help, **more)

    def add_choice(self, flag: str, choices, default, help: str, **more) -> None:
        """Add an option that takes one of some names."""
        self.group.add_argument(flag, choices=choices, default=default, help=help, **more)

    def add_flag(self, flag: str, help: str) -> None:
        """Add an option without a value, which is off."""
        self.group.add_argument(flag, action="store_true", help=help)

    def add_switch(self, flag: str, default: bool | None, help: str) -> None:
        """Add an option --x, which --no-x turns off."""
        action = argparse.BooleanOptionalAction
        self.group.add_argument(flag, action=action, default=default, help=help)

    def add_weight(self, flag: str, help: str) -> None:
        """Add the weight of something that is off at 0."""
        self.add(flag, weight, 0.0, help)

    def add_declared(self, *tables: dict[str, tuple]) -> None:
        """Add the options that losses, encoders and files of methods/ declare.

        tables: {name: (type, default, help)}, and perhaps a word for the value in --help. A type is
        one of utils.py, float, int, bool (--x and --no-x), or the names to choose from. An option
        that two tables share, with the same declaration, is added once.
        """
        declared = {}
        for table in tables:
            for name, declaration in table.items():
                if declared.get(name) != declaration:
                    self.add_one_declared(f"--{name}", *declaration)
                declared[name] = declaration

    def add_one_declared(self, flag: str, kind, default, help: str, metavar: str | None = None):
        """Add an option by its declaration."""
        if kind is bool:
            self.add_switch(flag, default, help)
        elif kind is utils.flag:
            self.add_flag(flag, help)
        elif callable(kind):
            kinds = {float: at_least_zero, int: positive}
            self.add(flag, kinds.get(kind, kind), default, help, metavar=metavar)
        else:
            self.add_choice(flag, kind, default, help)


def name_values(p: Arguments) -> None:
    """Give options a short word for their value, where argparse would repeat their name."""
    for action in p._actions:
        if action.metavar is None and action.choices is None and action.nargs != 0:
            action.metavar = METAVARS.get(action.type, "TEXT")


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


def training_parser() -> Arguments:
    """Build the parser of train.py."""
    p = Arguments(
        "Train a joint embedding of images and captions.",
        ADVICE,
        usage="%(prog)s [options]",
        formatter_class=Help,
    )
    add_data_options(p)
    add_method_options(p)
    add_training_options(p)
    add_run_options(p)
    add_gaussian_options(p)
    add_image_options(p)
    add_caption_options(p)
    add_loss_options(p)
    add_term_options(p)
    add_part_options(p)
    add_pair_options(p)

    # what the data and the folders of pretrained networks settle, stored with the options
    p.set_defaults(n_regions=None, txt_dim=None, image_config=None, text_config=None)
    name_values(p)
    add_foreign_flags(p)
    return p


def add_data_options(p: Arguments) -> None:
    group = OptionGroup(p, "data", "what is read; docs/data.md describes the files")
    add = group.add
    add("--data_path", filename, "data", "folder that holds the data sets")
    add("--data_name", data_set, "coco_precomp", "folder of the data set below --data_path")
    group.add_flag("--use_restval", "add COCO's 30,504 restval images to train")
    help = "validate on the first N dev images of precomputed data and COCO, as VSE++; 0: on all"
    add("--dev_images", natural, DEV_IMAGES, help)
    help = "folder of {data_name}_vocab.json; without this file a vocabulary is built"
    add("--vocab_path", filename, "./vocab/", help)
    help = "splits that a new vocabulary is built from (VSE++: train,dev)"
    add("--vocab_splits", None, "train", help)
    help = "a new vocabulary lists the words that occur at least N times"
    add("--vocab_threshold", positive, vocab.MIN_WORD_COUNT, help)
    help = "processes that read photos and very large files"
    add("--workers", workers, utils.count_workers(), help)


def add_method_options(p: Arguments) -> None:
    group = OptionGroup(
        p, "method", "what is learned: a published method, or a similarity and a loss"
    )
    help = "preset of a published method (--methods lists them); options that are given override it"
    group.add_choice("--method", METHODS, None, help, metavar="NAME")
    group.group.add_argument(
        "--sim",
        "--measure",
        choices=SIMILARITIES,
        default="cosine",
        metavar="NAME",
        help="score of an image and a caption: one of the similarities below",
    )
    help = "what is minimized: one of the losses below (default: hinge, or what --sim needs)"
    group.add_choice("--loss", LOSSES, None, help, metavar="NAME")
    help = "dimensions of the joint embedding, D (default: 1024; vsrn: 2048)"
    group.add("--embed_size", width, None, help)
    group.add_flag("--use_abs", "take absolute values of the embeddings (order embeddings)")
    help = "do not scale image embeddings to length 1; 'cosine' is then an inner product"
    group.add_flag("--no_imgnorm", help)
    p.add_argument_group("similarities (--sim)", describe_similarities)
    p.add_argument_group("losses (--loss)", describe_losses)


def add_training_options(p: Arguments) -> None:
    group = OptionGroup(p, "training", "how long, how fast, and with which regularization")
    add = group.add
    add("--num_epochs", positive, 30, "passes over the training captions")
    add(
        "--batch_size", at_least_two, 128, "pairs in a step; items of other pairs are the negatives"
    )
    help = "sgd is DMSM's, at --learning_rate 0.5"
    group.add_choice("--optimizer", ["adam", "sgd"], "adam", help)
    add("--learning_rate", above_zero, 0.0002, "learning rate at the beginning")
    help = (
        "how the rate falls. step: it is divided by 10 every --lr_update epochs; cosine: along "
        "half a cosine to 0"
    )
    group.add_choice("--schedule", ["step", "cosine"], "step", help)
    add("--lr_update", positive, 15, "epochs until the learning rate is divided by 10")
    help = "epochs of linear warm-up of the learning rate"
    add("--warmup", at_least_zero, 0.0, help, metavar="EPOCHS")
    add("--grad_clip", at_least_zero, 2.0, "largest norm of the gradient; 0: no limit")
    add("--dropout", below_one, 0.0, "share of features and word vectors that is set to 0")
    help = "noise added to features and word vectors, its norm as a share of theirs"
    group.add_weight("--feature_noise", help)
    group.add_weight("--weight_decay", "decoupled weight decay of matrices (AdamW)")
    help = (
        "what makes an epoch the best on dev: the sum of recalls, the harmonic mean of the images' "
        "best ranks (hbr, DMSM), or R@1 of both directions"
    )
    group.add_choice("--select", ["rsum", "hbr", "r1"], "rsum", help)
    help = "stop after N epochs in a row without a better model on dev (CITE: 5)"
    add("--patience", positive, None, help)
    help = "bf16: mixed precision; off: float32"
    group.add_choice("--amp", ["off", "bf16"], "off", help)
    utils.add_device(group.group)
    add("--seed", natural, 0, "seed of initialization, batch order and crops")


def add_run_options(p: Arguments) -> None:
    group = OptionGroup(p, "run", "where results go, and how a run starts")
    add = group.add
    help = "folder of the run (default: runs/DATA_METHOD_seedN)"
    add("--logger_name", filename, None, help, metavar="RUN")
    help = "replace the run in this folder, with the files that were made from it"
    group.add_flag("--overwrite", help)
    help = "continue exactly where the run in this folder, or in --logger_name, stopped"
    add("--resume", filename_or_nothing, None, help, metavar="RUN", nargs="?", const="")
    help = "start from the weights and vocabulary of RUN; loss and variances may be others"
    add("--init_from", filename, None, help, metavar="RUN")
    help = "vocabulary of an --init_from of an original code base"
    add("--vocab", filename, None, help, metavar="FILE")
    help = "YAML file of options; options of the command line override it"
    add("--config", filename, None, help)
    add("--log_step", positive, 10, "steps between two lines of the log")
    add("--val_step", positive, 500, "steps between two validations within an epoch")
    group.add_flag("--methods", "list the methods and their options, and exit")
    group.add_flag("--dry_run", "check everything, print sizes and options, write nothing")


def filename_or_nothing(text: str) -> str:
    """Parse the name of a file or folder, or an empty text."""
    if not text:
        return text
    return filename(text)


def add_gaussian_options(p: Arguments) -> None:
    description = (
        "an embedding is a point, or a Gaussian that is ellipsoidal (a variance for each "
        "dimension) or spherical (one variance: the average of log-variances or of variances, or "
        "one output)"
    )
    group = OptionGroup(p, "points and Gaussians", description)
    add = group.add
    help = f"kind of embedding of both sides: {', '.join(HEADS)} (default: what --sim needs)"
    group.add_choice("--head", HEADS, None, help, metavar="KIND")
    help = "kind of image embeddings; Gaussians here and points for captions give GIE"
    group.add_choice("--image_head", HEADS, None, help, metavar="KIND")
    help = "kind of caption embeddings; Gaussians here and points for images give GCE"
    group.add_choice("--text_head", HEADS, None, help, metavar="KIND")
    help = "smallest variance (default: 0.1, or what --sim or --loss needs)"
    add("--var_min", above_zero, None, help)
    help = "log-variance before training (default: 0, or what --sim or --loss needs)"
    add("--logvar_init", number, None, help)
    group.add_switch("--logvar_norm", False, "scale log-variances to norm 1")


def add_image_options(p: Arguments) -> None:
    group = OptionGroup(p, "images", "the image encoder")
    add = group.add
    help = (
        "auto: by the data and --sim; precomp: features; cnn: photos; pie: attention (PVSE, PCME); "
        "scan: every region; vsrn: graph and GRU over regions"
    )
    choices = ["auto", *IMAGE_ENCODERS]
    group.add_choice("--img_enc", choices, "auto", help, metavar="NAME")
    help = f"network for photos: {', '.join(CNNS)}"
    group.add_choice("--cnn_type", CNNS, "vgg19", help, metavar="NAME")
    help = "weights of this network (default: those in torch's cache)"
    add("--cnn_weights", filename, None, help)
    group.add_flag("--finetune", "also train the network for photos")
    help = "with --finetune: its BatchNorms keep their statistics, as in VSE++"
    group.add_flag("--freeze_bn", help)
    add("--crop_size", width, 224, "side of the random crops of training photos, in pixels")
    help = "dimensions of a feature, which VSE++ has to be told (default: read from the data)"
    add("--img_dim", width, None, help, metavar="F")
    help = "scale features to norm 1 (vsrn: the output of its first layer)"
    group.add_switch("--feature_norm", True, help)
    help = "hidden layers, as in 2000-1000 (default: a linear layer; 0: none)"
    add("--img_layers", sizes, None, help)
    help = "pooling of regions: mean, or VSE-infinity's (gpo)"
    group.add_choice("--pool", POOLINGS, "mean", help)
    group.add_declared(vsrn.VSRN_IMAGE_OPTIONS)


def add_caption_options(p: Arguments) -> None:
    group = OptionGroup(p, "captions", "the caption encoder")
    add = group.add
    help = (
        "gru; bigru: jWAE's; mean, sum: of word vectors; features: --text_features; trigram_conv, "
        "trigram_bag: character trigrams (DMSM, DSSM); pie: attention (PVSE, PCME) (default: gru, "
        "or what --sim needs)"
    )
    group.add_choice("--txt_enc", TEXT_ENCODERS, None, help, metavar="NAME")
    add("--word_dim", width, 300, "dimensions of a word vector")
    add("--num_layers", depth, 1, "layers of the GRU")
    help = "gru: a linear layer after each GRU, as in pmrl's equations"
    group.add_flag("--txt_fc", help)
    help = "hidden layers for mean, sum, features and trigrams, as in --img_layers"
    add("--txt_layers", sizes, None, help)
    help = (
        "hidden layers of jWAE, of DMSM (tanh, also after the last), or of two-branch networks "
        "(one, with BatchNorm, ReLU and dropout)"
    )
    group.add_choice("--layer_style", LAYER_STYLES, "relu", help)
    help = "read features of captions, {split}_NAME.npy, instead of words"
    add("--text_features", None, None, help, metavar="NAME")
    help = "initialize words from word2vec or GloVe vectors"
    add("--word_vectors", filename, None, help)
    group.add_flag("--freeze_words", "do not train the vectors of --word_vectors")
    encoders = [*IMAGE_ENCODERS.values(), *TEXT_ENCODERS.values()]
    group.add_declared(*[encoder.options for encoder in encoders])


def add_loss_options(p: Arguments) -> None:
    group = OptionGroup(p, "loss", "options that some of the losses read")
    group.add_declared(*[loss.options for loss in LOSSES.values()])
    help = "hinge: take the sum of violations in the first N epochs"
    group.add("--vse_mean_warmup_epochs", natural, 0, help)
    help = (
        "do not use pairs of the same image as negatives (default: on for infonce, match and rcl)"
    )
    group.add_switch("--mask_same_image", None, help)
    help = (
        "match: weight of the loss with pairs that score above the matched one relabeled as "
        "matches (PCME++: 0.1)"
    )
    group.add_weight("--pseudo_positives", help)
    help = "infonce, match: share of the targets spread over all pairs"
    group.add("--label_smoothing", below_one, None, help)
    help = "mse: weight of the squared distance per dimension"
    group.add("--mse_weight", above_zero, 1.0, help)


def add_term_options(p: Arguments) -> None:
    group = OptionGroup(
        p, "further terms of the loss", "each is added to the loss with its weight; 0 leaves it out"
    )
    for side in ("images", "captions"):
        group.add_weight(f"--recon_{side}", f"jWAE: reconstruct {side}")
        group.add_weight(f"--prior_{side}", f"jWAE: latents of {side} follow N(0, I)")
    help = (
        "scale of latents. sphere: norm sqrt(embed_size); batch: mean 0 and variance 1 over a "
        "batch (default: sphere with a prior and a loss of scores, else none)"
    )
    group.add_choice("--latent_norm", LATENT_NORMS, None, help)
    help = "sample latents from Gaussians; weight of their KL to N(0, I) (jWAE's VAE)"
    group.add_weight("--vae", help)
    group.add_declared(vsrn.VSRN_TERM_OPTIONS)
    help = (
        "KL of every Gaussian to N(0, I) in nats, mean over items (PCME: 5e-6; PCME++: 1e-4 times "
        "half the batch size, divided by D)"
    )
    group.add_weight("--vib", help)
    group.add_declared(pvse_pcme.PARTS_TERM_OPTIONS)


def add_part_options(p: Arguments) -> None:
    group = OptionGroup(p, "SCAN, PVSE and CITE", "options of --sim scan, mil and cite")
    group.add_declared(scan.ATTENTION_OPTIONS, pvse_pcme.PARTS_OPTIONS, two_branch.CITE_OPTIONS)


def add_pair_options(p: Arguments) -> None:
    group = OptionGroup(p, "noisy or unknown pairs", "for studies of imperfect training data")
    add = group.add
    help = "share of captions whose images are shuffled (noisy correspondence, NCR)"
    add("--noise_ratio", below_one, 0.0, help)
    add("--noise_seed", natural, 0, "seed of --noise_ratio")
    help = ".npy of noisy pairs: the image of each training caption (NCR), or of each image (DECL)"
    add("--noise_file", filename, None, help)
    help = "jWAE: share of the images whose pairs are known; the others are unpaired"
    add("--supervised_fraction", fraction, 1.0, help)


class SaysTheSame(argparse.Action):
    """A flag of another code base that says what this code does anyway: nothing is stored."""

    def __call__(self, parser, namespace, values, option_string=None):
        pass


def add_foreign_flags(p: Arguments) -> None:
    """Take flags of the methods' own code that mean the same here; --help does not list them."""
    for theirs, ours in SYNONYMS.items():
        p.accept_name(theirs, ours)

    hidden = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for flag, value in SAME_AS_HERE.items():
        if value is None:
            p.add_argument(flag, action=SaysTheSame, nargs=0, **hidden)
        else:
            p.add_argument(flag, action=SaysTheSame, type=only(value), **hidden)
    hidden["dest"] = "sim"
    p.add_argument("--order", action="store_const", const="order", **hidden)


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
            f"{where} holds no options by their names but {spell_value(values)}; write lines "
            "NAME: VALUE"
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
                f"{where}: {name} is {spell_value(value)}; a switch is true or false, without "
                "quotes, and any other option a single number or text, 'off' in quotes"
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
    for rule in OPTION_RULES[subject]:
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


def count_gaussian_sides(opt) -> int:
    """Return the number of sides that must be Gaussian.

    With --vae it is both, whose samples are compared as points, else what the loss or the
    similarity needs.
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
            f"--sim {opt.sim} has one variance per item, not --head {opt.head}; leave it "
            "out, or give --image_head point"
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
    if (opt.txt_enc == "features") != bool(opt.text_features):
        raise InputError(
            f"--txt_enc {opt.txt_enc} does not read --text_features {opt.text_features}; "
            "give --text_features alone"
        )
    if opt.txt_layers and not text.layers:
        raise InputError(
            f"--txt_layers {opt.txt_layers} is for word vectors, features and trigrams, not "
            f"for --txt_enc {opt.txt_enc}; leave it out"
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
            f"--warmup {opt.warmup:g} is as long as the training of --num_epochs "
            f"{opt.num_epochs}; give less"
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
            f"{text.path} has features of width {text.dim}, {path} reads width {opt.txt_dim}; use "
            "features of the same vectors"
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
            f"{path} reads {' or '.join(READ_BY[reads])}, and the images are {kind}{where}; name "
            "other data with --data_name, or take another --img_enc or --sim (regions are "
            "features of shape (images, regions, F))"
        )
    if kind == "photos":
        return

    if images.dim != opt.img_dim:
        raise InputError(
            f"the features{where} have width {images.dim}, {path} reads width {opt.img_dim}; use "
            "the same extractor"
        )
    takes_any_number = not opt.n_regions and opt.img_enc != "precomp"
    if opt.n_regions == images.regions or takes_any_number:
        return
    # regions of a split are padded to the most that an image of it has
    padded = opt.n_regions and isinstance(images, Features) and images.is_padded()
    if not padded:
        raise InputError(
            f"the features{where} have {images.regions or 'no'} regions an image, {path} reads "
            f"{opt.n_regions or 'one vector an image'}; use features of the same extractor"
        )


# ---- evaluate.py


def parse_evaluation(argv=None) -> argparse.Namespace:
    """Return the options of evaluate.py."""
    p = Arguments("Evaluate image-caption retrieval.", usage="%(prog)s [options]")
    add_subject_options(p)
    add_protocol_options(p)
    add_picture_options(p)
    add_output_options(p)
    add_speed_options(p)
    name_values(p)
    opt = p.parse_args(argv)
    opt.eccv = opt.eccv or opt.eccv_path is not None
    return opt


def add_subject_options(p: Arguments) -> None:
    group = OptionGroup(p, "what is evaluated", "one of --checkpoint, --compare and --embeddings")
    one_of = group.group.add_mutually_exclusive_group().add_argument
    help = "run folders or checkpoint files; several are an ensemble (default: the newest run)"
    one_of("--checkpoint", type=filename, metavar="RUN", nargs="+", help=help)
    help = (
        "evaluate runs, .npz embeddings or .npy scores, and compare each with the first by a "
        "paired bootstrap; A0,A1,A2 are seeds of one model"
    )
    one_of("--compare", type=filenames, metavar="RUN", nargs="+", help=help)
    help = (
        "embeddings of any model, as --export writes them (.npz), or scores, images x captions "
        "(.npy; .npz with a matrix for each direction); higher scores are better"
    )
    one_of("--embeddings", "--scores", type=filename, metavar="FILE", help=help)

    functions = list_functions()
    help = (
        f"similarity to rank by (default: the run's, the file's, or cosine): {', '.join(functions)}"
    )
    group.add_choice("--sim", functions, None, help, metavar="NAME")
    help = "folder of the data sets (default: as in training)"
    group.add("--data_path", filename, None, help, metavar="FOLDER")
    group.add("--data_name", data_set, None, "data set (default: as in training)")
    help = "train, dev, test or testall (default: what a file names, else test)"
    group.add("--split", split_name, None, help)
    help = "number of dev images; 0: all (default: as in training)"
    group.add("--dev_images", natural, None, help)
    help = "vocabulary of an original VSE++ or VSRN checkpoint"
    group.add("--vocab", filename, None, help, metavar="FILE")


def filenames(text: str) -> str:
    """Parse names of files or folders that are joined by commas."""
    return ",".join(map(filename, text.split(",")))


def add_protocol_options(p: Arguments) -> None:
    group = OptionGroup(p, "protocols", "what is measured in addition to R@1, R@5, R@10 and ranks")
    add = group.add
    group.add_flag("--fold5", "also give the mean over five folds of 1,000 images (COCO 1K)")
    group.add_flag("--ndcg", "MRR, nDCG@10, R-precision and mAP@R of the original pairs")
    help = "Crisscrossed Captions: all four directions, RPC2, STS, SIS and SITS"
    group.add_flag("--cxc", help)
    help = "folder of its csv files (default: DATA_PATH/cxc)"
    add("--cxc_path", filename, None, help, metavar="FOLDER")
    group.add_flag("--pmrp", "Plausible Match R-Precision, from the instances of COCO")
    help = "COCO's instances (default: instances_val2014.json of the data set's annotations)"
    add("--instances", filename, None, help, metavar="FILE.json")
    group.add_flag("--eccv", "ECCV Caption, from --eccv_path or the package eccv_caption")
    add("--eccv_path", filename, None, "folder of its two JSON files", metavar="FOLDER")
    help = (
        "recalls, R-precision and mAP@R of your own matches: "
        '{"i2t": {image id: [caption ids]}, "t2i": {...}}'
    )
    add("--positives", filename, None, help, metavar="FILE.json")
    help = (
        "how often a right caption scores higher than a wrong one, of SugarCrepe, ARO or "
        'Winoground: [{"image": id, name or row, "caption": text, "negative_caption": text}, ...]'
    )
    add("--hard_negatives", filename, None, help, metavar="FILE.json", nargs="+")
    help = (
        "also rank with query bank normalization, which lowers hubs, by queries of this split, "
        "usually train; its beta is chosen on dev"
    )
    add("--bank", split_name, None, help, metavar="SPLIT")


def add_picture_options(p: Arguments) -> None:
    group = OptionGroup(p, "pictures")
    help = "what the variances (log det) tell about recall: bins, risk and coverage, two pictures"
    group.add_flag("--uncertainty", help)
    help = "draw captions, from certain to uncertain, with their best images"
    group.add_flag("--retrieval", help)
    help = "photos to draw where the data are precomputed features"
    group.add("--photos", filename, None, help, metavar="FOLDER")


def add_output_options(p: Arguments) -> None:
    group = OptionGroup(p, "what is written")
    add = group.add
    add("--export", filename, None, "write the embeddings to this file", metavar="FILE.npz")
    help = (
        "write the 100 best items of each query and the right ones for trec_eval: PREFIX_i2t.run, "
        "PREFIX_i2t.qrels, PREFIX_t2i.run and PREFIX_t2i.qrels"
    )
    add("--trec", filename, None, help, metavar="PREFIX")
    help = (
        "file of the results (default: results.json in the run folder, or "
        "results_SIM_DATA_SPLIT.json for another similarity, data set or split)"
    )
    add("--output", filename, None, help, metavar="FILE.json")
    group.add_flag("--overwrite", "replace existing files of --output and --export")


def add_speed_options(p: Arguments) -> None:
    group = OptionGroup(p, "speed and memory")
    group.add("--batch_size", positive, 128, "images or captions per step")
    utils.add_workers(group.group)
    utils.add_device(group.group)
