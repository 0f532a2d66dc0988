"""The files that evaluate.py writes: their names, and what is refused before the work begins."""
import os
from collections import Counter

from checkpoints import load_checkpoint
from cli import InputError
from evaluation import bank, confidence_plots, variances
from evaluation.certainty import wanted
from evaluation.compare import common_name
from evaluation.report import is_comparison
from evaluation.sources import is_embeddings, output_file
from files.reading import first_line, is_drawn, read_json
from files.writing import output
from runs import is_calibration, is_results

RANKS = ["protocol", "direction", "query", "id", "rank_from_0"]     # columns of --ranks
PHRASES = "phrases"                                         # the picture of phrases in their photos


def check_outputs(paths: list[str], opt) -> str:
    """The file of results. Raises InputError, before the work, where a file cannot be written, is not ours to replace,
    or is named for two things."""
    inputs = [path for path in (*paths, opt.vocab, opt.positives, opt.instances, opt.variances_from) if path]
    folder = paths[0] if os.path.isdir(paths[0]) else os.path.dirname(paths[0])
    target = opt.output or os.path.join(folder, default_name(paths, opt))
    names = ("uncertainty", "uncertain_images", "uncertain_captions") if opt.uncertainty else ()
    pictures = [beside(name, target) for name in (*names, *(confidence_plots.PICTURES if opt.confidence else ()))]
    kept = beside("calibration", target, "json") if wanted(opt) else None
    outputs = [path for path in (target, *pictures, kept, opt.export, opt.ranks) if path]
    twice = [path for path, n in Counter(map(os.path.realpath, outputs)).items() if n > 1]
    if twice:
        raise InputError(f"--export, --ranks, --output or a picture beside it name one file ({twice[0]}) for two "
                         "things; name another")
    if opt.export:
        output(opt.export, is_embeddings, inputs)
    if opt.ranks:
        output(opt.ranks, first_line(",".join(RANKS)), inputs)
    output_file(opt.output, paths[0], os.path.basename(target), is_results, inputs)
    for path in pictures if os.path.exists(os.path.dirname(target) or ".") else ():
        output(path, is_drawn)
    if kept and os.path.exists(os.path.dirname(target) or "."):
        output(kept, is_calibration, inputs)
    return target


def comparison_file(opt) -> str:
    """The file of a comparison. Raises InputError where it cannot be written, or holds another one."""
    paths = [path for group in opt.compare for path in group.split(",")]
    name = "_".join(os.path.basename(os.path.splitext(common_name(group.split(",")))[0]) for group in opt.compare)
    of_regions = f"_{opt.regions}" if opt.regions else ""
    default = f"comparison_{name[:80]}{of_split(opt)}{of_regions}{bank.suffix(opt)}.json".replace(os.sep, "_")

    def is_ours(path):
        return is_comparison(path) and (bool(opt.output) or set(read_json(path)["runs"]) == set(paths))
    return output(opt.output or default, is_ours, paths)


def default_name(paths: list[str], opt) -> str:
    """The file name of the results. results.json holds those of a run's own similarity on the test split of its own
    data; all others say in their names what they hold."""
    of_data, of_sim = "", f"_{opt.sim}" if opt.sim else ""
    if opt.embeddings or opt.scores:
        name = f"{os.path.splitext(os.path.basename(paths[0]))[0]}_results"
        of_data = of_split(opt)
    else:
        name, file = "results", os.path.basename(paths[0])
        if len(paths) > 1:
            name = "results_ensemble_" + "_".join(os.path.basename(os.path.normpath(path)) for path in paths)[:80]
        elif not os.path.isdir(paths[0]) and file != "model_best.pt":
            name = f"results_{file.split('.')[0]}"
        if opt.data_name or opt.split or opt.sim:
            trained = load_checkpoint(paths[0], vocab=opt.vocab)["options"]
            data_name, split = opt.data_name or trained["data_name"], opt.split or "test"
            same_data = (data_name, split) == (trained["data_name"], "test")
            of_data = "" if same_data else of_split(opt, trained["data_name"])
            of_sim = of_sim if opt.sim != trained["sim"] else ""
    of_data += f"_{opt.regions}" if opt.regions else ""
    return f"{name}{of_sim}{of_data}{bank.suffix(opt)}{variances.suffix(opt)}.json".replace(os.sep, "_")


def of_split(opt, data_name: str = "") -> str:
    """The part of a file's name that names the data and the split; empty where the options name neither."""
    few = "" if opt.dev_images is None else str(opt.dev_images)
    named = filter(None, [opt.data_name or data_name, f"{opt.split or 'test'}{few}"])
    return "_".join(["", *named]) if opt.data_name or opt.split else ""


def beside(name: str, target: str, ending: str = "png") -> str:
    """The file of a picture beside that of the results: NAME_DATA_SPLIT.png beside results_DATA_SPLIT.json,
    CLIP_NAME.png beside CLIP_results.json, mine_NAME.png beside mine.json."""
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    stem = stem.replace("results", name, 1) if "results" in stem else f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.{ending}")
