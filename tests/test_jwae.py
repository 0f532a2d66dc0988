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
    net = CaptionDecoder(6, 34, 5).double().eval()
    latent = numbers(5, 6)
    batch = pairs(5)
    tokens = batch.tokens
    lengths = batch.lengths

    got = net(latent, tokens, lengths)

    cell = torch.nn.GRUCell(5, 6).double()
    cell.load_state_dict(
        {name.removesuffix("_l0"): value for name, value in net.rnn.state_dict().items()}
    )
    for n, length in enumerate(lengths.tolist()):
        h = latent[n : n + 1]
        total = 0.0
        for t in range(length - 1):
            h = cell(net.words.weight[tokens[n, t]][None], h)
            total -= float(net.out(h)[0].log_softmax(0)[tokens[n, t + 1]])
        assert float(got[n].detach()) == pytest.approx(total, abs=1e-10)

    # Neither padding nor the others matter.
    shorter = net(latent[:2], tokens[:2, : int(lengths[:2].max())], lengths[:2])
    torch.testing.assert_close(shorter, got[:2])


def test_word_dropout_hides_words_in_training_only():
    torch.manual_seed(0)
    net = CaptionDecoder(6, 34, 5).double()
    net.word_dropout = 0.999
    batch = pairs(5)
    given = batch.tokens[:, :-1]
    seen = []

    def keep_tokens(module, inputs, _):
        seen.append(inputs[0])

    net.words.register_forward_hook(keep_tokens)
    for mode in (True, False):
        net.train(mode)(numbers(5, 6), batch.tokens, batch.lengths)

    in_training, in_evaluation = seen
    hidden = torch.where(given == PAD, PAD, UNK)
    assert (in_training == hidden).double().mean() > 0.9
    assert torch.equal(in_evaluation, given)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_reconstruction_equals_a_loop(squared, shape):
    torch.manual_seed(0)
    term = Reconstruction(4, 6, squared)
    target = numbers(*shape, 6).float()
    latent = numbers(*shape, 4, seed=1).float()

    got = term(encoded(latent, target), None)

    difference = (term.decoder(latent).value - target).detach().double().reshape(shape[0], -1, 6)
    total = 0
    for item in difference.numpy():
        sizes = np.linalg.norm(item, axis=1)
        if squared:
            sizes = sizes**2
        total += np.mean(sizes)
    assert float(got) == pytest.approx(total, rel=1e-5)


def test_pair_mse_and_kl_equal_loops():
    x = numbers(5, 4)
    y = numbers(5, 4, seed=1)
    log_var = numbers(5, 4, seed=2)

    distance = SquaredDistance()(encoded(x), encoded(y), None)
    divergence = posterior_kl(encoded(y, posterior=(x, log_var)), None)

    slow_distance = 0.0
    for n in range(5):
        for d in range(4):
            slow_distance += float(x[n, d] - y[n, d]) ** 2
    assert float(distance) == pytest.approx(slow_distance / 4, rel=1e-6)

    slow_divergence = kl_divergence(Normal(x, (log_var / 2).exp()), Normal(0.0, 1.0)).sum()
    assert float(divergence) == pytest.approx(float(slow_divergence), rel=1e-6)


def test_parts_meet_the_prior_one_by_one_without_padding():
    latent = numbers(3, 4, 2)
    n_parts = torch.tensor([4, 1, 2])

    rows = real_rows(latent, n_parts)
    means = mean_rows(latent, n_parts)

    assert torch.equal(rows, torch.cat([latent[0], latent[1, :1], latent[2, :2]]))
    expected = torch.stack([latent[0].mean(0), latent[1, 0], latent[2, :2].mean(0)])
    torch.testing.assert_close(means, expected)


def model_and_batch(*words):
    if "scan" not in words:
        words = ["--img_layers", "16", *words]
    return built(*words), pairs()


def is_of_critic(name) -> bool:
    """Of a parameter."""
    return name.startswith("critic.")


