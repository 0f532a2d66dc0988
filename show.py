"""Show what a trained model does: what it retrieves, the captions it writes, where its latents lie.

    python show.py retrieval --checkpoint runs/demo --photos data/demo/images
    python show.py retrieval --checkpoint runs/demo --photos data/demo/images --captions "a red circle ." "three shapes ."
    python show.py captions --checkpoint runs/vsrn           # of a VSRN model that was trained with --captioner
    python show.py latents --checkpoint runs/jwae            # how near are they to the prior N(0, I)?
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import argparse
import textwrap
from collections import Counter

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

import cli
from cli import Arguments, InputError, filename, natural, run_arguments, torch_device, up_to
from data import image_batches
from evaluation.plots import drawing, picture_file
from evaluation.sources import encode, load_run, newest_run, output_file
from files import below, holds_keys, is_drawn, output, save_json
from inputs import Photos, encode_captions
from similarities import Embedding, real_rows, uncertainty, unit
from vocab import END, is_function, tokenize

# ---- retrieval: captions and their best images, with scores and uncertainties

SPREAD = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of uncertainty whose captions are drawn


def photo_paths(split, folder: str | None) -> list[str]:
    """Where the photo of each image lies."""
    if isinstance(split.images, Photos):
        return split.images.paths
    if not folder or not split.photo_names:
        raise InputError("precomputed features show no picture; give the folder of their photos with --photos, and file names "
                         f"in {split.name}_ids.txt beside the features")
    return [below(folder, name, f"the list of photos of {split.source}") for name in split.photo_names]


def embed_texts(model, vocab, texts: list[str], device) -> Embedding:
    """Free captions -> Embedding (B, D); a caption without one known word is refused."""
    tokens = encode_captions([tokenize(text) for text in texts], vocab)
    if tokens.unknown.any():
        raise InputError(f"no word of '{texts[tokens.unknown.argmax()]}' is in the vocabulary of {len(vocab)} words; use "
                         "words of the training set")
    numbers, lengths = tokens.batch(np.arange(len(texts)))                          # (B, T), (B,)
    return model.embed_captions(numbers.to(device), lengths)


@torch.no_grad()
def draw_retrieval(opt) -> None:
    """A picture of captions and their best images. Without --captions: five of the split, from the least to the most uncertain
    of a Gaussian model."""
    device, path = torch_device(opt.device), opt.checkpoint or newest_run()
    target = picture_file(output_file(opt.output, path, "retrieval.png", is_drawn), [path])
    run = load_run(path, opt, vocab=opt.vocab)
    model, vocab, split = run.model.to(device), run.vocab, run.split
    if opt.captions and split.text is not None:
        raise InputError(f"{path} reads ready features of captions and knows no words, so --captions cannot be embedded; leave "
                         "it out")
    photos = Photos(photo_paths(split, opt.photos))
    images, captions = encode(model, split, None if opt.captions else run.tokens(), device, workers=opt.workers)
    if opt.captions:
        texts, owner, queries = opt.captions, [None] * len(opt.captions), embed_texts(model, vocab, opt.captions, device)
    else:
        order = uncertainty(captions).argsort().cpu() if captions.log_var is not None else torch.arange(len(captions.mean))
        chosen = order[[round(q * (len(order) - 1)) for q in SPREAD]]
        texts, owner = [split.captions[m] for m in chosen], split.caption_image[chosen.numpy()].tolist()
        queries = captions.rows(chosen.to(device))
    scores = model.similarity(images, queries).T.cpu()                              # (queries, N)
    unsure = {side: None if e.log_var is None else uncertainty(e).tolist() for side, e in (("q", queries), ("i", images))}

    top = min(opt.top, scores.shape[1])
    height = 2.7 * len(texts) + 0.6
    with drawing(target, len(texts), top, (max(6, 2 * top), height)) as (figure, axes):
        for q, row in enumerate(axes):
            ranking = scores[q].argsort(descending=True)
            label = "\n".join(textwrap.wrap(texts[q], 18 * max(3, top))[:3])
            facts = [] if unsure["q"] is None else [f"uncertainty {unsure['q'][q]:.1f}"]
            if owner[q] is not None:
                rank = int((scores[q] >= scores[q, owner[q]]).sum())
                facts.append(f"its own image is number {rank} of {len(ranking):,}")
            row[0].text(0, 1.14, f"{label}\n{'; '.join(facts)}", transform=row[0].transAxes, fontsize=9, weight="bold")
            for axis, i in zip(row, ranking[:top].tolist()):
                axis.imshow(np.asarray(photos.open(i)))
                axis.set_xticks([])
                axis.set_yticks([])
                axis.text(0, 1.02, f"{scores[q, i]:.3f}" + ("" if unsure["i"] is None else f" (unc. {unsure['i'][i]:.1f})"),
                          transform=axis.transAxes, fontsize=8)
                for spine in axis.spines.values():
                    spine.set(color="limegreen" if i == owner[q] else "lightgrey", linewidth=4 if i == owner[q] else 1)
        own = "" if opt.captions else "; green: its own"
        figure.suptitle(f"{run.folder[1]} {opt.split}, {run.trained.sim}: the best {top} of {len(split.images):,} images for a "
                        f"caption{own}", fontsize=10, y=1 - 0.15 / height)
        figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 1.2 / height, wspace=0.06, hspace=0.45)
    for note in run.notes:
        print(f"note: {note}")
    print(f"picture of {len(texts)} captions and their best {top} images in {target}")


# ---- captions that VSRN's captioner writes

def spell(caption: list[int], vocab) -> list[str]:
    """The words of a generated caption."""
    return [vocab.words[number] for number in caption if number != END]


def word_precision(captions: list[list[str]], references: list[list[list[str]]], groups: dict | None = None) -> dict:
    """Of the words of N generated captions, the share that some reference of their image has, letter for letter.

    {"content" | "function" | "pairs" | name of one of `groups`, sets of words: {"words": how many, "own": percent, "other":
    percent}}, None where there are no words. "pairs" are two content words side by side, "red circle": who has seen red and a
    circle may still say them of the wrong things.
    "other" is the control: the same caption held against the references of another image, averaged over all N - 1 others. What
    "own" has above it comes from the image; the rest comes from knowing what captions are like.
    """
    kinds = {"content": lambda text: [word for word in text if not is_function(word)],
             "function": lambda text: [word for word in text if is_function(word)],
             "pairs": lambda text: [pair for pair in zip(text, text[1:]) if not any(map(is_function, pair))],
             **{name: lambda text, group=group: [word for word in text if word in group]
                for name, group in (groups or {}).items()}}
    result = {}
    for kind, items in kinds.items():
        said = [(item, i) for i, caption in enumerate(captions) for item in items(caption)]
        held = [{item for text in texts for item in items(text)} for texts in references]
        images = Counter(item for found in held for item in found)                  # word or pair -> images that have it
        own = [item in held[i] for item, i in said]
        others = [(images[item] - hit) / max(1, len(held) - 1) for (item, _), hit in zip(said, own)]
        result[kind] = {"words": len(said), "own": 100 * float(np.mean(own)) if said else None,
                        "other": 100 * float(np.mean(others)) if said and len(held) > 1 else None}
    return result


@torch.no_grad()
def caption_images(model: nn.Module, images, width: int, device, workers: int = 0) -> list[list[int]]:
    """A caption of every image of a split by the model's captioner, in their order."""
    captions = []
    with tqdm(total=len(images), desc="captions", disable=None, leave=False) as bar:
        for batch in image_batches(images, 128, workers):
            captions += model.terms["captioner"].beam(model.image_tower.trunk(batch.to(device)), width)
            bar.update(len(batch))
    return captions


