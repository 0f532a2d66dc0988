"""The tables of results that README.md and docs/ show, printed from what evaluate.py wrote.

    python -m results                                       # all of them
    python -m results regions                               # one
    python -m results --write                               # into README.md and docs/*.md, between their marks
    python -m results --add vsrn_0 runs/f8k_region_precomp_cosine_seed0      # keep a run's results.json
    python -m results --add cca_0 cca.json --by "python cca.py --text tfidf" # and those of embeddings, evaluated
    python -m results --add a_b c.json --by "python evaluate.py --compare ..." # and what a comparison found

rows.yaml says which runs make a row (several seeds: their mean, and the deviation of rsum);
NAME.json is the run's results.json with its command, the commit of the code and the versions that
made it. A document shows table NAME between the lines <!-- results: NAME --> and <!-- /results -->.
"""
import glob
import os
import re
import shlex
import subprocess
from statistics import mean, stdev

import cli
import methods
from checkpoints import load_checkpoint
from cli import Arguments, check, filename
from files.reading import read_json, read_text, read_yaml
from files.writing import save_json, save_lines
from results import value

HERE = os.path.dirname(os.path.abspath(__file__))
LOCAL = {"data_path", "vocab_path", "logger_name", "device", "workers", "log_step", "val_step",
         "overwrite", "resume"}
KEPT = ("data_name", "models", "split", "similarity", "images", "captions", "protocols",
        "best_ranks", "neighbours", "confidence", "sets", "absent_queries", "ambiguity",
        "other_truths", "bank", "variances", "localisation", "proposals", "people")
DROPPED = ("reliability", "galleries", "by_type", "by_boxes", "macro")   # parts that no table shows
SIDES = ("i2t", "t2i")
RECALLS = [(f"{side} R@{k}" if k == 1 else f"R@{k}", f"protocols/full/{side}/r{k}")
           for side in SIDES for k in (1, 5, 10)]
BEST = {"t2i": "posterior", "i2t": "posterior_grouped"}     # the confidence that is shown
PEOPLE = "people/captions/measures"
COLUMNS = {
    "flags": [], "n": [],                                   # no numbers of results
    "recalls": RECALLS,
    "first": RECALLS[::3],
    "short": [column for k, column in enumerate(RECALLS) if k % 3 != 1],
    "rsum": [("rsum", "protocols/full/rsum")],
    "banked": [("rsum, bank", "protocols/bank/rsum")],
    "means": [("rsum, means only", "protocols/mean_only/rsum")],
    "dev": [("dev rsum", "dev_rsum")],
    "ranks": [("HBR", "best_ranks/i2t/hbr"), ("ABR", "best_ranks/i2t/abr")],
    "neighbours": [("neighbours, %", "neighbours/jaccard"), ("chance", "neighbours/chance")],
    **{f"sure_{side}": [(head, f"confidence/{side}/{path}") for head, path in (
        ("posterior", f"{best}/auroc"), ("max", "max/auroc"),
        ("log det Sigma", "log_det_query/auroc"), ("logistic of all", "stacked/auroc"),
        ("AURC under flat, %", f"{best}/under_flat"),
        ("ECE", f"{best}/ece"), ("its floor", f"{best}/ece_floor"))]
       for side, best in BEST.items()},
    "sure": [(head, f"confidence/{side}/{path}/auroc") for side, best in BEST.items()
             for head, path in ((f"{side} posterior", best), ("log det Sigma", "log_det_query"),
                                ("without Sigma", "stacked_without_sigma"), ("with", "stacked"))],
    "sets": [(f"{side} {head}", f"sets/{side}/lac/{key}") for side in SIDES
             for head, key in (("coverage", "coverage"), ("mean size", "mean_size"))],
    "bank": [(f"{path.replace('/r', ' R@')}{head}", f"protocols/{name}/{path}")
             for path in ("rsum", "i2t/r1", "i2t/r10", "t2i/r1", "t2i/r10")
             for name, head in (("full", ""), ("bank", ", bank"))],
    "ambiguity": [(head, f"ambiguity/{path}") for head, path in (
        ("captions: entropy", "captions/entropy/rho"),
        ("given words", "captions/entropy/rho_given_words"),
        ("in levels", "captions/entropy/rho_within_levels"), ("maximum", "captions/max/rho"),
        ("log det Sigma", "captions/log_det_query/rho"), ("trace", "captions/trace_query/rho"),
        ("images: entropy", "images/entropy/rho"), ("each caption", "images/entropy_each/rho"),
        ("deviation", "images/std/rho"), ("log det Sigma", "images/log_det_query/rho"))],
    "people": [
        ("captions: log det Sigma", f"{PEOPLE}/log_det_query/rho"),
        ("given words", f"{PEOPLE}/log_det_query/rho_given_words"),
        ("expected, votes", f"{PEOPLE}/expected_by_votes/rho"),
        ("own pairs", f"{PEOPLE}/expected/rho"), ("maximum", f"{PEOPLE}/max/rho"),
        ("entropy", f"{PEOPLE}/entropy/rho"),
        ("images: log det Sigma", "people/images/measures/log_det_query/rho")],
    "unfamiliar": [
        (f"{side}: {head}", f"other_truths/unfamiliar/{side}/{key}/rho")
        for side in ("captions", "images") for head, key in (
            ("log det Sigma", "log_det_query"), ("entropy", "entropy"), ("maximum", "max"))],
    "fits": [
        ("rsum", "protocols/full/rsum"),
        ("experts, tau-c", "people/files/ExpertAnnotations.txt/tau"),
        ("crowd, tau-b", "people/files/CrowdFlowerAnnotations.txt/tau"),
        ("NLL of a vote", "people/pairs/fitted/nll"), ("with Sigma", "people/pairs/with Sigma/nll"),
        ("ECE", "people/pairs/with Sigma/ece"), ("its floor", "people/pairs/with Sigma/ece_floor")],
    "difference": [(head, f"comparison/{key}") for head, key in (
        ("rsum of the first", "a"), ("of the second", "b"), ("difference", "difference"),
        ("95% from", "low"), ("to", "high"), ("pairs of seeds", "pairs"))],
    "truth": [(f"{side} {head}", f"protocols/positives{of}/{side}/{key}")
              for side in SIDES for head, of, key in (
                  ("P@1", "", "r1"), ("R-P", "", "rp"), ("R-P, means", "_mean_only", "rp"),
                  ("R-P, dealt", "_shuffled", "rp"))],
    "localisation": [
        ("R@1", "localisation/r1"), ("R@5", "localisation/r5"), ("R@10", "localisation/r10"),
        ("pointing", "localisation/pointing"), ("IoU", "localisation/iou"),
        ("AUROC of all boxes there", "confidence/phrases/overlap/auroc"),
        ("of the first box", "confidence/phrases/posterior/auroc"),
        ("log det Sigma", "confidence/phrases/log_det_query/auroc"),
        ("ECE", "confidence/phrases/overlap/ece")]}
