"""The systems: what is called of each original, and our names of its weights.

Flags of the originals are those of their READMEs. `sizes` are small sizes that both commands
understand.
"""

import argparse
import copy
import functools
import os

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_packed_sequence

import losses
from images import import_torchvision
from losses import Embedding
from methods.originals import CNN_NAMES, FC_NAMES, TEXT_NAMES, VSRN_NAMES, rename
from paper_tables.parity.clone import parse_options
from paper_tables.parity.compare import Evaluation, Original, System, batches_of
from paper_tables.parity.made_up import TOY_CAPTIONS_PER_IMAGE
from utils import InputError, read_yaml

# What reads photos and captions, and writes logs.
DATA_READERS = ("torchvision", "pycocotools", "nltk", "PIL", "tensorboard_logger")
SIZES = "--embed_size 64 --word_dim 32 --batch_size 32"


class Loader(list):
    """Batches as an original's evaluation reads them, from a data loader."""

    def __init__(self, dataset, batches):
        super().__init__(batches)
        self.dataset = dataset


def as_parts(parts, count: Tensor | None = None) -> Embedding:
    """Build our Embedding of items of several parts (N, P, D).

    count (N,): parts that are not padding; None: all.
    """
    parts = torch.as_tensor(parts)
    if count is None:
        count = torch.full((len(parts),), parts.shape[1])
    return Embedding(parts.mean(1), None, parts, count)


# ---- VSE++ (fartashf/vsepp)


class VSEPP(Original):
    python2 = True
    unused = DATA_READERS
    sizes = f"{SIZES} --lr_update 2"
    model_class = "VSE"

    def __init__(self, clone, run, flags):
        self.train = clone.load("train")
        self.evaluation = clone.load("evaluation")
        self.opt = self.read_options(run, flags)
        self.model = getattr(clone.load("model"), self.model_class)(self.opt)
        self.model.logger = self.evaluation.LogCollector()

    def read_options(self, run, flags) -> argparse.Namespace:
        opt = parse_options(self.train.main, f"--data_name coco_precomp {flags}")
        opt.vocab_size = len(run.vocab)
        opt.img_dim = run.opt.img_dim
        return opt

    def start_epoch(self, epoch):
        self.model.train_start()
        self.train.adjust_learning_rate(self.opt, self.model.optimizer, epoch)

    def arguments(self, batch) -> tuple:
        """A batch as its data loader gives it."""
        return batch.images, batch.tokens, batch.lengths.tolist(), batch.caption_index.tolist()

    def step(self, batch):
        self.model.train_emb(*self.arguments(batch))
        return self.model.logger.meters["Le"].val

    def weights(self):
        image, text = self.model.state_dict()
        return {**rename(image, FC_NAMES), **rename(text, TEXT_NAMES)}

    def evaluate(self, split, tokens):
        batches = [self.arguments(batch) for batch in batches_of(split, tokens)]
        images, captions = self.evaluation.encode_data(self.model, Loader(split.captions, batches))
        settings = {"measure": self.opt.measure, "return_ranks": True}
        i2t, (image_ranks, _) = self.evaluation.i2t(images, captions, **settings)
        t2i, (caption_ranks, _) = self.evaluation.t2i(images, captions, **settings)
        images = torch.from_numpy(images[::TOY_CAPTIONS_PER_IMAGE])  # (M, D) -> (N, D)
        captions = torch.from_numpy(captions)  # (M, D)
        return Evaluation(
            Embedding(images), Embedding(captions), i2t, t2i, (image_ranks, caption_ranks)
        )


class VSEPPPhotos(VSEPP):
    """A fine-tuned ResNet-18, always in training mode (--reset_train), on small photos."""

    sizes = "--embed_size 64 --word_dim 32 --batch_size 8 --lr_update 1 --crop_size 32"
    reads = "photos"
    most_steps = 40  # over two rates: an epoch has 25

    def __init__(self, clone, run, flags):
        def build_untrained(pretrained):
            return import_torchvision().models.resnet18()

        clone.empty["torchvision.models"] = {"resnet18": build_untrained}
        super().__init__(clone, run, flags)

    def weights(self):
        image, text = self.model.state_dict()
        return {**rename(image, CNN_NAMES), **rename(text, TEXT_NAMES)}


