"""Tables of results for a terminal, and the files of results.

evaluate.py and the programs of confidence/ name their files by `name_results_file` and
`name_file_beside`, so that those of a run lie beside each other under names of one form;
`check_outputs` checks them before the work.

A table is (title, groups of columns, rows): groups [(heading, [column, ...])], rows
[(label, [cell, ...])]. Cells are text.
"""

import os
import textwrap
from collections.abc import Callable, Iterator

from utils import InputError, output, repeated, sha256

# Head of the column of each number, in the order of the columns.
NAMES = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "medr": "medr",
    "meanr": "meanr",
    "rsum": "rsum",
    "rpc2": "RPC2",
    "mrr": "MRR",
    "ndcg10": "nDCG@10",
    "rp": "R-P",
    "map_at_r": "mAP@R",
    "pmrp": "PMRP",
    "zeta0": "zeta 0",
    "zeta1": "zeta 1",
    "zeta2": "zeta 2",
    "queries": "queries",
}
SIDES = {
    "i2t": "image to text",
    "t2i": "text to image",
    "t2t": "text to text",
    "i2i": "image to image",
}
RATINGS = {"sts": "STS", "sis": "SIS", "sits": "SITS"}
COLUMNS_OF_RECALLS = ("r1", "r5", "r10", "medr", "meanr")
# Protocols of the original pairs are rows of the first table: the label of each row.
ROW_LABELS = {
    "full": "all",
    "folds5": "mean of five folds of 1,000",
    "bank": "all, query bank normalized",
    "bank_folds5": "five folds, query bank normalized",
    "mean_only": "all, cosine of the means",
    "mean_only_folds5": "five folds, cosine of the means",
    "shuffled": "all, shuffled variances",
}
# All other protocols have tables of their own, in this order: the title of each table. One without
# a title, and a number without a head in NAMES, stand under their own names.
TITLES = {
    "ndcg": "original pairs, MRR and nDCG@10",
    "ndcg_folds5": "original pairs, MRR and nDCG@10, mean of five folds of 1,000",
    "cxc": "Crisscrossed Captions",
    "cxc_folds5": "Crisscrossed Captions, mean of five folds of 1,000",
    "pmrp": "Plausible Match R-Precision",
    "pmrp_folds5": "Plausible Match R-Precision, mean of five folds of 1,000",
    "eccv": "ECCV Caption",
    "positives": "positives of --positives",
    "positives_mean_only": "positives of --positives, cosine of the means",
    "positives_shuffled": "positives of --positives, shuffled variances",
}
# Columns of the table of right and wrong captions.
COLUMNS_OF_CHOICES = {
    "items": "items",
    "accuracy": "accuracy",
    "interval": "95% interval",
    "chance": "chance",
    "longer": "longer caption",
    "shorter": "shorter caption",
    "text_only": "without the image",
}
SCORES_OF_QUADRUPLE = ("text", "image", "group")
# Titles of the trivial predictors in tables; the signs make them rise with the number that fit.
BASELINES = {
    "words": "minus the number of words",
    "rarity": "minus the rarity of the words",
    "objects": "number of objects",
}
# Titles of columns: what a partial correlation controls for.
CONTROLS = {
    "words": "given words",
    "rarity": "given rarity",
    "objects": "given objects",
    "all": "given all",
}

LINE_WIDTH = 110  # characters of a line in a terminal
LEAST_IMAGES = 100  # of fewer, a number that is fitted or averaged comes with its size
MAX_STEM = 120  # characters of a file's name before .json
MIN_SHARE_OF_TIES = 0.01  # ties are reported if they affect at least this share of the queries


def number(value, digits: int = 1) -> str:
    """Format a cell: texts and whole numbers in full, - for None and NaN."""
    if value is None or value != value:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.{digits}f}"


def find_cell(key: str, numbers: dict) -> str:
    """Format the number of a column with three digits; empty where a row has none."""
    return number(numbers.get(key, ""), 3)


def find_short_cell(key: str, numbers: dict) -> str:
    """Format the number of a column with one digit; empty where a row has none."""
    return number(numbers.get(key, ""))


