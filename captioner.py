"""VSRN's caption generator: a term of the loss that asks an image's regions to tell its caption, and a command to read it.

    python train.py --data_name coco_precomp --img_enc vsrn --captioner 1
    python captioner.py --checkpoint runs/coco_precomp_cosine --images 10 --beam 3

Li et al. 2019 (VSRN) add this loss to the ranking loss, 1 : 1: regions that suffice to write the caption hold what it says.
The generator is that of Venugopalan et al. 2015 (sequence to sequence: one GRU reads, another writes) with the attention of
Bahdanau et al. 2015. It serves training only; retrieval never runs it.
"""
if __name__ == "__main__":
    import cli
    cli.starting()

import argparse
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tqdm import tqdm

import cli
from cli import Arguments, InputError, filename, natural
from files import holds_keys, output, save_json
from vocab import END, PAD, START, UNK

NEVER_SAID = [PAD, START, UNK]        # by a generated caption
FUNCTION_WORDS = frozenset(           # counted apart, with punctuation: nearly any caption has them
    "a about above across after along an and another any around as at be been before behind being below beneath beside between "
    "but by down each for from had has have he her his i in inside into is it its near next no of off on onto or other our out "
    "outside over she so some such that the their them there these they this those through to toward towards under up upon was "
    "we were what when where which while who whose with within without you your".split())


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


def spell(caption: list[int], vocab) -> list[str]:
    """The words of a generated caption."""
    return [vocab.words[number] for number in caption if number != END]


def is_function(word: str) -> bool:
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


def word_precision(captions: list[list[str]], references: list[list[list[str]]], groups: dict | None = None) -> dict:
    """Of the words of N generated captions, the share that some reference of their image has, letter for letter.

    {"content" | "function" | "pairs" | name of one of `groups`, sets of words: {"words": how many, "own": percent, "other":
    percent}}, None where there are no words. "pairs" are two content words side by side, "red circle": who has seen red and a
    circle may still say them of the wrong things.
    "other" is the control: the same caption held against the references of another image, averaged over all N - 1 others. What
    "own" has above it comes from the image; the rest comes from knowing what captions are like.
    """
    kinds = {"content": lambda text: [word for word in text if not is_function(word)],
             "function": lambda text: [word for word in text if is_function(word)],
             "pairs": lambda text: [pair for pair in zip(text, text[1:]) if not any(map(is_function, pair))],
             **{name: lambda text, group=group: [word for word in text if word in group]
                for name, group in (groups or {}).items()}}
    result = {}
    for kind, items in kinds.items():
        said = [(item, i) for i, caption in enumerate(captions) for item in items(caption)]
        held = [{item for text in texts for item in items(text)} for texts in references]
        images = Counter(item for found in held for item in found)                  # word or pair -> images that have it
        own = [item in held[i] for item, i in said]
        others = [(images[item] - hit) / max(1, len(held) - 1) for (item, _), hit in zip(said, own)]
        result[kind] = {"words": len(said), "own": 100 * float(np.mean(own)) if said else None,
                        "other": 100 * float(np.mean(others)) if said and len(held) > 1 else None}
    return result


@torch.no_grad()
def caption_images(model: nn.Module, images, width: int, device, workers: int = 0) -> list[list[int]]:
    """A caption of every image of a split by the model's captioner, in their order."""
    from data import image_batches  # these modules build on this one

    captions = []
    with tqdm(total=len(images), desc="captions", disable=None, leave=False) as bar:
        for batch in image_batches(images, 128, workers):
            captions += model.terms["captioner"].beam(model.image_tower.trunk(batch.to(device)), width)
            bar.update(len(batch))
    return captions


