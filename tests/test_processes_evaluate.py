"""Evaluation and extraction of features that several processes share: what they find and write is that of one process,
to the byte. Each process is a real one."""
import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cli
import data
import evaluate
import metrics
import show
from devices import processes
from evaluation.encode import encode
from evaluation.open import load_run
from evaluation.subjects import Gallery
from features import extract, networks, store
from files import writing
from files.reading import file_digest
from inputs import Images, Tokens
from similarities import Embedding
from tests.helpers import processes_of, refused

SIZES, LENGTHS = [4, 1, 2, 5, 1, 1, 3], [3, 5, 2, 4, 6, 1, 2, 2]       # regions of images, words of captions


def several(many: int, main, *words) -> tuple[int, str, str]:
    """The status, stdout and stderr of a command in so many processes. The failure of one ends all, as by torchrun."""
    with processes_of(many, main, list(map(str, words))) as ranks:
        while any(k.process.exitcode is None for k in ranks) and not any(k.process.exitcode for k in ranks):
            ranks[0].process.join(0.05)
        for left in ranks:
            left.process.terminate()
        status, out, err = zip(*(process.ended() for process in ranks))
        return next(filter(None, status), 0), "".join(out), "".join(err)


def same_files(a, b) -> bool:
    """Whether two folders hold the same files, but for the number of the process that locked them."""
    names = [sorted(name for name in os.listdir(folder) if name != ".lock") for folder in (a, b)]
    return names[0] == names[1] and all((a / name).read_bytes() == (b / name).read_bytes() for name in names[0])


# ---- what each process finds

class Regions(Images):
    """Regions of images, and which of them were read."""
    parallel = False

    def __init__(self):
        self.read = []

    def __len__(self):
        return len(SIZES)

    def gather(self, index):
        self.read += map(int, index)
        return torch.tensor(index)


class Model:
    """Embeds a batch with as many parts as its largest item has."""

    def embed_images(self, images):
        n = torch.tensor(SIZES)[images]
        parts = images[:, None, None] + torch.arange(int(n.max()))[:, None] + torch.zeros(2)
        parts[torch.arange(int(n.max())) >= n[:, None]] = 0
        return Embedding(images[:, None].float().sin(), None, parts, n)

    def embed_captions(self, tokens, lengths):
        return Embedding(tokens.float().sum(1, keepdim=True).cos(), lengths[:, None].float())


def ranks(scores, owner):
    return metrics.ranks_by_blocks(lambda c: lambda i: scores[i][:, c], owner, len(scores), block=5)


def told(work, *args) -> str:
    with pytest.raises(cli.InputError) as error:
        work(*args)
    return str(error.value)


def refuse() -> None:
    raise cli.InputError("the fault")


def fault_of(process: int) -> None:
    with processes.all_or_none():
        if processes.rank() == process % processes.count():
            refuse()


def stopped_by_another() -> None:
    """The first process would work for ever."""
    with processes.all_or_none() as look:
        if processes.rank() == processes.count() - 1:
            refuse()
        while True:
            look()


def outcomes() -> dict:
    """What functions give that spread their work."""
    split = SimpleNamespace(images=Regions(), name="x")
    numbers = np.split(np.arange(sum(LENGTHS)) % 11, np.cumsum(LENGTHS)[:-1])
    tokens = Tokens(numbers, np.zeros(len(LENGTHS), bool))
    found = {"whole": encode(Model(), split, tokens, "cpu", 3), "read": list(split.images.read)}
    few = Gallery(np.array([5, 2]), np.array([6, 0, 3]))    # one batch of images, two of captions
    found["few"] = encode(Model(), split, tokens, "cpu", 2, part=few)
    found["images"] = encode(Model(), split, None, "cpu", 2)
    rng = np.random.default_rng(0)
    scores, owner = torch.from_numpy(rng.integers(0, 30, (23, 40))).float(), rng.integers(0, 19, 40) + 3
    found["ranks"] = [torch.from_numpy(x) for x in ranks(scores, owner)]
    found["block"] = [torch.from_numpy(x) for x in ranks(scores[:4], owner % 4)]    # of which one process has none
    scores[22, 39] = torch.nan
    found["faults"] = [told(ranks, scores, owner), told(fault_of, 1)]
    if processes.count() > 1:
        found["faults"] += [told(stopped_by_another)]
    found["first"] = processes.from_first(processes.rank)
    found["refused"] = told(processes.from_first, refuse)
    return found