# ---- SCAN (kuanghuei/SCAN)


class SCAN(VSEPP):
    """SCAN without the 1e-8 that its l2norm adds to every norm.

    Training amplifies small differences where words attend to regions. `SCANReleased` adds it.
    """

    reads = "regions"
    model_class = "SCAN"
    eps = 0.0

    def __init__(self, clone, run, flags):
        super().__init__(clone, run, flags)
        clone.load("model").l2norm.__defaults__ = (self.eps,)

    def encode(self, split, tokens) -> tuple:
        """Regions (M, P, D), words (M, T, D) and the numbers of words (M)."""
        batches = [self.arguments(batch) for batch in batches_of(split, tokens)]
        return self.evaluation.encode_data(self.model, Loader(split.captions, batches))

    def evaluate(self, split, tokens):
        images, captions, lengths = self.encode(split, tokens)
        images = images[::TOY_CAPTIONS_PER_IMAGE]
        shard = getattr(self.evaluation, f"shard_xattn_{self.opt.cross_attn}")
        scores = shard(images, captions, lengths, self.opt)

        sides = images, captions, lengths, scores
        i2t, (image_ranks, _) = self.evaluation.i2t(*sides, return_ranks=True)
        t2i, (caption_ranks, _) = self.evaluation.t2i(*sides, return_ranks=True)
        words = torch.tensor([int(length) for length in lengths])
        return Evaluation(
            as_parts(images), as_parts(captions, words), i2t, t2i, (image_ranks, caption_ranks)
        )


class SCANReleased(SCAN):
    """With what its l2norm adds."""

    eps = 1e-8


# ---- VSRN (KunpengLi1994/VSRN)


class VSRN(VSEPP):
    """VSRN without dropout on either side, since the two draw their masks in another order.

    The caption generator's parameters are listed once, and its loss ends at <end>. `VSRNReleased`
    leaves both as they are.
    """

    unused = (*DATA_READERS, "pyciderevalcap")
    sizes = f"{SIZES} --lr_update 2 --dim_hidden 48"
    reads = "regions"
    model_class = "VSRN"
    pads = 0  # that are predicted after <end>

    def __init__(self, clone, run, flags):
        super().__init__(clone, run, flags)
        for module in run.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.set_optimizer(run)

    def read_options(self, run, flags):
        opt = super().read_options(run, flags)
        opt.dim_vid = opt.embed_size
        opt.input_dropout_p = 0.0
        opt.rnn_dropout_p = 0.0
        opt.bidirectional = bool(opt.bidirectional)  # 0, which torch no longer takes
        opt.max_len = 2 + max(tokens.length.max() for tokens in run.tokens.values())
        return opt

    def set_optimizer(self, run) -> None:
        """List every parameter once."""
        self.model.params = list(dict.fromkeys(self.model.params))
        self.model.optimizer = torch.optim.Adam(self.model.params, lr=self.opt.learning_rate)

    def arguments(self, batch):
        """With the captions as labels (B, max_len + 1), and a mask of those that count."""
        count, longest = batch.tokens.shape
        labels = torch.zeros(count, self.opt.max_len + 1, dtype=torch.long)
        labels[:, :longest] = batch.tokens
        positions = torch.arange(self.opt.max_len + 1)
        mask = (positions < batch.lengths[:, None] + self.pads).to(batch.images.dtype)
        return (*super().arguments(batch), labels, mask)

    def weights(self):
        image, text = self.model.state_dict()
        for name, value in image.items():
            if value.ndim == 3:  # a convolution of width 1 is a linear layer
                image[name] = value.squeeze(2)
        captioner = rename(self.model.caption_model.state_dict(), CAPTIONER)
        # its attention reads [encoder's state, decoder's state], ours has a layer for each
        joint = captioner.pop("terms.captioner.joint.weight")
        captioner["terms.captioner.key.weight"] = joint[:, : self.opt.dim_hidden]
        captioner["terms.captioner.query.weight"] = joint[:, self.opt.dim_hidden :]
        return {**rename(image, VSRN_NAMES), **rename(text, TEXT_NAMES), **captioner}