THREE_DIGITS = ("auroc", "ece", "ece_floor", "coverage", "rho", "words", "levels", "nll")
BLOCK = re.compile(r"^<!-- results: (\S+) -->\n(.*?)^<!-- /results -->$", re.DOTALL | re.MULTILINE)
METHODS_BLOCK = re.compile(r"<!-- methods -->\n.*?<!-- /methods -->", re.S)


def cell(name: str, path: str, runs: list[dict], counted: bool) -> str:
    """Mean over runs; of a sum of recalls its deviation, too, and with `counted` how many runs
    there are."""
    values = [value(run, path) for run in runs]
    if None in values:                                    # a point is its own mean and has no Sigma
        return ""
    digits = (2 if name == "HBR" else 3 if path.endswith(THREE_DIGITS)
              else 0 if path.endswith("pairs") else 1)
    shown = f"{mean(values):.{digits}f}"
    if path.endswith(("rsum", "auroc", "localisation/r1")) and len(values) > 1:
        shown += f" ± {stdev(values):.{digits}f}" + f" ({len(values)})" * counted
    return shown


def lines(table: dict) -> list[str]:
    """A table of rows.yaml in Markdown, below the command that trained its runs."""
    flags, counted = ("flags" in table["columns"]), ("n" in table["columns"])
    columns = [column for kind in table["columns"] for column in COLUMNS[kind]]
    heads = [table["of"], *["FLAGS"] * flags, *["n"] * counted, *(name for name, _ in columns)]
    output = ["```", f"python {table.get('script', 'train.py')} {table['command']} FLAGS"
              + " --seed SEED" * ("script" not in table), "```", ""] if "command" in table else []
    output += [row(heads), "|---" * len(heads) + "|"]
    for label, options, names in table["rows"]:
        runs = [read_json(os.path.join(HERE, f"{name}.json")) for name in names.split()]
        output.append(row([label, *[options] * flags, *[str(len(runs))] * counted,
                           *(cell(*column, runs, not counted) for column in columns)]))
    return output


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def tables() -> dict[str, list[str]]:
    specs = read_yaml(os.path.join(HERE, "rows.yaml"))
    return {name: lines(whole(table, specs)) for name, table in specs.items()}


def whole(table: dict, specs: dict[str, dict]) -> dict:
    """A table; one that is like others takes the named rows from them, and has rows of its own
    beside them. Of several each has a command of its own."""
    others = [specs[name] for name in table.get("like", "").split()]
    rows = {row[0]: row for other in others for row in other["rows"]}
    first = others[0] if len(others) == 1 else {}
    return {**first, **table, "rows": [rows[of] if isinstance(of, str) else of
                                       for of in table["rows"]]}


