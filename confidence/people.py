"""Agreement of a model with people's judgements of photos and captions.

    python -m confidence.people runs/A --judgements ExpertAnnotations.txt CrowdFlowerAnnotations.txt
    python -m confidence.people test.npz --dev dev.npz --judgements FILE

A line of a file is a photo, a caption NAME#K (caption K, from 0, of photo NAME) and numbers, with tabs between:
ratings, as in Flickr8k's ExpertAnnotations.txt (three of 1 to 4), or a share of yes, how many said yes and how many no,
as in CrowdFlowerAnnotations.txt (Hodosh, Young and Hockenmaier 2013). Own pairs of a photo and a caption are left out.

Four questions are asked. Do scores order pairs as people do (Kendall's tau, as CLIPScore has it, Hessel et al. 2021)?
Is the probability of a judged pair true? How many photos fit a caption? Which measure follows that number? There a
caption's own photo counts with the share of yes that own pairs have, and a pair that nobody judged for no, since those
that might fit were shown. What is fitted to votes is fitted on half of the captions and judged on the others.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import itertools
import os
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

import cli
from cli import Arguments, InputError, check, filename
from confidence.__main__ import show_and_save
from confidence.calibration import DIRECTIONS
from confidence.inputs import add_arguments, open_items
from confidence.measures import auroc, judge_probability
from confidence.posterior import calibrate, expected_number, rows_of
from data import shorten
from evaluation.ambiguity import caption_baselines, correlate_measures
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import number, table, tabulate_correlations
from files import read_lines, refusing
from metrics import Sigmoid

FORM = ("a line is a photo, a caption NAME#K and ratings, or a share of yes, how many said yes and how many no, with "
        "tabs between, as Flickr8k's annotations have them")
FITTED = 2 ** 22                      # pairs that a map is fitted to
USUAL = 3.0                           # votes that a pair counts for which nobody judged
MOST_VOTES = 10_000                   # on one pair; each vote is judged by itself
SHARE_ERROR = 0.01                    # by which a printed share may differ from yes / (yes + no)


class Judgements(NamedTuple):
    """Judgements of K pairs of a photo and a caption that is not its own."""
    path: str
    image: np.ndarray                 # (K,) positions in the split
    caption: np.ndarray               # (K,)
    opinion: np.ndarray               # (K,) in [0, 1]: share of yes, or the mean rating from least to largest
    ratings: np.ndarray | None        # (K, R); None: votes
    votes: np.ndarray | None          # (K,) int64 how many; None: ratings
    own: int                          # pairs of a photo and its own caption, left out
    own_share: float                  # of yes among these, 1 where there are none


# ---- reading

class NameIndex:
    """Rows of files by name, with or without the folders before it."""

    def __init__(self, names: list[str]):
        self.rows = defaultdict(list)                       # whole name or last part -> rows
        self.names = names
        for row, name in enumerate(names):
            self.rows[os.path.basename(name)].append(row)

    def find(self, name: str) -> int:
        """Return the row of a name, or -1. Raises ValueError where several have its last part."""
        rows = self.rows.get(os.path.basename(name), [])
        if len(rows) > 1:
            ends = [row for row in rows if is_end_of(name, self.names[row])]
            same = [row for row in rows if self.names[row] == name]
            rows = same or ends or rows
        if len(rows) > 1:
            first, second = (self.names[row] for row in rows[:2])
            raise ValueError(f"'{name}' may be {first} or {second}: write its folder, too")
        return rows[0] if rows else -1


def is_end_of(a: str, b: str) -> bool:
    """True if one of two paths ends in the other, as photos/a/1.jpg in a/1.jpg."""
    return f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}")


def index_names(e: Embeddings) -> tuple[NameIndex, NameIndex]:
    """Index the rows of photos by name and of captions by NAME#K. Raises InputError."""
    check("image_name" in e.ids, f"{e.name} does not name its photos, and judgements do; put one name a line into "
                                 "{split}_ids.txt beside the features")
    names = e.ids["image_name"]
    captions = e.ids.get("caption_name")
    if not captions:
        count = defaultdict(itertools.count)                # of the captions of each photo so far
        captions = [f"{names[row]}#{next(count[row])}" for row in e.caption_image.tolist()]
    return NameIndex(names), NameIndex(captions)


