"""Show what a trained model does: what it retrieves, the captions it writes, where its latents lie.

    python show.py retrieval --checkpoint runs/demo --photos data/demo/images
    python show.py retrieval --checkpoint runs/demo --photos data/demo/images --captions "a red circle ." "a star ."
    python show.py retrieval --unsure 0.5                    # after python -m confidence: how sure is each answer?
    python show.py captions --checkpoint runs/vsrn           # a VSRN model that was trained with --captioner
    python show.py latents --checkpoint runs/jwae            # how near are its latents to the prior N(0, I)?
"""
if __name__ == "__main__":
    import cli
    cli.start()

import argparse
import os
from collections import Counter

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import cli
from checkpoint import Trained
from cli import (
    Arguments,
    check,
    data_set,
    filename,
    natural,
    probability,
    split_name,
    torch_device,
    up_to,
    workers,
)
from confidence.calibration import Calibration, calibration_file
from data import Photos, Split, image_batches
from evaluation.embeddings import beside_model, newest_run, split_of
from evaluation.encode import encode
from evaluation.pictures import OWN, THUMBNAIL, Cell, Row, draw_rows, picture_file
from files import below, output, save_json
from losses import real_rows, uncertainty, unit
from photos.trust import badge_of, calibration_of, how_many, trust_in
from vocab import END, is_function

# ---- retrieval: captions and their best images, with scores and uncertainties

SPREAD = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of uncertainty whose captions are drawn


def photos_of(split, folder: str | None) -> Photos:
    """The photo of each image. Raises InputError if precomputed features come without photos."""
    if isinstance(split.images, Photos):
        return split.images
    check(folder and split.photo_names,
          "precomputed features show no picture; give the folder of their photos with --photos, "
          f"and file names in {split.name}_ids.txt beside the features")
    return Photos([below(folder, name, f"the list of photos of {split.source}")
                   for name in split.photo_names])


def calibration_to_show(run: str, opt) -> Calibration | None:
    """The calibration that --calibration names, else that of the run, or None where there is none.
    Raises InputError where --unsure has none to go by."""
    calibration = calibration_of(run, opt.calibration)
    check(calibration or opt.unsure is None or not os.path.exists(run),
          f"--unsure {opt.unsure or 0:g} needs calibrated probabilities, and there is no "
          f"{calibration_file(run)}; write it with python -m confidence {run}")
    return calibration


def load_run(path: str, opt) -> tuple[Trained, Split, str]:
    """The model of a run, the split that the options name, and the name of its data set."""
    model = Trained(path, torch_device(opt.device), vocab=opt.vocab)
    return model, split_of(model, opt.split, opt.data_path, opt.data_name), opt.data_name or model.options.data_name


def tokens_of(model: Trained, split: Split, name: str):
    """The captions as the model reads them. Those of another data set may consist of unknown words alone."""
    return split.encode(model.vocab, known=name == model.options.data_name)


@torch.no_grad()
def draw_retrieval(opt) -> None:
    """The command `retrieval`: a picture of captions with their best images, scores and
    uncertainties.

    Without --captions it shows five captions of the split, for a Gaussian model from the least to
    the most uncertain. Where the run was calibrated, it says how sure each first answer is.
    """
    device, path = torch_device(opt.device), opt.checkpoint or newest_run()
    target = picture_file(opt.output or beside_model(path, "retrieval.png"), [path],
                          opt.overwrite or not opt.output)
    calibration = calibration_to_show(path, opt)
    trained, split, name = load_run(path, opt)
    trust = calibration and trust_in(calibration, path, trained.weights, trained.options.sim)
    check(not opt.captions or split.text is None,
          f"{path} reads ready features of captions and knows no words, so --captions cannot be "
          "embedded; leave it out")
    photos = photos_of(split, opt.photos)
    images, captions = encode(trained.model, split, None if opt.captions else tokens_of(trained, split, name), device,
                              workers=opt.workers)
    if opt.captions:
        texts, owner = opt.captions, [None] * len(opt.captions)
        queries = trained.texts(texts)
    else:
        order = torch.arange(len(captions.mean))
        if captions.log_var is not None:
            order = uncertainty(captions).argsort().cpu()
        index = order[[round(q * (len(order) - 1)) for q in SPREAD]]
        texts = [split.captions[m] for m in index]
        owner = split.caption_image[index.numpy()].tolist()
        queries = captions.rows(index.to(device))
    scores = trained.similarity(images, queries).T.cpu()                          # (queries, N)
    of_query, of_image = (e.log_var is not None and uncertainty(e).tolist() for e in (queries, images))
    top, rows = min(opt.top, scores.shape[1]), []
    rankings = scores.argsort(descending=True)[:, :top].tolist()
    for q, (text, score, ranking) in enumerate(zip(texts, scores, rankings)):
        facts = [f"uncertainty {of_query[q]:.1f}"] if of_query else []
        if owner[q] is not None:
            rank = int((score >= score[owner[q]]).sum())
            facts.append(f"its own image is number {rank} of {len(score):,}")
        cells = [Cell(photos.open(i, THUMBNAIL), f"{score[i]:.3f}"
                      + (f" (unc. {of_image[i]:.1f})" if of_image else ""),
                      OWN if i == owner[q] else None) for i in ranking]
        if trust:
            sure = float(trust.chances(score[None]).max())
            if trust.fits:
                fits = trust.number(score[None], queries.rows([q]).to("cpu"))[0]
                facts.append(how_many(fits.item(), len(score), text))
            said = badge_of(sure, opt.unsure)
            cells[0] = cells[0]._replace(badge=said, sure=sure >= (opt.unsure or 0))
            print(f"{text} -> {photos.name(ranking[0])}, {said}")
        rows.append(Row(text, "; ".join(facts), cells))
    legend = "" if opt.captions else "; green: its own"
    draw_rows(target, f"{name} {opt.split}, {trained.options.sim}: the best {top} of "
              f"{len(split.images):,} images for a caption{legend}", rows, top)
    for note in [*trained.notes, *split.notes, *(calibration.notes(name, len(split.images))
                               if calibration else ())]:
        print(f"note: {note}")
    print(f"picture of {len(texts)} captions and their best {top} images in {target}")


