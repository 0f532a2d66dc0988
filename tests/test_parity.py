"""Our training beside original code: a stand-in for VSE++, the bridge to old code, and clones.

    PARITY_CLONES=/path/to/clones pytest tests/test_parity.py

The folder of clones may hold vsepp, SCAN, VSRN, pvse, pcme, pcmepp, jwae and cite. The stand-in,
tests/original/, is written from the paper's equations with the calls of Python 2 and torch 0.3.
"""

import csv
import json
import os
import shutil
import sys

import pytest
import torch

import data
import model
from paper_tables.parity import __main__ as parity
from paper_tables.parity import compare
from paper_tables.parity.clone import Clone, bridged, parse_options
from paper_tables.parity.made_up import write_data
from paper_tables.parity.systems import PARITY_SYSTEMS, VSRNFollowed
from tests.helpers import ROOT, refused
from utils import InputError

STAND_IN = os.path.join(ROOT, "tests", "original")
CLONES = os.environ.get("PARITY_CLONES")


def run_parity(capsys, *words) -> tuple[int, str]:
    """The status of the command, and what it prints."""
    with pytest.raises(SystemExit) as end:
        parity.main([str(word) for word in words])
    return end.value.code, capsys.readouterr().out


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> str:
    """Flags of a made-up data set."""
    return write_data(str(tmp_path_factory.mktemp("data")), "vectors")


# ---- the comparison


# with 27 steps, an epoch of 25 and --lr_update 1, over two rates of learning
@pytest.mark.parametrize(
    "name, steps", [("VSE++, sum of violations", 3), ("VSE++", 27), ("VSE0", 3), ("Order0", 3)]
)
def test_the_stand_in_trains_as_ours(vectors, name, steps):
    (system,) = [system for system in PARITY_SYSTEMS if system.name == name]
    system = system._replace(
        ours=f"{system.ours} --lr_update 1", theirs=f"{system.theirs} --lr_update 1"
    )
    results = {}
    for precision in compare.PRECISIONS:
        results[precision] = compare.compare(system, STAND_IN, vectors, steps, 0, precision)
    assert compare.is_equal(results)
    exact = results["float64"]
    rounded = results["float32"]
    assert exact["loss"] < 1e-13 and exact["evaluation"]["embeddings"] < 1e-9
    assert rounded["loss"] < 1e-5
    assert exact["last_loss"] != exact["first_loss"]


# file, text that stands there once, text in its place, and what is equal all the same
MUTATIONS = {
    "margin of one side": (
        "model.py",
        "self.opt.margin + scores - true[None]",
        "0.1 + scores - true[None]",
        "ranks",
    ),
    "Adam's beta": (
        "model.py",
        "lr=opt.learning_rate)",
        "lr=opt.learning_rate, betas=(0.8, 0.999))",
        "ranks",
    ),
    "no clipping": ("model.py", "clip_grad_norm(self.params, self.opt.grad_clip)", "pass", "ranks"),
    "norm of captions": ("model.py", "x = scale(torch.stack(", "x = (torch.stack(", ""),
    "rank": ("evaluation.py", "index(caption / 5)", "index(caption / 5) + 1", "training"),
}


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_our_captioner_is_made_to_train_as_vsrn_does(tmp_path):
    """It is listed twice, so stepped twice, and predicts one <pad> after <end>."""
    words = write_data(str(tmp_path), "regions")
    words += " --method vsrn_original --embed_size 8 --word_dim 6 --dim_hidden 7 --batch_size 16"
    run = compare.build_ours(f"{words} --vocab_threshold 1 --vocab_path none", "regions")
    captioner = run.model.terms["captioner"].eval()
    plain = captioner.nll
    count = len(run.parameters)

    VSRNFollowed.set_optimizer(None, run)

    assert len(run.parameters) == count + len([*captioner.parameters()])
    (group,) = run.optimizers["optimizer"].param_groups
    assert len(group["params"]) == len(run.parameters)

    batch = compare.longest_first(next(iter(run.batches(run.order(0)))))
    features = run.model.image_tower(batch.images).features
    padded = torch.nn.functional.pad(batch.tokens, (0, 1))
    expected = plain(features, padded, batch.lengths + 1)
    assert torch.equal(captioner.nll(features, batch.tokens, batch.lengths), expected)
    assert (expected > plain(features, batch.tokens, batch.lengths)).all()

    before = captioner.out.weight.clone()
    losses = run.step(batch)  # through the model, which knows the number of regions
    assert losses["captioner"] > 0
    assert not torch.equal(captioner.out.weight, before)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_difference_is_seen(tmp_path, capsys, mutation):
    file, before, after, still_equal = MUTATIONS[mutation]
    shutil.copytree(STAND_IN, tmp_path / "clone")
    source = (tmp_path / "clone" / file).read_text()
    assert source.count(before) == 1
    (tmp_path / "clone" / file).write_text(source.replace(before, after))

    status, said = run_parity(
        capsys,
        "--original",
        f"vsepp={tmp_path}/clone",
        "--only",
        "sum",
        "--steps",
        4,
        "--output",
        tmp_path / "r.json",
    )
    assert status == 1
    assert "VSE++, sum of violations: differs: for a reason that is not known" in said
    (result,) = json.loads((tmp_path / "r.json").read_text())["systems"]
    exact = result["float64"]
    assert exact["evaluation"]["equal"] == (still_equal == "ranks")
    assert (exact["loss"] < 1e-9) == (still_equal == "training")
    assert (exact["parameters"] < 1e-6) == (still_equal == "training")