def fits_votes(numbers: np.ndarray, scale: float) -> np.ndarray:
    """Mask the lines (K,) of `numbers` (K, R) that hold a share of yes, and votes for yes and no.

    scale: what the share is of, 1 or 100 (percent).
    """
    if numbers.shape[1] != 3:
        return np.zeros(len(numbers), bool)
    share, yes, no = numbers.T
    total = yes + no
    whole = (yes >= 0) & (no >= 0) & (total > 0) & (total == np.round(total)) & (yes == np.round(yes))
    return whole & (abs(share / scale - yes / np.maximum(total, 1)) <= SHARE_ERROR)


def find_scale(path: str, numbers: np.ndarray, lines: list[str]) -> float | None:
    """Tell votes, by what their share is of (1 or 100), from ratings (None).

    At least half of the lines of a file of votes fit; the first other one raises InputError.
    """
    fits = {scale: fits_votes(numbers, scale) for scale in (1.0, 100.0)}
    scale = max(fits, key=lambda scale: fits[scale].sum())
    if 2 * fits[scale].sum() < len(numbers):
        return None

    usable = fits[scale] & (numbers[:, 1:].sum(1) <= MOST_VOTES)
    if not usable.all():
        odd = int(np.argmin(usable))
        values = " ".join(lines[odd].split("\t")[2:])
        form = "a share of yes from 0 to 1" if scale == 1 else "percent of yes"
        raise InputError(
            f"{path}, line {odd + 1} has the numbers {shorten(values)}, and most lines hold {form}, "
            f"the whole number who said yes and the whole number who said no (at most "
            f"{MOST_VOTES:,} together), with share = yes / (yes + no); correct the line or remove it")
    return scale


def parse_lines(path: str, lines: list[str], photos: NameIndex,
                captions: NameIndex) -> tuple[np.ndarray, np.ndarray]:
    """Read lines as rows of photos and captions (K, 2), -1 for others, and numbers (K, R)."""
    pairs, numbers = [], []
    for k, line in enumerate(lines, 1):
        with refusing(f"{path}, line {k}: {ascii(line[:60])} is not a judgement", FORM):
            photo, caption, *values = line.split("\t")
            numbers.append([float(x) for x in values])
            if not values or not np.isfinite(numbers[-1]).all():
                raise ValueError("it has no finite numbers")
            pairs.append((photos.find(photo), captions.find(caption)))
    check(pairs, f"{path} holds no judgement; {FORM}")

    sizes = Counter(map(len, numbers))
    usual = max(sizes, key=sizes.get)
    for k, row in enumerate(numbers, 1):
        if len(row) != usual:
            raise InputError(f"{path}, line {k}: {ascii(lines[k - 1][:60])} is not a judgement (it has "
                             f"{len(row)} numbers, and most lines have {usual}); {FORM}")
    return np.array(pairs), np.array(numbers)


def read_judgements(path: str, e: Embeddings) -> Judgements:
    """Read a file of judgements.

    Raises InputError on a line of another form than most lines have, on a name that several photos
    share, and where no judgement is of the split's photos and captions.
    """
    lines = read_lines(path)
    pairs, numbers = parse_lines(path, lines, *index_names(e))
    scale = find_scale(path, numbers, lines)

    known = (pairs >= 0).all(1)
    is_own = known & (e.caption_image[pairs[:, 1]] == pairs[:, 0])
    own, chosen = int(is_own.sum()), known & ~is_own
    check(chosen.any(), f"none of the {len(pairs):,} pairs of {path} is of a photo and another photo's caption of "
                        f"{e.name}; name the split that was judged with --data_name and --split")
    image, caption = pairs[chosen].T

    if scale is None:
        ratings = numbers[chosen]
        opinion = (ratings.mean(1) - ratings.min()) / max(np.ptp(ratings), 1e-9)
        return Judgements(path, image, caption, opinion, ratings, None, own, 1.0)
    votes = numbers[:, 1:].sum(1)
    own_share = float(numbers[is_own, 0].mean() / scale) if own else 1.0
    return Judgements(path, image, caption, numbers[chosen, 1] / votes[chosen], None, votes[chosen].astype(int), own,
                      own_share)


def describe_judgements(judgements: Judgements) -> str:
    """Say what a file was read as, for whoever knows what it should be."""
    name, pairs = os.path.basename(judgements.path), f"{len(judgements.image):,} pairs"
    if judgements.ratings is None:
        low, high = judgements.votes.min(), judgements.votes.max()
        return f"{name}: read as votes on {pairs}, {low:,} to {high:,} a pair"
    low, high = judgements.ratings.min(), judgements.ratings.max()
    return (f"{name}: read as ratings from {low:g} to {high:g} of {pairs}, "
            f"{judgements.ratings.shape[1]} a pair")


