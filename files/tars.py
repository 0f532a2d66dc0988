"""Shards in WebDataset's layout: tars of samples, each a photo KEY.jpg beside its captions, KEY.txt or KEY.json.

A shard is a path, or an address that the package webdataset opens, such as "pipe:COMMAND" and "https://...". It is read
once, from first to last, into memory: what a tar names never becomes a path on a disk.
"""
import contextlib
import json
import os
import re
import signal
import tarfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import cli
from cli import InputError, reason
from files.reading import FAULTS, plain_file

PHOTOS = ("jpg", "jpeg", "png", "webp")
CAPTIONS = ("txt", "json")
MOST = {"txt": 1 << 20, "json": 1 << 20}               # bytes of a member that is read; of photos 256 MiB
ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*):")
SKIPPED = re.compile(r"__[^/]*__($|/)")                  # WebDataset's names for what is no sample


class Sample(NamedTuple):
    key: str                          # the path of its files in the tar, without their endings
    ending: str                       # of the photo's file
    photo: bytes                      # the file, as it stands in the tar
    captions: list[str]               # at least one


def webdataset() -> SimpleNamespace:
    """What is used of the package webdataset, imported only where shards are read. Raises InputError where it is not
    installed."""
    try:
        from webdataset.gopen import Pipe, gopen, gopen_schemes
        from webdataset.shardlists import expand_urls
        from webdataset.tariterators import base_plus_ext, group_by_keys
        from webdataset.utils import enforce_security
    except ImportError as error:
        raise InputError("photos in tar shards are read by the package webdataset, which is not installed; pip install "
                         "-r requirements-webdataset.txt") from error
    return SimpleNamespace(gopen=gopen, Pipe=Pipe, schemes=sorted({*gopen_schemes} - {"__default__"}),
                           secure=enforce_security, expand_urls=expand_urls, base_plus_ext=base_plus_ext,
                           group_by_keys=group_by_keys)


def expand(text: str) -> list[str]:
    """The shards that --train_shards names: braces such as {00000..00009} are expanded, :: stands between several.
    Raises InputError."""
    package = webdataset()
    try:
        shards = package.expand_urls(text)
    except (AssertionError, *FAULTS) as error:
        raise InputError(f"--train_shards {text} cannot be expanded ({reason(error)}); give a path or an address, with "
                         "{00000..00009} for numbers") from error
    for shard in shards:
        scheme = ADDRESS.match(shard)
        if shard in ("", "-") or scheme and scheme[1] not in package.schemes:
            raise InputError(f"--train_shards {text} names the shard '{shard}'; give paths, or addresses that begin "
                             f"with {', '.join(f'{name}:' for name in package.schemes)}")
    return [shard if ADDRESS.match(shard) else os.path.expanduser(shard) for shard in shards]


def samples(shard: str) -> Iterator[Sample]:
    """The samples of a shard, in its order. Raises InputError, which names the shard and, where known, the key."""
    keys, package = set(), webdataset()
    try:
        with opened(shard) as stream:
            for files in package.group_by_keys(members(stream, shard)):
                sample = sample_of(files, shard)
                if sample.key in keys:
                    raise InputError(f"{shard} holds two samples of the key {shown(sample.key)}; all files of a sample "
                                     "stand one after another, and every sample has a key of its own")
                keys.add(sample.key)
                yield sample
    except InputError:
        raise
    except (ImportError, *FAULTS) as error:
        raise InputError(f"the shard {shard} cannot be read to its end ({reason(error)}); look at it, or fetch it "
                         "again") from error


@contextlib.contextmanager
def opened(shard: str):
    """The bytes of a shard. An address is opened by webdataset, most often by a command whose output is read; where
    that fails, OSError tells its status."""
    if not ADDRESS.match(shard):
        with open(plain_file(shard), "rb") as f:
            yield f
        return
    with cli.unsignalled():                                 # a signal is for this process, which then ends the command
        source = started(shard)
    try:
        yield source.stream
        while source.stream.read(1 << 20):                  # what pads a tar; else the command could not end well
            pass
        refuse_failed(source.proc.wait())
    except FAULTS as error:
        if not isinstance(error, InputError) and not source.stream.read(1 << 20):
            refuse_failed(source.proc.wait())
        raise
    finally:
        if source.proc.poll() is None:                      # it was left before its end
            (os.killpg if shard.startswith("pipe:") else os.kill)(source.proc.pid, signal.SIGKILL)
        source.proc.wait()
        source.stream.close()


