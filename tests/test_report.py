"""Tables: every number at its row and column in all three formats."""
import re

import pytest

from evaluation import report


def recalls(start, **more):
    return {**{key: start + k + 0.25 for k, key in enumerate(("r1", "r5", "r10", "medr", "meanr"))}, "queries": 25000,
            **more}


def results(start=10):
    rho = {"spearman": 0.5, "std": 0.0123, "shuffled": -0.01, "pairs": 9, "items": 5}
    return {"similarity": "kl", "protocols": {
        "full": {"i2t": recalls(start), "t2i": recalls(start + 10), "rsum": 500.06},
        "mean_only": {"i2t": recalls(start + 20), "t2i": recalls(start + 30), "rsum": 1.0},
        "cxc": {"i2t": recalls(start, rpc2=33.3), "t2i": recalls(start, rpc2=44.4), "t2t": recalls(start + 40),
                "rsum": 2.0, "sts": rho, "sits": rho},
        "pmrp": dict.fromkeys(("i2t", "t2i"), {"pmrp": 1.5, "zeta0": 2.0, "zeta1": 3.0, "zeta2": 4.0, "queries": 7}),
        "positives": {"t2i": recalls(60, rp=None)}}}


def cells(table, form):
    """{row label: cells} as a reader sees them in a rendered table."""
    lines = report.render([table], form).splitlines()
    if form == "markdown":
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    elif form == "latex":
        rows = [[cell.strip() for cell in line.removesuffix(r"\\").split("&")] for line in lines
                if line.endswith(r"\\")]
    else:
        rows = [re.split(r"\s{2,}", line.rstrip()) for line in lines]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("form", report.FORMATS)
def test_every_number_is_in_its_place(form):
    made = report.tables({"runs/a": results()})
    titles = [title for title, _, _ in made]
    assert [title.split(":")[0] for title in titles] == ["", "Crisscrossed Captions; rsum 2.0", "Crisscrossed Captions",
                                                         "Plausible Match R-Precision", "positives of --positives"]
    plain, cxc, rho, pmrp, positives = (cells(table, form) for table in made)
    assert plain["all, kl"] == "10.2 11.2 12.2 13.2 14.2 20.2 21.2 22.2 23.2 24.2 500.1".split()
    assert plain["all, cosine of the means"][:5] == "30.2 31.2 32.2 33.2 34.2".split()
    assert cxc["image to text"] == "10.2 11.2 12.2 13.2 14.2 33.3 25,000".split()
    if form != "text":                                                       # there an empty cell is only white space
        assert cxc["text to text"] == ["50.2", "51.2", "52.2", "53.2", "54.2", "", "25,000"]
        sides = ("image to text", "text to image")
        assert plain[""] == [f"{side} {report.NAMES[key]}" for side in sides for key in report.RECALLS] + ["rsum"]
    assert rho["STS"] == rho["SITS"] == ["0.500", "0.012", "-0.010"]
    assert pmrp["text to image"] == "1.5 2.0 3.0 4.0 7".split()
    assert positives["text to image"] == "60.2 61.2 62.2 63.2 64.2 - 25,000".split()


def test_heads_of_a_terminal_end_with_their_columns():
    over, under, first, _ = report.render(report.tables({"a": results()})[:1]).splitlines()
    for head, k in (("R@1", 0), ("rsum", 10)):
        end = [m.end() for m in re.finditer(r"\S+", under)][k]
        assert under[:end].endswith(head) and first[:end].endswith(["10.2", *["?"] * 9, "500.1"][k])
    assert over.split() == "image to text text to image".split() and len(over) < len(under)


def test_several_runs_stand_side_by_side():
    second = {"similarity": "dot", "protocols": {name: results(50)["protocols"][name] for name in ("full", "cxc")}}
    plain, cxc, *_ = report.tables({"a": results(), "b_1": second})
    assert list(cells(plain, "text"))[1:] == ["a: all, kl", "b_1: all, dot", "a: all, cosine of the means"]
    assert cells(cxc, "markdown")["b_1: image to text"][0] == "50.2"
    assert r"b\_1: image to text" in cells(cxc, "latex")
    assert report.tables({"a": {"protocols": {}}}) == []


def test_comparisons_and_seeds():
    found = {"a": "one", "b": "two", "seeds": [3, 3], "pairs": True, "metrics": {"full rsum": {
        "a": 400.0, "b": 402.5, "difference": 2.5, "low": -0.125, "high": 5.1, "p": 0.06}}}
    table, = report.comparisons([found])
    assert table[0] == "two less one, paired bootstrap over images and 3 pairs of seeds"
    assert cells(table, "markdown")["full set, rsum"] == ["400.0", "402.5", "+2.50", "-0.12 to +5.10", "0.0600"]
    assert cells(table, "latex")[""][3] == r"95\% interval"
    table, = report.seed_tables({"one": {"full rsum": (400, 1.25, 3), "only": (1, 0, 3)},
                                 "two": {"full rsum": (410, 0, 1)}})
    assert cells(table, "markdown") == {"": ["one", "two"], "only": ["1.0 +- 0.0 (3)", ""],
                                        "full set, rsum": ["400.0 +- 1.2 (3)", "410.0 (1)"]}
    sentence, *_ = report.describe_p_values([{**found, "seeds": [3, 1]}])
    assert sentence.startswith("two: one run, so the interval")


@pytest.mark.parametrize("key, words", [
    ("full i2t r1", "full set, image to text R@1"), ("folds5 rsum", "mean of five folds of 1,000, rsum"),
    ("cxc sts rho x 100", "Crisscrossed Captions, STS rho x 100"),
    ("positives_mean_only t2i map_at_r", "positives of --positives, cosine of the means, text to image mAP@R")])
def test_metrics_of_a_comparison_are_in_the_words_of_the_tables(key, words):
    assert report.describe_metric(key) == words


def test_lines_of_a_terminal_end_at_110_columns_and_keep_whole_names():
    names = [f"runs/f8k_precomp_gcie_wasserstein_spherical_large_batch_seed{k}" for k in range(3)]
    pair = {"a": names[0], "b": names[1], "seeds": [1, 1], "pairs": False, "metrics": {
        key: {"a": 400.0, "b": 402.5, "difference": 2.5, "low": -10.125, "high": 15.1, "p": 0.06, "least": True}
        for key in ("cxc_folds5 t2i r10", "positives_mean_only t2i map_at_r")}}
    made = [*report.tables({name: results() for name in names}), *report.comparisons([pair]),
            *report.seed_tables({name: {"mean_only_folds5 i2t r1": (40.0, 1.25, 3)} for name in names})]
    shown = report.render(made)
    assert max(map(len, shown.splitlines())) <= 110
    assert all(f"{name}:all" in "".join(shown.split()) for name in names)