# ---- do scores order pairs as people do

def measure_agreement(judgements: Judgements, scores: np.ndarray) -> dict:
    """Kendall's tau, percent, of scores (N, M) with ratings (c) or shares of yes (b).
    And the AUROC of whether most said yes, or the mean rating is in the upper half."""
    from scipy.stats import kendalltau  # takes a second to import
    s, opinion, ratings = scores[judgements.image, judgements.caption], judgements.opinion, judgements.ratings
    kind, values = ("b", opinion[:, None]) if ratings is None else ("c", ratings)
    tau = kendalltau(np.repeat(s, values.shape[1]), values.ravel(), variant=kind).statistic
    return {"pairs": len(s), "own": judgements.own, "kind": kind, "tau": 100 * float(tau),
            "auroc": auroc(s, opinion > 0.5)}


# ---- the probability that a pair fits

def split_halves(captions: int):
    """Yield (captions to judge, captions to fit on), (M,) bool: two random halves."""
    half = np.random.default_rng(0).random(captions) < 0.5
    yield half, ~half
    yield ~half, half


def join_votes(files: list[Judgements]) -> tuple[np.ndarray, ...]:
    """Photos, captions, shares of yes and votes, of all files: (K,) each."""
    return tuple(np.concatenate([getattr(x, name) for x in files if x.votes is not None])
                 for name in ("image", "caption", "opinion", "votes"))


def judge_votes(files: list[Judgements], scores: np.ndarray, pair: Sigmoid, log_var: np.ndarray | None) -> dict:
    """Judge probabilities by single votes: {map: `judge_probability` and "auroc"}.
    Maps: that of own pairs on dev; slope and bias fitted to votes; and with the captions' log-variances (M,), too."""
    image, caption, share, votes = join_votes(files)
    s, v = scores[image, caption], 0.0 if log_var is None else log_var[caption]
    single = np.concatenate([np.arange(n) < round(n * yes) for yes, n in zip(share, votes)])
    results = {}
    for name in ("own pairs", "fitted", *["with Sigma"] * (log_var is not None)):
        p = np.empty(len(s))
        for judged, others in split_halves(scores.shape[1]):
            part = others[caption]
            fitted = pair if name == "own pairs" else Sigmoid.fit(s[part], share[part], votes[part],
                                                                  v[part] if name == "with Sigma" else None)
            p[judged[caption]] = fitted(s, v)[judged[caption]]
        repeated = np.repeat(p, votes)
        results[name] = {**judge_probability(repeated, single), "auroc": auroc(repeated, single)}
    return results


# ---- how many fit

