"""Speed and memory of what users wait for: ratios of things that took turns in one run, each beside
its target.

    python benchmark.py [PART ...] [--output FILE.json]

scores      every similarity against one bare matrix product and against a loop of broadcasts; precision of float32
attention   cross-attention of words and regions against a loop over captions, as SCAN's code has it; peak memory
evaluation  the COCO 5K test both ways, against matrix products alone and the originals' sort per query; peak memory
suite       the same test with CxC (text-text is 25,000 x 25,000), folds, PMRP, ECCV and uncertainty; peak memory
confidence  --confidence and --sets beside the same test both ways, against that test alone; peak memory
step        a training step of Gaussians against one of points, and what of it is not the networks
regions     the same of VSRN, SCAN, PVSE and PCME on regions, against the mean of the regions
batches     reading batches from a mapped feature file against the pace of training
extraction  features of photos and of boxes: what of the time is not the network
phrases     phrase localisation in 200 proposals of each of 1,000 photos, and its confidence; peak memory
epoch       an epoch at the size of COCO: VSE++, VSRN, SCAN in each precision; what of it is input; peak memory
precision   scores whose inputs or products have the digits of bf16 or tf32, against float64
search      exact and approximate search in --size drawn Gaussians: time, recall against exact search, peak memory

A time is the least of `--repeats` rounds. On a busy machine OMP_NUM_THREADS=1 makes the ratios
steadier.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import itertools
import math
import os
import tempfile
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import cli
from cli import Arguments, filename, natural, positive, torch_device, up_to
from evaluate import Judgements, assess, parse_args
from evaluation.annotations import Crisscrossed, Pairs, Ratings, cxc_pairs
from evaluation.certainty import Asked, assess_certainty
from evaluation.subjects import Member, Subject
from files.reading import holds_keys
from files.writing import output, save_json
from methods.scan import DIRECTIONS, CrossAttention
from metrics import retrieval_blocks
from similarities import LOG_VAR_BOUNDS, MLS, SIMILARITIES, Embedding
from tests.references import attended, broadcasts, caption_ranks, image_ranks, suited
from timing import Setting, Sizes, cell, in_fresh_process, line, peak, race, records
from timing.epoch import epoch, training
from timing.features import extraction, streamed, streaming_memory
from timing.localisation import phrases
from timing.precision import each, precision
from timing.search import search

SIZES = Sizes()                       # of a training step
DIM = 1024
SCORES = (1000, 5000)                 # images, captions
SLICE = 8                     # images that the loop of broadcasts scores; its time is scaled to all
SAMPLE = (200, 300)                   # images, captions whose precision is measured
EVALUATION = (5000, 25000)            # COCO 5K test
ORIGINAL = 40                         # queries that the originals' loop is timed on
ATTENTION = (1000, 5000, 36)          # images, captions, regions
TIMED_CAPTIONS = (250, 20)           # captions that ours, and the loop, are timed on; scaled to all
# products of words and regions in a block, of which the peak memory is measured
ELEMENTS = (2 ** 18, 2 ** 20, 2 ** 22)
BLOCKS = (1000, 640, 1700)            # images a block: the first is timed, all must agree
REGION_STEP = {"shape": (36, 256), "dim": 256}              # features of an image, D
FILES = {"features": ((20000, 2048), np.float32), "regions": ((2000, 36, 512), np.float16)}
SUITE = ["--cxc", "--pmrp", "--eccv", "--fold5", "--uncertainty", "--no-control"]
# images, captions that are calibrated on; the first has a target
CALIBRATED = ((1000, 5000), (5000, 25000))
COMPARED = {**SIMILARITIES, "mls": MLS}
BROADCAST = ("order", "elk", "bhattacharyya")       # similarities that do not separate
# targets of speed, beside the product and beside the loop
AIMS = {**dict.fromkeys(("kl", "kl_reverse", "mahalanobis", "wasserstein", "csd"),
                        ("product", "loop")), "mls": ("mls", "loop")}


def pairs(n_images: int, n_captions: int, how: Setting) -> tuple[Embedding, Embedding, np.ndarray]:
    """Gaussians (N, D) and (M, D) and whose each caption is: noisy copies of the images, found half
    of the time."""
    generator, noise = torch.Generator().manual_seed(how.seed), 8.0
    caption_image = np.arange(n_captions) * n_images // n_captions
    fields = []
    for bound in (lambda x: F.normalize(x, dim=1), lambda x: (x / 2).clamp(*LOG_VAR_BOUNDS)):
        truth = torch.randn(n_images, DIM, generator=generator)
        copies = torch.randn(n_captions, DIM,
                             generator=generator).mul_(noise).add_(truth[caption_image])
        fields.append((bound(truth), bound(copies.div_(math.hypot(1, noise)))))
    return *(Embedding(*side).to(how.device) for side in zip(*fields)), caption_image


def error(name: str, dim: int, whole: bool, seed: int) -> float:
    """Largest relative error of float32 scores against the plain formula in float64, variances at
    their bounds: each at its own, or `whole` items at one. Errors of cosine, dot and mls, which
    pass 0, are relative to the largest."""
    generator, made = torch.Generator().manual_seed(seed), []
    for n in SAMPLE:
        high = torch.rand(n, 1 if whole else dim, generator=generator).expand(n, dim) < 0.5
        made.append(Embedding(F.normalize(torch.randn(n, dim, generator=generator), dim=1),
                              torch.where(high, LOG_VAR_BOUNDS[1], LOG_VAR_BOUNDS[0])))
    sides = suited(name, *made)
    exact = broadcasts(name, *(each(e, Tensor.double) for e in sides))
    size = exact.abs().max() if name in ("cosine", "dot", "mls") else exact.abs()
    return ((COMPARED[name]()(*sides) - exact).abs() / size).max().item()


@torch.no_grad()
def scores(how: Setting) -> None:
    n, m = SCORES
    images, captions, _ = pairs(n, m, how)
    print(f"\nscores: {n:,} images x {m:,} captions, D = {DIM:,}; the loop's time is that of "
          f"{SLICE} images, scaled\n  {'':15}{'ms':>8}  "
          f"{'times one product':25}{'times faster than loop':25}times kl")
    for name in COMPARED:
        sides = suited(name, images, captions)
        some = sides[0].rows(slice(SLICE)), sides[1]
        # broadcasts themselves: timed on the slice too
        ours, share = (some, n / SLICE) if name in BROADCAST else (sides, 1)
        runs = {"product": lambda: images.mean @ captions.mean.T,
                "own": partial(COMPARED[name](), *ours), "loop": partial(broadcasts, name, *some)}
        if name == "minkl":
            runs["kl"] = partial(SIMILARITIES["kl"](), *sides)
        best = race(runs, how)
        own, aims = best["own"] * share, AIMS.get(name, (None, None))
        row = (cell(f"{name} / product", own / best["product"], ".2f", aims[0])
               + cell(f"loop / {name}", best["loop"] * n / SLICE / own, ".1f", aims[1]))
        if name == "minkl":
            row += cell("minkl / kl", own / best["kl"], ".2f", "minkl")
        print(f"  {name:15}{1000 * own:8.0f}{row}".rstrip(), flush=True)
    columns = {f"{'whole items' if whole else 'each its own'}, D = {dim}": (dim, whole)
               for whole in (False, True) for dim in (1024, 2048)}
    print(f"\n  largest relative error of float32, {SAMPLE[0]} x {SAMPLE[1]}, variances at both "
          f"bounds\n  {'':15}" + "".join(f"  {title:24}" for title in columns))
    for name in COMPARED:
        row = [cell(f"{name} error, {t}", error(name, *c, how.seed), ".1e", "error") for t,
               c in columns.items()]
        print(f"  {name:15}{''.join(row)}".rstrip(), flush=True)


def attention_sides(captions: int, how: Setting) -> tuple[Embedding, Embedding]:
    """Images of regions and captions of words: unit vectors, of which each item has its own number.
    """
    n, _, regions = ATTENTION
    sides = []
    for k, (count, least, most) in enumerate(((n, regions, regions), (captions, *SIZES.lengths))):
        generator = torch.Generator().manual_seed(how.seed + k)
        parts = F.normalize(torch.randn(count, most, DIM, generator=generator), dim=2)
        real = torch.randint(least, most + 1, (count,), generator=generator)
        sides.append(Embedding(parts.mean(1), None, parts, real).to(how.device))
    return sides[0], sides[1]


@torch.no_grad()
def attention_memory(elements: int, how: Setting) -> float:
    """MiB that a tile of the scores takes at its peak beyond the embeddings."""
    images, captions = attention_sides(TIMED_CAPTIONS[0], how)
    similarity = CrossAttention(elements=elements)
    similarity(images.rows(slice(8)), captions.rows(slice(8)))                      # warms up
    return peak(lambda: similarity(images, captions), how.device)


@torch.no_grad()
def attention(how: Setting) -> None:
    (n, m, regions), (own, few), most = ATTENTION, TIMED_CAPTIONS, SIZES.lengths[1]
    images, captions = attention_sides(own, how)
    print(f"\nattention: {n:,} images of {regions} regions x {m:,} captions of {SIZES.lengths[0]} "
          f"to {most} words, D = {DIM:,};\n  timed on {own} captions, the loop on {few}, scaled to "
          "all", flush=True)
    some = captions.rows(slice(few))
    flat = images.parts.flatten(0, 1), some.parts.flatten(0, 1)               # (N P, D), (few T, D)
    for direction in DIRECTIONS:
        similarity = CrossAttention(direction)
        loop = partial(attended, direction, images, some)
        best = race({"own": partial(similarity, images, captions),
                     "product": lambda: flat[0] @ flat[1].T, "loop": loop}, how)
        ours, loop_time = best["own"] * m / own, best["loop"] * m / few
        product = best["product"] * m / few * float(some.n_parts.float().mean()) / most
        line(f"{direction}: seconds", ours, ".1f")
        line(f"{direction}: ours / products of all words and regions, which it needs",
             ours / product, ".2f")
        line(f"{direction}: loop / ours", loop_time / ours, ".1f", "attention")
        line(f"{direction}: largest difference of the scores",
             (similarity(images, some) - loop()).abs().max(), ".1e", "error")
    for elements in ELEMENTS:
        kind = "attention memory" if elements == 2 ** 20 else None            # the default on a CPU
        line(f"t2i: peak memory beyond the embeddings in blocks of {elements:,}, MiB",
             in_fresh_process(attention_memory, elements, how), ".0f", kind)


def evaluation_memory(name: str, how: Setting) -> float:
    """MiB that an evaluation takes at its peak beyond the embeddings."""
    images, captions, caption_image = pairs(*EVALUATION, how)
    similarity = SIMILARITIES[name]()
    retrieval_blocks(similarity, images.rows(slice(50)), captions.rows(slice(250)),
                     caption_image[:250])                                                 # warms up
    return peak(lambda: retrieval_blocks(similarity, images, captions, caption_image, BLOCKS[0]),
                how.device)


def evaluation(how: Setting) -> None:
    n, m = EVALUATION
    images, captions, caption_image = pairs(n, m, how)
    size = BLOCKS[0] * m // n
    print(f"\nevaluation: {n:,} images x {m:,} captions, D = {DIM:,}, blocks of {BLOCKS[0]:,} x "
          f"{size:,}", flush=True)

    def products(a, b):
        for i, c in itertools.product(a.split(BLOCKS[0]), b.split(size)):
            i @ c.T

    run = {name: partial(retrieval_blocks, SIMILARITIES[name](), images, captions, caption_image)
           for name in ("wasserstein", "cosine")}
    wide = [torch.cat(e[:2], 1) for e in (images, captions)]                      # (N, 2D), (M, 2D)
    best = race({**{name: partial(f, BLOCKS[0]) for name, f in run.items()},
                 2 * DIM: partial(products, *wide),
                 DIM: partial(products, images.mean, captions.mean)}, how)
    for name, width, needed in (("wasserstein", DIM, False), ("wasserstein", 2 * DIM, True),
                                ("cosine", DIM, True)):
        line(f"{name} / products of width {width:,}"
             + (", which it needs" if needed else ", of the embeddings"), best[name] / best[width],
             ".2f", "evaluation" if needed else None)
    means = [e.mean.cpu().double().numpy() for e in (images, captions)]
    spent = race({ranks: partial(ranks, *means, caption_image, ORIGINAL)
                  for ranks in (image_ranks, caption_ranks)}, how, 1)
    slow = (spent[image_ranks] * n + spent[caption_ranks] * m) / ORIGINAL
    line(f"loop of one product and one sort per query ({ORIGINAL}) / cosine", slow / best["cosine"],
         ".1f", "original")
    for name, f in run.items():
        recalls = [[r[side][key] for side in ("i2t", "t2i") for key in ("r1", "r5", "r10")]
                   for r in map(f, BLOCKS)]
        line(f"{name}: recalls equal in blocks of {BLOCKS} (R@1 {recalls[0][0]:.1f}, "
             f"{recalls[0][3]:.1f})", recalls.count(recalls[0]) == len(BLOCKS), "d", "equal")
        line(f"{name}: peak memory beyond the embeddings, MiB",
             in_fresh_process(evaluation_memory, name, how), ".0f", "memory")


def random_subject(n: int, m: int, how: Setting) -> Subject:
    *sides, caption_image = pairs(n, m, how)
    return Subject("random", "wasserstein", caption_image, n,
                   [Member(SIMILARITIES["wasserstein"](), *sides)])


def judged_subject(how: Setting) -> tuple[Subject, Judgements]:
    """Embeddings of the size of the COCO 5K test, and random judgements of about the real
    numbers."""
    n, m = EVALUATION
    subject, rng = random_subject(n, m, how), np.random.default_rng(how.seed)

    def places(first, second, count):
        return rng.integers(first, size=count), rng.integers(second, size=count)

    ratings = {name: Ratings(*places(*counts), 5 * rng.random(counts[-1]) ** 3)
               for name, counts in (("sts", (m, m, 44000)), ("sis", (n, n, 47000)),
                                    ("sits", (m, n, 45000)))}
    codes = rng.random((n, 80)) < 0.04
    some = {"i2t": Pairs.of(*places(1261, m, 22500)), "t2i": Pairs.of(*places(1332, n, 11300))}
    cxc = Crisscrossed(ratings, cxc_pairs(ratings, subject.caption_image, "ucmr"))
    return subject, Judgements(pmrp=codes, eccv=some, cxc=cxc)


def suite_memory(how: Setting) -> float:
    """MiB of the process that the whole suite takes at its peak beyond the embeddings."""
    subject, judged = judged_subject(how)
    return peak(lambda: assess(subject, judged, parse_args(SUITE)), torch.device("cpu"))


def suite(how: Setting) -> None:
    subject, judged = judged_subject(how)
    _, images, captions = subject.members[0]
    print(f"\nsuite: {EVALUATION[0]:,} images x {EVALUATION[1]:,} captions, D = {DIM:,}, "
          "wasserstein: recalls, folds, CxC, PMRP, ECCV, uncertainty", flush=True)
    best = race({"product": lambda: images.mean @ captions.mean.T,
                 "suite": lambda: assess(subject, judged, parse_args(SUITE))}, how, 1)
    line("everything / one product of 5,000 x 25,000 x 1,024", best["suite"] / best["product"],
         ".1f", "suite")
    line("seconds", best["suite"], ".1f")
    line("peak memory beyond embeddings, MiB", in_fresh_process(suite_memory, how), ".0f",
         "suite memory")


def certain(size: tuple, subject: Subject, how: Setting):
    """A function that tells how sure the subject's answers are, calibrated on as many images and
    captions."""
    dev = random_subject(*size, how._replace(seed=how.seed + 1))
    return lambda: assess_certainty(subject, {}, Asked(confidence=True, sets=0.1), lambda: dev)


def confidence_memory(size: tuple, how: Setting) -> float:
    """MiB that confidences and sets take at their peak beyond the embeddings."""
    return peak(certain(size, random_subject(*EVALUATION, how), how), how.device)


def confidence(how: Setting) -> None:
    subject = random_subject(*EVALUATION, how)
    print("\nconfidence: {:,} images x {:,} captions, --confidence --sets 0.1".format(*EVALUATION),
          flush=True)
    runs = {size: certain(size, subject, how) for size in CALIBRATED}
    runs["plain"] = partial(retrieval_blocks, *subject.members[0], subject.caption_image, BLOCKS[0])
    best = race(runs, how, 2)
    line("plain evaluation, seconds", best["plain"], ".1f")
    for size, kinds in zip(CALIBRATED, (("confidence", "memory"), (None, None))):
        title = "calibrated on {:,} x {:,}".format(*size)
        line(f"{title}: seconds beyond the plain evaluation", best[size], ".1f")
        line(f"{title}: with the plain evaluation / that alone", 1 + best[size] / best["plain"],
             ".2f", kinds[0])
        line(f"{title}: peak memory beyond the embeddings, MiB",
             in_fresh_process(confidence_memory, size, how), ".0f", kinds[1])


def steps(title: str, kinds: dict[str, list[str]], sizes: Sizes, how: Setting) -> dict:
    """Time the steps of several models and print their parts: {(kind, part): seconds}."""
    features, (least, most) = " x ".join(map(str, sizes.shape)), sizes.lengths
    print(f"\n{title}: batch of {sizes.pairs}, features of {features}, D = {sizes.dim:,}, {least} "
          f"to {most} words\n  {'ms, each alone':16}{'step':>9}{'networks':>12}"
          f"{'similarity, loss':>20}{'clipping, Adam':>18}", flush=True)
    best = race({(kind, name): run for kind, words in kinds.items()
                 for name, run in training(words, sizes, how).items()}, how)
    for kind in kinds:
        whole, *parts = (
            1000 * best[kind, name] for name in ("step", "networks", "objective", "update")
        )
        print("  {:16}{:9.1f}{:12.1f}{:20.1f}{:18.1f}".format(kind, whole, *parts))
        line(f"{kind}: percent of the step outside the networks", 100 * (parts[1] + parts[2])
             / sum(parts), ".1f")
    return best


def step(how: Setting) -> None:
    kinds = {"point": ["--sim", "cosine"], "gaussian": ["--sim", "wasserstein"]}
    best = steps("step", kinds, SIZES, how)
    line("gaussian (wasserstein) / point (cosine)",
         best["gaussian", "step"] / best["point", "step"], ".2f", "step")


def regions(how: Setting) -> None:
    kinds = {"mean of regions": [], "vsrn": ["--img_enc", "vsrn"],
             "vsrn, gaussian": ["--img_enc", "vsrn", "--sim", "wasserstein"],
             "scan": ["--sim", "scan", "--bi_gru"], "pvse": ["--sim", "mil"],
             "pcme": ["--sim", "match_prob"]}
    compiled = {f"{kind}, compiled": [*kinds[kind], "--compile"] for kind in ("scan", "pcme")}
    kinds.update(compiled)
    best = steps("regions", kinds, SIZES._replace(**REGION_STEP), how)
    for kind in list(kinds)[1:]:
        line(f"{kind} / mean of regions", best[kind, "step"] / best["mean of regions", "step"],
             ".1f")
    for kind in compiled:
        plain = kind.removesuffix(", compiled")
        for part in ("objective", "step"):
            line(f"{kind} / {plain}: {part}", best[kind, part] / best[plain, part], ".2f")


def batches(how: Setting) -> None:
    print(f"\nbatches: of {SIZES.pairs} pairs, five captions per image, in random order, the file "
          "cached", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path, runs, count = {}, {"step": training([], SIZES, how)["step"]}, {}
        for name, (shape, dtype) in FILES.items():
            path[name] = os.path.join(folder, f"{name}.npy")
            array = np.random.default_rng(how.seed).random(shape, np.float32)
            np.save(path[name], array.astype(dtype))
            runs[name], count[name] = streamed(path[name], SIZES, how.seed)
        best = race(runs, how)
        pace = SIZES.pairs / best["step"]
        line("a training step of points, captions a second", pace, ".0f")
        for name, (shape, dtype) in FILES.items():
            own, mapped = in_fresh_process(streaming_memory, path[name], SIZES, how.seed)
            line(f"{name} {shape} {np.dtype(dtype)}, captions a second", count[name] / best[name],
                 ".0f")
            line(f"{name}: as many times the pace of training", count[name] / best[name] / pace,
                 ".1f", "batches")
            line(f"{name}: growth of the process in an epoch, MiB of its own", own, ".0f")
            line(f"{name}: pages of it left mapped, MiB of {os.path.getsize(path[name]) >> 20}",
                 mapped, ".0f")


PARTS = {f.__name__: f for f in (scores, attention, evaluation, suite, confidence, step, regions,
                                 batches, extraction, phrases, epoch, precision, search)}


def main(argv=None) -> None:
    p = Arguments("Measure speed and memory as ratios.")
    p.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    p.add_argument("--repeats", type=positive, default=5, help="rounds in which the things "
                   "compared take turns")
    p.add_argument("--seed", type=natural, default=0, help="of the random embeddings and features")
    p.add_argument("--steps", type=natural, help="steps of the part epoch that are timed; 0: all "
                   "of them (default: 200, on a CPU 2)")
    p.add_argument("--profile", action="store_true", help="part epoch: also the ten most expensive "
                   "kernels")
    p.add_argument("--size", type=up_to(10 ** 8, 1000), default=100000, help="vectors of the part "
                   "search")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto",
                   help="auto: CUDA when present")
    p.add_argument("--output", type=filename, metavar="FILE", help="write all measurements there "
                   "as JSON")
    opt = p.parse_args(argv)
    cli.run("benchmark.py", measure, opt, p)


def measure(opt, p) -> None:
    if opt.output:
        output(opt.output, holds_keys("machine", "repeats", "seed", "measurements"))
    if set(opt.parts) - set(PARTS):
        p.error(f"'{(set(opt.parts) - set(PARTS)).pop()}' is no part; the parts are "
                f"{', '.join(PARTS)}")
    how = Setting(opt.repeats, opt.seed, torch_device(opt.device), opt.size, opt.steps, opt.profile)
    machine = (f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} "
               f"threads, {how.device}")
    print(machine, flush=True)
    for part in opt.parts or PARTS:
        PARTS[part](how)
    verdicts = [record["ok"] for record in records if record["ok"] is not None]
    print(f"\n{verdicts.count(False)} of {len(verdicts)} targets missed")
    if opt.output:
        save_json({"machine": machine, "repeats": opt.repeats, "seed": opt.seed,
                   "measurements": records}, opt.output)


if __name__ == "__main__":
    main()
