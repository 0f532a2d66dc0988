"""`pmrl` 3.4: captions choose an image or its crop, images one of two captions."""

from paper_tables.commands import run_module
from paper_tables.pmrl_table1 import train_coco
from paper_tables.runner import Row, Table, choices, main

SELECT = run_module("vg_experiments.selection")
TABLE = Table(
    "pmrl section 3.4: percent of right choices of 2,850, columns by the query",
    (
        choices(
            "section34",
            {
                "images by text": ("crop description", "image description"),
                "captions by image": ("crop", "image"),
            },
        ),
    ),
    (
        Row("GCIE-best", (61, 77, 82, 53), ((train_coco("gcie_wasserstein"), SELECT),)),
        Row("VSE++", (58, 69, 97, 13), ((train_coco("vse++"), SELECT),)),
    ),
)

if __name__ == "__main__":
    main(TABLE)