# ---- captions that VSRN's captioner writes

def word_precision(captions: list[list[str]], references: list[list[list[str]]],
                   groups: dict | None = None) -> dict:
    """The share of the words of N generated captions that some reference of their image has, letter
    for letter.

    Returns {"content" | "function" | "pairs" | name of one of `groups`, sets of words: {"words":
    number of words, "own": percent, "other": percent}}, with None where there are no words. "pairs"
    are two adjacent content words, such as "red circle": a model that recognises red and a circle
    may still combine them wrongly. "other" is the control: the same caption compared with the
    references of another image, averaged over all N - 1 others. The part of "own" above "other"
    comes from the image; the rest comes from knowing what captions are like.
    """
    def words(which):
        return lambda text: list(filter(which, text))
    kinds = {"content": words(lambda word: not is_function(word)), "function": words(is_function),
             "pairs": lambda text: [pair for pair in zip(text, text[1:])
                                    if not any(map(is_function, pair))],
             **{name: words(group.__contains__) for name, group in (groups or {}).items()}}
    result = {}
    for kind, items in kinds.items():
        generated = [(item, i) for i, caption in enumerate(captions) for item in items(caption)]
        true = [{item for text in texts for item in items(text)} for texts in references]
        images = Counter(item for of_image in true for item in of_image)      # that have an item
        own = [item in true[i] for item, i in generated]
        other = [(images[item] - hit) / max(1, len(true) - 1)
                 for (item, _), hit in zip(generated, own)]
        result[kind] = {"words": len(generated),
                        "own": 100 * float(np.mean(own)) if own else None,
                        "other": 100 * float(np.mean(other)) if own and len(true) > 1 else None}
    return result


@torch.no_grad()
def caption_images(model, images, width: int, device, workers: int) -> list[list[int]]:
    """A caption by the model's captioner for every image of a split, in their order, as lists of
    word numbers."""
    captions = []
    with tqdm(total=len(images), desc="captions", disable=None, leave=False) as bar:
        for batch in image_batches(images, 128, workers):
            features = model.image_tower.trunk(batch.to(device))
            captions += model.terms["captioner"].beam(features, width)
            bar.update(len(batch))
    return captions


