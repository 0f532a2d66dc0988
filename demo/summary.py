"""Say in words what `make demo` trained, how good it is and what to try next.

    python -m demo.summary runs/demo
"""
import os

import cli
from cli import Arguments, check, filename
from files import need, read_json, read_yaml


def summarize(run: str) -> list[str]:
    """Five sentences on a run from its config.yaml, results.json and confidence.json.

    Raises InputError where one is missing.
    """
    config, results, confidence = (os.path.join(run, name) for name in ("config.yaml", "results.json",
                                                                        "confidence.json"))
    options = read_yaml(need(config, "train the demo with: make demo"))["options"]
    evaluation = f"write it with: python evaluate.py --checkpoint {run} --uncertainty"
    r = read_json(need(results, evaluation))
    sure = read_json(need(confidence, f"write it with: python -m confidence {run}"))
    images, captions = r["protocols"]["full"]["i2t"], r["protocols"]["full"]["t2i"]
    chance = r["chance"]["full"]["t2i"]
    check("recall_bins" in r["uncertainty"].get("captions", {}), f"{results} lacks recalls by tenths; {evaluation}")
    tenths = r["uncertainty"]["captions"]["recall_bins"]["recall"]
    auroc = sure["confidence"]["t2i"]["posterior"]["auroc"]
    return [
        f"Trained: Gaussians of {options['embed_size']} dimensions with the similarity {r['similarity']}, "
        f"{options['num_epochs']} epochs on drawn scenes; judged on {r['images']:,} other images and {r['captions']:,} "
        "captions.",
        f"Retrieval: the first answer is right for {captions['r1']:.0f}% of the captions (chance {chance['r1']:.1f}%), "
        f"one of the first ten for {captions['r10']:.0f}% (chance {chance['r10']:.0f}%); for images "
        f"{images['r1']:.0f}% and {images['r10']:.0f}%. Most captions are true of many images: 100% is out of reach.",
        "Uncertainty: the tenth of the captions with the smallest variances find their image first in "
        f"{tenths[0]:.0f}%, the tenth with the largest in {tenths[-1]:.0f}%. A right answer has a higher probability "
        f"than a wrong one in {100 * auroc:.0f}% of the pairs.",
        f"Pictures in {run}: retrieval.png (answers), confidence_examples.png (how sure), uncertain_captions.png"
        + "; all tables: tables.txt" * os.path.isfile(os.path.join(run, "tables.txt")) + ".",
        "Next, after `. .venv/bin/activate`: python train.py --config demo.yaml --sim cosine --loss infonce "
        "--logger_name runs/points (the same without variances); "
        f"python evaluate.py --compare runs/points {run}; make search-demo"]


def main(argv=None) -> None:
    p = Arguments("Say in words what make demo trained, how good it is and what to try next.")
    p.add_argument("run", type=filename, nargs="?", default="runs/demo", help="run folder")
    opt = p.parse_args(argv)
    cli.run("demo.summary", lambda: print("\n" + "\n".join(summarize(opt.run))))


if __name__ == "__main__":
    main()
