"""Agreement of a model with people's judgements of photos and captions.

    python -m confidence.people runs/A --judgements ExpertAnnotations.txt CrowdFlowerAnnotations.txt
    python -m confidence.people test.npz --dev dev.npz --judgements FILE

A line of a file is a photo, a caption NAME#K (caption K, from 0, of photo NAME) and numbers, with
tabs between: ratings, as in Flickr8k's ExpertAnnotations.txt (three of 1 to 4), or a share of yes,
how many said yes and how many no, as in CrowdFlowerAnnotations.txt (Hodosh, Young and Hockenmaier
2013). Matched pairs of a photo and its own caption are left out.

Four questions are asked. Do scores order pairs as people do (Kendall's tau, as CLIPScore has it,
Hessel et al. 2021)? Is the probability of a judged pair true? How many photos fit a caption? Which
measure follows that number? There a caption's own photo counts as a match with the average
acceptance rate of matched pairs; unjudged pairs count as non-matches, since those that might fit
were shown. What is fitted to votes is fitted on half of the captions and judged on the others.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from torch import Tensor

import utils
from confidence.calibration import DIRECTIONS
from confidence.inputs import add_arguments, open_items, show_and_save
from confidence.measures import judge_probability
from confidence.posterior import calibrate, expected_number, rows_of
from data import shorten
from evaluation.ambiguity import caption_baselines, correlate_measures
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.report import number, table, tabulate_correlations
from losses import Embedding
from metrics import Sigmoid, auroc
from utils import Arguments, InputError, filename, read_lines, refusing

FORM_OF_LINE = (
    "a line is a photo, a caption NAME#K and ratings, or a share of yes, how many said yes and how "
    "many no, with tabs between, as Flickr8k's annotations have them"
)
SCORES_OF_MAP = 2**22  # that a map to probabilities is fitted to
VOTES_OF_UNJUDGED = 3.0  # that a pair counts for which nobody judged
MAX_VOTES = 10_000  # on one pair; each vote is judged by itself
SHARE_ERROR = 0.01  # by which a printed share may differ from yes / (yes + no)


class Judgements(NamedTuple):
    """Judgements of K pairs of a photo and a caption that is not its own."""

    path: str
    image: np.ndarray  # (K,) positions in the split
    caption: np.ndarray  # (K,)
    opinion: np.ndarray  # (K,) in [0, 1]: share of yes, or the mean rating from least to largest
    ratings: np.ndarray | None  # (K, R); None: votes
    votes: np.ndarray | None  # (K,) int64 how many; None: ratings
    own: int  # pairs of a photo and its own caption, left out
    own_share: float  # of yes among these, 1 where there are none


# ---- reading


class NameIndex:
    """Rows of files by name, with or without the folders before it."""

    def __init__(self, names: list[str]):
        self.names = names
        self.rows = defaultdict(list)  # last part of a name -> rows
        for row, name in enumerate(names):
            self.rows[os.path.basename(name)].append(row)

    def find(self, name: str) -> int:
        """Return the row of a name, or -1. Raises ValueError where several have its last part."""
        rows = self.rows.get(os.path.basename(name), [])
        if len(rows) > 1:
            ends = [row for row in rows if is_end_of(name, self.names[row])]
            same = [row for row in rows if self.names[row] == name]
            rows = same or ends or rows
        if not rows:
            return -1
        if len(rows) > 1:
            first = self.names[rows[0]]
            second = self.names[rows[1]]
            raise ValueError(f"'{name}' may be {first} or {second}: write its folder, too")
        return rows[0]


def is_end_of(a: str, b: str) -> bool:
    """True if one of two paths ends in the other, as photos/a/1.jpg in a/1.jpg."""
    return f"/{a}".endswith(f"/{b}") or f"/{b}".endswith(f"/{a}")


def index_names(e: Embeddings) -> tuple[NameIndex, NameIndex]:
    """Index the rows of photos by name and of captions by NAME#K. Raises InputError."""
    if "image_name" not in e.ids:
        raise InputError(
            f"{e.name} does not name its photos, and judgements do; put one name a line into "
            "{split}_ids.txt beside the features"
        )

    names = e.ids["image_name"]
    captions = e.ids.get("caption_name")
    if not captions:
        count = defaultdict(itertools.count)  # of the captions of each photo so far
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
    some = (yes >= 0) & (no >= 0) & (total > 0)
    whole = (total == np.round(total)) & (yes == np.round(yes))
    error = abs(share / scale - yes / np.maximum(total, 1))
    return some & whole & (error <= SHARE_ERROR)


