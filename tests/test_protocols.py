"""Protocols on small random subjects, and query-bank normalisation, against double loops over what each definition
says; evaluate.py --bank as users run it."""

import numpy as np
import pytest
import torch

import evaluate
import metrics
from checkpoint import Trained
from evaluation import annotations, bank, protocols
from evaluation.annotations import Crisscrossed, Pairs, Ratings
from evaluation.embeddings import Embeddings, Member, embed, read_split_for
from evaluation.protocols import Record
from evaluation.report import describe_results, tables
from losses import Embedding, cosine, dot
from model import encode
from tests import references
from tests.helpers import FORMULAS

N = 15  # images
M = 52  # captions
D = 6  # dimensions


def embeddings(name, seed=0, n=N, m=M):
    """Image and caption sides (mean, log-variance or None), captions near their images, and the image of each caption:
    unequal numbers, shuffled, image 3 without any."""
    rng = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(n), 3)
    owner = rng.permutation(np.r_[others, rng.choice(others, m - n + 1)])
    image = rng.standard_normal((n, D))
    caption = image[owner] + 0.8 * rng.standard_normal((m, D))

    has_variance = {"cosine": (False, False), "mahalanobis": (False, True)}.get(name, (True, True))
    sides = []
    for mean, gaussian in zip((image, caption), has_variance):
        log_var = rng.uniform(-1, 1, mean.shape)  # drawn for points too, which keeps the stream
        side = [torch.from_numpy(mean.astype(np.float32))]
        if gaussian:
            side.append(torch.from_numpy(log_var.astype(np.float32)))
        sides.append(Embedding(*side))
    return sides, owner


def slow_scores(name, left, right):
    """Scores (n, m) in float64, one item of the left side at a time."""
    double = []
    for e in (left, right):
        double.append(Embedding(*(None if x is None else x.double() for x in e)))
    return references.broadcasts(name, *double).numpy()


def problem(name):
    """Embeddings of one model, its scores of all kinds, and random ratings and matches of Crisscrossed Captions."""
    (image, caption), owner = embeddings(name)
    within = name
    if name == "mahalanobis":  # which compares a Gaussian with a point
        within = "cosine"
    scores = {
        "i2t": slow_scores(name, image, caption),
        "t2t": slow_scores(within, caption, caption),
        "i2i": slow_scores(within, image, image),
    }
    scores["t2i"] = scores["i2t"].T
    e = Embeddings("model", owner, N, [Member(FORMULAS[name], image, caption)], similarity=name)
    rng = np.random.default_rng(2268)  # with matching images in every fold

    def rated(n, m, k):
        first = rng.integers(0, n, k)
        second = rng.integers(0, m, k)
        keep = (first != second) | (n != m)
        return Ratings(first[keep], second[keep], np.round(5 * rng.random(keep.sum()), 2))

    ratings = {"sts": rated(M, M, 150), "sis": rated(N, N, 70), "sits": rated(M, N, 120)}
    return e, scores, ratings, annotations.match_by_ratings(ratings, owner)


@pytest.mark.parametrize(
    "name", [name for name in protocols.PROTOCOLS if name not in protocols.READERS]
)
def test_every_protocol_of_the_original_pairs_has_a_slow_twin_and_equals_it(name):
    """Also one that is added."""
    assert name in references.SLOW_PROTOCOLS, (
        f"{name} has no slow twin; write it as a line of SLOW_PROTOCOLS in tests/references.py"
    )
    e, scores, *_ = problem("cosine")
    record = Record()
    for protocol in dict.fromkeys(("full", name)):  # others may read the ranks of the first
        found = protocols.PROTOCOLS[protocol](e, protocols.everything(e), record, protocol)

    queries = references.list_queries(scores["i2t"], e.caption_image)
    expected = references.SLOW_PROTOCOLS[name](queries)
    assert found.keys() == expected.keys()
    for side, numbers in expected.items():
        assert found[side] == pytest.approx(numbers), side


def test_a_protocol_without_a_title_stands_under_its_own_name():
    of_mine = {"i2t": {"gain": 12.34, "r1": 5.0}, "t2i": {"gain": 7.0, "r1": 6.0}}

    found = tables({"run": {"protocols": {"mine": of_mine}}})

    ((title, ((_, columns),), rows),) = found
    assert (title, columns) == ("mine", ["R@1", "gain"])
    assert rows == [("image to text", ["5.0", "12.3"]), ("text to image", ["6.0", "7.0"])]


