"""What options of train.py cannot work together, and what has an effect only with what."""
import os

import cli
from cli import InputError
from files.tars import has_tars
from methods.jwae import learns_alone
from model import IMAGE_ENCODERS, TEXT_ENCODERS
from options.facts import (
    GAUSSIANS,
    gaussians,
    hidden_layers,
    means_learn,
    needed_gaussians,
    one_vector,
    prior,
    similarity,
    text_reads,
)
from options.phrases import OF_CAPTIONS, PHRASE_CONFLICTS, PHRASE_OPTIONS

# ---- what cannot work together: (when, the sentence that says so, formatted with the options)

TERMS = ("recon_images", "recon_captions", "prior_images", "prior_captions", "vae")
NETWORKS = ("product", "cite")                   # similarities that read each pair by themselves, of unit vectors
FEWEST_EPOCHS = {"ema": 3, "swa": 6}             # whose last third can be averaged

CONFLICTS = [
    # several embeddings per item
    *((lambda o, name=name: o.sim == "mil" and getattr(o, name) != "pie",
       f"--sim mil compares several embeddings per item, and --{name} {{{name}}} makes one; leave --{name} out (it is "
       "pie then), or take --sim cosine") for name in ("img_enc", "txt_enc")),
    (lambda o: o.n_embeds > 1 and o.sim != "mil",
     "--n_embeds {n_embeds} is for --sim mil, and --sim {sim} compares one embedding per item; leave it out"),
    (lambda o: o.diversity and o.n_embeds == 1,
     "--diversity {diversity} keeps several embeddings of an item apart, and there is one; take --sim mil with "
     "--n_embeds 2 or more, or leave it out"),
    (lambda o: o.txt_enc in ("pie", "bigru") and o.embed_size % 2,
     "--embed_size {embed_size} is odd, and --txt_enc {txt_enc} joins two directions of a GRU of half that size; give "
     "an even one"),
    # regions and words compared one by one
    (lambda o: o.img_enc == "scan" and o.sim != "scan",
     "--img_enc scan keeps every region of an image, and --sim {sim} does not compare them; take --sim scan, or leave "
     "--img_enc out"),
    (lambda o: o.sim == "scan" and o.text_features,
     "--text_features {text_features} are one vector per caption, and --sim scan compares words; leave it out, or take "
     "--sim cosine"),
    *((lambda o, name=name, needed=needed: o.sim == "scan" and getattr(o, name) != needed,
       f"--sim scan compares every region with every word, which --{name} {{{name}}} does not leave; leave --{name} "
       "out")
      for name, needed in (("img_enc", "scan"), ("txt_enc", "gru"), ("pool", "mean"))),
    (lambda o: o.sim == "scan" and o.use_abs,
     "--use_abs is for order embeddings, and --sim scan compares regions and words; leave it out"),
    # text encoders
    (lambda o: (o.txt_enc == "features") != bool(o.text_features),
     "--txt_enc {txt_enc} and --text_features {text_features}: features are read by --txt_enc features, from the files "
     "that --text_features names; give both or neither"),
    (lambda o: o.txt_layers and not TEXT_ENCODERS[o.txt_enc].layers,
     "--txt_layers {txt_layers} is for --txt_enc mean, sum, features and trigrams, not {txt_enc}; leave it out"),
    (lambda o: text_reads(o) == "trigrams" and o.txt_layers == "0",
     "--txt_layers 0: --txt_enc {txt_enc} needs a layer; give sizes, or leave it out for a single one"),
    *((lambda o, name=name: getattr(o, name) and text_reads(o) == "trigrams",
       f"--{name} {{{name}}} is for features and word vectors, and --txt_enc {{txt_enc}} reads letter trigrams; leave "
       "it out") for name in ("dropout", "feature_noise")),
    (lambda o: o.word_vectors and text_reads(o) != "words",
     "--word_vectors {word_vectors}: --txt_enc {txt_enc} has no word vectors; leave it out"),
    (lambda o: o.word_vectors and o.init_from and o.resume is None,
     "--word_vectors {word_vectors}: the words are those of --init_from {init_from}; leave it out"),
    (lambda o: o.word_vectors and o.resume is None and not os.path.isfile(o.word_vectors),
     "there is no file {word_vectors} of word vectors; `python -m features.word_vectors` learns some from the "
     "captions"),
    (lambda o: o.freeze_words and not (o.word_vectors or o.init_from),
     "--freeze_words keeps vectors of a file, or of a run, as they are; give --word_vectors FILE or --init_from RUN "
     "too"),
    # layers
    *((lambda o, name=name: o.layer_style == "branch" and "-" in (getattr(o, name) or ""),
       f"--{name} {{{name}}}: --layer_style branch has one hidden layer; give one size")
      for name in ("img_layers", "txt_layers")),
    (lambda o: o.img_layers and (o.pool == "gpo" or o.img_enc != "auto" and not IMAGE_ENCODERS[o.img_enc].layers),
     "--img_layers {img_layers} embeds one vector per image, and --img_enc {img_enc} --pool {pool} has an embedding of "
     "its own; leave it out"),
    # autoencoders
    (lambda o: o.recon_images and o.img_enc != "auto" and not IMAGE_ENCODERS[o.img_enc].target,
     "--recon_images {recon_images}: --img_enc {img_enc} learns what its embedding is given, so there is no fixed "
     "target; take --img_enc precomp or --sim scan"),
    (lambda o: o.recon_images and o.pool == "gpo",
     "--recon_images {recon_images}: --pool gpo makes one latent of all regions, which cannot give each of them back; "
     "take --pool mean or --sim scan"),
    (lambda o: o.recon_captions and not TEXT_ENCODERS[o.txt_enc].decoder,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} has no decoder; take gru, bigru, mean or features"),
    (lambda o: o.recon_captions and o.txt_enc in ("mean", "sum") and not o.freeze_words,
     "--recon_captions {recon_captions}: --txt_enc {txt_enc} would move its own target; keep the words as they are "
     "with --word_vectors FILE --freeze_words, or take gru or bigru"),
    *((lambda o, name=name: getattr(o, name) and o.sim not in ("cosine", "dot", "scan") + NETWORKS * (name != "vae"),
       f"--{name} is for points compared by their direction, not for --sim {{sim}}; take --sim cosine")
      for name in TERMS),
    (lambda o: o.vae and o.sim == "scan",
     "--vae {vae} samples one vector per item, and --sim scan compares parts; take --sim cosine"),
    (lambda o: o.word_dropout >= 1, "--word_dropout {word_dropout} is a share of the words; give less than 1"),
    *((lambda o, side=side: getattr(o, f"unpaired_{side}") and not learns_alone(o, side),
       f"--unpaired_{side} {{unpaired_{side}}}: nothing is learned from {side} without partners here; give a weight, "
       f"such as --recon_{side} or --prior_{side}, or leave it out") for side in ("images", "captions")),
    # objectives
    (lambda o: o.loss == "mse" and o.sim not in ("cosine", "dot"),
     "--loss mse draws matching points together, and --sim {sim} does not compare them; take --sim cosine"),
    (lambda o: o.loss == "two_branch" and o.no_imgnorm,
     "--no_imgnorm: --loss two_branch compares unit vectors; leave it out"),
    (lambda o: o.loss == "two_branch" and (o.sim != "cosine" or o.batch_size % 2 and not o.localise),
     "--loss two_branch compares points in batches of pairs of captions; --sim {sim} and --batch_size {batch_size} do "
     "not go with it: take cosine and an even number"),
    (lambda o: (o.sim in NETWORKS) != (o.loss == "logistic"),
     "--sim {sim} and --loss {loss}: the Similarity Network is --sim product with --loss logistic, and CITE --sim cite "
     "with it; give both or neither"),
    (lambda o: o.sim == "cite" and o.cite_layers.count("-") != 1,
     "--cite_layers {cite_layers}: --sim cite has a layer that all concepts share, and one for each; give two sizes, "
     "such as 1024-256"),
    (lambda o: o.loss == "nll" and o.negative_source == "batch" and o.negatives >= o.batch_size,
     "--negatives {negatives}: a batch of {batch_size} captions has one less to compare with; give fewer, a larger "
     "--batch_size, or --negative_source set"),
    (lambda o: (o.unpaired_images or o.unpaired_captions or o.supervised_fraction < 1) and o.negative_source == "set",
     "--negative_source set draws captions of its own and does not go with unpaired data; take batch"),
    # points and Gaussians
    (lambda o: o.vae and gaussians(o) != 2, "--vae {vae} needs a Gaussian on both sides, not image head '{image_head}' "
                                            f"and text head '{{text_head}}'; give both sides one of "
                                            f"{', '.join(GAUSSIANS)}"),
    (lambda o: o.sim in ("mls", "vmf") and "ellipsoidal" in (o.image_head, o.text_head),
     "--sim {sim} has one variance per item, not image head '{image_head}' and text head '{text_head}'; leave the "
     "heads out, or make one side a point (--image_head point)"),
    (lambda o: o.loss == "probvlm" and o.sim not in ("cosine", "dot"),
     "--loss probvlm learns variances beside points, and --sim {sim} does not compare points; take --sim cosine"),
    *((lambda o, n=n: needed_gaussians(o) == n != gaussians(o) and not (similarity(o).point_side and gaussians(o)),
       f"--sim {{sim}} {wants}, not image head '{{image_head}}' and text head '{{text_head}}'; "
       f"{fix}") for n, wants, fix in (
        (0, "compares points", "leave the heads out, or choose a similarity of Gaussians such as wasserstein"),
        (1, "needs one Gaussian side and one point",
         f"give one of --image_head (GIE) and --text_head (GCE) one of {', '.join(GAUSSIANS)}"),
        (2, "needs a Gaussian on both sides", f"give both sides one of {', '.join(GAUSSIANS)}"))),
    (lambda o: o.var_layers == "0", "--var_layers 0: variances need a hidden layer; give a size, such as 256"),
    (lambda o: o.freeze_means and not o.init_from and o.resume is None,
     "--freeze_means keeps the means of a trained run as they are; name it with --init_from RUN"),
    (lambda o: o.held_out and o.supervised_fraction == 1,
     "--held_out trains on the pairs that --supervised_fraction leaves out, and 1 leaves none; give that of the run "
     "whose other pairs are wanted, such as 0.7"),
    (lambda o: o.freeze_means and not gaussians(o),
     "--freeze_means leaves only variances to learn, and --sim {sim} has points; take a similarity of Gaussians, such "
     "as mls"),
    (lambda o: o.loss == "probvlm" and (means_learn(o) or {o.image_head, o.text_head} != {"ellipsoidal"}),
     "--loss probvlm learns ellipsoidal variances around means that are given, and here are image head '{image_head}', "
     "text head '{text_head}'; leave the heads out, and give --freeze_means with --init_from RUN, or --text_features "
     "NAME with --img_layers 0 --txt_layers 0"),
    (lambda o: o.inclusion and gaussians(o) != 2,
     "--inclusion {inclusion} needs a Gaussian on both sides, not image head '{image_head}' and text head "
     "'{text_head}'; leave it out"),
    (lambda o: o.vib and o.vae, "--vib {vib} and --vae {vae} draw the same Gaussians to N(0, I); leave --vib out"),
    (lambda o: o.vib and not gaussians(o),
     "--vib {vib} needs a Gaussian side, and --sim {sim} has points; choose a similarity of Gaussians or leave it out"),
    *PHRASE_CONFLICTS,
    (lambda o: o.var_min >= o.var_max,
     "--var_min {var_min} and --var_max {var_max} are not in order; give a smaller --var_min"),
    # training
    (lambda o: o.train_shards and o.text_features,
     "--text_features {text_features} lie beside precomputed features, and --train_shards {train_shards} holds photos; "
     "leave one of them out"),
    (lambda o: o.max_violation and o.loss != "hinge", "--max_violation is for --loss hinge, not {loss}; leave it out"),
    (lambda o: o.vse_mean_warmup_epochs and not o.max_violation,
     "--vse_mean_warmup_epochs delays --max_violation, which is off; give --max_violation too"),
    *((lambda o, kind=kind, fewest=fewest: o.average == kind and o.num_epochs < fewest,
       f"--average {kind} averages over the last third of the epochs, and of --num_epochs {{num_epochs}} that is not "
       f"enough; give at least {fewest}") for kind, fewest in FEWEST_EPOCHS.items()),
    (lambda o: o.warmup >= o.num_epochs,
     "--warmup {warmup:g} is as long as the training of --num_epochs {num_epochs}; give less"),
    (lambda o: o.captioner and o.img_enc != "vsrn",
     "--captioner {captioner} reads the regions of --img_enc vsrn, not of {img_enc}; give --img_enc vsrn too, or leave "
     "it out"),
    (lambda o: o.captioner and text_reads(o) != "words",
     "--captioner {captioner} tells captions word by word, and --txt_enc {txt_enc} reads no words; take gru, or leave "
     "it out"),
    (lambda o: o.batch_size < 2, "--batch_size {batch_size} has no negatives to learn from; give at least 2, 128 is "
                                 "usual"),
    (lambda o: o.amp == "fp16" and cli.torch_device(o.device).type != "cuda",
     "--amp fp16 needs CUDA; on this device use --amp bf16 or off"),
    (lambda o: o.tf32 and cli.torch_device(o.device).type != "cuda",
     "--tf32 needs CUDA, as a CPU has no tf32; leave it out"),
    (lambda o: o.features_on == "device" and cli.torch_device(o.device).type != "cuda",
     "--features_on device needs CUDA; on this device use auto or host"),
    (lambda o: o.deterministic and o.finetune and o.cnn_type.startswith("vgg"),
     "--deterministic: torch has no deterministic gradient of {cnn_type}'s pooling on CUDA; take a resnet, or leave "
     "--finetune or --deterministic out"),
    (lambda o: o.vocab and not o.init_from,
     "--vocab {vocab} is the vocabulary of an original checkpoint that --init_from names; give both, or a vocabulary "
     "for training in --vocab_path"),
]