def gradients(model, batch, critic: bool, others: bool) -> dict[str, torch.Tensor]:
    """Gradients of the summed terms: those of the critic, the others, or both."""
    torch.manual_seed(1)
    model.zero_grad()
    total = 0
    for name, term in model(batch).items():
        of_critic = name.startswith("critic")
        if (of_critic and critic) or (not of_critic and others):
            total = total + term
    total.backward()

    found = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            found[name] = torch.zeros_like(p)
        else:
            found[name] = p.grad.clone()
    return found


@pytest.mark.parametrize(
    "more", [[], ["--txt_enc", "bigru", "--num_layers", "2"], ["--loss", "mse"]]
)
def test_critic_and_encoders_share_a_backward_pass_and_no_gradient(more):
    model, batch = model_and_batch(*JWAE, *more)

    both = gradients(model, batch, critic=True, others=True)
    critic = gradients(model, batch, critic=True, others=False)
    others = gradients(model, batch, critic=False, others=True)

    moved = {name for name, g in critic.items() if g.abs().sum()}
    assert moved == {name for name in both if is_of_critic(name)}
    for name, g in both.items():
        if is_of_critic(name):
            assert not others[name].abs().sum()
            torch.testing.assert_close(g, critic[name])
        else:
            torch.testing.assert_close(g, others[name])
        assert g.abs().sum()  # and nothing is left without one


@pytest.mark.parametrize("words", [[], ["--sim", "scan", "--bi_gru"]])
def test_latents_are_scaled_as_the_prior_and_padding_stays_zero(words):
    sphere, batch = model_and_batch(*JWAE, *words)
    plain, _ = model_and_batch(*JWAE, "--latent_norm", "none", *words)
    normed, _ = model_and_batch(*JWAE, "--latent_norm", "batch", *words)
    if words:
        batch = batch._replace(images=numbers(6, 4, 9).float())

    for model in (sphere, normed):
        sides = model.encode(batch)
        for side in sides.values():
            rows = real_rows(side.latent.value, side.latent.n_parts).detach()
            if model is sphere:
                torch.testing.assert_close(rows.norm(dim=1), torch.full((len(rows),), 12**0.5))
            else:
                torch.testing.assert_close(rows.mean(0), torch.zeros(12), atol=1e-5, rtol=0)
                deviation = rows.std(0, correction=0)
                torch.testing.assert_close(deviation, torch.ones(12), atol=0.05, rtol=0)

        if words:  # padding neither counts nor appears
            latent = sides["captions"].latent.value
            assert not latent[torch.arange(latent.shape[1]) >= batch.lengths[:, None]].any()

    # The sphere leaves retrieval as it is.
    of_sphere, of_plain = (
        model.similarity(*(side.embedding for side in model.encode(batch).values()))
        for model in (sphere, plain)
    )
    torch.testing.assert_close(of_sphere, of_plain)


def test_every_parameter_has_one_optimiser():
    model, _ = model_and_batch(*JWAE)

    optimizers = train.build_optimizers(train.parse_args([*STEPS, *JWAE]), model)

    held = {}
    for name, optimizer in optimizers.items():
        held[name] = []
        for group in optimizer.param_groups:
            held[name] += group["params"]
    assert {*held["critic_optimizer"]} == {*model.critic.parameters()}
    assert sorted(map(id, sum(held.values(), []))) == sorted(map(id, model.parameters()))


def test_a_vae_samples_in_training_and_takes_the_mean_otherwise():
    model, batch = model_and_batch("--vae", "0.1", "--txt_enc", "bigru")

    first = model.embed_images(batch.images)
    again = model.embed_images(batch.images)
    assert not torch.equal(first.mean, again.mean)

    model.eval()
    first = model.image_tower(batch.images)
    again = model.embed_images(batch.images)
    assert torch.equal(first.embedding.mean, again.mean)
    assert first.embedding.log_var is None
    posterior_mean = first.posterior[0]
    torch.testing.assert_close(again.mean, torch.nn.functional.normalize(posterior_mean, dim=1))

    assert {"vae_images", "vae_captions", "hinge"} == set(model(batch))


