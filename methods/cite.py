"""CITE: a network that scores pairs by concepts, mixed for each phrase.

    python train.py --data_name f30k_entities --method cite --text_features hglmm
    python train.py --data_name f8k_precomp --sim cite --txt_enc mean --img_layers 1024 \\
        --txt_layers 1024 --layer_style branch

Plummer et al. 2018, Conditional Image-Text Embedding Networks, after their public code. Its branches are as in the
towers (--layer_style branch, whose dropout the original lacks).
"""
import torch
from torch import Tensor, nn

from losses import unit
from methods.two_branch import PairNetwork, fc
from model import vsepp_linear


class ConditionalNetwork(PairNetwork):
    """Log-odds of a match, any real number: a linear layer of sum_k p_k(y) h_k(x * y).

    x, y: unit means of a region and a phrase (D,). x * y, times D as in ProductNetwork, goes through linear, BatchNorm,
    ReLU of size `joint`, and h_k, one for each of K concepts, is the same of size `hidden` behind it. p is the softmax
    of K logits of y. layers: "joint-hidden".

    In the original a third branch reads p from the features of the phrase, and a feature is normalised over the boxes
    of an image; here each vector has norm 1.
    """
    options, concepts = ("embed_size", "cite_layers"), 4

    def __init__(self, dim: int, layers: str = "1024-256"):
        super().__init__()
        joint, hidden = (int(size) for size in layers.split("-"))
        self.dim, self.widest = dim, max(dim, joint, self.concepts * hidden)
        self.joint = nn.Sequential(*fc(dim, joint))
        self.branches = nn.Sequential(*fc(joint, self.concepts * hidden))           # of all concepts, side by side
        self.out = vsepp_linear(hidden, 1)
        self.mixture = nn.Sequential(*fc(dim, joint), vsepp_linear(joint, self.concepts))

    def read(self, captions):
        y = unit(captions.mean)
        return torch.cat([y, self.mixture(y).softmax(1)], 1)                        # (M, D + K)

    def score(self, x, y):
        product, mixture = self.dim * x * y[..., :self.dim], y[..., self.dim:]  # (..., D), (..., K)
        pairs = product.shape[:-1]
        h = self.branches(self.joint(product.flatten(0, -2)))                   # (P, D) -> (P, K H)
        p = mixture.expand(*pairs, self.concepts).flatten(0, -2)                    # (P, K)
        return self.out(torch.einsum("pk,pkh->ph", p, h.unflatten(1, (self.concepts, -1)))).view(pairs)

    def penalty(self, image, caption, batch) -> Tensor:
        """L1 norm of a phrase's concept logits, mean over phrases: a term of model.VSE.
        The logits are computed again, in float32, so the BatchNorm of their branch counts each batch twice."""
        y = caption.embedding.mean
        with torch.autocast(y.device.type, enabled=False):
            return self.mixture(unit(y)).abs().sum(1).mean()
