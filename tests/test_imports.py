"""The product imports neither its tests nor its demo, and no modules import each other in a circle."""
import ast
import os
from glob import glob

from tests.helpers import ROOT

PATHS = [path for path in glob("**/*.py", root_dir=ROOT, recursive=True) if path.split(os.sep)[0] != "tests"]
MODULES = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in PATHS}


def imports(path: str, inside: bool = True) -> set[str]:
    """The modules that a file imports; without `inside`, when it is imported itself."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    nodes = list(ast.walk(tree)) if inside else tree.body
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full if full <= set(MODULES) else {node.module} | full
    return names


def test_imports():
    for name, names in ((name, imports(path)) for name, path in MODULES.items()):
        assert not {n.split(".")[0] for n in names} & {"tests", "demo"} or name.startswith("demo"), name
        own, others = name.split(".")[0], {n.split(".")[0] for n in names}
        assert "phrases" not in others or own == "phrases", f"{name} imports phrases"
        assert own != "phrases" or not others & {"photos", "search", "show", "vg_experiments", "paper_tables"}, name
    needs = {name: imports(path, inside=False) for name, path in MODULES.items()}
    while leaves := [name for name, names in needs.items() if not (names - {name}) & set(needs)]:
        for name in leaves:
            del needs[name]
    assert not needs, f"these import each other in a circle: {', '.join(needs)}"