CAPTIONER = [
    (r"^", "terms.captioner."),
    (r"encoder\.vid2hid\.", "squeeze.0."),
    (r"encoder\.rnn\.", "reader."),
    (r"decoder\.embedding\.", "words."),
    (r"decoder\.attention\.linear1\.bias", "query.bias"),
    (r"decoder\.attention\.linear1\.", "joint."),
    (r"decoder\.attention\.linear2\.", "weight."),
    (r"decoder\.rnn\.(\w+)_l0", r"cell.\1"),
    (r"decoder\.out\.", "out."),
]


class VSRNReleased(VSRN):
    """VSRN as released.

    The caption generator is listed, clipped and stepped twice, and predicts one <pad> after <end>.
    """

    pads = 1

    def set_optimizer(self, run):
        pass


class VSRNFollowed(VSRNReleased):
    """The same, and ours is made to do so, too."""

    def set_optimizer(self, run):
        captioner = run.model.terms["captioner"]
        nll = captioner.nll

        def nll_with_pad(regions, tokens, lengths, n_regions=None):
            return nll(regions, nn.functional.pad(tokens, (0, 1)), lengths + 1, n_regions)

        captioner.nll = nll_with_pad
        run.parameters = [*run.parameters, *captioner.parameters()]
        group = {"params": run.parameters, "initial_lr": run.opt.learning_rate}
        run.optimizers["optimizer"] = torch.optim.Adam([group], lr=run.opt.learning_rate)


# ---- PVSE (yalesong/pvse)


class Cells(nn.Module):
    """In the place of a frozen CNN: a photo is its cells (B, C, 7, 7) already."""

    def __init__(self, channels: int):
        super().__init__()
        self.fc = nn.Linear(channels, 1)  # of which the original reads the width
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, cells: Tensor) -> Tensor:
        return cells


def as_cells(regions: Tensor) -> Tensor:
    """Regions (B, 49, C) as a map of cells (B, C, 7, 7)."""
    return regions.transpose(1, 2).unflatten(2, (7, 7))


def read_cells_as_photos(clone, run) -> None:
    """Put cells in the place of the network that reads photos, which both sides then train on."""

    def build_cells(pretrained):
        return Cells(run.opt.img_dim)

    clone.empty["torchvision"] = {"models": argparse.Namespace(resnet152=build_cells)}


class PVSE(Original):
    """PVSE on cells.

    Its loss is a mean over the batch, ours a sum: theirs is multiplied by the size of the batch.
    Both train by Adam without AMSGrad, at a constant rate, and learn their word vectors.
    """

    unused = ("torchtext", "data", "lockfile")
    sizes = SIZES
    reads = "cells"

    def __init__(self, clone, run, flags):
        read_cells_as_photos(clone, run)
        self.opt = clone.load("option").parser.parse_args(flags.split())
        self.train = clone.load("train")
        self.train.lock_and_write_to_file = nothing
        self.evaluation = clone.load("eval")
        self.model = clone.load("model").PVSE(run.vocab.index, self.opt)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.opt.lr)

        self.loss = None
        self.criterion = clone.load("loss").PVSELoss(self.opt)
        self.criterion.register_forward_hook(self.scale_loss)

    def scale_loss(self, criterion, inputs, output):
        loss, parts = output
        self.loss = loss * self.opt.batch_size
        return self.loss, parts

    def arguments(self, batch) -> tuple:
        return as_cells(batch.images), batch.tokens, batch.lengths, batch.caption_index.tolist()

    def step(self, batch):
        self.train.train(
            0, [self.arguments(batch)], self.model, self.criterion, self.optimizer, self.opt
        )
        return self.loss.item()

    def weights(self):
        return rename(self.model.state_dict(), PIE)

    def evaluate(self, split, tokens):
        batches = [self.arguments(batch) for batch in batches_of(split, tokens)]
        images, captions = self.evaluation.encode_data(self.model, Loader(split.captions, batches))
        sides = images, captions, TOY_CAPTIONS_PER_IMAGE  # (M, K, D) each
        i2t, (image_ranks, _) = self.evaluation.i2t(*sides, return_ranks=True)
        t2i, (caption_ranks, _) = self.evaluation.t2i(*sides, return_ranks=True)
        return Evaluation(
            as_parts(images[::TOY_CAPTIONS_PER_IMAGE]),
            as_parts(captions),
            i2t,
            t2i,
            (image_ranks, caption_ranks),
        )