def plain(value):
    """A value as lists, to compare with equality."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    return [plain(x) for x in value] if isinstance(value, (tuple, list)) else value


def test_functions_give_in_all_processes_what_they_give_in_one(tmp_path):
    status, _, err = several(2, find, tmp_path)
    assert status == 0, err
    alone = json.loads(json.dumps({name: plain(value) for name, value in outcomes().items()}))
    own = [json.loads((tmp_path / f"{k}.json").read_text()) for k in (0, 1)]
    assert [found.pop("read") for found in own] == [[0, 1, 2, 3, 4, 5], [6]] and alone.pop("read") == list(range(7))
    assert [found["faults"].pop() for found in own] == 2 * ["the fault"]
    assert own[0] == own[1] == alone


# ---- evaluate.py

@pytest.mark.slow
def test_an_evaluation_writes_the_same_files(tmp_path, small_run, demo_path, capsys):
    run = small_run("--sim", "wasserstein", "--num_epochs", "4", "--learning_rate", "0.01", "--no-max_violation")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    words = ["--checkpoint", run, "--data_path", demo_path, "--device", "cpu", "--batch_size", "5", "--block", "3",
             "--uncertainty", "--confidence", "--bank", "train", "--workers", "0"]

    def outputs(name):
        return ["--export", tmp_path / name / "e.npz", "--ranks", tmp_path / name / "r.csv", "--output",
                tmp_path / name / "results.json"]
    capsys.readouterr()                                     # of the training
    evaluate.main([str(word) for word in (*words, *outputs("one"))])
    shown = capsys.readouterr()
    status, out, err = several(2, evaluate.main, *words, *outputs("two"))
    assert status == 0, err
    assert out == shown.out.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    assert len(os.listdir(tmp_path / "one")) == 9 and same_files(tmp_path / "one", tmp_path / "two")
    for line in set(shown.err.splitlines()):                # by one process
        assert err.count(line.replace(str(tmp_path / "one"), str(tmp_path / "two"))) == shown.err.count(line), line


# ---- features.extract

def words_of(folder, *more) -> list[str]:
    return ["images", "--photos", str(folder.parent / "photos"), "--data_path", str(folder), "--output_name", "x",
            "--kind", "demo", "--batch_size", "2", "--workers", "0", "--device", "cpu", *more]


@pytest.mark.slow
def test_an_extraction_that_lost_a_process_goes_on_in_any_number(tmp_path, demo_path, capsys):
    """With a broken photo, 11 in all. Process 1 of 2 is killed when it has noted a batch."""
    (tmp_path / "photos").mkdir()
    for k, name in enumerate(sorted(os.listdir(os.path.join(demo_path, "demo", "images")))[:11]):
        with open(os.path.join(demo_path, "demo", "images", name), "rb") as f:
            (tmp_path / "photos" / name).write_bytes(b"broken" if k == 8 else f.read())
    one, two = tmp_path / "one", tmp_path / "two"
    extract.main(words_of(one, "--skip_broken"))
    assert "(10, 960)" in capsys.readouterr().out
    status, _, err = several(2, die, *words_of(two, "--skip_broken"))
    assert status != 0 and not os.path.exists(two / "x" / "all_ims.npy"), err
    of_second = json.loads((two / "x" / ".all_ims_photos.part.1").read_text())["photos"]
    assert [row is not None for row in of_second] == 6 * [False] + 2 * [True] + 3 * [False]
    np.lib.format.open_memmap(two / "x" / ".all_ims.part", "r+")[6] = 7             # what was noted is not done again
    status, out, err = several(2, extract.main, *words_of(two))                # now 8 is looked at
    assert status != 0 and err.count("cannot be read") == 1 and "--skip_broken" in err, err
    status, out, err = several(3, extract.main, *words_of(two, "--skip_broken"))
    assert status == 0 and "(10, 960)" in out and err.count("1 of 11 photos") == 1, (out, err)
    found = np.lib.format.open_memmap(two / "x" / "all_ims.npy", "r+")
    assert (found[6] == 7).all()
    found[6] = np.load(one / "x" / "all_ims.npy")[6]
    assert same_files(one / "x", two / "x")


def test_rows_of_regions_go_on_from_the_lists_of_all_processes(tmp_path):
    """Those that another process noted count once the first's list is of the same making, and are gone then."""
    paths = [str(tmp_path / f"{k}.png") for k in range(4)]
    for path in paths:
        open(path, "w").close()

    def opened(made="net"):
        return store.RowStore(str(tmp_path / "out"), paths, paths, made, (3,), np.float32, np.arange(5) * 2).prepare()
    work = opened()
    work.array[2:4] = 7
    work.save()
    done = [[path, 0, os.stat(path).st_mtime_ns, file_digest(path)] for path in paths]
    other = {"extractor": "net", "photos": [None, done[1], None, [*done[3][:2], 1, "x"]],   # the last has changed since
             "file": os.path.basename(work.part)}
    writing.save_json(other, f"{work.list}.1")
    writing.save_json({**other, "extractor": "x", "photos": done}, f"{work.list}.2")
    work = opened()
    assert work.notes == [None, done[1], None, None] and (work.array[2:4] == 7).all()
    assert work.others() == [] and json.loads(open(work.list).read())["photos"] == work.notes
    writing.save_json(other, f"{work.list}.1")
    assert opened("another").notes == [None] * 4 and work.others() == []


