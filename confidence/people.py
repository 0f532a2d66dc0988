"""Agreement of a model with people's judgements of photos and captions.

    python -m confidence.people runs/A --judgements ExpertAnnotations.txt CrowdFlowerAnnotations.txt
    python -m confidence.people test.npz --dev dev.npz --judgements FILE

A line of a file is a photo, a caption NAME#K (caption K, from 0, of photo NAME) and numbers, with
tabs between: ratings, as in Flickr8k's ExpertAnnotations.txt (three of 1 to 4), or a share of yes,
how many said yes and how many no, as in CrowdFlowerAnnotations.txt (Hodosh, Young and Hockenmaier
2013). Pairs of a photo and its own caption are left out: they are known without looking.

Four questions are asked. Do scores order pairs as people do: Kendall's tau-c with every rating and
tau-b with the shares of yes, in percent, as CLIPScore reports them (Hessel et al. 2021). Which
measure of a query follows how many items fit it, the sum of its shares of yes. Is the probability
of a judged pair true. And is the expected number of photos that fit a caption: here its own photo
counts with the share of yes that own pairs have, and a pair that nobody judged for no, since those
that might fit were shown. Maps are fitted to the votes on half of the captions, and judged on the
others.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import itertools
import os
import sys
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

import cli
from cli import Arguments, check, filename
from confidence import plots, reliability
from confidence.__main__ import calibrated_on, describe, show_and_save
from confidence.calibration import SIDES, calibrate
from confidence.inputs import add_arguments, open_items
from confidence.posterior import answers, expected, rows_of
from evaluation.embeddings import Embeddings, uncertainties
from evaluation.protocols import replace_nan
from evaluation.report import number, table
from files import read_lines
from methods.volume import Sigmoid
from metrics import codes, spearman, spearman_of_codes

FORM = ("a line is a photo, a caption NAME#K and ratings, or a share of yes, how many said yes and "
        "how many no, with tabs between, as Flickr8k's annotations have them")
SAMPLES = 1000                        # of the bootstrap over queries
FITTED = 2 ** 22                      # pairs that a map is fitted to
LEVELS = 5                            # parts of the captions whose expected numbers are judged
USUAL = 3.0                           # votes that a pair counts for which nobody judged


class Judged(NamedTuple):
    """What people said of K pairs of a photo and a caption that is not its own."""
    path: str
    image: np.ndarray                 # (K,) positions in the split
    caption: np.ndarray               # (K,)
    ratings: np.ndarray | None        # (K, R), each by itself; None: shares
    yes: np.ndarray | None            # (K,) int64 how many said yes
    votes: np.ndarray | None          # (K,) int64 of how many
    own: int                          # pairs of a photo and its own caption, left out
    own_share: float                  # of yes among these, 1 where there are none
    elsewhere: int                    # pairs of photos or captions that the split lacks, left out

    @property
    def opinion(self) -> np.ndarray:
        """(K,) in [0, 1]: the share of yes, or the mean rating from the least to the largest."""
        if self.ratings is None:
            return self.yes / self.votes
        low, high = self.ratings.min(), self.ratings.max()
        return (self.ratings.mean(1) - low) / max(high - low, 1e-9)


# ---- reading

def places(e: Embeddings) -> tuple[dict[str, int], dict[str, int]]:
    """The rows of photos by file name, and of captions by NAME#K. Raises InputError where the split
    names no photos."""
    check("image_name" in e.ids, f"{e.source} does not name its photos, and judgements do; put one "
                             "name a line into {split}_ids.txt beside the features")
    names = [os.path.basename(name) for name in e.ids["image_name"]]
    count = defaultdict(itertools.count)
    captions = e.ids.get("caption_name") or [          # those of a photo in their order
        f"{names[row]}#{next(count[row])}" for row in e.caption_image.tolist()]
    return ({name: row for row, name in enumerate(names)},
            {name: row for row, name in enumerate(captions)})


def read(path: str, e: Embeddings) -> Judged:
    """The judgements of a file. Raises InputError on a line of another form, and where none is of
    the split's photos and captions."""
    photos, captions = places(e)
    at, numbers = [], []
    for k, line in enumerate(read_lines(path), 1):
        photo, *rest = line.split("\t")
        try:
            values = [float(x) for x in rest[1:]]
        except ValueError:
            values = []
        check(values and np.isfinite(values).all() and (not numbers or len(values) == len(numbers[0])),
              f"{path}, line {k}: {ascii(line[:60])} is no judgement; {FORM}")
        numbers.append(values)
        at.append((photos.get(os.path.basename(photo), -1), captions.get(rest[0], -1)))
    check(at, f"{path} holds no judgement; {FORM}")
    at, numbers = np.array(at), np.array(numbers)
    known = (at >= 0).all(1)
    is_own = known & (e.caption_image[at[:, 1]] == at[:, 0])
    own, elsewhere, kept = int(is_own.sum()), int((~known).sum()), known & ~is_own
    check(kept.any(), f"none of the {len(at):,} pairs of {path} is of a photo and another photo's "
                      f"caption of {e.source}; name the split that was judged with --data_name "
                      "and --split")
    image, caption = at[kept].T
    votes = numbers[:, 1:].sum(1)                           # where there are shares
    if numbers.shape[1] != 3 or (votes <= 0).any() or not np.allclose(
            numbers[:, 0], numbers[:, 1] / votes, atol=0.01):
        return Judged(path, image, caption, numbers[kept], None, None, own, 1.0, elsewhere)
    of_own = float(numbers[is_own, 0].mean()) if own else 1.0
    return Judged(path, image, caption, None, numbers[kept, 1].astype(int),
                  votes[kept].astype(int), own, of_own, elsewhere)


