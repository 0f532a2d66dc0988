"""Splits COCO as `dmsm` 4.1 does: train2014 is for training, and val2014 is dealt evenly to a dev
and a test set.

    python -m paper_tables.coco_halves --data_path D

Reads D/coco. Writes D/coco_halves/dataset_coco_halves.json in Karpathy's layout, and puts a link to
the photos beside it. The paper does not say which image of val2014 goes to which set; here a fixed
random seed decides. All of COCO gives 82,783 images for training, 20,252 for dev and 20,252 for
test.
"""
import argparse
import os

import numpy as np

import cli
from cli import Arguments, InputError, filename
from files import output, read_json, save_json


def images(annotations: str, part: str, names: list[str]) -> list[dict]:
    """The images of captions_{part}.json with their captions, dealt at random and evenly to splits
    of these names.

    Returns one entry of Karpathy's layout per image. Raises InputError where the file is missing or
    is not in COCO's layout.
    """
    path = os.path.join(annotations, f"captions_{part}.json")
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}; put COCO's captions "
                         "(annotations_trainval2014.zip) there")
    stored, told = read_json(path), {}
    try:
        for a in sorted(stored["annotations"], key=lambda a: a["id"]):
            told.setdefault(a["image_id"],
                            []).append({"sentid": a["id"],
                                        "raw": a["caption"].replace("\n", " ").strip()})
        found = [
            {
                "cocoid": i["id"],
                "filepath": part,
                "filename": i["file_name"],
                "sentences": told[i["id"]],
            }
            for i in sorted(stored["images"], key=lambda i: i["id"])
            if i["id"] in told
        ]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not in COCO's layout (images, annotations with image_id and "
                         f"caption): {error!r}; fetch it again") from error
    dealt = np.random.default_rng(0).permutation(len(found)) % len(names)
    return [{**image, "split": names[k]} for image, k in zip(found, dealt)]


def write(data_path: str) -> None:
    source, folder = os.path.join(data_path, "coco"), os.path.join(data_path, "coco_halves")
    annotations, photos = os.path.join(source, "annotations"), os.path.join(folder, "images")
    found = images(annotations, "train2014", ["train"]) + images(
        annotations, "val2014", ["val", "test"]
    )
    os.makedirs(folder, exist_ok=True)
    if not os.path.lexists(photos):
        os.symlink(os.path.join("..", "coco", "images"), photos)
    path = os.path.join(folder, "dataset_coco_halves.json")
    save_json({"dataset": "coco_halves", "images": found}, output(path))
    counts = [sum(image["split"] == name for image in found) for name in ("train", "val", "test")]
    print("{}: {:,} images to train on, {:,} dev, {:,} test".format(folder, *counts))


def main(argv=None) -> None:
    p = Arguments(__doc__)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds coco/")
    cli.run("coco_halves", write, p.parse_args(argv).data_path)


if __name__ == "__main__":
    main()
