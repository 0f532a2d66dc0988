"""Time a training step and an evaluation against plain versions.

    python benchmark.py

The plain way is written here as the field's code has it. The two take turns, and a line shows the
median of each and the median ratio, plain / ours: above 1 ours is faster. Device: the CPU.
"""
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import train
from cli import Arguments, positive
from data import Batch
from losses import SIMILARITIES, Embedding
from metrics import retrieval, score_matrix
from model import build_model
from vocab import SPECIALS, Vocabulary


class Sizes(NamedTuple):
    """Default: VSE++ on COCO's 1K test."""
    batch: int = 128
    features: int = 2048              # of an image
    words: int = 10_000               # in the vocabulary
    length: int = 14                  # words of a caption
    dim: int = 1024
    images: int = 1000                # of the evaluation, with five captions each
    timed: int = 40                   # queries that the plain way is timed on, scaled to all


def time_both(name: str, ours: Callable, plain: Callable, rounds: int, share: float = 1) -> None:
    """Time two functions in turn and print the medians. share: of the work of `plain`."""
    def measure(run: Callable) -> float:
        start = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start)
    times = [(measure(ours), measure(plain) / share) for _ in range(rounds + 1)][1:]    # warm
    own, other = map(statistics.median, zip(*times))
    ratio = statistics.median(b / a for a, b in times)
    print(f"{name:39}{own:9.1f} ms, plain {other:9.1f} ms, ratio {ratio:6.2f}", flush=True)


class Plain(nn.Module):
    """Minimal VSE++: a linear layer, a GRU, cosine, the hinge of hardest negatives."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.image = nn.Linear(sizes.features, sizes.dim)
        self.words = nn.Embedding(sizes.words, 300)
        self.gru = nn.GRU(300, sizes.dim, batch_first=True)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(batch.tokens), batch.lengths, True)
        scores = F.normalize(self.image(batch.images)) @ F.normalize(self.gru(packed)[1][0]).T
        own, others = scores.diag(), 1 - torch.eye(len(scores))
        captions = (0.2 + scores - own[:, None]).clamp(min=0) * others                  # (B, B)
        images = (0.2 + scores - own).clamp(min=0) * others
        return {"hinge": captions.amax(1).sum() + images.amax(0).sum()}


def build_step(model: nn.Module, batch: Batch) -> Callable[[], None]:
    """Build a function that learns from the batch once."""
    optimizer = torch.optim.Adam(model.parameters(), 2e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        sum(model(batch).values()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    return step


def compare_steps(sizes: Sizes, rounds: int) -> None:
    """A training step of points and of Gaussians against one of `Plain`."""
    b, rows = sizes.batch, torch.arange(sizes.batch)
    tokens = torch.randint(len(SPECIALS), sizes.words, (b, sizes.length))
    batch = Batch(torch.rand(b, sizes.features), tokens, torch.full((b,), sizes.length), rows, rows)
    vocab = Vocabulary([*SPECIALS, *map(str, range(sizes.words - len(SPECIALS)))])
    plain = build_step(Plain(sizes), batch)
    for sim in ("cosine", "wasserstein"):
        opt = train.parse_args(["--sim", sim, "--img_enc", "precomp", "--max_violation",
                                "--embed_size", str(sizes.dim)])
        opt.img_dim = sizes.features                        # elsewhere read from the data
        ours = build_step(build_model(opt, vocab).train(), batch)
        time_both(f"training step, {sim}", ours, plain, rounds)


def make_gaussians(n: int, dim: int) -> Embedding:
    """n random Gaussians (n, dim)."""
    return Embedding(F.normalize(torch.randn(n, dim), dim=1), torch.randn(n, dim).clamp(-2, 2))


def score_plainly(sim: str, query: Embedding, items: Embedding) -> Tensor:
    """The formula for one query (1, D) and all items (M, D) -> (M,)."""
    if sim == "cosine":
        return items.mean @ query.mean[0]
    spread = (items.log_var / 2).exp() - (query.log_var / 2).exp()
    return -((items.mean - query.mean).square() + spread.square()).sum(1)


@torch.no_grad()
def compare_evaluations(sizes: Sizes, rounds: int) -> None:
    """Time scores and ranks against a loop that sorts each query's scores."""
    n, m = sizes.images, 5 * sizes.images
    images, captions, caption_image = make_gaussians(n, sizes.dim), make_gaussians(m, sizes.dim), torch.arange(m) // 5

    def plain(sim: str) -> None:
        for c in range(sizes.timed):
            order = score_plainly(sim, captions.rows([c]), images).argsort(descending=True)
            (order == caption_image[c]).nonzero()[0]
            if c % 5 == 0:
                order = score_plainly(sim, images.rows([c // 5]), captions).argsort(descending=True)
                (caption_image[order] == c // 5).nonzero()[0]
    for sim in ("cosine", "wasserstein"):
        members = [(SIMILARITIES[sim], images, captions)]
        time_both(f"evaluation, {n:,} x {m:,}, {sim}",
                  lambda members=members: retrieval(score_matrix(members), caption_image),
                  lambda sim=sim: plain(sim), rounds, sizes.timed / m)


def main(argv: list[str] | None = None, sizes: Sizes | None = None) -> None:
    p = Arguments(__doc__.split("\n")[0])
    p.add_argument("--rounds", type=positive, default=5, help="rounds; ours and plain take turns in each")
    rounds = p.parse_args(argv).rounds
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for part in (compare_steps, compare_evaluations):
        part(sizes or Sizes(), rounds)


if __name__ == "__main__":
    main()
