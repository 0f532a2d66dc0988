"""Vectors of an index in a collection of Milvus, for more photos than fit in memory.

Milvus searches by inner products. An image is the vector [A, a] and a query [B, 1], and
A . B + a + b, with the query's own number b, is the score, or minus its square for the roots of
distances. Means are taken relative to an origin, the average photo, which keeps numbers small.

A collection holds the photos' names and vectors, in float32, and is searched exactly (FLAT, inner
product). The file of the index is written last, when the collection is complete; the next `build`
deletes an incomplete one. Entities whose names are not in the file are not photos of the index.
"""

import contextlib
import logging
import os
import threading
import uuid
from concurrent.futures import Future, wait

import torch
from torch import Tensor

from losses import Embedding, negative_root, unit
from utils import InputError, reason

# Roots of squared distances of the means and of sigma^(2 power).
POWERS = {"wasserstein": 0.5, "wasserstein_var": 1.0}
INNER_PRODUCTS = ("cosine", "dot", "kl", "kl_reverse", "csd", *POWERS)

CONNECT_SECONDS = 6  # within which a server must answer at first
REPLY_SECONDS = 30  # within which it must answer later
PATIENCE_SECONDS = 600  # that it may take to load or flush while it answers other requests
PHOTOS_PER_REQUEST = 256  # a server takes 64 MiB
MAX_HITS = 16_384  # answers to one query (Milvus Limits)
MAX_NAME_BYTES = 4096  # of a photo's name


class Collection:
    """Collection `name` of the Milvus server at `uri`. No message shows the token."""

    def __init__(self, uri: str, name: str, token: str = ""):
        if "@" in uri:
            raise InputError(
                "--uri holds a user or a password, which every user of this machine can read; give "
                "them as USER:PASSWORD in a file with --token_file"
            )
        self.uri = uri
        if uri.endswith(".db"):  # a folder of milvus-lite
            self.uri = os.path.abspath(uri)
        self.name = name
        self.token = token

        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import pymilvus
        except ImportError as error:
            raise InputError(
                "--uri needs a package: pip install -r photos/requirements-milvus.txt"
            ) from error
        for logger in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
            logging.getLogger(logger).setLevel(logging.CRITICAL + 1)

        failure = (
            f"no Milvus server answers at {uri} within {CONNECT_SECONDS} seconds, or it refuses "
            "the token"
        )
        fix = (
            "start it, or give its address, http://HOST:19530, with --uri and its token with "
            "--token_file"
        )
        with self.mending(failure, fix):
            # An alias of its own: connections to one address are otherwise shared, and closed
            # together.
            self.client = pymilvus.MilvusClient(
                uri=self.uri, token=token, timeout=CONNECT_SECONDS, alias=uuid.uuid4().hex
            )
            self.client.get_server_version(timeout=CONNECT_SECONDS)

    @contextlib.contextmanager
    def mending(self, failure: str, fix: str):
        """Context that turns errors of the client into one sentence with the fix."""
        try:
            yield
        except Exception as error:  # of pymilvus, of gRPC, of milvus-lite
            text = getattr(error, "message", "") or str(error)
            if self.token:
                text = text.replace(self.token, "***")
            raise InputError(f"{failure} ({reason(RuntimeError(text))}); {fix}") from None

    def ask(self, request: str, seconds: int = REPLY_SECONDS, **arguments):
        """Send a request on the collection, a method of pymilvus.MilvusClient; return the answer.

        Waits as long as the server answers other requests: during a flush, pymilvus alone would
        notice only after minutes that the server has ended.
        """
        answer: Future = Future()

        def call() -> None:
            try:
                method = getattr(self.client, request)
                answer.set_result(method(self.name, timeout=seconds, **arguments))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        failure = f"Milvus at {self.uri} fails at {request} of {self.name}"
        with self.mending(failure, "see its log, and run it again"):
            while not wait([answer], REPLY_SECONDS).done:
                self.client.get_server_version(timeout=CONNECT_SECONDS)
            return answer.result()

    def build(self, names: list[str], vectors: Tensor, overwrite: bool = False) -> None:
        """Make the collection of N photos by their vectors (N, K).

        Raises InputError if it already exists, unless with `overwrite`.
        """
        if not overwrite and self.ask("has_collection"):
            raise InputError(
                f"the collection {self.name} already exists at {self.uri}, complete or not; name "
                "another --output, or replace it with --overwrite"
            )
        from pymilvus import DataType

        self.ask("drop_collection")
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("name", DataType.VARCHAR, is_primary=True, max_length=MAX_NAME_BYTES)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
        flat = self.client.prepare_index_params()
        flat.add_index("vector", index_type="FLAT", metric_type="IP")
        self.ask("create_collection", schema=schema, index_params=flat, consistency_level="Strong")

        for start in range(0, len(names), PHOTOS_PER_REQUEST):
            part = slice(start, start + PHOTOS_PER_REQUEST)
            rows = zip(names[part], vectors[part].numpy())
            self.ask("upsert", data=[{"name": name, "vector": vector} for name, vector in rows])
        self.ask("flush", seconds=PATIENCE_SECONDS)
        self.load()

    def load(self) -> None:
        self.ask("load_collection", seconds=PATIENCE_SECONDS)

    def remove(self, names: list[str]) -> None:
        for start in range(0, len(names), PHOTOS_PER_REQUEST):
            self.ask("delete", ids=names[start : start + PHOTOS_PER_REQUEST])

    def products(self, query: Tensor, names: list[str]) -> Tensor:
        """Inner products (N,) of a query (K,) and the photos `names`; -inf beyond MAX_HITS."""
        answers = self.ask(
            "search",
            data=[query.numpy()],
            limit=MAX_HITS,
            anns_field="vector",
            output_fields=["name"],
            search_params={"metric_type": "IP"},
        )
        hits = answers[0]  # of the one query
        products = {hit["name"]: hit["distance"] for hit in hits}
        return torch.tensor([products.get(name, -torch.inf) for name in names])


