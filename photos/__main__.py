"""Search one's own photos by a text or a photo, with how certain each answer is.

    python -m photos ~/Pictures                # reads what is new, indexes it, opens the page
    python -m photos query indexes/Pictures "a dog on a beach" --top 5

photos/README.md lists the other commands. An index is one file, indexes/Pictures.npz
(photos/index.py).
"""

if __name__ == "__main__":
    import utils

    utils.start()

import json
import os
import re
import shlex
import sys

import utils
from confidence.calibration import percent
from images import read_photo
from photos.encoder import SHIPPED, PhotoEncoder
from photos.index import Index, index_file, lock_index
from photos.searcher import Searcher, SearchResult
from utils import (
    Arguments,
    InputError,
    call_python,
    data_set,
    filename,
    need,
    read_json,
    read_lines,
    read_text,
    sha256,
    split_name,
    up_to,
)

MAX_TOP = 1000  # answers to a query
MAX_INDEX_NAME = 100  # characters of the names of a folder and a run

# A training on own captions starts from photos/model, which has this shape. First its means learn
# the captions, then its variances, which tell how many photos fit, learn these and short texts.
SHAPE_OPTIONS = (
    "--text_features sentences --txt_layers 2048 --embed_size 512 --text_anchor 0.7 "
    "--head spherical_one --var_layers 256"
).split()
MEANS_OPTIONS = (
    "--loss infonce --mask_same_image --dropout 0.3 --feature_noise 0.7 --weight_decay 0.05 "
    "--schedule cosine --warmup 1 --learning_rate 3e-4 --num_epochs 30"
).split()
VARIANCES_OPTIONS = "--loss volume --freeze_means --num_epochs 10".split()


def say(*lines: str) -> None:
    """Print lines, with the characters of file names escaped that control a terminal."""
    for line in lines:
        characters = []
        for character in line:
            if not character.isprintable():
                character = character.encode("unicode_escape").decode()
            characters.append(character)
        print("".join(characters), flush=True)


# ---- the commands


def search_folder(opt) -> None:
    """Search a folder of photos: read what is new, index it and open the page."""
    from photos.build import index_folder  # a query needs none of it

    if not opt.index_only:
        refuse_taken_port(opt)
    if opt.train and not is_trained(opt.train):
        train_on(opt.folder, opt.data_path, opt.train)

    run = opt.train or opt.checkpoint
    opt.index = opt.output or name_index(opt.folder, run)
    encoder = PhotoEncoder(run, device=opt.device)
    lines = index_folder(
        opt.index, opt.folder, encoder, opt.workers, opt.exclude, list_all=opt.verbose, tell=say
    )
    say(*lines)
    if opt.index_only:
        index = shlex.quote(opt.index)
        say(f'search them with: python -m photos query {index} "a dog on a beach"')
    else:
        serve_page(opt)


def join_names(*paths: str | None) -> str:
    """Join the names of a folder and a run to one name of a file."""
    names = [os.path.basename(os.path.realpath(path)) for path in paths if path]
    name = re.sub(r"\W+", "_", "_".join(names)).strip("_")
    return name[:MAX_INDEX_NAME] or "photos"


def name_index(folder: str, run: str | None) -> str:
    """Name the index of a folder after it.

    If the index of another folder has this name, the name also has a code of the path.
    """
    folder = os.path.abspath(folder)
    name = os.path.join("indexes", join_names(folder, run))
    own_name = f"{name}_{sha256(os.path.realpath(folder))[:6]}"
    if os.path.exists(index_file(own_name)):
        return own_name
    if not os.path.exists(index_file(name)):
        return name
    indexed = Index.open(name).manifest["folder"]
    if indexed and os.path.realpath(indexed) == os.path.realpath(folder):
        return name
    return own_name


def is_trained(run: str) -> bool:
    """True if the last step of `train_on` is done: the calibration has the numbers of photos."""
    calibration = os.path.join(run, "calibration.json")
    return os.path.isfile(calibration) and "words" in read_json(calibration)


