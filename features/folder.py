"""A folder of one's own photos: finding them, writing their features, and opening what was written.

`features.extract images --photos FOLDER --output_name mine` writes to data/mine: all_ims.npy, the features;
all_ids.txt, the photos' paths below FOLDER; all_photos.json, the list by which the next call knows what has changed,
with FOLDER and the recipe of the features; and features.json. `read_images` opens them, and `network_of` builds the
network again.
"""
import os
from collections import Counter
from typing import NamedTuple

from cli import InputError, reason
from features.boxes import PhotoBoxes
from features.networks import RECIPE, network_of, shape_of, stamp, weights_file
from features.pairs import PARTS, Captions, write_pairs
from features.photos import ALL, Extraction, record_extractor
from files.reading import read_array, read_json, read_lines
from files.writing import CHANGING, locked, output, save_lines
from inputs import Features, Photos, extractors
from parallel import processes

# the endings of inputs.PHOTO_FORMATS
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff",
           ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpx", ".avif")
CAPTIONS = "captions.csv"
FILES = ("cnn_weights", "weights", "boxes")       # values of a recipe that are files
LISTED = 8                            # endings of other files that are named


# ---- finding

class Found(NamedTuple):
    """The photos below a folder: their paths in it with /, in the order of their characters, and what was left out."""
    names: list[str]
    notes: list[str]


class Walk:
    """What lies below a folder, sorted out. Nothing but the folders themselves is read."""

    def __init__(self, folder: str):
        self.folder, self.root = folder, os.path.realpath(folder)
        self.photos, self.links, self.folders = [], [], [""]          # paths below the folder, of folders with / behind
        self.others, self.left = Counter(), {}                        # kinds of other files; {why: names left out}

    def leave_out(self, why: str, name: str) -> None:
        self.left.setdefault(why, []).append(name)

    def run(self, skip_broken: bool) -> None:
        """Visit all folders. Raises InputError for one that cannot be read; with `skip_broken` only for the first."""
        while self.folders:
            inside = self.folders.pop()
            try:
                with os.scandir(os.path.join(self.root, inside)) as entries:
                    for entry in entries:
                        self.sort_out(f"{inside}{entry.name}", entry)
            except OSError as error:
                if not inside or not skip_broken:
                    raise InputError(f"the folder {ascii(os.path.join(self.folder, inside))} cannot be read "
                                     f"({reason(error)}); give yourself the permission, or move it away") from error
                self.leave_out("folders that cannot be read", inside)
        known = set(self.photos)
        for name in sorted(self.links):
            self.follow(name, known)

    def sort_out(self, name: str, entry: os.DirEntry) -> None:
        """Put an entry of a folder where it belongs. Hidden ones are ignored."""
        if entry.name.startswith("."):
            return
        if not storable(entry.name):
            self.leave_out("names that are no UTF-8 or have a line break", name)
        elif entry.is_symlink():
            self.links.append(name)
        elif entry.is_dir(follow_symlinks=False):
            self.folders.append(f"{name}/")
        elif ending_of(name) in ENDINGS and entry.is_file(follow_symlinks=False):
            self.photos.append(name)
        elif name != CAPTIONS:
            self.others[ending_of(name) or "without an ending"] += 1

    def follow(self, name: str, known: set[str]) -> None:
        """Take a link as a photo, if it leads to a file within the folder that is not `known`, or leave it out."""
        target = os.path.realpath(os.path.join(self.root, name))
        within = os.path.relpath(target, self.root)
        if within == "." or within.split(os.sep)[0] == "..":
            self.leave_out("symbolic links out of the folder or to itself", name)
        elif os.path.isdir(target) or os.path.islink(target):         # the second is a circle of links
            self.leave_out("symbolic links to folders or to each other", name)
        elif not os.path.isfile(target) or ending_of(name) not in ENDINGS:
            self.leave_out("symbolic links to no photo", name)
        elif within in known:
            self.leave_out("symbolic links to photos that count once, under their own names", name)
        else:                                               # in a hidden folder, as git-annex keeps files
            known.add(within)
            self.photos.append(name)


def find_photos(folder: str, skip_broken: bool = False) -> Found:
    """All photos below a folder, by the endings of their names.

    Hidden files and folders are ignored. Left out and counted are other files; names that are no UTF-8 or could not
    stand in a line; and symbolic links, unless to a photo within the folder that is not found under its own name.
    Raises InputError for a folder that cannot be read; with `skip_broken` only for `folder` itself.
    """
    walk = Walk(folder)
    walk.run(skip_broken)
    total = sum(walk.others.values())
    notes = [f"{total:,} other file{'s' * (total > 1)}: {', '.join(kinds_of(walk.others))}"] if total else []
    notes += [f"{why}: {len(names):,} left out, the first: {ascii(min(names))}" for why, names in walk.left.items()]
    return Found(sorted(walk.photos), notes)


