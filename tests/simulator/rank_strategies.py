"""Hypothesis strategies: ranks of a queue, and the order they stand for."""

import numpy as np
from hypothesis import strategies as st

from servegym.simulator.records import types as layout

LEAVE_OUT = int(layout.LEAVE_OUT)
tiers = st.sampled_from([-1, 0, 0, 0, 2, LEAVE_OUT])


@st.composite
def plans(draw, most: int = 300):
    """Ranks with many ties, some requests left out; long ones from a seed, as examples of that size take long."""
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(tiers, st.integers(0, 5)), min_size=1, max_size=20))
        tier, key = zip(*pairs, strict=True)
    else:
        rng, n = np.random.default_rng(draw(st.integers(0, 999))), draw(st.integers(1, most))
        tier, key = rng.choice([0, 0, 0, 1, LEAVE_OUT], n), rng.integers(0, draw(st.sampled_from([1, 9, 10**6])), n)
        if draw(st.booleans()):
            key = np.sort(key)
    ranks = np.zeros(len(tier), layout.RANK)
    ranks["tier"], ranks["key"] = tier, key
    ranks["victim_tier"], ranks["victim_key"] = ranks["tier"], -ranks["key"]
    return ranks


def ranking(ranks) -> list[int]:
    """The places not left out, in rank order; ties by place."""
    places = [place for place in range(len(ranks)) if ranks[place].tier != LEAVE_OUT]
    return sorted(places, key=lambda place: (ranks[place].tier, ranks[place].key, place))
