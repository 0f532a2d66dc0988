"""Several processes that share each batch learn what one process learns: real processes over Gloo, in float64."""
import os

import pytest
import torch

import train
from checkpoints import load_checkpoint
from devices import processes, share
from runs import build_data
from tests import helpers

STEPS = 10
TOWARDS = {                           # name -> options: every objective and every term, small
    "hinge_sum": "--sim cosine",
    "hinge_max": "--sim wasserstein --max_violation",
    "order": "--sim order --use_abs --mask_same_image",
    "mahalanobis": "--sim mahalanobis --text_head spherical_logavg",
    "minkl": "--sim minkl --head spherical_avg",
    "infonce": "--loss infonce --label_smoothing 0.1 --mask_same_image",
    "kl_infonce": "--sim kl --loss infonce --head spherical_one",
    "mls": "--sim mls --mask_same_image",
    "vmf": "--sim vmf",
    "match": "--sim csd --loss match --pseudo_positives 0.1 --vib 1e-4 --label_smoothing 0.1 --mask_same_image",
    "inclusion": "--sim csd --loss match --inclusion 0.1",
    "nll_batch": "--loss nll --negatives 4 --mask_same_image",
    "mse": "--loss mse --mse_weight 16 --mmd 2 --txt_enc mean --txt_layers 8 --img_layers 8",
    "two_branch": "--loss two_branch --batch_size 8 --txt_enc mean --txt_layers 8 --img_layers 8 --layer_style "
                  "branch",
    "product": "--sim product --loss logistic --txt_enc mean --txt_layers 8 --img_layers 8 --layer_style branch "
               "--mask_same_image",
    "probvlm": "--loss probvlm --freeze_means --init_from {run}",
    "volume": "--loss volume --freeze_means --init_from {run}",
    "jwae": "--max_violation --txt_enc bigru --img_layers 8 --recon_images 0.5 --recon_captions 0.005 --prior_images "
            "0.01 --prior_captions 0.01 --decoder_dim 8",
    "jwae_mmd": "--txt_enc mean --txt_layers 8 --img_layers 8 --prior_images 1 --prior_captions 1 --prior_loss mmd",
    "vae": "--txt_enc mean --vae 1e-3 --recon_images 0.5 --decoder_dim 8 --var_min 1e-6 --logvar_init -6",
    "corrupted": "--sim csd --dropout 0.2 --feature_noise 0.2 --weight_decay 0.01",
    "vsrn": "--data_name demo_region_precomp --img_enc vsrn --captioner 1 --dim_hidden 8 --region_bn --max_violation",
    "scan": "--data_name demo_region_precomp --sim scan --cross_attn t2i --bi_gru --max_violation",
    "scan_jwae": "--data_name demo_region_precomp --sim scan --cross_attn i2t --agg_func Mean --recon_images 0.5 "
                 "--recon_captions 0.005 --prior_images 0.01 --prior_captions 0.01 --decoder_dim 8",
    "pvse": "--data_name demo_region_precomp --sim mil --n_embeds 2 --mmd 1 --diversity 1",
    "pcme": "--data_name demo_region_precomp --sim match_prob --n_samples 3 --vib 1e-4",
    "gpo": "--data_name demo_region_precomp --pool gpo --loss infonce",
    "small_batch": "--batch_size 2 --txt_enc bigru --img_layers 8 --recon_images 0.5 --prior_images 0.01",
}


