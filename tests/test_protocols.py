"""Protocols on small random subjects against double loops over what each definition says."""
import numpy as np
import pytest
import torch

import evaluate
import metrics
from evaluation import annotations, protocols
from evaluation.annotations import Crisscrossed, Pairs, Ratings
from evaluation.embeddings import Embeddings, Member, blocks_within
from evaluation.protocols import Record
from losses import Embedding, formulas
from tests import references

FORMULAS = formulas()

N, M, D = 15, 52, 6


def embeddings(name, seed=0):
    """Image and caption sides (mean, log-variance or None), captions near their images, and the image of each caption:
    unequal numbers, shuffled, image 3 without any."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.r_[np.setdiff1d(np.arange(N), 3), rng.choice(np.setdiff1d(np.arange(N), 3), M - N + 1)])
    image = rng.standard_normal((N, D))
    caption = image[owner] + 0.8 * rng.standard_normal((M, D))
    variances = {"cosine": (0, 0), "mahalanobis": (0, 1)}.get(name, (1, 1))
    sides = [(mean, rng.uniform(-1, 1, mean.shape))[:1 + given] for mean, given in zip((image, caption), variances)]
    return [Embedding(*(torch.from_numpy(x.astype(np.float32)) for x in side)) for side in sides], owner


def slow_scores(name, left, right):
    """Scores (n, m) in float64, one item of the left side at a time."""
    double = [Embedding(*(None if x is None else x.double() for x in e)) for e in (left, right)]
    return references.broadcasts(name, *double).numpy()


def problem(name):
    """Embeddings of one model, its scores of all kinds, and random ratings and matches of Crisscrossed Captions."""
    (image, caption), owner = embeddings(name)
    within = "cosine" if name == "mahalanobis" else name     # which compares a Gaussian with a point
    scores = {"i2t": slow_scores(name, image, caption), "t2t": slow_scores(within, caption, caption),
              "i2i": slow_scores(within, image, image)}
    scores["t2i"] = scores["i2t"].T
    e = Embeddings("model", owner, N, [Member(FORMULAS[name], image, caption)], similarity=name)
    return e, scores, *judgements(owner)


def judgements(owner):
    rng = np.random.default_rng(2268)                                            # with matching images in every fold

    def rated(n, m, k):
        first, second = rng.integers(0, n, k), rng.integers(0, m, k)
        keep = (first != second) | (n != m)
        return Ratings(first[keep], second[keep], np.round(5 * rng.random(keep.sum()), 2))
    ratings = {"sts": rated(M, M, 150), "sis": rated(N, N, 70), "sits": rated(M, N, 120)}
    return ratings, annotations.match_by_ratings(ratings, owner)


def cxc(e, ratings, pairs, fold5, record, samples=50):
    """Crisscrossed Captions of everything, and of the folds."""
    e.judged["cxc"] = Crisscrossed(ratings, pairs)
    found = {"cxc": protocols.cxc(e, protocols.everything(e), record, "cxc", samples)}
    return found | ({"cxc_folds5": mean_over_folds(protocols.cxc, e, record, "cxc_folds5")} if fold5 else {})


def mean_over_folds(protocol, e, record, name):
    return metrics.average([protocol(e, fold, record, name) for fold in protocols.folds(e)])


def options(*words):
    return evaluate.parse_args(list(words))


# ---- the definitions

def sets_of(pairs):
    found = {}
    for q, g in zip(pairs.query.tolist(), pairs.item.tolist()):
        found.setdefault(q, set()).add(g)
    return found


def expected(scores, matches, queries, gallery, same=False):
    """Ranks and R-precisions {query: number} in a gallery, which within a modality lacks the query."""
    ranks, precisions = {}, {}
    for q in queries:
        items = [g for g in gallery if not (same and g == q)]
        own = {k for k, g in enumerate(items) if g in matches.get(q, ())}
        if own:
            row = scores[q, items]
            ranks[q], precisions[q] = references.slow_rank(row, own), references.slow_precisions(row, own)[0]
    return ranks, precisions


def averaged(parts, precision=None):
    """The numbers of the table as a mean over parts [(ranks, precisions)]; queries are summed."""
    tables = [references.slow_summary(list(ranks.values()))
              | ({precision: 100 * np.mean(list(precisions.values()))} if precision else {})
              for ranks, precisions in parts]
    return {key: (sum if key == "queries" else np.mean)([t[key] for t in tables]) for key in tables[0]}


def galleries(owner, size, count):
    """Sequential images and the captions of each; one of everything for size None."""
    if size is None:
        return [(list(range(N)), list(range(M)))]
    return [(list(range(k, k + size)), [m for m in range(M) if k <= owner[m] < k + size])
            for k in range(0, size * count, size)]


def cases(owner):
    return [("cxc", galleries(owner, None, 1)), ("cxc_folds5", galleries(owner, 3, 5))]


def ends(side, images, captions):
    return (images if side[0] == "i" else captions), (images if side[2] == "i" else captions)


def check(found, record, name, side, scores, pairs, parts, precision):
    """One direction: the averages, and the outcome of every query as recorded."""
    outcomes = [expected(scores[side], sets_of(pairs[side]), *ends(side, *part), same=side in ("t2t", "i2i"))
                for part in parts]
    assert found[side] == pytest.approx(averaged(outcomes, precision)), (name, side)
    for key, which in (("rank", 0), (precision, 1)):
        if key:
            values = np.full(len(scores[side]), np.nan)
            for outcome in outcomes:
                for q, value in outcome[which].items():
                    values[q] = value
            assert record[name, side, key] == pytest.approx(values, nan_ok=True)


@pytest.fixture
def small(monkeypatch):
    """Folds of 3 images, blocks of 4 queries, so that all loops turn several times."""
    monkeypatch.setattr(protocols, "FOLD", 3)
    monkeypatch.setattr(protocols, "ROWS", 4)


# ---- Crisscrossed Captions

@pytest.mark.parametrize("name", ["kl", "mahalanobis"])
def test_cxc_equals_definition(small, monkeypatch, name):
    subject, scores, ratings, pairs = problem(name)
    record, rated, correlate = Record(), [], metrics.sampled_spearman
    monkeypatch.setattr(metrics, "sampled_spearman", lambda *given: rated.append(given) or correlate(*given))
    found = cxc(subject, ratings, pairs, True, record, samples=50)
    assert set(found) == {"cxc", "cxc_folds5"}
    for protocol, parts in cases(subject.caption_image):
        for side in ("i2t", "t2i", "t2t", "i2i"):
            precision = "rpc2" if side in ("i2t", "t2i") else None
            check(found[protocol], record, protocol, side, scores, pairs, parts, precision)
        recalls = [found[protocol][side][f"r{k}"] for side in ("i2t", "t2i") for k in (1, 5, 10)]
        assert found[protocol]["rsum"] == pytest.approx(sum(recalls))
    # the correlations are those of the similarity's own scores; both ends of a pair as listed (KL is not symmetric)
    for kind, side, given in zip(("sits", "sts", "sis"), ("t2i", "t2t", "i2i"), rated, strict=True):
        r = ratings[kind]
        mine = [scores[side][a, b] for a, b in zip(r.first, r.second)]
        assert given[0].tolist() == r.first.tolist() and given[1].tolist() == r.score.tolist()
        assert given[2].tolist() == pytest.approx(mine, abs=1e-5) and found["cxc"][kind] == correlate(*given[:3], 50)


@pytest.mark.parametrize("name", ["cxc", "pmrp", "eccv"])
def test_scores_that_are_no_numbers_raise(name):
    subject, _, ratings, pairs = problem("cosine")
    subject.scores[2, 5] = np.nan
    subject.judged = {"cxc": Crisscrossed(ratings, pairs), "pmrp": np.ones((N, 2), bool), "eccv": {"t2i": pairs["t2i"]}}
    with pytest.raises(ValueError, match="NaN or infinity"):
        protocols.PROTOCOLS[name](subject, protocols.everything(subject), Record(), name)


# ---- original pairs, any positives, ensembles

def test_original_pairs_equal_definition(small):
    subject, scores, _, _ = problem("wasserstein")
    own = Pairs.of(subject.caption_image, np.arange(M))
    pairs, record = {"i2t": own, "t2i": own.swapped()}, Record()
    for name, parts, found in (
            ("full", (None, 1), protocols.full(subject, protocols.everything(subject), record, "full")),
            ("folds5", (3, 5), mean_over_folds(protocols.full, subject, record, "folds5"))):
        parts = galleries(subject.caption_image, *parts)
        for side in ("i2t", "t2i"):
            check(found, record, name, side, scores, pairs, parts, None)
    assert record["full", "i2t", "rank"][3] != record["full", "i2t", "rank"][3]             # NaN: no captions, no query


@pytest.mark.parametrize("sides", [("i2t",), ("t2i",), ("i2t", "t2i")])
def test_positives_of_one_direction_or_both(small, sides):
    subject, scores, _, pairs = problem("cosine")
    subject.judged["positives"], record = {side: pairs[side] for side in sides}, Record()
    found = protocols.positives(subject, protocols.everything(subject), record, "mine")
    assert set(found) == {*sides, *(["rsum"] if len(sides) == 2 else [])}
    for side in sides:
        assert found[side].pop("map_at_r") > 0
        check(found, record, "mine", side, scores, pairs, galleries(subject.caption_image, None, 1), "rp")


def test_an_ensemble_is_the_mean_of_scores(small):
    """Also within a modality, and of unlike similarities."""
    members, between, within = [], 0, 0
    for seed, name in enumerate(("wasserstein", "cosine", "mahalanobis")):
        sides, _ = embeddings(name, seed)
        members.append(Member(FORMULAS[name], *sides))
        between = between + slow_scores(name, *sides) / 3
        within = within + slow_scores("cosine" if name == "mahalanobis" else name, sides[1], sides[1]) / 3
    _, owner = embeddings("cosine")
    subject = Embeddings("three", owner, N, members)
    assert subject.scores == pytest.approx(between, abs=1e-5)
    assert metrics.score_matrix(members, 4) == pytest.approx(between, abs=1e-5)
    others = ~np.eye(M, dtype=bool)                                      # a caption's score with itself is not used
    for rows, score in blocks_within(subject, "captions", np.arange(M), 7):
        assert score.numpy()[others[rows]] == pytest.approx(within[rows][others[rows]], abs=1e-5)
    ratings, pairs = judgements(owner)
    record = Record()
    found = cxc(subject, ratings, pairs, False, record, 5)
    scores = {"i2t": between, "t2i": between.T, "t2t": within}
    for side, precision in (("i2t", "rpc2"), ("t2i", "rpc2"), ("t2t", None)):
        check(found["cxc"], record, "cxc", side, scores, pairs, galleries(owner, None, 1), precision)


# ---- PMRP

def test_pmrp_equals_definition(small):
    """Sets of categories that differ in at most zeta; images without instances and their captions are out of
    everything."""
    subject, scores, _, _ = problem("wasserstein")
    owner, rng = subject.caption_image, np.random.default_rng(3)
    codes = rng.random((N, 4)) < 0.4
    codes[[1, 7]] = False
    codes[3] = True                                                              # the image without captions
    shown = {i for i in range(N) if codes[i].any()}
    code = {"i": [set(np.flatnonzero(row)) for row in codes], "t": [set(np.flatnonzero(codes[i])) for i in owner]}
    subject.judged["pmrp"], record = codes, Record()
    for name, parts, found in (
            ("pmrp", galleries(owner, None, 1), protocols.pmrp(subject, protocols.everything(subject), record, "pmrp")),
            ("pmrp_folds5", galleries(owner, 3, 5), mean_over_folds(protocols.pmrp, subject, record, "pmrp_folds5"))):
        parts = [([i for i in images if i in shown], [m for m in captions if owner[m] in shown])
                 for images, captions in parts]
        for side in ("i2t", "t2i"):
            values = {zeta: [] for zeta in (0, 1, 2)}
            singles = {}
            for part in parts:
                queries, gallery = ends(side, *part)
                for zeta in values:
                    matches = {q: {g for g in gallery if len(code[side[0]][q] ^ code[side[2]][g]) <= zeta}
                               for q in queries}
                    precisions = expected(scores[side], matches, queries, gallery)[1]
                    values[zeta].append(100 * np.mean(list(precisions.values())))
                    for q in precisions:
                        singles.setdefault(q, []).append(precisions[q])
            zetas = {f"zeta{zeta}": np.mean(v) for zeta, v in values.items()}
            assert found[side] == pytest.approx({**zetas, "pmrp": np.mean(list(zetas.values())),
                                                 "queries": sum(len(ends(side, *part)[0]) for part in parts)})
            alone = record[name, side, "pmrp"]
            known = {q: v for q, v in singles.items() if len(v) == 3}
            assert {q: alone[q] for q in known} == pytest.approx({q: np.mean(v) for q, v in known.items()})
            assert np.isnan([alone[q] for q in range(len(alone)) if q not in known]).all()


# ---- uncertainty

def test_uncertainty_report_leaves_out_what_is_no_query():
    spread = torch.tensor([[0.0], [1], [2], [3], [9]])                              # log det Sigma of five captions
    e = Embeddings("x", np.zeros(5, int), 1, [Member(None, None, Embedding(torch.zeros(5, 1), spread))])
    record = Record({("full", "t2i", "rank"): np.array([0.0, 0, 5, 1, np.nan])})
    report = protocols.report_uncertainty(e, options("--uncertainty"), record)["captions"]
    assert report["recall_bins"]["recall"] == [100, 100, 0, 0] and report["risk_coverage"]["area_random"] == 50
    assert report["risk_coverage"]["risk"] == pytest.approx([0, 0, 100 / 3, 50])
    assert report["mean"] == 3
