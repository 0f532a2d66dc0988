"""A folder of one's own photos: finding them, writing their features, and opening what was written.

`features.extract images --photos FOLDER --output_name mine` writes to data/mine: all_ims.npy, the
features; all_ids.txt, the photos' paths below FOLDER; all_photos.json, the list by which the next
call knows what has changed, with FOLDER and the recipe of the features; and features.json.
`read_images` opens them, and `network_of` builds the network again.

captions.csv makes the folder a data set to train on, with splits train, dev and test. Its header is
name,caption, and each row a photo's path below the folder and one caption of it. Excel's files are
read: UTF-8 with or without a byte order mark, commas or semicolons or tabs, quotes, and line breaks
within a caption.
"""
import csv
import io
import os
from collections import Counter, defaultdict
from typing import NamedTuple

from cli import InputError, check, reason
from data import Features, Photos, compose_name, photo_formats, read_extractors
from features.boxes import PhotoBoxes
from features.networks import RECIPE, compute, network_of, shape_of, stamp, weights_file
from features.store import AGAIN, ALL, How, PhotoFeatures, as_notes, record_extractor
from files import (
    CHANGING,
    file_digest,
    mapped,
    need,
    read_array,
    read_json,
    read_lines,
    read_text,
    remove,
    save_lines,
    sha256,
)
from vocab import NO_CAPTION

# The endings of data.PHOTO_FORMATS.
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp",
           ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpx",
           ".avif")
HEIF = (".heic", ".heif")             # where pillow-heif is installed
# folders of a NAS or of Windows: thumbnails and what was deleted
NO_PHOTOS = {"@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "recycler",
             "system volume information", "lost+found", "__macosx"}
CAPTIONS = "captions.csv"
FILES = ("cnn_weights", "boxes")       # values of a recipe that are files
LISTED = 8                            # endings of other files that are named
# split: below which share a photo's hash, 0 to 1, lies
PARTS = {"train": 0.8, "dev": 0.9, "test": 1.0}
TINY = 30                             # photos; the splits of fewer are of little use


# ---- finding

def find_photos(folder: str, skip_broken: bool = False) -> tuple[list[str], list[str]]:
    """All photos below a folder, by the endings of their names, and notes on what was left out.

    Photos are paths in the folder with /, in the order of their characters. Hidden files and
    folders and NO_PHOTOS are ignored. Left out and counted are other files; names that are no UTF-8 or could not
    stand in a line; and symbolic links, unless to a photo within the folder that is not found under
    its own name. Raises InputError for a folder that cannot be read; with `skip_broken` only for
    `folder` itself.
    """
    root, folders, photos, links = os.path.realpath(folder), [""], [], []
    others, omissions = Counter(), defaultdict(list)        # endings; {why: names left out}
    while folders:
        inside = folders.pop()
        try:
            with os.scandir(os.path.join(root, inside)) as entries:
                entries = [entry for entry in entries if not entry.name.startswith(".")
                           and entry.name.lower() not in NO_PHOTOS]
        except OSError as error:
            if not inside or not skip_broken:
                raise InputError(f"the folder {ascii(os.path.join(folder, inside))} cannot be read "
                                 f"({reason(error)}); give yourself the permission, "
                                 "or move it away") from error
            omissions["folders that cannot be read"].append(inside)
            continue
        for entry in entries:
            name = inside + entry.name
            if not storable(entry.name):
                omissions["names that are no UTF-8 or have a line break"].append(name)
            elif entry.is_symlink():
                links.append(name)
            elif entry.is_dir():
                folders.append(f"{name}/")
            elif ending_of(name) in endings() and entry.is_file():
                photos.append(name)
            elif name != CAPTIONS:
                others[ending_of(name) or "without an ending"] += 1
    names = set(photos)
    for name in sorted(links):
        within = os.path.relpath(os.path.realpath(os.path.join(root, name)), root)
        why = fault_of_link(root, name, within, names)
        if why:
            omissions[f"symbolic links {why}"].append(name)
        else:                                   # in a hidden folder, as git-annex keeps files
            names.add(within)
            photos.append(name)
    return sorted(photos), notes_on(others, omissions)


def notes_on(others: Counter, omissions: dict[str, list[str]]) -> list[str]:
    """Sentences on what a folder holds beside photos: endings of other files, {why: names}."""
    kinds = [ascii(kind)[1:-1][:20]
             for kind, _ in sorted(others.items(), key=lambda item: (-item[1], item[0]))]
    kinds[LISTED:] = ["..."] * (len(kinds) > LISTED)
    total = sum(others.values())
    notes = [f"{total:,} other file{'s' * (total > 1)}: {', '.join(kinds)}"] if total else []
    if set(HEIF) & set(others):
        notes.append("pip install pillow-heif, and photos of .heic and .heif are read, too")
    return notes + [f"{why}: {len(names):,} left out, the first: {ascii(min(names))}"
                    for why, names in omissions.items()]


