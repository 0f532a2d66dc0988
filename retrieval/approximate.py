"""Candidates without comparing all photos. (--hnsw and --ivfpq)"""
from cli import InputError


class Approximate:
    """An approximate index of the vectors of a `flat.Flat`."""

    def __init__(self, path: str):
        raise InputError(f"{path}: approximate indexes are not built yet; leave --hnsw and --ivfpq out")
