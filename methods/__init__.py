"""The methods of the papers by name: what `train.py --method NAME` trains.

A method is written down here once, as options of train.py. `train.py --methods`, the table of
docs/methods.md and the rows of paper_tables/ are read from METHODS, by name.

Each file of this folder holds the networks of one paper. At its end it adds them to the tables from
which models are built, so that train.py need not know them:

    losses.py   SIMILARITIES, LOSSES
    model.py    IMAGE_ENCODERS, TEXT_ENCODERS, LAYER_STYLES, POOLINGS, TERM_BUILDERS,
                TOWER_BUILDERS, OPTION_RULES, OPTION_DEFAULTS

A file also declares its own options, {name: (type, default, help)}: those of a loss or an encoder
in its `options`, others in a table such as scan.ATTENTION_OPTIONS, which options.py names where
--help lists it. Rules about them go into OPTION_RULES, each with the names of the options that it
is about. options.py imports these files.
"""

import re
from typing import NamedTuple

OURS = "ours"  # the paper of a recipe that no paper has; "ours, after X" changes X


class Method(NamedTuple):
    """A method of a paper, or a recipe of ours."""

    title: str
    paper: str  # pmrl, ucmr, jwae, dmsm (README.md names them), authors and year, or OURS
    options: dict  # of train.py
    needs: str = ""  # a name of NEEDS

    @property
    def needs_in_words(self) -> str:
        """What the data must have, or what the user has to give; empty where any data will do."""
        return NEEDS.get(self.needs, "")

    @property
    def flags(self) -> str:
        """The options as they are typed."""
        words = []
        for name, value in self.options.items():
            if value is True:
                words.append(f"--{name}")
            elif value is False:
                words.append(f"--no-{name}")
            else:
                words.append(f"--{name} {value}")
        return re.sub(r"(?<=\de-)0", "", " ".join(words))  # 1e-05: 1e-5


REGIONS = "regions"
REGIONS_OR_PHOTOS = "regions or photos"
CAPTION_FEATURES = "caption features"
WORD_VECTORS = "word vectors"
PRETRAINED = "pretrained networks"
NEEDS = {  # in words
    REGIONS: "features of regions",
    REGIONS_OR_PHOTOS: "features of regions, or photos",
    CAPTION_FEATURES: "features of captions (--text_features NAME)",
    WORD_VECTORS: "word vectors of 300 numbers (--word_vectors FILE)",
    PRETRAINED: "photos and a CLIP (--image_model DIR --text_model DIR)",
}
VSRN = {"img_enc": "vsrn", "embed_size": 2048, "max_violation": True, "captioner": 1}
VSRN_ORIGINAL = {**VSRN, "region_norm": "regions", "captioner_original": True}
SCAN = {"sim": "scan", "bi_gru": True, "max_violation": True}
SCAN_I2T_MEAN = {**SCAN, "cross_attn": "i2t", "lambda_softmax": 4, "agg_func": "Mean"}
# The paper averages the hinge over a batch of 256 and weights the other terms by 0.1 and 0.01. Here
# the hinge is a sum, so these weights are 256 times as large.
PVSE = {
    "n_embeds": 2,
    "margin": 0.1,
    "max_violation": True,
    "batch_size": 256,
    "diversity": 25.6,
    "mmd": 2.56,
}
PRIORS = {"prior_images": 0.01, "prior_captions": 0.01}
RECONSTRUCTIONS = {"recon_images": 0.5, "recon_captions": 0.005}
AUTOENCODER = {
    "max_violation": True,
    "txt_enc": "bigru",
    "num_layers": 2,
    "img_layers": 1024,
    **RECONSTRUCTIONS,
}
# Eq. 7 averages over pairs, and so do the terms beside it. Here these are sums over a batch of 128,
# so the priors' weight of 0.2 becomes 25.6. mse_weight is D, since the paper does not divide by D.
SQUARED = {
    "loss": "mse",
    "mse_weight": 1024,
    "txt_layers": 1024,
    "img_layers": 1024,
    "recon_images": 1,
    "recon_captions": 1,
}
DMSM = {
    "txt_layers": "4000-2000-1000-500",
    "img_layers": "2000-1000",
    "layer_style": "tanh",
    "embed_size": 300,
    "gamma": 10,
    "negatives": 40,
    "optimizer": "sgd",
    "learning_rate": 0.5,
    "lr_update": 1000,
    "feature_norm": False,
    "select": "hbr",
}
BRANCHES = {"txt_layers": 2048, "img_layers": 2048, "layer_style": "branch", "embed_size": 512}
CITE = {
    "sim": "cite",
    "loss": "logistic",
    "txt_layers": 1024,
    "img_layers": 1024,
    "layer_style": "branch",
}
PRODUCT = {"sim": "product", "loss": "logistic", **BRANCHES}
# Beside a mean over pairs: the weights of `jwae` eq. 6 over a batch of 128.
PER_ITEM = {
    "recon_images": 4e-3,
    "recon_captions": 4e-5,
    "prior_images": 8e-5,
    "prior_captions": 8e-5,
}
# The best of 13 recipes for words on dev of Flickr8k (docs/findings.md).
BAG = {
    "loss": "infonce",
    "txt_enc": "sum",
    "txt_layers": 0,
    "word_dim": 512,
    "embed_size": 512,
    "dropout": 0.3,
    "weight_decay": 0.05,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup": 1,
    "num_epochs": 15,
    "batch_size": 512,
}
# The networks' own 512 numbers are the embeddings (of CLIP B/32 and B/16), and the temperature
# learns.
CLIP = {
    "img_layers": 0,
    "txt_layers": 0,
    "embed_size": 512,
    "loss": "infonce",
    "learning_rate": 1e-3,
    "backbone_lr": 0.01,
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warmup": 1,
    "num_epochs": 10,
    "batch_size": 256,
    "grad_clip": 0,
}
# Options of PCME++'s code for CLIP B/32. There captions learn at 0.1 of the rate and photos at
# 0.01, here both at 0.01.
PCMEPP_CLIP = {
    "sim": "csd",
    "loss": "match",
    "mask_same_image": False,
    "vib": 6.25e-6,
    "var_min": 1e-5,
    "logvar_init": -6,
    "pseudo_positives": 0.1,
    "learning_rate": 5e-4,
    "backbone_lr": 0.01,
    "freeze_epochs": 2,
    "weight_decay": 1e-4,
    "lr_update": 15,
    "num_epochs": 25,
}


