"""What resolved options say of a model, asked by the rules of options/."""
from model import ALL_SIMILARITIES, SHAPES, TEXT_ENCODERS

GAUSSIANS = [shape for shape in SHAPES if shape != "point"]


def similarity(opt):
    return ALL_SIMILARITIES[opt.sim]


def prior(opt) -> bool:
    return bool(opt.prior_images or opt.prior_captions)


def needed_gaussians(opt) -> int:
    """How many sides must be Gaussian; with --vae both, whose samples are then compared as points, and with --loss
    probvlm both, whose means are."""
    return 2 if opt.vae or opt.loss == "probvlm" else similarity(opt).gaussian_sides


def gaussians(opt) -> int:
    """How many sides are."""
    return (opt.image_head != "point") + (opt.text_head != "point")


def means_learn(opt) -> bool:
    """Whether anything learns a mean."""
    return not opt.freeze_means and not (opt.img_layers == opt.txt_layers == "0" and opt.txt_enc == "features")


def frozen_gaussians(opt) -> list[bool]:
    """Of images and captions: whether the side is a Gaussian whose mean is the vector that it is given."""
    return [getattr(opt, layers) == "0" and getattr(opt, head) != "point"
            for layers, head in (("img_layers", "image_head"), ("txt_layers", "text_head"))]


def text_reads(opt) -> str:
    return TEXT_ENCODERS[opt.txt_enc].reads


def hidden_layers(opt) -> bool:
    return any(hidden not in (None, "0") for hidden in (opt.img_layers, opt.txt_layers))


def one_vector(opt) -> bool:
    """Whether a side embeds one vector per item by layers, of which tanh has one behind the last, too."""
    vectors = opt.img_enc in ("auto", "precomp", "cnn") and opt.pool == "mean"
    return vectors or opt.txt_enc in ("mean", "sum", "features")
