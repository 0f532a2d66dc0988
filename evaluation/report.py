"""Results as tables: text for a terminal, markdown, LaTeX; one table a protocol, several runs side by side.

A table is (title, groups of columns, rows): groups [(heading, [column, ...])], rows [(label, [cell, ...])], cells of text.
"""
from files import holds_keys

is_comparison = holds_keys("runs", "groups", "comparisons")
NAMES = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr", "rsum": "rsum", "rpc2": "RPC2", "rp": "R-P",
         "map_at_r": "mAP@R", "pmrp": "PMRP", "zeta0": "zeta 0", "zeta1": "zeta 1", "zeta2": "zeta 2", "queries": "queries",
         "without": "no match"}
SIDES = {"i2t": "image to text", "t2i": "text to image", "t2t": "text to text", "i2i": "image to image"}
RATINGS = {"sts": "STS", "sis": "SIS", "sits": "SITS"}
RECALLS = ("r1", "r5", "r10", "medr", "meanr")
PLAIN = {"full": "all", "folds5": "mean of five folds of 1,000", "mean_only": "all, cosine of the means",
         "mean_only_folds5": "five folds, cosine of the means", "shuffled": "all, variances of other items",
         "rerank": "all, the nearest re-ranked", "rerank_folds5": "five folds, the nearest re-ranked"}
JUDGED = {"cxc": "Crisscrossed Captions", "cxc_folds5": "Crisscrossed Captions, mean of five folds of 1,000",
          "pmrp": "Plausible Match R-Precision", "pmrp_folds5": "Plausible Match R-Precision, mean of five folds of 1,000",
          "eccv": "ECCV Caption", "positives": "positives of --positives"}


def number(value, name: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:,}" if name in ("queries", "without") else f"{value:.3f}" if name == "rho" else f"{value:.1f}"


def tables(runs: dict[str, dict], similarities: dict[str, str] | None = None, chance: dict | None = None) -> list:
    """Tables of the "protocols" of one or several results, {name of the run: protocols}.

    similarities: what ranked them, by run; chance: {"full" | "folds5": what a random order gives}.
    """
    several, made = len(runs) > 1, []

    def label(run: str, text: str) -> str:
        return f"{run}: {text}" if several else text

    def titled(name: str, run: str) -> str:
        own = name in ("full", "folds5") and (similarities or {}).get(run)
        return label(run, f"{PLAIN[name]}, {own}" if own else PLAIN[name])

    def cells(p: dict) -> list[str]:
        return [*(number(p[side][key]) for side in ("i2t", "t2i") for key in RECALLS), number(p["rsum"])]

    rows = [(titled(name, run), cells(p[name])) for name in PLAIN for run, p in runs.items() if name in p]
    rows += [(f"chance{', five folds' if name == 'folds5' else ''}", cells(p)) for name, p in (chance or {}).items()]
    if rows:
        made.append(("", [*((SIDES[side], [NAMES[key] for key in RECALLS]) for side in ("i2t", "t2i")), ("", ["rsum"])], rows))
    for name, title in JUDGED.items():
        found = {run: p[name] for run, p in runs.items() if p.get(name)}
        columns = list(dict.fromkeys(key for p in found.values() for side in SIDES for key in p.get(side, ())))
        if columns:
            columns = sorted(columns, key=list(NAMES).index)
            sums = ", ".join(label(run, number(p["rsum"])) for run, p in found.items() if "rsum" in p)
            made.append((title + (f"; rsum {sums}" if sums else ""), [("", [NAMES[key] for key in columns])],
                         [(label(run, SIDES[side]), [number(p[side][key], key) if key in p[side] else "" for key in columns])
                          for side in SIDES for run, p in found.items() if side in p]))
        kinds = [kind for kind in RATINGS if any(kind in p for p in found.values())]
        if kinds:
            made.append((f"{title}: rank correlation with the ratings, mean and deviation of bootstrap samples",
                         [("", [RATINGS[kind] for kind in kinds])],
                         [(run if several else "Spearman's rho", [spread(p[kind]) if kind in p else "" for kind in kinds])
                          for run, p in found.items()]))
    return made


def spread(value: dict) -> str:
    if value["spearman"] is None:
        return "undefined"
    return f"{value['spearman']:.3f} +- {value['std']:.3f} (shuffled {number(value['shuffled'], 'rho')})"


