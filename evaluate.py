"""Evaluate trained models: image-to-text and text-to-image retrieval on one split.

    python evaluate.py                                     # the newest run, its data set, the test split
    python evaluate.py --checkpoint runs/A runs/B          # an ensemble: the mean of their scores

Prints a table and writes results.json; `--export FILE.npz` keeps the embeddings.
"""
import argparse
import glob
import json
import os
import sys

import numpy as np
import torch
from tqdm import tqdm

import metrics
from data import Photos, Split, Tokens, image_batches, read_split
from losses import Cosine, Embedding, uncertainty
from model import JointEmbedding, build_model
from vocab import Arguments, InputError, Vocabulary

FORMAT = 1                            # of checkpoint.pt and model_best.pt


def load_checkpoint(path: str, name: str = "model_best.pt") -> dict:
    """Read a run folder's checkpoint or a checkpoint file, without running code from it; InputError if it is not one."""
    path = os.path.join(path, name) if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise InputError(f"there is no checkpoint {path}; give a run folder that holds {name}, or a file")
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        raise InputError(f"{path} is damaged or no checkpoint of this project ({str(error).splitlines()[0][:120]}); "
                         "take another one or train again") from error
    if not isinstance(stored, dict) or not {"format", "options", "vocabulary", "model"} <= set(stored):
        raise InputError(f"{path} is no checkpoint of this project; give one that train.py wrote")
    if stored["format"] != FORMAT:
        raise InputError(f"{path} has checkpoint format {stored['format']}, this version reads format {FORMAT}; use the "
                         "version that wrote it, or train again")
    return stored


def load_weights(model: JointEmbedding, stored: dict) -> None:
    try:
        model.load_state_dict(stored["model"])
    except RuntimeError as error:
        raise InputError("the checkpoint's weights do not fit the model of these options: "
                         + " ".join(str(error).split())[:300]) from error


def load_model(stored: dict) -> tuple[JointEmbedding, Vocabulary, argparse.Namespace]:
    """The model of a checkpoint, in eval mode on the CPU, its vocabulary and its options."""
    opt, vocab = argparse.Namespace(**stored["options"]), Vocabulary(stored["vocabulary"])
    model = build_model(opt, vocab, pretrained=False)
    load_weights(model, stored)
    return model.eval(), vocab, opt


def torch_device(name: str) -> torch.device:
    """auto: CUDA when present."""
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is here; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


@torch.no_grad()
def encode(model: JointEmbedding, split: Split, tokens: Tokens, device, batch_size: int = 128,
           workers: int = 0) -> tuple[Embedding, Embedding]:
    """Embeddings of all images (N, D) and all captions (M, D) of a split, in their order; the model in eval mode."""
    total = len(split.images) + len(tokens.length)
    with tqdm(total=total, desc=f"encode {split.name}", disable=None, leave=False) as bar:
        images = []
        for batch in image_batches(split.images, batch_size, workers):
            images.append(model.embed_images(batch.to(device)))
            bar.update(len(batch))
        order, captions = np.argsort(tokens.length, kind="stable"), []               # similar lengths: little padding
        for k in range(0, len(order), batch_size):
            numbers, lengths = tokens.batch(order[k:k + batch_size])
            captions.append(model.embed_captions(numbers.to(device), lengths))
            bar.update(len(lengths))
    return _join(images), _join(captions).rows(torch.from_numpy(np.argsort(order)).to(device))


def _join(batches: list[Embedding]) -> Embedding:
    return Embedding(*(None if field[0] is None else torch.cat(field) for field in zip(*batches)))


def validate(model: JointEmbedding, split: Split, tokens: Tokens, device, workers: int = 0) -> dict:
    """Recalls of one split as `metrics.retrieval` gives them."""
    return metrics.retrieval_blocks(model.similarity, *encode(model, split, tokens, device, workers=workers),
                                    split.caption_image)


def mean_of(tiles: list):
    """The mean of several models' scores (the papers' ensembles), as one tile function."""
    return tiles[0] if len(tiles) == 1 else lambda i, c: sum(tile(i, c) for tile in tiles) / len(tiles)


