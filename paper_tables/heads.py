"""Which variance tells how sure a model is? Heads on frozen embeddings in one table, by the
confidence report.

    python -m paper_tables.heads --data_path D --data_name f8k_precomp                          # on a point model
    python -m paper_tables.heads --data_path D --data_name clip --given clip --embed_size 512   # on CLIP's vectors

A point model is trained on a share of the training pairs and stays as it is. Every head learns
variances of its means on the other pairs, as those that the model knows by heart would all look
certain. With --given NAME the vectors of {split}_ims.npy and {split}_NAME.npy are the means
themselves, and heads learn on all pairs. Runs that are complete are not made again.
"""
import os
import sys
from statistics import mean

import cli
from cli import Arguments, data_set, filename, fraction, positive
from evaluation.report import FORMATS, render
from files.reading import holds_keys, read_json
from files.writing import output, save_json
from paper_tables.runs import Step, Stopped, execute

ENCODER = "--text_features minilm --txt_layers 1024 --embed_size 512"
POINT = ("--sim cosine --loss infonce --mask_same_image --batch_size 512 --num_epochs 8 "
         "--learning_rate 1e-3 --schedule cosine --warmup 1 --dropout 0.2 --weight_decay 0.05")
# every head
TRAINED = "--batch_size 512 --num_epochs 5 --learning_rate 1e-3 --schedule cosine --warmup 1"
# Row of the table -> what it learns; the last two need no training (evaluate.py --variances).
HEADS = {"mls": "--sim mls", "mls, captions alone": "--sim mls --image_head point",
         "csd, match (PCME++)": "--sim csd --loss match --var_min 1e-5 --logvar_init -6 "
         "--var_layers 256", "the same with inclusion (ProLIP)": "--sim csd --loss match --var_min "
         "1e-5 --logvar_init -6 --var_layers 256 --inclusion 1",
         "von Mises-Fisher (AsymVLM)": "--sim vmf",
         "generalised Gaussian (ProbVLM)": "--loss probvlm"}
WITHOUT_TRAINING = {"Laplace (BayesVLM)": "laplace", "scatter of ten neighbours": "knn"}
COLUMNS = [("rsum", "protocols/full/rsum"),
           *((f"{side} {head}", f"confidence/{side}/{path}") for side,
             best in (("t2i", "posterior"), ("i2t", "posterior_grouped")) for head,
             path in (("posterior", f"{best}/auroc"), ("log det", "log_det_query/auroc"),
                      ("without", "stacked_without_sigma/auroc"), ("with", "stacked/auroc"),
                      ("low", "stacked/above_without_sigma/low"),
                      ("high", "stacked/above_without_sigma/high")))]


def steps(opt, seed: int) -> dict[str, tuple[list[Step], str]]:
    """{row: (its steps in order, the file of its results)}."""
    where = ["--data_name", opt.data_name, "--data_path", opt.data_path]
    common = [*where, "--seed", str(seed), *opt.encoder.split()]
    given = f"--text_features {opt.given} --img_layers 0 --txt_layers 0 --embed_size {opt.embed_size}".split()
    base = os.path.join(opt.runs, f"point_seed{seed}")
    share = ["--supervised_fraction", str(opt.fraction)]
    first = [] if opt.given else [trained([*common, *POINT.split(), *share], base)]
    frozen = [*share, "--held_out", "--init_from", base, "--freeze_means"]
    found = {} if opt.given else {"the points": evaluated(first, base, base, [])}
    for row, flags in HEADS.items():
        folder = os.path.join(opt.runs, f"{row.split(' (')[0].replace(', ', '_').replace(' ', '_')}_seed{seed}")
        words = [*([*where, "--seed", str(seed), *given] if opt.given else [*common, *frozen]),
                 *TRAINED.split(), *flags.split(), *["--var_layers", "256"]
                 * ("var_layers" not in flags and "probvlm" not in flags)]
        found[row] = evaluated([*first, trained(words, folder)], folder, folder, [])
    for row, kind in WITHOUT_TRAINING.items() if not opt.given else ():
        found[row] = evaluated(first, base, os.path.join(opt.runs, f"{kind}_seed{seed}"),
                               ["--variances", kind])
    return found


