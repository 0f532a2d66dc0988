"""Import the modules of an original code base from a clone, which is read and never written to.

Most originals were written for Python 2 and torch 0.3. What has changed since is bridged here, and
only here:

    in their source, while it is imported
        a / b of whole numbers is a whole number, as in Python 2 (where the clone is for Python 2)
        loss.data[0] is loss.item()
        {}.iteritems() is {}.items()
    in torch, within `bridged()`
        .cuda() of tensors and modules leaves them on the CPU, and no CUDA device is found
        .view() also takes what is not contiguous, since results of torch 0.3 were
    modules
        those that only read data, write logs or fetch weights are replaced by empty ones
"""

import argparse
import ast
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
import warnings

import torch

from utils import InputError

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))  # of this repository


class Clone:
    """Modules of a clone, apart from our modules of the same names (model, data, train, ...).

    Args:
        path: folder of the clone.
        python2: whether its code divides as Python 2 does.
        unused: names of modules that it imports and that nothing here needs.

    empty: {name of a module: {name in it: value}}, modules that are not imported but made of these
    names. A system may put more into it before it loads the first module.
    """

    def __init__(self, path: str, python2: bool = False, unused: tuple[str, ...] = ()):
        if not os.path.isdir(path):
            raise InputError(
                f"there is no folder {path}; give the folder of a clone of the original code"
            )
        self.path = os.path.abspath(path)
        self.python2 = python2
        self.empty: dict[str, dict] = {name: {} for name in unused}
        self.modules: dict[str, types.ModuleType] = {}

    def load(self, name: str) -> types.ModuleType:
        """Import a module of the clone by its name.

        Our own modules are out of sight meanwhile. Raises ImportError where it needs a module that
        is not here.
        """
        finder = Finder(self)
        hidden = {}
        for known, module in list(sys.modules.items()):
            if is_ours(module) or finder.provides(known):
                hidden[known] = sys.modules.pop(known)
        sys.modules.update(self.modules)

        search_path = list(sys.path)
        here = (ROOT, os.getcwd())
        sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) not in here]
        sys.meta_path.insert(0, finder)
        try:
            return importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)
            sys.path[:] = search_path
            for known in list(sys.modules):
                if finder.provides(known):
                    self.modules[known] = sys.modules.pop(known)
            sys.modules.update(hidden)


def is_ours(module: types.ModuleType) -> bool:
    """Whether a module is of this repository, and not of an environment within its folder."""
    file = getattr(module, "__file__", None) or ""
    return bool(file) and "site-packages" not in file and lies_here(file)


@functools.cache  # some 2,000 modules are asked for, and each takes a call for every folder above
def lies_here(file: str) -> bool:
    """Whether a file lies in the folder of this repository."""
    return os.path.realpath(file).startswith(f"{ROOT}{os.sep}")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the empty modules of a clone, then those that it has."""

    def __init__(self, clone: Clone):
        self.clone = clone
        # of the modules and packages in its folder; other names need no look at the disk
        self.names = {name.removesuffix(".py") for name in os.listdir(clone.path)}

    def provides(self, name: str) -> bool:
        """Whether a module of this name is the clone's or an empty one."""
        return self.is_empty(name) or self.locate(name) is not None

    def is_empty(self, name: str) -> bool:
        """Whether this is an empty module, or a part of one."""
        while name:
            if name in self.clone.empty:
                return True
            name = name.rpartition(".")[0]  # what it is a part of
        return False

    def locate(self, name: str) -> str | None:
        """Find the file of a module, or None where the clone has none."""
        if name.partition(".")[0] not in self.names:
            return None
        base = os.path.join(self.clone.path, *name.split("."))
        for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
            if os.path.isfile(path):
                return path
        return None

    def find_spec(self, name: str, path=None, target=None):
        if self.is_empty(name):
            loader = EmptyLoader(self.clone.empty.get(name, {}))
            return importlib.machinery.ModuleSpec(name, loader, is_package=True)
        file = self.locate(name)
        if file is None:
            return None
        loader = Loader(name, file, self.clone.python2)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