def list_gcie() -> dict[str, Method]:
    """List GCIE with each similarity and shape of its Gaussians."""
    similarities = {"wasserstein": "Wasserstein", "kl": "KL", "minkl": "min KL"}
    shapes = {  # end of the name -> in words, paper, options
        "": ("ellipsoidal", "pmrl, ucmr", {}),
        "_spherical": ("spherical", "pmrl", {"head": "spherical_logavg"}),
        "_avgpool": ("spherical by average pooling", "ucmr", {"head": "spherical_avg"}),
        "_one": ("spherical with one output", "ucmr", {"head": "spherical_one"}),
    }
    methods = {}
    for ending, (shape, paper, head) in shapes.items():
        for sim, name in similarities.items():
            title = f"GCIE, {name}, {shape}"
            methods[f"gcie_{sim}{ending}"] = Method(title, paper, {"sim": sim, **head})
    return methods


METHODS = {
    "vse0": Method("VSE0", "VSE++", {"no_imgnorm": True}),
    "vse++": Method("VSE++", "VSE++", {"max_violation": True}),
    "vse++_wide": Method(
        "VSE++, higher capacity", "ucmr", {"max_violation": True, "embed_size": 2048}
    ),
    "order0": Method(
        "Order0", "VSE++", {"sim": "order", "use_abs": True, "margin": 0.05, "learning_rate": 0.001}
    ),
    "order++": Method("Order++", "VSE++", {"sim": "order", "max_violation": True}),
    "gce": Method("GCE, ellipsoidal", "pmrl", {"sim": "mahalanobis"}),
    "gce_spherical": Method(
        "GCE, spherical", "pmrl", {"sim": "mahalanobis", "text_head": "spherical_logavg"}
    ),
    "gie": Method("GIE, ellipsoidal", "pmrl", {"sim": "mahalanobis", "image_head": "ellipsoidal"}),
    "gie_spherical": Method(
        "GIE, spherical", "pmrl", {"sim": "mahalanobis", "image_head": "spherical_logavg"}
    ),
    **list_gcie(),
    "gcie_kl_reverse": Method("GCIE, KL(caption || image)", "ucmr Table 6", {"sim": "kl_reverse"}),
    "gcie_kl_reverse_avgpool": Method(
        "GCIE, KL(caption || image), spherical by average pooling",
        "ucmr Table 6",
        {"sim": "kl_reverse", "head": "spherical_avg"},
    ),
    "gcie_wasserstein_var": Method(
        "GCIE, Wasserstein as ucmr eq. 8 prints it", "ucmr", {"sim": "wasserstein_var"}
    ),
    "vsrn": Method("VSRN", "Li et al. 2019", VSRN, REGIONS),
    "vsrn_original": Method(
        "VSRN, as the original code computes it", "Li et al. 2019", VSRN_ORIGINAL, REGIONS
    ),
    "vsrn_wide": Method(
        "VSRN, higher capacity, as the original code computes it",
        "ucmr",
        {**VSRN_ORIGINAL, "embed_size": 4096},
        REGIONS,
    ),
    "vsrn_gaussian": Method(
        "VSRN with Gaussians", "ucmr", {**VSRN, "sim": "wasserstein", "margin": 0.1}, REGIONS
    ),
    "vsrn_gaussian_original": Method(
        "VSRN with Gaussians, as the original code computes it",
        "ucmr",
        {**VSRN_ORIGINAL, "sim": "wasserstein", "margin": 0.1},
        REGIONS,
    ),
    "scan_t2i": Method(
        "SCAN, text to image", "Lee et al. 2018", {**SCAN, "cross_attn": "t2i"}, REGIONS
    ),
    "scan_i2t": Method(
        "SCAN, image to text",
        "Lee et al. 2018",
        {**SCAN, "cross_attn": "i2t", "lambda_softmax": 4, "lambda_lse": 5},
        REGIONS,
    ),
    "scan_i2t_mean": Method(
        "SCAN, image to text, mean over regions", "Lee et al. 2018", SCAN_I2T_MEAN, REGIONS
    ),
    "pvse": Method("PVSE", "Song and Soleymani 2019", {"sim": "mil", **PVSE}, REGIONS_OR_PHOTOS),
    # The paper adds two equal sums over all pairs and weights VIB by 1e-5. Here one of the sums is
    # taken, so the weight is halved.
    "pcme": Method(
        "PCME",
        "Chun et al. 2021",
        {"sim": "match_prob", "mask_same_image": False, "vib": 5e-6},
        REGIONS_OR_PHOTOS,
    ),
    # The paper takes twice the mean over the pairs of 128 items, and weights by 1e-4 a VIB that is
    # averaged over 1,024 dimensions.
    "pcme++": Method(
        "PCME++",
        "Chun 2024",
        {
            "sim": "csd",
            "loss": "match",
            "mask_same_image": False,
            "vib": 6.25e-6,
            "var_min": 1e-5,
            "logvar_init": -6,
        },
    ),
    "vse_infinity": Method(
        "generalized pooling of regions",
        "Chen et al. 2021",
        {"pool": "gpo", "max_violation": True},
        REGIONS,
    ),
    "infonce_bag": Method(
        "words summed, InfoNCE with dropout: for a few thousand images", OURS, BAG
    ),
    "clip": Method("CLIP, trained on", f"{OURS}, after CLIP", CLIP, PRETRAINED),
    "pcme++_clip": Method("PCME++ on CLIP", f"{OURS}, after Chun 2024", PCMEPP_CLIP, PRETRAINED),
    "infonce": Method(
        "VSE++ with InfoNCE", f"{OURS}, after CLIP", {"loss": "infonce", "mask_same_image": False}
    ),
    "rcl": Method(
        "VSE++ with the complementary loss",
        f"{OURS}, after Hu et al. 2023",
        {"loss": "rcl", "mask_same_image": False},
    ),
    "mls": Method(
        "mutual likelihood in an effective dimension",
        f"{OURS}, after Shi and Jain 2019",
        {"sim": "mls", "mask_same_image": False},
    ),
    "mls_captions": Method(
        "mutual likelihood, images as points",
        f"{OURS}, after Shi and Jain 2019",
        {"sim": "mls", "mask_same_image": False, "image_head": "point"},
    ),
    "jwae_mh": Method("jWAE-MH, bidirectional GRU", "jwae", {**AUTOENCODER, **PRIORS}),
    "jwae_mh_vectors": Method(
        "jWAE-MH, caption vectors",
        "jwae",
        {
            "max_violation": True,
            "txt_layers": 1024,
            "img_layers": 1024,
            **RECONSTRUCTIONS,
            **PRIORS,
        },
        CAPTION_FEATURES,
    ),
    "jwae_mh_scan": Method(
        "jWAE-MH on SCAN",
        "jwae",
        {**SCAN, "cross_attn": "t2i", **RECONSTRUCTIONS, **PRIORS},
        REGIONS,
    ),
    "jwae_mh_scan_i2t": Method(
        "jWAE-MH on SCAN, image to text, mean over regions",
        "jwae",
        {**SCAN_I2T_MEAN, **RECONSTRUCTIONS, **PRIORS},
        REGIONS,
    ),
    "jwae_mse": Method(
        "jWAE-MSE",
        "jwae",
        {**SQUARED, "prior_images": 25.6, "prior_captions": 25.6},
        CAPTION_FEATURES,
    ),
    "mse": Method("MSE", "jwae", SQUARED, CAPTION_FEATURES),
    "mmd_mse": Method("MMD-MSE", "jwae", {**SQUARED, "mmd": 128}, CAPTION_FEATURES),
    "vae_mh": Method(
        "VAE-MH", "jwae", {**AUTOENCODER, "vae": 1e-5, "var_min": 1e-6, "logvar_init": -6}
    ),
    "dmsm": Method("DMSM", "dmsm", {"loss": "nll", "txt_enc": "trigram_conv", **DMSM}),
    "dmsm_bag": Method(
        "DMSM without the order of words", "dmsm", {"loss": "nll", "txt_enc": "trigram_bag", **DMSM}
    ),
    "devise": Method(
        "DeViSE",
        "dmsm",
        {"loss": "nll", "txt_enc": "sum", "freeze_words": True, "txt_layers": 0, "embed_size": 300},
        WORD_VECTORS,
    ),
    "embedding_network": Method(
        "Embedding Network",
        "Wang et al. 2019",
        {"loss": "two_branch", **BRANCHES, "batch_size": 1000},
        CAPTION_FEATURES,
    ),
    "similarity_network": Method(
        "Similarity Network", "Wang et al. 2019", PRODUCT, CAPTION_FEATURES
    ),
    "cite": Method("CITE", "Plummer et al. 2018", CITE, CAPTION_FEATURES),
    # CITE's loss is a mean over pairs: the weights of eq. 6, divided by a batch of 128.
    "jwae_mh_cite": Method("jWAE on CITE", "jwae", {**CITE, **PER_ITEM}, CAPTION_FEATURES),
    "jwae_mh_embedding": Method(
        "jWAE-MH on the Embedding Network",
        "jwae",
        {"loss": "two_branch", **BRANCHES, **PER_ITEM},
        CAPTION_FEATURES,
    ),
    "jwae_mh_similarity": Method(
        "jWAE-MH on the Similarity Network", "jwae", {**PRODUCT, **PER_ITEM}, CAPTION_FEATURES
    ),
}


