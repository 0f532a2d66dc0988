"""Tables of results for a terminal.

A table is (title, groups of columns, rows): groups [(heading, [column, ...])], rows [(label, [cell, ...])]. Cells are
text.
"""
import textwrap
from collections.abc import Callable

# Head of the column of each number, in the order of the columns.
NAMES = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr", "rsum": "rsum", "rpc2": "RPC2",
         "mrr": "MRR", "ndcg10": "nDCG@10", "rp": "R-P", "map_at_r": "mAP@R", "pmrp": "PMRP",
         "zeta0": "zeta 0", "zeta1": "zeta 1", "zeta2": "zeta 2",
         "queries": "queries"}
SIDES = {"i2t": "image to text", "t2i": "text to image", "t2t": "text to text", "i2i": "image to image"}
RATINGS = {"sts": "STS", "sis": "SIS", "sits": "SITS"}
RECALLS = ("r1", "r5", "r10", "medr", "meanr")
# Protocols of the original pairs are rows of the first table: the label of each row.
ROWS = {"full": "all", "folds5": "mean of five folds of 1,000", "bank": "all, with the bank",
        "bank_folds5": "five folds, with the bank", "mean_only": "all, cosine of the means",
        "mean_only_folds5": "five folds, cosine of the means", "shuffled": "all, variances of other items"}
# All other protocols have tables of their own, in this order: the title of each table. One without a title, and a
# number without a head in NAMES, stand under their own names.
TITLES = {"ndcg": "original pairs, MRR and nDCG@10",
          "ndcg_folds5": "original pairs, MRR and nDCG@10, mean of five folds of 1,000",
          "cxc": "Crisscrossed Captions", "cxc_folds5": "Crisscrossed Captions, mean of five folds of 1,000",
          "pmrp": "Plausible Match R-Precision",
          "pmrp_folds5": "Plausible Match R-Precision, mean of five folds of 1,000", "eccv": "ECCV Caption",
          "positives": "positives of --positives",
          "positives_mean_only": "positives of --positives, cosine of the means",
          "positives_shuffled": "positives of --positives, variances of other items"}
# Titles of the trivial predictors in tables; the signs make them rise with the number that fit.
BASELINES = {
    "words": "minus the number of words",
    "rarity": "minus the rarity of the words",
    "objects": "number of objects",
}
# Titles of columns: what a partial correlation controls for.
CONTROLS = {"words": "given words", "rarity": "given rarity", "objects": "given objects", "all": "given all"}

WIDTH = 110                           # letters of a line in a terminal
LEAST_IMAGES = 100                    # below so many a number that is fitted or averaged comes with its size
SAID_TIES = 0.01                      # share of queries with ties from which it is said


def number(value, digits: int = 1) -> str:
    """Text of a cell: texts and whole numbers in full, - for None and NaN."""
    if value is None or value != value:
        return "-"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def table(heading: str, columns: dict[str, str], rows: dict[str, dict],
          cell: Callable[[str, dict], str] = lambda key, numbers: number(numbers.get(key, ""), 3)) -> tuple:
    """Build a table of columns {name of a number: its head} and rows {label: numbers}."""
    return heading, [("", list(columns.values()))], [
        (label, [cell(key, numbers) for key in columns]) for label, numbers in rows.items()]


# ---- tables of results

def tables(runs: dict[str, dict]) -> list:
    """Build the tables of one or several results, {name of the run: results.json}."""
    runs = {f"{run}: " * (len(runs) > 1): results for run, results in runs.items()}
    all_tables = table_of_pairs(runs)
    found = dict.fromkeys(name for r in runs.values() for name in r["protocols"])
    own = [name for name in found if name not in TITLES and name not in ROWS]       # of the user
    for name in (*TITLES, *own):
        results = {run: r["protocols"][name] for run, r in runs.items() if r["protocols"].get(name)}
        all_tables += tables_of_protocol(TITLES.get(name, name), results)
    for run, results in runs.items():
        for side, values in results.get("uncertainty", {}).items():
            if "correlations" in values:
                title = f"{run}{side} as queries: Spearman's rho with the number of positives"
                ranked = results["protocols"].get("positives")          # not of a split that is too large
                if ranked:
                    direction = "i2t" if side == "images" else "t2i"
                    title += f" ({ranked[direction]['queries']:,} queries)"
                measures = {"log_det": "log det Sigma"}
                all_tables.append(tabulate_correlations(title, values["correlations"], measures))
    return all_tables


def table_of_pairs(runs: dict[str, dict]) -> list:
    """Tabulate recalls of the original pairs and of a random order."""
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