def find_scale(path: str, numbers: np.ndarray, lines: list[str]) -> float | None:
    """Tell votes, by what their share is of (1 or 100), from ratings (None).

    At least half of the lines of a file of votes fit; the first other one raises InputError.
    """
    scale = 1.0
    fits = fits_votes(numbers, 1.0)
    of_percent = fits_votes(numbers, 100.0)
    if of_percent.sum() > fits.sum():
        scale = 100.0
        fits = of_percent
    if 2 * fits.sum() < len(numbers):
        return None

    usable = fits & (numbers[:, 1:].sum(1) <= MAX_VOTES)
    if not usable.all():
        odd = int(np.argmin(usable))
        values = " ".join(lines[odd].split("\t")[2:])
        form = "percent of yes"
        if scale == 1:
            form = "a share of yes from 0 to 1"
        raise InputError(
            f"{path}, line {odd + 1} has the numbers {shorten(values)}, and most lines hold "
            f"{form}, the whole number who said yes and the whole number who said no (at most "
            f"{MAX_VOTES:,} together), with share = yes / (yes + no); correct the line or remove it"
        )
    return scale


def parse_lines(
    path: str, lines: list[str], photos: NameIndex, captions: NameIndex
) -> tuple[np.ndarray, np.ndarray]:
    """Read lines as rows of photos and captions (K, 2), -1 for others, and numbers (K, R)."""
    pairs = []
    numbers = []
    for k, line in enumerate(lines, 1):
        with refusing(f"{path}, line {k}: {ascii(line[:60])} is not a judgement", FORM_OF_LINE):
            photo, caption, *values = line.split("\t")
            row = [float(x) for x in values]
            if not row or not np.isfinite(row).all():
                raise ValueError("it has no finite numbers")
            numbers.append(row)
            pairs.append((photos.find(photo), captions.find(caption)))
    if not pairs:
        raise InputError(f"{path} holds no judgement; {FORM_OF_LINE}")

    sizes = Counter(len(row) for row in numbers)
    usual = max(sizes, key=sizes.get)
    for k, row in enumerate(numbers, 1):
        if len(row) != usual:
            raise InputError(
                f"{path}, line {k}: {ascii(lines[k - 1][:60])} is not a judgement (it has "
                f"{len(row)} numbers, and most lines have {usual}); {FORM_OF_LINE}"
            )
    return np.array(pairs), np.array(numbers)


def read_judgements(path: str, e: Embeddings) -> Judgements:
    """Read a file of judgements.

    Raises InputError on a line of another form than most lines have, on a name that several photos
    share, and where no judgement is of the split's photos and captions.
    """
    lines = read_lines(path)
    photos, captions = index_names(e)
    pairs, numbers = parse_lines(path, lines, photos, captions)
    scale = find_scale(path, numbers, lines)

    known = (pairs >= 0).all(1)
    is_own = known & (e.caption_image[pairs[:, 1]] == pairs[:, 0])
    own = int(is_own.sum())
    chosen = known & ~is_own
    if not chosen.any():
        raise InputError(
            f"none of the {len(pairs):,} pairs of {path} is of a photo and another photo's caption "
            f"of {e.name}; name the split that was judged with --data_name and --split"
        )
    image, caption = pairs[chosen].T

    if scale is None:
        ratings = numbers[chosen]
        opinion = (ratings.mean(1) - ratings.min()) / max(np.ptp(ratings), 1e-9)
        return Judgements(path, image, caption, opinion, ratings, None, own, 1.0)

    own_share = 1.0
    if own:
        own_share = float(numbers[is_own, 0].mean() / scale)
    yes = numbers[chosen, 1]
    votes = numbers[chosen, 1:].sum(1)
    return Judgements(path, image, caption, yes / votes, None, votes.astype(int), own, own_share)


