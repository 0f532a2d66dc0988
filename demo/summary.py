"""Say in words what make demo trained, how good it is and what to try next.

python -m demo.summary runs/demo
"""

import os

import utils
from utils import Arguments, InputError, filename, need, read_json, read_yaml


def read_run(run: str) -> tuple[dict, dict, dict]:
    """Read the options of a run, its results.json and its confidence.json.

    Raises InputError where one is missing.
    """
    config = os.path.join(run, "config.yaml")
    options = read_yaml(need(config, "train the demo with: make demo"))["options"]
    evaluation = f"write it with: python evaluate.py --checkpoint {run} --uncertainty"
    path = os.path.join(run, "results.json")
    results = read_json(need(path, evaluation))
    confidence_path = os.path.join(run, "confidence.json")
    confidence = read_json(need(confidence_path, f"write it with: python -m confidence {run}"))
    uncertainty = results.get("uncertainty", {})
    if "recall_bins" not in uncertainty.get("captions", {}):
        raise InputError(f"{path} lacks recalls by tenths of Gaussian captions; {evaluation}")
    return options, results, confidence["confidence"]


def summarize(run: str) -> list[str]:
    """Five sentences on a run from its config.yaml, results.json and confidence.json.

    Raises InputError where one is missing.
    """
    options, results, confidence = read_run(run)
    images = results["protocols"]["full"]["i2t"]
    captions = results["protocols"]["full"]["t2i"]
    chance = results["chance"]["full"]["t2i"]
    tenths = results["uncertainty"]["captions"]["recall_bins"]["recall"]
    auroc = confidence["t2i"]["posterior"]["auroc"]
    pictures = (
        f"Pictures in {run}: retrieval.png (answers), confidence_examples.png (how sure), "
        "uncertain_captions.png"
    )
    if os.path.isfile(os.path.join(run, "tables.txt")):
        pictures += "; all tables: tables.txt"
    return [
        f"Trained: Gaussians of {options['embed_size']} dimensions with the similarity "
        f"{results['similarity']}, {options['num_epochs']} epochs on drawn scenes; judged on "
        f"{results['images']:,} other images and {results['captions']:,} captions.",
        f"Retrieval: the top-1 image is right for {captions['r1']:.0f}% of the captions (chance "
        f"{chance['r1']:.1f}%), one of the first ten for {captions['r10']:.0f}% (chance "
        f"{chance['r10']:.0f}%); for images {images['r1']:.0f}% and {images['r10']:.0f}%. Most "
        "captions are true of many images: 100% is out of reach.",
        "Uncertainty: the tenth of the captions with the smallest variances find their image first "
        f"in {tenths[0]:.0f}%, the tenth with the largest in {tenths[-1]:.0f}%. A right answer has "
        f"a higher probability than a wrong one in {100 * auroc:.0f}% of the pairs.",
        f"{pictures}.",
        "Next, after `. .venv/bin/activate`: python train.py --config demo.yaml --sim cosine "
        "--loss infonce --logger_name runs/points (the same without variances); "
        f"python evaluate.py --compare runs/points {run}; make search-demo",
    ]


def print_summary(run: str) -> None:
    print()
    for sentence in summarize(run):
        print(sentence)


def main(argv=None) -> None:
    p = Arguments(__doc__.splitlines()[0])
    p.add_argument("run", type=filename, nargs="?", default="runs/demo", help="run folder")
    opt = p.parse_args(argv)
    utils.run("demo.summary", print_summary, opt.run)


if __name__ == "__main__":
    main()