def tables_of_protocol(title: str, results: dict[str, dict]) -> list:
    """Tabulate one protocol by direction and run, and `metrics.sampled_spearman` of its ratings."""
    rows = {run + SIDES[side]: p[side] for side in SIDES for run, p in results.items() if side in p}
    found = dict.fromkeys(key for numbers in rows.values() for key in numbers)
    columns = {key: head for key, head in NAMES.items() if key in found}
    columns |= {key: key for key in found if key not in NAMES}                      # of the user
    sums = ", ".join(f"{run}{number(p['rsum'])}" for run, p in results.items() if "rsum" in p)
    matches = table(title + f"; rsum {sums}" * bool(sums), columns, rows,
                    lambda key, numbers: number(numbers.get(key, "")))
    rated = {run + name: p[kind] for kind, name in RATINGS.items() for run, p in results.items() if kind in p}
    ratings = table(f"{title}: rank correlation with the ratings, mean and deviation of bootstrap samples",
                    {"spearman": "Spearman's rho", "std": "deviation", "shuffled": "shuffled"}, rated)
    return [matches] * bool(rows) + [ratings] * bool(rated)


def tabulate_correlations(title: str, correlations: dict, measures: dict[str, str]) -> tuple:
    """Build the table of `ambiguity.correlate_measures`: each correlation with its interval.

    measures: the title of each measure; those of baselines are BASELINES.
    """
    controls = {}
    for values in correlations.values():
        for control in values.get("given", {}):
            controls[control] = CONTROLS[control]

    rows = {}
    for name, values in correlations.items():
        cells = {"rho": format_interval(values)}
        for control, partial in values.get("given", {}).items():
            cells[control] = format_interval(partial)
        rows[{**measures, **BASELINES}[name]] = cells
    columns = {"rho": "rho", **controls}
    return table(title, columns, rows, lambda column, cells: cells.get(column, ""))


def format_interval(value: dict) -> str:
    """Format a correlation and its interval: 0.87 (0.86 to 0.88)."""
    return f"{number(value['rho'], 3)} ({number(value['low'], 2)} to {number(value['high'], 2)})"


def describe_metric(key: str) -> str:
    """Put the key of a metric of --compare into words: "full i2t r1", "cxc rsum"."""
    protocol, *words = key.split()
    title = {**ROWS, **TITLES, "full": "full set"}.get(protocol, protocol)
    return ", ".join(filter(None, [title, " ".join({**SIDES, **RATINGS, **NAMES}.get(word, word) for word in words)]))


def comparisons(pairs: list[dict]) -> list:
    """Tabulate the results of `metrics.paired_bootstrap`.
    pairs: [{"a", "b", "seeds": [n, n], "pairs": bool, "metrics"}]."""
    results = []
    for pair in pairs:
        # where no sample was on the other side, p is the least that so many samples can tell
        rows = [(describe_metric(key), [number(m["a"]), number(m["b"]), f"{m['difference']:+.2f}",
                                        f"{m['low']:+.2f} to {m['high']:+.2f}",
                                        f"{'<= ' * m.get('least', False)}{m['p']:.4f}"])
                for key, m in pair["metrics"].items()]
        seeds = f" and {pair['seeds'][0]} pairs of seeds" if pair["pairs"] else " and seeds"
        results.append((f"{pair['b']} less {pair['a']}, paired bootstrap over images{seeds * (max(pair['seeds']) > 1)}",
                        [("", ["first", "second", "difference", "95% interval", "p"])], rows))
    return results


def seed_tables(groups: dict[str, dict]) -> list:
    """Tabulate {group: {metric: (mean, deviation, n)}} over seeds."""
    def cell(mean: float, deviation: float, n: int) -> str:
        return f"{mean:.1f}" + f" +- {deviation:.1f}" * (n > 1) + f" ({n})"

    keys = dict.fromkeys(key for group in groups.values() for key in group)
    rows = [(describe_metric(key), [cell(*group[key]) if key in group else "" for group in groups.values()])
            for key in keys]
    return [("mean and standard deviation over seeds (number of seeds)", [("", list(groups))], rows)]


# ---- sentences on what the tables do not show

def describe_p_values(pairs: list[dict]):
    """Say what the p values of `comparisons` do not show."""
    single = dict.fromkeys(name for pair in pairs for name, n in zip((pair["a"], pair["b"]), pair["seeds"]) if n == 1)
    if single:
        yield (f"{', '.join(single)}: one run{' each' * (len(single) > 1)}, so the interval does not cover how much "
               "its seeds differ, and two seeds of one method may differ as much; give several seeds of both: "
               "--compare A0,A1,A2 B0,B1,B2")
    count = sum(len(pair["metrics"]) for pair in pairs)
    if count > 1:
        yield f"{count} p values: where nothing differs, about {0.05 * count:.1f} of them are below 0.05"