def table(
    heading: str,
    columns: dict[str, str],
    rows: dict[str, dict],
    cell: Callable[[str, dict], str] = find_cell,
) -> tuple:
    """Build a table.

    Args:
        heading: its title.
        columns: {name of a number: head of its column}.
        rows: {label: numbers by name}.
        cell: formats a number, from its name and the numbers of its row.
    """
    lines = []
    for label, numbers in rows.items():
        lines.append((label, [cell(key, numbers) for key in columns]))
    return heading, [("", list(columns.values()))], lines


# ---- tables of results


def tables(runs: dict[str, dict]) -> list:
    """Build the tables of one or several results, {name of the run: results.json}."""
    prefixes = [""]  # of titles and labels
    if len(runs) > 1:
        prefixes = [f"{run}: " for run in runs]
    runs = dict(zip(prefixes, runs.values()))

    all_tables = table_of_pairs(runs)
    found = {}
    for results in runs.values():
        found |= results["protocols"]
    of_user = [name for name in found if name not in TITLES and name not in ROW_LABELS]
    for name in (*TITLES, *of_user):
        if name in found:
            numbers = {run: results["protocols"].get(name) for run, results in runs.items()}
            numbers = {run: protocol for run, protocol in numbers.items() if protocol}
            all_tables += tables_of_protocol(TITLES.get(name, name), numbers)

    if any("hard_negatives" in results for results in runs.values()):
        all_tables += table_of_choices(runs)
    for run, results in runs.items():
        for side, values in results.get("uncertainty", {}).items():
            if "correlations" in values:
                title = run + title_of_correlations(side, results["protocols"].get("positives"))
                measures = {"log_det": "log det Sigma"}
                all_tables.append(tabulate_correlations(title, values["correlations"], measures))
    return all_tables


def title_of_correlations(side: str, positives: dict | None) -> str:
    """Name the table of images or captions as queries, with their number where they are ranked.

    positives: numbers of the protocol; None for a split that is too large to rank.
    """
    title = f"{side} as queries: Spearman's rho with the number of positives"
    if positives:
        count = positives[direction_of(side)]["queries"]
        title += f" ({count:,} queries)"
    return title


def direction_of(side: str) -> str:
    """Return the direction in which "images" or "captions" are the queries."""
    if side == "images":
        return "i2t"
    return "t2i"


def table_of_pairs(runs: dict[str, dict]) -> list:
    """Tabulate recalls of the original pairs and of a random order."""
    numbers = {}
    for name, label in ROW_LABELS.items():
        for run, results in runs.items():
            if name in results["protocols"]:
                row = run + label
                if name in ("full", "folds5"):
                    row += f", {results.get('similarity')}"
                numbers[row] = results["protocols"][name]
    first = next(iter(runs.values()))
    for name, levels in first.get("chance", {}).items():
        row = "chance"
        if name == "folds5":
            row = "chance, five folds"
        numbers[row] = levels
    if not numbers:
        return []

    rows = []
    for label, protocol in numbers.items():
        cells = []
        for side in ("i2t", "t2i"):
            cells += [number(protocol[side][key]) for key in COLUMNS_OF_RECALLS]
        cells.append(number(protocol["rsum"]))
        rows.append((label, cells))
    heads = [NAMES[key] for key in COLUMNS_OF_RECALLS]
    groups = [(SIDES["i2t"], heads), (SIDES["t2i"], heads), ("", ["rsum"])]
    return [("", groups, rows)]


def table_of_choices(runs: dict[str, dict]) -> list:
    """Tabulate right captions against wrong ones, by file, score and run."""
    files = {}
    for results in runs.values():
        files |= results.get("hard_negatives", {})

    rows = {}
    for name in files:
        for score in SCORES_OF_QUADRUPLE:
            for run, results in runs.items():
                of_file = results.get("hard_negatives", {}).get(name, {})
                if score not in of_file:
                    continue
                label = run + name
                if "group" in of_file:
                    label += f", {score} score"
                numbers = dict(of_file[score])
                low = number(numbers["low"])
                high = number(numbers["high"])
                numbers |= {"items": of_file["items"], "interval": f"{low} to {high}"}
                rows[label] = numbers
    if not rows:
        return []

    found = {}
    for numbers in rows.values():
        found |= numbers
    columns = {key: head for key, head in COLUMNS_OF_CHOICES.items() if key in found}
    title = "right captions against wrong ones (--hard_negatives), percent"
    return [table(title, columns, rows, find_short_cell)]