def mean_over_folds(protocol, e, record, name):
    return metrics.average([protocol(e, fold, record, name) for fold in protocols.folds(e)])


# ---- the definitions


def sets_of(pairs):
    return {q: set(pairs.item[pairs.query == q].tolist()) for q in set(pairs.query.tolist())}


def expected(scores, matches, queries, gallery, same=False):
    """Ranks and R-precisions {query: number} in a gallery, which within a modality lacks the query."""
    ranks = {}
    precisions = {}
    for q in queries:
        items = list(gallery)
        if same:
            items = [g for g in gallery if g != q]
        own = {k for k, g in enumerate(items) if g in matches.get(q, ())}
        if own:
            row = scores[q, items]
            ranks[q] = references.slow_rank(row, own)
            precisions[q] = references.slow_precisions(row, own)[0]
    return ranks, precisions


def averaged(parts, precision=None):
    """The numbers of the table as a mean over parts [(ranks, precisions)]; queries are summed."""
    of_parts = []
    for ranks, precisions in parts:
        numbers = references.slow_summary(list(ranks.values()))
        if precision:
            numbers = numbers | {precision: 100 * np.mean(list(precisions.values()))}
        of_parts.append(numbers)
    means = {key: np.mean([numbers[key] for numbers in of_parts]) for key in of_parts[0]}
    means["queries"] = sum(numbers["queries"] for numbers in of_parts)
    return means


def galleries(owner, size, count):
    """Sequential images and the captions of each; one of everything for size None."""
    if size is None:
        return [(list(range(N)), list(range(M)))]
    found = []
    for start in range(0, size * count, size):
        images = list(range(start, start + size))
        captions = [m for m in range(M) if owner[m] in images]
        found.append((images, captions))
    return found


def ends(side, images, captions):
    """The queries and the gallery of a direction such as "i2t"."""
    items = {"i": images, "t": captions}
    return items[side[0]], items[side[2]]


def check(found, record, name, side, scores, pairs, parts, precision):
    """One direction: the averages, and the outcome of every query as recorded."""
    same = side in ("t2t", "i2i")
    matches = sets_of(pairs[side])
    outcomes = [expected(scores[side], matches, *ends(side, *part), same=same) for part in parts]
    assert found[side] == pytest.approx(averaged(outcomes, precision)), (name, side)

    keys = ["rank"]
    if precision:
        keys.append(precision)
    for key, values in zip(keys, zip(*outcomes)):
        merged = {}
        for of_part in values:
            merged |= of_part
        every = [merged.get(q, np.nan) for q in range(len(scores[side]))]
        assert record[name, side, key] == pytest.approx(np.array(every, float), nan_ok=True)


@pytest.fixture
def small(monkeypatch):
    """Folds of 3 images, blocks of 4 queries, so that all loops turn several times."""
    monkeypatch.setattr(protocols, "IMAGES_PER_FOLD", 3)
    monkeypatch.setattr(protocols, "QUERIES_PER_BLOCK", 4)