def write_captions(opt) -> None:
    from subjects import load_run, newest_run, torch_device

    if not 1 <= opt.beam <= 1000:
        raise InputError(f"--beam {opt.beam}: a beam has from 1 to 1,000 captions; 3 is usual")
    device, run = torch_device(opt.device), opt.checkpoint or newest_run()
    if opt.output:
        output(opt.output, holds_keys("checkpoint", "data_name", "split", "beam", "precision", "captions"), [run])
    model, vocab, _, _, (_, name), split, _ = load_run(run, opt, vocab=opt.vocab)
    if "captioner" not in model.terms:
        raise InputError(f"{run} was trained without a captioner (--captioner 0); train one with train.py --img_enc vsrn "
                         "--captioner 1")
    count = len(split.images)
    wrong = [i for i in opt.image_index or [] if not 0 <= i < count]
    if wrong:
        raise InputError(f"--image_index {wrong[0]} is no image of {name} {opt.split}; they are numbered from 0 to "
                         f"{count - 1}")
    references = [[] for _ in range(count)]                                         # caption numbers of each image
    for m, i in enumerate(split.caption_image):
        references[i].append(m)
    captions = caption_images(model.to(device), split.images, opt.beam, device, opt.workers)
    captions = [spell(caption, vocab) for caption in captions]
    names = split.photo_names or split.image_ids or [None] * count

    for i in opt.image_index if opt.image_index else range(min(opt.images, count)):
        print(f"image {i}" + ("" if names[i] is None else f" ({names[i]})") + f"\n  generated: {' '.join(captions[i])}\n"
              f"  true:      {split.captions[references[i][0]]}")
    groups = dict(opt.words or [])
    if len(groups) < len(opt.words or []):
        raise InputError(f"--words names a group twice among {', '.join(name for name, _ in opt.words)}; give each another "
                         "name")
    precision = word_precision(captions, [[split.words[m] for m in mine] for mine in references], groups)
    print(f"{name} {opt.split}, {count:,} images, beam {opt.beam}: generated words that a true caption of the image has")
    for kind, p in precision.items():
        title = {"content": "content words", "function": "function words and punctuation",
                 "pairs": "pairs of content words side by side"}.get(kind, kind)
        own, other = ("-" if p[key] is None else f"{p[key]:.1f}%" for key in ("own", "other"))
        print(f"  {title}: {own} of {p['words']:,} (control, captions of another image: {other})")
    if opt.output:
        told = [{"image": i, "name": names[i], "generated": " ".join(captions[i]), "true": [split.captions[m] for m in mine]}
                for i, mine in enumerate(references)]
        save_json({"checkpoint": run, "data_name": name, "split": opt.split, "beam": opt.beam, "precision": precision,
                   "captions": told}, opt.output)
        print(f"all captions in {opt.output}")


def group(text: str) -> tuple[str, set[str]]:
    name, _, words = text.partition("=")
    if not name or not words:
        raise argparse.ArgumentTypeError(f"'{text}' is no group of words; give NAME=WORD,WORD,...")
    if name in ("content", "function", "pairs"):
        raise argparse.ArgumentTypeError(f"'{name}' is a count of its own; give the group another name")
    return name, set(words.split(","))


def main(argv=None) -> None:
    from subjects import run_arguments  # which imports model.py, which imports this module

    p = Arguments("Write captions of images with the captioner of a VSRN model, and count how many of their words are true.")
    run_arguments(p, split="images to caption: all of them, for the count")
    shown = p.add_mutually_exclusive_group()
    shown.add_argument("--images", type=natural, default=10, metavar="N", help="print the captions of the first N")
    shown.add_argument("--image_index", type=int, nargs="+", metavar="I", help="print the captions of these, counted from 0")
    p.add_argument("--beam", type=natural, default=3, help="captions that the search keeps at a time; 1: greedy")
    p.add_argument("--words", type=group, nargs="+", metavar="NAME=WORD,WORD", help="count these groups of words too, as "
                   "colour=red,green,blue")
    p.add_argument("--output", type=filename, metavar="FILE.json",
                   help="write all captions, generated and true, and the counts")
    cli.run("captioner.py", write_captions, p.parse_args(argv))


if __name__ == "__main__":
    main()
