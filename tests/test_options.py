"""The tables of options: every row can be met, and says what it is about."""
import os
import re

import pytest

import train
from cli import InputError
from options.rules import conflicts, resolve
from options.training import TRAIN
from tests.helpers import ROOT

# Command lines that cannot work, each for one reason: together they meet every row of `conflicts`.
REFUSED = """
--sim mil --img_enc precomp
--sim mil --txt_enc gru
--txt_enc bigru --embed_size 31
--img_enc scan
--sim scan --img_enc precomp
--sim scan --txt_enc bigru
--txt_enc features
--txt_enc trigram_conv --txt_layers 0
--word_vectors x
--layer_style branch --img_layers 9-9
--layer_style branch --txt_enc features --text_features w2v --txt_layers 9-9
--sim order --loss mse
--loss two_branch --batch_size 7
--loss logistic
--sim cite --cite_layers 64
--loss nll --negatives 128
--vae 1 --head point
--head ellipsoidal
--sim mahalanobis --head ellipsoidal
--sim wasserstein --head point
--sim mls --head ellipsoidal
--sim vmf --text_head ellipsoidal
--sim wasserstein --loss probvlm
--sim wasserstein --var_layers 0
--loss probvlm
--loss probvlm --freeze_means --init_from RUN --head spherical_avg
--localise --loss nll
--localise --sim scan
--localise --img_enc vsrn
--localise --select hbr
--localise
--no-localise --data_path PHRASES --data_name x
--localise --data_path PHRASES --data_name x --negative_iou 0.8
--var_min 20
--average ema --num_epochs 2
--average swa --num_epochs 5
--warmup 30
--amp fp16 --device cpu
--tf32 --device cpu
--features_on device --device cpu
--deterministic --finetune
""".strip().splitlines()


@pytest.fixture(scope="module")
def phrases(tmp_path_factory) -> str:
    """A folder that holds a data set x of phrases in photos."""
    folder = tmp_path_factory.mktemp("phrases")
    (folder / "x" / "Annotations").mkdir(parents=True)
    return str(folder)


def refusal(line: str, phrases: str) -> tuple[int, str, str]:
    """The first row that a command line meets, its sentence with the options, and what `resolve` says."""
    opt = TRAIN.parser().parse_args(line.replace("PHRASES", phrases).split())
    with pytest.raises(InputError) as error:
        resolve(opt)
    row, sentence = next(((k, said) for k, (wrong, said) in enumerate(conflicts(opt)) if wrong), (None, None))
    assert row is not None, f"{line}: {error.value}"
    return row, sentence.format(**vars(opt)), str(error.value)


@pytest.mark.parametrize("line", REFUSED)
def test_a_conflict_is_said_in_its_sentence(line, phrases):
    _, expected, said = refusal(line, phrases)
    assert said == expected and "{" not in said and "; " in said                   # what is wrong; and the fix


def test_every_conflict_can_be_met(phrases):
    met = {refusal(line, phrases)[0] for line in REFUSED}
    opt = TRAIN.parser().parse_args([])
    resolve(opt)
    assert [sentence for k, (_, sentence) in enumerate(conflicts(opt)) if k not in met] == []


# What makes an option useless, where it is not so by default: for one of its uses, or for all others.
USELESS = {"lambda_lse": "--sim scan --agg_func Mean", "no_imgnorm": "--sim mil", "mask_same_image": "--loss mse",
           "num_layers": "--txt_enc mean", "margin": "--loss infonce", "txt_fc": "--txt_enc mean",
           "lr_update": "--schedule cosine", "use_abs": "--sim scan", "img_layers": "--img_enc vsrn",
           "max_violation": "--loss infonce", "vse_mean_warmup_epochs": "--no-max_violation",
           "word_vectors": "--txt_enc trigram_bag", "dropout": "--txt_enc trigram_bag",
           "feature_noise": "--txt_enc trigram_bag", "recon_images": "--sim order", "recon_captions": "--sim order",
           "prior_images": "--sim order", "prior_captions": "--sim order", "vae": "--sim order",
           "text_anchor": "--text_features w2v", "pool": "--img_enc vsrn", "freeze_means": "--sim wasserstein"}
OF_USE = {("lambda_lse", "--sim scan"): "",
          ("negative_source", "training without"): "--loss nll --supervised_fraction 0.5",
          ("var_layers", "objectives other"): "--loss probvlm --freeze_means --init_from RUN",
          ("text_anchor", "--text_features"): "",
          ("text_anchor", "embeddings of"): "--text_features w2v --img_enc vsrn --loss infonce",
          ("text_anchor", "models without"): "--text_features w2v --loss infonce --vae 1",
          ("text_anchor", "points"): "--text_features w2v --loss infonce --sim kl",
          ("freeze_means", "Gaussian heads"): "--init_from RUN", ("recon_images", "--pool mean"): "--pool gpo",
          ("recon_captions", "--txt_enc gru"): "--txt_enc mean", ("captioner", "text encoders"):
          "--img_enc vsrn --txt_enc trigram_bag", ("vib", "models without"): "--vae 1",
          ("inclusion", "images and captions"): "--sim csd",
          ("critic_learning_rate", "--prior_loss"): "--prior_images 1 --prior_loss mmd",
          ("pseudo_positives", "images and captions"): "--sim csd --loss match"}
VALUES = {"layer_style": "branch", "word_dropout": "0.5", "label_smoothing": "0.5", "positive_iou": "0.5",
          "negative_iou": "0.5", "text_anchor": "0.5", "supervised_fraction": "0.5", "dropout": "0.5",
          "word_vectors": os.path.join(ROOT, "README.md")}


@pytest.mark.parametrize("name, where", [(name, where) for name, row in TRAIN.rows.items() for _, where in row.used_by])
def test_what_has_no_effect_is_refused(name, where, phrases):
    """An option that needs another one is refused by name where that is not so."""
    row, other = TRAIN.rows[name], USELESS.get(name, "")
    for (option, begins), words in OF_USE.items():
        if option == name and where.startswith(begins):
            other = words
    if name == "word_vectors" and "init_from" in where:
        other = "--init_from RUN"
    if where == "images and captions":
        other = f"{OF_USE.get((name, where), '')} --data_path {phrases} --data_name x"
    value = "3" if callable(row.kind) else next((str(x) for x in row.kind if x != row.default), "3")
    words = [f"--{'no-' * (row.default is True)}{name}"]
    words += [] if row.switch else [VALUES.get(name, value)]
    opt = TRAIN.parser().parse_args([*other.split(), *words])
    if name in ("finetune", "cnn_weights", "cnn_type", "crop_size"):                # photos are seen when data are read
        opt.img_dim = 9
    with pytest.raises(InputError, match=f"--(no-)?{name}.* is for {re.escape(where)}, and has no effect here; leave"):
        resolve(opt)


def test_the_short_help_is_a_screen_and_names_the_whole_one(monkeypatch, capsys):
    """Every flag is in --help all; the options of most runs, with --help, in 60 lines of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*words):
        with pytest.raises(SystemExit) as stop:
            train.main(["--help", *words])
        assert not stop.value.code
        return capsys.readouterr().out
    short, whole = shown(), shown("all")
    assert len(short.splitlines()) <= 60 and "--help all" in short and "--learning_rate" in short
    assert all(f"--{name}" in whole for name in TRAIN.rows)
