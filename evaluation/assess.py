"""What is asked about one subject: judgements beyond the original pairs are read, protocols run, results collected."""
import os
import time
from dataclasses import dataclass

import numpy as np
import torch

import metrics
from cli import InputError
from evaluation import annotations, protocols
from evaluation.annotations import MATCH, Index, Pairs, Ratings
from evaluation.protocols import FOLD, Record, Subject
from evaluation.report import SIDES
from similarities import Cosine, Embedding, uncertainty

INSTANCES = "instances_val2014.json"  # COCO's dev and test images are of its 2014 validation set


@dataclass
class Judgements:
    """Matches and ratings beyond the original pairs, as positions in the split."""
    ratings: dict[str, Ratings] | None = None     # of Crisscrossed Captions
    cxc: dict[str, Pairs] | None = None
    codes: np.ndarray | None = None               # (N, K) bool, categories that an image shows
    eccv: dict[str, Pairs] | None = None
    positives: dict[str, tuple[Pairs, int]] | None = None

    def lines(self, n: int, m: int):
        """What was read, for the reader of the report."""
        if self.ratings:
            for kind, rated in self.ratings.items():
                high = int((rated.score >= MATCH[kind]).sum())
                yield f"{kind.upper()}: {len(rated.score):,} rated pairs, {high:,} of them {MATCH[kind]:g} or more"
            for side, pairs in self.cxc.items():
                queries, total = len(np.unique(pairs.query)), n if side[0] == "i" else m
                yield f"CxC {SIDES[side]}: {len(pairs.query):,} matches of {queries:,} queries" + (
                    f"; {total - queries:,} queries without a match do not count" if queries < total else "")
        if self.codes is not None:
            shown, categories = int(self.codes.any(1).sum()), self.codes.shape[1]
            yield f"PMRP: {shown:,} of {n:,} images show at least one of {categories} categories"
        for side, pairs in (self.eccv or {}).items():
            yield f"ECCV {SIDES[side]}: {len(pairs.query):,} matches of {len(np.unique(pairs.query)):,} queries"
        for side, (pairs, without) in (self.positives or {}).items():
            yield f"positives {SIDES[side]}: {len(pairs.query):,} matches of {len(np.unique(pairs.query)):,} queries" + (
                f"; {without:,} queries list none and do not count" if without else "")


def read_judgements(subject: Subject, opt) -> Judgements:
    """Those that the options ask for."""
    found = Judgements()
    if opt.cxc or opt.pmrp or opt.eccv or opt.positives:
        images = Index(subject.items.image_ids, "image", subject.items.source)
    if opt.pmrp:
        path = opt.instances or os.path.join(subject.folder, "annotations", INSTANCES)
        found.codes = annotations.read_instances(path, images)
    if opt.cxc or opt.eccv or opt.positives:
        captions = Index(subject.items.caption_ids, "caption", subject.items.source)
    if opt.cxc:
        part = "val" if (subject.split or opt.split) in ("dev", "val") else "test"
        folder = opt.cxc_path or os.path.normpath(os.path.join(subject.folder, "..", "cxc"))
        found.ratings = annotations.read_cxc(folder, part, images, captions)
        found.cxc = annotations.cxc_pairs(found.ratings, subject.caption_image, opt.cxc_rule)
    if opt.eccv:
        found.eccv = annotations.read_eccv(opt.eccv_path or annotations.eccv_folder(), images, captions)
    if opt.positives:
        found.positives = annotations.read_positives(opt.positives, images, captions)
    return found


@torch.no_grad()
def run_protocols(subject: Subject, judged: Judgements, opt, record: Record) -> tuple[dict, list[str]]:
    """The "protocols" of results.json, and sentences on what cannot be had."""
    if opt.fold5 and subject.n_images < 5 * FOLD:
        raise InputError(f"--fold5 needs 5 x 1,000 images and {subject.name} has {subject.n_images:,}; leave it out or name a "
                         "larger split (COCO: testall for precomputed features)")
    if opt.rerank and not (subject.members and all(similarity.parts for similarity, *_ in subject.members)):
        raise InputError(f"--rerank {opt.rerank} saves time where words are compared with regions, and {subject.name} is "
                         f"scored by {subject.similarity}; leave it out, or evaluate a model of --sim scan")
    if opt.rerank >= max(subject.n_images, len(subject.caption_image)):
        raise InputError(f"--rerank {opt.rerank} keeps all of {subject.n_images:,} images and {len(subject.caption_image):,} "
                         "captions, so nothing is saved; give fewer, 100 is usual, or leave it out")
    results, absent, scores, began, seconds = {}, [], None, time.perf_counter(), {}
    chosen = protocols.folds(subject) if opt.fold5 else None
    every = [(np.arange(subject.n_images), np.arange(len(subject.caption_image)))]
    if subject.has_images:
        several_matches = judged.cxc or judged.eccv or judged.positives or judged.codes is not None
        if several_matches or subject.scores is not None:
            scores = protocols.score_matrix(subject, opt.block)
        variants = {"full": subject.members, "mean_only": means_only(subject),
                    "shuffled": shuffled(subject) if opt.uncertainty and opt.control else []}
        for name, members in variants.items():
            fold_parts = chosen if name != "shuffled" else None
            if members or (name == "full" and scores is not None):
                tile = protocols.image_text(members) if scores is None or name != "full" else protocols.image_text_of(scores)
                for key, part in ((name, None), (f"{name}_folds5".replace("full_", ""), fold_parts)):
                    if part or key == name:
                        results[key] = protocols.plain(subject, record, key, tile, part, opt.block)
                        seconds[key] = time.perf_counter() - began
        if opt.rerank:
            began = time.perf_counter()
            for key, part in (("rerank", None), ("rerank_folds5", chosen)):
                if part or key == "rerank":
                    results[key] = protocols.two_stages(subject, record, key, opt.rerank, part)
                    results["rerank"].setdefault("seconds", time.perf_counter() - began)
            results["rerank"]["seconds_full"] = seconds["full"]
    else:
        absent.append("image to text and text to image: there are no images")
    if scores is not None:
        if judged.codes is not None:
            for key, part in (("pmrp", every), ("pmrp_folds5", chosen)):
                if part:
                    results[key] = protocols.pmrp(scores, judged.codes, subject.caption_image, part, record, key)
        if judged.eccv:
            results["eccv"] = protocols.eccv(scores, judged.eccv, record)
        if judged.positives:
            pairs = {side: found for side, (found, _) in judged.positives.items()}
            results["positives"] = protocols.several(scores, pairs, record, "positives", every, "rp")
            for side, (_, without) in judged.positives.items():
                results["positives"][side]["without"] = without
    elif judged.codes is not None or judged.eccv or judged.positives:
        absent.append("PMRP, ECCV Caption and --positives: there are no images")
    if judged.cxc:
        held, scores, tile = [scores], None, None           # handed over: cxc lets go of the matrix before text to text
        found, lacking = protocols.cxc(subject, held.pop(), judged.ratings, judged.cxc, opt.fold5, record)
        results, absent = {**results, **found}, absent + lacking
    return results, absent


