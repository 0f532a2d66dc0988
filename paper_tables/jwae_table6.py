"""`jwae` Table 6: trained on COCO, tested on Flickr30K.

Needs the data of jwae_table3 and shares its runs.

    python -m paper_tables.jwae_table6 --data_path D
"""
from paper_tables.common import Table, main, recalls
from paper_tables.jwae_table5 import rows

TABLE = Table("jwae Table 6: COCO (train) to Flickr30K (test)", (recalls("full", ks=(5, 10)),),
              rows({"Emb. Network (VGG+w2v)": (33.7, 45.5, 8.4, 12.2),
                    "MSE (VGG+w2v)": (43.6, 56.9, 24.3, 34.2),
                    "SCAN (ResNet+GRU)": (73.7, 82.6, 61.3, 72.4),
                    "jWAE-MSE (VGG+w2v)": (48.5, 60.0, 29.1, 40.7),
                    "jWAE-MH (VGG+w2v)": (51.1, 63.3, 37.0, 49.1),
                    "jWAE-MH+SCAN (ResNet+GRU)": (80.0, 87.0, 66.7, 75.9)}, 1),
              notes=("The paper does not say which attention SCAN has. Ours attends from text to "
                     "image.",))

if __name__ == "__main__":
    main(TABLE, __doc__)
