"""How fast features of photos are extracted, how much of the time is not the network's, and how
fast feature files are read. benchmark.py shows it."""
import contextlib
import io
import os
import tempfile

import numpy as np
from PIL import Image

from data import Split, pair_batches
from features import regions
from features.folder import find_photos
from features.networks import compute, network, region_network
from features.store import ALL, How, PhotoFeatures, RowStore, by_cores
from files.entities import Entities
from files.phrases import Proposals
from inputs import Features, Photos, Tokens, chunks, eval_transform, image_batches
from text import SPECIALS
from timing import MIB, percent_outside, race, resident, rounds

SIZE = (500, 375)                     # width and height of a photo, as most of COCO's and Flickr's
WORDS = 10000                         # in the vocabulary of streamed captions
BATCH = 8                             # photos per step, as features.extract takes on a CPU
PROPOSALS = 200                       # boxes in each of them


def write_photos(folder: str, count: int, seed: int) -> list[str]:
    """Write JPEGs of smooth random colours, about as large as real photos, and return their
    paths."""
    rng = np.random.default_rng(seed)
    for n in range(count):
        coarse = Image.fromarray(
            rng.integers(0, 256, (SIZE[1] // 4, SIZE[0] // 4, 3)).astype(np.uint8))
        coarse.resize(SIZE, Image.Resampling.BICUBIC).save(
            os.path.join(folder, f"{n:04}.jpg"), quality=90)
    return [os.path.join(folder, name) for name in find_photos(folder)[0]]


def extraction_times(count: int, workers: int, repeats: int, seed: int, device):
    """Yield (name, value, format, target) of the extraction of `count` photos by resnet18 with
    random weights.

    The network's own time is that of the same photos, decoded before. What a whole extraction takes
    beyond it is reading, decoding, moving between processes, and writing.
    """
    net = network("resnet18", pretrained=False)[0].to(device)
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "photos"))
        paths = write_photos(os.path.join(folder, "photos"), count, seed)
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
            compute(work, images, net, eval_transform(), None, How(device, BATCH, workers, False))
            work.commit(lambda sound: None)

        seconds = rounds({"network": alone, "whole": whole,
                          "decoding": lambda: list(image_batches(images, BATCH))}, repeats, device)
        last = store(f"{ALL}0")
        again = race({"again": last.complete}, repeats, device)["again"]
        assert last.complete() and len(decoded) == len(chunks(paths, BATCH))
    yield "photos a second", count / min(seconds["whole"]), ".1f", None
    yield ("decoding in this process: milliseconds a photo",
           1000 * min(seconds["decoding"]) / count, ".1f", None)
    yield (f"percent of the time outside the network, {workers} workers",
           percent_outside(seconds), ".1f", "extraction")
    yield "a call that finds nothing to do: milliseconds a photo", 1000 * again / count, ".3f", None


def epoch(path: str, batch: int, lengths: tuple[int, int], seed: int):
    """A function that streams one epoch of batches of so many pairs, five captions an image, from a
    feature file; and the number of its captions. lengths: words of the shortest and of the
    longest."""
    rng, features = np.random.default_rng(seed), Features(path)
    m = 5 * len(features)
    length = rng.integers(*lengths, m, endpoint=True)
    tokens = Tokens([rng.integers(len(SPECIALS), WORDS, n) for n in length], np.zeros(m, bool))
    split, order = Split("train", features, [""] * m, np.arange(m) // 5, path), rng.permutation(m)
    return lambda: sum(len(one.lengths) for one in pair_batches(split, tokens, order, batch)), m


def streaming_memory(path: str, batch: int, lengths: tuple[int, int], seed: int) -> list[float]:
    """MiB by which an epoch makes this process grow: memory of its own, and pages of the mapped
    file."""
    stream, fields = epoch(path, batch, lengths, seed)[0], ("RssAnon", "RssFile")
    before = [resident(field) for field in fields]
    stream()
    return [(resident(field) - start) / MIB for field, start in zip(fields, before)]


def random_proposals(count: int, rng) -> tuple[Entities, Proposals]:
    """PROPOSALS random boxes, at least 8 pixels wide and high, in each of `count` photos of SIZE,
    and no phrases."""
    corner = rng.random((count * PROPOSALS, 2)) * (np.array(SIZE) - 8)
    far = corner + 7 + rng.random(corner.shape) * (np.array(SIZE) - 8 - corner)
    boxes, none = np.concatenate([corner, far], 1).astype(np.float32), np.zeros(0, np.int64)
    photos = Entities([str(n) for n in range(count)], np.tile(SIZE, (count, 1)), [], none, none, [],
                      [], np.zeros((0, 4)), none, {})
    score = np.zeros(len(boxes), np.float32)
    return photos, Proposals(boxes, np.arange(count + 1) * PROPOSALS, score, score > 0, {})


def region_times(count: int, workers: int, repeats: int, seed: int, device):
    """Yield (name, value, format, target) of the features of PROPOSALS boxes in each of `count`
    photos, by resnet18 with random weights. The network's own time is that of the same photos and
    boxes, decoded before, with its RoI pooling."""
    net = region_network("resnet18", None, None, regions.PHOTO_SIDE, pretrained=False)[0]
    encoder, step = (regions.NetworkRegions(net, "timed", regions.PHOTO_SIDE, device),
                     regions.BATCH[device.type])
    entities, proposals = random_proposals(count, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "photos"))
        paths = write_photos(os.path.join(folder, "photos"), count, seed)
        reader = regions.RegionReader(paths, entities.sizes, proposals, encoder.read)
        ready = [[reader(n) for n in some] for some in chunks(range(count), step)]

        def alone():
            list(by_cores(encoder.encode, ready, device))

        def whole():
            rows = RowStore(os.path.join(folder, "rows"), paths, paths, "timed", (net.dim,),
                            np.float16, proposals.start).prepare()
            rows.run(reader, encoder.encode, How(device, step, workers), "timed")
            rows.clean()
        seconds = rounds({"network": alone, "whole": whole}, repeats, device)
    yield f"photos with {PROPOSALS} boxes a second", count / min(seconds["whole"]), ".1f", None
    yield (f"boxes: percent of the time outside the network, {workers} workers",
           percent_outside(seconds), ".1f", "extraction")


def feature_times(*size):
    """What `extraction_times` and `region_times` yield, one after the other."""
    yield from extraction_times(*size)
    yield from region_times(-(-size[0] // 8), *size[1:])    # a photo's boxes take 8 times as long