def tabulate_methods() -> list[str]:
    """List the names of all methods by paper and needs, as lines of a Markdown table."""
    papers = {}
    for name, method in METHODS.items():
        needs = re.sub(r".*\((--.*)\)", r"`\1`", method.needs_in_words).removeprefix("features of ")
        needs = needs.replace(", or", " or")
        names_of = papers.setdefault(method.paper, {})
        names_of.setdefault(needs, []).append(f"`{name}`")

    lines = ["| paper | `--method` |", "|---|---|"]
    for paper, names_of in papers.items():
        groups = []
        for needs in sorted(names_of, key=bool):  # methods that need nothing come first
            group = ", ".join(names_of[needs])
            if needs:
                group = f"with {needs}: {group}"
            groups.append(group)
        lines.append(f"| {paper} | {'; '.join(groups)} |")
    return lines


# ---- flags of the methods' own code (VSE++, VSRN, SCAN, PVSE, PCME, VSE-infinity)

# Theirs, and ours that mean the same.
SYNONYMS = {
    "--num_workers": "--workers",
    "--lr": "--learning_rate",
    "--log_dir": "--logger_name",
    "--model_name": "--logger_name",
    "--num_embeds": "--n_embeds",
    "--img_finetune": "--finetune",
    "--vse_mean_warmup_epoch": "--vse_mean_warmup_epochs",
}

