"""`ucmr` Table 4: captions choose crop A or C, crops one of two captions."""

from paper_tables.commands import run_module
from paper_tables.runner import Row, Table, choices, main
from paper_tables.ucmr_table1 import train_coco

SELECT = run_module("vg_experiments.selection")
TABLE = Table(
    "ucmr Table 4: percent of right choices over 2,000 triplets, columns by the query",
    (
        choices(
            "table4",
            {
                "image to text": ("crop A", "crop C"),
                "text to image": ("caption A", "caption C"),
            },
        ),
    ),
    (
        Row("VSE++", (59.7, 66.0, 74.8, 54.0), ((train_coco("vse++"), SELECT),)),
        Row("VSE++ ours", (58.6, 69.5, 71.7, 58.9), ((train_coco("gcie_wasserstein"), SELECT),)),
    ),
    notes=(
        "Ours is the mean over the area thresholds of 10 to 50 percent. The paper does not say "
        "which threshold its table has.",
    ),
)

if __name__ == "__main__":
    main(TABLE)