def train_on(folder: str, data_path: str, run: str) -> None:
    """Train a run on the photos that captions.csv describes, and calibrate it.

    Continues after an interruption.
    """
    table = os.path.join(folder, "captions.csv")
    need(table, "list photos and captions in it, with the header name,caption")
    data = ("--data_path", data_path)
    name = join_names(folder, run)
    name_with_words = f"{name}_words"
    points = f"{os.path.normpath(run)}_points"

    photos = ("--folder", folder, "--skip_broken", "--output_name", name)
    network = ("--cnn_type", "efficientnet_lite012", "--whole")
    call_python("-m", "features.images", *data, *photos, *network)
    call_python("-m", "photos.words", *data, "--data_name", name, "--write", name_with_words)

    if not has_checkpoint(run):
        train_step(data, name, points, MEANS_OPTIONS, SHIPPED)
    train_step(data, name_with_words, run, VARIANCES_OPTIONS, points)
    call_python("-m", "confidence", run, *data)
    call_python("-m", "photos.words", run, "--fit", *data)


def train_step(data: tuple, name: str, run: str, options: list[str], start: str) -> None:
    """Train the run on the data set `name` from the run `start`, or resume it."""
    data = (*data, "--data_name", name)
    call_python("-m", "features.captions", *data, "--kind", "sentences")
    if has_checkpoint(run):
        call_python("train.py", "--resume", run)
        return
    runs = ("--init_from", start, "--logger_name", run)
    call_python("train.py", *data, *SHAPE_OPTIONS, *options, *runs)


def has_checkpoint(run: str) -> bool:
    return os.path.isfile(os.path.join(run, "checkpoint.pt"))


def index_data(opt) -> None:
    """Index the image features of a data set, using a run."""
    from photos.build import index_features

    encoder = PhotoEncoder(opt.checkpoint, device=opt.device, data_path=opt.data_path)
    path = opt.output or os.path.join("indexes", join_names(opt.images))
    with lock_index(path):
        index = index_features(
            path, encoder, opt.images, opt.split, opt.photos, opt.uri, opt.token, opt.overwrite
        )
    say(*describe(index))


def add(opt) -> None:
    """Update an index to match its folder; NAMEs that were removed come back."""
    from photos.build import index_folder

    manifest = Index.open(opt.index).manifest
    folder = manifest["folder"] or ""
    encoder = PhotoEncoder(opt.checkpoint or manifest["run"], device=opt.device)
    lines = index_folder(
        opt.index, folder, encoder, opt.workers, back=opt.names, list_all=opt.verbose, tell=say
    )
    say(*lines)


def take_out(opt) -> None:
    """Remove photos from an index, and keep them out."""
    from photos.build import remove_photos

    if not opt.names:
        raise InputError(
            f"nothing is removed from {opt.index}; name photos, or give patterns with * and ?"
        )
    say(*remove_photos(opt.index, opt.names, opt.token))


def info(opt) -> None:
    """Say what an index holds."""
    index = Index.open(opt.index, opt.token)
    if opt.names:
        say(*index.names)
    else:
        say(*describe(index))


def describe(index: Index) -> list[str]:
    """Sentences on an index."""
    manifest = index.manifest
    size = os.path.getsize(index.path) / 2**20
    run = manifest["run"] or "photos/model"
    folder = manifest["folder"] or "no folder"
    lines = [
        f"{index.path}: {len(index):,} photos of {manifest['data']} in {folder}, {size:,.1f} MiB",
        f"  by {manifest['similarity']} and the run {run}, {manifest['weights']}",
    ]
    if manifest["milvus"]:
        uri, collection = manifest["milvus"]
        lines.append(f"  vectors in the collection {collection} at {uri}")
    if manifest["exclude"]:
        lines.append(f"  without {', '.join(manifest['exclude'])} (--exclude)")
    removed = manifest["removed"]
    if removed:
        lines.append(
            f"  {len(removed):,} were removed, the first is {min(removed)}; python -m photos add "
            f"{shlex.quote(index.path)} NAME adds them again"
        )
    return lines


