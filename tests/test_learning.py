"""What a person said of answers, and the probabilities that are fitted to it, beside a slow reference."""
import json
import os

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar

import search
from cli import InputError
from retrieval import learning
from retrieval.learning import answered, fit_meant, fit_sets, fit_votes, forget, keep, limit_of
from retrieval.searcher import Searcher
from retrieval.trust import Trust, counted
from tests.helpers import refused

BEFORE = Trust(2.0, 100, "other", None, None, fits=[1.0, 0.0, -1.0])


def asked(n=40, photos=30, sharp=1.5, seed=0):
    """Scores (Q, N) of which the photo meant is drawn by softmax(sharp scores), and that photo (Q,)."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, photos, generator=g, dtype=torch.float64)
    return scores, torch.multinomial((sharp * scores).softmax(1), 1, generator=g)[:, 0]


def test_the_last_word_of_each_kind_counts(tmp_path):
    folder = str(tmp_path)
    assert answered(folder) == []
    assert keep(folder, {"query": "a", "meant": "1.png"}) == 1
    keep(folder, {"query": "b \u6d77", "shown": ["1.png", "2.png"], "fit": []})
    keep(folder, {"query": "a", "meant": "2.png"})
    assert keep(folder, {"query": "a", "shown": ["1.png", "2.png"], "fit": ["2.png"]}) == 2
    one = {said.query: said for said in answered(folder)}
    assert one["a"] == ("a", "2.png", ("1.png", "2.png"), {"2.png"}) and one["b \u6d77"].fit == frozenset()
    assert keep(folder, {"query": "a", "withdrawn": True}) == 1 and answered(folder)[0].query == "b \u6d77"


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"query": "a"}', '{"query": "a", "meant": 3}',
                                  '{"query": "a", "shown": ["x"], "fit": ["y"]}',
                                  '{"query": "a", "shown": [1], "fit": []}', '{"query": [], "meant": "a"}'])
def test_a_line_that_is_no_answer_is_named(tmp_path, line):
    keep(str(tmp_path), {"query": "a", "meant": "1.png"})
    with open(tmp_path / "answers.jsonl", "a") as f:
        f.write(line + "\n")
    with pytest.raises(InputError, match="answers.jsonl line 2 is no answer .*; delete the line"):
        answered(str(tmp_path))


def test_the_temperature_is_judged_on_questions_that_it_did_not_see():
    scores, meant = asked()
    fit = fit_meant(BEFORE, scores, meant)
    rows = torch.arange(len(meant))

    def loss(t, some):
        return float(-(t * scores[some]).log_softmax(1)[range(len(some)), meant[some]].mean())
    best = minimize_scalar(lambda t: loss(t, rows), bounds=(0.01, 50), method="bounded").x
    assert fit.trust.temperature == pytest.approx(best, rel=1e-3)
    assert fit.before == pytest.approx(loss(2.0, rows))
    left_out = []
    for q in rows:
        others = rows[rows != q]
        t = minimize_scalar(lambda t, some=others: loss(t, some), bounds=(0.01, 50), method="bounded").x
        left_out.append(loss(t, rows[q:q + 1]))
    assert fit.after == pytest.approx(np.mean(left_out), abs=5e-3) and fit.better == (fit.after < fit.before)


def test_sets_are_conformal():
    scores, meant = asked(60)
    fit = fit_sets(BEFORE, scores, meant)
    strange = -(2.0 * scores).log_softmax(1)[range(60), meant]
    assert fit.trust.limit == strange.sort().values[int(np.ceil(61 * 0.9)) - 1] and fit.trust.alpha == 0.1
    inside = [strange[q] <= np.sort(np.delete(strange.numpy(), q))[int(np.ceil(60 * 0.9)) - 1] for q in range(60)]
    assert fit.after == np.mean(inside) and np.isnan(fit.before) and fit.better
    wide = fit_sets(BEFORE._replace(alpha=0.1, limit=100.0), scores, meant)
    assert wide.before == 1 and wide.better == (abs(wide.after - 0.9) <= 0.1)
    promised = []
    for seed in range(200):                                                     # on one further question each
        scores, meant = asked(31, seed=seed)
        limit = fit_sets(BEFORE, scores[:30], meant[:30]).trust.limit
        promised.append(float(-(2.0 * scores[30]).log_softmax(0)[meant[30]]) <= limit)
    assert 0.85 < np.mean(promised) <= 0.97


def test_votes_scale_and_shift_what_was_there():
    g = torch.Generator().manual_seed(1)
    scores, spread = torch.randn(36, 50, generator=g, dtype=torch.float64), torch.zeros(36, dtype=torch.float64)
    scores[:8] -= 3.0                                                           # of eight, nothing is there
    judged = torch.zeros(36, 50, dtype=torch.bool).scatter_(1, scores.topk(10, dim=1).indices, True)
    fits = judged & (torch.rand(36, 50, generator=g, dtype=torch.float64) < (3 * scores - 4).sigmoid())
    fits[:8] = False
    before = BEFORE._replace(fits=[2.0, 0.5, -1.0])
    first, number, whether = fit_votes(before, scores, spread, judged, fits)

    def fitted(some):
        x, y = scores[some][judged[some]].numpy(), fits[some][judged[some]].numpy()
        return minimize(lambda w: np.mean(np.logaddexp(0, w[0] * x + w[1]) - y * (w[0] * x + w[1])), [1.0, 0.0],
                        tol=1e-10).x
    slope, bias = fitted([*range(36)])
    assert first.trust.fits == pytest.approx([slope, 0.25 * slope, bias], rel=1e-3)     # log_det / slope stays
    after = torch.empty_like(scores)
    for q in range(36):
        w = fitted([k for k in range(36) if k != q])
        after[q] = (w[0] * scores[q] + w[1]).sigmoid()
    p, y = after[judged], fits[judged].double()
    assert first.after == pytest.approx(float(-(y * p.log() + (1 - y) * (1 - p).log()).mean()), rel=1e-3)
    assert number.after == pytest.approx(float(p.sum()) / 36, rel=1e-3) and first.better and first.after < first.before
    none, n = ~fits.any(1), counted((slope * scores + bias).sigmoid())
    assert whether.trust.none == pytest.approx(float(limit_of(n, none)), rel=1e-3)
    rightly = [float((n[none] < cut).double().mean() + (n[~none] >= cut).double().mean()) / 2 for cut in n]
    said = float((n[none] < whether.trust.none).double().mean() + (n[~none] >= whether.trust.none).double().mean()) / 2
    assert said >= max(rightly) - 1e-9 and whether.after > 0.8


def test_calibrate_learns_says_so_and_is_undone(make_index, capsys):
    folder = make_index
    found = Searcher(folder)
    names = found.index.items.names
    refused(capsys, search.main, ["calibrate", folder],
            f"{folder} has 0 questions with the photo that was meant and 0 with photos that fit or none, and a fit "
            f"needs 30 of a kind; answer more on the page of search.py serve {folder}")
    refused(capsys, search.main, ["calibrate", folder, "--undo"], "has learned nothing, so there is nothing to undo")
    texts = [f"{n} {colour} {shape} ." for n in ("a", "two") for colour in ("red", "blue", "green", "orange", "pink")
             for shape in ("circle", "square", "star", "triangle")]
    answers = found.find_texts(texts, top=10)
    for k, one in enumerate(answers):
        keep(folder, {"query": one.query, "meant": one.answers[k % 3].name})
        keep(folder, {"query": one.query, "shown": [a.name for a in one.answers],
                      "fit": [a.name for a in one.answers[:k % 4]]})
    assert found.trust is None                                                  # the run was not calibrated
    search.main(["calibrate", folder])
    out = capsys.readouterr().out
    assert "the photo meant, -log p" in out and "of 90%                            -" in out
    assert "photos that fit of those judged, 1.5 a question" in out
    assert f"search.py calibrate {folder} --undo takes" in out
    learned = Searcher(folder)
    assert learned.trust.data == learned.index.manifest["images"][1] and learned.notes == []
    one, = learned.find_texts(texts[:1])
    assert one.expected > 0 and one.sure > 0 and one.said(0.0).startswith(("about", "at least", "probably"))
    with open(os.path.join(folder, "learned.json")) as f:
        stored = json.load(f)
    stored["of"]["weights"] = "sha256:0"                                        # another model: not for it
    with open(os.path.join(folder, "learned.json"), "w") as f:
        json.dump(stored, f)
    assert Searcher(folder).trust is None
    with open(os.path.join(folder, "learned.json"), "w") as f:
        f.write('{"learned": 7}')
    with pytest.raises(InputError, match="learned.json is nothing that was learned .*--undo deletes it"):
        Searcher(folder)
    search.main(["calibrate", folder, "--undo"])
    assert "the answers are kept in answers.jsonl" in capsys.readouterr().out
    assert Searcher(folder).trust is None and len(answered(folder)) == 40 and len(names) > 10
    with pytest.raises(InputError, match="has learned nothing"):
        forget(folder)


def test_what_is_no_better_is_not_kept(make_index, capsys, monkeypatch):
    found = Searcher(make_index)
    for one in found.find_texts([f"a red circle and {k} ." for k in range(30)], top=3):
        keep(make_index, {"query": one.query, "meant": one.answers[0].name})
    monkeypatch.setattr(learning, "fit_meant", lambda trust, *of: learning.Fit("x", 1.0, 2.0, False, trust))
    monkeypatch.setattr(learning, "fit_sets", lambda trust, *of: learning.Fit("y", 1.0, 2.0, False, trust))
    search.main(["calibrate", make_index])
    out = capsys.readouterr().out
    assert out.count("no better, and not kept") == 2 and "nothing became better, so nothing is kept" in out
    assert not os.path.exists(os.path.join(make_index, "learned.json"))


@pytest.fixture
def make_index(tmp_path, demo_path, small_run):
    folder = str(tmp_path / "index")
    search.main(["index", "--checkpoint", str(small_run("--sim", "wasserstein")), "--data_path", str(demo_path),
                 "--images", "demo_precomp", "--photos", os.path.join(demo_path, "demo", "images"), "--output", folder])
    return folder