def describe_judgements(judgements: Judgements) -> str:
    """Say what a file was read as, for whoever knows what it should be."""
    name = os.path.basename(judgements.path)
    pairs = f"{len(judgements.image):,} pairs"
    if judgements.ratings is None:
        low = judgements.votes.min()
        high = judgements.votes.max()
        return f"{name}: read as votes on {pairs}, {low:,} to {high:,} a pair"

    low = judgements.ratings.min()
    high = judgements.ratings.max()
    each = judgements.ratings.shape[1]
    return f"{name}: read as ratings from {low:g} to {high:g} of {pairs}, {each} a pair"


# ---- do scores order pairs as people do


def measure_agreement(judgements: Judgements, scores: np.ndarray) -> dict:
    """Compute Kendall's tau, percent, of scores (N, M) with ratings (c) or shares of yes (b).

    And the AUROC of whether most said yes, or the mean rating is in the upper half.
    """
    from scipy.stats import kendalltau  # takes a second to import

    s = scores[judgements.image, judgements.caption]  # (K,)
    opinion = judgements.opinion
    kind = "c"
    values = judgements.ratings  # (K, R)
    if values is None:
        kind = "b"
        values = opinion[:, None]
    repeated = np.repeat(s, values.shape[1])
    tau = kendalltau(repeated, values.ravel(), variant=kind).statistic
    return {
        "pairs": len(s),
        "own": judgements.own,
        "kind": kind,
        "tau": 100 * float(tau),
        "auroc": auroc(s, opinion > 0.5),
    }


# ---- the probability that a pair fits