def learned(path: str, given: str, rank: int, count: int, port: int, name: str) -> None:
    """Saves, for each of TOWARDS, the weights after STEPS steps, the terms of each step and the random state."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double                # what is in float32 by intention is in float64 here
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    found = {}
    with processes.joined(torch.device("cpu"), minutes=2):
        for case, words in TOWARDS.items():
            opt = helpers.options("--data_path", path, "--batch_size", 7, *words.format(run=given).split())
            train.refuse_several(opt, 1 if case == "small_batch" else count)
            start = load_checkpoint(given) if opt.init_from else None
            data = build_data(opt, start)
            run, terms = train.Training(opt, data, start, torch.device("cpu")), []
            run.model.train()
            shapes = []
            run.model.similarity.register_forward_hook(lambda *of, to=shapes: to.append(of[-1].shape))
            for _, batch in zip(range(STEPS), data.batches(run.state)):
                terms.append(run.step(doubled(batch))[0])
            found[case] = {"weights": run.model.state_dict(), "terms": terms, "random": torch.get_rng_state(),
                           "average": run.average.state_dict() if run.average else {}, "state": run.state,
                           "shapes": [list(shape) for shape in shapes]}
        torch.save(found, name)


def doubled(batch):
    return batch._replace(
        images=None if batch.images is None else batch.images.double(),
        tokens=batch.tokens.double() if batch.tokens is not None and batch.tokens.is_floating_point() else batch.tokens,
        unpaired=batch.unpaired and doubled(batch.unpaired))


@pytest.fixture(scope="module")
def found(demo_path, small_run, tmp_path_factory) -> dict:
    """{number of processes: what each of them saved}."""
    folder, started = tmp_path_factory.mktemp("processes"), []
    for count in (1, 3):
        port = helpers.free_port()
        for rank in range(count):
            words = demo_path, str(small_run()), rank, count, port, str(folder / f"{count}_{rank}.pt")
            started.append(helpers.FORKS.Process(target=learned, args=words))
            started[-1].start()
        for process in started:
            process.join(240)
    ended = [process.exitcode for process in started]
    for process in started:
        process.kill()
    assert ended == [0] * 4
    return {count: [torch.load(folder / f"{count}_{rank}.pt", weights_only=True) for rank in range(count)]
            for count in (1, 3)}


@pytest.mark.parametrize("case", TOWARDS)
def test_processes_learn_what_one_learns(found, case):
    """Batches of 7, so that shares differ in size; with "small_batch" some processes have no share of their own."""
    one = found[1][0][case]
    for many in (of_rank[case] for of_rank in found[3]):
        for what in ("weights", "average"):
            assert many[what].keys() == one[what].keys()
            for name, value in one[what].items():
                torch.testing.assert_close(many[what][name], value, rtol=1e-6, atol=1e-9, msg=f"{what} {name}")
        for mine, theirs in zip(one["terms"], many["terms"], strict=True):
            assert theirs == pytest.approx(mine, rel=1e-6, abs=1e-9)
        assert torch.equal(many["random"], one["random"])
        assert many["state"]["iteration"] == STEPS and many["state"]["loss_count"] == one["state"]["loss_count"]
        assert many["state"]["loss_sum"] == pytest.approx(one["state"]["loss_sum"], rel=1e-6)


def test_the_cases_learn_something(found):
    """Every term of every case is there and moves, so that the comparison compares something."""
    for case, one in found[1][0].items():
        terms = one["terms"]
        assert len({step[name] for step in terms for name in step}) > 0.5 * len(terms), case
    names = {name for one in found[1][0].values() for step in one["terms"] for name in step}
    assert names >= {"hinge", "infonce", "match", "pseudo_positives", "nll", "mse", "mmd", "two_branch", "logistic",
                     "probvlm", "volume", "vib", "inclusion", "diversity", "captioner", "recon_images",
                     "recon_captions", "prior_images", "prior_captions", "critic_images", "critic_captions",
                     "vae_images"}


def test_no_process_computes_all_scores(found):
    """Of 7 x 7 scores each has the rows of its own images."""
    for rank, rows in enumerate([3, 2, 2]):
        assert found[3][rank]["hinge_max"]["shapes"] == [[rows, 7]] * STEPS
        assert found[3][rank]["scan"]["shapes"] == [[rows, 7]] * STEPS
    assert found[1][0]["hinge_max"]["shapes"] == [[7, 7]] * STEPS


# ---- shares

def test_shares_cover_a_batch_without_gaps():
    for items in range(1, 30):
        for count in range(1, 9):
            shares = [share.Share.of(items, rank, count) for rank in range(count)]
            if items < count:
                assert all((s.rows, s.sizes) == (slice(0, items), (items,)) for s in shares)
                continue
            assert [i for s in shares for i in range(items)[s.rows]] == list(range(items))
            sizes = [s.rows.stop - s.rows.start for s in shares]
            assert max(sizes) - min(sizes) <= 1 and all(sum(s.sizes) == items for s in shares)


def test_one_process_shares_nothing():
    x = torch.randn(4, 3, requires_grad=True)
    with share.sharing(share.Share.of(4, 0, 1)):
        assert share.everyones(x) is x and share.total(x) is x
        assert share.drawn(torch.zeros_like, x).shape == x.shape