# weights of PVSE and PCME
PIE = [
    (r"^img_enc\.", "image_tower."),
    (r"^txt_enc\.", "text_tower."),
    (r"\.embed\.", ".trunk.table."),
    (r"tower\.(fc|rnn)\.", r"tower.mean.summary.\1."),
    (r"\.pie_net\.", ".mean."),
    (r"\.uncertain_net\.(fc2|rnn)\.", r".log_var.summary.\1."),
    (r"\.uncertain_net\.", ".log_var."),
    (r"summary\.fc2", "summary.fc"),
    (r"\.w_1\.", ".hidden."),
    (r"\.w_2\.", ".score."),
    (r"layer_norm", "norm"),
]


def nothing(*_, **__) -> None:
    """In the place of a function that logs."""


# ---- PCME (naver-ai/pcme)


class Settings(dict):
    """A section of PCME's configuration, whose names are attributes, too."""

    __getattr__ = dict.get


class PCME(Original):
    """PCME on cells.

    Its loss is a sum over all pairs in two equal directions, ours a mean over items in one: theirs
    is divided by 2 B. Both train by Adam, at a constant rate, learn their word vectors, and draw
    the same noise.
    """

    unused = ("torchtext", "pandas", "adamp")
    sizes = SIZES
    reads = "cells"

    def __init__(self, clone, run, flags):
        read_cells_as_photos(clone, run)
        clone.empty["munch"] = {"unmunchify": dict}
        package = clone.load("engine")
        self.evaluator = package.COCOEvaluator(
            "matching_prob", extract_device="cpu", eval_device="cpu"
        )
        logger = argparse.Namespace(log=nothing, report=nothing, update_tracker=nothing)
        self.engine = package.TrainerEngine(device="cpu")
        self.engine.set_logger(logger)
        self.engine.create(self.read_configuration(clone, run), run.vocab.index, self.evaluator)

        self.steps = 0
        self.loss = None
        self.engine.criterion.register_forward_hook(self.scale_loss)
        self.similarity = run.model.similarity
        self.share_noise(run)

    def share_noise(self, run) -> None:
        """Let our similarity draw the noise of the original's step, (J, N, D) for each side."""

        def draw_noise(e, side):
            if side == 0:  # images come first
                torch.manual_seed(run.state["iteration"])
            count, dim = e.mean.shape
            return torch.randn(count, self.similarity.n_samples, dim).transpose(0, 1)

        self.similarity.noise = draw_noise

    def read_configuration(self, clone, run) -> Settings:
        config = read_yaml(os.path.join(clone.path, "config", "coco", "pcme_coco.yaml"))
        config = Settings({name: Settings(section) for name, section in config.items()})
        config.model.update(
            embed_dim=run.opt.embed_size,
            word_dim=run.opt.word_dim,
            wemb_type=None,
            txt_finetune=True,
        )
        config.optimizer["name"] = "adam"
        config.train.update(use_fp16=False, log_step=1)
        return config

    def scale_loss(self, criterion, inputs, output):
        loss, parts = output
        self.loss = loss / (2 * self.batch_size)
        return self.loss, parts

    def step(self, batch):
        torch.manual_seed(self.steps)  # of the noise
        self.steps += 1
        self.batch_size = len(batch.lengths)
        arguments = as_cells(batch.images), batch.tokens, batch.lengths, None, None
        self.engine._train_epoch([arguments], 0)
        return self.loss.item()

    def weights(self):
        criterion = self.engine.criterion
        return {
            **rename(self.engine.model.state_dict(), PIE),
            "similarity.scale": criterion.negative_scale[0],
            "similarity.shift": criterion.shift[0],
        }

    def evaluate(self, split, tokens):
        batches = []
        for batch in batches_of(split, tokens):
            ids = batch.caption_index.tolist(), batch.image_index.tolist()
            batches.append((as_cells(batch.images), batch.tokens, batch.lengths, *ids))
        found = self.evaluator.extract_features(Loader(PCMEDataset(split), batches))
        images = found["image_features"]
        captions = found["caption_features"]
        image_classes = found["image_classes"]
        caption_classes = found["caption_classes"]
        i2t = self.evaluator.evaluate_recall(images, captions, image_classes, caption_classes)
        t2i = self.evaluator.evaluate_recall(captions, images, caption_classes, image_classes)

        names = ("recall_1", "recall_5", "recall_10", "medr", "meanr")
        i2t = tuple(i2t[name] for name in names)
        t2i = tuple(t2i[name] for name in names)
        images = images[np.argsort(found["image_ids"])]  # samples (N, J, D)
        captions = captions[np.argsort(found["caption_ids"])]  # (M, J, D)
        return Evaluation(as_parts(images), as_parts(captions), i2t, t2i, score=self.score_samples)

    def score_samples(self, images: Embedding, captions: Embedding) -> Tensor:
        """Compute our log-odds of given samples: (N, M)."""
        x = images.parts.transpose(0, 1)  # (J, N, D)
        y = captions.parts.transpose(0, 1)  # (J, M, D)
        return self.similarity.log_odds(x, y)


