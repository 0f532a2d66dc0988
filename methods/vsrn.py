"""VSRN: a graph network over the regions of an image, and a caption generator as a second loss.

    python train.py --data_name f8k_region_precomp --img_enc vsrn --captioner 1
    python show.py captions --checkpoint runs/f8k_region_precomp_cosine --images 10 --beam 3

Li et al. 2019, Visual Semantic Reasoning for Image-Text Matching. The generator's loss is added to
the ranking loss, 1 : 1: regions that suffice to write the caption contain what it says. The
generator is that of Venugopalan et al. 2015 (sequence to sequence: one GRU reads, another writes)
with the attention of Bahdanau et al. 2015. It serves training only; retrieval never runs it.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

from layers import GRU, BatchNorm, Latent, pack, vsepp_linear
from losses import unit
from vocab import END, PAD, START, UNK

NEVER_WRITTEN = [PAD, START, UNK]     # by a generated caption


class Captioner(nn.Module):
    """Writes a caption from the regions of an image, (B, P, D), and computes how likely a given
    caption is.

    The reader turns P regions into P states s_p = x_p + GRU(x)_p, where x is a linear layer of the
    regions. The writer is a GRU that starts from the last state of the reader. At each step it
    takes the word before and its own state h, attends to the regions with both (Bahdanau 2015 eq.
    5-6, which attends with h), and a linear layer of h' gives the logits of the next word:

        alpha = softmax_p(w . tanh(K s_p + Q [word, h] + b))
        context = sum_p alpha_p s_p
        h' = GRU([word, context], h)

    Dropout: 0.2 of x, 0.5 of h' before the last layer. The original (`original`) has s_p = GRU(x)_p
    and attends with h alone. It then cannot look for the object that the word before has begun to
    name, and learns only what the image as a whole tells. It drops 0.2 of [word, context] and
    nothing of h' (its 0.5 goes to a GRU of one layer, where torch drops nothing).

    max_len counts the tokens of a caption with `<start>` and `<end>`. Longer captions are cut
    there, generated ones too. Letters: P regions, H dim_hidden, W word_dim, S tokens of a batch
    without padding.
    """

    def __init__(self, region_dim: int, vocab_size: int, dim_hidden: int = 512, max_len: int = 60,
                 *, word_dim: int = 300, original: bool = False):
        super().__init__()
        self.max_len, self.original = max_len, original
        self.squeeze = nn.Sequential(nn.Linear(region_dim, dim_hidden), nn.Dropout(0.2))
        self.reader = GRU(dim_hidden, dim_hidden, batch_first=True)
        self.words = nn.Embedding(vocab_size, word_dim)
        self.key = nn.Linear(dim_hidden, dim_hidden, bias=False)
        self.query = nn.Linear((0 if original else word_dim) + dim_hidden, dim_hidden)
        # the softmax would take a bias out again
        self.weight = nn.Linear(dim_hidden, 1, bias=False)
        self.cell = nn.GRUCell(word_dim + dim_hidden, dim_hidden)
        self.drop_input, self.dropout = map(nn.Dropout, (0.2, 0.0) if original else (0.0, 0.5))
        self.out = nn.Linear(dim_hidden, vocab_size)

    def forward(self, image, caption, batch) -> Tensor:
        """A pair term of model.VSE: mean over the B captions of -log p(caption |
        regions), in nats, >= 0.

        image.features: (B, P, D). The sum runs over all words and `<end>`, so long captions weigh
        more, as in the original.
        """
        return self.nll(image.features, batch.tokens, batch.lengths).mean()

    def nll(self, regions: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """-log p of captions given their images, in nats: (B, P, D), `<start> ...` (B, T), lengths
        (B,) -> (B,).

        Teacher forcing: the true word before is the input of every step, so the loop is only over
        the state. Each step computes only the captions that have not ended, the longest first, as
        torch packs them.
        """
        steps = lengths.cpu().clamp(max=self.max_len) - 1          # (B,): tokens that are predicted
        # (B, T - 1) -> (S,) each
        inputs, targets = (pack(x, steps) for x in (tokens[:, :-1], tokens[:, 1:]))
        states, keys, h = (x[inputs.sorted_indices] for x in self.read(regions))
        outputs = []
        # (S, W) -> (n, W), n <= B
        for words in self.embed(inputs.data).split(inputs.batch_sizes.tolist()):
            n = len(words)
            h = self.step(words, h[:n], states[:n], keys[:n])                       # (n, H)
            outputs.append(h)
        logits = self.out(self.dropout(torch.cat(outputs)))        # (n, H) each -> (S, H) -> (S, V)
        nll = F.cross_entropy(logits, targets.data, reduction="none")               # (S,)
        # (S,) -> (B, T - 1) -> (B,)
        return pad_packed_sequence(inputs._replace(data=nll), batch_first=True)[0].sum(1)

    def read(self, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Regions (B, P, D) -> the reader's states s_p (B, P, H), their keys K s_p (B, P, H), its
        last state (B, H)."""
        squeezed = self.squeeze(regions)                                            # (B, P, H)
        outputs, last = self.reader(squeezed)
        states = outputs if self.original else squeezed + outputs
        return states, self.key(states), last[-1]

    def embed(self, words: Tensor) -> Tensor:
        """Word vectors, (...) -> (..., W), with dropout if `original`."""
        return self.drop_input(self.words(words))

    def step(self, words: Tensor, h: Tensor, states: Tensor, keys: Tensor) -> Tensor:
        """One step of the writer: word vectors (B, W), h (B, H), states and keys (B, P, H) -> the
        next h (B, H)."""
        query = self.query(h if self.original else torch.cat([words, h], 1))  # (B, W + H) -> (B, H)
        # (B, P, H) -> (B, P)
        attention = self.weight(torch.tanh(keys + query[:, None]))[..., 0].softmax(1)
        # (B, 1, P) (B, P, H) -> (B, H)
        context = self.drop_input((attention[:, None] @ states)[:, 0])
        return self.cell(torch.cat([words, context], 1), h)           # (B, W + H), (B, H) -> (B, H)

    def beam(self, regions: Tensor, width: int = 3) -> list[list[int]]:
        """Captions of (B, P, D) by beam search, in eval mode. Of width 1 it takes the likeliest
        next word at each step, and none is less likely than that of width 1.

        A caption is a list of word numbers without `<start>`, and with `<end>` if it was reached.
        There is no length rule: captions compare by the log p of all their tokens, `<end>` among
        them, which is the quantity of the loss, without average or bonus. A finished caption keeps
        its place among the `width` until others push it out.
        """
        captions, log_p = self.search(regions, width)
        if width > 1:                     # the greedy caption may have fallen out of the beam early
            others, other_log_p = self.search(regions, 1)
            better = (other_log_p > log_p).tolist()
            captions = [b if take else a for a, b, take in zip(captions, others, better)]
        return captions

    @torch.no_grad()
    def search(self, regions: Tensor, width: int) -> tuple[list[list[int]], Tensor]:
        """Captions by beam search of width K alone, without comparing them with the greedy ones,
        and their log p (B,)."""
        count, device = len(regions), regions.device
        # (B K, P, H) twice, (B K, H)
        states, keys, h = (x.repeat_interleave(width, 0) for x in self.read(regions))
        words = torch.full((count, width, 1), START, device=device)                 # (B, K, t)
        log_p = torch.full((count, width), -torch.inf, device=device)    # (B, K): one empty caption
        log_p[:, 0] = 0
        done = torch.zeros(count, width, dtype=torch.bool, device=device)
        rows = torch.arange(count, device=device)[:, None]                          # (B, 1)
        for _ in range(self.max_len - 1):
            h = self.step(self.embed(words[:, :, -1].flatten()), h, states, keys)
            # (B, K, V)
            following = self.out(h).float().log_softmax(1).unflatten(0, (count, width))
            following[:, :, NEVER_WRITTEN] = -torch.inf
            following[done] = -torch.inf                          # a finished one goes on as it is,
            # with padding that costs nothing
            following[:, :, PAD] = following[:, :, PAD].where(~done, 0)
            size = following.shape[2]
            # (B, K V) -> (B, K)
            log_p, best = (log_p[:, :, None] + following).flatten(1).topk(width)
            came_from = best // size                                 # (B, K): which caption went on
            # (B, K, t + 1)
            words = torch.cat([words[rows, came_from], (best % size)[:, :, None]], 2)
            done = done[rows, came_from] | (words[:, :, -1] == END)
            h = h.unflatten(0, (count, width))[rows, came_from].flatten(0, 1)
            if done[:, 0].all():    # log p only falls, so that nothing can pass a finished best one
                break
        captions = [row[1:row.index(END) + 1] if END in row else row[1:] for row in words[:, 0].tolist()]
        return captions, log_p[:, 0]


