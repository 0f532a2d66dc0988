"""Vectors of an index in a collection of Milvus, for very many photos.

Its search takes inner products. An image is the vector [A, a] and a query [B, 1], and A . B + a + b, with the query's
own number b, is the score, or minus its square for the roots of distances. Means are taken from an origin, the average
photo, which keeps numbers small.

A collection has the photos' names and vectors, in float32, and is searched exactly (FLAT, inner product). The file of
the index is written when it is whole. What is half built is dropped by the next `build`. Entities whose names are not
in the file are not photos of the index.
"""
import contextlib
import logging
import os
import threading
import uuid
from concurrent.futures import Future, wait

import torch
from torch import Tensor

from cli import InputError, check, reason
from losses import Embedding, negative_root, unit

POWERS = {"wasserstein": 0.5, "wasserstein_var": 1.0}       # roots of squared distances of means and sigma^(2 power)
INNER_PRODUCTS = ("cosine", "dot", "kl", "kl_reverse", "csd", *POWERS)

CONNECT, REPLY = 6, 30                # seconds within which a server has to answer at first, and later
PATIENCE = 600                        # seconds that it may take to load or flush while it answers others
ROWS = 256                            # photos of a request; a server takes 64 MiB
LARGEST_TOP = 16_384                  # answers to one query (Milvus Limits)
NAME_BYTES = 4096                     # of a photo's name


class Collection:
    """Collection `name` of the Milvus server at `uri`. No message shows the token."""

    def __init__(self, uri: str, name: str, token: str = ""):
        check("@" not in uri, "--uri holds a user or a password, which every user of this machine can read; give them "
                              "as USER:PASSWORD in a file with --token_file")
        self.uri, self.name, self.token = os.path.abspath(uri) if uri.endswith(".db") else uri, name, token
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            import pymilvus
        except ImportError as error:
            raise InputError("--uri needs a package: pip install -r photos/requirements-milvus.txt") from error
        for logger in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
            logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
        with self.mending(f"no Milvus server answers at {uri} within {CONNECT} seconds, or it refuses the token",
                          "start it, or give its address, http://HOST:19530, with --uri and its token with "
                          "--token_file"):
            # An alias of its own: connections of one address are otherwise shared, and close together.
            self.client = pymilvus.MilvusClient(uri=self.uri, token=token, timeout=CONNECT, alias=uuid.uuid4().hex)
            self.client.get_server_version(timeout=CONNECT)

    @contextlib.contextmanager
    def mending(self, failure: str, fix: str):
        """Context that turns errors of the client into one sentence with the fix."""
        try:
            yield
        except Exception as error:                          # of pymilvus, of gRPC, of milvus-lite
            text = getattr(error, "message", "") or str(error)
            text = text.replace(self.token, "***") if self.token else text
            raise InputError(f"{failure} ({reason(RuntimeError(text))}); {fix}") from None

    def ask(self, request: str, seconds: int = REPLY, **more):
        """Answer of the server to a request on the collection, a method of pymilvus.MilvusClient.
        It is waited for as long as the server answers others: a flush alone notices a server's end after minutes."""
        answer: Future = Future()

        def call() -> None:
            try:
                answer.set_result(getattr(self.client, request)(self.name, timeout=seconds, **more))
            except Exception as error:
                answer.set_exception(error)
        threading.Thread(target=call, daemon=True).start()
        with self.mending(f"Milvus at {self.uri} fails at {request} of {self.name}", "see its log, and run it again"):
            while not wait([answer], REPLY).done:
                self.client.get_server_version(timeout=CONNECT)
            return answer.result()

    def build(self, names: list[str], vectors: Tensor, overwrite: bool = False) -> None:
        """Make the collection of N photos by their vectors (N, K).
        Raises InputError where it already exists, unless with `overwrite`."""
        check(overwrite or not self.ask("has_collection"),
              f"the collection {self.name} is at {self.uri} already, whole or half built; name another --output, or "
              "replace it with --overwrite")
        from pymilvus import DataType
        self.ask("drop_collection")
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("name", DataType.VARCHAR, is_primary=True, max_length=NAME_BYTES)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
        flat = self.client.prepare_index_params()
        flat.add_index("vector", index_type="FLAT", metric_type="IP")
        self.ask("create_collection", schema=schema, index_params=flat, consistency_level="Strong")
        for k in range(0, len(names), ROWS):
            rows = zip(names[k:k + ROWS], vectors[k:k + ROWS].numpy())
            self.ask("upsert", data=[{"name": name, "vector": vector} for name, vector in rows])
        self.ask("flush", seconds=PATIENCE)
        self.load()

    def load(self) -> None:
        self.ask("load_collection", seconds=PATIENCE)

    def remove(self, names: list[str]) -> None:
        for k in range(0, len(names), ROWS):
            self.ask("delete", ids=names[k:k + ROWS])

    def products(self, query: Tensor, names: list[str]) -> Tensor:
        """Inner products (N,) of a query (K,) and the photos `names`.
        Of the LARGEST_TOP best, else -inf."""
        hits, = self.ask("search", data=[query.numpy()], limit=LARGEST_TOP, anns_field="vector",
                         output_fields=["name"], search_params={"metric_type": "IP"})
        products = {hit["name"]: hit["distance"] for hit in hits}
        return torch.tensor([products.get(name, -torch.inf) for name in names])


# ---- similarities as inner products

def product_vectors(name: str, e: Embedding, origin: Embedding) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of items as images (N, K + 1), and as queries (N, K + 1) with own numbers (N,)."""
    x = unit(e.mean) if name == "cosine" else e.mean
    if name in ("cosine", "dot"):
        A, B, a, b = x, x, x.new_zeros(len(x)), x.new_zeros(len(x))
    else:
        x, log_var = x - origin.mean, e.log_var.expand_as(x)
        if name in ("kl", "kl_reverse"):                    # -KL(p || q), ucmr eq. 4
            precision, level = (-log_var).exp(), log_var.sum(1) / 2                 # (N, D), (N,)
            p = torch.cat([-(log_var.exp() + x.square()) / 2, x], 1), level + x.shape[1] / 2
            q = torch.cat([precision, x * precision], 1), -level - (x.square() * precision).sum(1) / 2
            (A, a), (B, b) = (p, q) if name == "kl" else (q, p)
        else:                                               # -|x - y|^2 = 2 x . y - |x|^2 - |y|^2
            if name in POWERS:
                power = POWERS[name]
                x = torch.cat([x, (power * log_var).exp() - (power * origin.log_var).exp()], 1)     # (N, 2 D)
            a = b = -x.square().sum(1) - (log_var.exp().sum(1) if name == "csd" else 0)
            A, B = 2 * x, x
    return torch.cat([A, a[:, None]], 1), torch.cat([B, torch.ones_like(a)[:, None]], 1), b


def scores_of_products(name: str, products: Tensor) -> Tensor:
    """Scores of inner products to which the query's own number was added."""
    return negative_root(-products) if name in POWERS else products