class PCMEDataset:
    """What PCME's evaluation asks a data set."""

    iid_to_cls: dict = {}

    def __init__(self, split):
        self.n_images = len(split.images)
        self.captions = split.captions

    def __len__(self) -> int:
        return len(self.captions)


class PCMEFollowed(PCME):
    """The same, and ours is made to do four things as PCME's code.

    The output of a variance's network is the log of a standard deviation where samples are drawn,
    and that of a variance in the VIB. The VIB reads the mean of the samples. The backward GRU of a
    caption has read its last word alone. Clipping leaves out a and b of the match probability.
    """

    def share_noise(self, run):
        super().share_noise(run)
        draw_noise = self.similarity.noise
        mean_noise = {}  # of the samples of a side

        def draw_wider_noise(e, side):
            # the similarity multiplies by the first factor once more
            noise = (e.log_var / 2).exp() * draw_noise(e, side)
            mean_noise[side] = noise.mean(0)
            return noise

        def information_bottleneck(images, captions, batch):
            sides = []
            for side, encoded in enumerate((images, captions)):
                e = encoded.embedding
                mean = e.mean + (e.log_var / 2).exp() * mean_noise[side]
                sides.append(encoded._replace(embedding=e._replace(mean=mean)))
            return losses.information_bottleneck(*sides, batch)

        self.similarity.noise = draw_wider_noise
        vib = run.model.extra_terms["vib"]
        run.model.extra_terms["vib"] = vib._replace(loss=information_bottleneck)
        run.parameters = [*run.model.image_tower.parameters(), *run.model.text_tower.parameters()]
        for network in (run.model.text_tower.mean, run.model.text_tower.log_var):
            network.summary.forward = functools.partial(read_at_last_word, network.summary.rnn)


def read_at_last_word(rnn, words: Tensor, lengths: Tensor) -> Tensor:
    """States of both directions of a GRU at the last word of a caption: (B, D)."""
    packed, _ = rnn(words, lengths)
    states, _ = pad_packed_sequence(packed, batch_first=True)
    return states[torch.arange(len(words)), lengths - 1]


# ---- PCME++ (naver-ai/pcmepp)


