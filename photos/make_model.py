"""Make photos/model, which `python -m photos` searches with, from Flickr8k.

    python -m photos.make_model --data_path data

It takes features of Flickr8k's photos by three networks, those of Lite0 in data/f8k_precomp and data/f8k_people
and those of Lite1 and Lite2 in data/f8k_nets, and the judgements of data/f8k_people. It trains two steps and writes the
model in float16 with its calibration. Words that Flickr8k's captions lack come from the networks' own classes: of class
c with row w of the last layer, the features of a linear discriminant have the mean mu + S w, with mu and S those of the
training photos. Such rows, as far from mu as photos are, join the training photos. Their captions name the class.
"""
if __name__ == "__main__":
    import cli
    cli.start()

import os

import numpy as np
import torch

import cli
from checkpoint import load_checkpoint
from cli import Arguments, call_python, filename
from data import read_extractors
from features.hglmm import unit_rows
from features.networks import LITES, SIDE_BY_SIDE, build_network
from files import atomic, need, read_array, read_json, read_lines, save_array, save_json, save_lines
from model import CNN
from photos.encoder import SHIPPED
from photos.words import add_article, add_words, copy_data, read_class_names

LITE0, OTHERS, JUDGEMENTS = "f8k_precomp", "f8k_nets", "f8k_people"
PHOTOS, CLASSES, TRAINED = "f8k_lites_precomp", "f8k_classes_precomp", "f8k_words_precomp"
PEOPLE = "f8k_lites_people"
TEMPLATES = ("{} .", "a photo of {} .", "there is {} in the photo .", "a picture with {} .", "{} can be seen .")
TIMES = 2                             # rows of each class
ANCHOR = 0.75                         # weight of the anchor in the packed model: the best rsum on dev
KEPT = ("format", "options", "vocabulary", "model", "state", "data")    # of a checkpoint
SHARED = ("--text_features sentences --txt_layers 2048 --embed_size 512 --batch_size 512 --learning_rate 1e-3 "
          "--schedule cosine --warmup 1 --text_anchor 0.7").split()
POINTS = ("--loss infonce --mask_same_image --weight_decay 0.05 --dropout 0.3 --feature_noise 0.7 "
          "--num_epochs 16").split()
SPREAD = "--loss volume --freeze_means --head spherical_one --var_layers 256 --num_epochs 12".split()