def fault_of_link(root: str, name: str, within: str, names: set[str]) -> str | None:
    """Why a symbolic link below `root` is no photo, or None. within: where it leads, as seen from
    there; names: the photos under names of their own."""
    target = os.path.join(root, within)
    if within == "." or within.split(os.sep)[0] == "..":
        return "out of the folder or to itself"
    if os.path.isdir(target) or os.path.islink(target):     # the second: a circle of links
        return "to folders or to each other"
    if not os.path.isfile(target) or ending_of(name) not in endings():
        return "to no photo"
    return "to photos that count once, under their own names" if within in names else None


def endings() -> tuple[str, ...]:
    """The endings of the photos that can be read here."""
    return ENDINGS + HEIF * ("HEIF" in photo_formats())


def ending_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def storable(name: str) -> bool:
    """Whether a file name is UTF-8 and can be a line of a text file."""
    return (not any("\ud800" <= letter <= "\udfff" or letter in "\r\n" for letter in name)
            and name[0] != "\ufeff")


def check_folder(folder: str, output_folder: str) -> str:
    """The absolute path of a folder of photos. Raises InputError where it holds the output."""
    check(os.path.isdir(folder),
          f"--photos {folder} is no folder; give the folder that holds your photos")
    path = os.path.abspath(folder)
    check(storable(path),
          f"--photos {ascii(path)}: the path is no UTF-8 text in one line; rename the folder")
    root, own = os.path.realpath(folder), os.path.realpath(output_folder)
    check(os.path.commonpath([root, own]) != root,
          f"the output {output_folder} lies in --photos {folder}, among the photos; give a "
          "--data_path or --output_name outside of it")
    return path


# ---- extracting

def extract(photos: str, folder: str, recipe: dict, how: How, table: str | None,
            per_image: int | None) -> None:
    """Write the features of the photos below a folder of photos to `folder`.

    table: the file of captions (None: captions.csv among the photos, if it is there); per_image:
    how many of each photo, None for all. Raises InputError for a folder without photos, an output
    that holds anything else, and faults of photos, boxes or captions. What is in the output stays
    as it was then.
    """
    path = check_folder(photos, folder)
    names, notes = find_photos(photos, how.skip_broken)
    check(names,
          f"--photos {photos} holds no photo ({'; '.join(notes) or 'it is empty'}); photos are "
          "files whose names end with .jpg, .png, .webp or another ending of photos")
    for note in notes:
        print(f"note: {note}")
    beside = os.path.join(path, CAPTIONS)
    table = table or (beside if os.path.isfile(beside) else None)
    check(not per_image or table,
          f"--captions_per_image {per_image} needs captions, and there is no {beside}; give "
          "--captions FILE.csv")
    captions = Captions(table, names, per_image) if table else None
    boxes = recipe["boxes"] and PhotoBoxes(recipe["boxes"], names)
    before = check_output(folder, path)
    about = {"folder": path,
             "recipe": {name: os.path.abspath(value) if value and name in FILES else value
                        for name, value in recipe.items()},
             "weights_file": before.get("weights_file"),
             "captions": captions.facts if captions else before.get("captions")}
    parts, form = None, recorded(folder, before, about["recipe"])
    if form is None:
        parts = network_of(recipe, how.device)
        form = parts[2], *shape_of(parts[0], boxes)
        about["weights_file"] = weights_file(parts[0], recipe)
    record_extractor(folder, "ims", form[0])
    images = Photos([os.path.join(path, name) for name in names])
    work = PhotoFeatures(folder, ALL, images.paths, names, *form, boxes and boxes.digests, how.skip_broken, about)
    done = work.complete()
    if not done and not captions and about["captions"]:     # a call with captions makes splits again
        about["captions"] = {**about["captions"], "digest": None}
    missing = work.notes.count(None)
    if missing:
        net, transform, _ = parts or network_of({**recipe, "extractor": form[0]}, how.device)
        compute(work, images, net, transform, boxes, how)
    replace(work, captions, before.get("captions"), done)
    print(f"{work.path}: {(len(work.sound()), *work.shape)} of {work.made}, "
          f"{f'{missing:,} new or changed' if missing else 'nothing was computed'}")
    work.warn()
    if not captions and about["captions"]:
        print("note: there are no captions any more; train, dev and test stay as they were made "
              f"from {about['captions']['file']}")


