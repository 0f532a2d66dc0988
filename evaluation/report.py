"""Tables of results for a terminal, in markdown or in LaTeX.

A table is (title, groups of columns, rows): groups [(heading, [column, ...])], rows [(label, [cell, ...])]. Cells are
text.
"""
from collections.abc import Callable

# Head of the column of each number, in the order of the columns.
NAMES = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr", "rsum": "rsum", "rpc2": "RPC2",
         "rp": "R-P", "map_at_r": "mAP@R", "pmrp": "PMRP", "zeta0": "zeta 0", "zeta1": "zeta 1", "zeta2": "zeta 2",
         "queries": "queries"}
SIDES = {"i2t": "image to text", "t2i": "text to image", "t2t": "text to text", "i2i": "image to image"}
RATINGS = {"sts": "STS", "sis": "SIS", "sits": "SITS"}
RECALLS = ("r1", "r5", "r10", "medr", "meanr")
# Protocols of the original pairs are rows of the first table: the label of each row.
ROWS = {"full": "all", "folds5": "mean of five folds of 1,000", "bank": "all, with the bank",
        "bank_folds5": "five folds, with the bank", "mean_only": "all, cosine of the means",
        "mean_only_folds5": "five folds, cosine of the means", "shuffled": "all, variances of other items"}
# All other protocols have tables of their own, in this order: the title of each table.
TITLES = {"cxc": "Crisscrossed Captions", "cxc_folds5": "Crisscrossed Captions, mean of five folds of 1,000",
          "pmrp": "Plausible Match R-Precision",
          "pmrp_folds5": "Plausible Match R-Precision, mean of five folds of 1,000", "eccv": "ECCV Caption",
          "positives": "positives of --positives",
          "positives_mean_only": "positives of --positives, cosine of the means",
          "positives_shuffled": "positives of --positives, variances of other items"}


def number(value, digits: int = 1) -> str:
    """Text of a cell.
    A text as it is, a whole number in full, any other with these digits, - for None and NaN."""
    if value is None or value != value:
        return "-"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def table(heading: str, columns: dict[str, str], rows: dict[str, dict],
          cell: Callable[[str, dict], str] = lambda key, numbers: number(numbers.get(key, ""), 3)) -> tuple:
    """Build a table of columns {name of a number: its head} and rows {label: numbers}.
    Three digits, empty where missing."""
    return heading, [("", list(columns.values()))], [
        (label, [cell(key, numbers) for key in columns]) for label, numbers in rows.items()]


# ---- tables of results

def tables(runs: dict[str, dict]) -> list:
    """Build the tables of one or several results, {name of the run: results.json}."""
    runs = {f"{run}: " * (len(runs) > 1): results for run, results in runs.items()}
    all_tables = table_of_pairs(runs)
    for name, title in TITLES.items():
        results = {run: r["protocols"][name] for run, r in runs.items() if r["protocols"].get(name)}
        all_tables += table_of_matches(title, results) + table_of_ratings(title, results)
    return all_tables


def table_of_pairs(runs: dict[str, dict]) -> list:
    """Tabulate recalls of the original pairs and of a random order.
    runs: results by how a row begins."""
    numbers = {}
    for name, title in ROWS.items():
        for run, results in runs.items():
            if name in results["protocols"]:
                similarity = f", {results.get('similarity')}" * (name in ("full", "folds5"))
                numbers[run + title + similarity] = results["protocols"][name]
    for name, p in next(iter(runs.values())).get("chance", {}).items():
        numbers["chance" + ", five folds" * (name == "folds5")] = p
    heads = [NAMES[key] for key in RECALLS]
    rows = [(label, [number(x) for x in (*(p[side][key] for side in ("i2t", "t2i") for key in RECALLS), p["rsum"])])
            for label, p in numbers.items()]
    return [("", [*((SIDES[side], heads) for side in ("i2t", "t2i")), ("", ["rsum"])], rows)] if rows else []


