"""Which claims are run again, on what, and what they cost: chosen by cost, before any of them was run."""

from __future__ import annotations

from typing import NamedTuple

from servegym.experiments.better_devices.devices import JUDGED, TERMS
from servegym.experiments.claims.harness.claim import claims
from servegym.experiments.claims.harness.settings import FULL

SMALL, MIDDLE, LARGE = "a100-llama3-8b", "a100-qwen2.5-14b-tp2", "a100-llama3-70b-tp4"
LONG = "mooncake-conversation"  # of a claim with four families half the time


class Planned(NamedTuple):
    """A claim's settings on an old profile, of all its families but one, on the stand-ins named."""

    claim: str
    old: str = SMALL
    kinds: tuple[str, ...] = (JUDGED, TERMS)
    without: str = ""


# The cheapest first. Of more than a thousand runs: without the family that costs most, and on the judged device alone.
PLAN = (
    *(Planned("flowprefill-fig12", old) for old in (SMALL, MIDDLE, LARGE)),
    *(Planned(f"flowprefill-{name}") for name in ("rounds", "fig14", "fig16", "fig11")),
    *(Planned(f"proserve-{name}") for name in ("mape", "fig16-17", "fig5-6", "fig13", "fig18")),
    Planned("qoserve-fig12"),
    *(Planned(f"proserve-{name}", SMALL, (JUDGED,), LONG) for name in ("fig15", "fig7", "fig3", "fig11", "fig12")),
    *(Planned(f"qoserve-{name}", SMALL, (JUDGED,)) for name in ("fig14", "fig11")),
    *(Planned("proserve-fig10", old, (JUDGED,), LONG) for old in (SMALL, LARGE)),
    Planned("flowprefill-fig9", SMALL, (JUDGED,)),
)


def left_out() -> list[tuple[str, list[str], list[str]]]:
    """The claims of which something is not run again: with the old profiles of theirs that nothing stands in for here,
    and with the families that are not run on those that are."""
    planned = {(one.claim, one.old): one for one in PLAN}
    found = []
    for id, claim in claims().items():
        olds = claim.sized(FULL).devices
        absent = [old for old in olds if (id, old) not in planned]
        families = [planned[id, old].without for old in olds if (id, old) in planned and planned[id, old].without]
        if absent or families:
            found.append((id, absent, list(dict.fromkeys(families))))
    return found