def write_captions(opt) -> None:
    """The command `captions`. Raises InputError if the model has no captioner or an option does not
    fit."""
    check(1 <= opt.beam <= 1000,
          f"--beam {opt.beam}: a beam has from 1 to 1,000 captions; 3 is usual")
    groups = [name for name, _ in opt.words or ()]
    check(len(set(groups)) == len(groups),
          f"--words names a group twice among {', '.join(groups)}; give each another name")
    device, run = torch_device(opt.device), opt.checkpoint or newest_run()
    if opt.output:
        output(opt.output, [run], opt.overwrite)
    trained, split, name = load_run(run, opt)
    check("captioner" in trained.model.terms,
          f"{run} was trained without a captioner (--captioner 0); train one with train.py "
          "--img_enc vsrn --captioner 1")
    count = len(split.images)
    for i in opt.image_index or ():
        check(0 <= i < count, f"--image_index {i} is no image of {name} {opt.split}; they are "
                              f"numbered from 0 to {count - 1}")
    references = [[] for _ in range(count)]                          # caption numbers of each image
    for m, i in enumerate(split.caption_image):
        references[i].append(m)
    captions = [
        [trained.vocab.words[number] for number in caption if number != END]
        for caption in caption_images(
            trained.model, split.images, opt.beam, device, opt.workers
        )
    ]
    names = split.photo_names or split.image_ids or [None] * count

    for i in opt.image_index or range(min(opt.images, count)):
        title = f"image {i}" if names[i] is None else f"image {i} ({names[i]})"
        print(f"{title}\n  generated: {' '.join(captions[i])}\n  true:      "
              f"{split.captions[references[i][0]]}")
    precision = word_precision(captions, [[split.words[m] for m in rows] for rows in references],
                               dict(opt.words or ()))
    print(f"{name} {opt.split}, {count:,} images, beam {opt.beam}: generated words that a true "
          "caption of the image has")
    for kind, p in precision.items():
        title = {"content": "content words", "function": "function words and punctuation",
                 "pairs": "pairs of content words side by side"}.get(kind, kind)
        own, other = ("-" if p[key] is None else f"{p[key]:.1f}%" for key in ("own", "other"))
        print(f"  {title}: {own} of {p['words']:,} (control, captions of another image: {other})")
    if opt.output:
        entries = [{"image": i, "name": names[i], "generated": " ".join(captions[i]),
                    "true": [split.captions[m] for m in rows]} for i, rows in enumerate(references)]
        save_json({"checkpoint": run, "data_name": name, "split": opt.split, "beam": opt.beam,
                   "precision": precision, "captions": entries}, opt.output)
        print(f"all captions in {opt.output}")


def group(text: str) -> tuple[str, set[str]]:
    """Parse NAME=WORD,WORD,... -> (name, words)."""
    name, _, words = text.partition("=")
    if not name or not words:
        raise argparse.ArgumentTypeError(f"'{text}' is no group of words; give NAME=WORD,WORD,...")
    if name in ("content", "function", "pairs"):
        raise argparse.ArgumentTypeError(f"'{name}' is a count of its own; "
                                         "give the group another name")
    return name, set(words.split(","))


# ---- latents: how near they are to the prior

class Latents:
    """A model that gives latents, before any normalisation, in place of embeddings."""

    def __init__(self, model):
        self.model = model

    def embed_images(self, images):
        return self.model.image_tower(images).latent

    def embed_captions(self, tokens, lengths):
        return self.model.text_tower(tokens, lengths).latent


def prior_report(z: Tensor, generator: torch.Generator,
                 permutations: int = 200) -> dict[str, float]:
    """How latents (R, D) differ from samples of N(0, I).

    norm: mean |z|. mean: |average z| / sqrt(D). variance: average over the dimensions. correlation:
    root mean square off the diagonal of the correlation matrix. eigenvalues: the largest and
    smallest of the covariance. energy: energy distance to as many samples of the prior, over
    sqrt(D). p: share of random relabellings of the two samples whose distance is at least as large.
    on the sphere: the energy distance of sqrt(D) z / |z|, which does not depend on the norm of the
    latents.
    """
    n, d = z.shape
    z = z.double()
    covariance = torch.cov(z.T)                                                     # (D, D)
    variance = covariance.diagonal().clamp(min=1e-12)
    off = (covariance.square() / variance / variance[:, None]).sum() - d
    eigenvalues = torch.linalg.eigvalsh(covariance)
    prior = torch.randn(n, d, generator=generator, dtype=z.dtype)                   # (R, D)
    label = torch.tensor([1, -1]).repeat_interleave(n).to(z)                        # (2 R,)

    def energy(x: Tensor, signs: Tensor) -> Tensor:
        """2 E|x - y| - E|x - x'| - E|y - y'|, over sqrt(D): (R, D), labels s = +-1 (2 R, L) ->
        (L,).

        It is -s^T |..| s / R^2, where |..| holds all distances.
        """
        both = torch.cat([x, prior])                                                # (2 R, D)
        return -(signs * (torch.cdist(both, both) @ signs)).sum(0) / n ** 2 / d ** 0.5
    shuffled = [label[torch.randperm(2 * n, generator=generator)] for _ in range(permutations)]
    observed, *others = energy(z, torch.stack([label, *shuffled], 1))
    report = {"norm": z.norm(dim=1).mean(), "mean": z.mean(0).norm() / d ** 0.5,
              "variance": variance.mean(),
              "correlation": off.clamp(min=0).div(d * (d - 1)).sqrt(),
              "largest eigenvalue": eigenvalues[-1], "smallest eigenvalue": eigenvalues[0],
              "energy distance": observed,
              "p": (1 + sum(e >= observed for e in others)) / (1 + permutations),
              "on the sphere": energy(unit(z) * d ** 0.5, label[:, None])[0]}
    return {name: float(value) for name, value in report.items()}


