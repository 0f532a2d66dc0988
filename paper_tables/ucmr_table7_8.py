"""`ucmr` Tables 7 and 8: mean and deviation of rsum over five seeds of VSE++ and VSRN, with points
and with Gaussians.

Needs the data of ucmr_table1 and ucmr_table3.

    python -m paper_tables.ucmr_table7_8 --data_path D
"""
from paper_tables import ucmr_table3
from paper_tables.common import Columns, Row, Table, main
from paper_tables.ucmr_table1 import models

COCO = models("--fold5")
TABLE = Table("ucmr Tables 7 and 8: rsum",
              (Columns("COCO",
                       (("", (("1K", "protocols/folds5/rsum"), ("5K", "protocols/full/rsum"))),)),
               Columns("Flickr30K", (("", (("1K", "protocols/full/rsum"),)),), run=1)),
              (Row("VSE++", (447.74, 310.06, 363.42), (COCO["VSE++"], ucmr_table3.POINT)),
               Row("VSE++ ours", (452.70, 317.02, 372.48), (COCO["VSE++ ours"], ucmr_table3.OURS)),
               Row("VSRN", (507.68, 401.66, 466.48), (COCO["VSRN"], ucmr_table3.VSRN_POINT)),
               Row("VSRN ours", (510.76, 405.02, 468.96),
                   (COCO["VSRN ours"], ucmr_table3.VSRN_OURS))), seeds=5, f8k=True,
              notes=("The published deviations, in the order of the columns, are: VSE++ 0.51, 0.81 "
                     "and 2.02; VSE++ ours 0.50, 1.07 and 1.86; VSRN 0.80, 1.40 and 1.88; VSRN "
                     "ours 2.02, 2.82 and 2.64.",))

if __name__ == "__main__":
    main(TABLE, __doc__)