def tables_of_protocol(title: str, results: dict[str, dict]) -> list:
    """Tabulate one protocol by direction and run, and `metrics.sampled_spearman` of its ratings.

    results: {run: numbers of the protocol}.
    """
    rows = select_rows(results, SIDES)
    rated = select_rows(results, RATINGS)
    sums = []
    for run, protocol in results.items():
        if "rsum" in protocol:
            sums.append(run + number(protocol["rsum"]))

    made = []
    if rows:
        found = {}
        for numbers in rows.values():
            found |= numbers
        columns = {key: head for key, head in NAMES.items() if key in found}
        columns |= {key: key for key in found if key not in NAMES}  # of the user
        heading = title
        if sums:
            heading += f"; rsum {', '.join(sums)}"
        made.append(table(heading, columns, rows, find_short_cell))
    if rated:
        heading = (
            f"{title}: rank correlation with the ratings, mean and deviation of bootstrap samples"
        )
        columns = {"spearman": "Spearman's rho", "std": "deviation", "shuffled": "shuffled"}
        made.append(table(heading, columns, rated))
    return made


def select_rows(results: dict[str, dict], names: dict[str, str]) -> dict[str, dict]:
    """Select the numbers under the keys of `names` in protocols of runs, {run + name: numbers}."""
    rows = {}
    for key, name in names.items():
        for run, protocol in results.items():
            if key in protocol:
                rows[run + name] = protocol[key]
    return rows


def tabulate_correlations(title: str, correlations: dict, measures: dict[str, str]) -> tuple:
    """Build the table of `ambiguity.correlate_measures`: each correlation with its interval.

    measures: the title of each measure; those of baselines are BASELINES.
    """
    titles = {**measures, **BASELINES}
    columns = {"rho": "rho"}
    rows = {}
    for name, values in correlations.items():
        cells = {"rho": format_interval(values)}
        for control, partial in values.get("given", {}).items():
            columns[control] = CONTROLS[control]
            cells[control] = format_interval(partial)
        rows[titles[name]] = cells
    return table(title, columns, rows)


def format_interval(value: dict) -> str:
    """Format a correlation and its interval: 0.87 (0.86 to 0.88)."""
    low = number(value["low"], 2)
    high = number(value["high"], 2)
    return f"{number(value['rho'], 3)} ({low} to {high})"


# ---- tables of comparisons


def describe_metric(key: str) -> str:
    """Put the key of a metric of --compare into words: "full i2t r1", "cxc rsum"."""
    protocol, *words = key.split()
    titles = {**ROW_LABELS, **TITLES, "full": "full set"}
    names = {**SIDES, **RATINGS, **NAMES}
    rest = " ".join(names.get(word, word) for word in words)
    return ", ".join(part for part in (titles.get(protocol, protocol), rest) if part)


def comparisons(pairs: list[dict]) -> list:
    """Tabulate the results of `metrics.paired_bootstrap`.

    pairs: [{"a", "b", "seeds": [n, n], "pairs": bool, "metrics"}].
    """
    results = []
    columns = ["first", "second", "difference", "95% interval", "p"]
    for pair in pairs:
        rows = []
        for key, m in pair["metrics"].items():
            p = f"{m['p']:.4f}"
            if m.get("least", False):
                # no sample was on the other side: p is the least that so many samples can tell
                p = f"<= {p}"
            difference = f"{m['difference']:+.2f}"
            interval = f"{m['low']:+.2f} to {m['high']:+.2f}"
            cells = [number(m["a"]), number(m["b"]), difference, interval, p]
            rows.append((describe_metric(key), cells))

        title = f"{pair['b']} minus {pair['a']}, paired bootstrap over images"
        if max(pair["seeds"]) > 1 and pair["pairs"]:
            title += f" and {pair['seeds'][0]} pairs of seeds"
        elif max(pair["seeds"]) > 1:
            title += " and seeds"
        results.append((title, [("", columns)], rows))
    return results


