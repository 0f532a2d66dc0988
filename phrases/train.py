"""Train a joint embedding of regions and phrases, to find the region of a phrase.

    python -m phrases.train --data_name f30k_entities --method cite --text_features hglmm

It has the options of train.py and three of its own, and so is the run folder, which phrases.evaluate reads.
"""
if __name__ == "__main__":
    import cli
    cli.start("loading torch")

import os
import sys

import numpy as np

import cli
import options
import train as core
from cli import check, fraction
from phrases.data import NEGATIVE_IOU, POSITIVE_IOU, REGIONS, batches, parse_regions, read_phrases
from phrases.losses import OBJECTIVES, build_phrase_model
from phrases.ranking import locate, measure_chance, validate_phrases


def phrases_parser() -> cli.Arguments:
    p = options.training_parser()
    add = p.add_argument_group("phrases in photos").add_argument
    add("--regions", type=parse_regions, default=REGIONS, metavar="NAME", help="proposals and features, "
        "{split}_NAME.npy")
    add("--positive_iou", type=fraction, default=POSITIVE_IOU, metavar="X", help="overlap from which a region "
        "fits a phrase (jWAE: 0.7, CITE: 0.6)")
    add("--all_positives", action="store_true", help="draw every region that fits a phrase, as CITE, not one")
    return p


class PhraseTraining(core.Training):
    """A training on labelled pairs, validated by localisation on val.

    Batches are the proposals and phrases of whole photos: `pairs` are the phrases that a proposal fits, `batch_size`
    counts photos.
    """
    program, data_check = "-m phrases.train", "-m phrases.data"
    build_model = staticmethod(build_phrase_model)

    def read_data(self, start: dict | None) -> None:
        """Read train and val, as `core.Training.read_data`. Raises InputError where they do not fit."""
        opt = self.opt
        train, dev = (read_phrases(os.path.join(opt.data_path, opt.data_name), name, opt.regions,
                                   opt.text_features).require_sound() for name in ("train", "val"))
        self.check_data(train, dev, start)
        self.pairs = np.flatnonzero(train.best_overlaps() >= opt.positive_iou)
        check(len(self.pairs), f"no proposal of {opt.regions} overlaps a phrase of {opt.data_name} by --positive_iou "
                               f"{opt.positive_iou}; give a smaller one, or better proposals")
        photos = len(np.unique(train.phrase_photo[self.pairs]))
        chance = measure_chance(locate(dev, lambda *_: np.zeros((1, 1))))
        self.batch_size = max(1, round(opt.batch_size * photos / len(self.pairs)))
        self.sizes = (f"{len(self.pairs):,} training phrases of {photos:,} photos, {self.batch_size} a batch, "
                      f"{len(dev.ids):,} dev photos (rsum by chance {chance['rsum']:.1f})")

    def order(self, epoch: int) -> np.ndarray:
        """Photos of an epoch that have some of `pairs`, shuffled."""
        rng = np.random.default_rng([self.opt.seed, epoch])
        return rng.permutation(np.unique(self.splits["train"].phrase_photo[self.pairs]))

    def batches(self, order: np.ndarray):
        """Yield the batches of an epoch in this order that are still to come."""
        opt, state = self.opt, self.state
        return batches(self.splits["train"], self.tokens["train"], order, self.batch_size, (opt.seed, state["epoch"]),
                       state["step"], positive=opt.positive_iou, every=opt.all_positives)

    def rank_dev(self) -> tuple[dict[str, float], str]:
        """Accuracy on val, and the same in words."""
        result = validate_phrases(self.model, self.splits["dev"], self.tokens["dev"], self.device)
        scalars = {name: result[name] for name in ("r1", "r5", "r10", "upper", "rsum")}
        return scalars, "R@1 {r1:.1f} R@5 {r5:.1f} R@10 {r10:.1f} of at most {upper:.1f}".format(**scalars)


def train_phrases(opt) -> int:
    """Train as the options say. Return the exit status, as train.train does.

    Raises InputError where a training on phrases cannot work.
    """
    check(opt.loss in OBJECTIVES,
          f"--loss {opt.loss} needs pairs that match one to one, and a phrase fits several regions of its photo; take "
          "hinge, infonce, match, two_branch, or logistic with --sim cite")
    for name, wrong in (("sim", opt.sim in ("mil", "match_prob", "scan")),
                        ("img_enc", opt.img_enc not in ("auto", "precomp")),
                        ("select", opt.select == "hbr"), ("supervised_fraction", opt.supervised_fraction < 1),
                        ("noise_ratio", opt.noise_ratio), ("noise_file", opt.noise_file)):
        check(not wrong, f"--{name} {getattr(opt, name)} is for images and captions, and {opt.data_name} has phrases "
                         "and the regions of their photos; leave it out")
    check(opt.positive_iou >= NEGATIVE_IOU,
          f"--positive_iou {opt.positive_iou:g} lies below {NEGATIVE_IOU}, where a region no longer fits a phrase; "
          "give a larger one")
    return core.train(opt, PhraseTraining)


def main(argv=None) -> None:
    sys.exit(cli.run("phrases.train", lambda: train_phrases(core.parse_args(argv, phrases_parser()))))


if __name__ == "__main__":
    main()