def class_rows(photos: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Typical features of photos of each class: (C, F) float32.
    Features of photos (N, F) and the rows of a network's last layer (C, F). The rows are as far from the mean of the
    photos as the middle one."""
    photos, rows = photos.astype(float), rows.astype(float)
    mean, spread = photos.mean(0), np.cov(photos.T)                                 # (F,), (F, F)
    toward = rows @ spread                                                          # (C, F)
    far = np.median(np.linalg.norm(photos - mean, axis=1))
    return (mean + far * toward / np.linalg.norm(toward, axis=1, keepdims=True)).astype(np.float32)


def join_networks(data: str) -> None:
    """Write the features of photos by three networks side by side, each of norm 1, as `Lites` computes them."""
    line = build_network("cpu", SIDE_BY_SIDE, whole=True).line
    for source, to, splits in ((LITE0, PHOTOS, ("train", "dev", "test")), (JUDGEMENTS, PEOPLE, ("photos",))):
        copy_data(os.path.join(data, source), os.path.join(data, to))
        for split in splits:
            paths = [f"{source}/{split}_ims.npy", f"{OTHERS}/lite1_{split}.npy", f"{OTHERS}/lite2_{split}.npy"]
            parts = [read_array(os.path.join(data, path), "give features of the same photos") for path in paths]
            joined = np.concatenate([unit_rows(part.astype(np.float32)) for part in parts], 1)        # (N, 3 * 1280)
            save_array(os.path.join(data, to, f"{split}_ims.npy"), joined)
        save_json({**read_extractors(os.path.join(data, to)), "ims": line}, os.path.join(data, to, "features.json"))


def class_features(photos: np.ndarray) -> np.ndarray:
    """Typical features of the classes in three networks side by side, (1000, 3 * 1280). photos: (N, 3 * 1280)."""
    parts = []
    for name, features in zip(LITES, np.split(photos, len(LITES), 1)):
        state = torch.load(CNN(name).net.weights_file, weights_only=True, map_location="cpu")
        parts.append(unit_rows(class_rows(features, state["_fc.weight"].numpy())))
    return np.concatenate(parts, 1)


def add_classes(photos: str, to: str) -> None:
    """Write a data set of photos, beside whose training photos stand the classes."""
    copy_data(photos, to)
    paths = [os.path.join(to, f"train_{end}") for end in ("ims.npy", "caps.txt", "ids.txt")]
    features, texts, ids = np.array(read_array(paths[0], "extract again")), *map(read_lines, paths[1:])
    names = read_class_names()
    named = [template.format(add_article(name)) for name in names for template in TEMPLATES]
    save_array(paths[0], np.concatenate([features, *[class_features(features)] * TIMES]))
    save_lines(paths[1], [*texts, *named * TIMES])
    save_lines(paths[2], [*ids, *(f"class {k}, {n}" for n in range(TIMES) for k in range(len(names)))])


def pack(run: str, to: str, **options) -> None:
    """Write the best model of a run in float16, without what belongs to a machine. options: those that change."""
    stored = load_checkpoint(run)
    stored = {name: stored[name] for name in KEPT}
    stored["options"] |= {"data_path": "data", "logger_name": "runs/photos", "init_from": None, **options}
    stored["model"] = {name: x.half() if x.is_floating_point() else x for name, x in stored["model"].items()}
    os.makedirs(to, exist_ok=True)
    with atomic(os.path.join(to, "model_best.pt"), "wb") as f:
        torch.save(stored, f)


def make(opt) -> None:
    """The command."""
    data, output = opt.data_path, opt.output or SHIPPED
    folders = [os.path.join(data, name) for name in (PHOTOS, CLASSES, TRAINED)]
    runs = [os.path.join(opt.runs, name) for name in ("photos_points", "photos_volume")]
    judged = [need(os.path.join(data, JUDGEMENTS, f"{name}Annotations.txt"), "Flickr8k's judgements come with its text")
              for name in ("Expert", "CrowdFlower")]
    join_networks(data)
    add_classes(*folders[:2])
    add_words(*folders[1:])
    for name in (CLASSES, TRAINED, PEOPLE):
        call_python("-m", "features.captions", "--data_path", data, "--data_name", name, "--kind", "sentences")
    of = ("train.py", "--data_path", data, "--data_name")
    call_python(*of, CLASSES, *SHARED, *POINTS, "--logger_name", runs[0])
    call_python(*of, TRAINED, *SHARED, *SPREAD, "--init_from", runs[0], "--logger_name", runs[1])
    pack(runs[1], output, text_anchor=ANCHOR)
    call_python("-m", "confidence.people", output, "--data_path", data, "--data_name", PEOPLE, "--split", "photos",
                "--judgements", *judged, "--output", os.path.join(runs[1], "people.json"), "--overwrite")
    calibration = read_json(os.path.join(runs[1], "calibration.json"))                            # beside people.json
    save_json({**calibration, "checkpoints": ["photos/model"], "data_name": "Flickr8k"},          # as notes name it
              os.path.join(output, "calibration.json"))
    call_python("-m", "photos.words", output, "--fit", "--data_path", data)
    size = os.path.getsize(os.path.join(output, "model_best.pt"))
    print(f"{output}: {size / 2 ** 20:.1f} MiB, and its calibration")


def main(argv=None) -> None:
    p = Arguments("Make the model that python -m photos searches with, from Flickr8k.")
    p.add_argument("--data_path", type=filename, default="data",
                   help="folder that holds f8k_precomp, f8k_nets and f8k_people")
    p.add_argument("--runs", type=filename, default="runs", help="folder of the runs that are trained")
    p.add_argument("--output", type=filename, help="folder of the model (default: photos/model)")
    cli.run("photos.make_model", make, p.parse_args(argv))


if __name__ == "__main__":
    main()