def seed_tables(groups: dict[str, dict]) -> list:
    """Tabulate {group: {metric: (mean, deviation, n)}} over seeds."""
    keys = {}
    for group in groups.values():
        keys |= group

    rows = []
    for key in keys:
        cells = []
        for group in groups.values():
            cell = ""
            if key in group:
                mean, deviation, n = group[key]
                cell = f"{mean:.1f} ({n})"
                if n > 1:
                    cell = f"{mean:.1f} +- {deviation:.1f} ({n})"
            cells.append(cell)
        rows.append((describe_metric(key), cells))
    title = "mean and standard deviation over seeds (number of seeds)"
    return [(title, [("", list(groups))], rows)]


# ---- sentences on what the tables do not show


def describe_p_values(pairs: list[dict]) -> Iterator[str]:
    """Say what the p values of `comparisons` do not show."""
    single = {}
    count = 0
    for pair in pairs:
        count += len(pair["metrics"])
        for name, seeds in zip((pair["a"], pair["b"]), pair["seeds"]):
            if seeds == 1:
                single[name] = None

    if single:
        each = ""
        if len(single) > 1:
            each = " each"
        yield (
            f"{', '.join(single)}: one run{each}, so the interval does not cover how much its "
            "seeds differ, and two seeds of one method may differ as much; give several seeds of "
            "both: --compare A0,A1,A2 B0,B1,B2"
        )
    if count > 1:
        yield (
            f"{count} p values: where nothing differs, about {0.05 * count:.1f} of them are "
            "below 0.05"
        )


def describe_results(results: dict) -> Iterator[str]:
    """Say what the tables do not show."""
    if results.get("unknown_words"):
        yield describe_unknown_words(results["data_name"], results["unknown_words"])

    for side, ranks in results.get("best_ranks", {}).items():
        yield (
            f"best ranks, {SIDES[side]}: harmonic mean {ranks['hbr']:.2f} (HBR), arithmetic mean "
            f"{ranks['abr']:.1f} (ABR)"
        )
    for side, ties in results.get("ties", {}).items():
        numbers = results["protocols"]["full"][side]
        if ties["queries"] >= MIN_SHARE_OF_TIES * numbers["queries"]:
            yield (
                f"{SIDES[side]}: {ties['queries']:,} of {numbers['queries']:,} queries have ties: "
                "other items that score exactly as high as the right one. They count against the "
                f"model: R@1 is {numbers['r1']:.1f}, and would be {ties['r1']:.1f} if they counted "
                "for it"
            )
    for name, found in results.get("hard_negatives", {}).items():
        if found["ties"]:
            yield (
                f"{name}: {found['ties']:,} of {found['items']:,} items have ties, a wrong caption "
                "or image that scores exactly as high as the right one; these count as wrong"
            )
        if found["left_out"]:
            yield (
                f"{name}: {found['left_out']:,} entries are left out, since the split does not "
                "have their images"
            )
    if "bank" in results:
        yield describe_bank(results["bank"])

    for side, found in results.get("uncertainty", {}).items():
        yield (
            f"uncertainty log det Sigma of the {side}: mean {found['mean']:.2f}, standard "
            f"deviation {found['std']:.2f} nats"
        )
        if "recall_bins" in found:
            queries = results["protocols"]["full"][direction_of(side)]["queries"]
            yield "  " + describe_recall_bins(found["recall_bins"], queries)
            yield "  " + describe_risk(found["risk_coverage"])


def describe_unknown_words(data_name: str, counts: dict) -> str:
    """Say how many words a model does not know. counts: of `data.Split.unknown_words`."""
    share = 100 * counts["unknown_words"] / counts["words"]
    return (
        f"{data_name} against the training vocabulary: {counts['unknown_distinct']:,} of "
        f"{counts['distinct']:,} distinct words are unknown, {share:.2f}% of all words"
    )


