"""Which claims are run again, on what, and what they cost: chosen by cost, before any of them was run."""

from typing import NamedTuple

from experiments.better_devices.devices import JUDGED, RECIPE, SLOWED, TERMS
from experiments.claims.harness.registry import claims
from experiments.claims.harness.settings import FULL

SMALL, MIDDLE, LARGE = "a100-llama3-8b", "a100-qwen2.5-14b-tp2", "a100-llama3-70b-tp4"
LONG = "mooncake-conversation"  # of a claim with four families half the time


class Planned(NamedTuple):
    """A claim's settings on an old profile, of all its families but perhaps one, on the stand-ins named."""

    claim: str
    old: str = SMALL
    kinds: tuple[str, ...] = (JUDGED, TERMS)
    without: str | None = None


# Of up to 400 runs: whole, on both stand-ins.
CHEAP = (
    *(Planned("flowprefill-fig12", old) for old in (SMALL, MIDDLE, LARGE)),
    *(Planned(f"flowprefill-{name}") for name in ("rounds", "fig14", "fig16", "fig11")),
    *(Planned(f"proserve-{name}") for name in ("mape", "fig16-17", "fig5-6", "fig13", "fig18")),
)
# The cheapest first: without the family that costs most, and on the judged device alone.
COSTLY = (
    *(Planned(f"proserve-{name}", SMALL, (JUDGED,), LONG) for name in ("fig15", "fig7", "fig3")),
    *(Planned("proserve-fig10", old, (JUDGED,), LONG) for old in (SMALL, LARGE)),
    *(Planned(f"proserve-{name}", SMALL, (JUDGED,), LONG) for name in ("fig11", "fig12")),
    *(Planned(f"qoserve-{name}", SMALL, (JUDGED,)) for name in ("fig12", "fig14", "fig11")),
    Planned("flowprefill-fig9", SMALL, (JUDGED,)),
)
PLAN = CHEAP + COSTLY
# Added when the judged device had changed much: is it how fast it is, or what the recipe says beside that?
EXAMINED = tuple(one._replace(kinds=(SLOWED, RECIPE)) for one in CHEAP if one.old == SMALL)


def left_out() -> list[tuple[str, list[str], list[str]]]:
    """The claims of which something is not run again: with the old profiles of theirs that nothing stands in for here,
    and with the families that are not run on those that are."""
    planned = {(one.claim, one.old): one for one in PLAN}
    found = []
    for id, claim in claims().items():
        olds = claim.sized(FULL).devices
        absent = [old for old in olds if (id, old) not in planned]
        without = {one.without for one in PLAN if one.claim == id and one.without is not None}
        if absent or without:
            found.append((id, absent, sorted(without)))
    return found