def protocol(members: list, caption_image, images: slice, block: int) -> dict:
    """Both directions among the images of a slice and their captions; members: (similarity, images, captions) each."""
    chosen = np.flatnonzero((caption_image >= images.start) & (caption_image < images.stop))
    tiles = [similarity.tiles(i.rows(images), c.rows(torch.from_numpy(chosen))) for similarity, i, c in members]
    i2t, t2i = metrics.ranks(mean_of(tiles), caption_image[chosen] - images.start, images.stop - images.start, block)
    return metrics.both_directions(i2t[i2t >= 0], t2i)


@torch.no_grad()
def protocols(members: list, caption_image, fold5: bool = False, block: int = 1000) -> dict:
    """{"full"} and, asked for, {"folds5"}; the same for the cosine of the means beside a Gaussian model."""
    n = len(members[0][1].mean)
    variants = {"": members}
    if any(i.log_var is not None or c.log_var is not None for _, i, c in members):
        variants["mean_only"] = [(Cosine(), Embedding(i.mean), Embedding(c.mean)) for _, i, c in members]
    results = {}
    for name, chosen in variants.items():
        results[name or "full"] = protocol(chosen, caption_image, slice(0, n), block)
        if fold5:
            results[f"{name}_folds5".strip("_")] = metrics.average(
                [protocol(chosen, caption_image, slice(k, k + 1000), block) for k in range(0, 5000, 1000)])
    return results


def newest_run(root: str = "runs") -> str:
    found = glob.glob(os.path.join(root, "**", "model_best.pt"), recursive=True)
    if not found:
        raise InputError(f"no run is in {root}/; train one with train.py, or name a run folder with --checkpoint")
    return os.path.dirname(max(found, key=os.path.getmtime))


def check_fits(opt: argparse.Namespace, images, path: str) -> None:
    """Refuse images that the model of `path` cannot take."""
    needed = "cnn" if isinstance(images, Photos) else "precomp"
    if opt.img_enc != needed:
        kind = {"cnn": "photos", "precomp": "precomputed features"}
        raise InputError(f"{path} was trained on {kind[opt.img_enc]} and the data are {kind[needed]}; name data of the same "
                         "kind with --data_name")
    if needed == "precomp" and images.dim != opt.img_dim:
        raise InputError(f"{images.path} has features of width {images.dim}, {path} was trained on width {opt.img_dim}; use "
                         "features of the same extractor")


def save_json(value, path: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)
        f.write("\n")
    os.replace(path + ".tmp", path)


def export(path: str, similarity: str, images: Embedding, captions: Embedding, split: Split) -> None:
    """Means, log-variances where there are any, whose caption each is, and ids where known, as .npz."""
    arrays = {"image_mean": images.mean, "caption_mean": captions.mean, "image_log_var": images.log_var,
              "caption_log_var": captions.log_var}
    arrays = {name: value.cpu().numpy() for name, value in arrays.items() if value is not None}
    ids = np.array(split.image_ids) if split.image_ids is not None else None
    if ids is not None:
        arrays["image_id" if ids.dtype.kind == "i" else "image_name"] = ids
    if split.caption_ids is not None:
        arrays["caption_id"] = split.caption_ids
    with open(path, "wb") as f:
        np.savez(f, caption_image=split.caption_image, similarity=np.array(similarity), **arrays)


TITLES = {"full": "all", "folds5": "mean of five folds of 1,000", "mean_only": "all, cosine of the means",
          "mean_only_folds5": "five folds, cosine of the means"}


def table(results: dict) -> str:
    """What a reader sees: one row a protocol."""
    width = max(len(TITLES.get(name, name)) for name in results)
    head = "".join(f"{name:>7}" for name in ("R@1", "R@5", "R@10", "medr", "meanr"))
    lines = [f"{'':{width}}  {'image to text':^35}  {'text to image':^35}", f"{'':{width}}  {head}  {head}     rsum"]
    for name, result in results.items():
        cells = ["".join(f"{result[side][key]:7.1f}" for key in ("r1", "r5", "r10", "medr", "meanr"))
                 for side in ("i2t", "t2i")]
        lines.append(f"{TITLES.get(name, name):{width}}  {cells[0]}  {cells[1]}  {result['rsum']:7.1f}")
    return "\n".join(lines)