def query(opt) -> None:
    """Find photos for texts or photos."""
    texts = [*opt.text]
    if opt.captions:
        texts += [line for line in read_lines(opt.captions) if line.strip()]
    if not texts and not opt.photo:
        raise InputError("nothing to search for; give a text, --photo FILE or --captions FILE")

    searcher = Searcher(opt.index, checkpoint=opt.checkpoint, device=opt.device, token=opt.token)
    results = searcher.find_texts(texts, opt.top, without=opt.without)
    for path in opt.photo:
        photo = read_photo(path, may_be_cut=True)
        results.append(searcher.find_photo(photo, opt.top, name=path, without=opt.without))

    if opt.json:
        json.dump([searcher.as_json(result) for result in results], sys.stdout, indent=1)
        print()
        return
    for result in results:
        say(*in_lines(result, opt.verbose))
    if opt.verbose or not searcher.calibrated:
        say(*(f"note: {note}" for note in searcher.notes))


def in_lines(result: SearchResult, verbose: bool) -> list[str]:
    """Answers to a query as lines.

    verbose: with scores, probabilities, and log det Sigma in nats.
    """
    facts = []
    if result.said:
        facts.append(result.said)
    if verbose and result.uncertainty is not None:
        facts.append(f"log det Sigma {result.uncertainty:.1f}")
    title = f"{result.query:.200}"
    if facts:
        title += f": {'; '.join(facts)}"

    lines = [title]
    for rank, hit in enumerate(result.answers, 1):
        line = f"{rank:>4}"
        if verbose:
            line += f"{hit.score:>11.4f}"
        if verbose and hit.p is not None:
            line += f"{percent(hit.p):>9}"
        line += f"  {hit.name}"
        if hit.gone:
            line += " (gone)"
        lines.append(line)
    return lines + [f"  note: {note}" for note in result.notes]


def refuse_taken_port(opt) -> None:
    """Raise InputError if the page could not be served, before photos and model are read."""
    from photos.page import bind

    bind(opt.port, opt.host).close()


def serve_page(opt) -> None:
    """Open a page to search with; without --host only this computer can reach it."""
    from photos.page import serve  # only the page needs Flask

    refuse_taken_port(opt)
    searcher = Searcher(opt.index, checkpoint=opt.checkpoint, device=opt.device, token=opt.token)
    if not searcher.folder:
        raise InputError(
            f"{opt.index} knows no folder of its photos, so there is nothing to show; make it "
            "again with --photos FOLDER"
        )
    serve(searcher, opt.port, opt.host)


# ---- the command line


def read_token(path: str) -> str:
    """The type of --token_file: what the file holds."""
    return read_text(filename(path)).strip()


