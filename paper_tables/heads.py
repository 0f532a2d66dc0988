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
from paper_tables.common import value
from paper_tables.runs import Step, make

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


def steps(opt, seed: int) -> dict[str, list[Step]]:
    """{row: its steps in order}. The target of the last one is the file of its results."""
    def run(row: str) -> str:
        return os.path.join(opt.runs, f"{row}_seed{seed}")

    def trained(words: list[str], folder: str) -> Step:
        return Step(["train.py", *where, *words, "--logger_name", folder, "--workers", "0"], "",
                    f"{folder}.txt", folder)

    def evaluated(folder: str, name: str, *words: str) -> Step:
        results = f"{name}_confidence.json"
        return Step(["evaluate.py", "--checkpoint", folder, "--confidence", *words, "--output",
                     results], results, f"{name}.txt", after=os.path.join(folder, "model_best.pt"))

    where = ["--data_name", opt.data_name, "--data_path", opt.data_path, "--seed", str(seed)]
    base, share = run("point"), f"--supervised_fraction {opt.fraction}"
    rows, first = {}, []
    head = (f"--text_features {opt.given} --img_layers 0 --txt_layers 0 "
            f"--embed_size {opt.embed_size}").split()
    if not opt.given:
        first = [trained(f"{opt.encoder} {POINT} {share}".split(), base)]
        rows["the points"] = [*first, evaluated(base, base)]
        head = [*f"{opt.encoder} {share} --held_out".split(), "--init_from", base, "--freeze_means"]
    for row, flags in HEADS.items():
        folder = run(row.split(" (")[0].replace(", ", "_").replace(" ", "_"))
        own = "" if "var_layers" in flags or "probvlm" in flags else "--var_layers 256"
        rows[row] = [*first, trained([*head, *f"{TRAINED} {flags} {own}".split()], folder),
                     evaluated(folder, folder)]
    for row, kind in WITHOUT_TRAINING.items() if first else ():
        rows[row] = [*first, evaluated(base, run(kind), "--variances", kind)]
    return rows


def cells(files: list[str]) -> list[str]:
    """A line of the table: means over the seeds that have results."""
    stored = [read_json(path, "delete it, and it is made again") for path in files
              if os.path.exists(path)]
    line = []
    for name, path in COLUMNS:
        numbers = [x for x in (value(results, path) for results in stored) if x is not None]
        line.append(f"{mean(numbers):.{1 if name == 'rsum' else 3}f}" if numbers else "-")
    return line


def run(opt) -> int:
    if opt.output:
        output(opt.output, holds_keys("columns", "rows"))
    seeds = [steps(opt, seed) for seed in range(opt.seeds)]
    failed = make([(f"{row}, seed {seed}", made) for seed, rows in enumerate(seeds)
                   for row, made in rows.items()], opt.dry_run)
    if opt.dry_run:
        return 0
    names = [name for name, _ in COLUMNS]
    lines = {row: cells([rows[row][-1].target for rows in seeds]) for row in seeds[0]}
    print(render([("AUROC of whether the first answer is right", [("", names)],
                   list(lines.items()))], opt.format))
    if opt.output:
        save_json({"columns": names, "rows": lines}, opt.output)
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
