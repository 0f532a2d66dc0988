"""How sure a model is of the first box of a phrase: confidences fitted on the phrases of val, judged on others.

The measures are those of evaluation/confidence.py, where the gallery of a phrase is the proposals of its photo. The one
to use is "overlap", the posterior of all proposals at the place of the first: the proposals of one object share the
mass. `fit` sees the val split alone.
"""
from typing import NamedTuple

import numpy as np
import torch

from cli import InputError
from evaluation import ambiguity, confidence
from evaluation.calibration import temperature
from evaluation.certainty import Certainty
from evaluation.confidence import FITTED, Fitted, Seen, percent
from evaluation.localisation import RIGHT, BoxSplit, Located, ScoresOf, locate, photo_by_photo
from metrics import sampled_spearman, spearman

FEWEST = 4                            # photos with a known number of things that fit, for a correlation
SIDE = "phrases"                      # the name of this direction in results and pictures
NAMES = {"overlap": "posterior of all boxes at its place", "posterior": "posterior of the first box",
         "isotonic": "overlap through an isotonic map", "entropy": "-entropy of the posterior",
         "max": "maximum score", "margin": "margin to the best box elsewhere", "std": "deviation of the scores",
         "log_det_query": "-log det Sigma of the phrase", "log_det_answer": "-log det Sigma of the box",
         "stacked": "logistic of all of these", "stacked_without_sigma": "logistic without Sigma"}


class Phrases(NamedTuple):
    """The phrases of a split, what scores them, and, of Gaussians, log det Sigma in nats."""
    name: str                         # for the reader, such as "f30k_entities test"
    split: BoxSplit
    scores_of: ScoresOf
    phrase_log_det: np.ndarray | None = None      # (M,), None where phrases are points
    region_log_det: np.ndarray | None = None      # (R,), None where regions are points
    fitting: np.ndarray | None = None             # (M,) how many things of the photo the words fit, NaN: unknown


def scored_once(scores_of: ScoresOf) -> ScoresOf:
    """The same scores, computed once for each photo and kept: 4 bytes for each phrase and proposal of a photo."""
    kept = {}

    def score(n: int, columns: np.ndarray):
        if n not in kept:
            kept[n] = torch.as_tensor(scores_of(n, columns)).detach().cpu()
        return kept[n]
    return score


