"""Make photos/model, which `python -m photos` searches with, from Flickr8k.

    python -m photos.make_model --data_path data

It takes features of Flickr8k's photos by three networks, those of Lite0 in data/f8k_precomp and
data/f8k_people and those of Lite1 and Lite2 in data/f8k_nets, and the judgements of
data/f8k_people. It trains in two steps and writes the model in float16 with its calibration.

Words that Flickr8k's captions lack come from the networks' own classes. For a class with row w of
the last layer, a linear discriminant expects features of the mean mu + S w, with the mean mu and
the covariance S of the training photos. Such rows, as far from mu as photos are, are added to the
training photos, with captions that name the class.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os

import numpy as np
import torch

import utils
from checkpoint import load_checkpoint
from data import read_extractors
from features.hglmm import unit_rows
from features.networks import LITES, SIDE_BY_SIDE, build_network
from model import CNN
from photos.encoder import SHIPPED
from photos.words import add_article, add_words, copy_data, read_class_names
from utils import (
    Arguments,
    atomic,
    call_python,
    filename,
    need,
    read_array,
    read_json,
    read_lines,
    save_array,
    save_json,
    save_lines,
)

# Data sets that are given.
LITE0_DATA = "f8k_precomp"
LITE1_AND_2_DATA = "f8k_nets"
JUDGED_DATA = "f8k_people"
# Data sets that are written: features of three networks, with classes, and with short texts.
PHOTO_DATA = "f8k_lites_precomp"
CLASS_DATA = "f8k_classes_precomp"
WORD_DATA = "f8k_words_precomp"
JUDGED_LITES_DATA = "f8k_lites_people"

CLASS_TEMPLATES = (
    "{} .",
    "a photo of {} .",
    "there is {} in the photo .",
    "a picture with {} .",
    "{} can be seen .",
)
ROWS_PER_CLASS = 2
ANCHOR = 0.75  # weight of the anchor in the packed model: the best rsum on dev
KEPT_PARTS = ("format", "options", "vocabulary", "model", "state", "data")  # of a checkpoint

BOTH_STEPS = (
    "--text_features sentences --txt_layers 2048 --embed_size 512 --batch_size 512 "
    "--learning_rate 1e-3 --schedule cosine --warmup 1 --text_anchor 0.7"
).split()
FIRST_STEP = (
    "--loss infonce --mask_same_image --weight_decay 0.05 --dropout 0.3 --feature_noise 0.7 "
    "--num_epochs 16"
).split()
SECOND_STEP = (
    "--loss volume --freeze_means --head spherical_one --var_layers 256 --num_epochs 12"
).split()


def class_rows(photos: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Compute typical features of photos of each class: (C, F) float32.

    photos: features (N, F). rows: those of a network's last layer (C, F). The result is as far from
    the mean of the photos as the median photo.
    """
    photos = photos.astype(float)
    mean = photos.mean(0)  # (F,)
    covariance = np.cov(photos.T)  # (F, F)
    toward = rows.astype(float) @ covariance  # (C, F)
    length = np.linalg.norm(toward, axis=1, keepdims=True)
    distance = np.median(np.linalg.norm(photos - mean, axis=1))
    return (mean + distance * toward / length).astype(np.float32)


def join_networks(data: str) -> None:
    """Write the features of photos by three networks side by side, as `Lites` computes them."""
    line = build_network("cpu", SIDE_BY_SIDE, whole=True).line
    join_features(data, LITE0_DATA, PHOTO_DATA, ("train", "dev", "test"), line)
    join_features(data, JUDGED_DATA, JUDGED_LITES_DATA, ("photos",), line)


def join_features(data: str, source: str, to: str, splits: tuple[str, ...], line: str) -> None:
    """Write a copy of the data set `source` with the features of three networks, each of norm 1."""
    copy_data(os.path.join(data, source), os.path.join(data, to))
    for split in splits:
        paths = [
            f"{source}/{split}_ims.npy",
            f"{LITE1_AND_2_DATA}/lite1_{split}.npy",
            f"{LITE1_AND_2_DATA}/lite2_{split}.npy",
        ]
        parts = []
        for path in paths:
            part = read_array(os.path.join(data, path), "give features of the same photos")
            parts.append(unit_rows(part.astype(np.float32)))
        joined = np.concatenate(parts, 1)  # (N, 3 * 1280)
        save_array(os.path.join(data, to, f"{split}_ims.npy"), joined)
    facts = {**read_extractors(os.path.join(data, to)), "ims": line}
    save_json(facts, os.path.join(data, to, "features.json"))


