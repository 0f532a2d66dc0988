"""Captions of one's own as queries: embedded, and as examples of what no image shows."""
import numpy as np
import torch

from cli import InputError, torch_device
from evaluation.answers import answers, rows_of
from evaluation.sources import load_run
from evaluation.subjects import Member, Subject
from files.reading import read_lines
from inputs import encode_captions
from similarities import Embedding
from text import tokenize


@torch.no_grad()
def embed_texts(model, vocab, texts: list[str], device) -> Embedding:
    """Captions of the user's own -> Embedding (B, D). Raises InputError for a caption without a known word."""
    tokens = encode_captions([tokenize(text) for text in texts], vocab)
    if tokens.unknown.any():
        raise InputError(f"no word of '{texts[tokens.unknown.argmax()]}' is in the vocabulary of {len(vocab)} words; "
                         "use words of the training set")
    numbers, lengths = tokens.batch(np.arange(len(texts)))                          # (B, T), (B,)
    return model.embed_captions(numbers.to(device), lengths)


def read_negatives(path: str) -> list[str]:
    """The captions of a text file, one per line. Raises InputError where it has none."""
    texts = [line.strip() for line in read_lines(path) if line.strip()]
    if not texts:
        raise InputError(f"--negatives {path} has no caption; write one per line, of things that no image shows")
    return texts


def posterior_of_negatives(texts: list[str], paths: list[str], subject: Subject, t: float, opt) -> np.ndarray:
    """How sure the models of runs are of their first image for each text, at temperature t: (B,).

    subject: its members are those of `paths`, with the images that are searched. Raises InputError where a run reads
    ready features of captions and no words.
    """
    device, members = torch_device(opt.device), []
    for path, member in zip(paths, subject.members):
        run = load_run(path, opt, vocab=opt.vocab)
        if run.split.text is not None:
            raise InputError(f"{path} reads ready features of captions and knows no words, so --negatives cannot be "
                             "embedded; leave it out")
        members.append(Member(member.similarity, member.images,
                              embed_texts(run.model.to(device), run.vocab, texts, device)))
    asked = Subject("negatives", subject.similarity, np.zeros(len(texts), int), subject.n_images, members)
    return answers(rows_of(asked, "t2i"), t).posterior
