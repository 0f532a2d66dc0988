"""Shared by all tests: where the real data are, and a small demo data set.

pytest loads this file also in the process that only hands out the tests to others (-n auto), so torch and what needs
it are imported in the fixtures: it would take four seconds there, before the first test begins.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading

import pytest

# Of torch in the tests and in the commands that they start; small tensors are slower on more threads.
os.environ["OMP_NUM_THREADS"] = "1"
if threading.current_thread() is threading.main_thread():
    # as in a terminal: a script's background ignores Ctrl-C, and so would the tests that send it, and what they start
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Modules that start processes come first, so one of the processes that test (-n auto) gets all of them: each loads
    torch and the commands once more for those that it starts (helpers.Command)."""

    def starts_none(item) -> bool:
        return not {"Command", "in_a_process"} & set(vars(item.module))

    items.sort(key=starts_none)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory):
    """The tests work in an empty folder: what commands left where they are called, ./vocab or ./runs, is not theirs."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


def made_once(tmp_path_factory, name: str, make):
    """A folder for all processes that test at the same time. The first that asks for it calls make(folder)."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each process has a folder below that of all
        root = root.parent
    with open(root / f"{name}.lock", "a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            shutil.rmtree(root / name, ignore_errors=True)
            make(root / name)
            lock.write("made")
    return root / name


@pytest.fixture(scope="session")
def demo_path(tmp_path_factory) -> str:
    """A folder with all formats of the demo, 48 training images, and counts of words as features of captions, `bag`."""

    import numpy as np

    from demo import __main__ as demo

    def make(folder):
        demo.write_demo(folder, size=48, seed=0)
        texts = {
            name: (folder / "demo_precomp" / f"{name}_caps.txt").read_text().splitlines()
            for name in ("train", "dev", "test")
        }
        words = sorted(set(" ".join(texts["train"]).split()))
        for name, captions in texts.items():
            bags = [[caption.split().count(word) for word in words] for caption in captions]
            np.save(folder / "demo_precomp" / f"{name}_bag.npy", np.float32(bags))

    return str(made_once(tmp_path_factory, "demo", make))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, demo_path):
    """small_run(*words): the folder of a run of helpers.SMALL and `words` on the demo's features, trained once.
    It is for reading alone; small_run(*words, to=FOLDER) is a copy of it, to be changed."""
    from tests import helpers

    def call(*words, to=None):
        def make(folder):
            helpers.fit("--data_path", demo_path, *words, "--logger_name", folder)

        name = "run" + "".join(words).removeprefix("--simcosine").replace("/", "_")
        run = made_once(tmp_path_factory, name, make)
        if to:
            return shutil.copytree(run, to)
        return run

    return call


@pytest.fixture(scope="session")
def learned_runs(tmp_path_factory):
    """A folder of `data`, 200 images of the demo of which 50 are dev and 100 test, and of the runs `cosine` and
    `wasserstein` on them, which know something. It is for reading alone."""
    from demo import __main__ as demo
    from tests import helpers

    def make(folder):
        demo.write_demo(folder / "data", size=200, seed=0)
        sizes = ["--embed_size", 32, "--word_dim", 16]
        recipe = ["--num_epochs", 4, "--batch_size", 100, "--learning_rate", "5e-3"]
        for sim in ("cosine", "wasserstein"):
            folders = ["--data_path", folder / "data", "--logger_name", folder / sim]
            helpers.fit(*folders, "--sim", sim, "--no-max_violation", *sizes, *recipe)

    return made_once(tmp_path_factory, "learned", make)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Untrained weights of resnet18, so that nothing has to be fetched."""
    import torch

    from images import import_torchvision

    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.manual_seed(0)
    torch.save(import_torchvision().models.resnet18(weights=None).state_dict(), path)
    return str(path)


@pytest.fixture
def ev(tmp_path, monkeypatch):
    """evaluate.py on words; its results, which it wrote to r.json, comparisons to c.json. In an empty folder."""
    from tests import helpers

    monkeypatch.chdir(tmp_path)

    def call(*words):
        path = "r.json"
        if "--compare" in words:
            path = "c.json"
        results = helpers.evaluated(*words, "--output", path, "--overwrite")
        with open(path, encoding="utf-8") as f:
            assert f.read() == json.dumps(results, indent=1) + "\n"
        return results

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """evaluate.py and confidence draw no pictures, which takes most of their time on few items."""

    def draw_nothing(*_):
        pass

    for name in (
        "evaluation.pictures.draw_extremes",
        "confidence.plots.draw_curves",
        "confidence.plots.draw_examples",
    ):
        monkeypatch.setattr(name, draw_nothing)


@pytest.fixture(scope="session")
def real_path() -> str:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    from tests import helpers

    return helpers.real_folder("f8k_precomp")
