"""`dmsm` Table 1: harmonic and arithmetic mean of best ranks on COCO, for deep multimodal
similarity models and DeViSE.

Needs COCO's photos and annotations in D/coco, and torchvision's VGG-19 weights. The command deals
val2014 evenly to a dev and a test set (coco_halves.py) and extracts features.

    python -m paper_tables.dmsm_table1 --data_path D
"""
from paper_tables.common import Columns, Row, Run, Table, main


def dmsm(fc: int, image: str, text: str) -> tuple[Run]:
    """The run of one DMSM row. `fc`: the VGG-19 layer that gives the image features, 6 or 7.
    `image`, `text`: sizes of the trained layers as the paper prints them; the last one is the
    embedding."""
    img_layers, txt_layers = (sizes.removesuffix("-300") for sizes in (image, text))
    return (Run(f"coco halves{' fc6' * (fc == 6)}", f"dmsm --img_layers {img_layers} --txt_layers "
                f"{txt_layers}"),)


TABLE = Table(
    "dmsm Table 1: best ranks of an image's captions, lower is better",
    (
        Columns(
            "", (("", tuple((name.upper(), f"best_ranks/i2t/{name}") for name in ("hbr", "abr"))),)
        ),
    ),
    (
        Row("random", (1996.7, 20457.1)),
        Row(
            "DeViSE: FC7, 300 | 300",
            (37.2, 1944.8),
            (Run("coco halves", "devise --word_dim 300", text="own"),),
        ),
        Row("FC6, 1000-300 | 1000-300", (33.8, 1331.1), dmsm(6, "1000-300", "1000-300")),
        Row(
            "FC6, 1000-500-300 | 100-500-300",
            (33.7, 1399.4),
            dmsm(6, "1000-500-300", "1000-500-300"),
        ),
        Row(
            "FC6, 1000-500-300 | 4000-1000-500-300-300",
            (27.3, 1190.3),
            dmsm(6, "1000-500-300", "4000-1000-500-300-300"),
        ),
        Row(
            "FC6, 1000-500-300 | 4000-2000-1000-500-300-300",
            (26.4, 1159.4),
            dmsm(6, "1000-500-300", "4000-2000-1000-500-300-300"),
        ),
        Row(
            "FC7, 2000-1000-300 | 4000-2000-1000-500-300",
            (21.6, 938.7),
            dmsm(7, "2000-1000-300", "4000-2000-1000-500-300"),
        ),
        Row(
            "FC7, 1000-500-300 | 4000-2000-1000-500-300-300",
            (24.4, 1069.8),
            dmsm(7, "1000-500-300", "4000-2000-1000-500-300-300"),
        ),
    ),
    f8k=True,
    notes=(
        "A label names the pretrained image layer, the trained image layers and, "
        "behind |, the trained text layers.",
        "The row random is published only, and it is not uniform. Uniform ranks of 5 among 101,260 "
        "captions give an HBR of about 2,027 and an ABR of about 16,877.",
        "We take 100-500-300 for 1000-500-300. The HBR on the dev set chooses the epoch.",
        "Section 3.1 takes fc7 of a network that was fine-tuned on the words of captions "
        "(features.word_cnn does that). Section 4.2 takes fc7 of a network that saw ImageNet only, "
        "and so do we.",
        "Section 3.2 has a convolution over words, "
        "and section 5 says that their order is ignored. Ours has the convolution.",
        "Gradients are clipped at a norm of 2, which section 3 does not say.",
        "The paper prints neither loss nor optimiser of DeViSE. Ours has DMSM's loss, "
        "Adam, and features of unit norm.",
    ),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
