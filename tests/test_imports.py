"""Rules of the house: which parts import which, and no modules import each other in a circle."""

import ast
import functools
import os
import re
import sys
from collections import Counter
from glob import glob

import evaluate
from methods import pvse_pcme, scan, two_branch, vsrn
from options import list_options, training_parser
from tests.helpers import ROOT

PATHS = [
    path
    for path in glob("**/*.py", root_dir=ROOT, recursive=True)
    if path.split(os.sep)[0] != "tests"
]
MODULES = {
    path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in PATHS
}
PROGRAMS = {"benchmark"}  # stand on top beside the core, and are none of it
CORE = {name.split(".")[0] for name in MODULES if "/" not in MODULES[name]} - PROGRAMS | {
    "methods",
    "evaluation",
}
PACKAGES = {name.split(".")[0] for name in MODULES} - CORE
ALLOWED = {
    "photos": {"features", "confidence"},
    "phrases": {"features"},
    "vg_experiments": {"features", "phrases"},
    "demo": {"features"},
    "cost": {"paper_tables"},
    "benchmark": {"cost"},
}


def walk_statements(node: ast.AST):
    """All statements below a node. ast.walk goes through expressions too, for four times as long."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from walk_statements(child)


@functools.cache
def read_module(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """The modules that a file imports, inside its functions and where it is a program, too; and its functions.

    The trees of all files are not kept: every garbage collection would go through them.
    """
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        module = ast.parse(f.read())

    names = set()
    for node in walk_statements(module):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full
            if not full <= set(MODULES):
                names.add(node.module)
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    return frozenset(names), frozenset(functions)


def imports(path: str) -> frozenset[str]:
    return read_module(path)[0]


def test_the_core_imports_no_package_and_packages_only_what_they_build_on():
    for name, path in MODULES.items():
        own = name.split(".")[0]
        parts = {module.split(".")[0] for module in imports(path)}
        foreign = parts & (PACKAGES | {"tests"}) - {own} - ALLOWED.get(own, set())
        assert not foreign, f"{name} imports {', '.join(foreign)}"

    assert {"demo", "features", "confidence", "photos", "phrases", "paper_tables"} <= PACKAGES


def test_no_modules_import_each_other_in_a_circle():
    """No import is left out: neither one within a function, nor one of a program alone."""
    needs = {name: imports(path) for name, path in MODULES.items()}
    assert "vocab" in needs["data"]
    assert "data" not in needs["vocab"]

    while leaves := [name for name, names in needs.items() if not (names - {name}) & set(needs)]:
        for name in leaves:
            del needs[name]
    assert not needs, f"these import each other in a circle: {', '.join(needs)}"


def test_every_name_can_be_followed_to_its_definition():
    """No module makes up its names when they are asked for."""
    for path in PATHS:
        _, functions = read_module(path)
        assert "__getattr__" not in functions, path


def test_no_module_imports_a_command():
    """What commands share stands in modules. cost/measure.py times evaluate.py in its own process."""
    for path in PATHS:
        commands = {
            name for name in imports(path) if name == "evaluate" or name.endswith(".__main__")
        }
        assert not commands or path == os.path.join("cost", "measure.py"), (
            f"{path} imports {', '.join(commands)}"
        )


def test_a_default_evaluation_runs_few_functions(small_run, tmp_path):
    """docs/reading.md names these numbers, so that they are not passed without notice."""
    called = {}  # functions of all files, also of packages
    # argparse calls it while options are declared from Python 3.14 on, and only for --help before
    for_help = "HelpWithDefaults._get_help_string"

    def note_call(frame, event, _):
        if event == "call":
            called[id(frame.f_code)] = frame.f_code

    run = str(small_run("--sim", "cosine"))
    output = str(tmp_path / "results.json")
    sys.setprofile(note_call)
    try:
        evaluate.main(["--checkpoint", run, "--output", output])
    finally:
        sys.setprofile(None)

    functions = Counter()
    for code in called.values():
        path = os.path.relpath(code.co_filename, ROOT)
        is_function = not code.co_name.startswith("<") and code.co_qualname != for_help
        if path in PATHS and is_function:
            functions[path] += 1
    assert len(functions) <= 13, sorted(functions)
    assert functions.total() <= 188, functions
    assert not {"train.py", "evaluation/annotations.py", "evaluation/bootstrap.py"} & set(functions)
    assert not [path for path in functions if path.startswith("methods")]


def test_options_of_a_method_are_declared_in_its_file_alone():
    listed = list_options(training_parser())
    with open(os.path.join(ROOT, "options.py"), encoding="utf-8") as f:
        words = set(re.findall(r"\w+", f.read()))

    tables = [scan.ATTENTION_OPTIONS, two_branch.CITE_OPTIONS]
    tables += [pvse_pcme.PARTS_OPTIONS, pvse_pcme.PARTS_TERM_OPTIONS]
    tables += [vsrn.VSRN_IMAGE_OPTIONS, vsrn.VSRN_TERM_OPTIONS]
    for table in tables:
        for name, (_, default, help, *_) in table.items():
            assert listed[name].default == default and listed[name].help == help
            assert name not in words, f"options.py names {name}"
    assert listed["bi_gru"].nargs == 0 and listed["n_embeds"].metavar == "K"
    assert listed["captioner"].metavar == "WEIGHT"
    assert [*listed["agg_func"].choices] == ["LogSumExp", "Mean"]


def test_programs_share_the_options_of_device_and_workers():
    for path in PATHS:
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            declares = '"auto", "cpu", "cuda"' in f.read()
        assert not declares or path == "utils.py", f"{path} declares --device itself"
