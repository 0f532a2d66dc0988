"""A command's options as a table: each is declared once, as a row.

A row says the option's type, default and help, and what it needs to have an effect. From the rows
come the parser, the help, and the refusal of an option that has none.
"""
import argparse
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from cli import Arguments, InputError, bounded, filename, number, sizes, whole

FLAG, SWITCH = "store_true", argparse.BooleanOptionalAction     # --x alone; --x and --no-x
METAVARS = {filename: "FILE", whole: "N", bounded: "X", number: "X", sizes: "SIZES"}


Uses = tuple[tuple[Callable, str], ...]


def needs(rule: Callable, where: str) -> Uses:
    """What an option needs to have an effect: a rule on all options, and its words."""
    return ((rule, where),)


def only(name: str, *values: str) -> Uses:
    """Of an option that counts where another has one of these values; none: where it is given."""
    return needs(lambda opt: getattr(opt, name) in values if values else getattr(opt, name),
                 f"--{name} {' and '.join(values)}".strip())


class Option(NamedTuple):
    """A row. kind: a function that reads a word, the values that can be chosen, FLAG or SWITCH.
    used_by: what it needs to have an effect. common: whether the short help shows it."""
    name: str
    kind: Callable | str | Collection
    default: object
    help: str
    used_by: Uses = ()
    common: bool = False
    metavar: str | None = None
    nargs: str | None = None
    alias: str | None = None

    @property
    def switch(self) -> bool:
        """Whether it is true or false."""
        return self.kind in (FLAG, SWITCH)

    def takes(self, value) -> bool:
        """Whether it can have a value: None where that is its default, else what a word is read
        as."""
        if value is None or self.switch:
            return value is self.default or isinstance(value, bool)
        try:
            return not isinstance(value, bool) and (
                self.kind(str(value)) == value if callable(self.kind) else value in self.kind)
        except ValueError:
            return False

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


def flag(name: str, text: str, used_by: Uses = (), common: bool = False) -> Option:
    """The row of an option without a value, which is False where it is not given."""
    return Option(name, FLAG, False, text, used_by, common)


class Table:
    """The options of a command. groups: {title: rows}. unused: the sentence about an option that
    has no effect, formatted with its `flag`, flag and value as `shown`, and `where` it has one."""

    def __init__(self, description: str, groups: dict[str, list[Option]], unused: str,
                 advice: dict[str, str] | None = None):
        self.description, self.groups = description, groups
        self.unused, self.advice = unused, advice
        self.rows = {row.name: row for rows in groups.values() for row in rows}
        self.defaults = {name: row.default for name, row in self.rows.items()}

    def parser(self, short: bool = False) -> Arguments:
        """The parser of all options, or, short, of the common ones, to print its help."""
        p = Arguments(self.description, self.advice, add_help=False, usage="%(prog)s [options]")
        p.table = self
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

    def refuse_unused(self, opt, implied: dict[str, Callable] | None = None) -> None:
        """Raise InputError where an option was given that changes nothing. implied: what options
        are where they are not given, by all others, if that is not the default of their row."""
        for name, row in self.rows.items():
            where = next((where for rule, where in row.used_by if not rule(opt)), None)
            value = getattr(opt, name)
            usual = implied[name](opt) if implied and name in implied else row.default
            if where and value != usual:
                flag = f"--{'no-' * (value is False)}{name}"
                shown = flag if row.switch else f"{flag} {value}"
                raise InputError(self.unused.format(flag=flag, shown=shown, where=where))


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
