"""VSRN's caption generator: a term of the loss that asks an image's regions to tell its caption, and a command to read it.

    python train.py --data_name coco_precomp --img_enc vsrn --captioner 1
    python show.py captions --checkpoint runs/coco_precomp_cosine --images 10 --beam 3

Li et al. 2019 (VSRN) add this loss to the ranking loss, 1 : 1: regions that suffice to write the caption hold what it says.
The generator is that of Venugopalan et al. 2015 (sequence to sequence: one GRU reads, another writes) with the attention of
Bahdanau et al. 2015. It serves training only; retrieval never runs it.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from encoders import BatchNorm, vsepp_linear
from similarities import unit
from vocab import END, PAD, START, UNK

NEVER_SAID = [PAD, START, UNK]        # by a generated caption


class Captioner(nn.Module):
    """Writes a caption from the regions of an image, (B, P, D), and says how likely a given one is.

    The reader turns P regions into P states, s_p = x_p + GRU(x)_p of x, a linear layer of the regions, and a last one of its
    GRU; the writer is a GRU that starts from there. At each step it takes the word before and its own state h, looks at the
    regions with both (Bahdanau 2015 eq. 5-6, which looks with h), and a linear layer of h' gives the logits of the next word:

        alpha = softmax_p(w . tanh(K s_p + Q [word, h] + b)),  context = sum_p alpha_p s_p,  h' = GRU([word, context], h)

    Dropout: 0.2 of x, 0.5 of h' before that layer. The original (`original`) has s_p = GRU(x)_p and looks with h alone: it
    then cannot look for the object that the word before has begun to name, and learns only what the image as a whole tells.
    It drops 0.2 of [word, context] and nothing of h' (its 0.5 goes to a GRU of one layer, where torch drops nothing).

    max_len counts a caption's tokens with `<start>` and `<end>`: longer ones are cut there, generated ones too.
    """

    def __init__(self, region_dim: int, vocab_size: int, dim_hidden: int = 512, max_len: int = 60, *, word_dim: int = 300,
                 original: bool = False):
        super().__init__()
        self.max_len, self.word_dim, self.original = max_len, word_dim, original
        self.squeeze = nn.Sequential(nn.Linear(region_dim, dim_hidden), nn.Dropout(0.2))
        self.reader = nn.GRU(dim_hidden, dim_hidden, batch_first=True)
        self.words = nn.Embedding(vocab_size, word_dim)
        self.key = nn.Linear(dim_hidden, dim_hidden, bias=False)
        self.query = nn.Linear((0 if original else word_dim) + dim_hidden, dim_hidden)
        self.weight = nn.Linear(dim_hidden, 1, bias=False)   # the softmax would take a bias out again
        self.cell = nn.GRUCell(word_dim + dim_hidden, dim_hidden)
        self.drop_input, self.dropout = nn.Dropout(0.2 if original else 0.0), nn.Dropout(0.0 if original else 0.5)
        self.out = nn.Linear(dim_hidden, vocab_size)

    def forward(self, images, captions, seen: dict, told: dict, batch) -> Tensor:
        """The term of model.JointEmbedding: mean over the B captions of -log p(caption | regions), in nats, >= 0.

        The sum runs over all words and `<end>`, so long captions weigh more, as in the original. seen["trunk"]: (B, P, D).
        """
        return self.nll(seen["trunk"], batch.tokens, batch.lengths).mean()

    def nll(self, regions: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """-log p of captions given their images, in nats: (B, P, D), `<start> ...` (B, T), lengths (B,) -> (B,).

        Teacher forcing: the true word before goes in at every step, so that only the state is left to loop over, and at each
        step only for the captions that have not ended: the longest first, as torch packs them.
        """
        steps = lengths.cpu().clamp(max=self.max_len) - 1                           # (B,): tokens that are predicted
        given = pack_padded_sequence(tokens[:, :-1], steps, batch_first=True, enforce_sorted=False)
        wanted = pack_padded_sequence(tokens[:, 1:], steps, batch_first=True, enforce_sorted=False).data    # (B, T - 1) -> (S,)
        states, keys, h = (x[given.sorted_indices] for x in self.read(regions))
        written = []
        for words in self.read_words(given.data).split(given.batch_sizes.tolist()):     # (S, 4 H) -> (n, 4 H), n <= B
            n = len(words)
            h = self.step(words, h[:n], states[:n], keys[:n])                       # (n, H)
            written.append(h)
        logits = self.out(self.dropout(torch.cat(written)))                         # (n, H) each -> (S, H) -> (S, V)
        nll = F.cross_entropy(logits, wanted, reduction="none")                     # (S,)
        return pad_packed_sequence(given._replace(data=nll), batch_first=True)[0].sum(1)    # (S,) -> (B, T - 1) -> (B,)

    def read(self, regions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Regions (B, P, D) -> the reader's states s_p (B, P, H), their keys K s_p (B, P, H), its last state (B, H)."""
        squeezed = self.squeeze(regions)                                            # (B, P, H)
        read, last = self.reader(squeezed)
        states = read if self.original else squeezed + read
        return states, self.key(states), last[-1]

    def read_words(self, words: Tensor) -> Tensor:
        """What words (...) add to the query and to the gates of the writer, whatever its state: (..., H + 3 H)."""
        words = self.drop_input(self.words(words))
        query = (self.query.bias.expand(*words.shape[:-1], -1) if self.original else
                 F.linear(words, self.query.weight[:, :self.word_dim], self.query.bias))
        return torch.cat([query, F.linear(words, self.cell.weight_ih[:, :self.word_dim], self.cell.bias_ih)], -1)

    def step(self, words: Tensor, h: Tensor, states: Tensor, keys: Tensor) -> Tensor:
        """One step of the writer: words as read_words gives them (B, 4 H), (B, H), (B, P, H), (B, P, H) -> (B, H).

        The GRU is torch's: r = sigmoid(i_r + h_r),  z = sigmoid(i_z + h_z),  n = tanh(i_n + r h_n),  h' = (1 - z) n + z h
        """
        size = h.shape[1]
        query = words[:, :size] + F.linear(h, self.query.weight[:, -size:])         # (B, H)
        looks = self.weight(torch.tanh(keys + query[:, None]))[..., 0].softmax(1)   # (B, P, H) -> (B, P)
        context = self.drop_input((looks[:, None] @ states)[:, 0])                  # (B, 1, P) (B, P, H) -> (B, H)
        taken = words[:, size:] + F.linear(context, self.cell.weight_ih[:, self.word_dim:])     # (B, 3 H)
        own = F.linear(h, self.cell.weight_hh, self.cell.bias_hh)                   # (B, 3 H)
        (i_r, i_z, i_n), (h_r, h_z, h_n) = taken.chunk(3, 1), own.chunk(3, 1)       # (B, H) each
        n = torch.tanh(i_n + torch.sigmoid(i_r + h_r) * h_n)
        return n + torch.sigmoid(i_z + h_z) * (h - n)

    def greedy(self, regions: Tensor) -> list[list[int]]:
        """Captions of (B, P, D) by the likeliest next word each time. Word numbers without `<start>`, with `<end>` where it
        was reached. In eval mode, as `beam`."""
        return self.search(regions, 1)[0]

    def beam(self, regions: Tensor, width: int = 3) -> list[list[int]]:
        """Captions of (B, P, D) by beam search, as `greedy` gives them, and never a less likely one than `greedy` does.

        Length rule: none. Captions compare by log p of all their tokens, `<end>` among them, the quantity of the loss; no
        average over the length, no bonus. A finished caption keeps its place among the `width` until others push it out.
        """
        captions, log_p = self.search(regions, width)
        if width > 1:                        # the greedy caption may have fallen out of the beam early
            others, other_log_p = self.search(regions, 1)
            captions = [b if q > p else a for a, b, p, q in zip(captions, others, log_p.tolist(), other_log_p.tolist())]
        return captions

    @torch.no_grad()
    def search(self, regions: Tensor, width: int) -> tuple[list[list[int]], Tensor]:
        """Captions as `beam` gives them, without a look at the greedy one, and their log p (B,)."""
        count, device = len(regions), regions.device
        states, keys, h = (x.repeat_interleave(width, 0) for x in self.read(regions))       # (B W, P, H) twice, (B W, H)
        words = torch.full((count, width, 1), START, device=device)                 # (B, W, t)
        log_p = torch.full((count, width), -torch.inf, device=device)               # best first; at first one empty caption
        log_p[:, 0] = 0
        done = torch.zeros(count, width, dtype=torch.bool, device=device)
        rows = torch.arange(count, device=device)[:, None]                          # (B, 1)
        for _ in range(self.max_len - 1):
            h = self.step(self.read_words(words[:, :, -1].flatten()), h, states, keys)
            following = self.out(self.dropout(h)).float().log_softmax(1).unflatten(0, (count, width))   # (B, W, V)
            following[:, :, NEVER_SAID] = -torch.inf
            following[done] = -torch.inf                                            # a finished one goes on as it is,
            following[:, :, PAD] = following[:, :, PAD].where(~done, 0)             # with padding that costs nothing
            size = following.shape[2]
            log_p, best = (log_p[:, :, None] + following).flatten(1).topk(width)    # (B, W V) -> (B, W)
            came_from = best // size                                                # (B, W): which caption went on
            words = torch.cat([words[rows, came_from], (best % size)[:, :, None]], 2)       # (B, W, t + 1)
            done = done[rows, came_from] | (words[:, :, -1] == END)
            h = h.unflatten(0, (count, width))[rows, came_from].flatten(0, 1)
            if done[:, 0].all():             # log p only falls, so that nothing can pass a finished best one
                break
        captions = [row[1:row.index(END) + 1] if END in row else row[1:] for row in words[:, 0].tolist()]
        return captions, log_p[:, 0]


