from evaluation.confidence import percent


def how_sure(p: float, unsure: float) -> str:
    """What is said of a first answer that is right with probability p. unsure: less than this is not sure."""
    if p >= unsure:
        return f"{percent(p)} sure of the first photo"
    return f"{percent(p)} sure: {'probably none of these' if p < unsure / 2 else 'it may be another one'}"


def of_the_set(count: int, level: float | None) -> str:
    """What is said of a conformal set of `count` photos. level: how often such sets hold the right one."""
    what = {0: "no photo is in the set that holds", 1: "1 photo holds"}.get(count, f"{count:,} photos hold")
    return f"{what} the right one{'' if level is None else f' with {percent(level)}'}"