def split_halves(captions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (captions to judge, captions to fit on), (M,) bool: two random halves."""
    half = np.random.default_rng(0).random(captions) < 0.5
    yield half, ~half
    yield ~half, half


class Votes(NamedTuple):
    """Votes on K pairs, of all files."""

    image: np.ndarray  # (K,) positions in the split
    caption: np.ndarray  # (K,)
    share: np.ndarray  # (K,) of yes
    count: np.ndarray  # (K,) votes


def join_votes(files: list[Judgements]) -> Votes:
    """Join the votes of files."""
    voted = [x for x in files if x.votes is not None]
    return Votes(
        np.concatenate([x.image for x in voted]),
        np.concatenate([x.caption for x in voted]),
        np.concatenate([x.opinion for x in voted]),
        np.concatenate([x.votes for x in voted]),
    )


def judge_votes(
    files: list[Judgements], scores: np.ndarray, pair: Sigmoid, log_var: np.ndarray | None
) -> dict:
    """Judge probabilities by single votes: {map: `judge_probability` and "auroc"}.

    Maps: that of matched pairs on dev; slope and bias fitted to votes; and with the captions'
    log-variances, too.

    Args:
        files: of which one at least holds votes.
        scores: (N, M).
        pair: fitted to matched pairs on dev.
        log_var: (M,), of the captions; None: they are points.
    """
    votes = join_votes(files)
    single = []  # each vote is True for yes
    for yes, n in zip(votes.share, votes.count):
        single.append(np.arange(n) < round(n * yes))
    single = np.concatenate(single)

    captions = scores.shape[1]
    s = scores[votes.image, votes.caption]
    v = 0.0
    if log_var is not None:
        v = log_var[votes.caption]
    p = {
        "own pairs": np.asarray(pair(s, v), np.float64),
        "fitted": predict_halves(votes, captions, s, v, fits_v=False),
    }
    if log_var is not None:
        p["with Sigma"] = predict_halves(votes, captions, s, v, fits_v=True)

    results = {}
    for name, of_pairs in p.items():
        repeated = np.repeat(of_pairs, votes.count)
        results[name] = judge_probability(repeated, single)
        results[name]["auroc"] = auroc(repeated, single)
    return results


def predict_halves(
    votes: Votes, captions: int, s: np.ndarray, v: np.ndarray | float, fits_v: bool
) -> np.ndarray:
    """Compute the probabilities (K,) of pairs, by a map fitted to votes on the other captions.

    Args:
        votes: on K pairs.
        captions: number of captions.
        s: (K,) scores.
        v: (K,) log-variances of the captions, or 0.
        fits_v: the map reads v.
    """
    p = np.empty(len(s))
    for judged, others in split_halves(captions):
        part = others[votes.caption]
        v_of_part = None
        if fits_v:
            v_of_part = v[part]
        fitted = Sigmoid.fit(s[part], votes.share[part], votes.count[part], v_of_part)
        here = judged[votes.caption]
        p[here] = fitted(s, v)[here]
    return p


# ---- how many fit


def estimate_counts(
    files: list[Judgements], scores: np.ndarray, owner: np.ndarray, log_var: np.ndarray | None
) -> np.ndarray:
    """Estimate the number of photos that fit captions (M,), NaN for those not judged.

    Each half of the captions is judged by a map fitted to votes on the other half. Own photos are
    included.

    Args:
        files: of which one at least holds votes.
        scores: (N, M).
        owner: (M,), the row of each caption's image.
        log_var: (M,), of the captions; None: they are points.
    """
    n, m = scores.shape
    votes = join_votes(files)
    share = np.zeros((n, m))
    weight = np.full((n, m), VOTES_OF_UNJUDGED)
    share[owner, np.arange(m)] = np.mean([x.own_share for x in files if x.votes is not None])
    share[votes.image, votes.caption] = votes.share
    weight[votes.image, votes.caption] = votes.count

    known = np.bincount(votes.caption, minlength=m) > 0
    expected = np.full(m, np.nan)
    for judged, others in split_halves(m):
        order = np.random.default_rng(1).permutation(np.flatnonzero(others & known))
        few = order[: max(2, SCORES_OF_MAP // n)]
        judged = judged & known
        v_few = None
        v_judged = 0.0
        if log_var is not None:
            v_few = np.broadcast_to(log_var, (n, m))[:, few].ravel()
            v_judged = log_var[judged]
        fitted = Sigmoid.fit(
            scores[:, few].ravel(), share[:, few].ravel(), weight[:, few].ravel(), v_few
        )
        expected[judged] = fitted(scores[:, judged], v_judged).sum(0)
    return expected


def sum_opinions(files: list[Judgements], side: str, queries: int) -> np.ndarray:
    """Compute people's number of items that fit each query (Q,), NaN for those not judged.

    It is the sum of the shares of yes, or of ratings without votes.
    """
    files = [x for x in files if x.ratings is None] or files
    if side == "t2i":
        query = np.concatenate([x.caption for x in files])
    else:
        query = np.concatenate([x.image for x in files])
    opinion = np.concatenate([x.opinion for x in files])
    total = np.bincount(query, opinion, minlength=queries)
    judged = np.bincount(query, minlength=queries) > 0
    return np.where(judged, total, np.nan)


# ---- all of it


def mean_log_var(e: Embedding) -> Tensor:
    """Compute the mean log-variance of items: (B, D) -> (B,)."""
    return e.log_var.mean(1)


def judge_by_people(e: Embeddings, files: list[Judgements], pair: Sigmoid) -> dict:
    """Judge a model by people. pair: the probability of matched pairs on dev."""
    scores = e.scores  # (N, M)
    log_var = uncertainties(e, mean_log_var).get("captions")
    names = [os.path.basename(x.path) for x in files]
    if len(set(names)) < len(names):
        names = [x.path for x in files]
    results = {"files": {}}
    for name, x in zip(names, files):
        results["files"][name] = measure_agreement(x, scores)
    voted = any(x.votes is not None for x in files)
    if voted:
        results["pairs"] = judge_votes(files, scores, pair, log_var)

    for side, (modality, _) in DIRECTIONS.items():
        count = e.n_images
        if side == "t2i":
            count = len(e.caption_image)
        truth = sum_opinions(files, side, count)
        known = ~np.isnan(truth)
        measures = measure_queries(e, side, pair)
        if side == "t2i" and voted:
            measures["expected_by_votes"] = estimate_counts(files, scores, e.caption_image, log_var)
        if known.sum() <= 2:
            continue

        baselines = {}
        if side == "t2i" and "caption" in e.ids:
            baselines = caption_baselines(e.ids["caption"])
        image_of_query = np.arange(count)
        if side == "t2i":
            image_of_query = e.caption_image
        correlations = correlate_measures(
            {name: x[known] for name, x in measures.items()},
            {name: x[known] for name, x in baselines.items()},
            truth[known],
            image_of_query[known],
        )
        results[modality] = {
            "queries": int(known.sum()),
            "mean": float(truth[known].mean()),
            "measures": correlations,
        }
    return results


def measure_queries(e: Embeddings, side: str, pair: Sigmoid) -> dict[str, np.ndarray]:
    """Compute measures (Q,) of all queries of one direction, larger where more items should fit."""
    modality, _ = DIRECTIONS[side]
    if side == "t2i":
        queries = np.arange(len(e.caption_image))
        largest = e.scores.max(0)
    else:
        queries = np.arange(e.n_images)
        largest = e.scores.max(1)

    measures = {"expected": expected_number(rows_of(e, side, queries), pair), "max": largest}
    log_det = uncertainties(e)
    if modality in log_det:
        measures["log_det_query"] = log_det[modality]
    return measures


TITLES_OF_MEASURES = {
    "expected": "expected number, by matched pairs of dev",
    "expected_by_votes": "expected number, by votes on other captions",
    "max": "maximum score",
    "log_det_query": "log det Sigma of the query",
}
TITLES_OF_MAPS = {
    "own pairs": "matched pairs of dev",
    "fitted": "fitted to votes",
    "with Sigma": "fitted to votes, with Sigma",
}
COLUMNS_OF_AGREEMENT = {
    "pairs": "pairs",
    "own": "left out",
    "tau": "tau",
    "kind": "of",
    "auroc": "AUROC",
}
COLUMNS_OF_MAPS = {"nll": "NLL", "ece": "ECE", "ece_floor": "floor", "auroc": "AUROC"}


def find_cell_of_agreement(key: str, numbers: dict) -> str:
    """Format a number of `measure_agreement`."""
    if key == "kind":
        return f"tau-{numbers[key]}"
    if key == "tau":
        return number(numbers[key], 1)
    return number(numbers[key], 3)


def tabulate_judgements(results: dict) -> list:
    """Build the tables of the results of `judge_by_people`."""
    title = (
        "people's judgements of pairs; tau: do scores order them as people do (100: always, 0: "
        "chance)"
    )
    made = [table(title, COLUMNS_OF_AGREEMENT, results["files"], find_cell_of_agreement)]
    if "pairs" in results:
        title = (
            "the probability that a judged pair fits, by single votes; what is fitted to votes "
            "sees those on other captions"
        )
        rows = {TITLES_OF_MAPS[name]: numbers for name, numbers in results["pairs"].items()}
        made.append(table(title, COLUMNS_OF_MAPS, rows))
    for modality, _ in DIRECTIONS.values():
        if modality in results:
            found = results[modality]
            title = (
                f"{modality} as queries: Spearman's rho with how many fit by people "
                f"({found['queries']:,} queries, {found['mean']:.1f} on average)"
            )
            made.append(tabulate_correlations(title, found["measures"], TITLES_OF_MEASURES))
    return made


# ---- the command


def compare_with_people(opt) -> dict:
    """Compare a model with people as the options say; return the results. Raises InputError."""
    items, files = open_items(opt, ())
    judgements = [read_judgements(path, items.whole) for path in opt.judgements]
    calibration = calibrate(items.dev, items.source)
    people = judge_by_people(items.whole, judgements, Sigmoid(**calibration["pair"]))
    tables = tabulate_judgements(people)
    lines = [describe_judgements(x) for x in judgements]
    return show_and_save({"people": people}, calibration, tables, lines, items, files)


def parse_args(argv=None):
    p = Arguments("Compare a model with people's judgements of photos and captions.")
    add_arguments(p)
    p.add_argument(
        "--judgements",
        type=filename,
        metavar="FILE",
        nargs="+",
        required=True,
        help="people's judgements, in the format of Flickr8k's ExpertAnnotations.txt or "
        "CrowdFlowerAnnotations.txt",
    )
    p.set_defaults(
        results="people",
        calibrate_on=None,
        cross_fit=None,
        sets=None,
        logit_scale=None,
        logit_bias=None,
        variances=None,
        train=None,
        export=None,
    )
    return p.parse_args(argv)


def main(argv=None) -> None:
    utils.run("confidence.people", compare_with_people, parse_args(argv))


if __name__ == "__main__":
    main()
