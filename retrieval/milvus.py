"""Vectors of photos in a collection of Milvus: the engine for galleries that no single machine holds.

The same calls serve milvus-lite (a folder NAME.db, in this process) and a cluster (http://HOST:19530). A photo is one
entity: its row, its name, its uncertainty, one vector for each channel, and `rest`, the numbers that exact scoring
needs beside them. A collection NAME_manifest beside it says what it is and whether it is finished.
"""
import json
import re
from collections.abc import Iterator

import numpy as np

from cli import InputError
from retrieval.connection import CONNECT, REPLY, Connection, import_pymilvus
from retrieval.milvus_vectors import (
    check_finite,
    check_widths,
    frame_of,
    frames_read,
    frames_text,
    index_of,
    narrow,
    photos_given,
    photos_stored,
    queries_stored,
    search_params,
    stored_width,
)

FORMAT = 1
LARGEST_TOP = 16_384                  # answers of one request, and queries in it (Milvus Limits)
BATCH_BYTES = 16 << 20                # of a request; a server takes 64 MiB by default (proxy.grpc.serverMaxRecvSize)
BATCH_ROWS = 10_000
NAME_BYTES = 4096                     # of a photo's name
MANIFEST_BYTES = 65_535               # of a VARCHAR
LITE_METHODS = "flat", "hnsw"


