"""The results that README.md and docs/ show, and where a number of them stands."""


def value(part, path: str) -> float | None:
    """The number at a path of keys, or None where it is not defined, as what Sigma knows is for a
    point. `*` stands for the first key."""
    for key in path.split("/"):
        if not isinstance(part, dict):
            return None
        if key == "under_flat":                   # how far AURC is below its value in random order
            return 100 * (1 - part["aurc"] / part["aurc_flat"])
        part = next(iter(part.values()), None) if key == "*" else part.get(key)
    return part
