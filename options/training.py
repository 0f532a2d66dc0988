"""The options of train.py as rows."""
import os

from cli import (
    LARGEST,
    above_zero,
    at_least_zero,
    below_one,
    data_set,
    filename,
    fraction,
    natural,
    number,
    positive,
    sizes,
    split_names,
    up_to,
    width,
    workers,
)
from data import DEV_IMAGES
from losses import LOSSES, OTHER_LOSSES, PRIOR_LOSSES, SIMILARITIES
from methods import ADVICE, METHODS
from methods.scan import AGGREGATES, DIRECTIONS, NORMS
from model import CNNS, HEADS, IMAGE_ENCODERS, LATENT_NORMS, TEXT_ENCODERS
from options import SWITCH, Option, Table, flag

SIDES = ("images", "captions")


def term(name: str, text: str) -> Option:
    """The weight of a term beside the objective."""
    return Option(name, at_least_zero, 0.0, text, metavar="WEIGHT")


TRAIN = Table("Train a joint embedding of images and captions.", {
    "data": [
        Option("data_path", filename, "data", "folder that holds the data sets", common=True,
               metavar="FOLDER"),
        Option("data_name", data_set, "coco_precomp", "folder of the data set below --data_path",
               common=True, metavar="NAME"),
        Option("vocab_path", filename, "./vocab/", "folder that may hold {data_name}_vocab.json; "
               "the vocabulary is built when the file is not there", metavar="FOLDER"),
        Option("vocab_splits", split_names, "train", "splits whose words count (original: "
               "train,dev)"),
        Option("vocab_threshold", positive, 4, "keep words that are seen at least this often"),
        flag("use_restval", "train on COCO's restval images, too"),
        Option("dev_images", natural, DEV_IMAGES, "dev images of precomputed data and COCO; 0: all"),
        Option("supervised_fraction", fraction, 1.0, "share of the training images whose pairs are "
               "known; the others join the terms that need no pairs"),
        *(Option(f"unpaired_{side}", data_set, None, "data set below --data_path whose training "
                 f"{side} join the terms that need no pairs", metavar="NAME") for side in SIDES),
        Option("workers", workers, min(10, os.cpu_count() or 1),
               "processes that read photos or large files", common=True),
    ],
    "method": [
        Option("method", METHODS, None, "take the options of a method of the papers (see "
               "--methods); other options given come before them", common=True, metavar="NAME"),
        Option("sim", SIMILARITIES, "cosine", "similarity of image and caption",
               common=True, alias="--measure"),
        Option("head", HEADS, None, "points or Gaussians, for both sides (default: what --sim "
               "needs)", common=True),
        Option("image_head", HEADS, None, "the same for images (GIE: Gaussian here only)"),
        Option("text_head", HEADS, None, "the same for captions (GCE: Gaussian here only)"),
        Option("embed_size", width, None, "size of the joint embedding, D (default: 1024; vsrn: "
               "2048)", common=True),
        flag("use_abs", "take absolute values of the embeddings (order embeddings)"),
        flag("no_imgnorm", "do not normalise image means; 'cosine' is then their inner product"),
        Option("var_layers", sizes, None, "variances from a network of their own that reads the "
               "mean, with such hidden layers, as 256 or 512-512 (default: a second copy of the "
               "embedding; 256 where --img_layers 0 or --txt_layers 0 leaves nothing to copy)"),
        flag("freeze_means", "learn variances alone; the means stay those of --init_from"),
        Option("logvar_norm", SWITCH, False, "give log-variances norm 1"),
        Option("logvar_init", number, None, "where log-variances start (default: 0; mls: -2.5, "
               "--loss volume: -7)"),
        Option("var_min", above_zero, None, "smallest variance (default: 0.1; mls: 1e-4, "
               "match_prob: 1e-6)"),
    ],
    "images": [
        Option("img_enc", ["auto", *IMAGE_ENCODERS], "auto",
               "image encoder. auto: precomp or cnn, whichever fits the data, or what --sim needs; "
               "vsrn: graph and GRU over regions; pie: attention to regions or to a network's last "
               "map (PVSE, PCME); scan: every region by itself (SCAN)", common=True),
        Option("cnn_type", CNNS, "vgg19", "network for photos", common=True),
        Option("cnn_weights", filename, None, "file with the network's weights (default: torch's "
               "cache, nothing is fetched; with --init_from or --resume those of the run)"),
        flag("finetune", "train the network for photos, too", common=True),
        flag("freeze_bn", "with --finetune: its BatchNorms keep their statistics, as in VSE++"),
        Option("crop_size", up_to(4096), 224, "side of the random crops of training photos"),
        Option("feature_norm", SWITCH, True, "l2-normalise precomputed features, as VSE++ does CNN "
               "features (vsrn: the output of its first linear layer; the original does not on "
               "Flickr30K)"),
        Option("pool", ["mean", "gpo"], "mean", "pooling of regions: the mean of the features, or "
               "generalised pooling of their embeddings (VSE-infinity)"),
        Option("region_norm", ["entries", "regions"], "entries",
               "vsrn: scale regions to entries of order 1, or, as the original code, each feature "
               "to norm 1 over the regions"),
        flag("region_bn", "vsrn: BatchNorm after the GRU, as the original on Flickr30K"),
        Option("img_layers", sizes, None, "hidden layers of the image embedding, as 1024 or "
               "2000-1000 (0: no layer at all; default: one linear layer)"),
        Option("precomp_enc_type", ["basic", "weight_norm"], "basic",
               "scan: linear layer of the regions, plain or weight-normalised"),
    ],
    "captions": [
        Option("txt_enc", TEXT_ENCODERS, None, "text encoder (default: gru, or what --sim needs). "
               "bigru: jWAE's; pie: attention to word vectors (PVSE, PCME); mean, sum: of word "
               "vectors; features: --text_features; trigram_conv, trigram_bag: letter trigrams "
               "(DMSM, DSSM)", common=True),
        flag("txt_fc", "gru: a linear layer behind each GRU, as in pmrl's equations; variances of "
             "captions then reach --var_min and 10"),
        Option("txt_layers", sizes, None, "hidden layers for mean, sum, features and trigrams, as "
               "in --img_layers"),
        Option("layer_style", ["relu", "tanh", "branch"], "relu",
               "hidden layers: relu (jWAE); tanh, the last layer, too (DMSM); branch: one, with "
               "BatchNorm, ReLU and dropout (two-branch networks)"),
        Option("text_features", str, None, "read captions as ready features, {split}_NAME.npy",
               metavar="NAME"),
        Option("text_anchor", below_one, 0.0, "share of the similarity that compares the features of "
               "--text_features themselves with what an image's layer expects them to be (0.7: "
               "scores agree more with people)", metavar="SHARE"),
        Option("word_vectors", filename, None, "start words from word2vec or GloVe vectors"),
        flag("freeze_words", "keep the vectors of --word_vectors as they are"),
        Option("word_dim", width, 300, "size of the word vectors", common=True),
        Option("num_layers", up_to(64), 1, "layers of the GRU"),
        flag("bi_gru", "scan: read the words in both directions and average"),
        flag("no_txtnorm", "scan: do not normalise word states"),
    ],
    "similarities of parts, of samples and by networks": [
        Option("n_embeds", up_to(1024), None, "mil: embeddings per item (default: 2)", metavar="K"),
        Option("n_samples", up_to(1024), 7, "match_prob: samples of every Gaussian", metavar="J"),
        Option("cite_layers", sizes, "1024-256", "cite: sizes of the layer that all concepts share "
               "and of the layer of each"),
        Option("cross_attn", DIRECTIONS, "t2i", "scan: words attend to regions (t2i) or the "
               "reverse"),
        Option("raw_feature_norm", NORMS, "clipped_l2norm", "scan: norm of the products of words "
               "and regions before the softmax"),
        Option("agg_func", AGGREGATES, "LogSumExp", "scan: how the cosines of all words (i2t: "
               "regions) with what they attend to become a score"),
        Option("lambda_lse", above_zero, 6.0, "scan: sharpness of LogSumExp"),
        Option("lambda_softmax", above_zero, 9.0, "scan: sharpness of the attention (SCAN has 4 "
               "for i2t)"),
    ],
    "objective": [
        Option("loss", (*LOSSES, *OTHER_LOSSES), None, "what is minimised. hinge (VSE++), infonce (CLIP), match: "
               "cross-entropy of every pair (PCME, PCME++), nll: softmax over sampled captions "
               "(DMSM), mse: squared distance of matching pairs (jWAE), two_branch (Embedding "
               "Network), logistic (Similarity Network, CITE), volume (variances of given means: of "
               "how many photos fit). Default: hinge, or what --sim needs", common=True),
        Option("margin", at_least_zero, 0.2, "margin of the hinge (VSE++ and VSRN: 0.2; ucmr's "
               "VSRN: 0.1)", common=True),
        Option("max_violation", SWITCH, None, "hinge: the hardest negatives and not the sum over "
               "all (default: on for similarities of Gaussians)", common=True),
        Option("vse_mean_warmup_epochs", natural, 0, "first N epochs: the sum of violations"),
        flag("mask_same_image", "do not count other captions of an image as negatives"),
        Option("gamma", above_zero, 10.0, "nll: smoothing factor of the softmax"),
        Option("negatives", positive, 40, "nll: captions that the true one is compared with"),
        term("pseudo_positives", "match: weight of pairs that score above the true one and then "
             "count as matches (PCME++: 0.1)"),
        Option("label_smoothing", below_one, None, "infonce, match: share of the targets spread "
               "over all pairs (default: 0; 1e-4 with --pseudo_positives)"),
        Option("mse_weight", above_zero, 1.0, "mse: weight of the squared distance per dimension, "
               "summed over the batch (embed_size gives jWAE's eq. 7 per item)"),
    ],
    "terms beside the objective, off at a weight of 0": [
        *(term(f"{name}_{side}", f"jWAE: {what}") for side in SIDES for name, what in
          (("recon", f"reconstruct {side}"), ("prior", "latents follow N(0, I)"))),
        Option("prior_loss", PRIOR_LOSSES, "gan", "what tells latents from the prior: gan, a "
               "critic (jWAE), or mmd, a maximum mean discrepancy (both of Tolstikhin et al. 2018)"),
        Option("latent_norm", LATENT_NORMS, None,
               "scale of latents. sphere: norm sqrt(embed_size), the direction that the cosine "
               "compares; batch: mean 0 and variance 1 per dimension over a batch (default with a "
               "prior: sphere, and batch for --loss mse, whose latents shrink otherwise; none "
               "without a prior)"),
        term("vae", "sample every latent from a Gaussian of its own, with this weight of its KL to "
             "N(0, I) (the VAE that jWAE is compared with)"),
        term("captioner", "vsrn: generate the caption, too (1)"),
        flag("captioner_original", "captioner: attend as VSRN's code does, with the state alone "
             "(default: with the word before, too)"),
        Option("dim_hidden", width, 512, "captioner: size of its GRUs"),
        Option("max_len", up_to(10000, least=2), 60, "captioner: cut captions after so many "
               "tokens, <start> and <end> among them"),
        term("vib", "KL of every Gaussian to N(0, I), in nats, averaged over items (PCME: 5e-6; "
             "PCME++ averages over dimensions, too: its 1e-4 is 1e-4 / embed_size here)"),
        term("diversity", "mil: keep the K embeddings apart (PVSE: 0.1 beside a hinge averaged "
             "over the batch; ours is summed, so 0.1 x batch size)"),
        term("mmd", "draw the distributions of image and caption embeddings together (PVSE: 0.01, "
             "so here 0.01 x batch size)"),
    ],
    "optimisation": [
        Option("dropout", below_one, 0.0, "share of the numbers of features and word vectors that "
               "are dropped in training"),
        Option("feature_noise", at_least_zero, 0.0, "normal noise added to features and word "
               "vectors in training, its norm as a share of theirs", metavar="SHARE"),
        Option("weight_decay", at_least_zero, 0.0, "decay of matrices, apart from the gradient "
               "(AdamW)"),
        Option("schedule", ["step", "cosine"], "step", "learning rate: tenfold down every "
               "--lr_update epochs, or half a cosine to 0 at the end"),
        Option("warmup", at_least_zero, 0.0, "epochs over which the learning rate rises from 0",
               metavar="EPOCHS"),
        Option("num_epochs", positive, 30, "epochs", common=True),
        Option("batch_size", up_to(LARGEST, least=2), 128,
               "pairs per batch", common=True),
        Option("optimizer", ["adam", "sgd"], "adam", "sgd is plain, as in DMSM, at --learning_rate "
               "0.5"),
        Option("learning_rate", above_zero, 0.0002, "initial learning rate", common=True),
        Option("lr_update", positive, 15, "epochs between tenfold reductions of the learning rate"),
        Option("grad_clip", at_least_zero, 2.0, "largest norm of the gradient; 0: no limit"),
        Option("select", ["rsum", "hbr", "r1"], "rsum", "which model is best on dev: the one with "
               "the highest sum of recalls, the lowest harmonic mean of the images' best ranks "
               "(DMSM), or the highest R@1 (CITE; of captions the sum of both directions)"),
        Option("patience", positive, None, "stop after N epochs in a row without a better model "
               "on dev (CITE: 5; default: go on to --num_epochs)", metavar="N"),
        Option("amp", ["off", "bf16"], "off", "precision of the networks", common=True),
        Option("device", ["auto", "cpu", "cuda"], "auto", "where to train (auto: CUDA when "
               "present)", common=True),
        Option("seed", natural, 0, "seed of initialisation, batch order and crops", common=True),
    ],
    "run": [
        Option("logger_name", filename, None, "run folder (default: "
               "runs/{data_name}_{sim}_seed{seed})", common=True, metavar="FOLDER"),
        Option("log_step", positive, 10, "steps between log lines"),
        Option("val_step", positive, 500, "steps between validations within an epoch"),
        Option("resume", lambda text: text and filename(text), None,
               "go on exactly where RUN, or the run in --logger_name, stopped; give a checkpoint "
               "file and --logger_name NEW to go on from there in a new folder",
               common=True, metavar="RUN", nargs="?"),
        Option("init_from", filename, None, "start from the weights and vocabulary of RUN",
               common=True, metavar="RUN"),
        Option("vocab", filename, None, "vocabulary of an --init_from checkpoint of the original "
               "VSE++ or VSRN (python vocab.py convert)", metavar="FILE.json"),
        flag("overwrite", "remove a run before: checkpoints, logs, events, results[_*].json, "
             "calibration[_*].json, retrieval.png and the pictures confidence, people, "
             "uncertainty and uncertain_SIDE[_*].png", common=True),
        Option("config", filename, None, "YAML file of options; the command line comes before it",
               common=True),
        flag("methods", "list the methods and their options, and end", common=True),
        flag("dry_run", "check everything, print sizes and options, write nothing", common=True),
    ],
}, ADVICE, settled=("img_dim", "n_regions", "txt_dim"))