def write_captions(opt) -> None:
    if not 1 <= opt.beam <= 1000:
        raise InputError(f"--beam {opt.beam}: a beam has from 1 to 1,000 captions; 3 is usual")
    device, run = torch_device(opt.device), opt.checkpoint or newest_run()
    if opt.output:
        output(opt.output, holds_keys("checkpoint", "data_name", "split", "beam", "precision", "captions"), [run])
    model, vocab, _, _, (_, name), split, _ = load_run(run, opt, vocab=opt.vocab)
    if "captioner" not in model.terms:
        raise InputError(f"{run} was trained without a captioner (--captioner 0); train one with train.py --img_enc vsrn "
                         "--captioner 1")
    count = len(split.images)
    wrong = [i for i in opt.image_index or [] if not 0 <= i < count]
    if wrong:
        raise InputError(f"--image_index {wrong[0]} is no image of {name} {opt.split}; they are numbered from 0 to "
                         f"{count - 1}")
    references = [[] for _ in range(count)]                                         # caption numbers of each image
    for m, i in enumerate(split.caption_image):
        references[i].append(m)
    captions = caption_images(model.to(device), split.images, opt.beam, device, opt.workers)
    captions = [spell(caption, vocab) for caption in captions]
    names = split.photo_names or split.image_ids or [None] * count

    for i in opt.image_index if opt.image_index else range(min(opt.images, count)):
        print(f"image {i}" + ("" if names[i] is None else f" ({names[i]})") + f"\n  generated: {' '.join(captions[i])}\n"
              f"  true:      {split.captions[references[i][0]]}")
    groups = dict(opt.words or [])
    if len(groups) < len(opt.words or []):
        raise InputError(f"--words names a group twice among {', '.join(name for name, _ in opt.words)}; give each another "
                         "name")
    precision = word_precision(captions, [[split.words[m] for m in mine] for mine in references], groups)
    print(f"{name} {opt.split}, {count:,} images, beam {opt.beam}: generated words that a true caption of the image has")
    for kind, p in precision.items():
        title = {"content": "content words", "function": "function words and punctuation",
                 "pairs": "pairs of content words side by side"}.get(kind, kind)
        own, other = ("-" if p[key] is None else f"{p[key]:.1f}%" for key in ("own", "other"))
        print(f"  {title}: {own} of {p['words']:,} (control, captions of another image: {other})")
    if opt.output:
        told = [{"image": i, "name": names[i], "generated": " ".join(captions[i]), "true": [split.captions[m] for m in mine]}
                for i, mine in enumerate(references)]
        save_json({"checkpoint": run, "data_name": name, "split": opt.split, "beam": opt.beam, "precision": precision,
                   "captions": told}, opt.output)
        print(f"all captions in {opt.output}")