class GraphLayer(nn.Module):
    """One round of reasoning between the regions of an image, as in VSRN: v + norm(out(R g(v))),
    (B, P, D) -> (B, P, D).

    R = theta(v) phi(v)^T / P, (B, P, P), says how much each region takes from each other region:
    inner products without a softmax. The scale and shift of the norm start at 0, so an untrained
    layer is the identity. (The original writes the linear maps as convolutions of width 1.)
    """

    def __init__(self, dim: int):
        super().__init__()
        self.g, self.theta, self.phi, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = BatchNorm(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, v: Tensor) -> Tensor:
        relation = self.theta(v) @ self.phi(v).transpose(1, 2) / v.shape[1]         # (B, P, P)
        y = self.out(relation @ self.g(v))                                          # (B, P, D)
        return v + self.norm(y.flatten(0, 1)).view_as(v)         # statistics over batch and regions


class RegionGraph(nn.Module):
    """Image trunk of VSRN: a linear map of each region, a norm, four graph layers, a norm. (B, P,
    F) -> (B, P, D).

    Both norms give each region length sqrt(D), so that its entries are of order 1 at any D. The
    entries of unit regions, 0.02 at D = 2,048, would be drowned. The graph adds the outputs of its
    BatchNorms to them, and the scale and shift of these move by the learning rate per step whatever
    the entries are, until all images are one point; and GRUs hardly see such small entries.
    `across_regions` takes the unit norm of each feature over the P regions, as the original code
    does: entries of 1 / sqrt(P), 0.17 for 36 regions. `first_norm=False` leaves the first norm out,
    as VSRN does on Flickr30k.
    """

    def __init__(self, img_dim: int, embed_size: int, first_norm: bool = True,
                 across_regions: bool = False):
        super().__init__()
        self.dim, self.first_norm, self.across_regions = embed_size, first_norm, across_regions
        self.fc = vsepp_linear(img_dim, embed_size)
        self.layers = nn.Sequential(*(GraphLayer(embed_size) for _ in range(4)))

    def forward(self, regions: Tensor, lengths=None) -> Tensor:
        v = self.fc(regions)                                                # (B, P, F) -> (B, P, D)
        v = self.normalise(v) if self.first_norm else v
        return self.normalise(self.layers(v))

    def normalise(self, v: Tensor) -> Tensor:
        """(B, P, D) -> (B, P, D): regions of length sqrt(D), or features of length 1 across the
        regions."""
        return unit(v, 1) if self.across_regions else unit(v, 2) * self.dim ** 0.5  # (B, P, D)


class RegionGRU(nn.Module):
    """f_emb of VSRN's images: the last state of a GRU that reads the regions in turn. (B, P, F) ->
    (B, D).

    `batch_norm` adds a BatchNorm at the end, as VSRN does on Flickr30k.
    """

    def __init__(self, inputs: int, embed_size: int, batch_norm: bool = False):
        super().__init__()
        self.dim = embed_size
        self.rnn = GRU(inputs, embed_size, batch_first=True)
        self.norm = BatchNorm(embed_size) if batch_norm else nn.Identity()

    def forward(self, regions: Tensor, lengths=None) -> Latent:
        return Latent(self.norm(self.rnn(regions)[1][-1]))                      # last layer: (B, D)