@pytest.mark.parametrize("count, length, sizes", [(1, 3, [3]), (2, 5, [3, 2]), (3, 2, [1, 1, 0]), (4, 8, [2, 2, 2, 2])])
def test_parts_are_the_whole_in_order(monkeypatch, count, length, sizes):
    monkeypatch.setattr(processes, "count", lambda: count)
    parts = []
    for k in range(count):
        monkeypatch.setattr(processes, "rank", lambda k=k: k)
        parts.append(list(processes.part(range(length))))
    assert sum(parts, []) == list(range(length)) and list(map(len, parts)) == sizes


# ---- who writes, and who is refused

@pytest.fixture
def second(monkeypatch):
    """This process is the second of two."""
    for name, value in (("RANK", 1), ("WORLD_SIZE", 2), ("MASTER_ADDR", "localhost"), ("LOCAL_WORLD_SIZE", 1)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(cli, "SPOKEN", 0)


def test_only_the_first_process_writes(tmp_path, second):
    (tmp_path / "kept").write_text("kept")
    assert writing.output(str(tmp_path / "kept")) == str(tmp_path / "kept")
    assert writing.output(str(tmp_path / "new" / "x")) == str(tmp_path / "new" / "x")
    writing.save_json({}, str(tmp_path / "kept"))
    writing.save_lines(str(tmp_path / "kept"), ["ä"])
    writing.save_array(str(tmp_path / "a.npy"), np.zeros(3))
    writing.save_arrays(str(tmp_path / "a.npz"), {"a": np.zeros((2, 3)), "b": np.array("x")})
    writing.save_state({"a": torch.zeros(2)}, str(tmp_path / "a.pt"), "")
    with writing.locked(str(tmp_path), "writing"):
        assert os.listdir(tmp_path) == ["kept"] and (tmp_path / "kept").read_text() == "kept"
    writing.save_json([1], str(tmp_path / "own"), by_each=True)
    assert (tmp_path / "own").exists()
    with pytest.raises(AssertionError), writing.mapped(str(tmp_path / "m.npy"), (2,), float):
        pass


@pytest.mark.parametrize("main, words", [(data.main, ["check"]), (show.main, ["retrieval"])])
def test_commands_of_one_process_refuse_several(capsys, second, main, words):
    refused(capsys, main, words, "torchrun started 2 processes, .* call it with python")


def test_rows_of_one_file_are_of_one_machine(capsys, second, tmp_path):
    refused(capsys, extract.main, words_of(tmp_path / "x"), "1 of 2 processes on this machine, .* --nnodes 1")


def test_a_run_that_changes_while_processes_read_it_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "from_all", lambda value: [{**value, "epoch": 1}, value])
    with pytest.raises(cli.InputError, match="x changed while the processes read it"):
        monkeypatch.setattr("evaluation.open.Trained", lambda *_, **__: SimpleNamespace(state={"epoch": 2}))
        load_run("x", None)


# ---- what several processes run

def find(words: list[str]) -> None:
    """Write what this process finds."""
    def work():
        with processes.joined(torch.device("cpu")):
            found = {name: plain(value) for name, value in outcomes().items()}
            with open(os.path.join(words[0], f"{processes.rank()}.json"), "w") as f:
                json.dump(found, f)
    cli.run("find", work, several=True)


def die(words: list[str]) -> None:
    """Extract features; the second process is killed when it has noted its first batch."""
    store.SAVE, real, calls = 0, networks.PhotoReader.__call__, []

    def watched(self, index):
        calls.append(index)
        if processes.rank() == 1 and len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, index)
    networks.PhotoReader.__call__ = watched
    extract.main(words)
