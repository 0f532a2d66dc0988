"""The sizes at which tables are run: the papers', and the small ones of --demo and --f8k."""

from dataclasses import dataclass, field

from methods import METHODS, REGIONS, REGIONS_OR_PHOTOS
from paper_tables.commands import Command


@dataclass(frozen=True)
class Scale:
    """A size at which all runs are made. The options replace the rows' options."""

    description: str
    data: str = ""  # what the runs are trained and judged on in place of the paper's data
    divisor: int = 1  # of the sizes of embeddings and layers
    train: dict = field(default_factory=dict)
    rate: dict = field(default_factory=dict)  # learning rate of Adam, and its reduction
    start: dict = field(
        default_factory=dict
    )  # further options of a run that fine-tuning starts from
    tune: dict = field(default_factory=dict)  # of fine-tuning, in place of `rate`
    warmup: int = 0  # epochs on the sum of violations before a row's hardest negatives


TABLE_SCALES = {
    "full": Scale("the papers' setting"),
    "demo": Scale(
        "drawn scenes, small models, a few epochs: shows that the table runs, "
        "not what the methods do",
        data="drawn scenes",
        divisor=16,
        train={
            "num_epochs": 4,
            "batch_size": 64,
            "log_step": 1000,
            "val_step": 100000,
            "workers": 0,
        },
        rate={"learning_rate": "2e-3", "lr_update": 3},
        start={"num_epochs": 2},
        tune={"num_epochs": 1, "learning_rate": "1e-4"},
        warmup=2,
    ),
    "f8k": Scale(
        "Flickr8k's features, half the embedding size and 10 epochs: not the papers' data",
        data="Flickr8k",
        divisor=2,
        train={"num_epochs": 10, "amp": "bf16"},
        rate={"learning_rate": "1e-3", "lr_update": 6},
        tune={"num_epochs": 3, "learning_rate": "1e-4"},
        warmup=1,
    ),
}
# At small scales: the network of fine-tuned rows, options that are left out, and options that hold
# sizes, which are divided.
SMALL_NETWORK = {"cnn_type": "efficientnet_lite0", "crop_size": 64}
FULL_ONLY_OPTIONS = ("cnn_type", "dev_images", "use_restval", "fold5")
SIZE_OPTIONS = ("embed_size", "word_dim", "img_layers", "txt_layers", "dim_hidden", "cite_layers")
MIN_LAYER_SIZE = 4
# beginnings of similarities whose hinge takes the hardest negatives, and needs a warm-up there
HARDEST_NEGATIVES = ("kl", "minkl", "mahalanobis", "wasserstein")
# train.py's defaults
EMBED_SIZE = 1024
CAPTIONER_SIZE = 512


def scale_run(run: tuple[Command, ...], scale: str) -> list[Command]:
    """List a run's commands on the data sets of a scale and in its sizes.

    --method is replaced by the options that it stands for.
    """
    commands = [Command(command.program, command.expand()) for command in run]
    if scale == "full":
        return commands

    method = METHODS.get(run[0].options.get("method"))
    reads_regions = method is not None and method.needs in (REGIONS, REGIONS_OR_PHOTOS)
    tuned = any("finetune" in options for _, options in commands)
    scaled = []
    for program, options in commands:
        kept = {}
        for name, value in options.items():
            if name in FULL_ONLY_OPTIONS or value == "testall":
                continue
            if name in ("data_name", "test_name"):
                value = replace_data(value, scale, tuned, reads_regions)
            kept[name] = value
        if "train" in program:
            kept = shrink(kept, TABLE_SCALES[scale], tuned)
        scaled.append(Command(program, kept))
    return scaled


def replace_data(name: str, scale: str, tuned: bool, reads_regions: bool) -> str:
    """Name the photos to fine-tune on, the regions or the vectors in the place of a data set."""
    if name == "f30k_entities":
        return "demo_entities"
    if scale == "f8k":
        source = "f8k"
    elif name.startswith("f30k"):
        source = "other"
    else:
        source = "demo"
    if tuned:
        return source
    if reads_regions or name in ("coco_precomp", "f30k_precomp"):
        return f"{source}_region_precomp"
    return f"{source}_precomp"


def shrink(options: dict, small: Scale, tuned: bool) -> dict:
    """Replace the options of a training by those of a scale.

    tuned: whether its run ends in fine-tuning.
    """
    sizes = {"embed_size": EMBED_SIZE}
    if "captioner" in options:
        sizes["dim_hidden"] = CAPTIONER_SIZE
    options = {"data_name": options["data_name"], **sizes, **options}
    for name in SIZE_OPTIONS:
        if name in options:
            options[name] = divide_sizes(options[name], small.divisor)

    if "finetune" in options:
        return options | small.train | small.tune | SMALL_NETWORK
    options |= small.train
    if options.get("optimizer") != "sgd":
        options |= small.rate
    if tuned:
        options |= small.start | SMALL_NETWORK
    if "max_violation" in options or options.get("sim", "").startswith(HARDEST_NEGATIVES):
        options["vse_mean_warmup_epochs"] = small.warmup
    return options


def divide_sizes(value: int | str, divisor: int) -> str:
    """Divide the sizes of layers, such as 1024 or 1000-500; a size of 0 says that there is none."""
    sizes = []
    for text in str(value).split("-"):
        size = int(text)
        if size > 0:
            size = max(MIN_LAYER_SIZE, size // divisor)
        sizes.append(str(size))
    return "-".join(sizes)