def run(opt) -> dict:
    """Evaluate as the options say; returns what results.json holds."""
    device = torch_device(opt.device)
    paths = opt.checkpoint or [newest_run()]
    if not opt.checkpoint:
        print(f"no --checkpoint given, taking the newest run: {paths[0]}")
    if opt.export and len(paths) > 1:
        raise InputError(f"--export writes one model's embeddings, and {len(paths)} checkpoints were given; export each alone")
    members, names, spreads, split = [], [], [], None
    for path in paths:
        stored = load_checkpoint(path)
        model, vocab, trained = load_model(stored)
        name = opt.data_name or trained.data_name
        split = split or read_split(opt.data_path or trained.data_path, name, opt.split,
                                    dev_images=trained.dev_images).require_sound()
        check_fits(trained, split.images, path)
        if opt.fold5 and len(split.images) < 5000:
            raise InputError(f"--fold5 needs 5 x 1,000 images and {name} {opt.split} has {len(split.images):,}; leave it out, "
                             "or use COCO's whole test split (test of coco, testall of coco_precomp)")
        images, captions = encode(model.to(device), split, split.encode(vocab), device, opt.batch_size, opt.workers)
        members.append((model.similarity, images, captions))
        names.append(trained.sim)
        spreads.append({side: {"mean": float(u.mean()), "std": float(u.std(correction=0))} for side, e in
                        (("images", images), ("captions", captions)) if e.log_var is not None for u in [uncertainty(e)]})
        print(f"{path}: {trained.sim}, image head {trained.image_head}, text head {trained.text_head}, epoch "
              f"{stored['state']['epoch']}, dev rsum {stored['state']['best_rsum']:.1f}")
    similarity = names[0] if len(set(names)) == 1 else " + ".join(names)
    results = {"checkpoints": paths, "data_name": name, "split": opt.split, "similarity": similarity,
               "images": len(split.images), "captions": len(split.captions),
               "protocols": protocols(members, split.caption_image, opt.fold5, opt.block)}
    if any(spreads):
        results["uncertainty"] = spreads[0] if len(spreads) == 1 else spreads
    print(f"\n{name} {opt.split}: {len(split.images):,} images, {len(split.captions):,} captions"
          + (f", mean of the scores of {len(paths)} models" if len(paths) > 1 else "") + "\n" + table(results["protocols"]))
    for path, spread in zip(paths, spreads):
        for side, u in spread.items():
            print(f"uncertainty log det Sigma of the {side}: mean {u['mean']:.2f}, standard deviation {u['std']:.2f} nats"
                  + (f" ({path})" if len(paths) > 1 else ""))
    if opt.export:
        export(opt.export, similarity, images, captions, split)
        print(f"embeddings in {opt.export}")
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    output = opt.output or os.path.join(folder, "results.json" if len(paths) == 1 else "results_ensemble.json")
    save_json(results, output)
    print(f"written to {output}")
    return results


def parse_args(argv=None) -> argparse.Namespace:
    p = Arguments("Evaluate image-caption retrieval.")
    p.add_argument("--checkpoint", nargs="+", metavar="RUN", help="run folders or checkpoint files (default: the newest run); "
                   "several are an ensemble")
    p.add_argument("--data_path", help="folder that holds the data sets (default: that of the training)")
    p.add_argument("--data_name", help="data set (default: that of the training)")
    p.add_argument("--split", default="test", help="train, dev, test or testall")
    p.add_argument("--fold5", action="store_true", help="also the mean over five folds of 1,000 images (COCO 1K)")
    p.add_argument("--batch_size", type=int, default=128, help="images or captions encoded at once")
    p.add_argument("--block", type=int, default=1000, help="images scored at once: memory grows with it, results do not change")
    p.add_argument("--workers", type=int, default=min(10, os.cpu_count() or 1), help="processes that read photos")
    p.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present")
    p.add_argument("--export", metavar="FILE.npz", help="write the embeddings")
    p.add_argument("--output", metavar="FILE", help="write results.json there instead of into the run folder")
    opt = p.parse_args(argv)
    if opt.batch_size < 1 or opt.block < 1 or opt.workers < 0:
        p.error("--batch_size and --block must be at least 1, --workers at least 0")
    return opt


def main(argv=None) -> None:
    opt = parse_args(argv)
    try:
        run(opt)
    except InputError as error:
        sys.exit(f"evaluate.py: {error}")


if __name__ == "__main__":
    main()