@torch.no_grad()
def print_latents(opt) -> None:
    """The command `latents`: a table of `prior_report` for both sides and for samples of the prior
    itself. An item with several parts gives a latent per part, because their mean is none."""
    path, device = opt.checkpoint or newest_run(), torch_device(opt.device)
    trained, split, name = load_run(path, opt)
    both = encode(Latents(trained.model), split, tokens_of(trained, split, name), device, workers=opt.workers)
    rows = {}
    for side, latent in zip(("images", "captions"), both):
        z = real_rows(latent.value.float(), latent.n_parts).cpu()                   # (R, D)
        generator = torch.Generator().manual_seed(opt.seed)
        some = torch.randperm(len(z), generator=generator)[:opt.rows]
        rows[side] = prior_report(z[some], generator)
    samples = torch.randn(min(opt.rows, len(z)), z.shape[1], generator=generator)
    rows["samples of N(0, I)"] = prior_report(samples, generator)
    print(f"{path}: latents of {name} {opt.split}, before the l2 norm, {z.shape[1]} "
          "numbers each")
    print(f"{'':22}" + "".join(f"{side:>20}" for side in rows))
    for key in rows["images"]:
        print(f"{key:22}" + "".join(f"{of[key]:>20.4g}" for of in rows.values()))


# ---- the command

def run_arguments(p: argparse.ArgumentParser, split: str) -> None:
    """Add the options that name a run and the split it is applied to. split: the help of --split."""
    add = p.add_argument
    add("--checkpoint", type=filename, metavar="RUN", help="run folder or checkpoint file (default: the newest run)")
    add("--vocab", type=filename, metavar="FILE", help="vocabulary of an original VSE++ or VSRN checkpoint")
    add("--data_path", type=filename, help="folder that holds the data sets (default: that of the training)")
    add("--data_name", type=data_set, help="data set (default: that of the training)")
    add("--split", type=split_name, default="test", help=split)
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    add("--workers", type=workers, default=min(10, os.cpu_count() or 1),
        help="processes that read photos or large feature files")


def main(argv=None) -> None:
    p = Arguments("Show what a trained model does.")
    commands = p.add_subparsers(dest="shown", required=True,
                                metavar="{retrieval,captions,latents}")

    def command(name: str, work, description: str, split: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=description[0].lower() + description[1:],
                                     description=description)
        run_arguments(parser, split)
        parser.set_defaults(work=work)
        return parser

    add = command("retrieval", draw_retrieval,
                  "Draw captions and the images that a model retrieves for them.",
                  "split to search").add_argument
    add("--photos", type=filename,
        help="folder of the photos that the precomputed features were made from")
    add("--captions", nargs="+", metavar="TEXT",
        help="captions to search for (default: five of the split)")
    add("--top", type=up_to(50), default=5, metavar="N",
        help="number of images to show per caption")
    add("--calibration", type=filename, metavar="FILE.json",
        help="says how sure each first answer is; python -m confidence writes it (default: "
        "calibration.json in the run folder, where there is one)")
    add("--unsure", type=probability, metavar="P",
        help="mark first answers of a lower probability as not sure; needs a calibration")
    add("--output", type=filename, metavar="FILE.png",
        help="picture to write (default: retrieval.png in the run folder)")
    add("--overwrite", action="store_true", help="replace the file that is there")

    captions = command("captions", write_captions, "Write captions of images with the captioner of "
                       "a VSRN model, and count how many of their words are true.",
                       "split to caption; the counts are over all of its images")
    printed = captions.add_mutually_exclusive_group()
    printed.add_argument("--images", type=natural, default=10, metavar="N",
                         help="print the captions of the first N images")
    printed.add_argument("--image_index", type=int, nargs="+", metavar="I",
                         help="print the captions of the images with these numbers, counted from 0")
    add = captions.add_argument
    add("--beam", type=natural, default=3, help="width of the beam search (1: greedy search)")
    add("--words", type=group, nargs="+", metavar="NAME=WORD,WORD",
        help="also count these groups of words, for example colour=red,green,blue")
    add("--output", type=filename, metavar="FILE.json",
        help="file to write all captions, generated and true, and the counts to")
    add("--overwrite", action="store_true", help="replace the file that is there")

    add = command("latents", print_latents,
                  "Measure how near the latents of a run are to the prior N(0, I).",
                  "split whose latents are examined").add_argument
    add("--rows", type=up_to(100_000, least=2), default=1000,
        help="number of latents per side, compared with as many samples of the prior")
    add("--seed", type=natural, default=0,
        help="random seed of the samples and of the choice of latents")
    opt = p.parse_args(argv)
    cli.run(f"show.py {opt.shown}", opt.work, opt)


if __name__ == "__main__":
    main()