def ending_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def storable(name: str) -> bool:
    """Whether a file name is UTF-8 and can be a line of a text file."""
    return not any("\ud800" <= letter <= "\udfff" or letter in "\r\n" for letter in name) and name[0] != "\ufeff"


def kinds_of(others: Counter) -> list[str]:
    """The endings of other files, the most frequent first, each at most once."""
    most = [ascii(kind)[1:-1][:20] for kind, _ in sorted(others.items(), key=lambda item: (-item[1], item[0]))]
    return most[:LISTED] + ["..."] * (len(most) > LISTED)


def check_folder(folder: str, output_folder: str) -> str:
    """The absolute path of a folder of photos. Raises InputError where it is none or holds the output."""
    if not os.path.isdir(folder):
        what = "is a file" if os.path.exists(folder) else "is not there"
        raise InputError(f"--photos {folder} {what}; give the folder that holds your photos")
    path = os.path.abspath(folder)
    if not storable(path):
        raise InputError(f"--photos {ascii(path)}: the path is no UTF-8 text in one line; rename the folder")
    root, own = os.path.realpath(folder), os.path.realpath(output_folder)
    if os.path.commonpath([root, own]) == root:
        raise InputError(f"the output {output_folder} lies in --photos {folder}, among the photos; give a --data_path "
                         "or --output_name outside of it")
    return path


# ---- extracting

def extract(opt, recipe: dict, device) -> None:
    """The command `images --photos`: the photos below opt.photos to opt.data_path/opt.output_name.

    Raises InputError for a folder without photos, an output that holds anything else, and faults of photos, boxes or
    captions. What is in the output stays as it was then.
    """
    folder = os.path.join(opt.data_path, opt.output_name)
    path = check_folder(opt.photos, folder)
    names, notes = processes.from_first(find_photos, opt.photos, opt.skip_broken)
    for note in notes if names else ():
        print(f"note: {note}")
    if not names:
        raise InputError(f"--photos {opt.photos} holds no photo ({'; '.join(notes) or 'it is empty'}); photos are "
                         "files whose names end with .jpg, .png, .webp or another ending of photos")
    captions = captions_of(opt, path, names)
    boxes = PhotoBoxes(opt.boxes, names) if opt.boxes else None
    before = processes.from_first(check_output, folder, path)
    about = {"folder": path, "recipe": {name: os.path.abspath(value) if value and name in FILES else value
                                        for name, value in recipe.items()},
             "weights_file": before.get("weights_file"),
             "captions": captions.told if captions else before.get("captions")}
    made, known = None, processes.from_first(recorded, folder, before, about["recipe"])
    if known is None:
        made = network_of(recipe, device)
        known = made[2], *shape_of(made[0], boxes)
        about["weights_file"] = weights_file(made[0], recipe)
    output(os.path.join(folder, "features.json"), lambda file: extractors(folder) is not None)
    with locked(folder, "extracting into"):
        processes.from_first(record_extractor, folder, "ims", known[0])
        images = Photos([os.path.join(path, name) for name in names])
        work = Extraction(folder, ALL, images, names, *known, boxes, about)
        done = work.complete()
        if not done:
            work.prepare()
            if not captions and about["captions"]:          # a call with captions makes the splits again
                about["captions"] = {**about["captions"], "digest": None}
        missing = sum(row is None for row in work.rows)
        work.check_broken(opt.skip_broken)
        if missing:
            net, transform, _ = made or network_of({**recipe, "extractor": known[0]}, device)
            work.run(net, transform, opt, device)
        processes.from_first(replace, work, captions, before.get("captions"), done)
    print(f"{work.path}: {(len(work.kept()), *work.shape[1:])} of {work.line}, "
          f"{f'{missing:,} new or changed' if missing else 'nothing was computed'}")
    work.warn()
    if not captions and about["captions"]:
        print("note: there are no captions any more; train, dev and test stay as they were made from "
              f"{about['captions']['file']}")


def captions_of(opt, path: str, names: list[str]) -> Captions | None:
    """The captions of the photos, of --captions or captions.csv beside them. None: there are none."""
    beside = os.path.join(path, CAPTIONS)
    table = opt.captions or (beside if os.path.isfile(beside) else None)
    if opt.captions_per_image and not table:
        raise InputError(f"--captions_per_image {opt.captions_per_image} needs captions, and there is no {beside}; "
                         "give --captions FILE.csv")
    return Captions(table, names, opt.captions_per_image) if table else None


