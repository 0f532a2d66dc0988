"""f_emb of one vector per item, by the options --img_layers, --txt_layers and --layer_style."""
from torch import nn

from cli import InputError
from encoders import LinearEmbedding, ReLULayers, Unchanged
from methods.dmsm import TanhLayers
from methods.two_branch import BranchEmbedding


def build_layers(opt, side: str, inputs: int) -> nn.Module:
    """f_emb of a vector, (B, F) -> (B, D): a linear layer; with sizes such as "2000-1000", layers in a style; "0":
    none. side: "img" or "txt"."""
    hidden, style, embed_size = getattr(opt, f"{side}_layers"), opt.layer_style, opt.embed_size
    if hidden == "0" and inputs != embed_size:
        raise InputError(f"--{side}_layers 0 makes the {inputs} numbers of a feature or word vector the embedding, and "
                         f"--embed_size is {embed_size}; make them equal")
    if hidden == "0":
        return Unchanged(embed_size)
    sizes = layer_sizes(hidden)
    if style == "branch" and sizes:
        return BranchEmbedding(inputs, sizes[0], embed_size)
    if style == "tanh":
        return TanhLayers(inputs, sizes, embed_size)
    return ReLULayers(inputs, sizes, embed_size) if sizes else LinearEmbedding(inputs, embed_size)


def layer_sizes(hidden: str | None) -> list[int]:
    return [int(size) for size in (hidden or "").split("-") if size]
