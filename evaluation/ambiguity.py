"""How well a measure follows the number of items that fit a query, beside trivial predictors.

A caption that says more fits fewer images, so its number of words alone predicts how many images it
fits. A measure of uncertainty has to be compared with that: by its rank correlation with the number
that fit, and by the partial rank correlation that controls for the trivial predictors.
"""

from collections import Counter

import numpy as np

from metrics import partial_correlations, rank_correlations
from vocab import tokenize

BOOTSTRAP_SAMPLES = 1000


# ---- trivial predictors


def count_words(captions: list[str]) -> np.ndarray:
    """Count the words of each caption, without punctuation marks: (M,)."""
    return np.array([len(list_words(caption)) for caption in captions])


def measure_rarity(captions: list[str]) -> np.ndarray:
    """Compute the information of each caption's words: -sum log p(w), in nats: (M,).

    p is the share of a word among the words of all these captions. Rare words count more than
    common ones, so this is the number of words with rarer words weighted.
    """
    words_of = [list_words(caption) for caption in captions]

    counts = Counter()
    for words in words_of:
        counts.update(words)
    total = sum(counts.values())

    rarity = np.zeros(len(captions))
    for m, words in enumerate(words_of):
        rarity[m] = -sum(np.log(counts[word] / total) for word in words)
    return rarity


def list_words(caption: str) -> list[str]:
    """List the words of a caption in lower case, without punctuation marks."""
    return [word for word in tokenize(caption) if any(character.isalnum() for character in word)]


def caption_baselines(captions: list[str]) -> dict[str, np.ndarray]:
    """Compute the trivial predictors of how many images fit captions (M), larger where more fit."""
    return {"words": -count_words(captions).astype(float), "rarity": -measure_rarity(captions)}


# ---- correlations with the number that fit


def correlate_measures(
    measures: dict, baselines: dict, truth: np.ndarray, group: np.ndarray
) -> dict:
    """Correlate measures and trivial predictors (Q,) with the number of items that fit (Q,).

    Args:
        measures: {name: (Q,)}, larger where more items should fit.
        baselines: {name: (Q,)}, of report.BASELINES; may be empty.
        truth: how many items fit each query.
        group: (Q,) the image of each query. Images are resampled, each with all its queries.

    Returns {name: {"rho", "low", "high"}}: Spearman's correlation and its interval of 95% by a
    bootstrap. A measure also has "given": {baseline: {"rho", "low", "high"}}, its partial
    correlation given that baseline, and under "all" given all of them, where there are several.
    """
    variables = {**measures, **baselines}
    row = {name: k for k, name in enumerate(variables)}  # in the matrix of correlations
    row_of_truth = len(variables)
    codes = []
    for values in (*variables.values(), truth):
        codes.append(np.unique(values, return_inverse=True)[1])

    controls = {name: [row[name]] for name in baselines}
    if len(baselines) > 1:
        controls["all"] = [row[name] for name in baselines]

    correlations = [rank_correlations(codes, weight) for weight in draw_weights(group)]
    correlations = np.array(correlations)  # (1 + samples, V, V)
    result = {}
    for name in variables:
        result[name] = summarize(correlations[:, row[name], row_of_truth])
    for name in measures:
        given = {}
        for control, rows in controls.items():
            partial = partial_correlations(correlations, row[name], row_of_truth, rows)
            given[control] = summarize(partial)
        if given:
            result[name]["given"] = given
    return result


def draw_weights(group: np.ndarray, samples: int = BOOTSTRAP_SAMPLES, seed: int = 0):
    """Yield how often each query counts (Q,): once each, then as drawn in each bootstrap sample."""
    _, group = np.unique(group, return_inverse=True)
    n_groups = group.max() + 1
    rng = np.random.default_rng(seed)

    yield np.ones(len(group))
    for _ in range(samples):
        drawn = np.bincount(rng.integers(n_groups, size=n_groups), minlength=n_groups)
        yield drawn[group].astype(float)


def summarize(values: np.ndarray) -> dict:
    """Return the first value, and the interval of 95% of the others, those of bootstrap samples."""
    known = values[1:][np.isfinite(values[1:])]
    low = high = np.nan
    if len(known):
        low, high = np.percentile(known, [2.5, 97.5])
    return {"rho": float(values[0]), "low": float(low), "high": float(high)}
