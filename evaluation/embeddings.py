"""Embeddings of images and captions by trained models, and what is known of the items.

`embed` embeds a split by one model, or by several of an ensemble. Embeddings of other models, and
precomputed scores, come from evaluation/reading.py.
"""

import glob
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

import metrics
from checkpoint import Trained
from data import Split, check_extractors, read_split
from evaluation.annotations import IdIndex
from images import Photos
from losses import SIMILARITIES, Embedding, uncertainty
from model import encode, prepare_images
from options import check_fits
from utils import InputError, dev_for_val, save_arrays


class Member(NamedTuple):
    """The embeddings of one model, and how it compares them."""

    similarity: object  # one of losses.SIMILARITIES, built
    images: Embedding | None  # N items, or None where there are no images
    captions: Embedding | None  # M items


@dataclass
class Embeddings:
    """Embeddings of N images and M captions by models, whose scores are averaged."""

    name: str  # the paths of the models, or of the file
    caption_image: np.ndarray  # (M,) the row of each caption's image
    n_images: int
    members: list[Member] = field(default_factory=list)
    matrix: np.ndarray | None = None  # (N, M) float32, precomputed scores
    # (N, M) float32: others that rank images for captions, where each direction has its own
    matrix_t2i: np.ndarray | None = None
    similarity: str = ""
    # what is known of the items: "image_id", "image_name", "caption_id", "caption_name" (NAME#K),
    # "caption" (text)
    ids: dict[str, list] = field(default_factory=dict)
    data_name: str = ""  # the data set; empty where it is not known
    split: str = ""  # "dev" for val; empty where it is not known
    folder: str = ""  # of the data set
    photos: Photos | None = None
    models: list[Trained] = field(default_factory=list)  # none of a file
    # what query bank normalization subtracts from the scores: of images (N,), of captions (M,)
    bank: tuple | None = None
    judged: dict = field(default_factory=dict)  # matches and ratings of the items, by protocol
    report: dict = field(default_factory=dict)  # parts of results.json: "bank", "unknown_words"
    notes: list[str] = field(default_factory=list)  # what was assumed or left out
    # "logit_scale" and "logit_bias" of a file
    logits: dict[str, float] = field(default_factory=dict)

    @cached_property
    def scores(self) -> np.ndarray:
        """(N, M) in float32."""
        if self.matrix is not None:
            return self.matrix
        return metrics.score_matrix(self.members)

    @property
    def scores_t2i(self) -> np.ndarray:
        """(N, M) in float32, by which images are ranked for captions."""
        if self.matrix_t2i is not None:
            return self.matrix_t2i
        return self.scores

    def drop_scores(self) -> None:
        """Free the scores, 500 MB for COCO's test split; they are computed again if needed."""
        self.__dict__.pop("scores", None)

    @property
    def has_images(self) -> bool:
        return self.matrix is not None or all(m.images is not None for m in self.members)

    @property
    def gaussian(self) -> bool:
        """True if any side of any member has variances."""
        sides = [m.images for m in self.members] + [m.captions for m in self.members]
        return any(side is not None and side.log_var is not None for side in sides)

    @property
    def texts(self) -> list[str]:
        """All captions, by number where their texts are not known."""
        return self.ids.get("caption") or [f"caption {m}" for m in range(len(self.caption_image))]

    def index(self, side: str) -> IdIndex:
        """Find the positions of "image" or "caption" ids; raises InputError without ids."""
        return IdIndex(self.ids.get(f"{side}_id"), side, self.name)

    def subset(self, images: np.ndarray) -> "Embeddings":
        """Select the images at positions `images` (n,), rising, and their captions."""
        captions = np.flatnonzero(np.isin(self.caption_image, images))

        ids = {}
        for name, values in self.ids.items():
            positions = captions
            if name.startswith("image"):
                positions = images
            ids[name] = [values[k] for k in positions]

        photos = self.photos
        if photos:
            photos = Photos([photos.paths[i] for i in images])
        members = []
        for m in self.members:
            members.append(Member(m.similarity, m.images.rows(images), m.captions.rows(captions)))
        matrix = self.matrix
        if matrix is not None:
            matrix = matrix[np.ix_(images, captions)]

        return replace(
            self,
            n_images=len(images),
            caption_image=np.searchsorted(images, self.caption_image[captions]),
            ids=ids,
            photos=photos,
            members=members,
            matrix=matrix,
        )


def uncertainties(e: Embeddings, measure=uncertainty) -> dict[str, np.ndarray]:
    """Compute log det Sigma in nats of Gaussian images (N,) and captions (M,).

    The mean over the members. measure: another function Embedding -> (N,).
    """
    results = {}
    for side in ("images", "captions"):
        sides = [getattr(m, side) for m in e.members]
        values = [measure(x) for x in sides if x is not None and x.log_var is not None]
        if values:
            results[side] = torch.stack(values).mean(0).cpu().numpy()
    return results


