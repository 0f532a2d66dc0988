"""Has the name of a module of ours, and imports a package that reads annotations."""

from pycocotools.coco import COCO


def open_annotations(path):
    return COCO(path)
