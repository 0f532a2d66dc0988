"""The import of torchvision, which reads, crops and scales photos."""
import sys

import torch


def import_torchvision():
    """Import torchvision, even beside a CPU-only torch, where the compiled part of its wheel cannot load.

    There the import fails at two detection operators that were never registered. Nothing here calls them, so it is
    enough to declare their signatures.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision
