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
scale       a training step in two processes against one with two threads; bytes that GPUs would move
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
from timing import epoch as epoch_timing
from timing import in_fresh_process, peak, race
from timing import scale as scale_timing
from timing.epoch import training
from timing.features import epoch as streamed
from timing.features import feature_times, streaming_memory
from timing.localisation import localisation_times
from timing.precision import score_precision
from timing.search import LEAST, MOST, search_times

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
BATCH, FEATURES, WORDS, LENGTHS = 128, 2048, 10000, (8, 20)
REGION_STEP = ((36, 256), 256)        # features of an image, D
FILES = {"features": ((20000, 2048), np.float32), "regions": ((2000, 36, 512), np.float16)}
SUITE = ["--cxc", "--pmrp", "--eccv", "--fold5", "--uncertainty", "--no-control"]
EXTRACTED = 480, 2                    # photos, processes that read them
# photos, proposals of each, phrases of all, D: the test of Flickr30k Entities
PHRASES = (1000, 200, 14500, 512)
# images, captions that are calibrated on; the first has a target
CALIBRATED = ((1000, 5000), (5000, 25000))
COMPARED = {**SIMILARITIES, "mls": MLS}
BROADCAST = ("order", "elk", "bhattacharyya")       # similarities that do not separate
# targets of speed, beside the product and beside the loop
AIMS = {**dict.fromkeys(("kl", "kl_reverse", "mahalanobis", "wasserstein", "csd"),
                        ("product", "loop")), "mls": ("mls", "loop")}
AT_MOST = {"product": 2.5, "mls": 1.6, "minkl": 2.0, "error": 1e-5, "evaluation": 1.5,
           "memory": 600, "suite": 25, "suite memory": 1229, "confidence": 4.0, "step": 2.2,
           "attention memory": 150, "extraction": 15, "phrases": 10, "phrases memory": 1024,
           **epoch_timing.MOST, **scale_timing.MOST, **MOST}
AT_LEAST = {"loop": 40, "batches": 20, "equal": 1, "original": 8, "attention": 4, **LEAST}
records: list[dict] = []              # every measurement of this run


def cell(name: str, value: float, form: str, kind: str | None = None) -> str:
    """A value, the target that its kind has and whether it is met, as text of one width; kept for
    --output."""
    most, least = AT_MOST.get(kind), AT_LEAST.get(kind)
    ok = None if most is least is None else bool(value <= most if least is None else value >= least)
    records.append({"name": name, "value": float(value), "at_most": most, "at_least": least,
                    "ok": ok})
    target = "" if ok is None else f"<= {most:g}" if least is None else f">= {least:g}"
    return f"{value:>8{form}} {target:9}{'' if ok is None else 'ok' if ok else 'MISSED':8}"


def line(name: str, value: float, form: str, kind: str | None = None) -> None:
    print(f"  {name:84}{cell(name, value, form, kind)}".rstrip(), flush=True)


def pairs(
    n_images: int, n_captions: int, seed: int, device
) -> tuple[Embedding, Embedding, np.ndarray]:
    """Gaussians (N, D) and (M, D) and whose each caption is: noisy copies of the images, found half
    of the time."""
    generator, noise = torch.Generator().manual_seed(seed), 8.0
    caption_image = np.arange(n_captions) * n_images // n_captions
    fields = []
    for bound in (lambda x: F.normalize(x, dim=1), lambda x: (x / 2).clamp(*LOG_VAR_BOUNDS)):
        truth = torch.randn(n_images, DIM, generator=generator)
        copies = torch.randn(n_captions, DIM,
                             generator=generator).mul_(noise).add_(truth[caption_image])
        fields.append((bound(truth).to(device),
                       bound(copies.div_(math.hypot(1, noise))).to(device)))
    return *(Embedding(*side) for side in zip(*fields)), caption_image


def error(name: str, dim: int, whole: bool, seed: int) -> float:
    """Largest relative error of float32 scores against the plain formula in float64, variances at
    their bounds: each at its own, or `whole` items at one. Errors of cosine, dot and mls, which
    pass 0, are relative to the largest."""
    generator, made = torch.Generator().manual_seed(seed), []
    for n in SAMPLE:
        high = torch.rand(n, 1 if whole else dim, generator=generator).expand(n, dim) < 0.5
        made.append(Embedding(F.normalize(torch.randn(n, dim, generator=generator), dim=1),
                              torch.where(high, LOG_VAR_BOUNDS[1], LOG_VAR_BOUNDS[0])))
    images, captions = suited(name, *made)
    exact = broadcasts(name,
                       *(Embedding(*(None if x is None else x.double() for x in e))
                         for e in (images, captions)))
    scale = exact.abs().max() if name in ("cosine", "dot", "mls") else exact.abs()
    return ((COMPARED[name]()(images, captions) - exact).abs() / scale).max().item()


def scores(opt, device) -> None:
    n, m = SCORES
    made = pairs(n, m, opt.seed, device)[:2]
    print(f"\nscores: {n:,} images x {m:,} captions, D = {DIM:,}; the loop's time is that of "
          f"{SLICE} images, scaled\n  {'':15}{'ms':>8}  "
          f"{'times one product':25}{'times faster than loop':25}times kl")
    for name in COMPARED:
        # broadcasts themselves: timed on the slice too
        scale = n / SLICE if name in BROADCAST else 1
        i, captions = suited(name, *made)
        with torch.no_grad():
            best = race({"product": lambda: made[0].mean @ made[1].mean.T,
                         "own": partial(COMPARED[name](), i if scale == 1 else i.rows(slice(SLICE)),
                                        captions),
                         "loop": partial(broadcasts, name, i.rows(slice(SLICE)), captions),
                         **({"kl": partial(SIMILARITIES["kl"](), i, captions)} if name == "minkl"
                            else {})}, opt.repeats, device)
        own, aims = best["own"] * scale, AIMS.get(name, (None, None))
        row = (cell(f"{name} / product", own / best["product"], ".2f", aims[0])
               + cell(f"loop / {name}", best["loop"] * n / SLICE / own, ".1f", aims[1])
               + (cell("minkl / kl", own / best["kl"], ".2f", "minkl") if name == "minkl" else ""))
        print(f"  {name:15}{1000 * own:8.0f}{row}".rstrip(), flush=True)
    columns = {f"{'whole items' if whole else 'each its own'}, D = {dim}": (dim, whole)
               for whole in (False, True) for dim in (1024, 2048)}
    print(f"\n  largest relative error of float32, {SAMPLE[0]} x {SAMPLE[1]}, variances at both "
          f"bounds\n  {'':15}" + "".join(f"  {title:24}" for title in columns))
    for name in COMPARED:
        row = [cell(f"{name} error, {t}", error(name, *c, opt.seed), ".1e", "error") for t,
               c in columns.items()]
        print(f"  {name:15}{''.join(row)}".rstrip(), flush=True)


def parts_of(n: int, seed: int, device, most: int, least: int) -> Embedding:
    """n items of `least` to `most` unit vectors (n, most, D)."""
    generator = torch.Generator().manual_seed(seed)
    parts = F.normalize(torch.randn(n, most, DIM, generator=generator), dim=2).to(device)
    return Embedding(parts.mean(1), None, parts,
                     torch.randint(least, most + 1, (n,), generator=generator).to(device))


def attention_sides(captions: int, seed: int, device) -> tuple[Embedding, Embedding]:
    n, _, regions = ATTENTION
    return parts_of(n, seed, device, regions, regions), parts_of(
        captions, seed + 1, device, LENGTHS[1], LENGTHS[0]
    )


def attention_memory(elements: int, seed: int, device) -> float:
    """MiB that a tile of the scores takes at its peak beyond the embeddings."""
    images, captions = attention_sides(TIMED_CAPTIONS[0], seed, device)
    similarity = CrossAttention(elements=elements)
    with torch.no_grad():
        similarity(images.rows(slice(8)), captions.rows(slice(8)))                  # warms up
        return peak(lambda: similarity(images, captions), device)


