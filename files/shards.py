"""Shards: a file too large for one disk or one copy, cut into NAME-00000.npy, NAME-00001.npy, ...
and read as one."""
import errno
import os
import re

import numpy as np

from cli import InputError, check
from files.reading import read_array


def numbered(path: str) -> list[str]:
    """The shards of the file `path`, in their order: of X/train_ims.npy the files
    X/train_ims-00000.npy, ...; none where there are none. Raises InputError unless their numbers
    are 0, 1, 2, ..., each once."""
    stem, ending = os.path.splitext(path)
    folder, name = os.path.split(stem)
    pattern = re.compile(re.escape(name) + "-([0-9]+)" + re.escape(ending))
    shards = sorted((int(match[1]), file)
                    for file in (os.listdir(folder or ".") if os.path.isdir(folder or ".") else ())
                    if (match := pattern.fullmatch(file)))
    for k, (number, file) in enumerate(shards):
        check(number >= k, f"{shards[k - 1][1]} and {file} in {folder} are both shard {number} of "
                           f"{name}{ending}; keep one of them")
        check(number == k, f"{folder} holds {file} and no shard {k} of {name}{ending}; shards are "
                           "numbered from 0 without gaps, so fetch the missing one, or number them "
                           "again")
    return [os.path.join(folder, file) for _, file in shards]


def there(path: str) -> bool:
    """Whether there is a file, or shards of it."""
    return os.path.isfile(path) or bool(numbered(path))


def read_rows(path: str, fix: str) -> "np.memmap | Shards":
    """The array of an .npy file, or of its shards, mapped and not read. Raises InputError where
    both are there, and on shards that do not belong together."""
    shards = numbered(path)
    if not shards:
        return read_array(path, fix)
    check(not os.path.lexists(path), f"{path} and its shards {os.path.basename(shards[0])}, ... "
                                     "are both there; move one away")
    try:
        return Shards(shards, [read_array(shard, fix) for shard in shards])
    except InputError as error:
        if getattr(error.__cause__, "errno", None) == errno.EMFILE:
            raise InputError(f"{path} has {len(shards):,} shards, more files than this process may "
                             "open; raise the limit (ulimit -n), or write fewer shards") from error
        raise


class Shards:
    """Arrays (n_k, ...) of one type and shape of a row, as one array (N, ...) that is never joined.
    Its first rows, [:n], are mapped, too; rows taken by their numbers are copied, as numpy does
    both."""

    def __init__(self, paths: list[str], parts: list[np.ndarray]):
        """paths: the files of the parts. Raises InputError where a part has no rows or is not like
        the first."""
        for path, part in zip(paths, parts):
            check(part.ndim and len(part),
                  f"{path} has shape {part.shape} and so no rows; a shard has at least one, so "
                  "write it again, or leave it out and number the others again")
            check((part.dtype, part.shape[1:]) == (parts[0].dtype, parts[0].shape[1:]),
                  f"{path} holds rows of {part.shape[1:]} in {part.dtype}, {paths[0]} of "
                  f"{parts[0].shape[1:]} in {parts[0].dtype}; all shards of a file are alike, so "
                  "extract them again")
        self.paths, self.parts = paths, parts
        self.start = np.cumsum([0, *map(len, parts)])                               # (K + 1,)
        self.shape, self.dtype = (int(self.start[-1]), *parts[0].shape[1:]), parts[0].dtype
        self.ndim, self.nbytes = len(self.shape), sum(part.nbytes for part in parts)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index):
        """[:n], as another `Shards`; rows of integers from 0, as an array of the shape of the index
        and of a row."""
        if isinstance(index, slice):
            parts = [(path, part[:index.stop - at])
                     for path, part, at in zip(self.paths, self.parts, self.start) if at < index.stop]
            return Shards(*map(list, zip(*parts)))
        rows = np.asarray(index)
        shard = np.searchsorted(self.start, rows, side="right") - 1
        result = np.empty(rows.shape + self.shape[1:], self.dtype)
        for k in np.unique(shard):
            result[shard == k] = self.parts[k][rows[shard == k] - self.start[k]]
        return result

    def place(self, row: int) -> tuple[str, int]:
        """The file that holds a row, and its number there."""
        k = int(np.searchsorted(self.start, row, side="right")) - 1
        return self.paths[k], int(row - self.start[k])

    def refuse_cut(self, step: int) -> None:
        """Raise InputError where the `step` rows of an image do not stand in one shard."""
        for path, part in zip(self.paths, self.parts):
            check(len(part) % step == 0,
                  f"{path} has {len(part)} rows, and images stand in {step} equal rows each; let "
                  "all rows of an image stand in one shard, or give each image once")
