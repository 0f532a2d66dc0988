"""Split COCO as `dmsm` 4.1: val2014 is divided evenly into dev and test.

    python -m paper_tables.coco_halves --data_path D

Reads D/coco. Writes D/coco_halves/dataset_coco_halves.json in Karpathy's layout, and a link to the photos beside it.
The paper does not say which image of val2014 goes to which set; here a fixed random seed decides. All of COCO gives
82,783 images for training, 20,252 for dev and 20,252 for test.
"""

import os

import numpy as np

import cli
from cli import Arguments, filename
from files import need, output, read_coco, refusing, save_json


def divide_images(annotations: str, part: str, splits: list[str]) -> list[dict]:
    """Deal the images of captions_{part}.json to the splits, in Karpathy's layout."""
    path = need(
        os.path.join(annotations, f"captions_{part}.json"),
        "put COCO's captions (annotations_trainval2014.zip) there",
    )
    coco, images = read_coco(path), []
    with refusing(f"{path} is not a file of COCO's captions, or lacks a field", "fetch it again"):
        for number, captions in sorted(coco.imgToAnns.items()):
            sentences = [
                {"sentid": a["id"], "raw": a["caption"].replace("\n", " ").strip()}
                for a in sorted(captions, key=lambda a: a["id"])
            ]
            images.append(
                {
                    "cocoid": number,
                    "filepath": part,
                    "filename": coco.imgs[number]["file_name"],
                    "sentences": sentences,
                }
            )
    numbers = np.random.default_rng(0).permutation(len(images)) % len(splits)
    return [{**image, "split": splits[k]} for image, k in zip(images, numbers)]


def write_halves(data_path: str) -> None:
    annotations, folder = (
        os.path.join(data_path, "coco", "annotations"),
        os.path.join(data_path, "coco_halves"),
    )
    images = divide_images(annotations, "train2014", ["train"]) + divide_images(
        annotations, "val2014", ["val", "test"]
    )
    os.makedirs(folder, exist_ok=True)
    if not os.path.lexists(os.path.join(folder, "images")):
        os.symlink(os.path.join("..", "coco", "images"), os.path.join(folder, "images"))
    save_json(
        {"dataset": "coco_halves", "images": images},
        output(os.path.join(folder, "dataset_coco_halves.json")),
    )
    counts = [sum(image["split"] == name for image in images) for name in ("train", "val", "test")]
    print("{}: {:,} images to train on, {:,} dev, {:,} test".format(folder, *counts))


def main(argv=None) -> None:
    p = Arguments(__doc__.splitlines()[0])
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds coco/")
    cli.run(p.prog, write_halves, p.parse_args(argv).data_path)


if __name__ == "__main__":
    main()
