"""Search one's own photos by a text or a photo, with how sure each answer is.

    python -m photos ~/Pictures                # reads what is new, indexes it, opens the page
    python -m photos query indexes/Pictures "a dog on a beach" --top 5

photos/README.md lists the other commands. An index is one file, indexes/Pictures.npz (photos/index.py).
"""
if __name__ == "__main__":
    import cli
    cli.start()

import json
import os
import re
import shlex
import sys

import cli
from cli import Arguments, call_python, check, data_set, filename, split_name, up_to
from confidence.calibration import percent
from files import need, read_json, read_lines, read_text, sha256
from images import read_photo
from photos.encoder import SHIPPED, PhotoEncoder
from photos.index import Index, index_file, lock_index
from photos.searcher import Searcher, SearchResult

TOP = 1000                            # answers to a query at most
NAME_LETTERS = 100                    # of an index, of the names of a folder and a run
# A training on own captions starts from photos/model, whose shape these options give. First its means learn the
# captions, then its variances, by which the number of photos that fit is told, learn these and short texts.
SHAPE = ("--text_features sentences --txt_layers 2048 --embed_size 512 --text_anchor 0.7 --head spherical_one "
         "--var_layers 256").split()
POINTS = ("--loss infonce --mask_same_image --dropout 0.3 --feature_noise 0.7 --weight_decay 0.05 --schedule cosine "
          "--warmup 1 --learning_rate 3e-4 --num_epochs 30").split()
SPREAD = "--loss volume --freeze_means --num_epochs 10".split()


def say(*lines: str) -> None:
    """Print lines, without characters of files' names that control a terminal."""
    for line in lines:
        print("".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in line), flush=True)


# ---- the commands

def search_folder(opt) -> None:
    """Search a folder of photos: read what is new, index it and open the page."""
    from photos.build import index_folder  # a question needs none of it

    folder, run = opt.folder, opt.train or opt.checkpoint
    if not opt.index_only:
        refuse_taken_port(opt)
    calibration = os.path.join(opt.train or "", "calibration.json")
    if opt.train and not (os.path.isfile(calibration) and "words" in read_json(calibration)):       # the last step
        train_on(folder, opt.data_path, opt.train)
    opt.index = opt.output or name_index(folder, run)
    encoder = PhotoEncoder(run, device=opt.device)
    say(*index_folder(opt.index, folder, encoder, opt.workers, opt.exclude, list_all=opt.verbose,
                      tell=say))
    if opt.index_only:
        say(f"search them with: python -m photos query {shlex.quote(opt.index)} \"a dog on a beach\"")
    else:
        serve_page(opt)


def join_names(*paths: str | None) -> str:
    """The names of a folder and a run, as one name of a file."""
    names = [os.path.basename(os.path.realpath(path)) for path in paths if path]
    return re.sub(r"\W+", "_", "_".join(names)).strip("_")[:NAME_LETTERS] or "photos"


def name_index(folder: str, run: str | None) -> str:
    """Name the index of a folder after it, and where that is the index of another folder of this
    name, after its path as well."""
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


def train_on(folder: str, data_path: str, run: str) -> None:
    """Train a run on the photos described in their captions.csv, and calibrate it.
    Continues after a stop."""
    need(os.path.join(folder, "captions.csv"), "list photos and captions in it, with the header name,caption")
    data, name, points = ("--data_path", data_path), join_names(folder, run), f"{os.path.normpath(run)}_points"
    call_python("-m", "features.images", *data, "--photos", folder, "--cnn_type", "efficientnet_lite012", "--whole",
                "--skip_broken", "--output_name", name)
    call_python("-m", "photos.words", *data, "--data_name", name, "--write", f"{name}_words")
    steps = (name, points, POINTS, SHIPPED), (f"{name}_words", run, SPREAD, points)
    for data_name, to, words, start in steps[os.path.isfile(os.path.join(run, "checkpoint.pt")):]:
        call_python("-m", "features.captions", *data, "--data_name", data_name, "--kind", "sentences")
        new = *data, "--data_name", data_name, *SHAPE, *words, "--init_from", start, "--logger_name"
        call_python("train.py", *(["--resume"] if os.path.isfile(os.path.join(to, "checkpoint.pt")) else new), to)
    call_python("-m", "confidence", run, *data)
    call_python("-m", "photos.words", run, "--fit", *data)