# ---- do scores order pairs as people do

def agreement(judged: Judged, scores: np.ndarray) -> dict:
    """Kendall's tau in percent of scores (N, M) with the ratings, "c", or the shares, "b", and the
    AUROC of whether most said yes, or the mean rating is in the upper half."""
    from scipy.stats import kendalltau  # takes a second to import
    s, fits = scores[judged.image, judged.caption], judged.opinion > 0.5
    if judged.ratings is None:
        kind, tau = "b", kendalltau(s, judged.opinion).statistic
    else:
        each = judged.ratings.shape[1]
        kind, tau = "c", kendalltau(np.repeat(s, each), judged.ratings.ravel(), variant="c").statistic
    return {"pairs": len(s), "own": judged.own, "elsewhere": judged.elsewhere, "kind": kind,
            "tau": 100 * float(tau), "auroc": reliability.auroc(s, fits), "fit": float(fits.mean())}


# ---- how many fit

def fitting(files: list[Judged], side: str, queries: int) -> np.ndarray:
    """How many items fit each query by people: the sum of opinions of its pairs, of shares of yes
    where a file has them -> (Q,), NaN where none was judged."""
    shares = [of for of in files if of.ratings is None] or files
    query = np.concatenate([of.caption if side == "t2i" else of.image for of in shares])
    opinion = np.concatenate([of.opinion for of in shares])
    judged = np.bincount(query, minlength=queries) > 0
    return np.where(judged, np.bincount(query, opinion, minlength=queries), np.nan)


def partial_spearman(x, y, given) -> float:
    """Spearman's correlation of x (K,) and y (K,) at equal `given` (K,): the partial correlation of
    their ranks. NaN where one of the three is constant, or where `given` determines x or y."""
    xy, xz, yz = spearman(x, y), spearman(x, given), spearman(y, given)
    left = (1 - xz ** 2) * (1 - yz ** 2)
    return float((xy - xz * yz) / np.sqrt(left)) if left > 1e-12 else float("nan")


def rhos(unsure: dict[str, np.ndarray], truth: np.ndarray) -> dict:
    """{measure: {"rho", "low", "high", "rho_given_words"}}: Spearman's correlation of measures (Q,)
    with how many fit (Q,), with 95% intervals of a bootstrap over queries, the same for all; and
    "above": the difference from that of the expected number, and its interval."""
    draws = np.random.default_rng(0).integers(0, len(truth), (SAMPLES, len(truth)))
    order, ranks = codes(truth), {name: codes(x) for name, x in unsure.items()}   # sorted but once
    drawn = {name: np.array([spearman_of_codes(x[rows], order[rows]) for rows in draws])
             for name, x in ranks.items()}
    results = {}
    for name, x in unsure.items():
        results[name] = {"rho": spearman(x, truth), **reliability.interval(drawn[name])}
        if "words" in unsure and name != "words":
            results[name]["rho_given_words"] = partial_spearman(x, truth, unsure["words"])
        if name != "expected":
            results[name]["above"] = {
                "difference": results[name]["rho"] - spearman(unsure["expected"], truth),
                **reliability.interval(drawn[name] - drawn["expected"])}
    return results


# ---- the probability that a pair fits

def halves(captions: int):
    """Yields (captions to judge, captions to fit on), (M,) bool each: one random half, then the
    other."""
    half = np.random.default_rng(0).random(captions) < 0.5
    yield half, ~half
    yield ~half, half


def voted(files: list[Judged]) -> tuple[np.ndarray, ...]:
    """Photos, captions, how many said yes and of how many, of all files with votes: (K,) each."""
    return tuple(np.concatenate([getattr(of, name) for of in files if of.votes is not None])
                 for name in ("image", "caption", "yes", "votes"))