def test_the_table_is_printed_and_written(tmp_path, capsys):
    files = ["--output", tmp_path / "r.json", "--csv", tmp_path / "r.csv"]
    clone = ["--original", f"vsepp={STAND_IN}"]
    status, said = run_parity(capsys, *clone, "--only", "order", "--steps", 2, *files)
    assert status == 0
    assert "Order0: equal\nOrder++: equal\n\nLargest relative difference" in said
    assert "train.py: --method order0 --no-feature_norm" in said

    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["verdict"] for row in result["systems"]] == ["equal", "equal"]
    with open(tmp_path / "r.csv", newline="") as f:
        head, *rows = csv.reader(f)
    assert head[:4] == ["parity", "command", "commits", "system"]
    assert [len(row) for row in rows] == [len(head), len(head)]
    assert rows[0][1] == "python -m paper_tables.parity --original vsepp=CLONE --steps 2"
    assert rows[0][head.index("flags of `train.py`")] == "`--method order0 --no-feature_norm`"
    cells = dict(zip(head, rows[0]))
    assert (cells["steps"], cells["ranks, recalls"], cells["equal"]) == ("2", "equal", "yes")

    refused(capsys, parity.main, [*clone, *files], "r.json already exists; .*--overwrite")
    run_parity(capsys, *clone, "--only", "order0", "vse0", "--steps", 1, *files, "--overwrite")
    with open(tmp_path / "r.csv", newline="") as f:
        same_head, *rows = csv.reader(f)
    assert same_head == head
    steps = {row[head.index("system")]: row[head.index("steps")] for row in rows}
    assert list(steps.items()) == [("VSE0", "1"), ("Order0", "1"), ("Order++", "2")]


def test_other_data_serve_both_sides(capsys, demo_path):
    words = [
        "--original",
        f"vsepp={STAND_IN}",
        "--only",
        "sum",
        "--steps",
        2,
        "--data_path",
        demo_path,
        "--data_name",
    ]
    status, said = run_parity(capsys, *words, "demo_precomp")
    assert status == 0 and "VSE++, sum of violations: equal" in said
    status, said = run_parity(capsys, *words, "demo_region_precomp")
    assert status == 1
    assert (
        "not compared: demo_region_precomp has 36 regions an image, and the original reads one "
        "vector an image; name other data"
    ) in said


def test_what_cannot_be_imported_is_said(tmp_path, capsys):
    (tmp_path / "model.py").write_text("import tensorflow_of_2018 as tf\n")
    status, said = run_parity(capsys, "--original", f"cite={tmp_path}", "--steps", 1)
    assert status == 0  # CITE's reason is known
    assert "CITE: not compared:" in said and "(No module named 'tensorflow_of_2018')" in said
    words = ["--only", "i-t AVG", "--steps", 1]
    status, said = run_parity(capsys, "--original", f"scan={tmp_path}", *words)
    assert status == 1  # it has no train.py, and ours is not taken in its place
    assert f"{tmp_path} cannot be used as a clone of scan (No module named 'train')" in said


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--original", "vsepp"],
            r"'vsepp' does not name a clone; give NAME=FOLDER, with a name of vsepp, scan",
        ),
        (["--original", "vse=x"], "'vse=x' does not name a clone"),
        (
            ["--original", f"vsepp={STAND_IN}", "--only", "PVSE"],
            "--only PVSE names no system of these clones; they are VSE",
        ),
        (
            ["--original", f"vsepp={STAND_IN}", "--steps", "0"],
            "'0' is not a whole number of at least 1",
        ),
    ],
)
def test_wrong_words_are_refused(capsys, words, message):
    refused(capsys, parity.main, words, message)


