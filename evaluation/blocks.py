"""Scores of splits that are too large to hold: computed for the queries that are asked for."""

import numpy as np
import torch

import metrics

QUERIES_PER_BLOCK_OF_PAIRS = 1024


class BlockScores:
    """Scores (N, M) of images and captions, or transposed, which are indexed like an array.

    `scores[rows]`, `scores[np.ix_(rows, columns)]` and the pairs `scores[rows, columns]` are
    computed when they are asked for, by all members' similarities, in float32.

    Args:
        members: evaluation.embeddings.Member of each model.
        bank: what is subtracted, of images (N,) and of captions (M,); None: nothing.
        transposed: rows are captions.
    """

    def __init__(self, members: list, bank: tuple | None = None, transposed: bool = False):
        self.members = members
        self.bank = bank
        self.transposed = transposed
        _, images, captions = members[0]
        self.shape = (len(images.mean), len(captions.mean))
        if transposed:
            self.shape = self.shape[::-1]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def T(self) -> "BlockScores":
        return BlockScores(self.members, self.bank, not self.transposed)

    def __getitem__(self, index) -> np.ndarray:
        everything = np.arange(self.shape[1])
        if not isinstance(index, tuple):
            rows = np.arange(self.shape[0])[index]
            return self.compute(np.atleast_1d(rows), everything).reshape(*np.shape(rows), -1)

        rows, columns = index
        if np.ndim(rows) == 2:  # np.ix_
            return self.compute(rows[:, 0], columns[0])
        return self.compute_pairs(np.asarray(rows), np.asarray(columns))

    def compute(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Compute the scores (r, c) of rows (r,) and columns (c,)."""
        images, captions = rows, columns
        if self.transposed:
            images, captions = columns, rows
        members = []
        for similarity, x, y in self.members:
            x = x.rows(torch.from_numpy(images))
            members.append((similarity, x, y.rows(torch.from_numpy(captions))))
        scores = metrics.score_matrix(members)
        if self.bank is not None:
            scores = scores - self.bank[0][images][:, None] - self.bank[1][captions]
        if self.transposed:
            return scores.T
        return scores

    def compute_pairs(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Compute the scores (K,) of rows (K,) with columns (K,), in blocks of rows."""
        values = np.empty(len(rows), np.float32)
        order = np.argsort(rows, kind="stable")
        for start in range(0, len(order), QUERIES_PER_BLOCK_OF_PAIRS):
            here = order[start : start + QUERIES_PER_BLOCK_OF_PAIRS]
            own_rows, row = np.unique(rows[here], return_inverse=True)
            own_columns, column = np.unique(columns[here], return_inverse=True)
            values[here] = self.compute(own_rows, own_columns)[row, column]
        return values