def started(shard: str):
    """The package's Pipe of an address. A shell unblocks signals, so those of pipes ignore them, in a session apart."""
    package = webdataset()
    if not shard.startswith("pipe:"):
        return package.gopen(shard)
    if package.secure:
        raise OSError("the environment's WDS_SECURE forbids pipes")
    return package.Pipe(f"trap '' INT TERM HUP; {shard.removeprefix('pipe:')}", mode="rb", shell=True,
                        start_new_session=True)


def refuse_failed(status: int) -> None:
    if status:
        raise OSError(f"its command ended with status {status}")


class _Header(tarfile.TarInfo):
    """Of a member. tarfile takes a damaged or missing header for the end of a tar; only two empty blocks are one."""

    @classmethod
    def fromtarfile(cls, archive):
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it is damaged or cut off after {archive.offset:,} bytes: {error}") from error


def members(stream, shard: str) -> Iterator[dict]:
    """The files of a tar that samples are made of, as webdataset groups them. Raises OSError, InputError."""
    split, seen = webdataset().base_plus_ext, set()
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
            while member := archive.next():
                archive.members = []                        # of which tarfile keeps a list
                key, ending = split(member.name)
                ending = (ending or "").lower()
                if not member.isreg() or SKIPPED.match(member.name) or ending not in PHOTOS + CAPTIONS:
                    continue
                if (key, ending) in seen:
                    raise InputError(f"{shard} holds two files {shown(f'{key}.{ending}')}; every sample has a key of "
                                     "its own, so give one of them another")
                seen.add((key, ending))
                if member.issparse() or member.size > MOST.get(ending, 1 << 28):
                    raise InputError(f"{shard} holds the file {shown(member.name)} of {member.size:,} bytes, and at "
                                     f"most {MOST.get(ending, 1 << 28):,} are read; it is no {ending} of a sample")
                yield {"fname": member.name, "data": archive.extractfile(member).read(), "__url__": shard}
    except tarfile.TarError as error:
        raise OSError(str(error)) from error


def sample_of(files: dict, shard: str) -> Sample:
    """A sample from webdataset's dict of its files. Raises InputError."""
    key, photos = files["__key__"], [ending for ending in PHOTOS if ending in files]
    if len(photos) != 1:
        raise InputError(f"{shard} holds {'several photos' if photos else 'no photo'} of the key {shown(key)}; a "
                         f"sample has one file KEY.{', .'.join(PHOTOS)}")
    ending = next((ending for ending in CAPTIONS if ending in files), None)
    try:
        key.encode()
        captions = captions_of(ending, files[ending]) if ending else []
    except FAULTS as error:
        raise InputError(f"{shard}, the captions of the key {shown(key)} cannot be read ({reason(error)}); KEY.txt "
                         "holds one a line in UTF-8, KEY.json {\"captions\": [...]} or {\"caption\": ...}") from error
    if not captions:
        raise InputError(f"{shard} holds no captions of the key {shown(key)}; KEY.txt holds one a line, or KEY.json "
                         "{\"captions\": [...]} or {\"caption\": ...}")
    return Sample(key, photos[0], files[photos[0]], captions)


def captions_of(ending: str, content: bytes) -> list[str]:
    """The captions in KEY.txt or KEY.json, without blank ones. Raises ValueError and what else json raises."""
    text = content.decode("utf-8-sig")
    if ending == "txt":
        found = re.split(r"\r\n|\r|\n", text)
    else:
        found = json.loads(text)
        found = found.get("captions", [found[name] for name in ("caption",) if name in found])
    if not isinstance(found, list) or not all(isinstance(caption, str) for caption in found):
        raise ValueError("captions are texts in a list")
    "".join(found).encode()                                 # half a surrogate pair could not be written
    return [caption for caption in (re.sub(r"[\r\n]+", " ", caption).strip() for caption in found) if caption]


def shown(name: str) -> str:
    """A name from a tar, for a message."""
    return reason(ValueError(ascii(name)), 80)