# ---- by trained models


def newest_run() -> str:
    """Find the folder of the run in runs/ whose best model is the newest. Raises InputError."""
    paths = glob.glob("runs/**/model_best.pt", recursive=True)
    if not paths:
        raise InputError(
            "no run is in runs/ that reached its first validation, which writes model_best.pt; "
            "train one, go on with one by train.py --resume, or name a run folder with --checkpoint"
        )
    return os.path.dirname(max(paths, key=os.path.getmtime))


def embed(
    models: list[Trained],
    split: str = "test",
    part=None,
    *,
    sim: str | None = None,
    batch_size: int = 128,
    workers: int = 0,
    **data,
) -> Embeddings:
    """Embed a split by one model, or by several of an ensemble, on the device of each.

    Args:
        models: trained on one data set.
        split: its name.
        part: split -> `data.Gallery`, the items to embed, which the members then hold alone.
        sim: the similarity in place of the models' own.
        batch_size: images or captions per step.
        workers: processes that read photos.
        data: as `read_split_for` takes them, else those of the first model.
    """
    first = models[0].options
    given = {name: value for name, value in data.items() if value is not None}
    data = {
        "data_path": first.data_path,
        "data_name": first.data_name,
        "dev_images": first.dev_images,
        **given,
    }
    folder = os.path.join(data["data_path"], data["data_name"])

    e = None
    for model in models:
        own = model.options
        own_path = given.get("data_path", own.data_path)
        own_folder = os.path.join(own_path, given.get("data_name", own.data_name))
        if os.path.realpath(own_folder) != os.path.realpath(folder):
            raise InputError(
                f"{model.path} was trained on {own_folder}, but the first run on {folder}; an "
                "ensemble needs one split, so name the data of both with --data_name"
            )

        items = read_split_for(model, split, **data)
        if e is None:
            e = list_items(items, data["data_name"])
        tokens = items.encode(model.vocab)
        gallery = None
        if part:
            gallery = part(items)
        images, captions = encode(
            model.model, items, tokens, model.device, batch_size, workers, gallery
        )

        similarity = model.similarity
        if sim:
            similarity = SIMILARITIES[sim].score
            if images is not None:
                check_sides(sim, images, captions, model.path)
        reads_words = items.text is None and not model.vocab.reads_captions
        if own.data_name != data["data_name"] and reads_words:
            e.report["unknown_words"] = items.unknown_words(model.vocab)
        e.members.append(Member(similarity, images, captions))
        e.notes += [note for note in (*model.notes, *items.notes) if note not in e.notes]

    e.name = " + ".join(model.path for model in models)
    e.models = models
    e.folder = folder
    e.similarity = sim
    if not sim:
        # each once, in the order of the models
        e.similarity = " + ".join(dict.fromkeys(model.options.sim for model in models))
    return e


def read_split_for(
    model: Trained,
    split: str = "test",
    data_path: str | None = None,
    data_name: str | None = None,
    *,
    dev_images: int | None = None,
    text_only: bool = False,
) -> Split:
    """Read a split of the data that a model was trained on, or of others named.

    Args:
        model: whose features the split needs to have.
        split: its name.
        data_path: folder of the data sets; None: that of the training.
        data_name: the data set; None: that of the training.
        dev_images: of dev, 0 all, None as in the training.
        text_only: a split without images will do.
    """
    own = model.options
    if dev_images is None:
        dev_images = own.dev_images
    items = read_split(
        data_path or own.data_path,
        data_name or own.data_name,
        split,
        text_only=text_only,
        text_features=own.text_features,
        dev_images=dev_images,
    )
    items.require_sound()
    items.note_doubts()
    check_fits(own, items.images, items.text, model.path)
    prepare_images(own, items)
    check_extractors(model.extractors, items, own.text_features, model.path)
    return items


def check_sides(name: str, images: Embedding, captions: Embedding, path: str) -> None:
    """Raise InputError where embeddings of `path` lack what the similarity `name` compares."""
    similarity = SIMILARITIES[name]
    if similarity.parts and (images.parts is None or captions.parts is None):
        raise InputError(
            f"{path} does not fit --sim {name}: it compares the parts of items, such as regions "
            "with words, and a side given has means only; embed both by a model of --sim scan or "
            "mil, or compare means: cosine"
        )

    needed = similarity.gaussian_sides
    gaussian = sum(e.log_var is not None for e in (images, captions))
    if needed in (0, gaussian) or similarity.point_side and gaussian == 1:
        return
    one = ""
    if similarity.point_side:
        one = ", or on 1"
    raise InputError(
        f"{path} does not fit --sim {name}: it needs variances on {needed} of the two sides, "
        f"images and captions{one}; {gaussian} of those given have them"
    )


