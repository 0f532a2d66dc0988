"""`pmrl` section 3.4: a caption selects an image or its crop, and an image selects one of their two
captions.

Needs the data of pmrl_table1, and Visual Genome's image_data.json, region_descriptions.json and
photos in D/vg.

    python -m paper_tables.pmrl_section34 --data_path D
"""
from paper_tables.common import Columns, Row, Run, Table, main

QUERIES = ("crop description", "image description", "crop", "image")
SELECTED = Columns("", tuple(
    (heading, tuple((query, f"section34/*/{query}/percent") for query in queries))
    for heading, queries in (("images by text", QUERIES[:2]), ("captions by image", QUERIES[2:]))))
POINT, GAUSSIAN = (
    Run("coco", name, judge="selection") for name in ("vse++", "gcie_wasserstein")
)
TABLE = Table("pmrl section 3.4: percent of right choices of 2,850, columns by the query",
              (SELECTED,), (Row("GCIE-best", (61, 77, 82, 53), (GAUSSIAN,)),
                            Row("VSE++", (58, 69, 97, 13), (POINT,))))

if __name__ == "__main__":
    main(TABLE, __doc__)