class Milvus:
    """A collection. Made by Milvus.create or Milvus.open; to be closed, or used as a context.

    channels: K of each channel. rest: R, 0 for none. half: whether vectors are float16 (False on milvus-lite, which has
    float32 alone). method: a key of INDEXES. state: "building" or "ready".
    """

    def __init__(self, connection: Connection, collection: str):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,199}", collection):
            connection.close()
            raise InputError(f"'{collection}' is no name of a collection; give at most 200 letters, digits and _, no "
                             "digit first")
        self.connection, self.client = connection, connection.client
        self.collection, self.side = collection, f"{collection}_manifest"
        self.where = f"{collection} at {connection.uri}"
        self.record = None
        self.frames = None            # (K + 1,) for each channel, see milvus_vectors; from the first photos

    # ---- life of a collection

    @classmethod
    def create(cls, uri: str, collection: str, channels: list[int], rest: int, half: bool, method: str, manifest: dict,
               token: str = "", shards: int = 1) -> "Milvus":
        """A new collection, or an unfinished one of the same settings and manifest, to go on with after a kill.

        manifest: what the caller wants to find again, as JSON of less than 64 kB. shards: how many parts of the
        cluster take new photos at once. Raises InputError where a collection of this name is finished, was made with
        other settings, or is none of ours, and where Milvus cannot hold such vectors.
        """
        check_widths(channels, rest, method)
        self = cls(Connection(uri, token, writing=True), collection)
        try:
            if self.connection.lite and method not in LITE_METHODS:
                raise InputError(f"milvus-lite has no index of the kind {method}; give {' or '.join(LITE_METHODS)}, or "
                                 "the address of a Milvus server")
            record = {"format": FORMAT, "state": "building", "channels": list(channels), "rest": rest,
                      "half": half and not self.connection.lite, "method": method, "manifest": manifest}
            self._claim(json.loads(json.dumps(record)), shards)
            self._load()
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def open(cls, uri: str, collection: str, token: str = "", writing: bool = False) -> "Milvus":
        """A finished collection to search in. With `writing`, also an unfinished one, to change it. Raises InputError
        where there is none, where it is unfinished, or where it is none of ours."""
        self = cls(Connection(uri, token), collection)
        try:
            self.record = self._read_record()
            if self.record is None:
                raise InputError(f"there is no collection {self.where} that `search.py index` made; make it, or name "
                                 "another --collection")
            if not writing and self.record["state"] != "ready" or not self.connection.has(self.collection):
                raise InputError(f"the collection {self.where} is not finished; call `search.py index` again with the "
                                 "same options, and it goes on")
            self._check_fields()
            self._load()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> "Milvus":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    channels = property(lambda self: self.record["channels"])
    rest = property(lambda self: self.record["rest"])
    half = property(lambda self: self.record["half"])
    method = property(lambda self: self.record["method"])
    state = property(lambda self: self.record["state"])

    def manifest(self) -> dict:
        """The manifest that create or finish was given."""
        return self.record["manifest"]

    def finish(self, manifest: dict | None = None) -> None:
        """Wait until all photos are on disk and indexed; call the collection ready. manifest: a new one, or None."""
        with self.connection.asking():
            self.client.flush(self.collection)
        for field in self._vector_fields():
            self.connection.wait_for(f"index {self.collection}.{field}", lambda field=field: self._indexed(field))
        self._write_record({**self.record, "state": "ready"} | ({} if manifest is None else {"manifest": manifest}))

    def _indexed(self, field: str) -> float:
        """The share of the photos that the index of a field holds."""
        index = self.client.describe_index(self.collection, field, timeout=CONNECT)
        if not index or index["state"] == "Failed":
            raise InputError(f"Milvus could not build the index {field} of {self.where}; see its index nodes' log")
        left = max(0, int(index.get("pending_index_rows", 0)))
        return 1 - left / max(left + 1, int(index.get("total_rows", 0)))

    def drop(self) -> None:
        """Remove the collection for good. A kill leaves it unfinished or gone."""
        self._building()
        with self.connection.asking():
            self.client.drop_collection(self.collection, timeout=REPLY)
            self.client.drop_collection(self.side, timeout=REPLY)

    # ---- photos

    def insert(self, rows, names: list[str], uncertainties, vectors: list[np.ndarray],
               rest: np.ndarray | None = None, digests: list[str] | None = None) -> None:
        """Add photos, in batches below the server's limit. A row that is there already is replaced, so that a batch may
        be sent again after a kill. The collection is unfinished until finish().

        rows: (n,) from 0. uncertainties: (n,), NaN where unknown. vectors: (n, K) for each channel. rest: (n, R).
        digests: (n,) by which a changed photo is known, "" where unknown.
        Raises InputError for numbers that are not finite or, with half, beyond float16.
        """
        rows, uncertainties = np.asarray(rows, np.int64), np.asarray(uncertainties, np.float32)
        given, digests = [*vectors] + ([rest] if self.rest else []), digests or [""] * len(rows)
        assert len(names) == len(rows) == len(uncertainties) and (rest is not None) == bool(self.rest)
        assert [array.shape for array in given] == [(len(rows), k) for k in self._widths_given()]
        self._building()
        if self.frames is None and len(rows):
            if self.count:
                self._frame(0)        # refuses
            self._write_frames([frame_of(array, self.method, self.half) for array in vectors])
        step = self._rows_a_batch(sum(self._bytes().values()))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            stored = {f"channel{i}": photos_stored(array[part], self.frames[i], self.method, self.half)
                      for i, array in enumerate(vectors)}
            if self.rest:
                stored["rest"] = photos_stored(rest[part], self._as_is(), "flat", self.half)
            for field, array in stored.items():
                check_finite(array, [f"photo {row}" for row in rows[part]], field)
            entities = [{"row": int(row), "name": _name(name), "digest": digest,
                         "uncertainty": None if np.isnan(u) else float(u),
                         **{field: array[i] for field, array in stored.items()}}
                        for i, (row, name, digest, u) in enumerate(
                            zip(rows[part], names[part], digests[part], uncertainties[part]))]
            with self.connection.asking():
                self.client.upsert(self.collection, entities, timeout=REPLY)

    def delete(self, rows) -> None:
        """Remove photos. Rows that are not there are no error. The collection is unfinished until finish()."""
        self._building()
        rows = [int(row) for row in np.asarray(rows).ravel()]
        for start in range(0, len(rows), BATCH_ROWS):
            with self.connection.asking():
                self.client.delete(self.collection, ids=rows[start:start + BATCH_ROWS], timeout=REPLY)

    @property
    def count(self) -> int:
        """Number of photos."""
        return int(self.connection.query(self.collection, "", ["count(*)"], exact=True)[0]["count(*)"])

    def next_row(self) -> int:
        """The highest row and one, 0 for an empty collection: where inserting goes on. Found by bisection, since a
        query of Milvus has neither a maximum nor an order."""
        low = high = self.count       # rows may have gaps, so that the highest may lie above
        while self._any_from(high):
            low, high = high + 1, 2 * high + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._any_from(middle) else (low, middle)
        return low

    def _any_from(self, row: int) -> bool:
        return bool(self.connection.query(self.collection, f"row >= {row}", ["row"], exact=True, limit=1))

    def all_names(self, page: int = BATCH_ROWS) -> Iterator[tuple[np.ndarray, list[str], list[str]]]:
        """(rows, names, digests) of all photos, by growing row, in pages of at most `page` photos."""
        for start in range(0, self.next_row(), page):
            found = self.connection.query(self.collection, f"row >= {start} and row < {start + page}",
                                          ["row", "name", "digest"], exact=True)
            if found:
                rows, *texts = zip(*sorted((e["row"], e["name"], e["digest"]) for e in found))
                yield np.array(rows, np.int64), *map(list, texts)

    def present(self, rows: np.ndarray) -> np.ndarray:
        """Those of at most BATCH_ROWS rows that are there, in their order."""
        found = self.connection.query(self.collection, f"row in [{','.join(map(str, rows))}]", ["row"], exact=True)
        return rows[np.isin(rows, [entity["row"] for entity in found])]

    def names(self, rows) -> list[str]:
        """Names of photos, in the order of rows. Raises InputError for a row that is not there."""
        return [entity["name"] for entity in self._entities(rows, ["name"], NAME_BYTES)]

    def uncertainties(self, rows) -> np.ndarray:
        """(n,) float32, NaN where unknown, in the order of rows."""
        found = self._entities(rows, ["uncertainty"], 16)
        return np.array([np.nan if entity["uncertainty"] is None else entity["uncertainty"] for entity in found],
                        np.float32)

    def fetch(self, rows) -> tuple[list[np.ndarray], np.ndarray | None]:
        """([(n, K) float32 for each channel], (n, R) float32 or None), in the order of rows: as given to insert, but
        for the rounding of float32 or, with half, of float16. Raises InputError for a row that is not there."""
        found = self._entities(rows, self._vector_fields(), 4 * sum(self._widths().values()))
        frames = [self._frame(i) for i in range(len(self.channels))] if found else [
            np.zeros(k + 1, np.float32) for k in self.channels]
        vectors = [photos_given([entity[f"channel{i}"] for entity in found], frame) for i, frame in enumerate(frames)]
        return vectors, photos_given([entity["rest"] for entity in found], self._as_is()) if self.rest else None

    def candidates(self, channel: int, queries: np.ndarray, r: int,
                   effort: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The r photos of the largest inner products by Milvus's index: (rows (Q, r) int64, scores (Q, r) float32),
        scores falling. Where there are fewer: row -1, score -inf. queries: (Q, K). effort: see search_params."""
        if not 1 <= r <= LARGEST_TOP:
            raise InputError(f"{r} candidates are out of range; Milvus gives 1 to {LARGEST_TOP:,} a query")
        field, queries = f"channel{channel}", np.asarray(queries, np.float32)
        rows = np.full((len(queries), r), -1, np.int64)
        scores = np.full((len(queries), r), -np.inf, np.float32)
        if self.frames is None and not self.count:
            return rows, scores
        queries, moved = queries_stored(queries, self._frame(channel), self.method, self.half)
        check_finite(queries, [f"query {i}" for i in range(len(queries))], field)
        step = min(self._rows_a_batch(queries.shape[1] * 4), max(1, 10 ** 6 // r), LARGEST_TOP)
        for start in range(0, len(queries), step):
            with self.connection.asking():
                # Without output_fields milvus-lite would send whole entities.
                found = self.client.search(self.collection, list(queries[start:start + step]), limit=r,
                                           anns_field=field, output_fields=["row"], timeout=REPLY,
                                           search_params=search_params(self.method, r, effort))
            for i, hits in enumerate(found, start):
                rows[i, :len(hits)] = [hit["row"] for hit in hits]
                scores[i, :len(hits)] = np.array([hit["distance"] for hit in hits]) + moved[i]
        return rows, scores

    # ---- the manifest

    def _claim(self, record: dict, shards: int) -> None:
        """Make the collection and its record, or take an unfinished one of the same settings. The record comes first,
        so that a collection without a record is known to be another's."""
        found = self._read_record()
        if found is None:
            if self.connection.has(self.collection):
                raise InputError(f"the collection {self.where} was not made by `search.py index`; name another "
                                 "--collection")
            self._write_record(record)
        elif found["state"] == "ready" and self.connection.has(self.collection):
            raise InputError(f"the collection {self.where} is there already and is finished; name another "
                             "--collection, or add photos to it")
        elif {**found, "state": "building"} != record:
            parts = ", ".join(key for key in record if key != "state" and found[key] != record[key])
            raise InputError(f"the collection {self.where} was begun with other settings ({parts}); give the same "
                             "options and model, or name another --collection")
        elif found["state"] == "ready":         # something else removed its photos
            self._write_record(record)
        self.record = record
        if self.connection.has(self.collection):
            self._check_fields()
        else:
            self._make(shards)

    def _read_record(self) -> dict | None:
        """The newest record, or None where there is none. Raises InputError where the side collection is no record of
        this format."""
        foreign = InputError(f"the collection {self.side} at {self.connection.uri} is no record of this version of "
                             "`search.py index`; name another --collection, or make the index anew under another name")
        if not self.connection.has(self.side):
            return None
        fields = self.connection.describe(self.side)
        if [field[0] for field in fields] != ["version", "text", "unused"]:
            raise foreign
        self.connection.prepare(self.side, {"unused": ("FLAT", {})})
        found = self.connection.query(self.side, "version >= 0", ["version", "text"], exact=True)
        if not found:                 # a kill came before the first record
            return None
        try:
            record = json.loads(max(found, key=lambda entity: entity["version"])["text"])
            assert record["format"] == FORMAT and record["state"] in ("building", "ready")
            assert isinstance(record["manifest"], dict) and isinstance(record["half"], bool)
            check_widths(record["channels"], record["rest"], record["method"])
            self._read_frames(record["channels"])
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            raise foreign from error
        return record

    def _write_record(self, record: dict) -> None:
        """Write a new record, then remove the older ones: a kill leaves the old one or the new one the newest."""
        text = json.dumps(record)
        if len(text.encode()) > MANIFEST_BYTES:
            raise InputError(f"the manifest of {self.where} takes {len(text.encode()):,} bytes; at most "
                             f"{MANIFEST_BYTES:,} can be stored: shorten its lists")
        types = import_pymilvus().DataType
        with self.connection.asking():
            if not self.connection.has(self.side):
                schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("version", types.INT64, is_primary=True)
                schema.add_field("text", types.VARCHAR, max_length=MANIFEST_BYTES)
                schema.add_field("unused", types.FLOAT_VECTOR, dim=2)        # Milvus wants a vector in every collection
                self.client.create_collection(self.side, schema=schema, timeout=REPLY, consistency_level="Strong")
            self.connection.prepare(self.side, {"unused": ("FLAT", {})})
            old = [entity["version"] for entity in
                   self.connection.query(self.side, "version >= 0", ["version"], exact=True)]
            self.client.upsert(self.side, [{"version": max(old, default=-1) + 1, "text": text,
                                            "unused": np.zeros(2, np.float32)}], timeout=REPLY)
            if old:
                self.client.delete(self.side, ids=old, timeout=REPLY)
        self.record = record

    def _write_frames(self, frames: list[np.ndarray]) -> None:
        """Write, once and before the first photo, how vectors are moved: the entities -1, -2, ... of the record."""
        frames = [narrow(frame, False) for frame in frames]
        for i, frame in enumerate(frames):
            check_finite(frame[None], ["the first photos: one of them"], f"channel{i}")
        texts = frames_text(frames, MANIFEST_BYTES)
        with self.connection.asking():
            self.client.upsert(self.side, [{"version": -1 - i, "text": text, "unused": np.zeros(2, np.float32)}
                                           for i, text in enumerate(texts)], timeout=REPLY)
        self.frames = frames

    def _read_frames(self, channels: list[int]) -> None:
        found = self.connection.query(self.side, "version < 0", ["version", "text"], exact=True)
        texts = [entity["text"] for entity in sorted(found, key=lambda entity: -entity["version"])]
        self.frames = frames_read(texts, channels) if texts else None

    def _frame(self, channel: int) -> np.ndarray:
        if self.frames is None:
            raise InputError(f"the record of the collection {self.where} does not say how its vectors were moved; make "
                             "the index anew under another name")
        return self.frames[channel]

    def _as_is(self) -> np.ndarray:
        """The frame of `rest`, which is not moved."""
        return np.zeros(self.rest + 1, np.float32)

    def _building(self) -> None:
        """Note that the collection is about to change."""
        if self.state != "building":
            self._write_record({**self.record, "state": "building"})

    # ---- fields and requests

    def _vector_fields(self) -> list[str]:
        return [f"channel{i}" for i in range(len(self.channels))] + (["rest"] if self.rest else [])

    def _widths_given(self) -> list[int]:
        return self.channels + ([self.rest] if self.rest else [])

    def _widths(self) -> dict[str, int]:
        """{field: numbers of its stored vector}. `rest` is never searched, so it is stored for the exact index."""
        return {field: stored_width(k, "flat" if field == "rest" else self.method)
                for field, k in zip(self._vector_fields(), self._widths_given())}

    def _bytes(self) -> dict[str, int]:
        """{field: bytes of a photo in a request}: 5 for a float32, which pymilvus hands on as a Python number."""
        each = 2 if self.half else 5
        return {"name": 200, "digest": 20} | {field: width * each for field, width in self._widths().items()}

    def _rows_a_batch(self, each: int) -> int:
        return max(1, min(BATCH_ROWS, BATCH_BYTES // each))

    def _fields(self) -> list[tuple]:
        """(name, type, dim or None) of every field of the collection."""
        types = import_pymilvus().DataType
        vector = types.FLOAT16_VECTOR if self.half else types.FLOAT_VECTOR
        return [("row", types.INT64, None), ("name", types.VARCHAR, None), ("digest", types.VARCHAR, None),
                ("uncertainty", types.FLOAT, None),
                *((field, vector, width) for field, width in self._widths().items())]

    def _make(self, shards: int) -> None:
        """Create the collection with its indexes. Raw vectors are mapped from the query nodes' disks (mmap); an index
        of a channel lies in memory as Milvus has it, that of `rest` is mapped, since it is only read by row."""
        with self.connection.asking():
            schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
            for name, kind, dim in self._fields():
                if dim:
                    schema.add_field(name, kind, dim=dim, mmap_enabled=True)
                elif name in ("name", "digest"):
                    schema.add_field(name, kind, max_length=NAME_BYTES)
                else:
                    schema.add_field(name, kind, is_primary=name == "row", nullable=name == "uncertainty")
            self.client.create_collection(self.collection, schema=schema, timeout=REPLY, num_shards=shards,
                                          consistency_level="Bounded")

    def _load(self) -> None:
        widths = self._widths()
        self.connection.prepare(self.collection, {field: ("FLAT", {"mmap.enabled": "true"}) if field == "rest" else
                                      index_of(self.method, widths[field]) for field in self._vector_fields()})

    def _check_fields(self) -> None:
        if self.connection.describe(self.collection) != self._fields():
            raise InputError(f"the fields of the collection {self.where} are not those that its record tells; it was "
                             "made by something else: name another --collection")

    def _entities(self, rows, fields: list[str], each: int) -> list[dict]:
        """The entities of rows, in their order, with some fields of `each` bytes together."""
        wanted = [int(row) for row in np.asarray(rows).ravel()]
        unique, found = sorted(set(wanted)), {}
        step = self._rows_a_batch(each)
        for start in range(0, len(unique), step):
            part = unique[start:start + step]
            for entity in self.connection.query(self.collection, f"row in [{','.join(map(str, part))}]",
                                                ["row", *fields]):
                found[entity["row"]] = entity
        for row in unique:
            if row not in found:
                raise InputError(f"photo {row} is not in the collection {self.where} (any more); search again")
        return [found[row] for row in wanted]


def _name(name: str) -> str:
    """A photo's name as it is. Raises InputError where Milvus cannot hold it."""
    try:
        fits = len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InputError(f"the name {ascii(name[:80])} of a photo is no UTF-8 text of at most {NAME_BYTES:,} bytes; "
                         "rename the photo")
    return name