def group(text: str) -> tuple[str, set[str]]:
    name, _, words = text.partition("=")
    if not name or not words:
        raise argparse.ArgumentTypeError(f"'{text}' is no group of words; give NAME=WORD,WORD,...")
    if name in ("content", "function", "pairs"):
        raise argparse.ArgumentTypeError(f"'{name}' is a count of its own; give the group another name")
    return name, set(words.split(","))


# ---- latents: how near they are to the prior

@torch.no_grad()
def all_latents(model, split, tokens, device, batch_size: int = 128, workers: int = 0) -> dict[str, Tensor]:
    """The latents of a split's images (N, D) and captions (M, D), one an item (parts: their mean is no latent, so all of
    them)."""
    found = {"images": [], "captions": []}
    for batch in image_batches(split.images, batch_size, workers):
        extras = {}
        e = model.embed_images(batch.to(device), extras)
        found["images"].append(real_rows(extras["latent"].float(), e.n_parts).cpu())
    order = torch.arange(len(tokens.length))
    for index in order.split(batch_size):
        extras = {}
        numbers, lengths = tokens.batch(index.numpy())
        e = model.embed_captions(numbers.to(device), lengths, extras)
        found["captions"].append(real_rows(extras["latent"].float(), e.n_parts).cpu())
    return {side: torch.cat(rows) for side, rows in found.items()}


def prior_report(z: Tensor, generator: torch.Generator, permutations: int = 200) -> dict[str, float]:
    """How latents (R, D) differ from samples of N(0, I).

    norm: |z|, mean. mean: |average z| / sqrt(D). variance: average over dimensions. correlation: root mean square off the
    diagonal of the correlation matrix. eigenvalues: largest and smallest of the covariance. energy: energy distance to as many
    samples of the prior, over sqrt(D); p: share of random relabellings of the two samples with one at least as large. on the
    sphere: the energy distance of sqrt(D) z / |z|, which the norm of the latents does not move.
    """
    n, d = z.shape
    z = z.double()
    centred = z - z.mean(0)
    covariance = centred.T @ centred / (n - 1)                                      # (D, D)
    std = covariance.diagonal().clamp(min=1e-12).sqrt()
    correlation = covariance / std / std[:, None]
    eigenvalues = torch.linalg.eigvalsh(covariance)
    prior = torch.randn(n, d, generator=generator, dtype=z.dtype)                   # (R, D)
    label = torch.cat([torch.ones(n), -torch.ones(n)]).to(z)                        # (2 R,)

    def energy(x: Tensor, signs: Tensor) -> Tensor:
        """2 E|x - y| - E|x - x'| - E|y - y'| = -s^T |..| s / R^2 for labels s = +-1, over sqrt(D): (R, D), (2 R, L) -> (L,)."""
        both = torch.cat([x, prior])                                                # (2 R, D)
        return -(signs * (torch.cdist(both, both) @ signs)).sum(0) / n ** 2 / d ** 0.5
    shuffled = [label[torch.randperm(2 * n, generator=generator)] for _ in range(permutations)]
    observed, *others = energy(z, torch.stack([label, *shuffled], 1))
    return {"norm": float(z.norm(dim=1).mean()), "mean": float(z.mean(0).norm() / d ** 0.5),
            "variance": float(std.square().mean()),
            "correlation": float((correlation.square().sum() - d).clamp(min=0).div(d * (d - 1)).sqrt()),
            "largest eigenvalue": float(eigenvalues[-1]), "smallest eigenvalue": float(eigenvalues[0]),
            "energy distance": float(observed), "p": float((1 + sum(e >= observed for e in others)) / (1 + permutations)),
            "on the sphere": float(energy(unit(z) * d ** 0.5, label[:, None])[0])}


