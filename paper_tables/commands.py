"""Commands of a table's rows: a program, and its options by name.

`train(data_name="coco", method="vse++", feature_norm=False)` stands for
`train.py --data_name coco --method vse++ --no-feature_norm`, which is what is printed and run.
"""

from typing import NamedTuple

from methods import METHODS

RUN = "RUN"  # stands for the folder of the training before, as in init_from=RUN
CCA = "-m methods.cca"


class Command(NamedTuple):
    """A program and its options, in the order in which they are typed.

    program: a script, or -m and a module.
    options: True for a switch (--name), False for one that is off (--no-name), a list for several
        words, else a number or a text. Rates are texts, as 1e-4 would be spelled 0.0001.
    """

    program: str
    options: dict

    @property
    def words(self) -> list[str]:
        return [*self.program.split(), *spell_options(self.options)]

    def __str__(self) -> str:
        return " ".join(self.words)

    def expand(self) -> dict:
        """The options, with those of its method in place of --method.

        The last of equal options counts, as in argparse.
        """
        options = {}
        for name, value in self.options.items():
            if name == "method":
                options |= METHODS[value].options
            else:
                options[name] = value
        return options


def train(**options) -> Command:
    return Command("train.py", options)


def evaluate(**options) -> Command:
    return Command("evaluate.py", options)


def run_module(name: str, /, **options) -> Command:
    return Command(f"-m {name}", options)


def spell_value(value) -> str:
    """Write a number or a text as it is typed: 1e-5 in place of Python's 1e-05."""
    if isinstance(value, float):
        return str(value).replace("e-0", "e-")
    return str(value)


def spell_options(options: dict) -> list[str]:
    """Write options as the words of a command line."""
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, list):
            words += [f"--{name}", *value]
        else:
            words += [f"--{name}", spell_value(value)]
    return words


def read_command(line: str) -> Command:
    """Read a command that was written by `Command.__str__`; all values are texts."""
    program, *parts = line.split(" --")
    options = {}
    for part in parts:
        name, _, value = part.partition(" ")
        if value:
            options[name] = value
        elif name.startswith("no-"):
            options[name.removeprefix("no-")] = False
        else:
            options[name] = True
    return Command(program, options)