# ---- what several processes cannot share: (when, the sentence, formatted with the options and their number n)

IN_ONE = "; train in one process, without torchrun"
SEVERAL = [
    (lambda o: o.localise, "{data_name} has phrases, whose photos {n} processes do not share yet" + IN_ONE),
    (lambda o: o.sim == "cite",
     "--sim cite normalises captions by the batch of one process, and there are {n}" + IN_ONE),
    (lambda o: o.finetune and not o.freeze_bn,
     "--finetune takes the statistics of BatchNorm from the batch of one process, and there are {n}; give --freeze_bn, "
     "which VSE++ had in effect"),
    (lambda o: o.captioner and o.captioner_original,
     "--captioner_original drops other numbers at each word, which {n} processes do not share; leave it out, or train "
     "in one process"),
]


def refuse_several(opt, processes: int) -> None:
    """Raises InputError where resolved options cannot be trained by so many processes."""
    if processes > opt.batch_size:
        raise InputError(f"--batch_size {opt.batch_size} is shared by {processes} processes, so that some have nothing "
                         "to do; give a larger one, or fewer processes (--nproc_per_node)")
    for wrong, sentence in SEVERAL if processes > 1 else ():
        if wrong(opt):
            raise InputError(sentence.format(**vars(opt), n=processes))


