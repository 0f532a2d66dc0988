"""A training step on random data, and its parts."""
from functools import partial

import torch

import train
from data import Batch
from devices.precision import compile_parts
from model import build_model
from similarities import Embedding
from text import SPECIALS, Vocabulary


def training(words: list[str], shape: tuple, dim: int, sizes: tuple, seed: int, device) -> dict:
    """Functions that run one training step on precomputed features of a shape, and its parts each
    alone. sizes: of a batch, of the vocabulary, and of the shortest and the longest caption."""
    pairs, n_words, lengths_of = sizes
    words = words if "match_prob" in words else ["--max_violation", *words]
    options = train.parse_args(["--img_dim", str(shape[-1]), "--embed_size", str(dim), *words])
    options.img_enc = "precomp" if options.img_enc == "auto" else options.img_enc
    torch.manual_seed(seed)
    model = build_model(options, Vocabulary(
        [*SPECIALS, *map(str, range(n_words - len(SPECIALS)))])).to(device).train()
    if options.compile:
        compile_parts(model, device)
    learner = train.build_learner(options, model, device)
    lengths = torch.randint(lengths_of[0], lengths_of[1] + 1, (pairs,))
    tokens = torch.randint(len(SPECIALS), n_words, (pairs, lengths_of[1]))
    tokens = tokens * (torch.arange(lengths_of[1]) < lengths[:, None])
    batch = Batch(torch.rand(pairs, *shape), tokens, lengths, torch.arange(pairs),
                  torch.arange(pairs)).to(device)

    def embed():
        return model.embed_images(batch.images), model.embed_captions(batch.tokens, batch.lengths)

    def learned(x):
        return x is not None and x.is_floating_point()

    leaves = [Embedding(*(x.detach().requires_grad_() if learned(x) else x for x in e))
              for e in embed()]

    def objective():
        for x in filter(learned, (*leaves[0], *leaves[1])):
            x.grad = None
        sum(model.objective(model.similarity(*leaves)).values()).backward()

    def networks():
        learner.optimizers["optimizer"].zero_grad(set_to_none=True)
        outputs = [(x, leaf.grad) for e, own in zip(embed(), leaves) for x, leaf in zip(e, own)
                   if learned(x) and leaf.grad is not None]
        torch.autograd.backward([x for x, _ in outputs], [grad for _, grad in outputs])

    def update():
        torch.nn.utils.clip_grad_norm_(learner.parameters, options.grad_clip)
        learner.optimizers["optimizer"].step()

    step = partial(train.train_step, learner, batch, "a step")
    return {"objective": objective, "networks": networks, "update": update, "step": step}
