"""The order of the house: imports go one way, none hides inside a function, files can be held in the head."""
import ast
import contextlib
import glob
import os
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# From the bottom to the top: a module may import those of its own floor and of the floors below.
FLOORS = ["cli", "files devices", "parallel", "text metrics similarities", "losses", "inputs", "readers",
          "encoders data", "methods", "demo", "features", "model", "options optimisation", "checkpoints", "runs",
          "evaluation", "retrieval", "train evaluate search show cca vocab", "timing", "results benchmark",
          "paper_tables vg_experiments"]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
FILES = [path for path in sorted(glob.glob("**/*.py", root_dir=ROOT, recursive=True)) if path.split(os.sep)[0] in
         {name for name in FLOOR} | {f"{name}.py" for name in FLOOR}]


def on_top() -> list[str]:
    """The Python files on top that git tracks, or, without git, those of FLOORS: others may lie beside them."""
    with contextlib.suppress(OSError):
        tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True).stdout.split()
        if "train.py" in tracked:
            return [path for path in tracked if "/" not in path and os.path.exists(os.path.join(ROOT, path))]
    return [path for path in FILES if os.sep not in path]


def module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(path): path for path in FILES}


def imports(path: str):
    """(line, module imported, whether inside a function) for every import of a module of ours."""
    with open(os.path.join(ROOT, path)) as f:
        tree = ast.parse(f.read())
    within = {id(node) for function in ast.walk(tree) if isinstance(function, (ast.FunctionDef, ast.Lambda))
              for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [name if (name := f"{node.module}.{alias.name}") in MODULES else node.module
                     for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name, id(node) in within) for name in dict.fromkeys(names) if name in MODULES)


@pytest.mark.parametrize("path", FILES)
def test_imports_go_down_and_stand_at_the_top(path):
    mine = FLOOR[module(path).split(".")[0]]
    for line, name, within in imports(path):
        assert not within, f"{path}:{line} imports {name} inside a function"
        assert FLOOR[name.split(".")[0]] <= mine, f"{path}:{line} imports {name}, which stands above it"


def test_no_circle():
    needed = {module(path): {name for _, name, _ in imports(path)} for path in FILES}
    while bottom := [name for name, needs in needed.items() if not needs & set(needed)]:
        for name in bottom:
            del needed[name]
    assert not needed, f"these import each other in a circle: {', '.join(needed)}"


def test_the_top_shows_the_main_path():
    first = {"train.py", "evaluate.py", "model.py", "losses.py", "data.py", "vocab.py"}
    assert first <= set(on_top()) and len(on_top()) <= 19
    assert {module(path).split(".")[0] for path in on_top()} <= set(FLOOR)


def test_losses_hold_what_the_users_card_says():
    import losses
    import model

    assert {"SIMILARITIES", "Embedding", "Separable", "uncertainty", "hinge", "sampled_nll", "pair_mse", "Critic",
            "build_objective"} <= set(vars(losses))
    assert {"Tower", "JointEmbedding", "build_model"} <= set(vars(model))


@pytest.mark.parametrize("command", ["features.extract", "features.proposals", "demo", "results"])
def test_commands_in_folders_start(command):
    done = subprocess.run([sys.executable, "-m", command, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and f"usage: python -m {command}" in done.stdout, done.stderr


def test_make_says_which_pythons_there_are_packages_for(tmp_path):
    """Make meets a Python of another version; here one that says it is."""
    for name in ["Makefile", *glob.glob("requirements*.txt", root_dir=ROOT)]:
        shutil.copy(os.path.join(ROOT, name), tmp_path)
    other = tmp_path / "python"
    other.write_text(f"#!{sys.executable}\nimport sys\nsys.version_info, sys.version = (3, 10, 1), '3.10.1 (main)'\n"
                     "exec(sys.argv[2])\n")
    other.chmod(0o755)
    done = subprocess.run(["make", "demo", f"PYTHON={other}"], cwd=tmp_path, capture_output=True, text=True)
    said = f"{other} is Python 3.10.1, and the pinned packages exist for 3.11 to 3.14: name one of them, for example " \
           "make demo PYTHON=python3.11"
    assert done.returncode and said in done.stderr.splitlines() and not (tmp_path / ".venv").exists()


def test_training_and_evaluation_load_no_milvus():
    """Nor its gRPC, whose threads a fork does not survive."""
    code = "import sys, train, evaluate, show, search, features.extract, tensorboard_logger; " \
           "sys.exit(', '.join({'grpc', 'pymilvus', 'milvus_lite'} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
