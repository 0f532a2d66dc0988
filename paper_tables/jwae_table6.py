"""`jwae` Table 6: models of Table 3, trained on COCO and tested on Flickr30K."""

from paper_tables.commands import Command, evaluate
from paper_tables.jwae_table3 import train_branches, train_scan, train_vectors
from paper_tables.runner import Row, Table, main, recalls


def train_on_vectors(method: str) -> Command:
    return train_vectors("coco", "w2v", method)


TEST = evaluate(data_name="f30k_vgg_precomp")
TEST_REGIONS = evaluate(data_name="f30k_precomp")
# Label, commands; R@5, R@10 from image to text, from text to image.
# fmt: off
ROWS = (
    ("Emb. Network (VGG+w2v)", (train_branches("coco", "w2v", "embedding_network"), TEST),
     (33.7, 45.5, 8.4, 12.2)),
    ("MSE (VGG+w2v)", (train_on_vectors("mse"), TEST),
     (43.6, 56.9, 24.3, 34.2)),
    ("SCAN (ResNet+GRU)", (train_scan("coco", "scan_t2i"), TEST_REGIONS),
     (73.7, 82.6, 61.3, 72.4)),
    ("jWAE-MSE (VGG+w2v)", (train_on_vectors("jwae_mse"), TEST),
     (48.5, 60.0, 29.1, 40.7)),
    ("jWAE-MH (VGG+w2v)", (train_on_vectors("jwae_mh_vectors"), TEST),
     (51.1, 63.3, 37.0, 49.1)),
    ("jWAE-MH+SCAN (ResNet+GRU)", (train_scan("coco", "jwae_mh_scan"), TEST_REGIONS),
     (80.0, 87.0, 66.7, 75.9)),
)
# fmt: on
TABLE = Table(
    "jwae Table 6: COCO (train) to Flickr30K (test)",
    (recalls("full", ks=(5, 10)),),
    tuple(Row(label, numbers, (commands,)) for label, commands, numbers in ROWS),
    notes=("The paper does not say which attention SCAN has. Ours attends from text to image.",),
)

if __name__ == "__main__":
    main(TABLE)
