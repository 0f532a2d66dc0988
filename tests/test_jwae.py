"""jWAE: every term against loops and finite differences, a critic that shares no gradient, latents against the prior;
and DMSM's objective and drawing of items without partners."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

import train
from data import Batch, read_split
from losses import SampledNLL, SquaredDistance, mean_rows, real_rows
from methods.unpaired import Unpaired, build_unpaired, choose_pairs
from model import CaptionDecoder, Encoded, Latent, Reconstruction, posterior_kl
from tests.helpers import STEPS, built, numbers, pairs
from vocab import PAD, UNK, Vocabulary

JWAE = [
    "--recon_images",
    "0.5",
    "--recon_captions",
    "0.05",
    "--prior_images",
    "0.1",
    "--prior_captions",
    "0.2",
]


def encoded(latent: torch.Tensor, features=None, posterior=None) -> Encoded:
    """Outputs of a side that the terms read."""
    return Encoded(None, features, Latent(latent), posterior)


def test_caption_decoder_equals_a_loop_over_words():
    torch.manual_seed(0)
    net, latent, (_, tokens, lengths, *_) = (
        CaptionDecoder(6, 34, 5).double().eval(),
        numbers(5, 6),
        pairs(5),
    )
    cell = torch.nn.GRUCell(5, 6).double()
    cell.load_state_dict(
        {name.removesuffix("_l0"): value for name, value in net.rnn.state_dict().items()}
    )
    got = net(latent, tokens, lengths)
    for n, length in enumerate(lengths.tolist()):
        h, total = latent[n : n + 1], 0.0
        for t in range(length - 1):
            h = cell(net.words.weight[tokens[n, t]][None], h)
            total -= float(net.out(h)[0].log_softmax(0)[tokens[n, t + 1]])
        assert float(got[n].detach()) == pytest.approx(total, abs=1e-10)
    shorter = net(latent[:2], tokens[:2, : int(lengths[:2].max())], lengths[:2])
    torch.testing.assert_close(shorter, got[:2])  # neither padding nor the others matter


def test_word_dropout_hides_words_in_training_only():
    torch.manual_seed(0)
    net, batch, seen = CaptionDecoder(6, 34, 5).double(), pairs(5), []
    net.word_dropout, given = 0.999, batch.tokens[:, :-1]
    net.words.register_forward_hook(lambda module, inputs, _: seen.append(inputs[0]))
    for mode in (True, False):
        net.train(mode)(numbers(5, 6), batch.tokens, batch.lengths)
    assert (seen[0] == torch.where(given == PAD, PAD, UNK)).double().mean() > 0.9 and torch.equal(
        seen[1], given
    )


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_reconstruction_equals_a_loop(squared, shape):
    torch.manual_seed(0)
    term = Reconstruction(4, 6, squared)
    target, latent = numbers(*shape, 6).float(), numbers(*shape, 4, seed=1).float()
    got = term(encoded(latent, target), None)
    wrong = (term.decoder(latent).value - target).detach().double().reshape(shape[0], -1, 6)
    size = (lambda row: sum(x**2 for x in row)) if squared else np.linalg.norm
    total = sum(np.mean([size(row) for row in item.numpy()]) for item in wrong)
    assert float(got) == pytest.approx(total, rel=1e-5)


def test_pair_mse_and_kl_equal_loops():
    x, y = numbers(5, 4), numbers(5, 4, seed=1)
    slow = sum(float(sum((x[n, d] - y[n, d]) ** 2 for d in range(4))) for n in range(5))
    assert float(SquaredDistance()(encoded(x), encoded(y), None)) == pytest.approx(
        slow / 4, rel=1e-6
    )
    log_var = numbers(5, 4, seed=2)
    slow = kl_divergence(Normal(x, (log_var / 2).exp()), Normal(0.0, 1.0)).sum()
    assert float(posterior_kl(encoded(y, posterior=(x, log_var)), None)) == pytest.approx(
        float(slow), rel=1e-6
    )


def test_parts_meet_the_prior_one_by_one_without_padding():
    latent, n_parts = numbers(3, 4, 2), torch.tensor([4, 1, 2])
    rows = real_rows(latent, n_parts)
    assert torch.equal(rows, torch.cat([latent[0], latent[1, :1], latent[2, :2]]))
    means = torch.stack([latent[0].mean(0), latent[1, 0], latent[2, :2].mean(0)])
    torch.testing.assert_close(mean_rows(latent, n_parts), means)


def model_and_batch(*words):
    return built(*([] if "scan" in words else ["--img_layers", "16"]), *words), pairs()


def gradients(model, names, batch) -> dict[str, torch.Tensor]:
    """Gradients of the summed terms whose names are given."""
    torch.manual_seed(1)
    model.zero_grad()
    losses = model(batch)
    sum(losses[name] for name in names(losses)).backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


@pytest.mark.parametrize(
    "more", [[], ["--txt_enc", "bigru", "--num_layers", "2"], ["--loss", "mse"]]
)
def test_critic_and_encoders_share_a_backward_pass_and_no_gradient(more):
    model, batch = model_and_batch(*JWAE, *more)
    both = gradients(model, lambda losses: list(losses), batch)
    critic = gradients(
        model, lambda losses: [name for name in losses if name.startswith("critic")], batch
    )
    others = gradients(
        model, lambda losses: [name for name in losses if not name.startswith("critic")], batch
    )
    moved = {name for name, g in critic.items() if g.abs().sum()}
    assert moved == {name for name in both if name.startswith("critic.")}
    assert not any(g.abs().sum() for name, g in others.items() if name.startswith("critic."))
    for name in both:
        torch.testing.assert_close(
            both[name], (critic if name.startswith("critic.") else others)[name]
        )
    assert all(g.abs().sum() for g in both.values())  # and nothing is left without one


@pytest.mark.parametrize("words", [[], ["--sim", "scan", "--bi_gru"]])
def test_latents_are_scaled_as_the_prior_and_padding_stays_zero(words):
    sphere, batch = model_and_batch(*JWAE, *words)
    (plain, _), (normed, _) = (
        model_and_batch(*JWAE, "--latent_norm", norm, *words) for norm in ("none", "batch")
    )
    batch = batch._replace(images=numbers(6, 4, 9).float()) if words else batch
    for model in (sphere, normed):
        sides = model.encode(batch)
        for side in sides.values():
            rows = real_rows(side.latent.value, side.latent.n_parts).detach()
            if model is sphere:
                torch.testing.assert_close(rows.norm(dim=1), torch.full((len(rows),), 12**0.5))
            else:
                torch.testing.assert_close(rows.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
                torch.testing.assert_close(
                    rows.std(0, correction=0), torch.ones(12), atol=0.05, rtol=0
                )
        if words:  # padding neither counts nor appears
            latent = sides["captions"].latent.value
            assert not latent[torch.arange(latent.shape[1]) >= batch.lengths[:, None]].any()
    one, other = (
        net.similarity(*(side.embedding for side in net.encode(batch).values()))
        for net in (sphere, plain)
    )
    torch.testing.assert_close(one, other)  # the sphere leaves retrieval as it is


def test_every_parameter_has_one_optimiser():
    model, _ = model_and_batch(*JWAE)
    held = {
        name: [p for group in optimizer.param_groups for p in group["params"]]
        for name, optimizer in train.build_optimizers(
            train.parse_args([*STEPS, *JWAE]), model
        ).items()
    }
    assert {*held["critic_optimizer"]} == {*model.critic.parameters()}
    assert sorted(map(id, sum(held.values(), []))) == sorted(map(id, model.parameters()))


def test_a_vae_samples_in_training_and_takes_the_mean_otherwise():
    model, batch = model_and_batch("--vae", "0.1", "--txt_enc", "bigru")
    assert not torch.equal(
        model.embed_images(batch.images).mean, model.embed_images(batch.images).mean
    )
    model.eval()
    first, again = model.image_tower(batch.images), model.embed_images(batch.images)
    assert torch.equal(first.embedding.mean, again.mean) and first.embedding.log_var is None
    torch.testing.assert_close(again.mean, torch.nn.functional.normalize(first.posterior[0], dim=1))
    assert {"vae_images", "vae_captions", "hinge"} == set(model(batch))


def test_unpaired_items_join_the_terms_that_need_no_pairs():
    model, batch = model_and_batch(*JWAE)
    model.eval()
    images, others = Batch(numbers(3, 9, seed=7).float(), None, None, None, None), pairs(4)
    torch.manual_seed(3)
    plain, more = model(batch), model(batch._replace(unpaired=images))
    assert {
        name
        for name in plain
        if name != "critic_captions" and not torch.equal(plain[name], more[name])
    } == {"recon_images", "prior_images", "critic_images"}
    both = model(
        batch._replace(unpaired=images._replace(tokens=others.tokens, lengths=others.lengths))
    )
    assert float(both["recon_captions"]) > float(plain["recon_captions"]) and torch.equal(
        both["hinge"], plain["hinge"]
    )


def test_items_enter_only_terms_that_there_are(demo_path):
    """Without terms of their side the items left by --supervised_fraction are not even embedded."""

    def sides(*words):
        opt = train.parse_args([*STEPS, "--supervised_fraction", "0.5", *words])
        split = read_split(demo_path, "demo_precomp", "train")
        tokens = split.encode(Vocabulary.build(split.words, 1))
        unpaired = build_unpaired(
            opt, split, tokens, choose_pairs(split, opt.supervised_fraction, 0)
        )
        return unpaired and {side: len(rows) for side, rows in unpaired.rows.items()}

    assert sides() is None and sides("--latent_norm", "batch") is None
    assert sides("--recon_images", "1") == {"images": 24} and sides("--prior_captions", "1") == {
        "captions": 120
    }
    assert sides("--vae", "1") == {"images": 24, "captions": 120}


# ---- DMSM's objective, and items without partners

SCORES = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def slow_nll(scores, gamma, row, others) -> float:
    return -math.log(
        math.exp(gamma * scores[row, row])
        / sum(math.exp(gamma * scores[row, k]) for k in [row, *others])
    )


def test_samples_are_those_of_the_definition_and_all_are_drawn():
    expected = {
        row: {
            round(slow_nll(SCORES, 3, row, others), 9)
            for others in itertools.combinations(set(range(6)) - {row}, 2)
        }
        for row in range(6)
    }
    torch.manual_seed(1)
    seen = {row: set() for row in range(6)}
    for _ in range(300):
        for row, value in enumerate(SampledNLL(3, 2).nll(SCORES).tolist()):
            seen[row].add(round(value, 9))
    assert seen == expected


def test_captions_of_the_same_image_are_never_drawn():
    own = torch.zeros(6, 6, dtype=torch.bool)
    own[0, 1] = own[1, 0] = True
    got = SampledNLL(3, 5).nll(SCORES, own)
    assert float(got[0]) == pytest.approx(slow_nll(SCORES, 3, 0, [2, 3, 4, 5]))
    assert float(got[2]) == pytest.approx(slow_nll(SCORES, 3, 2, [0, 1, 3, 4, 5]))
    assert torch.autograd.gradcheck(
        lambda s: SampledNLL(3, 5).nll(s, own), SCORES.clone().requires_grad_()
    )


def test_a_pool_gives_every_item_once_before_any_comes_again():
    pool, other = (Unpaired({}, {"images": np.array([7, 9, 1, 0, 2])}, 3, 0) for _ in range(2))
    drawn = [pool.draw("images", step).tolist() for step in range(5)]
    assert drawn[-1] == other.draw("images", 4).tolist()  # whatever was drawn before
    assert sorted(sum(drawn, [])) == sorted(3 * [7, 9, 1, 0, 2])
    assert sorted(sum(drawn, [])[:5]) == [0, 1, 2, 7, 9]


def test_the_share_of_the_images_is_drawn_by_the_seed():
    split = SimpleNamespace(images=range(20), caption_image=np.arange(100) // 5)
    first, again, other = ({*choose_pairs(split, 0.25, seed)} for seed in (0, 0, 1))
    assert first == again != other and len(first) == 25 and len(choose_pairs(split, 0.001, 0)) == 5