def comparisons(found: list[dict]) -> list:
    """Tables of `metrics.paired_bootstrap` results: [{"a", "b", "seeds": [n, n], "metrics": {name: ...}}]."""
    made = []
    for pair in found:
        rows = [(name, [number(m["a"]), number(m["b"]), f"{m['difference']:+.2f}", f"{m['low']:+.2f} to {m['high']:+.2f}",
                        p_value(m)]) for name, m in pair["metrics"].items()]
        over = "images and seeds" if max(pair.get("seeds", [1])) > 1 else "images"
        made.append((f"{pair['b']} less {pair['a']}, paired bootstrap over {over}", [("", [
            "first", "second", "difference", "95% interval", "p"])], rows))
    return made


def p_value(m: dict) -> str:
    """p of a bootstrap; what no sample contradicts is at most the smallest p that so many samples can tell."""
    return f"{'<= ' * m.get('least', False)}{m['p']:.4f}"


def doubts(found: list[dict]):
    """What the p values of `comparisons` do not say."""
    single = [name for pair in found for name, n in zip((pair["a"], pair["b"]), pair["seeds"]) if n == 1]
    if single:
        yield (f"{', '.join(dict.fromkeys(single))}: one run each, so the interval covers the choice of the test images for "
               "these very weights and nothing else. Two seeds of one method differ as much (two of VSE++ on Flickr8k: R@1 9.0 "
               "and 14.0, p = 0.0036): that one method is better than another takes several seeds of both, --compare A0,A1,A2 "
               "B0,B1,B2")
    count = sum(len(pair["metrics"]) for pair in found)
    if count > 1:
        yield f"{count} p values: where nothing differs, about {0.05 * count:.1f} of them are below 0.05"


def seed_tables(found: dict[str, dict]) -> list:
    """A table of means and deviations over seeds: {group: {metric: (mean, deviation, n)}}."""
    names = list(dict.fromkeys(name for group in found.values() for name in group))
    rows = [(name, ["{:.1f} +- {:.1f} ({})".format(*group[name]) if name in group else "" for group in found.values()])
            for name in names]
    return [("mean and standard deviation over seeds (number of seeds)", [("", list(found))], rows)]


def foreign_words(data_name: str, u: dict) -> str:
    """What data.Split.unknown_words counted on a data set that the vocabulary is not of."""
    return (f"{data_name} against the training vocabulary: {u['unknown_distinct']:,} of {u['distinct']:,} distinct words are "
            f"unknown, {100 * u['unknown_words'] / u['words']:.2f}% of all words; {u['captions_without']:,} captions have no "
            "known word")


def text(table) -> str:
    title, columns, rows = table
    heads = [name for _, names in columns for name in names]
    first = max(len(row[0]) for row in rows)
    widths = [max(6, *(len(cell) for cell in column)) for column in zip(heads, *(cells for _, cells in rows))]
    lines = [title] if title else []
    if any(heading for heading, _ in columns):
        spans, at = [], 0
        for heading, names in columns:
            spans.append(f"{heading:^{sum(widths[at:at + len(names)]) + 2 * len(names)}}")
            at += len(names)
        lines.append((" " * first + "".join(spans)).rstrip())
    for name, cells in (("", heads), *rows):
        lines.append(f"{name:{first}}" + "".join(f"{cell:>{width + 2}}" for cell, width in zip(cells, widths)))
    return "\n".join(line.rstrip() for line in lines)


def markdown(table) -> str:
    title, columns, rows = table
    heads = [f"{heading} {name}".strip() for heading, names in columns for name in names]
    lines = [f"**{title}**", ""] if title else []
    lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join([name.replace("|", r"\|"), *cells]) + " |" for name, cells in rows)])


def latex(table) -> str:
    title, columns, rows = table
    heads = [name for _, names in columns for name in names]

    def line(*cells):
        return " & ".join(map(escaped, cells)) + r" \\"

    def escaped(cell):
        return cell.replace("_", r"\_").replace("%", r"\%").replace("+-", r"$\pm$")

    lines = [f"% {title}"] if title else []
    lines += [r"\begin{tabular}{l" + "r" * len(heads) + "}", r"\hline"]
    if any(heading for heading, _ in columns):
        spans = [rf"\multicolumn{{{len(names)}}}{{c}}{{{escaped(heading)}}}" for heading, names in columns]
        lines.append(" & ".join(["", *spans]) + r" \\")
    return "\n".join([*lines, line("", *heads), r"\hline", *(line(name, *cells) for name, cells in rows), r"\hline",
                      r"\end{tabular}"])


FORMATS = {"text": text, "markdown": markdown, "latex": latex}


def render(made: list, form: str = "text") -> str:
    return "\n\n".join(FORMATS[form](table) for table in made)