def index_data(opt) -> None:
    """Index features of a data set by a run."""
    from photos.build import index_features

    encoder = PhotoEncoder(opt.checkpoint, device=opt.device, data_path=opt.data_path)
    path = opt.output or os.path.join("indexes", join_names(opt.images))
    with lock_index(path):
        index = index_features(path, encoder, opt.images, opt.split, opt.photos, opt.uri, opt.token,
                               opt.overwrite)
    say(*describe(index))


def add(opt) -> None:
    """Bring an index up to what its folder holds now; NAMEs that were removed come back."""
    from photos.build import index_folder

    manifest = Index.open(opt.index).manifest
    encoder = PhotoEncoder(opt.checkpoint or manifest["run"], device=opt.device)
    say(*index_folder(opt.index, manifest["folder"] or "", encoder, opt.workers, back=opt.names,
                      list_all=opt.verbose, tell=say))


def take_out(opt) -> None:
    """Take photos out of an index, where they stay out."""
    from photos.build import remove_photos

    check(opt.names, f"nothing is removed from {opt.index}; name photos, or give patterns with * and ?")
    say(*remove_photos(opt.index, opt.names, opt.token))


def info(opt) -> None:
    """Say what an index holds."""
    index = Index.open(opt.index, opt.token)
    say(*(index.names if opt.names else describe(index)))


def describe(index: Index) -> list[str]:
    """Sentences on an index."""
    of, size = index.manifest, os.path.getsize(index.path) / 2 ** 20
    lines = [f"{index.path}: {len(index):,} photos of {of['data']} in {of['folder'] or 'no folder'}, {size:,.1f} MiB",
             f"  by {of['similarity']} and the run {of['run'] or 'photos/model'}, {of['weights']}"]
    if of["milvus"]:
        lines.append("  vectors in the collection {1} at {0}".format(*of["milvus"]))
    if of["exclude"]:
        lines.append(f"  without {', '.join(of['exclude'])} (--exclude)")
    if of["removed"]:
        lines.append(f"  {len(of['removed']):,} were removed, the first is {min(of['removed'])}; python -m photos add "
                     f"{shlex.quote(index.path)} NAME takes them in again")
    return lines


def query(opt) -> None:
    """Find photos for texts or photos."""
    texts = [*opt.text, *(line for line in (read_lines(opt.captions) if opt.captions else []) if line.strip())]
    check(texts or opt.photo, "nothing to search for; give a text, --photo FILE or --captions FILE")
    searcher = Searcher(opt.index, checkpoint=opt.checkpoint, device=opt.device, token=opt.token)
    results = searcher.find_texts(texts, opt.top, without=opt.without)
    for path in opt.photo:
        photo = read_photo(path, may_be_cut=True)
        results.append(searcher.find_photo(photo, opt.top, name=path, without=opt.without))
    if opt.json:
        json.dump([searcher.as_json(result) for result in results], sys.stdout, indent=1)
        print()
    else:
        for result in results:
            say(*in_lines(result, opt.verbose))
        if not searcher.calibrated or opt.verbose:
            say(*(f"note: {note}" for note in searcher.notes))


def in_lines(result: SearchResult, verbose: bool) -> list[str]:
    """Answers to a query as lines.
    verbose: with scores, probabilities, and log det Sigma in nats."""
    spread = f"log det Sigma {result.uncertainty:.1f}" if verbose and result.uncertainty is not None else ""
    lines = [": ".join(filter(None, [f"{result.query:.200}", "; ".join(filter(None, [result.said, spread]))]))]
    for k, hit in enumerate(result.answers, 1):
        numbers = (f"{hit.score:>11.4f}" + ("" if hit.p is None else f"{percent(hit.p):>9}")) if verbose else ""
        lines.append(f"{k:>4}{numbers}  {hit.name}{' (gone)' * hit.gone}")
    return lines + [f"  note: {note}" for note in result.notes]


def refuse_taken_port(opt) -> None:
    """Raise InputError where the page could not be served, before photos and model are read."""
    from photos.page import bind

    bind(opt.port, opt.host).close()


def serve_page(opt) -> None:
    """Open a page to search with, on this machine alone."""
    from photos.page import serve  # Flask is needed here alone

    refuse_taken_port(opt)
    searcher = Searcher(opt.index, checkpoint=opt.checkpoint, device=opt.device, token=opt.token)
    check(searcher.folder, f"{opt.index} knows no folder of its photos, so there is nothing to show; make it again "
                           "with --photos FOLDER")
    serve(searcher, opt.port, opt.host)


# ---- the command line