def table_of_matches(title: str, results: dict[str, dict]) -> list:
    """Tabulate one protocol: a row per direction and run; none without numbers."""
    rows = {run + SIDES[side]: p[side] for side in SIDES for run, p in results.items() if side in p}
    columns = {key: head for key, head in NAMES.items() if any(key in numbers for numbers in rows.values())}
    sums = ", ".join(f"{run}{number(p['rsum'])}" for run, p in results.items() if "rsum" in p)
    return [table(title + f"; rsum {sums}" * bool(sums), columns, rows,
                  lambda key, numbers: number(numbers.get(key, "")))] if rows else []


def table_of_ratings(title: str, results: dict[str, dict]) -> list:
    """Tabulate rank correlations of one protocol with ratings; none without.
    See `metrics.sampled_spearman`."""
    def cell(kind: str, p: dict) -> str:
        x = [number(p[kind][key], 3) for key in ("spearman", "std", "shuffled")] if kind in p else ()
        return "{} +- {} (shuffled {})".format(*x) if x else ""
    kinds = {kind: name for kind, name in RATINGS.items() if any(kind in p for p in results.values())}
    rows = {f"{run}Spearman's rho": p for run, p in results.items()}
    return [table(f"{title}: rank correlation with the ratings, mean and deviation of bootstrap samples", kinds, rows,
                  cell)] if kinds else []


def comparisons(pairs: list[dict]) -> list:
    """Tabulate the results of `metrics.paired_bootstrap`.
    pairs: [{"a", "b", "seeds": [n, n], "pairs": bool, "metrics"}]."""
    results = []
    for pair in pairs:
        # where no sample was on the other side, p is the least that so many samples can tell
        rows = [(name, [number(m["a"]), number(m["b"]), f"{m['difference']:+.2f}",
                        f"{m['low']:+.2f} to {m['high']:+.2f}", f"{'<= ' * m.get('least', False)}{m['p']:.4f}"])
                for name, m in pair["metrics"].items()]
        seeds = f" and {pair['seeds'][0]} pairs of seeds" if pair["pairs"] else " and seeds"
        over = pair.get("over", "images") + seeds * (max(pair["seeds"]) > 1)
        results.append((f"{pair['b']} less {pair['a']}, paired bootstrap over {over}",
                        [("", ["first", "second", "difference", "95% interval", "p"])], rows))
    return results


def seed_tables(groups: dict[str, dict]) -> list:
    """Tabulate means and deviations over seeds.
    groups: {group: {metric: (mean, deviation, n)}}."""
    def cell(mean: float, deviation: float, n: int) -> str:
        return f"{mean:.1f}" + f" +- {deviation:.1f}" * (n > 1) + f" ({n})"

    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    rows = [(name, [cell(*group[name]) if name in group else "" for group in groups.values()]) for name in names]
    return [("mean and standard deviation over seeds (number of seeds)", [("", list(groups))], rows)]


# ---- sentences on what the tables do not show

def doubts(pairs: list[dict]):
    """Say what the p values of `comparisons` do not show."""
    single = dict.fromkeys(name for pair in pairs for name, n in zip((pair["a"], pair["b"]), pair["seeds"]) if n == 1)
    if single:
        yield (f"{', '.join(single)}: one run{' each' * (len(single) > 1)}, so the interval does not cover how much "
               "its seeds differ, and two seeds of one method may differ as much; give several seeds of both: "
               "--compare A0,A1,A2 B0,B1,B2")
    count = sum(len(pair["metrics"]) for pair in pairs)
    if count > 1:
        yield f"{count} p values: where nothing differs, about {0.05 * count:.1f} of them are below 0.05"


def describe_bank(report: dict) -> str:
    """A sentence on the bank: whose queries, which betas, and the rsum of dev."""
    betas = [f"{'none' if beta is None else format(beta, '.3g')} for {SIDES[side]}"
             for side, beta in report["beta"].items()]
    return (f"bank of {report['captions']:,} captions and {report['images']:,} images of {report['split']}: beta "
            f"{' and '.join(betas)}, chosen on dev, whose rsum is {report['dev_rsum']:.1f} with it and "
            f"{report['dev_rsum_without']:.1f} without")