def deal_variances(images: Embedding, captions: Embedding, seed: int = 0) -> tuple[Embedding, Embedding]:
    """Both sides with the variances of other items: the control that shows whether it matters whose they are.

    Each side goes round one random circle, so that no item keeps its own; the circles are drawn one after the other, since with
    as many captions as images a common one would leave matching variances together. Points stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)

    def dealt(e: Embedding) -> Embedding:
        circle = torch.randperm(len(e.mean), generator=generator).to(e.mean.device)
        if e.log_var is None:
            return e
        log_var = torch.empty_like(e.log_var)
        log_var[circle] = e.log_var[circle.roll(1)]
        return e._replace(log_var=log_var)
    return dealt(images), dealt(captions)


def means_only(subject: Subject) -> list:
    """The members of a Gaussian model as points: the row that shows what the variances do."""
    return [(Cosine(), Embedding(i.mean), Embedding(c.mean)) for _, i, c in subject.members] if uses_variances(subject) else []


def shuffled(subject: Subject) -> list:
    """The members with their variances dealt to other items: the row that shows whether it matters whose they are."""
    return [(similarity, *deal_variances(i, c)) for similarity, i, c in subject.members] if uses_variances(subject) else []


def uses_variances(subject: Subject) -> bool:
    """Whether any member has variances and compares by them: the cosine looks at means alone."""
    return subject.gaussian and not all(isinstance(similarity, Cosine) for similarity, *_ in subject.members)


def uncertainties(subject: Subject) -> dict[str, np.ndarray]:
    """log det Sigma of images (N,) and captions (M,) where they are Gaussian, averaged over the members; nats."""
    found = {}
    for which, side in ((1, "images"), (2, "captions")):
        values = [uncertainty(m[which]) for m in subject.members if m[which] is not None and m[which].log_var is not None]
        if values:
            found[side] = torch.stack(values).mean(0).cpu().numpy()
    return found


def assess(subject: Subject, judged: Judgements, opt) -> tuple[dict, Record, dict[str, np.ndarray]]:
    """Everything the options ask about one subject: what results.json holds, the outcome of every query, uncertainties."""
    record, spreads = Record(), uncertainties(subject)
    found, absent = run_protocols(subject, judged, opt, record)
    results = {"checkpoints": subject.name.split(" + "), "data_name": subject.data_name, "split": subject.split or None,
               "similarity": subject.similarity, "images": subject.n_images, "captions": len(subject.caption_image),
               "protocols": found}
    if found.get("full"):
        results["chance"] = {"full": metrics.chance(subject.caption_image, subject.n_images)}
        if opt.fold5:
            results["chance"]["folds5"] = metrics.average([metrics.chance(subject.caption_image[c] - i[0], len(i))
                                                           for i, c in protocols.folds(subject)])
    if subject.notes:
        results["notes"] = subject.notes
    if found.get("full"):
        results["best_ranks"] = {side: metrics.best_rank_means(rank[~np.isnan(rank)])
                                 for side in ("i2t", "t2i") for rank in [record["full", side, "rank"]]}
    if absent:
        results["absent"] = absent
    if judged.codes is not None and subject.members and subject.has_images:
        results["neighbours"] = protocols.neighbours(subject, judged.codes)
    if subject.unknown_words:
        results["unknown_words"] = subject.unknown_words
    if opt.uncertainty and not spreads:
        raise InputError(f"--uncertainty: {subject.name} has points, which have no uncertainty; evaluate a Gaussian model")
    for side, values in spreads.items():
        report = {"mean": float(values.mean()), "std": float(values.std())}
        if opt.uncertainty and "full" in found:
            ranks = record["full", "i2t" if side == "images" else "t2i", "rank"]
            report.update(protocols.uncertainty_report(values, ranks))
        results.setdefault("uncertainty", {})[side] = report
    return without_nan(results), record, spreads


def without_nan(value):
    """The same with None for NaN, which JSON does not know: a correlation with a constant, say."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
