"""How many random scenarios a comparison with a slow simulator takes: a third of them, or all (`make agreement`)."""

import os

ALL = os.environ.get("SERVEGYM_SEEDS") == "all"


def seeds(count: int) -> range:
    """The first third of so many, four at least."""
    return range(count if ALL else min(count, max(4, count // 3)))
