"""Search one's own photos by a text or a photo, with how sure each answer is.

    python -m photos ~/Pictures                # all in one: reads what is new, opens the page
    python -m features.images --photos ~/Pictures --cnn_type efficientnet_lite0 \\
        --output_name mine
    python -m photos index --checkpoint RUN --images mine --output indexes/mine
    python -m photos query indexes/mine "a dog on a beach" --top 5 --sheet dog.png
    python -m photos query indexes/mine --photo dog.jpg --json
    python -m photos serve indexes/mine               # a page at http://127.0.0.1:8000
    python -m photos add indexes/mine                 # after another features.images: what is new
    python -m photos remove indexes/mine --gone       # photos whose files are no longer there

An index is one file, mine.npz, which `index` writes and all other commands read (photos/index.py).
"""
if __name__ == "__main__":
    import cli
    cli.start()

import json
import os
import re
import shlex
import sys
import time

import cli
from cli import (
    Arguments,
    InputError,
    call_python,
    data_set,
    filename,
    probability,
    split_name,
    torch_device,
    up_to,
    workers,
)
from confidence.calibration import calibration_file, percent
from data import Photos
from evaluation.embeddings import newest_run
from evaluation.pictures import picture_file
from features import store
from features.folder import CAPTIONS
from files import need, read_lines, read_text
from photos.build import WHOLE, How, Where, add, features_of, folder_name, make, of_folder, remove
from photos.index import Index, file_of
from photos.page import serve
from photos.searcher import Found, Searcher, contact_sheet

BEGAN = time.monotonic()              # when the command began
TOP = 1000                            # answers to a query at most
BATCH = 8                             # photos that a network of features reads at a time
SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "model")


# ---- index, add, remove, info

def token_of(opt) -> str:
    """The token in the file of --token_file, "" without one."""
    return "" if opt.token_file is None else read_text(opt.token_file, 10_000).strip()


def how_of(opt) -> How:
    return How(torch_device(opt.device), workers=opt.workers)


def index(opt) -> None:
    """The command `index`."""
    if opt.sets is not None and not opt.bank:
        raise InputError(f"--sets {opt.sets:g} belongs to --bank, which is calibrated here; "
                         "without a bank the sets are those of python -m confidence --sets")
    if opt.collection and not opt.uri:
        raise InputError(f"--collection {opt.collection} is for --uri; leave it out")
    name = opt.collection or re.sub(r"\W", "_", f"photos_{os.path.basename(file_of(opt.output))[:-4]}")
    make(opt.output, opt.checkpoint or newest_run(), Where(opt.data_path, opt.images, opt.split),
         opt.photos, how_of(opt), half=opt.float16, bank=opt.bank, sets=opt.sets,
         milvus=opt.uri and (opt.uri, name), overwrite=opt.overwrite, token=token_of(opt))
    print_info(opt.output, token_of(opt))


def train_on(photos: str, data_path: str, run: str, reading: store.ComputeConfig) -> None:
    """Trains a run on the photos below a folder that its captions.csv describes, and calibrates it."""
    need(os.path.join(photos, CAPTIONS), "list photos and captions in it, with the header name,caption")
    data = "--data_path", data_path
    name = features_of(photos, WHOLE, data_path, reading)
    call_python("-m", "features.captions", *data, "--data_name", name, "--kind", "minilm")
    new = ("--data_name", name, "--text_features", "minilm", "--loss", "infonce", "--mask_same_image", "--logger_name")
    begun = os.path.isfile(os.path.join(run, "checkpoint.pt"))
    call_python("train.py", *(["--resume"] if begun else [*data, *new]), run)
    call_python("-m", "confidence", run, *data)


def search_photos(opt) -> None:
    """The command `photos`."""
    opt.photos = os.path.expanduser(opt.photos)                 # make and some shells leave the ~
    run = opt.checkpoint or opt.train or SHIPPED
    own = "" if run == SHIPPED else os.path.realpath(run)       # each run has an index of its own
    opt.index = opt.output or os.path.join("indexes", folder_name(opt.photos, own))
    reading = store.ComputeConfig(torch_device(opt.device), BATCH, opt.workers, skip_broken=True)
    if opt.train and not os.path.isfile(calibration_file(opt.train)):      # the last that is written
        train_on(opt.photos, opt.data_path, opt.train, reading)
    said = of_folder(opt.photos, opt.index, run, opt.data_path, how_of(opt), reading)
    if said:
        print("\n".join(said))
    else:
        print_info(opt.index, "")
    if opt.index_only:
        print(f"search them with: python -m photos query {shlex.quote(opt.index)} \"a dog on a beach\"")
    else:
        serve_page(opt)


