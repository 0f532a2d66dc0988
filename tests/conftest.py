"""Shared by all tests: where the real data are, and a small demo data set."""
import contextlib
import json
import os
import shutil

import pytest
import torch

from demo import __main__ as demo
from images import import_torchvision
from tests import helpers

REAL = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")
os.environ["OMP_NUM_THREADS"] = "1"   # of the commands that tests start; small tensors are slower on more threads
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory):
    """The tests work in an empty folder: what commands left where they are called, ./vocab or ./runs, is not theirs."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(scope="session")
def demo_path(tmp_path_factory) -> str:
    """A folder with all formats of the demo, 48 training images."""
    path = str(tmp_path_factory.mktemp("demo"))
    demo.write_demo(path, size=48, seed=0, progress=False)
    return path


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, demo_path):
    """small_run(*words): the folder of a run of helpers.SMALL and `words` on the demo's features, trained once a
    session. It is for reading alone; small_run(*words, to=FOLDER) is a copy of it, to be changed."""
    found = {}

    def call(*words, to=None) -> str:
        if words not in found:
            found[words] = tmp_path_factory.mktemp("small") / "run"
            helpers.fit("--data_path", demo_path, *words, "--logger_name", found[words])
        return shutil.copytree(found[words], to) if to else found[words]
    return call


@pytest.fixture(scope="session")
def photos_path(tmp_path_factory, demo_path) -> str:
    """A folder with the demo's photos alone, of dev and test three each, which are quick to validate."""
    folder = tmp_path_factory.mktemp("photos")
    shutil.copytree(os.path.join(demo_path, "demo"), folder / "demo")
    path = folder / "demo" / "dataset_demo.json"
    listed, few = json.loads(path.read_text()), {"val": 3, "test": 3, "train": 48}
    listed["images"] = [image for name, count in few.items()
                        for image in [x for x in listed["images"] if x["split"] == name][:count]]
    path.write_text(json.dumps(listed))
    return str(folder)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Untrained weights of resnet18, so that nothing has to be fetched."""
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.manual_seed(0)
    torch.save(import_torchvision().models.resnet18(weights=None).state_dict(), path)
    return str(path)


@pytest.fixture
def undrawn(monkeypatch):
    """evaluate.py and confidence draw no pictures, which takes most of their time on few items."""
    for name in ("evaluation.pictures.draw_extremes", "confidence.plots.draw_curves",
                 "confidence.plots.draw_examples"):
        monkeypatch.setattr(name, lambda *_: None)


@pytest.fixture(scope="session")
def real_path() -> str:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    if not os.path.isdir(os.path.join(REAL, "f8k_precomp")):
        pytest.skip("the real Flickr8k features (../shared/data/f8k_precomp) are not on this machine")
    return REAL
