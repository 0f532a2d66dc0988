"""The systems of the papers' tables whose cost is measured."""

from typing import NamedTuple

from cost.made_up import CAPTIONS_PER_IMAGE, COCO
from paper_tables import dmsm_table1, jwae_table3, pmrl_table1, pmrl_table2, ucmr_table1
from paper_tables.commands import Command, spell_options, train

SCAN_TRAINING = jwae_table3.train_scan("coco", "scan_t2i")
JWAE_TRAINING = jwae_table3.train_photos("coco", "jwae_mh", **jwae_table3.JWAE_RATE)
JWAE_TUNING = jwae_table3.tune_photos("coco", "jwae_mh", **jwae_table3.JWAE_TUNING)
DMSM_TRAINING = dmsm_table1.train_dmsm(dmsm_table1.FC7, "2000-1000", "4000-2000-1000-500")


def train_vectors(method: str) -> Command:
    return train(data_name="coco_vectors_precomp", method=method)


DATA_KINDS = ("vectors", "halves", "regions", "photos")  # of made-up data, by what a step costs


class System(NamedTuple):
    """A training whose cost is measured."""

    name: str
    command: Command  # as in the tables, or as in README where no table has it
    data: str  # which made-up data it reads, one of DATA_KINDS
    starts_from: str = ""  # the system that it fine-tunes
    original: str = ""  # the original code, of --original, that has its step

    @property
    def training_words(self) -> list[str]:
        """Options of train.py, but for the run that the training starts from."""
        options = dict(self.command.options)
        options.pop("init_from", None)
        return spell_options(options)

    @property
    def pairs(self) -> int:
        """Pairs of an epoch at the paper's size."""
        images = COCO.halves[0] if self.data == "halves" else COCO.train
        return CAPTIONS_PER_IMAGE * images

    @property
    def dev_images(self) -> int:
        """All dev images at the paper's size."""
        return COCO.halves[1] if self.data == "halves" else COCO.dev


# The most telling ones first. On features the papers' VSE++ and Gaussians cost what their heads and
# GRUs cost; on photos, as the tables have them, the network comes on top.
SYSTEMS = (
    System("VSE++ on features", train_vectors("vse++"), "vectors", original="vsepp"),
    System("GCIE, Wasserstein, on features", train_vectors("gcie_wasserstein"), "vectors"),
    System("VSE++", pmrl_table1.train_coco("vse++"), "photos"),
    System("VSE++, fine-tuned", pmrl_table2.tune_coco("vse++", "2e-5"), "photos", "VSE++"),
    System("SCAN t-i", SCAN_TRAINING, "regions", original="scan"),
    System("VSRN", ucmr_table1.train_regions("vsrn_original"), "regions", original="vsrn"),
    System("VSRN, Gaussian", ucmr_table1.train_regions("vsrn_gaussian_original"), "regions"),
    System("DMSM", DMSM_TRAINING, "halves"),
    System("GCIE, KL, on features", train_vectors("gcie_kl"), "vectors"),
    System("jWAE-MH on features", train_vectors("jwae_mh"), "vectors"),
    System("PCME", ucmr_table1.train_coco("pcme"), "photos"),
    System("PVSE", ucmr_table1.train_coco("pvse"), "photos"),
    System("GCE on features", train_vectors("gce"), "vectors"),
    System("GIE on features", train_vectors("gie"), "vectors"),
    System("GCIE, Wasserstein", pmrl_table1.train_coco("gcie_wasserstein"), "photos"),
    System("jWAE-MH", JWAE_TRAINING, "photos"),
    System("jWAE-MH, fine-tuned", JWAE_TUNING, "photos", "jWAE-MH"),
)


def order_systems(on_gpu: bool) -> list[System]:
    """List the systems, on a CPU the quickest first: those that read photos take minutes a step."""
    if on_gpu:
        return list(SYSTEMS)
    return sorted(SYSTEMS, key=lambda system: DATA_KINDS.index(system.data))
