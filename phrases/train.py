"""Train a joint embedding of regions and phrases, to find the region of a phrase.

    python -m phrases.train --data_name f30k_entities --method cite --text_features hglmm

Takes all options of train.py and three more. Writes the same run folder, which phrases.evaluate
reads.
"""

if __name__ == "__main__":
    import utils

    utils.start("loading torch")

import os
import sys

import numpy as np

import options
import train as core
import utils
from losses import SIMILARITIES
from phrases.data import (
    DEFAULT_REGIONS,
    NEGATIVE_IOU,
    POSITIVE_IOU,
    batches,
    parse_regions,
    read_phrases,
)
from phrases.losses import OBJECTIVES, build_phrase_model
from phrases.ranking import locate, measure_chance, validate_phrases
from utils import InputError, fraction


def phrases_parser() -> utils.Arguments:
    """Build the parser of train.py with the options of phrases."""
    p = options.training_parser()
    p.description = "Train a joint embedding of phrases and regions of photos."
    p.set_defaults(data_name="f30k_entities")
    add = p.add_argument_group("phrases in photos").add_argument
    add(
        "--regions",
        type=parse_regions,
        default=DEFAULT_REGIONS,
        metavar="NAME",
        help="proposals of regions and their features, {split}_NAME.npy",
    )
    add(
        "--positive_iou",
        type=fraction,
        default=POSITIVE_IOU,
        metavar="X",
        help="overlap from which a region fits a phrase (jWAE: 0.7, CITE: 0.6)",
    )
    add(
        "--all_positives",
        action="store_true",
        help="learn from every region that fits a phrase, as CITE, not from one drawn at random",
    )
    return p


class PhraseTraining(core.Training):
    """A training on labelled pairs, validated by localization on val.

    Batches are the proposals and phrases of whole photos: `pairs` are the phrases that a proposal
    fits, `batch_size` counts photos.
    """

    program = "-m phrases.train"
    data_check = "-m phrases.data"
    build_model = staticmethod(build_phrase_model)

    def read_data(self, start: dict | None) -> None:
        """Read train and val, as `core.Training.read_data`.

        Raises InputError where they do not fit.
        """
        opt = self.opt
        root = os.path.join(opt.data_path, opt.data_name)
        train = read_phrases(root, "train", opt.regions, opt.text_features).require_sound()
        dev = read_phrases(root, "val", opt.regions, opt.text_features).require_sound()
        self.settle_by_data(train, dev, start)

        self.pairs = np.flatnonzero(train.best_overlaps() >= opt.positive_iou)
        if not len(self.pairs):
            raise InputError(
                f"no proposal of {opt.regions} overlaps a phrase of {opt.data_name} by "
                f"--positive_iou {opt.positive_iou}; give a smaller one, or better proposals"
            )
        photos = len(np.unique(train.phrase_photo[self.pairs]))
        self.batch_size = max(1, round(opt.batch_size * photos / len(self.pairs)))

        chance = measure_chance(locate(dev, score_alike))
        self.sizes = (
            f"{len(self.pairs):,} training phrases of {photos:,} photos, {self.batch_size} a "
            f"batch, {len(dev.ids):,} dev photos (rsum by chance {chance['rsum']:.1f})"
        )

    def read_words_of(self, name: str):
        """Read a split of --vocab_splits, whose words are taken."""
        root = os.path.join(self.opt.data_path, self.opt.data_name)
        return read_phrases(root, name, self.opt.regions, self.opt.text_features)

    def order(self, epoch: int) -> np.ndarray:
        """Shuffle the photos of an epoch that have some of `pairs`."""
        rng = np.random.default_rng([self.opt.seed, epoch])
        photos = np.unique(self.splits["train"].phrase_photo[self.pairs])
        return rng.permutation(photos)

    def batches(self, order: np.ndarray):
        """Yield the batches of an epoch in this order that are still to come."""
        opt = self.opt
        return batches(
            self.splits["train"],
            self.tokens["train"],
            order,
            self.batch_size,
            seed=(opt.seed, self.state["epoch"]),
            skip=self.state["step"],
            positive=opt.positive_iou,
            every=opt.all_positives,
        )

    def rank_dev(self) -> tuple[dict[str, float], str]:
        """Measure accuracy on val; return it, and the same in words."""
        result = validate_phrases(self.model, self.splits["dev"], self.tokens["dev"], self.device)
        scalars = {name: result[name] for name in ("r1", "r5", "r10", "upper", "rsum")}
        words = "R@1 {r1:.1f} R@5 {r5:.1f} R@10 {r10:.1f} of at most {upper:.1f}".format(**scalars)
        return scalars, words


def score_alike(n: int, columns: np.ndarray) -> np.ndarray:
    """Score all proposals of a photo alike, for `ranking.locate`."""
    return np.zeros((1, 1))


def train_phrases(opt) -> int:
    """Train as the options say. Return the exit status, as train.train does.

    Raises InputError where a training on phrases cannot work.
    """
    check_phrase_options(opt)
    return core.train(opt, PhraseTraining)


def check_phrase_options(opt) -> None:
    """Raise InputError on options of train.py that a training on phrases cannot have."""
    if opt.loss not in OBJECTIVES:
        raise InputError(
            f"--loss {opt.loss} needs pairs that match one to one, and a phrase fits several "
            f"regions of its photo; take one of {', '.join(OBJECTIVES)}"
        )

    # a similarity that brings an encoder of images of its own cannot read regions of a photo
    needs_encoder = "img_enc" in SIMILARITIES[opt.sim].defaults
    for_captions = {
        "sim": needs_encoder,
        "img_enc": opt.img_enc not in ("auto", "precomp"),
        "select": opt.select == "hbr",
        "supervised_fraction": opt.supervised_fraction < 1,
        "noise_ratio": opt.noise_ratio > 0,
        "noise_file": bool(opt.noise_file),
        "text_anchor": opt.text_anchor > 0,
        "pseudo_positives": opt.pseudo_positives > 0 and opt.resume is None,  # had no effect before
    }
    for name, given in for_captions.items():
        if given:
            raise InputError(
                f"--{name} {getattr(opt, name)} is for images and captions, and {opt.data_name} "
                "has phrases and the regions of their photos; leave it out"
            )

    if opt.positive_iou < NEGATIVE_IOU:
        raise InputError(
            f"--positive_iou {opt.positive_iou:g} lies below {NEGATIVE_IOU}, where a region no "
            "longer fits a phrase; give a larger one"
        )


def train_as_said(argv) -> int:
    """Read the command line and train."""
    return train_phrases(core.parse_args(argv, phrases_parser()))


def main(argv=None) -> None:
    sys.exit(utils.run("phrases.train", train_as_said, argv))


if __name__ == "__main__":
    main()
