"""Trained models on phrases and the regions of their photos: the scores that evaluation/localisation.py ranks."""
import numpy as np
import torch

import metrics
from evaluation.localisation import chance, locate, measures
from files.phrases import PhraseSplit
from model import JointEmbedding
from similarities import uncertainty

REGIONS = 4096                        # that are encoded at a time in training


class PhraseScores:
    """The scores of a photo's proposals for its phrases; of several models their mean.

    Photos are encoded some at a time, in order, and forgotten: of the real test split the embeddings of all proposals
    would take a gigabyte. `region_log_det` (R,) and `phrase_log_det` (M,) are log det Sigma of what has been encoded,
    by the first model, NaN of points; `alike` the mean cosines of the first regions and phrases.
    """

    def __init__(self, models: list[JointEmbedding], inputs: list[tuple], split: PhraseSplit, device,
                 most: int = REGIONS):
        """inputs: of each model the regions (a split's images) and the phrases (its tokens) as it reads them. most:
        regions that are encoded at a time, of one photo at least."""
        self.models, self.inputs, self.split, self.device, self.most = models, inputs, split, device, most
        self.region_log_det, self.phrase_log_det = (np.full(n, np.nan) for n in (len(split.boxes), len(split.phrases)))
        self.scores, self.alike = {}, {}

    def __call__(self, n: int, columns: np.ndarray) -> np.ndarray:
        """(P, m) float32 of photo n, whose phrases are `columns`."""
        if n not in self.scores:
            self.encode(n)
        return self.scores.pop(n)

    @torch.no_grad()
    def encode(self, first: int) -> None:
        """Score the photos from `first` on, as many as have `most` proposals together, at least one."""
        start = self.split.start
        last = max(first + 1, int(np.searchsorted(start, start[first] + self.most, side="right")) - 1)
        low, high = np.searchsorted(self.split.phrase_photo, (first, last))
        rows, columns = np.arange(start[first], start[last]), np.arange(low, high)
        self.scores = {n: 0.0 for n in range(first, last)}
        for k, (model, (images, tokens)) in enumerate(zip(self.models, self.inputs)):
            regions = model.embed_images(images.gather(rows).to(self.device))
            if not len(columns):
                continue
            words, lengths = tokens.batch(columns)
            phrases = model.embed_captions(words.to(self.device), lengths)
            self.keep(k, regions, phrases, rows, columns)
            for n in range(first, last):
                here = slice(*(start[[n, n + 1]] - start[first]))
                own = slice(*(np.searchsorted(self.split.phrase_photo, (n, n + 1)) - low))
                if own.start < own.stop:
                    scores = model.similarity(part(regions, here), part(phrases, own))        # (P, m)
                    self.scores[n] = self.scores[n] + scores.float().cpu().numpy() / len(self.models)

    def keep(self, k: int, regions, phrases, rows: np.ndarray, columns: np.ndarray) -> None:
        if k:
            return
        for e, found, index in ((regions, self.region_log_det, rows), (phrases, self.phrase_log_det, columns)):
            if e.log_var is not None:
                found[index] = uncertainty(e).cpu().numpy()
        if not self.alike:
            self.alike = {"regions": metrics.mean_cosine(regions.mean), "phrases": metrics.mean_cosine(phrases.mean)}


def part(e, rows: slice):
    """Some of the rows of an Embedding."""
    return type(e)(*(None if x is None else x[rows] for x in e))


def rsum_by_chance(split: PhraseSplit) -> float:
    """R@1 + R@5 + R@10 of proposals in random order, in percent."""
    def equal(n: int, columns: np.ndarray) -> np.ndarray:
        return np.zeros((split.start[n + 1] - split.start[n], len(columns)))
    return chance(locate(split, equal))["rsum"]


def validate_phrases(model: JointEmbedding, split: PhraseSplit, tokens, device) -> dict:
    """Recalls of a split (evaluation.localisation.measures), and "alike", the mean cosine of two regions and of two
    phrases."""
    scores = PhraseScores([model], [(split.images, tokens)], split, device)
    found = measures(locate(split, scores), split)
    return {**found, "alike": scores.alike}
