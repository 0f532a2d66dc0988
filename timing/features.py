"""How fast features of photos are extracted, how much of the time is not the network's, and how
fast feature files are read. benchmark.py shows it."""
import contextlib
import io
import os
import tempfile

import numpy as np
from PIL import Image

from data import pair_batches
from features import regions
from features.folder import find_photos
from features.networks import compute, network, region_network
from features.store import ALL, How, PhotoFeatures, RowStore, by_cores
from files.phrases import Proposals
from inputs import Photos, chunks, eval_transform, image_batches
from timing import MIB, Setting, Sizes, line, percent_outside, race, resident, rounds
from timing.epoch import random_captions

EXTRACTED, WORKERS = 480, 2           # photos, processes that read them
SIZE = (500, 375)                     # width and height of a photo, as most of COCO's and Flickr's
BATCH = 8                             # photos per step, as features.extract takes on a CPU
PROPOSALS = 200                       # boxes in each of them


def write_photos(folder: str, count: int, seed: int) -> list[str]:
    """Write JPEGs of smooth random colours, about as large as real photos, into photos/ of a
    folder, and return their paths."""
    rng, folder = np.random.default_rng(seed), os.path.join(folder, "photos")
    os.mkdir(folder)
    for n in range(count):
        coarse = Image.fromarray(
            rng.integers(0, 256, (SIZE[1] // 4, SIZE[0] // 4, 3)).astype(np.uint8))
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(
            os.path.join(folder, f"{n:04}.jpg"), quality=90)
    return [os.path.join(folder, name) for name in find_photos(folder)[0]]


def extraction(how: Setting) -> None:
    """Features of photos and of boxes, by resnet18 with random weights.

    The network's own time is that of the same photos, decoded before. What a whole extraction takes
    beyond it is reading, decoding, moving between processes, and writing.
    """
    print(f"\nextraction: {EXTRACTED} photos of 500 x 375 by resnet18, read by {WORKERS} processes",
          flush=True)
    photo_times(EXTRACTED, how)
    region_times(-(-EXTRACTED // 8), how)                   # a photo's boxes take 8 times as long


def photo_times(count: int, how: Setting) -> None:
    device = how.device
    net = network("resnet18", pretrained=False)[0].to(device)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(folder, count, how.seed)
        images, runs = Photos(paths), iter(range(10 ** 6))
        decoded = list(image_batches(images, BATCH))

        def alone():
            list(by_cores(lambda photos: net(photos.to(device)).cpu(), decoded, device))

        def store(name: str) -> PhotoFeatures:
            return PhotoFeatures(folder, name, paths, paths, "timed", (net.dim,), np.float32)

        def whole():
            work = store(f"{ALL}{next(runs)}")
            with contextlib.redirect_stdout(io.StringIO()):
                work.prepare()
            compute(work, images, net, eval_transform(), None, How(device, BATCH, WORKERS, False))
            work.commit(lambda sound: None)

        seconds = rounds({"network": alone, "whole": whole,
                          "decoding": lambda: list(image_batches(images, BATCH))}, how)
        last = store(f"{ALL}0")
        again = race({"again": last.complete}, how)["again"]
        assert last.complete() and len(decoded) == len(chunks(paths, BATCH))
    line("photos a second", count / min(seconds["whole"]), ".1f")
    line("decoding in this process: milliseconds a photo",
         1000 * min(seconds["decoding"]) / count, ".1f")
    line(f"percent of the time outside the network, {WORKERS} workers", percent_outside(seconds),
         ".1f", "extraction")
    line("a call that finds nothing to do: milliseconds a photo", 1000 * again / count, ".3f")


def streamed(path: str, sizes: Sizes, seed: int):
    """A function that streams one epoch of batches, five captions an image, from a feature file;
    and the number of its captions."""
    split, tokens = random_captions(path, sizes, seed)
    order = np.random.default_rng(seed).permutation(len(split.captions))
    return lambda: sum(len(one.lengths) for one in pair_batches(split, tokens, order, sizes.pairs)
                       ), len(order)


def streaming_memory(path: str, sizes: Sizes, seed: int) -> list[float]:
    """MiB by which an epoch makes this process grow: memory of its own, and pages of the mapped
    file."""
    stream, fields = streamed(path, sizes, seed)[0], ("RssAnon", "RssFile")
    before = [resident(field) for field in fields]
    stream()
    return [(resident(field) - start) / MIB for field, start in zip(fields, before)]


def random_proposals(count: int, rng) -> Proposals:
    """PROPOSALS random boxes, at least 8 pixels wide and high, in each of `count` photos of
    SIZE."""
    corner = rng.random((count * PROPOSALS, 2)) * (np.array(SIZE) - 8)
    far = corner + 7 + rng.random(corner.shape) * (np.array(SIZE) - 8 - corner)
    score = np.zeros(len(corner), np.float32)
    boxes = np.concatenate([corner, far], 1).astype(np.float32)
    return Proposals(boxes, np.arange(count + 1) * PROPOSALS, score, score > 0, {})


def region_times(count: int, how: Setting) -> None:
    """The features of PROPOSALS boxes in each of `count` photos; the network's own time has its RoI
    pooling."""
    device, side = how.device, regions.PHOTO_SIDE
    net = region_network("resnet18", None, None, side, pretrained=False)[0]
    encoder, step = regions.NetworkRegions(net, "timed", side, device), regions.BATCH[device.type]
    proposals = random_proposals(count, np.random.default_rng(how.seed))
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(folder, count, how.seed)
        reader = regions.RegionReader(paths, np.tile(SIZE, (count, 1)), proposals, encoder.read)
        ready = [[reader(n) for n in some] for some in chunks(range(count), step)]

        def alone():
            list(by_cores(encoder.encode, ready, device))

        def whole():
            rows = RowStore(os.path.join(folder, "rows"), paths, paths, "timed", (net.dim,),
                            np.float16, proposals.start).prepare()
            rows.run(reader, encoder.encode, How(device, step, WORKERS), "timed")
            rows.clean()
        seconds = rounds({"network": alone, "whole": whole}, how)
    line(f"photos with {PROPOSALS} boxes a second", count / min(seconds["whole"]), ".1f")
    line(f"boxes: percent of the time outside the network, {WORKERS} workers",
         percent_outside(seconds), ".1f", "extraction")