# ---- the bridge to old code

OLD = """
import data
import {absent}.part as part
from {absent}.part import Something

HALF = 7 / 2
THIRD = 1.0 / 2

def first(loss):
    return loss.data[0]

def count(numbers):
    return sorted(numbers.iteritems())

def middle(x):
    return x[:, :x.size(1) / 2].cuda()
"""


@pytest.fixture
def old(tmp_path):
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "old.py").write_text(OLD.format(absent="absent_package"))
    (tmp_path / "clone" / "data.py").write_text("OTHER = True\n")
    return Clone(str(tmp_path / "clone"), python2=True, unused=("absent_package",))


def test_old_calls_mean_what_they_meant(old):
    module = old.load("old")
    assert module.HALF == 3 and module.THIRD == 0.5
    assert module.first(torch.tensor(2.5)) == 2.5
    assert module.count({"b": 1, "a": 2}) == [("a", 2), ("b", 1)]
    with bridged():
        assert module.middle(torch.arange(6).view(2, 3)).tolist() == [[0], [3]]
        assert not torch.cuda.is_available()
        transposed = torch.arange(6).view(2, 3).t()
        assert transposed.view(-1).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(RuntimeError):
        transposed.view(-1)  # torch is itself again


def test_a_clone_for_python_3_divides_as_python_3(old):
    assert Clone(old.path, unused=("absent_package",)).load("old").HALF == 3.5


def test_modules_of_a_clone_stay_apart_from_ours(old):
    module = old.load("old")
    assert module.data.OTHER and module.data.__file__.startswith(old.path)
    assert sys.modules["data"] is data and sys.modules["model"] is model
    assert "old" not in sys.modules and "absent_package" not in sys.modules
    assert old.load("old") is module
    with pytest.raises(ImportError, match="No module named 'losses'"):
        old.load("losses")  # which is ours


def test_a_clone_is_not_written_to(old):
    before = sorted(os.listdir(old.path))
    old.load("old")
    assert sorted(os.listdir(old.path)) == before == ["data.py", "old.py"]


def test_precision_ends_with_its_context():
    half = torch.zeros(1, dtype=torch.float16)
    with compare.precision("float64"):
        assert torch.zeros(1).dtype == half.float().dtype == torch.float == torch.float64
    assert torch.zeros(1).dtype == half.float().dtype == torch.float == torch.float32


def test_a_main_without_a_command_line_is_refused():
    def main_without_options():
        pass

    with pytest.raises(InputError, match="reads no command line"):
        parse_options(main_without_options, "--margin 1")


# ---- clones


@pytest.mark.skipif(not CLONES, reason="PARITY_CLONES does not name a folder of clones")
@pytest.mark.parametrize("number", range(len(PARITY_SYSTEMS) if CLONES else 1))
def test_originals_train_as_ours(tmp_path, number):
    """Five steps of every system, as far as its clone is there."""
    system = PARITY_SYSTEMS[number]
    found = [name for name in os.listdir(CLONES) if name.lower() == system.clone]
    if not found:
        pytest.skip(f"{CLONES} holds no clone of {system.clone}")
    data_flags = write_data(str(tmp_path), system.kind.reads)
    arguments = os.path.join(CLONES, found[0]), data_flags, 5, 0
    if system.clone == "cite":
        with pytest.raises(InputError, match="No module named 'tensorflow'"):
            compare.compare(system, *arguments, "float64")
        return
    results = {name: compare.compare(system, *arguments, name) for name in compare.PRECISIONS}
    assert compare.is_equal(results) or system.differs
    assert results["float32"]["loss"] < 1e-4 or system.differs
