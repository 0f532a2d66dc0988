"""Split COCO as `dmsm` 4.1: val2014 is divided evenly into dev and test.

    python -m paper_tables.coco_halves --data_path D

Reads D/coco. Writes D/coco_halves/dataset_coco_halves.json in Karpathy's layout, and a link to the
photos beside it. The paper does not say which image of val2014 goes to which set; here a fixed
random seed decides. All of COCO gives 82,783 images for training, 20,252 for dev and 20,252 for
test.
"""

import os
from collections import Counter
from operator import itemgetter

import numpy as np

import utils
from utils import Arguments, filename, need, output, read_coco, refusing, save_json


def read_images(annotations: str, part: str) -> list[dict]:
    """Read the images of captions_{part}.json in Karpathy's layout, without their splits."""
    path = need(
        os.path.join(annotations, f"captions_{part}.json"),
        "put COCO's captions (annotations_trainval2014.zip) there",
    )
    coco = read_coco(path)
    images = []
    with refusing(f"{path} is not a file of COCO's captions, or lacks a field", "fetch it again"):
        for number, captions in sorted(coco.imgToAnns.items()):
            sentences = []
            for caption in sorted(captions, key=itemgetter("id")):
                text = caption["caption"].replace("\n", " ").strip()
                sentences.append({"sentid": caption["id"], "raw": text})
            image = {
                "cocoid": number,
                "filepath": part,
                "filename": coco.imgs[number]["file_name"],
                "sentences": sentences,
            }
            images.append(image)
    return images


def divide_images(images: list[dict], splits: list[str]) -> list[dict]:
    """Assign images to splits of equal sizes at random."""
    numbers = np.random.default_rng(0).permutation(len(images)) % len(splits)
    return [{**image, "split": splits[k]} for image, k in zip(images, numbers)]


def write_halves(data_path: str) -> None:
    """Write the layout, and say how many images each split has."""
    annotations = os.path.join(data_path, "coco", "annotations")
    folder = os.path.join(data_path, "coco_halves")
    images = divide_images(read_images(annotations, "train2014"), ["train"])
    images += divide_images(read_images(annotations, "val2014"), ["val", "test"])

    os.makedirs(folder, exist_ok=True)
    link = os.path.join(folder, "images")
    if not os.path.lexists(link):
        os.symlink(os.path.join("..", "coco", "images"), link)
    content = {"dataset": "coco_halves", "images": images}
    save_json(content, output(os.path.join(folder, "dataset_coco_halves.json")))

    counts = Counter(image["split"] for image in images)
    print(
        f"{folder}: {counts['train']:,} images to train on, {counts['val']:,} dev, "
        f"{counts['test']:,} test"
    )


def main(argv=None) -> None:
    p = Arguments(__doc__.splitlines()[0])
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds coco/")
    utils.run(p.prog, write_halves, p.parse_args(argv).data_path)


if __name__ == "__main__":
    main()
