"""Options of train.py: what they are, what follows from what, and what cannot go together.

parser.py has the command line. Three tables say the rest: IMPLIED, what an option is where it was not given; CONFLICTS,
what cannot work, with the sentence that says so; USED_BY, what an option has an effect with. `resolve` goes through
them before any data is read.
"""
import functools
import os

from cli import InputError
from options.conflicts import CONFLICTS, USED_BY
from options.facts import GAUSSIANS, frozen_gaussians, needed_gaussians, prior, similarity
from options.parser import parser
from options.phrases import has_phrases_of


def default_run(opt) -> str:
    return os.path.join("runs", f"{opt.data_name}_{opt.sim}_seed{opt.seed}".replace("/", "_"))


@functools.cache
def defaults() -> dict:
    return vars(parser().parse_args([]))


# ---- what follows from what

# What an option is where it was not given, in the order in which one needs another.
IMPLIED = {
    "localise": has_phrases_of,
    "embed_size": lambda o: 2048 if o.img_enc == "vsrn" else 1024,
    "txt_enc": lambda o: similarity(o).implies.get("txt_enc") or ("features" if o.text_features else "gru"),
    "n_embeds": lambda o: similarity(o).implies.get("n_embeds", 1),
    "loss": lambda o: similarity(o).implies.get("loss", "hinge"),
    "var_min": lambda o: 1e-6 if o.loss == "probvlm" else similarity(o).implies.get("var_min", 0.1),
    "logvar_init": lambda o: similarity(o).implies.get("logvar_init", 0.0),
    "var_layers": lambda o: "256" if any(frozen_gaussians(o)) else None,
    "label_smoothing": lambda o: 1e-4 if o.pseudo_positives else 0.0,
    "latent_norm": lambda o: "none" if not prior(o) else "batch" if o.loss == "mse" else "sphere",
    "max_violation": lambda o: similarity(o).gaussian_sides > 0 and o.loss == "hinge",
    "logger_name": default_run,
}


def heads(opt) -> tuple[str, str]:
    """Of images and of captions: what was asked for, else what the similarity needs."""
    image, text = opt.image_head or opt.head, opt.text_head or opt.head
    usual = similarity(opt).implies.get("head", "ellipsoidal")
    if similarity(opt).gaussian_sides == 1:                 # GCE, unless the image side is asked for
        if image is None:
            image = "point" if text in (None, *GAUSSIANS) else usual
        return image, text or (usual if image == "point" else "point")
    usual = usual if needed_gaussians(opt) else "point"
    return image or usual, text or usual


def resolve(opt) -> None:
    """Fill in what the options imply, and refuse, before data is read, what cannot work. Raises InputError."""
    if opt.img_enc == "auto":
        opt.img_enc = similarity(opt).implies.get("img_enc", "auto")
    opt.image_head, opt.text_head = heads(opt)
    opt.head = opt.image_head if opt.image_head == opt.text_head else None
    for name, value in IMPLIED.items():
        if getattr(opt, name) is None:
            setattr(opt, name, value(opt))
    if opt.no_imgnorm and opt.sim == "cosine":              # VSE0: the original's cosine is an inner product
        opt.sim = "dot"
    for wrong, sentence in CONFLICTS:
        if wrong(opt):
            raise InputError(sentence.format(**vars(opt)))
    refuse_unused(opt)


def refuse_unused(opt) -> None:
    """Raise InputError where an option was given that changes nothing."""
    for names, used, where in USED_BY:
        usual = {name: IMPLIED[name](opt) if name in IMPLIED else defaults()[name] for name in names.split()}
        given = [] if used(opt) else [name for name, value in usual.items() if getattr(opt, name) != value]
        if given:
            value = getattr(opt, given[0])
            shown = given[0] if value is True else f"no-{given[0]}" if value is False else f"{given[0]} {value}"
            raise InputError(f"--{shown} is for {where}, and has no effect here; leave it out")