def replace(work: PhotoFeatures, captions: "Captions | None", before: dict | None,
            done: bool) -> None:
    """Put features, names and list in place, and the splits of the captions, in one step: readers
    refuse all splits meanwhile, and the next call after a stop puts them in place again.

    before: what the list said of captions. done: whether the features are in place already.
    """
    folder, names = os.path.dirname(work.path), [work.names[k] for k in work.sound()]
    marks = [os.path.join(folder, CHANGING.format(part)) for part in PARTS]
    parts, lines = {}, []
    if captions and (not done or captions.facts != before or any(map(os.path.exists, marks))):
        parts, lines = captions.parts(names)                # raises before anything is replaced
        for mark in marks:
            open(mark, "w").close()
    if done:
        work.save_list()
    else:
        work.commit(lambda _: save_lines(os.path.join(folder, f"{ALL}_ids.txt"), names))
    for part, entries in parts.items():
        start = os.path.join(folder, part)
        save_lines(f"{start}_caps.txt", [text for _, _, texts in entries for text in texts])
        save_lines(f"{start}_ids.txt", [name for _, name, _ in entries])
        features = read_array(work.path, "extract again")
        with mapped(f"{start}_ims.npy", (len(entries), *work.shape), work.dtype) as rows:
            for k, (row, _, _) in enumerate(entries):
                rows[k] = features[row]
    remove(*(marks if parts else ()))
    for line in lines:
        print(line)


def check_output(folder: str, photos: str) -> dict:
    """The list of photos of an earlier call.

    Raises InputError if the output holds splits that --photos did not write, or another folder's
    photos. A folder that is at its old place no more has been moved.
    """
    before = stored_list(folder)
    other = before.get("folder")
    moved = not isinstance(other, str) or not os.path.isdir(other)
    check(moved or os.path.samefile(other, photos),
          f"{folder} holds the photos of {other}, and these are of {photos}; give them an "
          "--output_name of their own")
    inside = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
    files = [name for name in inside if name.endswith(("_ims.npy", "_caps.txt", "_ids.txt"))]
    check(not files or {f"{ALL}_photos.json", CHANGING.format(ALL)} & set(inside),
          f"{os.path.join(folder, *files[:1])} is there already and is none that --photos wrote; "
          "give --output_name a folder of its own")
    return before


def stored_list(folder: str) -> dict:
    """The list of photos of an earlier call, or {}."""
    path = os.path.join(folder, f"{ALL}_photos.json")
    listing = read_json(path, AGAIN) if os.path.isfile(path) else {}
    if not isinstance(listing, dict):
        return {}
    if isinstance(listing.get("recipe"), dict):
        listing["recipe"] = {name: listing["recipe"].get(name) for name in RECIPE}     # older lists have others
    return listing


def recorded(folder: str, listing: dict, recipe: dict) -> tuple | None:
    """(line, shape, dtype) of stored features that this recipe made, where no file of weights has
    changed since, so that a call without work need not load the network. None: it has to be asked.
    """
    path, weights = os.path.join(folder, f"{ALL}_ims.npy"), listing.get("weights_file")
    line = listing.get("extractor")
    if (listing.get("recipe") != recipe or not os.path.isfile(path) or line is None
            or line != read_extractors(folder).get("ims")
            or weights != stamp(str((weights or [""])[0]))):
        return None
    array = read_array(path, AGAIN)
    return line, array.shape[1:], array.dtype


# ---- captions

def part_of_photo(name: str) -> str:
    """The split of a photo, from a hash of its name alone, so that other photos never change it."""
    share = int(sha256(name)[:16], 16) / 2 ** 64
    return next(part for part, below in PARTS.items() if share < below)


def read_table(path: str) -> list[list[str]]:
    """The rows [name, caption] of a table with the header name,caption. Raises InputError."""
    text = read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count),
                        strict=True)
    rows = []
    begins = f"{path} begins with {ascii(first.strip())[:60]}; its first line has to be name,caption"
    try:
        for fields in reader:
            while len(fields) > 2 and not fields[-1].strip():
                fields.pop()                                # empty columns of a spreadsheet
            if not any(field.strip() for field in fields):
                continue
            rows.append([field.strip() for field in fields])
            check(len(rows) <= 1 or len(fields) == 2,
                  f"{path}, line {reader.line_num}: it has {len(fields)} fields and the header "
                  "has 2, name and caption; put a caption with commas into quotes")
            check([field.lower() for field in rows[0]] == ["name", "caption"], begins)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {reason(error)}; save it as CSV with "
                         "quotes around captions that have commas, quotes or line breaks"
                         ) from error
    check(rows, begins)
    return rows[1:]