def probabilities(files: list[Judged], scores: np.ndarray, pair: Sigmoid,
                  spread: np.ndarray | None) -> dict[str, dict]:
    """{map: what `reliability.judge_probability` says of it by single votes on judged pairs, and its
    AUROC}.

    Maps: that of own pairs on dev; the same, shifted; slope and bias fitted to votes; and with the
    captions' log-variances spread (M,), too.
    """
    image, caption, yes, votes = voted(files)
    s, v, share = scores[image, caption], 0.0 if spread is None else spread[caption], yes / votes
    single = np.concatenate([np.arange(n) < y for y, n in zip(yes, votes)])
    maps = {"own pairs": lambda some: pair,
            "shifted": lambda some: shift(pair, s[some], share[some], votes[some]),
            "fitted": lambda some: Sigmoid.fit(s[some], share[some], votes[some])}
    if spread is not None:
        maps["with Sigma"] = lambda some: Sigmoid.fit(s[some], share[some], votes[some], v[some])
    results = {}
    for name, learn in maps.items():
        p = np.empty(len(s))
        for judge, others in halves(scores.shape[1]):
            p[judge[caption]] = learn(others[caption])(s, v)[judge[caption]]
        every = np.repeat(p, votes)
        results[name] = {**reliability.judge_probability(every, single),
                         "auroc": reliability.auroc(every, single)}
    return results


