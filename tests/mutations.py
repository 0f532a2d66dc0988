"""Prove that tests see wrong formulas: each mutation of the product must fail a test.

    python tests/mutations.py            # all, about five minutes on one core; no part of `make test`
    python tests/mutations.py KL PMRP    # those with one of these words in their titles

Each mutation is made alone, in a temporary copy of the files that git knows, and only the tests named beside it run.
The data beside the repository are not in reach of the copy, so no proof rests on them.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Mutation(NamedTuple):
    """A fault in one file of the product."""
    title: str
    file: str
    old: str                          # occurs exactly once in the file
    new: str
    tests: str                        # arguments of pytest, in tests/


MUTATIONS = [
    # ---- similarities
    Mutation("Wasserstein without the square root", "losses.py", "return negative_root(squared_distance(images.mean",
             "return torch.neg(squared_distance(images.mean", "test_losses.py -k slow_twin"),
    Mutation("Wasserstein of variances in place of standard deviations", "losses.py", "power: float = 0.5) -> Tensor",
             "power: float = 1.0) -> Tensor", "test_losses.py -k slow_twin"),
    Mutation("KL the other way", "losses.py",
             "return -divergence(standardise_gaussians(images, captions), standardise_gaussians(captions, captions))",
             "return -divergence(standardise_gaussians(captions, captions), standardise_gaussians(images, captions)).T",
             "test_losses.py -k slow_twin"),
    Mutation("wrong sign of the variances in csd", "losses.py", "- (image_trace[:, None] + caption_trace)",
             "+ (image_trace[:, None] + caption_trace)", "test_losses.py -k slow_twin"),
    Mutation("log-variance of mls not halved", "losses.py", "-0.5 * (distance / var + self.k * var.log())",
             "-0.5 * distance / var - self.k * var.log()", "test_losses.py -k slow_twin"),
    # ---- losses
    Mutation("margin left out of one side of the hinge", "losses.py", "images = (self.margin + scores - positive)",
             "images = (scores - positive)", "test_losses.py -k hinge"),
    Mutation("axis swapped in the hinge", "losses.py", "scores - positive[:, None]).clamp", "scores - positive).clamp",
             "test_losses.py -k hinge"),
    Mutation("diagonal of the hinge not masked", "losses.py", "positive[:, None]).clamp(min=0).masked_fill(own, 0)",
             "positive[:, None]).clamp(min=0)", "test_losses.py -k hinge"),
    Mutation("maximum in place of the sum in the hinge", "losses.py", "return captions.sum() + images.sum()",
             "return captions.max(1).values.sum() + images.max(0).values.sum()", "test_losses.py -k hinge"),
    Mutation("temperature of InfoNCE inverted", "losses.py", "return scores * self.log_scale.clamp",
             "return scores / self.log_scale.clamp", "test_losses.py -k infonce"),
    Mutation("largest p of RCL left as it rounds", "losses.py", "log_rest = log_rest.scatter(1, best, rest",
             "log_rest.scatter(1, best, rest", "test_noisy_pairs.py -k rcl"),
    # ---- model and training
    Mutation("l2 norm of the means left out", "model.py", "        mean = unit(mean) if self.normalise else mean\n", "",
             "test_model.py -k shapes"),
    Mutation("spherical average of logs in place of variances", "model.py",
             "log_var.logsumexp(1, keepdim=True) - math.log(log_var.shape[1])", "log_var.mean(1, keepdim=True)",
             "test_model.py -k shapes"),
    Mutation("order of a resumed epoch by another seed", "train.py", "default_rng([self.opt.seed, epoch])",
             "default_rng([self.opt.seed, epoch + self.state['step']])", "test_stopping.py -k killed"),
    Mutation("volume's share summed over photos", "methods/volume.py", ".logsumexp(1) - counted.log()", ".logsumexp(1)",
             "test_volume.py -k loops"),
    # ---- retrieval
    Mutation("rank of the worst positive", "metrics.py",
             "np.maximum.at(best, owner, own)", "best[:] = np.inf\n    np.minimum.at(best, owner, own)",
             "test_metrics.py"),
    Mutation("ties count for the model", "metrics.py", "t2i += (part >= own).view", "t2i += 1 + (part > own).view",
             "test_metrics.py"),
    Mutation("ties of R-precision count for the model", "metrics.py", "np.maximum(0, places - others)",
             "np.minimum(places, tied)", "test_metrics.py"),
    Mutation("mAP@R divided by the hits", "metrics.py", "np.arange(1, r + 1)).sum() / r",
             "np.arange(1, r + 1)).sum() / max(1, hits.sum())", "test_metrics.py"),
    Mutation("AURC sorted the other way", "metrics.py", "np.repeat(np.bincount(group, wrong) / size, size)",
             "np.repeat(np.bincount(group, wrong) / size, size)[::-1]", "test_metrics.py"),
    Mutation("bootstrap over seeds without Student's t", "metrics.py",
             "special.stdtrit(freedom, 0.975) / special.ndtri(0.975) if freedom else 1.0", "1.0", "test_metrics.py"),
    Mutation("a fold left out", "evaluation/protocols.py", "for k in range(0, 5 * FOLD, FOLD)]",
             "for k in range(0, 4 * FOLD, FOLD)]", "test_protocols.py -k definition"),
    Mutation("PMRP by one side's categories", "evaluation/protocols.py",
             "own[rows].sum(1)[:, None] + others.sum(1)", "others.sum(1)", "test_protocols.py -k definition"),
    Mutation("an item in its own gallery", "evaluation/protocols.py",
             "        np.fill_diagonal(scores[:, rows], -np.inf)\n        ranks[rows]", "        ranks[rows]",
             "test_protocols.py -k definition"),
    Mutation("matches of CxC not turned", "evaluation/annotations.py", '"t2i": i2t.swapped()', '"t2i": i2t',
             "test_annotations.py"),
    Mutation("bank's terms of the other sign", "evaluation/protocols.py", "scores -= images[:, None]",
             "scores += images[:, None]", "test_protocols.py -k terms_of_train"),
    # ---- confidence
    Mutation("temperature of the posterior inverted", "confidence/posterior.py", "return (t * below).clamp_",
             "return (below / t).clamp_", "test_confidence.py -k loop_over"),
    Mutation("other images' captions counted in the posterior", "confidence/posterior.py", "(mass * same).sum(1)",
             "mass.sum(1)", "test_confidence.py -k loop_over"),
    Mutation("ECE without the weights of its bins", "confidence/reliability.py",
             "abs(p[part].sum() - rows[:, part].sum(1)) for part in bins_of_equal_mass(p)) / len(p)",
             "abs(p[part].mean() - rows[:, part].mean(1)) for part in bins_of_equal_mass(p)) / BINS",
             "test_confidence.py -k calibration_error"),
]


def copy_checkout(folder: str) -> None:
    """Copy the files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if os.path.exists(os.path.join(ROOT, name)):
            os.makedirs(os.path.join(folder, os.path.dirname(name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), os.path.join(folder, name))


def first_failure(folder: str, tests: str) -> str | None:
    """Run tests in a copy until one fails; its name, or None where all pass."""
    words = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider",
             *(f"tests/{test}" if test.endswith(".py") else test for test in tests.split())]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.M)
    return failed[1] if failed else None if done.returncode == 0 else f"pytest's exit status {done.returncode}"


def run(mutation: Mutation, folder: str) -> str | None:
    """The test that catches a mutation in a copy of the checkout, which is whole again afterwards; None: none does."""
    path = os.path.join(folder, mutation.file)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.count(mutation.old) != 1:
        sys.exit(f"{mutation.title}: {mutation.file} holds the text {text.count(mutation.old)} times, not once; name "
                 f"what stands there today: {mutation.old!r}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(mutation.old, mutation.new))
    failure = first_failure(folder, mutation.tests)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return failure


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word.lower() in m.title.lower() for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy_checkout(folder)
        for tests in sorted({m.tests for m in chosen}):
            if failure := first_failure(folder, tests):
                sys.exit(f"{failure} fails without any mutation")
        caught = 0
        for mutation in chosen:
            failure = run(mutation, folder)
            caught += failure is not None
            print(f"{mutation.title}: {failure or 'NOT CAUGHT'}", flush=True)
    print(f"{caught} of {len(chosen)} mutations are caught")
    return caught < len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