def estimate_counts(files: list[Judgements], scores: np.ndarray, owner: np.ndarray,
                    log_var: np.ndarray | None) -> np.ndarray:
    """Estimate the number of photos that fit captions (M,), NaN for those not judged.
    Each half of the captions is judged by a map fitted to votes on the other half. Own photos are included."""
    image, caption, yes, votes = join_votes(files)
    share, weight = np.zeros(scores.shape), np.full(scores.shape, USUAL)
    share[owner, np.arange(len(owner))] = np.mean([x.own_share for x in files if x.votes is not None])
    share[image, caption], weight[image, caption] = yes, votes
    known = np.bincount(caption, minlength=len(owner)) > 0
    expected = np.full(len(owner), np.nan)
    for judged, others in split_halves(len(owner)):
        few = np.random.default_rng(1).permutation(np.flatnonzero(others & known))[:max(2, FITTED // len(scores))]
        v = None if log_var is None else np.broadcast_to(log_var, scores.shape)[:, few].ravel()
        fitted = Sigmoid.fit(scores[:, few].ravel(), share[:, few].ravel(), weight[:, few].ravel(), v)
        judged = judged & known
        expected[judged] = fitted(scores[:, judged], 0.0 if log_var is None else log_var[judged]).sum(0)
    return expected


def sum_opinions(files: list[Judgements], side: str, queries: int) -> np.ndarray:
    """People's number of items that fit each query (Q,), NaN for those not judged.
    It is the sum of the shares of yes, or of ratings without votes."""
    files = [x for x in files if x.ratings is None] or files
    query = np.concatenate([x.caption if side == "t2i" else x.image for x in files])
    total = np.bincount(query, np.concatenate([x.opinion for x in files]), minlength=queries)
    return np.where(np.bincount(query, minlength=queries) > 0, total, np.nan)


# ---- all of it

def judge_by_people(e: Embeddings, files: list[Judgements], pair: Sigmoid) -> dict:
    """Judge a model by people. pair: the probability of own pairs on dev."""
    scores, log_det = e.scores, uncertainties(e)                                    # (N, M)
    results = {"files": {os.path.basename(x.path): measure_agreement(x, scores) for x in files}}
    log_var = uncertainties(e, lambda side: side.log_var.mean(1)).get("captions")
    voted = any(x.votes is not None for x in files)
    if voted:
        results["pairs"] = judge_votes(files, scores, pair, log_var)
    for side, (modality, _) in DIRECTIONS.items():
        queries = np.arange(len(e.caption_image) if side == "t2i" else e.n_images)
        measures = {"expected": expected_number(rows_of(e, side, queries), pair),
                    "max": scores.max(0 if side == "t2i" else 1)}
        if modality in log_det:
            measures["log_det_query"] = log_det[modality]
        if side == "t2i" and voted:
            measures["expected_by_votes"] = estimate_counts(files, scores, e.caption_image, log_var)
        truth = sum_opinions(files, side, len(queries))
        known = ~np.isnan(truth)
        if known.sum() > 2:
            baselines = {}
            if side == "t2i" and "caption" in e.ids:
                baselines = caption_baselines(e.ids["caption"])
            image_of_query = e.caption_image if side == "t2i" else queries
            correlations = correlate_measures(
                {name: x[known] for name, x in measures.items()},
                {name: x[known] for name, x in baselines.items()}, truth[known], image_of_query[known])
            results[modality] = {"queries": int(known.sum()), "mean": float(truth[known].mean()),
                                 "measures": correlations}
    return results


MEASURES = {"expected": "expected number, by own pairs of dev",
            "expected_by_votes": "expected number, by votes on other captions", "max": "maximum score",
            "log_det_query": "log det Sigma of the query"}
MAPS = {"own pairs": "own pairs of dev", "fitted": "fitted to votes", "with Sigma": "fitted to votes, with Sigma"}


def tabulate_judgements(results: dict) -> list:
    """Build the tables of the results of `judge_by_people`."""
    made = [table("people's judgements of pairs; tau: do scores order them as people do (100: always, 0: chance)",
                  {"pairs": "pairs", "own": "own, left out", "tau": "tau", "kind": "of", "auroc": "AUROC"},
                  results["files"], lambda key, x: f"tau-{x[key]}" if key == "kind" else
                  number(x[key], 1 if key == "tau" else 3))]
    if "pairs" in results:
        made.append(table("the probability that a judged pair fits, by single votes; what is fitted to votes sees "
                          "those on other captions",
                          {"nll": "NLL", "ece": "ECE", "ece_floor": "floor", "auroc": "AUROC"},
                          {MAPS[name]: x for name, x in results["pairs"].items()}))
    for name, _ in DIRECTIONS.values():
        if name in results:
            title = (f"{name} as queries: Spearman's rho with how many fit by people "
                     f"({results[name]['queries']:,} queries, {results[name]['mean']:.1f} on average)")
            made.append(tabulate_correlations(title, results[name]["measures"], MEASURES))
    return made


# ---- the command

def compare_with_people(opt) -> dict:
    """Compare a model with people as the options say; return the results. Raises InputError."""
    items, files = open_items(opt, ())
    judgements = [read_judgements(path, items.whole) for path in opt.judgements]
    calibration = calibrate(items.dev, items.source)
    people = judge_by_people(items.whole, judgements, Sigmoid(**calibration["pair"]))
    lines = [describe_judgements(x) for x in judgements]
    return show_and_save({"people": people}, calibration, tabulate_judgements(people), lines, items, files)


def parse_args(argv=None):
    p = Arguments("Compare a model with people's judgements of photos and captions.")
    add_arguments(p)
    p.add_argument("--judgements", type=filename, metavar="FILE", nargs="+", required=True, help="as Flickr8k's")
    p.set_defaults(results="people", calibrate_on=None, cross_fit=None, sets=None, logit_scale=None,
                   logit_bias=None, variances=None, train=None, export=None)
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("confidence.people", compare_with_people, parse_args(argv))


if __name__ == "__main__":
    main()
