"""The command line of train.py: every option, its type, default and help."""
import argparse
import os

import cli
from cli import above_zero, at_least_zero, filename, natural, number, positive, up_to, width
from data import DEV_IMAGES
from devices.feeding import WHERE
from encoders import CNNS
from files.phrases import Labels, Regions
from files.tars import WINDOW
from losses import OBJECTIVES, PRIOR_LOSSES
from methods import ADVICE, METHODS
from methods.scan import AGGREGATES, DIRECTIONS, NORMS
from model import ALL_SIMILARITIES, IMAGE_ENCODERS, SHAPES, TEXT_ENCODERS


def parser() -> argparse.ArgumentParser:
    p, switch = cli.Arguments("Train a joint embedding of images and captions.", ADVICE), argparse.BooleanOptionalAction

    add = p.add_argument_group("data").add_argument
    add("--data_path", type=filename, default="data", help="folder that holds the data sets")
    add("--data_name", type=cli.data_set, default="coco_precomp", help="folder of the data set below --data_path")
    add("--vocab_path", type=filename, default="./vocab/",
        help="folder that may hold {data_name}_vocab.json; the vocabulary is built when the file is not there")
    add("--vocab_splits", type=cli.split_names, default="train", help="splits whose words count (original: train,dev)")
    add("--vocab_threshold", type=positive, default=4, help="keep words that are seen at least this often")
    add("--use_restval", action="store_true", help="train on COCO's restval images, too")
    add("--dev_images", type=natural, default=DEV_IMAGES, help="dev images of precomputed data and COCO; 0: all")
    add("--supervised_fraction", type=cli.fraction, default=1.0,
        help="share of the training images whose pairs are known; the others join the terms that need no pairs")
    add("--held_out", action="store_true", help="train on the pairs that --supervised_fraction leaves out; with the "
        "fraction and the seed of --init_from, on those that it has not learned")
    for side in ("images", "captions"):
        add(f"--unpaired_{side}", type=cli.data_set, metavar="NAME",
            help=f"data set below --data_path whose training {side} join the terms that need no pairs")
    add("--train_shards", type=cli.shards_text, metavar="SHARDS", help="tar shards of the training split in "
        "WebDataset's layout, paths or addresses such as 'pipe:cat /x/train-{00000..00009}.tar' (a pipe runs its "
        "command, so only the command line can give it, also when a run goes on)")
    add("--shuffle_window", type=positive, default=WINDOW, metavar="SAMPLES", help="tar shards are read one after "
        "another, and captions shuffled among so many samples, whose photos are held in memory as they are stored")
    add("--workers", type=cli.workers, default=min(10, os.cpu_count() or 1),
        help="processes that read photos or large files")

    add = p.add_argument_group("method").add_argument
    add("--method", choices=list(METHODS), metavar="NAME",
        help="take the options of a method of the papers (see --methods); other options given come before them")
    add("--sim", "--measure", choices=list(ALL_SIMILARITIES), default="cosine", help="similarity of image and caption")
    add("--head", choices=list(SHAPES), help="points or Gaussians, for both sides (default: what --sim needs)")
    add("--image_head", choices=list(SHAPES), help="the same for images (GIE: Gaussian here only)")
    add("--text_head", choices=list(SHAPES), help="the same for captions (GCE: Gaussian here only)")
    add("--embed_size", type=width, help="size of the joint embedding, D (default: 1024; vsrn: 2048)")
    add("--use_abs", action="store_true", help="take absolute values of the embeddings (order embeddings)")
    add("--no_imgnorm", action="store_true", help="do not normalise image means; 'cosine' is then their inner product")
    add("--var_layers", type=cli.sizes, help="variances from a network of their own that reads the mean, with such "
        "hidden layers, as 256 or 512-512 (default: a second copy of the embedding; 256 where --img_layers 0 or "
        "--txt_layers 0 leaves nothing to copy)")
    add("--freeze_means", action="store_true", help="learn variances alone; the means stay those of --init_from")
    add("--logvar_norm", action=switch, default=False, help="give log-variances norm 1")
    add("--logvar_init", type=number, help="where log-variances start (default: 0, mls: -2.5; csd with --loss match: "
        "-6)")
    add("--var_min", type=above_zero, help="smallest variance (default: 0.1; mls: 1e-4, match_prob: 1e-6)")
    add("--var_max", type=above_zero, default=10.0, help="largest variance")

    add = p.add_argument_group("images").add_argument
    add("--img_enc", choices=["auto", *IMAGE_ENCODERS], default="auto", help="image encoder. auto: precomp or cnn, "
        "whichever fits the data, or what --sim needs; vsrn: graph and GRU over regions; pie: attention to regions or "
        "to a network's last map (PVSE, PCME); scan: every region by itself (SCAN)")
    add("--cnn_type", choices=list(CNNS), default="vgg19", help="network for photos")
    add("--cnn_weights", type=filename, help="file with the network's weights (default: torch's cache, nothing is "
        "fetched; with --init_from or --resume those of the run)")
    add("--finetune", action="store_true", help="train the network for photos, too")
    add("--freeze_bn", action="store_true", help="with --finetune: its BatchNorms keep their statistics, as in VSE++")
    add("--crop_size", type=up_to(4096), default=224, help="side of the random crops of training photos")
    add("--img_dim", type=positive, help="size of the image features (default: read from the data)")
    add("--n_regions", type=positive, help="regions per image (default: read from the data)")
    add("--feature_norm", action=switch, default=True, help="l2-normalise precomputed features, as VSE++ does CNN "
        "features (vsrn: the output of its first linear layer; the original does not on Flickr30K)")
    add("--pool", choices=["mean", "gpo"], default="mean",
        help="pooling of regions: the mean of the features, or generalised pooling of their embeddings (VSE-infinity)")
    add("--region_norm", choices=["entries", "regions"], default="entries", help="vsrn: scale regions to entries of "
        "order 1, or, as the original code, each feature to norm 1 over the regions")
    add("--region_bn", action="store_true", help="vsrn: BatchNorm after the GRU, as the original on Flickr30K")
    add("--img_layers", type=cli.sizes, help="hidden layers of the image embedding, as 1024 or 2000-1000 (0: no "
        "layer at all; default: one linear layer)")
    add("--precomp_enc_type", choices=["basic", "weight_norm"], default="basic",
        help="scan: linear layer of the regions, plain or weight-normalised")

    add = p.add_argument_group("captions").add_argument
    add("--txt_enc", choices=list(TEXT_ENCODERS), help="text encoder (default: gru, or what --sim needs). bigru: "
        "jWAE's; pie: attention to word vectors (PVSE, PCME); mean, sum: of word vectors; features: --text_features; "
        "trigram_conv, trigram_bag: letter trigrams (DMSM, DSSM)")
    add("--txt_fc", action="store_true", help="gru: a linear layer behind each GRU, as in pmrl's equations; variances "
        "of captions then reach --var_min and --var_max")
    add("--txt_layers", type=cli.sizes, help="hidden layers for mean, sum, features and trigrams, as in --img_layers")
    add("--layer_style", choices=["relu", "tanh", "branch"], default="relu", help="hidden layers: relu (jWAE); tanh, "
        "the last layer, too (DMSM); branch: one, with BatchNorm, ReLU and dropout (two-branch networks)")
    add("--text_features", metavar="NAME", help="read captions as ready features, {split}_NAME.npy")
    add("--txt_dim", type=positive, help="size of the features of --text_features (default: read from the data)")
    add("--word_vectors", type=filename, metavar="FILE", help="start words from word2vec or GloVe vectors")
    add("--freeze_words", action="store_true", help="keep the vectors of --word_vectors as they are")
    add("--word_dim", type=width, default=300, help="size of the word vectors")
    add("--num_layers", type=up_to(64), default=1, help="layers of the GRU")
    add("--bi_gru", action="store_true", help="scan: read the words in both directions and average")
    add("--no_txtnorm", action="store_true", help="scan: do not normalise word states")

    add = p.add_argument_group("similarities of parts, of samples and by networks").add_argument
    add("--effective_dim", type=above_zero, default=4.0, metavar="K", help="mls: where its learned number of "
        "dimensions starts")
    add("--n_embeds", type=up_to(1024), metavar="K", help="mil: embeddings per item (default: 2)")
    add("--n_samples", type=up_to(1024), default=7, metavar="J", help="match_prob: samples of every Gaussian")
    add("--concepts", type=up_to(1024), default=4, metavar="K", help="cite: concepts that a phrase mixes")
    add("--cite_layers", type=cli.sizes, default="1024-256", help="cite: sizes of the layer that all concepts share "
        "and of the layer of each")
    add("--cross_attn", choices=DIRECTIONS, default="t2i", help="scan: words attend to regions (t2i) or the reverse")
    add("--raw_feature_norm", choices=list(NORMS), default="clipped_l2norm",
        help="scan: norm of the products of words and regions before the softmax")
    add("--agg_func", choices=list(AGGREGATES), default="LogSumExp",
        help="scan: how the cosines of all words (i2t: regions) with what they attend to become a score")
    add("--lambda_lse", type=above_zero, default=6.0, help="scan: sharpness of LogSumExp")
    add("--lambda_softmax", type=above_zero, default=9.0, help="scan: sharpness of the attention (SCAN has 4 for i2t)")

    add = p.add_argument_group("phrases in photos").add_argument
    add("--localise", action=switch, default=None, help="learn which region of its photo a phrase means (default: "
        "where the data set has Annotations/, as Flickr30k Entities)")
    add("--regions", type=cli.filename, default=Regions().name, metavar="NAME", help="proposals and their features, "
        "{split}_NAME.npy")
    add("--box_geometry", action=switch, default=True, help="read where a box lies, five numbers, beside its features")
    add("--box_origin", type=int, choices=[1, 0], default=1, help="is subtracted from the annotations' coordinates, "
        "as by the data set's Python parser (1) or its Matlab parser (0)")
    add("--positive_iou", type=cli.fraction, default=Labels().positive, help="overlap from which a region fits a "
        "phrase (jWAE: 0.7, CITE: 0.6)")
    add("--negative_iou", type=cli.fraction, default=Labels().negative, help="overlap below which it does not")
    add("--region_negatives", type=positive, default=Labels().drawn, metavar="N", help="regions drawn for each phrase "
        "that do not fit it; those of the other phrases of the photo count, too (CITE: 2)")

    add = p.add_argument_group("objective").add_argument
    add("--loss", choices=OBJECTIVES, help="hinge (VSE++), infonce (CLIP), match: cross-entropy of every pair (PCME, "
        "PCME++), nll: softmax over sampled captions (DMSM), mse: squared distance of matching pairs (jWAE), "
        "two_branch (Embedding Network), logistic (Similarity Network, CITE), probvlm (variances of given means). "
        "Default: hinge, or what --sim needs")
    add("--margin", type=at_least_zero, default=0.2, help="margin of the hinge (VSE++ and VSRN: 0.2; ucmr's VSRN: 0.1)")
    add("--max_violation", action=switch, default=None,
        help="hinge: the hardest negatives and not the sum over all (default: on for similarities of Gaussians)")
    add("--vse_mean_warmup_epochs", type=natural, default=0, metavar="N", help="first N epochs: the sum of violations")
    add("--mask_same_image", action="store_true", help="do not count other captions of an image as negatives")
    add("--gamma", type=above_zero, default=10.0, help="nll: smoothing factor of the softmax")
    add("--negatives", type=positive, default=40, metavar="N", help="nll: captions that the true one is compared with")
    add("--negative_source", choices=["batch", "set"], default="batch", help="nll: from the batch or all captions")
    add("--pseudo_positives", type=at_least_zero, default=0.0, metavar="WEIGHT", help="match: weight of pairs that "
        "score above the true one and then count as matches (PCME++: 0.1)")
    add("--label_smoothing", type=cli.below_one, help="infonce, match: share of the targets spread over all pairs "
        "(default: 0; 1e-4 with --pseudo_positives)")
    add("--mse_weight", type=above_zero, default=1.0, help="mse: weight of the squared distance per dimension, summed "
        "over the batch (embed_size gives jWAE's eq. 7 per item)")

    add = p.add_argument_group("terms beside the objective, off at a weight of 0").add_argument
    for side in ("images", "captions"):
        add(f"--recon_{side}", type=at_least_zero, default=0.0, metavar="WEIGHT", help=f"jWAE: reconstruct {side}")
        add(f"--prior_{side}", type=at_least_zero, default=0.0, metavar="WEIGHT", help="jWAE: latents follow N(0, I)")
    add("--prior_loss", choices=list(PRIOR_LOSSES), default="gan", help="what tells latents from the prior: gan, a "
        "critic (jWAE), or mmd, a maximum mean discrepancy (both of Tolstikhin et al. 2018)")
    add("--latent_norm", choices=["batch", "sphere", "none"], help="scale of latents. sphere: norm sqrt(embed_size), "
        "the direction that the cosine compares; batch: mean 0 and variance 1 per dimension over a batch (default with "
        "a prior: sphere, and batch for --loss mse, whose latents shrink otherwise; none without a prior)")
    add("--recon_norm", type=int, choices=[1, 2], default=2, help="norm of the error of a reconstructed image")
    add("--decoder_dim", type=width, default=1024, help="hidden size of the decoders of vectors")
    add("--word_dropout", type=at_least_zero, default=0.2, help="share of words hidden from the caption decoder")
    add("--critic_learning_rate", type=above_zero, default=5e-05, help="learning rate of the critic's own Adam")
    add("--vae", type=at_least_zero, default=0.0, metavar="WEIGHT", help="sample every latent from a Gaussian of its "
        "own, with this weight of its KL to N(0, I) (the VAE that jWAE is compared with)")
    add("--captioner", type=at_least_zero, default=0.0, metavar="WEIGHT", help="vsrn: generate the caption, too (1)")
    add("--captioner_original", action="store_true",
        help="captioner: attend as VSRN's code does, with the state alone (default: with the word before, too)")
    add("--dim_hidden", type=width, default=512, help="captioner: size of its GRUs")
    add("--max_len", type=up_to(10000, least=2), default=60,
        help="captioner: cut captions after so many tokens, <start> and <end> among them")
    add("--vib", type=at_least_zero, default=0.0, metavar="WEIGHT", help="KL of every Gaussian to N(0, I), in nats, "
        "averaged over items (PCME: 5e-6; PCME++ averages over dimensions, too: its 1e-4 is 1e-4 / embed_size here)")
    add("--inclusion", type=at_least_zero, default=0.0, metavar="WEIGHT", help="draw the Gaussians of captions to "
        "include those of their images (ProLIP)")
    add("--diversity", type=at_least_zero, default=0.0, metavar="WEIGHT", help="mil: keep the K embeddings apart "
        "(PVSE: 0.1 beside a hinge averaged over the batch; ours is summed, so 0.1 x batch size)")
    add("--mmd", type=at_least_zero, default=0.0, metavar="WEIGHT",
        help="draw the distributions of image and caption embeddings together (PVSE: 0.01, so here 0.01 x batch size)")

    add = p.add_argument_group("optimisation").add_argument
    add("--dropout", type=cli.below_one, default=0.0, help="share of the numbers of features and word vectors that are "
        "dropped in training")
    add("--feature_noise", type=at_least_zero, default=0.0, metavar="SHARE", help="normal noise added to features and "
        "word vectors in training, its norm as a share of theirs")
    add("--weight_decay", type=at_least_zero, default=0.0, help="decay of matrices, apart from the gradient (AdamW)")
    add("--schedule", choices=["step", "cosine"], default="step", help="learning rate: tenfold down every --lr_update "
        "epochs, or half a cosine to 0 at the end")
    add("--warmup", type=at_least_zero, default=0.0, metavar="EPOCHS", help="epochs over which the learning rate rises "
        "from 0")
    add("--num_epochs", type=positive, default=30, help="epochs")
    add("--batch_size", type=positive, default=128, help="pairs per batch; of phrases about so many, in whole photos")
    add("--optimizer", choices=["adam", "sgd"], default="adam", help="sgd is plain, as in DMSM, at --learning_rate 0.5")
    add("--learning_rate", type=above_zero, default=0.0002, help="initial learning rate")
    add("--lr_update", type=positive, default=15, help="epochs between tenfold reductions of the learning rate")
    add("--grad_clip", type=at_least_zero, default=2.0, help="largest norm of the gradient; 0: no limit")
    add("--average", choices=["none", "ema", "swa"], default="none",
        help="average weights over the last third of the epochs: exponentially (0.999) per step, or evenly per epoch")
    add("--select", choices=["rsum", "hbr"], default="rsum", help="which model is best on dev: the one with the "
        "highest sum of recalls, or the lowest harmonic mean of the images' best ranks (DMSM)")
    add("--amp", choices=["off", "bf16", "fp16"], default="off", help="precision of the networks (fp16: CUDA only)")
    add("--tf32", action="store_true", help="CUDA: float32 products of networks in tf32, whose mantissas have 10 bits; "
        "those of similarities never are")
    add("--compile", action="store_true", help="compile what gains by it (torch.compile); the first steps take longer")
    add("--deterministic", action="store_true", help="CUDA: the same numbers in every run on the same device, more "
        "slowly")
    add("--features_on", choices=WHERE, default="auto", help="CUDA: keep precomputed features on the device, or read "
        "each batch's ahead from the host (auto: on the device where they fit)")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to train (auto: CUDA when present)")
    add("--seed", type=natural, default=0, help="seed of initialisation, batch order and crops")

    add = p.add_argument_group("run").add_argument
    add("--logger_name", type=filename, help="run folder (default: runs/{data_name}_{sim}_seed{seed})")
    add("--log_step", type=positive, default=10, help="steps between log lines")
    add("--val_step", type=positive, default=500, help="steps between validations within an epoch")
    add("--resume", type=lambda text: text and filename(text), nargs="?", const="", metavar="RUN",
        help="go on exactly where RUN, or the run in --logger_name, stopped; give a checkpoint file and --logger_name "
        "NEW to go on from there in a new folder")
    add("--init_from", type=filename, metavar="RUN", help="start from the weights and vocabulary of RUN")
    add("--vocab", type=filename, metavar="FILE.json",
        help="vocabulary of an --init_from checkpoint of the original VSE++ or VSRN (python vocab.py convert)")
    add("--overwrite", action="store_true", help="replace the run that --logger_name already holds")
    add("--config", type=filename, metavar="FILE", help="YAML file of options; the command line comes before it")
    add("--methods", action="store_true", help="list the methods and their options, and end")
    add("--dry_run", action="store_true", help="check everything, print sizes and options, write nothing")
    return p
