"""`jwae` Table 7: phrase localisation on Flickr30K Entities. It prints published numbers only.

There is no code yet that runs it. That code will need the annotations and sentences of Flickr30K Entities, Flickr30k's
photos, and box proposals.

    python -m paper_tables.jwae_table7
"""
from paper_tables.common import Columns, Row, Table, main

_ = None
TABLE = Table("jwae Table 7: phrase localisation, recall of a box with IoU of at least 0.5", (
    Columns("", (("", tuple((f"R@{k}", "") for k in (1, 5, 10))),)),), (
        Row("row 1", (48.7, _, _)),
        Row("row 2", (47.8, _, _)),
        Row("row 3", (51.0, 70.4, 75.5)),
        Row("row 4", (51.0, 70.3, 75.0)),
        Row("row 5", (55.4, _, _)),
        Row("row 6", (53.9, _, _)),
        Row("row 7, CITE", (59.2, _, _)),
        Row("row 8, jWAE", (52.5, 75.0, 81.5)),
        Row("row 9, jWAE with CITE", (60.4, _, _))),
    later="phrase localisation (jwae Table 7) has no runner yet, so these are its published rows", notes=(
        "The methods' names are lost in our extraction of the paper.",
        "Rows 7 to 9 follow from the paper's text: jWAE gains 1.5 points of R@1 on the embedding networks, and 1.2 "
        "points on CITE.",
        "Rows 1 to 4 are probably MCB, GroundeR, the Embedding Network and the Similarity Network, whose papers it "
        "cites."))

if __name__ == "__main__":
    main(TABLE, __doc__)