def describe_bank(bank: dict) -> str:
    """Say what `bank.fit_terms` chose."""
    betas = []
    for side, beta in bank["beta"].items():
        value = "none"
        if beta is not None:
            value = f"{beta:.3g}"
        betas.append(f"{value} for {SIDES[side]}")

    size = ""
    dev_images = bank.get("dev_images", LEAST_IMAGES)
    if dev_images < LEAST_IMAGES:
        size = f" (only {dev_images:,} images; use at least {LEAST_IMAGES})"
    return (
        f"bank of {bank['captions']:,} captions and {bank['images']:,} images of {bank['split']}: "
        f"beta {' and '.join(betas)}, chosen on dev{size}, whose rsum is {bank['dev_rsum']:.1f} "
        f"with it and {bank['dev_rsum_without']:.1f} without"
    )


def describe_recall_bins(bins: dict, queries: int) -> str:
    """Put the recalls by uncertainty of so many queries into words.

    bins: of `metrics.recall_in_bins`.
    """
    recalls = " ".join(f"{recall:.0f}" for recall in bins["recall"])
    size = ""
    if queries < LEAST_IMAGES:
        size = f" (of only {queries / len(bins['recall']):.1f} queries each)"
    return (
        f"R@1 from the most to the least confident tenth: {recalls}{size}; Spearman's rho "
        f"{number(bins['rho'], 3)} over tenths, {number(bins['rho_queries'], 3)} over queries"
    )


def describe_risk(risk: dict) -> str:
    """Put the area under risk-coverage (AURC) into words. risk: of `metrics.risk_coverage`."""
    room = risk["area_random"] - risk["area_best"]
    gained = 0.0
    if room > 0:
        gained = (risk["area_random"] - risk["area"]) / room

    verb = "separates right from wrong well"
    if gained < -0.1:
        verb = "puts the wrong answers first"
    elif gained < 0.1:
        verb = "hardly separates right from wrong"
    elif gained < 0.5:
        verb = "separates right from wrong a little"
    return (
        f"Ranking queries by variance {verb}: AURC {risk['area']:.1f} (random "
        f"{risk['area_random']:.1f}, ideal {risk['area_best']:.1f})"
    )


# ---- the terminal