class PCMEPP(Original):
    """PCME++'s criterion on a copy of our towers, as its own encoders need CLIP's weights.

    Its loss is twice a mean over pairs, ours a sum over the pairs of an item: theirs is multiplied
    by B / 2.
    """

    unused = ("eccv_caption", "pcmepp.modules.clip")
    sizes = SIZES
    smoothness_alpha = 0.0
    label_smoothing = 0.0

    def __init__(self, clone, run, flags):
        config = read_yaml(os.path.join(clone.path, "configs", "pcmepp.yaml"))
        settings = {**config["criterion"], "smoothness_alpha": self.smoothness_alpha}
        self.criterion = clone.load("pcmepp.criterions").get_criterion(**settings)
        self.evaluation = clone.load("pcmepp.evaluation")
        self.networks = copy.deepcopy(run.model)
        self.networks.objective = None
        self.set_optimizer(run)

    def set_optimizer(self, run) -> None:
        self.parameters = [*self.networks.parameters(), *self.criterion.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=run.opt.learning_rate)

    def embed(self, batch) -> list[dict]:
        """Images and captions as its encoders give them; "std" is a log-variance."""
        sides = []
        for encoded in self.networks.encode(batch).values():
            sides.append({"mean": encoded.embedding.mean, "std": encoded.embedding.log_var})
        return sides

    def compute_loss(self, batch) -> Tensor:
        pairs = torch.eye(len(batch.lengths))
        matched = (1 - self.label_smoothing) * pairs + self.label_smoothing * (1 - pairs)
        loss, _ = self.criterion(*self.embed(batch), matched=matched)
        return loss * len(batch.lengths) / 2

    def step(self, batch):
        loss = self.compute_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 2.0)
        self.optimizer.step()
        return loss.item()

    def weights(self):
        return {
            **self.networks.state_dict(),
            "objective.scale": self.criterion.negative_scale[0],
            "objective.shift": self.criterion.shift[0],
        }

    def evaluate(self, split, tokens):
        self.networks.eval()
        (batch,) = batches_of(split, tokens, len(split.captions))
        back = batch.caption_index.argsort()
        images, captions = self.embed(batch)  # (M, D) each
        images = {name: x[back][::TOY_CAPTIONS_PER_IMAGE] for name, x in images.items()}
        captions = {name: x[back] for name, x in captions.items()}
        scores = self.score(images, captions)
        count = len(scores)
        i2t, (image_ranks, _) = self.evaluation.eval_i2t_val(count, scores, return_ranks=True)
        t2i, (caption_ranks, _) = self.evaluation.eval_t2i_val(count, scores, return_ranks=True)
        images = Embedding(images["mean"], images.get("std"))
        captions = Embedding(captions["mean"], captions.get("std"))
        return Evaluation(images, captions, i2t, t2i, (image_ranks, caption_ranks))

    def score(self, images, captions) -> np.ndarray:
        """Scores (N, M) as its evaluation computes them."""
        means = images["mean"], captions["mean"]
        return self.evaluation.compute_csd_sims(*means, images["std"], captions["std"])


class PCMEPPPseudo(PCMEPP):
    """With the pseudo-positives and the label smoothing of configs/pcmepp.yaml."""

    smoothness_alpha = 0.1
    label_smoothing = 1e-4


class VSEInfinity(PCMEPP):
    """VSE-infinity's pooling and triplet loss on regions, which PCME++'s code holds.

    Captions are read by a copy of our tower. The 1e-8 that its l2norm adds to every norm is left
    out.
    """

    reads = "regions"

    def __init__(self, clone, run, flags):
        module = clone.load("pcmepp.models.img_encoder")
        module.l2norm.__defaults__ = (0.0,)
        self.head = module.EncoderImageAggr(
            run.opt.img_dim, run.opt.embed_size, precomp_enc_type="backbone"
        )
        get_criterion = clone.load("pcmepp.criterions").get_criterion
        self.criterion = get_criterion("triplet", margin=0.2, max_violation=True)
        self.evaluation = clone.load("pcmepp.evaluation")
        self.text_tower = copy.deepcopy(run.model.text_tower)
        self.networks = nn.ModuleList([self.head, self.text_tower])
        self.set_optimizer(run)

    def embed(self, batch):
        count = torch.full((len(batch.images),), batch.images.shape[1])
        captions = self.text_tower(batch.tokens, batch.lengths).embedding.mean
        return [{"mean": self.head(batch.images, count)}, {"mean": captions}]

    def compute_loss(self, batch):
        loss, _ = self.criterion(*self.embed(batch))
        return loss

    def weights(self):
        head = rename(self.head.state_dict(), POOLING)
        for name, values in head.items():
            if "rnn.weight_ih" in name:  # its inputs are a sine, a cosine, ...
                head[name] = torch.cat([values[:, 0::2], values[:, 1::2]], 1)
        return {**head, **rename(self.text_tower.state_dict(), [(r"^", "text_tower.")])}

    def score(self, images, captions):
        compute_scores = self.evaluation.compute_matmul_sims
        return compute_scores(images["mean"].numpy(), captions["mean"].numpy())