def attention(opt, device) -> None:
    (n, m, regions), (own, few) = ATTENTION, TIMED_CAPTIONS
    images, captions = attention_sides(own, opt.seed, device)
    print(f"\nattention: {n:,} images of {regions} regions x {m:,} captions of {LENGTHS[0]} to "
          f"{LENGTHS[1]} words, D = {DIM:,};\n  timed on {own} captions, the loop on {few}, "
          "scaled to all", flush=True)
    some = captions.rows(slice(few))
    flat = images.parts.flatten(0, 1), some.parts.flatten(0, 1)               # (N P, D), (few T, D)
    for direction in DIRECTIONS:
        similarity = CrossAttention(direction)
        with torch.no_grad():
            best = race({"own": partial(similarity, images, captions), "product": lambda: flat[0]
                         @ flat[1].T, "loop": partial(attended, direction, images, some)},
                        opt.repeats, device)
            difference = (similarity(images, some) - attended(direction, images, some)).abs().max()
        ours, loop_time = best["own"] * m / own, best["loop"] * m / few
        product = best["product"] * m / few * float(some.n_parts.float().mean()) / LENGTHS[1]
        line(f"{direction}: seconds", ours, ".1f")
        line(f"{direction}: ours / products of all words and regions, which it needs",
             ours / product, ".2f")
        line(f"{direction}: loop / ours", loop_time / ours, ".1f", "attention")
        line(f"{direction}: largest difference of the scores", difference, ".1e", "error")
    for elements in ELEMENTS:
        memory = in_fresh_process(attention_memory, elements, opt.seed, device)
        kind = "attention memory" if elements == 2 ** 20 else None            # the default on a CPU
        line(f"t2i: peak memory beyond the embeddings in blocks of {elements:,}, MiB", memory,
             ".0f", kind)


def evaluation_memory(name: str, seed: int, device) -> float:
    """MiB that an evaluation takes at its peak beyond the embeddings."""
    images, captions, caption_image = pairs(*EVALUATION, seed, device)
    similarity = SIMILARITIES[name]()
    retrieval_blocks(similarity, images.rows(slice(50)), captions.rows(slice(250)),
                     caption_image[:250])                                                 # warms up
    return peak(lambda: retrieval_blocks(similarity, images, captions, caption_image, BLOCKS[0]),
                device)


def evaluation(opt, device) -> None:
    n, m = EVALUATION
    images, captions, caption_image = pairs(n, m, opt.seed, device)
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
                 DIM: partial(products, images.mean, captions.mean)}, opt.repeats, device)
    for name, width, needed in (("wasserstein", DIM, False), ("wasserstein", 2 * DIM, True),
                                ("cosine", DIM, True)):
        line(f"{name} / products of width {width:,}"
             + (", which it needs" if needed else ", of the embeddings"), best[name] / best[width],
             ".2f", "evaluation" if needed else None)
    means = [e.mean.cpu().double().numpy() for e in (images, captions)]
    loops = {
        ranks: partial(ranks, *means, caption_image, ORIGINAL)
        for ranks in (image_ranks, caption_ranks)
    }
    spent = race(loops, 1, device)
    slow = (spent[image_ranks] * n + spent[caption_ranks] * m) / ORIGINAL
    line(f"loop of one product and one sort per query ({ORIGINAL}) / cosine", slow / best["cosine"],
         ".1f", "original")
    for name, f in run.items():
        results = [f(block) for block in BLOCKS]
        recalls = [[r[side][key] for side in ("i2t", "t2i") for key in ("r1", "r5", "r10")]
                   for r in results]
        line(f"{name}: recalls equal in blocks of {BLOCKS} (R@1 {recalls[0][0]:.1f}, "
             f"{recalls[0][3]:.1f})", recalls.count(recalls[0]) == len(BLOCKS), "d", "equal")
        memory = in_fresh_process(evaluation_memory, name, opt.seed, device)
        line(f"{name}: peak memory beyond the embeddings, MiB", memory, ".0f", "memory")


def random_subject(n: int, m: int, seed: int, device) -> Subject:
    *sides, caption_image = pairs(n, m, seed, device)
    return Subject("random", "wasserstein", caption_image, n,
                   [Member(SIMILARITIES["wasserstein"](), *sides)])


def judged_subject(seed: int, device) -> tuple[Subject, Judgements]:
    """Embeddings of the size of the COCO 5K test, and random judgements of about the real
    numbers."""
    n, m = EVALUATION
    subject = random_subject(n, m, seed, device)
    rng = np.random.default_rng(seed)

    def rated(first, second, count):
        places = (rng.integers(first, size=count), rng.integers(second, size=count))
        return Ratings(*places, 5 * rng.random(count) ** 3)

    ratings = {"sts": rated(m, m, 44000), "sis": rated(n, n, 47000), "sits": rated(m, n, 45000)}
    codes = rng.random((n, 80)) < 0.04
    some = {"i2t": Pairs.of(rng.integers(1261, size=22500), rng.integers(m, size=22500)),
            "t2i": Pairs.of(rng.integers(1332, size=11300), rng.integers(n, size=11300))}
    cxc = Crisscrossed(ratings, cxc_pairs(ratings, subject.caption_image, "ucmr"))
    return subject, Judgements(pmrp=codes, eccv=some, cxc=cxc)


