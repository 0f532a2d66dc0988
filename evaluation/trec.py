"""Rankings and right answers in the files of trec_eval, read by tools of information retrieval."""

import re

import numpy as np

import metrics
from evaluation.annotations import Pairs, match_original_pairs
from evaluation.embeddings import Embeddings
from evaluation.protocols import directions, everything
from utils import atomic

ITEMS_PER_QUERY = 100  # that are written
ENDINGS = ("_i2t.run", "_i2t.qrels", "_t2i.run", "_t2i.qrels")
SPACE = re.compile(r"\s")


def list_files(prefix: str) -> list[str]:
    """List the files that `write_trec` writes."""
    return [prefix + ending for ending in ENDINGS]


def name_items(e: Embeddings, side: str, count: int) -> list[str]:
    """Name "image" or "caption" items by their ids or names.

    By number, from 0, where these are missing or do not fit: a name in such a file has no spaces,
    and stands for one item.
    """
    for key in (f"{side}_id", f"{side}_name"):
        names = [str(name) for name in e.ids.get(key) or ()]
        unfit = any(SPACE.search(name) or not name for name in names)
        if len(set(names)) == count and not unfit:
            return names
    return [f"{side}{number}" for number in range(count)]


def write_trec(prefix: str, e: Embeddings) -> None:
    """Write PREFIX_{i2t,t2i}.run and .qrels: the best items of each query, and its right ones.

    Lines are "query Q0 item rank score model" and "query 0 item 1". Right are the positives of the
    user where they are read, else the original pairs. Of items that tie, right ones stand last;
    their scores are equal, so a tool that sorts again may order them in another way.
    """
    matches = e.judged.get("positives") or match_original_pairs(e.caption_image)
    images = name_items(e, "image", e.n_images)
    captions = name_items(e, "caption", len(e.caption_image))
    for side, scores, queries, _ in directions(e.scores, *everything(e)):
        if side not in matches:
            continue
        if side == "t2i":
            scores = e.scores_t2i.T
        pairs = matches[side]
        asked = np.intersect1d(queries, pairs.query)
        of_queries, of_items = images, captions
        if side == "t2i":
            of_queries, of_items = captions, images
        write_side(f"{prefix}_{side}", scores, asked, pairs, of_queries, of_items)


def write_side(
    start: str,
    scores: np.ndarray,
    queries: np.ndarray,
    pairs: Pairs,
    of_queries: list[str],
    of_items: list[str],
) -> None:
    """Write the files of one direction.

    Args:
        start: of their names.
        scores: (Q, G).
        queries: (q,), those that have a right item.
        pairs: the right items of all queries.
        of_queries: names (Q,).
        of_items: names (G,).
    """
    depth = min(ITEMS_PER_QUERY, len(of_items))
    with atomic(f"{start}.run") as run, atomic(f"{start}.qrels") as qrels:
        for query in queries.tolist():
            row = np.asarray(scores[query], np.float32)
            matched = pairs.block(slice(query, query + 1)).item
            right = np.zeros(len(row), bool)
            right[matched] = True

            name = of_queries[query]
            best = metrics.best_items(row, right, depth)
            for rank, item in enumerate(best.tolist(), 1):
                run.write(f"{name} Q0 {of_items[item]} {rank} {row[item]:.9g} model\n")
            for item in matched.tolist():
                qrels.write(f"{name} 0 {of_items[item]} 1\n")