# Theirs that say what this code does anyway, with the value that says so (None: a switch).
SAME_AS_HERE = {
    "--reset_train": None,  # VSE++: training mode after every validation
    "--txt_finetune": None,  # PVSE: word vectors learn
    "--eval_on_gpu": None,  # PVSE
    "--raw_feature_norm": "clipped_l2norm",  # SCAN
    "--precomp_enc_type": "basic",  # SCAN
    "--dim_vid": "2048",  # VSRN's caption generator, this and what follows
    "--dim_word": "300",
    "--max_len": "60",
    "--rnn_type": "gru",
    "--bidirectional": "0",
    "--input_dropout_p": "0.2",
    "--rnn_dropout_p": "0.5",
}

# Theirs that mean something else, and what to do here.
ADVICE = {
    "--ckpt": "--init_from RUN",
    "--img_attention": "--sim mil",
    "--txt_attention": "--sim mil",
    "--mmd_weight": "--mmd, times the batch size",
    "--div_weight": "--diversity, times the batch size",
    "--wemb_type": "--word_vectors FILE",
    "--backbone_source": "--cnn_weights FILE",
    "--fold5": "evaluate.py --fold5, after the training",
    "--amsgrad": "this code has Adam without it; leave it out",
    "--no_txtnorm": "captions are normalized, as in the original's default; leave it out",
}