POOLING = [
    (r"^", "image_tower.mean."),
    (r"\.gpool\.gru\.", ".pool.rnn."),
    (r"\.gpool\.linear\.", ".pool.score."),
]


# ---- jWAE (visinf/jwae), which was released on SCAN alone


class JWAE(SCAN):
    """The SCAN of jWAE's code.

    Its autoencoders have fixed sizes, and other layers and weights than the paper, which we follow
    (docs/differences.md).
    """

    unused = (*DATA_READERS, "gensim")
    model_class = "JWAE"

    def embed(self, batch) -> tuple:
        """Regions (B, P, D), words (B, T, D) and the numbers of words (B)."""
        captions, lengths = self.model.txt_enc(batch.tokens, batch.lengths.tolist())
        return self.model.img_enc(batch.images), captions, lengths

    def step(self, batch):
        model = self.model
        loss = model.forward_loss(*self.embed(batch))
        model.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.params, model.grad_clip)
        model.optimizer.step()
        return loss.item()

    def weights(self):
        image, text, *_ = self.model.state_dict()
        return {**rename(image, FC_NAMES), **rename(text, TEXT_NAMES)}

    def encode(self, split, tokens):
        self.model.val_start()
        (batch,) = batches_of(split, tokens, len(split.captions))
        back = batch.caption_index.argsort()
        images, captions, lengths = self.embed(batch)
        return images[back].numpy(), captions[back].numpy(), lengths[back]


# ---- CITE (BryanPlummer/cite)


class CITE(Original):
    """Its import fails: it needs TensorFlow 1."""

    def __init__(self, clone, run, flags):
        clone.load("model")
        raise InputError("its code can be imported here, but no comparison is written")


# ---- the table

EPS = "the 1e-8 that its code adds to norms is left out"
SCAN_T2I = "--max_violation --bi_gru --cross_attn t2i --lambda_softmax 9"
SCAN_I2T = "--max_violation --bi_gru --cross_attn i2t --lambda_softmax 4"
NO_DROPOUT = "no dropout on either side"
PIE_FLAGS = "on both sides Adam at a constant rate, learned words, cells in place of photos"