def replace(work: Extraction, captions: Captions | None, before: dict | None, done: bool) -> None:
    """Put features, names and list in place, and the splits of the captions, in one step: readers refuse all splits
    meanwhile, and the next call after a stop puts them in place again.

    before: what the list said of captions. done: whether the features are in place already.
    """
    folder, names = work.folder, [work.names[k] for k in work.kept()]
    marks = [os.path.join(folder, CHANGING.format(part)) for part in PARTS]
    again = captions and (not done or captions.told != before or any(map(os.path.exists, marks)))
    parts = captions.parts(names) if again else None        # raises before anything is replaced
    for mark in marks if parts else ():
        with open(mark, "w", encoding="ascii"):
            pass
    if not done:
        work.commit(lambda kept: save_lines(os.path.join(folder, f"{ALL}_ids.txt"), names))
    if parts:
        write_pairs(folder, parts, work.path)
    work.update_list()
    for mark in marks if parts else ():
        os.remove(mark)
    for line in captions.report() if parts else ():
        print(line)


def check_output(folder: str, photos: str) -> dict:
    """The list of photos of an earlier call. Raise InputError if the output holds splits that --photos did not write,
    or another folder's photos. A folder that is at its old place no more has been moved."""
    before = stored_list(folder)
    other = before.get("folder")
    if isinstance(other, str) and os.path.isdir(other) and not os.path.samefile(other, photos):
        raise InputError(f"{folder} holds the photos of {other}, and these are of {photos}; give them an --output_name "
                         "of their own")
    listed = os.path.isfile(os.path.join(folder, f"{ALL}_photos.json"))
    begun = os.path.exists(os.path.join(folder, f".{ALL}_photos.part"))
    files = sorted(name for name in (os.listdir(folder) if os.path.isdir(folder) else ())
                   if name.endswith(("_ims.npy", "_caps.txt", "_ids.txt")))
    if files and not listed and not begun:
        raise InputError(f"{os.path.join(folder, files[0])} is there already and is none that --photos wrote; give "
                         "--output_name a folder of its own")
    return before


def stored_list(folder: str) -> dict:
    """The list of photos of an earlier call, or {}."""
    path = os.path.join(folder, f"{ALL}_photos.json")
    stored = read_json(path, "delete it and extract again") if os.path.isfile(path) else {}
    return stored if isinstance(stored, dict) else {}


def recorded(folder: str, stored: dict, recipe: dict) -> tuple | None:
    """(line, shape, dtype) of stored features that this recipe made, where no file of weights has changed since, so
    that a call without work need not load the network. None: the network has to be asked."""
    path, weights = os.path.join(folder, f"{ALL}_ims.npy"), stored.get("weights_file")
    known = stored.get("recipe") == recipe and os.path.isfile(path) and stored.get("extractor") is not None and \
        stored["extractor"] == extractors(folder).get("ims")
    if not known or weights != (None if recipe["kind"] == "demo" else stamp(str((weights or [""])[0]))):
        return None
    array = read_array(path, "delete it and extract again")
    return stored["extractor"], array.shape[1:], array.dtype


# ---- reading

class Images(NamedTuple):
    """What `extract` wrote of N photos."""
    features: Features                # (N, F) or (N, P, F)
    names: list[str]                  # N paths below `folder`, with /
    folder: str                       # the absolute path of the photos
    extractor: str                    # the line of features.json
    recipe: dict                      # what `network_of` builds the network from; it also checks the extractor


def read_images(data_path: str, data_name: str) -> Images:
    """Open the features of a folder of photos. Raises InputError if they are not there, if a stop left them half
    replaced, or if the files do not belong together."""
    root = os.path.join(data_path, data_name)
    again = f"python -m features.extract images --photos FOLDER --output_name {data_name}"
    path, ims, ids = (os.path.join(root, f"{ALL}_{end}") for end in ("photos.json", "ims.npy", "ids.txt"))
    if os.path.exists(os.path.join(root, CHANGING.format(ALL))):
        raise InputError(f"{root}: the features and names of photos do not belong together, as `features.extract "
                         "images` was stopped while it put them in their places; call it again")
    for each in (path, ims, ids):
        if not os.path.isfile(each):
            raise InputError(f"there is no file {each}; `{again}` writes it")
    stored = stored_list(root)
    rows, recipe, folder, line = (stored.get(key) for key in ("photos", "recipe", "folder", "extractor"))
    if not (isinstance(rows, list) and all(isinstance(row, list) and row and isinstance(row[0], str) for row in rows)
            and isinstance(recipe, dict) and set(recipe) == set(RECIPE) and isinstance(folder, str)
            and isinstance(line, str) and all(x is None or isinstance(x, (str, int)) for x in recipe.values())):
        raise InputError(f"{path} is no list of a folder of photos; `{again}` writes it")
    features, names, lines = Features(ims), [row[0] for row in rows], read_lines(ids)
    if len(features) != len(names) or lines != names:
        raise InputError(f"{ims} has {len(features):,} rows, {path} lists {len(names):,} photos and {ids} has "
                         f"{len(lines):,} lines, which do not belong together; delete {path} and call `{again}`")
    if extractors(root).get("ims") != line:
        raise InputError(f"{os.path.join(root, 'features.json')} names another extractor than {path}; call `{again}` "
                         "again")
    return Images(features, names, folder, line, {**recipe, "extractor": line})
