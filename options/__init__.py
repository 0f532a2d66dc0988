"""The options of commands: tables of rows, and the rules that rows cannot say."""
from options.rules import resolve as resolve
from options.training import TRAIN

parser = TRAIN.parser
