"""Options: what cannot work is refused in a sentence, help, options of a script and of a loss of one's own."""
import pytest

import losses
import train
from cli import InputError
from methods import METHODS
from options import list_options, options, resolve, training_parser

# Command lines that cannot work, each for one reason.
REFUSED = """
--sim mil --img_enc precomp
--sim mil --txt_enc gru
--img_enc scan
--sim scan --img_enc precomp
--sim scan --txt_enc bigru
--cross_attn hard
--txt_enc features
--txt_layers 12
--freeze_words
--diversity 1
--sim order --loss mse
--loss logistic
--loss nll --negatives 128
--vae 1 --head point
--head ellipsoidal
--sim mahalanobis --head ellipsoidal
--sim wasserstein --head point
--sim mls --head ellipsoidal
--sim wasserstein --loss volume
--loss volume
--freeze_means --sim wasserstein
--sim order --prior_images 1
--recon_images 1 --pool gpo
--recon_captions 1 --txt_enc sum
--sim order --vae 1
--vib 1
--captioner 1
--text_anchor 0.5
--warmup 30
""".strip().splitlines()


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_work_is_refused_in_a_sentence_with_the_fix(line):
    with pytest.raises(InputError, match="--") as error:
        resolve(training_parser().parse_args(line.split()))
    assert "; " in str(error.value) and "{" not in str(error.value)                 # what is wrong; and the fix


def test_options_of_a_script_are_checked_like_typed_ones():
    opt = options(sim="wasserstein", data_name="x", margin=0.1, feature_norm=False, seed=3)
    assert (opt.text_head, opt.margin, opt.feature_norm, opt.logger_name) == (
        "ellipsoidal", 0.1, False, "runs/x_wasserstein_seed3")
    assert vars(options(method="vsrn")) == {**vars(options(**METHODS["vsrn"].options)), "method": "vsrn",
                                            "logger_name": "runs/coco_precomp_vsrn_seed0"}
    for values, message in (({"margins": 1}, "options.. holds 'margins', which is not an option"),
                            ({"margin": "wide"}, "'wide' is not a number of at least 0"),
                            ({"finetune": "yes"}, "finetune is 'yes'; a switch is true or false"),
                            ({"sim": "kl", "head": "point"}, "--sim kl needs a Gaussian on both sides")):
        with pytest.raises(InputError, match=message):
            options(**values)


@pytest.mark.parametrize("values, masks", [
    ({}, False), ({"sim": "wasserstein"}, False), ({"loss": "infonce"}, True), ({"sim": "mls"}, True),
    ({"sim": "csd", "loss": "match"}, True), ({"loss": "infonce", "mask_same_image": False}, False),
    ({"method": "mls"}, False), ({"mask_same_image": True}, True)])
def test_other_captions_of_an_image_are_negatives_by_the_loss(values, masks):
    """Other captions are not negatives by default; METHODS keep their papers' choice."""
    assert options(**values).mask_same_image is masks


def test_an_option_of_a_loss_is_declared_beside_it_alone(monkeypatch):
    class Sharp(losses.Hinge):
        options = {"sharpness": (float, 2.0, "how sharp"), "kind": (["soft", "hard"], "soft", "which"),
                   "turned": (bool, False, "whether")}

        def __init__(self, *values):
            super().__init__()
            self.values = values
    monkeypatch.setitem(losses.LOSSES, "sharp", Sharp)
    opt = options(loss="sharp", sharpness=0.5, turned=True)
    assert losses.LOSSES[opt.loss].build(opt, None).values == (0.5, "soft", True)
    with pytest.raises(InputError, match="'-1' is not a number of at least 0"):
        options(sharpness=-1)


def test_the_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stop:
        train.main(["--help"])
    shown = capsys.readouterr().out
    assert not stop.value.code and all(f"--{name}" in shown for name in list_options(training_parser()))
