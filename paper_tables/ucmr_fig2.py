"""`ucmr` Fig. 2: mean uncertainty of crops and captions A and C, by area.

The figure itself is vg/uncertainty.png in the run's folder.
"""
from paper_tables.runner import Columns, Row, Table, main

PERCENT = (10, 20, 30, 40, 50)
TABLE = Table(
    "ucmr Fig. 2: uncertainty by area threshold",
    tuple(Columns(side, tuple((f"{percent}%", tuple((item.upper(), f"models/*/{side}/{percent}/{item}/mean")
                                                    for item in "ac")) for percent in PERCENT))
          for side in ("images", "captions")),
    (Row("VSE++ ours", (None,) * 4 * len(PERCENT), (
        ("train.py --data_name coco --method gcie_wasserstein --cnn_type resnet152 --use_restval",
         "-m vg_experiments.uncertainty"),)),),
    notes=("The paper draws curves and prints no numbers. Image C lies above image A at every threshold, caption C "
           "below caption A.",))

if __name__ == "__main__":
    main(TABLE)