def print_latents(opt) -> None:
    path, device = opt.checkpoint or newest_run(), torch_device(opt.device)
    run = load_run(path, opt, vocab=opt.vocab)
    found = all_latents(run.model.to(device), run.split, run.tokens(), device, workers=opt.workers)
    rows = {}
    for side, z in found.items():
        generator = torch.Generator().manual_seed(opt.seed)
        rows[side] = prior_report(z[torch.randperm(len(z), generator=generator)[:opt.rows]], generator)
    z = torch.randn(min(opt.rows, len(found["captions"])), z.shape[1], generator=generator)
    rows["samples of N(0, I)"] = prior_report(z, generator)
    print(f"{path}: latents of {run.folder[1]} {opt.split}, before the l2 norm, {z.shape[1]} numbers each")
    print(f"{'':22}" + "".join(f"{side:>20}" for side in rows))
    for key in rows["images"]:
        print(f"{key:22}" + "".join(f"{rows[side][key]:>20.4g}" for side in rows))


# ---- the command

def add_retrieval(p: argparse.ArgumentParser) -> None:
    run_arguments(p, split="images to search")
    p.add_argument("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    p.add_argument("--captions", nargs="+", metavar="TEXT", help="captions to search for (default: five of the split)")
    p.add_argument("--top", type=up_to(50), default=5, metavar="N", help="images a caption, the best first")
    p.add_argument("--output", type=filename, metavar="FILE.png",
                   help="picture to write (default: retrieval.png in the run folder)")


def add_captions(p: argparse.ArgumentParser) -> None:
    run_arguments(p, split="images to caption: all of them, for the count")
    shown = p.add_mutually_exclusive_group()
    shown.add_argument("--images", type=natural, default=10, metavar="N", help="print the captions of the first N")
    shown.add_argument("--image_index", type=int, nargs="+", metavar="I", help="print the captions of these, counted from 0")
    p.add_argument("--beam", type=natural, default=3, help="captions that the search keeps at a time; 1: greedy")
    p.add_argument("--words", type=group, nargs="+", metavar="NAME=WORD,WORD", help="count these groups of words too, as "
                   "colour=red,green,blue")
    p.add_argument("--output", type=filename, metavar="FILE.json",
                   help="write all captions, generated and true, and the counts")


def add_latents(p: argparse.ArgumentParser) -> None:
    run_arguments(p, "split whose latents are looked at")
    p.add_argument("--rows", type=up_to(100_000, least=2), default=1000,
                   help="latents a side that are compared with as many samples of the prior")
    p.add_argument("--seed", type=natural, default=0, help="of the samples and of which latents are taken")


# name: what it says of itself, its options, what it does
SHOWN = {"retrieval": ("Draw captions and the images that a model retrieves for them.", add_retrieval, draw_retrieval),
         "captions": ("Write captions of images with a VSRN model's captioner, and count how many of their words are true.",
                      add_captions, write_captions),
         "latents": ("How near are the latents of a run to the prior N(0, I)?", add_latents, print_latents)}


def main(argv=None) -> None:
    p = Arguments("Show what a trained model does.")
    choice = p.add_subparsers(dest="shown", required=True, metavar="{" + ",".join(SHOWN) + "}")
    for name, (told, add_options, _) in SHOWN.items():
        add_options(choice.add_parser(name, help=told[:1].lower() + told[1:], description=told))
    opt = p.parse_args(argv)
    cli.run(f"show.py {opt.shown}", SHOWN[opt.shown][2], opt)


if __name__ == "__main__":
    main()
