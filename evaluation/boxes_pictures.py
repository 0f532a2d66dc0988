"""A picture of phrases in their photos: the box of the truth, the box found first, and how sure the model is of it."""
import numpy as np

from evaluation.confidence import Seen, best_name, percent
from evaluation.localisation import RIGHT, BoxSplit, Located
from evaluation.pictures import IN_SET, OWN, Cell, Row, draw_rows, picture_file, small, wrapped
from files.proposals import shares

WRONG = "firebrick"                   # a first box; IN_SET: a right one, OWN: the truth
ACROSS, LETTERS = 5, 28               # photos of each kind, letters in a line above a photo
LEGEND = "green: the box of the phrase; blue: the box found first, red where it is wrong"
KINDS = {"the surest right boxes": LEGEND,
         "the surest wrong boxes": f"out of reach: no proposal has an IoU of {RIGHT} with the box of the phrase",
         "the least sure": ""}        # what is shown, and what is said of it


def choose(sure: np.ndarray, right: np.ndarray, photo: np.ndarray, count: int = ACROSS) -> dict[str, list[int]]:
    """Which of Q phrases are shown, at most `count` of each of KINDS and one of each photo: {kind: positions}.

    sure (Q,), right (Q,) bool, photo (Q,): the same words of one photo stand in several of its sentences.
    """
    order = np.argsort(-sure, kind="stable")
    taken, chosen = set(), {}
    for kind, part in zip(KINDS, (order[right[order]], order[~right[order]], order[::-1])):
        for q in part.tolist():
            if len(chosen.setdefault(kind, [])) < count and photo[q] not in taken:
                chosen[kind].append(q)
                taken.add(photo[q])
    return {kind: positions for kind, positions in chosen.items() if positions}


def phrase_examples(path: str, split: BoxSplit, located: Located, seen: Seen, photos: list[str],
                    title: str) -> None:
    """Draw phrases with their photos, their boxes and the calibrated probability that the first one is right.

    seen: what `localisation_confidence.report` found of Q phrases; photos: the file of each of the N photos, which may
    be gone. Raises InputError on a path that `picture_file` refuses.
    """
    picture_file(path)
    chosen = choose(seen.values[best_name(seen.values)], seen.right, split.phrase_photo[seen.asked])
    rows = [Row(kind, KINDS[kind], [cell(split, located, seen.asked[q], seen.values["isotonic"][q], photos)
                                    for q in positions]) for kind, positions in chosen.items()]
    draw_rows(path, title, rows, ACROSS)


def cell(split: BoxSplit, located: Located, m: int, p: float, photos: list[str]) -> Cell:
    """Phrase m in its photo. p: the probability that the first box is right."""
    size, right = split.sizes[split.phrase_photo[m]], bool(located.right[m])
    boxes = ((shares(split.boxes[located.first[m]], size), IN_SET if right else WRONG),
             (shares(split.truth[m], size), OWN))
    outcome = f"IoU {located.iou[m]:.2f}" if located.rank[m] >= 0 else "out of reach"
    label = f"{wrapped(split.phrases[m], LETTERS, 2)}\n{percent(p)} sure, {outcome}"
    return Cell(small(photos[split.phrase_photo[m]]), label, boxes=boxes)