# ---- similarities as inner products

# These are the formulas of losses.py once more, as an inner product about an origin. losses.py
# computes them in another form, which suffers less from rounding but is no inner product, and the
# core knows nothing of Milvus. tests/test_milvus.py compares both for every name.


def product_vectors(name: str, e: Embedding, origin: Embedding) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of items as images (N, K + 1), and as queries (N, K + 1) with own numbers (N,).

    name: of INNER_PRODUCTS. origin: (1, D), subtracted from means and variances.
    """
    if name in ("cosine", "dot"):
        A = B = unit(e.mean) if name == "cosine" else e.mean
        a = b = e.mean.new_zeros(len(e.mean))
    elif name in ("kl", "kl_reverse"):
        A, a, B, b = divergence_vectors(e.mean - origin.mean, e.log_var.expand_as(e.mean))
        if name == "kl_reverse":  # the query is p, and the image q
            A, a, B, b = B, b, A, a
    else:
        A, a, B, b = distance_vectors(name, e, origin)
    return torch.cat([A, a[:, None]], 1), torch.cat([B, torch.ones_like(a)[:, None]], 1), b


def divergence_vectors(x: Tensor, log_var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-KL(p || q), ucmr eq. 4, of means x and log-variances (N, D) as A . B + a + b.

    Returns A (N, 2 D) and a (N,) of items as p, B (N, 2 D) and b (N,) as q.
    """
    precision = (-log_var).exp()  # (N, D)
    level = log_var.sum(1) / 2  # (N,)
    A = torch.cat([-(log_var.exp() + x.square()) / 2, x], 1)
    a = level + x.shape[1] / 2
    B = torch.cat([precision, x * precision], 1)
    b = -level - (x.square() * precision).sum(1) / 2
    return A, a, B, b


def distance_vectors(
    name: str, e: Embedding, origin: Embedding
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-|x - y|^2 = 2 x . y - |x|^2 - |y|^2, with variances as `name` counts them, as A . B + a + b.

    Returns A (N, K) and a (N,) of items as x, B (N, K) and b (N,) as y.
    """
    x = e.mean - origin.mean
    log_var = e.log_var.expand_as(x)
    if name in POWERS:
        power = POWERS[name]
        deviation = (power * log_var).exp() - (power * origin.log_var).exp()
        x = torch.cat([x, deviation], 1)  # (N, 2 D)

    own = -x.square().sum(1)  # (N,)
    if name == "csd":
        own = own - log_var.exp().sum(1)
    return 2 * x, own, x, own


def scores_of_products(name: str, products: Tensor) -> Tensor:
    """Scores of inner products to which the query's own number was added."""
    if name in POWERS:
        return negative_root(-products)
    return products
