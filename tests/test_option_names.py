"""Names of options that mean one thing in all programs, and the older names that are still taken."""

import argparse

import pytest

import train
import utils
from features import images
from options import add_options, defaults, list_options, training_parser
from photos import make_model
from phrases import counts, evaluate, proposals, regions
from tests.helpers import refused
from vg_experiments import selection, uncertainty


@pytest.fixture
def parsed(monkeypatch):
    """parsed(main, words): the options that a program reads, which does not work on."""
    found = []
    monkeypatch.setattr(utils, "run", lambda prog, work, *args: found.append(args))

    def parse(main, words):
        main(words.split())
        return next(arg for arg in found.pop() if hasattr(arg, "_get_kwargs"))

    return parse


def test_tables_declare_options_of_every_kind():
    p = utils.Arguments("Try.")
    table = {
        "rate": (float, 0.1, "a rate"),
        "steps": (int, 2, "a number"),
        "fast": (bool, None, "on or off"),
        "dry": (utils.flag, False, "on"),
        "kind": (("a", "b"), "a", "one of two"),
        "name": (None, None, "a text", "NAME"),
    }
    add_options(p, table, {"rate": table["rate"]})  # the same declaration counts once
    words = "--rate 0 --steps 3 --no-fast --dry --kind b --name x"
    expected = {"rate": 0.0, "steps": 3, "fast": False, "dry": True, "kind": "b", "name": "x"}
    assert vars(p.parse_args(words.split())) == expected
    assert "--rate X" in p.format_help() and "--steps N" in p.format_help()

    with pytest.raises(argparse.ArgumentError, match="conflicting option string"):
        add_options(p, {"rate": (float, 0.2, "another rate")})


def test_flags_of_other_code_are_not_needed_to_check_a_checkpoint():
    own = training_parser(foreign_flags=False)
    everything = training_parser()
    assert [*list_options(own)] == [*list_options(everything)]
    assert defaults(own) == defaults(everything)
    assert everything.parse_args(["--lr", "1"]).learning_rate == 1
    with pytest.raises(SystemExit):
        own.parse_args(["--lr", "1"])


def test_the_photos_that_are_read_are_a_folder(parsed, capsys):
    """Elsewhere --photos is where the photos of features lie, which are drawn."""
    for flag in ("--folder", "--photos"):
        opt = parsed(images.main, f"{flag} mine --output_name mine")
        assert opt.folder == "mine" and not hasattr(opt, "photos")

    with pytest.raises(SystemExit):
        images.main(["--help"])
    text = capsys.readouterr().out
    assert "--folder FOLDER" in text and "--photos" not in text


@pytest.mark.parametrize("main", [selection.main, uncertainty.main])
def test_output_is_a_file_and_output_folder_a_folder(parsed, main):
    for flag in ("--output_folder", "--output"):
        assert parsed(main, f"--checkpoint A {flag} figures").output_folder == "figures"
        assert parsed(make_model.main, f"{flag} model").output_folder == "model"


def test_dev_is_the_word_and_val_is_taken(parsed, capsys):
    opt = parsed(images.main, "--output_name new --splits train val dev")
    assert opt.splits == ["train", "dev", "dev"]

    data = "--data_name f30k_entities"
    for name in ("dev", "val"):
        assert parsed(evaluate.main, f"--split {name}").split == "val"  # as the files are named
        for program in (counts, proposals, regions):
            assert parsed(program.main, f"{data} --splits {name} test").splits == ["val", "test"]

    for program in (proposals, regions):
        assert parsed(program.main, data).splits is None  # all
    message = "argument --split: 'devel' is not a split; give train, dev or test"
    refused(capsys, evaluate.main, ["--split", "devel"], message)


def test_a_run_has_one_word_in_the_help(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"{flag} RUN" in text for flag in ("--logger_name", "--init_from"))
    assert "--resume [RUN]" in text