# ---- what has an effect only with what: (options, when they have one, what that is)

USED_BY = [
    PHRASE_OPTIONS, OF_CAPTIONS,
    ("shuffle_window", lambda o: o.train_shards or has_tars(os.path.join(o.data_path, o.data_name)), "photos in tar "
     "shards"),
    ("cross_attn raw_feature_norm agg_func lambda_lse lambda_softmax bi_gru precomp_enc_type no_txtnorm",
     lambda o: o.sim == "scan", "--sim scan"),
    ("lambda_lse", lambda o: o.agg_func == "LogSumExp", "--agg_func LogSumExp"),
    ("n_samples", lambda o: o.sim == "match_prob", "--sim match_prob"),
    ("concepts cite_layers", lambda o: o.sim == "cite", "--sim cite"),
    ("margin", lambda o: o.loss == "hinge", "--loss hinge"),
    ("gamma negatives negative_source", lambda o: o.loss == "nll", "--loss nll"),
    ("label_smoothing", lambda o: o.loss in ("infonce", "match"), "--loss infonce and match"),
    ("effective_dim", lambda o: o.sim == "mls", "--sim mls"),
    ("pseudo_positives", lambda o: o.loss == "match", "--loss match"),
    ("mse_weight", lambda o: o.loss == "mse", "--loss mse"),
    ("var_layers", lambda o: o.loss != "probvlm", "objectives other than probvlm, which has a network of its own"),
    ("mask_same_image", lambda o: o.loss not in ("mse", "two_branch", "probvlm") and o.negative_source == "batch",
     "objectives over the pairs of a batch"),
    ("recon_norm", lambda o: o.recon_images, "--recon_images"),
    ("decoder_dim", lambda o: o.recon_images or o.recon_captions and TEXT_ENCODERS[o.txt_enc].decoder == "vector",
     "--recon_images, and --recon_captions with --txt_enc mean or features"),
    ("word_dropout", lambda o: o.recon_captions and TEXT_ENCODERS[o.txt_enc].decoder == "words",
     "--recon_captions with --txt_enc gru or bigru"),
    ("prior_loss", prior, "--prior_images and --prior_captions"),
    ("critic_learning_rate", lambda o: prior(o) and o.prior_loss == "gan",
     "--prior_images and --prior_captions with --prior_loss gan"),
    ("dim_hidden max_len captioner_original", lambda o: o.captioner, "--captioner"),
    ("var_max logvar_init logvar_norm var_layers", gaussians, "Gaussian heads"),
    ("no_imgnorm", lambda o: o.sim not in ("mil", *NETWORKS), "similarities that do not normalise by themselves"),
    ("layer_style", lambda o: o.layer_style == "relu" or hidden_layers(o) or o.layer_style == "tanh" and one_vector(o),
     "--img_layers and --txt_layers"),
    ("lr_update", lambda o: o.schedule == "step", "--schedule step"),
    ("freeze_bn", lambda o: o.finetune, "--finetune"),
    ("txt_fc", lambda o: o.txt_enc == "gru" and o.sim != "scan", "--txt_enc gru and one vector per caption"),
    ("num_layers", lambda o: o.txt_enc in ("gru", "bigru", "pie"), "--txt_enc gru, bigru and pie"),
    ("region_norm region_bn", lambda o: o.img_enc == "vsrn", "--img_enc vsrn"),
    ("finetune cnn_weights cnn_type crop_size", lambda o: o.img_dim is None, "photos"),
]
