"""The tables of options: every row can be met, and says what it is about."""
import os
import re
import subprocess
import sys

import pytest

from cli import InputError
from options.rules import conflicts, resolve
from options.training import TRAIN
from tests.helpers import ROOT, for_each

# Command lines that cannot work, each for one reason: together they meet every row of `conflicts`.
REFUSED = """
--sim mil --img_enc precomp
--sim mil --txt_enc gru
--n_embeds 2
--diversity 1
--txt_enc bigru --embed_size 31
--img_enc scan
--sim scan --text_features w2v
--sim scan --img_enc precomp
--sim scan --txt_enc bigru
--sim scan --pool gpo
--txt_enc features
--txt_enc trigram_conv --txt_layers 0
--txt_enc trigram_conv --dropout 0.1
--txt_enc trigram_bag --feature_noise 0.1
--word_vectors x --txt_enc trigram_bag
--word_vectors x --init_from RUN
--word_vectors x
--freeze_words
--layer_style branch --img_layers 9-9
--layer_style branch --txt_enc features --text_features w2v --txt_layers 9-9
--img_enc vsrn --recon_images 1
--pool gpo --recon_images 1
--txt_enc trigram_conv --recon_captions 1
--txt_enc mean --recon_captions 1
--sim order --recon_images 1
--sim order --recon_captions 1
--sim order --prior_images 1
--sim order --prior_captions 1
--sim order --vae 1
--sim scan --vae 1
--recon_captions 1 --word_dropout 1
--text_anchor 0.5 --text_features w2v --loss infonce --vae 1
--unpaired_images NAME
--unpaired_captions NAME
--sim order --loss mse
--loss two_branch --no_imgnorm
--loss two_branch --batch_size 7
--loss logistic
--sim cite --cite_layers 64
--loss nll --negatives 128
--loss nll --negative_source set --supervised_fraction 0.5
--vae 1 --head point
--head ellipsoidal
--sim mahalanobis --head ellipsoidal
--sim wasserstein --head point
--sim mls --head ellipsoidal
--sim vmf --text_head ellipsoidal
--sim wasserstein --loss probvlm
--text_anchor 0.5 --text_features w2v --loss infonce --no_imgnorm
--text_anchor 0.5 --text_features w2v --loss infonce --sim kl
--sim wasserstein --var_layers 0
--sim wasserstein --freeze_means
--freeze_means --init_from RUN
--loss probvlm
--held_out
--inclusion 1
--vae 1 --vib 1
--vib 1
--localise --loss nll
--localise --sim wasserstein --inclusion 1
--localise --img_enc vsrn --captioner 1
--localise --sim mil --n_embeds 2 --diversity 1
--localise --mmd 1
--localise --sim csd --loss match --pseudo_positives 0.1
--localise --mask_same_image
--localise --sim scan
--localise --img_enc vsrn
--localise --supervised_fraction 0.5
--localise --select hbr
--localise
--no-localise --data_path PHRASES --data_name x
--localise --data_path PHRASES --data_name x --negative_iou 0.8
--var_min 20
--loss infonce --max_violation
--vse_mean_warmup_epochs 1
--average ema --num_epochs 2
--average swa --num_epochs 5
--captioner 1
--captioner 1 --img_enc vsrn --txt_enc trigram_conv
--batch_size 1
--warmup 30
--amp fp16 --device cpu
--tf32 --device cpu
--features_on device --device cpu
--deterministic --finetune
--vocab FILE
--train_shards x-0.tar --text_features w2v
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


@for_each("line", REFUSED)
def test_a_conflict_is_said_in_its_sentence(line, phrases):
    _, expected, said = refusal(line, phrases)
    assert said == expected and "{" not in said and "; " in said                   # what is wrong; and the fix


def test_every_conflict_can_be_met(phrases):
    met = {refusal(line, phrases)[0] for line in REFUSED}
    opt = TRAIN.parser().parse_args([])
    resolve(opt)
    assert [sentence for k, (_, sentence) in enumerate(conflicts(opt)) if k not in met] == []


# What makes an option useless, where it is not so by default.
USELESS = {"lambda_lse": "--sim scan --agg_func Mean", "no_imgnorm": "--sim mil", "mask_same_image": "--loss mse",
           "num_layers": "--txt_enc mean", "margin": "--loss infonce", "txt_fc": "--txt_enc mean",
           "lr_update": "--schedule cosine", "use_abs": "--sim scan", "img_layers": "--img_enc vsrn",
           "use_restval": "--data_path PHRASES --data_name x", "dev_images": "--data_path PHRASES --data_name x",
           "train_shards": "--data_path PHRASES --data_name x"}
VALUES = {"layer_style": "branch", "word_dropout": "0.5", "label_smoothing": "0.5", "positive_iou": "0.5",
          "negative_iou": "0.5", "text_anchor": "0.5"}


@for_each("name, where", [(name, use.where) for name, row in TRAIN.rows.items() for use in row.used_by])
def test_what_has_no_effect_is_refused(name, where, phrases):
    """An option that needs another one is refused by name where that is not so."""
    row, other = TRAIN.rows[name], USELESS.get(name, "") if where != "--sim scan" else ""
    if name == "var_layers" and "other" in where:
        other = "--loss probvlm --freeze_means --init_from RUN"
    if name == "text_anchor" and where != "--text_features":
        other = "--text_features w2v" + " --img_enc vsrn --loss infonce" * ("vector" in where)
    value = "3" if callable(row.kind) else next((str(x) for x in row.kind if x != row.default), "3")
    words = [f"--{'no-' * (row.default is True)}{name}"]
    words += [] if row.switch else [VALUES.get(name, value)]
    opt = TRAIN.parser().parse_args([*other.replace("PHRASES", phrases).split(), *words])
    if name in ("finetune", "cnn_weights", "cnn_type", "crop_size"):                # photos are seen when data are read
        opt.img_dim = 9
    with pytest.raises(InputError, match=f"--(no-)?{name}.* is for {re.escape(where)}, and has no effect here; leave"):
        resolve(opt)


def test_the_short_help_is_a_screen_and_names_the_whole_one():
    """Every flag is in --help all; the options of most runs, with --help, in 60 lines of 80 columns."""
    short, whole = (subprocess.run([sys.executable, "train.py", "--help", *words], cwd=ROOT, text=True, check=True,
                                   stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"}).stdout
                    for words in ([], ["all"]))
    assert len(short.splitlines()) <= 60 and "--help all" in short and "--learning_rate" in short
    assert all(f"--{name}" in whole for name in TRAIN.rows)