@pytest.mark.parametrize("name", ["kl", "mahalanobis"])
def test_ranks_and_precisions_equal_definition(small, monkeypatch, name):
    """Of the original pairs, of Crisscrossed Captions and of the user's own matches of one direction or both."""
    subject, scores, ratings, pairs = problem(name)
    owner = subject.caption_image
    record = Record()
    rated = []
    correlate = metrics.sampled_spearman

    def note_and_correlate(*given):
        rated.append(given)
        return correlate(*given)

    monkeypatch.setattr(metrics, "sampled_spearman", note_and_correlate)
    own = Pairs.of(owner, np.arange(M))
    own_sides = ["i2t", "t2i"]
    if name == "kl":
        own_sides = ["t2i"]
    mine = {side: pairs[side] for side in own_sides}
    subject.judged = {"cxc": Crisscrossed(ratings, pairs), "positives": mine, "eccv": mine}
    everything = protocols.everything(subject)

    # ECCV Captions is the same over other matches, and shows fewer numbers
    eccv = protocols.PROTOCOLS["eccv"](subject, everything, Record(), "eccv")
    positives = protocols.PROTOCOLS["positives"](subject, everything, Record(), "positives")
    shown = ("r1", "rp", "map_at_r", "queries")
    assert eccv == {side: {key: positives[side][key] for key in shown} for side in mine}

    for protocol, matches, precision in (
        ("full", {"i2t": own, "t2i": own.swapped()}, None),
        ("cxc", pairs, "rpc2"),
        ("positives", mine, "rp"),
    ):
        run = protocols.PROTOCOLS[protocol]
        whole = run(subject, protocols.everything(subject), record, protocol)
        of_folds = mean_over_folds(run, subject, record, "folds")
        for title, parts, found in (
            (protocol, galleries(owner, None, 1), whole),
            ("folds", galleries(owner, 3, 5), of_folds),
        ):
            for side in matches:
                assert "map_at_r" not in found[side] or found[side].pop("map_at_r") > 0
                across = side[0] != side[2]
                shares = precision if across else None
                check(found, record, title, side, scores, matches, parts, shares)

            assert set(found) - {*matches} <= {"rsum", "sits", "sts", "sis"}
            assert ("rsum" in found) == (len(matches) > 1)
            if "rsum" in found:
                i2t = [found["i2t"][f"r{k}"] for k in (1, 5, 10)]
                t2i = [found["t2i"][f"r{k}"] for k in (1, 5, 10)]
                assert found["rsum"] == pytest.approx(sum(i2t + t2i))
        record.clear()

    # the correlations are those of the similarity's own scores; both ends of a pair as listed (KL is not symmetric)
    for kind, side, given in zip(("sits", "sts", "sis"), ("t2i", "t2t", "i2i"), rated, strict=True):
        r = ratings[kind]
        first, score, similarity = given[:3]
        own_scores = [scores[side][a, b] for a, b in zip(r.first, r.second)]
        assert first.tolist() == r.first.tolist() and score.tolist() == r.score.tolist()
        assert similarity.tolist() == pytest.approx(own_scores, abs=1e-5)


@pytest.mark.parametrize("name", ["cxc", "pmrp", "eccv"])
def test_scores_that_are_no_numbers_raise(name):
    subject, _, ratings, pairs = problem("cosine")
    subject.scores[2, 5] = np.nan
    subject.judged = {
        "cxc": Crisscrossed(ratings, pairs),
        "pmrp": np.ones((N, 2), bool),
        "eccv": {"t2i": pairs["t2i"]},
    }
    with pytest.raises(ValueError, match="NaN or infinity"):
        protocols.PROTOCOLS[name](subject, protocols.everything(subject), Record(), name)


# ---- ensembles, PMRP, uncertainty


def test_an_ensemble_is_the_mean_of_scores(small, monkeypatch):
    """Also within a modality, and of unlike similarities."""
    members = []
    between = 0
    within = 0
    for seed, name in enumerate(("wasserstein", "cosine", "mahalanobis")):
        sides, _ = embeddings(name, seed)
        members.append(Member(FORMULAS[name], *sides))
        between = between + slow_scores(name, *sides) / 3
        name_within = "cosine" if name == "mahalanobis" else name
        within = within + slow_scores(name_within, sides[1], sides[1]) / 3
    _, owner = embeddings("cosine")

    subject = Embeddings("three", owner, N, members)
    assert subject.scores == pytest.approx(between, abs=1e-5)
    monkeypatch.setattr(metrics, "SCORES_PER_BLOCK", 4 * M)
    assert metrics.score_matrix(members) == pytest.approx(between, abs=1e-5)

    a, b = np.nonzero(~np.eye(M, dtype=bool))  # a caption's score with itself is not used
    monkeypatch.setattr(protocols, "QUERIES_PER_BLOCK", 4)
    pair = Pairs.of([0], [1])
    ratings = Ratings(a, b, None)
    rated = protocols.ranks_within(subject, "captions", np.arange(M), pair, ratings)[1]
    assert rated == pytest.approx(np.array(within)[a, b], abs=1e-5)


