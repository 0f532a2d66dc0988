"""`ucmr` Fig. 2: mean uncertainty of crops and captions A and C, by area.

The figure itself is vg/uncertainty.png in the run's folder.
"""

from paper_tables.commands import run_module
from paper_tables.runner import Columns, Row, Table, main
from paper_tables.ucmr_table1 import train_coco

AREAS = (10, 20, 30, 40, 50)  # percent of the photo's


def make_columns(side: str) -> Columns:
    """Columns of items A and C by area threshold. side: images or captions."""
    groups = []
    for percent in AREAS:
        means = f"models/*/{side}/{percent}"
        groups.append((f"{percent}%", (("A", f"{means}/a/mean"), ("C", f"{means}/c/mean"))))
    return Columns(side, tuple(groups))


TABLE = Table(
    "ucmr Fig. 2: uncertainty by area threshold",
    (make_columns("images"), make_columns("captions")),
    (
        Row(
            "VSE++ ours",
            (None,) * 4 * len(AREAS),
            ((train_coco("gcie_wasserstein"), run_module("vg_experiments.uncertainty")),),
        ),
    ),
    notes=(
        "The paper draws curves and prints no numbers. Image C lies above image A at every "
        "threshold, caption C below caption A.",
    ),
)

if __name__ == "__main__":
    main(TABLE)