OPTIONS = {
    "index": dict(type=filename, metavar="INDEX", help="file of the index, with or without .npz"),
    "--checkpoint": dict(type=filename, metavar="RUN", help="run folder (default: that of the index, or photos/model)"),
    "--device": dict(choices=["auto", "cpu", "cuda"], default="auto", help="auto: CUDA when present"),
    "--workers": dict(type=cli.workers, default=min(4, os.cpu_count() or 1), help="processes that read photos"),
    "--token_file": dict(dest="token", type=lambda path: read_text(filename(path)).strip(), metavar="FILE",
                         help="file with USER:PASSWORD or an API key of Milvus"),
    "--data_path": dict(type=filename, default="data", help="folder that holds the data sets"),
    "--verbose": dict(action="store_true", help="answers: also scores, probabilities and uncertainties; a folder: "
                                                "all files that are left out, and why photos cannot be read"),
    "--overwrite": dict(action="store_true", help="replace an existing file"),
    "--port": dict(type=up_to(65535, least=0), default=8000, help="port of the page; 0 takes a free one"),
    "--host": dict(default="127.0.0.1", metavar="NAME", help="address for others, 0.0.0.0 for all, or a proxy's name"),
    "--output": dict(type=filename, metavar="INDEX", help="file of the index (default: indexes/FOLDER_RUN.npz)"),
    # of a folder
    "folder": dict(type=filename, metavar="FOLDER", help="folder of your photos"),
    "--index_only": dict(action="store_true", help="open no page"),
    "--exclude": dict(nargs="+", metavar="PATTERN", help="photos and folders that stay out (default: as before)"),
    "--train": dict(type=filename, metavar="RUN", help="train this run on FOLDER/captions.csv first"),
    # of a data set
    "--images": dict(type=data_set, metavar="NAME", required=True, help="features of photos, a folder in --data_path"),
    "--split": dict(type=split_name, help="split to index (default: all photos of a folder, test of a data set)"),
    "--photos": dict(type=filename, metavar="FOLDER", help="folder of the photos (default: the features' folder)"),
    "--uri": dict(help="Milvus that holds the vectors: http://HOST:19530, or a folder NAME.db of milvus-lite"),
    # of questions
    "text": dict(nargs="*", metavar="TEXT", help="what to search for; -word for what should not be there"),
    "--photo": dict(type=filename, nargs="+", default=[], metavar="FILE", help="photos to search for"),
    "--captions": dict(type=filename, metavar="FILE.txt", help="texts to search for, one per line"),
    "--not": dict(dest="without", nargs="+", default=[], metavar="TEXT", help="texts that the photos should not fit"),
    "--top": dict(type=up_to(TOP), default=10, metavar="K", help="answers to each query"),
    "--json": dict(action="store_true", help="print JSON"),
    "--names": dict(action="store_true", help="print the names of all photos instead"),
    "names": dict(nargs="*", metavar="NAME", help="names of photos below their folder, or patterns with * and ?")}

SEARCHED = "--checkpoint --device --token_file"
COMMANDS = {                          # their descriptions are those of the functions
    "": (search_folder, "folder --output --index_only --exclude --verbose --checkpoint --train --data_path --port "
                        "--host --device --workers"),
    "query": (query, f"index text --photo --captions --not --top --json --verbose {SEARCHED}"),
    "add": (add, "index names --verbose --checkpoint --device --workers"),
    "remove": (take_out, "index names --token_file"),
    "info": (info, "index --names --token_file"),
    "serve": (serve_page, f"index --port --host {SEARCHED}"),
    "index": (index_data, f"--images --split --data_path --photos --output --overwrite --uri {SEARCHED}")}


def parse(words: list[str]):
    """The command and its options.
    Without the name of a command, the first word is a folder."""
    name = words[0] if words and words[0] in COMMANDS else ""
    (work, options), commands = COMMANDS[name], ", ".join(filter(None, COMMANDS))
    more = "" if name else f" Other commands: {commands}, each with --help."
    p = Arguments(work.__doc__ + more, command=name)
    for option in options.split():
        p.add_argument(option, **OPTIONS[option])
    opt, more = p.parse_known_intermixed_args(words[1:] if name else words)         # texts also behind an option
    if more:
        hint = {"": f"; the commands are {commands}",
                "query": "; what should not be there stands behind '--not', or as -word within the text's quotes"}
        p.error(f"unrecognized arguments: {' '.join(more)}{hint.get(name, '')}")
    opt.token = getattr(opt, "token", None) or ""
    return name, work, opt


def main(argv=None) -> None:
    name, work, opt = parse(sys.argv[1:] if argv is None else list(argv))
    cli.run(f"photos {name}".strip(), work, opt)


if __name__ == "__main__":
    main()