@pytest.mark.parametrize("name", ["cosine", "wasserstein"])
def test_splits_whose_scores_do_not_fit_into_memory_are_ranked_in_blocks(name, monkeypatch):
    """As dmsm's 20,252 images and 101,260 captions: the ranks are those of the whole matrix."""
    sides, owner = embeddings(name)
    members = [Member(FORMULAS[name], *sides)]
    expected = metrics.ranks(metrics.score_matrix(members), owner)
    monkeypatch.setattr(metrics, "SCORES_PER_BLOCK", 4 * M)
    monkeypatch.setattr(metrics, "MAX_SCORES_HELD", 10)
    assert all(map(np.array_equal, metrics.rank_members(members, owner), expected))

    opt = evaluate.parse_args(["--embeddings", "x.npz"])
    judged = {"positives": {"t2i": Pairs.of(range(M), owner)}}
    whole = Embeddings("a file", owner, N, members, judged=judged)
    results, record = protocols.assess(whole, opt)
    assert "positives" in results["protocols"]

    monkeypatch.setattr(protocols, "MAX_SCORES", 10)
    in_blocks, again = protocols.assess(whole, opt)
    assert in_blocks["protocols"] == results["protocols"]
    assert in_blocks["best_ranks"] == results["best_ranks"]
    assert np.array_equal(
        again["full", "i2t", "rank"], record["full", "i2t", "rank"], equal_nan=True
    )
    assert "notes" not in in_blocks


def test_pmrp_equals_definition(small):
    """Sets of categories that differ in at most zeta; images without instances are out, and their captions."""
    subject, scores, _, _ = problem("wasserstein")
    owner = subject.caption_image
    record = Record()
    codes = np.random.default_rng(3).random((N, 4)) < 0.4
    codes[[1, 7]] = False
    codes[3] = True  # the image without captions
    code = {
        "i": [set(np.flatnonzero(row)) for row in codes],
        "t": [set(np.flatnonzero(codes[i])) for i in owner],
    }
    subject.judged["pmrp"] = codes
    whole = protocols.pmrp(subject, protocols.everything(subject), record, "pmrp")
    of_folds = mean_over_folds(protocols.pmrp, subject, record, "pmrp_folds5")

    for name, parts, found in (
        ("pmrp", galleries(owner, None, 1), whole),
        ("pmrp_folds5", galleries(owner, 3, 5), of_folds),
    ):
        with_instances = []
        for images, captions in parts:
            images = [k for k in images if code["i"][k]]
            captions = [k for k in captions if code["t"][k]]
            with_instances.append((images, captions))

        for side in ("i2t", "t2i"):
            of_queries = code[side[0]]
            of_items = code[side[2]]
            values = {zeta: [] for zeta in (0, 1, 2)}
            alone = np.full(len(scores[side]), np.nan)
            count = 0
            for part in with_instances:
                queries, gallery = ends(side, *part)
                shares = []
                for zeta in values:
                    matches = {}
                    for q in queries:
                        near = {g for g in gallery if len(of_queries[q] ^ of_items[g]) <= zeta}
                        matches[q] = near
                    _, share = expected(scores[side], matches, queries, gallery)
                    shares.append(share)
                    values[zeta].append(100 * np.mean(list(share.values())))
                for q in queries:
                    alone[q] = np.mean([share.get(q, np.nan) for share in shares])
                count += len(queries)

            zetas = {f"zeta{zeta}": np.mean(v) for zeta, v in values.items()}
            mean = np.mean(list(zetas.values()))
            assert found[side] == pytest.approx({**zetas, "pmrp": mean, "queries": count})
            assert record[name, side, "pmrp"] == pytest.approx(alone, nan_ok=True)


def test_uncertainty_report_leaves_out_what_is_no_query():
    spread = torch.tensor([[0.0], [1], [2], [3], [9]])  # log det Sigma of five captions
    captions = Embedding(torch.zeros(5, 1), spread)
    e = Embeddings("x", np.zeros(5, int), 1, [Member(None, None, captions)])
    record = Record({("full", "t2i", "rank"): np.array([0.0, 0, 5, 1, np.nan])})

    report = protocols.report_uncertainty(e, evaluate.parse_args(["--uncertainty"]), record)

    of_captions = report["captions"]
    assert of_captions["recall_bins"]["recall"] == [100, 100, 0, 0]
    assert of_captions["risk_coverage"]["area_random"] == 50
    assert of_captions["risk_coverage"]["risk"] == pytest.approx([0, 0, 100 / 3, 50])
    assert of_captions["mean"] == 3


