"""A command's options as a table: each is declared once, as a row.

A row holds the option's type, default and help. From the rows come the parser and the help.
"""
import argparse
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from cli import Arguments, InputError, bounded, filename, number, sizes, whole

FLAG, SWITCH = "store_true", argparse.BooleanOptionalAction     # --x alone; --x and --no-x
METAVARS = {filename: "FILE", whole: "N", bounded: "X", number: "X", sizes: "SIZES"}


class Option(NamedTuple):
    """A row. kind: a function that reads a word, the values that can be chosen, FLAG or SWITCH.
    common: whether the short help shows it."""
    name: str
    kind: Callable | str | Collection
    default: object
    help: str
    common: bool = False
    metavar: str | None = None
    nargs: str | None = None
    alias: str | None = None

    @property
    def switch(self) -> bool:
        """Whether it is true or false."""
        return self.kind in (FLAG, SWITCH)

    def add_to(self, group, short: bool) -> None:
        """Declare it to argparse. short: with the beginning of its help alone."""
        flags = [f"--{self.name}", *filter(None, [self.alias])]
        text = re.split(r"[.;] | \(", self.help)[0] if short else self.help
        how = {"action": self.kind}
        if not self.switch:
            choices = None if callable(self.kind) else list(self.kind)
            read = self.kind if choices is None else type(choices[0])
            metavar = self.metavar or METAVARS.get(getattr(read, "func", read))
            if short and choices and len(choices) > 3:
                metavar = "NAME"
            how = {"type": read, "choices": choices, "metavar": metavar, "nargs": self.nargs,
                   "const": "" if self.nargs == "?" else None}
        group.add_argument(*flags, default=self.default, help=text, **how)


def flag(name: str, text: str, common: bool = False) -> Option:
    """The row of an option without a value, which is False where it is not given."""
    return Option(name, FLAG, False, text, common)


class Table:
    """The options of a command. groups: {title: rows}. settled: names of values that the data give,
    which are stored with the options and are no options themselves."""

    def __init__(self, description: str, groups: dict[str, list[Option]],
                 advice: dict[str, str] | None = None, settled: tuple[str, ...] = ()):
        self.description, self.groups, self.advice = description, groups, advice
        self.rows = {row.name: row for rows in groups.values() for row in rows}
        self.settled = dict.fromkeys(settled)
        self.defaults = {name: row.default for name, row in self.rows.items()} | self.settled

    def parser(self, short: bool = False) -> Arguments:
        """The parser of all options, or, short, of the common ones, to print its help."""
        p = Arguments(self.description, self.advice, add_help=False, usage="%(prog)s [options]")
        p.table = self
        p.set_defaults(**self.settled)
        p.add_argument("-h", "--help", action=Help, nargs="?", choices=["all"], metavar="all",
                       default=argparse.SUPPRESS, help="show this; --help all: all options")
        for title, rows in self.groups.items():
            shown = [row for row in rows if row.common or not short]
            group = p.add_argument_group(title) if shown else None
            for row in shown:
                row.add_to(group, short)
        if short:
            p.epilog = f"`{p.prog} --help all` explains all {len(self.rows)} options."
        return p


class Help(argparse.Action):
    """--help: the options that most calls need, where a table marks some; --help all: all."""

    def __call__(self, parser, namespace, value, flag=None):
        short = value is None and any(row.common for row in parser.table.rows.values())
        parser.table.parser(short).print_help()
        parser.exit()


def refuse(conflicts, opt, **more) -> None:
    """Raise InputError with the first sentence that holds, formatted with the options and what
    stands beside them. conflicts: pairs, whether something cannot work and what says so."""
    sentence = next((sentence for wrong, sentence in conflicts if wrong), None)
    if sentence:
        raise InputError(sentence.format_map({**vars(opt), **more}))