def describe_risk(risk: dict) -> str:
    """Put the area under risk-coverage (AURC) into words. risk: of `metrics.risk_coverage`."""
    room = risk["area_random"] - risk["area_best"]
    gained = (risk["area_random"] - risk["area"]) / room if room > 0 else 0.0
    verb = "separates right from wrong well"
    if gained < -0.1:
        verb = "puts the wrong answers first"
    elif gained < 0.1:
        verb = "hardly separates right from wrong"
    elif gained < 0.5:
        verb = "separates right from wrong a little"
    return (f"Ranking queries by variance {verb}: AURC {risk['area']:.1f} (random {risk['area_random']:.1f}, ideal "
            f"{risk['area_best']:.1f})")


def describe_results(results: dict):
    """Say what the tables do not show."""
    u = results.get("unknown_words")                        # `data.Split.unknown_words`
    if u:
        yield (f"{results['data_name']} against the training vocabulary: {u['unknown_distinct']:,} of "
               f"{u['distinct']:,} distinct words are unknown, {100 * u['unknown_words'] / u['words']:.2f}% of all "
               "words")
    for side, ranks in results.get("best_ranks", {}).items():
        yield (f"best ranks, {SIDES[side]}: harmonic mean {ranks['hbr']:.2f} (HBR), arithmetic mean "
               f"{ranks['abr']:.1f} (ABR)")
    for side, ties in results.get("ties", {}).items():
        numbers = results["protocols"]["full"][side]
        if ties["queries"] >= SAID_TIES * numbers["queries"]:
            yield (f"{SIDES[side]}: {ties['queries']:,} of {numbers['queries']:,} queries have ties: other items that "
                   f"score exactly as high as the right one. They count against the model: R@1 is {numbers['r1']:.1f}, "
                   f"and would be {ties['r1']:.1f} if they counted for it")
    if "bank" in results:
        bank = results["bank"]
        betas = " and ".join(f"{'none' if beta is None else format(beta, '.3g')} for {SIDES[side]}"
                             for side, beta in bank["beta"].items())
        dev = bank.get("dev_images", LEAST_IMAGES)
        size = f" (only {dev:,} images; use at least {LEAST_IMAGES})" if dev < LEAST_IMAGES else ""
        yield (f"bank of {bank['captions']:,} captions and {bank['images']:,} images of {bank['split']}: beta {betas}, "
               f"chosen on dev{size}, whose rsum is {bank['dev_rsum']:.1f} with it and {bank['dev_rsum_without']:.1f} "
               "without")
    for side, u in results.get("uncertainty", {}).items():
        yield f"uncertainty log det Sigma of the {side}: mean {u['mean']:.2f}, standard deviation {u['std']:.2f} nats"
        if "recall_bins" in u:
            bins, risk = u["recall_bins"], u["risk_coverage"]
            recalls = " ".join(f"{recall:.0f}" for recall in bins["recall"])
            queries = results["protocols"]["full"]["i2t" if side == "images" else "t2i"]["queries"]
            size = ""
            if queries < LEAST_IMAGES:
                size = f" (of only {queries / len(bins['recall']):.1f} queries each)"
            yield (f"  R@1 from the surest to the least sure tenth: {recalls}{size}; Spearman's rho "
                   f"{number(bins['rho'], 3)} over tenths, {number(bins['rho_queries'], 3)} over queries")
            yield f"  {describe_risk(risk)}"


# ---- the terminal

def text(table) -> str:
    """Format a table for a terminal.
    Long titles, heads and labels take several lines, to keep to WIDTH."""
    title, groups, rows = table
    heads = [name for _, names in groups for name in names]
    heads = [textwrap.wrap(name, max(14, (WIDTH - 40) // len(heads)), break_on_hyphens=False) for name in heads]
    widths = [2 + max(5, *map(len, head), *map(len, cells))
              for head, *cells in zip(heads, *(cells for _, cells in rows))]
    labels = [textwrap.wrap(name, max(24, WIDTH - sum(widths)), break_on_hyphens=False) or [""] for name, _ in rows]
    first = max((len(line) for label in labels for line in label), default=0)
    lines = textwrap.wrap(title, WIDTH, break_long_words=False, break_on_hyphens=False)
    if any(heading for heading, _ in groups):
        left = iter(widths)
        lines.append(" " * first + "".join(f"{heading:^{sum(next(left) for _ in names)}}" for heading, names in groups))
    depth = max(map(len, heads))
    grid = [("", cells) for cells in zip(*([""] * (depth - len(head)) + head for head in heads))]
    for label, (_, cells) in zip(labels, rows):
        grid += [*((line, ()) for line in label[:-1]), (label[-1], cells)]
    lines += [f"{name:{first}}" + "".join(map("{:>{}}".format, cells, widths)) for name, cells in grid]
    return "\n".join(line.rstrip() for line in lines)


def render(all_tables: list) -> str:
    """Tables one below the other."""
    return "\n\n".join(map(text, all_tables))