ARGUMENTS_OF_OPTIONS = {
    "index": dict(type=filename, metavar="INDEX", help="file of the index, with or without .npz"),
    "--checkpoint": dict(
        type=filename,
        metavar="RUN",
        help="run folder (default: that of the index, or photos/model)",
    ),
    "--token_file": dict(
        dest="token",
        type=read_token,
        metavar="FILE",
        help="file with USER:PASSWORD or an API key of Milvus",
    ),
    "--data_path": dict(type=filename, default="data", help="folder that holds the data sets"),
    "--verbose": dict(
        action="store_true",
        help="answers: also scores, probabilities and uncertainties; a folder: all files that are "
        "left out, and why photos cannot be read",
    ),
    "--overwrite": dict(action="store_true", help="replace an existing file"),
    "--port": dict(
        type=up_to(65535, least=0), default=8000, help="port of the page; 0: any free one"
    ),
    "--host": dict(
        default="127.0.0.1",
        metavar="NAME",
        help="address that the page listens on, so that other computers can open it (0.0.0.0: "
        "all), or the name of a proxy that serves it",
    ),
    "--output": dict(
        type=filename,
        metavar="INDEX",
        help="file of the index (default: indexes/NAME.npz, where NAME is the folder's "
        "name, followed by that of --checkpoint or --train)",
    ),
    # of a folder
    "folder": dict(type=filename, metavar="FOLDER", help="folder of your photos"),
    "--index_only": dict(action="store_true", help="do not open the page"),
    "--exclude": dict(
        nargs="+",
        metavar="PATTERN",
        help="names or patterns of photos and folders to leave out (default: as last time)",
    ),
    "--train": dict(
        type=filename, metavar="RUN", help="train this run on FOLDER/captions.csv first"
    ),
    # of a data set
    "--images": dict(
        type=data_set,
        metavar="NAME",
        required=True,
        help="features of photos, a folder in --data_path",
    ),
    "--split": dict(
        type=split_name,
        help="split to index (default: all photos of a folder, test of a data set)",
    ),
    "--photos": dict(
        type=filename,
        metavar="FOLDER",
        help="folder of the photos (default: the features' folder)",
    ),
    "--uri": dict(
        help="Milvus that holds the vectors: http://HOST:19530, or a folder NAME.db of milvus-lite"
    ),
    # of queries
    "text": dict(
        nargs="*",
        metavar="TEXT",
        help="what to search for; -word for what should not be there",
    ),
    "--photo": dict(
        type=filename, nargs="+", default=[], metavar="FILE", help="photos, to find similar ones"
    ),
    "--captions": dict(type=filename, metavar="FILE.txt", help="texts to search for, one per line"),
    "--not": dict(
        dest="without",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="texts that the photos should not fit",
    ),
    "--top": dict(type=up_to(MAX_TOP), default=10, metavar="K", help="answers to each query"),
    "--json": dict(action="store_true", help="print JSON"),
    "--names": dict(action="store_true", help="print only the names of all photos"),
    "names": dict(
        nargs="*",
        metavar="NAME",
        help="names of photos below their folder, or patterns with * and ?",
    ),
}

SEARCH_OPTIONS = "--checkpoint --device --token_file"
COMMANDS = {  # name: its function, whose docstring describes it, and its options
    "": (
        search_folder,
        "folder --output --index_only --exclude --verbose --checkpoint --train --data_path --port "
        "--host --device --workers",
    ),
    "query": (
        query,
        f"index text --photo --captions --not --top --json --verbose {SEARCH_OPTIONS}",
    ),
    "add": (add, "index names --verbose --checkpoint --device --workers"),
    "remove": (take_out, "index names --token_file"),
    "info": (info, "index --names --token_file"),
    "serve": (serve_page, f"index --port --host {SEARCH_OPTIONS}"),
    "index": (
        index_data,
        f"--images --split --data_path --photos --output --overwrite --uri {SEARCH_OPTIONS}",
    ),
}


def parse(words: list[str]):
    """Read the command and its options.

    If the first word is no command, it is a folder. Returns (command, function, options).
    """
    name = ""
    if words and words[0] in COMMANDS:
        name = words[0]
        words = words[1:]
    work, options = COMMANDS[name]
    commands = ", ".join(command for command in COMMANDS if command)

    description = work.__doc__
    if not name:
        description += f" Other commands: {commands}, each with --help."
    parser = Arguments(description, command=name)
    for option in options.split():
        if option == "--device":
            utils.add_device(parser)
        elif option == "--workers":
            utils.add_workers(parser, most=4)
        else:
            parser.add_argument(option, **ARGUMENTS_OF_OPTIONS[option])

    opt, unknown = parser.parse_known_intermixed_args(words)  # texts may follow an option
    if unknown:
        hint = ""
        if not name:
            hint = f"; the commands are {commands}"
        elif name == "query":
            hint = (
                "; write what should not be there after '--not', or as -word inside the quotes of "
                "the text"
            )
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    opt.token = getattr(opt, "token", None) or ""
    return name, work, opt


def main(argv=None) -> None:
    words = sys.argv[1:] if argv is None else list(argv)
    name, work, opt = parse(words)
    utils.run(f"photos {name}".strip(), work, opt)


if __name__ == "__main__":
    main()