class Captions:
    """The captions of a table for the photos `names`. `facts`: what all_photos.json records of it.

    Photos that have fewer captions than others are made equal: the least number counts, or
    `per_image`. Raises InputError if the table cannot be read or has no caption of these photos.
    """

    def __init__(self, path: str, names: list[str], per_image: int | None):
        self.path, self.per_image, self.missing = path, per_image, 0
        self.of_photo, photos, self.unknown = defaultdict(list), {compose_name(name): name for name in names}, []
        for name, caption in read_table(path):
            name = photos.get(compose_name(name), photos.get(compose_name(name.replace("\\", "/")), name))
            if compose_name(name) not in photos:
                self.unknown.append(name)
            elif caption.lower() in NO_CAPTION:
                self.missing += 1
            else:
                self.of_photo[name].append(caption)
        first = (f"; its first name is {ascii(self.unknown[0])}, a photo's is {ascii(names[0])}"
                 if self.unknown else "")
        check(self.of_photo,
              f"{path} has no caption of the {len(names):,} photos{first}; names are paths below "
              "the folder of the photos, with /")
        self.facts = {"file": os.path.abspath(path), "digest": file_digest(path),
                      "per_image": per_image}

    def parts(self, names: list[str]) -> tuple[dict[str, list[tuple]], list[str]]:
        """{split: [(row, name, captions)]} of the photos `names` (N,), which are the rows of the
        features, and lines on what became of the table. Raises InputError for an empty split."""
        counts = [len(self.of_photo.get(name, ())) for name in names]                   # (N,)
        least = self.per_image or min(filter(None, counts), default=1)
        parts, without, short = {part: [] for part in PARTS}, [], []
        for row, (name, count) in enumerate(zip(names, counts)):
            if count >= least:
                parts[part_of_photo(name)].append((row, name, self.of_photo[name][:least]))
            else:
                (short if count else without).append(name)
        enough = sum(map(len, parts.values()))
        empty = [part for part in PARTS if not parts[part]]
        check(not empty,
              f"{self.path}: of {enough:,} photos with captions none is of {' and '.join(empty)} "
              "(the names decide: 80% train, 10% dev, 10% test); add photos with captions, or ask "
              "for fewer of each with a smaller --captions_per_image")
        sizes = ", ".join(f"{part} {len(entries):,}" for part, entries in parts.items())
        lines = [f"{self.path}: {sizes} photos with {least} caption{'s' * (least > 1)} each"]
        for what, which in (("photos without a caption, in no split", without),
                            (f"photos with fewer than {least} captions, in no split", short),
                            ("captions of photos that are not there", self.unknown)):
            if which:
                lines.append(f"note: {what}: {len(which):,}, the first: {ascii(which[0])}")
        surplus = sum(max(0, count - least) for count in counts)
        if self.missing:
            lines.append(f"note: {self.missing:,} captions that are empty, nan, null or None count as missing")
        if surplus:
            lines.append(f"note: {surplus:,} captions left out, as every photo needs the same "
                         f"number, {least}; --captions_per_image N asks for N and leaves out photos"
                         " with fewer")
        if enough < TINY:
            lines.append(f"note: with {enough} photos the splits are tiny; "
                         "results on them say little")
        return parts, lines


# ---- reading

class Images(NamedTuple):
    """What `extract` wrote of N photos."""
    features: Features                # (N, F) or (N, P, F)
    names: list[str]                  # N paths below `folder`, with /
    folder: str                       # the absolute path of the photos
    extractor: str                    # the line of features.json
    recipe: dict                      # what `network_of` builds the network from, and checks it by


def read_images(data_path: str, data_name: str) -> Images:
    """Open the features of a folder of photos.

    Raises InputError if they are not there, if a stop left them half replaced, or if the files do
    not belong together.
    """
    root = os.path.join(data_path, data_name)
    again = f"python -m features.extract images --photos FOLDER --output_name {data_name}"
    path, ims, ids = (os.path.join(root, f"{ALL}_{end}")
                      for end in ("photos.json", "ims.npy", "ids.txt"))
    check(not os.path.exists(os.path.join(root, CHANGING.format(ALL))),
          f"{root}: the features and names of photos do not belong together, as `features.extract "
          "images` was stopped while it put them in their places; call it again")
    for file in (path, ims, ids):
        need(file, f"`{again}` writes it")
    listing = stored_list(root)
    notes = as_notes(listing.get("photos"))
    recipe, folder, line = (listing.get(key) for key in ("recipe", "folder", "extractor"))
    check(
        notes is not None and isinstance(recipe, dict)
        and set(recipe) == set(RECIPE) and isinstance(folder, str) and isinstance(line, str)
        and all(x is None or isinstance(x, (str, int)) for x in recipe.values()),
        f"{path} is no list of a folder of photos; `{again}` writes it",
    )
    features, names, lines = Features(ims), [note.name for note in notes], read_lines(ids)
    check(len(features) == len(names) and lines == names,
          f"{ims} has {len(features):,} rows, {path} lists {len(names):,} photos and {ids} has "
          f"{len(lines):,} lines, which do not belong together; delete {path} and call `{again}`")
    check(read_extractors(root).get("ims") == line,
          f"{os.path.join(root, 'features.json')} names another extractor than {path}; call "
          f"`{again}` again")
    return Images(features, names, folder, line, {**recipe, "extractor": line})
