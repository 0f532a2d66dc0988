"""The order of the house: imports go one way, none hides inside a function, and the marks of house.py hold."""
import ast
import functools
import glob
import os
import shutil
import subprocess
import sys

import pytest

from tests import house
from tests.house import FLOOR, MARKS, ROOT

FILES = [path for path in house.tracked() if path.split(os.sep)[0].removesuffix(".py") in FLOOR]


def module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module(path): path for path in FILES}


@functools.cache
def imports(path: str) -> list[tuple[int, str, bool]]:
    """(line, module imported, whether inside a function) for every import of a module of ours, the tests' included."""
    tree, of_ours = house.tree(path), []
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
        of_ours += [(node.lineno, name, id(node) in within) for name in dict.fromkeys(names)
                    if name in MODULES or name.split(".")[0] == "tests"]
    return of_ours


def floor_of(name: str) -> int:
    """That of a module, where it has one of its own, or of its folder; of tests the highest."""
    return FLOOR.get(name, FLOOR.get(name.split(".")[0], len(FLOOR)))


def test_imports_go_down_and_stand_at_the_top():
    wrong = []
    for path in FILES:
        mine = floor_of(module(path))
        for line, name, within in imports(path):
            if within:
                wrong.append(f"{path}:{line} imports {name} inside a function")
            if floor_of(name) > mine and name != "tests.references":
                wrong.append(f"{path}:{line} imports {name}, which stands above it")
    assert not wrong, "\n".join(wrong)


def test_no_circle():
    needed = {module(path): {name for _, name, _ in imports(path)} - {module(path)} for path in FILES}
    while bottom := [name for name, needs in needed.items() if not needs & set(needed)]:
        for name in bottom:
            del needed[name]
    assert not needed, f"these import each other in a circle: {', '.join(needed)}"


def test_the_top_shows_the_main_path():
    top = {path for path in house.tracked() if os.sep not in path}
    assert {"train.py", "evaluate.py", "model.py", "losses.py", "data.py", "vocab.py"} <= top
    assert {module(path) for path in top} <= set(FLOOR)


def hold(measured: dict[str, float]) -> None:
    above = [f"{name}: {value:,}, and at most {MARKS[name].ceiling:,} is allowed" for name, value in measured.items()
             if value > MARKS[name].ceiling]
    assert not above, "\n".join(above)


def test_marks_of_what_is_written():
    hold(house.static())


def test_marks_of_what_runs(demo_path, tmp_path):
    hold(house.runs(demo_path, str(tmp_path / "run")))


def test_mark_of_the_cases(request):
    items = request.session.items
    files = {os.path.basename(str(item.path)) for item in items}
    if missing := set(glob.glob("test_*.py", root_dir=os.path.dirname(__file__))) - files:
        pytest.skip(f"only the whole suite can be counted: {len(missing)} files were not collected")
    hold({house.COLLECTION: len(items)})


def test_losses_hold_what_the_users_card_says():
    import losses
    import model

    assert {"SIMILARITIES", "Embedding", "Separable", "uncertainty", "hinge", "sampled_nll", "pair_mse", "Critic",
            "build_objective"} <= set(vars(losses))
    assert {"Tower", "JointEmbedding", "build_model"} <= set(vars(model))


def test_commands_in_folders_start():
    commands = ["features.extract", "features.proposals", "demo", "results"]
    code = "import runpy, sys\nfor name in sys.argv.pop().split():\n    sys.argv = [name, '--help']\n    try:\n" \
           "        runpy.run_module(name, run_name='__main__', alter_sys=True)\n    except SystemExit as stop:\n" \
           "        assert not stop.code"
    done = subprocess.run([sys.executable, "-c", code, " ".join(commands)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: python -m {command}" in done.stdout for command in commands)


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


def test_nothing_large_is_tracked_but_the_model():
    """A file that somebody's tool left, such as an installer, is not committed with the rest."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    if not any(listed):
        pytest.skip("there is no git here to say which files are tracked")
    large = [name for name in listed if name and os.path.isfile(os.path.join(ROOT, name))
             and os.path.getsize(os.path.join(ROOT, name)) > 1 << 20]
    assert large == ["models/photos/model_best.pt"]