def trained(words: list[str], folder: str) -> Step:
    return Step(["train.py", *words, "--logger_name", folder, "--workers", "0"], "",
                f"{folder}.txt", folder)


def evaluated(before: list[Step], run: str, name: str, words: list[str]) -> tuple[list[Step], str]:
    results = f"{name}_confidence.json"
    return [*before,
            Step(["evaluate.py", "--checkpoint", run, "--confidence", *words, "--output", results],
                 results, f"{name}.txt", after=os.path.join(run, "model_best.pt"))], results


def value(stored: dict, path: str) -> float | None:
    for key in path.split("/"):
        stored = stored.get(key) if isinstance(stored, dict) else None
    return stored


def rows(opt) -> list[tuple[str, list[str]]]:
    """The table's lines: mean over the seeds that have results."""
    made = {}
    for seed in range(opt.seeds):
        for row, (_, path) in steps(opt, seed).items():
            stored = read_json(path,
                               "delete it, and it is made again") if os.path.exists(path) else {}
            made.setdefault(row, []).append([value(stored, column) for _, column in COLUMNS])
    lines = []
    for row, seeds in made.items():
        cells = [[number for number in column if number is not None] for column in zip(*seeds)]
        lines.append((row, [(f"{mean(c):.1f}" if name == "rsum" else f"{mean(c):.3f}") if c else "-"
                            for c, (name, _) in zip(cells, COLUMNS)]))
    return lines


def run(opt) -> int:
    if opt.output:
        output(opt.output, holds_keys("columns", "rows"))
    if opt.dry_run:
        said = [step.shown for seed in range(opt.seeds) for made, _ in steps(opt, seed).values()
                for step in made]
        print("\n".join(dict.fromkeys(said)))
        return 0
    failed = []
    for seed in range(opt.seeds):
        for row, (made, _) in steps(opt, seed).items():
            for step in (step for step in made if not step.done):
                print(f"{row}, seed {seed}: {step.shown}", file=sys.stderr, flush=True)
                try:
                    wrong = execute(step)
                except Stopped:
                    sys.exit(f"stopped at {row}, seed {seed}; the same command goes on")
                if wrong:
                    failed.append(f"{row}, seed {seed}: {wrong}")
                    break
    lines = rows(opt)
    print(render([("AUROC of whether the first answer is right",
                   [("", [name for name, _ in COLUMNS])], lines)], opt.format))
    if opt.output:
        save_json({"columns": [name for name, _ in COLUMNS], "rows": dict(lines)}, opt.output)
    for sentence in failed:
        print(f"failed: {sentence}", file=sys.stderr)
    return int(bool(failed))


def main(argv=None) -> None:
    p = Arguments("Heads on frozen embeddings, compared by the confidence report.")
    p.add_argument("--data_path", type=filename, default="data", help="folder that holds the data "
                   "sets")
    p.add_argument("--data_name", type=data_set, default="f8k_precomp",
                   help="data set below --data_path")
    p.add_argument("--encoder", default=ENCODER, metavar="OPTIONS", help="encoders of the point "
                   "model, as options of train.py in quotes (default: '%(default)s')")
    p.add_argument("--given", metavar="NAME", help="no point model: the features of images and "
                   "{split}_NAME.npy of captions are the means")
    p.add_argument("--embed_size", type=positive, default=512, help="width of the vectors of "
                   "--given")
    p.add_argument("--fraction", type=fraction, default=0.67, help="share of the images that the "
                   "point model learns from")
    p.add_argument("--seeds", type=positive, default=1, help="how many seeds")
    p.add_argument("--runs", type=filename, default="runs/heads", help="folder of the runs")
    p.add_argument("--format", choices=FORMATS, default="text", help="of the table")
    p.add_argument("--output", type=filename, metavar="FILE", help="write the table there as JSON")
    p.add_argument("--dry_run", action="store_true", help="print the commands and run nothing")
    sys.exit(cli.run("paper_tables.heads", run, p.parse_args(argv)))


if __name__ == "__main__":
    main()