def text(table: tuple) -> str:
    """Format a table for a terminal.

    Long titles, heads and labels take several lines, to keep to LINE_WIDTH.
    """
    title, groups, rows = table
    names = []
    for _, columns in groups:
        names += columns
    width_of_head = max(14, (LINE_WIDTH - 40) // len(names))
    heads = [textwrap.wrap(name, width_of_head, break_on_hyphens=False) for name in names]

    widths = []
    for k, head in enumerate(heads):
        lengths = [len(line) for line in head] + [len(cells[k]) for _, cells in rows]
        widths.append(2 + max([5, *lengths]))
    width_of_label = max(24, LINE_WIDTH - sum(widths))
    labels = []
    longest = 0
    for label, _ in rows:
        wrapped = textwrap.wrap(label, width_of_label, break_on_hyphens=False) or [""]
        labels.append(wrapped)
        longest = max(longest, max(len(line) for line in wrapped))

    lines = textwrap.wrap(title, LINE_WIDTH, break_long_words=False, break_on_hyphens=False)
    if any(heading for heading, _ in groups):
        line = " " * longest
        begin = 0
        for heading, columns in groups:
            end = begin + len(columns)
            line += f"{heading:^{sum(widths[begin:end])}}"
            begin = end
        lines.append(line)

    # heads of fewer lines than others stand at the bottom
    depth = max(len(head) for head in heads)
    heads = [[""] * (depth - len(head)) + head for head in heads]
    for cells in zip(*heads):
        lines.append(format_line("", longest, cells, widths))
    for label, (_, cells) in zip(labels, rows):
        lines += label[:-1]
        lines.append(format_line(label[-1], longest, cells, widths))
    return "\n".join(line.rstrip() for line in lines)


def format_line(label: str, width_of_label: int, cells, widths: list[int]) -> str:
    """Format a label and its cells, which end at the right of their columns."""
    line = f"{label:{width_of_label}}"
    for cell, width in zip(cells, widths):
        line += f"{cell:>{width}}"
    return line


def render(all_tables: list) -> str:
    """Format tables one below the other."""
    return "\n\n".join(text(table) for table in all_tables)


# ---- names of the files of results


def name_results_file(
    paths: list[str], models: list, opt, name: str = "results", *more: str | None
) -> str:
    """Return the path of the results.

    NAME.json in the run folder for the test split of the run's own data by its own similarity, else
    NAME_SIM_DATA_SPLIT.json; FILE_NAME.json beside a file; --output names another. While a run is
    still training its results are called unfinished.

    Args:
        paths: the run, the runs of an ensemble, or the file of embeddings or scores.
        models: the `checkpoint.Trained` of the runs; none for a file.
        opt: options with output, sim, data_name and split.
        name: what the results are of.
        more: words at the end; None is left out.
    """
    if opt.output:
        return opt.output

    folder, file = os.path.split(paths[0])
    if os.path.isdir(paths[0]):
        folder = paths[0]
        file = "model_best.pt"
    words = [name]
    if file != "model_best.pt":
        stem = os.path.splitext(file)[0].removesuffix(".pth")
        words = [f"{stem}_{name}"]
    if len(paths) > 1:
        words.append("ensemble")
        words += [os.path.basename(os.path.normpath(path)) for path in paths]

    if models:
        own = models[0].options
        if opt.sim != own.sim:
            words.append(opt.sim)
        data = (opt.data_name or own.data_name, opt.split or "test")
        if data != (own.data_name, "test"):
            words += data
    else:
        words.append(opt.sim)

    words += more
    if any(model.training for model in models):
        words.append("unfinished")
    return os.path.join(folder, join_to_json(words))


def name_comparison_file(models: dict[str, object], opt) -> str:
    """Return the path of the results of --compare, named after the first run of each group."""
    if opt.output:
        return opt.output

    words = ["comparison"]
    for group in opt.compare:
        path = os.path.normpath(group.split(",")[0])
        words.append(os.path.splitext(os.path.basename(path))[0])
    words += [opt.sim, opt.data_name, opt.split]
    if any(model.training for model in models.values()):
        words.append("unfinished")
    return join_to_json(words)


def join_to_json(words: list[str | None]) -> str:
    """Join words to the name of a .json file; None is left out.

    The end of a long name is replaced by a hash, so that other words give another name.
    """
    stem = "_".join(word for word in words if word).replace(os.sep, "_")
    if len(stem) > MAX_STEM:
        stem = f"{stem[: MAX_STEM - 9]}_{sha256(os.fsencode(stem))[:8]}"
    return stem + ".json"


def name_file_beside(name: str, target: str, results: str = "results", ending: str = "png") -> str:
    """Return the path of another file beside the results.

    NAME_DATA_SPLIT.png beside results_DATA_SPLIT.json, mine_NAME.png beside mine.json.
    """
    folder, file = os.path.split(target)
    stem = os.path.splitext(file)[0]
    if results in stem:
        stem = stem.replace(results, name, 1)
    else:
        stem = f"{stem}_{name}"
    return os.path.join(folder, f"{stem}.{ending}")


# ---- checks of these files, before the work


def check_outputs(outputs, inputs: list[str | None], opt, more=()) -> None:
    """Check the files that will be written, and --export, before the work.

    Raises InputError where one cannot be written, is named for two things, or exists without
    --overwrite.

    Args:
        outputs: paths of the files.
        inputs: paths that the command reads, the run or file itself first; None is left out.
        opt: options with export, output and overwrite.
        more: those of the outputs that the user names, besides --export and --output.
    """
    outputs = list(outputs)
    if opt.export:
        outputs.append(opt.export)
    twice = repeated([os.path.realpath(path) for path in outputs])
    if twice is not None:
        raise InputError(
            f"--export, --output or a file beside it name one file ({twice}) for two "
            "things; name another"
        )

    read = [path for path in inputs if path]
    for path in outputs:
        named = path in (opt.export, opt.output, *more)
        # beside a run that does not exist nothing is tried
        if named or os.path.exists(inputs[0]):
            output(path, read, opt.overwrite or not named)
