"""Approximate indexes of an index: built, and checked against the comparison of all photos."""
import os
import time

import numpy as np
import torch

from cli import InputError
from data import read_split
from retrieval.approximate import Approximate, build
from retrieval.encoder import Encoder
from retrieval.index import Engine, Generation, Index, Items
from retrieval.ranking import Ranker
from retrieval.vectors import Asked, LiftedVectors, WholeVectors
from similarities import Embedding

LEARNT, TRIED = 4000, 300             # queries that an approximate index learns from; on which its recall is measured
TARGET = 0.98                         # share of the ten best photos that the candidates hold
DEEPEST = 3200                        # candidates of a query at most
BEST = 10


def captions_of(encoder: Encoder, split: str, most: int) -> Embedding:
    """The embeddings of at most `most` captions of a split of the run's own data, drawn at random. Raises InputError
    where the data are not at hand."""
    texts = read_split(encoder.options.data_path, encoder.options.data_name, split, text_only=True).captions
    drawn = np.sort(np.random.default_rng(0).permutation(len(texts))[:most])
    e = encoder.captions([texts[m] for m in drawn])
    return Embedding(*(None if x is None else x.cpu() for x in e))


def queries_of(encoder: Encoder, vectors: LiftedVectors | WholeVectors, photos) -> tuple[Asked, Asked, str]:
    """Queries to learn from, queries to try, and what they are: captions of train and of dev, or, where the run's data
    are not at hand, photos of the index. photos(k): the embeddings of k of them."""
    try:
        asked = [vectors.queries(captions_of(encoder, *of)) for of in (("train", LEARNT), ("dev", TRIED))]
        return *asked, f"captions of {encoder.options.data_name} dev"
    except InputError:
        e = photos(LEARNT + TRIED)
        cut = max(1, len(e.mean) - max(1, min(TRIED, len(e.mean) // 4)))
        asked = [vectors.queries(e.rows(part), of_images=True) for part in (slice(cut), slice(cut, None))]
        return *asked, (f"photos of the index, which are found more easily than captions (those of "
                        f"{encoder.options.data_name} are not at hand)")


def propose(new: Generation, old: Index | None, encoder: Encoder, vectors: LiftedVectors | WholeVectors,
            photos) -> None:
    """Build the approximate indexes of a new state, whose files are closed, and note in its manifest how many
    candidates they need and what they find. old: a state of which the new one holds all photos first, to go on from."""
    engine = Engine(new.path, {**new.manifest, "method": "flat"})
    learnt, tried, what = queries_of(encoder, vectors, photos)
    tuned, began = [], time.perf_counter()
    for c, flat in enumerate(engine.channels):
        path = os.path.join(new.path, f"approximate{c}.npz")
        if old is None:
            one = build(flat, new.manifest["method"], path, learnt.vectors[c])
        else:
            one = Approximate(os.path.join(old.folder, old.manifest["generation"], f"approximate{c}.npz"))
            one.add(flat)
        tuned.append(one.tune(flat, tried.vectors[c], TARGET))
        one.save(path)
    built = time.perf_counter() - began
    taken = Items.joined(new.items).bank
    bank = None if taken is None or vectors.takes_bank else torch.from_numpy(taken)
    count = new.manifest["count"]
    every = Ranker(vectors, engine, count, bank)
    exact, slow = timed(every, tried)
    new.manifest["depth"] = min(count, max(of.depth for of in tuned))
    while True:
        some = Ranker(vectors, Engine(new.path, new.manifest), count, bank)
        found, fast = timed(some, tried)
        recall = np.mean([np.isin(a, b).mean() for a, b in zip(exact, found)])
        if recall >= TARGET or new.manifest["depth"] >= min(count, DEEPEST):
            break
        new.manifest["depth"] = min(count, 2 * new.manifest["depth"])
    first = np.mean(exact[:, 0] == found[:, 0])
    new.manifest["check"] = [
        f"{new.manifest['method']} proposes {new.manifest['depth']:,} candidates, built in {built:,.0f} s",
        f"of the {exact.shape[1]} best photos it finds {100 * recall:.1f}%, of the first {100 * first:.1f}%, for "
        f"{len(exact)} {what}",
        f"{fast:,.0f} queries per second, and {slow:,.0f} by comparing all photos, with {torch.get_num_threads()} "
        "threads"]


def timed(ranker: Ranker, asked: Asked) -> tuple[np.ndarray, float]:
    """The rows of the best photos of queries (Q, BEST), and queries per second."""
    began = time.perf_counter()
    rows = ranker.rank(asked, min(BEST, ranker.count)).rows
    return rows, len(rows) / (time.perf_counter() - began)