def sentences(results: dict):
    """Say what the tables do not show."""
    u = results.get("unknown_words")                        # `data.Split.unknown_words`
    if u:
        yield (f"{results['data_name']} against the training vocabulary: {u['unknown_distinct']:,} of "
               f"{u['distinct']:,} distinct words are unknown, {100 * u['unknown_words'] / u['words']:.2f}% of all "
               f"words; {u['captions_without']:,} captions have no known word")
    for side, ranks in results.get("best_ranks", {}).items():
        yield (f"best ranks, {SIDES[side]}: harmonic mean {ranks['hbr']:.2f} (HBR), arithmetic mean "
               f"{ranks['abr']:.1f} (ABR)")
    if "bank" in results:
        yield describe_bank(results["bank"])
    for side, u in results.get("uncertainty", {}).items():
        yield f"uncertainty log det Sigma of the {side}: mean {u['mean']:.2f}, standard deviation {u['std']:.2f} nats"
        if "recall_bins" in u:
            bins, risk = u["recall_bins"], u["risk_coverage"]
            recalls = " ".join(f"{recall:.0f}" for recall in bins["recall"])
            yield (f"  R@1 from the surest to the least sure tenth: {recalls}; Spearman's rho {number(bins['rho'], 3)} "
                   f"over tenths, {number(bins['rho_queries'], 3)} over queries")
            yield (f"  answering only the surest: area under risk-coverage {risk['area']:.1f} (no knowledge "
                   f"{risk['area_random']:.1f}, perfect {risk['area_best']:.1f}; lower is better)")
        if "rho_positives" in u:
            yield ("  Spearman's rho of log det Sigma with the number of positives of a query: "
                   f"{number(u['rho_positives'], 3)}")


# ---- formats

def text(table) -> str:
    """Format a table for a terminal."""
    title, groups, rows = table
    rows = [("", [name for _, names in groups for name in names]), *rows]
    first = max(len(name) for name, _ in rows)
    widths = [2 + max(5, *map(len, column)) for column in zip(*(cells for _, cells in rows))]
    lines = [title] * bool(title)
    if any(heading for heading, _ in groups):
        left = iter(widths)
        lines.append(" " * first + "".join(f"{heading:^{sum(next(left) for _ in names)}}" for heading, names in groups))
    lines += [f"{name:{first}}" + "".join(map("{:>{}}".format, cells, widths)) for name, cells in rows]
    return "\n".join(line.rstrip() for line in lines)


def list_heads(groups: list) -> list[str]:
    """The heads of all columns, each with the heading of its group."""
    return [f"{heading} {name}".strip() for heading, names in groups for name in names]


def markdown(table) -> str:
    """Format a table in markdown."""
    title, groups, rows = table
    heads = list_heads(groups)
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    lines += ["| " + " | ".join([name.replace("|", r"\|"), *cells]) + " |" for name, cells in rows]
    return "\n".join([f"**{title}**\n"] * bool(title) + lines)


def latex(table) -> str:
    """Format a table in LaTeX, its title as a comment."""
    title, groups, rows = table
    heads = list_heads(groups)
    lines = [" & ".join(cells).replace("_", r"\_").replace("%", r"\%").replace("+-", r"$\pm$") + r" \\"
             for cells in (["", *heads], *([name, *cells] for name, cells in rows))]
    return "\n".join([f"% {title}"] * bool(title) + [rf"\begin{{tabular}}{{l{'r' * len(heads)}}}", r"\hline", lines[0],
                                                     r"\hline", *lines[1:], r"\hline", r"\end{tabular}"])


FORMATS = {"text": text, "markdown": markdown, "latex": latex}


def render(all_tables: list, form: str = "text") -> str:
    """Tables one below the other, in one of FORMATS."""
    return "\n\n".join(FORMATS[form](table) for table in all_tables)