def test_unpaired_items_join_the_terms_that_need_no_pairs():
    model, batch = model_and_batch(*JWAE)
    model.eval()
    images = Batch(numbers(3, 9, seed=7).float(), None, None, None, None)
    others = pairs(4)
    images_and_captions = images._replace(tokens=others.tokens, lengths=others.lengths)

    torch.manual_seed(3)
    plain = model(batch)
    with_images = model(batch._replace(unpaired=images))
    with_both = model(batch._replace(unpaired=images_and_captions))

    changed = {name for name in plain if not torch.equal(plain[name], with_images[name])}
    changed.discard("critic_captions")
    assert changed == {"recon_images", "prior_images", "critic_images"}
    assert float(with_both["recon_captions"]) > float(plain["recon_captions"])
    assert torch.equal(with_both["hinge"], plain["hinge"])


def test_items_enter_only_terms_that_there_are(demo_path):
    """Without terms of their side the items left by --supervised_fraction are not even embedded."""

    def count_unpaired(*words):
        opt = train.parse_args([*STEPS, "--supervised_fraction", "0.5", *words])
        split = read_split(demo_path, "demo_precomp", "train")
        tokens = split.encode(Vocabulary.build(split.words, 1))
        chosen = choose_pairs(split, opt.supervised_fraction, 0)
        unpaired = build_unpaired(opt, split, tokens, chosen)
        if unpaired is None:
            return None
        return {side: len(rows) for side, rows in unpaired.rows.items()}

    assert count_unpaired() is None
    assert count_unpaired("--latent_norm", "batch") is None
    assert count_unpaired("--recon_images", "1") == {"images": 24}
    assert count_unpaired("--prior_captions", "1") == {"captions": 120}
    assert count_unpaired("--vae", "1") == {"images": 24, "captions": 120}


# ---- DMSM's objective, and items without partners

SCORES = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def slow_nll(scores, gamma, row, others) -> float:
    own = math.exp(gamma * scores[row, row])
    total = sum(math.exp(gamma * scores[row, k]) for k in [row, *others])
    return -math.log(own / total)


def test_samples_are_those_of_the_definition_and_all_are_drawn():
    expected = {}
    for row in range(6):
        draws = itertools.combinations(set(range(6)) - {row}, 2)
        expected[row] = {round(slow_nll(SCORES, 3, row, others), 9) for others in draws}

    torch.manual_seed(1)
    seen = {row: set() for row in range(6)}
    for _ in range(300):
        for row, value in enumerate(SampledNLL(3, 2).nll(SCORES).tolist()):
            seen[row].add(round(value, 9))

    assert seen == expected


def test_captions_of_the_same_image_are_never_drawn():
    own = torch.zeros(6, 6, dtype=torch.bool)
    own[0, 1] = own[1, 0] = True

    def nll(scores):
        return SampledNLL(3, 5).nll(scores, own)

    got = nll(SCORES)
    assert float(got[0]) == pytest.approx(slow_nll(SCORES, 3, 0, [2, 3, 4, 5]))
    assert float(got[2]) == pytest.approx(slow_nll(SCORES, 3, 2, [0, 1, 3, 4, 5]))
    assert torch.autograd.gradcheck(nll, SCORES.clone().requires_grad_())


def test_a_pool_gives_every_item_once_before_any_comes_again():
    items = [7, 9, 1, 0, 2]
    pool = Unpaired({}, {"images": np.array(items)}, 3, 0)
    other = Unpaired({}, {"images": np.array(items)}, 3, 0)

    drawn = [pool.draw("images", step).tolist() for step in range(5)]

    assert drawn[-1] == other.draw("images", 4).tolist()  # whatever was drawn before
    in_order = sum(drawn, [])
    assert sorted(in_order) == sorted([*items, *items, *items])
    assert sorted(in_order[:5]) == [0, 1, 2, 7, 9]


def test_the_share_of_the_images_is_drawn_by_the_seed():
    split = SimpleNamespace(images=range(20), caption_image=np.arange(100) // 5)

    first = {*choose_pairs(split, 0.25, 0)}
    again = {*choose_pairs(split, 0.25, 0)}
    other = {*choose_pairs(split, 0.25, 1)}

    assert first == again
    assert first != other
    assert len(first) == 25
    assert len(choose_pairs(split, 0.001, 0)) == 5