def class_features(photos: np.ndarray) -> np.ndarray:
    """Compute typical features of the classes in three networks side by side, (1000, 3 * 1280).

    photos: (N, 3 * 1280).
    """
    parts = []
    for name, features in zip(LITES, np.split(photos, len(LITES), 1)):
        state = torch.load(CNN(name).net.weights_file, weights_only=True, map_location="cpu")
        parts.append(unit_rows(class_rows(features, state["_fc.weight"].numpy())))
    return np.concatenate(parts, 1)


def add_classes(photos: str, to: str) -> None:
    """Write a copy of the data set `photos` that has the classes after its training photos."""
    copy_data(photos, to)
    features_path = os.path.join(to, "train_ims.npy")
    captions_path = os.path.join(to, "train_caps.txt")
    ids_path = os.path.join(to, "train_ids.txt")

    features = np.array(read_array(features_path, "extract again"))
    rows = class_features(features)
    captions = read_lines(captions_path)
    ids = read_lines(ids_path)
    names = read_class_names()
    for repeat in range(ROWS_PER_CLASS):
        for number, name in enumerate(names):
            ids.append(f"class {number}, {repeat}")
            name = add_article(name)
            captions += [template.format(name) for template in CLASS_TEMPLATES]
    save_array(features_path, np.concatenate([features, np.tile(rows, (ROWS_PER_CLASS, 1))]))
    save_lines(captions_path, captions)
    save_lines(ids_path, ids)


def pack(run: str, to: str, **options) -> None:
    """Write the best model of a run in float16, without what belongs to a machine.

    options: those of the run that change.
    """
    checkpoint = load_checkpoint(run)
    stored = {name: checkpoint[name] for name in KEPT_PARTS}
    machine = {"data_path": "data", "logger_name": "runs/photos", "init_from": None}
    stored["options"] |= {**machine, **options}
    weights = {}
    for name, x in stored["model"].items():
        if x.is_floating_point():
            x = x.half()
        weights[name] = x
    stored["model"] = weights

    os.makedirs(to, exist_ok=True)
    with atomic(os.path.join(to, "model_best.pt"), "wb") as f:
        torch.save(stored, f)


def make(opt) -> None:
    """The command."""
    data = opt.data_path
    output = opt.output_folder or SHIPPED
    first_run = os.path.join(opt.runs, "photos_points")
    second_run = os.path.join(opt.runs, "photos_volume")
    judgements = []
    for name in ("ExpertAnnotations.txt", "CrowdFlowerAnnotations.txt"):
        path = os.path.join(data, JUDGED_DATA, name)
        judgements.append(need(path, "Flickr8k's judgements come with its text"))

    # The data
    join_networks(data)
    add_classes(os.path.join(data, PHOTO_DATA), os.path.join(data, CLASS_DATA))
    add_words(os.path.join(data, CLASS_DATA), os.path.join(data, WORD_DATA))
    at = ("--data_path", data, "--data_name")
    for name in (CLASS_DATA, WORD_DATA, JUDGED_LITES_DATA):
        call_python("-m", "features.captions", *at, name, "--kind", "sentences")

    # The model
    train = ("train.py", *at)
    run = ("--logger_name", first_run)
    call_python(*train, CLASS_DATA, *BOTH_STEPS, *FIRST_STEP, *run)
    run = ("--init_from", first_run, "--logger_name", second_run)
    call_python(*train, WORD_DATA, *BOTH_STEPS, *SECOND_STEP, *run)
    pack(second_run, output, text_anchor=ANCHOR)

    # Its calibration
    people = os.path.join(second_run, "people.json")
    judged = ("--split", "photos", "--judgements", *judgements, "--output", people, "--overwrite")
    call_python("-m", "confidence.people", output, *at, JUDGED_LITES_DATA, *judged)
    calibration = read_json(
        os.path.join(second_run, "calibration.json")
    )  # written with people.json
    shown = {"checkpoints": ["photos/model"], "data_name": "Flickr8k"}  # as notes name it
    save_json({**calibration, **shown}, os.path.join(output, "calibration.json"))
    call_python("-m", "photos.words", output, "--fit", "--data_path", data)
    size = os.path.getsize(os.path.join(output, "model_best.pt"))
    print(f"{output}: {size / 2**20:.1f} MiB, and its calibration")


def main(argv=None) -> None:
    p = Arguments("Make the model that python -m photos searches with, from Flickr8k.")
    p.add_argument(
        "--data_path",
        type=filename,
        default="data",
        help="folder that holds f8k_precomp, f8k_nets and f8k_people",
    )
    p.add_argument(
        "--runs", type=filename, default="runs", help="folder of the runs that are trained"
    )
    help = "folder of the model (default: photos/model)"
    p.add_argument("--output_folder", type=filename, metavar="FOLDER", help=help)
    p.accept_name("--output", "--output_folder")
    utils.run("photos.make_model", make, p.parse_args(argv))


if __name__ == "__main__":
    main()