def suite_memory(seed: int, device) -> float:
    """MiB of the process that the whole suite takes at its peak beyond the embeddings."""
    subject, judged = judged_subject(seed, device)
    return peak(lambda: assess(subject, judged, parse_args(SUITE)), torch.device("cpu"))


def suite(opt, device) -> None:
    subject, judged = judged_subject(opt.seed, device)
    _, images, captions = subject.members[0]
    print(f"\nsuite: {EVALUATION[0]:,} images x {EVALUATION[1]:,} captions, D = {DIM:,}, "
          "wasserstein: recalls, folds, CxC, PMRP, ECCV, uncertainty", flush=True)
    best = race({"product": lambda: images.mean @ captions.mean.T,
                 "suite": lambda: assess(subject, judged, parse_args(SUITE))}, 1, device)
    line("everything / one product of 5,000 x 25,000 x 1,024", best["suite"] / best["product"],
         ".1f", "suite")
    line("seconds", best["suite"], ".1f")
    line("peak memory beyond embeddings, MiB", in_fresh_process(suite_memory, opt.seed, device),
         ".0f", "suite memory")


def certain(dev: Subject, subject: Subject) -> None:
    assess_certainty(subject, {}, Asked(confidence=True, sets=0.1), lambda: dev)


def confidence_memory(size: tuple, seed: int, device) -> float:
    """MiB that confidences and sets take at their peak beyond the embeddings."""
    dev, subject = (
        random_subject(*size, seed + 1, device),
        random_subject(*EVALUATION, seed, device),
    )
    return peak(partial(certain, dev, subject), device)


def confidence(opt, device) -> None:
    subject = random_subject(*EVALUATION, opt.seed, device)
    print("\nconfidence: {:,} images x {:,} captions, --confidence --sets 0.1".format(*EVALUATION),
          flush=True)
    runs = {size: partial(certain, random_subject(*size, opt.seed + 1, device), subject)
            for size in CALIBRATED}
    runs["plain"] = partial(retrieval_blocks, *subject.members[0], subject.caption_image, BLOCKS[0])
    best = race(runs, min(2, opt.repeats), device)
    line("plain evaluation, seconds", best["plain"], ".1f")
    for size, kinds in zip(CALIBRATED, (("confidence", "memory"), (None, None))):
        title = "calibrated on {:,} x {:,}".format(*size)
        memory = in_fresh_process(confidence_memory, size, opt.seed, device)
        line(f"{title}: seconds beyond the plain evaluation", best[size], ".1f")
        line(f"{title}: with the plain evaluation / that alone", 1 + best[size] / best["plain"],
             ".2f", kinds[0])
        line(f"{title}: peak memory beyond the embeddings, MiB", memory, ".0f", kinds[1])


def steps(title: str, kinds: dict[str, list[str]], shape: tuple, dim: int, opt, device) -> dict:
    """Time the steps of several models on features of one shape and print their parts: {(kind,
    part): seconds}."""
    features = " x ".join(map(str, shape))
    print(f"\n{title}: batch of {BATCH}, features of {features}, D = {dim:,}, {LENGTHS[0]} to {LENGTHS[1]} words\n  "
          f"{'ms, each alone':16}{'step':>9}{'networks':>12}{'similarity, loss':>20}{'clipping, Adam':>18}", flush=True)
    best = race({(kind, name): run for kind, words in kinds.items() for name,
                 run in training(words, shape, dim, (BATCH, WORDS, LENGTHS), opt.seed,
                                 device).items()}, opt.repeats, device)
    for kind in kinds:
        whole, *parts = (
            1000 * best[kind, name] for name in ("step", "networks", "objective", "update")
        )
        print("  {:16}{:9.1f}{:12.1f}{:20.1f}{:18.1f}".format(kind, whole, *parts))
        line(f"{kind}: percent of the step outside the networks", 100 * (parts[1] + parts[2])
             / sum(parts), ".1f")
    return best


def step(opt, device) -> None:
    kinds = {"point": ["--sim", "cosine"], "gaussian": ["--sim", "wasserstein"]}
    best = steps("step", kinds, (FEATURES,), DIM, opt, device)
    line(
        "gaussian (wasserstein) / point (cosine)",
        best["gaussian", "step"] / best["point", "step"],
        ".2f",
        "step",
    )