# ---- whose images and captions


def list_items(split: Split, data_name: str) -> Embeddings:
    """List the images and captions of a split, without embeddings."""
    image_ids = split.image_ids
    names = split.photo_names
    if image_ids is not None and not all(isinstance(i, (int, np.integer)) for i in image_ids):
        names = names or [str(i) for i in image_ids]
        image_ids = None
    caption_ids = split.caption_ids
    if caption_ids is not None:
        caption_ids = caption_ids.tolist()

    ids = {
        "image_id": image_ids,
        "image_name": names,
        "caption": split.captions,
        "caption_id": caption_ids,
        "caption_name": split.caption_names,
    }
    photos = None
    if isinstance(split.images, Photos):
        photos = split.images
    return Embeddings(
        split.source,
        split.caption_image,
        len(split.images),
        ids={name: values for name, values in ids.items() if values is not None},
        data_name=data_name,
        split=dev_for_val(split.name),
        photos=photos,
        notes=list(split.notes),
    )


def check_same_items(mine: Embeddings, theirs: Embeddings) -> list[str]:
    """Return notes, if two embeddings may be of the same items in the same order.

    A note says so where nothing tells. Raises InputError on other items, or another order.
    """
    check_same_form(mine, theirs)

    shared = set(mine.ids) & set(theirs.ids)
    if "caption" in shared and mine.ids["caption"] == theirs.ids["caption"]:
        return []  # whatever the ids: SCAN numbers rows where VSE++ has COCO's

    keys = [key for key in ("image_id", "image_name", "caption_id") if key in shared]
    for key in keys:
        own = mine.ids[key]
        others = theirs.ids[key]
        if key == "image_name":
            own = [os.path.basename(name) for name in own]
            others = [os.path.basename(name) for name in others]
        if own != others:
            raise InputError(
                f"{mine.name} and {theirs.name} have other {key.replace('_', ' ')}s, or the same "
                "in another order; give files of one split, in its order"
            )

    only_numbers_of_rows = all(mine.ids[key] == [*range(len(mine.ids[key]))] for key in keys)
    if "caption" in shared and only_numbers_of_rows:
        raise InputError(
            f"{mine.name} and {theirs.name} have other captions, and no ids (but numbers of rows) "
            "that say that their images are the same; name one split with --data_name and --split"
        )
    if keys:
        return []
    return [
        f"{mine.name} does not say what it is about: the items of {theirs.name}, in their order, "
        "assumed"
    ]


def check_same_form(mine: Embeddings, theirs: Embeddings) -> None:
    """Raise InputError where sizes, splits or the images of captions differ."""
    here = (mine.n_images, len(mine.caption_image))
    there = (theirs.n_images, len(theirs.caption_image))
    if here != there:
        raise InputError(
            f"{mine.name} has {here[0]} images and {here[1]} captions, and {theirs.name} "
            f"{there[0]} and {there[1]}; give both the same --data_name and --split"
        )

    two_data_sets = mine.data_name and theirs.data_name and mine.data_name != theirs.data_name
    two_splits = mine.split and theirs.split and mine.split != theirs.split
    if two_splits and not two_data_sets:
        raise InputError(
            f"{mine.name} is of the {mine.split} split and {theirs.name} of the {theirs.split} "
            "split; give files of one split"
        )
    if not np.array_equal(mine.caption_image, theirs.caption_image):
        raise InputError(
            f"{mine.name} gives captions to other images than {theirs.name}; give files of one "
            "split, in its order"
        )


# ---- writing


def export(path: str, e: Embeddings) -> None:
    """Write the embeddings of one model as an .npz, with what is known of the items."""
    similarity, images, captions = e.members[0]
    if images is None:
        raise InputError(
            f"--export: {e.name} has no images beside it; export a split with features or photos"
        )

    arrays = {
        "image_mean": images.mean,
        "caption_mean": captions.mean,
        "image_log_var": images.log_var,
        "caption_log_var": captions.log_var,
        "image_id": e.ids.get("image_id"),
        "image_name": e.ids.get("image_name"),
        "caption_id": e.ids.get("caption_id"),
    }
    if e.similarity == "mls":
        arrays["effective_dim"] = similarity.k.item()
    arrays["caption_image"] = e.caption_image
    arrays["similarity"] = e.similarity
    arrays["data_name"] = e.data_name
    arrays["split"] = e.split

    known = {}
    for name, x in arrays.items():
        if torch.is_tensor(x):
            known[name] = x.cpu().numpy()
        elif x is not None:
            known[name] = np.array(x)
    save_arrays(path, known)