def padded(of: Phrases) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores (Q, G) of the phrases that some proposal is right for, and which proposals these are (Q, G) bool. G is
    the largest number of proposals of a photo, and -inf stands where a photo has fewer. Q is cut at random where there
    would be more than FITTED scores.
    """
    photos = list(photo_by_photo(of.split, of.scores_of))
    gallery = max((len(photo.rows) for photo in photos), default=0)
    found = [(photo.scores[k], photo.overlap[k] >= RIGHT) for photo in photos for k in range(len(photo.phrases))]
    found = [pair for pair in found if pair[1].any()]
    if not found:
        raise InputError(f"no phrase of {of.name} has a proposal of IoU {RIGHT} with its box, so nothing can be "
                         "calibrated; extract more proposals, or leave --confidence out")
    most = FITTED // gallery
    if len(found) > most:
        found = [found[k] for k in np.random.default_rng(0).permutation(len(found))[:most]]
    scores, right = torch.full((len(found), gallery), -torch.inf), torch.zeros(len(found), gallery, dtype=torch.bool)
    for row, (score, hit) in enumerate(found):
        scores[row, :len(score)], right[row, :len(hit)] = torch.from_numpy(score), torch.from_numpy(hit)
    return scores, right


def asked(located: Located) -> np.ndarray:
    """The phrases that have a first box (Q,): those of photos with proposals."""
    return np.flatnonzero(located.first >= 0)


def measures(of: Phrases, located: Located) -> dict[str, np.ndarray]:
    """The confidences of the first boxes of the phrases `asked` (Q,), more where surer, by measure."""
    chosen = asked(located)
    values = {name: value[chosen] for name, value in located.confidences.items()}
    if of.phrase_log_det is not None:
        values["log_det_query"] = -np.asarray(of.phrase_log_det, np.float64)[chosen]
    if of.region_log_det is not None:
        values["log_det_answer"] = -np.asarray(of.region_log_det, np.float64)[located.first[chosen]]
    return values


def fit(dev: Phrases) -> Fitted:
    """The temperature of the posterior over the proposals, and the maps to the probability that the first box is right.

    Raises InputError where no temperature fits, and where all first boxes are right, or all wrong.
    """
    dev = dev._replace(scores_of=scored_once(dev.scores_of))
    scores, right = padded(dev)
    t = temperature(scores, right)
    located = locate(dev.split, dev.scores_of, t)
    first_right = located.right[asked(located)]
    confidence.refuse_one_class(first_right, dev.name, SIDE)
    return confidence.fit_maps(measures(dev, located), first_right, t, None, scores.shape[1])


def judge(test: Phrases, located: Located, fitted: Fitted) -> tuple[dict, dict[str, np.ndarray]]:
    """What every confidence is worth (`confidence.worth`, intervals by a bootstrap over photos), and the confidences
    (Q,) of the phrases `asked`. located: of `locate` at the temperature of `fitted`."""
    chosen = asked(located)
    right = located.right[chosen]
    confidence.refuse_one_class(right, test.name, SIDE)
    values = confidence.with_maps(measures(test, located), fitted)
    return confidence.worth(values, right, test.split.phrase_photo[chosen]), values


def report(dev: Phrases | None, test: Phrases) -> tuple[Certainty, Located]:
    """Fits on dev, judges on test: the parts of results.json, tables, sentences, what was fitted, and what is drawn;
    and what was found for the phrases of test. Raises InputError without dev, and where dev is test.
    """
    if dev is None:
        raise InputError(f"the confidence of {test.name} is calibrated on phrases of val, and there are none; write "
                         "proposals and features of val too, or leave --confidence out")
    if dev.name == test.name:
        raise InputError(f"{test.name} is what confidences are calibrated on; judge another split, or leave "
                         "--confidence out")
    fitted = fit(dev)
    located = locate(test.split, test.scores_of, fitted.temperature)
    found, values = judge(test, located, fitted)
    chosen = asked(located)
    results, made = {"confidence": {SIDE: found}}, confidence.tables({SIDE: found}, NAMES)
    lines = list(sentences(found, fitted, dev, test, located, values))
    known = None if test.fitting is None else chosen[~np.isnan(np.asarray(test.fitting, float)[chosen])]
    if known is not None and len(np.unique(test.split.phrase_photo[known])) >= FEWEST:
        results["ambiguity"] = of_fitting(test, chosen, values)
        made += ambiguity.tables({"fitting": {SIDE: results["ambiguity"][SIDE]}}, NAMES)
        lines += fitting_sentences(results["ambiguity"])
    seen = {SIDE: Seen(values, located.right[chosen], chosen, located.first[chosen])}
    return Certainty(results, made, lines, {"split": dev.name, SIDE: fitted.plain()}, seen), located


# ---- ambiguity

def of_fitting(of: Phrases, chosen: np.ndarray, values: dict[str, np.ndarray]) -> dict:
    """Is the model unsure where the words fit several things of the photo? {"phrases": {measure: {"rho",
    "rho_given_words"}}, "log_det": {"spearman", "std", "low", "high", "rho", ...}}.

    "log_det" is Spearman's correlation of log det Sigma of the phrase with the number of things that fit: the mean,
    deviation and 95% interval over samples of photos, with one phrase of each (`metrics.sampled_spearman`, whose
    deviation over halves is that of the whole), and "rho" of all phrases. It is left out for points.
    """
    fitting = np.asarray(of.fitting, np.float64)[chosen]
    known = ~np.isnan(fitting)
    words = np.array([len(of.split.phrases[m].split()) for m in chosen[known]])
    results = {SIDE: {name: ambiguity.correlations(-value[known], fitting[known], words, None)
                      for name, value in values.items()}}
    if "log_det_query" in values:
        log_det = -values["log_det_query"][known]
        sampled = sampled_spearman(of.split.phrase_photo[chosen[known]], fitting[known], log_det)
        results["log_det"] = {**sampled, "low": sampled["spearman"] - 1.96 * sampled["std"],
                              "high": sampled["spearman"] + 1.96 * sampled["std"],
                              "rho": spearman(log_det, fitting[known])}
    return results


def fitting_sentences(results: dict):
    """What `of_fitting` found of log det Sigma."""
    of = results.get("log_det")
    if of and np.isnan(of["spearman"]):
        yield ("log det Sigma of the phrase and the number of things that its words fit: no correlation is defined, as "
               "one of the two is the same for all phrases of a sample of photos")
    elif of:
        verdict = ("wider where more things fit" if of["low"] > 0 else "narrower where more things fit"
                   if of["high"] < 0 else "no wider and no narrower beyond chance where more things fit")
        yield (f"log det Sigma of the phrase and the number of things that its words fit: Spearman's rho "
               f"{of['spearman']:+.3f}, 95% interval {of['low']:+.3f} to {of['high']:+.3f} over {of['items']:,} "
               f"photos, one phrase of each ({of['rho']:+.3f} over all {of['pairs']:,} phrases): {verdict}")


# ---- sentences

def sentences(found: dict, fitted: Fitted, dev: Phrases, test: Phrases, located: Located, values: dict):
    """What the tables do not show. found, values: of `judge`."""
    best = confidence.best_name(values)
    yield (f"calibrated on {len(dev.split.phrase_photo):,} phrases of {dev.name}, judged on "
           f"{len(test.split.phrase_photo):,} of {test.name}; T = {fitted.temperature:.4g}, over up to "
           f"{fitted.gallery:,} proposals of a photo")
    without = len(located.first) - len(values[best])
    if without:
        yield f"{without:,} phrases of photos without proposals have no first box and are not among these"
    right = located.right[asked(located)]
    for name in (best, "isotonic"):
        yield (f"{NAMES[name]}: mean {percent(float(np.mean(values[name])))}, {100 * right.mean():.1f}% are right, "
               f"ECE {found[name]['ece']:.3f} (by chance alone {found[name]['ece_floor']:.3f}), AUROC "
               f"{found[name]['auroc']:.3f}")
    above = found["max"]["above_posterior"]
    yield (f"AUROC of the maximum score less that of the {NAMES[best]}: {above['difference']:+.3f}, 95% interval "
           f"{above['low']:+.3f} to {above['high']:+.3f} by a bootstrap over photos")
    yield from confidence.of_sigma(SIDE, found)