def regions(opt, device) -> None:
    kinds = {"mean of regions": [], "vsrn": ["--img_enc", "vsrn"],
             "vsrn, gaussian": ["--img_enc", "vsrn", "--sim", "wasserstein"],
             "scan": ["--sim", "scan", "--bi_gru"], "pvse": ["--sim", "mil"],
             "pcme": ["--sim", "match_prob"]}
    compiled = {f"{kind}, compiled": [*kinds[kind], "--compile"] for kind in ("scan", "pcme")}
    kinds.update(compiled)
    best = steps("regions", kinds, *REGION_STEP, opt, device)
    for kind in list(kinds)[1:]:
        line(f"{kind} / mean of regions", best[kind, "step"] / best["mean of regions", "step"],
             ".1f")
    for kind in compiled:
        plain = kind.removesuffix(", compiled")
        for part in ("objective", "step"):
            line(f"{kind} / {plain}: {part}", best[kind, part] / best[plain, part], ".2f")


def batches(opt, device) -> None:
    print(f"\nbatches: of {BATCH} pairs, five captions per image, in random order, the file cached",
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        step = training([], (FEATURES,), DIM, (BATCH, WORDS, LENGTHS), opt.seed, device)["step"]
        path, runs, count = {}, {"step": step}, {}
        for name, (shape, dtype) in FILES.items():
            path[name] = os.path.join(folder, f"{name}.npy")
            np.save(
                path[name], np.random.default_rng(opt.seed).random(shape, np.float32).astype(dtype)
            )
            runs[name], count[name] = streamed(path[name], BATCH, LENGTHS, opt.seed)
        best = race(runs, opt.repeats, device)
        pace = BATCH / best["step"]
        line("a training step of points, captions a second", pace, ".0f")
        for name, (shape, dtype) in FILES.items():
            own, mapped = in_fresh_process(streaming_memory, path[name], BATCH, LENGTHS, opt.seed)
            line(f"{name} {shape} {np.dtype(dtype)}, captions a second", count[name] / best[name],
                 ".0f")
            line(f"{name}: as many times the pace of training", count[name] / best[name] / pace,
                 ".1f", "batches")
            line(f"{name}: growth of the process in an epoch, MiB of its own", own, ".0f")
            line(f"{name}: pages of it left mapped, MiB of {os.path.getsize(path[name]) >> 20}",
                 mapped, ".0f")


def phrases(opt, device) -> None:
    print("\nphrases: {:,} photos x {:,} proposals, {:,} phrases, D = {:,}, cosine".format(
        *PHRASES), flush=True)
    for measured in localisation_times(*PHRASES, min(2, opt.repeats), opt.seed, device):
        line(*measured)


def epoch(opt, device) -> None:
    print(f"\nepoch: {epoch_timing.title()}", flush=True)
    for measured in epoch_timing.epoch_times(opt.steps, opt.profile, opt.seed, device):
        line(*measured)


def scale(opt, device) -> None:
    print(f"\nscale: VSE++ on {scale_timing.SIZES.pairs} pairs of 2,048 features; a process a "
          "core, a thread each, over Gloo", flush=True)
    for measured in scale_timing.scale_times(min(3, opt.repeats), opt.seed):
        line(*measured)


def precision(opt, device) -> None:
    for text, measured in score_precision(DIM, opt.seed):
        print(text, flush=True)
        for one in measured:
            cell(*one)


def search(opt, device) -> None:
    for measured in search_times(opt.size, opt.repeats, opt.seed, device):
        line(*measured)


def extraction(opt, device) -> None:
    print("\nextraction: {} photos of 500 x 375 by resnet18, read by {} processes".format(
        *EXTRACTED), flush=True)
    for measured in feature_times(*EXTRACTED, opt.repeats, opt.seed, device):
        line(*measured)


PARTS = {f.__name__: f for f in (scores, attention, evaluation, suite, confidence, step, regions,
                                 batches, extraction, phrases, epoch, scale, precision, search)}


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
    device = torch_device(opt.device)
    machine = f"{os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads, {device}"
    print(machine, flush=True)
    for part in opt.parts or PARTS:
        PARTS[part](opt, device)
    verdicts = [record["ok"] for record in records if record["ok"] is not None]
    print(f"\n{verdicts.count(False)} of {len(verdicts)} targets missed")
    if opt.output:
        save_json({"machine": machine, "repeats": opt.repeats, "seed": opt.seed,
                   "measurements": records}, opt.output)


if __name__ == "__main__":
    main()
