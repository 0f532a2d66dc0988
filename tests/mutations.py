"""Prove that tests see wrong formulas: each mutation of the product must fail a test.

    python tests/mutations.py            # all, about five minutes on one core; no part of `make test`
    python tests/mutations.py KL PMRP    # those with one of these words in their titles

Each mutation is made alone, in a temporary copy of the repository, and only the tests named beside it run.
The data beside the repository are not in reach of the copy, so no proof rests on them.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MUTATIONS = {  # (file, tests): title, text that stands there once, text in its place
    ("losses.py", "test_losses.py -k slow_twin"): [
        (
            "Wasserstein without the square root",
            "return negative_root(of_means + of_std)",
            "return torch.neg(of_means + of_std)",
        ),
        (
            "Wasserstein of variances in place of standard deviations",
            "power: float = 0.5) -> Tensor",
            "power: float = 1.0) -> Tensor",
        ),
        (
            "KL the other way",
            "return -divergence(image, caption)",
            "return -divergence(caption, image).T",
        ),
        (
            "wrong sign of the variances in csd",
            "- (image_trace[:, None] + caption_trace)",
            "+ (image_trace[:, None] + caption_trace)",
        ),
        (
            "log-variance of mls not halved",
            "-0.5 * (distance / var + self.k * var.log())",
            "-0.5 * distance / var - self.k * var.log()",
        ),
    ],
    ("losses.py", "test_losses.py -k hinge"): [
        (
            "margin left out of one side of the hinge",
            "images = (self.margin + scores - positive)",
            "images = (scores - positive)",
        ),
        (
            "axis swapped in the hinge",
            "scores - positive[:, None]).clamp",
            "scores - positive).clamp",
        ),
        (
            "diagonal of the hinge not masked",
            "captions = captions.masked_fill(matched, 0)\n",
            "pass\n",
        ),
        (
            "maximum in place of the sum in the hinge",
            "return captions.sum() + images.sum()",
            "return captions.max(1).values.sum() + images.max(0).values.sum()",
        ),
    ],
    ("losses.py", "test_losses.py -k infonce"): [
        (
            "temperature of InfoNCE inverted",
            "return scores * self.log_scale.clamp",
            "return scores / self.log_scale.clamp",
        )
    ],
    ("losses.py", "test_losses.py -k match"): [
        (
            "pseudo-positives of columns like those of rows",
            "for_columns = matched | (scores >= matched_score)",
            "for_columns = matched | (scores >= matched_score[:, None])",
        )
    ],
    ("losses.py", "test_noisy_pairs.py -k rcl"): [
        (
            "largest p of RCL left as it rounds",
            "log_rest = log_rest.scatter(1, best, log_rest_of_best)",
            "log_rest.scatter(1, best, log_rest_of_best)",
        )
    ],
    ("model.py", "test_model.py -k shapes"): [
        (
            "l2 norm of the means left out",
            "        if self.normalize:\n            mean = unit(mean)\n",
            "",
        ),
    ],
    ("model.py", "test_model.py -k spherical_heads"): [
        (
            "spherical average of logs in place of variances",
            "log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1])",
            "log_var.mean(1, keepdim=True)",
        ),
    ],
    ("train.py", "test_stopping.py -k killed"): [
        (
            "order of a resumed epoch by another seed",
            "default_rng([self.opt.seed, epoch])",
            "default_rng([self.opt.seed, epoch + self.state['step']])",
        )
    ],
    ("methods/volume.py", "test_volume.py -k loops"): [
        ("volume's share summed over photos", ".logsumexp(1) - counted.log()", ".logsumexp(1)")
    ],
    ("metrics.py", "test_metrics.py"): [
        (
            "rank of the worst positive",
            "np.maximum.at(best, owner, own)",
            "best[:] = np.inf\n    np.minimum.at(best, owner, own)",
        ),
        ("ties count for the model", "t2i += (part >= own).view", "t2i += 1 + (part > own).view"),
        (
            "ties of R-precision count for the model",
            "np.maximum(0, ranks_left - others)",
            "np.minimum(ranks_left, tied)",
        ),
        ("mAP@R divided by the hits", "/ rank).sum() / r", "/ rank).sum() / max(1, hits.sum())"),
        (
            "AURC sorted the other way",
            "np.repeat(np.bincount(group, wrong) / size, size)",
            "np.repeat(np.bincount(group, wrong) / size, size)[::-1]",
        ),
        (
            "bootstrap over seeds without Student's t",
            "stretch = special.stdtrit(freedom, 0.975) / special.ndtri(0.975)",
            "stretch = 1.0",
        ),
    ],
    ("evaluation/protocols.py", "test_protocols.py -k definition"): [
        ("a fold left out", "in range(0, 5 * IMAGES_PER_FOLD,", "in range(0, 4 * IMAGES_PER_FOLD,"),
        ("PMRP by one side's categories", "own.sum(1)[:, None] + others.sum(1)", "others.sum(1)"),
        (
            "an item in its own gallery",
            "        np.fill_diagonal(scores[:, rows], -np.inf)\n        ranks[rows]",
            "        ranks[rows]",
        ),
    ],
    ("evaluation/annotations.py", "test_annotations.py"): [
        ("matches of CxC not swapped", '"t2i": i2t.swapped()', '"t2i": i2t')
    ],
    ("evaluation/protocols.py", "test_protocols.py -k terms_of_train"): [
        ("bank's terms of the other sign", "scores -= images[:, None]", "scores += images[:, None]")
    ],
    ("confidence/posterior.py", "test_confidence.py -k loop_over"): [
        (
            "temperature of the posterior inverted",
            "return (t * below).clamp_",
            "return (below / t).clamp_",
        ),
        ("other images' captions counted in the posterior", "(mass * same).sum(1)", "mass.sum(1)"),
    ],
    ("metrics.py", "test_confidence.py -k calibration_error"): [
        (
            "ECE without the weights of its bins",
            "abs(p[part].sum() - rows[:, part].sum(1))\n    errors = errors / len(p)",
            "abs(p[part].mean() - rows[:, part].mean(1))\n    errors = errors / bins",
        )
    ],
}


def first_failure(folder: Path, tests: str) -> str | None:
    """Run tests in a copy until one fails; its name, or None where all pass."""
    pytest = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*pytest, *tests.split()], cwd=folder / "tests", capture_output=True, text=True
    )
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.M)
    if failed:
        return failed[1]
    if done.returncode != 0:
        return f"pytest's exit status {done.returncode}"
    return None


def choose_mutations(words: list[str]) -> list[tuple[str, str, str, str, str]]:
    """(file, tests, title, old text, new text) of those with one of these words in their titles; without words all."""
    chosen = []
    for (file, tests), mutations in MUTATIONS.items():
        for title, old, new in mutations:
            if not words or any(word.lower() in title.lower() for word in words):
                chosen.append((file, tests, title, old, new))
    return chosen


def main(words: list[str]) -> int:
    chosen = choose_mutations(words)
    caught = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "data", "runs", "vocab"))

        for tests in sorted({tests for _, tests, *_ in chosen}):
            if failure := first_failure(folder, tests):
                sys.exit(f"{failure} fails without any mutation")

        for file, tests, title, old, new in chosen:
            text = (folder / file).read_text(encoding="utf-8")
            if text.count(old) != 1:
                sys.exit(
                    f"{title}: {file} holds the text {text.count(old)} times, not once; "
                    f"name what stands there today: {old!r}"
                )

            (folder / file).write_text(text.replace(old, new), encoding="utf-8")
            failure = first_failure(folder, tests)
            (folder / file).write_text(text, encoding="utf-8")
            caught += failure is not None
            print(f"{title}: {failure or 'NOT CAUGHT'}", flush=True)
    print(f"{caught} of {len(chosen)} mutations are caught")
    return caught < len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