def described(index: Index) -> list[str]:
    """What an index is, in lines."""
    of, path = index.manifest, index.path
    place = " and ".join(str(x.shape[1]) for x in index.entries.vectors) + " numbers each"
    if of["milvus"]:
        place = "vectors in the collection {1} at {0}".format(*of["milvus"])
    place += f" in {'float16' if of['half'] else 'float32'}, {os.path.getsize(path) / 2 ** 20:,.1f} MiB"
    lines = [f"{path}: {len(index):,} photos of {of['data']} in {of['folder'] or 'no folder'}",
             f"  {of['similarity']}, {place}", f"  run {of['run']}, {of['weights']}"]
    if of["extractor"]:
        lines.append(f"  features: {of['extractor']}")
    if of["bank"]:
        lines.append(f"  query bank: {of['bank']['captions']:,} captions of {of['bank']['split']}, "
                     f"beta {of['bank']['beta']:.3g}")
    if of["removed"]:
        lines.append(f"  {len(of['removed']):,} photos were removed, the first is {of['removed'][0]}; "
                     f"python -m photos add {path} NAME takes them in again")
    lost = index.lost_photos()
    if lost:
        return [*lines, f"  {lost}"]
    gone = [name for name in index.names
            if of["folder"] and not os.path.isfile(os.path.join(of["folder"], name))]
    if gone:
        lines.append(f"  {len(gone):,} photos are gone, the first is {gone[0]}; python -m photos remove "
                     f"{path} --gone takes them out")
    return lines


def print_info(path: str, token: str, names: bool = False) -> None:
    index = Index.open(path, token)
    print("\n".join(index.names if names else described(index)))


def info(opt) -> None:
    """The command `info`."""
    print_info(opt.index, token_of(opt), opt.names)


def add_photos(opt) -> None:
    """The command `add`."""
    print("\n".join(add(opt.index, opt.names, how_of(opt), opt.checkpoint, token_of(opt))))


def remove_photos(opt) -> None:
    """The command `remove`."""
    if not opt.names and not opt.gone:
        raise InputError("nothing to remove; give names or patterns such as 'beach/*', or --gone "
                         "for photos whose files are no longer there")
    count, left = remove(opt.index, opt.names, opt.gone, token_of(opt))
    print(f"{opt.index}: {count:,} photos removed, {left:,} left")


# ---- query, serve

def opened(opt) -> Searcher:
    return Searcher(opt.index, checkpoint=opt.checkpoint, calibration=opt.calibration,
                    device=opt.device, text_weights=opt.text_weights, token=token_of(opt))


