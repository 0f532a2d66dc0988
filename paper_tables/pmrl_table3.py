"""`pmrl` Table 3: entropies (log det Sigma) of photos, crops and captions.

Published numbers only. With a photo of your own, and row 11 (RUN) and row 1 (POINT_RUN) of
pmrl_table1:

    python -m vg_experiments.crops --checkpoint RUN POINT_RUN --image FILE --boxes BOX ... \
        --captions TEXT ...
"""

from paper_tables.runner import Columns, Row, Table, main

TABLE = Table(
    "pmrl Table 3: entropy of captions and images",
    (Columns("", (("", (("caption", ""), ("image", ""))),)),),
    (
        Row("A man with a red helmet on a small moped on a dirt road.", (18.19, 26.14)),
        Row("A man with a red helmet.", (15.51, 19.05)),
        Row("A swimming pool in a yard that has a cinderblock wall [...]", (19.20, 21.51)),
        Row("A swimming pool.", (10.52, 12.39)),
        Row("A cinderblock wall.", (15.48, 14.66)),
        Row("A dog sitting.", (14.28, 20.65)),
    ),
    notes=(
        "The paper names neither photos nor boxes. python -m vg_experiments.crops does the same "
        "with a photo of yours.",
        "The image of a row is the crop that its truncated caption describes. Those of the first "
        "and the third row are whole photos.",
    ),
)

if __name__ == "__main__":
    main(TABLE)
