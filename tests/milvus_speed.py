"""How fast a Milvus server takes photos and answers, and what its indexes find: the figures of docs/search-at-scale.md.

    python -m tests.milvus_speed --uri http://HOST:19530 --photos 100000 --dim 512

The photos are Gaussians drawn around a thousand centres, as lifted by the Wasserstein similarity; a question is a
photo's mean with noise. Recall is the share of the ten best by the exact score that are among the
candidates, or among the ten that the index itself calls best. Each index has a collection of its own, which goes at
the end.
"""
import contextlib
import time

import numpy as np
import torch

from cli import Arguments, positive
from retrieval import milvus
from retrieval.index import Block, Items
from retrieval.ranking import LiftedVectors
from similarities import Embedding, Wasserstein
from tests.test_milvus import KNOWN, place

CENTRES, QUESTIONS, PART = 1000, 200, 5000


def drawn(n: int, dim: int, generator: torch.Generator, centres: torch.Tensor, noise: float) -> Embedding:
    """n Gaussians of unit mean; log-variances near those of a trained model."""
    of = torch.randint(CENTRES, (n,), generator=generator)
    mean = centres[of] + noise * torch.randn(n, dim, generator=generator) / dim ** 0.5
    return Embedding(torch.nn.functional.normalize(mean), -6 + 0.3 * torch.randn(n, dim, generator=generator))


def main() -> None:
    p = Arguments(__doc__.splitlines()[0])
    p.add_argument("--uri", required=True)
    p.add_argument("--photos", type=positive, default=100_000)
    p.add_argument("--dim", type=positive, default=512)
    p.add_argument("--methods", nargs="+", default=list(milvus.INDEXES), choices=milvus.INDEXES)
    opt = p.parse_args()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CENTRES, opt.dim, generator=generator) / opt.dim ** 0.5
    photos = [drawn(min(PART, opt.photos - k), opt.dim, generator, centres, 1) for k in range(0, opt.photos, PART)]
    means = torch.cat([e.mean for e in photos])
    asked = means[torch.randperm(opt.photos, generator=generator)[:QUESTIONS]]
    asked = drawn(QUESTIONS, opt.dim, generator, centres, 1)._replace(mean=torch.nn.functional.normalize(
        asked + 0.7 * torch.randn(asked.shape, generator=generator) / opt.dim ** 0.5))
    origin = Embedding(means.mean(0, keepdim=True), photos[0].log_var.mean(0, keepdim=True))
    vectors = LiftedVectors(Wasserstein(), origin, half=True)
    query = vectors.queries(asked).vectors[0]
    lifted = [vectors.images(e)[0][0] for e in photos]
    best = (query @ torch.cat(lifted).T).topk(10).indices.numpy()
    milvus.save_json = lambda *_: None                        # there is no folder of an index
    for method in opt.methods:
        made = KNOWN | {"method": method, "half": True, "vectors": {"widths": [query.shape[1]], "rest": 0}}
        with contextlib.closing(milvus.Milvus.create("", made, place(opt.uri, f"speed_{method}"))) as engine:
            begun = time.monotonic()
            engine.begin(vectors, Block([lifted[0]], None))
            for k, part in enumerate(lifted):
                names = [f"{k}/{i}.jpg" for i in range(len(part))]
                zeros = np.zeros(len(part))
                engine.add(Block([part], None), Items(names, [None] * len(part), zeros, zeros))
            added = time.monotonic()
            engine.finish()
            built, spent = time.monotonic(), []
            one = engine.search("channel0", query.numpy(), 10)                # the first questions warm it up
            for row in query.numpy():
                start = time.monotonic()
                engine.search("channel0", row[None], 200)
                spent.append(time.monotonic() - start)
            start = time.monotonic()
            found = engine.search("channel0", query.numpy(), 200)
            together = time.monotonic() - start
            recalls = [np.mean([np.isin(b, f).mean() for b, f in zip(best, x)]) for x in (found, one)]
            print(f"{method}: {opt.photos / (added - begun):,.0f} photos/s, ready {built - added:,.0f} s after; "
                  f"recall@10 {recalls[0]:.1%} among 200 candidates, {recalls[1]:.1%} among ten; "
                  f"{QUESTIONS / together:.0f} questions/s at once, {1000 * np.median(spent):.0f} ms for one",
                  flush=True)
            engine.connection.ask("drop_collection", engine.collection)


if __name__ == "__main__":
    main()