# ---- query-bank normalisation


def member(name: str, *words) -> Member:
    sides, _ = embeddings(name, *words)
    return Member(FORMULAS[name], *sides)


def term(scores_of_item, beta: float) -> float:
    """Loss of one item's scores: a sum over its bank, one query after the other."""
    top = max(scores_of_item)
    mean = sum(np.exp(beta * (x - top)) for x in scores_of_item) / len(scores_of_item)
    return top + np.log(mean) / beta


def slow(name: str, one: Member, queries: Member, beta: float) -> list[np.ndarray]:
    """The numbers that images and captions lose, (N,) and (M,)."""
    of_images = slow_scores(name, one.images, queries.captions)
    of_captions = slow_scores(name, queries.images, one.captions).T
    return [np.array([term(row, beta) for row in matrix]) for matrix in (of_images, of_captions)]


def recall_sums(scores: np.ndarray, owner: np.ndarray) -> dict:
    numbers = references.slow_retrieval(scores, owner)
    sums = {}
    for side in ("t2i", "i2t"):
        sums[side] = sum(numbers[side][f"r{k}"] for k in (1, 5, 10))
    return sums


@pytest.mark.parametrize("name", ["cosine", "kl"])
@pytest.mark.parametrize("block", [3, 1000])
def test_terms_are_those_of_a_double_loop(monkeypatch, name, block):
    monkeypatch.setattr(bank, "IMAGES_PER_BLOCK", block)
    one = member(name, 0)
    queries = member(name, 10, 9, 11)
    betas = [0.3, 2.0, 40.0]

    of_betas = [slow(name, one, queries, beta) for beta in betas]
    for side, *expected in zip(("t2i", "i2t"), *of_betas):
        found = bank.item_terms([one], [queries], betas, side)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", [-3e4, 3e4])
def test_large_scores_neither_overflow_nor_vanish(level):
    """exp(beta s) is infinite or 0 in float32, and in float64 too."""
    scores = np.float32(level) + np.random.default_rng(0).normal(0, 50, (N, M)).astype(np.float32)
    one = Member(dot, Embedding(torch.from_numpy(scores)), Embedding(torch.eye(M)))
    found = bank.item_terms([one], [one], [0.5], "t2i")[0]

    expected = [term(row, 0.5) for row in scores.astype(float)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["cosine", "kl"])
def test_beta_has_the_highest_recalls_of_its_direction(name):
    sides, owner = embeddings(name, 40, 20, 70)
    dev = Member(FORMULAS[name], *sides)
    queries = member(name, 60, 15, 30)
    scores = slow_scores(name, dev.images, dev.captions)
    plain = recall_sums(scores, owner)
    best = dict(plain)
    best_beta = {"t2i": None, "i2t": None}
    for beta in np.array(bank.BETAS) / scores.std():
        images, captions = slow(name, dev, queries, beta)
        sums = recall_sums(scores - images[:, None] - captions, owner)
        for side in best:
            if sums[side] > best[side] + 1e-9:
                best[side] = sums[side]
                best_beta[side] = beta

    _, found = bank.fit_terms([dev], Embeddings("x", owner, 20, [dev]), [queries], "train")

    for side, beta in best_beta.items():
        if beta is None:
            assert found["beta"][side] is None, side
        else:
            assert found["beta"][side] == pytest.approx(beta, rel=1e-4), side
    assert found["dev_rsum"] == pytest.approx(sum(best.values()))
    assert found["dev_rsum"] >= found["dev_rsum_without"]
    assert found["dev_rsum_without"] == pytest.approx(sum(plain.values()))


def test_nothing_is_taken_where_dev_does_not_gain():
    """Perfect on dev; or every score the same, which has no spread."""
    points = Embedding(torch.eye(D))
    perfect = Member(cosine, points, points)
    all_the_same = Member(dot, points, Embedding(torch.ones(D, D)))
    queries = member("dot", 0, 5, 6)
    for one in (perfect, all_the_same):
        dev = Embeddings("x", np.arange(D), D, [one])

        terms, found = bank.fit_terms([one], dev, [queries], "train")

        assert found["beta"] == {"t2i": None, "i2t": None}
        assert found["dev_rsum"] == found["dev_rsum_without"]
        assert not terms[0].any() and not terms[1].any()
        line = next(iter(describe_results({"bank": found})))
        assert "beta none for text to image and none for image to text" in line


