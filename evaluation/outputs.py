"""Names of the files that a command writes, and checks of them before the work.

evaluate.py and the programs of confidence/ name their results here, so that the files of a run lie
beside each other under names of one form.
"""

import os

from checkpoint import Trained
from utils import InputError, output, repeated

MAX_STEM = 120  # characters of a file's name before .json


# ---- names


def name_results_file(
    paths: list[str], models: list[Trained], opt, name: str = "results", *more: str | None
) -> str:
    """Return the path of the results.

    NAME.json in the run folder for the test split of the run's own data by its own similarity, else
    NAME_SIM_DATA_SPLIT.json; FILE_NAME.json beside a file; --output names another. While a run is
    still training its results are called unfinished.

    Args:
        paths: the run, the runs of an ensemble, or the file of embeddings or scores.
        models: those of the runs; none for a file.
        opt: options with output, sim, data_name and split.
        name: what the results are of.
        more: words at the end; None is left out.
    """
    if opt.output:
        return opt.output

    folder, file = os.path.split(paths[0])
    if os.path.isdir(paths[0]):
        folder = paths[0]
        file = "model_best.pt"
    words = [name]
    if file != "model_best.pt":
        stem = os.path.splitext(file)[0].removesuffix(".pth")
        words = [f"{stem}_{name}"]
    if len(paths) > 1:
        words.append("ensemble")
        words += [os.path.basename(os.path.normpath(path)) for path in paths]

    if models:
        own = models[0].options
        if opt.sim != own.sim:
            words.append(opt.sim)
        data = (opt.data_name or own.data_name, opt.split or "test")
        if data != (own.data_name, "test"):
            words += data
    else:
        words.append(opt.sim)

    words += more
    if any(model.training for model in models):
        words.append("unfinished")
    return os.path.join(folder, join_to_json(words))


def name_comparison_file(models: dict[str, Trained], opt) -> str:
    """Return the path of the results of --compare, named after the first run of each group."""
    if opt.output:
        return opt.output

    words = ["comparison"]
    for group in opt.compare:
        path = os.path.normpath(group.split(",")[0])
        words.append(os.path.splitext(os.path.basename(path))[0])
    words += [opt.data_name, opt.split]
    if any(model.training for model in models.values()):
        words.append("unfinished")
    return join_to_json(words)


def join_to_json(words: list[str | None]) -> str:
    """Join words to the name of a .json file; None is left out."""
    stem = "_".join(word for word in words if word)
    return stem[:MAX_STEM].replace(os.sep, "_") + ".json"


def name_file_beside(name: str, target: str, results: str = "results", ending: str = "png") -> str:
    """Return the path of another file beside the results.

    NAME_DATA_SPLIT.png beside results_DATA_SPLIT.json, mine_NAME.png beside mine.json.
    """
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    if results in stem:
        stem = stem.replace(results, name, 1)
    else:
        stem = f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.{ending}")


# ---- checks before the work


def check_outputs(outputs, inputs: list[str | None], opt, more=()) -> None:
    """Check the files that will be written, and --export, before the work.

    Raises InputError where one cannot be written, is named for two things, or exists without
    --overwrite.

    Args:
        outputs: paths of the files.
        inputs: paths that the command reads, the run or file itself first; None is left out.
        opt: options with export, output and overwrite.
        more: those of the outputs that the user names, besides --export and --output.
    """
    outputs = list(outputs)
    if opt.export:
        outputs.append(opt.export)
    twice = repeated([os.path.realpath(path) for path in outputs])
    if twice is not None:
        raise InputError(
            f"--export, --output or a file beside it name one file ({twice}) for two "
            "things; name another"
        )

    read = [path for path in inputs if path]
    for path in outputs:
        named = path in (opt.export, opt.output, *more)
        # beside a run that does not exist nothing is tried
        if named or os.path.exists(inputs[0]):
            output(path, read, opt.overwrite or not named)
