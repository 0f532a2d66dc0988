"""Draw what a trained model retrieves: captions and their best images, with scores and uncertainties.

    python draw.py --checkpoint runs/demo --photos data/demo/images
    python draw.py --checkpoint runs/demo --photos data/demo/images --captions "a red circle ." "three shapes ."

Without --captions it takes five captions of the split, from the least to the most uncertain of a Gaussian model.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import textwrap

import numpy as np
import torch

import cli
from cli import Arguments, InputError, filename, up_to
from files import below, is_drawn
from inputs import Photos, encode_captions
from losses import Embedding, uncertainty
from plots import drawing, picture_file
from subjects import encode, load_run, newest_run, output_file, run_arguments, torch_device
from vocab import tokenize

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
def draw(opt) -> None:
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


def main(argv=None) -> None:
    p = Arguments("Draw what a model retrieves.")
    run_arguments(p, split="images to search")
    p.add_argument("--photos", type=filename, help="folder of the photos that precomputed features belong to")
    p.add_argument("--captions", nargs="+", metavar="TEXT", help="captions to search for (default: five of the split)")
    p.add_argument("--top", type=up_to(50), default=5, metavar="N", help="images a caption, the best first")
    p.add_argument("--output", type=filename, metavar="FILE.png",
                   help="picture to write (default: retrieval.png in the run folder)")
    cli.run("draw.py", draw, p.parse_args(argv))


if __name__ == "__main__":
    main()
