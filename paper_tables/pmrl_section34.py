"""`pmrl` 3.4: captions choose an image or its crop, images one of two captions."""
from paper_tables.runner import Columns, Row, Table, main

TRAIN = "train.py --data_name coco --method {} --cnn_type resnet152 --use_restval"
TEST = "-m vg_experiments.selection"
GROUPS = (("images by text", ("crop description", "image description")), ("captions by image", ("crop", "image")))
TABLE = Table(
    "pmrl section 3.4: percent of right choices of 2,850, columns by the query",
    (Columns("", tuple((heading, tuple((query, f"section34/*/{query}/percent") for query in queries))
                       for heading, queries in GROUPS)),),
    (Row("GCIE-best", (61, 77, 82, 53), ((TRAIN.format("gcie_wasserstein"), TEST),)),
     Row("VSE++", (58, 69, 97, 13), ((TRAIN.format("vse++"), TEST),))))

if __name__ == "__main__":
    main(TABLE)