class GraphLayer(nn.Module):
    """One round of reasoning between the regions of an image, as in VSRN: v + norm(out(R g(v))), (B, P, D) -> (B, P, D).

    R = theta(v) phi(v)^T / P, (B, P, P), says how much each region takes from each other one: inner products without a
    softmax. The scale and shift of the norm start at 0, so that an untrained layer is the identity. (The original writes
    the linear maps as convolutions of width 1.)
    """

    def __init__(self, dim: int):
        super().__init__()
        self.g, self.theta, self.phi, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.norm = BatchNorm(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(self, v: Tensor) -> Tensor:
        relation = self.theta(v) @ self.phi(v).transpose(1, 2) / v.shape[1]         # (B, P, P)
        y = self.out(relation @ self.g(v))                                          # (B, P, D)
        return v + self.norm(y.flatten(0, 1)).view_as(v)                            # statistics over batch and regions


class RegionGraph(nn.Module):
    """Image trunk of VSRN: a linear map of each region, a norm, four graph layers, a norm. (B, P, F) -> (B, P, D).

    Both norms make each region sqrt(D) long, so that its entries are of order 1 at any D. Entries of unit regions, 0.02 at
    D = 2,048, are drowned: the graph adds to them what its BatchNorms put out, whose scale and shift move by the learning rate
    a step whatever the entries are, until all images are one point; and GRUs hardly see them. `across_regions` takes the unit
    norm of each feature over the P regions, as the original's code does: entries of 1 / sqrt(P), 0.17 of 36 regions.
    `first_norm=False` leaves the first norm out, as VSRN does on Flickr30k.
    """

    def __init__(self, img_dim: int, embed_size: int, first_norm: bool = True, across_regions: bool = False):
        super().__init__()
        self.dim, self.first_norm, self.across_regions = embed_size, first_norm, across_regions
        self.fc = vsepp_linear(img_dim, embed_size)
        self.layers = nn.Sequential(*(GraphLayer(embed_size) for _ in range(4)))

    def forward(self, regions: Tensor, lengths=None) -> Tensor:
        v = self.fc(regions)                                                        # (B, P, F) -> (B, P, D)
        v = self.normalise(v) if self.first_norm else v
        return self.normalise(self.layers(v))

    def normalise(self, v: Tensor) -> Tensor:
        return unit(v, 1) if self.across_regions else unit(v, 2) * self.dim ** 0.5  # (B, P, D)


class RegionGRU(nn.Module):
    """f_emb of an image in VSRN: the last state of a GRU that reads the regions in turn. (B, P, F) -> (B, D).

    `batch_norm` ends in a BatchNorm, as VSRN does on Flickr30k.
    """

    def __init__(self, inputs: int, embed_size: int, batch_norm: bool = False):
        super().__init__()
        self.dim = embed_size
        self.rnn = nn.GRU(inputs, embed_size, batch_first=True)
        self.norm = BatchNorm(embed_size) if batch_norm else nn.Identity()

    def forward(self, regions: Tensor, lengths=None) -> Tensor:
        return self.norm(self.rnn(regions)[1][-1])                                  # last layer: (B, D)