def documents() -> list[str]:
    return [os.path.join(HERE, "..", "README.md"),
            *sorted(glob.glob(os.path.join(HERE, "..", "docs", "*.md")))]


def filled(path: str, texts: dict[str, list[str]]) -> str:
    """A document's text with every block of results as it is printed."""
    def block(match):
        check(match[1] in texts,
              f"{path} shows a table {match[1]}; there are {', '.join(texts)}")
        return "\n".join([f"<!-- results: {match[1]} -->", *texts[match[1]], "<!-- /results -->"])
    every = "\n".join(["<!-- methods -->", *methods.table(), "<!-- /methods -->"])
    text = METHODS_BLOCK.sub(lambda _: every, read_text(path))
    check(text.count("<!-- results: ") == text.count("<!-- /results -->")
          == len(BLOCK.findall(text)),
          f"{path} has a block of results that does not open and close; write <!-- results: NAME "
          "--> and <!-- /results --> on lines of their own")
    return BLOCK.sub(block, text)


def evaluated(path: str) -> dict:
    """The part of what evaluate.py wrote that rows are made of."""
    results = read_json(path)
    if len(results.get("comparisons", [])) == 1:
        found, = results["comparisons"]
        return {"comparison": {**found["metrics"]["full rsum"], "seeds": found["seeds"],
                               "pairs": found["seeds"][0] if found["pairs"] else None}}
    check(results.get("checkpoints"),
          f"{path} is no results.json of a run, of an ensemble or of embeddings, and no comparison "
          "of two; give what evaluate.py wrote")
    if len(results["checkpoints"]) > 1:
        results["models"] = len(results["checkpoints"])     # an ensemble of seeds
    return {name: kept(results[name]) if name in ("confidence", "localisation") else results[name]
            for name in KEPT if name in results}


def kept(part):
    """What tables show of a part of the results."""
    if not isinstance(part, dict):
        return part
    return {key: kept(value) for key, value in part.items() if key not in DROPPED}


def stored(run: str, path: str) -> dict:
    """What a run's row is made of, without the places of the machine that made it; `path`: what
    evaluate.py wrote of the run."""
    results = evaluated(path)
    config = read_yaml(os.path.join(run, "config.yaml"))
    start, arguments, local = config["options"].get("init_from"), [], False
    for word in shlex.split(config["command"])[2:]:
        if word.startswith("--"):
            local = word.lstrip("-") in LOCAL
        if word == start or os.path.isabs(word):            # a run's or file's name is enough
            word = os.path.basename(os.path.normpath(word))
        arguments += [word] * (not local)
    known = not subprocess.run(["git", "merge-base", "--is-ancestor", config["git_commit"], "HEAD"],
                               cwd=HERE, check=False, capture_output=True).returncode
    if "models" not in results:
        results = {"dev_rsum": load_checkpoint(run)["state"]["best_rsum"], **results}
    return {"train": shlex.join(["python", "train.py", *arguments]),
            "git_commit": config["git_commit"] if known else "unknown",
            "versions": config["versions"], **results}


def main(argv=None) -> None:
    p = Arguments("Print the tables of results, or keep the results of a run.")
    p.add_argument("table", nargs="*", help="which (default: all)")
    p.add_argument("--write", action="store_true",
                   help="write the tables into README.md and docs/*.md, between their marks")
    p.add_argument("--add", nargs=2, type=filename, metavar=("NAME", "RUN"),
                   help="keep a run's results as results/NAME.json")
    p.add_argument("--results", type=filename, metavar="FILE",
                   help="with --add: what evaluate.py wrote of RUN, "
                   "on other data for one (default: RUN/results.json)")
    p.add_argument("--by", metavar="COMMAND",
                   help="with --add: the command that made the embeddings of which RUN, a file, "
                   "is the evaluation, or that made a comparison")
    cli.run(p.prog, command, p.parse_args(argv))


def command(opt) -> None:
    if opt.add:
        name, run = opt.add
        path = os.path.join(HERE, f"{name}.json")
        check(os.sep not in name and not os.path.lexists(path),
              f"--add {name}: it has to be the name of a new file in results/, without .json; name "
              "another, or remove the file first")
        save_json({"train": opt.by, **evaluated(run)} if opt.by
                  else stored(run, opt.results or os.path.join(run, "results.json")), path)
        return
    texts = tables()
    if opt.write:
        # all are sound before one is written
        new = {path: filled(path, texts) for path in documents()}
        for path, text in new.items():
            save_lines(path, text.splitlines())
        return
    for name in opt.table:
        check(name in texts, f"there is no table {name}; there are {', '.join(texts)}")
    print("\n\n".join("\n".join([f"{name}:", "", *texts[name]]) for name in opt.table or texts))


if __name__ == "__main__":
    main()
