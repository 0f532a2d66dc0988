"""What is trained on what, told before the first step."""
import metrics
from evaluation.phrases import rsum_by_chance
from parallel import processes
from runs import Data

# Options that change embeddings and no weight's shape.
COMPUTE = ("feature_norm", "region_norm", "pool", "layer_style", "no_imgnorm", "use_abs", "logvar_norm", "var_min",
           "var_max", "no_txtnorm", "raw_feature_norm")


def described(opt, data: Data, run, start: dict | None) -> str:
    """Lines for the log of the training `run` (train.Training), which begins at the checkpoint `start`."""
    if opt.localise:
        learned = f"{len(data.pairs):,} training phrases of {len(data.order(0)):,} photos, {data.size} a batch"
        judged, chance = f"{len(data.dev.ids):,} dev photos", rsum_by_chance(data.dev)
    else:
        learned = f"{len(data.pairs):,} training pairs of {len(data.train.images):,} images"
        judged = f"{len(data.dev.images):,} dev images"
        chance = metrics.chance(data.dev.caption_image, len(data.dev.images))["rsum"]
    violations = "hardest negative" if opt.max_violation else "sum of violations"
    objective = f"{violations}, margin {opt.margin}" if opt.loss == "hinge" else opt.loss
    facts = (f"{opt.data_name}: {learned}, {judged} (rsum by chance {chance:.1f}), {len(data.vocab):,} words of "
             f"{data.source}\n{opt.sim}, image head {opt.image_head}, text head {opt.text_head}, {objective}, "
             f"embed_size {opt.embed_size}, {sum(p.numel() for p in run.parameters):,} trainable parameters, "
             f"{run.device}{', tf32' * opt.tf32}{', deterministic' * opt.deterministic}, seed {opt.seed}")
    before = start["processes"] if opt.resume and "processes" in start else processes.count()
    if processes.count() > 1:
        facts += f", {processes.count()} processes that share each batch of {opt.batch_size}"
    notes = [*(start or {}).get("notes", ()), *read_otherwise(opt, start), *data.train.notes, *data.dev.notes]
    if before != processes.count():
        notes.append(f"the run went on so far in {before} process{'es' * (before > 1)} and goes on in "
                     f"{processes.count()}: sums over a batch are rounded otherwise from here on, all else is as it "
                     "would have been")
    compiled = [f"compiled: {', '.join(run.compiled)}"] * bool(run.compiled)
    return "\n".join([facts, *compiled, *(f"note: {note}" for note in notes)])


def read_otherwise(opt, start: dict | None) -> list[str]:
    """A note where --init_from has weights that, under the options given now, make other embeddings of the same
    item."""
    theirs = start["options"] if start and opt.resume is None else {}
    unlike = [name for name in COMPUTE if name in theirs and theirs[name] != getattr(opt, name)]
    before, now = (", ".join(f"{name} {options[name]}" for name in unlike) for options in (theirs, vars(opt)))
    told = f"{opt.init_from} was trained with {before}, this run with {now}, so its weights do not embed as they did"
    return [told] if unlike else []