def query(opt) -> None:
    """The command `query`."""
    texts = [*opt.text, *(read_lines(opt.captions) if opt.captions else [])]
    texts = [text for text in texts if text.strip()]
    if not texts and not opt.photo:
        raise InputError("nothing to search for; give a text, --photo FILE or --captions FILE")
    files = [*opt.photo, *filter(None, [opt.captions])]
    sheet = opt.sheet and picture_file(opt.sheet, files, opt.overwrite)
    start = time.perf_counter()
    searcher = opened(opt)
    if opt.sets and (searcher.trust is None or searcher.trust.alpha is None):
        bank = searcher.index.manifest["bank"]
        raise InputError("--sets needs a calibration with sets; " + (
            f"make the index again with --bank {bank['split']} --sets 0.1" if bank else
            f"write it with python -m confidence {searcher.encoder.path} --sets "
            "0.1"))
    ready = time.perf_counter()
    found = searcher.find_texts(texts, opt.top, without=opt.without) if texts else []
    photos = Photos(opt.photo)
    found += [searcher.find_photo(photos.open(k), opt.top, name=path, without=opt.without)
              for k, path in enumerate(opt.photo)]
    done = time.perf_counter()
    if opt.json:
        answers = [as_json(one, searcher) for one in found]
        json.dump(answers, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        for one in found:
            print("\n".join(in_lines(one, opt.unsure, opt.sets)))
        notes = [*searcher.notes, opt.sets and searcher.withdrawn] if texts else []
        for note in filter(None, notes):
            print(f"note: {note}")
    if opt.time:
        print(f"time: {time.monotonic() - BEGAN:.2f} s in all: index and model opened in "
              f"{ready - start:.2f} s, the answers took {done - ready:.3f} s; the rest is Python "
              "and its imports",
              file=sys.stderr)
    if sheet:
        contact_sheet(sheet, found, searcher.path_of,
                      f"{searcher.count:,} photos of {searcher.title}", opt.unsure,
                      [None] * len(texts) + opt.photo)
        print(f"contact sheet in {sheet}", file=sys.stderr if opt.json else sys.stdout)


def in_lines(found: Found, unsure: float, sets: bool) -> list[str]:
    """The answers to a query. sets: whether the conformal set is marked."""
    facts = found.said(unsure), sets and found.set_said, found.query_said
    lines = [": ".join(filter(None, [found.query, "; ".join(filter(None, facts))]))]
    for k, answer in enumerate(found.answers, 1):
        share = "" if answer.p is None else f"{percent(answer.p):>9}"
        inside = "" if not sets or answer.in_set is None else " *" if answer.in_set else "  "
        gone = " (gone)" if answer.gone else ""
        lines.append(f"{k:>4}{answer.score:>11.4f}{share}{inside}  {answer.name}{gone}")
    return lines + [f"  note: {note}" for note in found.notes]


def as_json(found: Found, searcher: Searcher) -> dict:
    """The answers to a query as plain values: those of Found, paths beside names, and what a reader
    should know."""
    answers = [{**answer._asdict(), "path": searcher.path_of(answer.row)}
               for answer in found.answers]
    # the searcher's are about probabilities
    always = [] if searcher.calibrated and found.sure is None else searcher.notes
    return {**found._asdict(), "answers": answers, "notes": [*found.notes, *always]}


def serve_page(opt) -> None:
    """The command `serve`."""
    searcher = opened(opt)
    if not searcher.folder:
        raise InputError(f"{opt.index} knows no folder of its photos, so there is nothing to show; "
                         "make it again with --photos FOLDER")
    serve(searcher, opt.port, opt.unsure, opt.host)


# ---- the command

SHARED = {
    "index": dict(type=filename, metavar="INDEX", help="file of the index, with or without .npz"),
    "--checkpoint": dict(type=filename, metavar="RUN",
                         help="run folder (default: where the index was made)"),
    "--device": dict(choices=["auto", "cpu", "cuda"], default="auto",
                     help="auto: CUDA when present"),
    "--workers": dict(type=workers, default=0,
                      help="processes that read photos or large feature files"),
    "--token_file": dict(type=filename, metavar="FILE",
                         help="file with USER:PASSWORD or an API key of Milvus")}
OF_INDEX = "index", "--checkpoint", "--device", "--token_file"


def share(p: Arguments, *names: str) -> None:
    for name in names:
        p.add_argument(name, **SHARED[name])


def index_options(p: Arguments) -> None:
    p.add_argument("--checkpoint", type=filename, metavar="RUN",
                   help="run folder (default: the newest run)")
    p.add_argument("--data_path", type=filename, default="data",
                   help="folder that holds the data sets, also those of the run where they are "
                        "not where it was trained")
    p.add_argument("--images", type=data_set, metavar="NAME",
                   help="features of photos, a folder below --data_path: what features.images "
                        "--photos wrote, or a split of a data set")
    p.add_argument("--split", type=split_name,
                   help="split to index (default: all photos of a folder, test of a data set)")
    p.add_argument("--photos", type=filename, metavar="FOLDER",
                   help="folder of the photos (default: where the features were extracted from)")
    p.add_argument("--output", type=filename, required=True, metavar="INDEX",
                   help="file to write, NAME or NAME.npz")
    p.add_argument("--overwrite", action="store_true", help="replace the index that is there")
    p.add_argument("--float16", action="store_true", help="store float16, half the space")
    p.add_argument("--bank", type=split_name, metavar="SPLIT",
                   help="normalise scores by the captions of a split of the run's data, such as "
                        "train")
    p.add_argument("--sets", type=probability, metavar="ALPHA",
                   help="with --bank: also calibrate sets that miss the right photo in this "
                        "share of the queries")
    share(p, "--device", "--workers")
    p.add_argument("--uri", metavar="URI",
                   help="Milvus that holds the vectors: http://HOST:19530, or a folder NAME.db of milvus-lite")
    p.add_argument("--collection", metavar="NAME",
                   help="with --uri: the collection (default: named after INDEX)")
    share(p, "--token_file")


def add_options(p: Arguments) -> None:
    share(p, *OF_INDEX, "--workers")
    p.add_argument("names", nargs="*", metavar="NAME",
                   help="photos that remove took out and that come back: names, or patterns with "
                        "* and ?")


def remove_options(p: Arguments) -> None:
    share(p, "index", "--token_file")
    p.add_argument("names", nargs="*", metavar="NAME",
                   help="names of photos below their folder, or patterns with * and ?")
    p.add_argument("--gone", action="store_true", help="photos whose files are no longer there")


def info_options(p: Arguments) -> None:
    share(p, "index", "--token_file")
    p.add_argument("--names", action="store_true", help="print the names of all photos instead")


def answer_options(p: Arguments) -> None:
    share(p, *OF_INDEX)
    model_options(p)


def model_options(p: Arguments) -> None:
    p.add_argument("--calibration", type=filename, metavar="FILE.json",
                   help="what turns scores into probabilities (default: calibration.json in the "
                        "run folder)")
    p.add_argument("--text_weights", type=filename, metavar="FILE",
                   help="weights of the network that made the run's features of captions, where "
                        "it is no package")
    p.add_argument("--unsure", type=probability, default=0.0, metavar="P",
                   help="mark answers of a lower probability as not sure (default: none)")


def query_options(p: Arguments) -> None:
    answer_options(p)
    p.add_argument("text", nargs="*", metavar="TEXT", help="what to search for")
    p.add_argument("--photo", type=filename, nargs="+", default=[], metavar="FILE",
                   help="photos to search for")
    p.add_argument("--captions", type=filename, metavar="FILE.txt",
                   help="texts to search for, one per line")
    p.add_argument("--not", dest="without", nargs="+", default=[], metavar="TEXT",
                   help="texts that the photos should not fit")
    p.add_argument("--top", type=up_to(TOP), default=10, metavar="K", help="answers to each query")
    p.add_argument("--sets", action="store_true",
                   help="mark the set that holds the right photo with a known chance")
    p.add_argument("--sheet", type=filename, metavar="FILE.png", help="also draw the answers")
    p.add_argument("--overwrite", action="store_true", help="replace the file of --sheet that is there")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--time", action="store_true", help="say on stderr where the time went")


def photos_options(p: Arguments) -> None:
    p.add_argument("photos", type=filename, metavar="FOLDER", help="folder of your photos")
    p.add_argument("--output", type=filename, metavar="INDEX",
                   help="file of the index (default: indexes/NAME.npz, after the folder of the photos; each run has "
                        "its own)")
    p.add_argument("--data_path", type=filename, default="data",
                   help="folder to which the features of the photos are written")
    p.add_argument("--train", type=filename, metavar="RUN",
                   help="train a model on the photos that FOLDER/captions.csv describes, to this run folder, "
                        "and search with it")
    p.add_argument("--index_only", action="store_true", help="open no page")
    page_options(p)
    p.add_argument("--checkpoint", type=filename, metavar="RUN",
                   help="run folder (default: photos/model, which comes with this repository)")
    share(p, "--device")
    p.set_defaults(token_file=None)
    p.add_argument("--workers", type=workers, default=min(4, os.cpu_count() or 1),
                   help="processes that read photos")
    model_options(p)


def serve_options(p: Arguments) -> None:
    answer_options(p)
    page_options(p)


def page_options(p: Arguments) -> None:
    p.add_argument("--port", type=up_to(65535, least=0), default=8000,
                   help="port of the page; 0 takes a free one")
    p.add_argument("--host", default="127.0.0.1", metavar="NAME",
                   help="address of this computer at which others may open the page, 0.0.0.0 for all addresses; or a "
                        "name under which a proxy does")


COMMANDS = {
    "photos": ("Search a folder of photos: read what is new, index it and open the page.",
               photos_options, search_photos),
    "index": ("Index photos by a trained run.", index_options, index),
    "add": ("Take new and changed photos into an index.", add_options, add_photos),
    "remove": ("Take photos out of an index.", remove_options, remove_photos),
    "info": ("Say what an index holds.", info_options, info),
    "query": ("Find photos for texts or photos.", query_options, query),
    "serve": ("Open a page to search with, on this machine alone.", serve_options, serve_page)}


def main(argv=None) -> None:
    p = Arguments("Search photos, and say how sure each answer is.")
    commands = p.add_subparsers(dest="asked", required=True, metavar="{" + ",".join(COMMANDS) + "}")
    for name, (description, options, _) in COMMANDS.items():
        options(commands.add_parser(name, help=description[:1].lower() + description[1:],
                                    description=description))
    opt, more = p.parse_known_args(argv)
    texts = {"query": "text", "remove": "names", "add": "names"}.get(opt.asked)
    literal = more[:1] == ["--"]                            # what stands behind it is no option
    more = more[literal:]
    if more and (not texts or not literal and any(word.startswith("-") for word in more)):
        p.error(f"unrecognized arguments: {' '.join(more)}")
    if more:                          # argparse takes no text behind an option, so it comes here
        getattr(opt, texts).extend(more)
    cli.run(f"photos {opt.asked}", COMMANDS[opt.asked][2], opt)


if __name__ == "__main__":
    main()