PARITY_SYSTEMS = [
    System("VSE++, sum of violations", "vsepp", VSEPP, "", "--no-feature_norm"),
    System("VSE++", "vsepp", VSEPP, "--max_violation", "--method vse++ --no-feature_norm"),
    System(
        "VSE++, fine-tuned ResNet",
        "vsepp",
        VSEPPPhotos,
        "--data_name f8k --cnn_type resnet18 --max_violation --finetune --reset_train "
        "--learning_rate .00002",
        "--method vse++ --cnn_type resnet18 --finetune --learning_rate 2e-5",
    ),
    System("VSE0", "vsepp", VSEPP, "--no_imgnorm", "--method vse0 --no-feature_norm"),
    System(
        "Order0",
        "vsepp",
        VSEPP,
        "--measure order --use_abs --margin .05 --learning_rate .001",
        "--method order0 --no-feature_norm",
    ),
    System(
        "Order++",
        "vsepp",
        VSEPP,
        "--measure order --max_violation",
        "--method order++ --no-feature_norm",
    ),
    System(
        "SCAN, t-i LSE",
        "scan",
        SCAN,
        f"{SCAN_T2I} --agg_func LogSumExp --lambda_lse 6",
        "--method scan_t2i --no-feature_norm",
        EPS,
    ),
    System(
        "SCAN, t-i AVG",
        "scan",
        SCAN,
        f"{SCAN_T2I} --agg_func Mean",
        "--method scan_t2i --agg_func Mean --no-feature_norm",
        EPS,
    ),
    System(
        "SCAN, t-i AVG, flags alone",
        "scan",
        SCANReleased,
        f"{SCAN_T2I} --agg_func Mean",
        "--method scan_t2i --agg_func Mean --no-feature_norm",
        differs="SCAN's code adds 1e-8 to norms, and its training amplifies small differences",
    ),
    System(
        "SCAN, i-t LSE",
        "scan",
        SCAN,
        f"{SCAN_I2T} --agg_func LogSumExp --lambda_lse 5",
        "--method scan_i2t --no-feature_norm",
        EPS,
    ),
    System(
        "SCAN, i-t AVG",
        "scan",
        SCAN,
        f"{SCAN_I2T} --agg_func Mean",
        "--method scan_i2t_mean --no-feature_norm",
        EPS,
    ),
    System(
        "VSRN, COCO",
        "vsrn",
        VSRN,
        "--max_violation",
        "--method vsrn_original",
        f"{NO_DROPOUT}; its captioner is stepped once and predicts no padding",
    ),
    System(
        "VSRN, Flickr30K",
        "vsrn",
        VSRN,
        "--data_name f30k_precomp --max_violation",
        "--method vsrn_original --no-feature_norm --region_bn",
        f"{NO_DROPOUT}; its captioner is stepped once and predicts no padding",
    ),
    System(
        "VSRN, COCO, as its code",
        "vsrn",
        VSRNFollowed,
        "--max_violation",
        "--method vsrn_original",
        f"{NO_DROPOUT}; ours steps the captioner twice and predicts one padding token",
    ),
    System(
        "VSRN, COCO, flags alone",
        "vsrn",
        VSRNReleased,
        "--max_violation",
        "--method vsrn_original",
        NO_DROPOUT,
        "VSRN's code steps the captioner twice and predicts one padding token",
    ),
    System(
        "PVSE",
        "pvse",
        PVSE,
        "--data_name coco --max_violation --num_embeds 2 --img_attention --txt_attention "
        "--mmd_weight 0.01 --div_weight 0.1 --txt_finetune",
        "--method pvse --diversity 3.2 --mmd 0.32 --no-feature_norm",
        f"{PIE_FLAGS}; its loss times 32",
    ),
    System(
        "PCME, as its code",
        "pcme",
        PCMEFollowed,
        "config/coco/pcme_coco.yaml",
        "--method pcme --no-feature_norm",
        f"{PIE_FLAGS}; equal noise; its loss divided by 64; ours does four things as its code",
    ),
    System(
        "PCME, flags alone",
        "pcme",
        PCME,
        "config/coco/pcme_coco.yaml",
        "--method pcme --no-feature_norm",
        f"{PIE_FLAGS}; equal noise; its loss divided by 64",
        "variances, VIB, last states of captions and clipping differ",
    ),
    System(
        "PCME++, criterion",
        "pcmepp",
        PCMEPP,
        "configs/pcmepp.yaml, smoothness_alpha 0",
        "--method pcme++ --vib 2.5e-5 --no-feature_norm",
        "our towers on both sides; its loss times 16",
    ),
    System(
        "PCME++, pseudo-positives",
        "pcmepp",
        PCMEPPPseudo,
        "configs/pcmepp.yaml",
        "--method pcme++ --pseudo_positives 0.1 --vib 2.5e-5 --no-feature_norm",
        "our towers on both sides; its loss times 16",
    ),
    System(
        "VSE-infinity, in PCME++'s code",
        "pcmepp",
        VSEInfinity,
        "EncoderImageAggr, TripletLoss",
        "--method vse_infinity --no-feature_norm",
        f"our captions' tower on both sides; {EPS}",
    ),
    System(
        "jWAE, its SCAN",
        "jwae",
        JWAE,
        "",
        "--sim scan --cross_attn i2t --agg_func Mean --lambda_softmax 4 --no-feature_norm",
        f"its autoencoders are left out; {EPS}",
    ),
    System("CITE", "cite", CITE, "", "", differs="its code needs TensorFlow 1"),
]
