"""The tables of options: every row can be met, and says what it is about."""
import pytest

import train
from cli import InputError
from options.rules import conflicts, resolve
from options.training import TRAIN

# Command lines that cannot work, each for one reason: together they meet every row of `conflicts`.
REFUSED = """
--sim mil --img_enc precomp
--sim mil --txt_enc gru
--txt_enc bigru --embed_size 31
--img_enc scan
--sim scan --img_enc precomp
--sim scan --txt_enc bigru
--txt_enc features
--txt_layers 12
--txt_enc trigram_conv --txt_layers 0
--word_vectors x --init_from RUN
--freeze_words
--bi_gru
--txt_enc trigram_bag --dropout 0.5
--diversity 1
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
--sim wasserstein --loss volume
--sim wasserstein --var_layers 0
--loss volume
--freeze_means --sim wasserstein
--sim order --prior_images 1
--recon_images 1 --pool gpo
--recon_captions 1 --txt_enc sum
--sim order --vae 1
--vib 1
--captioner 1
--text_anchor 0.5
--var_min 20
--warmup 30
""".strip().splitlines()


def refusal(line: str) -> tuple[int, str, str]:
    """The first row that a command line meets, its sentence with the options, and what `resolve` says."""
    opt = TRAIN.parser().parse_args(line.split())
    with pytest.raises(InputError) as error:
        resolve(opt)
    row, sentence = next(((k, said) for k, (wrong, said) in enumerate(conflicts(opt)) if wrong), (None, None))
    assert row is not None, f"{line}: {error.value}"
    return row, sentence.format(**vars(opt)), str(error.value)


@pytest.mark.parametrize("line", REFUSED)
def test_a_conflict_is_said_in_its_sentence(line):
    _, expected, said = refusal(line)
    assert said == expected and "{" not in said and "; " in said                   # what is wrong; and the fix


def test_every_conflict_can_be_met():
    met = {refusal(line)[0] for line in REFUSED}
    opt = TRAIN.parser().parse_args([])
    resolve(opt)
    assert [sentence for k, (_, sentence) in enumerate(conflicts(opt)) if k not in met] == []


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