def numbers(files: list[Judged], scores: np.ndarray, owner: np.ndarray,
            spread: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, Sigmoid]:
    """The expected number of photos that fit each caption, by a map that was fitted on the other
    half; that of people, own photos included; NaN for captions that nobody judged: (M,) each. And
    the map of all captions."""
    image, caption, yes, votes = voted(files)
    own_share = float(np.mean([of.own_share for of in files if of.votes is not None]))
    share, weight = np.zeros(scores.shape), np.full(scores.shape, USUAL)
    share[owner, np.arange(len(owner))] = own_share
    share[image, caption], weight[image, caption] = yes / votes, votes
    known = np.bincount(caption, minlength=len(owner)) > 0

    def learn(some: np.ndarray) -> Sigmoid:
        few = np.random.default_rng(1).permutation(np.flatnonzero(some & known))
        few = few[:max(2, FITTED // len(scores))]
        v = None if spread is None else np.broadcast_to(spread, scores.shape)[:, few].ravel()
        return Sigmoid.fit(scores[:, few].ravel(), share[:, few].ravel(), weight[:, few].ravel(), v)
    expected = np.full(len(owner), np.nan)
    for judge, others in halves(len(owner)):
        judge = judge & known
        v = 0.0 if spread is None else spread[judge]
        expected[judge] = learn(others)(scores[:, judge], v).sum(0)
    return expected, np.where(known, share.sum(0), np.nan), learn(known)


def levels(expected: np.ndarray, people: np.ndarray) -> dict:
    """Mean expected number and that of people in LEVELS parts of the captions, from the fewest
    expected to the most."""
    parts = np.array_split(np.argsort(expected, kind="stable"), LEVELS)
    return {name: [float(x[part].mean()) for part in parts]
            for name, x in (("expected", expected), ("people", people))}


def shift(pair: Sigmoid, s, share, votes) -> Sigmoid:
    """The map of own pairs with the bias that gives the mean share of yes."""
    return pair._replace(bias=brentq(
        lambda bias: np.average(pair._replace(bias=bias)(s) - share, weights=votes), -1e4, 1e4))


# ---- all of it

def measures(e: Embeddings, side: str, t: float, pair: Sigmoid) -> dict[str, np.ndarray]:
    """What a model says of every query of one direction: the expected number of items that fit, by
    the map of own pairs, log det Sigma, and what the scores say, each (Q,)."""
    queries = np.arange(len(e.caption_image) if side == "t2i" else e.n_images)
    rows = rows_of(e, side, queries)
    of, values = answers(rows, t), {"expected": np.log(expected(rows, pair))}
    for name, spread in uncertainties(e).items():
        if name == SIDES[side][0]:
            values["log_det_query"] = spread
        else:
            values["log_det_answer"] = spread[of.first]
    return values | {name: getattr(of, name)
                     for name in ("entropy", "max", "margin", "std", "posterior")}


def judge(e: Embeddings, files: list[Judged], t: dict[str, float],
          pair: Sigmoid) -> tuple[dict, Sigmoid | None, list[np.ndarray] | None]:
    """What results.json holds of judgements, the map that calibration.json keeps, and the expected
    numbers and people's of all captions (`numbers`), None without votes. t: the temperatures by
    direction; pair: the probability of own pairs (`posterior.fit_pairs`)."""
    scores = e.scores                                                  # (N, M)
    results = {"files": {os.path.basename(of.path): agreement(of, scores) for of in files}}
    texts = e.ids.get("caption")
    words = texts and np.array([len(text.split()) for text in texts])               # (M,)
    spread = uncertainties(e, lambda e: e.log_var.mean(1)).get("captions")
    fits = both = None
    if any(of.votes is not None for of in files):
        results["pairs"] = probabilities(files, scores, pair, spread)
        *both, fits = numbers(files, scores, e.caption_image, spread)
        known = ~np.isnan(both[0])
        results["number"] = levels(*(x[known] for x in both))
    for side, (name, _) in SIDES.items():
        values = measures(e, side, t[side], pair)
        if side == "t2i":
            values |= {"expected_by_votes": np.log(both[0])} if both else {}
            values |= {} if words is None else {"words": -words}
        truth = fitting(files, side, len(values["max"]))
        known = ~np.isnan(truth)
        if known.sum() > 2:
            results[name] = {
                "queries": int(known.sum()), "mean": float(truth[known].mean()), "measures": rhos(
                    {what: x[known] for what, x in values.items()}, truth[known])}
    return results, fits, both


# ---- tables

MEASURES = {"expected": "expected number, by own pairs of dev",
            "expected_by_votes": "expected number, by votes on other captions",
            "words": "how few words it has", "posterior": "posterior of the answer",
            "entropy": "entropy of the posterior", "max": "maximum score",
            "margin": "margin to the second", "std": "deviation of the scores",
            "log_det_query": "log det Sigma of the query",
            "log_det_answer": "log det Sigma of the answer"}
MAPS = {"own pairs": "own pairs of dev", "shifted": "the same, shifted", "fitted": "fitted to votes",
        "with Sigma": "fitted to votes, with Sigma"}


def tables(results: dict) -> list:
    """The tables of `judge`."""
    said = [("people's judgements of pairs", [("", ["pairs", "own, left out", "tau", "of", "AUROC"])],
             [(name, [f"{of['pairs']:,}", f"{of['own']:,}", number(of["tau"]), f"tau-{of['kind']}",
                      number(replace_nan(of["auroc"]), "rho")])
              for name, of in results["files"].items()])]
    if "pairs" in results:
        said.append(table(
            "the probability that a judged pair fits, by single votes; what is fitted to votes sees "
            "those on other captions",
            {"nll": "NLL", "ece": "ECE", "ece_floor": "floor", "auroc": "AUROC"},
            {MAPS[name]: of for name, of in results["pairs"].items()}))
        said.append(("how many photos fit a caption, its own included: fifths of the captions, by "
                     "the expected number",
                     [("", ["fewest", *[""] * (LEVELS - 2), "most"])],
                     [(label, [number(x) for x in results["number"][key]]) for key, label in (
                         ("expected", "expected, by votes on other captions"),
                         ("people", "people's"))]))
    for side, (name, _) in SIDES.items():
        if name in results:
            columns = {"rho": "rho", "low": "95% from", "high": "to"}
            columns |= {"rho_given_words": "given words"} if side == "t2i" else {}
            said.append(table(
                f"{name} as queries: Spearman's rho with how many fit by people "
                f"({results[name]['queries']:,} queries, {results[name]['mean']:.1f} on average)",
                columns, {MEASURES[measure]: of
                          for measure, of in results[name]["measures"].items()}))
    return said


# ---- the command

def run(opt) -> dict:
    """Judge by people's judgements as the options say; return the results. Raises InputError."""
    items, files = open_items(opt, ("people",))
    judgements = [read(path, items.whole) for path in opt.judgements]
    calibration = calibrate(items.dev, items.source)
    temperatures = {side: calibration[side]["temperature"] for side in SIDES}
    people, fits, expected_and_true = judge(items.whole, judgements, temperatures, Sigmoid(**calibration["pair"]))
    calibration |= {"fits": fits._asdict()} if fits else {}
    results = describe(items) | {"people": people}
    show_and_save(results, calibration, tables(people), [calibrated_on(items)], items, files)
    if expected_and_true:
        plots.fitting(*expected_and_true, items.whole.ids.get("caption"), files["people"])
        print(f"ten captions and how many photos fit them in {files['people']}", file=sys.stderr)
    return results


def parse_args(argv=None):
    p = Arguments("Compare a model with people's judgements of photos and captions.")
    add_arguments(p)
    p.add_argument("--judgements", type=filename, metavar="FILE", nargs="+", required=True, help="what people said of "
                   "pairs, as Flickr8k's annotations have it")
    p.set_defaults(results="people", calibrate_on=None, variances=None, train=None, export=None, positives=None)
    return p.parse_args(argv)


def main(argv=None) -> None:
    cli.run("confidence.people", lambda: run(parse_args(argv)) and None)


if __name__ == "__main__":
    main()