class EmptyLoader(importlib.abc.Loader):
    """Makes a module of the given names; any other name in it is a class that does nothing."""

    def __init__(self, names: dict):
        self.names = names

    def create_module(self, spec):
        return EmptyModule(spec.name)

    def exec_module(self, module):
        vars(module).update(self.names)


class EmptyModule(types.ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Loader(importlib.machinery.SourceFileLoader):
    """Reads a source file, replaces old calls, and writes no __pycache__."""

    def __init__(self, name: str, path: str, python2: bool):
        super().__init__(name, path)
        self.python2 = python2

    def get_code(self, name: str):
        tree = ast.parse(self.get_data(self.path), self.path)
        tree = ast.fix_missing_locations(OldCalls(self.python2).visit(tree))
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module):
        vars(module)[OldCalls.DIVIDE] = divide
        super().exec_module(module)


class OldCalls(ast.NodeTransformer):
    """Replaces what Python 2 and torch 0.3 meant by what means the same today."""

    DIVIDE = "divide_as_python_2"

    def __init__(self, python2: bool):
        self.python2 = python2

    def visit_BinOp(self, node: ast.BinOp):
        """a / b -> divide(a, b)"""
        self.generic_visit(node)
        if not self.python2 or not isinstance(node.op, ast.Div):
            return node
        call = ast.Call(ast.Name(self.DIVIDE, ast.Load()), [node.left, node.right], [])
        return ast.copy_location(call, node)

    def visit_Subscript(self, node: ast.Subscript):
        """loss.data[0] -> loss.item()"""
        self.generic_visit(node)
        is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        is_data = isinstance(node.value, ast.Attribute) and node.value.attr == "data"
        if not (is_first and is_data):
            return node
        call = ast.Call(ast.Attribute(node.value.value, "item", ast.Load()), [], [])
        return ast.copy_location(call, node)

    def visit_Attribute(self, node: ast.Attribute):
        """values.iteritems -> values.items"""
        self.generic_visit(node)
        if node.attr == "iteritems":
            node.attr = "items"
        return node


def divide(a, b):
    """a / b as Python 2 computes it: a whole number where both are."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return a / b


# ---- torch, and the originals' command lines


@contextlib.contextmanager
def replaced_attributes(owner, **values):
    """Give an object other attributes within a context."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def bridged():
    """Let old torch code run on the CPU within a context, without warnings on its age."""
    plain_view = torch.Tensor.view

    def stay(self, *_, **__):
        return self

    def view(self, *shape):
        try:
            return plain_view(self, *shape)
        except RuntimeError:
            return self.reshape(*shape)

    def find_none():
        return False

    def count_none():
        return 0

    with (
        warnings.catch_warnings(),
        replaced_attributes(torch.Tensor, cuda=stay, view=view),
        replaced_attributes(torch.nn.Module, cuda=stay),
        replaced_attributes(
            torch.cuda, is_available=find_none, device_count=count_none, synchronize=count_none
        ),
    ):
        warnings.simplefilter("ignore")
        yield


def parse_options(main, words: str) -> argparse.Namespace:
    """Parse flags as an original's command does.

    Its main() builds a parser and reads the command line before it does anything else, and is
    stopped there.
    """

    class Parsed(Exception):
        pass

    parse_args = argparse.ArgumentParser.parse_args

    def stop(parser):
        raise Parsed(parse_args(parser, words.split()))

    with replaced_attributes(argparse.ArgumentParser, parse_args=stop):
        try:
            main()
        except Parsed as parsed:
            return parsed.args[0]
    raise InputError("the original's main() reads no command line, so its options are unknown")


def read_commit(path: str) -> str:
    """Return the commit of a folder, 10 digits, or "unknown" where git knows none."""
    command = ["git", "-C", path, "rev-parse", "--verify", "-q", "HEAD"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    return done.stdout.strip()[:10] or "unknown"
