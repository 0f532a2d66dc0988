"""VSRN's captioner: the loss against loops, what it drops, and where its gradient goes."""
import math

import numpy as np
import pytest
import torch

import train
from methods.vsrn import Captioner
from model import Encoded, build_model
from tests.helpers import VOCAB, pairs
from vocab import END, PAD


def small(seed=0, vocab=34, scale=1.0, **options) -> Captioner:
    """A captioner of 9 features and 12 units, in eval mode; `scale` widens its logits."""
    torch.manual_seed(seed)
    net = Captioner(9, vocab, 12, word_dim=7, **options).eval()
    with torch.no_grad():
        net.out.weight.mul_(scale)
    return net


def slow_nll(net, regions, caption) -> float:
    """-log p of one caption, step by step and region by region."""
    reader = torch.nn.GRUCell(12, 12).double()
    reader.load_state_dict({name.removesuffix("_l0"): value for name, value in net.reader.state_dict().items()})
    h, states = torch.zeros(12, dtype=torch.float64), []
    for region in regions:
        h = reader(net.squeeze[0](region), h)
        states.append(h if net.original else net.squeeze[0](region) + h)
    total = 0.0
    for word, following in zip(caption[:net.max_len - 1], caption[1:net.max_len]):
        word = net.words.weight[word]
        energy = [math.exp(net.weight(torch.tanh(net.key(s)
                                                 + net.query(h if net.original else torch.cat([word, h])))).item())
                  for s in states]
        context = sum(e / sum(energy) * s for e, s in zip(energy, states))
        h = net.cell(torch.cat([word, context]), h)
        logits = net.out(h).tolist()
        total += math.log(sum(math.exp(x) for x in logits)) - logits[following]
    return total


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("max_len", [60, 5])
def test_loss_against_loops(max_len, original):
    net, batch = small(max_len=max_len, original=original).double(), pairs(regions=5)
    regions = batch.images.double()
    expected = [slow_nll(net, image, caption[:n].tolist()) for image, caption,
                n in zip(regions, batch.tokens, batch.lengths)]
    np.testing.assert_allclose(net.nll(regions, batch.tokens, batch.lengths).detach(), expected, rtol=1e-10)
    loss = net(Encoded(None, regions, None), None, batch).detach()
    assert float(loss) == pytest.approx(sum(expected) / 6, rel=1e-10)       # summed over tokens, averaged over captions


def test_the_original_drops_inputs_and_ours_states():
    """Every dropout shows in the loss of one caption twice in a batch."""
    for original in (False, True):
        net, batch = small(original=original).train(), pairs(2, regions=5)
        net.squeeze[1].p = 0.0
        tokens, lengths = batch.tokens[:1].expand(2, -1), batch.lengths[:1].expand(2)
        regions = batch.images[:1].expand(2, -1, -1)
        net.drop_input.p = 0.0
        a, b = net.nll(regions, tokens, lengths).tolist()
        assert (abs(a - b) < 1e-4) == original                  # h' is dropped by ours alone
        net.drop_input.p, net.dropout.p = (0.2 if original else 0.0), 0.0
        a, b = net.nll(regions, tokens, lengths).tolist()
        assert (abs(a - b) < 1e-4) != original
    assert small(original=True).drop_input.p == 0.2 and small().dropout.p == 0.5


def test_padding_batch_order_and_company_change_nothing():
    net, batch = small(), pairs(regions=5)
    together = net.nll(batch.images, batch.tokens, batch.lengths)
    padded = torch.nn.functional.pad(batch.tokens, (0, 7))
    torch.testing.assert_close(net.nll(batch.images, padded, batch.lengths), together)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(net.nll(batch.images[order], batch.tokens[order], batch.lengths[order]), together[order])
    for k in range(6):
        alone = net.nll(*(x[k:k + 1] for x in batch[:3]))
        torch.testing.assert_close(alone[0], together[k])


def model_of(*words):
    size = ["--dim_hidden", "8"] if "--captioner" in words else []
    opt = train.parse_args(["--img_enc", "vsrn", "--embed_size", "12", "--word_dim", "7", *size, *words])
    opt.img_dim = 9
    torch.manual_seed(0)
    return build_model(opt, VOCAB)


def test_gradient_only_where_it_should_be():
    """The term reaches the captioner and the graph; not the image's own GRU, not the text, not words that no step
    reads."""
    model, batch = model_of("--captioner", "2"), pairs(regions=5)
    losses = model.eval()(batch)                               # dropout may silence a word
    assert set(losses) == {"hinge", "captioner"}
    losses["captioner"].backward()
    for name, p in model.named_parameters():
        if name.startswith(("terms.captioner.", "image_tower.trunk.fc.")):
            assert p.grad.abs().sum() > 0, name
        elif not name.startswith("image_tower.trunk."):      # layers that are the identity yet have no gradient either
            assert p.grad is None, name
    rows = set(model.terms["captioner"].words.weight.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert rows == set(batch.tokens.flatten().tolist()) - {PAD, END}
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))
    regions = model.image_tower(batch.images).features
    alone = model.terms["captioner"].nll(regions, batch.tokens, batch.lengths).mean()
    torch.testing.assert_close(model(batch)["captioner"], 2 * alone)