@pytest.mark.parametrize("size", [5, 20, 24, 1000])
def test_a_bank_is_of_whole_images(size):
    shuffled = np.random.default_rng(0).permutation(24)
    owner = np.repeat(np.arange(1, 7), 4)[shuffled]  # image 0 has none

    images, captions = bank.draw_queries(owner, 7, size)

    assert len(captions) == min(size // 4 * 4, 24) and len(images) == min(7, size)
    captions_per_image = np.bincount(owner[captions], minlength=7)
    assert (captions_per_image % 4 == 0).all() and set(owner[captions]) <= set(images)
    assert all(np.array_equal(np.unique(x), x) for x in (images, captions))
    assert all(map(np.array_equal, (images, captions), bank.draw_queries(owner, 7, size)))


@pytest.mark.parametrize(
    "words", [["--sim", "wasserstein"], ["--sim", "scan", "--data_name", "demo_region_precomp"]]
)
def test_items_are_embedded_in_their_order_in_whole_and_in_part(small_run, words):
    run = Trained(str(small_run(*words)))
    split = read_split_for(run, "train")
    tokens = split.encode(run.vocab)
    part = bank.draw_queries(split.caption_image, len(split.images), 40)

    device = torch.device("cpu")
    whole = encode(run.model, split, tokens, device, 7, part=None)
    some = encode(run.model, split, tokens, device, 7, part=part)

    assert len(some[0].mean) == 40 and len(some[1].mean) == 40 and len(whole[1].mean) == 240
    captions = some[1]
    if captions.n_parts is not None:
        assert captions.n_parts.tolist() == tokens.length[part.captions].tolist()
    for side, (all_items, few) in enumerate(zip(whole, some)):
        for position, k in list(enumerate(part[side].tolist()))[::7]:
            if side == 0:
                alone = run.images(split.images.gather([k])).rows(0)
            else:
                alone = run.texts([split.captions[k]]).rows(0)
            for e in (all_items.rows(k), few.rows(position)):
                if e.parts is not None:  # of other captions there are more words
                    assert not e.parts[alone.n_parts :].any()
                    e = e._replace(parts=e.parts[: alone.n_parts])
                for x, y in zip(e[:3], alone):
                    torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


# ---- the command


def test_the_command_takes_the_terms_of_train_at_the_betas_of_dev(small_run, ev, capsys):
    runs = [small_run("--sim", "wasserstein"), small_run("--sim", "cosine")]
    plain = ev("--checkpoint", *runs)
    found = ev("--checkpoint", *runs, "--bank", "train")

    assert "bank of 240 captions and 48 images of train: beta " in capsys.readouterr().out
    assert [found["bank"][key] for key in ("split", "captions", "images")] == ["train", 240, 48]
    assert "bank" not in plain and found["protocols"]["full"] == plain["protocols"]["full"]

    models = [Trained(str(run)) for run in runs]
    test = embed(models, "test")
    dev = embed(models, "dev")
    queries = embed(models, "train")
    without = recall_sums(dev.scores, dev.caption_image)
    assert found["bank"]["dev_rsum_without"] == pytest.approx(sum(without.values()))

    taken = {"t2i": 0, "i2t": 0}
    for side, beta in found["bank"]["beta"].items():
        if beta is not None:
            assert np.abs(np.array(bank.BETAS) / dev.scores.std() - beta).min() < 1e-3 * beta
            taken[side] = bank.item_terms(test.members, queries.members, [beta], side)[0]
    assert found["bank"]["beta"] != {"t2i": None, "i2t": None}  # else nothing is tested
    scores = test.scores - np.reshape(taken["t2i"], (-1, 1)) - taken["i2t"]
    for side, expected in recall_sums(scores, test.caption_image).items():
        recalls = [found["protocols"]["bank"][side][f"r{k}"] for k in (1, 5, 10)]
        assert sum(recalls) == pytest.approx(expected), side

    compared = ev("--compare", *runs, "--bank", "train")["comparisons"][0]["metrics"]["bank rsum"]
    first = ev("--checkpoint", runs[0], "--bank", "train")["protocols"]["bank"]["rsum"]
    assert compared["a"] == pytest.approx(first)
